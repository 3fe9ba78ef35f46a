//! What must hold at every moment, and at rest.
//!
//! - A part obeys nothing that was not written.
//! - Of one incarnation of the database, no part returns to an older control of a place, unless the newer one is lost.
//! - After [`BOUND_MS`] without a fault, a part obeys what the database had since.
//! - No aggregator writes a revision that it has seen, and so no epoch of a key begins twice.
//! - At rest all parts obey what the database has.
//! - What holds of bans by rules is in `bans`.

mod bans;

pub use bans::Made;

use super::World;
use super::database::in_force;
use super::targets::{Place, TARGETS, is_of_flood, target};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use weir_core::control::change::{Change, StoredControl};
use weir_core::control::{Banned, Control, Controls, Effect};
use weir_core::model::time::{MonoMs, UnixMs};
use weir_core::replication::global::controls::READINGS_A_COMPARISON;

/// Time after which a change is obeyed everywhere: an interval of reads with its jitter, the pages of a reading, two rounds of pushes, and
/// two ticks.
const BOUND_MS: u64 = 2_000;
/// How far the clock of a machine is from the true time at most.
pub const SKEW_MS: u64 = 2_000;
/// Time after a failed read until the next one.
pub const RETRY_MS: u64 = 10_000;
/// Time after which rows that were deleted beside their edition are missed: as many intervals of reads, with their jitter.
pub const COMPARISON_MS: u64 = READINGS_A_COMPARISON as u64 * 1_200;

/// What was written, and what was found.
#[derive(Debug, Default)]
pub struct Checks {
    /// Number of comparisons.
    pub done: u64,
    /// Number of bans that rules made.
    pub bans: u64,
    /// The first violation.
    pub violation: Option<String>,
    /// Until when a fault of the database may have an effect.
    pub database_fault: u64,
    /// The rows after each change, and when it was made.
    versions: VecDeque<(u64, Rc<BTreeMap<Place, StoredControl>>)>,
    /// All rows that were ever written, by place and revision. After a loss a revision may be written again by an aggregator that has not
    /// read it.
    written: BTreeMap<(Place, u64), Vec<StoredControl>>,
    /// The ends of all bans that rules made of clients.
    ends: BTreeSet<(&'static str, UnixMs)>,
    /// The ends of all bans that were written.
    written_ends: BTreeSet<UnixMs>,
}

/// Where a part stands: what it obeyed before.
#[derive(Debug, Default)]
pub struct Obeyed {
    incarnation: u64,
    /// The highest revision in each place.
    revisions: BTreeMap<Place, u64>,
}

/// By what a part is judged.
struct Moment<'a> {
    /// Its clock.
    clock: UnixMs,
    /// It has to obey what the database had within the bound.
    must: bool,
    /// The stamps of the changes that the database has.
    history: &'a BTreeSet<u64>,
}

impl Checks {
    fn fail(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    /// Whether a ban of a client may have this end.
    fn is_end(&self, client: &'static str, until: UnixMs) -> bool {
        self.ends.contains(&(client, until)) || self.written_ends.contains(&until)
    }

    /// Compares what a part obeys.
    fn judge(
        &mut self,
        who: impl Fn() -> String,
        controls: &Controls,
        obeyed: &mut Obeyed,
        Moment { clock, must, history }: Moment<'_>,
    ) {
        self.done += 1;
        let incarnation = controls.known().incarnation;
        if std::mem::replace(&mut obeyed.incarnation, incarnation) != incarnation {
            obeyed.revisions.clear();
        }
        let mut held: BTreeMap<Place, Control> = BTreeMap::new();
        for control in controls.iter().filter(|control| !is_of_flood(&control.target)) {
            let place = (control.target.clone(), control.effect.slot());
            let written = self.written.get(&(place.clone(), control.revision));
            let is_it = |row: &StoredControl| !row.is_deleted && row.control == control;
            if !written.is_some_and(|rows| rows.iter().any(is_it)) {
                return self.fail(format!("{} obeys {control:?}, which was never written", who()));
            }
            let highest = obeyed.revisions.entry(place.clone()).or_default();
            let newer = self.written.get(&(place.clone(), *highest)).into_iter().flatten();
            let is_newer_there = newer.map(|row| row.stamp).any(|stamp| history.contains(&stamp));
            if control.revision < *highest && is_newer_there {
                return self.fail(format!("{} returns to {control:?} after {highest}", who()));
            }
            *highest = control.revision;
            held.insert(place, control);
        }
        if !must {
            return;
        }
        for which in 0..TARGETS {
            let (target, effect) = target(which, 1);
            let place = (target, effect.slot());
            let is = held.get(&place).filter(|control| control.is_in_force(clock));
            // What has ended by the fastest clock need not reach a part any more.
            let latest = clock.after(2 * SKEW_MS);
            let fits = |row| in_force(row, clock) == is || (is.is_none() && in_force(row, latest).is_none());
            if !self.versions.iter().any(|(_, rows)| fits(rows.get(&place))) {
                let wanted = self.versions.back().and_then(|(_, rows)| rows.get(&place).cloned());
                return self.fail(format!("{} obeys {is:?} and not {wanted:?}", who()));
            }
        }
    }
}

impl World {
    /// Notes that a change has led to this row, by an aggregator that has read revisions up to `seen`.
    pub fn committed(&mut self, row: &StoredControl, change: &Change, seen: u64, now: UnixMs) {
        let control = &row.control;
        let place = row.place();
        if control.revision <= seen {
            self.checks.fail(format!("{row:?} is written after {seen} was read"));
        }
        if let Some(since) = change.automatic {
            let before = self.checks.versions.back().and_then(|(_, rows)| rows.get(&place).cloned());
            self.check_rule(row, since, before.as_ref(), now);
        }
        if control.effect == Effect::Ban
            && let Banned::Until(until) = Banned::from(control.expires)
        {
            self.checks.written_ends.insert(until);
        }
        self.checks.written.entry((place, control.revision)).or_default().push(row.clone());
    }

    /// Notes that the database was emptied or set back.
    pub fn was_set_back(&mut self) {
        self.checks.database_fault = self.checks.database_fault.max(self.found_by());
        self.new_version();
    }

    /// Notes what the database has now.
    pub fn new_version(&mut self) {
        if let Some((_, before)) = self.checks.versions.back().cloned() {
            self.follow_bans(&before);
        }
        self.checks.versions.push_back((self.now, Rc::new(self.database.tables.rows.clone())));
        self.forget_versions();
    }

    /// Drops versions that were replaced before the bound.
    fn forget_versions(&mut self) {
        let since = self.now.saturating_sub(BOUND_MS);
        let versions = &mut self.checks.versions;
        while versions.get(1).is_some_and(|(at, _)| *at < since) {
            versions.pop_front();
        }
    }

    /// Checks a worker of an Envoy.
    pub fn check_worker(&mut self, envoy: usize, worker: usize) {
        self.forget_versions();
        let fault = self.fault_of(envoy);
        let Some(of_worker) = self.envoys[envoy].workers.get(worker) else { return };
        let clock = of_worker.limiter.moment(MonoMs(self.now)).unix;
        let history = &self.database.tables.history;
        // After a night a process has yesterday's time until its next ping is answered.
        let is_right = clock.0.abs_diff(self.now + self.slept_ms) <= 2 * SKEW_MS;
        let moment = Moment { clock, must: is_right && self.now >= fault + BOUND_MS, history };
        let Some(of_worker) = self.envoys[envoy].workers.get_mut(worker) else { return };
        let who = || format!("worker {worker} of envoy {envoy}");
        self.checks.judge(who, of_worker.keeper.controls(), &mut of_worker.obeyed, moment);
        self.check_bans(envoy, worker);
        if worker == self.envoys[envoy].subscriber {
            self.check_stored(envoy);
        }
    }

    /// Checks the set by which an aggregator decides.
    pub fn check_aggregator(&mut self, aggregator: usize) {
        self.forget_versions();
        let found = &mut self.aggregators[aggregator];
        let fault = found.last_fault.max(self.checks.database_fault);
        let clock = found.clocks(self.now, self.slept_ms).unix;
        let history = &self.database.tables.history;
        let moment = Moment { clock, must: self.now >= fault + BOUND_MS, history };
        let Some(process) = &mut found.process else { return };
        let who = || format!("aggregator {aggregator}");
        self.checks.judge(who, process.book.controls(), &mut process.obeyed, moment);
    }

    /// Checks all parts after all faults are over.
    pub fn check_rest(&mut self) {
        while self.checks.versions.len() > 1 {
            self.checks.versions.pop_front();
        }
        for envoy in 0..self.envoys.len() {
            for worker in 0..self.envoys[envoy].workers.len() {
                self.check_worker(envoy, worker);
            }
        }
        for aggregator in 0..self.aggregators.len() {
            self.check_aggregator(aggregator);
        }
    }

    /// The last fault that concerns an Envoy's controls.
    fn fault_of(&self, envoy: usize) -> u64 {
        let found = &self.envoys[envoy];
        let of_aggregator = match &found.stream {
            Some(stream) => self.aggregators[stream.aggregator].last_fault,
            None => self.now,
        };
        found.last_fault.max(of_aggregator).max(self.checks.database_fault)
    }
}
