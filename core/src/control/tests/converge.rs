//! Frames against a model: a database sends each process what it lacks, over a network that loses, repeats and delays.

use super::*;
use crate::model::key::Namespace;
use crate::model::time::{MonoMs, Now};
use alloc::collections::BTreeMap;
use proptest::prelude::*;

/// The rows of the database. Each change has a revision, from 2 on. A deletion is a row too.
#[derive(Clone)]
struct Database {
    incarnation: u64,
    revision: u64,
    rows: BTreeMap<(Target, Slot), (Control, bool)>,
}

impl Database {
    fn new(incarnation: u64) -> Database {
        Database { incarnation, revision: 1, rows: BTreeMap::new() }
    }

    fn change(&mut self, (name, effect, deleted): (u8, u8, bool)) {
        self.revision += 1;
        let name = ["alice", "a*", "bob", "10.0.0.0/8"][usize::from(name % 4)];
        let effect = match (effect % 4, name.contains('.')) {
            (0, false) => Effect::Limit(self.revision),
            (1, false) => Effect::Reset,
            (2, _) => Effect::Exempt,
            _ => Effect::Ban,
        };
        let control = control(self.revision, "n", name, effect);
        self.rows.insert((control.target.clone(), effect.slot()), (control, deleted));
    }

    fn controls(&self) -> Vec<Control> {
        self.rows.values().filter(|(_, deleted)| !deleted).map(|(control, _)| control.clone()).collect()
    }

    /// The frames for a process that has received changes up to `known`, a few entries each.
    fn frames(&self, known: wire::ControlsKnown, from_scratch: bool) -> Vec<wire::Controls> {
        let from_scratch =
            from_scratch || known.incarnation != self.incarnation || known.revision > self.revision;
        let after = if from_scratch { 0 } else { known.revision };
        let mut rows: Vec<_> = self.rows.values().filter(|(control, _)| control.revision > after).collect();
        rows.sort_by_key(|(control, _)| control.revision);
        let entry =
            |(control, deleted): &(Control, bool)| wire::Control { deleted: *deleted, ..control.to_wire() };
        let entries: Vec<_> =
            rows.into_iter().filter(|(_, deleted)| !(from_scratch && *deleted)).map(entry).collect();
        let mut frames = Vec::new();
        let mut before = after;
        for some in entries.chunks(2) {
            let frame = wire::Controls {
                incarnation: self.incarnation,
                entries: some.into(),
                after: before,
                ..Default::default()
            };
            before = some.last().map_or(before, |entry| entry.revision);
            frames.push(frame);
        }
        if frames.is_empty() {
            frames.push(wire::Controls { incarnation: self.incarnation, after, ..Default::default() });
        }
        frames.first_mut().unwrap().from_scratch = from_scratch;
        let as_of = if from_scratch { self.revision } else { 0 };
        frames.iter_mut().for_each(|frame| frame.as_of = as_of);
        frames.last_mut().unwrap().complete_through = self.revision;
        frames
    }
}

fn held(set: &Controls) -> Vec<Control> {
    set.iter().collect()
}

#[derive(Clone, Debug)]
enum Step {
    Change(u8, u8, bool),
    /// The database is lost, and another incarnation begins.
    Wipe,
    /// Frames are sent to the process. Some are lost, repeated or delayed.
    Broadcast {
        from_scratch: bool,
        fates: Vec<u8>,
    },
    /// A delayed frame arrives.
    Delayed(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (any::<u8>(), any::<u8>(), proptest::bool::weighted(0.3)).prop_map(|(a, b, c)| Step::Change(a, b, c)),
        1 => Just(Step::Wipe),
        4 => (proptest::bool::weighted(0.2), proptest::collection::vec(any::<u8>(), 4))
            .prop_map(|(from_scratch, fates)| Step::Broadcast { from_scratch, fates }),
        2 => any::<usize>().prop_map(Step::Delayed),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn after_any_network_faults_a_complete_update_converges(steps in proptest::collection::vec(step(), 1..40)) {
        let mut database = Database::new(1);
        let (mut set, mut delayed) = (Controls::default(), Vec::new());
        for step in steps {
            match step {
                Step::Change(name, effect, deleted) => database.change((name, effect, deleted)),
                Step::Wipe => database = Database::new(database.incarnation + 1),
                Step::Broadcast { from_scratch, fates } => {
                    let frames = database.frames(set.known(), from_scratch);
                    for (frame, fate) in frames.iter().zip(fates.iter().cycle()) {
                        match fate % 8 {
                            0 => {}
                            1 => delayed.push(frame.clone()),
                            2 => { set.apply(frame); set.apply(frame); }
                            _ => { set.apply(frame); }
                        }
                    }
                }
                Step::Delayed(which) if !delayed.is_empty() => {
                    let frame = delayed.swap_remove(which % delayed.len());
                    set.apply(&frame);
                }
                Step::Delayed(_) => {}
            }
            let known = set.known();
            prop_assert!(known.incarnation != database.incarnation || known.revision <= database.revision);
        }
        // The last update arrives in order and complete.
        for frame in database.frames(set.known(), false) {
            set.apply(&frame);
        }
        if set.known() != (wire::ControlsKnown { incarnation: database.incarnation, revision: database.revision, proof: 0, stamp: 0 }) {
            for frame in database.frames(set.known(), true) {
                set.apply(&frame);
            }
        }
        prop_assert_eq!(held(&set), database.controls());
        prop_assert_eq!(set.known().incarnation, database.incarnation);
        prop_assert_eq!(set.known().revision, database.revision);
    }

    #[test]
    fn entries_may_arrive_in_any_order_and_twice(
        changes in proptest::collection::vec((any::<u8>(), any::<u8>(), proptest::bool::weighted(0.3)), 1..30),
        order in proptest::collection::vec(any::<proptest::sample::Index>(), 60),
    ) {
        // All rows that ever existed, not only the last of each target.
        let mut database = Database::new(INCARNATION);
        let mut history = Vec::new();
        for (name, effect, deleted) in changes {
            database.change((name, effect, deleted));
            let (control, _) = database.rows.values().max_by_key(|(control, _)| control.revision).unwrap();
            history.push(wire::Control { deleted, ..control.to_wire() });
        }
        let mut set = Controls::default();
        set.apply(&wire::Controls { incarnation: INCARNATION, complete_through: 0, from_scratch: true, ..Default::default() });
        let all = order.iter().map(|index| index.get(&history)).chain(&history);
        for entry in all {
            set.apply(&wire::Controls { incarnation: INCARNATION, entries: [entry.clone()].into(), ..Default::default() });
        }
        prop_assert_eq!(held(&set), [], "no control applies before the update is complete");
        set.apply(&wire::Controls { incarnation: INCARNATION, complete_through: database.revision, ..Default::default() });
        prop_assert_eq!(held(&set), database.controls());
    }

    #[test]
    fn any_frame_is_tolerated(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        kind in 0_u32..8, amount in any::<u64>(), text in "[a*|\\\\-]{0,6}", network in "[0-9./:]{0,12}",
    ) {
        use prost::Message;
        let mut set = set(&[control(1, "n", "alice", Effect::Ban)]);
        let own = Local { mark: UnixMs(1), until: UnixMs(1), kept_until: MonoMs(9), ..Local::default() };
        set.ban_here(Namespace { workspace: "w", name: "n" }, b"a", own, Now::default());
        if let Ok(frame) = wire::Controls::decode(bytes.as_slice()) {
            let known = set.known();
            set.apply(&frame);
            set.bans_mut().lift(&frame, known);
        }
        let (workspace, scope) = ("w".into(), "n".into());
        let entry = wire::Control {
            revision: amount, workspace, scope, identifier: text.clone(), network, kind, amount, ..Default::default()
        };
        let frame = wire::Controls { incarnation: INCARNATION, entries: [entry.clone(), entry].into(), ..Default::default() };
        let known = set.known();
        set.apply(&frame);
        set.bans_mut().lift(&frame, known);
        find(&set, &text, "10.0.0.1", amount);
        prop_assert!(set.iter().count() <= 3);
    }
}

#[test]
fn another_incarnation_applies_only_once_it_is_complete() {
    let mut set = set(&[control(9, "n", "alice", Effect::Ban)]);
    let mut other = full_frame(&[control(1, "n", "bob", Effect::Ban)], 2);
    other.incarnation = 8;
    assert!(!set.apply(&wire::Controls { from_scratch: false, ..other.clone() }));
    assert!(!set.apply(&wire::Controls { complete_through: 0, ..other.clone() }));
    assert!(find(&set, "alice", "", 0).ban.is_some() && find(&set, "bob", "", 0).ban.is_none());
    let rest = wire::Controls { entries: Vec::new(), from_scratch: false, after: 1, ..other };
    assert!(set.apply(&rest));
    assert!(find(&set, "alice", "", 0).ban.is_none() && find(&set, "bob", "", 0).ban.is_some());
    assert_eq!(set.known(), wire::ControlsKnown { incarnation: 8, revision: 2, proof: 0, stamp: 0 });
}

#[test]
fn a_frame_without_an_incarnation_changes_nothing() {
    let mut set = set(&[control(9, "n", "alice", Effect::Ban)]);
    assert!(!set.apply(&wire::Controls { from_scratch: true, complete_through: 5, ..Default::default() }));
    assert!(find(&set, "alice", "", u64::MAX).ban.is_some());
}

#[test]
fn a_frame_that_follows_on_a_lost_one_does_not_advance_the_known_revision() {
    let mut set = set(&[]);
    let frame = |revision, after| wire::Controls {
        incarnation: INCARNATION,
        entries: [control(revision, "n", "alice", Effect::Limit(revision)).to_wire()].into(),
        complete_through: revision,
        after,
        ..Default::default()
    };
    set.apply(&frame(1_002, 1_001));
    assert_eq!(find(&set, "alice", "", 0).limit, Some(1_002), "its control applies at once");
    assert_eq!(set.known().revision, 1_000);
    set.apply(&frame(1_001, 1_000));
    assert_eq!((find(&set, "alice", "", 0).limit, set.known().revision), (Some(1_002), 1_001));
}
