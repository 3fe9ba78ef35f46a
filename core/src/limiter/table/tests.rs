use super::entry::MAX_OLDER;
use super::*;
use crate::model::time::{MonoMs, Now, UnixMs};
use crate::model::window::{Position, Used};
use crate::model::wire;
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

const LEASE: Tag = Tag { worker: 7, kind: ReservationKind::Lease };

fn at(sequence: u64) -> Position {
    Position { sequence, elapsed_ms: 400, cell_ms: 1_000 }
}

/// The monotonic time at [`at`] of `sequence`, by a clock that never steps.
fn mono(sequence: u64) -> MonoMs {
    MonoMs(sequence * 1_000)
}

fn cell() -> impl Strategy<Value = Cell> {
    (any::<[u64; 4]>(), any::<bool>()).prop_map(
        |([own, region_others, global_others, confirmed], without_baseline)| Cell {
            own,
            region_others,
            global_others,
            confirmed,
            without_baseline,
        },
    )
}

fn reservation() -> impl Strategy<Value = Reservation> {
    (0u64..1 << 62, 0u8..4, any::<[u64; 3]>()).prop_map(|(worker, kind, [sequence, amount, expires])| {
        use ReservationKind::{Deferred, Hold, Lease, Query};
        let kind = [Lease, Hold, Query, Deferred][usize::from(kind)];
        Reservation { tag: Tag { worker, kind }, sequence, amount, expires: MonoMs(expires) }
    })
}

fn entry() -> impl Strategy<Value = Entry> {
    let reservations = prop::collection::vec(reservation(), 0..5);
    let older = prop_oneof![Just(vec![]), prop::collection::vec(cell(), 1..=MAX_OLDER)];
    let cells = (cell(), cell(), older);
    let clock_and_configured = (prop::option::of(0..u64::MAX), prop::option::of(0u64..1 << 63));
    (any::<[u64; 6]>(), any::<u8>(), clock_and_configured, cells, reservations).prop_map(
        |(
            [fingerprint, limit, strict, charged, viewed, sequence],
            hits,
            (clock, configured),
            (current, previous, older),
            reservations,
        )| {
            Entry {
                fingerprint,
                limit,
                configured,
                strict_until: MonoMs(strict),
                charged: MonoMs(charged),
                viewed: MonoMs(viewed),
                hits,
                unstored: hits % 2 == 1,
                sequence,
                clock,
                current,
                previous,
                older,
                reservations,
            }
        },
    )
}

fn named_entries() -> impl Strategy<Value = Vec<(Vec<u8>, Entry)>> {
    let named = (prop::collection::vec(any::<u8>(), 1..200), entry());
    prop::collection::vec(named, 0..8).prop_map(|mut named| {
        named.sort_by(|(a, _), (b, _)| a.cmp(b));
        named.dedup_by(|(a, _), (b, _)| a == b);
        named
    })
}

proptest! {
    #[test]
    fn a_stored_entry_is_found_and_may_change_its_size(named in named_entries(), later in entry()) {
        let mut bucket = Bucket::default();
        bucket.check();
        for (key, entry) in &named {
            let found = bucket.vacant(entry.clone());
            bucket.put(&found, key);
        }
        prop_assert_eq!(bucket.len(), named.len());
        for (key, entry) in &named {
            let mut found = bucket.find(entry.fingerprint, key).unwrap();
            prop_assert_eq!(&found.entry, entry);
            found.entry = Entry { fingerprint: entry.fingerprint, ..later.clone() };
            bucket.put(&found, key);
            prop_assert_eq!(bucket.find(entry.fingerprint, key).unwrap().entry, found.entry);
        }
        let keys: Vec<_> = bucket.entries().map(|(key, _)| key.to_vec()).collect();
        prop_assert_eq!(keys, named.into_iter().map(|(key, _)| key).collect::<Vec<_>>());
    }

    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..600), entry in entry()) {
        let mut bucket = Bucket::default();
        *bucket.buffer() = bytes;
        bucket.check();
        bucket.find(entry.fingerprint, b"k");
        bucket.entries().count();
        let _ = bucket.make_room(1, MonoMs(0), |_| at(5), |_| true);
        let found = bucket.vacant(entry);
        bucket.put(&found, b"k");
    }

    #[test]
    fn charges_are_kept_while_a_window_touches_their_cell(
        steps in prop::collection::vec((0u64..3, 1u64..5), 1..40), resolution in 1u16..=10
    ) {
        let mut entry = Entry::new(1, resolution, 10);
        let (mut now, mut spent) = (10u64, std::collections::BTreeMap::<u64, u64>::new());
        for (forward, cost) in steps {
            now += forward;
            entry.advance(&at(now), mono(now));
            entry.charge(cost, mono(now));
            *spent.entry(now).or_default() += cost;
            let held: Vec<u64> = entry.cells().map(|(_, cell)| cell.own).collect();
            let counts = |back| spent.get(&(now - back)).copied().unwrap_or(0);
            prop_assert_eq!(held, (0..=u64::from(resolution)).map(counts).collect::<Vec<_>>());
        }
    }

    #[test]
    fn counts_age_by_the_monotonic_clock_alone(
        steps in prop::collection::vec((0u64..1_500, prop_oneof![
            3 => Just(0i64), 1 => -300i64..300, 1 => -10_000i64..10_000, 1 => -(1i64 << 40)..1 << 40
        ], 0u64..5), 1..60),
        resolution in prop_oneof![Just(1u16), Just(10)]
    ) {
        const CELL_MS: u64 = 1_000;
        let (mut now, mut offset, mut spent) = (MonoMs(1 << 20), 1i64 << 41, Vec::new());
        let mut entry = Entry::new(1, resolution, (now.0 + offset as u64) / CELL_MS);
        for (passes_ms, step, cost) in steps {
            (now, offset) = (now.after(passes_ms), (offset + step).max(0));
            let unix = UnixMs(now.0 + offset as u64);
            let seen = entry.advance(&Position::at(unix, CELL_MS), now);
            // A step may lose at most the tolerated part of a cell.
            let age = |at: &MonoMs| now.since(*at) + CELL_MS / 8;
            let window_ms = CELL_MS * u64::from(resolution);
            let least: u64 = match resolution {
                1 => spent.iter().map(|(at, cost)| cost * CELL_MS.saturating_sub(age(at))).sum::<u64>() / CELL_MS,
                _ => spent.iter().filter(|(at, _)| age(at) < window_ms).map(|(_, cost)| cost).sum(),
            };
            let used = entry.used().effective(&seen);
            prop_assert!(used + 1 >= least, "{} counts of at least {}: {:?}", used, least, entry);
            entry.charge(cost, now);
            spent.push((now, cost));
        }
        // No count applies for longer than three windows after the last step.
        let later = now.after(3 * CELL_MS * u64::from(resolution) + 3 * CELL_MS);
        let unix = UnixMs(later.0 + offset as u64);
        let seen = entry.advance(&Position::at(unix, CELL_MS), later);
        prop_assert_eq!(entry.used().effective(&seen), 0);
    }

    #[test]
    fn merging_snapshots_is_commutative_and_idempotent(snapshots in prop::collection::vec((7u64..=10, any::<[u32; 3]>()), 0..20), resolution in 1u16..=10) {
        let snapshot = |&(sequence, [own, region_others, global_others]): &(u64, [u32; 3])| wire::Snapshot {
            key: vec![],
            sequence,
            own: own.into(),
            region_others: region_others.into(),
            global_others: global_others.into(),
        };
        let merged = |order: Vec<wire::Snapshot>| {
            let mut entry = Entry::new(1, resolution, 10);
            for snapshot in &order {
                entry.merge(snapshot, true, MonoMs(1));
            }
            entry.cells().map(|(_, cell)| *cell).collect::<Vec<_>>()
        };
        let forward: Vec<_> = snapshots.iter().map(snapshot).collect();
        let mut twice_backward: Vec<_> = snapshots.iter().rev().map(snapshot).collect();
        twice_backward.extend(forward.clone());
        prop_assert_eq!(merged(forward), merged(twice_backward));
    }
}

#[test]
fn an_expired_reservation_counts_as_spent() {
    let mut entry = Entry { sequence: 10, ..Entry::default() };
    assert!(entry.reserve(LEASE, 5, MonoMs(100)));
    let start = |sequence| Position { elapsed_ms: 0, ..at(sequence) };
    entry.advance(&start(10), MonoMs(99));
    assert_eq!((entry.current.own, entry.reserved_in(10)), (0, 5));
    entry.advance(&start(11), MonoMs(1_099));
    assert_eq!((entry.current.own, entry.previous.own, entry.reserved_in(10)), (0, 5, 0));
    assert_eq!(entry.release(LEASE, 10), None);
}

#[test]
fn a_reservation_counts_in_its_cell_while_a_window_touches_it() {
    let mut entry = Entry::new(1, 10, 100);
    assert!(entry.reserve(LEASE, 5, MonoMs(110_001)));
    let sum = |entry: &Entry| entry.used_and_reserved().effective(&at(entry.sequence));
    for later in 0..=10 {
        entry.advance(&at(100 + later), mono(100 + later));
        assert_eq!((sum(&entry), entry.unconfirmed_with(0)), (5, 5), "{later} cells later");
    }
    let mut spent = entry.clone();
    spent.advance(&at(110), MonoMs(110_001));
    assert_eq!(
        (spent.cell(100).map(|cell| cell.own), sum(&spent)),
        (Some(5), 5),
        "the reservation has expired"
    );
    entry.reservations[0].expires = MonoMs(u64::MAX);
    entry.advance(&at(111), mono(111));
    assert_eq!((sum(&entry), entry.release(LEASE, 100)), (0, None));
}

#[test]
fn a_clock_correction_keeps_all_counts_of_a_hard_limit() {
    // (cells back) → the sequence of the newest count
    for (back, expected) in [(1, 100), (20, 100), (21, 79), (90, 10)] {
        let mut entry = Entry::new(1, 10, 95);
        entry.charge(4, MonoMs(1));
        entry.advance(&at(100), mono(100));
        entry.charge(3, MonoMs(1));
        let seen = entry.advance(&at(100 - back), mono(100));
        assert_eq!((entry.used().effective(&seen), entry.sequence), (7, expected), "back {back}");
    }
}

#[test]
fn the_encoded_size_of_an_entry() {
    let length = |entry: Entry| {
        let mut bucket = Bucket::default();
        bucket.check();
        let found = bucket.vacant(entry);
        bucket.put(&found, b"key");
        bucket.bytes().len() - 10
    };
    assert_eq!(length(Entry::new(1, 1, 5)), 126 + 3);
    assert_eq!(length(Entry::new(1, 10, 5)), 126 + 3 + 9 * 33);
    assert_eq!(length(Entry { configured: Some(9), ..Entry::new(1, 1, 5) }), 126 + 3 + 32);
}

/// It reads and writes the table beside this version while connections drain, and does not know that a limit may be controlled.
#[test]
fn a_filter_of_an_earlier_version_keeps_the_counts_of_a_controlled_key() {
    let mut entry = Entry { configured: Some(9), limit: 20, ..Entry::new(1, 1, 100) };
    entry.advance(&at(100), mono(100));
    entry.charge(4, mono(100));
    assert!(entry.reserve(LEASE, 3, mono(200)));
    let mut bucket = Bucket::default();
    bucket.check();
    for (key, entry) in [(&b"key"[..], entry.clone()), (b"other", Entry::new(2, 1, 100))] {
        let found = bucket.vacant(entry);
        bucket.put(&found, key);
    }
    assert_eq!(bucket.find(1, b"key").unwrap().entry, entry);
    // All that differs in its layout is the flag.
    const FLAGS: usize = 10 + 5;
    bucket.buffer()[FLAGS] &= !8;
    bucket.check();
    assert_eq!(bucket.len(), 2, "no entry is dropped");
    let mut found = bucket.find(1, b"key").unwrap();
    assert_eq!(found.entry.used_and_reserved(), entry.used_and_reserved());
    found.entry.advance(&at(100), mono(100));
    assert_eq!(found.entry, Entry { configured: None, ..entry });
    bucket.put(&found, b"key");
    bucket.check();
    assert_eq!((bucket.len(), bucket.find(1, b"key").unwrap().entry), (2, found.entry));
}

#[test]
fn a_baseline_is_added_once() {
    let mut entry = Entry { sequence: 10, ..Entry::default() };
    entry.current.without_baseline = true;
    entry.charge(2, MonoMs(1));
    let snapshot = wire::Snapshot { sequence: 10, own: 7, ..Default::default() };
    entry.merge(&snapshot, true, MonoMs(2));
    entry.merge(&snapshot, true, MonoMs(3));
    assert_eq!((entry.current.own, entry.current.without_baseline), (9, false));
}

#[test]
fn a_clock_step_moves_no_empty_cell() {
    let at_ms = |ms| Position::at(UnixMs(ms), 1_000);
    // (milliseconds until the next access) → the sequence of the count: the clock's cell or the next
    for (later, expected) in [(300, 11), (3_000, 13)] {
        let mut entry = Entry::new(1, 1, 10);
        entry.advance(&at_ms(10_100), MonoMs(100));
        entry.charge(1, MonoMs(100));
        entry.advance(&at_ms(10_400 + later), MonoMs(100 + later));
        assert_eq!((entry.sequence, entry.clock), (expected, Some(10_300)), "{later} ms later");
    }
}

#[test]
fn a_clock_step_back_resets_no_count() {
    // (cells back) → the sequence of the count
    for (back, expected) in [(1, 10), (2, 10), (3, 7), (9, 1)] {
        let mut entry = Entry { sequence: 10, ..Entry::default() };
        entry.charge(4, MonoMs(1));
        entry.advance(&at(10), mono(10));
        let seen = entry.advance(&at(10 - back), mono(10));
        assert_eq!(
            (entry.current.own, entry.sequence, seen.sequence),
            (4, expected, expected),
            "back {back}"
        );
    }
}

#[test]
fn a_clock_step_back_keeps_no_expired_count() {
    // The next access is eleven cells later, after the clock has stepped back by `back` cells.
    for back in [1, 9, 10, 11, 12, 13, 20] {
        for resolution in [1, 5] {
            let mut entry = Entry::new(1, resolution, 100);
            entry.advance(&at(100), mono(100));
            entry.charge(4, mono(100));
            let seen = entry.advance(&at(111 - back), mono(111));
            assert_eq!(entry.used().effective(&seen), 0, "back {back} at {resolution}");
            assert_eq!(entry.sequence, 111 - back, "new use counts in the clock's cell");
        }
    }
}

#[test]
fn leases_leave_room_for_other_reservations() {
    let mut entry = Entry::default();
    let lease = |worker| Tag { worker, kind: ReservationKind::Lease };
    assert_eq!((0..20).filter(|worker| entry.reserve(lease(*worker), 1, MonoMs(9))).count(), 8);
    assert!(entry.reserve(Tag { worker: 1, kind: ReservationKind::Hold }, 1, MonoMs(9)));
}

#[test]
fn reservations_of_nothing_give_way_to_those_of_a_cost() {
    let mut entry = Entry::default();
    let query = |worker| Tag { worker, kind: ReservationKind::Query };
    assert_eq!((0..100).filter(|worker| entry.reserve(query(*worker), 0, MonoMs(9))).count(), 64);
    for worker in 100..164 {
        assert!(entry.reserve(Tag { worker, kind: ReservationKind::Hold }, 1, MonoMs(9)), "{worker}");
    }
    assert!(!entry.reserve(Tag { worker: 164, kind: ReservationKind::Hold }, 1, MonoMs(9)));
    assert_eq!(entry.reserved_in(0), 64);
    assert!(!entry.reserve(query(165), 0, MonoMs(9)), "one of nothing takes no place of a cost");
}

#[test]
fn the_least_used_entry_is_evicted_unless_it_is_held_back() {
    let mut bucket = Bucket::default();
    bucket.check();
    for (name, hits) in [(b"a", 9u8), (b"b", 2), (b"c", 5)] {
        let found =
            bucket.vacant(Entry { fingerprint: u64::from(hits), hits, sequence: 10, ..Entry::default() });
        bucket.put(&found, name);
    }
    let held = |entry: &Entry| entry.fingerprint != 2;
    assert_eq!(bucket.make_room(3, MonoMs(0), |_| at(10), held), Ok(Removals { over: 0, evicted: 1 }));
    let left: Vec<_> = bucket.entries().map(|(key, found)| (key.to_vec(), found.entry.hits)).collect();
    assert_eq!(left, vec![(b"a".to_vec(), 8), (b"b".to_vec(), 1)]);
    let end = Now { unix: UnixMs(10_400), mono: MonoMs(0) }.mono_of(UnixMs(11_000));
    assert_eq!(bucket.evicted_through(), end);
    assert_eq!(bucket.make_room(2, MonoMs(0), |_| at(10), |_| false), Err(NoRoom));
    assert_eq!(
        bucket.make_room(2, MonoMs(0), |_| at(12), |_| false),
        Ok(Removals { over: 1, evicted: 0 }),
        "expired entries are not held back"
    );
    assert_eq!(bucket.evicted_through(), end);
}

#[test]
fn an_entry_of_many_cells_expires_with_the_last_window_that_touches_its_newest() {
    let mut bucket = Bucket::default();
    bucket.check();
    let found = bucket.vacant(Entry::new(1, 10, 100));
    bucket.put(&found, b"a");
    assert_eq!(bucket.make_room(1, MonoMs(0), |_| at(110), |_| false), Err(NoRoom));
    assert_eq!(bucket.make_room(1, MonoMs(0), |_| at(111), |_| false), Ok(Removals { over: 1, evicted: 0 }));
}

proptest! {
    #[test]
    fn an_entry_stored_after_corruption_is_found_again(
        named in named_entries(), from in any::<prop::sample::Index>(), junk in prop::collection::vec(any::<u8>(), 0..60)
    ) {
        let mut bucket = Bucket::default();
        bucket.check();
        for (key, entry) in &named {
            let vacant = bucket.vacant(entry.clone());
            bucket.put(&vacant, key);
        }
        let from = from.index(bucket.bytes().len() + 1);
        let sound = bucket.bytes()[..from].to_vec();
        bucket.buffer().splice(from.., junk);
        bucket.check();
        let fresh = Entry { fingerprint: 5, ..named.first().map_or_else(Entry::default, |(_, entry)| entry.clone()) };
        let vacant = bucket.vacant(fresh.clone());
        bucket.put(&vacant, b"a key of its own");
        bucket.check();
        let found = bucket.find(5, b"a key of its own").map(|found| found.entry);
        prop_assert_eq!(found, Some(fresh));
        // Entries that end before the damage are still there.
        let mut whole = Bucket::default();
        whole.buffer().extend_from_slice(&sound);
        whole.check();
        if from > 10 {
            for (key, kept) in whole.entries() {
                prop_assert!(bucket.entries().any(|(other, found)| other == key && found.entry == kept.entry));
            }
        }
    }
}

#[test]
fn a_push_is_no_baseline() {
    let without_baseline = Cell { without_baseline: true, ..Cell::default() };
    let mut entry = Entry { sequence: 7, current: without_baseline, ..Entry::default() };
    entry.charge(3, MonoMs(1));
    let push = wire::Snapshot { sequence: 7, own: 4, region_others: 2, ..Default::default() };
    entry.merge(&push, false, MonoMs(2));
    assert!(entry.is_without_baseline(), "another aggregator may hold more");
    assert_eq!(
        entry.used(),
        Used::Average { current: 9, previous: 0 },
        "the pushed count applies in the meantime"
    );
    entry.merge(&wire::Snapshot { own: 5, ..push }, true, MonoMs(3));
    assert!(!entry.is_without_baseline());
    assert_eq!((entry.current.own, entry.used()), (8, Used::Average { current: 10, previous: 0 }));
}

/// What a key has used in an overflow cell: the cell, the key, and the amount.
fn uses() -> impl Strategy<Value = Vec<(u64, u64, u64)>> {
    prop::collection::vec((0u64..4, 1u64..60, 1u64..9), 1..120)
}

/// The end of cell `sequence`, as [`at`] has it.
fn end(sequence: u64) -> MonoMs {
    MonoMs((sequence + 1) * 1_000)
}

fn noted(uses: &[(u64, u64, u64)], resolution: u64) -> (DivertedKeys, u64) {
    let (mut records, mut sequence) = (DivertedKeys::default(), 100);
    for (later, key, amount) in uses {
        sequence += u64::from(*later == 0);
        let (end, now) = (end(sequence), mono(sequence));
        records.drop_old(now);
        let change = Change { spent: vec![(0, *amount)], ..Change::default() };
        records.note(Diverted::new(key % 3, *key, (end, 1_000), resolution), &change, now);
    }
    (records, sequence)
}

proptest! {
    #[test]
    fn a_diverted_key_has_no_less_than_it_used(uses in uses(), resolution in 1u64..=10) {
        let (mut records, last) = noted(&uses, resolution);
        let mut sequence = 100;
        let mut used = std::collections::BTreeMap::<u64, u64>::new();
        for (later, key, amount) in &uses {
            sequence += u64::from(*later == 0);
            if sequence + resolution >= last {
                *used.entry(*key).or_default() += amount;
            }
        }
        for (key, used) in used {
            let rest = records.rest_of(key % 3, key).cloned();
            let own = records.get_mut(key).map(|record| {
                record.roll(end(last), mono(last));
                record.spent().map(|(_, spent)| spent).sum::<u64>()
            });
            let of_rest = rest.map_or(0, |mut rest| {
                rest.roll(end(last), mono(last));
                rest.spent().map(|(_, spent)| spent).sum()
            });
            prop_assert!(own.unwrap_or(0) + of_rest >= used, "{own:?} and {of_rest} of {used}");
        }
    }

    #[test]
    fn records_of_diverted_keys_follow_the_entries(uses in uses(), named in named_entries()) {
        let (records, _) = noted(&uses, 10);
        let mut bucket = Bucket::default();
        bucket.check();
        bucket.set_diverted(&records);
        for (key, entry) in &named {
            let found = bucket.vacant(entry.clone());
            bucket.put(&found, key);
        }
        let mut loaded = Bucket::default();
        *loaded.buffer() = bucket.bytes().to_vec();
        loaded.check();
        prop_assert_eq!((loaded.diverted(), loaded.len()), (records, named.len()));
        let _ = loaded.make_room(1, MonoMs(0), |_| at(5), |_| true);
        prop_assert_eq!(loaded.diverted(), bucket.diverted());
        loaded.set_diverted(&DivertedKeys::default());
        prop_assert!(!loaded.has_diverted());
    }
}

#[test]
fn the_encoded_size_of_diverted_keys() {
    let uses: Vec<_> = (1..100).map(|key| (1, key, 1)).collect();
    for (resolution, cells) in [(1, 2), (10, 11)] {
        let mut bytes = Vec::new();
        noted(&uses, resolution).0.encode(&mut bytes);
        assert_eq!(bytes.len(), 1 + MAX_DIVERTED * (49 + 8 * cells));
    }
}
