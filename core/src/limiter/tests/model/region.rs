//! Several Envoys of one region without faults: within the bounds that the pages state, in both directions.
//!
//! Each Envoy sends for a part of the time only, so that what one holds back and does not spend is missed by the others.

use super::super::harness::{Random, World};
use super::law::{Counts, Law};
use crate::limiter::{Cause, Decision, Denial, Outcome, SLACK_PART, TOLERANCE_PART};
use std::collections::BTreeMap;
use std::ops::Range;
use std::vec::Vec;

/// About as many requests does an Envoy send in a window, in bursts of at most [`BURST`].
const REQUESTS: u64 = 2_000;
const BURST: u64 = 40;
/// The largest cost is this part of the limit.
const LARGEST_PART: u64 = 20;
/// A denial is right if the law denies this part of the limit more, and a largest cost: one that two workers claimed at once may have been
/// granted to one and be refused to the other.
const TOO_LITTLE_PART: u64 = 100;

struct Trial {
    random: Random,
    world: World,
    law: Law,
    /// The Envoys' own use: the law holds for each by itself.
    own: Vec<Law>,
    /// When each Envoy sends.
    active: Vec<Range<u64>>,
    /// The mean time between two bursts of an Envoy.
    pause_ms: u64,
    waiting: BTreeMap<u64, (usize, u64)>,
    judged: u64,
}

#[test]
fn a_region_decides_by_the_law_within_its_bounds() {
    super::run_worlds("region", 20, |seed| {
        let mut trial = Trial::new(seed);
        trial.run();
        trial.judged
    });
}

impl Trial {
    fn new(seed: u64) -> Trial {
        let mut random = Random::new(seed);
        let processes = 2 + random.below(4) as usize;
        let mut world = World::connected(processes, 1 + random.below(3) as usize);
        world.latency = [(0, 0), (1, 2), (1, 8)][random.below(3) as usize];
        world.random = random.clone();
        let limit = [40, 1_000, 10_000, 1_000_000][random.below(4) as usize];
        let window_ms = [10_000, 20_000][random.below(2) as usize];
        let law = || Law::new(0, window_ms, limit, false);
        let own = (0..processes).map(|_| law()).collect();
        world.run(window_ms - world.unix().0 % window_ms);
        let active = (0..processes).map(|_| {
            let from = random.below(window_ms / 2);
            world.now + from..world.now + from + window_ms / 4 + random.below(window_ms)
        });
        let active = active.collect();
        let pause_ms = window_ms * BURST / REQUESTS;
        let (law, waiting) = (law(), BTreeMap::new());
        Trial { random, world, law, own, active, pause_ms, waiting, judged: 0 }
    }

    fn run(&mut self) {
        let end = self.active.iter().map(|active| active.end).max().unwrap_or(0);
        while self.world.now < end {
            for process in 0..self.active.len() {
                let is_due = self.random.below(self.pause_ms) == 0;
                if is_due && self.active[process].contains(&self.world.now) {
                    let burst = 1 + self.random.below(BURST);
                    (0..burst).for_each(|_| self.request(process));
                }
            }
            self.world.run(1);
            self.judge_resolved();
        }
    }

    fn request(&mut self, process: usize) {
        let workers = self.world.processes[process].workers.len() as u64;
        let worker = self.random.below(workers) as usize;
        let most = match self.random.below(16) {
            0 => self.law.limit / LARGEST_PART,
            _ => self.law.limit / REQUESTS,
        };
        let cost = 1 + self.random.below(most);
        let (id, outcome) = self.world.request(process, worker, &[self.law.check(0, cost)]);
        match outcome.decision {
            Decision::Wait => {
                self.waiting.insert(id, (process, cost));
            }
            _ => self.judge(process, cost, &outcome),
        }
    }

    fn judge_resolved(&mut self) {
        let mut resolved: Vec<_> = std::mem::take(&mut self.world.resolved).into_iter().collect();
        resolved.sort_by_key(|(_, (_, outcome))| !outcome.passes());
        for (id, (_, outcome)) in resolved {
            let (process, cost) = self.waiting.remove(&id).unwrap();
            self.judge(process, cost, &outcome);
        }
    }

    fn judge(&mut self, process: usize, cost: u64, outcome: &Outcome) {
        self.judged += 1;
        let unix = self.world.unix().0;
        match outcome.decision {
            Decision::Allow(_) => {
                assert!(self.own[process].admits(unix, cost, Counts::Admitted), "beyond the limit alone");
                self.own[process].admit(unix, cost);
                self.law.admit(unix, cost);
                let used = self.law.effective(unix, Counts::Admitted);
                let most = self.law.limit + self.tolerated();
                assert!(used <= most.into(), "{used} of {}, at most {most}", self.law.limit);
            }
            Decision::Deny(denial) => self.judge_denial(cost, &denial, unix),
            Decision::Wait => unreachable!(),
        }
    }

    /// What the Envoys may spend before their counts have reached each other: their slack, and twice the tolerance at the limit.
    fn tolerated(&self) -> u64 {
        let (limit, nodes) = (self.law.limit, self.own.len() as u64);
        limit * (nodes - 1) / (nodes * SLACK_PART) + 2 * limit / TOLERANCE_PART + nodes
    }

    fn judge_denial(&mut self, cost: u64, denial: &Denial, unix: u64) {
        if denial.cause != Cause::Limit {
            return;
        }
        // A grant is counted by others a moment before its request has passed.
        let left = self.law.remaining(unix, Counts::Admitted).saturating_sub(cost);
        let held: u64 = self.waiting.values().map(|(_, cost)| cost).sum();
        let left = left.saturating_sub(held);
        let bound = self.law.limit / TOO_LITTLE_PART + self.law.limit / LARGEST_PART;
        assert!(left <= bound, "{cost} denied with {left} left besides of {}", self.law.limit);
    }
}
