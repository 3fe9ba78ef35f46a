//! What a change costs, and that many small ones come to what all at once would be.

use super::*;
use crate::control::book::MAX_KEPT;
use proptest::prelude::*;
use std::format;

const MANY: u64 = 10_000;

fn after(known: u64, controls: &[Control], complete_through: u64) -> wire::Controls {
    let entries = controls.iter().map(Control::to_wire).collect();
    wire::Controls { incarnation: INCARNATION, entries, after: known, complete_through, ..Default::default() }
}

/// So many controls that a look at all of them cannot be missed: a fifth are patterns, a fifth networks.
fn crowd() -> Controls {
    let who = |n: u64| match n % 5 {
        0 => format!("*-user-{n}"),
        1 => format!("10.{}.{}.0/24", n / 256, n % 256),
        _ => format!("user-{n}"),
    };
    let all: Vec<Control> = (1..=MANY).map(|n| control(n, "n", &who(n), Effect::Ban)).collect();
    let mut set = Controls::default();
    set.apply(&whole(&all, MANY));
    set
}

/// Words that were looked at while a frame was taken.
fn work(set: &mut Controls, frame: &wire::Controls) -> usize {
    let before = set.work();
    assert!(set.apply(frame));
    set.work() - before
}

#[test]
fn an_identifier_more_or_less_costs_one_change() {
    let mut set = crowd();
    let alice = control(MANY + 1, "n", "alice", Effect::Ban);
    assert_eq!(work(&mut set, &after(MANY, core::slice::from_ref(&alice), MANY + 1)), 1);
    assert_eq!(ask(&set, "alice", "", 0).ban, Some(Banned::ForEver));
    let lifted = wire::Control { deleted: true, revision: MANY + 2, ..alice.to_wire() };
    let lifted = wire::Controls { entries: [lifted].into(), ..after(MANY + 1, &[], MANY + 2) };
    assert_eq!(work(&mut set, &lifted), 1);
    assert_eq!(ask(&set, "alice", "", 0).ban, None);
}

#[test]
fn patterns_and_networks_are_built_anew_only_where_they_changed() {
    let mut set = crowd();
    let elsewhere = control(MANY + 1, "m", "b*", Effect::Ban);
    assert_eq!(work(&mut set, &after(MANY, &[elsewhere], MANY + 1)), 2, "the change, and all of its scope");
    let here = control(MANY + 2, "n", "b*", Effect::Credit(1));
    let all = usize::try_from(MANY).unwrap() + 1;
    assert_eq!(work(&mut set, &after(MANY + 1, &[here], MANY + 2)), 1 + all);
}

#[test]
fn a_telling_of_many_frames_builds_patterns_once() {
    let mut set = crowd();
    let mut visited = 0;
    for n in 1..=40 {
        let last = MANY + 2 * n;
        let two = [
            control(last - 1, "n", &format!("x{n}*"), Effect::Ban),
            control(last, "n", &format!("y{n}"), Effect::Ban),
        ];
        let complete_through = if n == 40 { last } else { 0 };
        visited += work(&mut set, &after(last - 2, &two, complete_through));
        assert!(ask(&set, &format!("y{n}"), "", 0).ban.is_some(), "identifiers count at once");
    }
    let all = usize::try_from(MANY).unwrap() + 80;
    assert_eq!(visited, 80 + all);
    assert!(ask(&set, "x1-", "", 0).ban.is_some() && ask(&set, "x40-", "", 0).ban.is_some());
}

#[test]
fn a_telling_that_stays_without_an_end_counts_from_the_next_tick() {
    let mut set = set(&[]);
    set.apply(&after(1_000, &[control(1_001, "n", "a*", Effect::Ban)], 0));
    set.settle();
    assert!(ask(&set, "alice", "", 0).ban.is_some());
}

#[test]
fn where_nothing_is_said_any_more_nobody_is_looked_up() {
    for who in ["alice", "a*", "10.0.0.0/8"] {
        let said = control(9, "n", who, Effect::Ban);
        let mut set = set(core::slice::from_ref(&said));
        assert!(!set.is_empty());
        let gone = wire::Control { deleted: true, revision: 1_001, ..said.to_wire() };
        set.apply(&wire::Controls { entries: [gone].into(), ..after(1_000, &[], 1_001) });
        assert!(set.is_empty() && !set.has_networks("w"), "{who}");
    }
}

#[test]
fn one_wrong_clock_takes_nothing_away() {
    const DAY: u64 = 24 * 60 * 60 * 1_000;
    let now = 1_800_000_000_000;
    let hour = 60 * 60 * 1_000;
    for (told_by, forgotten_by) in
        [(now + hour, now), (now + hour, now + hour), (now + 9 * DAY, now), (now, now + 9 * DAY)]
    {
        let mut set = set(&[until(control(3, "n", "alice", Effect::Ban), now + 1_000)]);
        set.apply(&wire::Controls { now_ms: told_by, ..after(1_000, &[], 1_001) });
        set.forget(UnixMs(forgotten_by));
        assert!(ask(&set, "alice", "", now).ban.is_some(), "{told_by} {forgotten_by}");
    }
    let mut set = set(&[
        until(control(3, "n", "alice", Effect::Ban), now - DAY),
        until(control(4, "n", "a*", Effect::Ban), now - DAY),
        until(control(5, "n", "bob", Effect::Ban), now - DAY + 1),
    ]);
    set.forget(UnixMs(now));
    assert_eq!(set.iter().count(), 3, "nobody else has said what time it is");
    set.apply(&wire::Controls { now_ms: now, ..after(1_000, &[], 1_001) });
    set.forget(UnixMs(now));
    assert_eq!(set.iter().count(), 1);
    assert!(ask(&set, "alice", "", 0).ban.is_none() && ask(&set, "bob", "", 0).ban.is_some());
}

#[test]
fn where_there_is_no_room_what_is_over_for_longest_goes_first() {
    let many = MAX_KEPT as u64;
    let all: Vec<Control> = (1..=many).map(|n| control(n, "n", &format!("i{n}"), Effect::Ban)).collect();
    let ending = |(control, n): (Control, u64)| if n <= 10 { until(control, 100 - n) } else { control };
    let all: Vec<Control> = all.into_iter().zip(1..).map(ending).collect();
    let mut set = Controls::default();
    set.apply(&whole(&all, many));
    let more = |n| control(many + n, "n", &format!("more{n}"), Effect::Ban);
    let now_ms = 95;
    set.apply(&wire::Controls { now_ms, ..after(many, &[more(1), more(2)], many + 2) });
    let there = |set: &Controls, name: &str| ask(set, name, "", 0).ban.is_some();
    assert_eq!((set.iter().count(), set.refused()), (MAX_KEPT, 0));
    assert!(!there(&set, "i10") && !there(&set, "i9") && there(&set, "i8"));
    let rest: Vec<Control> = (3..=9).map(more).collect();
    set.apply(&wire::Controls { now_ms, ..after(many + 2, &rest, many + 9) });
    assert_eq!((set.iter().count(), set.refused()), (MAX_KEPT, 3));
    assert!(there(&set, "i4") && !there(&set, "i5"), "what is not over stays");
}

/// One change: who, where, what, and whether it is taken back.
type Change = (usize, usize, usize, bool);

const WHO: [&str; 9] = ["alice", "bob", "al*", "*b", "*", "10.0.0.0/8", "10.1.0.0/16", "rule", "c|*"];

fn change(revision: u64, (who, scope, effect, deleted): Change) -> wire::Control {
    let effects =
        [Effect::Limit(revision), Effect::Exempt, Effect::Ban, Effect::Credit(revision), Effect::Reset];
    let who = WHO[who % WHO.len()];
    let effect = match (who, effects[effect % effects.len()]) {
        ("rule", _) => Effect::Shadow(effect % 2 == 0),
        (network, Effect::Limit(_) | Effect::Credit(_) | Effect::Reset) if network.contains('.') => {
            Effect::Ban
        }
        (_, effect) => effect,
    };
    let of_window = matches!(effect, Effect::Limit(_) | Effect::Credit(_)) && revision.is_multiple_of(2);
    let scope = ["n", "*", "m"][scope % 3];
    let scope = if of_window { format!("{scope}/60000") } else { scope.into() };
    wire::Control { deleted, ..control(revision, &scope, who, effect).to_wire() }
}

fn check_same(set: &Controls, other: &Controls) -> Result<(), TestCaseError> {
    prop_assert_eq!(set.iter().collect::<Vec<_>>(), other.iter().collect::<Vec<_>>());
    prop_assert_eq!(set.is_empty(), other.is_empty());
    prop_assert_eq!(set.has_networks("w"), other.has_networks("w"));
    for scope in ["n", "m", "o"] {
        prop_assert_eq!(set.shadow("w", scope, UnixMs(0)), other.shadow("w", scope, UnixMs(0)));
        for raw in ["alice", "alb", "bob", "c|d", "x"] {
            for (window_ms, address) in [(60_000, "10.1.0.1"), (1_000, "10.2.0.1"), (60_000, "")] {
                let found = |set| ask_in(set, scope, window_ms, raw, address, None, 0);
                prop_assert_eq!(found(set), found(other), "{} {} {} {}", scope, raw, window_ms, address);
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// The slow way, of which nothing can be forgotten, is to be told all at once.
    #[test]
    fn many_small_tellings_are_one_large_one(
        tellings in proptest::collection::vec(proptest::collection::vec(any::<Change>(), 0..4), 1..20),
        from_scratch in proptest::collection::vec(any::<bool>(), 20),
    ) {
        let mut set = set(&[]);
        let mut revision = 1_000;
        for (telling, from_scratch) in tellings.into_iter().zip(from_scratch) {
            let known = revision;
            let entries: Vec<wire::Control> = telling
                .into_iter()
                .map(|said| {
                    revision += 1;
                    change(revision, said)
                })
                .collect();
            let mut frame = wire::Controls { entries, ..after(known, &[], revision) };
            if from_scratch && frame.entries.len() > 2 {
                frame = wire::Controls { from_scratch, after: 0, as_of: revision, ..frame };
            }
            set.apply(&frame);
            prop_assert_eq!(set.known().revision, revision);
            let mut at_once = Controls::default();
            at_once.apply(&whole(&set.iter().collect::<Vec<_>>(), revision));
            check_same(&set, &at_once)?;
        }
    }
}
