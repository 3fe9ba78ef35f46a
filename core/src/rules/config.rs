//! The filter's whole configuration: [`Config::parse`], and all fields except rules.

use super::addresses::Addresses;
use super::index::Index;
use super::matcher::{Conditions, Specificity};
use super::native;
use super::parse::structure;
use super::rule::Rule;
use super::secret::{SecretKey, SecretKind, Variables, read_secret};
use crate::fields::Node;
use crate::fields::{Bounds, Value, quoted};
use crate::fields::{Errors, FieldErrors, Path};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::fmt;
use core::ops::RangeInclusive;

/// A longer text is refused without parsing it.
pub const CONFIG_BYTES_MAX: usize = 4 * 1_024 * 1_024;

/// Most rules of one configuration.
pub const RULES_MAX: usize = 1_024;

/// Most rules of one `path_group`.
const PATH_GROUP_MAX: usize = 64;

/// Most regular expressions of one configuration: with their automata they still fit in a VM.
const EXPRESSIONS_MAX: usize = 1_024;

const MAX_KEYS_DEFAULT: u32 = 262_144;
pub(super) const MAX_KEYS: RangeInclusive<u64> = 8..=8_388_608;
pub(super) const CLUSTER_BYTES_MAX: usize = 255;

pub(super) const FIELDS: [&str; 10] = [
    "workspace",
    "aggregator",
    "table",
    "responses",
    "client_networks",
    "exempt",
    "hash_key",
    "hash_key_env",
    "test_faults",
    "rules",
];
pub(super) const AGGREGATOR_FIELDS: [&str; 5] = ["cluster", "token", "token_env", "authority", "trace"];
pub(super) const TABLE_FIELDS: [&str; 1] = ["max_keys"];
pub(super) const RESPONSES_FIELDS: [&str; 6] =
    ["ietf_headers", "problem_json", "headers_on_allowed", "filter_state", "reset", "names"];
/// The values of `responses.reset`.
pub(super) const RESET: [(&str, Reset); 2] =
    [("seconds", Reset::Seconds), ("unix_seconds", Reset::UnixSeconds)];
pub(super) const NAMES_FIELDS: [&str; 3] = ["limit", "remaining", "reset"];
/// Most conditions of `exempt`.
pub(super) const EXEMPT_MAX: usize = 16;
/// Headers that responses have for other reasons, and that frame a message.
const TAKEN_NAMES: [&str; 14] = [
    "retry-after",
    "ratelimit",
    "ratelimit-policy",
    "x-ratelimit-transaction",
    "x-ratelimit-undecided",
    "x-envoy-ratelimited",
    "content-type",
    "content-length",
    "transfer-encoding",
    "connection",
    "upgrade",
    "keep-alive",
    "trailer",
    "te",
];

/// The whole configuration, as errors name it.
const ROOT: Path<'static> = Path::Root("configuration");

/// The filter's configuration, free of errors.
#[derive(Clone, Debug)]
pub struct Config {
    /// `workspace` (default `"default"`): 1 to 64 characters of `A-Za-z0-9_.-`; the tenant that the counts belong to.
    pub workspace: String,
    /// `aggregator` (required): the aggregator that this Envoy reports to.
    pub aggregator: Aggregator,
    /// `table` (default: see [`Table`]): the size of the process-wide table.
    pub table: Table,
    /// `responses` (default: see [`Responses`]): headers and bodies of responses.
    pub responses: Responses,
    /// `client_networks` (default: none): clients that are exempt or denied by their address.
    pub addresses: Addresses,
    /// `exempt` (default: none): up to 16 sets of conditions; a request that meets one is exempt from all rules.
    pub(super) exempt: Vec<Conditions>,
    /// `hash_key`, or the variable that `hash_key_env` names (required by rules with `hash`): the key of the digests
    /// that replace secret identifiers.
    pub hash_key: Option<SecretKey>,
    /// `test_faults` (default false): lets requests cause faults in the filter, for tests. Not for production.
    pub test_faults: bool,
    /// `rules` (required): 1 to 1 024, in order. An empty list is refused, as the filter would silently limit nothing.
    pub rules: Vec<Rule>,
    pub(super) index: Option<Index>,
}

/// `aggregator`: the Envoy cluster of the region's aggregator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aggregator {
    /// `cluster` (required): the name of an Envoy cluster, 1 to 255 printable ASCII characters.
    pub cluster: String,
    /// `token`, or the variable that `token_env` names (default: none): the aggregator's token, or one of its tokens
    /// file with `workspaces`; 1 to 1024 printable ASCII characters.
    pub token: Option<Token>,
    /// `authority` (default: the cluster's name): the `:authority` of the stream.
    pub authority: Option<String>,
    /// `trace` (default false): queries carry the trace and request id of the request that they are sent for.
    pub trace: bool,
}

/// `table`: the part of the process's shared data that holds keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// `max_keys` (default 262 144): 8 to 8 388 608; rounded up to a multiple of 8, the keys in a bucket.
    pub max_keys: u32,
}

/// `responses`: headers and bodies of answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Responses {
    /// `ietf_headers` (default false): adds `RateLimit` and `RateLimit-Policy` of the IETF draft, which list the rules that apply.
    pub ietf_headers: bool,
    /// `problem_json` (default false): denials have an `application/problem+json` body.
    pub problem_json: bool,
    /// `headers_on_allowed` (default false): allowed responses carry the rate-limit headers too.
    pub headers_on_allowed: bool,
    /// `filter_state` (default false): denials write rule and outcome to the filter state too.
    pub filter_state: bool,
    /// `reset` (default `seconds`): how `x-ratelimit-reset` states when the window ends.
    pub reset: Reset,
    /// `names` (default: `x-ratelimit-…`): other names of the headers of the limit, what remains, and the reset.
    pub names: [Option<Box<str>>; 3],
}

/// How a header states when the window ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reset {
    /// `seconds`: in so many seconds.
    #[default]
    Seconds,
    /// `unix_seconds`: at this second of Unix time.
    UnixSeconds,
}

/// The aggregator's token. It is available by [`Token::reveal`] only, and never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// Parses a configuration for one of the filters: [`Config::parse_with`] or [`Config::parse_native`].
pub type Parse = fn(&[u8], Variables<'_>) -> Result<Config, FieldErrors>;

impl Config {
    /// Parses a configuration that names no environment variables, or returns all errors in it. `text` is JSON, or an
    /// encoded `google.protobuf.Struct`.
    pub fn parse(text: &[u8]) -> Result<Config, FieldErrors> {
        Config::parse_with(text, &|_| None)
    }

    /// Parses a configuration, reading the environment variables that it names, or returns all errors in it.
    pub fn parse_with(text: &[u8], variables: Variables<'_>) -> Result<Config, FieldErrors> {
        let mut errors = Errors::default();
        let config = read_text(text, variables, &mut errors);
        errors.finish(config)
    }

    /// Parses a configuration of the native filter: as [`Config::parse_with`], but values that Envoy does not pass to dynamic
    /// modules are errors.
    pub fn parse_native(text: &[u8], variables: Variables<'_>) -> Result<Config, FieldErrors> {
        let config = Config::parse_with(text, variables)?;
        let mut errors = Errors::default();
        let decoded = structure::json_of(text);
        let json = parse_json(decoded.as_deref().map_or(text, str::as_bytes), &mut errors);
        if let Some(json) = json {
            native::check(&json, &ROOT, &mut errors);
        }
        errors.finish(Some(config))
    }

    /// The field that requires the module that receives responses, `weir-filter-responses.wasm`, with the reason if
    /// that is not obvious; `None` if no field requires it.
    pub fn needs_responses(&self) -> Option<String> {
        if self.responses.headers_on_allowed {
            return Some("responses.headers_on_allowed".to_string());
        }
        let mut deferred =
            self.rules.iter().enumerate().filter_map(|(at, rule)| Some((at, rule.cost.deferred_by()?)));
        if let Some((at, field)) = deferred.next() {
            return Some(format!("rules[{at}].cost.{field}"));
        }
        let ledger = |rule: &Rule| rule.algorithm.zone().is_some();
        let at = self.rules.iter().position(ledger)?;
        Some(format!("rules[{at}].algorithm: responses carry a ledger's transactions"))
    }
}

impl Token {
    /// The token itself.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

fn read_text(text: &[u8], variables: Variables<'_>, errors: &mut Errors) -> Option<Config> {
    if text.len() > CONFIG_BYTES_MAX {
        let problem = format!("it has {} bytes", text.len());
        return errors.reject(&ROOT, problem, format!("at most {CONFIG_BYTES_MAX} bytes"));
    }
    let decoded = structure::json_of(text);
    let text = decoded.as_deref().map_or(text, str::as_bytes);
    let value = parse_json(text, errors)?;
    read_config(Node { value: &value, path: ROOT }, variables, errors)
}

/// Parses JSON. A syntax error is reported with line and column.
fn parse_json<'a>(text: &'a [u8], errors: &mut Errors) -> Option<Value<'a>> {
    if text.iter().all(u8::is_ascii_whitespace) {
        return errors.reject(&ROOT, "it is empty", "a JSON object");
    }
    match Value::parse(text, Bounds::OF_A_FILE) {
        Ok(value) => Some(value),
        Err(error) => {
            let (line, column) = (error.line(), error.column());
            let message = error.to_string();
            let message =
                message.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&message);
            let problem = format!("not JSON at line {line}, column {column}: {message}");
            errors.reject(&ROOT, problem, "a JSON object")
        }
    }
}

fn read_config(node: Node<'_>, variables: Variables<'_>, errors: &mut Errors) -> Option<Config> {
    let fields = node.object(&FIELDS, errors)?;
    let workspace = fields.or("workspace", "default".to_string(), errors, |n, e| n.name(e));
    let aggregator = fields.required("aggregator", "an object with cluster", errors, |node, errors| {
        Aggregator::read(node, variables, errors)
    });
    let table = fields.or("table", Table::default(), errors, Table::read);
    let responses = fields.or("responses", Responses::default(), errors, Responses::read);
    let addresses = fields.or("client_networks", Addresses::default(), errors, Addresses::read);
    let exempt = fields.or("exempt", Vec::new(), errors, |node, errors| {
        node.list(1..=EXEMPT_MAX, "sets of conditions", errors, Conditions::read_exemption)
    });
    let hash_key = read_secret(&fields, &SecretKey::KIND, variables, errors);
    let test_faults = fields.or("test_faults", false, errors, |n, e| n.boolean(e));
    let expressions = exempt.iter().flatten().map(Conditions::expressions).fold(0, usize::saturating_add);
    let rules = fields.required("rules", "a list of 1 to 1024 rules", errors, |node, errors| {
        read_rules(node, expressions, errors)
    });
    let hashed = rules.as_ref().and_then(|rules| rules.iter().position(|rule| rule.hash));
    if let (Some(at), Some(None)) = (hashed, &hash_key) {
        let problem = format!("it is missing, and rules[{at}].hash requires it");
        let expected = format!("{}, or hash_key_env", SecretKey::KIND.expected);
        return errors.reject(&Path::Field(&ROOT, "hash_key"), problem, expected);
    }
    Some(Config {
        workspace: workspace?,
        aggregator: aggregator?,
        table: table?,
        responses: responses?,
        addresses: addresses?,
        exempt: exempt?,
        hash_key: hash_key?,
        test_faults: test_faults?,
        index: rules.as_deref().and_then(Index::of),
        rules: rules?,
    })
}

/// Reads the rules; so many regular expressions are elsewhere.
fn read_rules(node: Node<'_>, mut expressions: usize, errors: &mut Errors) -> Option<Vec<Rule>> {
    let rules = node.list(1..=RULES_MAX, "rules", errors, |node, errors| {
        if expressions > EXPRESSIONS_MAX {
            return None;
        }
        let rule = Rule::read(node, errors)?;
        expressions = expressions.saturating_add(rule.expressions());
        if expressions > EXPRESSIONS_MAX {
            let expected = format!("at most {EXPRESSIONS_MAX} in all rules, or other conditions");
            return node.reject(errors, "has one regular expression too many", expected);
        }
        Some(rule)
    });
    reject_repeated_names(node, errors);
    let mut rules = rules?;
    order_by_path(&mut rules, node, errors)?;
    Some(rules)
}

/// States for each rule of a group the rules that apply in its place: those with a more specific path, and of equal ones the first.
fn order_by_path(rules: &mut [Rule], node: Node<'_>, errors: &mut Errors) -> Option<()> {
    let mut groups: BTreeMap<String, Vec<(Specificity, Reverse<u16>)>> = BTreeMap::new();
    for (at, rule) in (0..).zip(rules.iter()) {
        if let Some(group) = &rule.path_group {
            groups.entry(group.clone()).or_default().push((rule.conditions.specificity(), Reverse(at)));
        }
    }
    let largest = groups.iter().find(|(_, rules)| rules.len() > PATH_GROUP_MAX);
    if let Some((group, rules)) = largest {
        let problem = format!("{} rules have the path_group {}", rules.len(), quoted(group));
        return errors.reject(&node.path, problem, format!("at most {PATH_GROUP_MAX} rules in one"));
    }
    for group in groups.values_mut() {
        group.sort_unstable_by(|one, other| other.cmp(one));
        for (place, (_, Reverse(at))) in group.iter().enumerate() {
            if let Some(rule) = rules.get_mut(usize::from(*at)) {
                rule.more_specific = group.iter().take(place).map(|(_, Reverse(at))| *at).collect();
            }
        }
    }
    Some(())
}

/// Checks the text rather than the parsed rules, since an invalid rule has a name too.
fn reject_repeated_names(node: Node<'_>, errors: &mut Errors) {
    let Value::List(rules) = node.value else { return };
    let mut first_of: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, rule) in rules.iter().enumerate() {
        let Value::Object(fields) = rule else { continue };
        let Some((_, Value::Text(name))) = fields.iter().find(|(field, _)| field == "name") else { continue };
        let first = *first_of.entry(name).or_insert(index);
        if first != index {
            let rule = Path::Index(&node.path, index);
            let problem = format!("{} is also the name of rules[{first}]", quoted(name));
            errors.reject::<()>(&Path::Field(&rule, "name"), problem, "a different name for each rule");
        }
    }
}

impl Aggregator {
    fn read(node: Node<'_>, variables: Variables<'_>, errors: &mut Errors) -> Option<Aggregator> {
        let fields = node.object(&AGGREGATOR_FIELDS, errors)?;
        let cluster = fields.required("cluster", "the name of an Envoy cluster", errors, |n, e| {
            n.visible(CLUSTER_BYTES_MAX, e).map(String::from)
        });
        let token = read_secret(&fields, &Token::KIND, variables, errors);
        let authority =
            fields.optional("authority", errors, |n, e| n.visible(CLUSTER_BYTES_MAX, e).map(String::from));
        let trace = fields.or("trace", false, errors, |n, e| n.boolean(e));
        Some(Aggregator { cluster: cluster?, token: token?, authority: authority?, trace: trace? })
    }
}

impl Token {
    pub(super) const KIND: SecretKind<Token> = SecretKind {
        field: "token",
        variable_field: "token_env",
        problem: "it is not a token",
        expected: "a string of 1 to 1024 printable ASCII characters without spaces",
        bytes: 1..=1_024,
        // The aggregator refuses those of manifests, where other machines reach it.
        published: None,
        make: |text| Token(text.into()),
    };
}

impl Table {
    fn read(node: Node<'_>, errors: &mut Errors) -> Option<Table> {
        let fields = node.object(&TABLE_FIELDS, errors)?;
        let max_keys = fields.or("max_keys", MAX_KEYS_DEFAULT.into(), errors, |n, e| n.integer(MAX_KEYS, e));
        Some(Table { max_keys: u32::try_from(max_keys?).ok()? })
    }
}

impl Default for Table {
    fn default() -> Self {
        Table { max_keys: MAX_KEYS_DEFAULT }
    }
}

impl Responses {
    fn read(node: Node<'_>, errors: &mut Errors) -> Option<Responses> {
        let fields = node.object(&RESPONSES_FIELDS, errors)?;
        let ietf_headers = fields.or("ietf_headers", false, errors, |n, e| n.boolean(e));
        let problem_json = fields.or("problem_json", false, errors, |n, e| n.boolean(e));
        let headers_on_allowed = fields.or("headers_on_allowed", false, errors, |n, e| n.boolean(e));
        let filter_state = fields.or("filter_state", false, errors, |n, e| n.boolean(e));
        let reset = fields.or("reset", Reset::default(), errors, |n, e| n.word(&RESET, e));
        let names = fields.or("names", [None, None, None], errors, read_names);
        Some(Responses {
            ietf_headers: ietf_headers?,
            problem_json: problem_json?,
            headers_on_allowed: headers_on_allowed?,
            filter_state: filter_state?,
            reset: reset?,
            names: names?,
        })
    }
}

/// Reads names of response headers, which differ.
fn read_names(node: Node<'_>, errors: &mut Errors) -> Option<[Option<Box<str>>; 3]> {
    let fields = node.object(&NAMES_FIELDS, errors)?;
    let mut names: [Option<Box<str>>; 3] = [None, None, None];
    let mut sound = Some(());
    for (at, field) in NAMES_FIELDS.into_iter().enumerate() {
        let name = fields.optional(field, errors, |node, errors| {
            let name = node.header_name(errors)?;
            let name = core::str::from_utf8(&name).ok()?;
            if name.starts_with(':') || TAKEN_NAMES.contains(&name) {
                return node.reject(errors, "has another meaning in a response", "another name");
            }
            if names.iter().flatten().any(|other| **other == *name) {
                return node.reject(errors, "is given twice", "a different name for each header");
            }
            Some(Box::<str>::from(name))
        });
        match (name, names.get_mut(at)) {
            (Some(name), Some(place)) => *place = name,
            _ => sound = None,
        }
    }
    sound.map(|()| names)
}
