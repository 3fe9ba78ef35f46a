//! Random schedules: whatever happens, an exact count of what passed agrees with what the limiters say.

use super::harness::*;
use crate::limiter::{Check, Decision};
use crate::model::key::Key;
use crate::model::window::{Position, Used};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::vec::Vec;

/// One thing that happens.
#[derive(Clone, Debug)]
enum Step {
    /// A worker is asked about some keys.
    Request {
        worker: usize,
        keys: Vec<usize>,
        cost: u64,
    },
    /// As many requests as that, one after another in the same moment.
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

/// Limits of the three keys: tiny, one with leases near its end, one that is never reached.
const LIMITS: [u64; 3] = [9, 600, 1_000_000];
const WINDOW: u64 = 5_000;

/// Runs a schedule on one process of four workers; checks every pass against an exact count of all that passed.
struct Run {
    world: World,
    keys: Vec<Key>,
    passed: BTreeMap<(usize, u64), u64>,
    waiting: BTreeMap<u64, (Vec<usize>, u64)>,
    said: Vec<(u64, bool)>,
    kills: usize,
}

impl Run {
    fn of(steps: &[Step], connected: bool) -> Run {
        let mut world = if connected { World::connected(1, 4) } else { World::alone(1, 4) };
        // A pong is never faster than the one that the clocks are set by: else they might be a millisecond off at a cell's border.
        world.latency = (1, 8);
        let mut run = Run {
            world,
            keys: keys(3, WINDOW),
            passed: BTreeMap::new(),
            waiting: BTreeMap::new(),
            said: Vec::new(),
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
            _ => self.note(id, keys, cost, allowed(&outcome)),
        }
        self.collect();
    }

    /// Millisecond by millisecond, so that what waited is judged at the moment of its answer.
    fn pass_time(&mut self, ms: u64) {
        for _ in 0..ms {
            self.world.run(1);
            self.collect();
        }
    }

    fn collect(&mut self) {
        for (id, (_, outcome)) in std::mem::take(&mut self.world.resolved) {
            let (keys, cost) = self.waiting.remove(&id).unwrap();
            self.note(id, &keys, cost, allowed(&outcome));
        }
    }

    fn note(&mut self, id: u64, keys: &[usize], cost: u64, passes: bool) {
        self.said.push((id, passes));
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

    /// What the table holds of a key in its two cells, and what passed in them; and its reservations.
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
    fn nothing_passes_that_an_exact_count_would_refuse(
        steps in prop::collection::vec(step(true), 1..60), connected in any::<bool>()
    ) {
        Run::of(&steps, connected);
    }

    #[test]
    fn what_passed_is_what_the_table_holds_once_reservations_are_back(
        steps in prop::collection::vec(step(false), 1..60), connected in any::<bool>()
    ) {
        let mut run = Run::of(&steps, connected);
        // The longest lease comes back after five seconds, and once more if it was in use then. The newest cell stays
        // in the entry until somebody asks again.
        run.pass_time(10_400);
        for key in 0..LIMITS.len() {
            if let Some((own, passed, reservations)) = run.counts(key) {
                prop_assert_eq!((own, reservations), (passed, 0), "key {}", key);
            }
        }
    }

    #[test]
    fn the_same_schedule_gives_the_same_answers(
        steps in prop::collection::vec(step(true), 1..40), connected in any::<bool>()
    ) {
        prop_assert_eq!(Run::of(&steps, connected).said, Run::of(&steps, connected).said);
    }
}
