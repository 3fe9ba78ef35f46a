//! What an aggregator has done so far, in numbers that only grow.
//!
//! Leaves to others: showing them (`aggregator`).

use crate::model::time::MonoMs;
use crate::region::Refused;

/// Counted since the aggregator began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Reports of filters.
    pub reports: u64,
    /// Counts of theirs that were merged.
    pub counts_merged: u64,
    /// Those that were not.
    pub counts_refused: Refusals,
    /// Questions answered with a grant.
    pub granted: u64,
    /// Questions answered without one.
    pub denied: u64,
    /// Questions that the region could not judge.
    pub unjudged: u64,
    /// Frames with something for a subscriber.
    pub pushes: u64,
    /// Cells in them.
    pub pushed_cells: u64,
    /// Cells that other aggregators told of.
    pub changes_received: u64,
    /// Hot cells that there was no room for in the index.
    pub hot_left: u64,
    /// Times that the region's store had lost what it held.
    pub store_wipes: u64,
    /// Times that the database had.
    pub database_wipes: u64,
    /// Cells that were due and had to wait for another publication.
    pub publications_left: u64,
    /// Imported cells that were merged.
    pub imports_merged: u64,
    /// Of these, those that were not known before.
    pub imports_created: u64,
    /// Imported cells that cannot be cells of now.
    pub imports_refused: u64,
    /// When everything hot was known last.
    pub complete_at: Option<MonoMs>,
    /// When everything due was published last.
    pub published_at: Option<MonoMs>,
    /// When the other regions' use was imported last.
    pub imported_at: Option<MonoMs>,
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
    /// One more.
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

/// Adds to a figure.
pub(super) fn add(figure: &mut u64, more: usize) {
    *figure = figure.saturating_add(more as u64);
}
