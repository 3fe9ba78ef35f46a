//! Paths that upstreams read differently. A rule by a path applies if any upstream takes the request for one of the rule's, and a
//! path segment identifies a request only if all upstreams take the same text for it.
//!
//! The readers here are written apart from the rules' own: Envoy's normalisation, a servlet container, a WSGI server, a
//! proxy that resolves dots in what it has decoded, and JavaScript's `URL`.

use super::rules_resolve::controls;
use super::rules_tricks::{Sent, check, one_rule, outcome};
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::BTreeSet;
use weir_core::control::{Controls, Effect};
use weir_core::model::time::UnixMs;
use weir_core::rules::{Config, Denied, Lines, Live, Request, Scratch};

const MET: &str = r#""identifier": {"constant": "met"}"#;

fn by_path(condition: &str) -> String {
    format!(r#"{MET}, "match": {{"path": {condition}}}"#)
}

#[test]
fn dot_segments_beside_path_parameters_leave_no_rule() {
    let below = by_path(r#"{"prefix": "/v1/"}"#);
    let spelt = [
        "/v1/search/%2e%2e;/%2e%2e;/%2e%2e;/abc",
        "/v1/search/..;/..;/..;/abc",
        r"/v1/search/\..;/\..;/\..;/abc",
        "/v1/search/../../abc",
        "/v1/search/%2e%2e/%2E./abc",
        "/x/../v1/abc",
        "/x/..;a=b/v1/abc",
        "//v1/abc",
        r"\v1\abc",
        "/v1%2fabc",
        "/v1%5Cabc",
        "/x%2f..%2f..%2fv1/abc",
        "//x/v1/abc",
        "/;x/v1/abc",
        "/%2fx/v1/abc",
        "/%5cx/v1/abc",
        "/;a/x/v1/abc",
        "//;a/x/v1/abc",
        "//x%2fy/v1/abc",
    ];
    check(&below, spelt.map(Sent::to), &["met"]);
    let elsewhere = ["/abc", "/V1/x", "/v1", "/x/v1/", "/v2/..a/v1/", "/;v1/abc", "/%2fa/b?/v1/"];
    check(&below, elsewhere.map(Sent::to), &["unlimited"]);
    let whole = by_path(r#"{"exact": "/abc"}"#);
    check(
        &whole,
        ["/v1/../abc", "/v1/..;/abc", "/v1/%2e%2e;x/abc", "/v1%2f..%2fabc"].map(Sent::to),
        &["met"],
    );
    let segments = by_path(r#"{"segments": "/v1/*/*/abc"}"#);
    check(&segments, ["/v1/../../abc", "/v1/..;/%2e/abc", "/v1/%20/b/abc"].map(Sent::to), &["met"]);
}

#[test]
fn a_path_segment_that_upstreams_read_differently_is_ambiguous() {
    let by_segment = r#""identifier": {"path_segment": 2}"#;
    let spelt = [
        "/t/alice/%2e%2e;/bob/x",
        "/t/alice/../bob/x",
        "/t/alice;v=1/x",
        r"/t/alice\x",
        "/t/alice%2fx",
        "/t/alice%5cx",
        "//t/alice",
        "/t//alice",
        "/./t/alice",
        "/t/;/alice",
        "/;a/t/alice",
        "/%2ft/alice",
    ];
    check(by_segment, spelt.map(Sent::to), &[r"\+"]);
    let agreed =
        ["/t/alice", "/t/alice/", "/t/%61lice/", "/t/alice/b;v=1/c", "/t/alice/x//y", "/t/alice/x/../y"];
    check(by_segment, agreed.map(Sent::to), &["alice"]);
    // Some upstreams overlook a segment of blanks and dots.
    check(by_segment, ["/t/...", "/.../alice", "/%20/alice", "/t/%20."].map(Sent::to), &[r"\+"]);
    check(by_segment, ["/t/alice/...", "/t/alice./%20/x"].map(Sent::to), &["alice"]);
    for (path, expected) in [("/t", r"\-"), ("/", r"\-"), ("/t/", r"\-"), ("/t//", r"\-"), ("/t/..", r"\+")] {
        check(by_segment, [Sent::to(path)], &[expected]);
    }
}

#[test]
fn a_path_with_too_many_readings_meets_every_rule() {
    let odd = r"//a;b\c%2fd%5ce/../%2e%2e;x%2f/f";
    let long = format!("/v1/{};x", "a/".repeat(10_000));
    for condition in
        [r#"{"exact": "/never"}"#, r#"{"segments": "/a/*"}"#, r#"{"prefix": "/p/"}"#, r#"{"regex": "/q"}"#]
    {
        check(&by_path(condition), [Sent::to(odd), Sent::to(&long)], &["met"]);
    }
    check(r#""identifier": {"path_segment": 1}"#, [Sent::to(odd), Sent::to(&long)], &[r"\+"]);
    // A long path with one reading is read.
    let plain = format!("/v1/{}", "a/".repeat(10_000));
    check(&by_path(r#"{"exact": "/never"}"#), [Sent::to(&plain)], &["unlimited"]);
}

/// A request that counts how often its headers are read: once for each rule that matches, for its identifier.
struct Counted(Sent, Cell<usize>);

impl Request for Counted {
    fn header(&self, name: &[u8]) -> Lines<'_> {
        self.1.set(self.1.get() + 1);
        self.0.header(name)
    }

    fn for_each_header(&self, name: &[u8], line: &mut dyn FnMut(&[u8])) {
        self.0.for_each_header(name, line);
    }

    fn property(&self, path: &[u8], out: &mut Vec<u8>) -> bool {
        self.0.property(path, out)
    }
}

/// How many of the rules by these conditions apply to a path, why it is denied, and how many headers were read.
fn applied(conditions: &[String], path: &str) -> (usize, Option<Denied>, usize) {
    let rule = |(at, condition): (usize, &String)| {
        format!(
            r#"{{"name": "r{at}", "identifier": {{"header": "x-key"}}, "limit": 5, "window": "1m", "match": {condition}}}"#
        )
    };
    let rules: Vec<String> = conditions.iter().enumerate().map(rule).collect();
    let text = format!(r#"{{"aggregator": {{"cluster": "c"}}, "rules": [{}]}}"#, rules.join(","));
    let config = Config::parse(text.as_bytes()).unwrap_or_else(|errors| panic!("{errors}"));
    let request = Counted(Sent::to(path).with("x-key", "alice"), Cell::new(0));
    let mut scratch = Scratch::default();
    let matches = config.resolve(&request, &Live::default(), &mut scratch);
    let denied = matches.denied();
    (matches.count(), denied, request.1.get())
}

#[test]
fn one_request_takes_from_few_limits_by_the_readings_of_its_path() {
    let parts = |count| (0..count).map(|at| format!(r#"{{"path": {{"prefix": "/api/part{at}/"}}}}"#));
    let any = r#"{"path": {"regex": "/.*"}}"#.to_owned();
    let other = r#"{"host": "other.com", "path": {"exact": "/x"}}"#.to_owned();
    for count in [1, 15, 16, 32, 33, 64, 1_023] {
        let rules: Vec<String> = parts(count).chain([other.clone()]).collect();
        for path in ["/api/x/../a%2fb", r"//a;b\c%2fd%5ce/../%2e%2e;x%2f/f"] {
            let (matches, denied, reads) = applied(&rules, path);
            let expected = if count <= 32 { (count, None) } else { (0, Some(Denied::Path)) };
            assert_eq!((matches, denied), expected, "{path} of {count}");
            assert!(reads <= 2 * 32 + 4, "{reads} reads for {path} of {count}");
        }
        assert_eq!(applied(&rules, "/api/part0/y%20").0, 1);
    }
    // Expressions and heads of segments that vary are tested one by one.
    for condition in [&any, r#"{"path": {"segments": "/*/a"}}"#] {
        let rules: Vec<String> = vec![condition.to_owned(); 40];
        let (matches, denied, reads) = applied(&rules, "/api/x/../a%2fb");
        assert_eq!((matches, denied), (0, Some(Denied::Path)));
        assert!(reads <= 2 * 32 + 4, "{reads} reads");
    }
    // Of a path whose readings are listed, those count that not all readings meet.
    let rules =
        |met: usize| [vec![any.clone(); 40], vec![r#"{"path": {"prefix": "/b/"}}"#.to_owned(); met]].concat();
    for (met, path, expected) in [
        (32, "/a/../b/c", (72, None)),
        (33, "/a/../b/c", (0, Some(Denied::Path))),
        (33, "/b/c", (73, None)),
        (33, "/b/c/../d", (73, None)),
        (33, "/b/c//d", (73, None)),
    ] {
        let (matches, denied, _) = applied(&rules(met), path);
        assert_eq!((matches, denied), expected, "{path}");
    }
    // Rules that do not read the path do not count.
    assert_eq!(applied(&vec!["{}".to_owned(); 100], "/api/x/../a%2fb").0, 100);
}

/// Rules of their own paths, each with further fields: how many apply to a path that meets all of them, why it is denied, and whether there
/// are too many with those on trial.
fn tried(fields: &[&str], globals: &str, live: Option<&Controls>) -> (usize, Option<Denied>, bool) {
    let rule = |(at, fields): (usize, &&str)| {
        format!(
            r#"{{"name": "r{at}", "identifier": {{"header": "x-key"}}, "limit": 5, "window": "1m",
                "match": {{"path": {{"prefix": "/api/part{at}/"}}}}{fields}}}"#
        )
    };
    let rules: Vec<String> = fields.iter().enumerate().map(rule).collect();
    let text = format!(r#"{{"aggregator": {{"cluster": "c"}}{globals}, "rules": [{}]}}"#, rules.join(","));
    let config = Config::parse(text.as_bytes()).unwrap_or_else(|errors| panic!("{errors}"));
    let request = Sent::to("/api/x/../a%2fb").with("x-key", "alice");
    let mut scratch = Scratch::default();
    let matches = config.resolve(&request, &Live { controls: live, now: UnixMs(0) }, &mut scratch);
    let (denied, is_path_on_trial) = (matches.denied(), matches.is_path_on_trial());
    (matches.count(), denied, is_path_on_trial)
}

#[test]
fn a_rule_on_trial_does_not_help_to_deny_a_path() {
    const SHADOW: &str = r#", "shadow_mode": true"#;
    const NOT_ENFORCED: &str = r#", "enforce_percent": 0"#;
    const ALMOST_NOT: &str = r#", "enforce_percent": 0.01"#;
    const ALMOST_ALL: &str = r#", "enforce_percent": 99.99"#;
    let too_many = (0, Some(Denied::Path), false);
    for on_trial in [SHADOW, NOT_ENFORCED, ALMOST_NOT] {
        for (enforced, tries, expected) in [
            (0, 32, (32, None, false)),
            (0, 33, (32, None, true)),
            (0, 1_000, (32, None, true)),
            (1, 32, (33, None, true)),
            (32, 0, (32, None, false)),
            (32, 1, (33, None, true)),
            (32, 500, (64, None, true)),
            (33, 0, too_many),
            (33, 500, too_many),
        ] {
            let rules = [vec![on_trial; tries], vec![""; enforced]].concat();
            assert_eq!(tried(&rules, "", None), expected, "{enforced} beside {tries} with {on_trial}");
        }
    }
    assert_eq!(tried(&[ALMOST_ALL; 32], "", None), (32, None, false));
    assert_eq!(tried(&[ALMOST_ALL; 33], "", None), too_many, "those whose share the identifier is in count");
}

#[test]
fn an_exempt_address_is_not_denied_by_its_path() {
    let here = r#", "client_networks": {"exempt": ["192.0.2.0/24"]}"#;
    let elsewhere = r#", "client_networks": {"exempt": ["198.51.100.0/24"]}"#;
    let too_many = (0, Some(Denied::Path), false);
    assert_eq!(tried(&[""; 100], here, None), (100, None, false));
    assert_eq!(tried(&[""; 100], elsewhere, None), too_many);
    let exempt = controls(&[("*", "192.0.2.0/24", Effect::Exempt)]);
    assert_eq!(tried(&[""; 100], "", Some(&exempt)), (100, None, false));
    let other = controls(&[("*", "198.51.100.0/24", Effect::Exempt)]);
    assert_eq!(tried(&[""; 100], "", Some(&other)), too_many);
    // An exemption of one namespace leaves the rules of others.
    let one = controls(&[("keys", "192.0.2.0/24", Effect::Exempt)]);
    let of_keys = r#", "namespace": "keys""#;
    assert_eq!(tried(&[vec![of_keys; 60], vec![""; 32]].concat(), "", Some(&one)), (92, None, false));
    assert_eq!(tried(&[vec![of_keys; 60], vec![""; 33]].concat(), "", Some(&one)), too_many);
    // A ban of the smaller network takes the exemption away.
    let banned = controls(&[("*", "192.0.2.7/32", Effect::Ban)]);
    assert_eq!(tried(&[""; 100], here, Some(&banned)), too_many);
}

/// What an upstream makes of a path: its segments, decoded.
type Read = Vec<Vec<u8>>;

fn decoded(text: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::new(), text);
    while let Some((byte, tail)) = rest.split_first() {
        let escape = (*byte == b'%').then(|| tail.get(..2)).flatten();
        let value = escape
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        out.push(value.unwrap_or(*byte));
        rest = if value.is_some() { &tail[2..] } else { tail };
    }
    out
}

fn split(path: &[u8]) -> Read {
    path.strip_prefix(b"/").unwrap_or(path).split(|byte| *byte == b'/').map(<[u8]>::to_vec).collect()
}

fn joined(segments: &Read) -> Vec<u8> {
    [b"/".as_slice(), &segments.join(&b'/')].concat()
}

/// Removes dot segments (RFC 3986, 5.2.4).
fn resolved(segments: &Read, is_dots: impl Fn(&[u8]) -> usize) -> Read {
    let mut out: Read = Vec::new();
    for (at, segment) in segments.iter().enumerate() {
        let dots = is_dots(segment);
        if dots == 2 {
            out.pop();
        }
        match dots {
            0 => out.push(segment.clone()),
            _ if at + 1 == segments.len() => out.push(Vec::new()),
            _ => {}
        }
    }
    out
}

fn plain_dots(segment: &[u8]) -> usize {
    match segment {
        b"." => 1,
        b".." => 2,
        _ => 0,
    }
}

fn merged(segments: Read) -> Read {
    let last = segments.len() - 1;
    let kept = segments.into_iter().enumerate().filter(|(at, segment)| *at == last || !segment.is_empty());
    kept.map(|(_, segment)| segment).collect()
}

/// Envoy's `normalize_path`, and `merge_slashes`.
fn envoy(path: &[u8], merge: bool) -> Vec<u8> {
    let slashed: Vec<u8> = path.iter().map(|byte| if *byte == b'\\' { b'/' } else { *byte }).collect();
    let segments = resolved(&split(&slashed), |segment| plain_dots(&decoded(segment)));
    joined(&if merge { merged(segments) } else { segments })
}

/// A path without parameters.
fn bare(path: &[u8]) -> Read {
    split(path).iter().map(|segment| segment.split(|byte| *byte == b';').next().unwrap().to_vec()).collect()
}

/// A servlet container: parameters go first, then it decodes, and resolves dots. Its two ways with an escaped slash.
fn servlet(path: &[u8], escaped_slash: bool) -> Read {
    let bare = bare(path);
    let path = if escaped_slash { decoded(&joined(&bare)) } else { joined(&bare) };
    let segments = merged(resolved(&split(&path), |segment| plain_dots(&decoded(segment))));
    segments.iter().map(|segment| if escaped_slash { segment.clone() } else { decoded(segment) }).collect()
}

/// A WSGI server: it decodes the whole path and leaves everything in it.
fn wsgi(path: &[u8]) -> Read {
    split(&decoded(path))
}

/// A path as a proxy sends it on after decoding. Like nginx it leaves a semicolon as it is.
fn escaped(path: &[u8]) -> Vec<u8> {
    path.iter()
        .flat_map(|byte| match byte {
            b'%' | b' ' | b'?' | b'#' | 127.. => format!("%{byte:02x}").into_bytes(),
            byte => vec![*byte],
        })
        .collect()
}

/// A proxy that decodes, resolves dots and merges slashes, and keeps parameters.
fn proxy(path: &[u8]) -> Read {
    merged(resolved(&split(&decoded(path)), plain_dots))
}

/// A router that splits before it decodes.
fn router(path: &[u8]) -> Read {
    split(path).iter().map(|segment| decoded(segment)).collect()
}

/// JavaScript's `new URL(path, "http://host")`: a path that begins with two slashes names a host.
fn javascript(path: &[u8]) -> Read {
    let slashed: Vec<u8> = path.iter().map(|byte| if *byte == b'\\' { b'/' } else { *byte }).collect();
    let rest = match slashed.strip_prefix(b"//") {
        Some(rest) => {
            let host = rest.iter().position(|byte| *byte != b'/').unwrap_or(rest.len());
            let end = rest[host..].iter().position(|byte| *byte == b'/').map_or(rest.len(), |end| host + end);
            rest[end..].to_vec()
        }
        None => slashed,
    };
    resolved(&split(&rest), |segment| plain_dots(&decoded(segment))).iter().map(|one| decoded(one)).collect()
}

fn readers(path: &[u8]) -> Vec<(&'static str, Read)> {
    vec![
        ("servlet", servlet(path, false)),
        ("servlet with escaped slashes", servlet(path, true)),
        ("WSGI", wsgi(path)),
        ("proxy", proxy(path)),
        ("router", router(path)),
        ("JavaScript", javascript(path)),
        ("JavaScript behind a proxy that decodes", javascript(&escaped(&decoded(path)))),
        ("JavaScript behind a servlet that drops parameters", javascript(&joined(&bare(path)))),
        ("proxy behind JavaScript", merged(javascript(path))),
        ("servlet behind the proxy", servlet(&escaped(&joined(&proxy(path))), false)),
        ("WSGI behind Envoy", wsgi(&envoy(path, false))),
        ("WSGI behind Envoy that merges slashes", wsgi(&envoy(path, true))),
    ]
}

fn trimmed(segment: &[u8]) -> &[u8] {
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = segment.iter().position(|byte| !blank(byte)).unwrap_or(segment.len());
    let end = segment.iter().rposition(|byte| !blank(byte)).map_or(start, |end| end + 1);
    &segment[start..end]
}

/// A segment without blanks and dots at its end.
fn without_tail(segment: &[u8]) -> &[u8] {
    let end = segment.iter().rposition(|byte| !matches!(byte, b' ' | b'\t' | b'.')).map_or(0, |end| end + 1);
    &segment[..end]
}

/// What an upstream reads that overlooks blanks and dots at the end of segments, and segments of these alone.
fn without_tails(read: &Read) -> Read {
    let kept = read.iter().filter(|segment| segment.is_empty() || !without_tail(segment).is_empty());
    kept.map(|segment| without_tail(segment).to_vec()).collect()
}

fn path() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => prop::sample::select(vec!["a", "b", "%61", "t"]),
        4 => Just("/"),
        3 => prop::sample::select(vec![".", "..", "%2e", "%2E%2e", ".%2e", "..."]),
        2 => prop::sample::select(vec![";", ";x", "%3b"]),
        2 => prop::sample::select(vec!["//", "\\", "%2f", "%5c", "%2F"]),
        1 => prop::sample::select(vec!["%20", "%20.", "%", "%zz", "%25"]),
    ];
    proptest::collection::vec(piece, 0..10).prop_map(|pieces| format!("/{}", pieces.concat()))
}

proptest! {
    /// Every rule that applies to what some upstream reads applies to the request.
    #[test]
    fn no_upstream_reads_a_path_that_its_rule_misses(path in path(), behind in any::<bool>()) {
        let sent = if behind { envoy(path.as_bytes(), true) } else { path.into_bytes() };
        let sent = String::from_utf8(sent).unwrap();
        for (reader, read) in readers(sent.as_bytes()) {
            // What rules can name: texts in which nothing is escaped.
            let text = joined(&read);
            let Some(text) = String::from_utf8(text).ok().filter(|text| !text.contains(['\\', ';', '%', '?', ' '])) else {
                continue;
            };
            let served = read.iter().filter(|segment| !segment.is_empty()).count();
            let regex = by_path(&format!(r#"{{"regex": "{}"}}"#, text.replace('.', "[.]")));
            prop_assert_eq!(outcome(&one_rule(&regex), &Sent::to(&sent)), "met", "{} reads {} as {}", reader, sent, text);
            if read.len() == served {
                let segments = by_path(&format!(r#"{{"segments": "{}"}}"#, "/*".repeat(served)));
                prop_assert_eq!(outcome(&one_rule(&segments), &Sent::to(&sent)), "met", "{} reads {} as {}", reader, sent, text);
            }
        }
    }

    /// A segment that identifies is the same to all upstreams.
    #[test]
    fn a_segment_that_identifies_is_the_same_to_all_upstreams(path in path(), behind in any::<bool>(), number in 1..4_usize) {
        let sent = if behind { envoy(path.as_bytes(), true) } else { path.into_bytes() };
        let sent = String::from_utf8(sent).unwrap();
        let config = one_rule(&format!(r#""identifier": {{"path_segment": {number}}}"#));
        let found = outcome(&config, &Sent::to(&sent));
        if found != r"\+" {
            let text = |read: &Read| read.get(number - 1).map(|one| trimmed(without_tail(one)).to_vec());
            let texts: BTreeSet<Vec<u8>> = readers(sent.as_bytes())
                .iter()
                .flat_map(|(_, read)| [text(read), text(&without_tails(read))].map(Option::unwrap_or_default))
                .collect();
            prop_assert_eq!(texts.len(), 1, "{} has {} and {:?}", sent, found, texts);
        }
    }
}
