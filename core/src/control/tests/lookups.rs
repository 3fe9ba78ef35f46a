use super::*;
use crate::control::book::MAX_KEPT;
use crate::matching::canonical::DIGEST_BYTES;
use crate::model::exact::{Algorithm, MAX_LOG_LIMIT};
use crate::model::key::Namespace;
use crate::model::time::{MonoMs, Now};
use crate::model::window::MAX_COUNT;
use alloc::collections::BTreeSet;
use std::format;
use std::string::String;

const NOTHING: Found = Found { ban: None, exempt: false, limit: None, credit: 0, epoch: 0 };
const EXEMPT: Found = Found { exempt: true, ..NOTHING };
const BANNED: Found = Found { ban: Some(Banned::ForEver), ..NOTHING };

fn limit(limit: u64) -> Found {
    Found { limit: Some(limit), ..NOTHING }
}

#[test]
fn the_most_specific_control_wins() {
    let set = set(&[
        control(1, "n", "alice", Effect::Limit(1)),
        control(2, "*", "alice", Effect::Limit(2)),
        control(3, "*", "bob", Effect::Limit(3)),
        control(4, "n", "b*", Effect::Limit(4)),
        control(5, "n", "bo-*", Effect::Limit(5)),
        control(6, "*", "bo-x-*", Effect::Limit(6)),
        control(7, "*", "c*", Effect::Limit(7)),
        control(8, "n", "10.0.0.0/8", Effect::Ban),
        control(9, "*", "10.1.0.0/16", Effect::Exempt),
        control(10, "n", "10.2.0.0/16", Effect::Exempt),
        control(11, "*", "11.0.0.0/8", Effect::Ban),
    ]);
    for (raw, address, expected) in [
        ("alice", "10.0.0.1", limit(1)),
        ("bob", "10.0.0.1", limit(3)),
        ("bert", "10.0.0.1", limit(4)),
        ("bo-1", "", limit(5)),
        ("bo-x-1", "", limit(5)),
        ("carol", "11.0.0.1", limit(7)),
        ("dora", "10.0.0.1", BANNED),
        ("dora", "10.1.0.1", BANNED),
        ("dora", "10.2.0.1", EXEMPT),
        ("dora", "11.1.1.1", BANNED),
        ("dora", "12.1.1.1", NOTHING),
        ("dora", "", NOTHING),
    ] {
        assert_eq!(find(&set, raw, address, 0), expected, "{raw} {address}");
    }
    let elsewhere = |raw, address| find_in(&set, "m", 60_000, raw, address, None, 0);
    assert_eq!(elsewhere("alice", ""), limit(2));
    assert_eq!(elsewhere("bo-x-1", ""), limit(6));
    assert_eq!(elsewhere("bert", "10.1.0.1"), EXEMPT);
    assert_eq!(elsewhere("bert", "10.0.0.1"), NOTHING);
}

#[test]
fn a_control_of_a_window_precedes_all_others_except_bans() {
    let set = set(&[
        control(9, "n", "alice", Effect::Limit(1)),
        control(2, "n/60000", "alice", Effect::Limit(2)),
        control(3, "n/60000", "bob", Effect::Limit(3)),
        control(4, "n", "bob", Effect::Ban),
        control(5, "n/60000", "c*", Effect::Limit(5)),
        control(6, "n", "c*", Effect::Exempt),
        control(7, "n/60000", "alice", Effect::Credit(70)),
        control(8, "n", "alice", Effect::Credit(80)),
    ]);
    let found = |raw, window_ms| find_in(&set, "n", window_ms, raw, "", None, 0);
    assert_eq!(found("alice", 60_000), Found { credit: 70, ..limit(2) });
    assert_eq!(found("alice", 1_000), Found { credit: 80, ..limit(1) });
    assert_eq!(found("alice", 0), Found { credit: 80, ..limit(1) });
    assert_eq!(found("bob", 60_000), BANNED);
    assert_eq!(found("carol", 60_000), limit(5));
    assert_eq!(found("carol", 1_000), EXEMPT);
}

#[test]
fn an_expired_control_no_longer_hides_others() {
    let set = set(&[
        until(control(1, "n", "alice", Effect::Ban), 100),
        until(control(2, "n", "al*", Effect::Exempt), 200),
        until(control(3, "n", "a*", Effect::Limit(3)), 300),
        control(4, "n", "*", Effect::Limit(4)),
        until(control(5, "n", "10.1.0.0/16", Effect::Ban), 100),
        control(6, "n", "10.0.0.0/8", Effect::Exempt),
        until(control(7, "n", "alice", Effect::Reset), 100),
        until(control(8, "rule-1", "rule", Effect::Shadow(true)), 100),
    ]);
    let banned = Found { ban: Some(Banned::Until(UnixMs(100))), epoch: 7, ..NOTHING };
    for (now, expected) in
        [(99, banned), (100, EXEMPT), (199, EXEMPT), (200, limit(3)), (299, limit(3)), (300, limit(4))]
    {
        assert_eq!(find(&set, "alice", "", now), expected, "{now}");
    }
    let expected = Banned::Until(UnixMs(100));
    let set = self::set(&[
        until(control(5, "n", "10.1.0.0/16", Effect::Ban), 100),
        control(6, "n", "10.0.0.0/8", Effect::Exempt),
        until(control(8, "rule-1", "rule", Effect::Shadow(true)), 100),
    ]);
    assert_eq!(find(&set, "x", "10.1.1.1", 99).ban, Some(expected));
    assert_eq!(find(&set, "x", "10.1.1.1", 100), EXEMPT);
    assert_eq!(set.shadow("w", "rule-1", UnixMs(99)), Some(true));
    assert_eq!(set.shadow("w", "rule-1", UnixMs(100)), None);
    assert_eq!(set.shadow("v", "rule-1", UnixMs(0)), None);
}

#[test]
fn the_newest_matching_reset_sets_the_epoch() {
    let set = set(&[
        control(5, "n", "alice", Effect::Reset),
        control(9, "*", "a*", Effect::Reset),
        control(7, "n", "*", Effect::Reset),
        control(8, "n", "bob", Effect::Reset),
        control(u64::MAX, "n", "z", Effect::Reset),
    ]);
    for (raw, epoch) in [("alice", 9), ("bob", 8), ("carol", 7), ("z", u32::MAX)] {
        assert_eq!(find(&set, raw, "", 0).epoch, epoch, "{raw}");
    }
}

#[test]
fn the_longer_prefix_of_configured_and_live_networks_wins() {
    let set = set(&[
        control(1, "n", "10.1.0.0/16", Effect::Ban),
        control(2, "n", "bob", Effect::Ban),
        control(3, "n", "carol", Effect::Limit(5)),
    ]);
    let found = |raw, address, allowed| find_in(&set, "n", 60_000, raw, address, allowed, 0);
    assert_eq!(found("x", "10.1.0.1", Some(8)), BANNED);
    assert_eq!(found("x", "10.1.0.1", Some(16)), BANNED);
    assert_eq!(found("x", "10.1.0.1", Some(24)), EXEMPT);
    assert_eq!(found("x", "10.2.0.1", Some(8)), EXEMPT);
    assert_eq!(found("bob", "10.2.0.1", Some(8)), BANNED);
    assert!(found("carol", "10.2.0.1", Some(8)).exempt, "a limit does not revoke an exemption");
    assert_eq!(find_in(&Controls::default(), "n", 1_000, "x", "10.0.0.1", Some(8), 0), EXEMPT);
}

#[test]
fn identifiers_are_raw_ones_or_digests() {
    let long = "x".repeat(100);
    let mut digest = Vec::new();
    canonical_identifier("y".repeat(3_000).as_bytes(), &mut digest);
    assert_eq!(digest.len(), DIGEST_BYTES);
    let digest = String::from_utf8(digest).unwrap();
    let set = set(&[
        control(1, "n", &long, Effect::Limit(1)),
        control(2, "n", &digest, Effect::Limit(2)),
        control(3, "n", r"a\|b|\-", Effect::Limit(3)),
        control(4, "n", r"star\*", Effect::Limit(4)),
    ]);
    for (raw, expected) in [
        (long.as_str(), limit(1)),
        (&"y".repeat(3_000), limit(2)),
        (r"a\|b|\-", limit(3)),
        ("star*", limit(4)),
        (&format!("{long}x"), NOTHING),
        (&digest, NOTHING),
    ] {
        assert_eq!(find(&set, raw, "", 0), expected, "{raw}");
    }
}

#[test]
fn workspaces_are_separate() {
    let mut other = control(1, "n", "alice", Effect::Ban);
    other.target.workspace = "v".into();
    let set = set(&[other]);
    assert_eq!(find(&set, "alice", "", 0), NOTHING);
    assert!(!set.is_empty());
}

#[test]
fn ten_thousand_controls_are_looked_up() {
    let name = |n: u64| match n % 3 {
        0 => format!("user-{n}"),
        1 => format!("*-user-{n}"),
        _ => format!("10.{}.{}.0/24", n / 256, n % 256),
    };
    let effect = |n: u64| if n % 3 == 2 { Effect::Ban } else { Effect::Limit(n) };
    let controls: Vec<Control> =
        (1..=MAX_CONTROLS as u64).map(|n| control(n, "n", &name(n), effect(n))).collect();
    let mut set = Controls::default();
    set.apply(&full_frame(&controls, 10_000));
    for (raw, address, expected) in [
        ("user-9999", "", limit(9_999)),
        ("a-user-9997", "", limit(9_997)),
        ("unlisted", "10.39.14.7", BANNED),
        ("unlisted", "10.39.15.7", NOTHING),
    ] {
        assert_eq!(find(&set, raw, address, 0), expected, "{raw} {address}");
    }
    let many = MAX_KEPT as u64;
    set.apply(&wire::Controls {
        entries: (10_001..=many + 1)
            .map(|n| control(n, "n", &format!("more-{n}"), Effect::Ban).to_wire())
            .collect(),
        after: 10_000,
        complete_through: many + 1,
        ..wire::Controls { incarnation: INCARNATION, ..Default::default() }
    });
    assert_eq!((set.iter().count(), set.refused()), (MAX_KEPT, 1));
    assert_eq!(find(&set, &format!("more-{}", many + 1), "", 0), NOTHING);
}

#[test]
fn a_local_ban_applies_until_its_end_or_until_the_region_lifts_it() {
    let mut set = Controls::default();
    let ban = |until: u64, level| Local { level, kept_until: MonoMs(until + 50), ..made(until) };
    let local = |set: &Controls, now| find(set, "alice", "", now).ban;
    assert!(set.ban_here(OF, b"alice", ban(100, 1), at(0)));
    assert!(!set.ban_here(OF, b"alice", ban(90, 1), at(0)), "an earlier end has no effect");
    assert_eq!(local(&set, 99), Some(Banned::Until(UnixMs(100))));
    assert_eq!(local(&set, 100), None);
    assert_eq!(find_in(&set, "m", 60_000, "alice", "", None, 0), NOTHING);
    assert_eq!(set.banned_here(OF, b"alice", at(149)).map(|ban| ban.level), Some(1));
    assert_eq!(set.banned_here(OF, b"alice", at(150)), None);
    assert!(set.ban_here(OF, b"alice", ban(300, 2), at(120)));

    // An earlier ban that arrives late does not affect this one. Neither does a ban of an incomplete update.
    let early = until(control(3, "n", "alice", Effect::Ban), 100);
    set.apply(&full_frame(core::slice::from_ref(&early), 3));
    let stored = until(control(4, "n", "alice", Effect::Ban), 300);
    let all = full_frame(core::slice::from_ref(&stored), 4);
    set.apply(&wire::Controls { incarnation: INCARNATION + 1, complete_through: 0, ..all.clone() });
    assert!(!set.take_over());
    assert_eq!(local(&set, 200), Some(Banned::Until(UnixMs(300))));
    // The region has stored the ban, so it can be lifted there.
    set.apply(&all);
    assert!(set.take_over() && !set.take_over());
    assert_eq!(local(&set, 200), Some(Banned::Until(UnixMs(300))));
    let lifted = wire::Control { deleted: true, revision: 5, ..stored.to_wire() };
    set.apply(&wire::Controls {
        entries: [lifted].into(),
        after: 4,
        complete_through: 5,
        ..wire::Controls { incarnation: INCARNATION, ..Default::default() }
    });
    assert_eq!(local(&set, 200), None);
    assert_eq!(set.banned_here(OF, b"alice", at(200)).map(|ban| ban.level), Some(2));
}

#[test]
fn an_exemption_lifts_a_local_ban_and_a_limit_does_not() {
    for (effect, banned) in [(Effect::Exempt, false), (Effect::Limit(5), true)] {
        let mut set = set(&[control(1, "n", "alice", effect)]);
        set.ban_here(OF, b"alice", made(100), at(0));
        assert_eq!(find(&set, "alice", "", 0).ban.is_some(), banned, "{effect:?}");
    }
}

#[test]
fn a_local_ban_is_lifted_if_the_region_has_stored_and_lifted_it() {
    let deleted = |revision, until_ms| wire::Control {
        deleted: true,
        ..until(control(revision, "n", "alice", Effect::Ban), until_ms).to_wire()
    };
    let mut bans = bans::Bans::default();
    bans.put(OF, b"alice", made(300), at(0));
    let mut lifts = |incarnation, entry| {
        let frame = wire::Controls { incarnation, entries: [entry].into(), ..Default::default() };
        bans.lift(&frame, wire::ControlsKnown { incarnation: INCARNATION, revision: 4, proof: 0, stamp: 0 })
    };
    assert!(!lifts(INCARNATION + 1, deleted(5, 300)), "an entry of another database");
    assert!(!lifts(INCARNATION, deleted(4, 300)), "an entry that was received before");
    assert!(!lifts(INCARNATION, deleted(5, 299)), "a deletion of an earlier ban");
    assert!(
        !lifts(INCARNATION, until(control(5, "n", "alice", Effect::Ban), 300).to_wire()),
        "an entry that is not a deletion"
    );
    assert!(lifts(INCARNATION, deleted(5, 300)));
    assert_eq!(bans.until(OF, b"alice", UnixMs(0)), None);
    assert!(bans.put(OF, b"alice", made(400), at(0)), "another ban can be set");
    assert_eq!(bans.until(OF, b"alice", UnixMs(0)), Some(UnixMs(400)));
}

#[test]
fn a_later_ban_applies_though_it_ends_before_an_earlier_one() {
    let mut bans = bans::Bans::default();
    bans.put(OF, b"alice", Local { taken_over: true, ..made(900) }, at(0));
    assert_eq!(bans.until(OF, b"alice", UnixMs(0)), None);
    let later = Local { mark: UnixMs(901), until: UnixMs(300), ..made(300) };
    assert!(bans.put(OF, b"alice", later, at(0)));
    assert_eq!(bans.until(OF, b"alice", UnixMs(0)), Some(UnixMs(300)));
    assert_eq!(bans.open(UnixMs(299)).map(|open| open.identifier).collect::<Vec<_>>(), [b"alice"]);
    assert_eq!(bans.open(UnixMs(300)).count(), 0);
}

#[test]
fn no_ban_leaves_before_its_end_because_of_others() {
    let mut bans = bans::Bans::default();
    let put = |bans: &mut bans::Bans, namespace: &str, name: &str, ban| {
        bans.put(of(namespace), name.as_bytes(), ban, at(0))
    };
    assert!(put(&mut bans, "n", "alice", made(500)));
    // A client that invents identifiers, each banned for longer than it is itself.
    let flood = |bans: &mut bans::Bans, namespace: &str| {
        (0..2 * MAX_BANS).filter(|n| put(bans, namespace, &n.to_string(), made(9_000))).count()
    };
    let taken = flood(&mut bans, "n");
    assert_eq!(bans.until(OF, b"alice", UnixMs(499)), Some(UnixMs(500)));
    assert_eq!(
        taken + 1,
        MAX_BANS * 9 / 16,
        "a workspace leaves a quarter of the places, and in it a namespace"
    );
    assert!(put(&mut bans, "other", "bob", made(700)), "to the others");
    assert!(flood(&mut bans, "other") > MAX_BANS / 8);
    assert!(put(&mut bans, "third", "carol", made(700)));
    assert!(!put(&mut bans, "n", "dave", made(9_000)), "its namespace has its share");
    assert!(put(&mut bans, "n", "alice", made(800)), "a ban is prolonged");
    assert!(bans.open(UnixMs(0)).count() <= MAX_BANS);
    // A ban that has ended leaves its place.
    assert!(bans.put(of("other"), b"erin", made(9_999), at(750)), "the one of bob");
    assert_eq!(
        bans.until(of("third"), b"carol", UnixMs(0)),
        None,
        "and the one of carol, which ended as well"
    );
}

#[test]
fn a_flood_of_bans_in_a_workspace_leaves_places_and_turns_to_the_others() {
    let mut bans = bans::Bans::default();
    let mut flood = |workspace: &str, name: &str| {
        let put = |n: &usize| {
            bans.put(Namespace { workspace, name }, format!("{n:05}").as_bytes(), made(9_000), at(0))
        };
        (0..MAX_BANS).filter(put).count()
    };
    // As many namespaces as a tenant likes.
    let namespaces: Vec<String> = (0..40).map(|n| format!("n{n}")).collect();
    let first: usize = namespaces.iter().map(|namespace| flood("a", namespace)).sum();
    assert!(first <= MAX_BANS * 3 / 4 && first > MAX_BANS * 2 / 3, "{first}");
    let second = flood("b", "n");
    assert!(second > MAX_BANS / 8, "{second}");
    let turns: Vec<_> = bans.open(UnixMs(0)).map(|open| (open.workspace, open.namespace)).take(8).collect();
    let of = |workspace: &str| turns.iter().filter(|(of, _)| *of == workspace).count();
    assert_eq!((of("a"), of("b")), (4, 4));
    let others: BTreeSet<_> = turns.iter().filter(|(workspace, _)| *workspace == "a").collect();
    assert_eq!(others.len(), 4, "four of its namespaces");
    assert_eq!(bans.open(UnixMs(0)).count(), first + second);
}

#[test]
fn bans_that_deny_no_more_make_room() {
    let mut bans = bans::Bans::default();
    let put = |bans: &mut bans::Bans, name: &str, ban| bans.put(OF, name.as_bytes(), ban, at(0));
    let most = MAX_BANS as u64 * 9 / 16;
    for n in 0..most {
        let is_ours = n % 2 == 0;
        let ban = if is_ours { made(1_000 + n) } else { Local { until: UnixMs(0), ..made(9_000 + n) } };
        assert!(put(&mut bans, &n.to_string(), ban));
    }
    let denying = bans.open(UnixMs(0)).count() as u64;
    assert_eq!(denying, most / 2);
    let taken = (most..2 * most).filter(|n| put(&mut bans, &n.to_string(), made(20_000 + n))).count() as u64;
    assert_eq!(
        (taken, bans.open(UnixMs(0)).count() as u64),
        (most / 2, most),
        "each place of one that denied no more"
    );
    assert!((0..most).step_by(2).all(|n| bans.until(OF, n.to_string().as_bytes(), UnixMs(0)).is_some()));
    let kept = bans.encode();
    let mut other = bans.clone();
    assert!(!other.merge(&kept, at(0)), "nothing new");
    let mut empty = bans::Bans::default();
    assert!(empty.merge(&kept, at(0)));
    assert_eq!(empty.open(UnixMs(0)).count() as u64, most, "another worker has all of them");
    assert!(!put(&mut bans, &"x".repeat(65), made(9_999)), "not a canonical identifier");
    assert!(bans.drop_expired(at(99_000)));
    assert!(bans.is_empty());
}

const OF: Namespace<&str> = Namespace { workspace: "w", name: "n" };

fn of(name: &str) -> Namespace<&str> {
    Namespace { name, ..OF }
}

/// A rule's first ban.
fn made(until: u64) -> Local {
    let (until, kept_until) = (UnixMs(until), MonoMs(until));
    Local { mark: until, level: 1, until, kept_until, ..Local::default() }
}

/// A moment of both clocks.
fn at(ms: u64) -> Now {
    Now { unix: UnixMs(ms), mono: MonoMs(ms) }
}

#[test]
fn a_controls_limit_replaces_the_configured_one_and_a_credit_is_added() {
    let ledger = Algorithm::Ledger { zone: 1 };
    for (replaced, credit, configured, algorithm, expected) in [
        (None, 0, u64::MAX, Algorithm::Window, u64::MAX),
        (None, 5, 10, Algorithm::Window, 15),
        (Some(3), 0, 10, Algorithm::Window, 3),
        (Some(3), 5, 10, Algorithm::Window, 8),
        (Some(u64::MAX), 5, 10, Algorithm::Window, MAX_COUNT),
        (None, 1, u64::MAX, Algorithm::Window, MAX_COUNT),
        (Some(MAX_LOG_LIMIT), 1, 10, Algorithm::Log, MAX_LOG_LIMIT),
        (Some(7), 7, 0, ledger, 0),
    ] {
        let found = Found { limit: replaced, credit, ..NOTHING };
        assert_eq!(
            found.limit_of(configured, algorithm),
            expected,
            "{found:?} of {configured}, {algorithm:?}"
        );
    }
}
