//! The cost of a decision apart from time: allocations, and accesses to shared data, on each path that a request can
//! take.

use crate::allocations::allocations;
use weir_core::limiter::table::{Geometry, Meta};
use weir_core::limiter::{Check, Decision, Limiter, Output, Policy, Setup};
use weir_core::model::exact::Algorithm;
use weir_core::model::key::{HashKey, Key, KeyParts, NodeId};
use weir_core::model::shared::{MemoryShared, Place, Shared, Version};
use weir_core::model::time::{MonoMs, Now, UnixMs};
use weir_core::model::wire;

const NOW: Now = Now { unix: UnixMs(60_000_000), mono: MonoMs(1_000_000) };

/// Counts accesses.
#[derive(Default)]
struct Counted {
    memory: MemoryShared,
    loads: usize,
    stores: usize,
}

impl Shared for Counted {
    fn load(&mut self, place: Place, into: &mut Vec<u8>) -> Option<Version> {
        self.loads += 1;
        self.memory.load(place, into)
    }

    fn store(&mut self, place: Place, bytes: &[u8], version: Option<Version>) -> bool {
        self.stores += 1;
        self.memory.store(place, bytes, version)
    }
}

fn key(identifier: &str) -> Key {
    let (workspace, namespace) = (&b"default"[..], &b"per-key"[..]);
    let identifier = identifier.as_bytes();
    let parts = KeyParts { workspace, namespace, identifier, duration_ms: 60_000, epoch: 0, resolution: 1 };
    Key::new(&parts).unwrap()
}

/// A worker's limiter and its table.
fn limiter() -> (Limiter, Counted) {
    let mut shared = Counted::default();
    let proposal = Meta {
        node: NodeId([1; 16]),
        secret: HashKey(1, 2),
        geometry: Geometry { buckets: 16, keys_per_bucket: 8 },
    };
    let meta = Meta::establish(&mut shared, proposal);
    let setup = Setup { meta, worker: 7, local_sets: 64 };
    (Limiter::new(setup, NOW), shared)
}

/// Decides 100 requests on one key after `warm_up` others. Returns allocations, loads and stores.
fn costs(limit: u64, warm_up: usize) -> (usize, usize, usize) {
    let (mut limiter, mut shared) = limiter();
    // Requests wait for the first stream until it has failed to open.
    limiter.on_closed(&mut shared, NOW.mono);
    let key = key("alice");
    let check = Check {
        rule: 0,
        algorithm: Algorithm::Window,
        key: key.as_bytes(),
        cell_ms: 60_000,
        limit,
        configured: None,
        cost: 1,
        policy: Policy::default(),
    };
    let mut decide = |shared: &mut Counted| {
        let outcome = limiter.decide(shared, 1, &[check], NOW.mono);
        assert!(matches!(outcome.decision, Decision::Allow(_)), "{outcome:?}");
    };
    (0..warm_up).for_each(|_| decide(&mut shared));
    (shared.loads, shared.stores) = (0, 0);
    let allocated = allocations(|| (0..100).for_each(|_| decide(&mut shared)));
    (allocated, shared.loads, shared.stores)
}

#[test]
fn a_lease_costs_neither_an_allocation_nor_an_access() {
    // Leases double, starting at 8: after 260 requests the current one still covers 250.
    assert_eq!(costs(1_000_000, 260), (0, 0, 0));
}

#[test]
fn the_table_costs_a_load_and_a_store_and_no_allocation() {
    // A 64th of what is left is below four costs, so no lease is taken.
    assert_eq!(costs(220, 100), (0, 100, 100));
}

#[test]
fn a_cached_denial_of_a_log_costs_neither_an_allocation_nor_an_access() {
    let (mut limiter, mut shared) = limiter();
    let welcome = Some(wire::Welcome { version: wire::PROTOCOL_VERSION, region: String::new() });
    limiter.on_frame(&mut shared, &wire::RegionFrame { welcome, ..Default::default() }, NOW.mono);
    let key = key("alice");
    let policy = Policy { timeout_ms: 100, ..Policy::default() };
    let log = Check {
        rule: 0,
        algorithm: Algorithm::Log,
        key: key.as_bytes(),
        cell_ms: 0,
        limit: 5,
        configured: None,
        cost: 1,
        policy,
    };
    let decide =
        |shared: &mut Counted, limiter: &mut Limiter| limiter.decide(shared, 1, &[log], NOW.mono).decision;
    assert_eq!(decide(&mut shared, &mut limiter), Decision::Wait);
    let mut sent = 0;
    while let Some(output) = limiter.next(&mut shared, NOW.mono) {
        if let Output::Send(frame) = output {
            sent += frame.exact_requests.len();
        }
    }
    assert_eq!(sent, 1);
    let denied = wire::ChargeResult { verdict: 3, retry_after_ms: 1_000, ..Default::default() };
    let results = vec![wire::ExactResponse { id: 1, results: vec![denied] }];
    limiter.on_frame(&mut shared, &wire::RegionFrame { results, ..Default::default() }, NOW.mono);
    (shared.loads, shared.stores) = (0, 0);
    let allocated = allocations(|| {
        for _ in 0..100 {
            assert!(matches!(decide(&mut shared, &mut limiter), Decision::Deny(_)));
        }
    });
    assert_eq!((allocated, shared.loads, shared.stores), (0, 0, 0));
}
