//! Parser of the configuration of limits: the reference service's YAML.
//!
//! One document names a domain and its descriptors. A descriptor has a key, an optional value (in which each `*` matches
//! any text), an optional limit, and optional descriptors for the next entry. All errors are reported at once, each with
//! file and path.

use super::matching::{Domain, Level, Rule};
use super::naming;
use super::wire::Unit;
use serde::Deserialize;
use serde_yaml_ng::{Deserializer, Mapping, Value};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

/// Largest file, in bytes.
pub const MAX_FILE_BYTES: usize = 8 * 1024 * 1024;
/// Deepest nesting of descriptors, and so the most entries of a request's descriptor that can match.
pub const MAX_DEPTH: usize = 16;
/// Longest domain, key or value, in bytes.
pub const MAX_TEXT_BYTES: usize = 1_024;
/// Most errors that are reported.
const MAX_ERRORS: usize = 50;
/// Longest name. Filters' names have the same form, so namespaces can be shared with them.
const NAME_BYTES_MAX: usize = 64;

const ROOT_FIELDS: [&str; 3] = ["domain", "workspace", "descriptors"];
const DESCRIPTOR_FIELDS: [&str; 8] = [
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "share_threshold",
    "detailed_metric",
    "value_to_metric",
];
const LIMIT_FIELDS: [&str; 5] = ["unit", "requests_per_unit", "unlimited", "name", "replaces"];
const REPLACES_FIELDS: [&str; 1] = ["name"];

/// All domains, by name.
#[derive(Debug, Default)]
pub struct Limits {
    domains: HashMap<String, Domain>,
}

/// All errors of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Errors(Vec<String>);

impl std::error::Error for Errors {}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let more = self.0.len().saturating_sub(MAX_ERRORS);
        f.write_str(&self.0[..self.0.len() - more].join("\n"))?;
        if more > 0 {
            write!(f, "\nand {more} more")?;
        }
        Ok(())
    }
}

impl Limits {
    /// Parses files, each given by name and text.
    pub fn parse<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Limits, Errors> {
        let mut parser = Parser::default();
        for (name, text) in files {
            parser.file(name, text);
        }
        match parser.errors.0.is_empty() {
            true => Ok(parser.limits),
            false => Err(parser.errors),
        }
    }

    /// The domain of that name.
    pub fn domain(&self, name: &str) -> Option<&Domain> {
        self.domains.get(name)
    }

    /// The number of domains.
    pub fn len(&self) -> usize {
        self.domains.len()
    }

    /// Whether there are no domains.
    pub fn is_empty(&self) -> bool {
        self.domains.is_empty()
    }
}

#[derive(Default)]
struct Parser {
    limits: Limits,
    errors: Errors,
    /// Workspaces and names of limits; a limit with a name has its counts alone.
    names: HashSet<(String, String)>,
}

/// A position in a file.
#[derive(Clone)]
struct At {
    file: String,
    path: String,
}

impl At {
    fn field(&self, name: &str) -> At {
        let dot = if self.path.is_empty() { "" } else { "." };
        At { file: self.file.clone(), path: format!("{}{dot}{name}", self.path) }
    }

    fn item(&self, index: usize) -> At {
        At { file: self.file.clone(), path: format!("{}[{index}]", self.path) }
    }
}

/// The path to a descriptor, and which of its values come from requests.
#[derive(Clone, Default)]
struct Way {
    workspace: String,
    /// The domain, then each level's key and how its value is matched.
    names: Vec<String>,
    /// Levels whose values are not fixed by the configuration.
    free: Vec<usize>,
    depth: usize,
}

impl Parser {
    fn file(&mut self, name: &str, text: &str) {
        let at = At { file: name.to_owned(), path: String::new() };
        if text.len() > MAX_FILE_BYTES {
            return self.wrong(&at, format!("has {} bytes; at most {MAX_FILE_BYTES} are read", text.len()));
        }
        let mut empty = true;
        for document in Deserializer::from_str(text) {
            match Value::deserialize(document) {
                // An empty document, such as after a last `---`.
                Ok(Value::Null) => {}
                Ok(value) => {
                    empty = false;
                    self.domain(&at, &value);
                }
                // The rest of the file cannot be parsed either.
                Err(error) => return self.wrong(&at, format!("is not YAML: {error}")),
            }
        }
        if empty {
            // The file may have been cut off while it was written; accepting it would remove every limit.
            self.wrong(&at, "has no domain; a file without limits consists of \"domain: …\" alone");
        }
    }

    fn domain(&mut self, at: &At, value: &Value) {
        let Some(fields) = self.fields(at, value, &ROOT_FIELDS) else { return };
        let workspace = match fields.get("workspace") {
            Some(value) => self.name(&at.field("workspace"), value),
            None => Some("default".to_owned()),
        };
        let domain = match fields.get("domain") {
            Some(value) => self.text(&at.field("domain"), value),
            None => {
                self.wrong(&at.field("domain"), "is missing; each document names its domain");
                None
            }
        };
        let way = Way {
            workspace: workspace.unwrap_or_default(),
            names: vec![domain.clone().unwrap_or_default()],
            ..Way::default()
        };
        let level = self.level(&at.field("descriptors"), fields.get("descriptors"), &way);
        let Some(name) = domain else { return };
        if self.limits.domains.contains_key(&name) {
            return self
                .wrong(&at.field("domain"), format!("{name:?} occurs twice; each domain has one document"));
        }
        let workspace = way.workspace.clone().into_bytes();
        self.limits.domains.insert(name.clone(), Domain { name, workspace, level });
    }

    fn level(&mut self, at: &At, value: Option<&Value>, way: &Way) -> Level {
        let mut level = Level::default();
        let list = match value {
            None | Some(Value::Null) => return level,
            Some(Value::Sequence(list)) => list,
            Some(_) => {
                self.wrong(at, "is not a list; expected descriptors, each beginning with \"- key:\"");
                return level;
            }
        };
        if way.depth >= MAX_DEPTH {
            self.wrong(at, format!("is nested too deep; at most {MAX_DEPTH} descriptors may be"));
            return level;
        }
        for (index, value) in list.iter().enumerate() {
            self.descriptor(&at.item(index), value, way, &mut level);
        }
        level
    }

    fn descriptor(&mut self, at: &At, value: &Value, way: &Way, level: &mut Level) {
        let Some(fields) = self.fields(at, value, &DESCRIPTOR_FIELDS) else { return };
        let key = match fields.get("key") {
            Some(value) => self.text(&at.field("key"), value),
            None => {
                self.wrong(&at.field("key"), "is missing; each descriptor has a key");
                None
            }
        };
        if key.as_ref().is_some_and(|key| key.contains('*')) {
            self.wrong(&at.field("key"), "has a wildcard; only values may have one");
        }
        let value = match fields.get("value") {
            // As in the reference service, an empty value counts as missing.
            None | Some(Value::Null) => None,
            Some(Value::String(text)) if text.is_empty() => None,
            Some(value) => self.text(&at.field("value"), value),
        };
        let shadow = self.flag(at, fields, "shadow_mode");
        let shared = self.flag(at, fields, "share_threshold");
        // Accepted without effect: no metric has a label from a request.
        self.flag(at, fields, "detailed_metric");
        self.flag(at, fields, "value_to_metric");
        let wild = value.as_ref().is_some_and(|value| value.contains('*'));
        if shared && !wild {
            self.wrong(&at.field("share_threshold"), "needs a value with a wildcard, such as \"files/*\"");
        }
        let nameless = key.is_none();
        let key = key.unwrap_or_default();
        let way = way.to(&key, value.as_deref(), wild, shared);
        let rule = fields
            .get("rate_limit")
            .and_then(|value| self.rule(&at.field("rate_limit"), value, shadow, &way));
        let next = self.level(&at.field("descriptors"), fields.get("descriptors"), &way);
        if !level.insert(key.clone(), value.clone(), rule.map(Arc::new), next) && !nameless {
            let value = value.map_or(String::new(), |value| format!(" with value {value:?}"));
            self.wrong(
                at,
                format!("is the second descriptor of key {key:?}{value} in its list; one is allowed"),
            );
        }
    }

    fn rule(&mut self, at: &At, value: &Value, shadow: bool, way: &Way) -> Option<Rule> {
        let fields = self.fields(at, value, &LIMIT_FIELDS)?;
        let unlimited = self.flag(at, fields, "unlimited");
        let name = match fields.get("name") {
            None | Some(Value::Null) => None,
            Some(value) => self.name(&at.field("name"), value),
        };
        if let Some(name) = &name
            && !self.names.insert((way.workspace.clone(), name.clone()))
        {
            self.wrong(
                &at.field("name"),
                format!(
                    "{name:?} occurs twice; each limit needs a name of its own, as it has counts of its own"
                ),
            );
        }
        let replaces = self.replaces(at, fields.get("replaces"), name.as_deref());
        let unit = self.unit(at, fields.get("unit"), unlimited);
        let requests = self.requests(at, fields.get("requests_per_unit"), unlimited);
        Some(Rule {
            namespace: naming::namespace(name.as_deref(), &way.names),
            name: name.unwrap_or_default(),
            limit: if unlimited { None } else { Some((unit?, requests?)) },
            shadow,
            replaces,
            free: way.free.clone(),
        })
    }

    fn unit(&mut self, at: &At, value: Option<&Value>, unlimited: bool) -> Option<Unit> {
        let at = at.field("unit");
        let units = Unit::USED.map(|(name, _, _)| name).join(", ");
        match (value, unlimited) {
            (None | Some(Value::Null), true) => None,
            (Some(_), true) => {
                self.wrong(&at, "has no effect with unlimited; remove it");
                None
            }
            (None | Some(Value::Null), false) => {
                self.wrong(&at, format!("is missing; expected one of {units}"));
                None
            }
            (Some(value), false) => {
                let word = value.as_str().map(str::to_ascii_lowercase);
                if word.as_deref() == Some("year") {
                    self.wrong(&at, "is longer than the longest window of 31 days; use month (30 days)");
                    return None;
                }
                let known = Unit::USED.iter().find(|(name, _, _)| word.as_deref() == Some(*name));
                if known.is_none() {
                    self.wrong(&at, format!("is not a unit of time; expected one of {units}"));
                }
                known.map(|(_, unit, _)| *unit)
            }
        }
    }

    fn requests(&mut self, at: &At, value: Option<&Value>, unlimited: bool) -> Option<u32> {
        let at = at.field("requests_per_unit");
        match value {
            None | Some(Value::Null) if unlimited => None,
            Some(_) if unlimited => {
                self.wrong(&at, "has no effect with unlimited; remove it");
                None
            }
            // The reference service reads a missing number as 0, which denies every request; here it is an error.
            None | Some(Value::Null) => {
                self.wrong(&at, "is missing; expected a whole number, 0 to 4294967295");
                None
            }
            Some(value) => {
                let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
                if number.is_none() {
                    self.wrong(&at, "is not a whole number from 0 to 4294967295");
                }
                number
            }
        }
    }

    fn replaces(&mut self, at: &At, value: Option<&Value>, own: Option<&str>) -> Vec<String> {
        let at = at.field("replaces");
        let list = match value {
            None | Some(Value::Null) => return Vec::new(),
            Some(Value::Sequence(list)) => list,
            Some(_) => {
                self.wrong(&at, "is not a list; expected names of limits, each as \"- name: …\"");
                return Vec::new();
            }
        };
        let mut names = Vec::new();
        for (index, value) in list.iter().enumerate() {
            let at = at.item(index);
            let Some(fields) = self.fields(&at, value, &REPLACES_FIELDS) else { continue };
            match fields.get("name").and_then(Value::as_str).filter(|name| !name.is_empty()) {
                Some(name) if Some(name) == own => self.wrong(&at.field("name"), "is the limit's own name"),
                Some(name) => names.push(name.to_owned()),
                None => {
                    self.wrong(&at.field("name"), "is missing; expected the name of the limit to replace")
                }
            }
        }
        names
    }

    fn fields<'v>(&mut self, at: &At, value: &'v Value, known: &[&str]) -> Option<&'v Mapping> {
        let Value::Mapping(fields) = value else {
            self.wrong(at, format!("is not a mapping; expected the fields {}", known.join(", ")));
            return None;
        };
        for key in fields.keys() {
            match key.as_str() {
                Some(name) if known.contains(&name) => {}
                Some("quota_mode") => {
                    self.wrong(
                        &at.field("quota_mode"),
                        "is not supported: a request passes all limits or none",
                    );
                }
                Some("metadata") => {
                    self.wrong(&at.field("metadata"), "is not supported: responses have no dynamic metadata");
                }
                Some(name) => {
                    self.wrong(&at.field(name), format!("is unknown; expected one of {}", known.join(", ")));
                }
                None => self.wrong(at, "has a field whose name is not a string"),
            }
        }
        Some(fields)
    }

    fn flag(&mut self, at: &At, fields: &Mapping, name: &str) -> bool {
        match fields.get(name) {
            None | Some(Value::Null) => false,
            Some(Value::Bool(flag)) => *flag,
            Some(_) => {
                self.wrong(&at.field(name), "is not true or false");
                false
            }
        }
    }

    fn text(&mut self, at: &At, value: &Value) -> Option<String> {
        match value {
            Value::String(text) if (1..=MAX_TEXT_BYTES).contains(&text.len()) => Some(text.clone()),
            Value::String(text) if text.is_empty() => self.none(at, "is empty"),
            Value::String(_) => {
                self.none(at, format!("is too long; at most {MAX_TEXT_BYTES} bytes are allowed"))
            }
            Value::Number(_) | Value::Bool(_) => {
                self.none(at, "is not a string; put it in quotes, as in \"404\"")
            }
            _ => self.none(at, "is not a string"),
        }
    }

    fn name(&mut self, at: &At, value: &Value) -> Option<String> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        match value {
            Value::String(text) if (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(plain) => {
                Some(text.clone())
            }
            _ => self.none(
                at,
                format!(
                    "is not a name; expected 1 to {NAME_BYTES_MAX} characters of A-Z, a-z, 0-9, '_', '.' and '-'"
                ),
            ),
        }
    }

    fn none(&mut self, at: &At, what: impl fmt::Display) -> Option<String> {
        self.wrong(at, what);
        None
    }

    fn wrong(&mut self, at: &At, what: impl fmt::Display) {
        let place = if at.path.is_empty() { "the file" } else { &at.path };
        self.errors.0.push(format!("{}: {place} {what}", at.file));
    }
}

impl Way {
    /// The path one level deeper.
    fn to(&self, key: &str, value: Option<&str>, wild: bool, shared: bool) -> Way {
        let mut way = self.clone();
        way.names.push(key.to_owned());
        way.names.push(naming::matched(value, wild, shared));
        if value.is_none() || (wild && !shared) {
            way.free.push(self.depth);
        }
        way.depth += 1;
        way
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(text: &str) -> Vec<String> {
        Limits::parse([("f", text)]).map(|_| Vec::new()).unwrap_or_else(|errors| errors.0)
    }

    #[test]
    fn everything_wrong_is_told_at_once_and_where() {
        let text = "
domain: d
workspce: w
descriptors:
  - key: a
    value: 404
    ratelimit: {unit: day, requests_per_unit: 5}
  - key: b
    rate_limit: {unit: year, requests_per_unit: 5}
  - key: c
    rate_limit: {unit: foo, requests_per_unit: -1}
  - key: d
    rate_limit: {unlimited: true, unit: day, requests_per_unit: 1}
  - value: x
  - key: e
    rate_limit: {name: 'no name', requests_per_unit: 4294967296, replaces: [x, {name: ''}]}
    quota_mode: true
    metadata: {}
    shadow_mode: 1
  - key: f
    share_threshold: true
    descriptors:
      - key: g*
      - key: h
        rate_limit: {unit: second, requests_per_unit: 1, name: n, replaces: [{name: n}]}
  - key: i
    rate_limit: {unit: second, requests_per_unit: 1, name: n}
  - key: i
  - key: i
    value: ''
  - none
  - key: j
    descriptors: 5
";
        let units = "second, minute, hour, day, week, month";
        let name = "expected 1 to 64 characters of A-Z, a-z, 0-9, '_', '.' and '-'";
        let fields = DESCRIPTOR_FIELDS.join(", ");
        let expected = [
            "workspce is unknown; expected one of domain, workspace, descriptors".to_owned(),
            format!("descriptors[0].ratelimit is unknown; expected one of {fields}"),
            "descriptors[0].value is not a string; put it in quotes, as in \"404\"".into(),
            "descriptors[1].rate_limit.unit is longer than the longest window of 31 days; use month (30 days)"
                .into(),
            format!("descriptors[2].rate_limit.unit is not a unit of time; expected one of {units}"),
            "descriptors[2].rate_limit.requests_per_unit is not a whole number from 0 to 4294967295".into(),
            "descriptors[3].rate_limit.unit has no effect with unlimited; remove it".into(),
            "descriptors[3].rate_limit.requests_per_unit has no effect with unlimited; remove it".into(),
            "descriptors[4].key is missing; each descriptor has a key".into(),
            "descriptors[5].quota_mode is not supported: a request passes all limits or none".into(),
            "descriptors[5].metadata is not supported: responses have no dynamic metadata".into(),
            "descriptors[5].shadow_mode is not true or false".into(),
            format!("descriptors[5].rate_limit.name is not a name; {name}"),
            "descriptors[5].rate_limit.replaces[0] is not a mapping; expected the fields name".into(),
            "descriptors[5].rate_limit.replaces[1].name is missing; expected the name of the limit to replace".into(),
            format!("descriptors[5].rate_limit.unit is missing; expected one of {units}"),
            "descriptors[5].rate_limit.requests_per_unit is not a whole number from 0 to 4294967295".into(),
            "descriptors[6].share_threshold needs a value with a wildcard, such as \"files/*\"".into(),
            "descriptors[6].descriptors[0].key has a wildcard; only values may have one".into(),
            "descriptors[6].descriptors[1].rate_limit.replaces[0].name is the limit's own name".into(),
            "descriptors[7].rate_limit.name \"n\" occurs twice; each limit needs a name of its own, as it has counts of its own".into(),
            "descriptors[8] is the second descriptor of key \"i\" in its list; one is allowed".into(),
            "descriptors[9] is the second descriptor of key \"i\" in its list; one is allowed".into(),
            format!("descriptors[10] is not a mapping; expected the fields {fields}"),
            "descriptors[11].descriptors is not a list; expected descriptors, each beginning with \"- key:\"".into(),
        ];
        let told = errors(text);
        for (told, expected) in told.iter().zip(&expected) {
            assert_eq!(*told, format!("f: {expected}"));
        }
        assert_eq!(told.len(), expected.len(), "{told:#?}");
    }

    #[test]
    fn documents_and_files_each_have_a_domain_of_their_own() {
        let cases = [
            ("domain: a\n---\ndomain: b\n---\n", None),
            ("domain: a\n---\ndomain: a", Some("domain \"a\" occurs twice")),
            ("domain: z\n---\ndomain: a", Some("domain \"z\" occurs twice")),
            ("", Some("the file has no domain")),
            ("# later\n---\n", Some("the file has no domain")),
            ("descriptors: []", Some("domain is missing")),
            ("domain: ''", Some("domain is empty")),
            ("- a", Some("the file is not a mapping")),
            ("domain: a\ndomain: b", Some("the file is not YAML: duplicate entry")),
            ("a: [", Some("the file is not YAML")),
            ("domain: a\nworkspace: 'a b'", Some("workspace is not a name")),
        ];
        for (text, expected) in cases {
            let parsed = Limits::parse([("other", "domain: z"), ("f", text)]);
            let said = parsed.map_or_else(|errors| errors.to_string(), |_| String::new());
            match expected {
                None => assert_eq!(said, "", "{text:?}"),
                Some(expected) => assert!(said.contains(expected), "{text:?}: {said}"),
            }
        }
    }

    #[test]
    fn what_is_huge_is_an_error_and_nothing_more() {
        let deep =
            format!("domain: d\ndescriptors: {}1{}", "[{key: k, descriptors: ".repeat(40), "}]".repeat(40));
        let many = (0..1_000).map(|_| "  - value: v\n").collect::<String>();
        let aliases = (0..30).fold("a0: &a0 [x]\n".to_owned(), |text, n| {
            format!("{text}a{}: &a{} [*a{n}, *a{n}, *a{n}, *a{n}]\n", n + 1, n + 1)
        });
        let cases = [
            (deep, "is nested too deep"),
            ("[".repeat(100_000), "is not YAML"),
            (format!("domain: d\ndescriptors:\n{many}"), "and 950 more"),
            (format!("domain: {}", "x".repeat(MAX_TEXT_BYTES + 1)), "is too long"),
            (" ".repeat(MAX_FILE_BYTES + 1), "bytes; at most"),
            (aliases, "f: "),
        ];
        for (text, expected) in cases {
            let error = Limits::parse([("f", text.as_str())]).unwrap_err().to_string();
            assert!(error.contains(expected), "{}", &error[..error.len().min(300)]);
        }
    }
}
