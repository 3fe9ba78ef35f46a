//! One Envoy, with or without an aggregator: exact, whatever its workers do and whatever fails.

use super::super::harness::{HOUR, MINUTE, Random, World};
use super::law::{Counts, Law};
use crate::limiter::table::Geometry;
use crate::limiter::{Cause, Decision, Denial, Outcome};
use crate::model::key::Key;
use crate::model::time::MonoMs;
use crate::region::LiveLimit;
use std::collections::{BTreeMap, BTreeSet};
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
    /// What the keys of a window have used in the overflow cell that they share, by the window and whether its limit is hard. A key without
    /// a place in a table that is too small is decided by it.
    shared: BTreeMap<(u64, bool), Law>,
    is_crowded: bool,
    /// The machine's clock has stepped: the process' approaches it by a thousandth while no region is reached.
    has_stepped: bool,
    /// Keys that have used something under the limit that applies to them now.
    applied: BTreeSet<usize>,
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
        trial.judge_region();
        trial.judged
    });
    assert!(judged > 0);
}

impl Trial {
    fn new(seed: u64) -> Trial {
        let mut random = Random::new(seed);
        let workers = 1 + random.below(4) as usize;
        let is_crowded = random.below(4) == 0;
        let mut world = match random.below(2) {
            // Without a region no entry leaves that a window counts.
            _ if is_crowded => World::with(1, workers, Geometry { buckets: 2, keys_per_bucket: 2 }, true),
            0 => World::alone(1, workers),
            _ => World::connected(1, workers),
        };
        world.run(50);
        // No pong is faster than the one that set the clocks. Otherwise they could differ by 1 ms at the border of a cell.
        world.latency = (1, 8);
        world.random = random.clone();
        let keys = if is_crowded { 8 } else { 1 + random.below(3) as usize };
        let laws = (0..keys).map(|number| draw_law(&mut random, number)).collect();
        let equal_cost = (random.below(3) == 0).then(|| 1 + random.below(3));
        let (shared, applied, waiting) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        let (expired, judged, has_stepped) = (0, 0, false);
        Trial {
            seed,
            random,
            world,
            laws,
            shared,
            is_crowded,
            has_stepped,
            applied,
            equal_cost,
            expired,
            waiting,
            judged,
        }
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..60 => (0..1 + self.random.below(20)).for_each(|_| self.request()),
            60..80 => {
                let ms = self.random.below(30);
                self.pass(ms);
            }
            // A request that waits is decided by the limit that applied when it began to.
            80..83 if self.waiting.is_empty() => self.change_limit(),
            80..83 => {}
            83..90 => {
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
            99 if self.random.below(2) == 0 => self.step_clock(),
            _ => {
                let ms = self.random.below(2 * MINUTE);
                self.pass(ms);
            }
        }
        self.judge_resolved();
    }

    /// The machine's clock steps. The region's time does not, nor does the process'.
    fn step_clock(&mut self) {
        let most = [10, 1_000, HOUR][self.random.below(3) as usize];
        let step = self.random.below(2 * most) as i64 - most as i64;
        self.has_stepped = true;
        self.world.unix_offset += step;
        *self.world.clock_errors.entry(0).or_default() -= step;
    }

    /// The time by which a worker decides.
    fn unix(&self, worker: usize) -> u64 {
        let limiter = &self.world.processes[0].workers[worker].as_ref().unwrap().limiter;
        limiter.moment(MonoMs(self.world.now)).unix.0
    }

    /// The limit of a key rises or falls: by its rule, or by live control, which may end.
    fn change_limit(&mut self) {
        let number = self.random.below(self.laws.len() as u64) as usize;
        let law = &mut self.laws[number];
        let rule = law.configured.unwrap_or(law.limit);
        let other = match self.random.below(3) {
            0 => 1 + rule / 2,
            1 => 2 * rule,
            _ => 1 + self.random.below(2 * rule),
        };
        match self.random.below(3) {
            0 => law.apply(other, None),
            1 => law.apply(other, Some(rule)),
            _ => law.apply(rule, None),
        }
        self.applied.remove(&number);
    }

    /// Whether a key has no place in the table.
    fn is_diverted(&mut self, key: &Key) -> bool {
        self.is_crowded && self.world.entry(0, key).is_none()
    }

    /// The law by which a key is decided now: its own, or that of the overflow cell, under the limit of the key.
    fn deciding(&mut self, number: usize) -> &Law {
        let key = self.laws[number].key.clone();
        if !self.is_diverted(&key) {
            return &self.laws[number];
        }
        let law = &self.laws[number];
        let shared = self.shared.entry(law.family()).or_insert_with(|| law.without_use());
        shared.apply(law.limit, None);
        shared
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
            _ => self.judge(&rules, &outcome, self.unix(worker), true),
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
            let Some((worker, rules)) = self.waiting.remove(&id) else { continue };
            self.judge(&rules, &outcome, self.unix(worker), false);
        }
    }

    /// The region shows the limit that was applied last, and without live control the configured one.
    fn judge_region(&mut self) {
        if self.world.down || self.world.processes[0].workers.iter().flatten().any(|at| at.stream.is_none()) {
            return;
        }
        // What leases hold is reported once they are returned.
        self.pass(LEASED_MS);
        let shown = |world: &World, key: &Key| {
            let parts = key.parts();
            let explained = world.regions[0].explain(parts.workspace, parts.namespace, parts.identifier);
            explained.first().and_then(|explained| explained.newest_limit)
        };
        let seed = self.seed;
        for is_controlled in [true, false] {
            for number in &self.applied {
                let Law { key, limit, configured, .. } = &self.laws[*number];
                let applies = if is_controlled { *limit } else { configured.unwrap_or(*limit) };
                if let Some(shown) = shown(&self.world, key) {
                    assert_eq!(shown, applies, "seed {seed}: by the region, under control: {is_controlled}");
                }
            }
            let now = self.world.unix_of(0);
            self.world.regions[0].control_some(0, |_, _| Some(LiveLimit::Unset), now);
        }
    }

    fn judge(&mut self, rules: &Rules, outcome: &Outcome, unix: u64, is_immediate: bool) {
        self.judged += 1;
        let seed = self.seed;
        match outcome.decision {
            Decision::Allow(budget) => {
                for (number, cost) in rules {
                    // Without a place it was charged in the overflow cell.
                    let shared = self.deciding(*number);
                    assert!(
                        shared.admits(unix, *cost, Counts::Admitted),
                        "seed {seed}: {cost} passed beside others"
                    );
                    let family = shared.family();
                    if self.is_diverted(&self.laws[*number].key.clone())
                        && let Some(shared) = self.shared.get_mut(&family)
                    {
                        shared.admit(unix, *cost);
                    } else if *cost > 0 {
                        self.applied.insert(*number);
                    }
                    let law = &mut self.laws[*number];
                    let used = law.effective(unix, Counts::Admitted);
                    assert!(
                        law.admits(unix, *cost, Counts::Admitted),
                        "seed {seed}: {cost} passed with {used} used of {}",
                        law.limit
                    );
                    law.admit(unix, *cost);
                }
                let Some(budget) = budget else { return };
                // What others use of an overflow cell is not known from one request to the next.
                let number = usize::from(budget.rule);
                if self.is_diverted(&self.laws[number].key.clone()) {
                    return;
                }
                let law = &self.laws[number];
                let most = law.remaining(unix, Counts::Until(unix - LEASED_MS));
                assert!(budget.remaining <= most, "seed {seed}: {budget:?}, at most {most}");
                if law.highest < LEASES_FROM && is_immediate && rules.len() == 1 && self.waiting.is_empty() {
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
        let named = rules.iter().find(|(law, _)| *law == usize::from(denial.budget.rule));
        let (_, cost) = *named.unwrap();
        let number = usize::from(denial.budget.rule);
        let is_diverted = self.is_diverted(&self.laws[number].key.clone());
        let law = self.deciding(number);
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
            Cause::Reserved if is_immediate && !is_diverted => {
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
    fn judge_wait(&mut self, rules: &Rules, denial: &Denial, unix: u64) {
        let (equal_cost, is_expired) = (self.equal_cost, self.world.now > self.expired);
        let mut longest = |counts: &dyn Fn(&Law) -> Counts| {
            let waits = rules.iter().map(|(number, cost)| {
                let law = self.deciding(*number);
                law.wait_ms(unix, *cost, counts(law)).unwrap_or(u64::MAX)
            });
            waits.max().unwrap_or(0)
        };
        // The spent part of a lease is in the table after its return.
        let old = |law: &Law| if law.highest < LEASES_FROM { CACHED_MS } else { LEASED_MS + CACHED_MS };
        let least = match equal_cost {
            _ if !is_expired => 0,
            Some(_) => longest(&|_| Counts::Admitted),
            None => longest(&|law| Counts::Until(unix - old(law))),
        };
        let most = longest(&|_| Counts::WithLost);
        // A wait is in monotonic time.
        let apart = |wait: u64| if self.has_stepped { 2 + wait / 500 } else { 0 };
        let (least, most) = (least.saturating_sub(apart(least)), most.saturating_add(apart(most)));
        let wait = denial.retry_after_ms.unwrap_or(u64::MAX);
        let seed = self.seed;
        assert!(
            (least..=most).contains(&wait),
            "seed {seed}: retry after {wait} ms, {least} to {most} by the law: {rules:?} {denial:?}, crowded: {}",
            self.is_crowded
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
