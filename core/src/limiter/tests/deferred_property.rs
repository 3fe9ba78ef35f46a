//! Random schedules of requests whose cost their responses tell, among others that know theirs: whatever happens, what
//! passes fits beside what was settled and all that is under way.

use super::deferred::deferred_check;
use super::harness::*;
use crate::limiter::{Check, Decision, Policy};
use crate::model::key::Key;
use crate::model::window::{Position, Used};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::vec::Vec;

#[derive(Clone, Debug)]
enum Step {
    /// A request whose response tells its cost.
    Begin {
        worker: usize,
        key: usize,
        reserve: u64,
    },
    /// The response of one of those under way.
    End {
        which: prop::sample::Index,
        cost: u64,
    },
    /// Requests that know their cost.
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
}

fn step(kills: bool) -> impl Strategy<Value = Step> {
    let at = || (0usize..4, 0usize..2);
    let begin = (at(), 0u64..40).prop_map(|((worker, key), reserve)| Step::Begin { worker, key, reserve });
    let end = (any::<prop::sample::Index>(), 0u64..80).prop_map(|(which, cost)| Step::End { which, cost });
    let burst = (at(), 1u64..30).prop_map(|((worker, key), times)| Step::Burst { worker, key, times });
    let pass = prop_oneof![4 => 0u64..30, 2 => 30u64..400, 1 => 400u64..9_000];
    prop_oneof![
        8 => begin,
        8 => end,
        2 => burst,
        6 => pass.prop_map(|ms| Step::Pass { ms }),
        u32::from(kills) => (0usize..4).prop_map(|worker| Step::Kill { worker }),
        1 => (0usize..4).prop_map(|worker| Step::Cut { worker }),
    ]
}

const LIMITS: [u64; 2] = [90, 3_000];
const WINDOW: u64 = 5_000;

/// No schedule lasts so long.
fn patient(check: Check<'_>) -> Check<'_> {
    Check { policy: Policy { settles_within_ms: 3_600_000, ..check.policy }, ..check }
}

/// A request under way: where, on which key, and what is reserved.
#[derive(Clone, Copy, Debug)]
struct Flight {
    worker: usize,
    key: usize,
    reserve: u64,
    id: u64,
}

struct Run {
    world: World,
    keys: Vec<Key>,
    settled: BTreeMap<(usize, u64), u64>,
    flights: Vec<Flight>,
    /// Of dead workers.
    lost: Vec<Flight>,
}

impl Run {
    fn of(steps: &[Step], connected: bool) -> Run {
        let mut world = if connected { World::connected(1, 4) } else { World::alone(1, 4) };
        world.latency = (1, 3);
        let keys = keys(2, WINDOW);
        let mut run = Run { world, keys, settled: BTreeMap::new(), flights: Vec::new(), lost: Vec::new() };
        steps.iter().for_each(|step| run.take(step));
        run
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Begin { worker, key, reserve } if self.incarnations(*worker) => {
                let (id, outcome) = self.world.begin(
                    0,
                    *worker,
                    patient(deferred_check(&self.keys[*key], LIMITS[*key], *reserve)),
                );
                if let Decision::Allow(_) = outcome.decision {
                    self.fits(*key, *reserve);
                    self.flights.push(Flight { worker: *worker, key: *key, reserve: *reserve, id });
                }
            }
            Step::End { which, cost } if !self.flights.is_empty() => {
                let flight = self.flights.swap_remove(which.index(self.flights.len()));
                self.world.settle((0, flight.worker), flight.id, *cost);
                self.charge(flight.key, *cost);
            }
            Step::Burst { worker, key, times } if self.incarnations(*worker) => {
                for _ in 0..*times {
                    if self.world.passes(0, *worker, &[check(&self.keys[*key], LIMITS[*key], 1)]) {
                        self.fits(*key, 1);
                        self.charge(*key, 1);
                    }
                }
            }
            Step::Pass { ms } => self.world.run(*ms),
            Step::Kill { worker } => {
                self.world.kill(0, *worker);
                let dead = |flight: &mut Flight| flight.worker == *worker;
                self.lost.extend(self.flights.extract_if(.., dead));
            }
            Step::Cut { worker } => self.world.cut(0, *worker),
            Step::Begin { .. } | Step::End { .. } | Step::Burst { .. } => {}
        }
    }

    fn incarnations(&self, worker: usize) -> bool {
        self.world.processes[0].workers[worker].is_some()
    }

    fn charge(&mut self, key: usize, cost: u64) {
        let sequence = Position::at(self.world.unix(), WINDOW).sequence;
        *self.settled.entry((key, sequence)).or_default() += cost;
    }

    /// What has just passed fits beside what was settled and everything that is under way, be its worker alive or dead.
    fn fits(&self, key: usize, cost: u64) {
        let at = Position::at(self.world.unix(), WINDOW);
        let count = |sequence| self.settled.get(&(key, sequence)).copied().unwrap_or(0);
        let under_way = self.flights.iter().chain(&self.lost).filter(|flight| flight.key == key);
        let reserved: u64 = under_way.map(|flight| flight.reserve).sum();
        let current = count(at.sequence) + reserved;
        let used = Used::Average { current, previous: count(at.sequence - 1) };
        assert!(used.admits(&at, cost, LIMITS[key]), "{used:?} and {cost} passed {at:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn nothing_passes_that_does_not_fit_beside_what_is_under_way(
        steps in prop::collection::vec(step(true), 1..80), connected in any::<bool>()
    ) {
        Run::of(&steps, connected);
    }

    #[test]
    fn what_was_settled_is_what_the_table_holds(
        steps in prop::collection::vec(step(false), 1..80), connected in any::<bool>()
    ) {
        let mut run = Run::of(&steps, connected);
        let reserved: [u64; 2] = [0, 1].map(|key| {
            run.flights.iter().filter(|flight| flight.key == key).map(|flight| flight.reserve).sum()
        });
        // Leases come back.
        run.world.run(10_400);
        for (key, reserved) in reserved.into_iter().enumerate() {
            let Some(entry) = run.world.entry(0, &run.keys[key]) else { continue };
            let settled = |sequence| run.settled.get(&(key, sequence)).copied().unwrap_or(0);
            for (sequence, cell) in entry.cells() {
                prop_assert_eq!(cell.own, settled(sequence), "key {} in {}", key, sequence);
            }
            let held: u64 = entry.reservations.iter().map(|held| held.amount).sum();
            prop_assert_eq!(held, reserved, "key {}", key);
        }
    }
}
