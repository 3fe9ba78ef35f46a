//! Looking into parts: for the checkers, and for plots.
//!
//! Leaves to others: what must hold (`check`).

use super::World;
use super::envoy::Process;
use super::queue::Event;
use crate::check::CellId;
use crate::check::truth::Share;
use crate::plan::START_UNIX_MS;
use serde::Serialize;
use weir_core::key::fingerprint;
use weir_core::table::Entry;
use weir_core::window::MAX_COUNT;

/// Between two looks at everything.
const LOOK_US: u64 = 1_000_000;
/// Most cells waiting to be reported by one worker; its own bound.
const MAX_ROWS: u64 = 16_384;
/// Most requests that wait at one worker; its own bound.
const MAX_WAITING: u64 = 16_384;

/// What one Envoy believes of an identifier's current window, and the truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct View {
    /// Its region.
    pub region: usize,
    /// Its number there.
    pub envoy: usize,
    /// Used in the current cell, as it believes; its own use included.
    pub current: u64,
    /// In the cell before.
    pub previous: u64,
    /// What all Envoys of all regions have let pass in the current cell.
    pub true_current: u64,
    /// In the cell before.
    pub true_previous: u64,
}

impl World<'_> {
    /// What each Envoy that is there believes of an identifier under a rule, and the truth.
    pub fn views(&self, identifier: u64, rule: usize) -> Vec<View> {
        let Some(shape) = self.shapes.get(rule) else { return Vec::new() };
        let key = shape.key(identifier);
        let sequence = self.unix_ms() / shape.cell_ms;
        let of = |sequence| {
            self.check.truth.sum(CellId { rule, sequence, identifier }, |_| true, |share| share.admitted)
        };
        let (true_current, true_previous) = (of(sequence), of(sequence.saturating_sub(1)));
        let living = self.envoys.iter().enumerate();
        let living = living.filter_map(|(at, envoy)| Some((at, envoy.process.as_ref()?)));
        let view = |(at, process)| {
            let entry = entry_of(process, &key);
            let used = |sequence| entry.as_ref().map_or(0, |entry| used_in(entry, sequence));
            let (region, envoy) = self.place(at);
            let (current, previous) = (used(sequence), used(sequence.saturating_sub(1)));
            View { region, envoy, current, previous, true_current, true_previous }
        };
        living.map(view).collect()
    }

    /// Unix time as it is, whatever clocks show.
    pub(super) fn unix_ms(&self) -> u64 {
        START_UNIX_MS.saturating_sub(self.plan.settle_ms) + self.now_us / 1_000
    }

    pub(super) fn plan_look(&mut self) {
        self.queue.plan(self.now_us + LOOK_US, Event::Look);
    }

    /// Has the checkers see what was written.
    pub(super) fn check_writes(&mut self, envoy: usize) {
        let process = self.envoys.get_mut(envoy).and_then(|envoy| envoy.process.as_mut());
        if let Some(process) = process.filter(|process| process.table.is_written()) {
            self.check.wrote(process, self.now_us);
        }
    }

    /// Looks at how much everybody holds.
    pub(super) fn look(&mut self) {
        self.plan_look();
        let now_us = self.now_us;
        self.check.truth.forget(self.unix_ms());
        for envoy in &self.envoys {
            let Some(process) = &envoy.process else { continue };
            let geometry = process.meta.geometry;
            // A bucket holds its keys with at most 64 reservations each.
            let entry = 6 + 14 * 8 + 208 + 64 * 32;
            let bytes = (u64::from(geometry.buckets) + 8) * u64::from(geometry.keys_per_bucket) * entry;
            self.check.held("bytes of an Envoy's table", process.table.held_bytes() as u64, bytes, now_us);
            let mono = envoy.clock.mono(now_us);
            for worker in process.workers.iter().flatten() {
                let stats = worker.limiter.stats(mono);
                self.check.held("cells to be reported by a worker", stats.report_queue, MAX_ROWS, now_us);
                let waiting = worker.waiting() as u64;
                self.check.held("requests that wait at a worker", waiting, MAX_WAITING, now_us);
            }
        }
        self.look_at_regions();
    }

    /// A cell changed a while ago: has it come to rest, and do all know it?
    pub(super) fn rest(&mut self, id: CellId) {
        let now_us = self.now_us;
        let Some(shape) = self.shapes.get(id.rule) else { return };
        let (limit, window_ms, cell_ms) = (shape.rule.limit, shape.rule.window_ms, shape.cell_ms);
        let is_over = id.sequence + 1 < self.unix_ms() / cell_ms;
        let Some(cell) = self.check.truth.cell_mut(id) else { return };
        let rested_us = now_us - cell.changed_us;
        let changed_us = cell.changed_us;
        if is_over {
            cell.watched = false;
            return;
        }
        if rested_us < crate::check::FIRST_LOOK_US {
            self.queue.plan(changed_us + crate::check::FIRST_LOOK_US, Event::Rest(id));
            return;
        }
        match self.knowledge(id, limit, window_ms) {
            Knowledge::Complete { others: 0 } => {}
            Knowledge::Complete { .. } => self.check.convergence_ms.push(rested_us / 1_000),
            Knowledge::Missing => {
                let step_us = (rested_us / 16).max(5_000);
                self.queue.plan(now_us + step_us, Event::Rest(id));
                return;
            }
        }
        if let Some(cell) = self.check.truth.cell_mut(id) {
            cell.watched = false;
        }
    }

    /// Whether everybody who is to know a cell does.
    fn knowledge(&self, id: CellId, limit: u64, window_ms: u64) -> Knowledge {
        let Some(shape) = self.shapes.get(id.rule) else { return Knowledge::Missing };
        let key = shape.key(id.identifier);
        let known = |share: &Share| share.admitted.max(share.own).max(share.granted);
        let mut others = 0;
        for region in 0..self.plan.topology.regions {
            let expected = self.check.expected(id, region, limit, window_ms, known);
            for envoy in 0..self.plan.topology.envoys {
                let Some(process) = self.envoys[self.envoy_at(region, envoy)].process.as_ref() else {
                    continue;
                };
                let Some(number) = self.check.truth.number(process.origin) else { continue };
                let share = self.check.truth.share_of(id, number);
                let all = expected.near + expected.far;
                if !(share.admitted > 0 || expected.by_all) || all == known(&share) {
                    continue;
                }
                others += 1;
                let used = entry_of(process, &key).map_or(0, |entry| {
                    let leased = share.admitted.saturating_sub(share.own);
                    used_in(&entry, id.sequence).saturating_add(leased)
                });
                if used < all.min(MAX_COUNT) {
                    return Knowledge::Missing;
                }
            }
        }
        Knowledge::Complete { others }
    }

    fn look_at_regions(&mut self) {
        let now_us = self.now_us;
        for host in &self.aggregators {
            let Some(process) = &host.process else { continue };
            let stats = process.desk.region.stats(host.clock.unix(now_us));
            self.check.held("keys of a region", stats.keys as u64, 2_000_000, now_us);
            let subscribers = self.plan.topology.envoys as u64 + 1;
            let bound = stats.keys as u64 * subscribers + 1;
            self.check.held("pushes that wait at an aggregator", stats.pending_pushes as u64, bound, now_us);
        }
    }

    pub(super) fn finish(&mut self) {
        if std::mem::replace(&mut self.finished, true) {
            return;
        }
        self.look();
    }
}

enum Knowledge {
    /// All know it; so many had it to learn.
    Complete { others: usize },
    /// Somebody does not.
    Missing,
}

pub(super) fn entry_of(process: &Process, key: &[u8]) -> Option<Entry> {
    let fingerprint = fingerprint(key, process.meta.secret);
    process.table.entry(process.meta.geometry.place(fingerprint), fingerprint, key)
}

/// What a table holds as used in a cell; nothing if it is at a later one already.
pub(super) fn used_in(entry: &Entry, sequence: u64) -> u64 {
    entry
        .cell(sequence)
        .map_or(0, |cell| cell.own.saturating_add(cell.region_others).saturating_add(cell.global_others))
}
