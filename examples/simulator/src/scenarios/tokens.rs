//! Token budgets: estimates are reserved, and the answers state what is charged.

use super::scenario::{Scenario, plan, source, spread};
use crate::plan::traffic::{Shape, Traffic};
use crate::plan::{Answers, Plan, Rule, Topology};

pub(super) const ALL: &[Scenario] = &[
    Scenario::new(
        "tokens-herd",
        "64 clients at once under a budget of 20 reserves: nothing is used beyond it but what answers have beyond their reserve",
        |seed| budget(seed, Topology { workers: 4, ..Topology::region(1) }, vec![herd()], 0),
    ),
    Scenario::new(
        "tokens-abort",
        "of ten clients three leave during the answer, whose tokens are estimated by its bytes",
        |seed| budget(seed, Topology::region(1), vec![talks()], 300),
    ),
    Scenario::new(
        "tokens-two-nodes",
        "two Envoys share a budget, with reserves that the other has not received",
        |seed| budget(seed, Topology::region(2), vec![herd(), talks()], 100),
    ),
];

fn budget(seed: u64, topology: Topology, traffic: Vec<Traffic>, aborted_per_mille: u64) -> Plan {
    let answers = Answers { bytes_a_token: (80, 300), aborted_per_mille };
    let rule =
        Rule { reserve: 1_000, response_ms: 1_500, answers: Some(answers), ..Rule::new(20_000, 10_000) };
    plan(seed, topology, vec![rule], traffic, 40_000)
}

/// Answers of up to one and a half reserves.
fn herd() -> Traffic {
    let shape = Shape::Bursts { identifier: 1, requests: 64, every_ms: 4_000, over_ms: 20 };
    Traffic { cost: (1, 1_500), ..source(shape) }
}

fn talks() -> Traffic {
    Traffic { cost: (1, 1_200), ..spread(4, 40.0) }
}
