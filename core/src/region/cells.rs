//! One key of a region: its live cells, the components in them, and the origins that touch it.
//!
//! Leaves to others: which keys exist and when they are looked at again (`region`), who is told (`subscribers`).

use crate::key::{Key, OriginId};
use crate::time::UnixMs;
use crate::window::{MAX_COUNT, Position, Used};
use crate::wire;
use alloc::vec::Vec;

/// Cells kept for a key: as many as a plausible sequence can name (now ± 2).
const MAX_CELLS: usize = 5;

/// What one origin has used in one cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Component {
    /// Who owns it.
    pub origin: OriginId,
    /// How much; never falls.
    pub own: u64,
    /// When it last grew.
    pub updated: UnixMs,
}

/// One cell of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellState {
    /// Which cell.
    pub sequence: u64,
    /// Ordered by origin.
    pub components: Vec<Component>,
    /// Sum of the other regions; never falls.
    pub global_others: u64,
    /// When that last grew.
    pub global_updated: UnixMs,
    /// Lowest limit that anybody applied to this cell; `u64::MAX` if unknown.
    pub limit: u64,
}

impl CellState {
    /// Sum of all components of the region.
    pub fn regional_total(&self) -> u64 {
        self.components.iter().fold(0, |sum: u64, component| sum.saturating_add(component.own))
    }

    /// Sum over region and globe.
    pub fn total(&self) -> u64 {
        self.regional_total().saturating_add(self.global_others)
    }

    fn component(&self, origin: OriginId) -> u64 {
        match self.components.binary_search_by_key(&origin, |component| component.origin) {
            Ok(found) => self.components.get(found).map_or(0, |component| component.own),
            Err(_) => 0,
        }
    }

    fn raise(&mut self, origin: OriginId, own: u64, now: UnixMs) -> bool {
        match self.components.binary_search_by_key(&origin, |component| component.origin) {
            Ok(found) => match self.components.get_mut(found) {
                Some(component) if component.own < own => {
                    *component = Component { origin, own, updated: now };
                    true
                }
                _ => false,
            },
            Err(place) if own > 0 => {
                self.components.insert(place, Component { origin, own, updated: now });
                true
            }
            Err(_) => false,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct KeyState {
    cell_ms: u64,
    /// Ordered by sequence.
    cells: Vec<CellState>,
    /// Who touches the key, and the last sequence in which it did.
    followers: Vec<(OriginId, u64)>,
}

impl KeyState {
    pub(super) fn new(cell_ms: u64) -> KeyState {
        KeyState { cell_ms, cells: Vec::new(), followers: Vec::new() }
    }

    pub(super) fn cells(&self) -> &[CellState] {
        &self.cells
    }

    /// Second at which cell `sequence` matters to no window any more, seen from `now`.
    pub(super) fn expires_s(&self, sequence: u64, now: UnixMs) -> u64 {
        let sequence = sequence.max(Position::at(now, self.cell_ms).sequence);
        sequence.saturating_add(2).saturating_mul(self.cell_ms).div_ceil(1_000)
    }

    /// Drops what is over, returns the newest sequence that is left.
    pub(super) fn drop_old(&mut self, now: UnixMs) -> Option<u64> {
        let oldest = Position::at(now, self.cell_ms).sequence.saturating_sub(1);
        self.cells.retain(|cell| cell.sequence >= oldest);
        self.followers.retain(|(_, touched)| *touched >= oldest);
        let touched = self.followers.iter().map(|(_, touched)| *touched).max();
        self.cells.last().map(|cell| cell.sequence).max(touched)
    }

    /// True if `origin` did not follow before.
    pub(super) fn follow(&mut self, origin: OriginId, sequence: u64) -> bool {
        match self.followers.iter_mut().find(|(follower, _)| *follower == origin) {
            Some((_, touched)) => {
                *touched = sequence.max(*touched);
                false
            }
            None => {
                self.followers.push((origin, sequence));
                true
            }
        }
    }

    pub(super) fn follows(&self, origin: OriginId) -> bool {
        self.followers.iter().any(|(follower, _)| *follower == origin)
    }

    pub(super) fn followers(&self) -> impl Iterator<Item = OriginId> + '_ {
        self.followers.iter().map(|(follower, _)| *follower)
    }

    pub(super) fn has_others(&self, origin: OriginId) -> bool {
        self.cells
            .iter()
            .any(|cell| cell.global_others > 0 || cell.components.iter().any(|other| other.origin != origin))
    }

    /// Past half the limit in any live cell.
    pub(super) fn is_hot(&self) -> bool {
        self.cells.iter().any(|cell| cell.total() > cell.limit / 2)
    }

    /// Merges by max; true if it grew.
    pub(super) fn raise(&mut self, sequence: u64, origin: OriginId, own: u64, now: UnixMs) -> bool {
        own > 0 && self.cell_mut(sequence).is_some_and(|cell| cell.raise(origin, own, now))
    }

    pub(super) fn raise_global(&mut self, sequence: u64, sum: u64, now: UnixMs) -> bool {
        match self.cell_mut(sequence) {
            Some(cell) if cell.global_others < sum => {
                (cell.global_others, cell.global_updated) = (sum, now);
                true
            }
            _ => false,
        }
    }

    pub(super) fn note_limit(&mut self, sequence: u64, limit: u64) {
        if let Some(cell) = self.cell_mut(sequence) {
            cell.limit = cell.limit.min(limit);
        }
    }

    /// Used in `sequence` and before, with `origin`'s component at least `own`.
    pub(super) fn used_with(&self, sequence: u64, origin: OriginId, own: u64) -> Used {
        let current = self.cell(sequence).map_or(own, |cell| {
            let component = cell.component(origin);
            cell.total().saturating_sub(component).saturating_add(component.max(own))
        });
        let previous =
            sequence.checked_sub(1).and_then(|before| self.cell(before)).map_or(0, CellState::total);
        Used { current, previous }
    }

    /// The cell as `origin` is to see it; the key is left for the caller to fill in.
    pub(super) fn view(&self, sequence: u64, origin: OriginId) -> wire::View {
        let Some(cell) = self.cell(sequence) else { return wire::View { sequence, ..Default::default() } };
        let own = cell.component(origin);
        wire::View {
            key: Vec::new(),
            sequence,
            own,
            region_others: cell.regional_total().saturating_sub(own).min(MAX_COUNT),
            global_others: cell.global_others,
        }
    }

    /// The cells that a window at `now` touches, and any newer one.
    pub(super) fn views(&self, key: &Key, origin: OriginId, now: UnixMs) -> Vec<wire::View> {
        let oldest = Position::at(now, self.cell_ms).sequence.saturating_sub(1);
        let live = self.cells.iter().filter(|cell| cell.sequence >= oldest).take(2);
        live.map(|cell| wire::View { key: key.as_bytes().to_vec(), ..self.view(cell.sequence, origin) })
            .collect()
    }

    fn cell(&self, sequence: u64) -> Option<&CellState> {
        self.cells.iter().find(|cell| cell.sequence == sequence)
    }

    /// The cell, made if need be; `None` only if the newer ones already fill the room.
    fn cell_mut(&mut self, sequence: u64) -> Option<&mut CellState> {
        let place = match self.cells.binary_search_by_key(&sequence, |cell| cell.sequence) {
            Ok(found) => return self.cells.get_mut(found),
            Err(place) => place,
        };
        let place = match (self.cells.len() >= MAX_CELLS, place.checked_sub(1)) {
            (false, _) => place,
            (true, None) => return None,
            (true, Some(before)) => {
                self.cells.remove(0);
                before
            }
        };
        let empty = CellState {
            sequence,
            components: Vec::new(),
            global_others: 0,
            global_updated: UnixMs(0),
            limit: u64::MAX,
        };
        self.cells.insert(place, empty);
        self.cells.get_mut(place)
    }
}
