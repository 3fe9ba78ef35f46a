//! The cost of changes, and the equivalence of many small updates and one large update.

use super::*;
use crate::control::book::MAX_KEPT;
use proptest::prelude::*;
use std::format;

const MANY: u64 = 10_000;

fn after(known: u64, controls: &[Control], complete_through: u64) -> wire::Controls {
    let entries = controls.iter().map(Control::to_wire).collect();
    wire::Controls { incarnation: INCARNATION, entries, after: known, complete_through, ..Default::default() }
}

/// So many controls that visiting all of them shows in the count of work. A fifth are patterns, a fifth networks.
fn crowd() -> Controls {
    let name = |n: u64| match n % 5 {
        0 => format!("*-user-{n}"),
        1 => format!("10.{}.{}.0/24", n / 256, n % 256),
        _ => format!("user-{n}"),
    };
    let all: Vec<Control> = (1..=MANY).map(|n| control(n, "n", &name(n), Effect::Ban)).collect();
    let mut set = Controls::default();
    set.apply(&full_frame(&all, MANY));
    set
}

/// The number of controls visited while a frame was applied.
fn work(set: &mut Controls, frame: &wire::Controls) -> usize {
    let before = set.work();
    assert!(set.apply(frame));
    set.work() - before
}

#[test]
fn adding_or_removing_an_identifier_costs_one_change() {
    let mut set = crowd();
    let alice = control(MANY + 1, "n", "alice", Effect::Ban);
    assert_eq!(work(&mut set, &after(MANY, core::slice::from_ref(&alice), MANY + 1)), 1);
    assert_eq!(find(&set, "alice", "", 0).ban, Some(Banned::ForEver));
    let lifted = wire::Control { deleted: true, revision: MANY + 2, ..alice.to_wire() };
    let lifted = wire::Controls { entries: [lifted].into(), ..after(MANY + 1, &[], MANY + 2) };
    assert_eq!(work(&mut set, &lifted), 1);
    assert_eq!(find(&set, "alice", "", 0).ban, None);
}

#[test]
fn patterns_and_networks_are_rebuilt_only_in_changed_scopes() {
    let mut set = crowd();
    let elsewhere = control(MANY + 1, "m", "b*", Effect::Ban);
    assert_eq!(
        work(&mut set, &after(MANY, &[elsewhere], MANY + 1)),
        2,
        "the change, and all controls of its scope"
    );
    let here = control(MANY + 2, "n", "b*", Effect::Credit(1));
    let all = usize::try_from(MANY).unwrap() + 1;
    assert_eq!(work(&mut set, &after(MANY + 1, &[here], MANY + 2)), 1 + all);
}

#[test]
fn an_update_of_many_frames_builds_patterns_once() {
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
        assert!(find(&set, &format!("y{n}"), "", 0).ban.is_some(), "controls of identifiers apply at once");
    }
    let all = usize::try_from(MANY).unwrap() + 80;
    assert_eq!(visited, 80 + all);
    assert!(find(&set, "x1-", "", 0).ban.is_some() && find(&set, "x40-", "", 0).ban.is_some());
}

#[test]
fn an_incomplete_update_applies_from_the_next_tick() {
    let mut set = set(&[]);
    set.apply(&after(1_000, &[control(1_001, "n", "a*", Effect::Ban)], 0));
    set.settle();
    assert!(find(&set, "alice", "", 0).ban.is_some());
}

#[test]
fn after_the_last_control_is_deleted_the_set_is_empty() {
    for name in ["alice", "a*", "10.0.0.0/8"] {
        let ban = control(9, "n", name, Effect::Ban);
        let mut set = set(core::slice::from_ref(&ban));
        assert!(!set.is_empty());
        let deleted = wire::Control { deleted: true, revision: 1_001, ..ban.to_wire() };
        set.apply(&wire::Controls { entries: [deleted].into(), ..after(1_000, &[], 1_001) });
        assert!(set.is_empty() && !set.has_networks("w"), "{name}");
    }
}

#[test]
fn one_wrong_clock_drops_no_control() {
    const DAY: u64 = 24 * 60 * 60 * 1_000;
    let now = 1_800_000_000_000;
    let hour = 60 * 60 * 1_000;
    for (frame_time, local_time) in
        [(now + hour, now), (now + hour, now + hour), (now + 9 * DAY, now), (now, now + 9 * DAY)]
    {
        let mut set = set(&[until(control(3, "n", "alice", Effect::Ban), now + 1_000)]);
        set.apply(&wire::Controls { now_ms: frame_time, ..after(1_000, &[], 1_001) });
        set.drop_expired(UnixMs(local_time));
        assert!(find(&set, "alice", "", now).ban.is_some(), "{frame_time} {local_time}");
    }
    let mut set = set(&[
        until(control(3, "n", "alice", Effect::Ban), now - DAY),
        until(control(4, "n", "a*", Effect::Ban), now - DAY),
        until(control(5, "n", "bob", Effect::Ban), now - DAY + 1),
    ]);
    set.drop_expired(UnixMs(now));
    assert_eq!(set.iter().count(), 3, "no frame has stated the time");
    set.apply(&wire::Controls { now_ms: now, ..after(1_000, &[], 1_001) });
    set.drop_expired(UnixMs(now));
    assert_eq!(set.iter().count(), 1);
    assert!(find(&set, "alice", "", 0).ban.is_none() && find(&set, "bob", "", 0).ban.is_some());
}

#[test]
fn a_full_set_drops_the_controls_that_ended_first() {
    let many = MAX_KEPT as u64;
    let all: Vec<Control> = (1..=many).map(|n| control(n, "n", &format!("i{n}"), Effect::Ban)).collect();
    let ending = |(control, n): (Control, u64)| if n <= 10 { until(control, 100 - n) } else { control };
    let all: Vec<Control> = all.into_iter().zip(1..).map(ending).collect();
    let mut set = Controls::default();
    set.apply(&full_frame(&all, many));
    let more = |n| control(many + n, "n", &format!("more{n}"), Effect::Ban);
    let now_ms = 95;
    set.apply(&wire::Controls { now_ms, ..after(many, &[more(1), more(2)], many + 2) });
    let there = |set: &Controls, name: &str| find(set, name, "", 0).ban.is_some();
    assert_eq!((set.iter().count(), set.refused()), (MAX_KEPT, 0));
    assert!(!there(&set, "i10") && !there(&set, "i9") && there(&set, "i8"));
    let rest: Vec<Control> = (3..=9).map(more).collect();
    set.apply(&wire::Controls { now_ms, ..after(many + 2, &rest, many + 9) });
    assert_eq!((set.iter().count(), set.refused()), (MAX_KEPT, 3));
    assert!(there(&set, "i4") && !there(&set, "i5"), "controls in force stay");
}

/// One change: the indexes of target, scope and effect, and whether it is a deletion.
type Change = (usize, usize, usize, bool);

const NAMES: [&str; 9] = ["alice", "bob", "al*", "*b", "*", "10.0.0.0/8", "10.1.0.0/16", "rule", "c|*"];

fn change(revision: u64, (name, scope, effect, deleted): Change) -> wire::Control {
    let effects =
        [Effect::Limit(revision), Effect::Exempt, Effect::Ban, Effect::Credit(revision), Effect::Reset];
    let name = NAMES[name % NAMES.len()];
    let effect = match (name, effects[effect % effects.len()]) {
        ("rule", _) => Effect::Shadow(effect % 2 == 0),
        (network, Effect::Limit(_) | Effect::Credit(_) | Effect::Reset) if network.contains('.') => {
            Effect::Ban
        }
        (_, effect) => effect,
    };
    let of_window = matches!(effect, Effect::Limit(_) | Effect::Credit(_)) && revision.is_multiple_of(2);
    let scope = ["n", "*", "m"][scope % 3];
    let scope = if of_window { format!("{scope}/60000") } else { scope.into() };
    wire::Control { deleted, ..control(revision, &scope, name, effect).to_wire() }
}

fn check_same(set: &Controls, other: &Controls) -> Result<(), TestCaseError> {
    prop_assert_eq!(set.iter().collect::<Vec<_>>(), other.iter().collect::<Vec<_>>());
    prop_assert_eq!(set.is_empty(), other.is_empty());
    prop_assert_eq!(set.has_networks("w"), other.has_networks("w"));
    for scope in ["n", "m", "o"] {
        prop_assert_eq!(set.shadow("w", scope, UnixMs(0)), other.shadow("w", scope, UnixMs(0)));
        for raw in ["alice", "alb", "bob", "c|d", "x"] {
            for (window_ms, address) in [(60_000, "10.1.0.1"), (1_000, "10.2.0.1"), (60_000, "")] {
                let found = |set| find_in(set, scope, window_ms, raw, address, None, 0);
                prop_assert_eq!(found(set), found(other), "{} {} {} {}", scope, raw, window_ms, address);
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// The reference is a set built from one frame with all controls.
    #[test]
    fn many_small_updates_equal_one_large_update(
        updates in proptest::collection::vec(proptest::collection::vec(any::<Change>(), 0..4), 1..20),
        from_scratch in proptest::collection::vec(any::<bool>(), 20),
    ) {
        let mut set = set(&[]);
        let mut revision = 1_000;
        for (update, from_scratch) in updates.into_iter().zip(from_scratch) {
            let known = revision;
            let entries: Vec<wire::Control> = update
                .into_iter()
                .map(|parts| {
                    revision += 1;
                    change(revision, parts)
                })
                .collect();
            let mut frame = wire::Controls { entries, ..after(known, &[], revision) };
            if from_scratch && frame.entries.len() > 2 {
                frame = wire::Controls { from_scratch, after: 0, as_of: revision, ..frame };
            }
            set.apply(&frame);
            prop_assert_eq!(set.known().revision, revision);
            let mut at_once = Controls::default();
            at_once.apply(&full_frame(&set.iter().collect::<Vec<_>>(), revision));
            check_same(&set, &at_once)?;
        }
    }
}
