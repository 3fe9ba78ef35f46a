//! Counters of what an aggregator has done. They only grow.

use crate::model::time::MonoMs;
use crate::region::Refused;

/// Counted since the aggregator started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Reports received from filters.
    pub reports: u64,
    /// Counts in these reports that were merged.
    pub counts_merged: u64,
    /// Counts in these reports that were refused.
    pub counts_refused: Refusals,
    /// Queries answered with a grant.
    pub granted: u64,
    /// Queries answered without a grant.
    pub denied: u64,
    /// Queries that the region could not judge.
    pub unjudged: u64,
    /// Frames pushed to subscribers.
    pub pushes: u64,
    /// Cells in these frames.
    pub pushed_cells: u64,
    /// Changed cells received from other aggregators.
    pub changes_received: u64,
    /// Hot cells for which the index had no room.
    pub hot_left: u64,
    /// Times that the region's store had lost its data.
    pub store_wipes: u64,
    /// Times that the database had lost its data.
    pub database_wipes: u64,
    /// Cells that the region itself had published and that were read again after a loss.
    pub recovered: u64,
    /// Imported cells that were merged.
    pub imports_merged: u64,
    /// Imported cells that were merged and had not been stored before.
    pub imports_created: u64,
    /// Imported cells that were refused, since they cannot be current cells.
    pub imports_refused: u64,
    /// Cells of other regions and of other aggregators for whose keys there was no room.
    pub without_room: NoRoom,
    /// When all hot cells were last known to be stored here.
    pub complete_at: Option<MonoMs>,
    /// When nothing was left to publish.
    pub published_at: Option<MonoMs>,
    /// When the other regions' use was last read, by a packet or an import.
    pub imported_at: Option<MonoMs>,
}

/// Cells for whose keys there was no room, by who has counted them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoRoom {
    /// Another region.
    pub regions: u64,
    /// Another aggregator of this region: it sent them, or the store has them.
    pub peers: u64,
}

/// Counts that were not merged, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    /// [`Refused::Key`].
    pub key: u64,
    /// [`Refused::Sequence`].
    pub sequence: u64,
    /// [`Refused::Component`].
    pub component: u64,
    /// [`Refused::Full`].
    pub full: u64,
    /// [`Refused::Baseline`].
    pub baseline: u64,
}

impl Refusals {
    /// Counts one more.
    pub fn add(&mut self, refused: Refused) {
        let count = match refused {
            Refused::Key => &mut self.key,
            Refused::Sequence => &mut self.sequence,
            Refused::Component => &mut self.component,
            Refused::Full => &mut self.full,
            Refused::Baseline => &mut self.baseline,
        };
        add(count, 1);
    }
}

/// Adds to a counter.
pub(super) fn add(figure: &mut u64, more: usize) {
    *figure = figure.saturating_add(more as u64);
}
