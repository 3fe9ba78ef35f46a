//! The arguments of the `overrides` commands, and their form as fields and parameters of requests.

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use weir_core::fields::parse_ms;

/// Operations on live control.
#[derive(Debug, Subcommand)]
pub enum Overrides {
    /// List the controls in force, the newest first.
    List {
        #[command(flatten)]
        server: Server,
        #[command(flatten)]
        which: Which,
        /// Only this kind.
        #[arg(long)]
        kind: Option<Listed>,
        /// Only controls that match this identifier, as a request carries it: by pattern, by network, and for all
        /// namespaces too.
        #[arg(long, value_name = "TEXT", conflicts_with_all = ["identifier", "network"])]
        matching: Option<String>,
    },
    /// Set a limit, an exemption, a ban or a rule's shadow switch; replaces an earlier one.
    Set(Set),
    /// Add a credit to the limit until it expires.
    Credit {
        #[command(flatten)]
        server: Server,
        #[command(flatten)]
        place: Place,
        /// Amount of the credit.
        #[arg(value_name = "NUMBER", value_parser = whole, allow_negative_numbers = true)]
        amount: u64,
        #[command(flatten)]
        when: When,
    },
    /// Reset the counts of an identifier in all regions.
    Reset {
        #[command(flatten)]
        server: Server,
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        why: Why,
        /// Confirm a reset of all identifiers (--namespace '*' --identifier '*').
        #[arg(long)]
        yes: bool,
    },
    /// Delete a control.
    #[command(aliases = ["remove", "rm", "unset"])]
    Delete {
        #[command(flatten)]
        server: Server,
        #[command(flatten)]
        place: Place,
        /// Kind of the control; default: override. A rule has only one kind.
        #[arg(long)]
        kind: Option<Kind>,
        /// Delete all controls of the target: override, credit and reset, for all windows.
        #[arg(long, conflicts_with_all = ["kind", "rule", "window"])]
        all_kinds: bool,
        #[command(flatten)]
        why: Why,
    },
    /// Show the changes of live control, newest first.
    Audit {
        #[command(flatten)]
        server: Server,
        #[command(flatten)]
        which: Which,
        /// Only changes of this author.
        #[arg(long, value_name = "NAME")]
        author: Option<String>,
        /// Most changes to show.
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000), value_name = "NUMBER")]
        limit: u32,
    },
}

/// The HTTP API to use, and the format of the output.
#[derive(Args, Clone)]
pub struct Server {
    /// URL of an aggregator's HTTP API; any region.
    #[arg(long, env = "WEIR_API_URL", default_value = "http://127.0.0.1:7072", value_name = "URL")]
    pub api_url: String,
    /// Token whose entry has control: true, if the server requires one. Use the variable, because other users can read
    /// a process's arguments.
    #[arg(
        long,
        env = "WEIR_API_TOKEN",
        default_value = "",
        hide_default_value = true,
        hide_env_values = true
    )]
    pub api_token: String,
    /// Certificate authorities for the server's certificate, as PEM; default: the system's.
    #[arg(long, env = "WEIR_API_CA_FILE", value_name = "FILE")]
    pub api_ca_file: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Omits the token.
impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("api_url", &self.api_url).finish_non_exhaustive()
    }
}

/// The target of a control.
#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("who").required(true).args(["identifier", "network", "rule"]))]
pub struct Place {
    /// Workspace; default: the token's workspace, or "default".
    #[arg(long, value_name = "NAME")]
    workspace: Option<String>,
    /// Namespace, usually a rule's name; * for all.
    #[arg(long, value_name = "NAME", conflicts_with = "rule", required_unless_present = "rule")]
    namespace: Option<String>,
    /// Identifier, or a pattern as in a rule's overrides.
    #[arg(long, value_name = "TEXT")]
    identifier: Option<String>,
    /// Network of clients, such as 203.0.113.0/24.
    #[arg(long, value_name = "CIDR")]
    network: Option<String>,
    /// Rule, for its shadow switch.
    #[arg(long, value_name = "NAME")]
    rule: Option<String>,
    /// Only windows of this length, such as 1m.
    #[arg(long, value_name = "DURATION")]
    window: Option<String>,
}

/// Selects controls.
#[derive(Args, Clone, Debug)]
pub struct Which {
    /// Workspace; default: the token's workspace, or "default".
    #[arg(long, value_name = "NAME")]
    workspace: Option<String>,
    /// Only this namespace or rule.
    #[arg(long, visible_alias = "rule", value_name = "NAME")]
    namespace: Option<String>,
    /// Only this identifier or pattern, as it was set.
    #[arg(long, value_name = "TEXT")]
    identifier: Option<String>,
    /// Only this network.
    #[arg(long, value_name = "CIDR")]
    network: Option<String>,
}

/// Expiry and reason.
#[derive(Args, Clone, Debug)]
pub struct When {
    /// Duration; default: no expiry.
    #[arg(long, value_parser = expires_in, conflicts_with = "expires_at", value_name = "DURATION")]
    expires_in: Option<Duration>,
    /// Expiry, such as 2030-01-31T12:00:00Z.
    #[arg(long, value_parser = expires_at, value_name = "TIME")]
    expires_at: Option<SystemTime>,
    #[command(flatten)]
    why: Why,
}

/// Reason and author.
#[derive(Args, Clone, Debug)]
pub struct Why {
    /// Reason, for the audit; required for a ban.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Author, for the audit; ignored if the server uses tokens, whose names it records.
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
    /// Limit that replaces the rule's.
    #[arg(long, value_name = "NUMBER", value_parser = whole, allow_negative_numbers = true)]
    limit: Option<u64>,
    /// Exempt from limits.
    #[arg(long)]
    exempt: bool,
    /// Deny all requests.
    #[arg(long)]
    ban: bool,
    /// Switch the rule's shadow mode: in shadow mode it counts but never denies.
    #[arg(long, value_name = "ON|OFF")]
    shadow: Option<Switch>,
    #[command(flatten)]
    when: When,
    /// Confirm a ban, an exemption or a limit of 0 for all identifiers (--namespace '*' --identifier '*', or a network /0).
    #[arg(long)]
    yes: bool,
}

/// State of a shadow switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// The rule never denies.
    On,
    /// The rule denies.
    Off,
}

/// Kind of a control.
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

/// Which controls are listed: a [`Kind`], or one of the overrides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Listed {
    /// Limits, exemptions and bans.
    Override,
    /// Limits.
    Limit,
    /// Exemptions.
    Exempt,
    /// Bans.
    Ban,
    /// Credits.
    Credit,
    /// Resets.
    Reset,
    /// Shadow switches.
    Shadow,
}

impl Listed {
    /// The kind that the server selects.
    pub fn kind(self) -> Kind {
        match self {
            Listed::Override | Listed::Limit | Listed::Exempt | Listed::Ban => Kind::Override,
            Listed::Credit => Kind::Credit,
            Listed::Reset => Kind::Reset,
            Listed::Shadow => Kind::Shadow,
        }
    }

    /// Whether it has an entry of this kind.
    pub fn has(self, entry: &Value) -> bool {
        match self {
            Listed::Limit => entry["limit"].is_u64(),
            Listed::Exempt => entry["exempt"] == true,
            Listed::Ban => entry["ban"] == true,
            Listed::Override | Listed::Credit | Listed::Reset | Listed::Shadow => true,
        }
    }
}

impl Place {
    /// As fields of a request body.
    pub fn fields(&self) -> Map<String, Value> {
        self.pairs().into_iter().map(|(name, value)| (name.to_owned(), Value::from(value))).collect()
    }

    /// As query parameters.
    pub fn pairs(&self) -> Vec<(&'static str, String)> {
        let window = self.window.clone().map(|window| ("window", window));
        self.pairs_of_all_windows().into_iter().chain(window).collect()
    }

    /// As query parameters, without the window.
    pub fn pairs_of_all_windows(&self) -> Vec<(&'static str, String)> {
        given([
            ("workspace", &self.workspace),
            ("namespace", &self.namespace),
            ("identifier", &self.identifier),
            ("network", &self.network),
            ("rule", &self.rule),
        ])
    }

    /// Whether the target is all identifiers in all namespaces, or all clients of a namespace.
    fn is_everybody(&self) -> bool {
        [&self.namespace, &self.identifier].iter().all(|text| text.as_deref() == Some("*"))
            || self.network.as_deref().is_some_and(|network| network.ends_with("/0"))
    }
}

impl Which {
    /// As query parameters.
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
    /// Adds the given values to a request body.
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
    /// As query parameters.
    pub fn pairs(&self) -> Vec<(&'static str, String)> {
        // An empty environment variable counts as unset.
        let author = self.author.clone().filter(|author| !author.is_empty());
        given([("reason", &self.reason), ("author", &author)])
    }

    /// Adds the given values to a request body.
    pub fn put(&self, fields: &mut Map<String, Value>) {
        fields.extend(self.pairs().into_iter().map(|(name, value)| (name.to_owned(), Value::from(value))));
    }
}

impl Overrides {
    /// What the command would do to everybody, if it has to be confirmed.
    pub fn unconfirmed(&self) -> Option<&'static str> {
        match self {
            Overrides::Reset { place, yes: false, .. } if place.is_everybody() => {
                Some("reset the counts of all identifiers in the workspace")
            }
            Overrides::Set(set) if !set.yes && set.place.is_everybody() => {
                match (set.ban, set.exempt, set.limit) {
                    (true, ..) => Some("deny the requests of all clients"),
                    (_, true, _) => Some("exempt all clients from limits"),
                    (.., Some(0)) => Some("set a limit of 0 for all clients"),
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

impl Set {
    /// The request body.
    pub fn body(&self) -> Value {
        let mut fields = self.place.fields();
        let given = [
            ("limit", self.limit.map(Value::from)),
            ("exempt", self.exempt.then_some(json!(true))),
            ("ban", self.ban.then_some(json!(true))),
            ("shadow", self.shadow.map(|switch| json!(switch == Switch::On))),
        ];
        fields.extend(given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        self.when.put(&mut fields);
        Value::Object(fields)
    }
}

/// The query parameter for a kind.
pub fn kind_of(kind: Option<Kind>) -> Option<(&'static str, String)> {
    Some(("kind", kind?.to_possible_value()?.get_name().to_owned()))
}

fn whole(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "expected a whole number, such as 1000".to_owned())
}

fn expires_at(text: &str) -> Result<SystemTime, String> {
    humantime::parse_rfc3339_weak(text)
        .map_err(|_| "expected a moment in UTC, with Z at its end, such as 2030-01-31T12:00:00Z".to_owned())
}

fn expires_in(text: &str) -> Result<Duration, String> {
    let is_bare = text.bytes().all(|byte| byte.is_ascii_digit());
    let expected = || {
        let problem = if is_bare { "it has no unit; " } else { "" };
        format!(
            "{problem}expected a number with ms, s, m, h or d between 1s and 3650d, such as 90s, 24h or 7d"
        )
    };
    let time = parse_ms(text).map(Duration::from_millis).ok_or_else(expected)?;
    let range = Duration::from_secs(1)..=Duration::from_secs(3_650 * 86_400);
    if range.contains(&time) { Ok(time) } else { Err(expected()) }
}

fn given<const N: usize>(named: [(&'static str, &Option<String>); N]) -> Vec<(&'static str, String)> {
    named.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_moment_and_a_duration_lack_is_named() {
        assert!(
            expires_in("7200")
                .unwrap_err()
                .starts_with("it has no unit; expected a number with ms, s, m, h or d")
        );
        // The grammar is that of a rule's window.
        for other in ["11y", "1w", "1h 30m", "1h30m"] {
            assert!(expires_in(other).unwrap_err().starts_with("expected a number with"), "{other}");
        }
        assert_eq!(expires_in("7d"), Ok(Duration::from_secs(7 * 86_400)));
        assert!(expires_at("2030-01-31T12:00:00+01:00").unwrap_err().contains("in UTC, with Z"));
    }
}
