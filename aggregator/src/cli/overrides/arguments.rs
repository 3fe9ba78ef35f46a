//! The arguments of the `overrides` commands, and what they ask of the server.
//!
//! Leaves to others: asking (`client`), telling (`show`), what may be said (the server).

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What is done with live control.
#[derive(Debug, Subcommand)]
pub enum Overrides {
    /// Show what is in force.
    List {
        #[command(flatten)]
        server: Server,
        #[command(flatten)]
        which: Which,
        /// What kind alone.
        #[arg(long)]
        kind: Option<Kind>,
        /// What names this identifier, as a request carries it: by patterns and networks and for all namespaces too.
        #[arg(long, value_name = "TEXT", conflicts_with_all = ["identifier", "network"])]
        matching: Option<String>,
    },
    /// Say a limit, an exemption or a ban of somebody, or switch a rule's shadow; replaces what was said before.
    Set(Set),
    /// Let somebody use so much more than the limit, until it expires.
    Credit {
        #[command(flatten)]
        server: Server,
        #[command(flatten)]
        place: Place,
        /// How much more.
        #[arg(value_name = "NUMBER")]
        amount: u64,
        #[command(flatten)]
        when: When,
    },
    /// Forget what somebody has used, in all regions.
    Reset {
        #[command(flatten)]
        server: Server,
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        why: Why,
        /// Yes, of everybody: for --namespace '*' --identifier '*'.
        #[arg(long)]
        yes: bool,
    },
    /// Take back what was said.
    Delete {
        #[command(flatten)]
        server: Server,
        #[command(flatten)]
        place: Place,
        /// What kind; override if not given. A rule has but one.
        #[arg(long)]
        kind: Option<Kind>,
        /// All that is said of it: override, credit and reset, of whichever windows.
        #[arg(long, conflicts_with_all = ["kind", "rule", "window"])]
        all_kinds: bool,
        #[command(flatten)]
        why: Why,
    },
    /// Show who changed what, the newest first.
    Audit {
        #[command(flatten)]
        server: Server,
        #[command(flatten)]
        which: Which,
        /// Whose changes alone.
        #[arg(long, value_name = "NAME")]
        author: Option<String>,
        /// Most changes.
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000), value_name = "NUMBER")]
        limit: u32,
    },
}

/// Where an aggregator answers, and how this is told.
#[derive(Args, Clone)]
pub struct Server {
    /// The HTTP API of an aggregator, of whichever region.
    #[arg(long, env = "WEIR_API_URL", default_value = "http://127.0.0.1:7072", value_name = "URL")]
    pub api_url: String,
    /// A token whose entry says control: true, where the server asks for one. Best given by the variable.
    #[arg(
        long,
        env = "WEIR_API_TOKEN",
        default_value = "",
        hide_default_value = true,
        hide_env_values = true
    )]
    pub api_token: String,
    /// The authorities that the server's certificate may come from, as PEM; the system's if not given.
    #[arg(long, env = "WEIR_API_CA_FILE", value_name = "FILE")]
    pub api_ca_file: Option<PathBuf>,
    /// As JSON, for programs.
    #[arg(long)]
    pub json: bool,
}

/// A token may be here.
impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("api_url", &self.api_url).finish_non_exhaustive()
    }
}

/// Whom something is said of.
#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("who").required(true).args(["identifier", "network", "rule"]))]
pub struct Place {
    /// Whose limits; the token's workspace, or "default", if not given.
    #[arg(long, value_name = "NAME")]
    workspace: Option<String>,
    /// Where identifiers are counted, a rule's name usually; * for all.
    #[arg(long, value_name = "NAME", conflicts_with = "rule", required_unless_present = "rule")]
    namespace: Option<String>,
    /// An identifier, or a pattern as in a rule's overrides.
    #[arg(long, value_name = "TEXT")]
    identifier: Option<String>,
    /// Clients of a network, such as 203.0.113.0/24.
    #[arg(long, value_name = "CIDR")]
    network: Option<String>,
    /// A rule, for its shadow switch.
    #[arg(long, value_name = "NAME")]
    rule: Option<String>,
    /// Windows of this length alone, such as 1m.
    #[arg(long, value_name = "DURATION")]
    window: Option<String>,
}

/// Which of them are shown.
#[derive(Args, Clone, Debug)]
pub struct Which {
    /// Whose limits; the token's workspace, or "default", if not given.
    #[arg(long, value_name = "NAME")]
    workspace: Option<String>,
    /// Of a namespace, or of a rule, alone.
    #[arg(long, visible_alias = "rule", value_name = "NAME")]
    namespace: Option<String>,
    /// Of an identifier or pattern alone, as it was said.
    #[arg(long, value_name = "TEXT")]
    identifier: Option<String>,
    /// Of a network alone.
    #[arg(long, value_name = "CIDR")]
    network: Option<String>,
}

/// Until when, and why.
#[derive(Args, Clone, Debug)]
pub struct When {
    /// For how long; for ever if not given.
    #[arg(long, value_parser = expires_in, conflicts_with = "expires_at", value_name = "DURATION")]
    expires_in: Option<Duration>,
    /// Until when, such as 2030-01-31T12:00:00Z.
    #[arg(long, value_parser = humantime::parse_rfc3339_weak, value_name = "TIME")]
    expires_at: Option<SystemTime>,
    #[command(flatten)]
    why: Why,
}

/// Why, and who says so.
#[derive(Args, Clone, Debug)]
pub struct Why {
    /// Why; for the audit. A ban needs one.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Who says it, for the audit; where there are tokens, they say it instead.
    #[arg(long, env = "USER", hide_env_values = true, value_name = "NAME")]
    author: Option<String>,
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).args(["limit", "exempt", "ban", "shadow"]))]
pub struct Set {
    #[command(flatten)]
    pub server: Server,
    #[command(flatten)]
    place: Place,
    /// This limit instead of the rule's.
    #[arg(long, value_name = "NUMBER")]
    limit: Option<u64>,
    /// No limit.
    #[arg(long)]
    exempt: bool,
    /// Denied.
    #[arg(long)]
    ban: bool,
    /// Whether the rule only says what it would deny.
    #[arg(long, value_name = "ON|OFF")]
    shadow: Option<Switch>,
    #[command(flatten)]
    when: When,
}

/// A switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// It never denies.
    On,
    /// It denies.
    Off,
}

/// What was said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// A limit, an exemption or a ban.
    Override,
    /// A credit.
    Credit,
    /// A reset.
    Reset,
    /// A shadow switch.
    Shadow,
}

impl Place {
    /// As fields of a body.
    pub fn fields(&self) -> Map<String, Value> {
        self.pairs().into_iter().map(|(name, value)| (name.to_owned(), Value::from(value))).collect()
    }

    /// As parameters of a query.
    pub fn pairs(&self) -> Vec<(&'static str, String)> {
        let window = self.window.clone().map(|window| ("window", window));
        self.pairs_of_all_windows().into_iter().chain(window).collect()
    }

    /// The same without a window.
    pub fn pairs_of_all_windows(&self) -> Vec<(&'static str, String)> {
        given([
            ("workspace", &self.workspace),
            ("namespace", &self.namespace),
            ("identifier", &self.identifier),
            ("network", &self.network),
            ("rule", &self.rule),
        ])
    }

    /// Whether it is everybody, everywhere.
    pub fn is_everybody(&self) -> bool {
        [&self.namespace, &self.identifier].iter().all(|text| text.as_deref() == Some("*"))
    }
}

impl Which {
    /// As parameters of a query.
    pub fn pairs(&self) -> Vec<(&'static str, String)> {
        given([
            ("workspace", &self.workspace),
            ("namespace", &self.namespace),
            ("identifier", &self.identifier),
            ("network", &self.network),
        ])
    }
}

impl When {
    /// Adds what is given to a body.
    pub fn put(&self, fields: &mut Map<String, Value>) {
        self.why.put(fields);
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        if let Some(time) = self.expires_in {
            fields.insert("expires_in".to_owned(), ms(time).into());
        }
        if let Some(at) = self.expires_at {
            let at = at.duration_since(UNIX_EPOCH).unwrap_or_default();
            fields.insert("expires_at".to_owned(), ms(at).into());
        }
    }
}

impl Why {
    /// As parameters of a query.
    pub fn pairs(&self) -> Vec<(&'static str, String)> {
        // An empty variable is one that is not set.
        let author = self.author.clone().filter(|author| !author.is_empty());
        given([("reason", &self.reason), ("author", &author)])
    }

    /// Adds what is given to a body.
    pub fn put(&self, fields: &mut Map<String, Value>) {
        fields.extend(self.pairs().into_iter().map(|(name, value)| (name.to_owned(), Value::from(value))));
    }
}

impl Set {
    /// The body that says it.
    pub fn body(&self) -> Value {
        let mut fields = self.place.fields();
        let said = [
            ("limit", self.limit.map(Value::from)),
            ("exempt", self.exempt.then_some(json!(true))),
            ("ban", self.ban.then_some(json!(true))),
            ("shadow", self.shadow.map(|switch| json!(switch == Switch::On))),
        ];
        fields.extend(said.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        self.when.put(&mut fields);
        Value::Object(fields)
    }
}

/// The words of kinds that are given.
pub fn kind_of(kind: Option<Kind>) -> Option<(&'static str, String)> {
    Some(("kind", kind?.to_possible_value()?.get_name().to_owned()))
}

fn expires_in(text: &str) -> Result<Duration, String> {
    let expected = || "expected 1s to 3650d, such as 90s, 24h or 1w".to_owned();
    let time = humantime::parse_duration(text).map_err(|_| expected())?;
    let range = Duration::from_secs(1)..=Duration::from_secs(3_650 * 86_400);
    if range.contains(&time) { Ok(time) } else { Err(expected()) }
}

fn given<const N: usize>(named: [(&'static str, &Option<String>); N]) -> Vec<(&'static str, String)> {
    named.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))).collect()
}
