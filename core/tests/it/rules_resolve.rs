//! Rules applied to requests through the public API: which matches result, for any request, and how much is allocated.

use crate::allocations::allocations;
use proptest::prelude::*;
use std::sync::LazyLock;
use weir_core::control::{Banned, Control, Controls, Effect, Selector, Target};
use weir_core::matching::canonical::MAX_IDENTIFIER_BYTES;
use weir_core::matching::networks::parse_network;
use weir_core::model::key::Namespace;
use weir_core::model::time::{MonoMs, Now, UnixMs};
use weir_core::model::wire;
use weir_core::rules::{Action, Config, Lines, Live, Request, Scratch};

#[derive(Clone, Debug, Default)]
struct Headers {
    lines: Vec<(Vec<u8>, Vec<u8>)>,
    peer: Vec<u8>,
    claim: Vec<u8>,
}

impl Headers {
    fn of(lines: &[(&str, &str)]) -> Self {
        let lines =
            lines.iter().map(|(name, value)| (name.as_bytes().into(), value.as_bytes().into())).collect();
        Headers { lines, peer: b"192.0.2.7:4000".into(), claim: Vec::new() }
    }
}

impl Request for Headers {
    fn header(&self, name: &[u8]) -> Lines<'_> {
        let mut lines = self.lines.iter().filter(|(header, _)| header == name);
        match (lines.next(), lines.next()) {
            (None, _) => Lines::None,
            (Some((_, value)), None) => Lines::One(value),
            _ => Lines::Many,
        }
    }

    fn for_each_header(&self, name: &[u8], line: &mut dyn FnMut(&[u8])) {
        self.lines.iter().filter(|(header, _)| header == name).for_each(|(_, value)| line(value));
    }

    fn property(&self, path: &[u8], out: &mut Vec<u8>) -> bool {
        let value = match path {
            b"source\0address" => &self.peer,
            b"metadata\0filter_metadata\0envoy.filters.http.jwt_authn\0jwt_payload\0sub" => &self.claim,
            other => panic!("unexpected property {:?}", String::from_utf8_lossy(other)),
        };
        out.extend_from_slice(value);
        !value.is_empty()
    }
}

const CONFIG: &str = r#"{"aggregator": {"cluster": "weir"}, "rules": [
    {"name": "keys", "identifier": {"header": "x-api-key"}, "limit": 100, "window": "1m", "on_missing_identifier": "skip",
     "overrides": [{"identifier": "vip-*", "exempt": true}, {"identifier": "slow", "limit": 5},
                   {"identifier": "*-a*b*c-*", "limit": 6}]},
    {"name": "login", "match": {"path": {"regex": "/login(/.*)?"}, "methods": ["POST"], "host": "*.example.com",
                                "headers": [{"name": "x-probe", "regex": "[0-9]+", "invert": true}]},
     "identifier": [{"client_address": {"ipv4_prefix": 24, "trusted_hops": 1}}, {"query": "user"}],
     "limit": 10, "window": "1h", "cost": {"request": {"header": "x-cost"}, "max": 7}},
    {"name": "claims", "match": {"path": {"prefix": "/claims/"}},
     "identifier": [{"jwt_claim": {"claim": "sub"}}, {"path_segment": 2}, {"cookie": "s"}, {"host": true}],
     "limit": 3, "window": 1000, "on_missing_identifier": "deny"}
]}"#;

type Expected<'a> = (usize, &'a str, Action);

fn check(lines: &[(&str, &str)], expected: &[Expected<'_>]) {
    let config = Config::parse(CONFIG.as_bytes()).unwrap();
    let mut scratch = Scratch::default();
    let request = Headers::of(lines);
    // Twice, since nothing of a request may remain in the scratch.
    for _ in 0..2 {
        let matches = config.resolve(&request, &Live::default(), &mut scratch);
        assert_eq!(matches.len(), expected.len(), "{lines:?}");
        for (matched, (rule, identifier, action)) in matches.zip(expected) {
            let found = String::from_utf8_lossy(matched.identifier);
            assert_eq!(
                (matched.rule_index, &*found, &matched.action),
                (*rule, *identifier, action),
                "{lines:?}"
            );
            assert_eq!(matched.rule.name, config.rules[*rule].name);
        }
        let other = Headers::of(&[(":path", "/claims/other/"), ("x-api-key", "other")]);
        config.resolve(&other, &Live::default(), &mut scratch);
    }
}

#[test]
fn requests_resolve_to_matches() {
    let limit = |limit, cost| Action::Limit { limit, configured: None, cost, epoch: 0 };
    let login = [(":method", "POST"), (":authority", "www.Example.com"), (":path", "//login?user=al%7Cice")];
    let and = |more: &[(&'static str, &'static str)]| [&login[..], more].concat();
    for (lines, expected) in [
        (vec![], vec![]),
        (vec![("x-api-key", "")], vec![]),
        (vec![("x-api-key", "k")], vec![(0, "k", limit(100, 1))]),
        (vec![("x-api-key", "slow")], vec![(0, "slow", limit(5, 1))]),
        (vec![("x-api-key", "vip-1")], vec![(0, "vip-1", Action::Exempt)]),
        (vec![("x-api-key", "x-abc-")], vec![(0, "x-abc-", limit(6, 1))]),
        (vec![("x-api-key", "x-acb-")], vec![(0, "x-acb-", limit(100, 1))]),
        (
            vec![("x-api-key", "sha256:")],
            vec![(0, "sha256:n9cUzm9jw7MgyUS3DoCl0QX9Lz4tMK4vqBNw4iP1DQc", limit(100, 1))],
        ),
        (and(&[]), vec![(1, r"192.0.2.0/24|al\|ice", limit(10, 1))]),
        (and(&[("x-cost", "5")]), vec![(1, r"192.0.2.0/24|al\|ice", limit(10, 5))]),
        (and(&[("x-cost", "x")]), vec![(1, r"192.0.2.0/24|al\|ice", limit(10, 7))]),
        (and(&[("x-probe", "12")]), vec![]),
        (
            and(&[("x-forwarded-for", "6.6.6.6, 7.7.7.7"), ("x-api-key", "k")]),
            vec![(0, "k", limit(100, 1)), (1, r"7.7.7.0/24|al\|ice", limit(10, 1))],
        ),
        (
            vec![(":method", "POST"), (":authority", "a.example.com"), (":path", "/login/")],
            vec![(1, r"192.0.2.0/24|\-", limit(10, 1))],
        ),
        (
            vec![(":path", "/claims/%61"), ("cookie", "s=1"), (":authority", "A.b")],
            vec![(2, r"\-|a|1|a.b", Action::DenyMissing)],
        ),
        (
            vec![(":path", "/x/../claims/%61"), ("cookie", "s=1"), (":authority", "A.b")],
            vec![(2, r"\-|\+|1|a.b", Action::DenyAmbiguous)],
        ),
    ] {
        check(&lines, &expected);
    }
}

#[test]
fn a_warm_scratch_allocates_nothing() {
    let config = Config::parse(CONFIG.as_bytes()).unwrap();
    let mut scratch = Scratch::default();
    let long = format!("{},b-c-", "x-a".repeat(2_000));
    let mut requests = [
        Headers::of(&[("x-api-key", "k")]),
        Headers::of(&[("x-api-key", "vip-\\|1")]),
        Headers::of(&[("x-api-key", &long)]),
        Headers::of(&[
            (":method", "POST"),
            (":authority", "www.example.com"),
            (":path", "/a/../login/x?user=%61"),
            ("x-forwarded-for", "1.1.1.1"),
            ("x-forwarded-for", "2001:db8::1"),
            ("x-cost", "3"),
        ]),
        Headers::of(&[(":path", "/claims/x"), ("cookie", "a=b; s=1"), (":authority", "a.b")]),
    ];
    requests[4].claim = b"alice".into();
    let controls = controls(&[
        ("keys", "k", Effect::Limit(7)),
        ("keys", "*-a*", Effect::Credit(7)),
        ("*", "*", Effect::Reset),
        ("login", "2001:db8::/32", Effect::Exempt),
        ("*", "198.51.0.0/16", Effect::Exempt),
    ]);
    let live = Live { controls: Some(&controls), now: UnixMs(0) };
    let mut resolve_all =
        || requests.iter().map(|request| config.resolve(request, &live, &mut scratch).count()).sum::<usize>();
    resolve_all();
    let mut matches = 0;
    let allocated = allocations(|| matches = (0..100).map(|_| resolve_all()).sum());
    assert_eq!((matches, allocated), (500, 0));
}

/// Live controls in force at moment 0, each with a scope, an identifier or a network, and an effect.
pub fn controls(given: &[(&str, &str, Effect)]) -> Controls {
    let entry = |(revision, (scope, name, effect)): (u64, &(&str, &str, Effect))| {
        let selector = match parse_network(name) {
            Ok(network) => Selector::Network(network),
            Err(_) => Selector::Identifier((*name).to_owned()),
        };
        let target =
            Target { workspace: "default".into(), scope: (*scope).into(), selector, window_ms: None };
        Control { target, effect: *effect, expires: None, revision }.to_wire()
    };
    let entries: Vec<_> = (1..).zip(given).map(entry).collect();
    let mut controls = Controls::default();
    controls.apply(&wire::Controls {
        incarnation: 1,
        entries,
        complete_through: 100,
        from_scratch: true,
        ..Default::default()
    });
    assert_eq!(controls.iter().count(), given.len());
    controls
}

fn actions(config: &Config, controls: &Controls, lines: &[(&str, &str)]) -> Vec<Action> {
    let live = Live { controls: Some(controls), now: UnixMs(0) };
    let mut scratch = Scratch::default();
    config.resolve(&Headers::of(lines), &live, &mut scratch).map(|matched| matched.action).collect()
}

/// Else a banned client would send its header twice.
#[test]
fn a_namespace_with_a_ban_denies_ambiguous_identifiers() {
    let config = r#"{"aggregator": {"cluster": "c"}, "rules": [{"name": "keys", "identifier": {"header": "x-key"}, "limit": 5, "window": "1m"}]}"#;
    let config = Config::parse(config.as_bytes()).unwrap();
    let twice = [("x-key", "mallory"), ("x-key", "mallory")];
    let counted = Action::Limit { limit: 5, configured: None, cost: 1, epoch: 0 };
    for (given, expected) in [
        (&[("keys", "mallory", Effect::Ban)][..], Action::DenyAmbiguous),
        (&[("*", "mallory", Effect::Ban)], Action::DenyAmbiguous),
        (&[("keys", "mall*", Effect::Ban)], Action::DenyAmbiguous),
        (&[("others", "mallory", Effect::Ban)], counted),
        (&[("keys", "198.51.100.0/24", Effect::Ban)], counted),
        (&[("keys", "bob", Effect::Limit(9))], counted),
        (&[("keys", "bob", Effect::Exempt), ("keys", "mallory", Effect::Ban)], Action::DenyAmbiguous),
    ] {
        let mut controls = controls(given);
        assert_eq!(actions(&config, &controls, &twice), [expected], "{given:?}");
        let deleted = |(revision, (scope, name, _)): (u64, &(&str, &str, Effect))| wire::Control {
            revision,
            workspace: "default".into(),
            scope: (*scope).into(),
            identifier: (*name).into(),
            kind: 3,
            deleted: true,
            ..Default::default()
        };
        controls.apply(&wire::Controls {
            incarnation: 1,
            entries: (101..).zip(given).map(deleted).collect(),
            complete_through: 200,
            ..Default::default()
        });
        assert_eq!(actions(&config, &controls, &twice), [counted], "lifted: {given:?}");
    }
    let mut controls = Controls::default();
    let ban = weir_core::control::Local {
        mark: UnixMs(9),
        until: UnixMs(9),
        kept_until: MonoMs(9),
        level: 1,
        ..Default::default()
    };
    assert!(controls.ban_here(
        Namespace { workspace: "default", name: "keys" },
        b"mallory",
        ban,
        Now::default()
    ));
    assert_eq!(actions(&config, &controls, &twice), [Action::DenyAmbiguous]);
}

/// Else one client would have all those banned whose requests lack the value, or have several.
#[test]
fn an_identifier_is_of_certain_clients_if_a_part_that_tells_them_apart_has_a_value() {
    let rule = |more: &str| {
        let text = format!(
            r#"{{"aggregator": {{"cluster": "c"}}, "hash_key": "0123456789abcdef", "rules": [{{"name": "r", "limit": 5, "window": "1m", {more}}}]}}"#
        );
        Config::parse(text.as_bytes()).unwrap()
    };
    let long = "a".repeat(64);
    let (one, twice) = (&[("x-key", "alice")][..], &[("x-key", "alice"), ("x-key", "bob")][..]);
    for (identifier, lines, expected) in [
        (r#"{"header": "x-key"}"#, one, true),
        (r#"{"header": "x-key"}"#, twice, false),
        (r#"{"header": "x-key"}"#, &[], false),
        (r#"[{"constant": "LONG"}, {"header": "x-key"}]"#, one, true),
        (r#"[{"constant": "LONG"}, {"header": "x-key"}]"#, twice, false),
        (r#"[{"constant": "LONG"}, {"header": "x-key"}]"#, &[], false),
        (r#"[{"host": true}, {"header": "x-key"}]"#, twice, false),
        (r#"[{"host": true}, {"header": "x-key"}, {"header": "x-user"}]"#, &[("x-user", "bob")], true),
        (r#"[{"constant": "a"}, {"host": true}]"#, &[], true),
    ] {
        let identifier = identifier.replace("LONG", &long);
        for more in ["", r#", "hash": true"#] {
            let config = rule(&format!(r#""identifier": {identifier}{more}"#));
            let lines: Vec<_> =
                [(":authority", "shop.example")].into_iter().chain(lines.iter().copied()).collect();
            let mut scratch = Scratch::default();
            let found = config.resolve(&Headers::of(&lines), &Live::default(), &mut scratch).next();
            assert_eq!(found.unwrap().is_of_client, expected, "{identifier}{more} {lines:?}");
        }
    }
    let config = rule(r#""identifier": [{"constant": "a"}, {"host": true}]"#);
    let mut scratch = Scratch::default();
    let odd = Headers::of(&[(":authority", "%61.example")]);
    assert!(!config.resolve(&odd, &Live::default(), &mut scratch).next().unwrap().is_of_client);
}

const LISTED: &str = r#"{"aggregator": {"cluster": "c"}, "rules": [
    {"name": "tools", "identifier": [{"header": "x-key"}, {"header": "x-tool", "one_of": ["search", "fetch"]}],
     "limit": 9, "window": "1m", "overrides": [{"identifier": "*|\\~", "limit": 2}, {"identifier": "*|fetch", "limit": 3}]},
    {"name": "denying", "identifier": {"header": "x-tool", "one_of": ["search"], "on_unlisted": "deny"},
     "limit": 9, "window": "1m", "on_missing_identifier": "skip"},
    {"name": "skipping", "identifier": [{"header": "x-key"}, {"header": "x-tool", "one_of": ["search"], "on_unlisted": "skip"}],
     "limit": 9, "window": "1m", "on_missing_identifier": "deny"}]}"#;

/// A client that invents values would get a fresh count for each of them.
#[test]
fn values_that_are_not_listed_count_together() {
    let config = Config::parse(LISTED.as_bytes()).unwrap();
    let limit = |limit| Action::Limit { limit, configured: None, cost: 1, epoch: 0 };
    let found = |lines: &[(&str, &str)]| {
        let mut scratch = Scratch::default();
        let matches = config.resolve(&Headers::of(lines), &Live::default(), &mut scratch);
        let shown = matches
            .map(|one| (one.rule.name.clone(), String::from_utf8_lossy(one.identifier).into(), one.action));
        shown.collect::<Vec<(String, String, Action)>>()
    };
    let of = |name: &str, identifier: &str, action| (name.to_owned(), identifier.to_owned(), action);
    assert_eq!(
        found(&[("x-key", "a"), ("x-tool", "search")]),
        [
            of("tools", "a|search", limit(9)),
            of("denying", "search", limit(9)),
            of("skipping", "a|search", limit(9))
        ]
    );
    assert_eq!(found(&[("x-key", "a"), ("x-tool", "fetch")])[0], of("tools", "a|fetch", limit(3)));
    for invented in ["search-1", "Search", "~", r"\~", "search|", &"s".repeat(9_000)] {
        assert_eq!(
            found(&[("x-key", "a"), ("x-tool", invented)]),
            [of("tools", r"a|\~", limit(2)), of("denying", r"\~", Action::DenyUnlisted)],
            "{invented}"
        );
    }
    // The rule is not for other tools, whatever else their requests lack.
    assert_eq!(found(&[("x-tool", "other")]).len(), 2);
    assert_eq!(
        found(&[]),
        [of("tools", r"\-|\-", limit(9)), of("skipping", r"\-|\-", Action::DenyMissing)],
        "a missing part is not an unlisted one"
    );
    let controls = controls(&[
        ("tools", r"a|\~", Effect::Ban),
        ("denying", r"\~", Effect::Exempt),
        ("tools", r"b|*", Effect::Limit(4)),
    ]);
    let other = [("x-key", "a"), ("x-tool", "other")];
    assert_eq!(actions(&config, &controls, &other), [Action::Ban(Banned::ForEver), Action::Exempt]);
    let raised = Action::Limit { limit: 4, configured: Some(2), cost: 1, epoch: 0 };
    assert_eq!(actions(&config, &controls, &[("x-key", "b"), ("x-tool", "x")])[0], raised);
}

#[test]
fn live_controls_precede_the_configuration() {
    let config = Config::parse(CONFIG.as_bytes()).unwrap();
    let controls = controls(&[
        ("keys", "vip-1", Effect::Limit(7)),
        ("keys", "vip-1", Effect::Credit(3)),
        ("keys", "slow", Effect::Credit(10)),
        ("keys", "slow", Effect::Reset),
        ("keys", "vip-2", Effect::Ban),
        ("*", "k", Effect::Exempt),
        ("keys", "vip-3", Effect::Credit(10)),
        ("claims", r"\-|*", Effect::Ban),
        ("login", "192.0.2.0/24", Effect::Ban),
        ("login", r"7.7.7.0/24|vip", Effect::Limit(99)),
    ]);
    let limit = |limit, epoch| Action::Limit { limit, configured: None, cost: 1, epoch };
    let controlled =
        |limit, configured, epoch| Action::Limit { limit, configured: Some(configured), cost: 1, epoch };
    let banned = Action::Ban(Banned::ForEver);
    for (key, expected) in [
        ("vip-1", controlled(10, 100, 0)),
        ("slow", controlled(15, 5, 4)),
        ("vip-2", banned),
        ("vip-3", Action::Exempt),
        ("k", Action::Exempt),
        ("other", limit(100, 0)),
    ] {
        assert_eq!(actions(&config, &controls, &[("x-api-key", key)]), [expected], "{key}");
    }
    let login = [(":method", "POST"), (":authority", "a.example.com"), (":path", "/login?user=vip")];
    assert_eq!(actions(&config, &controls, &login), [banned]);
    // The rule's identifier is from a proxy's header; live networks match the peer unless `addresses` states otherwise.
    let proxied = |user| {
        let path = format!("/login?user={user}");
        let login = [(":method", "POST"), (":authority", "a.example.com"), (":path", path.as_str())];
        actions(&config, &controls, &[&login[..], &[("x-forwarded-for", "7.7.7.7")]].concat())
    };
    assert_eq!(proxied("vip"), [controlled(99, 10, 0)]);
    assert_eq!(proxied("other"), [banned]);
    assert_eq!(actions(&config, &controls, &[(":path", "/claims/x")]), [banned]);
}

const SECRET: &str = r#"{"aggregator": {"cluster": "c"}, "hash_key": "correct-horse-battery-staple", "rules": [
    {"name": "keys", "identifier": {"header": "x-api-key"}, "hash": true, "limit": 9, "window": "1m",
     "overrides": [{"identifier": "pro_*", "limit": 90}, {"identifier": "internal", "exempt": true}]},
    {"name": "plain", "identifier": {"header": "x-user"}, "limit": 5, "window": "1m"}]}"#;

#[test]
fn secret_identifiers_leave_the_filter_as_keyed_digests() {
    let config = Config::parse(SECRET.as_bytes()).unwrap();
    let other = SECRET.replace("correct", "another");
    let other = Config::parse(other.as_bytes()).unwrap();
    let found = |config: &Config, lines: &[(&str, &str)]| {
        let mut scratch = Scratch::default();
        let matches = config.resolve(&Headers::of(lines), &Live::default(), &mut scratch);
        matches
            .map(|matched| (String::from_utf8(matched.identifier.into()).unwrap(), matched.action))
            .collect::<Vec<_>>()
    };
    let limit = |limit| Action::Limit { limit, configured: None, cost: 1, epoch: 0 };
    // printf %s pro_k1 | openssl dgst -sha256 -hmac correct-horse-battery-staple, the first 32 digits
    let digest = "hmac:eb5959f0598f2a5bc3a76957e4f5e2ec";
    let sent = [("x-api-key", " pro_k1 "), ("x-user", "alice")];
    assert_eq!(found(&config, &sent), [(digest.into(), limit(90)), ("alice".into(), limit(5))]);
    assert_ne!(found(&other, &sent)[0].0, digest);
    assert_eq!(found(&config, &[("x-api-key", "free_k1")])[0].1, limit(9));
    assert_eq!(found(&config, &[("x-api-key", "internal")])[0].1, Action::Exempt);
    let long = "k".repeat(5_000);
    for key in ["pro_k1", "free_k1", "internal", "sha256:", "hmac:", &long] {
        let (identifier, _) = &found(&config, &[("x-api-key", key)])[0];
        assert!(identifier.starts_with("hmac:") && identifier.len() == 37, "{identifier}");
    }
    // An identifier without a secret value stays readable.
    assert_eq!(found(&config, &[])[0].0, r"\-");
    assert_eq!(found(&config, &[("x-api-key", "a"), ("x-api-key", "b")])[0].0, r"\+");
    // Live controls name an identifier as it is counted, that is, by its digest.
    let controls = controls(&[("keys", digest, Effect::Limit(7)), ("keys", "free_k1", Effect::Ban)]);
    let live = Action::Limit { limit: 7, configured: Some(90), cost: 1, epoch: 0 };
    assert_eq!(actions(&config, &controls, &sent[..1])[0], live);
    assert_eq!(actions(&config, &controls, &[("x-api-key", "free_k1")])[0], limit(9));
    assert!(!format!("{config:?}").contains("correct"));
}

#[test]
fn a_key_that_is_published_hides_nothing() {
    for (key, is_sound) in [
        ("change-me-to-a-random-text", false),
        ("change-me-123456", false),
        ("changed-to-a-random-text", true),
    ] {
        let written = SECRET.replace("correct-horse-battery-staple", key);
        let named =
            SECRET.replace(r#""hash_key": "correct-horse-battery-staple""#, r#""hash_key_env": "KEY""#);
        let parsed = [
            Config::parse(written.as_bytes()),
            Config::parse_with(named.as_bytes(), &|_| Some(key.to_owned())),
        ];
        for parsed in parsed {
            assert_eq!(parsed.is_ok(), is_sound, "{key}");
            let errors = parsed.err().map(|errors| errors.to_string()).unwrap_or_default();
            assert!(is_sound || errors.contains("a random text that is not published"), "{errors}");
            assert!(!errors.contains("change-me"), "{errors}");
        }
    }
}

#[test]
fn hashing_allocates_nothing() {
    let config = Config::parse(SECRET.as_bytes()).unwrap();
    let request = Headers::of(&[("x-api-key", "pro_k1"), ("x-user", "alice")]);
    let mut scratch = Scratch::default();
    let mut resolve = || config.resolve(&request, &Live::default(), &mut scratch).count();
    resolve();
    let mut matches = 0;
    let allocated = allocations(|| matches = (0..100).map(|_| resolve()).sum());
    assert_eq!((matches, allocated), (200, 0));
}

#[test]
fn limits_of_logs_and_ledgers_are_capped() {
    let text = r#"{"aggregator": {"cluster": "c"}, "rules": [
        {"name": "log", "algorithm": "sliding_log", "identifier": {"header": "x"}, "limit": 9, "window": "1m"},
        {"name": "cards", "algorithm": "ledger", "identifier": {"header": "x"}, "zone": 7}]}"#;
    let config = Config::parse(text.as_bytes()).unwrap();
    let limit = |limit, epoch| Action::Limit { limit, configured: None, cost: 1, epoch };
    let controlled =
        |limit, configured, epoch| Action::Limit { limit, configured: Some(configured), cost: 1, epoch };
    for (given, expected) in [
        (&[("*", "a", Effect::Limit(1_000_000))][..], [controlled(100_000, 9, 0), controlled(0, 0, 0)]),
        (&[("*", "a", Effect::Credit(1 << 53))], [controlled(100_000, 9, 0), controlled(0, 0, 0)]),
        (&[("*", "b", Effect::Exempt), ("*", "a", Effect::Reset)], [limit(9, 2), limit(0, 2)]),
        (&[("*", "a", Effect::Exempt)], [Action::Exempt; 2]),
    ] {
        assert_eq!(actions(&config, &controls(given), &[("x", "a")]), expected, "{given:?}");
    }
}

#[test]
fn addresses_are_exempt_or_denied() {
    let addresses = r#"{"client_networks": {"trusted_hops": 1, "exempt": ["10.0.0.0/8", "10.6.6.6"],
        "deny": ["10.6.0.0/16", "2001:db8::/32"]}, "#;
    let config = Config::parse(CONFIG.replacen('{', addresses, 1).as_bytes()).unwrap();
    let limit = Action::Limit { limit: 100, configured: None, cost: 1, epoch: 0 };
    let none = Controls::default();
    let live = controls(&[
        ("*", "10.6.7.0/24", Effect::Exempt),
        ("keys", "10.6.8.0/24", Effect::Exempt),
        ("*", "10.0.0.0/9", Effect::Ban),
        ("keys", "192.0.2.1", Effect::Ban),
        ("keys", "bad", Effect::Ban),
    ]);
    let banned = Action::Ban(Banned::ForEver);
    for (address, key, configured, with_live) in [
        ("10.1.1.1", "k", Some(Action::Exempt), Some(banned)),
        ("10.200.1.1", "k", Some(Action::Exempt), Some(Action::Exempt)),
        ("10.200.1.1", "bad", Some(Action::Exempt), Some(banned)),
        ("10.6.1.1", "k", None, None),
        ("10.6.6.6", "k", Some(Action::Exempt), Some(Action::Exempt)),
        ("10.6.7.1", "k", None, Some(Action::Exempt)),
        ("10.6.8.1", "k", None, None),
        ("[2001:db8::1]:80", "k", None, None),
        ("192.0.2.1", "k", Some(limit), Some(banned)),
        ("192.0.2.2", "k", Some(limit), Some(limit)),
    ] {
        for (controls, expected) in [(&none, configured), (&live, with_live)] {
            let request = Headers::of(&[("x-forwarded-for", address), ("x-api-key", key)]);
            let mut scratch = Scratch::default();
            let live = Live { controls: Some(controls), now: UnixMs(0) };
            let mut matches = config.resolve(&request, &live, &mut scratch);
            assert_eq!(matches.denied().is_some(), expected.is_none(), "{address} {key}");
            assert_eq!(matches.next().map(|matched| matched.action), expected, "{address} {key}");
        }
    }
}

/// Of all rules, by conditions that hold in every reading. A denied address stays denied, and live control precedes.
#[test]
fn requests_are_exempt_by_their_conditions() {
    let exempt = r#"{"exempt": [
            {"headers": [{"name": "x-probe", "exact": "s3cret"}]},
            {"path": {"segments": "/assets/**"}, "methods": "GET"},
            {"metadata": [{"filter": "envoy.filters.http.jwt_authn", "key": ["jwt_payload", "sub"], "exact": "staff"}]}
        ], "client_networks": {"trusted_hops": 1, "deny": ["10.0.0.0/8"]}, "#;
    let config = Config::parse(CONFIG.replacen('{', exempt, 1).as_bytes()).unwrap();
    let limit = Action::Limit { limit: 100, configured: None, cost: 1, epoch: 0 };
    let live = controls(&[("keys", "bad", Effect::Ban), ("*", "198.51.100.0/24", Effect::Ban)]);
    let banned = Action::Ban(Banned::ForEver);
    let check = |lines: &[(&str, &str)], claim: &str, expected: Option<Action>| {
        let lines = [&[("x-api-key", "k")], lines].concat();
        let request = Headers { claim: claim.into(), ..Headers::of(&lines) };
        let mut scratch = Scratch::default();
        let live = Live { controls: Some(&live), now: UnixMs(0) };
        let mut matches = config.resolve(&request, &live, &mut scratch);
        let found =
            matches.denied().is_none().then(|| matches.next().map(|matched| matched.action)).flatten();
        assert_eq!(found, expected, "{lines:?} {claim}");
    };
    let probe = ("x-probe", "s3cret");
    check(&[], "", Some(limit));
    check(&[probe], "", Some(Action::Exempt));
    check(&[("x-probe", "guess")], "", Some(limit));
    check(&[], "staff", Some(Action::Exempt));
    check(&[(":method", "GET"), (":path", "/assets/a.png")], "", Some(Action::Exempt));
    check(&[(":method", "GET"), (":path", "/assets/../claims/a")], "", Some(limit));
    check(&[probe, ("x-forwarded-for", "10.1.1.1")], "", None);
    check(&[probe, ("x-forwarded-for", "198.51.100.1")], "", Some(banned));
    let mut scratch = Scratch::default();
    let request = Headers::of(&[("x-api-key", "bad"), probe]);
    let live = Live { controls: Some(&live), now: UnixMs(0) };
    let action = config.resolve(&request, &live, &mut scratch).next().map(|matched| matched.action);
    assert_eq!(action, Some(banned), "of an identifier");
}

#[test]
fn huge_headers_are_digested() {
    let config = Config::parse(CONFIG.as_bytes()).unwrap();
    let mut scratch = Scratch::default();
    let request = Headers::of(&[("x-api-key", &"|\\".repeat(32_768)), (":path", &"/..".repeat(20_000))]);
    let identifiers: Vec<_> =
        config.resolve(&request, &Live::default(), &mut scratch).map(|matched| matched.identifier).collect();
    // So long a path with dots in it meets all rules by paths.
    assert_eq!(identifiers.len(), 2);
    assert!(identifiers[0].starts_with(b"sha256:") && identifiers[0].len() == 50);
}

fn any_headers() -> impl Strategy<Value = Headers> {
    let names = [
        ":method",
        ":authority",
        ":path",
        "x-api-key",
        "cookie",
        "x-forwarded-for",
        "x-cost",
        "x-probe",
        "other",
    ];
    let bytes = proptest::collection::vec(any::<u8>(), 0..100);
    let significant = "(/claims/|/login|POST|GET|a\\.example\\.com|s=|user=|\\?|&|;|,|%[0-9a-f]{2}|\\[::1\\]:8|1\\.2\\.3\\.4|\\\\|\\||vip-|[0-9]{1,25}){0,8}";
    let value = prop_oneof![bytes.clone(), significant.prop_map(String::into_bytes)];
    let line = (proptest::sample::select(names.to_vec()), value.clone())
        .prop_map(|(name, value)| (name.into(), value));
    (proptest::collection::vec(line, 0..12), value, bytes).prop_map(|(lines, peer, claim)| Headers {
        lines,
        peer,
        claim,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn any_request_resolves_the_same_twice(requests in proptest::collection::vec(any_headers(), 1..4)) {
        static PARSED: LazyLock<Config> = LazyLock::new(|| Config::parse(CONFIG.as_bytes()).unwrap());
        let config = &*PARSED;
        let mut warm = Scratch::default();
        for request in requests {
            let mut cold = Scratch::default();
            let fresh = config.resolve(&request, &Live::default(), &mut cold);
            let again = config.resolve(&request, &Live::default(), &mut warm);
            prop_assert_eq!(fresh.len(), again.len());
            for (one, other) in fresh.zip(again) {
                prop_assert_eq!((one.rule_index, one.identifier), (other.rule_index, other.identifier));
                prop_assert_eq!(one.action, other.action);
                prop_assert!(!one.identifier.is_empty() && one.identifier.len() <= MAX_IDENTIFIER_BYTES);
            }
        }
    }
}

#[test]
fn the_enforced_share_is_that_of_the_identifier() {
    let text = |percent: &str, hash: &str| {
        format!(
            r#"{{"aggregator": {{"cluster": "weir"}}, "hash_key": "0123456789abcdef", "rules": [
            {{"name": "r", "identifier": {{"header": "x-key"}}, "limit": 1, "window": "1m", "hash": {hash}, "enforce_percent": {percent}}},
            {{"name": "s", "namespace": "r", "identifier": {{"header": "x-key"}}, "limit": 1, "window": "1h", "hash": {hash}, "enforce_percent": {percent},
             "on_missing_identifier": "deny"}}]}}"#
        )
    };
    let enforced = |config: &Config, request: &Headers| -> Vec<bool> {
        let mut scratch = Scratch::default();
        config.resolve(request, &Live::default(), &mut scratch).map(|found| found.enforced).collect()
    };
    let parse = |percent, hash| Config::parse(text(percent, hash).as_bytes()).unwrap();
    for hash in ["false", "true"] {
        let (none, some, all) = (parse("0", hash), parse("30", hash), parse("100", hash));
        let mut members = 0;
        for n in 0..1_000 {
            // Spellings of one identifier are in the same share.
            let [one, blank] =
                [format!("k-{n}"), format!(" k-{n}\t")].map(|key| Headers::of(&[("x-key", &key)]));
            let share = enforced(&some, &one);
            assert_eq!(share, enforced(&some, &blank));
            assert_eq!(share[0], share[1], "rules of one namespace have one share");
            assert_eq!(share, enforced(&parse("30.0", hash), &one), "another text, the same share");
            assert_eq!((enforced(&none, &one), enforced(&all, &one)), (vec![false; 2], vec![true; 2]));
            members += usize::from(share[0]);
        }
        assert!((230..370).contains(&members), "{members} of 1000");
    }
    // Requests without an identifier are one identifier.
    assert_eq!(enforced(&parse("0", "false"), &Headers::default()), [false, false]);
}

/// The names of the rules that a GET of this path, with these other headers, meets.
fn met<'a>(config: &'a Config, path: &str, headers: &[(&str, &str)]) -> Vec<&'a str> {
    let lines = [&[(":method", "GET"), (":authority", "a.com"), (":path", path)], headers].concat();
    let mut scratch = Scratch::default();
    let live = Live::default();
    let matches = config.resolve(&Headers::of(&lines), &live, &mut scratch);
    matches.map(|one| config.rules[one.rule_index].name.as_str()).collect()
}

#[test]
fn of_a_group_the_rule_with_the_most_specific_path_applies() {
    let rule = |name: &str, more: &str| {
        format!(
            r#"{{"name": "{name}", "path_group": "api", "identifier": {{"constant": "x"}}, "limit": 9, "window": "1m"{more}}}"#
        )
    };
    let of_path = |name: &str, kind: &str, path: &str, more: &str| {
        rule(name, &format!(r#", "match": {{"path": {{"{kind}": "{path}"}}}}{more}"#))
    };
    let rules = [
        rule("any", ""),
        of_path("v1", "prefix", "/v1/", ""),
        of_path("users", "segments", "/v1/users/**", ""),
        of_path("orders", "segments", "/v1/users/*/orders", ""),
        of_path("export", "exact", "/v1/users/export", ""),
        of_path("tried", "segments", "/v1/users/tried", r#", "shadow_mode": true"#),
        of_path("share", "segments", "/v1/users/share", r#", "enforce_percent": 50"#),
        rule("named", r#", "match": {"path": {"segments": "/v1/named"}}, "identifier": {"header": "x-key"}, "on_missing_identifier": "skip""#)
            .replacen(r#""identifier": {"constant": "x"}, "#, "", 1),
        rule("posts", r#", "match": {"path": {"segments": "/v1/posts"}, "methods": "POST"}"#),
        rule("admin", r#", "match": {"path": {"segments": "/v1/admin"}}, "identifier": {"header": "x-key"}, "overrides": [{"identifier": "root*", "exempt": true}]"#)
            .replacen(r#""identifier": {"constant": "x"}, "#, "", 1),
        of_path("below", "prefix", "/v2/", ""),
        of_path("item", "segments", "/v2/*", ""),
        rule("again", ""),
        rule("alone", "").replace(r#""path_group": "api", "#, ""),
    ];
    let text = format!(r#"{{"aggregator": {{"cluster": "c"}}, "rules": [{}]}}"#, rules.join(", "));
    let config = Config::parse(text.as_bytes()).unwrap_or_else(|errors| panic!("{errors}"));
    for (path, headers, expected) in [
        ("/", &[][..], &["any", "alone"][..]),
        ("/v1/x", &[], &["v1", "alone"]),
        ("/v2/7", &[], &["item", "alone"]),
        ("/v2/7/8", &[], &["below", "alone"]),
        ("/v1/users", &[], &["users", "alone"]),
        ("/v1/users/7", &[], &["users", "alone"]),
        ("/v1/users/7/orders", &[], &["orders", "alone"]),
        ("/v1/users/export", &[], &["export", "alone"]),
        ("/v1/users/export?x", &[], &["export", "alone"]),
        // A rule that may not deny replaces none.
        ("/v1/users/tried", &[], &["users", "tried", "alone"]),
        ("/v1/users/share", &[], &["users", "share", "alone"]),
        // Nor does one that skips the request, or is for another method.
        ("/v1/named", &[("x-key", "k")], &["named", "alone"]),
        ("/v1/named", &[], &["v1", "alone"]),
        ("/v1/posts", &[], &["v1", "alone"]),
        // Nor one that the client is exempt from.
        ("/v1/admin", &[("x-key", "k")], &["admin", "alone"]),
        ("/v1/admin", &[("x-key", "root1")], &["v1", "admin", "alone"]),
        // Nor one that only some readings meet.
        ("/v1/users/export/", &[], &["users", "alone"]),
        ("/v1/users;a/export", &[], &["any", "v1", "users", "export", "alone"]),
        ("/v1/users/../x", &[], &["v1", "users", "alone"]),
        ("/v1/users%2F7", &[], &["any", "v1", "users", "alone"]),
    ] {
        assert_eq!(met(&config, path, headers), expected, "{path}");
    }
}

#[test]
fn a_group_has_at_most_64_rules() {
    let rule = |at: usize| {
        format!(
            r#"{{"name": "r{at}", "path_group": "g", "identifier": {{"constant": "x"}}, "limit": 9, "window": "1m"}}"#
        )
    };
    let text = |rules: usize| {
        let rules: Vec<String> = (0..rules).map(rule).collect();
        format!(r#"{{"aggregator": {{"cluster": "c"}}, "rules": [{}]}}"#, rules.join(", "))
    };
    assert_eq!(met(&Config::parse(text(64).as_bytes()).unwrap(), "/", &[]), ["r0"]);
    let error = Config::parse(text(65).as_bytes()).unwrap_err().to_string();
    assert!(error.contains("rules: 65 rules have the path_group \"g\""), "{error}");
}

#[test]
fn the_whole_path_identifies() {
    let text = r#"{"aggregator": {"cluster": "c"}, "rules": [
        {"name": "r", "identifier": {"path": true, "lowercase": true}, "limit": 9, "window": "1m"}]}"#;
    let config = Config::parse(text.as_bytes()).unwrap();
    let mut scratch = Scratch::default();
    for (path, expected) in [
        ("/A/b?x=1", "/a/b"),
        ("/a/%62/", "/a/b"),
        ("/", "/"),
        ("/a%7Cb", "/a\\|b"),
        ("/a/../b", "\\+"),
        ("/a;x/b", "\\+"),
    ] {
        let request = Headers::of(&[(":path", path)]);
        let mut matches = config.resolve(&request, &Live::default(), &mut scratch);
        assert_eq!(String::from_utf8_lossy(matches.next().unwrap().identifier), expected, "{path}");
    }
}
