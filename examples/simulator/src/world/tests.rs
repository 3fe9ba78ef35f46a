//! Small worlds: without faults, with much traffic, and with each kind of fault.

use super::*;
use crate::measure::observe::{Decided, Verdict};
use crate::plan::{Fault, Link, Network as Speeds, Part, Rule, Schedule, Topology, Wrong};

fn plan(seed: u64, topology: Topology, rules: Vec<Rule>, traffic_ms: u64) -> Plan {
    Plan {
        seed,
        topology,
        rules,
        traffic: Vec::new(),
        faults: Vec::new(),
        network: Speeds::default(),
        schedule: Schedule::default(),
        settle_ms: 3_000,
        traffic_ms,
        calls: None,
        quiet_ms: 15_000,
    }
}

/// Random arrivals for a few identifiers at all Envoys, `a_second` per second.
fn steady(plan: &Plan, identifiers: u64, a_second: f64) -> Vec<Arrival> {
    let mut chance = Random::new(plan.seed).fork("test traffic", 0);
    let topology = plan.topology;
    let mut at_us = 0.0;
    let mut arrivals = Vec::new();
    loop {
        at_us += chance.exponential(1_000_000.0 / a_second);
        if at_us as u64 >= plan.traffic_ms * 1_000 {
            return arrivals;
        }
        arrivals.push(Arrival {
            at_us: at_us as u64,
            region: chance.below(topology.regions as u64) as u16,
            envoy: chance.below(topology.envoys as u64) as u16,
            worker: chance.below(topology.workers as u64) as u16,
            identifier: chance.below(identifiers),
            cost: 1,
            rules: u64::MAX,
        });
    }
}

#[derive(Default)]
struct Counters {
    arrived: u64,
    admitted: u64,
    others: u64,
    text: String,
}

impl Observer for Counters {
    fn arrived(&mut self, _: &Arrival) {
        self.arrived += 1;
    }

    fn decided(&mut self, decided: &Decided) {
        use std::fmt::Write;
        match decided.verdict {
            Verdict::Admitted => self.admitted += 1,
            _ => self.others += 1,
        }
        writeln!(self.text, "{decided:?}").unwrap();
    }
}

fn run(plan: &Plan, arrivals: Vec<Arrival>) -> (Counters, Figures) {
    let mut counters = Counters::default();
    let mut world = World::with_arrivals(plan, arrivals.into_iter());
    let figures = world.run(&mut counters);
    (counters, figures)
}

#[test]
fn a_world_without_faults_converges() {
    let plan = plan(1, Topology::region(3), vec![Rule::new(100, 60_000)], 20_000);
    let (counters, figures) = run(&plan, steady(&plan, 3, 20.0));
    assert_eq!(figures.violations, []);
    assert_eq!(counters.arrived, counters.admitted + counters.others);
    assert!(counters.admitted > 250 && counters.admitted < 310, "{}", counters.admitted);
    assert!(figures.convergence.count > 10 && figures.convergence.p50 < 200, "{:?}", figures.convergence);
}

#[test]
fn the_same_seed_gives_the_same_decisions_and_figures() {
    let plan = plan(7, Topology::region(3), vec![Rule::new(20, 5_000), Rule::new(50, 60_000)], 10_000);
    let (first, again) = (run(&plan, steady(&plan, 5, 50.0)), run(&plan, steady(&plan, 5, 50.0)));
    assert_eq!(first.0.text, again.0.text);
    assert_eq!(first.1, again.1);
    let other = Plan { seed: 8, ..plan.clone() };
    assert_ne!(first.0.text, run(&other, steady(&plan, 5, 50.0)).0.text);
}

fn topology(regions: usize, aggregators: usize, envoys: usize) -> Topology {
    Topology { regions, aggregators, ..Topology::region(envoys) }
}

/// Runs a plan that must have no violation.
fn run_without_violation(plan: &Plan, identifiers: u64, a_second: f64) -> (Counters, Figures) {
    let (counters, figures) = run(plan, steady(plan, identifiers, a_second));
    let first: Vec<_> = figures.violations.iter().take(5).collect();
    assert!(first.is_empty(), "{} violations: {first:#?} of {:?}", figures.violations.len(), plan.faults);
    (counters, figures)
}

#[test]
fn no_kind_of_fault_violates_an_invariant() {
    let envoy = Part::Envoy { region: 0, envoy: 1 };
    let worker = Part::Worker { region: 0, envoy: 1, worker: 1 };
    let aggregator = Part::Aggregator { region: 0, aggregator: 0 };
    let redis = Part::Redis { region: 0 };
    let streams = Link::Streams { region: 0, envoy: None, aggregator: None };
    let one_stream = Link::Streams { region: 0, envoy: Some(1), aggregator: None };
    let to_redis = Link::Redis { region: 0, aggregator: None };
    let peers = Link::Peers { region: 0 };
    let database = Link::Database { region: None };
    let mut faults = vec![
        Wrong::Skew { part: envoy, ms: 2_000 },
        Wrong::Skew { part: aggregator, ms: -2_000 },
        Wrong::Slow { part: redis, ms: 30 },
        Wrong::Slow { part: Part::Database, ms: 3_000 },
        Wrong::Wipe { part: redis },
        Wrong::Wipe { part: Part::Database },
        Wrong::Rebuild { part: envoy },
        Wrong::Roll { region: 0 },
    ];
    for link in [streams, one_stream, to_redis, peers, database] {
        faults.extend([
            Wrong::Delay { link, ms: 40 },
            Wrong::Lose { link, per_mille: 20 },
            Wrong::Repeat { link, per_mille: 200 },
            Wrong::Reorder { link },
            Wrong::Cut { link },
        ]);
    }
    for part in [envoy, worker, aggregator, redis, Part::Database] {
        faults.extend([Wrong::Freeze { part }, Wrong::Crash { part }, Wrong::Restart { part }]);
    }
    faults.extend([Wrong::FailOver { region: 0 }, Wrong::SetBack { region: 0 }]);
    let mut bad = Vec::new();
    for (number, what) in faults.into_iter().enumerate() {
        for topology in [topology(1, 1, 3), topology(1, 3, 3), topology(2, 1, 2), topology(2, 2, 2)] {
            let rules = vec![Rule::new(60, 300_000), Rule::new(1_000, 300_000)];
            let mut plan = plan(number as u64, topology, rules, 20_000);
            plan.quiet_ms = 80_000;
            plan.faults = vec![Fault { at_ms: 5_000, for_ms: 6_000, what }];
            let (_, figures) = run(&plan, steady(&plan, 4, 40.0));
            if let Some(first) = figures.violations.first() {
                let count = figures.violations.len();
                bad.push(format!("{what:?} in {topology:?}: {count}, first {first:?}"));
            }
        }
    }
    assert!(bad.is_empty(), "{}:\n{}", bad.len(), bad.join("\n"));
}

#[test]
fn aggregators_of_a_region_converge() {
    let plan = plan(2, topology(1, 3, 3), vec![Rule::new(100, 60_000)], 20_000);
    let (counters, figures) = run_without_violation(&plan, 3, 20.0);
    assert!(counters.admitted > 250 && counters.admitted < 310, "{}", counters.admitted);
    assert!(figures.convergence.p50 < 300, "{:?}", figures.convergence);
    assert!(figures.redis_commands > 100 && figures.messages > 10);
}

#[test]
fn regions_exchange_counts() {
    let mut plan = plan(3, topology(3, 1, 2), vec![Rule::new(200, 300_000)], 60_000);
    plan.quiet_ms = 60_000;
    let (_, figures) = run_without_violation(&plan, 2, 10.0);
    assert!((500..5_000).contains(&figures.convergence.max), "{:?}", figures.convergence);
    let plan = Plan { topology: topology(2, 2, 2), ..plan };
    run_without_violation(&plan, 2, 10.0);
}

/// A random plan within bounds.
fn random_plan(seed: u64) -> Plan {
    let mut chance = Random::new(seed).fork("plan", 0);
    let topology =
        topology(1 + chance.below(2) as usize, 1 + chance.below(3) as usize, 1 + chance.below(4) as usize);
    let rules = vec![
        Rule::new(5 + chance.below(100), 300_000),
        Rule {
            shadow: chance.per_mille(300),
            ..Rule::new(5 + chance.below(30), 1_000 + 1_000 * chance.below(5))
        },
    ];
    let mut plan = plan(seed, topology, rules, 15_000);
    plan.quiet_ms = 70_000;
    for _ in 0..chance.below(4) {
        let at_ms = chance.below(12_000);
        let for_ms = 100 + chance.below(4_000);
        plan.faults.push(Fault { at_ms, for_ms, what: random_wrong(&mut chance, topology) });
    }
    plan
}

fn random_wrong(chance: &mut Random, topology: Topology) -> Wrong {
    let region = chance.below(topology.regions as u64) as usize;
    let envoy = chance.below(topology.envoys as u64) as usize;
    let aggregator = chance.below(topology.aggregators as u64) as usize;
    let worker = chance.below(topology.workers as u64 + 1) as usize;
    let part = match chance.below(6) {
        0 | 1 => Part::Envoy { region, envoy },
        2 => Part::Worker { region, envoy, worker },
        3 => Part::Aggregator { region, aggregator },
        4 => Part::Redis { region },
        _ => Part::Database,
    };
    let link = match chance.below(5) {
        0 => Link::Streams { region, envoy: Some(envoy), aggregator: None },
        1 => Link::Streams { region, envoy: None, aggregator: Some(aggregator) },
        2 => Link::Redis { region, aggregator: Some(aggregator) },
        3 => Link::Peers { region },
        _ => Link::Database { region: Some(region) },
    };
    match chance.below(11) {
        0 => Wrong::Delay { link, ms: chance.below(100) },
        1 => Wrong::Lose { link, per_mille: chance.below(50) },
        2 => Wrong::Repeat { link, per_mille: chance.below(300) },
        3 => Wrong::Reorder { link },
        4 => Wrong::Cut { link },
        5 => Wrong::Freeze { part },
        6 => Wrong::Crash { part },
        7 => Wrong::Restart { part },
        8 => Wrong::Rebuild { part: Part::Envoy { region, envoy } },
        9 => Wrong::Roll { region },
        _ => Wrong::Slow { part: Part::Redis { region }, ms: chance.below(60) },
    }
}

#[test]
fn random_faults_violate_no_invariant() {
    let mut bad = Vec::new();
    for seed in 0..40 {
        let plan = random_plan(seed);
        let (_, figures) = run(&plan, steady(&plan, 4, 40.0));
        if let Some(first) = figures.violations.first() {
            let (count, faults) = (figures.violations.len(), &plan.faults);
            bad.push(format!("seed {seed}: {count}, first {first:?} of {:?} with {faults:?}", plan.topology));
        }
    }
    assert!(bad.is_empty(), "{}:\n{}", bad.len(), bad.join("\n"));
}

/// Requests that pass, by identifier.
#[derive(Default)]
struct Passed(std::collections::BTreeMap<u64, u64>);

impl Observer for Passed {
    fn decided(&mut self, decided: &Decided) {
        if decided.verdict == Verdict::Admitted {
            *self.0.entry(decided.arrival.identifier).or_default() += 1;
        }
    }
}

/// Of each identifier one Envoy uses somewhat less than half of the limit. Where the other Envoy has another aggregator, that does not have
/// it. Redis loses all data, and at once the other Envoy uses as much as it can.
#[test]
fn what_redis_has_lost_passes_once_more_at_most_until_it_is_written_again() {
    const LIMIT: u64 = 100;
    let burst = |envoy: u16, from_ms: u64, requests: u64, every_us: u64| {
        (0..requests).flat_map(move |turn| {
            (0..20).map(move |identifier| Arrival {
                at_us: from_ms * 1_000 + turn * every_us + identifier,
                region: 0,
                envoy,
                worker: 0,
                identifier,
                cost: 1,
                rules: u64::MAX,
            })
        })
    };
    let most = |seed: u64, wipe_ms: Option<u64>| {
        let topology = Topology { workers: 1, ..topology(1, 2, 2) };
        let mut plan = plan(seed, topology, vec![Rule::new(LIMIT, 3_600_000)], 20_000);
        let wipe = |at_ms| Fault { at_ms, for_ms: 0, what: Wrong::Wipe { part: Part::Redis { region: 0 } } };
        plan.faults = wipe_ms.into_iter().map(wipe).collect();
        let arrivals =
            burst(0, 500, 45, 60_000).chain(burst(1, 8_000, 150, 400)).chain(burst(0, 12_000, 60, 10_000));
        let mut passed = Passed::default();
        let figures = World::with_arrivals(&plan, arrivals.collect::<Vec<_>>().into_iter()).run(&mut passed);
        assert_eq!(figures.violations, []);
        passed.0.into_values().max().unwrap()
    };
    let found =
        [None, Some(7_999), Some(8_010)].map(|wipe_ms| (0..8).map(|seed| most(seed, wipe_ms)).max().unwrap());
    assert_eq!(found[0], LIMIT, "nothing is lost");
    assert!((LIMIT..LIMIT + LIMIT / 2).contains(&found[1]), "{} of {LIMIT}", found[1]);
    assert_eq!(found[2], LIMIT, "the other Envoy had queried it before");
}

/// Losses follow each other, so that the aggregator that has the counts pauses before it writes them again. Meanwhile the other one starts,
/// whose Envoys have evidence of them.
#[test]
fn an_aggregator_that_starts_counts_nothing_twice_that_its_peer_has_still_to_write() {
    for seed in 0..6 {
        let mut plan = plan(seed, topology(1, 2, 3), vec![Rule::new(5_000, 3_600_000)], 80_000);
        let redis = Part::Redis { region: 0 };
        let wipe =
            |number| Fault { at_ms: 3_000 + number * 400, for_ms: 0, what: Wrong::Wipe { part: redis } };
        plan.faults = (0..90_u64).map(wipe).collect();
        let part = Part::Aggregator { region: 0, aggregator: 1 };
        plan.faults.push(Fault { at_ms: 100, for_ms: 39_600, what: Wrong::Crash { part } });
        // An Envoy connects again, perhaps to the one that has started, and sends what it has received of the others' use.
        let streams = Link::Streams { region: 0, envoy: Some(1), aggregator: None };
        let lose = Wrong::Lose { link: streams, per_mille: 200 };
        plan.faults.push(Fault { at_ms: 40_000, for_ms: 1_000, what: lose });
        let mut passed = Passed::default();
        let early = steady(&Plan { traffic_ms: 16_000, ..plan.clone() }, 40, 60.0);
        let mut world = World::with_arrivals(&plan, early.into_iter());
        assert_eq!(world.run(&mut passed).violations, []);
        let counted: u64 = world.redis[0].cells.values().flat_map(|cell| cell.parts.values()).sum();
        let passed: u64 = passed.0.values().sum();
        // A grant that was lost may be in a baseline.
        assert!((passed..=passed + passed / 50).contains(&counted), "seed {seed}: {counted} of {passed}");
    }
}
