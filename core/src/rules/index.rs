//! The rules that a request may match, found by its host and path, so that rules of other hosts and paths cost it nothing.
//!
//! A rule is filed under each of its hosts, and there under the segments with which every path that it matches begins. A
//! request finds the rules of all hosts that fit, along each reading of its path. What is found is a superset: all conditions of a rule
//! are tested afterwards.

use super::matcher::Conditions;
use super::request::host::{HOST_BYTES_MAX, Host, host_of, is_plain};
use super::request::path::segments;
use super::request::sources::RequestPath;
use super::request::{Request, joined_header};
use super::rule::Rule;
use crate::matching::case;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::hash::BuildHasherDefault;
use hashbrown::HashMap;
use siphasher::sip::SipHasher13;
use smallvec::SmallVec;

/// With fewer rules, testing each is as fast.
pub(super) const INDEXED_FROM: usize = 16;

/// Most rules of a request that some readings of its path meet and others do not: of those that may deny it, and of those in shadow mode.
pub const MAX_SPLIT_RULES: usize = 32;

/// A few rules, in ascending order.
type Few = SmallVec<[u16; MAX_SPLIT_RULES]>;

type ByText<V> = HashMap<Box<[u8]>, V, BuildHasherDefault<SipHasher13>>;

/// Rules by host and path.
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    any: Tree,
    /// By host, in lower case.
    exact: ByText<Tree>,
    /// By what a host ends with: `.example.com`.
    below: ByText<Tree>,
    /// Length of the longest key of each.
    host_bytes: usize,
    segment_bytes: usize,
}

/// Rules by the beginning of their paths. The first node is the root.
#[derive(Clone, Debug)]
struct Tree(Vec<Node>);

#[derive(Clone, Debug, Default)]
struct Node {
    /// Rules that match only paths that begin with the segments up to here, in ascending order.
    rules: Vec<u16>,
    children: ByText<usize>,
}

/// The rules that were found for a request.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    rules: Vec<u16>,
    /// Those that may deny, and those that may not, among the rules that are filed under segments, if the path has all readings.
    split: Few,
    trial: Few,
    text: Vec<u8>,
}

/// Whether a rule may deny a request, as far as that is known without the identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It may.
    Denies,
    /// It depends on the identifier, or the client's address is exempt.
    Depends,
    /// It is in shadow mode for all identifiers.
    OnTrial,
}

/// A path has all readings, and too many rules that may deny are filed under segments of paths; or a host, and under hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooMany;

impl Index {
    /// The index of `rules`; `None` if there are too few.
    pub fn of(rules: &[Rule]) -> Option<Index> {
        if rules.len() < INDEXED_FROM {
            return None;
        }
        let mut index = Index::default();
        for (number, rule) in (0..=u16::MAX).zip(rules) {
            index.insert(number, &rule.conditions);
        }
        Some(index)
    }

    fn insert(&mut self, rule: u16, conditions: &Conditions) {
        let mut text = Vec::new();
        let mut folded = |part: &[u8]| {
            case::fold(part, &mut text);
            text.as_slice().into()
        };
        let head: Vec<Box<[u8]>> = conditions.head().map(&mut folded).collect();
        let longest = head.iter().map(|part| part.len()).max().unwrap_or(0);
        self.segment_bytes = self.segment_bytes.max(longest);
        let hosts = conditions.hosts();
        if hosts.is_empty() || hosts.contains(&Host::Any) {
            return self.any.insert(rule, &head);
        }
        for host in hosts {
            let (map, name) = match host {
                Host::Exact(name) => (&mut self.exact, name),
                Host::Below(suffix) => (&mut self.below, suffix),
                Host::Any => continue,
            };
            self.host_bytes = self.host_bytes.max(name.len());
            map.entry(name.clone()).or_default().insert(rule, &head);
        }
    }

    /// The numbers of the rules that the request may match, in ascending order, and whether rules on trial were left out: of a path that has
    /// all readings, and of a host that is not plain, those beyond [`MAX_SPLIT_RULES`].
    ///
    /// # Errors
    ///
    /// The path has all readings, or the host is not plain, and the request thereby more than [`MAX_SPLIT_RULES`] rules that may deny. No more of them are looked at.
    pub fn find<'a, R: Request + ?Sized>(
        &self,
        request: &R,
        path: &mut RequestPath,
        buffer: &mut Vec<u8>,
        standing: &dyn Fn(u16) -> Standing,
        found: &'a mut Candidates,
    ) -> Result<(&'a [u16], bool), TooMany> {
        let Candidates { rules, split, trial, text } = found;
        rules.clear();
        split.clear();
        trial.clear();
        let mut found: Result<bool, TooMany> = Ok(false);
        // The host is read only for rules that depend on it.
        let authority =
            if self.host_bytes > 0 { joined_header(request, b":authority", buffer) } else { None };
        let host = authority.map(host_of);
        if authority.is_some_and(|authority| !is_plain(authority)) {
            // It meets the conditions on all hosts.
            found = self.exact.values().chain(self.below.values()).try_fold(false, |left_out, tree| {
                Ok(add_few(&tree.0, rules, split, trial, standing)? || left_out)
            });
        }
        let mut lower = [0; HOST_BYTES_MAX];
        let host = host.and_then(|host| self.end_of_host(host, &mut lower));
        let mut collect = |tree: &Tree| {
            // The path is read only for a tree that depends on it.
            if !tree.has_branches() {
                return tree.collect(&[], self.segment_bytes, text, rules);
            }
            let path = path.of(request, buffer);
            if path.are_all() {
                found = found
                    .and_then(|left_out| Ok(tree.collect_all(rules, split, trial, standing)? || left_out));
                return;
            }
            path.each().for_each(|reading| tree.collect(reading, self.segment_bytes, text, rules));
        };
        collect(&self.any);
        if let Some((host, is_whole)) = host {
            self.of_host(host, is_whole, &mut collect);
        }
        let left_out = found?;
        rules.extend_from_slice(split);
        rules.extend_from_slice(trial);
        rules.sort_unstable();
        rules.dedup();
        Ok((rules.as_slice(), left_out))
    }

    /// A request's host in lower case, or the end of a long one, whose other bytes are in no key; and whether it is the whole.
    fn end_of_host<'a>(&self, whole: &[u8], lower: &'a mut [u8; HOST_BYTES_MAX]) -> Option<(&'a [u8], bool)> {
        let kept = whole.len().min(self.host_bytes.saturating_add(1)).min(lower.len());
        let host = lower.get_mut(..kept)?;
        host.copy_from_slice(whole.get(whole.len().saturating_sub(kept)..)?);
        host.make_ascii_lowercase();
        Some((host, kept == whole.len()))
    }

    /// Passes the rules of a host on.
    fn of_host(&self, host: &[u8], is_whole: bool, collect: &mut impl FnMut(&Tree)) {
        if let Some(tree) = self.exact.get(host).filter(|_| is_whole) {
            collect(tree);
        }
        if self.below.is_empty() {
            return;
        }
        for (at, _) in host.iter().enumerate().filter(|(_, byte)| **byte == b'.') {
            // A host is not below itself.
            let is_host = at == 0 && is_whole;
            if let Some(tree) = host.get(at..).and_then(|end| self.below.get(end)).filter(|_| !is_host) {
                collect(tree);
            }
        }
    }
}

impl Default for Tree {
    fn default() -> Self {
        Tree(Vec::from([Node::default()]))
    }
}

impl Tree {
    fn insert(&mut self, rule: u16, head: &[Box<[u8]>]) {
        let mut at = 0;
        for segment in head {
            let next = self.0.len();
            let Some(node) = self.0.get_mut(at) else { return };
            at = *node.children.entry(segment.clone()).or_insert(next);
            if at == next {
                self.0.push(Node::default());
            }
        }
        if let Some(node) = self.0.get_mut(at) {
            node.rules.push(rule);
        }
    }

    /// Whether the rules to add depend on the path.
    fn has_branches(&self) -> bool {
        self.0.first().is_some_and(|root| !root.children.is_empty())
    }

    /// Adds the rules of all paths. Of those that are filed under segments, those that may deny become `split`, and those on trial `trial`.
    /// Returns whether rules on trial were left out.
    fn collect_all(
        &self,
        rules: &mut Vec<u16>,
        split: &mut Few,
        trial: &mut Few,
        standing: &dyn Fn(u16) -> Standing,
    ) -> Result<bool, TooMany> {
        let Some((root, nodes)) = self.0.split_first() else { return Ok(false) };
        rules.extend_from_slice(&root.rules);
        add_few(nodes, rules, split, trial, standing)
    }

    /// Adds the rules along the path. A segment longer than any key ends the way.
    fn collect(&self, path: &[u8], segment_bytes: usize, text: &mut Vec<u8>, rules: &mut Vec<u16>) {
        let Some(mut node) = self.0.first() else { return };
        rules.extend_from_slice(&node.rules);
        let longest = segment_bytes.saturating_mul(case::MOST_FOLDED);
        for segment in segments(path).take_while(|segment| segment.len() <= longest) {
            case::fold(segment, text);
            match node.children.get(text.as_slice()).and_then(|at| self.0.get(*at)) {
                Some(next) => node = next,
                None => return,
            }
            rules.extend_from_slice(&node.rules);
        }
    }
}

/// Adds the rules of nodes that only some readings of a request meet. Returns whether rules on trial were left out.
fn add_few(
    nodes: &[Node],
    rules: &mut Vec<u16>,
    split: &mut Few,
    trial: &mut Few,
    standing: &dyn Fn(u16) -> Standing,
) -> Result<bool, TooMany> {
    let mut left_out = false;
    for rule in nodes.iter().flat_map(|node| &node.rules) {
        let standing = standing(*rule);
        let few = match standing {
            Standing::Denies => &mut *split,
            Standing::OnTrial => &mut *trial,
            Standing::Depends => {
                rules.push(*rule);
                continue;
            }
        };
        let Err(at) = few.binary_search(rule) else { continue };
        if few.len() < MAX_SPLIT_RULES {
            few.insert(at, *rule);
        } else if standing == Standing::Denies {
            return Err(TooMany);
        } else {
            left_out = true;
        }
    }
    Ok(left_out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Config;
    use crate::rules::resolve::{Live, Scratch};
    use crate::rules::testing::TestRequest;
    use alloc::borrow::ToOwned;
    use alloc::format;
    use alloc::string::String;
    use proptest::prelude::*;

    fn config(conditions: &[String]) -> Config {
        let rules: Vec<String> = (0..)
            .zip(conditions)
            .map(|(at, conditions)| {
                format!(
                    r#"{{"name": "r{at}", "match": {conditions}, "identifier": {{"constant": "x"}}, "limit": 1, "window": "1m"}}"#
                )
            })
            .collect();
        let text = format!(r#"{{"aggregator": {{"cluster": "c"}}, "rules": [{}]}}"#, rules.join(","));
        Config::parse(text.as_bytes()).unwrap_or_else(|errors| panic!("{errors}"))
    }

    fn candidates(config: &Config, request: &TestRequest) -> Vec<u16> {
        let index = Index::of(&config.rules).unwrap();
        let mut found = Candidates::default();
        let (path, buffer) = (&mut RequestPath::default(), &mut Vec::new());
        index.find(request, path, buffer, &|_| Standing::Denies, &mut found).unwrap().0.to_vec()
    }

    #[test]
    fn only_rules_of_the_host_and_the_path_are_found() {
        let mut conditions: Vec<String> = (0..1_000)
            .map(|at| format!(r#"{{"path": {{"prefix": "/api/v1/part{at}/"}}, "host": "h{}.com"}}"#, at % 10))
            .collect();
        conditions.extend(
            [
                r#"{}"#,
                r#"{"path": {"segments": "/API/*/x", "ignore_case": true}}"#,
                r#"{"path": {"prefix": "/api/v1/pa"}, "host": ["*.h7.com", "h7.com"]}"#,
                r#"{"path": {"regex": "/.*"}, "host": "*.com"}"#,
            ]
            .map(String::from),
        );
        let config = config(&conditions);
        let request =
            |host: &str, path: &str| TestRequest::default().header(":authority", host).header(":path", path);
        for (host, path, expected) in [
            ("H7.com:80", "/api/v1/part517/x", &[517, 1_000, 1_001, 1_002, 1_003][..]),
            ("h8.com", "/api/v1/part517/x", &[1_000, 1_001, 1_003]),
            ("a.b.h7.com", "/api/../api/v1", &[1_000, 1_001, 1_002, 1_003]),
            ("h7.com", "/other", &[1_000, 1_003]),
            (".com", "*", &[1_000]),
            ("org", "/", &[1_000]),
        ] {
            assert_eq!(candidates(&config, &request(host, path)), expected, "{host} {path}");
        }
        let long = format!("{}.h7.com", "x.".repeat(5_000));
        assert_eq!(candidates(&config, &request(&long, "/")), [1_000, 1_003], "{}", long.len());
        let path = format!("/{}", "a".repeat(100_000));
        assert_eq!(candidates(&config, &request("h7.com", &path)), [1_000, 1_003]);
        assert_eq!(candidates(&config, &TestRequest::default()), [1_000]);
    }

    fn path() -> impl Strategy<Value = String> {
        let segment = prop_oneof!["a|b|A|c\\.", Just("*".to_owned())];
        let text = proptest::collection::vec("[abA]", 0..4).prop_map(|parts| format!("/{}", parts.join("/")));
        prop_oneof![
            Just(String::new()),
            (proptest::collection::vec(segment, 0..4), any::<bool>(), any::<bool>()).prop_map(
                |(parts, below, case)| {
                    let parts: Vec<String> = parts.into_iter().map(|part| part.replace("c.", "c")).collect();
                    let tail = if below { "/**" } else { "" };
                    let head = if parts.is_empty() && below {
                        String::new()
                    } else {
                        format!("/{}", parts.join("/"))
                    };
                    format!(r#""path": {{"segments": "{head}{tail}", "ignore_case": {case}}}"#)
                }
            ),
            (text.clone(), any::<bool>())
                .prop_map(|(text, case)| format!(r#""path": {{"prefix": "{text}", "ignore_case": {case}}}"#)),
            (text, any::<bool>())
                .prop_map(|(text, case)| format!(r#""path": {{"exact": "{text}", "ignore_case": {case}}}"#)),
            Just(r#""path": {"regex": "/a.*"}"#.to_owned()),
            Just(r#""path": {"exact": "*"}"#.to_owned()),
        ]
    }

    fn conditions() -> impl Strategy<Value = String> {
        let host = prop_oneof![
            Just(String::new()),
            Just(r#""host": "a.com""#.to_owned()),
            Just(r#""host": ["*.a.com", "b.com"]"#.to_owned()),
            Just(r#""host": ["*.com", "*.a.com", "a.com"]"#.to_owned()),
            Just(r#""host": ["c.com", "*"]"#.to_owned()),
        ];
        (host, path()).prop_map(|(host, path)| {
            let fields: Vec<String> = [host, path].into_iter().filter(|field| !field.is_empty()).collect();
            format!("{{{}}}", fields.join(", "))
        })
    }

    proptest! {
        /// The index loses no rule that matches, whatever the request looks like.
        #[test]
        fn the_same_rules_apply_with_and_without_the_index(
            conditions in proptest::collection::vec(conditions(), INDEXED_FROM..40),
            host in "(x\\.)?(y\\.)?[aAb]?\\.?(com|COM)(\\.|:80)?",
            path in "\\*|(/(a|b|A|c|c\\.|%61|\\.\\.|\\.\\.;|%2e|\\.| |;x|b%2fa|b\\\\)?){0,6}(\\?q)?",
        ) {
            let config = config(&conditions);
            let request = TestRequest::default().header(":authority", &host).header(":path", &path);
            let mut scratch = Scratch::default();
            let resolved = config.resolve(&request, &Live::default(), &mut scratch);
            if resolved.denied().is_some() {
                return Ok(());
            }
            let found = candidates(&config, &request);
            let mut sources = crate::rules::request::sources::Sources::default();
            let matching: Vec<u16> = (0..)
                .zip(&config.rules)
                .filter(|(_, rule)| rule.conditions.matches(&request, &mut sources))
                .map(|(number, _)| number)
                .collect();
            prop_assert!(matching.iter().all(|rule| found.contains(rule)), "{found:?} {matching:?}");
            prop_assert_eq!(resolved.map(|one| one.rule_index).collect::<Vec<_>>(), matching.iter().map(|rule| usize::from(*rule)).collect::<Vec<_>>());
        }
    }
}
