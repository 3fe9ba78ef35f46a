//! Plans drawn from the seed: small, so that a failure can be understood, and with many requests per key, so that
//! failures occur.

use super::scenario::{QUIET_MS, QUIET_REGIONS_MS, source};
use crate::plan::traffic::{Shape, Traffic};
use crate::plan::{Exact, Fault, Link, Network, Part, Plan, Rule, Schedule, Topology, Wrong};
use crate::random::Random;

/// Longest additional delay of messages on streams, in milliseconds, in plans whose checkers are exact.
const MOST_DELAY_MS: u64 = 10;

/// Least quiet time after the traffic, in milliseconds, if limits are exact.
const QUIET_EXACT_MS: u64 = 15_000;

/// The plan of a seed with tables that hold every key. For these plans the checkers are exact.
pub(super) fn plan(seed: u64) -> Plan {
    let mut plan = wild(seed);
    let holds_all = Topology::region(1).region_keys;
    plan.topology = Topology { buckets: 4_096, keys_per_bucket: 8, region_keys: holds_all, ..plan.topology };
    for fault in &mut plan.faults {
        // An Envoy's clock follows the time that the aggregator echoes, and may be wrong by half of the echo's delay.
        if let Wrong::Delay { link: Link::Streams { .. }, ms } = &mut fault.what {
            *ms = (*ms).min(MOST_DELAY_MS);
        }
    }
    plan
}

/// The plan of a seed with tables that are too small. The checkers do not track exactly what an Envoy evicted, so they
/// occasionally report a violation that is none.
pub(super) fn wild(seed: u64) -> Plan {
    let mut dice = Random::new(seed).fork("scenario", 0);
    let topology = topology(&mut dice);
    let rules: Vec<Rule> = (0..=dice.below(3)).map(|_| rule(&mut dice)).collect();
    let traffic_ms = 4_000 + dice.below(14_000) + if topology.regions > 1 { 30_000 } else { 0 };
    let masks = (1u64 << rules.len()) - 1;
    let mut traffic: Vec<Traffic> =
        (0..=dice.below(3)).map(|_| traffic_of(&mut dice, &rules, masks, traffic_ms)).collect();
    // One identifier always reaches the limit of the first rule.
    let rate = (2_000.0 * rules[0].limit as f64 / rules[0].window_ms as f64).min(300.0);
    traffic.push(source(Shape::Steady { identifier: 0, rate }));
    let faults = (0..dice.below(5)).map(|_| fault(&mut dice, &topology, traffic_ms)).collect();
    let mut plan = Plan {
        seed,
        topology,
        rules,
        traffic,
        faults,
        network: Network::default(),
        schedule: Schedule::default(),
        settle_ms: 3_000,
        traffic_ms,
        calls: None,
        quiet_ms: if topology.regions > 1 { QUIET_REGIONS_MS } else { QUIET_MS },
    };
    vary(&mut plan, &mut Random::new(seed).fork("scenario", 1));
    plan
}

/// As `wild`, with four places in each table and without faults.
pub(super) fn crowded(seed: u64) -> Plan {
    let plan = wild(seed);
    let topology = Topology { buckets: 2, keys_per_bucket: 2, ..plan.topology };
    Plan { topology, faults: Vec::new(), ..plan }
}

/// Adds rarer features. They are drawn from another generator, so that the rest of a seed's plan does not depend on
/// them.
fn vary(plan: &mut Plan, dice: &mut Random) {
    let topology = plan.topology;
    let region = below(dice, topology.regions);
    if dice.per_mille(150) {
        respond(plan, dice);
    }
    if dice.per_mille(200) {
        hold_exactly(plan, dice);
    }
    if dice.per_mille(100) {
        plan.topology.region_keys = one_of(dice, &[1, 4, 64]);
    }
    if dice.per_mille(150) {
        let (envoy, worker) = (below(dice, topology.envoys), below(dice, topology.workers + 1));
        let what = Wrong::Cut { link: Link::Worker { region, envoy, worker } };
        plan.faults.push(Fault { what, ..fault(dice, &topology, plan.traffic_ms) });
    }
    if topology.aggregators > 1 && dice.per_mille(200) {
        // From the beginning, like the programs of a machine with a wrong clock, or from a random moment.
        let at_ms = if dice.per_mille(500) { 0 } else { dice.below(plan.traffic_ms) };
        let windows_ms = one_of(dice, &plan.rules).window_ms * 2;
        let ms = i64::try_from(windows_ms + dice.below(windows_ms)).unwrap_or(0);
        let ms = if dice.per_mille(500) { ms } else { -ms };
        let part = Part::Aggregator { region, aggregator: below(dice, topology.aggregators) };
        plan.faults.push(Fault { at_ms, for_ms: plan.traffic_ms, what: Wrong::Skew { part, ms } });
    }
    if topology.regions > 1 && dice.per_mille(300) {
        lose_rows(plan, dice);
    }
    if topology.aggregators > 1 && dice.per_mille(250) {
        let is_replica = dice.per_mille(700);
        let what = if is_replica { Wrong::FailOver { region } } else { Wrong::SetBack { region } };
        let for_ms = one_of(dice, &[0, 20, 100, 300, 3_000]);
        plan.faults.push(Fault { at_ms: dice.below(plan.traffic_ms), for_ms, what });
    }
    if plan.rules.iter().any(|rule| rule.exact.is_some()) && dice.per_mille(300) {
        let part = if dice.per_mille(500) { Part::Database } else { Part::Redis { region } };
        plan.faults.push(Fault { what: Wrong::Crash { part }, ..fault(dice, &topology, plan.traffic_ms) });
    }
}

/// The database needs so long for each statement that most losses meet packets under way.
fn lose_rows(plan: &mut Plan, dice: &mut Random) {
    let (part, traffic_ms) = (Part::Database, plan.traffic_ms);
    let slow = Wrong::Slow { part, ms: one_of(dice, &[300, 1_200]) };
    plan.faults.push(Fault { at_ms: 0, for_ms: traffic_ms, what: slow });
    for _ in 0..=dice.below(3) {
        let what = if dice.per_mille(500) { Wrong::Wipe { part } } else { Wrong::Restore { part } };
        plan.faults.push(Fault { what, ..fault(dice, &plan.topology, traffic_ms) });
    }
}

/// Makes some rules exact, held by a log or, if there is a database, by a ledger.
fn hold_exactly(plan: &mut Plan, dice: &mut Random) {
    let has_ledger = plan.topology.regions > 1;
    // A charge for a request that was denied in the end is refunded some seconds later.
    plan.quiet_ms = plan.quiet_ms.max(QUIET_EXACT_MS);
    for rule in plan.rules.iter_mut().filter(|rule| rule.reserve == 0) {
        let held = if has_ledger && dice.per_mille(500) { Exact::Ledger } else { Exact::Log };
        if dice.per_mille(600) {
            (rule.exact, rule.hard_limit) = (Some(held), false);
        }
    }
}

/// Lets the responses to one rule's requests state their cost, which is often below the reserve and seldom above it.
fn respond(plan: &mut Plan, dice: &mut Random) {
    let at = below(dice, plan.rules.len());
    let Some(rule) = plan.rules.get_mut(at) else { return };
    rule.reserve = one_of(dice, &[1, 4, 10]).min(rule.limit);
    rule.response_ms = one_of(dice, &[0, 50, 1_500]);
    if plan.topology.aggregators == 1 && dice.per_mille(600) {
        // The memory of the only aggregator has the granted cost; the spent cost is lower.
        let part = Part::Aggregator { region: below(dice, plan.topology.regions), aggregator: 0 };
        let what = if dice.per_mille(500) { Wrong::Crash { part } } else { Wrong::Restart { part } };
        plan.faults.push(Fault { what, ..fault(dice, &plan.topology, plan.traffic_ms) });
    }
}

fn one_of<T: Copy>(dice: &mut Random, some: &[T]) -> T {
    some[below(dice, some.len())]
}

fn below(dice: &mut Random, bound: usize) -> usize {
    usize::try_from(dice.below(bound as u64)).unwrap_or(0)
}

fn topology(dice: &mut Random) -> Topology {
    Topology {
        regions: one_of(dice, &[1, 1, 1, 2, 3]),
        aggregators: one_of(dice, &[1, 2, 2]),
        envoys: one_of(dice, &[1, 2, 3, 4]),
        workers: one_of(dice, &[1, 2, 3]),
        buckets: one_of(dice, &[2, 16, 1_024]),
        keys_per_bucket: one_of(dice, &[2, 8]),
        ..Topology::region(1)
    }
}

fn rule(dice: &mut Random) -> Rule {
    let limit = one_of(dice, &[1, 2, 5, 10, 50, 100, 1_000]);
    Rule {
        hard_limit: dice.per_mille(200),
        timeout_ms: one_of(dice, &[20, 50, 50, 200]),
        deny_on_failure: dice.per_mille(250),
        trust_first: dice.per_mille(250),
        shadow: dice.per_mille(150),
        ..Rule::new(limit, one_of(dice, &[1_000, 2_000, 5_000, 10_000, 60_000]))
    }
}

fn traffic_of(dice: &mut Random, rules: &[Rule], masks: u64, traffic_ms: u64) -> Traffic {
    let rate = one_of(dice, &[5.0, 50.0, 200.0]);
    let limit = one_of(dice, rules).limit;
    let window_ms = one_of(dice, rules).window_ms;
    let identifier = dice.below(3);
    let shape = match dice.below(8) {
        0 => Shape::Steady { identifier, rate },
        1 => Shape::Spread { identifiers: one_of(dice, &[3, 50, 2_000]), rate },
        2 => Shape::Bursts {
            identifier,
            requests: 1 + dice.below(100),
            every_ms: 1 + dice.below(3_000),
            over_ms: 10,
        },
        3 => Shape::WindowEnd { identifier, limit: limit.min(200), window_ms, rate },
        4 => Shape::UnderFloor { identifier, requests: limit.min(400).div_ceil(2), window_ms },
        5 => Shape::Zipf { identifiers: 10_000, exponent: 1.0, rate },
        6 => Shape::Fresh { from: 1 << 32, rate },
        _ => Shape::Steady { identifier: 0, rate },
    };
    let from_ms = if dice.per_mille(300) { dice.below(traffic_ms) } else { 0 };
    Traffic {
        from_ms,
        until_ms: dice.per_mille(300).then(|| from_ms + dice.below(traffic_ms)),
        rules: 1 + dice.below(masks),
        cost: one_of(dice, &[(1, 1), (1, 1), (0, 1), (1, 5)]),
        at: Vec::new(),
        shape,
    }
}

fn fault(dice: &mut Random, topology: &Topology, traffic_ms: u64) -> Fault {
    let at_ms = dice.below(traffic_ms);
    let for_ms = one_of(dice, &[0, 100, 1_000, 3_000, 8_000]);
    Fault { at_ms, for_ms, what: wrong(dice, topology) }
}

fn wrong(dice: &mut Random, topology: &Topology) -> Wrong {
    let region = below(dice, topology.regions);
    let envoy = Part::Envoy { region, envoy: below(dice, topology.envoys) };
    let aggregator = Part::Aggregator { region, aggregator: below(dice, topology.aggregators) };
    let link = link(dice, topology, region);
    let part = part(dice, topology, region);
    let store =
        if topology.regions > 1 && dice.per_mille(500) { Part::Database } else { Part::Redis { region } };
    let process = if dice.per_mille(500) { envoy } else { aggregator };
    match dice.below(14) {
        0 => Wrong::Delay { link, ms: one_of(dice, &[5, 60, 500]) },
        1 => Wrong::Lose { link, per_mille: one_of(dice, &[5, 50, 500]) },
        2 => Wrong::Repeat { link, per_mille: one_of(dice, &[50, 500]) },
        3 => Wrong::Reorder { link },
        4 => Wrong::Cut { link },
        5 => Wrong::Freeze { part },
        6 => Wrong::Crash { part: process },
        7 => Wrong::Restart { part: process },
        8 => Wrong::Wipe { part: store },
        9 => {
            let ms = i64::try_from(dice.below(8_000)).unwrap_or(0) - 4_000;
            Wrong::Skew { part: process, ms }
        }
        10 => Wrong::Slow { part: store, ms: one_of(dice, &[20, 300, 3_000]) },
        11 => Wrong::Rebuild { part: envoy },
        12 => Wrong::Roll { region },
        _ => Wrong::Flood { part: envoy, identifiers: one_of(dice, &[50, 1_000]) },
    }
}

fn part(dice: &mut Random, topology: &Topology, region: usize) -> Part {
    let envoy = below(dice, topology.envoys);
    match dice.below(5) {
        0 => Part::Envoy { region, envoy },
        1 => Part::Worker { region, envoy, worker: below(dice, topology.workers + 1) },
        2 => Part::Aggregator { region, aggregator: below(dice, topology.aggregators) },
        3 => Part::Redis { region },
        _ => Part::Database,
    }
}

fn link(dice: &mut Random, topology: &Topology, region: usize) -> Link {
    let aggregator = Some(below(dice, topology.aggregators)).filter(|_| dice.per_mille(500));
    let envoy = Some(below(dice, topology.envoys)).filter(|_| dice.per_mille(500));
    match dice.below(5) {
        0 | 1 => Link::Streams { region, envoy, aggregator },
        2 => Link::Redis { region, aggregator },
        3 => Link::Peers { region },
        _ => Link::Database { region: Some(region) },
    }
}
