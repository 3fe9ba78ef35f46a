use super::*;

fn of(selector: Selector, effect: Effect) -> Control {
    let target = Target { workspace: "w".into(), scope: "n".into(), selector, window_ms: None };
    Control { target, effect, expires: Some(UnixMs(7)), revision: 3 }
}

#[test]
fn every_kind_survives_encoding() {
    let alice = || Selector::Identifier("alice|*".into());
    let network = Selector::Network(parse_network("10.1.2.3/8").unwrap());
    for control in [
        of(alice(), Effect::Limit(5)),
        of(alice(), Effect::Exempt),
        of(alice(), Effect::Ban),
        of(alice(), Effect::Credit(9)),
        of(alice(), Effect::Reset),
        of(network, Effect::Ban),
        of(Selector::Rule, Effect::Shadow(true)),
        of(Selector::Rule, Effect::Shadow(false)),
    ] {
        assert_eq!(Control::from_wire(&control.to_wire()), Ok(control));
    }
}

#[test]
fn invalid_combinations_are_refused() {
    let network = || Selector::Network(parse_network("10.0.0.0/8").unwrap());
    let windowed = |effect| {
        let mut control = of(Selector::Identifier("a".into()), effect);
        control.target.window_ms = Some(60_000);
        control
    };
    assert_eq!(windowed(Effect::Limit(1)).check(), Ok(()));
    let mut reserved = of(Selector::Identifier("a".into()), Effect::Ban);
    reserved.target.scope = "~n".into();
    for wrong in [
        of(Selector::Rule, Effect::Ban),
        of(network(), Effect::Limit(1)),
        of(network(), Effect::Shadow(true)),
        of(Selector::Identifier(String::new()), Effect::Ban),
        of(Selector::Identifier(r"a\b".into()), Effect::Ban),
        of(Selector::Identifier("a".into()), Effect::Limit(MAX_COUNT + 1)),
        windowed(Effect::Ban),
        reserved,
    ] {
        assert!(wrong.check().is_err(), "{wrong:?}");
    }
}

#[test]
fn networks() {
    for (text, expected) in [
        ("203.0.113.9/24", Some("203.0.113.0/24")),
        ("203.0.113.9", Some("203.0.113.9/32")),
        ("2001:db8::1/32", Some("2001:db8::/32")),
        ("::1", Some("::1/128")),
        ("::ffff:10.1.2.3/104", Some("10.0.0.0/8")),
        ("::ffff:10.1.2.3", Some("10.1.2.3/32")),
        ("::ffff:10.1.2.3/95", Some("::fffe:0:0/95")),
        ("203.0.113.9/33", None),
        ("example.org", None),
        ("", None),
    ] {
        let network = parse_network(text).map(|network| network.to_string());
        assert_eq!(network.ok().as_deref(), expected, "{text}");
    }
}

#[test]
fn targets_match_the_identifiers_that_they_name() {
    for (name, raw, expected) in [
        ("alice", "alice", true),
        ("alice", "alicia", false),
        ("al*", "alice", true),
        ("al*|x", "alice|x", true),
        ("al*|x", "alice|y", false),
        (r"al\*", "al*", true),
        (r"al\*", "alice", false),
        ("*", "anything", true),
        ("10.0.0.0/8", "10.1.2.3", true),
        ("10.0.0.0/8", "::ffff:10.1.2.3", true),
        ("10.0.0.0/8", "11.1.2.3", false),
        ("10.0.0.0/8", "alice", false),
    ] {
        let effect = if name.contains('.') { Effect::Ban } else { Effect::Limit(1) };
        assert_eq!(control(1, "n", name, effect).target.meets(raw.as_bytes()), expected, "{name} {raw}");
    }
    assert!(!control(1, "r", "rule", Effect::Shadow(true)).target.meets(b"r"));
    let long = "x".repeat(100);
    let mut digest = Vec::new();
    canonical_identifier(long.as_bytes(), &mut digest);
    assert!(control(1, "n", &long, Effect::Ban).target.meets(&digest));
}

#[test]
fn a_name_names_exactly_its_identifier() {
    let meets = |name: &str, raw: &[u8]| of(Selector::Identifier(name.into()), Effect::Ban).target.meets(raw);
    let long = "x".repeat(300);
    let mut digest = Vec::new();
    crate::matching::canonical::canonical_identifier(long.as_bytes(), &mut digest);
    let digest = core::str::from_utf8(&digest).unwrap();
    for (identifier, expected) in [
        ("alice", "alice"),
        ("-rf *", r"-rf \*"),
        (r"a\|b|\-", r"a\|b|\-"),
        ("a'b\"c$(d)`e`", "a'b\"c$(d)`e`"),
        ("zo\u{eb}", "zo\u{eb}"),
        (digest, digest),
    ] {
        let name = name_of(identifier.as_bytes()).unwrap();
        assert_eq!(name, expected);
        assert!(meets(&name, identifier.as_bytes()), "{name}");
        assert!(!meets(&name, b"-rf x") && !meets(&name, b"alice2"), "{name} names others too");
    }
    assert!(meets(&name_of(digest.as_bytes()).unwrap(), long.as_bytes()));
    for nameless in [b"".as_slice(), b"\xff", b"a\nb", b"\x1b[2J", br"a\b"] {
        assert_eq!(name_of(nameless), None, "{nameless:?}");
    }
}
