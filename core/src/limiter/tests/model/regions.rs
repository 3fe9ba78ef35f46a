//! Several regions that share a database, with faults: streams that end, aggregators that hang or restart, Envoys that are killed, a
//! database that is away.
//!
//! Each Envoy keeps the law for its own use at all times. While nothing has failed for a while, all regions together keep it as well, but
//! for what they cannot have received yet. A denial is right if the law denies by all that was admitted, lost or granted.

use super::super::harness::{Random, World};
use super::law::{Counts, Law};
use crate::limiter::table::Geometry;
use crate::limiter::{Cause, Decision, Denial, Outcome, SLACK_PART, TOLERANCE_PART};
use crate::region::Due;
use crate::region::exchange::Stored;
use std::collections::BTreeMap;
use std::vec::Vec;

const WINDOW: u64 = 20_000;
const GEOMETRY: Geometry = Geometry { buckets: 64, keys_per_bucket: 8 };
const STEPS: u64 = 30_000;
/// Pause between two exchanges of a region with the database.
const EXCHANGE_MS: u64 = 150;
/// A use has reached all regions by then: a lease is returned, its use is reported and published, a row of it makes the others publish
/// theirs.
const SPREAD_MS: u64 = 1_500;
/// After a fault: until streams have settled, resyncs have ended and the last row was exchanged.
const SETTLES_MS: u64 = 8_000;
/// The mean time between two faults, if there are any.
const FAULT_MS: u64 = 4_000;

struct Trial {
    random: Random,
    world: World,
    law: Law,
    /// The region and the own use of each Envoy, also of those that were killed.
    envoys: Vec<(usize, Law)>,
    live: Vec<usize>,
    /// The rows of the database, by region and cell.
    table: BTreeMap<(usize, u64), Stored>,
    exchanged: Vec<u64>,
    database_away_until: u64,
    resumes: u64,
    failed: u64,
    waiting: BTreeMap<u64, (usize, u64)>,
    judged: u64,
}

#[test]
fn regions_with_faults_decide_by_the_law_within_their_bounds() {
    super::run_worlds("regions", 6, |seed| {
        let mut trial = Trial::new(seed);
        trial.run();
        trial.judged
    });
}

impl Trial {
    fn new(seed: u64) -> Trial {
        let mut random = Random::new(seed);
        let mut world = World::with(0, 0, GEOMETRY, false);
        world.latency = (1, 4);
        world.random = random.clone();
        let regions = 1 + random.below(3) as usize;
        (1..regions).for_each(|_| {
            world.add_aggregator();
        });
        let limit = [60, 1_000, 100_000][random.below(3) as usize];
        let law = Law::new(0, WINDOW, limit, random.below(4) == 0);
        let mut trial = Trial {
            random,
            world,
            law,
            envoys: Vec::new(),
            live: Vec::new(),
            table: BTreeMap::new(),
            exchanged: std::vec![0; regions],
            database_away_until: 0,
            resumes: 0,
            failed: 0,
            waiting: BTreeMap::new(),
            judged: 0,
        };
        for region in 0..regions {
            trial.world.regions[region].set_regions(regions as u64);
            (0..2).for_each(|_| trial.begin_envoy(region));
        }
        trial.world.run(SETTLES_MS);
        trial
    }

    fn begin_envoy(&mut self, region: usize) {
        let process = self.world.add_process(2, GEOMETRY);
        (0..2).for_each(|worker| {
            self.world.routes.insert((process, worker), region);
        });
        self.envoys.push((region, self.law.without_use()));
        self.live.push(process);
    }

    fn run(&mut self) {
        let end = self.world.now + STEPS;
        let has_faults = self.random.below(3) > 0;
        // Together about three times what the limit admits.
        let (pause_ms, most) = (20, 1 + 3 * self.law.limit * 20 * 2 / WINDOW / self.live.len() as u64);
        while self.world.now < end {
            for at in 0..self.live.len() {
                if self.random.below(pause_ms) == 0 {
                    self.request(self.live[at], most);
                }
            }
            // The last part is without faults, so that what they have left behind is judged.
            if has_faults && self.world.now + 2 * SETTLES_MS < end && self.random.below(FAULT_MS) == 0 {
                self.fail();
            }
            self.world.run(1);
            self.judge_resolved();
            self.world.paused &= self.world.now < self.resumes;
            for region in 0..self.exchanged.len() {
                if self.exchanged[region] + EXCHANGE_MS <= self.world.now {
                    self.exchange(region);
                }
            }
        }
    }

    fn fail(&mut self) {
        self.failed = self.world.now;
        let at = self.random.below(self.live.len() as u64) as usize;
        let process = self.live[at];
        match self.random.below(5) {
            0 => {
                let worker = self.random.below(2) as usize;
                self.world.cut(process, worker);
            }
            1 => {
                (self.world.paused, self.resumes) = (true, self.world.now + self.random.below(2_000));
                self.failed = self.resumes;
            }
            2 => {
                self.database_away_until = self.world.now + self.random.below(5_000);
                self.failed = self.database_away_until;
            }
            3 => {
                let region = self.envoys[process].0;
                self.world.lose_aggregator(region, region);
                self.world.regions[region].set_regions(self.exchanged.len() as u64);
            }
            _ => {
                // What it has not reported is lost, and what it was granted stays with the region.
                let entry = self.world.entry(process, &self.law.key);
                for cell in entry.iter().flat_map(|entry| entry.cells()) {
                    self.law.lose(cell.0, cell.1.confirmed.saturating_sub(cell.1.own));
                }
                self.world.kill_process(process);
                self.waiting.retain(|_, (of, _)| *of != process);
                self.live.remove(at);
                self.begin_envoy(self.envoys[process].0);
            }
        }
    }

    /// One exchange of a region with the database: it writes what is due, and reads the rows of the others.
    fn exchange(&mut self, region: usize) {
        self.exchanged[region] = self.world.now;
        if self.world.now < self.database_away_until || self.world.paused {
            return;
        }
        let now = self.world.unix_of(region);
        let due = if (self.world.now / EXCHANGE_MS).is_multiple_of(7) { Due::AtTick } else { Due::Now };
        let rows = self.world.regions[region].next_rows(due, 99, now);
        for row in &rows {
            let stored =
                Stored { key: row.key.clone(), sequence: row.sequence, count: row.count, limit: row.limit };
            let held = self.table.entry((region, row.sequence)).or_insert_with(|| stored.clone());
            held.count = held.count.max(row.count);
        }
        self.world.regions[region].published(&rows, now);
        let oldest = now.0.saturating_sub(3 * WINDOW) / self.law.cell_ms();
        self.table.retain(|(_, sequence), _| *sequence >= oldest);
        let reader = &mut self.world.regions[region];
        for ((other, _), stored) in self.table.iter().filter(|((other, _), _)| *other != region) {
            let other = reader.other_region(&[*other as u8]).unwrap();
            reader.import(other, stored, now).unwrap();
        }
        self.world.push_at.get_or_insert(self.world.now + 5);
    }

    fn request(&mut self, process: usize, most: u64) {
        let worker = self.random.below(2) as usize;
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
            if let Some((process, cost)) = self.waiting.remove(&id) {
                self.judge(process, cost, &outcome);
            }
        }
    }

    fn judge(&mut self, process: usize, cost: u64, outcome: &Outcome) {
        self.judged += 1;
        let (unix, is_settled) = (self.world.unix().0, self.is_settled());
        match outcome.decision {
            Decision::Allow(budget) => {
                let (_, own) = &mut self.envoys[process];
                assert!(own.admits(unix, cost, Counts::Admitted), "beyond the limit alone");
                own.admit(unix, cost);
                let left = own.remaining(unix, Counts::Admitted);
                if let Some(budget) = budget.filter(|_| own.limit < 256) {
                    assert!(budget.remaining <= left, "{budget:?}, {left} by its own use");
                }
                let known = self.law.effective(unix, Counts::Until(unix - SPREAD_MS)) + u128::from(cost);
                let most = self.law.limit + self.tolerated();
                assert!(
                    known <= most.into() || !is_settled,
                    "{known} of {} was used {SPREAD_MS} ms before, at most {most}",
                    self.law.limit
                );
                self.law.admit(unix, cost);
            }
            Decision::Deny(denial) => self.judge_denial(cost, &denial, unix),
            Decision::Wait => unreachable!(),
        }
    }

    fn is_settled(&self) -> bool {
        self.failed == 0 || self.world.now > self.failed + SETTLES_MS + WINDOW / 10
    }

    /// What the Envoys of a region may spend before their counts have reached each other, for each region.
    fn tolerated(&self) -> u64 {
        let (limit, nodes) = (self.law.limit, 2);
        limit * (nodes - 1) / (nodes * SLACK_PART) + 2 * limit / TOLERANCE_PART + nodes
    }

    fn judge_denial(&mut self, cost: u64, denial: &Denial, unix: u64) {
        if denial.cause != Cause::Limit {
            return;
        }
        let left = self.law.remaining(unix, Counts::WithLost).saturating_sub(cost);
        let held: u64 = self.waiting.values().map(|(_, cost)| cost).sum();
        // What a fault leaves behind may count until its window is over.
        let faults = if self.failed == 0 { 0 } else { self.law.limit / 10 };
        let bound = self.law.limit / 50 + 4 + cost + faults;
        assert!(
            left.saturating_sub(held) <= bound,
            "{cost} denied with {left} left besides of {}, settled: {}",
            self.law.limit,
            self.is_settled()
        );
        let most = self.law.wait_ms(unix, cost, Counts::WithLost).unwrap_or(u64::MAX);
        let wait = denial.retry_after_ms.unwrap_or(u64::MAX);
        assert!(
            // What the law admits is judged above.
            wait <= most.saturating_add(WINDOW / 10) || most == 0 || self.failed > 0,
            "retry after {wait} ms, {most} by the law"
        );
    }
}
