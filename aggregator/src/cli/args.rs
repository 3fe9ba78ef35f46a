//! Command-line arguments and their environment variables, parsed and validated. The docstrings are the `--help` texts.

use crate::admin::Links;
use crate::api::rls::config::Domains;
use crate::api::rls::{self, Answering, XdsOptions};
use crate::api::{ApiSettings, Insecure};
use crate::auth::{Entry, Listed};
use crate::cli::database::{DatabaseReadUrl, DatabaseUrl};
use crate::cli::overrides::Overrides;
use crate::database::{DatabaseOptions, ZoneChange, ZoneError};
use crate::net::hosts::Hosts;
use crate::net::tls::TlsFiles;
use crate::redis::StoreOptions;
use crate::server::Settings;
use crate::telemetry::build;
use crate::telemetry::spans::TelemetryOptions;
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use std::path::PathBuf;
use std::time::Duration;
use weir_core::fields::parse_ms;
use weir_core::model::key::{MAX_DURATION_MS, MIN_DURATION_MS};
use weir_core::model::schedule::Schedule;
use weir_core::region::RegionLimits;

/// The value that disables the HTTP listener.
const NO_LISTENER: &str = "none";
/// Longest name of a region, in bytes.
const MAX_REGION_BYTES: usize = 48;

/// Weir's aggregator: merges the counts of a region's Envoys and sends each Envoy the counts of the others.
#[derive(Parser)]
#[command(name = "weir-aggregator", version = build::SUMMARY, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    /// Log filter, in the syntax of Rust's tracing: `info`, `debug`, `weir_aggregator=debug,warn`.
    #[arg(long, global = true, env = "WEIR_LOG", default_value = "info", value_name = "DIRECTIVES")]
    pub log: String,
    /// Log format.
    #[arg(long, global = true, env = "WEIR_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,
}

#[derive(Subcommand)]
pub enum Command {
    /// Run an aggregator for a region.
    Serve(Box<Serve>),
    /// Validate a filter's configuration with the filter's own parser.
    CheckConfig {
        /// The filter's object, Kubernetes objects or a whole Envoy configuration, in YAML or JSON; a tokens file; or a file
        /// or folder of --rls-config. - reads the standard input.
        #[arg(required_unless_present = "schema")]
        file: Option<PathBuf>,
        /// Print the JSON Schema of the filter's configuration, for editors.
        #[arg(long, conflicts_with_all = ["file", "json"])]
        schema: bool,
        /// Print one JSON object with the errors: document, path and message.
        #[arg(long)]
        json: bool,
    },
    /// Query the readiness of the aggregator on this machine: exit code 0 if ready, else 1. For container health
    /// checks.
    Healthcheck(AdminListen),
    /// Create or upgrade the database's tables.
    Migrate {
        #[command(flatten)]
        database: DatabaseUrl,
    },
    /// Create a token for an application or a filter. Prints the token once, with the entry for the tokens file.
    Token(Token),
    /// Delete expired rows from the database; run it regularly, for example by cron.
    Cleanup(Cleanup),
    /// Live control through an aggregator's HTTP API: limits, exemptions, bans, credits, resets, shadow switches.
    Overrides {
        #[command(subcommand)]
        command: Box<Overrides>,
    },
    /// Show the keys nearest their limits, the decisions of the rules, and the state of the parts.
    Top(Top),
    /// Explain a key: its counts by node and region, its limit, and the outcome of a request now.
    Explain(Explain),
    /// List, create, change and delete the ledger's zones.
    Zones {
        #[command(subcommand)]
        command: Zones,
    },
    /// Print the script with which a shell completes commands and options.
    Completions {
        /// The shell.
        shell: Shell,
    },
}

/// The admin listener of an aggregator.
#[derive(Debug, Args)]
pub struct AdminListen {
    /// Address of the admin listener for operators and Prometheus (HTTP).
    #[arg(long, env = "WEIR_ADMIN_LISTEN", default_value = "127.0.0.1:7070", value_name = "HOST:PORT")]
    pub admin_listen: String,
}

/// The aggregator to query.
#[derive(Debug, Args)]
pub struct AdminOptions {
    /// URL of the aggregator's admin listener.
    #[arg(long, env = "WEIR_ADMIN_URL", default_value = "http://127.0.0.1:7070", value_name = "URL")]
    pub admin_url: String,
    /// Print JSON once.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Top {
    #[command(flatten)]
    pub admin: AdminOptions,
    /// Print the tables once as text; the default if the output is not a terminal.
    #[arg(long)]
    pub once: bool,
    /// Print only the keys whose identifier or namespace contains this, without regard to case, as the page's search finds them.
    #[arg(long, value_name = "TEXT")]
    pub text: Option<String>,
}

#[derive(Debug, Args)]
pub struct Explain {
    #[command(flatten)]
    pub admin: AdminOptions,
    /// Workspace of the key.
    #[arg(long, default_value = "default", value_name = "NAME")]
    pub workspace: String,
    /// Namespace, as in the rule; default: each namespace of the workspace that counts the identifier.
    #[arg(long, value_name = "NAME", conflicts_with = "zone")]
    pub namespace: Option<String>,
    /// Zone of the ledger, in place of a namespace.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub zone: Option<u32>,
    /// Identifier, as a request carries it.
    #[arg(long, value_name = "TEXT")]
    pub identifier: String,
    /// Show only this window: 1s to 366d.
    #[arg(long, value_parser = window, value_name = "DURATION")]
    pub window: Option<Duration>,
}

#[derive(Debug, Args)]
pub struct Token {
    /// Name of the holder, shown in logs.
    #[arg(long, value_parser = name)]
    pub name: String,
    /// The only workspace that the application may use.
    #[arg(long, default_value = "default", value_parser = name, conflicts_with = "workspaces")]
    pub workspace: String,
    /// Make a token for a filter: the workspaces that its configuration may use, separated by commas, or `all`.
    #[arg(long, value_name = "NAMES")]
    pub workspaces: Option<Listed<String>>,
    /// Zones of the ledger that may be used, separated by commas, or `all`.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "NUMBERS")]
    pub zones: Listed<u32>,
    /// Allow the application to read and change live control.
    #[arg(long, conflicts_with = "workspaces")]
    pub control: bool,
    /// Namespaces in which the application may count, separated by commas, or `all`; a name that ends with `*` is a
    /// prefix. Default: none, and limits of the rate-limit service that have no name.
    #[arg(long, value_name = "NAMES", conflicts_with = "workspaces")]
    pub namespaces: Option<Listed<String>>,
    /// Most that one request of the application may use of one limit and identifier.
    #[arg(long, value_name = "NUMBER", conflicts_with = "workspaces")]
    pub max_cost: Option<u64>,
    /// Use a certificate instead of a token: a DNS name or URI in the client's certificate.
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
    /// Delete rows that expired at least this long ago.
    #[arg(long, default_value = "1h", value_parser = duration, value_name = "DURATION")]
    pub older_than: Duration,
    /// Most rows that one statement deletes.
    #[arg(long, default_value_t = 25_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000), value_name = "NUMBER")]
    pub batch: u32,
    /// Delete transactions of the ledger after this time, except those that their zone still counts.
    #[arg(long, env = "WEIR_LEDGER_RETENTION", default_value = "90d", value_parser = duration, value_name = "DURATION")]
    pub ledger_retention: Duration,
    #[command(flatten)]
    pub control: ControlRetention,
}

/// Retention of deleted and expired live control.
#[derive(Clone, Copy, Debug, Args)]
pub struct ControlRetention {
    /// Keep deleted and expired controls for this time.
    #[arg(long, env = "WEIR_CONTROL_RETENTION", default_value = "30d", value_parser = duration, value_name = "DURATION")]
    pub control_retention: Duration,
    /// Keep audit entries of live control for this time.
    #[arg(long, env = "WEIR_AUDIT_RETENTION", default_value = "400d", value_parser = duration, value_name = "DURATION")]
    pub audit_retention: Duration,
}

/// Operations on zones.
#[derive(Debug, Subcommand)]
pub enum Zones {
    /// List all zones.
    List {
        #[command(flatten)]
        database: DatabaseUrl,
        /// Print one JSON array.
        #[arg(long)]
        json: bool,
    },
    /// Create or change a zone; the next attempt uses the new values.
    Set(SetZone),
    /// Delete a zone. Further attempts in it fail; recorded attempts stay until the cleanup.
    Delete {
        #[command(flatten)]
        database: DatabaseUrl,
        /// Number of the zone.
        #[arg(long, value_name = "NUMBER")]
        zone: u32,
    },
}

#[derive(Debug, Args)]
pub struct SetZone {
    #[command(flatten)]
    pub database: DatabaseUrl,
    /// Number of the zone, as in the rules: 1 or more.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    zone: u32,
    /// The most that may be used in any window: 0 to 2^53.
    #[arg(long, value_name = "NUMBER")]
    rate: u64,
    /// Length of the window in whole seconds: 1s to 366 days.
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    window: Duration,
    /// Description; default: keep the present one.
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
}

impl SetZone {
    /// The validated change.
    pub fn change(self) -> Result<ZoneChange, ZoneError> {
        ZoneChange::new(self.zone, self.rate, self.window, self.description)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One line of text for each event.
    Text,
    /// One JSON object for each event.
    Json,
}

/// Interfaces that may be served without authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// The gRPC listener, to other machines.
    Grpc,
    /// The HTTP listener, to other machines.
    Http,
    /// The admin listener, to other machines.
    Admin,
    /// Live control over HTTP, without a tokens file.
    Control,
}

#[derive(Args)]
pub struct Serve {
    /// Name of the region of this aggregator; required.
    #[arg(long, env = "WEIR_REGION", default_value = "", hide_default_value = true, value_name = "NAME")]
    region: String,
    /// Address of the gRPC listener, for filters and for Envoys without the filter.
    #[arg(long, env = "WEIR_GRPC_LISTEN", default_value = "127.0.0.1:7071", value_name = "HOST:PORT")]
    grpc_listen: String,
    #[command(flatten)]
    admin: AdminListen,
    /// Host names under which browsers may use the admin listener, separated by commas. IP addresses and localhost are
    /// always allowed.
    #[arg(
        long,
        env = "WEIR_ADMIN_HOSTS",
        default_value = "",
        hide_default_value = true,
        value_parser = Hosts::parse,
        value_name = "NAMES"
    )]
    admin_hosts: Hosts,
    /// URL of Grafana, http:// or https://, to which the status page links. Without it there is no such link.
    #[arg(
        long,
        env = "WEIR_GRAFANA_URL",
        default_value = "",
        hide_default_value = true,
        value_parser = Links::parse,
        value_name = "URL"
    )]
    grafana_url: Links,
    /// Address of the HTTP listener, for applications and live control; `none` disables it.
    #[arg(long, env = "WEIR_HTTP_LISTEN", default_value = "127.0.0.1:7072", value_name = "HOST:PORT")]
    http_listen: String,
    /// Interfaces to serve without authentication, separated by commas: `grpc`, `http` and `admin` to other machines;
    /// `control` (live control over HTTP) without a tokens file.
    #[arg(long, env = "WEIR_INSECURE", value_delimiter = ',', value_name = "PARTS")]
    insecure: Vec<Part>,
    /// Credentials of applications, of callers of the rate-limit service and of filters, as YAML; reloaded when the file
    /// changes. Without it, every client on this machine may use the HTTP API. See weir-aggregator token.
    #[arg(long, env = "WEIR_TOKENS_FILE", value_name = "FILE")]
    tokens_file: Option<PathBuf>,
    /// Certificate chain of the gRPC and HTTP listeners, as PEM; reloaded when the file changes. Without it, both
    /// listeners use plain text.
    #[arg(long, env = "WEIR_TLS_CERT_FILE", value_name = "FILE")]
    tls_cert_file: Option<PathBuf>,
    /// Private key of the certificate, as PEM.
    #[arg(long, env = "WEIR_TLS_KEY_FILE", value_name = "FILE")]
    tls_key_file: Option<PathBuf>,
    /// Certificate authorities for client certificates, as PEM. Without it, clients need no certificate.
    #[arg(long, env = "WEIR_TLS_CLIENT_CA_FILE", value_name = "FILE")]
    tls_client_ca_file: Option<PathBuf>,
    /// Token that filters must present to connect. Use the variable, because other users can read a process's
    /// arguments.
    #[arg(
        long,
        env = "WEIR_FILTER_TOKEN",
        default_value = "",
        hide_default_value = true,
        hide_env_values = true
    )]
    filter_token: String,
    /// Most keys in memory. If it is reached, keys with low use are evicted; if there are none, new keys are refused.
    #[arg(long, env = "WEIR_MAX_KEYS", default_value_t = RegionLimits::default().max_keys, value_name = "NUMBER")]
    max_keys: usize,
    /// Redis of the region's aggregators: redis:// or rediss://, several nodes of a Redis Cluster separated by
    /// commas, or the Sentinels that name the primary: redis+sentinel://host,host/name. Without it, the region has one aggregator, which keeps its state in memory. Use the variable if the URL
    /// contains a password.
    #[arg(
        long,
        env = "WEIR_REDIS_URL",
        default_value = "",
        hide_default_value = true,
        hide_env_values = true,
        value_name = "URL"
    )]
    redis_url: String,
    /// Prefix of every key in Redis.
    #[arg(long, env = "WEIR_REDIS_PREFIX", default_value = "weir", value_name = "TEXT")]
    redis_prefix: String,
    /// Certificate authorities for Redis' TLS certificate, as PEM; default: the system's.
    #[arg(long, env = "WEIR_REDIS_CA_FILE", value_name = "FILE")]
    redis_ca_file: Option<PathBuf>,
    #[command(flatten)]
    database: DatabaseUrl,
    #[command(flatten)]
    replica: DatabaseReadUrl,
    /// Create or upgrade the tables of the database at the start.
    #[arg(long, env = "WEIR_MIGRATE")]
    migrate: bool,
    /// Limits for Envoy's rate-limit service, in the YAML of the reference service: a file, or a folder of files.
    /// Reloaded when they change.
    #[arg(long, env = "WEIR_RLS_CONFIG", value_name = "PATH")]
    rls_config: Option<PathBuf>,
    #[command(flatten)]
    rls: Rls,
    /// OTLP endpoint for OpenTelemetry spans (gRPC): http://host:4317 or https://host:4317. Without it, and without
    /// OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT, no spans are made.
    #[arg(
        long,
        env = "WEIR_OTLP_ENDPOINT",
        default_value = "",
        hide_default_value = true,
        value_name = "URL"
    )]
    otlp_endpoint: String,
    /// Use the database about every 300 ms, for tests that wait for it.
    #[arg(long, hide = true)]
    test_schedule: bool,
}

/// The rate-limit service.
#[derive(Clone, Args)]
pub struct Rls {
    /// xDS server that sends the rate-limit service's limits, in place of --rls-config: http://host:port or
    /// https://host:port.
    #[arg(long, env = "WEIR_RLS_XDS_URL", default_value = "", hide_default_value = true, value_name = "URL")]
    rls_xds_url: String,
    /// Node id of this aggregator at the xDS server.
    #[arg(long, env = "WEIR_RLS_XDS_NODE", default_value = "default", value_name = "TEXT")]
    rls_xds_node: String,
    /// Certificate authorities for the xDS server's certificate, as PEM; default: the system's.
    #[arg(long, env = "WEIR_RLS_XDS_CA_FILE", value_name = "FILE")]
    rls_xds_ca_file: Option<PathBuf>,
    /// Client certificate for the xDS server, as PEM; read for each connection.
    #[arg(long, env = "WEIR_RLS_XDS_CERT_FILE", value_name = "FILE")]
    rls_xds_cert_file: Option<PathBuf>,
    /// Private key of the client certificate, as PEM.
    #[arg(long, env = "WEIR_RLS_XDS_KEY_FILE", value_name = "FILE")]
    rls_xds_key_file: Option<PathBuf>,
    /// Token for the xDS server, sent as authorization: Bearer. Use the variable.
    #[arg(
        long,
        env = "WEIR_RLS_XDS_TOKEN",
        default_value = "",
        hide_default_value = true,
        hide_env_values = true
    )]
    rls_xds_token: String,
    /// Let several files or resources name one domain, which then has the descriptors of all.
    #[arg(long, env = "WEIR_RLS_MERGE_DOMAINS")]
    rls_merge_domains: bool,
    /// Put every limit of the rate-limit service in shadow mode.
    #[arg(long, env = "WEIR_RLS_SHADOW_MODE")]
    rls_shadow_mode: bool,
    /// Treat every limit of the rate-limit service as one in quota mode.
    #[arg(long, env = "WEIR_RLS_QUOTA_MODE")]
    rls_quota_mode: bool,
    /// Add dynamic_metadata to responses: the request, and the metadata of the limits that pass.
    #[arg(long, env = "WEIR_RLS_DYNAMIC_METADATA")]
    rls_dynamic_metadata: bool,
    /// Add headers to responses: three names, separated by commas, for the limit, what remains, and the seconds until the
    /// window ends, as in RateLimit-Limit,RateLimit-Remaining,RateLimit-Reset.
    #[arg(
        long,
        env = "WEIR_RLS_RESPONSE_HEADERS",
        default_value = "",
        hide_default_value = true,
        value_parser = header_names,
        value_name = "NAMES"
    )]
    rls_response_headers: HeaderNames,
    /// Add this header to requests that pass although limits are exceeded, as these are in shadow mode or other quotas have room. It names
    /// them, separated by commas.
    #[arg(
        long,
        env = "WEIR_RLS_EXCEEDED_HEADER",
        default_value = "",
        hide_default_value = true,
        value_parser = header_name,
        value_name = "NAME"
    )]
    rls_exceeded_header: HeaderName,
}

/// The names of three headers, or none.
#[derive(Clone, Debug)]
struct HeaderNames(Option<[String; 3]>);

/// The name of a header, or none.
#[derive(Clone, Debug)]
struct HeaderName(Option<String>);

fn header_name(text: &str) -> Result<HeaderName, &'static str> {
    match text.bytes().all(weir_core::fields::is_token_byte) {
        true => Ok(HeaderName(Some(text.to_owned()).filter(|name| !name.is_empty()))),
        false => Err("expected the name of a header, such as x-ratelimit-exceeded"),
    }
}

fn header_names(text: &str) -> Result<HeaderNames, &'static str> {
    if text.is_empty() {
        return Ok(HeaderNames(None));
    }
    let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
    let is_name = |name: &String| !name.is_empty() && name.bytes().all(weir_core::fields::is_token_byte);
    let expected = "expected three names of headers, separated by commas";
    let names = <[String; 3]>::try_from(names).map_err(|_| expected)?;
    if names.iter().all(is_name) { Ok(HeaderNames(Some(names))) } else { Err(expected) }
}

impl Rls {
    fn settings(self, files: Option<PathBuf>) -> Result<rls::Settings, Unusable> {
        let xds = if self.rls_xds_url.is_empty() {
            let alone = [
                ("--rls-xds-ca-file", self.rls_xds_ca_file.is_some()),
                ("--rls-xds-cert-file", self.rls_xds_cert_file.is_some()),
                ("--rls-xds-key-file", self.rls_xds_key_file.is_some()),
                ("--rls-xds-token", !self.rls_xds_token.is_empty()),
            ];
            if let Some((option, _)) = alone.into_iter().find(|(_, given)| *given) {
                return Err(rls::xds::OptionsError::Alone(option).into());
            }
            None
        } else {
            let identity = (self.rls_xds_cert_file.clone(), self.rls_xds_key_file.clone());
            let token = Some(self.rls_xds_token).filter(|token| !token.is_empty());
            let ca_file = self.rls_xds_ca_file.clone();
            Some(XdsOptions::new(self.rls_xds_url, self.rls_xds_node, ca_file, identity, token)?)
        };
        if xds.is_some() && files.is_some() {
            return Err(Unusable::TwoSources);
        }
        Ok(rls::Settings {
            files,
            xds,
            domains: if self.rls_merge_domains { Domains::Merged } else { Domains::Unique },
            answering: Answering {
                shadow_mode: self.rls_shadow_mode,
                quota_mode: self.rls_quota_mode,
                dynamic_metadata: self.rls_dynamic_metadata,
                response_headers: self.rls_response_headers.0,
                exceeded_header: self.rls_exceeded_header.0,
            },
        })
    }
}

/// Why the arguments are invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// The region is missing.
    #[error("no region is set; set --region or WEIR_REGION, as in --region eu-west-1")]
    NoRegion,
    /// The region's name is invalid.
    #[error(
        "the region {0:?} is not a valid name; set --region or WEIR_REGION to 1 to {MAX_REGION_BYTES} printable ASCII characters"
    )]
    BadRegion(String),
    /// There would be no room for a key.
    #[error("--max-keys is 0; set it to 1 or more")]
    NoKeys,
    /// The options of Redis are invalid.
    #[error("{0}; see --redis-url or WEIR_REDIS_URL")]
    Redis(#[from] crate::redis::OptionsError),
    /// A replica without a primary.
    #[error("--database-read-url is set without --database-url; set both")]
    ReplicaAlone,
    /// One of two options that belong together is missing.
    #[error("{0} is set without {1}; TLS needs both")]
    TlsHalf(&'static str, &'static str),
    /// An address is invalid.
    #[error("{0} is {1:?}; expected a host and a port, as in 127.0.0.1:7071 or [::1]:7071")]
    Listen(&'static str, String),
    /// The limits of the rate-limit service have two sources.
    #[error(
        "--rls-config and --rls-xds-url are both set; the rate-limit service's limits come from one of them"
    )]
    TwoSources,
    /// The options of the xDS server are invalid.
    #[error("{0}")]
    Xds(#[from] rls::xds::OptionsError),
    /// The options of the database are invalid.
    #[error("{0}")]
    Database(#[from] crate::database::OptionsError),
    /// The options of OpenTelemetry are invalid.
    #[error("{0}")]
    Telemetry(#[from] crate::telemetry::spans::OptionsError),
}

impl Serve {
    /// Validates what clap does not.
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
            admin_links: self.grafana_url,
            token: Some(self.filter_token).filter(|token| !token.is_empty()),
            limits: RegionLimits { max_keys: self.max_keys, ..RegionLimits::default() },
        })
    }

    fn api(&self) -> Result<ApiSettings, Unusable> {
        const CERTIFICATE: &str = "--tls-cert-file (WEIR_TLS_CERT_FILE)";
        const KEY: &str = "--tls-key-file (WEIR_TLS_KEY_FILE)";
        let tls = match (self.tls_cert_file.clone(), self.tls_key_file.clone()) {
            (Some(certificate), Some(key)) => {
                let client_authorities = self.tls_client_ca_file.clone();
                Some(TlsFiles { certificate, key, client_authorities })
            }
            (Some(_), None) => return Err(Unusable::TlsHalf(CERTIFICATE, KEY)),
            (None, Some(_)) => return Err(Unusable::TlsHalf(KEY, CERTIFICATE)),
            (None, None) if self.tls_client_ca_file.is_some() => {
                return Err(Unusable::TlsHalf("--tls-client-ca-file (WEIR_TLS_CLIENT_CA_FILE)", CERTIFICATE));
            }
            (None, None) => None,
        };
        Ok(ApiSettings {
            http_listen: Some(self.http_listen.clone()).filter(|address| address != NO_LISTENER),
            insecure: self.insecure(),
            tokens_file: self.tokens_file.clone(),
            tls,
            rls: self.rls.clone().settings(self.rls_config.clone())?,
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

/// Whether the address has the form host:port.
fn is_host_and_port(address: &str) -> bool {
    let parts = address.rsplit_once(':');
    parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

/// Parses a window that a rule may have.
fn window(text: &str) -> Result<Duration, &'static str> {
    let within = |ms: &u64| (MIN_DURATION_MS..=MAX_DURATION_MS).contains(ms);
    let ms = parse_ms(text).filter(within).ok_or("expected 1s to 366d, such as 90s, 5m or 1h")?;
    Ok(Duration::from_millis(ms))
}

/// Parses a duration as in a rule.
fn duration(text: &str) -> Result<Duration, &'static str> {
    let ms = parse_ms(text).ok_or("expected a number with ms, s, m, h or d, such as 90s, 24h or 7d")?;
    Ok(Duration::from_millis(ms))
}

/// Accepts 1 to 64 printable characters that need no escape in YAML.
fn name(text: &str) -> Result<String, &'static str> {
    let plain = |byte: u8| (b' '..=b'~').contains(&byte) && !matches!(byte, b'"' | b'\\');
    match (1..=64).contains(&text.len()) && text.bytes().all(plain) {
        true => Ok(text.to_owned()),
        false => Err("expected 1 to 64 printable ASCII characters other than \" and \\"),
    }
}
