//! Random schedules: the decisions of the limiters agree with an exact count of the admitted costs.

use super::harness::*;
use crate::limiter::{Check, Decision};
use crate::model::key::Key;
use crate::model::window::{Position, Used};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::vec::Vec;

/// One step of a schedule.
#[derive(Clone, Debug)]
enum Step {
    /// A worker decides a request on some keys.
    Request {
        worker: usize,
        keys: Vec<usize>,
        cost: u64,
    },
    /// `times` requests, one after another in the same moment.
    Burst {
        worker: usize,
        key: usize,
        times: u64,
    },
    Pass {
        ms: u64,
    },
    Kill {
        worker: usize,
    },
    Cut {
        worker: usize,
    },
    Wipe,
    Freeze {
        frozen: bool,
    },
}

fn step(kills: bool) -> impl Strategy<Value = Step> {
    let request = (0usize..4, prop::collection::btree_set(0usize..3, 1..3), 0u64..9)
        .prop_map(|(worker, keys, cost)| Step::Request { worker, keys: keys.into_iter().collect(), cost });
    let burst =
        (0usize..4, 0usize..3, 1u64..60).prop_map(|(worker, key, times)| Step::Burst { worker, key, times });
    let pass = prop_oneof![4 => 0u64..30, 2 => 30u64..400, 1 => 400u64..9_000];
    prop_oneof![
        8 => request,
        4 => burst,
        8 => pass.prop_map(|ms| Step::Pass { ms }),
        u32::from(kills) => (0usize..4).prop_map(|worker| Step::Kill { worker }),
        1 => (0usize..4).prop_map(|worker| Step::Cut { worker }),
        1 => Just(Step::Wipe),
        1 => any::<bool>().prop_map(|frozen| Step::Freeze { frozen }),
    ]
}

/// Limits of the three keys: a tiny one, one low enough that leases end near it, and one that is never reached.
const LIMITS: [u64; 3] = [9, 600, 1_000_000];
const WINDOW: u64 = 5_000;

/// Runs a schedule on one process of four workers. Checks every admission against an exact count of all admitted costs.
struct Run {
    world: World,
    keys: Vec<Key>,
    passed: BTreeMap<(usize, u64), u64>,
    waiting: BTreeMap<u64, (Vec<usize>, u64)>,
    outcomes: Vec<(u64, bool)>,
    kills: usize,
}

impl Run {
    fn of(steps: &[Step], connected: bool) -> Run {
        let mut world = if connected { World::connected(1, 4) } else { World::alone(1, 4) };
        // No pong is faster than the one that set the clocks. Otherwise they could be off by 1 ms at the border of a cell.
        world.latency = (1, 8);
        let mut run = Run {
            world,
            keys: keys(3, WINDOW),
            passed: BTreeMap::new(),
            waiting: BTreeMap::new(),
            outcomes: Vec::new(),
            kills: 0,
        };
        for step in steps {
            run.take(step);
        }
        run.world.paused = false;
        run
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Request { worker, keys, cost } => self.request(*worker, keys, *cost),
            Step::Burst { worker, key, times } => {
                for _ in 0..*times {
                    self.request(*worker, &[*key], 1);
                }
            }
            Step::Pass { ms } => self.pass_time(*ms),
            Step::Kill { worker } if self.kills < 3 => {
                self.kills += usize::from(self.world.processes[0].workers[*worker].is_some());
                self.world.kill(0, *worker);
            }
            Step::Kill { .. } => {}
            Step::Cut { worker } => {
                self.world.cut(0, *worker);
                self.collect();
            }
            Step::Wipe => {
                self.world.restart_region();
                self.collect();
            }
            Step::Freeze { frozen } => self.world.paused = *frozen,
        }
    }

    fn request(&mut self, worker: usize, keys: &[usize], cost: u64) {
        if self.world.processes[0].workers[worker].is_none() {
            return;
        }
        let checks: Vec<Check<'_>> =
            keys.iter().map(|at| check(&self.keys[*at], LIMITS[*at], cost)).collect();
        let (id, outcome) = self.world.request(0, worker, &checks);
        match outcome.decision {
            Decision::Wait => {
                self.waiting.insert(id, (keys.to_vec(), cost));
            }
            _ => self.record(id, keys, cost, allowed(&outcome)),
        }
        self.collect();
    }

    /// Advances by single milliseconds, so that each outcome is checked at the time of its decision.
    fn pass_time(&mut self, ms: u64) {
        for _ in 0..ms {
            self.world.run(1);
            self.collect();
        }
    }

    fn collect(&mut self) {
        for (id, (_, outcome)) in std::mem::take(&mut self.world.resolved) {
            let (keys, cost) = self.waiting.remove(&id).unwrap();
            self.record(id, &keys, cost, allowed(&outcome));
        }
    }

    fn record(&mut self, id: u64, keys: &[usize], cost: u64, passes: bool) {
        self.outcomes.push((id, passes));
        if !passes {
            return;
        }
        let at = Position::at(self.world.unix(), WINDOW);
        for key in keys {
            let count = |sequence| self.passed.get(&(*key, sequence)).copied().unwrap_or(0);
            let used = Used::Average { current: count(at.sequence), previous: count(at.sequence - 1) };
            assert!(used.admits(&at, cost, LIMITS[*key]), "{used:?} and {cost} passed {at:?}");
            *self.passed.entry((*key, at.sequence)).or_default() += cost;
        }
    }

    /// The table's counts of a key in its two cells, the costs admitted in them, and the number of its reservations.
    fn counts(&mut self, key: usize) -> Option<([u64; 2], [u64; 2], usize)> {
        let entry = self.world.entry(0, &self.keys[key])?;
        let passed = |sequence| self.passed.get(&(key, sequence)).copied().unwrap_or(0);
        let own = [entry.current.own, entry.previous.own];
        Some((own, [passed(entry.sequence), passed(entry.sequence - 1)], entry.reservations.len()))
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn every_admission_fits_an_exact_count(
        steps in prop::collection::vec(step(true), 1..60), connected in any::<bool>()
    ) {
        Run::of(&steps, connected);
    }

    #[test]
    fn the_table_holds_all_admitted_costs_after_leases_were_returned(
        steps in prop::collection::vec(step(false), 1..60), connected in any::<bool>()
    ) {
        let mut run = Run::of(&steps, connected);
        // The longest lease is returned after five seconds, or after another five if it was in use then. The entry keeps
        // its newest cell until the next request.
        run.pass_time(10_400);
        for key in 0..LIMITS.len() {
            if let Some((own, passed, reservations)) = run.counts(key) {
                prop_assert_eq!((own, reservations), (passed, 0), "key {}", key);
            }
        }
    }

    #[test]
    fn the_same_schedule_gives_the_same_outcomes(
        steps in prop::collection::vec(step(true), 1..40), connected in any::<bool>()
    ) {
        prop_assert_eq!(Run::of(&steps, connected).outcomes, Run::of(&steps, connected).outcomes);
    }
}
