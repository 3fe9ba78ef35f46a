//! Random schedules of requests with deferred costs, among others with known costs: every admission fits beside the
//! settled costs and the reserves in flight.

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
    /// A request with a deferred cost.
    Begin {
        worker: usize,
        key: usize,
        reserve: u64,
    },
    /// The response of a request in flight.
    End {
        which: prop::sample::Index,
        cost: u64,
    },
    /// Requests with known costs.
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

/// The same check, with a deadline beyond the end of any schedule.
fn waiting_long(check: Check<'_>) -> Check<'_> {
    Check { policy: Policy { settles_within_ms: 3_600_000, ..check.policy }, ..check }
}

/// A request in flight: its worker, its key and its reserve.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    worker: usize,
    key: usize,
    reserve: u64,
    id: u64,
}

struct Run {
    world: World,
    keys: Vec<Key>,
    settled: BTreeMap<(usize, u64), u64>,
    in_flight: Vec<InFlight>,
    /// Requests of dead workers.
    lost: Vec<InFlight>,
}

impl Run {
    fn of(steps: &[Step], connected: bool) -> Run {
        let mut world = if connected { World::connected(1, 4) } else { World::alone(1, 4) };
        world.latency = (1, 3);
        let keys = keys(2, WINDOW);
        let mut run = Run { world, keys, settled: BTreeMap::new(), in_flight: Vec::new(), lost: Vec::new() };
        steps.iter().for_each(|step| run.take(step));
        run
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Begin { worker, key, reserve } if self.is_alive(*worker) => {
                let (id, outcome) = self.world.begin(
                    0,
                    *worker,
                    waiting_long(deferred_check(&self.keys[*key], LIMITS[*key], *reserve)),
                );
                if let Decision::Allow(_) = outcome.decision {
                    self.fits(*key, *reserve);
                    self.in_flight.push(InFlight { worker: *worker, key: *key, reserve: *reserve, id });
                }
            }
            Step::End { which, cost } if !self.in_flight.is_empty() => {
                let request = self.in_flight.swap_remove(which.index(self.in_flight.len()));
                self.world.settle((0, request.worker), request.id, *cost);
                self.charge(request.key, *cost);
            }
            Step::Burst { worker, key, times } if self.is_alive(*worker) => {
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
                let dead = |request: &mut InFlight| request.worker == *worker;
                self.lost.extend(self.in_flight.extract_if(.., dead));
            }
            Step::Cut { worker } => self.world.cut(0, *worker),
            Step::Begin { .. } | Step::End { .. } | Step::Burst { .. } => {}
        }
    }

    fn is_alive(&self, worker: usize) -> bool {
        self.world.processes[0].workers[worker].is_some()
    }

    fn charge(&mut self, key: usize, cost: u64) {
        let sequence = Position::at(self.world.unix(), WINDOW).sequence;
        *self.settled.entry((key, sequence)).or_default() += cost;
    }

    /// Asserts that an admission fits beside the settled costs and the reserves in flight, also those of dead workers.
    fn fits(&self, key: usize, cost: u64) {
        let at = Position::at(self.world.unix(), WINDOW);
        let count = |sequence| self.settled.get(&(key, sequence)).copied().unwrap_or(0);
        let reserves = self.in_flight.iter().chain(&self.lost).filter(|request| request.key == key);
        let reserved: u64 = reserves.map(|request| request.reserve).sum();
        let current = count(at.sequence) + reserved;
        let used = Used::Average { current, previous: count(at.sequence - 1) };
        assert!(used.admits(&at, cost, LIMITS[key]), "{used:?} and {cost} passed {at:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn every_admission_fits_beside_the_reserves_in_flight(
        steps in prop::collection::vec(step(true), 1..80), connected in any::<bool>()
    ) {
        Run::of(&steps, connected);
    }

    #[test]
    fn the_table_holds_the_settled_costs(
        steps in prop::collection::vec(step(false), 1..80), connected in any::<bool>()
    ) {
        let mut run = Run::of(&steps, connected);
        let reserved: [u64; 2] = [0, 1].map(|key| {
            run.in_flight.iter().filter(|request| request.key == key).map(|request| request.reserve).sum()
        });
        // By then all leases are returned.
        run.world.run(10_400);
        for (key, reserved) in reserved.into_iter().enumerate() {
            let Some(entry) = run.world.entry(0, &run.keys[key]) else { continue };
            let settled = |sequence| run.settled.get(&(key, sequence)).copied().unwrap_or(0);
            for (sequence, cell) in entry.cells() {
                prop_assert_eq!(cell.own, settled(sequence), "key {} in {}", key, sequence);
            }
            let in_table: u64 = entry.reservations.iter().map(|reservation| reservation.amount).sum();
            prop_assert_eq!(in_table, reserved, "key {}", key);
        }
    }
}
