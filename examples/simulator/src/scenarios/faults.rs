//! One scenario for each kind of fault, in otherwise equal worlds.

use super::scenario::{Scenario, plan, spread, steady};
use crate::plan::traffic::Traffic;
use crate::plan::{ApiCalls, Exact, Fault, Link, Part, Plan, Rule, Topology, Wrong};
use crate::run::Expected;

const STREAMS: Link = Link::Streams { region: 0, envoy: None, aggregator: None };
const SOME_STREAMS: Link = Link::Streams { region: 0, envoy: Some(1), aggregator: Some(0) };
const AGGREGATOR: Part = Part::Aggregator { region: 0, aggregator: 0 };
const ENVOY: Part = Part::Envoy { region: 0, envoy: 0 };
const REDIS: Part = Part::Redis { region: 0 };
const TO_REDIS: Link = Link::Redis { region: 0, aggregator: None };
const TO_DATABASE: Link = Link::Database { region: None };

pub(super) const ALL: &[Scenario] = &[
    Scenario::new("delay", "frames are delayed by up to 300 ms", |seed| {
        region(seed, Wrong::Delay { link: STREAMS, ms: 300 })
    }),
    Scenario::new(
        "loss",
        "streams break repeatedly, and messages to Redis and between aggregators are lost",
        |seed| {
            let mut plan = region(seed, Wrong::Lose { link: STREAMS, per_mille: 5 });
            plan.faults.extend(
                [TO_REDIS, Link::Peers { region: 0 }]
                    .map(|link| during(Wrong::Lose { link, per_mille: 200 })),
            );
            plan
        },
    ),
    Scenario::new("repeats", "messages to Redis and between aggregators are delivered twice", |seed| {
        let mut plan = region(seed, Wrong::Repeat { link: Link::Peers { region: 0 }, per_mille: 500 });
        plan.faults.push(during(Wrong::Repeat { link: TO_REDIS, per_mille: 500 }));
        plan
    }),
    Scenario::new("reordering", "messages between aggregators overtake each other", |seed| {
        let mut plan = region(seed, Wrong::Reorder { link: Link::Peers { region: 0 } });
        plan.faults.push(during(Wrong::Delay { link: Link::Peers { region: 0 }, ms: 500 }));
        plan
    }),
    Scenario::new(
        "partition-streams",
        "no message passes between an Envoy and an aggregator, and neither is notified",
        |seed| region(seed, Wrong::Cut { link: SOME_STREAMS }),
    ),
    Scenario::new("partition-redis", "one of two aggregators cannot reach Redis", |seed| {
        region(seed, Wrong::Cut { link: Link::Redis { region: 0, aggregator: Some(0) } })
    }),
    Scenario::new("partition-database", "one region cannot reach the database for four intervals", |seed| {
        regions(seed, Wrong::Cut { link: Link::Database { region: Some(0) } })
    }),
    Scenario::new(
        "freeze-aggregator",
        "an aggregator stops for four seconds, then continues with its state",
        |seed| region(seed, Wrong::Freeze { part: AGGREGATOR }),
    ),
    Scenario::new("freeze-worker", "a worker stops with its leases and reserves, then continues", |seed| {
        region(seed, Wrong::Freeze { part: Part::Worker { region: 0, envoy: 0, worker: 1 } })
    }),
    Scenario::new("freeze-redis", "Redis does not reply for four seconds", |seed| {
        region(seed, Wrong::Freeze { part: REDIS })
    }),
    Scenario::new("crash-aggregator", "an aggregator crashes and loses its memory", |seed| {
        region(seed, Wrong::Crash { part: AGGREGATOR })
    }),
    Scenario::new(
        "crash-only-aggregator",
        "the only aggregator of a region without a store crashes and loses its memory",
        |seed| {
            let mut plan = region(seed, Wrong::Crash { part: AGGREGATOR });
            plan.topology.aggregators = 1;
            plan
        },
    ),
    Scenario::new("crash-envoy", "an Envoy crashes and loses its table", |seed| {
        region(seed, Wrong::Crash { part: ENVOY })
    }),
    Scenario::new("restart-aggregator", "an aggregator shuts down in order and is replaced", |seed| {
        region(seed, Wrong::Restart { part: AGGREGATOR })
    }),
    Scenario::new("wipe-redis", "Redis loses all data three times", |seed| {
        let mut plan = region(seed, Wrong::Wipe { part: REDIS });
        plan.faults = [3_000, 3_050, 8_000]
            .map(|at_ms| Fault { at_ms, ..during(Wrong::Wipe { part: REDIS }) })
            .to_vec();
        plan
    }),
    Scenario::new("failover-redis", "Redis is replaced by a replica that lacks the last 12 ms", |seed| {
        let what = Wrong::FailOver { region: 0 };
        let ends = [3_000, 5_000, 7_000].map(|at_ms| Fault { at_ms, for_ms: 12, what });
        let last = Fault { at_ms: 11_850 + seed % 130, for_ms: 12, what };
        at_rest(seed, ends.into_iter().chain([last]).collect())
    }),
    Scenario::new(
        "set-back-redis-12ms",
        "Redis is set back by 12 ms, less than the time between two looks at its marker",
        |seed| {
            let what = Wrong::SetBack { region: 0 };
            let ends = [3_000, 5_000, 7_000].map(|at_ms| Fault { at_ms, for_ms: 12, what });
            let last = Fault { at_ms: 11_850 + seed % 130, for_ms: 12, what };
            at_rest(seed, ends.into_iter().chain([last]).collect())
        },
    ),
    Scenario::new(
        "set-back-redis-in-pipeline",
        "a slow Redis is set back by 12 ms, between the commands of pipelines that need 16 ms",
        |seed| {
            let what = Wrong::SetBack { region: 0 };
            let slow = Wrong::Slow { part: REDIS, ms: 16 };
            let ends = [3_000, 5_000, 7_000].map(|at_ms| Fault { at_ms, for_ms: 12, what });
            let last = Fault { at_ms: 11_850 + seed % 130, for_ms: 12, what };
            let slow = Fault { at_ms: 0, for_ms: 12_000, what: slow };
            at_rest(seed, ends.into_iter().chain([last, slow]).collect())
        },
    )
    .expecting(|_| Expected { set_backs: Some(1), ..Expected::default() }),
    Scenario::new(
        "set-back-redis",
        "Redis is set back to older data, and loses all data soon after that was found",
        |seed| {
            let set_back = |at_ms| Fault { at_ms, for_ms: 400, what: Wrong::SetBack { region: 0 } };
            let wipe = |at_ms| Fault { at_ms, for_ms: 0, what: Wrong::Wipe { part: REDIS } };
            let after_ms = 60 + 5 * (seed % 25);
            let faults = [3_000, 11_400].map(|at_ms| [set_back(at_ms), wipe(at_ms + 400 + after_ms)]);
            at_rest(seed, faults.into_iter().flatten().collect())
        },
    ),
    Scenario::new(
        "wipe-between-messages",
        "Redis loses all data while messages of an aggregator that has crashed are on their way to its peer",
        |seed| {
            let late = Wrong::Delay { link: Link::Peers { region: 0 }, ms: 500 };
            let at_ms = 11_700 + 20 * (seed % 9);
            let crash = Fault { at_ms, for_ms: 300, what: Wrong::Crash { part: AGGREGATOR } };
            let wipe = Fault { at_ms: at_ms + 1, for_ms: 0, what: Wrong::Wipe { part: REDIS } };
            at_rest(seed, vec![Fault { at_ms: 0, for_ms: 12_000, what: late }, crash, wipe])
        },
    ),
    Scenario::new("wipe-database", "the database loses all data", |seed| {
        regions(seed, Wrong::Wipe { part: Part::Database })
    }),
    Scenario::new(
        "wipe-database-in-packets",
        "a slow database loses all data while packets are under way, the last time shortly before the traffic ends",
        wipes_in_packets,
    ),
    Scenario::new(
        "restore-database",
        "the database is set back to what it held some seconds before",
        |seed| regions(seed, Wrong::Restore { part: Part::Database }),
    ),
    Scenario::new(
        "clock-steps",
        "the clocks of an Envoy and an aggregator step, and later step back",
        |seed| {
            let mut plan = region(seed, Wrong::Skew { part: ENVOY, ms: 7_000 });
            let part = Part::Aggregator { region: 0, aggregator: 1 };
            plan.faults.push(during(Wrong::Skew { part, ms: -1_500 }));
            plan
        },
    ),
    Scenario::new(
        "clock-steps-ahead",
        "the clocks of both aggregators step ahead by ten seconds, while three Envoys share keys, and later back; one \
         of them restarts",
        |seed| {
            let mut plan = region(seed, Wrong::Skew { part: AGGREGATOR, ms: 10_000 });
            let part = Part::Aggregator { region: 0, aggregator: 1 };
            plan.faults.push(during(Wrong::Skew { part, ms: 10_000 }));
            plan.faults.push(during(Wrong::Restart { part }));
            plan
        },
    ),
    Scenario::new("slow-redis", "Redis needs 80 ms more for each call", |seed| {
        region(seed, Wrong::Slow { part: REDIS, ms: 80 })
    }),
    Scenario::new("slow-database", "the database needs 5 s more for each call", |seed| {
        regions(seed, Wrong::Slow { part: Part::Database, ms: 5_000 })
    }),
    Scenario::new(
        "exact-limits",
        "requests under a log, a ledger and a window, while calls to the stores and their replies are lost, and a Redis \
         stops",
        exact_limits,
    )
    .expecting(|_| Expected { unreached: Some(1), ..Expected::default() }),
    Scenario::new(
        "api-calls",
        "calls of the APIs under a log, a ledger and windows beside requests of Envoys, while calls to the stores are lost, \
         and an aggregator crashes",
        api_calls,
    )
    .expecting(|_| Expected { overturned: Some(20), unreached: Some(1), ..Expected::default() }),
    Scenario::new("listener", "a listener is removed and added", |seed| {
        region(seed, Wrong::Rebuild { part: ENVOY })
    }),
    Scenario::new("rolling-deployment", "all Envoys of a region are replaced one after another", |seed| {
        region(seed, Wrong::Roll { region: 0 })
    }),
    Scenario::new("key-flood", "5 000 new identifiers a second at one Envoy", |seed| {
        region(seed, Wrong::Flood { part: ENVOY, identifiers: 5_000 })
    }),
    Scenario::new(
        "global-delay",
        "statements to the database are delayed by up to a second and may overtake each other",
        |seed| {
            let mut plan = regions(seed, Wrong::Delay { link: TO_DATABASE, ms: 1_000 });
            plan.faults.push(Fault {
                at_ms: 5_000,
                for_ms: 40_000,
                what: Wrong::Reorder { link: TO_DATABASE },
            });
            plan
        },
    ),
];

/// Two regions of two aggregators each. Every limit denies a part of the requests, and each of the stores fails.
fn exact_limits(seed: u64) -> Plan {
    let topology = Topology { regions: 2, aggregators: 2, ..Topology::region(2) };
    let exact = |limit, kind| Rule {
        exact: Some(kind),
        deny_on_failure: true,
        timeout_ms: 300,
        ..Rule::new(limit, 5_000)
    };
    let rules = vec![exact(60, Exact::Log), exact(80, Exact::Ledger), Rule::new(100, 5_000)];
    let all = |traffic| Traffic { rules: 7, cost: (0, 3), ..traffic };
    let logs = Traffic { rules: 1, cost: (1, 2), ..spread(8, 60.0) };
    let mut plan =
        plan(seed, topology, rules, vec![all(steady(1, 40.0)), all(spread(20, 60.0)), logs], 30_000);
    let lost = |link| Fault { at_ms: 2_000, for_ms: 20_000, what: Wrong::Lose { link, per_mille: 100 } };
    plan.faults = vec![lost(TO_REDIS), lost(TO_DATABASE)];
    plan.faults.push(Fault { at_ms: 12_000, for_ms: 2_000, what: Wrong::Freeze { part: REDIS } });
    plan.faults.push(Fault { at_ms: 18_000, for_ms: 1_000, what: Wrong::Crash { part: REDIS } });
    plan.faults.push(Fault { at_ms: 24_000, for_ms: 20, what: Wrong::FailOver { region: 0 } });
    plan
}

/// The same regions with calls of the APIs.
fn api_calls(seed: u64) -> Plan {
    let (identifiers, within_ms) = (20, 300);
    let calls = ApiCalls { every_ms: 20, rules: 3, identifiers, cost: 2, within_ms, windows_per_mille: 150 };
    let mut plan = Plan { calls: Some(calls), ..exact_limits(seed) };
    plan.faults.push(Fault { at_ms: 8_000, for_ms: 500, what: Wrong::Crash { part: AGGREGATOR } });
    plan
}

fn during(what: Wrong) -> Fault {
    Fault { at_ms: 3_000, for_ms: 4_000, what }
}

/// The same region, with windows that last until all parts of it are at rest: what the last faults have lost shows.
fn at_rest(seed: u64, faults: Vec<Fault>) -> Plan {
    let mut plan = region(seed, Wrong::Roll { region: 0 });
    plan.rules.iter_mut().for_each(|rule| rule.window_ms = 300_000);
    plan.faults = faults;
    plan.quiet_ms = 20_000;
    plan
}

/// A region with two aggregators.
fn region(seed: u64, what: Wrong) -> Plan {
    let topology = Topology { aggregators: 2, ..Topology::region(3) };
    let rules = vec![Rule::new(200, 10_000), Rule::new(30, 60_000)];
    let both = Traffic { rules: 3, cost: (0, 2), ..spread(20, 60.0) };
    let mut plan = plan(seed, topology, rules, vec![steady(1, 40.0), both, spread(200, 200.0)], 12_000);
    plan.faults = vec![during(what)];
    plan
}

/// Most of the losses meet a packet whose rows are written and not yet read back.
fn wipes_in_packets(seed: u64) -> Plan {
    let part = Part::Database;
    let mut plan = regions(seed, Wrong::Slow { part, ms: 300 });
    plan.faults.iter_mut().for_each(|slow| slow.for_ms = 60_000);
    let wipe = |at_ms| Fault { at_ms: at_ms + seed % 25 * 37, for_ms: 0, what: Wrong::Wipe { part } };
    plan.faults.extend([20_000, 40_000, 57_000, 58_000, 59_000].map(wipe));
    plan
}

/// Three regions with one aggregator each.
fn regions(seed: u64, what: Wrong) -> Plan {
    let topology = Topology { regions: 3, ..Topology::region(1) };
    let rules = vec![Rule::new(300, 60_000)];
    let mut plan = plan(seed, topology, rules, vec![steady(1, 10.0), spread(20, 60.0)], 60_000);
    plan.faults = vec![Fault { at_ms: 5_000, for_ms: 40_000, what }];
    plan
}
