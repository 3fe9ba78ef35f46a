use super::*;
use crate::model::shared::{MemoryShared, Place, Shared, Version};
use crate::model::time::{MonoMs, Now};
use proptest::prelude::*;
use std::format;

fn at(ms: u64) -> Now {
    Now { unix: UnixMs(1_000_000 + ms), mono: MonoMs(1_000 + ms) }
}

fn banned(keeper: &Keeper, raw: &str) -> bool {
    ask(keeper.controls(), raw, "", at(0).unix.0).ban.is_some()
}

fn ban(name: &str, revision: u64) -> wire::Controls {
    whole(&[control(revision, "n", name, Effect::Ban)], revision)
}

fn local(until: u64) -> Local {
    let until = at(until).unix;
    Local { mark: until, level: 1, until, remembered: until, ..Local::default() }
}

/// Refuses stores while it is told to, and counts loads.
#[derive(Default)]
struct Stubborn {
    memory: MemoryShared,
    refuses: bool,
    loads: usize,
    set_loads: usize,
}

impl Shared for Stubborn {
    fn load(&mut self, place: Place, into: &mut Vec<u8>) -> Option<Version> {
        self.loads += 1;
        self.set_loads += usize::from(place == Place::ControlSet);
        self.memory.load(place, into)
    }

    fn store(&mut self, place: Place, bytes: &[u8], version: Option<Version>) -> bool {
        !self.refuses && self.memory.store(place, bytes, version)
    }
}

#[test]
fn all_workers_have_what_one_was_told_and_those_who_come_later_too() {
    let mut shared = MemoryShared::default();
    let mut workers = [Keeper::load(&mut shared, at(0)), Keeper::load(&mut shared, at(0))];
    workers[0].on_frame(&mut shared, &ban("alice", 3));
    workers[0].ban(("w", "n"), b"bob", local(500), at(0).unix);
    assert!(banned(&workers[0], "alice") && banned(&workers[0], "bob"));
    assert!(!banned(&workers[1], "alice"));
    for worker in &mut workers {
        worker.tick(&mut shared, at(50));
    }
    assert!(banned(&workers[1], "alice") && banned(&workers[1], "bob"));
    let later = Keeper::load(&mut shared, at(60));
    assert!(banned(&later, "alice") && banned(&later, "bob"));
    assert_eq!(
        later.controls().known(),
        wire::ControlsKnown { incarnation: INCARNATION, revision: 3, proof: 0 }
    );
}

#[test]
fn a_look_at_what_has_not_changed_is_one_load() {
    let mut shared = Stubborn::default();
    let mut worker = Keeper::load(&mut shared, at(0));
    worker.on_frame(&mut shared, &ban("alice", 3));
    worker.tick(&mut shared, at(50));
    shared.loads = 0;
    (2..40).for_each(|n| worker.tick(&mut shared, at(n * 50)));
    assert_eq!(shared.loads, 38);
}

#[test]
fn what_could_not_be_stored_is_stored_later() {
    let mut shared = Stubborn { refuses: true, ..Stubborn::default() };
    let mut workers = [Keeper::load(&mut shared, at(0)), Keeper::load(&mut shared, at(0))];
    workers[0].on_frame(&mut shared, &ban("alice", 3));
    workers[0].ban(("w", "n"), b"bob", local(5_000), at(0).unix);
    workers[0].tick(&mut shared, at(50));
    assert!(banned(&workers[0], "alice"), "it holds here all the same");
    shared.refuses = false;
    workers[0].tick(&mut shared, at(100));
    workers[1].tick(&mut shared, at(101));
    assert!(banned(&workers[1], "alice") && banned(&workers[1], "bob"));
}

#[test]
fn who_knows_more_of_the_same_incarnation_wins() {
    let mut shared = MemoryShared::default();
    let mut workers = [Keeper::load(&mut shared, at(0)), Keeper::load(&mut shared, at(0))];
    workers[0].on_frame(&mut shared, &ban("alice", 5));
    // An aggregator that lags behind, on the stream of a worker that has not looked yet.
    workers[1].on_frame(&mut shared, &ban("bob", 4));
    assert!(banned(&workers[1], "alice") && !banned(&workers[1], "bob"));
    workers[0].tick(&mut shared, at(50));
    assert!(banned(&workers[0], "alice") && !banned(&workers[0], "bob"));
}

#[test]
fn a_worker_that_died_before_it_announced_is_heard_all_the_same() {
    let mut shared = MemoryShared::default();
    let mut other = Keeper::load(&mut shared, at(0));
    Keeper::load(&mut shared, at(0)).on_frame(&mut shared, &ban("alice", 3));
    let mut bytes = Vec::new();
    let version = shared.load(Place::Controls, &mut bytes);
    assert!(shared.store(Place::Controls, &[0; 16], version));
    other.tick(&mut shared, at(50));
    assert!(!banned(&other, "alice"));
    other.tick(&mut shared, at(6_000));
    assert!(banned(&other, "alice"));
}

#[test]
fn the_aggregator_is_told_once_for_each_stream_and_change() {
    let mut shared = MemoryShared::default();
    let mut worker = Keeper::load(&mut shared, at(0));
    let known = |revision| {
        Some(wire::ControlsKnown {
            incarnation: if revision > 0 { INCARNATION } else { 0 },
            revision,
            proof: 0,
        })
    };
    assert_eq!(worker.to_send(false), None);
    assert_eq!(worker.to_send(true), known(0));
    assert_eq!(worker.to_send(true), None);
    worker.on_frame(&mut shared, &ban("alice", 3));
    assert_eq!(worker.to_send(true), known(3));
    assert_eq!((worker.to_send(true), worker.to_send(false), worker.to_send(true)), (None, None, known(3)));
}

/// What brings one control more than all up to the one before.
fn one_more(revision: u64, name: &str, deleted: bool) -> wire::Controls {
    let said = wire::Control { deleted, ..control(revision, "n", name, Effect::Ban).to_wire() };
    let (entries, after, complete_through) = ([said].into(), revision - 1, revision);
    wire::Controls { incarnation: INCARNATION, entries, after, complete_through, ..Default::default() }
}

#[test]
fn who_stored_a_set_does_not_load_it() {
    let mut shared = Stubborn::default();
    let mut worker = Keeper::load(&mut shared, at(0));
    worker.on_frame(&mut shared, &ban("alice", 3));
    shared.set_loads = 0;
    worker.tick(&mut shared, at(50));
    assert_eq!(shared.set_loads, 0);
}

#[test]
fn others_are_told_when_a_telling_is_complete() {
    let mut shared = Stubborn::default();
    let mut worker = Keeper::load(&mut shared, at(0));
    worker.on_frame(&mut shared, &ban("alice", 3));
    shared.set_loads = 0;
    for n in 4..=13 {
        let complete_through = if n == 13 { 13 } else { 0 };
        worker.on_frame(
            &mut shared,
            &wire::Controls { complete_through, ..one_more(n, &format!("i{n}"), false) },
        );
    }
    assert_eq!(shared.set_loads, 1, "one store for all of it");
    assert!(banned(&Keeper::load(&mut shared, at(0)), "i4"));
}

#[test]
fn who_is_a_little_behind_reads_what_came_since_and_nothing_else() {
    let mut shared = MemoryShared::default();
    let mut workers = [Keeper::load(&mut shared, at(0)), Keeper::load(&mut shared, at(0))];
    workers[0].on_frame(&mut shared, &ban("alice", 3));
    workers[1].tick(&mut shared, at(50));
    workers[0].on_frame(&mut shared, &one_more(4, "bob", false));
    // The head stays, and what is said of bob at the end.
    let mut bytes = Vec::new();
    let version = shared.load(Place::ControlSet, &mut bytes);
    let alice = bytes.windows(5).position(|text| text == b"alice").unwrap();
    bytes[alice - 8..alice].fill(0xff);
    assert!(shared.store(Place::ControlSet, &bytes, version));
    workers[1].tick(&mut shared, at(100));
    assert!(banned(&workers[1], "alice") && banned(&workers[1], "bob"));
    assert!(!banned(&Keeper::load(&mut shared, at(100)), "bob"), "it cannot read the rest");
}

/// Thousands of bans, one after the other, some of them lifted: whether a worker looks each time, seldom, or once.
#[test]
fn workers_agree_however_seldom_they_look() {
    let mut shared = MemoryShared::default();
    let [mut writer, mut keen, mut lazy] = [(); 3].map(|()| Keeper::load(&mut shared, at(0)));
    writer.on_frame(&mut shared, &ban("alice", 1));
    let mut largest = 0;
    for n in 2..=6_000_u64 {
        let (name, deleted) = (format!("i{}", n / 3 % 700), n.is_multiple_of(3));
        writer.on_frame(&mut shared, &one_more(n, &name, deleted));
        keen.tick(&mut shared, at(n * 50));
        if n.is_multiple_of(257) {
            lazy.tick(&mut shared, at(n * 50));
        }
        let mut bytes = Vec::new();
        shared.load(Place::ControlSet, &mut bytes);
        largest = largest.max(bytes.len());
    }
    lazy.tick(&mut shared, at(400_000));
    let late = Keeper::load(&mut shared, at(400_000));
    for worker in [&keen, &lazy, &late] {
        assert_eq!(worker.controls().known(), writer.controls().known());
        assert!(worker.controls().iter().eq(writer.controls().iter()));
    }
    assert!(banned(&keen, "i0") == banned(&writer, "i0") && banned(&keen, "i1") == banned(&writer, "i1"));
    assert!(largest < 64_000, "what is said again does not pile up: {largest} bytes");
}

proptest! {
    #[test]
    fn any_stored_bytes_are_borne(
        bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in any::<proptest::sample::Index>()
    ) {
        let mut sound = MemoryShared::default();
        let mut worker = Keeper::load(&mut sound, at(0));
        worker.on_frame(&mut sound, &ban("alice", 3));
        worker.ban(("w", "n"), b"bob", local(5_000), at(0).unix);
        worker.tick(&mut sound, at(50));
        for place in [Place::Controls, Place::ControlSet, Place::Bans] {
            let mut stored = Vec::new();
            sound.load(place, &mut stored);
            stored.truncate(cut.index(stored.len() + 1));
            for bytes in [&bytes, &stored] {
                let mut shared = sound.clone();
                let version = shared.load(place, &mut Vec::new());
                prop_assert!(shared.store(place, bytes, version));
                let mut other = Keeper::load(&mut shared, at(60));
                other.on_frame(&mut shared, &ban("carol", 4));
                other.tick(&mut shared, at(120));
                prop_assert!(banned(&other, "carol"));
            }
        }
    }
}
