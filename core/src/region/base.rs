//! What a region makes up for after it has lost everything: its own published figures and what filters were told.
//!
//! Such evidence says that a cell's components must add up to something, not whose they are. It counts as a *floor* at
//! once, so that no limit starts from zero. When all who live have had time to repeat what they know, what is still
//! missing becomes one component of its own, [`BASE`], set once for a cell, to which new use then adds. Only cells that
//! began before the loss get one.
//!
//! Leaves to others: when a loss is certain, and for how long the living are waited for (`aggregator`).

use super::cell::CellState;
use super::exchange::{BASE, Floor};
use super::work::Errand;
use super::{Refused, Region, checked};
use crate::key::Key;
use crate::time::UnixMs;
use crate::window::MAX_COUNT;
use alloc::vec::Vec;

impl Region {
    /// What was known before this moment may be lost.
    pub fn lost(&mut self, now: UnixMs) {
        self.lost = Some(self.lost.map_or(now, |before| before.max(now)));
        self.graces = self.graces.saturating_add(1);
    }

    /// The region itself once published that it has used `total` of a cell.
    pub fn witness(&mut self, key: &Key, sequence: u64, total: u64, now: UnixMs) -> Result<(), Refused> {
        let (key, _) = checked(key.as_bytes(), sequence, total.min(MAX_COUNT), now)?;
        let (slot, state) = self.keys.entry(&key, sequence, now)?;
        if self.work.raise_floor(slot, sequence, state, total)? {
            self.subscribers.changed_outside(&key, state);
        }
        self.work.note(slot, sequence, state, self.backing.life());
        Ok(())
    }

    /// Ends the time of grace after a loss; to be called once for each. Where there was another loss since, the living
    /// need the time that follows that one, and nothing is said yet. Otherwise the cells of which more is known to have been used than components say.
    /// Without a store [`Region::settle`] is what to do with them.
    pub fn end_grace(&mut self) -> Vec<Floor> {
        self.graces = self.graces.saturating_sub(1);
        let Some(lost) = self.lost.take_if(|_| self.graces == 0) else { return Vec::new() };
        let mut floors = Vec::new();
        while let Some(spot) = self.work.pop(Errand::Floor, &mut self.keys) {
            let Some((key, state)) = self.keys.at(spot.slot) else { continue };
            let began = UnixMs(spot.sequence.saturating_mul(state.cell_ms()));
            let floor = state.cell(spot.sequence).and_then(|cell| cell.missing_floor());
            if let Some(total) = floor.filter(|_| began <= lost) {
                let expires = state.expires(spot.sequence);
                floors.push(Floor { key: key.clone(), sequence: spot.sequence, total, expires });
            }
        }
        floors
    }

    /// Gives what no component accounts for to [`BASE`].
    pub fn settle(&mut self, floors: &[Floor], now: UnixMs) {
        for floor in floors {
            let Some(slot) = self.keys.find(&floor.key) else { continue };
            let Some((_, state)) = self.keys.at_mut(slot) else { continue };
            let short = |cell: &&mut CellState| !cell.has_base() && cell.shortage() > 0;
            if let Some(cell) = state.known_mut(floor.sequence).filter(short) {
                // A cell that is full of components keeps its floor.
                let _ = cell.raise(BASE, cell.shortage(), now);
            }
            self.work.note(slot, floor.sequence, state, self.backing.life());
        }
    }
}
