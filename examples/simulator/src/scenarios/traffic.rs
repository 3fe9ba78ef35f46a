//! Heavy traffic, and traffic that targets a weakness; without faults.

use super::scenario::{Scenario, plan, source, spread, steady};
use crate::accuracy::bounds::Case;
use crate::plan::traffic::{Shape, Traffic};
use crate::plan::{Plan, Rule, Topology};
use crate::run::Expected;

pub(super) const ALL: &[Scenario] = &[
    Scenario::new("one-envoy", "1.5 times the limit at one Envoy: the limit is exact", one_envoy).expecting(one_envoy_expected),
    Scenario::new("steady", "1.5 times the limit over three Envoys", three_envoys).expecting(three_envoys_expected),
    Scenario::new("bursts", "repeated bursts of a whole limit within 20 ms", bursts),
    Scenario::new(
        "one-flooded",
        "three limits within 8 ms at one of five Envoys, while the others receive what they admit without a query: the largest excess by slack",
        one_flooded,
    )
    .expecting(one_flooded_expected),
    Scenario::new(
        "window-end",
        "a burst of one limit at a window's end, then saturation: the average over two cells admits almost two limits in a window",
        |seed| window_end(seed, false),
    )
    .expecting(|_| Expected { worst_window: Some(2.2), ..Expected::default() }),
    Scenario::new(
        "window-end-hard-limit",
        "the same traffic with a hard limit: no true window exceeds the limit",
        |seed| window_end(seed, true),
    )
    .expecting(|_| Expected { over: Some(0.0), worst_window: Some(1.0), ..Expected::default() }),
    Scenario::new(
        "under-floor",
        "ten regions, each just below half the limit",
        under_floor,
    )
    .expecting(under_floor_expected),
    Scenario::new("many-identifiers", "more identifiers than a table holds, at three Envoys", many_identifiers),
    Scenario::new("ten-regions", "ten regions share one limit", ten_regions).expecting(ten_regions_expected),
    Scenario::new("zipf-million", "a million identifiers distributed by Zipf's law", zipf_million),
    Scenario::new("day", "a day of little traffic", day).long(),
    Scenario::new(
        "slow-flood",
        "four new identifiers a second for four hours with windows of 31 days: new keys are admitted, a used-up key stays denied",
        slow_flood,
    )
    .expecting(|_| Expected { over: Some(0.0), under: Some(0.0), ..Expected::default() })
    .long(),
];

fn one_envoy(seed: u64) -> Plan {
    let topology = Topology { workers: 4, ..Topology::region(1) };
    plan(seed, topology, vec![Rule::new(100, 1_000)], vec![steady(1, 150.0)], 20_000)
}

fn one_envoy_expected(_: &Plan) -> Expected {
    // An Envoy's clock follows its aggregator's echo, so a request may fall into the next cell a millisecond early.
    Expected { over: Some(0.01), under: Some(0.01), ..Expected::default() }
}

fn three_envoys(seed: u64) -> Plan {
    plan(seed, Topology::region(3), vec![Rule::new(500, 10_000)], vec![steady(1, 75.0)], 40_000)
}

fn three_envoys_expected(_: &Plan) -> Expected {
    within(&Case { regions: 1, envoys: 3, limit: 500, window_ms: 10_000, load: 1.5 })
}

fn within(case: &Case) -> Expected {
    Expected { over: Some(case.over()), under: Some(case.under()), ..Expected::default() }
}

fn bursts(seed: u64) -> Plan {
    let shape = Shape::Bursts { identifier: 1, requests: 200, every_ms: 1_500, over_ms: 20 };
    plan(
        seed,
        Topology::region(5),
        vec![Rule::new(200, 5_000)],
        vec![source(shape), spread(10, 50.0)],
        20_000,
    )
}

fn one_flooded(seed: u64) -> Plan {
    let burst = |requests| source(Shape::Bursts { identifier: 1, requests, every_ms: 200_000, over_ms: 8 });
    let flooded = Traffic { at: vec![(0, 0)], ..burst(3_000) };
    let others = Traffic { at: (1..5).map(|envoy| (0, envoy)).collect(), ..burst(190) };
    plan(seed, Topology::region(5), vec![Rule::new(1_000, 60_000)], vec![flooded, others], 20_000)
}

fn one_flooded_expected(_: &Plan) -> Expected {
    // The burst is faster than any report of the others' use, so the load is that of a window of 8 ms.
    within(&Case { regions: 1, envoys: 5, limit: 1_000, window_ms: 8, load: 3.19 })
}

/// One Envoy, so that only the rule's formula has an effect.
fn window_end(seed: u64, hard_limit: bool) -> Plan {
    let rule = Rule { hard_limit, ..Rule::new(200, 2_000) };
    let shape = Shape::WindowEnd { identifier: 1, limit: 200, window_ms: 2_000, rate: 1_000.0 };
    plan(seed, Topology::region(1), vec![rule], vec![source(shape)], 18_000)
}

fn under_floor(seed: u64) -> Plan {
    let topology = Topology { regions: 10, ..Topology::region(1) };
    let shape = Shape::UnderFloor { identifier: 1, requests: 49, window_ms: 60_000 };
    plan(seed, topology, vec![Rule::new(100, 60_000)], vec![source(shape)], 180_000)
}

fn under_floor_expected(_: &Plan) -> Expected {
    // Without an exchange all requests would pass: ten times 49 of 100 in any window with one burst.
    Expected { over: Some(0.15), worst_window: Some(1.2), ..Expected::default() }
}

fn many_identifiers(seed: u64) -> Plan {
    let topology = Topology { buckets: 64, keys_per_bucket: 8, ..Topology::region(3) };
    let fresh = source(Shape::Fresh { from: 1 << 40, rate: 1_000.0 });
    let rules = vec![Rule { trust_first: true, ..Rule::new(20, 10_000) }];
    plan(seed, topology, rules, vec![spread(5_000, 1_000.0), fresh, steady(1, 10.0)], 12_000)
}

fn ten_regions(seed: u64) -> Plan {
    let topology = Topology { regions: 10, ..Topology::region(1) };
    plan(seed, topology, vec![Rule::new(2_000, 300_000)], vec![steady(1, 10.0)], 400_000)
}

fn ten_regions_expected(_: &Plan) -> Expected {
    within(&Case { regions: 10, envoys: 1, limit: 2_000, window_ms: 300_000, load: 1.5 })
}

fn zipf_million(seed: u64) -> Plan {
    let topology = Topology { buckets: 16_384, ..Topology::region(3) };
    let rules = vec![Rule { trust_first: true, ..Rule::new(100, 10_000) }];
    let shape = Shape::Zipf { identifiers: 1_000_000, exponent: 1.0, rate: 5_000.0 };
    plan(seed, topology, rules, vec![source(shape)], 30_000)
}

fn slow_flood(seed: u64) -> Plan {
    const HOUR_MS: u64 = 3_600_000;
    // The keys are three times what the tables and the region can hold.
    let topology = Topology { region_keys: 20_000, ..Topology::region(2) };
    let newcomers = |from, rate| source(Shape::Fresh { from, rate });
    let traffic = vec![newcomers(1 << 40, 4.0), newcomers(1 << 50, 0.5), steady(1, 0.1)];
    plan(seed, topology, vec![Rule::new(5, 31 * 24 * HOUR_MS)], traffic, 4 * HOUR_MS)
}

fn day(seed: u64) -> Plan {
    const DAY_MS: u64 = 24 * 3_600_000;
    let topology = Topology { workers: 1, ..Topology::region(2) };
    let rules = vec![Rule::new(1_000, 3_600_000), Rule::new(20, 60_000)];
    let both = Traffic { rules: 3, ..spread(10, 1.0) };
    plan(seed, topology, rules, vec![both], DAY_MS)
}
