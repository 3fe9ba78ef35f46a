//! Queues of cells that wait to be written to the region's store or broadcast to its other aggregators. A cell is in
//! each queue at most once, however often it changes. Its counts are read when it is taken from the queue.

use super::cell::{CellState, Queued};
use super::key_state::KeyState;
use super::keys::Keys;
use super::plausibility::Refused;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Entries beyond the number of the region's cells that a queue may hold: those of cells that were dropped while they
/// waited.
const STALE_ENTRIES: usize = 4_096;

/// A cell, by the slot of its key. If the slot has been reused for another key since, that cell lacks the queue's mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) slot: usize,
    pub(super) sequence: u64,
}

/// A queue, identified by the mark that its cells carry.
#[derive(Clone, Copy, Debug)]
pub(super) enum Errand {
    /// To be written to the regional store.
    Replay,
    /// To be published to the region's other aggregators.
    Share,
    /// To be named in the hot index.
    Hot,
    /// The lower bound may exceed the sum of the components.
    LowerBound,
}

#[derive(Debug, Default)]
pub(super) struct Work {
    replay: VecDeque<Spot>,
    share: VecDeque<Spot>,
    hot: VecDeque<Spot>,
    lower_bound: VecDeque<Spot>,
    /// Cells created because a node used them.
    pub(super) created: u64,
    /// How often a component has grown by what was in a lower bound already.
    pub(super) filled: u64,
}

impl Errand {
    const ALL: [Errand; 4] = [Errand::Replay, Errand::Share, Errand::Hot, Errand::LowerBound];

    fn mark(self, queued: &mut Queued) -> &mut bool {
        match self {
            Errand::Replay => &mut queued.replay,
            Errand::Share => &mut queued.share,
            Errand::Hot => &mut queued.hot,
            Errand::LowerBound => &mut queued.lower_bound,
        }
    }
}

impl Work {
    /// Adds a changed cell to all queues that need it. `incarnation` is that of the regional store, if there is one.
    pub(super) fn note(
        &mut self,
        slot: usize,
        sequence: u64,
        state: &mut KeyState,
        incarnation: Option<u32>,
    ) {
        let load = state.load(sequence);
        let Some(cell) = state.known_mut(sequence) else { return };
        if core::mem::take(&mut cell.queued.filled) {
            self.filled = self.filled.saturating_add(1);
        }
        if !cell.queued.counted {
            cell.queued.counted = true;
            self.created = self.created.saturating_add(1);
        }
        if let Some(incarnation) = incarnation {
            if !cell.queued.replay && cell.unstored(incarnation).next().is_some() {
                self.push(Errand::Replay, slot, cell);
            }
            if cell.hot_in != incarnation && load.is_hot {
                self.push(Errand::Hot, slot, cell);
            }
        }
        if let Some(incarnation) = incarnation.filter(|_| state.resolution() > 1 && load.is_hot) {
            self.note_windows(slot, sequence, state, incarnation);
        }
    }

    /// Lowers a cell's limit. Returns true if that alone makes the cell hot. A store that has a higher limit receives it although no
    /// count has grown.
    pub(super) fn note_limit(
        &mut self,
        slot: usize,
        sequence: u64,
        state: &mut KeyState,
        limit: u64,
        incarnation: Option<u32>,
    ) -> bool {
        let before = state.cell(sequence).map_or(u64::MAX, |cell| cell.limit);
        let became_hot = state.note_limit(sequence, limit);
        let has_other = incarnation.is_some() && before != u64::MAX && limit < before;
        if let Some(cell) = state.known_mut(sequence).filter(|_| has_other) {
            cell.queued.query = true;
            self.push(Errand::Replay, slot, cell);
        }
        became_hot
    }

    /// The same for the other cells of the windows that touch `sequence`: the use of one cell may make the window hot,
    /// and then all its cells must be sent.
    fn note_windows(&mut self, slot: usize, sequence: u64, state: &mut KeyState, incarnation: u32) {
        let near = state.resolution();
        let unhot = |cell: &CellState| cell.hot_in != incarnation && !cell.queued.hot;
        let waits = |cell: &&CellState| cell.sequence.abs_diff(sequence) <= near && unhot(cell);
        let waiting: Vec<u64> = state.cells().iter().filter(waits).map(|cell| cell.sequence).collect();
        for other in waiting {
            let is_hot = state.load(other).is_hot;
            let Some(cell) = state.known_mut(other).filter(|_| is_hot) else { continue };
            self.push(Errand::Hot, slot, cell);
            // It was written to the store before it was hot, and was not published to the peers then.
            if cell.stored(incarnation).next().is_some() {
                self.push(Errand::Share, slot, cell);
            }
        }
    }

    /// Records that the region has used at least `total` of a cell. Returns true if the cell's total grew.
    pub(super) fn raise_lower_bound(
        &mut self,
        slot: usize,
        sequence: u64,
        state: &mut KeyState,
        total: u64,
    ) -> Result<bool, Refused> {
        let cell = state.cell_mut(sequence)?;
        let before = cell.regional_total();
        if cell.raise_lower_bound(total) {
            self.push(Errand::LowerBound, slot, cell);
        }
        Ok(cell.regional_total() > before)
    }

    /// Adds a cell to a queue, unless the queue contains it.
    pub(super) fn push(&mut self, errand: Errand, slot: usize, cell: &mut CellState) {
        let mark = errand.mark(&mut cell.queued);
        if !core::mem::replace(mark, true) {
            let spot = Spot { slot, sequence: cell.sequence };
            self.queue(errand).push_back(spot);
        }
    }

    /// Takes the next spot of a queue whose cell still exists, and removes the mark from the cell.
    pub(super) fn pop(&mut self, errand: Errand, keys: &mut Keys) -> Option<Spot> {
        while let Some(spot) = self.queue(errand).pop_front() {
            let cell = keys.at_mut(spot.slot).and_then(|(_, state)| state.known_mut(spot.sequence));
            let marked = cell.is_some_and(|cell| core::mem::replace(errand.mark(&mut cell.queued), false));
            if marked {
                return Some(spot);
            }
        }
        None
    }

    pub(super) fn len(&self, errand: Errand) -> usize {
        match errand {
            Errand::Replay => self.replay.len(),
            Errand::Share => self.share.len(),
            Errand::Hot => self.hot.len(),
            Errand::LowerBound => self.lower_bound.len(),
        }
    }

    /// Drops the entries of cells that no longer exist, once there are many of them, since a store may be unavailable
    /// for long. `cells` is the number of existing cells.
    pub(super) fn sweep(&mut self, keys: &mut Keys, cells: usize) {
        for errand in Errand::ALL {
            if self.len(errand) <= cells.saturating_mul(2).saturating_add(STALE_ENTRIES) {
                continue;
            }
            let waiting: Vec<Spot> = self.queue(errand).drain(..).collect();
            let mut kept = VecDeque::new();
            for spot in waiting {
                let cell = keys.at_mut(spot.slot).and_then(|(_, state)| state.known_mut(spot.sequence));
                if cell.is_some_and(|cell| *errand.mark(&mut cell.queued)) {
                    kept.push_back(spot);
                }
            }
            *self.queue(errand) = kept;
        }
    }

    fn queue(&mut self, errand: Errand) -> &mut VecDeque<Spot> {
        match errand {
            Errand::Replay => &mut self.replay,
            Errand::Share => &mut self.share,
            Errand::Hot => &mut self.hot,
            Errand::LowerBound => &mut self.lower_bound,
        }
    }
}
