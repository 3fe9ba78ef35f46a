//! Situations in which simpler designs failed, considered or existing ones.

use super::scenario::{Scenario, plan, source, spread, steady};
use crate::accuracy::bounds::Case;
use crate::plan::traffic::{Shape, Traffic};
use crate::plan::{Fault, Link, Part, Plan, Rule, Topology, Wrong};
use crate::run::Expected;

pub(super) const ALL: &[Scenario] = &[
    Scenario::new(
        "figure-overtaken",
        "pushes of a region's total arrive late while an Envoy's own count grows: nothing counts twice or is lost",
        figure_overtaken,
    ),
    Scenario::new(
        "two-aggregators",
        "one Envoy's workers report to two aggregators, so neither receives all reports",
        two_aggregators,
    ),
    Scenario::new(
        "evicted-in-outage",
        "a full table evicts keys while no aggregator runs, and their requests resume afterwards",
        evicted_in_outage,
    ),
    Scenario::new(
        "rollback-seen",
        "requests of two rules reserve budget of one and are denied by the other, while other workers read the table",
        rollback_seen,
    ),
    Scenario::new("wipe-keeps-connections", "Redis loses all data and keeps its connections", |seed| {
        wiped(seed, &[wipe_redis(4_000)])
    }),
    Scenario::new(
        "death-before-wipe",
        "an Envoy crashes, then Redis loses the use that only this Envoy had spent",
        |seed| wiped(seed, &[crash_envoy(3_000), wipe_redis(4_000)]),
    ),
    Scenario::new(
        "death-after-wipe",
        "Redis loses all data, and an Envoy crashes before its resync is complete",
        |seed| wiped(seed, &[wipe_redis(3_000), crash_envoy(3_200)]),
    ),
    Scenario::new(
        "listener-rebuilt",
        "a listener is removed and added: its machine has a new node",
        listener_rebuilt,
    ),
    Scenario::new("lease-over-rollover", "workers hold leases while their cell ends", lease_over_rollover)
        .expecting(lease_expected),
    Scenario::new(
        "strict-storm",
        "ten times the limit with on_failure: deny, while the aggregator freezes for a second",
        strict_storm,
    ),
    Scenario::new(
        "flood-at-one",
        "thousands of identifiers with a limit of one request each, and a flood of new ones at one Envoy",
        flood_at_one,
    ),
    Scenario::new(
        "skew-2s",
        "the clocks of two Envoys are two seconds off, one ahead and one behind, with windows of one second",
        skew_2s,
    ),
];

fn figure_overtaken(seed: u64) -> Plan {
    let rules = vec![Rule::new(2_000, 10_000), Rule::new(50, 2_000)];
    let both = Traffic { rules: 3, ..steady(1, 150.0) };
    let mut plan = plan(seed, Topology::region(3), rules, vec![steady(1, 250.0), both], 12_000);
    let link = Link::Streams { region: 0, envoy: None, aggregator: None };
    plan.faults = vec![Fault { at_ms: 0, for_ms: 8_000, what: Wrong::Delay { link, ms: 150 } }];
    plan
}

fn two_aggregators(seed: u64) -> Plan {
    let topology = Topology { aggregators: 2, workers: 4, ..Topology::region(2) };
    plan(seed, topology, vec![Rule::new(500, 10_000)], vec![steady(1, 100.0), spread(20, 400.0)], 15_000)
}

fn evicted_in_outage(seed: u64) -> Plan {
    let topology = Topology { buckets: 4, keys_per_bucket: 2, ..Topology::region(2) };
    let early = Traffic { until_ms: Some(3_000), ..steady(7, 20.0) };
    let late = Traffic { from_ms: 9_000, ..steady(7, 20.0) };
    let crowd = Traffic { from_ms: 2_000, ..spread(500, 200.0) };
    let mut plan = plan(seed, topology, vec![Rule::new(50, 60_000)], vec![early, late, crowd], 14_000);
    let part = Part::Aggregator { region: 0, aggregator: 0 };
    plan.faults = vec![Fault { at_ms: 4_000, for_ms: 4_000, what: Wrong::Crash { part } }];
    plan
}

fn rollback_seen(seed: u64) -> Plan {
    let topology = Topology { workers: 4, ..Topology::region(2) };
    let rules = vec![Rule::new(100, 5_000), Rule::new(20, 5_000)];
    let both = Traffic { rules: 3, cost: (1, 3), ..steady(1, 60.0) };
    let second = Traffic { rules: 2, cost: (0, 2), ..steady(1, 10.0) };
    plan(seed, topology, rules, vec![both, second, steady(1, 60.0)], 15_000)
}

fn wipe_redis(at_ms: u64) -> Fault {
    Fault { at_ms, for_ms: 0, what: Wrong::Wipe { part: Part::Redis { region: 0 } } }
}

fn crash_envoy(at_ms: u64) -> Fault {
    Fault { at_ms, for_ms: 6_000, what: Wrong::Crash { part: Part::Envoy { region: 0, envoy: 0 } } }
}

fn wiped(seed: u64, faults: &[Fault]) -> Plan {
    let topology = Topology { aggregators: 2, ..Topology::region(3) };
    let rules = vec![Rule::new(400, 60_000)];
    let mut plan = plan(seed, topology, rules, vec![steady(1, 40.0), spread(30, 100.0)], 12_000);
    plan.faults = faults.to_vec();
    plan
}

fn listener_rebuilt(seed: u64) -> Plan {
    let rules = vec![Rule::new(200, 30_000)];
    let mut plan = plan(seed, Topology::region(2), rules, vec![steady(1, 30.0), spread(20, 100.0)], 12_000);
    let part = Part::Envoy { region: 0, envoy: 0 };
    let rebuilt = |at_ms| Fault { at_ms, for_ms: 500, what: Wrong::Rebuild { part } };
    plan.faults = vec![rebuilt(3_000), rebuilt(6_000)];
    plan
}

fn lease_over_rollover(seed: u64) -> Plan {
    let rules = vec![Rule::new(2_000, 2_000)];
    plan(seed, Topology::region(3), rules, vec![steady(1, 1_500.0)], 12_000)
}

fn lease_expected(_: &Plan) -> Expected {
    let case = Case { regions: 1, envoys: 3, limit: 2_000, window_ms: 2_000, load: 1.5 };
    Expected { over: Some(case.over()), under: Some(case.under()), ..Expected::default() }
}

fn strict_storm(seed: u64) -> Plan {
    let rule = Rule { deny_on_failure: true, ..Rule::new(100, 5_000) };
    let mut plan =
        plan(seed, Topology::region(5), vec![rule], vec![steady(1, 200.0), spread(5, 1_000.0)], 12_000);
    let part = Part::Aggregator { region: 0, aggregator: 0 };
    plan.faults = vec![Fault { at_ms: 5_000, for_ms: 1_000, what: Wrong::Freeze { part } }];
    plan
}

fn flood_at_one(seed: u64) -> Plan {
    let trusting = Rule { trust_first: true, ..Rule::new(1, 5_000) };
    let rules = vec![Rule::new(1, 10_000), trusting];
    let second = Traffic { rules: 2, ..spread(500, 300.0) };
    let bursts = source(Shape::Bursts { identifier: 9_999, requests: 50, every_ms: 1_000, over_ms: 20 });
    let mut plan = plan(seed, Topology::region(3), rules, vec![spread(2_000, 500.0), second, bursts], 10_000);
    let part = Part::Envoy { region: 0, envoy: 1 };
    plan.faults =
        vec![Fault { at_ms: 3_000, for_ms: 3_000, what: Wrong::Flood { part, identifiers: 1_000 } }];
    plan
}

fn skew_2s(seed: u64) -> Plan {
    let mut plan =
        plan(seed, Topology::region(3), vec![Rule::new(100, 1_000)], vec![steady(1, 150.0)], 12_000);
    let skew = |envoy, ms| {
        let part = Part::Envoy { region: 0, envoy };
        Fault { at_ms: 1_000, for_ms: 8_000, what: Wrong::Skew { part, ms } }
    };
    plan.faults = vec![skew(0, 2_000), skew(1, -2_000)];
    plan
}
