//! Parser of the configuration of limits: the reference service's YAML, and the same as values from `xds`.
//!
//! One document names a domain and its descriptors. A descriptor has a key, an optional value (in which each `*` matches
//! any text), an optional limit, and optional descriptors for the next entry. All errors are reported at once, each with
//! file and path.
//!
//! All documents are read before any limit is built, as a limit's namespace depends on how often its name occurs.
//!
//! Files are in force without an error or not at all: who writes them reads the errors. The limits of `xds` have many authors, so an
//! interval that cannot be served concerns its own limit alone.

use super::matching::{Domain, Level, Limit, Rate, Rule};
use super::metadata;
use super::naming;
use super::wire::Unit;
use crate::telemetry::metrics::limits::LimitSeries;
use prost_types::Struct;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::Arc;
use weir_core::fields::yaml::{self, Dialect, Verbatim};
use weir_core::fields::{Errors, FieldErrors, Fields, Node, Path, Value};

/// Largest file, in bytes.
pub const MAX_FILE_BYTES: usize = yaml::MAX_BYTES;
/// Deepest nesting of descriptors, and so the most entries of a request's descriptor that can match.
pub const MAX_DEPTH: usize = 32;
/// Most limits of one descriptor.
const MAX_LIMITS: usize = 4;
/// Longest domain, key or value, in bytes.
pub const MAX_TEXT_BYTES: usize = 1_024;
/// Most errors of a file that are reported.
const MAX_ERRORS: usize = 50;
/// As in the reference service, these are texts, whatever else YAML takes them for.
pub const WRITTEN: Verbatim = Verbatim {
    fields: &["domain", "workspace", "key", "value", "unit", "name"],
    lists: &[],
    not_below: "metadata",
};
/// What an interval may last.
const LONGEST: &str = "at most 366 days in all";
/// The file itself has no name in the path of an error.
const FILE: Path<'static> = Path::Root("");
const DEFAULT_WORKSPACE: &str = "default";

/// `name` is that of an xDS resource, which may be written as a file.
const ROOT_FIELDS: [&str; 4] = ["domain", "workspace", "name", "descriptors"];
const DESCRIPTOR_FIELDS: [&str; 10] = [
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "metadata",
    "share_threshold",
    "detailed_metric",
    "value_to_metric",
];
const LIMIT_FIELDS: [&str; 6] =
    ["unit", "unit_multiplier", "requests_per_unit", "unlimited", "name", "replaces"];

/// All domains, by name.
#[derive(Debug, Default)]
pub struct Limits {
    domains: HashMap<String, Domain>,
    unserved: LimitErrors,
    series: Vec<Arc<LimitSeries>>,
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

impl LimitErrors {
    /// The number of all errors.
    pub fn count(&self) -> usize {
        self.0.iter().map(|(_, errors)| errors.count()).sum()
    }
}

/// Whether several documents may name one domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Domains {
    /// No: the second is an error.
    #[default]
    Unique,
    /// Yes: the domain has the descriptors of all of them.
    Merged,
}

impl Limits {
    /// Parses files, each given by name and text.
    pub fn parse<'a>(
        files: impl IntoIterator<Item = (&'a str, &'a str)>,
        domains: Domains,
    ) -> Result<Limits, LimitErrors> {
        let mut sources = Vec::new();
        for (name, text) in files {
            let mut errors = Errors::keeping(MAX_ERRORS);
            let documents = documents(text, &mut errors);
            sources.push(Source { name: name.to_owned(), documents, errors });
        }
        Limits::build(sources, domains, Intervals::AllServed)
    }

    /// Parses documents that are values already, each with its name. A limit whose interval cannot be served is left unserved.
    pub fn of_values(
        named: impl IntoIterator<Item = (String, Value<'static>)>,
        domains: Domains,
    ) -> Result<Limits, LimitErrors> {
        let source = |(name, value)| {
            let errors = Errors::keeping(MAX_ERRORS);
            Source { name, documents: vec![value], errors }
        };
        Limits::build(named.into_iter().map(source).collect(), domains, Intervals::SomeUnserved)
    }

    fn build(
        sources: Vec<Source<'_>>,
        domains: Domains,
        intervals: Intervals,
    ) -> Result<Limits, LimitErrors> {
        let unserved = Errors::keeping(MAX_ERRORS);
        let mut parser =
            Parser { limits: Limits::default(), names: HashMap::new(), domains, intervals, unserved };
        let all = sources.iter().flat_map(|source| &source.documents);
        all.for_each(|document| count_names(document, workspace_of(document), &mut parser.names));
        let mut wrong = LimitErrors::default();
        for Source { name, documents, mut errors } in sources {
            for value in &documents {
                parser.domain(Node { value, path: FILE }, &mut errors);
            }
            let unserved = std::mem::replace(&mut parser.unserved, Errors::keeping(MAX_ERRORS));
            let unserved = unserved.finish(Some(())).err().map(|errors| (name.clone(), errors));
            parser.limits.unserved.0.extend(unserved);
            wrong.0.extend(errors.finish(Some(())).err().map(|errors| (name, errors)));
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

    /// The metrics of all limits.
    pub fn series(&self) -> Vec<Arc<LimitSeries>> {
        self.series.clone()
    }

    /// Why limits cannot be served.
    pub fn unserved(&self) -> &LimitErrors {
        &self.unserved
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

/// One file, or one resource of `xds`.
struct Source<'a> {
    name: String,
    documents: Vec<Value<'a>>,
    errors: Errors,
}

/// What an interval that cannot be served means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Intervals {
    /// An error of the configuration.
    AllServed,
    /// That its limit is not served.
    SomeUnserved,
}

struct Parser {
    limits: Limits,
    /// How often each name of a limit occurs, by workspace.
    names: HashMap<(String, String), usize>,
    domains: Domains,
    intervals: Intervals,
    /// Why limits of the present source cannot be served.
    unserved: Errors,
}

/// What a descriptor states beside its limit.
struct Marks {
    shadow: bool,
    quota: bool,
    /// Its metrics have the values of requests.
    detailed: bool,
    metadata: Option<Arc<Struct>>,
}

/// How a level's value is matched and shown.
#[derive(Clone, Copy)]
struct Matched {
    /// By a pattern.
    wild: bool,
    /// All that match share a count.
    shared: bool,
    /// In the labels of metrics, if the configuration does not fix it.
    valued: bool,
}

/// The path to a descriptor, and which of its values come from requests.
#[derive(Clone, Default)]
struct Way {
    workspace: String,
    /// The domain, then each level's key and how its value is matched.
    names: Vec<String>,
    /// The domain, then each level's key and its value, if it has one: the labels of metrics, as in the reference service.
    labels: Vec<String>,
    /// Levels whose values are not fixed by the configuration.
    free: Vec<usize>,
    /// Those of them whose values are in labels.
    valued: Vec<usize>,
    depth: usize,
}

/// The documents of a file.
fn documents<'a>(text: &'a str, errors: &mut Errors) -> Vec<Value<'a>> {
    let mut documents = Vec::new();
    if text.len() > MAX_FILE_BYTES {
        let problem = format!("the file has {} bytes", text.len());
        errors.reject::<()>(&FILE, problem, format!("at most {MAX_FILE_BYTES}"));
        return documents;
    }
    match yaml::documents(text.as_bytes(), Dialect::Written(WRITTEN)) {
        // An empty document, such as after a last `---`.
        Ok(read) => {
            for document in read.into_iter().filter(|document| document.value != Value::Null) {
                for field in &document.repeated {
                    errors.reject::<()>(&Path::Root(&field.path), field.problem(), "one value");
                }
                documents.push(document.value);
            }
        }
        Err(error) => {
            errors.reject::<()>(&FILE, format!("the file cannot be parsed: {error}"), "");
            return documents;
        }
    }
    documents.iter_mut().for_each(remove_nulls);
    if documents.is_empty() {
        // The file may have been cut off while it was written; accepting it would remove every limit.
        let expected = "\"domain: …\", even in a file without limits";
        errors.reject::<()>(&FILE, "the file has no domain", expected);
    }
    documents
}

/// Counts the names of limits. What is malformed is reported later.
fn count_names(value: &Value<'_>, workspace: &str, names: &mut HashMap<(String, String), usize>) {
    let Some(Value::List(descriptors)) = field(value, "descriptors") else { return };
    for descriptor in descriptors {
        let limits = match field(descriptor, "rate_limit") {
            Some(Value::List(limits)) => limits.as_slice(),
            one => one.map(std::slice::from_ref).unwrap_or_default(),
        };
        for limit in limits {
            if let Some(Value::Text(name)) = field(limit, "name") {
                *names.entry((workspace.to_owned(), name.clone().into_owned())).or_default() += 1;
            }
        }
        count_names(descriptor, workspace, names);
    }
}

fn workspace_of<'a>(document: &'a Value<'_>) -> &'a str {
    match field(document, "workspace") {
        Some(Value::Text(workspace)) => workspace,
        _ => DEFAULT_WORKSPACE,
    }
}

fn field<'v, 'a>(value: &'v Value<'a>, name: &str) -> Option<&'v Value<'a>> {
    let Value::Object(fields) = value else { return None };
    fields.iter().find(|(field, _)| field == name).map(|(_, value)| value)
}

impl Parser {
    fn domain(&mut self, node: Node<'_>, errors: &mut Errors) -> Option<()> {
        let fields = node.object(&ROOT_FIELDS, errors)?;
        let workspace = fields.or("workspace", DEFAULT_WORKSPACE.to_owned(), errors, |n, e| n.name(e));
        let name = fields.required("domain", "the name of the document's domain", errors, text);
        let way = Way {
            workspace: workspace.unwrap_or_default(),
            names: vec![name.clone().unwrap_or_default()],
            labels: vec![name.clone().unwrap_or_default()],
            ..Way::default()
        };
        // A domain that other documents have begun is taken out while this one is read.
        let begun = match (&name, self.domains) {
            (Some(name), Domains::Merged) => self.limits.domains.remove(name),
            _ => None,
        };
        let workspace = way.workspace.clone().into_bytes();
        let other = begun.as_ref().is_some_and(|begun| begun.workspace != workspace);
        let mut level = begun.map(|begun| begun.level).unwrap_or_default();
        self.level(fields, &way, &mut level, errors);
        let name = name?;
        if other {
            let expected = "the same in each document of a domain";
            fields.reject::<()>(
                "workspace",
                "another document of the domain has a different one",
                expected,
                errors,
            );
        }
        match self.limits.domains.entry(name.clone()) {
            Entry::Occupied(_) => {
                let expected = "one document for each domain, or --rls-merge-domains";
                fields.reject("domain", format!("{name:?} occurs twice"), expected, errors)
            }
            Entry::Vacant(room) => {
                room.insert(Domain { name, workspace, level });
                Some(())
            }
        }
    }

    /// Adds the descriptors of one list.
    fn level(&mut self, fields: Fields<'_>, way: &Way, level: &mut Level, errors: &mut Errors) {
        fields.optional("descriptors", errors, |node, errors| {
            if way.depth >= MAX_DEPTH {
                let problem = "is nested too deep";
                return node.reject(errors, problem, format!("at most {MAX_DEPTH} levels of descriptors"));
            }
            node.list(
                0..=usize::MAX,
                "descriptors, each beginning with \"- key:\"",
                errors,
                |node, errors| self.descriptor(node, way, level, errors),
            )
        });
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
        let (shadow, quota, shared) = (flag("shadow_mode"), flag("quota_mode"), flag("share_threshold"));
        let (detailed, valued) = (flag("detailed_metric"), flag("value_to_metric"));
        let metadata =
            fields.optional("metadata", errors, |node, errors| metadata::read(&node, errors)).flatten();
        let marks = Marks { shadow, quota, detailed, metadata: metadata.map(Arc::new) };
        let wild = value.as_ref().is_some_and(|value| value.contains('*'));
        if shared && !wild {
            let expected = "a value with a wildcard beside it, such as \"files/*\"";
            fields.reject::<()>("share_threshold", "it has no effect", expected, errors);
        }
        let way =
            way.to(key.as_deref().unwrap_or_default(), value.as_deref(), Matched { wild, shared, valued });
        let rules =
            fields.optional("rate_limit", errors, |node, errors| self.rules(node, &marks, &way, errors));
        let mut next = Level::default();
        self.level(fields, &way, &mut next, errors);
        let key = key?;
        if !level.insert(key.clone(), value.clone(), rules.flatten().unwrap_or_default(), next) {
            let value = value.map_or(String::new(), |value| format!(" with value {value:?}"));
            let problem = format!("it is the second descriptor of key {key:?}{value} in its list");
            return errors.reject(&node.path, problem, "one");
        }
        Some(())
    }

    /// The limit of a descriptor, or the list of its limits: of different intervals, as those of one count on one key.
    fn rules(
        &mut self,
        node: Node<'_>,
        marks: &Marks,
        way: &Way,
        errors: &mut Errors,
    ) -> Option<Vec<Arc<Rule>>> {
        let valued = if marks.detailed { &way.free } else { &way.valued };
        let series = Arc::new(LimitSeries::new(way.labels.clone(), valued.clone()));
        self.limits.series.push(Arc::clone(&series));
        if !matches!(node.value, Value::List(_)) {
            return self.rule(node, marks, way, &series, errors).map(|rule| vec![Arc::new(rule)]);
        }
        let mut rules: Vec<Arc<Rule>> = Vec::new();
        node.list(1..=MAX_LIMITS, "limits", errors, |node, errors| {
            let rule = self.rule(node, marks, way, &series, errors)?;
            let is_same = |other: &Arc<Rule>| match (other.limit, rule.limit) {
                (Limit::Rate(other), Limit::Rate(own)) => other.interval_ms == own.interval_ms,
                _ => false,
            };
            if rule.limit == Limit::Unlimited {
                return errors.reject(&node.path, "unlimited has no effect in a list of limits", "a limit");
            }
            if rules.iter().any(is_same) {
                let problem = "it has the interval of another limit of its descriptor";
                return errors.reject(&node.path, problem, "another interval");
            }
            rules.push(Arc::new(rule));
            Some(())
        })?;
        Some(rules)
    }

    fn rule(
        &mut self,
        node: Node<'_>,
        marks: &Marks,
        way: &Way,
        series: &Arc<LimitSeries>,
        errors: &mut Errors,
    ) -> Option<Rule> {
        let fields = node.object(&LIMIT_FIELDS, errors)?;
        let unlimited = fields.or("unlimited", false, errors, |n, e| n.boolean(e)).unwrap_or(false);
        // As in the reference service, an empty name counts as missing.
        let named = |node: &Node<'_>| !matches!(node.value, Value::Text(text) if text.is_empty());
        let name = fields.get("name").filter(named).and_then(|node| text(node, errors));
        // Limits of one name would otherwise share counts that are separate in the reference service.
        let alone = |name: &&String| self.names.get(&(way.workspace.clone(), (*name).clone())) == Some(&1);
        let named = fields.get("name").and_then(|node| node.name(&mut Errors::keeping(1)));
        let namespace = naming::namespace(named.as_ref().filter(alone).map(String::as_str), &way.names);
        let limit = match unlimited {
            true => {
                let why = "it has no effect with unlimited; remove it";
                fields.reject_given(&["unit", "unit_multiplier"], why, errors);
                Some(Limit::Unlimited)
            }
            false => self.rate(fields, errors),
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
            namespace,
            name: name.unwrap_or_default(),
            limit: limit?,
            shadow: marks.shadow,
            quota: marks.quota,
            metadata: marks.metadata.clone(),
            replaces: replaces?,
            free: way.free.clone(),
            series: Arc::clone(series),
        })
    }

    fn rate(&mut self, fields: Fields<'_>, errors: &mut Errors) -> Option<Limit> {
        // The reference service reads a missing number as 0, which denies every request; here it is an error.
        let expected = "a whole number from 0 to 4294967295";
        let requests = fields.required("requests_per_unit", expected, errors, |node, errors| {
            u32::try_from(node.integer(0..=u32::MAX.into(), errors)?).ok()
        });
        let into = match self.intervals {
            Intervals::AllServed => errors,
            Intervals::SomeUnserved => &mut self.unserved,
        };
        let unit = fields.required("unit", &units(), into, unit);
        let multiplier = fields.or("unit_multiplier", 1, into, |n, e| n.integer(1..=u32::MAX.into(), e));
        let rate = |(unit, multiplier): (Unit, u64)| {
            let rate = Rate::new(requests.unwrap_or_default(), unit, multiplier);
            let long =
                || fields.reject("unit_multiplier", "the interval is longer than a window", LONGEST, into);
            rate.or_else(long)
        };
        match (unit.zip(multiplier).and_then(rate), self.intervals) {
            (Some(rate), _) => requests.map(|_| Limit::Rate(rate)),
            (None, Intervals::AllServed) => None,
            (None, Intervals::SomeUnserved) => Some(Limit::Unserved),
        }
    }
}

fn unit(node: Node<'_>, errors: &mut Errors) -> Option<Unit> {
    let word = match node.value {
        Value::Text(word) => word.to_ascii_lowercase(),
        _ => String::new(),
    };
    match Unit::USED.iter().find(|(name, _, _)| *name == word) {
        Some((_, unit, _)) => Some(*unit),
        None => node.reject(errors, "is not a unit of time", units()),
    }
}

fn units() -> String {
    format!("one of {}", Unit::USED.map(|(name, _, _)| name).join(", "))
}

fn text(node: Node<'_>, errors: &mut Errors) -> Option<String> {
    node.text(MAX_TEXT_BYTES, errors).map(str::to_owned)
}

/// Removes fields without a value, such as `value:`, which YAML reads as null. In metadata they mean something.
fn remove_nulls(value: &mut Value<'_>) {
    match value {
        Value::Object(fields) => {
            fields.retain(|(_, value)| *value != Value::Null);
            let fields = fields.iter_mut().filter(|(name, _)| name != "metadata");
            fields.for_each(|(_, value)| remove_nulls(value));
        }
        Value::List(list) => list.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

impl Way {
    /// The path one level deeper.
    fn to(&self, key: &str, value: Option<&str>, Matched { wild, shared, valued }: Matched) -> Way {
        let mut way = self.clone();
        way.names.push(key.to_owned());
        way.names.push(naming::matched(value, wild, shared));
        way.labels.push(value.map_or_else(|| key.to_owned(), |value| format!("{key}_{value}")));
        if value.is_none() || (wild && !shared) {
            way.free.push(self.depth);
            way.valued.extend(valued.then_some(self.depth));
        }
        way.depth += 1;
        way
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(text: &str) -> Vec<String> {
        let parsed = Limits::parse([("f", text)], Domains::Unique);
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
    value: 40.40
    shadow_mode: 40.40
    ratelimit: {unit: day, requests_per_unit: 5}
  - key: b
    rate_limit: {unit: year, unit_multiplier: 2, requests_per_unit: 5}
  - key: c
    rate_limit: {unit: foo, requests_per_unit: -1}
  - key: d
    rate_limit: {unlimited: true, unit: day, requests_per_unit: 1}
  - value: x
  - key: e
    rate_limit: {name: 'no name', requests_per_unit: 4294967296, replaces: [x, {name: ''}]}
    quota_mode: 'true'
    metadata: []
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
        let units = "expected one of second, minute, hour, day, week, month, year";
        let fields = "key, value, rate_limit, descriptors, shadow_mode, quota_mode, metadata, share_threshold, \
                      detailed_metric or value_to_metric";
        let no_effect = "it has no effect with unlimited; remove it";
        let number = "expected a whole number from 0 to 4294967295";
        let expected = [
            "workspce: there is no such field; did you mean workspace?; expected domain, workspace, name or descriptors".to_owned(),
            "descriptors[0].ratelimit: there is no such field; did you mean rate_limit?; expected key,".into(),
            "descriptors[0].shadow_mode: 40.4 is not a boolean; expected true or false".into(),
            "descriptors[1].rate_limit.unit_multiplier: the interval is longer than a window; expected at most 366 days in all"
                .into(),
            format!("descriptors[2].rate_limit.requests_per_unit: -1 is not a whole number in range; {number}"),
            format!("descriptors[2].rate_limit.unit: \"foo\" is not a unit of time; {units}"),
            format!("descriptors[3].rate_limit.unit: {no_effect}"),
            "descriptors[4].key: it is missing; expected the key of".into(),
            "descriptors[5].shadow_mode: 1 is not a boolean; expected true or false".into(),
            "descriptors[5].quota_mode: \"true\" is not a boolean; expected true or false".into(),
            "descriptors[5].metadata: a list is not an object; expected an object".into(),
            format!("descriptors[5].rate_limit.requests_per_unit: 4294967296 is out of range; {number}"),
            format!("descriptors[5].rate_limit.unit: it is missing; {units}"),
            "descriptors[5].rate_limit.replaces[0]: \"x\" is not an object; expected an object with name".into(),
            "descriptors[5].rate_limit.replaces[1].name: \"\" is empty; expected a string".into(),
            "descriptors[6].share_threshold: it has no effect; expected a value with a wildcard".into(),
            "descriptors[6].descriptors[0].key: it has a wildcard; expected a key without one".into(),
            "descriptors[6].descriptors[1].rate_limit.replaces[0].name: it is the limit's own name".into(),
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
            ("domain: a\ndomain: b", Some("f: domain: it is given twice, again at line 2, column 1")),
            ("a: [", Some("the file cannot be parsed")),
            ("domain: a\ndescriptors: [*x]", Some(", at line 2, column 15")),
            ("domain: a\nworkspace: 'a b'", Some("workspace: \"a b\" is not a name")),
        ];
        for (text, expected) in cases {
            let parsed = Limits::parse([("other", "domain: z"), ("f", text)], Domains::Unique);
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
            ("[".repeat(100_000), "cannot be parsed"),
            (format!("domain: d\ndescriptors:\n{many}"), "and 950 more"),
            (format!("domain: {}", "x".repeat(MAX_TEXT_BYTES + 1)), "has 1025 bytes"),
            (" ".repeat(MAX_FILE_BYTES + 1), "bytes; expected at most"),
            (aliases, "f: "),
        ];
        for (text, expected) in cases {
            let error = Limits::parse([("f", text.as_str())], Domains::Unique).unwrap_err().to_string();
            assert!(error.contains(expected), "{}", &error[..error.len().min(300)]);
        }
    }
    /// The values that requests have to have, and numbers and booleans, as the reference service reads them.
    #[test]
    fn words_and_numbers_are_those_of_the_reference_service() {
        let rule = |descriptor: &str, value: &str| {
            let text = format!("domain: 1\ndescriptors:\n  - {descriptor}\n");
            let limits = Limits::parse([("f", text.as_str())], Domains::Unique).unwrap();
            let entry = super::super::wire::Entry { key: "007".into(), value: value.into() };
            limits.domain("1").unwrap().find(&[entry]).first().map(|rule| (rule.limit, rule.shadow))
        };
        for value in ["+15550100", "100_000", "0x10", "010", "1.50", "yes", "True", "2026-11-26", "1e3"] {
            let descriptor = format!("{{key: 007, value: {value}, rate_limit: {{unlimited: true}}}}");
            assert!(rule(&descriptor, value).is_some(), "{value}");
        }
        assert!(rule("{key: 007, value: +15550100, rate_limit: {unlimited: on}}", "15550100").is_none());
        assert!(rule("{key: 007, value: ~, rate_limit: {unlimited: True}}", "anything").is_some());
        for (number, expected) in [("5", 5), ("+5", 5), ("100_000", 100_000), ("0x10", 16), ("010", 8)] {
            let limit = format!("{{unit: SECOND, requests_per_unit: {number}}}");
            let descriptor = format!("{{key: 007, shadow_mode: yes, rate_limit: {limit}}}");
            let rate = Rate::new(expected, Unit::Second, 1).unwrap();
            assert_eq!(rule(&descriptor, "x"), Some((Limit::Rate(rate), true)), "{number}");
        }
        // The fields of another limit.
        let merged = "{key: 007, value: a, rate_limit: &limit {unit: day, requests_per_unit: 2}}
  - {key: 007, rate_limit: {<<: *limit, requests_per_unit: 3}}";
        for (value, expected) in [("a", 2), ("b", 3)] {
            let rate = Rate::new(expected, Unit::Day, 1).unwrap();
            assert_eq!(rule(merged, value), Some((Limit::Rate(rate), false)));
        }
    }

    /// What the reference service accepts and refuses, on configurations of our own.
    #[test]
    fn it_is_as_strict_as_the_reference_service() {
        let limit = "rate_limit: {unit: day, requests_per_unit: 5}";
        let one = |descriptor: &str| format!("domain: d\ndescriptors:\n  - {descriptor}\n");
        let cases = [
            (one(&format!("{{key: k, value: 404, {limit}}}")), None),
            (one(&format!("{{key: k, value: true, {limit}}}")), None),
            (one("{key: k, rate_limit: {unlimited: true, requests_per_unit: 5}}"), None),
            (one("{key: k, rate_limit: {unit: DAY, requests_per_unit: 5, name: any name}}"), None),
            (
                one(&format!("{{key: k, quota_mode: true, {limit}, metadata: {{a: {{b: [1, x, null]}}}}}}")),
                None,
            ),
            (one(&format!("{{key: k, detailed_metric: true, value_to_metric: true, {limit}}}")), None),
            (one(&format!("{{key: k, value: a*b*, share_threshold: true, {limit}}}")), None),
            ("domain: d\ndescriptors:\n".to_owned(), None),
            (one("{key: k, rate_limit: {unit: year, requests_per_unit: 5, name: ''}}"), None),
            (format!("name: a listener's\n{}", one("{key: k, rate_limit: ~, descriptors: []}")), None),
            (one("{key: k, rate_limit: {unit: day, unit_multiplier: 366, requests_per_unit: 5}}"), None),
            (
                one("{key: k, rate_limit: {unit: day, unit_multiplier: 367, requests_per_unit: 5}}"),
                Some("at most 366 days"),
            ),
            (
                one("{key: k, rate_limit: {unit: year, unit_multiplier: 4294967295, requests_per_unit: 5}}"),
                Some("at most 366 days"),
            ),
            (
                one("{key: k, rate_limit: {unit: day, unit_multiplier: 0, requests_per_unit: 5}}"),
                Some("unit_multiplier: 0 is out of range"),
            ),
            (one("{key: k, rate_limit: {unit: fortnight, requests_per_unit: 5}}"), Some("is not a unit")),
            (one("{key: k, rate_limit: {unlimited: true, unit: day}}"), Some("no effect with unlimited")),
            (one("{key: k, rate_limit: {unit: day, requestsperunit: 5}}"), Some("no such field")),
            (one("{value: v}"), Some("key: it is missing")),
            (one("a"), Some("is not an object")),
            (one("{key: k, value: 0.5}"), None),
            (one("{key: k, value: [v]}"), Some("cannot be parsed")),
            (one("{key: k, shadow_mode: 'true'}"), Some("is not a boolean")),
            (one("{key: k, value: v}\n  - {key: k, value: v}"), Some("it is the second")),
            (one(&format!("{{key: k, value: v, share_threshold: true, {limit}}}")), Some("it has no effect")),
            (
                one(
                    "{key: k, rate_limit: {unit: day, requests_per_unit: 5, name: n, replaces: [{name: n}]}}",
                ),
                Some("own name"),
            ),
            (
                one("{key: k, rate_limit: {unit: day, requests_per_unit: 5, replaces: [{name: }]}}"),
                Some("name: it is missing"),
            ),
            ("descriptors:\n".to_owned(), Some("domain: it is missing")),
            ("0.25: d\n".to_owned(), Some("no such field")),
            ("'''\n".to_owned(), Some("cannot be parsed")),
        ];
        for (text, expected) in cases {
            match (errors(&text), expected) {
                (found, None) => assert!(found.is_empty(), "{text}{found:?}"),
                (found, Some(expected)) => {
                    assert!(found.iter().any(|error| error.contains(expected)), "{text}{found:?}");
                }
            }
        }
    }

    #[test]
    fn documents_of_one_domain_are_merged_where_that_is_set() {
        let file = |key: &str| {
            format!(
                "domain: d\ndescriptors: [{{key: {key}, rate_limit: {{unit: day, requests_per_unit: 5}}}}]"
            )
        };
        let merged = |one: &str, two: &str| {
            let limits = Limits::parse([("f", one), ("g", two)], Domains::Merged);
            limits.map_err(|errors| errors.to_string())
        };
        let limits = merged(&file("a"), &file("b")).unwrap();
        let entry = |key: &str| [super::super::wire::Entry { key: key.into(), value: Vec::new() }];
        let domain = limits.domain("d").unwrap();
        assert!(["a", "b"].iter().all(|key| domain.find(&entry(key)).len() == 1));
        assert!(
            merged(&file("a"), &file("a")).unwrap_err().starts_with("g: descriptors[0]: it is the second")
        );
        let elsewhere = format!("workspace: w\n{}", file("b"));
        assert!(merged(&file("a"), &elsewhere).unwrap_err().starts_with("g: workspace: another document"));
    }

    #[test]
    fn a_descriptor_has_up_to_four_limits_of_different_intervals() {
        let limit = |unit: &str, requests: u64| format!("{{unit: {unit}, requests_per_unit: {requests}}}");
        let one = |limits: &[String]| {
            format!("domain: d\ndescriptors: [{{key: k, rate_limit: [{}]}}]\n", limits.join(", "))
        };
        let four = [("second", 1), ("minute", 2), ("hour", 3), ("day", 4)].map(|(unit, of)| limit(unit, of));
        let limits = Limits::parse([("f", one(&four).as_str())], Domains::Unique).unwrap();
        let entry = super::super::wire::Entry { key: "k".into(), value: b"x".to_vec() };
        let rules = limits.domain("d").unwrap().find(&[entry]);
        let requests = rules.iter().map(|rule| match rule.limit {
            Limit::Rate(rate) => rate.requests,
            _ => 0,
        });
        assert_eq!(requests.collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert_eq!(limits.series().len(), 1, "its metrics are those of the descriptor");
        let wrong = |limits: &[String], expected: &str| {
            let found = errors(&one(limits));
            assert!(found.iter().any(|error| error.contains(expected)), "{found:?}");
        };
        let mut five = four.to_vec();
        five.push(limit("week", 5));
        wrong(&five, "rate_limit: it has 5 limits; expected a list of 1 to 4 limits");
        wrong(&[], "rate_limit: it has 0 limits");
        let minutes = "{unit: minute, unit_multiplier: 60, requests_per_unit: 9}".to_owned();
        wrong(&[limit("hour", 1), minutes], "rate_limit[1]: it has the interval of another limit");
        wrong(&[limit("hour", 1), "{unlimited: true}".to_owned()], "rate_limit[1]: unlimited has no effect");
        wrong(&[limit("hour", 1), limit("fortnight", 1)], "rate_limit[1].unit: \"fortnight\" is not a unit");
        wrong(&["5".to_owned()], "rate_limit[0]: 5 is not an object");
    }

    /// Two limits of one name have counts of their own, as in the reference service.
    #[test]
    fn a_name_is_a_namespace_if_it_occurs_once() {
        let text = "
domain: d
descriptors:
  - {key: a, rate_limit: {unit: day, requests_per_unit: 1, name: alone}}
  - {key: b, rate_limit: {unit: day, requests_per_unit: 1, name: twice}}
  - {key: c, rate_limit: {unit: day, requests_per_unit: 1, name: no name of Weir}}
---
domain: e
descriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 1, name: twice}}]
---
domain: f
workspace: w
descriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 1, name: alone}}]
";
        let limits = Limits::parse([("f", text)], Domains::Unique).unwrap();
        let namespace = |domain: &str, key: &str| {
            let entry = super::super::wire::Entry { key: key.into(), value: b"x".to_vec() };
            let [rule] = limits.domain(domain).unwrap().find(&[entry]) else { panic!("one limit") };
            (String::from_utf8(rule.namespace.clone()).unwrap(), rule.name.clone())
        };
        for (domain, key, expected, name) in [
            ("d", "a", "alone", "alone"),
            ("d", "b", "rls|d|b|\\-", "twice"),
            ("e", "b", "rls|e|b|\\-", "twice"),
            ("d", "c", "rls|d|c|\\-", "no name of Weir"),
            ("f", "b", "alone", "alone"),
        ] {
            assert_eq!(namespace(domain, key), (expected.to_owned(), name.to_owned()));
        }
    }
}
