//! One Envoy, with or without an aggregator: exact, whatever its workers do and whatever fails.

use super::super::harness::{Random, World};
use super::law::{Counts, Law};
use super::plan::{Complaint, Costs, Plan, Step};
use crate::limiter::local::worker_cache::CACHED_MS;
use crate::limiter::table::Geometry;
use crate::limiter::{Cause, Decision, Denial, Outcome};
use crate::model::time::{MonoMs, SLOW_PARTS};
use crate::region::LiveLimit;
use std::collections::BTreeMap;
use std::format;
use std::string::String;
use std::vec::Vec;

/// What a killed worker had spent of a lease is reserved until it counts as spent, after four times a lease's time.
const EXPIRES_MS: u64 = 20_000;

struct Trial<'a> {
    plan: &'a Plan,
    world: World,
    laws: Vec<Law>,
    /// What the keys of a family have used in the overflow cell that they share. A key without a place in a table that is too small is
    /// decided by it.
    shared: BTreeMap<(u64, bool), Law>,
    /// Which keys have no place in a table that is too small and would get none, and when these were last others.
    diverted: Vec<bool>,
    moved: u64,
    /// The limits that the region must show, by rule: the one that applies, and the one without live control.
    shown: BTreeMap<usize, (u64, u64)>,
    /// When all reservations of killed workers count as spent.
    expired: u64,
    /// The machine's clock has stepped, and no region states the time.
    drifts: bool,
    /// Each with its worker.
    waiting: BTreeMap<u64, (usize, Costs)>,
    judged: u64,
}

#[test]
fn one_envoy_decides_by_the_law() {
    super::run_worlds("one Envoy", 240, |seed| {
        let plan = Plan::draw(seed);
        run(&plan).unwrap_or_else(|complaint| panic!("{}", plan.shrink(complaint, run)))
    });
}

/// A killed worker has spent a lease, which counts as spent while a denial is cached.
#[test]
fn a_world_that_has_failed_is_decided_by_the_law() {
    let plan = Plan::draw(3_219_242_699);
    run(&plan).unwrap_or_else(|complaint| panic!("{}", plan.shrink(complaint, run)));
}

/// Judges all requests of a plan. Returns their number.
fn run(plan: &Plan) -> Result<u64, Complaint> {
    let mut trial = Trial::new(plan);
    for step in &plan.steps {
        trial.step(step)?;
    }
    trial.world.paused = false;
    trial.pass(100)?;
    must("waits for ever", trial.waiting.is_empty(), || format!("{:?}", trial.waiting))?;
    trial.judge_region()?;
    Ok(trial.judged)
}

fn must(what: &'static str, holds: bool, details: impl FnOnce() -> String) -> Result<(), Complaint> {
    if holds { Ok(()) } else { Err((what, details())) }
}

impl Trial<'_> {
    fn new(plan: &Plan) -> Trial<'_> {
        let (workers, places) = (plan.workers, Geometry { buckets: 2, keys_per_bucket: 2 });
        let mut world = match plan.has_region {
            true => World::connected(1, workers),
            false if plan.is_crowded => World::with(1, workers, places, true),
            false => World::alone(1, workers),
        };
        world.run(50);
        // No pong is faster than the one that set the clocks. Otherwise they could differ by 1 ms at the border of a cell.
        world.latency = (1, 8);
        world.random = Random::new(plan.seed);
        let rules = plan.rules.iter().enumerate();
        let laws = rules.map(|(number, rule)| Law::new(number, rule.window_ms, rule.limit, rule.is_hard));
        Trial {
            plan,
            world,
            laws: laws.collect(),
            shared: BTreeMap::new(),
            diverted: Vec::new(),
            moved: 0,
            shown: BTreeMap::new(),
            expired: 0,
            drifts: false,
            waiting: BTreeMap::new(),
            judged: 0,
        }
    }

    fn step(&mut self, step: &Step) -> Result<(), Complaint> {
        match step {
            Step::Request(worker, costs) => self.request(*worker, costs)?,
            Step::Pass(ms) => self.pass(*ms)?,
            Step::Limit(rule, limit, configured) => {
                // A request that waits is decided by the limits that applied when it began to.
                while !self.waiting.is_empty() {
                    self.pass(1)?;
                }
                // Of two limits that are applied in one millisecond, the region takes the lower for the newest.
                self.pass(1)?;
                let live = (0..self.plan.workers).find(|worker| self.is_live(*worker)).unwrap();
                let unix = self.unix(live);
                self.laws[*rule].apply(*limit, *configured, unix);
                self.shown.remove(rule);
            }
            Step::Clock(ms) => {
                // The region's time does not step.
                self.world.unix_offset += ms;
                *self.world.clock_errors.entry(0).or_default() -= ms;
                self.drifts = !self.plan.has_region;
            }
            Step::Kill(worker) => self.kill(*worker),
            Step::Cut(worker) => self.world.cut(0, *worker),
            Step::RestartRegion => {
                self.world.restart_region();
                self.shown.clear();
            }
            Step::PauseRegion(paused) => self.world.paused = *paused,
        }
        self.judge_resolved()
    }

    /// The time by which a worker decides.
    fn unix(&self, worker: usize) -> u64 {
        let limiter = &self.world.processes[0].workers[worker].as_ref().unwrap().limiter;
        limiter.moment(MonoMs(self.world.now)).unix.0
    }

    fn is_live(&self, worker: usize) -> bool {
        self.world.processes[0].workers[worker].is_some()
    }

    /// Kills a worker, unless it is the last. What it has reserved counts as spent.
    fn kill(&mut self, killed: usize) {
        if !self.is_live(killed) || (0..self.plan.workers).filter(|worker| self.is_live(*worker)).count() == 1
        {
            return;
        }
        let worker = self.world.processes[0].workers[killed].as_ref().unwrap().limiter.local.worker;
        for law in &mut self.laws {
            let entry = self.world.entry(0, &law.key);
            let held = entry.iter().flat_map(|entry| &entry.reservations);
            held.filter(|held| held.tag.worker == worker)
                .for_each(|held| law.lose(held.sequence, held.amount));
        }
        self.world.kill(0, killed);
        // Limits that it has not reported are lost with it.
        self.shown.clear();
        self.expired = self.world.now + EXPIRES_MS;
        self.waiting.retain(|_, (worker, _)| *worker != killed);
    }

    fn request(&mut self, worker: usize, costs: &Costs) -> Result<(), Complaint> {
        if !self.is_live(worker) {
            return Ok(());
        }
        let checks: Vec<_> = costs.iter().map(|(rule, cost)| self.laws[*rule].check(*rule, *cost)).collect();
        let (id, outcome) = self.world.request(0, worker, &checks);
        if outcome.decision == Decision::Wait {
            self.waiting.insert(id, (worker, costs.clone()));
            return Ok(());
        }
        self.judge(worker, costs, &outcome, true)
    }

    /// Advances the time by single milliseconds while requests wait, so that each outcome is judged at its time.
    fn pass(&mut self, ms: u64) -> Result<(), Complaint> {
        let end = self.world.now + ms;
        while self.world.now < end && !self.waiting.is_empty() {
            self.world.run(1);
            self.judge_resolved()?;
        }
        self.world.run(end - self.world.now);
        Ok(())
    }

    /// Judges the outcomes of this millisecond: the admissions first, since their order is not known.
    fn judge_resolved(&mut self) -> Result<(), Complaint> {
        let mut resolved: Vec<_> = std::mem::take(&mut self.world.resolved).into_iter().collect();
        resolved.sort_by_key(|(_, (_, outcome))| !outcome.passes());
        for (id, (_, outcome)) in resolved {
            let Some((worker, costs)) = self.waiting.remove(&id) else { continue };
            self.judge(worker, &costs, &outcome, false)?;
        }
        Ok(())
    }

    /// Whether a key has no place in the table, and would get none.
    fn is_diverted(&self, rule: usize) -> bool {
        self.plan.is_crowded && self.diverted[rule]
    }

    fn note_diverted(&mut self) {
        if self.plan.is_crowded {
            let is_diverted =
                |law: &Law| self.world.entry(0, &law.key).is_none() && !self.world.has_room(0, &law.key);
            let diverted: Vec<bool> = self.laws.iter().map(is_diverted).collect();
            if diverted != self.diverted {
                (self.diverted, self.moved) = (diverted, self.world.now);
            }
        }
    }

    /// The law by which a key is decided now: its own, or that of the overflow cell, under the limit of the key.
    fn deciding(&mut self, rule: usize) -> &mut Law {
        if !self.is_diverted(rule) {
            return &mut self.laws[rule];
        }
        let law = &self.laws[rule];
        let shared = self.shared.entry(law.family()).or_insert_with(|| law.without_use());
        shared.limit = law.limit;
        shared
    }

    fn judge(
        &mut self,
        worker: usize,
        costs: &Costs,
        outcome: &Outcome,
        is_immediate: bool,
    ) -> Result<(), Complaint> {
        self.judged += 1;
        self.note_diverted();
        let unix = self.unix(worker);
        match outcome.decision {
            Decision::Allow(budget) => {
                for (rule, cost) in costs {
                    self.admit(*rule, *cost, unix)?;
                }
                let Some(budget) = budget else { return Ok(()) };
                let is_alone = is_immediate && costs.len() == 1 && self.waiting.is_empty();
                let rule = usize::from(budget.rule);
                self.judge_remaining(rule, budget.remaining, (is_immediate, is_alone), unix)
            }
            Decision::Deny(denial) => {
                // A denial passes on a limit that is lower than those before.
                if let [(rule, _)] = costs.as_slice()
                    && self.laws[*rule].is_lowest()
                    && self.expired == 0
                {
                    self.shown.insert(*rule, self.laws[*rule].limits());
                }
                self.judge_denial(costs, &denial, unix, is_immediate)
            }
            Decision::Wait => unreachable!(),
        }
    }

    fn admit(&mut self, rule: usize, cost: u64, unix: u64) -> Result<(), Complaint> {
        let is_diverted = self.is_diverted(rule);
        if is_diverted {
            let shared = self.deciding(rule);
            let (used, limit) = (shared.effective(unix, Counts::Admitted), shared.limit);
            must("passed beside others", shared.admits(unix, cost, Counts::Admitted), || {
                format!("{cost} with {used} used in the overflow cell of {limit}")
            })?;
            shared.admit(unix, cost);
        }
        let law = &mut self.laws[rule];
        let (used, limit) = (law.effective(unix, Counts::Admitted), law.limit);
        must("passed", law.admits(unix, cost, Counts::Admitted), || {
            format!("rule {rule}: {cost} with {used} used of {limit}")
        })?;
        law.admit(unix, cost);
        if cost > 0 && !is_diverted {
            self.shown.insert(rule, law.limits());
        }
        Ok(())
    }

    fn judge_remaining(
        &mut self,
        rule: usize,
        remaining: u64,
        (is_immediate, is_alone): (bool, bool),
        unix: u64,
    ) -> Result<(), Complaint> {
        // What others use of an overflow cell is not known from one request to the next.
        if self.is_diverted(rule) {
            return Ok(());
        }
        let law = &self.laws[rule];
        let leased_ms = law.leased_ms(unix);
        // The order within a millisecond is not known of those that waited.
        let until = unix - leased_ms - u64::from(!is_immediate);
        let most = law.remaining(unix, Counts::Until(until));
        must("states more", remaining <= most, || format!("rule {rule}: {remaining}, at most {most}"))?;
        let least = law.remaining(unix, Counts::WithLost);
        must("states less", remaining >= least || leased_ms > 0 || !is_alone, || {
            format!("rule {rule}: {remaining}, {least} by the law")
        })
    }

    fn judge_denial(
        &mut self,
        costs: &Costs,
        denial: &Denial,
        unix: u64,
        is_immediate: bool,
    ) -> Result<(), Complaint> {
        let rule = usize::from(denial.budget.rule);
        let (_, cost) = *costs.iter().find(|(named, _)| *named == rule).unwrap();
        let is_diverted = self.is_diverted(rule);
        let read = unix - self.apart_ms(CACHED_MS);
        let law = self.deciding(rule);
        let (used, limit) = (law.effective(unix, Counts::WithLost), law.limit);
        match denial.cause {
            Cause::Limit => {
                let denies = |unix| !law.admits(unix, cost, Counts::WithLost);
                must("denied", denies(unix) || denies(read), || {
                    format!("rule {rule}: {cost} with {used} used of {limit}")
                })?;
                self.judge_wait(costs, denial, unix)
            }
            Cause::Cost => must("denied for ever", cost > limit && denial.retry_after_ms.is_none(), || {
                format!("rule {rule}: {cost} of {limit}: {denial:?}")
            }),
            Cause::Reserved if is_immediate && !is_diverted => {
                let held = self.reserved(rule);
                must("held back", used + held + u128::from(cost) > u128::from(limit), || {
                    format!("rule {rule}: {cost} with {used} used and {held} reserved of {limit}")
                })
            }
            Cause::Reserved => Ok(()),
            Cause::Undecided => Err(("undecided", format!("{denial:?}"))),
        }
    }

    /// `retry-after` is the longest wait by the rules, by counts that are at most as old as a cached denial, and as leases are.
    fn judge_wait(&mut self, costs: &Costs, denial: &Denial, unix: u64) -> Result<(), Complaint> {
        let (mut least, mut most) = (0, 0);
        // A denial that was cached before lacks what a killed worker's lease had spent.
        let is_expired = self.world.now > self.expired + CACHED_MS;
        let has_equal_costs = self.plan.has_equal_costs;
        for (rule, cost) in costs {
            let wait = |law: &Law, counts| law.wait_ms(unix, *cost, counts).unwrap_or(u64::MAX);
            most = most.max(wait(self.deciding(*rule), Counts::WithLost));
            let law = &self.laws[*rule];
            let (since, old_ms) = (law.applied_since(), CACHED_MS + law.leased_ms(unix));
            // With equal costs nothing passes after a denial, unless another limit applies.
            let counts = match has_equal_costs && unix > since + old_ms {
                true => Counts::Admitted,
                false => Counts::Until(unix - old_ms),
            };
            // What was read of a key that had a place, or would have got one, is as old.
            let law = if self.world.now < self.moved + CACHED_MS { law } else { self.deciding(*rule) };
            least = least.max(if is_expired { wait(law, counts) } else { 0 });
        }
        let range = least.saturating_sub(self.apart_ms(least))..=most.saturating_add(self.apart_ms(most));
        let wait = denial.retry_after_ms.unwrap_or(u64::MAX);
        let early = if wait < least { "retries early" } else { "retries late" };
        must(early, range.contains(&wait), || {
            format!("after {wait} ms, {range:?} by the law: {costs:?} {denial:?}")
        })
    }

    /// A wait is in monotonic time, also while a denial is cached.
    fn apart_ms(&self, wait_ms: u64) -> u64 {
        if self.drifts { 1 + wait_ms / SLOW_PARTS } else { 0 }
    }

    fn reserved(&mut self, rule: usize) -> u128 {
        let entry = self.world.entry(0, &self.laws[rule].key);
        entry.iter().flat_map(|entry| &entry.reservations).map(|held| u128::from(held.amount)).sum()
    }

    /// The region shows the limit that was applied last, and without live control the configured one.
    fn judge_region(&mut self) -> Result<(), Complaint> {
        let workers = &self.world.processes[0].workers;
        if self.world.down || workers.iter().flatten().any(|worker| worker.stream.is_none()) {
            return Ok(());
        }
        // The next report arrives.
        self.pass(200)?;
        for is_controlled in [true, false] {
            for (rule, (limit, configured)) in &self.shown {
                let applies = if is_controlled { *limit } else { *configured };
                let parts = self.laws[*rule].key.parts();
                let explained =
                    self.world.regions[0].explain(parts.workspace, parts.namespace, parts.identifier);
                let shown = explained.first().and_then(|explained| explained.newest_limit);
                must("the region shows", shown.is_none_or(|shown| shown == applies), || {
                    format!("rule {rule}: {shown:?}, {applies} applies; under control: {is_controlled}")
                })?;
            }
            let now = self.world.unix_of(0);
            self.world.regions[0].control_some(0, |_, _| Some(LiveLimit::Unset), now);
        }
        Ok(())
    }
}
