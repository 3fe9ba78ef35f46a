//! Checks the state of all parts of a cell at rest: each part that must have received the cell holds
//! exactly the true use.
//!
//! Some use counts although no request was admitted for it: a grant that was not spent ([`Share::granted`], or
//! [`Share::proposed`] if the reply was lost), and what workers that ended or froze had reserved
//! ([`Share::reserved`]). If a region lost data that only it held, its baseline replaces the data inexactly. Then the
//! least is what running processes hold, and the most is twice the use that any part may have counted.

use super::truth::{Node, Share};
use super::{CellId, Check};
use std::collections::BTreeMap;
use weir_core::model::key::NodeId;
use weir_core::region::exchange::BASELINE;

/// Regions exchange all use of a cell only if its window is at least this long. A shorter one may be over before the next interval, which
/// publishes what little each region may keep to itself.
pub const EXCHANGED_MS: u64 = 60_000;

/// What an Envoy must hold of a cell at rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Use in its region.
    pub near: u64,
    /// Use in other regions, if all of them must publish it.
    pub far: u64,
    /// Every Envoy of the region must hold it, not only those that use it.
    pub by_all: bool,
}

/// The components of a cell, as a part of a region holds them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// The component of each node.
    pub parts: BTreeMap<NodeId, u64>,
    /// The region's total by this part.
    pub total: u64,
    /// Use in other regions by this part.
    pub far: u64,
}

/// A cell in an Envoy's table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableCell {
    /// The Envoy's own component.
    pub own: u64,
    /// Use of others in the region.
    pub near: u64,
    /// Use in other regions.
    pub far: u64,
    /// Reserved at the moment.
    pub reserved: u64,
    /// Its baseline is missing.
    pub without_baseline: bool,
}

impl Check {
    /// What the Envoys of a region must hold of a cell. `of` selects the use of a share.
    pub(crate) fn expected(
        &self,
        id: CellId,
        region: usize,
        limit: u64,
        window_ms: u64,
        of: impl Fn(&Share) -> u64,
    ) -> Expected {
        let near = self.truth.sum(id, |one| one.region == region, &of);
        let load =
            |region| self.truth.load(id, |id| self.truth.sum(id, |one: &Node| one.region == region, &of));
        let regions = 0..self.truth.lost_us.len();
        let is_long = regions.len() > 1 && window_ms >= EXCHANGED_MS;
        let is_published = is_long && regions.map(load).sum::<u64>() > limit;
        let far = if is_published { self.truth.sum(id, |one| one.region != region, &of) } else { 0 };
        Expected { near, far, by_all: far > 0 || load(region) > limit / 2 }
    }

    /// Checks what a part of a region holds of a cell at rest; `holder` names the part. The part must hold all of the
    /// region's use.
    pub(crate) fn rests_in_region(
        &mut self,
        id: CellId,
        (region, holder): (usize, &str),
        held: &Held,
        now_us: u64,
    ) {
        let Some(cell) = self.truth.cell(id) else { return };
        let (first_used_us, shares) = (cell.first_used_us, cell.shares.clone());
        let inexact = self.truth.is_inexact(region, first_used_us);
        let crowded = self.truth.is_crowded(region);
        let (mut least, mut most) = (0u64, 0u64);
        for share in &shares {
            let Some(node) = self.truth.node(share.node).copied().filter(|one| one.region == region) else {
                continue;
            };
            let part = held.parts.get(&node.id).copied().unwrap_or(0);
            let at_rest = share.at_rest_in_region(&node, inexact);
            // A region that lost all data may or may not have restored what only ended processes had reported. A
            // table cannot report again what it has evicted, which is permitted if the region refused the cell.
            let may_miss =
                crowded || inexact && (!node.running || node.incomplete) || share.refused && node.incomplete;
            least += if may_miss { 0 } else { at_rest };
            most += share.most();
            let fits = (at_rest..=share.most()).contains(&part);
            // The query may have been granted by a reply that was lost.
            let exact = !node.running || part == at_rest || (part > at_rest && share.proposed >= part);
            let lost = may_miss && part <= at_rest;
            if !(fits && exact || lost) {
                self.violated("rest", now_us, || {
                    format!(
                        "{holder} of region {region} holds {part} of Envoy {} in {id:?}: {share:?}",
                        node.envoy
                    )
                });
            }
        }
        let baseline = held.parts.get(&BASELINE).copied().unwrap_or(0);
        let fits = if inexact { least..=2 * most } else { least..=most }.contains(&held.total);
        if !fits || (baseline > 0 && !inexact) {
            self.violated("rest", now_us, || {
                format!(
                    "{holder} of region {region} counts {} of {least} to {most} in {id:?}, baseline {baseline}",
                    held.total
                )
            });
        }
    }

    /// Checks what an Envoy holds of a cell at rest; `None` if its table does not contain the cell. `near` is the
    /// total that its region holds, `far` what other regions have published; each is `None` if the Envoy need not
    /// have it.
    pub(crate) fn rests_in_table(
        &mut self,
        id: CellId,
        node: NodeId,
        cell: Option<TableCell>,
        (near, far): (Option<u64>, Option<u64>),
        now_us: u64,
    ) {
        let Some(number) = self.truth.number(node) else { return };
        let Some(process) = self.truth.node(number).copied() else { return };
        let share = self.truth.share_of(id, number);
        let Some(cell) = cell else {
            // A table that is too small may have evicted or not stored what its region holds; the next request for
            // the key queries the region.
            let should = near.is_some_and(|near| near > 0) || share.admitted > share.border;
            if should && !process.incomplete {
                self.violated("rest", now_us, || {
                    format!(
                        "Envoy {} does not hold {id:?}, of which {near:?} and {far:?} were used",
                        process.envoy
                    )
                });
            }
            return;
        };
        let least = share.admitted.saturating_sub(share.border + cell.reserved);
        let most = share.admitted + share.neighbour + share.reserved;
        // If a bucket was full of entries that must stay, the overflow cell took the use.
        let missing = least.saturating_sub(cell.own);
        // Evicted use is lost if the region lost it too, had no room for it or refused it.
        let crowded = self.truth.is_crowded(process.region);
        let first_used_us = self.truth.cell(id).map_or(0, |cell| cell.first_used_us);
        let inexact = self.truth.is_inexact(process.region, first_used_us);
        let is_lost = process.incomplete && (crowded || share.refused || inexact);
        // A push restores an evicted key without its baseline. The next request for the key queries the region,
        // and the checks of the region's parts cover what the region holds. An aggregator without room for the key
        // has no baseline to send.
        let waits_for_baseline = process.incomplete && cell.without_baseline && (cell.own == 0 || crowded);
        let counted = match process.incomplete {
            true => {
                waits_for_baseline
                    || is_lost && cell.own <= most
                    || self.truth.accounts_for(id, number, missing)
            }
            false => (least..=most).contains(&cell.own),
        };
        if !waits_for_baseline && (!counted || cell.without_baseline) {
            self.violated("rest", now_us, || {
                format!(
                    "Envoy {} holds {cell:?} of {id:?}, where it admitted {least} to {most}",
                    process.envoy
                )
            });
        }
        // The region may hold a grant for this Envoy whose reply was lost, so the Envoy does not count it.
        let others = near.map(|near| near.saturating_sub(share.at_rest().max(share.proposed)));
        let others_most = near.map(|near| near.saturating_sub(if is_lost { 0 } else { share.own }));
        // What is reported before a region that lost all data has restored the use of ended processes is contained in
        // the restored use. So that use counts less than the others' component may hold.
        let others_most = if inexact { others_most.map(|_| u64::MAX) } else { others_most };
        let others_match =
            others.zip(others_most).is_none_or(|(least, most)| (least..=most).contains(&cell.near));
        // The reply to a query for a cell's baseline contains what others used of it, which the region had pushed
        // before the table evicted the key.
        if !waits_for_baseline && (!others_match || far.is_some_and(|far| far != cell.far)) {
            self.violated("rest", now_us, || {
                format!(
                    "Envoy {} holds {cell:?} of {id:?}, where the region has {near:?} and others {far:?}",
                    process.envoy
                )
            });
        }
    }
}
