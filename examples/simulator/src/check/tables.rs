//! Checks each write of an Envoy's table: an own component never falls and never exceeds what was admitted, and the
//! components of others never exceed what the others may have used.

use super::{CellId, Check};
use crate::plan::HOLD_MS;
use crate::plan::keys;
use crate::table::Table;
use weir_core::limiter::table::{Bucket, Cell, Entry, Found, Geometry, ReservationKind};
use weir_core::model::key::{Key, NodeId};
use weir_core::model::shared::Place;

/// After this time, other workers count the reserve of an open request as spent if its worker has ended.
const OPEN_MS: u64 = HOLD_MS + 2_000;

impl Check {
    /// Checks the buckets that were written since the last call.
    pub(crate) fn wrote(&mut self, node: NodeId, table: &mut Table, now_us: u64) {
        let places = table.take_written();
        let Some(node) = self.truth.number(node) else { return };
        let mut bucket = std::mem::take(&mut self.bucket);
        for place in places {
            table.read(place, &mut bucket);
            self.wrote_bucket(&bucket, place, node, now_us);
        }
        self.bucket = bucket;
    }

    /// Other workers may consider some workers of the process ended, so that what those have reserved may count as
    /// spent.
    pub(crate) fn may_reap(&mut self, node: NodeId, geometry: Geometry, table: &Table, now_us: u64) {
        let Some(node) = self.truth.number(node) else { return };
        let mut bucket = Bucket::default();
        let buckets = (0..geometry.buckets).map(Place::Bucket).chain([Place::Overflow]);
        for place in buckets {
            table.read(place, &mut bucket);
            for (key, found) in bucket.entries() {
                let Some((rule, identifier)) = keys::parse(key) else { continue };
                for reserved in &found.entry.reservations {
                    // The reserve of an open request counts as spent in the cell in which the reserve expires.
                    let later = match reserved.tag.kind {
                        ReservationKind::Deferred => OPEN_MS.div_ceil(self.truth.cell_ms(rule)),
                        _ => 0,
                    };
                    for sequence in reserved.sequence..=reserved.sequence + later {
                        let id = CellId { rule, sequence, identifier };
                        if let Some((cell, at)) = self.truth.share(id, node, now_us) {
                            cell.shares[at].reserved += reserved.amount;
                        }
                    }
                }
            }
        }
    }

    /// A key without room in its bucket shares the overflow cell from this decision on.
    pub(crate) fn may_overflow(&mut self, node: NodeId, table: &Table) {
        let Some(node) = self.truth.number(node) else { return };
        let mut bucket = std::mem::take(&mut self.bucket);
        table.read(Place::Overflow, &mut bucket);
        if !bucket.is_empty() {
            self.truth.mark_incomplete(node);
        }
        for (key, Found { entry, .. }) in bucket.entries() {
            let Some(rule) = keys::parse_rule(key) else { continue };
            for (sequence, cell) in entry.cells() {
                self.truth.diverts(rule, sequence, node, cell.own + entry.reserved_in(sequence));
            }
        }
        self.bucket = bucket;
    }

    fn wrote_bucket(&mut self, bucket: &Bucket, place: Place, node: u32, now_us: u64) {
        if bucket.evicted_through().0 > 0 || place == Place::Overflow {
            self.truth.mark_incomplete(node);
        }
        for (key, found) in bucket.entries() {
            if let Some(rule) = keys::parse_rule(key).filter(|_| place == Place::Overflow) {
                for (sequence, cell) in found.entry.cells().filter(|(_, cell)| cell.own > 0) {
                    self.truth.overflows(rule, sequence, node, cell.own);
                }
            }
            let Some((rule, identifier)) = keys::parse(key) else { continue };
            let Entry { sequence, current, previous, older, unstored, .. } = &found.entry;
            let before = [current, previous].into_iter().chain(older);
            for (sequence, cell) in (0..=*sequence).rev().zip(before) {
                if *cell != Cell::default() {
                    self.wrote_cell(CellId { rule, sequence, identifier }, cell, *unstored, node, now_us);
                }
            }
        }
    }

    fn wrote_cell(&mut self, id: CellId, written: &Cell, refused: bool, node: u32, now_us: u64) {
        let Some(process) = self.truth.node(node).copied() else { return };
        let Some((cell, at)) = self.truth.share(id, node, now_us) else { return };
        let first_used_us = cell.first_used_us;
        let share = &mut cell.shares[at];
        share.refused |= refused && written.own > 0;
        let others = (written.region_others, written.global_others);
        let others_changed = std::mem::replace(&mut share.others, others) != others;
        if !others_changed && written.own == share.own && written.without_baseline == share.evicted {
            return;
        }
        let fell = written.own < share.own && !written.without_baseline && !share.evicted;
        share.evicted = written.without_baseline;
        if written.own > share.own {
            share.own = written.own;
        }
        let share = *share;
        if self.is_unsteady(id.rule, first_used_us) {
            return;
        }
        let inexact = self.truth.is_inexact(process.region, first_used_us);
        // Evicted use is in no place, and no baseline restores it, if the region has no room for it or refused it.
        // The same applies to one that has not received what another one acknowledged while the store was unavailable.
        let is_refused = share.refused || self.truth.is_crowded(process.region);
        let is_nowhere = is_refused || self.store_fails;
        if fell && !inexact && !(process.incomplete && is_nowhere) {
            self.violated("owner", now_us, || {
                format!("Envoy {} holds {} of {id:?} after {}", process.envoy, written.own, share.own)
            });
        }
        let passed = share.admitted + share.neighbour + share.reserved;
        // A baseline from the region may contain a grant that was never spent, and new use is added to it.
        let passed = if process.incomplete { passed.saturating_add(share.proposed) } else { passed };
        if share.own > passed && !inexact {
            self.violated("charge", now_us, || {
                format!("Envoy {} holds {} of {id:?} where {passed} were admitted", process.envoy, share.own)
            });
        }
        if others_changed {
            self.check_others(id, written, node, now_us);
        }
    }

    /// Checks what a region's Redis holds of a cell.
    pub(crate) fn stored(
        &mut self,
        region: usize,
        key: &Key,
        sequence: u64,
        parts: impl Iterator<Item = (NodeId, u64)>,
        now_us: u64,
    ) {
        let Some((rule, identifier)) = keys::parse(key.as_bytes()) else { return };
        let id = CellId { rule, sequence, identifier };
        let first_used_us = self.truth.cell(id).map_or(0, |cell| cell.first_used_us);
        if self.is_unsteady(rule, first_used_us) || self.truth.is_inexact(region, first_used_us) {
            return;
        }
        for (node, own) in parts {
            let number = self.truth.number(node);
            let most = number.map_or(0, |number| self.truth.share_of(id, number).most());
            if own > most {
                self.violated("truth", now_us, || {
                    format!("Redis of region {region} holds {own} of {node} in {id:?}, which used {most}")
                });
            }
        }
    }

    /// Checks what a table holds of others' use.
    fn check_others(&mut self, id: CellId, written: &Cell, node: u32, now_us: u64) {
        let Some(process) = self.truth.node(node).copied() else { return };
        let Some(cell) = self.truth.cell(id) else { return };
        let (mut near, mut near_own, mut far) = (0, 0, 0);
        for share in &cell.shares {
            match self.truth.node(share.node) {
                Some(one) if one.id == process.id => {
                    near_own = share.most();
                    // An aggregator may receive this Envoy's grants from its peers before it receives the reports.
                    // There, the unspent part of these grants counts as use of others.
                    near += share.proposed.saturating_sub(share.own);
                }
                Some(one) if one.region == process.region => near += share.most(),
                _ => far += share.most(),
            }
        }
        // A baseline may contain use that was granted and evicted, and that running processes report again later. An
        // Envoy counts none of its own use as that of others, unless its table has evicted it.
        if self.truth.is_inexact(process.region, cell.first_used_us) {
            let unknown = match process.incomplete {
                true => 2 * near_own,
                // The Envoy reconnected after the baseline was made, from snapshots of its use that others held.
                false if self.reconnects => near_own,
                false => near_own.saturating_sub(written.own),
            };
            near = 2 * near + unknown;
        }
        if (0..self.truth.lost_us.len()).any(|region| self.truth.is_inexact(region, cell.first_used_us)) {
            far *= 2;
        }
        // Part of what keys of an overflow cell have used may be this key's, if no record tells it apart.
        far += self.truth.overflow_of(id, node);
        if written.region_others > near || written.global_others > far {
            self.violated("truth", now_us, || {
                format!(
                    "Envoy {} counts {} + {} of others in {id:?}, which used {near} + {far}",
                    process.envoy, written.region_others, written.global_others
                )
            });
        }
    }
}
