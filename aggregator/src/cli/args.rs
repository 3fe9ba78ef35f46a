//! The command line and its environment variables, parsed and checked.
//!
//! Leaves to others: doing what is asked (`main`).

use crate::api::{ApiSettings, Insecure};
use crate::auth::{Entry, Listed};
use crate::cli::database::{DatabaseReadUrl, DatabaseUrl};
use crate::cli::overrides::Overrides;
use crate::database::{DatabaseOptions, ZoneChange, ZoneError};
use crate::net::hosts::Hosts;
use crate::net::tls::TlsFiles;
use crate::redis::StoreOptions;
use crate::server::Settings;
use crate::telemetry::spans::TelemetryOptions;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;
use weir_core::model::key::{MAX_DURATION_MS, MIN_DURATION_MS};
use weir_core::model::schedule::Schedule;
use weir_core::region::RegionLimits;

/// In place of an address: nothing listens.
const NO_LISTENER: &str = "none";
/// Longest name of a region in bytes.
const MAX_REGION_BYTES: usize = 48;

/// Merges what the Envoys of a region report and tells each what the others used.
#[derive(Debug, Parser)]
#[command(name = "weir-aggregator", version, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    /// Which lines are logged, as tracing's directives: `info`, `debug`, `weir_aggregator=debug,warn`.
    #[arg(long, global = true, env = "WEIR_LOG", default_value = "info", value_name = "DIRECTIVES")]
    pub log: String,
    /// How they look.
    #[arg(long, global = true, env = "WEIR_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve a region.
    Serve(Box<Serve>),
    /// Check a filter's configuration with the filter's own parser.
    CheckConfig {
        /// The filter's JSON, or a whole Envoy configuration as YAML or JSON; - for the standard input.
        file: PathBuf,
    },
    /// Ask the aggregator on this machine whether it is ready: 0 if it is, 1 if not. For containers.
    Healthcheck(AdminListen),
    /// Bring the global database's tables up to this version.
    Migrate {
        #[command(flatten)]
        database: DatabaseUrl,
    },
    /// Make a token for an application or a filter; it is printed once, beside the entry for the tokens file.
    Token(Token),
    /// Delete what has expired from the global database; run it now and then.
    Cleanup(Cleanup),
    /// Live control through the HTTP API of an aggregator: limits, exemptions, bans, credits, resets, shadow switches.
    Overrides {
        #[command(subcommand)]
        command: Box<Overrides>,
    },
    /// Show the keys nearest their limits, what rules decide and how the parts are.
    Top(Top),
    /// Explain a key: who used how much of its limit, and what would happen to a request now.
    Explain(Explain),
    /// The ledger's zones: which there are, and how much each allows.
    Zones {
        #[command(subcommand)]
        command: Zones,
    },
}

/// Where an aggregator is asked how it is.
#[derive(Debug, Args)]
pub struct AdminListen {
    /// Where operators and Prometheus connect (HTTP).
    #[arg(long, env = "WEIR_ADMIN_LISTEN", default_value = "127.0.0.1:7070", value_name = "HOST:PORT")]
    pub admin_listen: String,
}

/// An aggregator that is asked.
#[derive(Debug, Args)]
pub struct AdminOptions {
    /// The aggregator's admin listener.
    #[arg(long, env = "WEIR_ADMIN_URL", default_value = "http://127.0.0.1:7070", value_name = "URL")]
    pub admin_url: String,
    /// As JSON, once, for programs.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Top {
    #[command(flatten)]
    pub admin: AdminOptions,
    /// Print it once, as text; so it is where the output is no terminal.
    #[arg(long)]
    pub once: bool,
}

#[derive(Debug, Args)]
pub struct Explain {
    #[command(flatten)]
    pub admin: AdminOptions,
    /// Whose limits.
    #[arg(long, default_value = "default", value_name = "NAME")]
    pub workspace: String,
    /// As in the rule.
    #[arg(long, value_name = "NAME")]
    pub namespace: String,
    /// As a request carries it.
    #[arg(long, value_name = "TEXT")]
    pub identifier: String,
    /// This window alone: 1s to 31d.
    #[arg(long, value_parser = window, value_name = "DURATION")]
    pub window: Option<Duration>,
}

#[derive(Debug, Args)]
pub struct Token {
    /// Whose it is; shown in logs.
    #[arg(long, value_parser = name)]
    pub name: String,
    /// The only workspace that an application may use.
    #[arg(long, default_value = "default", value_parser = name, conflicts_with = "workspaces")]
    pub workspace: String,
    /// Makes it a filter's: the workspaces that its configuration may have, separated by commas, or `all`.
    #[arg(long, value_name = "NAMES")]
    pub workspaces: Option<Listed<String>>,
    /// The zones of the ledger that may be used, separated by commas, or `all`.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "NUMBERS")]
    pub zones: Listed<u32>,
    /// Whether an application may see and change live control.
    #[arg(long, conflicts_with = "workspaces")]
    pub control: bool,
    /// Where an application may count, separated by commas, or `all`; one that ends with `*` is a prefix. Without it, in all
    /// namespaces that no filter's rule counts.
    #[arg(long, value_name = "NAMES", conflicts_with = "workspaces")]
    pub namespaces: Option<Listed<String>>,
    /// The most that one request of an application may use.
    #[arg(long, value_name = "NUMBER", conflicts_with = "workspaces")]
    pub max_cost: Option<u64>,
    /// In place of a token: a DNS name or URI in the client's certificate.
    #[arg(long, value_name = "NAME")]
    pub san: Option<String>,
}

impl From<Token> for Entry {
    fn from(token: Token) -> Entry {
        let workspace = token.workspaces.is_none().then_some(token.workspace);
        Entry {
            name: token.name,
            sha256: None,
            san: token.san,
            workspace,
            workspaces: token.workspaces,
            zones: token.zones,
            control: token.control,
            namespaces: token.namespaces,
            max_cost: token.max_cost,
        }
    }
}

#[derive(Debug, Args)]
pub struct Cleanup {
    #[command(flatten)]
    pub database: DatabaseUrl,
    /// How long ago rows must have expired.
    #[arg(long, default_value = "1h", value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub older_than: Duration,
    /// Most rows that one statement deletes.
    #[arg(long, default_value_t = 25_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000), value_name = "NUMBER")]
    pub batch: u32,
    /// How old transactions of the ledger become; one that its zone counts stays, however old it is.
    #[arg(long, env = "WEIR_LEDGER_RETENTION", default_value = "90d", value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub ledger_retention: Duration,
    #[command(flatten)]
    pub control: ControlRetention,
}

/// How long what is over is kept of live control.
#[derive(Clone, Copy, Debug, Args)]
pub struct ControlRetention {
    /// How long live controls stay that were deleted or have expired.
    #[arg(long, env = "WEIR_CONTROL_RETENTION", default_value = "30d", value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub control_retention: Duration,
    /// How old the audit of live control becomes.
    #[arg(long, env = "WEIR_AUDIT_RETENTION", default_value = "400d", value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub audit_retention: Duration,
}

/// What is done with zones.
#[derive(Debug, Subcommand)]
pub enum Zones {
    /// Show all zones.
    List {
        #[command(flatten)]
        database: DatabaseUrl,
        /// As JSON, one array, for programs.
        #[arg(long)]
        json: bool,
    },
    /// Make a zone, or change it; in force with the next attempt.
    Set(SetZone),
    /// Delete a zone. Attempts in it are not decided any more; what was recorded stays until the cleanup.
    Delete {
        #[command(flatten)]
        database: DatabaseUrl,
        /// The zone's number.
        #[arg(long, value_name = "NUMBER")]
        zone: u32,
    },
}

#[derive(Debug, Args)]
pub struct SetZone {
    #[command(flatten)]
    pub database: DatabaseUrl,
    /// The zone's number, which rules name.
    #[arg(long, value_name = "NUMBER")]
    zone: u32,
    /// Most that may be used in any window: 0 to 2^53.
    #[arg(long, value_name = "NUMBER")]
    rate: u64,
    /// How long a use counts: whole seconds, 1s to 366 days.
    #[arg(long, value_parser = humantime::parse_duration, value_name = "DURATION")]
    window: Duration,
    /// What it is for; a zone that is changed keeps what it has.
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
}

impl SetZone {
    /// What the zone is to be.
    pub fn change(self) -> Result<ZoneChange, ZoneError> {
        ZoneChange::new(self.zone, self.rate, self.window, self.description)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One line per event, for people.
    Text,
    /// One JSON object per event.
    Json,
}

/// What may be served without authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// The gRPC listener, from other machines.
    Grpc,
    /// The HTTP listener, from other machines.
    Http,
    /// The admin listener, from other machines.
    Admin,
    /// Live control over HTTP, without tokens.
    Control,
}

#[derive(Debug, Args)]
pub struct Serve {
    /// Name of the region that this aggregator serves; required.
    #[arg(long, env = "WEIR_REGION", default_value = "", hide_default_value = true, value_name = "NAME")]
    region: String,
    /// Where filters connect (gRPC).
    #[arg(long, env = "WEIR_GRPC_LISTEN", default_value = "127.0.0.1:7071", value_name = "HOST:PORT")]
    grpc_listen: String,
    #[command(flatten)]
    admin: AdminListen,
    /// Names by which browsers may call the admin listener, separated by commas; addresses and localhost always may be used.
    #[arg(
        long,
        env = "WEIR_ADMIN_HOSTS",
        default_value = "",
        hide_default_value = true,
        value_parser = Hosts::parse,
        value_name = "NAMES"
    )]
    admin_hosts: Hosts,
    /// Where applications connect (HTTP); `none`: nowhere.
    #[arg(long, env = "WEIR_HTTP_LISTEN", default_value = "127.0.0.1:7072", value_name = "HOST:PORT")]
    http_listen: String,
    /// What is served without authentication, separated by commas: `grpc`, `http` and `admin` from other machines, `control`
    /// (live control over HTTP) where no tokens are set.
    #[arg(long, env = "WEIR_INSECURE", value_delimiter = ',', value_name = "PARTS")]
    insecure: Vec<Part>,
    /// Who may ask over HTTP, as YAML, read again when it changes; without it everybody on this machine may. See
    /// weir-aggregator token.
    #[arg(long, env = "WEIR_TOKENS_FILE", value_name = "FILE")]
    tokens_file: Option<PathBuf>,
    /// The certificate of the gRPC and the HTTP listener, and those between it and its authority, as PEM; read again when
    /// it changes. Without it both speak plain text.
    #[arg(long, env = "WEIR_TLS_CERT_FILE", value_name = "FILE")]
    tls_cert_file: Option<PathBuf>,
    /// The certificate's private key, as PEM.
    #[arg(long, env = "WEIR_TLS_KEY_FILE", value_name = "FILE")]
    tls_key_file: Option<PathBuf>,
    /// The authorities that clients' certificates must come from, as PEM; without it clients need none.
    #[arg(long, env = "WEIR_TLS_CLIENT_CA_FILE", value_name = "FILE")]
    tls_client_ca_file: Option<PathBuf>,
    /// What filters must know to connect; best given by the variable, as arguments are seen by everyone.
    #[arg(
        long,
        env = "WEIR_FILTER_TOKEN",
        default_value = "",
        hide_default_value = true,
        hide_env_values = true
    )]
    filter_token: String,
    /// Most keys held; keys of low use are evicted for further ones, which are refused where there are none.
    #[arg(long, env = "WEIR_MAX_KEYS", default_value_t = RegionLimits::default().max_keys, value_name = "NUMBER")]
    max_keys: usize,
    /// Where the region's aggregators meet: redis:// or rediss://, several nodes of a Redis Cluster separated by commas.
    /// Without it the region has one aggregator, which keeps it in memory. Best given by the variable.
    #[arg(
        long,
        env = "WEIR_REDIS_URL",
        default_value = "",
        hide_default_value = true,
        hide_env_values = true,
        value_name = "URL"
    )]
    redis_url: String,
    /// What every key in Redis begins with.
    #[arg(long, env = "WEIR_REDIS_PREFIX", default_value = "weir", value_name = "TEXT")]
    redis_prefix: String,
    /// The authorities that Redis' TLS certificate may come from, as PEM; the system's if not given.
    #[arg(long, env = "WEIR_REDIS_CA_FILE", value_name = "FILE")]
    redis_ca_file: Option<PathBuf>,
    #[command(flatten)]
    database: DatabaseUrl,
    #[command(flatten)]
    replica: DatabaseReadUrl,
    /// Bring the database's tables up to date first.
    #[arg(long, env = "WEIR_MIGRATE")]
    migrate: bool,
    /// The limits of Envoy's rate-limit service, in the reference service's YAML: a file, or a folder of them. Read again
    /// when they change.
    #[arg(long, env = "WEIR_RLS_CONFIG", value_name = "PATH")]
    rls_config: Option<PathBuf>,
    /// Where spans go, by OpenTelemetry's OTLP over gRPC: http://host:4317 or https://host:4317. Without it, and without
    /// OTEL_EXPORTER_OTLP_ENDPOINT, none are made.
    #[arg(
        long,
        env = "WEIR_OTLP_ENDPOINT",
        default_value = "",
        hide_default_value = true,
        value_name = "URL"
    )]
    otlp_endpoint: String,
    /// Speak to the database every 300 ms or so, for tests that wait for it.
    #[arg(long, hide = true)]
    test_schedule: bool,
}

/// Why the arguments cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// Nothing tells which region this is.
    #[error(
        "no region is set, and counts belong to one; set --region or WEIR_REGION, as in --region eu-west-1"
    )]
    NoRegion,
    /// Not a name.
    #[error(
        "the region {0:?} is no name; set --region or WEIR_REGION to 1 to {MAX_REGION_BYTES} printable ASCII characters"
    )]
    BadRegion(String),
    /// Nothing could be held.
    #[error("with --max-keys 0 nothing could be counted; set it to 1 at least")]
    NoKeys,
    /// Not where a Redis could be.
    #[error("{0}; see --redis-url or WEIR_REDIS_URL")]
    Redis(#[from] crate::redis::OptionsError),
    /// There is nothing to read a replica of.
    #[error("--database-read-url is set, and --database-url is not; the one is a replica of the other")]
    ReplicaAlone,
    /// One half of a pair.
    #[error("{0} is set, and {1} is not; TLS needs both")]
    TlsHalf(&'static str, &'static str),
    /// Nowhere to listen.
    #[error("{0} is {1:?}; expected a host and a port, as in 127.0.0.1:7071 or [::1]:7071")]
    Listen(&'static str, String),
    /// Not where a database could be.
    #[error("{0}")]
    Database(#[from] crate::database::OptionsError),
    /// Spans are wanted, and cannot be made.
    #[error("{0}")]
    Telemetry(#[from] crate::telemetry::spans::OptionsError),
}

impl Serve {
    /// Checks what the types alone do not say.
    pub fn settings(self) -> Result<Settings, Unusable> {
        if self.region.trim().is_empty() {
            return Err(Unusable::NoRegion);
        }
        let printable = self.region.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        if !printable || self.region.len() > MAX_REGION_BYTES {
            return Err(Unusable::BadRegion(self.region));
        }
        if self.max_keys == 0 {
            return Err(Unusable::NoKeys);
        }
        for (option, address) in [
            ("--grpc-listen (WEIR_GRPC_LISTEN)", &self.grpc_listen),
            ("--admin-listen (WEIR_ADMIN_LISTEN)", &self.admin.admin_listen),
            ("--http-listen (WEIR_HTTP_LISTEN)", &self.http_listen),
        ] {
            let is_none = option.starts_with("--http") && address == NO_LISTENER;
            if !is_none && !is_host_and_port(address) {
                return Err(Unusable::Listen(option, address.clone()));
            }
        }
        let store = self.store()?;
        if self.database.database_url.is_empty() && !self.replica.database_read_url.is_empty() {
            return Err(Unusable::ReplicaAlone);
        }
        let api = self.api()?;
        let telemetry = TelemetryOptions::read(&self.otlp_endpoint, |name| std::env::var(name).ok())?;
        let database = self.database.of_region(self.replica, self.region.clone());
        database.as_ref().map(DatabaseOptions::check).transpose()?;
        let schedule = if self.test_schedule { Schedule::for_tests() } else { Schedule::default() };
        Ok(Settings {
            store,
            database,
            migrate: self.migrate,
            schedule,
            api,
            telemetry,
            region: self.region,
            grpc_listen: self.grpc_listen,
            admin_listen: self.admin.admin_listen,
            admin_hosts: self.admin_hosts,
            token: Some(self.filter_token).filter(|token| !token.is_empty()),
            limits: RegionLimits { max_keys: self.max_keys, ..RegionLimits::default() },
        })
    }

    fn api(&self) -> Result<ApiSettings, Unusable> {
        const CERTIFICATE: &str = "--tls-cert-file (WEIR_TLS_CERT_FILE)";
        const KEY: &str = "--tls-key-file (WEIR_TLS_KEY_FILE)";
        let tls = match (given(&self.tls_cert_file), given(&self.tls_key_file)) {
            (Some(certificate), Some(key)) => {
                let client_authorities = given(&self.tls_client_ca_file);
                Some(TlsFiles { certificate, key, client_authorities })
            }
            (Some(_), None) => return Err(Unusable::TlsHalf(CERTIFICATE, KEY)),
            (None, Some(_)) => return Err(Unusable::TlsHalf(KEY, CERTIFICATE)),
            (None, None) if given(&self.tls_client_ca_file).is_some() => {
                return Err(Unusable::TlsHalf("--tls-client-ca-file (WEIR_TLS_CLIENT_CA_FILE)", CERTIFICATE));
            }
            (None, None) => None,
        };
        Ok(ApiSettings {
            http_listen: Some(self.http_listen.clone()).filter(|address| address != NO_LISTENER),
            insecure: self.insecure(),
            tokens_file: given(&self.tokens_file),
            tls,
            rls_config: given(&self.rls_config),
        })
    }

    fn insecure(&self) -> Insecure {
        let has = |part| self.insecure.contains(&part);
        Insecure {
            grpc: has(Part::Grpc),
            http: has(Part::Http),
            admin: has(Part::Admin),
            control: has(Part::Control),
        }
    }

    fn store(&self) -> Result<Option<StoreOptions>, Unusable> {
        if self.redis_url.is_empty() {
            return Ok(None);
        }
        let mut options = StoreOptions::parse(&self.redis_url, &self.region)?;
        options.prefix.clone_from(&self.redis_prefix);
        options.ca_file.clone_from(&self.redis_ca_file);
        Ok(Some(options))
    }
}

/// Whether somebody could listen there, if the name leads to this machine.
fn is_host_and_port(address: &str) -> bool {
    let parts = address.rsplit_once(':');
    parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

/// A window that a rule may have.
fn window(text: &str) -> Result<Duration, &'static str> {
    let time = humantime::parse_duration(text).ok();
    let ms = MIN_DURATION_MS..=MAX_DURATION_MS;
    let within = |time: &Duration| u64::try_from(time.as_millis()).is_ok_and(|time| ms.contains(&time));
    time.filter(within).ok_or("expected 1s to 31d, such as 90s, 5m or 1h")
}

/// An empty variable is one that is not set.
fn given(path: &Option<PathBuf>) -> Option<PathBuf> {
    path.clone().filter(|path| !path.as_os_str().is_empty())
}

/// 1 to 64 printable characters that need no escape in YAML.
fn name(text: &str) -> Result<String, &'static str> {
    let plain = |byte: u8| (b' '..=b'~').contains(&byte) && !matches!(byte, b'"' | b'\\');
    match (1..=64).contains(&text.len()) && text.bytes().all(plain) {
        true => Ok(text.to_owned()),
        false => Err("it is not 1 to 64 printable ASCII characters other than \" and \\"),
    }
}
