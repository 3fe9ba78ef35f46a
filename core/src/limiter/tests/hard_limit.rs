//! Hard limits: the ten cells of a window count in full, so no window of any placement holds more than the limit.

use super::deferred::deferred_check;
use super::harness::*;
use crate::limiter::table::Geometry;
use crate::limiter::{Cause, Check, Decision, Policy};
use crate::model::key::Key;
use crate::model::window::Position;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::vec::Vec;

const WINDOW: u64 = 5_000;

/// The times and costs of the admitted requests, in order.
#[derive(Debug, Default)]
struct Passed {
    log: Vec<(u64, u64)>,
}

impl Passed {
    fn add(&mut self, now: u64, cost: u64) {
        self.log.push((now, cost));
    }

    fn sum(&self) -> u64 {
        self.log.iter().map(|(_, cost)| cost).sum()
    }

    /// The cost admitted in the fullest of all windows.
    fn worst(&self) -> u64 {
        self.worst_in(WINDOW)
    }

    /// The same of windows of another length.
    fn worst_in(&self, window_ms: u64) -> u64 {
        let (mut first, mut held, mut worst) = (0, 0, 0);
        for (now, cost) in &self.log {
            held += cost;
            while self.log[first].0 + window_ms <= *now {
                held -= self.log[first].1;
                first += 1;
            }
            worst = held.max(worst);
        }
        worst
    }
}

/// Requests of one or more processes on one key, and their outcomes.
struct Run {
    world: World,
    key: Key,
    limit: u64,
    passed: Passed,
    waiting: BTreeMap<u64, u64>,
}

impl Run {
    fn new(world: World, key: Key, limit: u64) -> Run {
        Run { world, key, limit, passed: Passed::default(), waiting: BTreeMap::new() }
    }

    fn request(&mut self, process: usize, worker: usize, cost: u64) {
        let (id, outcome) = self.world.request(process, worker, &[check(&self.key, self.limit, cost)]);
        match outcome.decision {
            Decision::Allow(_) => self.passed.add(self.world.now, cost),
            Decision::Wait => {
                self.waiting.insert(id, cost);
            }
            Decision::Deny(_) => {}
        }
        self.collect();
    }

    /// Sends a request to a random worker.
    fn request_at_random(&mut self) {
        let process = self.world.random.below(self.world.processes.len() as u64) as usize;
        let workers = self.world.processes[process].workers.len() as u64;
        let worker = self.world.random.below(workers) as usize;
        self.request(process, worker, 1);
    }

    fn pass_time(&mut self, ms: u64) {
        for _ in 0..ms {
            self.world.run(1);
            self.collect();
        }
    }

    fn collect(&mut self) {
        for (id, (at, outcome)) in std::mem::take(&mut self.world.resolved) {
            let Some(cost) = self.waiting.remove(&id) else { continue };
            if allowed(&outcome) {
                self.passed.add(at, cost);
            }
        }
    }

    /// Sends nothing for a while, then the whole limit just before a window ends, then more than can pass.
    fn attack(&mut self) {
        let into = self.world.unix().0 % WINDOW;
        self.pass_time(3 * WINDOW - into - 3);
        for _ in 0..self.limit {
            self.request_at_random();
        }
        self.saturate(2 * WINDOW);
    }

    fn saturate(&mut self, ms: u64) {
        for _ in 0..ms {
            for _ in 0..2 + 3 * self.limit / WINDOW {
                self.request_at_random();
            }
            self.pass_time(1);
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Request { worker: usize, cost: u64 },
    Burst { worker: usize, times: u64 },
    Pass { ms: u64 },
    Kill { worker: usize },
    Wipe,
}

fn step() -> impl Strategy<Value = Step> {
    let pass = prop_oneof![4 => 0u64..30, 4 => 30u64..700, 1 => 700u64..9_000];
    prop_oneof![
        6 => (0usize..4, 0u64..9).prop_map(|(worker, cost)| Step::Request { worker, cost }),
        6 => (0usize..4, 1u64..80).prop_map(|(worker, times)| Step::Burst { worker, times }),
        8 => pass.prop_map(|ms| Step::Pass { ms }),
        1 => (0usize..4).prop_map(|worker| Step::Kill { worker }),
        1 => Just(Step::Wipe),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn no_true_window_of_a_process_holds_more_than_the_limit(
        steps in prop::collection::vec(step(), 1..60), connected in any::<bool>(),
        limit in prop_oneof![Just(1u64), Just(9), Just(600)]
    ) {
        let mut world = if connected { World::connected(1, 4) } else { World::alone(1, 4) };
        world.latency = (1, 8);
        let mut run = Run::new(world, hard_limit_key("k", WINDOW), limit);
        let mut alive = std::vec![true; 4];
        for step in steps {
            match step {
                Step::Request { worker, cost } if alive[worker] => run.request(0, worker, cost),
                Step::Burst { worker, times } if alive[worker] => {
                    (0..times).for_each(|_| run.request(0, worker, 1));
                }
                Step::Pass { ms } => run.pass_time(ms),
                Step::Kill { worker } if alive.iter().filter(|is_alive| **is_alive).count() > 1 => {
                    alive[worker] = false;
                    run.world.kill(0, worker);
                }
                Step::Wipe => run.world.restart_region(),
                _ => {}
            }
            prop_assert!(run.passed.worst() <= limit, "{} of {limit}: {:?}", run.passed.worst(), run.passed);
        }
    }
}

/// What happens beside a rule whose responses cost at most what was reserved.
#[derive(Clone, Debug)]
enum DeferredStep {
    Begin { worker: usize, reserve: u64 },
    End { which: prop::sample::Index, percent: u64 },
    Pass { ms: u64 },
}

fn deferred_step() -> impl Strategy<Value = DeferredStep> {
    let pass = prop_oneof![4 => 0u64..30, 4 => 30u64..700, 1 => 700u64..9_000];
    prop_oneof![
        8 => (0usize..4, 0u64..9).prop_map(|(worker, reserve)| DeferredStep::Begin { worker, reserve }),
        6 => (any::<prop::sample::Index>(), 0u64..=100)
            .prop_map(|(which, percent)| DeferredStep::End { which, percent }),
        6 => pass.prop_map(|ms| DeferredStep::Pass { ms }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn responses_that_cost_at_most_their_reserve_keep_a_hard_limit(
        steps in prop::collection::vec(deferred_step(), 1..90), connected in any::<bool>()
    ) {
        const LIMIT: u64 = 24;
        let mut world = if connected { World::connected(1, 4) } else { World::alone(1, 4) };
        world.latency = (1, 8);
        let key = hard_limit_key("k", WINDOW);
        let (mut charged, mut under_way) = (Passed::default(), Vec::new());
        for step in steps {
            match step {
                DeferredStep::Begin { worker, reserve } => {
                    let check = deferred_check(&key, LIMIT, reserve);
                    // A deadline beyond the end of any schedule.
                    let policy = Policy { settles_within_ms: 3_600_000, ..check.policy };
                    let id = world.begins(0, worker, Check { policy, ..check });
                    under_way.extend(id.map(|id| (worker, id, reserve)));
                }
                DeferredStep::End { which, percent } if !under_way.is_empty() => {
                    let (worker, id, reserve) = under_way.swap_remove(which.index(under_way.len()));
                    let cost = reserve * percent / 100;
                    world.settle((0, worker), id, cost);
                    charged.add(world.now, cost);
                }
                DeferredStep::End { .. } => {}
                DeferredStep::Pass { ms } => world.run(ms),
            }
            prop_assert!(charged.worst() <= LIMIT, "{} of {LIMIT}: {charged:?}", charged.worst());
        }
    }
}

#[test]
fn a_burst_at_the_end_of_a_window_gets_twice_an_average_limit_but_no_more_than_a_hard_limit() {
    for (connected, limit) in [(false, 20), (true, 20), (false, 700), (true, 700)] {
        let world = || if connected { World::connected(1, 3) } else { World::alone(1, 3) };
        let mut usual = Run::new(world(), key("k", WINDOW), limit);
        let mut hard_limit = Run::new(world(), hard_limit_key("k", WINDOW), limit);
        usual.attack();
        hard_limit.attack();
        let (usual, hard_limit) = (usual.passed.worst(), hard_limit.passed.worst());
        assert!(usual >= limit * 18 / 10, "{usual} of {limit}, by the average over two cells");
        assert!(hard_limit <= limit && hard_limit >= limit * 98 / 100, "{hard_limit} of {limit}");
    }
}

/// What passes in a window around steps of the clock by `step_ms`, one each `every_ms`: the whole limit just before a cell ends, and more
/// than can pass afterwards.
fn worst_around_steps(connected: bool, (step_ms, every_ms): (i64, u64)) -> u64 {
    let mut world = if connected { World::connected(1, 2) } else { World::alone(1, 2) };
    world.latency = (1, 2);
    let mut run = Run::new(world, hard_limit_key("k", WINDOW), 20);
    let into = run.world.unix().0 % WINDOW;
    run.pass_time(WINDOW - into - 3);
    (0..20).for_each(|_| run.request_at_random());
    run.pass_time(2);
    for _ in 0..2 * WINDOW / every_ms {
        match connected {
            true => *run.world.clock_errors.entry(0).or_default() += step_ms,
            false => run.world.unix_offset += step_ms,
        }
        for _ in 0..every_ms / 5 {
            (0..2).for_each(|_| run.request_at_random());
            run.pass_time(5);
        }
    }
    // While a time is corrected it runs by a thousandth too fast or too slow.
    run.passed.worst_in(WINDOW - WINDOW / 500)
}

#[test]
fn a_hard_limit_holds_in_any_window_around_steps_of_the_clock() {
    let cell_ms = (WINDOW / 10) as i64;
    let steps = [cell_ms / 64, cell_ms / 8, cell_ms / 8 + 1, cell_ms / 2, cell_ms, 3 * cell_ms, 1 << 40];
    let steps = steps.into_iter().flat_map(|step_ms| [500, 600, 5_000].map(|every_ms| (step_ms, every_ms)));
    // The time of a region does not step; while it is corrected it moves by a millisecond in a second.
    let trials = steps.map(|step| (false, step)).chain([(true, (1, 1_000))]);
    let mut beyond = Vec::new();
    for (connected, (step_ms, every_ms)) in trials {
        for step_ms in [step_ms, -step_ms] {
            let worst = worst_around_steps(connected, (step_ms, every_ms));
            if worst > 20 {
                beyond.push((connected, step_ms, every_ms, worst));
            }
        }
    }
    assert!(beyond.is_empty(), "beyond 20: {beyond:?}");
}

#[test]
fn steady_traffic_gets_nine_tenths_of_the_limit() {
    for (connected, limit) in [(false, 10), (true, 10), (false, 500), (true, 500)] {
        let world = if connected { World::connected(1, 3) } else { World::alone(1, 3) };
        let mut run = Run::new(world, hard_limit_key("k", WINDOW), limit);
        run.saturate(11 * WINDOW);
        let (passed, worst) = (run.passed.sum(), run.passed.worst());
        assert!(passed * 10 >= 11 * limit * 9, "{passed} passed in eleven windows of {limit}");
        assert!(worst <= limit, "{worst} of {limit}");
    }
}

#[test]
fn processes_of_a_region_share_a_hard_limit() {
    for (processes, limit, latency) in [(2, 20, (0, 0)), (3, 100, (0, 5)), (3, 1_000, (0, 5))] {
        let mut world = World::connected(processes, 2);
        world.latency = latency;
        let mut run = Run::new(world, hard_limit_key("k", WINDOW), limit);
        run.attack();
        run.saturate(9 * WINDOW);
        let worst = run.passed.worst();
        assert!(worst <= limit + limit / 20, "{processes} processes: {worst} of {limit}");
        let passed = run.passed.sum();
        assert!(
            passed * 100 >= 11 * limit * 89,
            "{processes} processes: {passed} in eleven windows of {limit}"
        );
        let queries = run.world.queries;
        assert!(queries <= 4 * passed + 100, "{processes} processes: {queries} queries for {passed}");
    }
}

#[test]
fn retry_after_is_the_time_until_enough_of_the_oldest_cells_leave() {
    let mut world = World::alone(1, 2);
    let key = hard_limit_key("k", WINDOW);
    world.run(WINDOW - world.unix().0 % WINDOW);
    for _ in 0..5 {
        assert!(world.passes(0, 0, &[check(&key, 10, 2)]));
        world.run(500);
    }
    world.run(100);
    // The first cell counts for eleven cells, 5.5 seconds, of which 2.6 have passed.
    for (worker, cost, wait_ms) in
        [(0, 1, 2_900), (0, 1, 2_900), (1, 2, 2_900), (0, 3, 3_400), (1, 10, 4_900)]
    {
        let denied = denial(world.decide(0, worker, &[check(&key, 10, cost)]));
        assert_eq!((denied.cause, denied.retry_after_ms), (Cause::Limit, Some(wait_ms)), "cost {cost}");
        assert_eq!((denied.budget.remaining, denied.budget.reset_ms), (0, 400));
    }
    world.run(2_899);
    assert!(!world.passes(0, 0, &[check(&key, 10, 1)]));
    world.run(1);
    assert_eq!(budget(world.decide(0, 0, &[check(&key, 10, 1)])).remaining, 1);
}

#[test]
fn a_cached_denial_applies_until_its_cell_ends() {
    let mut world = World::alone(1, 1);
    let key = hard_limit_key("k", WINDOW);
    world.run(WINDOW - world.unix().0 % WINDOW);
    assert!(world.passes(0, 0, &[check(&key, 5, 5)]));
    assert!(!world.passes(0, 0, &[check(&key, 5, 1)]));
    let loads = world.processes[0].shared.loads;
    for _ in 0..400 {
        let denied = denial(world.request(0, 0, &[check(&key, 5, 1)]).1);
        let since = world.unix().0 % WINDOW;
        assert_eq!(denied.retry_after_ms, Some(WINDOW + 500 - since));
        assert_eq!(denied.budget.reset_ms, 500 - since % 500);
        world.now += 1;
    }
    assert_eq!(world.processes[0].shared.loads, loads, "no load of the table");
    world.now += 100;
    assert!(!world.passes(0, 0, &[check(&key, 5, 1)]));
    assert_eq!(world.processes[0].shared.loads, loads + 1, "one load in the next cell");
}

#[test]
fn an_evicted_key_receives_the_baselines_of_all_its_cells() {
    let mut world = World::with(1, 2, Geometry { buckets: 1, keys_per_bucket: 2 }, false);
    world.run(1_000);
    let key = hard_limit_key("k", 60_000);
    for worker in [0, 1, 0, 1, 0] {
        assert!(world.passes(0, worker, &[check(&key, 10, 2)]));
        world.run(6_000);
    }
    for flooder in keys(40, HOUR).iter().cycle().take(60) {
        world.passes(0, 0, &[check(flooder, 100, 1)]);
        world.run(150);
    }
    assert!(world.entry(0, &key).is_none());
    let before = world.queries;
    assert!(!world.passes(0, 0, &[check(&key, 10, 1)]), "ten are used in five cells");
    assert_eq!(world.queries, before + 1);
    let entry = world.entry(0, &key).unwrap();
    assert!(!entry.is_without_baseline());
    let own: Vec<u64> = entry.cells().map(|(_, cell)| cell.own).collect();
    assert_eq!(own.iter().sum::<u64>(), 10, "{own:?}");
}

#[test]
fn after_a_loss_every_cell_is_reported_and_received_by_another_process() {
    let mut world = World::connected(2, 2);
    let key = hard_limit_key("k", 60_000);
    for turn in 0..8 {
        assert!(world.passes(0, turn % 2, &[check(&key, 8, 1)]));
        world.run(6_000);
    }
    world.restart_region();
    world.run(3_000);
    let newest = Position::at(world.unix(), 6_000).sequence;
    let held: u64 = (newest - 10..=newest).map(|at| world.regional(&key, at).0).sum();
    assert_eq!(held, 8);
    assert!(!world.passes(1, 0, &[check(&key, 8, 1)]), "the use of the other process counts in full");
    let others = world.entry(1, &key).unwrap();
    assert_eq!(others.cells().map(|(_, cell)| cell.region_others).sum::<u64>(), 8);
}

#[test]
fn acknowledged_cells_are_not_reported_again() {
    let mut world = World::connected(1, 1);
    let key = hard_limit_key("k", 60_000);
    let checks: [Check<'_>; 1] = [check(&key, 1_000, 1)];
    for _ in 0..9 {
        assert!(world.passes(0, 0, &checks));
        world.run(6_000);
    }
    let reported = world.reported;
    assert!(world.passes(0, 0, &checks));
    world.run(1_000);
    assert!(world.reported <= reported + 2, "{} counts reported for one charge", world.reported - reported);
}
