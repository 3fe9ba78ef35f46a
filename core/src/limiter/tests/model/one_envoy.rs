//! One Envoy, with or without an aggregator: exact, whatever its workers do and whatever fails.

use super::super::harness::{HOUR, MINUTE, Random, World};
use super::law::{Counts, Law};
use crate::limiter::{Cause, Decision, Denial, Outcome};
use std::collections::BTreeMap;
use std::vec::Vec;

const STEPS: u64 = 160;
/// A cached denial is at most this old.
const CACHED_MS: u64 = 1_000;
/// A lease is returned after five seconds, at the next tick; `remaining` is at most this old.
const LEASED_MS: u64 = 5_060;
/// What a killed worker had spent of a lease is reserved until it counts as spent, after four times a lease's time.
const EXPIRES_MS: u64 = 20_000;
/// No lease is taken under a lower limit: it is a 64th of what is left, and at least four times a cost.
const LEASES_FROM: u64 = 256;

/// The rules of a request, by number, each with its cost.
type Rules = Vec<(usize, u64)>;

struct Trial {
    seed: u64,
    random: Random,
    world: World,
    laws: Vec<Law>,
    /// If all requests have one rule and the same cost.
    equal_cost: Option<u64>,
    /// When all reservations of killed workers count as spent.
    expired: u64,
    /// Each with its worker.
    waiting: BTreeMap<u64, (usize, Rules)>,
    judged: u64,
}

#[test]
fn one_envoy_decides_by_the_law() {
    let judged = super::run_worlds("one Envoy", 240, |seed| {
        let mut trial = Trial::new(seed);
        for _ in 0..STEPS {
            trial.step();
        }
        trial.world.paused = false;
        trial.pass(100);
        assert!(trial.waiting.is_empty(), "seed {seed}: requests still wait");
        trial.judged
    });
    assert!(judged > 0);
}

impl Trial {
    fn new(seed: u64) -> Trial {
        let mut random = Random::new(seed);
        let workers = 1 + random.below(4) as usize;
        let mut world = match random.below(2) {
            0 => World::alone(1, workers),
            _ => World::connected(1, workers),
        };
        world.run(50);
        // No pong is faster than the one that set the clocks. Otherwise they could differ by 1 ms at the border of a cell.
        world.latency = (1, 8);
        world.random = random.clone();
        let keys = 1 + random.below(3) as usize;
        let laws = (0..keys).map(|number| draw_law(&mut random, number)).collect();
        let equal_cost = (random.below(3) == 0).then(|| 1 + random.below(3));
        Trial { seed, random, world, laws, equal_cost, expired: 0, waiting: BTreeMap::new(), judged: 0 }
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..60 => (0..1 + self.random.below(20)).for_each(|_| self.request()),
            60..80 => {
                let ms = self.random.below(30);
                self.pass(ms);
            }
            80..90 => {
                let ms = self.random.below(400);
                self.pass(ms);
            }
            90..95 => {
                let ms = self.random.below(9_000);
                self.pass(ms);
            }
            95 => self.kill(),
            96 => {
                let worker = self.random.below(self.workers() as u64) as usize;
                self.world.cut(0, worker);
            }
            97 => self.world.restart_region(),
            98 => self.world.paused = self.random.below(2) == 0,
            _ => {
                let ms = self.random.below(2 * MINUTE);
                self.pass(ms);
            }
        }
        self.judge_resolved();
    }

    fn workers(&self) -> usize {
        self.world.processes[0].workers.len()
    }

    /// Kills a worker, unless it is the last. What it has reserved counts as spent.
    fn kill(&mut self) {
        let live: Vec<_> =
            (0..self.workers()).filter(|at| self.world.processes[0].workers[*at].is_some()).collect();
        let Some(killed) = live.get(1).copied() else { return };
        let worker = self.world.processes[0].workers[killed].as_ref().unwrap().limiter.worker;
        for law in &mut self.laws {
            let entry = self.world.entry(0, &law.key);
            let held = entry.iter().flat_map(|entry| &entry.reservations);
            held.filter(|held| held.tag.worker == worker)
                .for_each(|held| law.lose(held.sequence, held.amount));
        }
        self.world.kill(0, killed);
        self.expired = self.world.now + EXPIRES_MS;
        self.waiting.retain(|_, (worker, _)| *worker != killed);
    }

    fn request(&mut self) {
        let worker = self.random.below(self.workers() as u64) as usize;
        if self.world.processes[0].workers[worker].is_none() {
            return;
        }
        let rules = self.draw_rules();
        let checks: Vec<_> = rules.iter().map(|(law, cost)| self.laws[*law].check(*law, *cost)).collect();
        let (id, outcome) = self.world.request(0, worker, &checks);
        match outcome.decision {
            Decision::Wait => {
                self.waiting.insert(id, (worker, rules));
            }
            _ => self.judge(&rules, &outcome, self.world.unix().0, true),
        }
    }

    fn draw_rules(&mut self) -> Rules {
        let keys = self.laws.len() as u64;
        let first = self.random.below(keys) as usize;
        if let Some(cost) = self.equal_cost {
            return Vec::from([(first, cost)]);
        }
        let second = (first + 1) % self.laws.len();
        let both = second != first && self.random.below(3) == 0;
        let rules = [first, second].into_iter().take(1 + usize::from(both));
        rules.map(|law| (law, draw_cost(&mut self.random, self.laws[law].limit))).collect()
    }

    /// Advances the time by single milliseconds while requests wait, so that each outcome is judged at its time.
    fn pass(&mut self, ms: u64) {
        let end = self.world.now + ms;
        while self.world.now < end && !self.waiting.is_empty() {
            self.world.run(1);
            self.judge_resolved();
        }
        self.world.run(end - self.world.now);
    }

    /// Judges the outcomes of this millisecond: the admissions first, since their order is not known.
    fn judge_resolved(&mut self) {
        let mut resolved: Vec<_> = std::mem::take(&mut self.world.resolved).into_iter().collect();
        resolved.sort_by_key(|(_, (_, outcome))| !outcome.passes());
        for (id, (_, outcome)) in resolved {
            let Some((_, rules)) = self.waiting.remove(&id) else { continue };
            self.judge(&rules, &outcome, self.world.unix().0, false);
        }
    }

    fn judge(&mut self, rules: &Rules, outcome: &Outcome, unix: u64, is_immediate: bool) {
        self.judged += 1;
        let seed = self.seed;
        match outcome.decision {
            Decision::Allow(budget) => {
                for (law, cost) in rules {
                    let law = &mut self.laws[*law];
                    let used = law.effective(unix, Counts::Admitted);
                    assert!(
                        law.admits(unix, *cost, Counts::Admitted),
                        "seed {seed}: {cost} passed with {used} used of {}",
                        law.limit
                    );
                    law.admit(unix, *cost);
                }
                let Some(budget) = budget else { return };
                let law = &self.laws[usize::from(budget.rule)];
                let most = law.remaining(unix, Counts::Until(unix - LEASED_MS));
                assert!(budget.remaining <= most, "seed {seed}: {budget:?}, at most {most}");
                if law.limit < LEASES_FROM && is_immediate && rules.len() == 1 && self.waiting.is_empty() {
                    let exact = law.remaining(unix, Counts::WithLost);
                    assert!(budget.remaining >= exact, "seed {seed}: {budget:?}, {exact} by the law");
                    let exact = law.remaining(unix, Counts::Admitted);
                    assert!(budget.remaining <= exact, "seed {seed}: {budget:?}, {exact} by the law");
                }
            }
            Decision::Deny(denial) => self.judge_denial(rules, &denial, unix, is_immediate),
            Decision::Wait => unreachable!(),
        }
    }

    fn judge_denial(&mut self, rules: &Rules, denial: &Denial, unix: u64, is_immediate: bool) {
        let seed = self.seed;
        let law_of = |number: u16| &self.laws[usize::from(number)];
        let named = rules.iter().find(|(law, _)| *law == usize::from(denial.budget.rule));
        let (_, cost) = *named.unwrap();
        let law = law_of(denial.budget.rule);
        match denial.cause {
            Cause::Limit => {
                let used = law.effective(unix, Counts::WithLost);
                assert!(
                    !law.admits(unix, cost, Counts::WithLost),
                    "seed {seed}: {cost} denied with {used} used of {}",
                    law.limit
                );
                self.judge_wait(rules, denial, unix);
            }
            Cause::Cost => {
                assert!(cost > law.limit && denial.retry_after_ms.is_none(), "seed {seed}: {denial:?}");
            }
            Cause::Reserved if is_immediate => {
                let (limit, used) = (u128::from(law.limit), law.effective(unix, Counts::WithLost));
                let key = law.key.clone();
                let held = self.reserved(&key);
                assert!(
                    used + held + u128::from(cost) > limit,
                    "seed {seed}: {cost} is held back with {used} used and {held} reserved of {limit}"
                );
            }
            Cause::Reserved => {}
            Cause::Undecided => panic!("seed {seed}: {denial:?}"),
        }
    }

    /// `retry-after` is the longest wait by the rules, by counts that are at most as old as a cached denial.
    fn judge_wait(&self, rules: &Rules, denial: &Denial, unix: u64) {
        let longest = |counts: &dyn Fn(&Law) -> Counts| {
            let waits = rules.iter().map(|(law, cost)| {
                let law = &self.laws[*law];
                law.wait_ms(unix, *cost, counts(law)).unwrap_or(u64::MAX)
            });
            waits.max().unwrap_or(0)
        };
        // The spent part of a lease is in the table after its return.
        let old = |law: &Law| if law.limit < LEASES_FROM { CACHED_MS } else { LEASED_MS + CACHED_MS };
        let least = match self.equal_cost {
            _ if self.world.now <= self.expired => 0,
            Some(_) => longest(&|_| Counts::Admitted),
            None => longest(&|law| Counts::Until(unix - old(law))),
        };
        let most = longest(&|_| Counts::WithLost);
        let wait = denial.retry_after_ms.unwrap_or(u64::MAX);
        let seed = self.seed;
        assert!(
            (least..=most).contains(&wait),
            "seed {seed}: retry after {wait} ms, {least} to {most} by the law: {rules:?} {denial:?}"
        );
    }

    fn reserved(&mut self, key: &crate::model::key::Key) -> u128 {
        let entry = self.world.entry(0, key);
        entry.iter().flat_map(|entry| &entry.reservations).map(|held| u128::from(held.amount)).sum()
    }
}

fn draw_law(random: &mut Random, number: usize) -> Law {
    let window_ms = [1_000, 5_000, MINUTE, HOUR][random.below(4) as usize];
    let limit = match random.below(4) {
        0 => 1 + random.below(12),
        1 => 50 + random.below(300),
        2 => 1_000 + random.below(5_000),
        _ => 1_000_000,
    };
    Law::new(number, window_ms, limit, random.below(4) == 0)
}

/// Mostly 1, often some of the limit, at times nothing or more than the limit.
fn draw_cost(random: &mut Random, limit: u64) -> u64 {
    match random.below(20) {
        0 => 0,
        1 => 1 + random.below(limit + limit / 8 + 1),
        2..8 => 1 + random.below(limit / 8 + 1),
        _ => 1,
    }
}
