//! Finds the limits of a request's descriptor.
//!
//! Each entry of the descriptor selects a configured descriptor one level deeper: first the one with exactly this value, then
//! the first with a matching pattern, then the one with only the key. The limit is that of the last entry. If it has no
//! limit, or an entry matches nothing, the request is allowed. If it has several, each of them applies.

use super::naming;
use super::wire::{Entry, Unit};
use crate::api::embedded::LimitCheck;
use crate::telemetry::metrics::limits::LimitSeries;
use memchr::memmem;
use prost_types::Struct;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use weir_core::model::exact::Algorithm;
use weir_core::model::key::{MAX_DURATION_MS, MIN_DURATION_MS};

/// The limits of one domain.
#[derive(Debug)]
pub struct Domain {
    /// The domain's name.
    pub name: String,
    /// The workspace in which its limits are counted.
    pub workspace: Vec<u8>,
    /// The descriptors for the first entry.
    pub level: Level,
}

/// A limit of a descriptor.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// The namespace of its identifiers.
    pub namespace: Vec<u8>,
    /// The configured name, or empty.
    pub name: String,
    /// What it allows.
    pub limit: Limit,
    /// Whether it is in shadow mode: it decides and counts, and never denies.
    pub shadow: bool,
    /// Whether it is a quota: it denies a call only together with all other quotas of that call.
    pub quota: bool,
    /// What a response contains if this limit passes.
    pub metadata: Option<Arc<Struct>>,
    /// Names of limits that do not apply if this one does.
    pub replaces: Vec<String>,
    /// Positions of the entries whose values form the identifier.
    pub free: Vec<usize>,
    /// The metrics of its descriptor.
    pub series: Arc<LimitSeries>,
}

/// What a descriptor's limit allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Everything.
    Unlimited,
    /// So many in each interval.
    Rate(Rate),
    /// It cannot be served, so its descriptor is not decided.
    Unserved,
}

/// So many requests in each interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Most in each interval.
    pub requests: u32,
    /// The interval as responses show it; [`Unit::Unknown`] for several units.
    pub unit: Unit,
    /// The interval in milliseconds, of a length that a window may have.
    pub interval_ms: u64,
}

impl Rate {
    /// So many in each `multiplier` units; `None` if no window has that length.
    pub fn new(requests: u32, unit: Unit, multiplier: u64) -> Option<Rate> {
        let interval_ms = unit.ms()?.checked_mul(multiplier)?;
        let unit = if multiplier == 1 { unit } else { Unit::Unknown };
        let is_window = (MIN_DURATION_MS..=MAX_DURATION_MS).contains(&interval_ms);
        is_window.then_some(Rate { requests, unit, interval_ms })
    }
}

/// The descriptors of one list, by key.
#[derive(Debug, Default)]
pub struct Level {
    keys: HashMap<String, Values>,
}

/// The descriptors of one key.
#[derive(Debug, Default)]
struct Values {
    exact: HashMap<Vec<u8>, Node>,
    /// In the order of the configuration.
    patterns: Vec<(Pattern, Node)>,
    known_patterns: HashSet<Pattern>,
    any: Option<Node>,
}

#[derive(Debug)]
struct Node {
    rules: Vec<Arc<Rule>>,
    next: Level,
}

/// Text in which each `*` matches any bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Pattern {
    /// The text before the first `*`, between each two, and after the last.
    parts: Vec<Vec<u8>>,
}

impl Domain {
    /// The limits that the entries select; none if they have no limit.
    pub fn find(&self, entries: &[Entry]) -> &[Arc<Rule>] {
        let find = || {
            let (last, way) = entries.split_last()?;
            let level = way.iter().try_fold(&self.level, |level, entry| Some(&level.node(entry)?.next))?;
            Some(level.node(last)?.rules.as_slice())
        };
        find().unwrap_or_default()
    }

    /// The limits that entries without an order select in some order, and the entries in that order. If several orders have limits, the first in
    /// the order of keys applies. Visits each configured descriptor at most once; the keys are to differ.
    pub fn find_unordered<'a>(&'a self, entries: &[Entry]) -> Option<(Vec<Entry>, &'a [Arc<Rule>])> {
        let mut way = Vec::with_capacity(entries.len());
        let rules = self.level.find_unordered(&mut entries.iter().collect(), &mut way)?;
        Some((way.into_iter().cloned().collect(), rules))
    }

    /// The check of a limit that counts on this namespace and identifier.
    pub fn check(&self, (namespace, identifier): (Vec<u8>, Vec<u8>), rate: Rate, cost: u64) -> LimitCheck {
        LimitCheck {
            algorithm: Algorithm::Window,
            workspace: self.workspace.clone(),
            namespace,
            identifier,
            duration_ms: rate.interval_ms,
            hard_limit: false,
            limit: u64::from(rate.requests),
            cost,
        }
    }
}

impl Rule {
    /// The namespace and the identifier on which these entries count.
    pub fn counted(&self, entries: &[Entry]) -> (Vec<u8>, Vec<u8>) {
        (self.namespace.clone(), naming::identifier(entries, &self.free))
    }
}

impl Level {
    /// Adds a descriptor; false if there is already one with this key and value.
    pub fn insert(&mut self, key: String, value: Option<String>, rules: Vec<Arc<Rule>>, next: Level) -> bool {
        let values = self.keys.entry(key).or_default();
        let node = Node { rules, next };
        match value {
            None => {
                let new = values.any.is_none();
                values.any.get_or_insert(node);
                new
            }
            Some(value) if value.contains('*') => {
                let pattern = Pattern::new(&value);
                let new = values.known_patterns.insert(pattern.clone());
                values.patterns.push((pattern, node));
                new
            }
            Some(value) => values.exact.insert(value.into_bytes(), node).is_none(),
        }
    }

    fn find_unordered<'e>(
        &self,
        rest: &mut Vec<&'e Entry>,
        way: &mut Vec<&'e Entry>,
    ) -> Option<&[Arc<Rule>]> {
        for at in 0..rest.len() {
            let entry = rest.remove(at);
            way.push(entry);
            let found = self.node(entry).and_then(|node| match rest.is_empty() {
                true => (!node.rules.is_empty()).then_some(node.rules.as_slice()),
                false => node.next.find_unordered(rest, way),
            });
            if found.is_some() {
                return found;
            }
            way.pop();
            rest.insert(at, entry);
        }
        None
    }

    fn node(&self, entry: &Entry) -> Option<&Node> {
        let values = self.keys.get(&entry.key)?;
        // Over HTTP/2, Envoy keeps blanks that a client sent around a header's value.
        let value = entry.value.trim_ascii();
        let fits = |(pattern, node)| Pattern::fits(pattern, value).then_some(node);
        let by_value = values.exact.get(value);
        by_value
            .or_else(|| values.patterns.iter().map(|(pattern, node)| (pattern, node)).find_map(fits))
            .or(values.any.as_ref())
    }
}

impl Pattern {
    fn new(text: &str) -> Pattern {
        Pattern { parts: text.split('*').map(Vec::from).collect() }
    }

    /// Searches the middle parts from the left, each at its first occurrence; if the pattern matches at all, it matches so.
    fn fits(&self, value: &[u8]) -> bool {
        let [first, middle @ .., last] = self.parts.as_slice() else { return false };
        let Some(rest) = value.strip_prefix(first.as_slice()) else { return false };
        let Some(rest) = rest.strip_suffix(last.as_slice()) else { return false };
        let after = middle
            .iter()
            .try_fold(rest, |rest, part| memmem::find(rest, part).and_then(|at| rest.get(at + part.len()..)));
        after.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::{Domains, Limits};
    use super::*;

    fn entries(descriptor: &[(&str, &str)]) -> Vec<Entry> {
        descriptor.iter().map(|(key, value)| Entry { key: (*key).into(), value: (*value).into() }).collect()
    }

    /// The limit found in a document of domain `d`, as `number unit`, `unlimited` or `-`.
    fn found(text: &str, descriptor: &[(&str, &str)]) -> String {
        let limits = Limits::parse([("f", text)], Domains::Unique).unwrap();
        let domain = limits.domain("d").unwrap();
        match domain.find(&entries(descriptor)).first().map(|rule| rule.limit) {
            Some(Limit::Rate(rate)) => format!("{} {:?}", rate.requests, rate.unit),
            Some(Limit::Unlimited) => "unlimited".into(),
            Some(Limit::Unserved) => "unserved".into(),
            None => "-".into(),
        }
    }

    fn check(text: &str, cases: &[(&[(&str, &str)], &str)]) {
        for (descriptor, expected) in cases {
            assert_eq!(found(text, descriptor), *expected, "{descriptor:?}");
        }
    }

    #[test]
    fn a_value_is_more_specific_than_a_key() {
        let text = "
domain: d
descriptors:
  - key: remote_address
    rate_limit: {unit: second, requests_per_unit: 10}
  - key: remote_address
    value: 50.0.0.5
    rate_limit: {unit: second, requests_per_unit: 0}
";
        check(
            text,
            &[
                (&[("remote_address", "50.0.0.1")], "10 Second"),
                (&[("remote_address", "50.0.0.5")], "0 Second"),
                (&[("remote_address", "")], "10 Second"),
                (&[("Remote_Address", "50.0.0.5")], "-"),
                (&[("remote", "address_50.0.0.5")], "-"),
            ],
        );
    }

    #[test]
    fn levels_are_followed_to_the_very_last() {
        let text = "
domain: d
descriptors:
  - key: message_type
    value: marketing
    descriptors:
      - key: to_number
        rate_limit: {unit: day, requests_per_unit: 5}
  - key: to_number
    rate_limit: {unit: day, requests_per_unit: 100}
  - key: key
    value: value
    rate_limit: {unit: second, requests_per_unit: 300}
";
        check(
            text,
            &[
                (&[("message_type", "marketing"), ("to_number", "1")], "5 Day"),
                (&[("to_number", "1")], "100 Day"),
                (&[("message_type", "marketing")], "-"),
                (&[("message_type", "other"), ("to_number", "1")], "-"),
                (&[("key", "value"), ("subkey", "subvalue")], "-"),
                (&[("key", "value")], "300 Second"),
                (&[("to_number", "1"), ("to_number", "1")], "-"),
            ],
        );
    }

    #[test]
    fn the_more_specific_way_is_taken_even_if_it_leads_nowhere() {
        let text = "
domain: d
descriptors:
  - key: a
    descriptors:
      - key: b
        rate_limit: {unit: week, requests_per_unit: 1}
  - key: a
    value: x
  - key: free
    rate_limit: {unlimited: true}
";
        check(
            text,
            &[
                (&[("a", "y"), ("b", "")], "1 Week"),
                (&[("a", "x"), ("b", "")], "-"),
                (&[("free", "1")], "unlimited"),
            ],
        );
    }

    #[test]
    fn wildcards_come_after_values_in_their_order() {
        let text = "
domain: d
descriptors:
  - key: k
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: k
    value: test*
    rate_limit: {unit: hour, requests_per_unit: 2}
  - key: k
    value: test1
    rate_limit: {unit: hour, requests_per_unit: 3}
  - key: k
    value: t*2
    rate_limit: {unit: hour, requests_per_unit: 4}
  - key: k
    value: 'a*b*b*c'
    rate_limit: {unit: month, requests_per_unit: 5}
";
        check(
            text,
            &[
                (&[("k", "test1")], "3 Hour"),
                (&[("k", "test")], "2 Hour"),
                (&[("k", "test2")], "2 Hour"),
                (&[("k", "tes2")], "4 Hour"),
                (&[("k", "tes")], "1 Hour"),
                (&[("k", "abbc")], "5 Month"),
                (&[("k", "a-b-b-c")], "5 Month"),
                (&[("k", "abc")], "1 Hour"),
                (&[("k", "abbcd")], "1 Hour"),
            ],
        );
        let overlap = Pattern::new("ab*ba");
        assert!(!overlap.fits(b"aba") && overlap.fits(b"abba") && overlap.fits(b"ab\xffba"));
    }

    /// Which descriptors count on one key.
    #[test]
    fn what_the_configuration_does_not_fix_makes_the_identifier() {
        let text = "
domain: d
descriptors:
  - key: one
    value: fixed
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: tenant
    value: 't*'
    descriptors:
      - key: path
        value: '/a*'
        share_threshold: true
        descriptors:
          - key: user
            rate_limit: {unit: hour, requests_per_unit: 1}
      - key: path
        value: '/b'
        descriptors:
          - key: user
            rate_limit: {name: shared-with-filters, unit: hour, requests_per_unit: 1}
";
        let limits = Limits::parse([("f", text)], Domains::Unique).unwrap();
        let domain = limits.domain("d").unwrap();
        let key = |descriptor: &[(&str, &str)]| {
            let entries = entries(descriptor);
            let [rule] = domain.find(&entries) else { panic!("one limit") };
            let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
            (text(rule.namespace.clone()), text(naming::identifier(&entries, &rule.free)))
        };
        let shared = "rls|d|tenant|~t*|path|+/a*|user|\\-";
        let cases = [
            (&[("one", "fixed")][..], ("rls|d|one|=fixed", "*")),
            (&[("tenant", "t1"), ("path", "/a1"), ("user", "u|v")], (shared, "t1|u\\|v")),
            (&[("tenant", "t1"), ("path", "/a2"), ("user", "")], (shared, "t1|\\-")),
            (&[("tenant", " t1"), ("path", "\t/a2 "), ("user", "u ")], (shared, "t1|u")),
            (&[("one", " fixed\t")], ("rls|d|one|=fixed", "*")),
            (&[("tenant", "t2"), ("path", "/b"), ("user", "u")], ("shared-with-filters", "t2|u")),
        ];
        for (descriptor, (namespace, identifier)) in cases {
            assert_eq!(key(descriptor), (namespace.to_owned(), identifier.to_owned()), "{descriptor:?}");
        }
        let long = "x".repeat(100);
        let (_, identifier) = key(&[("tenant", "t1"), ("path", "/b"), ("user", &long)]);
        assert!(identifier.starts_with("sha256:") && identifier.len() == 50, "{identifier}");
    }

    /// Compared with each other one by one, these patterns would take minutes.
    #[test]
    fn a_repeated_pattern_is_found_among_many() {
        let mut level = Level::default();
        let mut insert =
            |value: String| level.insert("k".to_owned(), Some(value), Vec::new(), Level::default());
        assert!((0..200_000).all(|number| insert(format!("p{number}*"))));
        assert!(!insert("p7*".to_owned()));
    }
}
