//! A simulation of several regions with several aggregators each, their stores, a table that all share, and faults in
//! all of them, driven at random from a seed.
//!
//! The stores are the simplest implementations that fulfil what the real ones guarantee. The checks use
//! what each Envoy has really spent. At any time no count may exceed that; after a quiet time every count must reach it.
//!
//! In reading order: the members and the driver, here; `store`; the actions (`actions`); the invariants (`check`).

mod actions;
mod check;
mod lower_bound;
mod store;

use super::*;
use std::collections::{BTreeMap, BTreeSet};
use std::{eprintln, format};
use store::Store;

const REGIONS: usize = 2;
/// Aggregators of one region.
const AGGREGATORS: usize = 2;
/// Envoys of one region.
const ENVOYS: usize = 3;
const LIMIT: u64 = 24;
/// Keys that are used so rarely that most stay below half of the limit.
const RARE: usize = 8;
const STEPS: usize = 400;

type At = (Key, u64);

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }

    fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }
}

/// A call whose answer is in flight.
enum Call {
    Write(Merge, Option<Merged>),
    Query(usize, wire::Query, Merge, Option<Merged>),
}

struct Aggregator {
    region: Region,
    calls: Vec<Call>,
    inbox: Vec<(exchange::StoreIds, wire::Change)>,
    incarnation: Option<u64>,
    table_incarnation: u64,
    /// The time of the loss, during a recovery grace period.
    lost: Option<UnixMs>,
}

impl Aggregator {
    fn new(seed: u64) -> Aggregator {
        let mut region = Region::new(RegionLimits::default(), HashKey(seed, 2));
        region.attach_store();
        region.set_regions(REGIONS as u64);
        Aggregator {
            region,
            calls: vec![],
            inbox: vec![],
            incarnation: None,
            table_incarnation: 0,
            lost: None,
        }
    }
}

struct Envoy {
    id: NodeId,
    region: usize,
    /// The aggregator to which its subscriber's stream is connected.
    home: usize,
    own: BTreeMap<At, u64>,
    /// The most that the region may have granted it, spent or not.
    granted: BTreeMap<At, u64>,
    unacknowledged: BTreeSet<At>,
    snapshot: BTreeMap<At, u64>,
}

impl Envoy {
    fn most(&self, at: &At) -> u64 {
        let of = |counts: &BTreeMap<At, u64>| counts.get(at).copied().unwrap_or(0);
        of(&self.own).max(of(&self.granted))
    }
}

struct World {
    random: Random,
    now: UnixMs,
    /// Whether Envoys send queries as well as reports. A grant whose answer was lost may be lost in a wipe and restored
    /// as a baseline. The checks are then less strict.
    queries: bool,
    /// Whether messages between aggregators get lost.
    loses: bool,
    stores: Vec<Store>,
    aggregators: Vec<Vec<Aggregator>>,
    envoys: Vec<Envoy>,
    table: BTreeMap<(usize, At), u64>,
    table_incarnation: u64,
    crashes: u64,
    keys: Vec<Key>,
}

impl World {
    fn new(seed: u64, queries: bool, loses: bool) -> World {
        let aggregators =
            (0..REGIONS).map(|r| (0..AGGREGATORS).map(|a| Aggregator::new((r * 9 + a) as u64)).collect());
        let envoy = |n: usize| Envoy {
            id: node(n as u8 + 1),
            region: n / ENVOYS,
            home: n % AGGREGATORS,
            own: BTreeMap::new(),
            granted: BTreeMap::new(),
            unacknowledged: BTreeSet::new(),
            snapshot: BTreeMap::new(),
        };
        let short = key("short");
        let short = Key::new(&KeyParts { duration_ms: 30_000, ..short.parts() }).unwrap();
        let fine = key("fine");
        let fine = Key::new(&KeyParts { resolution: 10, ..fine.parts() }).unwrap();
        let mut keys = vec![key("a"), key("b"), short, fine];
        // Too short to be shared between regions, which depends on how much each is used.
        let rare =
            |n| Key::new(&KeyParts { duration_ms: 9_000, ..key(&format!("rare{n}")).parts() }).unwrap();
        keys.extend((0..RARE).map(rare));
        let mut world = World {
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            now: NOW,
            queries,
            loses,
            stores: (0..REGIONS).map(|_| Store::default()).collect(),
            aggregators: aggregators.collect(),
            envoys: (0..REGIONS * ENVOYS).map(envoy).collect(),
            table: BTreeMap::new(),
            table_incarnation: 0,
            crashes: 0,
            keys,
        };
        for n in 0..world.envoys.len() {
            world.connect(n);
        }
        world
    }

    fn connect(&mut self, n: usize) {
        let envoy = &self.envoys[n];
        let region = &mut self.aggregators[envoy.region][envoy.home].region;
        region.nodes.received_from(envoy.id, MonoMs(self.now.0));
        region.subscribe(envoy.id);
    }

    /// Any key; each second time a rare one.
    fn any_key(&mut self) -> Key {
        let often = self.keys.len() - RARE;
        let at =
            if self.random.percent(50) { self.random.below(often) } else { often + self.random.below(RARE) };
        self.keys[at].clone()
    }

    fn sequence(&self, key: &Key) -> u64 {
        self.now.0 / key.parts().cell_ms()
    }

    /// The region's own sum, by what its Envoys have spent.
    fn truth(&self, region: usize, at: &At) -> u64 {
        let envoys = self.envoys.iter().filter(|envoy| envoy.region == region);
        envoys.map(|envoy| envoy.own.get(at).copied().unwrap_or(0)).sum()
    }

    fn bound(&self, region: usize, at: &At) -> u64 {
        let most: u64 = self.envoys.iter().filter(|envoy| envoy.region == region).map(|e| e.most(at)).sum();
        // A lost grant may be in the baseline and, once it is spent, in the node's own component too.
        let granted = self.envoys.iter().filter(|envoy| envoy.region == region);
        most + granted.filter_map(|envoy| envoy.granted.get(at)).sum::<u64>()
    }

    fn step(&mut self) {
        let (region, one) = (self.random.below(REGIONS), self.random.below(AGGREGATORS));
        let n = self.random.below(self.envoys.len());
        match self.random.below(100) {
            0..20 => self.spend(n),
            20..40 => self.report(n),
            40..45 if self.queries => self.query(n),
            45..57 => self.replay(region, one),
            57..70 => self.deliver(region, one),
            70..75 => self.share(region, one),
            75..79 => self.read_marker(region, one),
            79..82 => self.read_hot(region, one),
            82..86 => self.publish(region, one),
            86..89 => self.import(region, one),
            89..92 => self.take_pushes(n),
            92..94 => self.end_grace_period(region, one),
            94..96 => self.pass_time(),
            96..98 => self.break_something(region, one),
            _ => self.stores[region].unavailable ^= self.random.percent(50),
        }
        self.check_bounds();
    }
}

fn run(seed: u64, queries: bool, loses: bool) {
    let outcome = std::panic::catch_unwind(|| {
        let mut world = World::new(seed, queries, loses);
        for _ in 0..STEPS {
            world.step();
        }
        world.quiet();
        world.check_quiet(!loses);
    });
    if let Err(panic) = outcome {
        eprintln!("seed {seed}, queries {queries}, loses {loses}");
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn nothing_is_lost_and_nothing_counts_twice() {
    (0..60).for_each(|seed| run(seed, false, true));
}

#[test]
fn if_no_message_is_lost_all_followers_receive_all_counts() {
    (1_000..1_040).for_each(|seed| run(seed, false, false));
    (3_000..3_060).for_each(|seed| run(seed, true, false));
}

#[test]
fn grants_are_not_exceeded() {
    (2_000..2_060).for_each(|seed| run(seed, true, true));
}

#[test]
fn the_same_seed_gives_the_same_world() {
    let cells = |seed| {
        let mut world = World::new(seed, true, true);
        (0..STEPS).for_each(|_| world.step());
        format!("{:?}", world.all_cells())
    };
    assert_eq!(cells(7), cells(7));
}

/// Both aggregators have lost their memory, and Redis its data. The evidence of one is a part of the other's.
#[test]
fn of_two_aggregators_the_one_that_knows_of_more_use_raises_the_baseline() {
    for evidence in [[50, 80], [80, 50]] {
        let mut store = Store::default();
        let mut regions = [(); 2].map(|()| backed());
        let report = |region: &mut Region, store: &mut Store, own| {
            assert_eq!(region.report(node(1), &[count("k", SEQUENCE, own)], NOW).refused, vec![]);
            for merge in region.next_merges(9) {
                let merged = store.merge(&merge);
                region.merged(&merge, &merged, NOW);
            }
        };
        for (region, total) in regions.iter_mut().zip(evidence) {
            region.witness(key("k").as_bytes(), SEQUENCE, total, NOW).unwrap();
            report(region, &mut store, 10);
        }
        let at = (key("k"), SEQUENCE);
        let sum = |store: &Store| store.cells[&at].values().sum::<u64>();
        let settle = |region: &mut Region, store: &mut Store| {
            for lower_bound in region.end_grace_period(NOW) {
                let merged = store.raise_to(&lower_bound);
                region.floored(&lower_bound, &merged, region.store_incarnation(), NOW);
            }
        };
        settle(&mut regions[0], &mut store);
        // The second one has the first one's baseline before its own grace period ends, and more use has come.
        let held = store.cell(&at).current;
        regions[1].learn(&at.0, SEQUENCE, u64::MAX, &held, NOW).unwrap();
        report(&mut regions[0], &mut store, 15);
        settle(&mut regions[1], &mut store);
        let expected = if evidence[0] == 80 { 85 } else { 80 };
        assert!(sum(&store) >= expected, "{evidence:?}: {} of {expected}", sum(&store));
        assert!(sum(&store) <= 85, "{evidence:?}: {}", sum(&store));
        for region in &mut regions {
            settle(region, &mut store);
        }
        assert!(sum(&store) <= 85, "each raises it once");
    }
}
