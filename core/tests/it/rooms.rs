//! Tests that workspaces, and namespaces of one workspace, leave room to each other.

use weir_core::limiter::{CellCount, GivenBack, MAX_GIVEN_BACK};
use weir_core::model::exact::ExactRequestId;
use weir_core::model::key::{Key, KeyParts};
use weir_core::model::time::MonoMs;
use weir_core::region::log::{EntryId, LogCharge, Logs, LogsLimits, Micros};

/// Length of a window, and of its cells.
const WINDOW_MS: u64 = 1_000;

fn key(workspace: &[u8], namespace: &[u8], number: u64) -> Key {
    let identifier = &number.to_be_bytes();
    let parts =
        KeyParts { workspace, namespace, identifier, duration_ms: WINDOW_MS, epoch: 0, resolution: 1 };
    Key::new(&parts).unwrap()
}

/// Charges logs of several uses, which are never evicted, until one is refused; returns how many there are.
fn fill(logs: &mut Logs, (workspace, namespace): (&[u8], &[u8]), uses_of_a_key: u64) -> u64 {
    let charges = (0..).flat_map(|k| (0..uses_of_a_key).map(move |use_of| (k, use_of)));
    let is_refused = |(k, use_of): &(u64, u64)| {
        let id = EntryId { request: ExactRequestId::of(7, k * 100 + use_of), place: 0 };
        let charge = LogCharge { key: key(workspace, namespace, *k), id, cost: 1, most: 1_000 };
        logs.decide(Micros(0), &charge).is_err()
    };
    charges.into_iter().find(is_refused).unwrap().0
}

#[test]
fn logs_that_fill_their_room_leave_some_to_other_namespaces_and_workspaces() {
    // By keys, and by entries.
    for (limits, uses_of_a_key) in [
        (LogsLimits { max_keys: 1_000, max_entries: 1_000_000 }, 2),
        (LogsLimits { max_keys: 1_000_000, max_entries: 10_000 }, 10),
    ] {
        let mut logs = Logs::new(limits);
        let all = (limits.max_keys as u64).min(limits.max_entries as u64 / uses_of_a_key);
        let names: [(&[u8], &[u8]); 4] = [(b"w", b"one"), (b"w", b"other"), (b"v", b"one"), (b"u", b"one")];
        let parts = names.map(|names| fill(&mut logs, names, uses_of_a_key) * 100 / all);
        assert_eq!(parts, [56, 14, 16, 7], "percent of {all}");
        while logs.tick(Micros(WINDOW_MS * 1_000)) {}
        assert_eq!((logs.len(), logs.entries()), (0, 0));
        assert_eq!(fill(&mut logs, (b"u", b"one"), uses_of_a_key) * 100 / all, 56);
    }
}

#[test]
fn refunds_that_fill_their_room_leave_some_to_other_namespaces_and_workspaces() {
    const NOW: MonoMs = MonoMs(60_000);
    const END: MonoMs = MonoMs(61_000);
    const CELL: u64 = 7;
    let mut given_back = GivenBack::default();
    let mut keeps = |workspace: &[u8], namespace: &[u8], number: u64| {
        let key = key(workspace, namespace, number);
        let cell = CellCount { sequence: CELL, counted: 1 };
        given_back.give(key.as_bytes(), 1, cell, END, NOW);
        given_back.left(key.as_bytes(), CELL) == 1
    };
    let most = MAX_GIVEN_BACK as u64;
    let kept = (0..most + 10).filter(|number| keeps(b"w", b"flooded", *number)).count() as u64;
    assert!((most / 2..most / 4 * 3).contains(&kept), "{kept}");
    assert!(keeps(b"w", b"flooded", 0), "a key that has an amount keeps its room");
    assert!(keeps(b"w", b"other", 0) && keeps(b"v", b"other", 0));
}
