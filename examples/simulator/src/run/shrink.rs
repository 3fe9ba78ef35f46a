//! Makes a failing plan smaller while it fails the same way: fewer faults, less traffic, fewer parts, simpler rules.

use crate::plan::traffic::{Shape, Traffic};
use crate::plan::{Fault, Link, Network, Part, Plan, Topology, Wrong};

/// The result of shrinking.
#[derive(Clone, Debug, PartialEq)]
pub struct Shrunk {
    /// The smallest plan that was found to fail.
    pub plan: Plan,
    /// The number of runs that were made.
    pub runs: usize,
}

/// Shrinks `plan` while `fails` returns true for it, with at most `runs` calls of `fails`.
pub fn shrink(plan: &Plan, runs: usize, mut fails: impl FnMut(&Plan) -> bool) -> Shrunk {
    let mut shrunk = Shrunk { plan: plan.clone(), runs: 0 };
    // A step that helped is likely to help again, so the list of steps restarts after each success.
    loop {
        let Some(smaller) = steps(&shrunk.plan).into_iter().find(|smaller| {
            let may = shrunk.runs < runs;
            shrunk.runs += usize::from(may);
            may && fails(smaller)
        }) else {
            return shrunk;
        };
        shrunk.plan = smaller;
    }
}

/// Plans that are one step smaller, beginning with those that save most. The quiet time is kept: with a shorter one,
/// a correct world fails too.
fn steps(plan: &Plan) -> Vec<Plan> {
    let mut steps = Vec::new();
    fewer(&mut steps, plan, |plan| &mut plan.faults, 0);
    fewer(&mut steps, plan, |plan| &mut plan.traffic, 1);
    steps.push(Plan { calls: None, ..plan.clone() });
    topologies(&mut steps, plan);
    rules(&mut steps, plan);
    times(&mut steps, plan);
    simpler(&mut steps, plan);
    steps.retain(|smaller| smaller != plan);
    steps
}

/// Without each half of a list, then without each entry.
fn fewer<T: Clone>(steps: &mut Vec<Plan>, plan: &Plan, list: fn(&mut Plan) -> &mut Vec<T>, least: usize) {
    let count = list(&mut plan.clone()).len();
    let mut without = |from: usize, to: usize| {
        if count - (to - from) >= least && to > from {
            let mut smaller = plan.clone();
            list(&mut smaller).drain(from..to);
            steps.push(smaller);
        }
    };
    if count > 2 {
        without(0, count / 2);
        without(count / 2, count);
    }
    (0..count).for_each(|at| without(at, at + 1));
}

fn topologies(steps: &mut Vec<Plan>, plan: &Plan) {
    let sizes: [fn(&mut Topology) -> &mut usize; 4] =
        [|t| &mut t.regions, |t| &mut t.envoys, |t| &mut t.aggregators, |t| &mut t.workers];
    for size in sizes {
        let now = *size(&mut plan.topology.clone());
        for less in [1, now / 2, now.saturating_sub(1)] {
            if less > 0 && less < now {
                let mut smaller = plan.clone();
                *size(&mut smaller.topology) = less;
                let topology = smaller.topology;
                smaller.faults.retain(|fault| exists(fault, &topology));
                steps.push(smaller);
            }
        }
    }
}

fn rules(steps: &mut Vec<Plan>, plan: &Plan) {
    for removed in (0..plan.rules.len()).filter(|_| plan.rules.len() > 1) {
        let mut smaller = plan.clone();
        smaller.rules.remove(removed);
        let below = (1u64 << removed) - 1;
        let without = |mask: u64| mask & below | mask >> 1 & !below;
        for traffic in &mut smaller.traffic {
            traffic.rules = without(traffic.rules);
            if let Shape::Trace { arrivals } = &mut traffic.shape {
                arrivals.iter_mut().for_each(|arrival| arrival.rules = without(arrival.rules));
            }
        }
        smaller.traffic.retain(|traffic| traffic.rules != 0);
        smaller.calls.iter_mut().for_each(|calls| calls.rules = without(calls.rules));
        if !smaller.traffic.is_empty() {
            steps.push(smaller);
        }
    }
    for at in 0..plan.rules.len() {
        let mut with = |change: fn(&mut crate::plan::Rule)| {
            let mut smaller = plan.clone();
            smaller.rules.iter_mut().skip(at).take(1).for_each(change);
            steps.push(smaller);
        };
        with(|rule| rule.hard_limit = false);
        with(|rule| rule.shadow = false);
        with(|rule| rule.trust_first = false);
        with(|rule| rule.deny_on_failure = false);
        with(|rule| rule.reserve = 0);
        with(|rule| rule.answers = None);
        with(|rule| rule.exact = None);
    }
}

fn times(steps: &mut Vec<Plan>, plan: &Plan) {
    for traffic_ms in [plan.traffic_ms / 2, plan.traffic_ms * 3 / 4].into_iter().filter(|ms| *ms > 0) {
        let faults = plan.faults.iter().copied().filter(|fault| fault.at_ms < traffic_ms).collect();
        steps.push(Plan { traffic_ms, faults, ..plan.clone() });
    }
    for (at, fault) in plan.faults.iter().enumerate().filter(|(_, fault)| fault.for_ms > 1) {
        let mut smaller = plan.clone();
        smaller.faults[at].for_ms = fault.for_ms / 2;
        steps.push(smaller);
    }
}

fn simpler(steps: &mut Vec<Plan>, plan: &Plan) {
    for (at, traffic) in plan.traffic.iter().enumerate() {
        let mut with = |traffic: Traffic| {
            let mut smaller = plan.clone();
            smaller.traffic[at] = traffic;
            steps.push(smaller);
        };
        with(Traffic { shape: less(&traffic.shape), ..traffic.clone() });
        with(Traffic { cost: (1, 1), ..traffic.clone() });
        with(Traffic { at: Vec::new(), ..traffic.clone() });
        with(Traffic { from_ms: 0, until_ms: None, ..traffic.clone() });
    }
    let network = Network { regional_us: (200, 200), global_us: (40_000, 40_000), distance_us: (0, 0) };
    steps.push(Plan { network, ..plan.clone() });
}

/// The shape with half of its traffic; unchanged if it cannot be halved.
fn less(shape: &Shape) -> Shape {
    let half = |rate: f64| if rate > 1.0 { rate / 2.0 } else { rate };
    let fewer = |count: u64| count.div_ceil(2).max(1);
    match shape.clone() {
        Shape::Steady { identifier, rate } => Shape::Steady { identifier, rate: half(rate) },
        Shape::Spread { identifiers, rate } => {
            Shape::Spread { identifiers: fewer(identifiers), rate: half(rate) }
        }
        Shape::Bursts { identifier, requests, every_ms, over_ms } => {
            Shape::Bursts { identifier, requests: fewer(requests), every_ms, over_ms }
        }
        Shape::WindowEnd { identifier, limit, window_ms, rate } => {
            Shape::WindowEnd { identifier, limit, window_ms, rate: half(rate) }
        }
        Shape::UnderFloor { identifier, requests, window_ms } => {
            Shape::UnderFloor { identifier, requests: fewer(requests), window_ms }
        }
        Shape::Zipf { identifiers, exponent, rate } => {
            Shape::Zipf { identifiers: fewer(identifiers), exponent, rate: half(rate) }
        }
        Shape::Fresh { from, rate } => Shape::Fresh { from, rate: half(rate) },
        Shape::Trace { mut arrivals } => {
            arrivals.truncate(arrivals.len().div_ceil(2));
            Shape::Trace { arrivals }
        }
    }
}

/// Whether the topology has the part or link of the fault.
fn exists(fault: &Fault, topology: &Topology) -> bool {
    let part = |part: Part| match part {
        Part::Envoy { region, envoy } => region < topology.regions && envoy < topology.envoys,
        Part::Worker { region, envoy, worker } => {
            region < topology.regions && envoy < topology.envoys && worker <= topology.workers
        }
        Part::Aggregator { region, aggregator } => {
            region < topology.regions && aggregator < topology.aggregators
        }
        Part::Redis { region } => region < topology.regions,
        Part::Database => topology.regions > 1,
    };
    let link = |link: Link| match link {
        Link::Streams { region, envoy, aggregator } => {
            region < topology.regions
                && envoy.is_none_or(|envoy| envoy < topology.envoys)
                && aggregator.is_none_or(|aggregator| aggregator < topology.aggregators)
        }
        Link::Worker { region, envoy, worker } => part(Part::Worker { region, envoy, worker }),
        Link::Redis { region, aggregator } => {
            region < topology.regions && aggregator.is_none_or(|aggregator| aggregator < topology.aggregators)
        }
        Link::Peers { region } => region < topology.regions && topology.aggregators > 1,
        Link::Database { region } => region.is_none_or(|region| region < topology.regions),
    };
    match fault.what {
        Wrong::Delay { link: on, .. }
        | Wrong::Lose { link: on, .. }
        | Wrong::Repeat { link: on, .. }
        | Wrong::Reorder { link: on }
        | Wrong::Cut { link: on } => link(on),
        Wrong::Freeze { part: of }
        | Wrong::Crash { part: of }
        | Wrong::Restart { part: of }
        | Wrong::Wipe { part: of }
        | Wrong::Restore { part: of }
        | Wrong::Skew { part: of, .. }
        | Wrong::Slow { part: of, .. }
        | Wrong::Rebuild { part: of }
        | Wrong::Flood { part: of, .. } => part(of),
        Wrong::Roll { region } => region < topology.regions,
        Wrong::FailOver { region } | Wrong::SetBack { region } => {
            region < topology.regions && topology.aggregators > 1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios;

    /// A plan that uses every field.
    fn large() -> Plan {
        let mut plan = (scenarios::find("slow-database").unwrap().plan)(3);
        let crash = Wrong::Crash { part: Part::Envoy { region: 1, envoy: 0 } };
        plan.faults.push(Fault { at_ms: 9_000, for_ms: 3_000, what: crash });
        plan.faults.push(Fault { at_ms: 9_500, for_ms: 0, what: Wrong::Roll { region: 2 } });
        let rule = plan.rules[0];
        plan.rules.push(crate::plan::Rule { hard_limit: true, shadow: true, ..rule });
        plan.rules.push(rule);
        plan.traffic[1].rules = 5;
        plan.traffic.push(Traffic { rules: 2, cost: (0, 3), ..plan.traffic[0].clone() });
        plan
    }

    #[test]
    fn shrinking_keeps_only_what_the_failure_needs() {
        let is_crash = |fault: &&Fault| matches!(fault.what, Wrong::Crash { .. });
        let fails = |plan: &Plan| {
            plan.faults.iter().any(|fault| is_crash(&fault) && fault.for_ms > 1_000)
                && plan.traffic.iter().any(|traffic| traffic.rules & 1 == 1)
                && plan.topology.regions >= 2
        };
        let shrunk = shrink(&large(), 500, fails);
        let plan = shrunk.plan;
        assert!(fails(&plan) && shrunk.runs < 500, "{}", shrunk.runs);
        assert_eq!(
            (plan.faults.len(), plan.faults[0].for_ms, plan.traffic.len(), plan.rules.len()),
            (1, 1_500, 1, 1)
        );
        assert_eq!(
            plan.topology,
            Topology { regions: 2, aggregators: 1, envoys: 1, workers: 1, ..plan.topology }
        );
        assert!(
            (9_001..18_000).contains(&plan.traffic_ms),
            "the traffic contains the fault: {}",
            plan.traffic_ms
        );
        assert_eq!(plan.quiet_ms, large().quiet_ms);
        assert!(!plan.rules[0].hard_limit && plan.traffic[0].cost == (1, 1));
    }

    #[test]
    fn rule_masks_follow_the_remaining_rules() {
        let (rule, other) = (large().rules[0], crate::plan::Rule::new(7, 7_000));
        let mut plan = large();
        plan.rules = vec![rule, other, rule];
        plan.traffic.iter_mut().for_each(|traffic| traffic.rules = 0b110);
        let shrunk = shrink(&plan, 500, |plan| plan.rules.iter().any(|rule| rule.limit == 7)).plan;
        assert_eq!((shrunk.rules, shrunk.traffic.len(), shrunk.traffic[0].rules), (vec![other], 1, 1));
    }

    #[test]
    fn runs_are_bounded_and_a_plan_that_cannot_shrink_is_unchanged() {
        let mut runs = 0;
        let shrunk = shrink(&large(), 7, |_| {
            runs += 1;
            false
        });
        assert_eq!((shrunk.plan, shrunk.runs, runs), (large(), 7, 7));
        assert_eq!(shrink(&large(), 0, |_| true).plan, large());
    }

    #[test]
    fn every_scenario_can_shrink_to_a_minimal_plan() {
        for scenario in scenarios::all() {
            let plan = shrink(&(scenario.plan)(2), 2_000, |_| true).plan;
            assert_eq!(
                (plan.faults.len(), plan.traffic.len(), plan.rules.len()),
                (0, 1, 1),
                "{}",
                scenario.name
            );
            assert_eq!(plan.topology.regions * plan.topology.envoys * plan.topology.workers, 1);
        }
    }
}
