//! The globe: which cells the other regions are to hear of, and what is heard from them.
//!
//! A region publishes the sum of its own components and nothing that it imported, so nobody's use comes back to him.
//! It speaks of a cell once that (or, where windows are cut finer, a window that touches it) has reached half its limit, or where another region spoke of it before, and again
//! when it has grown. Cells come in the order in which they became due; no walk over all others is needed.
//!
//! Leaves to others: when that is done and over what (`aggregator`), rows and queries (`aggregator`).

use super::cell::CellState;
use super::exchange::Publication;
use super::work::Errand;
use super::{Refused, Region, checked};
use crate::model::key::Key;
use crate::model::time::UnixMs;
use crate::model::window::MAX_COUNT;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// A cell to be published, and how urgent that is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// What is to be said.
    pub publication: Publication,
    /// Its share of its limit in thousandths.
    pub utilisation: u64,
}

/// What was chosen of too much, and what has to wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice<T> {
    /// The most used, within what each namespace may have.
    pub chosen: Vec<T>,
    /// The rest.
    pub left: Vec<T>,
}

impl Region {
    /// Up to `most` cells that are due. Each comes once, until it grows or [`Region::publish_failed`]. The second
    /// value is true if there is more: let others have their turn before the next call.
    pub fn next_due(&mut self, most: usize) -> (Vec<Due>, bool) {
        self.publish_again_some();
        // Room that grows while it is filled would be copied over and over, and everybody waits meanwhile.
        let mut due = Vec::with_capacity(most.min(self.work.len(Errand::Publish)));
        for _ in 0..most {
            let Some(spot) = self.work.pop(Errand::Publish, &mut self.keys) else { break };
            let Some((key, state)) = self.keys.at(spot.slot) else { continue };
            let load = state.load(spot.sequence);
            let due_still = |cell: &&CellState| load.is_global && cell.is_unpublished();
            let Some(cell) = state.cell(spot.sequence).filter(due_still) else { continue };
            due.push(Due {
                publication: Publication {
                    key: key.clone(),
                    sequence: spot.sequence,
                    count: cell.sum(),
                    expires: state.expires(spot.sequence),
                },
                utilisation: load.utilisation,
            });
        }
        (due, self.republish.is_some() || self.work.len(Errand::Publish) > 0)
    }

    /// These stand in the global store now.
    pub fn published(&mut self, rows: &[Publication]) {
        for row in rows {
            let Some(slot) = self.keys.find(&row.key) else { continue };
            let Some((_, state)) = self.keys.at_mut(slot) else { continue };
            if let Some(cell) = state.known_mut(row.sequence) {
                cell.published = cell.published.max(row.count);
            }
        }
    }

    /// These do not: they wait again.
    pub fn publish_failed<'a>(&mut self, rows: impl IntoIterator<Item = &'a Publication>) {
        for row in rows {
            let Some(slot) = self.keys.find(&row.key) else { continue };
            if let Some((_, state)) = self.keys.at_mut(slot) {
                self.work.note(slot, row.sequence, state, self.backing.incarnation());
            }
        }
    }

    /// The global store has lost what it held: all that was published is due again.
    pub fn forget_published(&mut self) {
        self.republish = Some(0);
    }

    /// Takes what the other regions used in a cell: a sum that only grows. True if the cell was not known before.
    pub fn import(
        &mut self,
        key: &Key,
        sequence: u64,
        global_others: u64,
        now: UnixMs,
    ) -> Result<bool, Refused> {
        // The sum of many may be more than one count can be, and is much all the same.
        let global_others = global_others.min(MAX_COUNT);
        checked(key.as_bytes(), sequence, global_others, now)?;
        if !self.keys.has_room_for(key.as_bytes()) {
            return Err(Refused::Full);
        }
        let (slot, state) = self.keys.entry(key.as_bytes(), sequence, now)?;
        let cell = state.cell_mut(sequence)?;
        let created = !core::mem::replace(&mut cell.queued.counted, true);
        self.imported = self.imported.saturating_add(u64::from(created));
        if cell.raise_global(global_others, now) {
            self.subscribers.changed_outside(slot, state);
            self.work.note(slot, sequence, state, self.backing.incarnation());
        }
        Ok(created)
    }

    fn publish_again_some(&mut self) {
        let Some(from) = self.republish else { return };
        let (slots, next) = self.keys.step(from);
        for slot in slots {
            let Some((_, state)) = self.keys.at_mut(slot) else { continue };
            let sequences: Vec<u64> = state.cells().iter().map(|cell| cell.sequence).collect();
            for sequence in sequences {
                if let Some(cell) = state.known_mut(sequence) {
                    cell.published = 0;
                }
                self.work.note(slot, sequence, state, self.backing.incarnation());
            }
        }
        self.republish = next;
    }
}

/// The most used of `items`, at most `cap` for each namespace of each workspace.
pub fn most_used<T>(items: Vec<T>, cap: usize, describe: impl Fn(&T) -> (&Key, u64)) -> Choice<T> {
    if items.len() <= cap {
        return Choice { chosen: items, left: Vec::new() };
    }
    let mut groups: BTreeMap<(Vec<u8>, Vec<u8>), Vec<T>> = BTreeMap::new();
    for item in items {
        let parts = describe(&item).0.parts();
        let group = (parts.workspace.to_vec(), parts.namespace.to_vec());
        groups.entry(group).or_default().push(item);
    }
    let mut choice = Choice { chosen: Vec::new(), left: Vec::new() };
    for mut group in groups.into_values() {
        if group.len() > cap {
            group.sort_by_key(|item| core::cmp::Reverse(describe(item).1));
            choice.left.extend(group.split_off(cap));
        }
        choice.chosen.extend(group);
    }
    choice
}
