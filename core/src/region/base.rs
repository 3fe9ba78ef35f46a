//! What a region makes up for after it has lost everything: its own published figures and what filters were told.
//!
//! Such evidence says that a cell's components must add up to something, not whose they are. It counts as a *floor* at
//! once, so that no limit starts from zero. When all who live have had time to repeat what they know, what is still
//! missing becomes one component of its own, [`BASE`], set once for a cell, to which new use then adds. Only cells that
//! began before the loss get one.
//!
//! Leaves to others: when a loss is certain, and for how long the living are waited for (`aggregator`).

use super::exchange::{BASE, Floor, Merge, Merged};
use super::work::Errand;
use super::{Refused, Region, checked};
use crate::key::Key;
use crate::time::UnixMs;
use alloc::vec::Vec;

impl Region {
    /// What was known before this moment may be lost.
    pub fn lost(&mut self, now: UnixMs) {
        self.lost = Some(now);
    }

    /// The region itself once published that it has used `total` of a cell.
    pub fn witness(&mut self, key: &Key, sequence: u64, total: u64, now: UnixMs) -> Result<(), Refused> {
        self.witness_bytes(key.as_bytes(), sequence, total, now)
    }

    /// The same of a key that may be none.
    pub(super) fn witness_bytes(
        &mut self,
        key: &[u8],
        sequence: u64,
        total: u64,
        now: UnixMs,
    ) -> Result<(), Refused> {
        checked(key, sequence, total, now)?;
        let (slot, state) = self.keys.entry(key, sequence, now)?;
        if self.work.raise_floor(slot, sequence, state, total)? {
            self.subscribers.changed_outside(slot, state);
        }
        Ok(())
    }

    /// Ends the time of grace after a loss: the cells of which more is known to have been used than components say.
    /// Without a store [`Region::settle`] is what to do with them.
    pub fn end_grace(&mut self) -> Vec<Floor> {
        let Some(lost) = self.lost.take() else { return Vec::new() };
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

    /// The store did not take these: they wait for the end of another time of grace.
    pub fn floors_failed(&mut self, floors: &[Floor]) {
        for floor in floors {
            let Some(slot) = self.keys.find(&floor.key) else { continue };
            let cell = self.keys.at_mut(slot).and_then(|(_, state)| state.known_mut(floor.sequence));
            if let Some(cell) = cell {
                self.work.push(Errand::Floor, slot, cell);
            }
        }
    }

    /// Takes the store's word on what it was told in `life` to make up for.
    pub fn floored(&mut self, floor: &Floor, merged: &Merged, life: u32, now: UnixMs) {
        let merge = Merge {
            key: floor.key.clone(),
            sequence: floor.sequence,
            parts: Vec::new(),
            limit: u64::MAX,
            expires: floor.expires,
            proposal: None,
            wants_previous: false,
            life,
        };
        self.merged(&merge, merged, now);
    }

    /// Gives what no component accounts for to [`BASE`].
    pub fn settle(&mut self, floors: &[Floor], now: UnixMs) {
        for floor in floors {
            let Some(slot) = self.keys.find(&floor.key) else { continue };
            let Some((_, state)) = self.keys.at_mut(slot) else { continue };
            if let Some(cell) = state.known_mut(floor.sequence).filter(|cell| !cell.has_base()) {
                // A cell that is full of components keeps its floor.
                let _ = cell.raise(BASE, cell.shortage(), now);
            }
            self.work.note(slot, floor.sequence, state, self.backing.life());
        }
    }
}
