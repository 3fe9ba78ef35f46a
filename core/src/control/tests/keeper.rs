use super::*;
use crate::model::key::Namespace;
use crate::model::shared::{MemoryShared, Place, Shared, Version};
use crate::model::time::{MonoMs, Now};
use proptest::prelude::*;
use std::format;

fn at(ms: u64) -> Now {
    Now { unix: UnixMs(1_000_000 + ms), mono: MonoMs(1_000 + ms) }
}

fn banned(keeper: &Keeper, raw: &str) -> bool {
    find(keeper.controls(), raw, "", at(0).unix.0).ban.is_some()
}

fn ban(name: &str, revision: u64) -> wire::Controls {
    full_frame(&[control(revision, "n", name, Effect::Ban)], revision)
}

fn local(until: u64) -> Local {
    let Now { unix: until, mono: kept_until } = at(until);
    Local { mark: until, level: 1, until, kept_until, ..Local::default() }
}

/// Fails stores while `refuses` is set, and counts loads.
#[derive(Default)]
struct FailingShared {
    memory: MemoryShared,
    refuses: bool,
    loads: usize,
    set_loads: usize,
}

impl Shared for FailingShared {
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
fn controls_that_one_worker_received_reach_all_workers_and_later_ones() {
    let mut shared = MemoryShared::default();
    let mut workers = [Keeper::load(&mut shared, at(0)), Keeper::load(&mut shared, at(0))];
    workers[0].on_frame(&mut shared, &ban("alice", 3));
    workers[0].ban(Namespace { workspace: "w", name: "n" }, b"bob", local(500), at(0));
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
        wire::ControlsKnown { incarnation: INCARNATION, revision: 3, proof: 0, stamp: 0 }
    );
}

#[test]
fn a_tick_without_a_change_costs_one_load() {
    let mut shared = FailingShared::default();
    let mut worker = Keeper::load(&mut shared, at(0));
    worker.on_frame(&mut shared, &ban("alice", 3));
    worker.tick(&mut shared, at(50));
    shared.loads = 0;
    (2..40).for_each(|n| worker.tick(&mut shared, at(n * 50)));
    assert_eq!(shared.loads, 38);
}

#[test]
fn a_failed_store_is_repeated_later() {
    let mut shared = FailingShared { refuses: true, ..FailingShared::default() };
    let mut workers = [Keeper::load(&mut shared, at(0)), Keeper::load(&mut shared, at(0))];
    workers[0].on_frame(&mut shared, &ban("alice", 3));
    workers[0].ban(Namespace { workspace: "w", name: "n" }, b"bob", local(5_000), at(0));
    workers[0].tick(&mut shared, at(50));
    assert!(banned(&workers[0], "alice"), "the ban applies in this worker at once");
    shared.refuses = false;
    workers[0].tick(&mut shared, at(100));
    workers[1].tick(&mut shared, at(101));
    assert!(banned(&workers[1], "alice") && banned(&workers[1], "bob"));
}

#[test]
fn the_highest_revision_of_an_incarnation_wins() {
    let mut shared = MemoryShared::default();
    let mut workers = [Keeper::load(&mut shared, at(0)), Keeper::load(&mut shared, at(0))];
    workers[0].on_frame(&mut shared, &ban("alice", 5));
    // An aggregator that lags behind sends to a worker that has not loaded the set yet.
    workers[1].on_frame(&mut shared, &ban("bob", 4));
    assert!(banned(&workers[1], "alice") && !banned(&workers[1], "bob"));
    workers[0].tick(&mut shared, at(50));
    assert!(banned(&workers[0], "alice") && !banned(&workers[0], "bob"));
}

#[test]
fn a_set_is_loaded_though_its_writer_died_before_marking_the_change() {
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
fn the_known_revision_is_sent_once_for_each_stream_and_change() {
    let mut shared = MemoryShared::default();
    let mut worker = Keeper::load(&mut shared, at(0));
    let known = |revision| {
        Some(wire::ControlsKnown {
            incarnation: if revision > 0 { INCARNATION } else { 0 },
            revision,
            proof: 0,
            stamp: 0,
        })
    };
    assert_eq!(worker.to_send(false), None);
    assert_eq!(worker.to_send(true), known(0));
    assert_eq!(worker.to_send(true), None);
    worker.on_frame(&mut shared, &ban("alice", 3));
    assert_eq!(worker.to_send(true), known(3));
    assert_eq!((worker.to_send(true), worker.to_send(false), worker.to_send(true)), (None, None, known(3)));
}

/// A frame with one control, which follows on the revision before it.
fn one_more(revision: u64, name: &str, deleted: bool) -> wire::Controls {
    let entry = wire::Control { deleted, ..control(revision, "n", name, Effect::Ban).to_wire() };
    let (entries, after, complete_through) = ([entry].into(), revision - 1, revision);
    wire::Controls { incarnation: INCARNATION, entries, after, complete_through, ..Default::default() }
}

#[test]
fn a_worker_does_not_load_the_set_that_it_stored() {
    let mut shared = FailingShared::default();
    let mut worker = Keeper::load(&mut shared, at(0));
    worker.on_frame(&mut shared, &ban("alice", 3));
    shared.set_loads = 0;
    worker.tick(&mut shared, at(50));
    assert_eq!(shared.set_loads, 0);
}

#[test]
fn an_update_is_stored_once_it_is_complete() {
    let mut shared = FailingShared::default();
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
    assert_eq!(shared.set_loads, 1, "one load to store the whole update");
    assert!(banned(&Keeper::load(&mut shared, at(0)), "i4"));
}

#[test]
fn a_worker_that_is_slightly_behind_reads_only_newer_changes() {
    let mut shared = MemoryShared::default();
    let mut workers = [Keeper::load(&mut shared, at(0)), Keeper::load(&mut shared, at(0))];
    workers[0].on_frame(&mut shared, &ban("alice", 3));
    workers[1].tick(&mut shared, at(50));
    workers[0].on_frame(&mut shared, &one_more(4, "bob", false));
    // Damages the record of alice. The head and the newest record, that of bob, stay intact.
    let mut bytes = Vec::new();
    let version = shared.load(Place::ControlSet, &mut bytes);
    let alice = bytes.windows(5).position(|text| text == b"alice").unwrap();
    bytes[alice - 8..alice].fill(0xff);
    assert!(shared.store(Place::ControlSet, &bytes, version));
    workers[1].tick(&mut shared, at(100));
    assert!(banned(&workers[1], "alice") && banned(&workers[1], "bob"));
    assert!(!banned(&Keeper::load(&mut shared, at(100)), "bob"), "the rest cannot be read");
}

/// Thousands of bans, one after the other, some of them lifted. Workers load the set each time, rarely, or once.
#[test]
fn workers_converge_at_any_polling_interval() {
    let mut shared = MemoryShared::default();
    let [mut writer, mut frequent, mut rare] = [(); 3].map(|()| Keeper::load(&mut shared, at(0)));
    writer.on_frame(&mut shared, &ban("alice", 1));
    let mut largest = 0;
    for n in 2..=6_000_u64 {
        let (name, deleted) = (format!("i{}", n / 3 % 700), n.is_multiple_of(3));
        writer.on_frame(&mut shared, &one_more(n, &name, deleted));
        frequent.tick(&mut shared, at(n * 50));
        if n.is_multiple_of(257) {
            rare.tick(&mut shared, at(n * 50));
        }
        let mut bytes = Vec::new();
        shared.load(Place::ControlSet, &mut bytes);
        largest = largest.max(bytes.len());
    }
    rare.tick(&mut shared, at(400_000));
    let late = Keeper::load(&mut shared, at(400_000));
    for worker in [&frequent, &rare, &late] {
        assert_eq!(worker.controls().known(), writer.controls().known());
        assert!(worker.controls().iter().eq(writer.controls().iter()));
    }
    assert!(
        banned(&frequent, "i0") == banned(&writer, "i0") && banned(&frequent, "i1") == banned(&writer, "i1")
    );
    assert!(largest < 64_000, "repeated changes do not accumulate: {largest} bytes");
}

proptest! {
    #[test]
    fn any_stored_bytes_are_tolerated(
        bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in any::<proptest::sample::Index>()
    ) {
        let mut sound = MemoryShared::default();
        let mut worker = Keeper::load(&mut sound, at(0));
        worker.on_frame(&mut sound, &ban("alice", 3));
        worker.ban(Namespace { workspace: "w", name: "n" }, b"bob", local(5_000), at(0));
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
