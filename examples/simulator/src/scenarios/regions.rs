//! Traffic in several regions that passes a limit unseen, or costs many rows, if keys are published by a simpler rule than that of
//! `weir_core::region`.

use super::scenario::{Scenario, plan, source, spread, steady};
use crate::accuracy::bounds::Case;
use crate::plan::traffic::{Shape, Traffic};
use crate::plan::{Fault, Network, Part, Plan, Rule, Topology, Wrong};
use crate::run::Expected;

const REGIONS: u16 = 10;
const LIMIT: u64 = 1_000;
/// Ten regions that use a key at ten times its limit.
const ALL_AT_ONCE: Case =
    Case { regions: REGIONS as u64, envoys: 1, limit: LIMIT, window_ms: 60_000, load: 10.0 };

pub(super) const ALL: &[Scenario] = &[
    Scenario::new(
        "sharing-over-cells",
        "ten regions use almost a tenth of the limit each at the end of a cell, and as much when the next one begins",
        over_cells,
    )
    .expecting(|_| over(0.05)),
    Scenario::new(
        "sharing-cell-before",
        "nine regions use a little at the end of a cell; the tenth uses all it can in the next one",
        cell_before,
    )
    .expecting(|_| over(0.01)),
    Scenario::new(
        "sharing-all-at-once",
        "ten regions use a key at ten times its limit, all from the same moment",
        all_at_once,
    )
    .expecting(|_| over(ALL_AT_ONCE.over_of_many())),
    Scenario::new(
        "sharing-trickle",
        "one region uses a key once; afterwards ten regions use very little of it for five minutes",
        trickle,
    )
    .expecting(|_| rows(25.0)),
    Scenario::new("sharing-lone", "one of ten regions uses a key as fast as its limit permits", lone)
        .expecting(|_| rows(150.0)),
    Scenario::new(
        "sharing-far",
        "ten regions, 1 to 150 ms away from the database, use a key at twice its limit",
        far,
    )
    .expecting(|_| over(0.05)),
    Scenario::new(
        "sharing-lowered",
        "a limit falls below what one of three regions has used; later the others receive a limit of requests each",
        lowered,
    )
    .expecting(|_| over(0.01)),
    Scenario::new(
        "restarts-in-a-row",
        "all processes of a region crash four times, nine seconds apart, while a client uses all it can in both regions",
        restarts,
    )
    // A crash may lose what was not due: after the first life a quarter of what 625 requests have left, later a twentieth of the limit.
    .expecting(|_| over(0.15)),
    Scenario::new(
        "idle-region",
        "one of two regions uses up a limit; the Envoy of the other one, which has left its region, then receives as much",
        idle,
    )
    .expecting(|_| over(0.0)),
    Scenario::new(
        "restart-used-up",
        "all processes of a region crash once it has used up the limits of many keys, which are then used again, without queries",
        used_up,
    )
    .expecting(|_| over(0.0)),
];

fn over(most: f64) -> Expected {
    Expected { over: Some(most), ..Expected::default() }
}

fn rows(most: f64) -> Expected {
    Expected { rows: Some(most), ..Expected::default() }
}

fn ten(seed: u64, traffic: Vec<Traffic>, traffic_ms: u64) -> Plan {
    let topology = Topology { regions: usize::from(REGIONS), ..Topology::region(1) };
    plan(seed, topology, vec![Rule::new(LIMIT, 60_000)], traffic, traffic_ms)
}

/// Requests of one region within some time.
fn burst(region: u16, from_ms: u64, requests: u64, over_ms: u64) -> Traffic {
    let shape = Shape::Bursts { identifier: 1, requests, every_ms: 3_600_000, over_ms };
    Traffic { from_ms, at: vec![(region, 0)], ..source(shape) }
}

fn over_cells(seed: u64) -> Plan {
    let twice = |region| [burst(region, 48_000, 99, 10_000), burst(region, 60_500, 99, 10_000)];
    ten(seed, (0..REGIONS).flat_map(twice).collect(), 75_000)
}

fn cell_before(seed: u64) -> Plan {
    let little = (1..REGIONS).map(|region| burst(region, 58_000, 45, 500));
    let much = Traffic { from_ms: 60_000, at: vec![(0, 0)], ..steady(1, 200.0) };
    ten(seed, little.chain([much]).collect(), 75_000)
}

fn all_at_once(seed: u64) -> Plan {
    ten(seed, vec![steady(1, ALL_AT_ONCE.load * LIMIT as f64 / 60.0)], 90_000)
}

fn trickle(seed: u64) -> Plan {
    ten(seed, vec![burst(0, 1_000, 60, 1_000), Traffic { from_ms: 10_000, ..steady(1, 0.2) }], 300_000)
}

fn lone(seed: u64) -> Plan {
    let busy = Traffic { at: vec![(0, 0)], ..steady(1, LIMIT as f64 / 60.0) };
    ten(seed, vec![busy], 240_000)
}

/// The use is less than a sixth of the former limit, so that it is not published under that, and more than the new one. The others come
/// as bursts, which are over before a count arrives from elsewhere.
fn lowered(seed: u64) -> Plan {
    let topology = Topology { regions: 3, ..Topology::region(1) };
    let rules = vec![Rule::new(LIMIT, 600_000), Rule { keys_of: Some(0), ..Rule::new(100, 600_000) }];
    let under = |traffic| Traffic { rules: 0b10, ..traffic };
    let others = [1, 2].map(|region| under(burst(region, 15_000, 100, 300)));
    let first = [burst(0, 0, 160, 5_000), under(burst(0, 10_000, 5, 1_000))];
    plan(seed, topology, rules, [first, others].concat(), 20_000)
}

/// A successor serves once the lease of the one that crashed has expired, and Envoys start after that, so that they do not
/// decide alone. So each life is shorter than the recovery grace periods, and nothing but the published counts shows what
/// earlier ones have passed. It publishes all that a client uses until a second before its end.
fn restarts(seed: u64) -> Plan {
    let topology = Topology { regions: 2, ..Topology::region(1) };
    let at = |region, rate| Traffic { at: vec![(region, 0)], ..steady(1, rate) };
    let lives = [(0, 2_500), (9_500, 11_000), (18_500, 20_000), (27_500, 29_000)];
    let first =
        lives.map(|(from_ms, until_ms)| Traffic { from_ms, until_ms: Some(until_ms), ..at(0, 250.0) });
    let second = [Traffic { from_ms: 36_500, ..at(1, 250.0) }];
    let mut plan = plan(
        seed,
        topology,
        vec![Rule::new(LIMIT, 600_000)],
        first.into_iter().chain(second).collect(),
        40_000,
    );
    let parts =
        [(Part::Aggregator { region: 0, aggregator: 0 }, 300), (Part::Envoy { region: 0, envoy: 0 }, 5_000)];
    let crashes = [4_000, 13_000, 22_000, 31_000]
        .map(|at_ms| parts.map(|(part, for_ms)| Fault { at_ms, for_ms, what: Wrong::Crash { part } }));
    plan.faults = crashes.into_iter().flatten().collect();
    plan
}

/// The last request of the second region is so long ago that its Envoy has left it.
fn idle(seed: u64) -> Plan {
    let topology = Topology { regions: 2, workers: 1, idle_ms: 10_000, ..Topology::region(1) };
    let later = [40_000, 80_000].map(|from_ms| burst(1, from_ms, 150, 1_000));
    let traffic = [burst(1, 0, 1, 1), burst(0, 1_000, 200, 20_000)].into_iter().chain(later).collect();
    plan(seed, topology, vec![Rule::new(100, 600_000)], traffic, 85_000)
}

/// All use is published by the time of the crash, and what was published has become the baseline before the keys are used again. A
/// key that the region's complete snapshot lacks then counts as unused.
fn used_up(seed: u64) -> Plan {
    let topology = Topology { regions: 2, ..Topology::region(1) };
    let rules = vec![Rule { trust_first: true, ..Rule::new(20, 600_000) }];
    let at = |from_ms, until_ms| Traffic {
        from_ms,
        until_ms: Some(until_ms),
        at: vec![(0, 0)],
        ..spread(1_200, 4_000.0)
    };
    let mut plan = plan(seed, topology, rules, vec![at(0, 10_000), at(45_000, 46_000)], 46_500);
    let parts =
        [(Part::Aggregator { region: 0, aggregator: 0 }, 300), (Part::Envoy { region: 0, envoy: 0 }, 5_000)];
    plan.faults =
        parts.map(|(part, for_ms)| Fault { at_ms: 20_000, for_ms, what: Wrong::Crash { part } }).to_vec();
    plan
}

fn far(seed: u64) -> Plan {
    let mut plan = ten(seed, vec![steady(1, 2.0 * LIMIT as f64 / 60.0)], 150_000);
    plan.network = Network { global_us: (0, 5_000), distance_us: (1_000, 150_000), ..Network::default() };
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::observe::NoObserver;
    use crate::run::run;

    #[test]
    fn limits_hold_and_rows_are_few() {
        for scenario in ALL.iter().filter(|scenario| scenario.name.starts_with("sharing-")) {
            let plan = (scenario.plan)(1);
            let outcome = run(&plan, &(scenario.expected)(&plan), &mut NoObserver);
            assert_eq!(outcome.failures, vec![], "{}", scenario.name);
        }
    }
}
