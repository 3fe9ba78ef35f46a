//! Reads the state of all parts for the checkers.
//!
//! - `key_counts`: the counts of one key in all parts, for plots.

pub mod key_counts;

use super::World;
use super::envoy::Process;
use super::event::Event;
use crate::check::CellId;
use crate::check::rest::{EXCHANGED_MS, Expected, Held, TableCell};
use crate::check::truth::Share;
use crate::plan::START_UNIX_MS;
use crate::plan::keys::{WORKSPACE, decimal};
use weir_core::limiter::table::{Bucket, Entry};
use weir_core::model::key::{Key, fingerprint};
use weir_core::model::window::MAX_COUNT;

/// Interval between two checks of all bounds.
const BOUNDS_CHECK_US: u64 = 1_000_000;
/// Most cells that wait to be reported by one worker; the worker's own bound.
const MAX_ROWS: u64 = 16_384;
/// Most requests that wait at one worker; the worker's own bound.
const MAX_WAITING: u64 = 16_384;

/// If a cell was not used and no fault had an effect on it for this long, its region has received it: leases are
/// returned, streams are open, recovery grace periods are over.
const REST_US: u64 = 13_000_000;
/// All regions have received a cell after this many publish intervals: two with their jitter, and the packets between them.
const GLOBAL_REST_INTERVALS: u64 = 3;
/// Most cells that are checked at the end.
const MOST_CELLS: usize = 20_000;

impl World<'_> {
    /// The true Unix time, independent of the parts' clocks.
    pub(in crate::world) fn unix_ms(&self) -> u64 {
        START_UNIX_MS.saturating_sub(self.plan.settle_ms) + self.now_us / 1_000
    }

    pub(in crate::world) fn plan_bounds_check(&mut self) {
        self.queue.plan(self.now_us + BOUNDS_CHECK_US, Event::CheckBounds);
    }

    /// Checks what was written to an Envoy's table.
    pub(in crate::world) fn check_writes(&mut self, envoy: usize) {
        let process = self.envoys.get_mut(envoy).and_then(|envoy| envoy.process.as_mut());
        if let Some(process) = process.filter(|process| process.table.is_written()) {
            self.check.wrote(process.node, &mut process.table, self.now_us);
        }
    }

    /// Compares what all parts hold with the bounds.
    pub(in crate::world) fn check_bounds(&mut self) {
        self.plan_bounds_check();
        let now_us = self.now_us;
        self.check.truth.evict(self.unix_ms());
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
        self.check_region_bounds();
    }

    /// Tests whether a changed cell is at rest: all parts that must receive it hold it.
    pub(in crate::world) fn rest(&mut self, id: CellId) {
        let now_us = self.now_us;
        let Some(shape) = self.shapes.get(id.rule) else { return };
        let (limit, window_ms, cell_ms) = (shape.rule.limit, shape.rule.window_ms, shape.cell_ms);
        let is_over = id.sequence + u64::from(shape.rule.resolution()) < self.unix_ms() / cell_ms;
        let Some(cell) = self.check.truth.cell_mut(id) else { return };
        let rested_us = now_us - cell.changed_us;
        let changed_us = cell.changed_us;
        if is_over {
            cell.watched = false;
            return;
        }
        if rested_us < crate::check::FIRST_CHECK_US {
            self.queue.plan(changed_us + crate::check::FIRST_CHECK_US, Event::Rest(id));
            return;
        }
        match self.convergence(id, limit, window_ms) {
            Convergence::Complete { others: 0 } => {}
            Convergence::Complete { .. } => self.check.convergence_ms.push(rested_us / 1_000),
            Convergence::Missing => {
                let step_us = (rested_us / 8).max(5_000);
                self.queue.plan(now_us + step_us, Event::Rest(id));
                return;
            }
        }
        if let Some(cell) = self.check.truth.cell_mut(id) {
            cell.watched = false;
        }
    }

    /// Whether all Envoys that must hold a cell hold it. The one that lacked it last is tested first.
    fn convergence(&mut self, id: CellId, limit: u64, window_ms: u64) -> Convergence {
        let Some(shape) = self.shapes.get(id.rule) else { return Convergence::Missing };
        let key = shape.key(id.identifier);
        let expected: Vec<Expected> = (0..self.plan.topology.regions)
            .map(|region| self.check.expected(id, region, limit, window_ms, Share::expected))
            .collect();
        let lags = self.check.truth.cell(id).map_or(0, |cell| cell.lags);
        let mut others = 0;
        for at in [lags].into_iter().chain(0..self.envoys.len()) {
            match self.has_received(id, at, &key, &expected) {
                None => {}
                Some(true) => others += 1,
                Some(false) => {
                    if let Some(cell) = self.check.truth.cell_mut(id) {
                        cell.lags = at;
                    }
                    return Convergence::Missing;
                }
            }
        }
        Convergence::Complete { others }
    }

    /// Whether an Envoy holds the use of a cell; `None` if it need not hold it, or has nothing to receive.
    fn has_received(&self, id: CellId, at: usize, key: &[u8], expected: &[Expected]) -> Option<bool> {
        let process = self.envoys.get(at)?.process.as_ref().filter(|process| !process.has_left())?;
        let expected = expected.get(self.place(at).0)?;
        let share = self.check.truth.share_of(id, self.check.truth.number(process.node)?);
        let all = expected.near + expected.far;
        if !(share.admitted > 0 || expected.by_all) || all == share.expected() {
            return None;
        }
        let used = entry_of(process, key).map_or(0, |entry| {
            let leased = share.admitted.saturating_sub(share.own);
            used_in(&entry, id.sequence).saturating_add(leased)
        });
        Some(used >= all.min(MAX_COUNT))
    }

    fn check_region_bounds(&mut self) {
        let now_us = self.now_us;
        for host in &self.aggregators {
            let Some(process) = &host.process else { continue };
            let stats = process.state.region.stats(host.clock.mono(now_us));
            let most = self.plan.topology.region_keys as u64;
            self.check.held("keys of a region", stats.keys as u64, most, now_us);
            let subscribers = self.plan.topology.envoys as u64 + 1;
            let bound = stats.keys as u64 * subscribers + 1;
            self.check.held("pushes that wait at an aggregator", stats.pending_pushes as u64, bound, now_us);
        }
    }

    /// An Envoy is about to end. Records what its region holds of it, which must not be lost.
    pub(in crate::world) fn note_final_counts(&mut self, number: usize) {
        let Some(process) = self.envoys[number].process.as_ref() else { return };
        let (region, node) = (self.place(number).0, process.node);
        let Some(share) = self.check.truth.number(node) else { return };
        for id in self.live_cells() {
            let has_share = |one: &Share| one.node == share;
            if !self.check.truth.cell(id).is_some_and(|cell| cell.shares.iter().any(has_share)) {
                continue;
            }
            let parts = self.holders(id, region).into_iter().map(|(_, held)| held.parts);
            let at_end = parts.filter_map(|parts| parts.get(&node).copied()).max().unwrap_or(0);
            if let Some((cell, at)) = self.check.truth.share(id, share, self.now_us) {
                cell.shares[at].at_end = at_end;
            }
        }
    }

    /// Checks the final state: every part that must have received a cell holds its exact use.
    pub(in crate::world) fn finish(&mut self) {
        if std::mem::replace(&mut self.finished, true) {
            return;
        }
        self.check_bounds();
        self.check.finish_exact(self.now_us);
        let faults_end_us = if self.plan.faults.is_empty() { 0 } else { self.plan.traffic_ms * 1_000 };
        let faults_end_us = self.begin_us.max(self.begin_us + faults_end_us);
        if self.now_us - faults_end_us >= REST_US {
            self.check_members();
        }
        let intervals = self.plan.schedule.intervals();
        let global_rest_us = intervals.publish_ms.saturating_mul(1_000 * GLOBAL_REST_INTERVALS).max(REST_US);
        let cells: Vec<CellId> = self.live_cells().take(MOST_CELLS).collect();
        for id in cells {
            let Some(cell) = self.check.truth.cell(id) else { continue };
            let rested_us = self.now_us - cell.changed_us.max(faults_end_us);
            if rested_us >= REST_US && !self.check.is_unsteady(id.rule, cell.first_used_us) {
                self.finish_cell(id, rested_us >= global_rest_us);
            }
        }
    }

    /// No region is split: all aggregators of a region have the same Redis.
    fn check_members(&mut self) {
        for host in &self.aggregators {
            let Some(process) = &host.process else { continue };
            let (number, foreign) = (host.number, process.state.foreign_writers());
            if foreign > 0 {
                let what = || {
                    format!("aggregator {number} takes {foreign} of its region for those of another Redis")
                };
                self.check.violated("members", self.now_us, what);
            }
        }
    }

    fn finish_cell(&mut self, id: CellId, globally: bool) {
        let Some(shape) = self.shapes.get(id.rule) else { return };
        let (limit, window_ms, key) = (shape.rule.limit, shape.rule.window_ms, shape.key(id.identifier));
        let regions = self.plan.topology.regions;
        let sums: Vec<u64> = (0..regions)
            .map(|region| self.holders(id, region).iter().map(|(_, held)| held.total).max().unwrap_or(0))
            .collect();
        let truth = &self.check.truth;
        // What parts hold of the other cells of a window with several cells is less exact, because it may change or be
        // evicted. Use that a region has only as a lower bound has no limit, so the region pushes none of it.
        let first_used_us = truth.cell(id).map_or(0, |cell| cell.first_used_us);
        let load = |region| match shape.rule.hard_limit || truth.is_inexact(region, first_used_us) {
            true => truth.load(id, |id| truth.least_in_region(id, region)),
            false => sums[region],
        };
        let loads: Vec<u64> = (0..regions).map(load).collect();
        let is_long = window_ms >= EXCHANGED_MS && regions > 1;
        let is_published = is_long && loads.iter().sum::<u64>() > limit;
        let in_table = Key::parse(&key).ok().filter(|_| globally && is_published);
        for region in 0..regions {
            let sum = sums[region];
            let held = in_table.as_ref().map(|key| self.database.count(region, key, id.sequence));
            if held.is_some_and(|held| held != sum) && !self.check.truth.crowded.contains(&true) {
                self.check.violated("table", self.now_us, || {
                    format!(
                        "the table has {} of {sum} of region {region} in {id:?}",
                        held.unwrap_or_default()
                    )
                });
            }
            let far = if is_published { sums.iter().sum::<u64>() - sum } else { 0 };
            let is_hot = loads[region] > limit / 2 || far > 0;
            let surely = is_hot || !self.loses_messages;
            for (holder, held) in self.holders(id, region) {
                if holder == "Redis" || !self.has_redis() || is_hot {
                    self.check.rests_in_region(id, (region, &holder), &held, self.now_us);
                }
                if globally && held.far != far && is_published && !self.check.truth.crowded.contains(&true) {
                    let now_us = self.now_us;
                    self.check.violated("rest", now_us, || {
                        format!(
                            "{holder} of region {region} counts {} of {far} of other regions in {id:?}",
                            held.far
                        )
                    });
                }
            }
            // Envoys cannot receive from their region what it had no room for, nor what other regions had no room
            // for.
            let receives = !self.check.truth.is_crowded(region);
            let receives_far = !self.check.truth.crowded.contains(&true);
            for envoy in 0..self.plan.topology.envoys {
                let Some(process) = self.envoys[self.envoy_at(region, envoy)].process.as_ref() else {
                    continue;
                };
                let node = process.node;
                let cell = entry_of(process, &key).and_then(|entry| table_cell(&entry, id.sequence));
                let number = self.check.truth.number(node);
                let uses = number.is_some_and(|number| self.check.truth.share_of(id, number).own > 0);
                let has_room = !is_crowded(process, &key);
                let near = ((uses && surely) || (is_hot && has_room)).then_some(sum);
                let near = near.filter(|_| receives && !process.has_left());
                let far = (globally && receives_far && near.is_some() && is_published).then_some(far);
                if cell.is_some() || near.is_some() {
                    self.check.rests_in_table(id, node, cell, (near, far), self.now_us);
                }
            }
        }
    }

    /// All parts of a region that hold components of a cell: its aggregators and its Redis.
    fn holders(&self, id: CellId, region: usize) -> Vec<(String, Held)> {
        let Some(shape) = self.shapes.get(id.rule) else { return Vec::new() };
        let key = shape.key(id.identifier);
        let mut text = [0; 20];
        let identifier = decimal(id.identifier, &mut text);
        let mut holders = Vec::new();
        for host in self.aggregators.iter().filter(|host| host.region == region) {
            let Some(process) = &host.process else { continue };
            let explained = process.state.region.explain(WORKSPACE, &shape.namespace, identifier);
            let cells = explained.iter().filter(|one| one.key.as_bytes() == key).flat_map(|one| &one.cells);
            let cell = cells.into_iter().find(|cell| cell.sequence == id.sequence);
            let held = cell.map_or_else(Held::default, |cell| Held {
                parts: cell.components.iter().map(|part| (part.node, part.own)).collect(),
                total: cell.regional_total(),
                far: cell.global_others,
            });
            holders.push((format!("aggregator {}", host.number), held));
        }
        if self.has_redis()
            && let Ok(key) = Key::parse(&key)
        {
            let parts = self.redis[region].cells.get(&(key, id.sequence)).map(|cell| cell.parts.clone());
            let parts = parts.unwrap_or_default();
            let total = parts.values().sum();
            let far = holders.first().map_or(0, |(_, held)| held.far);
            holders.push(("Redis".to_owned(), Held { parts, total, far }));
        }
        holders
    }

    /// The cells that a window may touch now.
    fn live_cells(&self) -> impl Iterator<Item = CellId> + use<> {
        let unix_ms = self.unix_ms();
        let rules = 0..self.shapes.len();
        let cells: Vec<CellId> = rules
            .flat_map(|rule| {
                let cells = u64::from(self.check.truth.resolution(rule));
                let sequence = (unix_ms / self.check.truth.cell_ms(rule)).saturating_sub(cells);
                self.check.truth.since(rule, sequence)
            })
            .collect();
        cells.into_iter()
    }
}

/// Changes of a correct world, for the tests of the checkers.
#[cfg(test)]
impl World<'_> {
    pub(crate) fn check_mut(&mut self) -> &mut crate::check::Check {
        &mut self.check
    }

    pub(crate) fn node_of(&self, envoy: usize) -> weir_core::model::key::NodeId {
        self.envoys[envoy].process.as_ref().map(|process| process.node).unwrap()
    }

    /// Changes an Envoy's entry of an identifier under the first rule. Returns false if there is none.
    pub(crate) fn change_table(
        &mut self,
        envoy: usize,
        identifier: u64,
        change: impl Fn(&mut Entry),
    ) -> bool {
        use weir_core::model::shared::Shared;
        let key = self.shapes[0].key(identifier);
        let Some(process) = self.envoys[envoy].process.as_mut() else { return false };
        let fingerprint = fingerprint(&key, process.meta.secret);
        let place = process.meta.geometry.place(fingerprint);
        let mut bucket = Bucket::default();
        let version = process.table.load(place, bucket.buffer());
        bucket.check();
        let Some(mut found) = bucket.find(fingerprint, &key) else { return false };
        change(&mut found.entry);
        bucket.put(&found, &key);
        let stored = process.table.store(place, bucket.bytes(), version);
        self.check_writes(envoy);
        stored
    }

    /// Changes each cell of a region's Redis. Returns false if there is none.
    pub(crate) fn change_redis(
        &mut self,
        region: usize,
        change: impl Fn(&mut std::collections::BTreeMap<weir_core::model::key::NodeId, u64>),
    ) -> bool {
        let cells = &mut self.redis[region].cells;
        cells.values_mut().for_each(|cell| change(&mut cell.parts));
        !cells.is_empty()
    }
}

/// Whether a key's bucket is full, so that a push cannot add the key.
fn is_crowded(process: &Process, key: &[u8]) -> bool {
    let place = process.meta.geometry.place(fingerprint(key, process.meta.secret));
    let mut bucket = Bucket::default();
    process.table.read(place, &mut bucket);
    bucket.len() >= usize::from(process.meta.geometry.keys_per_bucket)
}

fn table_cell(entry: &Entry, sequence: u64) -> Option<TableCell> {
    let cell = entry.cell(sequence)?;
    let (own, near, far, without_baseline) =
        (cell.own, cell.region_others, cell.global_others, cell.without_baseline);
    Some(TableCell { own, near, far, reserved: entry.reserved_in(sequence), without_baseline })
}

enum Convergence {
    /// All hold it; `others` of them had to receive it.
    Complete { others: usize },
    /// At least one lacks it.
    Missing,
}

pub(in crate::world) fn entry_of(process: &Process, key: &[u8]) -> Option<Entry> {
    let fingerprint = fingerprint(key, process.meta.secret);
    process.table.entry(process.meta.geometry.place(fingerprint), fingerprint, key)
}

/// What a table holds as used in a cell; 0 if the entry is in a later cell.
pub(in crate::world) fn used_in(entry: &Entry, sequence: u64) -> u64 {
    entry
        .cell(sequence)
        .map_or(0, |cell| cell.own.saturating_add(cell.region_others).saturating_add(cell.global_others))
}
