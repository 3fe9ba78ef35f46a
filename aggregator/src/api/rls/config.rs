//! Parser of the configuration of limits: the reference service's YAML.
//!
//! One document names a domain and its descriptors. A descriptor has a key, an optional value (in which each `*` matches
//! any text), an optional limit, and optional descriptors for the next entry. All errors are reported at once, each with
//! file and path.

use super::matching::{Domain, Level, Rule};
use super::naming;
use super::wire::Unit;
use serde_yaml_ng::Deserializer;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use weir_core::fields::{Bounds, Errors, FieldErrors, Fields, Node, Path, Value};

/// Largest file, in bytes.
pub const MAX_FILE_BYTES: usize = 8 * 1024 * 1024;
/// Deepest nesting of descriptors, and so the most entries of a request's descriptor that can match.
pub const MAX_DEPTH: usize = 16;
/// Longest domain, key or value, in bytes.
pub const MAX_TEXT_BYTES: usize = 1_024;
/// Most errors of a file that are reported.
const MAX_ERRORS: usize = 50;
/// The file itself has no name in the path of an error.
const FILE: Path<'static> = Path::Root("");

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

/// All domains, by name.
#[derive(Debug, Default)]
pub struct Limits {
    domains: HashMap<String, Domain>,
}

/// All errors of a configuration, by file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitErrors(Vec<(String, FieldErrors)>);

impl std::error::Error for LimitErrors {}

impl fmt::Display for LimitErrors {
    /// One error in each line, with its file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = self.0.iter().flat_map(|(file, errors)| {
            let errors = errors.to_string();
            errors.lines().map(|error| format!("{file}: {error}")).collect::<Vec<_>>()
        });
        f.write_str(&lines.collect::<Vec<_>>().join("\n"))
    }
}

impl Limits {
    /// Parses files, each given by name and text.
    pub fn parse<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Limits, LimitErrors> {
        let mut parser = Parser::default();
        let mut wrong = LimitErrors::default();
        for (name, text) in files {
            let mut errors = Errors::keeping(MAX_ERRORS);
            parser.file(text, &mut errors);
            wrong.0.extend(errors.finish(Some(())).err().map(|errors| (name.to_owned(), errors)));
        }
        match wrong.0.is_empty() {
            true => Ok(parser.limits),
            false => Err(wrong),
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
    /// Workspaces and names of limits; a limit with a name has its counts alone.
    names: HashSet<(String, String)>,
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
    fn file(&mut self, text: &str, errors: &mut Errors) -> Option<()> {
        if text.len() > MAX_FILE_BYTES {
            let problem = format!("the file has {} bytes", text.len());
            return errors.reject(&FILE, problem, format!("at most {MAX_FILE_BYTES}"));
        }
        let mut empty = true;
        for document in Deserializer::from_str(text) {
            match Value::read(document, Bounds::OF_A_FILE) {
                // An empty document, such as after a last `---`.
                Ok(Value::Null) => {}
                Ok(mut value) => {
                    empty = false;
                    remove_nulls(&mut value);
                    self.domain(Node { value: &value, path: FILE }, errors);
                }
                // The rest of the file cannot be parsed either.
                Err(error) => return errors.reject(&FILE, format!("the file is not YAML: {error}"), ""),
            }
        }
        if empty {
            // The file may have been cut off while it was written; accepting it would remove every limit.
            let expected = "\"domain: …\", even in a file without limits";
            return errors.reject(&FILE, "the file has no domain", expected);
        }
        Some(())
    }

    fn domain(&mut self, node: Node<'_>, errors: &mut Errors) -> Option<()> {
        let fields = node.object(&ROOT_FIELDS, errors)?;
        let workspace = fields.or("workspace", "default".to_owned(), errors, |n, e| n.name(e));
        let domain = fields.required("domain", "the name of the document's domain", errors, text);
        let way = Way {
            workspace: workspace.unwrap_or_default(),
            names: vec![domain.clone().unwrap_or_default()],
            ..Way::default()
        };
        let level = self.level(fields, &way, errors);
        let name = domain?;
        if self.limits.domains.contains_key(&name) {
            let problem = format!("{name:?} occurs twice");
            return fields.reject("domain", problem, "one document for each domain", errors);
        }
        let workspace = way.workspace.clone().into_bytes();
        self.limits.domains.insert(name.clone(), Domain { name, workspace, level });
        Some(())
    }

    fn level(&mut self, fields: Fields<'_>, way: &Way, errors: &mut Errors) -> Level {
        let mut level = Level::default();
        fields.optional("descriptors", errors, |node, errors| {
            if way.depth >= MAX_DEPTH {
                let problem = "is nested too deep";
                return node.reject(errors, problem, format!("at most {MAX_DEPTH} levels of descriptors"));
            }
            node.list(
                0..=usize::MAX,
                "descriptors, each beginning with \"- key:\"",
                errors,
                |node, errors| self.descriptor(node, way, &mut level, errors),
            )
        });
        level
    }

    fn descriptor(
        &mut self,
        node: Node<'_>,
        way: &Way,
        level: &mut Level,
        errors: &mut Errors,
    ) -> Option<()> {
        let fields = node.object(&DESCRIPTOR_FIELDS, errors)?;
        let key = fields.required("key", "the key of the descriptor's entry", errors, text);
        if key.as_ref().is_some_and(|key| key.contains('*')) {
            let expected = "a key without one; only values may have one";
            fields.reject::<()>("key", "it has a wildcard", expected, errors);
        }
        // As in the reference service, an empty value counts as missing.
        let given = |node: &Node<'_>| !matches!(node.value, Value::Text(text) if text.is_empty());
        let value = fields.get("value").filter(given).and_then(|node| text(node, errors));
        let mut flag = |name| fields.or(name, false, errors, |n, e| n.boolean(e)).unwrap_or(false);
        let (shadow, shared) = (flag("shadow_mode"), flag("share_threshold"));
        // Accepted without effect: no metric has a label from a request.
        flag("detailed_metric");
        flag("value_to_metric");
        let wild = value.as_ref().is_some_and(|value| value.contains('*'));
        if shared && !wild {
            let expected = "a value with a wildcard beside it, such as \"files/*\"";
            fields.reject::<()>("share_threshold", "it has no effect", expected, errors);
        }
        let way = way.to(key.as_deref().unwrap_or_default(), value.as_deref(), wild, shared);
        let rule =
            fields.optional("rate_limit", errors, |node, errors| self.rule(node, shadow, &way, errors));
        let next = self.level(fields, &way, errors);
        let key = key?;
        if !level.insert(key.clone(), value.clone(), rule.flatten().map(Arc::new), next) {
            let value = value.map_or(String::new(), |value| format!(" with value {value:?}"));
            let problem = format!("it is the second descriptor of key {key:?}{value} in its list");
            return errors.reject(&node.path, problem, "one");
        }
        Some(())
    }

    fn rule(&mut self, node: Node<'_>, shadow: bool, way: &Way, errors: &mut Errors) -> Option<Rule> {
        let fields = node.object(&LIMIT_FIELDS, errors)?;
        let unlimited = fields.or("unlimited", false, errors, |n, e| n.boolean(e)).unwrap_or(false);
        let name = fields.optional("name", errors, |n, e| n.name(e)).flatten();
        if let Some(name) = &name
            && !self.names.insert((way.workspace.clone(), name.clone()))
        {
            let expected = "a different name for each limit, as it has counts of its own";
            fields.reject::<()>("name", format!("{name:?} occurs twice"), expected, errors);
        }
        let limit = match unlimited {
            true => {
                let why = "it has no effect with unlimited; remove it";
                fields.reject_given(&["unit", "requests_per_unit"], why, errors);
                Some(None)
            }
            false => {
                let unit = fields.required("unit", &units(), errors, unit);
                // The reference service reads a missing number as 0, which denies every request; here it is an error.
                let expected = "a whole number from 0 to 4294967295";
                let requests = fields.required("requests_per_unit", expected, errors, |node, errors| {
                    u32::try_from(node.integer(0..=u32::MAX.into(), errors)?).ok()
                });
                unit.zip(requests).map(Some)
            }
        };
        let replaces = fields.or("replaces", Vec::new(), errors, |node, errors| {
            node.list(0..=usize::MAX, "limits, each as \"- name: …\"", errors, |node, errors| {
                let fields = node.object(&["name"], errors)?;
                let replaced = fields.required("name", "the name of the limit to replace", errors, text)?;
                match name.as_ref() == Some(&replaced) {
                    true => fields.reject("name", "it is the limit's own name", "another limit's", errors),
                    false => Some(replaced),
                }
            })
        });
        Some(Rule {
            namespace: naming::namespace(name.as_deref(), &way.names),
            name: name.unwrap_or_default(),
            limit: limit?,
            shadow,
            replaces: replaces?,
            free: way.free.clone(),
        })
    }
}

fn unit(node: Node<'_>, errors: &mut Errors) -> Option<Unit> {
    let word = match node.value {
        Value::Text(word) => word.to_ascii_lowercase(),
        _ => String::new(),
    };
    if word == "year" {
        return node.reject(errors, "is longer than the longest window of 31 days", "month (30 days)");
    }
    match Unit::USED.iter().find(|(name, _, _)| *name == word) {
        Some((_, unit, _)) => Some(*unit),
        None => node.reject(errors, "is not a unit of time", units()),
    }
}

fn units() -> String {
    format!("one of {}", Unit::USED.map(|(name, _, _)| name).join(", "))
}

fn text(node: Node<'_>, errors: &mut Errors) -> Option<String> {
    match node.value {
        Value::Unsigned(_) | Value::Negative(_) | Value::Float(_) | Value::Bool(_) => {
            node.reject(errors, "is not a string", "quotes around it, as in \"404\"")
        }
        _ => node.text(MAX_TEXT_BYTES, errors).map(str::to_owned),
    }
}

/// Removes fields without a value, such as `value:`, which YAML reads as null.
fn remove_nulls(value: &mut Value<'_>) {
    match value {
        Value::Object(fields) => {
            fields.retain(|(_, value)| *value != Value::Null);
            fields.iter_mut().for_each(|(_, value)| remove_nulls(value));
        }
        Value::List(list) => list.iter_mut().for_each(remove_nulls),
        _ => {}
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
        let parsed = Limits::parse([("f", text)]);
        parsed
            .map(|_| Vec::new())
            .unwrap_or_else(|errors| errors.to_string().lines().map(str::to_owned).collect())
    }

    #[test]
    fn every_error_is_reported_with_its_path() {
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
        let units = "expected one of second, minute, hour, day, week, month";
        let name = "expected 1 to 64 characters of A-Z, a-z, 0-9, '_', '.' and '-'";
        let fields = "key, value, rate_limit, descriptors, shadow_mode, share_threshold, detailed_metric or value_to_metric";
        let no_effect = "it has no effect with unlimited; remove it";
        let number = "expected a whole number from 0 to 4294967295";
        let expected = [
            "workspce: there is no such field; did you mean workspace?; expected domain, workspace or descriptors".to_owned(),
            "descriptors[0].ratelimit: there is no such field; did you mean rate_limit?; expected key,".into(),
            "descriptors[0].value: 404 is not a string; expected quotes around it, as in \"404\"".into(),
            "descriptors[1].rate_limit.unit: \"year\" is longer than the longest window of 31 days; expected month (30 days)"
                .into(),
            format!("descriptors[2].rate_limit.unit: \"foo\" is not a unit of time; {units}"),
            format!("descriptors[2].rate_limit.requests_per_unit: -1 is not a whole number in range; {number}"),
            format!("descriptors[3].rate_limit.unit: {no_effect}"),
            format!("descriptors[3].rate_limit.requests_per_unit: {no_effect}"),
            "descriptors[4].key: it is missing; expected the key of".into(),
            format!("descriptors[5].quota_mode: there is no such field; expected {fields}"),
            format!("descriptors[5].metadata: there is no such field; expected {fields}"),
            "descriptors[5].shadow_mode: 1 is not a boolean; expected true or false".into(),
            format!("descriptors[5].rate_limit.name: \"no name\" is not a name; {name}"),
            format!("descriptors[5].rate_limit.unit: it is missing; {units}"),
            format!("descriptors[5].rate_limit.requests_per_unit: 4294967296 is out of range; {number}"),
            "descriptors[5].rate_limit.replaces[0]: \"x\" is not an object; expected an object with name".into(),
            "descriptors[5].rate_limit.replaces[1].name: \"\" is empty; expected a string".into(),
            "descriptors[6].share_threshold: it has no effect; expected a value with a wildcard".into(),
            "descriptors[6].descriptors[0].key: it has a wildcard; expected a key without one".into(),
            "descriptors[6].descriptors[1].rate_limit.replaces[0].name: it is the limit's own name".into(),
            "descriptors[7].rate_limit.name: \"n\" occurs twice; expected a different name".into(),
            "descriptors[8]: it is the second descriptor of key \"i\" in its list; expected one".into(),
            "descriptors[9]: it is the second descriptor of key \"i\" in its list; expected one".into(),
            format!("descriptors[10]: \"none\" is not an object; expected an object with {fields}"),
            "descriptors[11].descriptors: 5 is not a list; expected a list of descriptors".into(),
        ];
        let found = errors(text);
        for (found, expected) in found.iter().zip(&expected) {
            assert!(found.starts_with(&format!("f: {expected}")), "{found}\n{expected}");
        }
        assert_eq!(found.len(), expected.len(), "{found:#?}");
    }

    #[test]
    fn documents_and_files_each_have_a_domain_of_their_own() {
        let cases = [
            ("domain: a\n---\ndomain: b\n---\n", None),
            ("domain: a\n---\ndomain: a", Some("domain: \"a\" occurs twice")),
            ("domain: z\n---\ndomain: a", Some("domain: \"z\" occurs twice")),
            ("", Some("the file has no domain")),
            ("# later\n---\n", Some("the file has no domain")),
            ("descriptors: []", Some("f: domain: it is missing")),
            ("domain: ''", Some("domain: \"\" is empty")),
            ("- a", Some("f: a list is not an object")),
            ("domain: a\ndomain: b", Some("f: domain: it is given twice")),
            ("a: [", Some("the file is not YAML")),
            ("domain: a\nworkspace: 'a b'", Some("workspace: \"a b\" is not a name")),
        ];
        for (text, expected) in cases {
            let parsed = Limits::parse([("other", "domain: z"), ("f", text)]);
            let errors = parsed.map_or_else(|errors| errors.to_string(), |_| String::new());
            match expected {
                None => assert_eq!(errors, "", "{text:?}"),
                Some(expected) => assert!(errors.contains(expected), "{text:?}: {errors}"),
            }
        }
    }

    #[test]
    fn huge_input_is_an_error() {
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
            (format!("domain: {}", "x".repeat(MAX_TEXT_BYTES + 1)), "has 1025 bytes"),
            (" ".repeat(MAX_FILE_BYTES + 1), "bytes; expected at most"),
            (aliases, "f: "),
        ];
        for (text, expected) in cases {
            let error = Limits::parse([("f", text.as_str())]).unwrap_err().to_string();
            assert!(error.contains(expected), "{}", &error[..error.len().min(300)]);
        }
    }
}
