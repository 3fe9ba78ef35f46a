//! A named plan, and what plans are made of.

use crate::plan::traffic::{Shape, Traffic};
use crate::plan::{Network, Plan, Rule, Schedule, Topology};
use crate::run::Expected;

/// A named plan.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// The name by which it is selected.
    pub name: &'static str,
    /// A sentence that describes it.
    pub description: &'static str,
    /// The plan for a seed.
    pub plan: fn(u64) -> Plan,
    /// Bounds of its result; a violation fails every scenario.
    pub expected: fn(&Plan) -> Expected,
    /// Whether it takes longer than a few seconds of wall time. Long scenarios run only when they are selected by
    /// name.
    pub long: bool,
}

impl Scenario {
    pub(super) const fn new(
        name: &'static str,
        description: &'static str,
        plan: fn(u64) -> Plan,
    ) -> Scenario {
        Scenario { name, description, plan, expected: no_bounds, long: false }
    }

    pub(super) const fn expecting(self, expected: fn(&Plan) -> Expected) -> Scenario {
        Scenario { expected, ..self }
    }

    pub(super) const fn long(self) -> Scenario {
        Scenario { long: true, ..self }
    }
}

fn no_bounds(_: &Plan) -> Expected {
    Expected::default()
}

/// Quiet time after the traffic of a plan with one region, in milliseconds.
pub(super) const QUIET_MS: u64 = 5_000;

pub(super) const QUIET_REGIONS_MS: u64 = 45_000;

pub(super) fn plan(
    seed: u64,
    topology: Topology,
    rules: Vec<Rule>,
    traffic: Vec<Traffic>,
    traffic_ms: u64,
) -> Plan {
    let quiet_ms = if topology.regions > 1 { QUIET_REGIONS_MS } else { QUIET_MS };
    let (faults, network, schedule, settle_ms) = (Vec::new(), Network::default(), Schedule::default(), 3_000);
    let calls = None;
    Plan { seed, topology, rules, traffic, calls, faults, network, schedule, settle_ms, traffic_ms, quiet_ms }
}

pub(super) fn source(shape: Shape) -> Traffic {
    Traffic { from_ms: 0, until_ms: None, rules: 1, cost: (1, 1), at: Vec::new(), shape }
}

pub(super) fn steady(identifier: u64, rate: f64) -> Traffic {
    source(Shape::Steady { identifier, rate })
}

pub(super) fn spread(identifiers: u64, rate: f64) -> Traffic {
    source(Shape::Spread { identifiers, rate })
}
