//! The arguments of the `overrides` commands, and their form as fields and parameters of requests.

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use weir_core::fields::parse_ms;
use weir_core::matching::networks::parse_network;

/// The namespace that stands for all.
const ALL: &str = "*";
/// Prefix of the widest network of IPv4 that needs no confirmation; hardly anybody has a wider one.
const WIDEST_V4: u8 = 8;
/// Prefix of the widest network of IPv6 that needs no confirmation.
const WIDEST_V6: u8 = 16;

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
        /// Confirm a reset of all identifiers (--identifier '*', in whatever namespace).
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
    /// Confirm a ban, an exemption or a limit of 0 for all identifiers (--identifier '*', in whatever namespace), or for a network wider
    /// than an IPv4 /8 or an IPv6 /16.
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

    /// The clients that the target has, if these are all, or so many that an operator has to confirm it.
    fn crowd(&self) -> Option<String> {
        let namespace = self.namespace.as_deref().unwrap_or_default();
        let within = match namespace {
            ALL => String::new(),
            namespace => format!(" in the namespace {namespace:?}"),
        };
        if self.identifier.as_deref().is_some_and(is_everything) {
            return Some(format!("all clients{within}"));
        }
        // What cannot be read is refused by the server.
        let network = self.network.as_deref().and_then(|text| parse_network(text).ok())?;
        let widest = if network.addr().is_ipv4() { WIDEST_V4 } else { WIDEST_V6 };
        match network.prefix_len() {
            0 => Some(format!("all clients{within}")),
            length if length < widest => Some(format!("all clients of {network}{within}")),
            _ => None,
        }
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
    pub fn unconfirmed(&self) -> Option<String> {
        match self {
            Overrides::Reset { place, yes: false, .. } => {
                Some(format!("reset the counts of {}", place.crowd()?))
            }
            Overrides::Set(Set { place, ban: true, yes: false, .. }) => {
                Some(format!("deny the requests of {}", place.crowd()?))
            }
            Overrides::Set(Set { place, exempt: true, yes: false, .. }) => {
                Some(format!("exempt {} from limits", place.crowd()?))
            }
            Overrides::Set(Set { place, limit: Some(0), yes: false, .. }) => {
                Some(format!("set a limit of 0 for {}", place.crowd()?))
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

/// Whether a pattern matches every identifier, of one part or of several.
fn is_everything(pattern: &str) -> bool {
    pattern.contains('*') && pattern.bytes().all(|byte| matches!(byte, b'*' | b'|'))
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
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(subcommand)]
        command: Overrides,
    }

    /// What a command would do to everybody.
    fn unconfirmed(words: &[&str]) -> Option<String> {
        Line::try_parse_from([&["overrides"], words].concat()).unwrap().command.unconfirmed()
    }

    /// Changes that deny, exempt or reset, of a target.
    fn changes<'a>(target: &[&'a str]) -> Vec<Vec<&'a str>> {
        let bare: [&[&str]; 4] =
            [&["set", "--ban"], &["set", "--limit", "0"], &["set", "--exempt"], &["reset"]];
        // A reset has no network.
        let can = |change: &&[&str]| change[0] != "reset" || !target.contains(&"--network");
        bare.into_iter().filter(can).map(|change| [change, target].concat()).collect()
    }

    #[test]
    fn what_reaches_all_clients_is_confirmed_however_it_is_spelt() {
        let everybody: [&[&str]; 13] = [
            &["--namespace", "*", "--identifier", "*"],
            &["--namespace", "*", "--identifier", "**"],
            &["--namespace", "per-key", "--identifier", "*"],
            &["--namespace", "per-key", "--identifier", "***"],
            &["--namespace", "per-key", "--identifier", "*|*"],
            &["--namespace", "*", "--network", "0.0.0.0/0"],
            &["--namespace", "per-key", "--network", "0.0.0.0/1"],
            &["--namespace", "per-key", "--network", "128.0.0.0/1"],
            &["--namespace", "per-key", "--network", "10.0.0.0/7"],
            &["--namespace", "*", "--network", "::/0"],
            &["--namespace", "*", "--network", "2000::/3"],
            &["--namespace", "*", "--network", "2a00::/12"],
            &["--namespace", "*", "--network", "::ffff:0.0.0.0/96"],
        ];
        for command in everybody.into_iter().flat_map(changes) {
            assert!(unconfirmed(&command).is_some(), "{command:?}");
            let confirmed = [command.as_slice(), &["--yes"]].concat();
            assert_eq!(unconfirmed(&confirmed), None, "{confirmed:?}");
        }
        let some: [&[&str]; 7] = [
            &["--namespace", "*", "--identifier", "alice"],
            &["--namespace", "*", "--identifier", "a*"],
            &["--namespace", "per-key", "--identifier", r"\*"],
            &["--namespace", "per-key", "--identifier", "*|gold"],
            &["--namespace", "*", "--network", "10.0.0.0/8"],
            &["--namespace", "*", "--network", "2001:db8::/16"],
            &["--namespace", "*", "--network", "::ffff:10.0.0.0/104"],
        ];
        for command in some.into_iter().flat_map(changes) {
            assert_eq!(unconfirmed(&command), None, "{command:?}");
        }
        let raised = ["set", "--namespace", "per-key", "--identifier", "*", "--limit", "100"];
        assert_eq!(unconfirmed(&raised), None);
        assert_eq!(unconfirmed(&["set", "--rule", "per-key", "--shadow", "on"]), None);
    }

    #[test]
    fn who_is_reached_is_named() {
        for (target, expected) in [
            (["--namespace", "*", "--identifier", "**"], "deny the requests of all clients"),
            (
                ["--namespace", "per-key", "--identifier", "*"],
                "deny the requests of all clients in the namespace \"per-key\"",
            ),
            (["--namespace", "*", "--network", "1.2.3.4/1"], "deny the requests of all clients of 0.0.0.0/1"),
        ] {
            let command = [&["set", "--ban"][..], &target].concat();
            assert_eq!(unconfirmed(&command).as_deref(), Some(expected));
        }
    }

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
