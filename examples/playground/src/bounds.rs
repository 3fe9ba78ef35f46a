//! Limits of what a tab can simulate, for a plan from any source: memory, and the range of the simulator's arithmetic.
//!
//! The duration of a run is not limited: it runs in a worker, reports its progress, and can be cancelled.

use weir_simulator::plan::traffic::{Shape, Traffic};
use weir_simulator::plan::{ApiCalls, Fault, Plan, Rule, Topology, Wrong};

/// The largest whole number that a script represents exactly.
pub const SAFE_MAX: u64 = (1 << 53) - 1;
/// Most rules of a plan. A page selects rules by the bits of a number that a script represents exactly.
pub const RULES_MAX: usize = 50;

const SECOND_MS: u64 = 1_000;
const DAY_MS: u64 = 86_400_000;
const LONGEST_MS: u64 = 3 * DAY_MS;
/// The filter's longest window.
const WINDOW_MS_MAX: u64 = weir_core::model::key::MAX_DURATION_MS;
/// The exact log stores each request for as long as a window.
const REQUESTS_MAX: f64 = 20_000_000.0;
/// Most arrivals that a link lists one by one.
const ARRIVALS_MAX: usize = 200_000;
/// Highest cost of one request. With it, sums over all requests are exact.
const COST_MAX: u64 = 1_000_000_000;
/// Most threads of all Envoys; each stores keys.
const THREADS_MAX: usize = 4_096;
/// Most buckets of all tables.
const BUCKETS_MAX: usize = 1 << 22;

/// Checks whether a tab can simulate the plan. An error is a sentence that names what is too large.
pub fn check(plan: &Plan) -> Result<(), String> {
    let Plan { topology, rules, traffic, calls, faults, network, schedule, .. } = plan;
    check_topology(topology)?;
    for (what, got, least, most) in [
        ("rules", rules.len(), 1, RULES_MAX),
        ("sources of traffic", traffic.len(), 0, 64),
        ("faults", faults.len(), 0, 1_000),
    ] {
        within(what, got, least, most)?;
    }
    check_times(plan)?;
    rules.iter().try_for_each(check_rule)?;
    traffic.iter().try_for_each(check_traffic)?;
    faults.iter().try_for_each(check_fault)?;
    calls.iter().try_for_each(check_calls)?;
    let (first, last) = network.distance_us;
    let distance = (first.min(last), first.max(last));
    for (least, most) in [network.regional_us, network.global_us, distance] {
        if least > most || most > 60_000_000 {
            return Err(format!("messages take {least} to {most} µs; a page simulates at most a minute"));
        }
    }
    for interval_ms in [schedule.publish_ms, schedule.exchange_ms] {
        within("ms between two publications or reads", interval_ms, 10, DAY_MS)?;
    }
    // NaN is within no bounds, and a negative number cannot compensate for a large one.
    let all = requests(plan);
    let most = all.iter().sum::<f64>();
    if !all.iter().chain([&most]).all(|count| (0.0..=REQUESTS_MAX).contains(count)) {
        return Err(format!("about {most:.1e} requests; a page simulates at most {REQUESTS_MAX:.0e}"));
    }
    Ok(())
}

fn within<N: Copy + PartialOrd + std::fmt::Display>(
    what: &str,
    got: N,
    least: N,
    most: N,
) -> Result<(), String> {
    if (least..=most).contains(&got) {
        Ok(())
    } else {
        Err(format!("{got} {what}; a page simulates {least} to {most}"))
    }
}

fn check_topology(topology: &Topology) -> Result<(), String> {
    let Topology { regions, aggregators, envoys, workers, buckets, keys_per_bucket, region_keys, idle_ms } =
        *topology;
    for (what, got, least, most) in [
        ("regions", regions, 1, 16),
        ("aggregators of a region", aggregators, 1, 8),
        ("Envoys of a region", envoys, 1, 64),
        ("workers of an Envoy", workers, 1, 16),
        ("buckets of a table", buckets as usize, 1, 1 << 16),
        ("keys of a bucket", keys_per_bucket as usize, 1, 32),
        ("keys of an aggregator", region_keys, 1, usize::MAX),
    ] {
        within(what, got, least, most)?;
    }
    within("ms until an Envoy leaves its region", idle_ms, 0, LONGEST_MS)?;
    let all = regions * envoys;
    within("workers of all Envoys", all * workers, 1, THREADS_MAX)?;
    within("buckets of all tables", all * buckets as usize, 1, BUCKETS_MAX)
}

fn check_times(plan: &Plan) -> Result<(), String> {
    let length_ms = plan.traffic_ms.saturating_add(plan.quiet_ms).saturating_add(plan.settle_ms);
    if (SECOND_MS..=LONGEST_MS).contains(&length_ms)
        && plan.traffic_ms > 0
        && plan.settle_ms <= 60 * SECOND_MS
    {
        return Ok(());
    }
    Err("a run lasts from a second to three days, and settles within a minute".to_owned())
}

fn check_rule(rule: &Rule) -> Result<(), String> {
    let Rule { limit, window_ms, hard_limit, timeout_ms, .. } = *rule;
    if !(SECOND_MS..=WINDOW_MS_MAX).contains(&window_ms) || limit > SAFE_MAX {
        return Err(format!(
            "no limit of {limit} in {window_ms} ms can be simulated; a window lasts 1 s to 366 days"
        ));
    }
    if hard_limit && window_ms % 10 != 0 {
        return Err(format!(
            "a hard limit needs a window of whole hundredths of a second, not {window_ms} ms"
        ));
    }
    within("ms that a request waits", timeout_ms, 1, 1_000)
}

fn check_traffic(traffic: &Traffic) -> Result<(), String> {
    let (least, most) = traffic.cost;
    if least > most || most > COST_MAX {
        return Err(format!("requests cost {least} to {most}; a page simulates at most {COST_MAX}"));
    }
    within("Envoys of a source", traffic.at.len(), 0, 1_024)?;
    let Shape::Trace { arrivals } = &traffic.shape else { return Ok(()) };
    within("recorded requests", arrivals.len(), 0, ARRIVALS_MAX)?;
    let dear = arrivals.iter().find(|arrival| arrival.cost > COST_MAX);
    dear.map_or(Ok(()), |arrival| {
        Err(format!("a request costs {}; a page simulates at most {COST_MAX}", arrival.cost))
    })
}

fn check_calls(calls: &ApiCalls) -> Result<(), String> {
    within("as the cost of a call", calls.cost, 0, COST_MAX)?;
    within("ms for a call", calls.within_ms, 1, 10_000)
}

fn check_fault(fault: &Fault) -> Result<(), String> {
    let ms = match fault.what {
        Wrong::Delay { ms, .. } | Wrong::Slow { ms, .. } => ms,
        Wrong::Skew { ms, .. } => ms.unsigned_abs(),
        _ => 0,
    };
    within("ms of a fault", ms, 0, LONGEST_MS)
}

/// Approximate number of requests of each source and fault; infinite or NaN if a rate is.
fn requests(plan: &Plan) -> Vec<f64> {
    let seconds = |ms: u64| ms as f64 / 1e3;
    let regions = plan.topology.regions as f64;
    let of_source = |one: &Traffic| {
        let lasts =
            seconds(one.until_ms.unwrap_or(u64::MAX).min(plan.traffic_ms).saturating_sub(one.from_ms));
        match &one.shape {
            Shape::Steady { rate, .. }
            | Shape::Spread { rate, .. }
            | Shape::Zipf { rate, .. }
            | Shape::Fresh { rate, .. } => rate * lasts,
            Shape::Bursts { requests, every_ms, over_ms, .. } => {
                let each = seconds((*every_ms).max(*over_ms).max(1));
                *requests as f64 * (lasts / each).ceil()
            }
            Shape::WindowEnd { limit, window_ms, rate, .. } => {
                let window = seconds((*window_ms).max(1));
                (*limit as f64 + rate * window) * (lasts / (3.0 * window)).ceil()
            }
            Shape::UnderFloor { requests, window_ms, .. } => {
                *requests as f64 * regions * (lasts / seconds((*window_ms).max(1))).ceil()
            }
            Shape::Trace { arrivals } => arrivals.len() as f64,
        }
    };
    let of_fault = |fault: &Fault| match fault.what {
        Wrong::Flood { identifiers, .. } => identifiers as f64 * seconds(fault.for_ms.min(plan.traffic_ms)),
        _ => 0.0,
    };
    let of_calls = |calls: &ApiCalls| plan.traffic_ms as f64 / calls.every_ms.max(1) as f64;
    let calls = plan.calls.iter().map(of_calls);
    plan.traffic.iter().map(of_source).chain(plan.faults.iter().map(of_fault)).chain(calls).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_simulator::plan::{Link, Part};
    use weir_simulator::scenarios;

    #[test]
    fn every_scenario_can_be_simulated_in_a_tab() {
        for scenario in scenarios::all() {
            for seed in [1, 2, u64::MAX] {
                let plan = (scenario.plan)(seed);
                assert_eq!(check(&plan), Ok(()), "{}: {:?} requests", scenario.name, requests(&plan));
            }
        }
    }

    #[test]
    fn plans_that_are_too_large_for_a_tab_are_refused() {
        let plan = (scenarios::find("steady").unwrap().plan)(1);
        let refused = |change: fn(&mut Plan), message: &str| {
            let mut plan = plan.clone();
            change(&mut plan);
            let error = check(&plan).unwrap_err();
            assert!(error.contains(message), "{error}");
        };
        refused(|plan| plan.topology.regions = usize::MAX, "regions");
        refused(|plan| plan.topology.envoys = 0, "Envoys");
        refused(|plan| plan.topology.buckets = u32::MAX, "buckets");
        refused(
            |plan| (plan.topology.regions, plan.topology.envoys, plan.topology.workers) = (16, 64, 16),
            "all Envoys",
        );
        refused(
            |plan| (plan.topology.regions, plan.topology.envoys, plan.topology.buckets) = (16, 64, 1 << 16),
            "all tables",
        );
        refused(|plan| plan.rules.clear(), "0 rules");
        refused(|plan| plan.traffic_ms = u64::MAX, "three days");
        refused(|plan| plan.traffic_ms = 0, "from a second");
        refused(|plan| plan.rules[0].window_ms = 0, "no limit");
        refused(|plan| plan.rules[0].window_ms = u64::MAX, "no limit");
        refused(|plan| plan.rules[0].timeout_ms = 0, "waits");
        refused(|plan| (plan.rules[0].hard_limit, plan.rules[0].window_ms) = (true, 1_005), "hundredths");
        refused(|plan| plan.traffic[0].cost = (u64::MAX, u64::MAX), "cost");
        refused(|plan| plan.traffic[0].cost = (2, 1), "cost");
        refused(|plan| plan.traffic[0].at = vec![(0, 0); 100_000], "Envoys of a source");
        let calls = ApiCalls {
            every_ms: 10,
            rules: 1,
            identifiers: 1,
            cost: 1,
            within_ms: 100,
            windows_per_mille: 0,
        };
        let refuses = |calls: ApiCalls, message: &str| {
            let error = check(&Plan { calls: Some(calls), ..plan.clone() }).unwrap_err();
            assert!(error.contains(message), "{error}");
        };
        assert_eq!(check(&Plan { calls: Some(calls), ..plan.clone() }), Ok(()));
        refuses(ApiCalls { cost: u64::MAX, ..calls }, "cost of a call");
        refuses(ApiCalls { within_ms: u64::MAX, ..calls }, "ms for a call");
        refused(|plan| plan.network.regional_us = (5, 4), "messages");
        refused(|plan| plan.network.global_us = (0, u64::MAX), "messages");
        refused(|plan| plan.schedule.publish_ms = 0, "publications");
        refused(|plan| plan.schedule.exchange_ms = u64::MAX, "reads");
    }

    #[test]
    fn plans_with_too_many_requests_are_refused() {
        let plan = (scenarios::find("steady").unwrap().plan)(1);
        let most = u64::MAX;
        for shape in [
            Shape::Steady { identifier: 1, rate: f64::MAX },
            Shape::Fresh { from: 1, rate: f64::INFINITY },
            Shape::Spread { identifiers: 1, rate: f64::NAN },
            Shape::Zipf { identifiers: 1, exponent: 1.0, rate: -1.0 },
            Shape::Bursts { identifier: 1, requests: most, every_ms: most, over_ms: 0 },
            Shape::Bursts { identifier: 1, requests: 10_000, every_ms: 0, over_ms: 0 },
            Shape::WindowEnd { identifier: 1, limit: most, window_ms: 0, rate: 1.0 },
            Shape::UnderFloor { identifier: 1, requests: most, window_ms: most },
        ] {
            let mut plan = plan.clone();
            plan.traffic[0].shape = shape;
            let opposite = Shape::Steady { identifier: 1, rate: -1e30 };
            plan.traffic.push(Traffic { shape: opposite, ..plan.traffic[0].clone() });
            assert!(check(&plan).unwrap_err().contains("requests"), "{plan:?}");
        }
        let part = Part::Envoy { region: 0, envoy: 0 };
        let link = Link::Peers { region: 0 };
        for (what, message) in [
            (Wrong::Flood { part, identifiers: most }, "requests"),
            (Wrong::Delay { link, ms: most }, "ms of a fault"),
            (Wrong::Skew { part, ms: i64::MIN }, "ms of a fault"),
        ] {
            let faults = vec![Fault { at_ms: 0, for_ms: most, what }];
            let error = check(&Plan { faults, ..plan.clone() }).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
    }
}
