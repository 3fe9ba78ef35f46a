//! How a region restores what all its parts have lost, from evidence: its own published counts, and what filters had
//! received.
//!
//! Such evidence states what a cell's components must add up to, but not whose they are. It counts at once as a *lower
//! bound*, so that no limit starts from zero. After the nodes had time to send their counts again, what is still
//! missing becomes a component of its own, [`BASELINE`], and new use adds to it. Each aggregator raises a cell's baseline at
//! most once after a loss, by what its evidence has beyond all components: of several, the one that has evidence of more use raises it
//! further. Only cells that began before the loss get a baseline.

use super::Region;
use super::cell::CellState;
use super::exchange::{BASELINE, LowerBound, Merge, Merged, Stored};
use super::plausibility::{Refused, checked};
use super::work::Errand;
use crate::model::time::UnixMs;
use crate::model::window::MAX_COUNT;
use alloc::vec::Vec;

impl Region {
    /// Takes what the region itself had published of a cell before it lost its counts: a lower bound of the use, and the limit, without which
    /// the key would not count as hot. `is_kept`: a loss of the global store would be found, so this need not be published again.
    pub fn recover(&mut self, stored: &Stored, is_kept: bool, now: UnixMs) -> Result<(), Refused> {
        let Stored { key, sequence, count, limit } = stored;
        checked(key.as_bytes(), *sequence, (*count).min(MAX_COUNT), now)?;
        let (slot, state) = self.keys.entry(key.as_bytes(), *sequence, now)?;
        let cell = state.cell_mut(*sequence)?;
        if is_kept {
            cell.note_published(*count, *limit);
        }
        if self.work.raise_lower_bound(slot, *sequence, state, *count)? {
            self.subscribers.changed_outside(slot, state);
        }
        if state.note_limit(*sequence, *limit) {
            self.subscribers.changed_outside(slot, state);
        }
        self.work.note(slot, *sequence, state, self.backing.incarnation());
        self.publishing.consider(slot, state, now);
        Ok(())
    }

    /// Records that the region had used `total` of a cell. The bytes may be no valid key.
    pub(crate) fn witness(
        &mut self,
        key: &[u8],
        sequence: u64,
        total: u64,
        now: UnixMs,
    ) -> Result<(), Refused> {
        checked(key, sequence, total.min(MAX_COUNT), now)?;
        let (slot, state) = self.keys.entry(key, sequence, now)?;
        if self.work.raise_lower_bound(slot, sequence, state, total)? {
            self.subscribers.changed_outside(slot, state);
        }
        self.work.note(slot, sequence, state, self.backing.incarnation());
        self.publishing.consider(slot, state, now);
        Ok(())
    }

    /// Ends a recovery grace period after a loss at `lost`. Returns the cells that had begun by then and whose lower
    /// bound exceeds the sum of their components. Call it after the nodes had time to report since the last loss.
    /// Without a store, see [`Region::end_grace_period_here`].
    pub fn end_grace_period(&mut self, lost: UnixMs) -> Vec<LowerBound> {
        let mut left = self.pending_lower_bounds();
        self.some_lower_bounds(lost, &mut left, usize::MAX)
    }

    /// Number of cells whose lower bound may exceed the sum of their components.
    pub fn pending_lower_bounds(&self) -> usize {
        self.work.len(Errand::LowerBound)
    }

    /// How often a component has grown by what was in a lower bound already: nodes, or other aggregators, are sending what they have.
    pub fn fillings(&self) -> u64 {
        self.work.filled
    }

    /// Like [`Region::end_grace_period`], in steps of `most` cells. `left` begins as [`Region::pending_lower_bounds`], and is 0 after the
    /// last step.
    pub fn some_lower_bounds(&mut self, lost: UnixMs, left: &mut usize, most: usize) -> Vec<LowerBound> {
        let (mut lower_bounds, mut later) = (Vec::new(), Vec::new());
        let incarnation = self.settling_in();
        for _ in 0..most.min(*left) {
            *left = left.saturating_sub(1);
            let Some(spot) = self.work.pop(Errand::LowerBound, &mut self.keys) else {
                *left = 0;
                break;
            };
            let Some((key, state)) = self.keys.at(spot.slot) else { continue };
            let began = UnixMs(spot.sequence.saturating_mul(state.cell_ms()));
            let expires = state.expires(spot.sequence);
            let Some(cell) = state.cell(spot.sequence) else { continue };
            let Some(total) = cell.missing_lower_bound(incarnation) else { continue };
            // The store adds what is missing in its own data. Counts that are stored here and only wait to be written
            // to it are not lost.
            let total = total.saturating_sub(
                self.backing.incarnation().map_or(0, |incarnation| cell.on_its_way(incarnation)),
            );
            let lower_bound = LowerBound { key: key.clone(), sequence: spot.sequence, total, expires };
            if began <= lost { &mut lower_bounds } else { &mut later }.push(lower_bound);
        }
        self.lower_bounds_failed(&later);
        lower_bounds
    }

    /// The store did not take these. They wait for the end of another recovery grace period.
    pub fn lower_bounds_failed(&mut self, lower_bounds: &[LowerBound]) {
        for lower_bound in lower_bounds {
            let Some(slot) = self.keys.find(&lower_bound.key) else { continue };
            let cell = self.keys.at_mut(slot).and_then(|(_, state)| state.known_mut(lower_bound.sequence));
            if let Some(cell) = cell {
                self.work.push(Errand::LowerBound, slot, cell);
            }
        }
    }

    /// Takes what the store holds of a cell after a lower bound was applied in `incarnation`.
    pub fn floored(&mut self, lower_bound: &LowerBound, merged: &Merged, incarnation: u32, now: UnixMs) {
        let slot = self.keys.find(&lower_bound.key);
        let state = slot.and_then(|slot| self.keys.at_mut(slot)).map(|(_, state)| state);
        if let Some(cell) = state.and_then(|state| state.known_mut(lower_bound.sequence)) {
            cell.settle(incarnation);
        }
        let merge = Merge {
            key: lower_bound.key.clone(),
            sequence: lower_bound.sequence,
            parts: Vec::new(),
            limit: u64::MAX,
            lower_bound: 0,
            above: Vec::new(),
            expires: lower_bound.expires,
            proposal: None,
            wants_previous: false,
            incarnation,
        };
        self.merged(&merge, merged, now);
    }

    /// The incarnation in which lower bounds become baselines: memory alone has one.
    fn settling_in(&self) -> u32 {
        self.backing.incarnation().unwrap_or(1)
    }

    /// Ends a recovery grace period in a region without a store: what no component accounts for is added to
    /// [`BASELINE`] here. Returns the number of such cells.
    pub fn end_grace_period_here(&mut self, lost: UnixMs, now: UnixMs) -> usize {
        let lower_bounds = self.end_grace_period(lost);
        self.settle(&lower_bounds, now);
        lower_bounds.len()
    }

    /// Adds what no component accounts for to [`BASELINE`].
    pub fn settle(&mut self, lower_bounds: &[LowerBound], now: UnixMs) {
        let incarnation = self.settling_in();
        for lower_bound in lower_bounds {
            let Some(slot) = self.keys.find(&lower_bound.key) else { continue };
            let Some((_, state)) = self.keys.at_mut(slot) else { continue };
            let short = |cell: &&mut CellState| cell.missing_lower_bound(incarnation).is_some();
            if let Some(cell) = state.known_mut(lower_bound.sequence).filter(short) {
                // A cell with the maximum number of components keeps its lower bound.
                let baseline = cell.component(BASELINE).saturating_add(cell.shortage());
                if cell.raise(BASELINE, baseline, now).unwrap_or(false) {
                    cell.settle(incarnation);
                    self.subscribers.changed_outside(slot, state);
                }
            }
            self.work.note(slot, lower_bound.sequence, state, self.backing.incarnation());
            // A region without a store has one aggregator, which alone can publish the baseline.
            state.sharing.is_local |= self.backing.incarnation().is_none();
            self.publishing.consider(slot, state, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::key::{HashKey, Key, KeyParts, NodeId};
    use crate::model::wire;
    use crate::region::RegionLimits;
    use std::vec;

    const NOW: UnixMs = UnixMs(60_000_000);
    const OLD: NodeId = NodeId([1; 16]);
    const NEW: NodeId = NodeId([2; 16]);

    fn key() -> Key {
        let (workspace, namespace, identifier) = (b"w".as_slice(), b"n".as_slice(), b"i".as_slice());
        let parts =
            KeyParts { workspace, namespace, identifier, duration_ms: 60_000, epoch: 0, resolution: 1 };
        Key::new(&parts).unwrap()
    }

    /// A region with a lower bound of 80 and no components.
    fn region() -> Region {
        let mut region = Region::new(RegionLimits::default(), HashKey(1, 2));
        region.witness(key().as_bytes(), 1_000, 80, NOW).unwrap();
        region
    }

    fn queries(region: &mut Region, node: NodeId, own: u64, cost: u64) -> bool {
        let key = key().as_bytes().to_vec();
        let query = wire::Query { key, sequence: 1_000, own, cost, limit: 100, ..Default::default() };
        region.query(node, &query, NOW).unwrap().granted
    }

    fn reports(region: &mut Region, node: NodeId, own: u64) {
        let key = key().as_bytes().to_vec();
        let count = wire::Count { key, sequence: 1_000, own, limit: 100, ..Default::default() };
        assert_eq!(region.report(node, &[count], NOW).refused, vec![]);
    }

    fn total(region: &Region) -> u64 {
        region.explain(b"w", b"n", b"i")[0].cells[0].regional_total()
    }

    fn settle(region: &mut Region) {
        let lower_bounds = region.end_grace_period(NOW);
        region.settle(&lower_bounds, NOW);
    }

    #[test]
    fn grants_in_the_grace_period_add_to_the_lower_bound() {
        let mut region = region();
        assert!(!queries(&mut region, NEW, 0, 21));
        assert!(queries(&mut region, NEW, 0, 5));
        assert_eq!(total(&region), 85);
        assert!(queries(&mut region, NEW, 0, 5), "the query is repeated");
        assert_eq!(total(&region), 85);
        reports(&mut region, NEW, 12);
        assert_eq!(total(&region), 92, "spent without a query");
        settle(&mut region);
        assert_eq!(total(&region), 92);
        assert!(!queries(&mut region, NEW, 12, 9));
        assert!(queries(&mut region, NEW, 12, 8));
        assert_eq!(total(&region), 100);
    }

    #[test]
    fn counts_repeated_in_the_grace_period_are_not_counted_twice() {
        let mut region = region();
        // Reports of two workers of one process, the first with an older count.
        reports(&mut region, OLD, 30);
        reports(&mut region, OLD, 50);
        assert_eq!(total(&region), 80);
        assert!(queries(&mut region, OLD, 55, 5));
        assert_eq!(total(&region), 85);
        // Other evidence may include what has grown since.
        region.witness(key().as_bytes(), 1_000, 88, NOW).unwrap();
        reports(&mut region, OLD, 63);
        assert_eq!(total(&region), 88);
        reports(&mut region, NEW, 40);
        settle(&mut region);
        assert_eq!(total(&region), 103, "all of it is in components");
    }
}
