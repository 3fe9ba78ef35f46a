//! The cost of a decision without a host: leased, charged in the table, and denied from the worker cache, at 1, 10 k
//! and 1 M keys on simulated time.
//!
//! Run with `cargo bench -p weir-core`. The table is in memory, so a load or store costs a copy and no host call.

use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use std::time::Duration;
use weir_core::limiter::table::{Geometry, Meta};
use weir_core::limiter::{Check, Decision, Limiter, Policy, Setup};
use weir_core::model::exact::Algorithm;
use weir_core::model::key::{HashKey, KeyParts, NodeId};
use weir_core::model::shared::{Place, Shared, Version};
use weir_core::model::time::{MonoMs, Now, UnixMs};

const MINUTE: u64 = 60_000;
const START: Now = Now { unix: UnixMs(1_700_000_040_000), mono: MonoMs(1_000_000) };

/// Places by index, so that finding a place does not affect the measurement.
struct Places {
    buckets: Vec<(Vec<u8>, u32)>,
    others: Vec<(Vec<u8>, u32)>,
}

impl Places {
    fn new(buckets: u32) -> Places {
        let empty = |n: usize| vec![(Vec::new(), 1); n];
        Places { buckets: empty(buckets as usize), others: empty(6) }
    }

    fn place(&mut self, place: Place) -> &mut (Vec<u8>, u32) {
        match place {
            Place::Bucket(at) => &mut self.buckets[at as usize],
            Place::Meta => &mut self.others[0],
            Place::WorkerRegistry => &mut self.others[1],
            Place::Overflow => &mut self.others[2],
            Place::Controls => &mut self.others[3],
            Place::ControlSet => &mut self.others[4],
            Place::Bans => &mut self.others[5],
        }
    }
}

impl Shared for Places {
    fn load(&mut self, place: Place, into: &mut Vec<u8>) -> Option<Version> {
        let (bytes, version) = self.place(place);
        into.clear();
        into.extend_from_slice(bytes);
        Some(Version(*version))
    }

    fn store(&mut self, place: Place, bytes: &[u8], expected: Option<Version>) -> bool {
        let (held, version) = self.place(place);
        let good = expected.is_none_or(|expected| expected.0 == *version);
        if good {
            held.clear();
            held.extend_from_slice(bytes);
            *version = version.wrapping_add(1);
        }
        good
    }
}

/// A worker, its table, and keys that are requested in a scattered order.
struct Bench {
    limiter: Limiter,
    shared: Places,
    keys: Vec<Vec<u8>>,
    next: usize,
    now: Now,
}

impl Bench {
    fn new(keys: usize) -> Bench {
        let buckets = (keys as u32 / 4).next_power_of_two().max(1_024);
        let mut shared = Places::new(buckets);
        let geometry = Geometry { buckets, keys_per_bucket: 16 };
        let meta = Meta { node: NodeId([7; 16]), secret: HashKey(1, 2), geometry };
        let meta = Meta::establish(&mut shared, meta);
        let local_sets = (keys / 3).max(64);
        let setup = Setup { meta, worker: 9, local_sets };
        let mut limiter = Limiter::new(setup, START);
        // Requests wait for the first stream until it has failed to open.
        limiter.on_closed(&mut shared, START.mono);
        let named = |at: usize| {
            let identifier = format!("api-key-{at:08}");
            let parts = KeyParts {
                workspace: b"acme",
                namespace: b"requests",
                identifier: identifier.as_bytes(),
                duration_ms: MINUTE,
                epoch: 0,
                resolution: 1,
            };
            let mut key = Vec::new();
            parts.encode(&mut key).unwrap();
            key
        };
        Bench { limiter, shared, keys: (0..keys).map(named).collect(), next: 0, now: START }
    }

    fn decide(&mut self, limit: u64, cost: u64) -> Decision {
        // A step coprime to the number of keys visits all of them before any is repeated.
        self.next = (self.next + 611_953) % self.keys.len();
        let policy = Policy { trust_first: true, timeout_ms: 50, ..Policy::default() };
        let key = &self.keys[self.next];
        let check = Check {
            rule: 0,
            algorithm: Algorithm::Window,
            key,
            cell_ms: MINUTE,
            limit,
            configured: None,
            cost,
            policy,
        };
        self.limiter.decide(&mut self.shared, 1, &[check], self.now.mono).decision
    }

    /// Lets the worker cache grow to hold every key, which it does at ticks.
    fn grown(mut self, limit: u64) -> Bench {
        for _ in 0..10 {
            for _ in 0..self.keys.len() {
                self.decide(limit, 0);
            }
            self.now = Now { unix: self.now.unix.after(50), mono: self.now.mono.after(50) };
            self.limiter.tick(&mut self.shared, self.now);
        }
        self
    }

    /// Sends requests on every key until each is in the state to be measured.
    fn warm(mut self, rounds: usize, limit: u64, cost: u64) -> Bench {
        for _ in 0..rounds * self.keys.len() {
            assert_ne!(self.decide(limit, cost), Decision::Wait);
        }
        self
    }
}

fn decide(c: &mut Criterion) {
    let mut group = c.benchmark_group("decide");
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1)).sample_size(20);
    for (name, keys) in [("1", 1), ("10k", 10_000), ("1M", 1_000_000)] {
        // The second request of a key takes a lease in proportion to its cost, large enough for all that follow.
        let mut leased = Bench::new(keys).grown(1 << 50).warm(2, 1 << 50, 100_000);
        group.bench_function(format!("leased/{name}"), |b| b.iter(|| black_box(leased.decide(1 << 50, 1))));
        drop(leased);
        // A limit too small for leases. A cost of 0 takes the whole path through the table and never uses up the limit.
        let mut charged = Bench::new(keys).grown(10).warm(1, 10, 1);
        group.bench_function(format!("table/{name}"), |b| b.iter(|| black_box(charged.decide(10, 0))));
        drop(charged);
        let mut denied = Bench::new(keys).grown(10).warm(1, 10, 10).warm(1, 10, 1);
        group.bench_function(format!("denied/{name}"), |b| b.iter(|| black_box(denied.decide(10, 1))));
    }
    group.finish();
}

criterion_group!(benches, decide);
criterion_main!(benches);
