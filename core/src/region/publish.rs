//! The exchange with other regions: which cells are published to them, and what is imported from them.
//!
//! A region publishes the sum of its own components and nothing that it imported, so that no region counts its own use
//! twice. It publishes a cell of a window of at least [`SHORTEST_PUBLISHED_MS`](super::SHORTEST_PUBLISHED_MS) once the cell
//! (or, if windows have several cells, a window that touches it) has reached half its limit, or once another region has published
//! it; and again when it has grown. Cells are queued in the order in which they became due, so that no walk over all cells is needed.

use super::cell::CellState;
use super::exchange::Publication;
use super::work::Errand;
use super::{OtherRegion, Refused, Region, checked};
use crate::model::key::Key;
use crate::model::time::UnixMs;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// A cell to be published, and its priority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// The row to write.
    pub publication: Publication,
    /// The used share of its limit in thousandths.
    pub utilisation: u64,
}

/// The items chosen within a cap, and the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice<T> {
    /// The most used items, at most the cap for each namespace.
    pub chosen: Vec<T>,
    /// The rest.
    pub left: Vec<T>,
}

impl Region {
    /// Up to `most` cells that are due. Each is returned once, until it grows or is passed to
    /// [`Region::publish_failed`]. The second value is true if there are more; let other tasks run before the next
    /// call.
    pub fn next_due(&mut self, most: usize) -> (Vec<Due>, bool) {
        self.publish_again_some();
        // Growing the vector while it is filled would copy it again and again, and all streams wait meanwhile.
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
                    limit: cell.limit,
                    expires: state.expires(spot.sequence),
                },
                utilisation: load.utilisation,
            });
        }
        (due, self.republish.is_some() || self.work.len(Errand::Publish) > 0)
    }

    /// Records that the global store holds these rows.
    pub fn published(&mut self, rows: &[Publication]) {
        for row in rows {
            let Some(slot) = self.keys.find(&row.key) else { continue };
            let Some((_, state)) = self.keys.at_mut(slot) else { continue };
            if let Some(cell) = state.known_mut(row.sequence) {
                cell.published = cell.published.max(row.count);
            }
        }
    }

    /// The global store does not hold these rows; their cells wait again.
    pub fn publish_failed<'a>(&mut self, rows: impl IntoIterator<Item = &'a Publication>) {
        for row in rows {
            let Some(slot) = self.keys.find(&row.key) else { continue };
            if let Some((_, state)) = self.keys.at_mut(slot) {
                self.work.note(slot, row.sequence, state, self.backing.incarnation());
            }
        }
    }

    /// The global store has lost its data: all that was published is due again.
    pub fn forget_published(&mut self) {
        self.republish = Some(0);
    }

    /// The number of another region, for [`Region::import`]. Refused if there are too many regions.
    pub fn other_region(&mut self, name: &[u8]) -> Result<OtherRegion, Refused> {
        self.others.entry(name)
    }

    /// The name of another region.
    pub fn name_of_other(&self, region: OtherRegion) -> &[u8] {
        self.others.name(region)
    }

    /// Takes what another region has used in a cell, which only grows. Returns true if the cell was not stored before.
    pub fn import(
        &mut self,
        region: OtherRegion,
        key: &Key,
        sequence: u64,
        count: u64,
        now: UnixMs,
    ) -> Result<bool, Refused> {
        checked(key.as_bytes(), sequence, count, now)?;
        if !self.keys.has_room_for(key.as_bytes()) {
            return Err(Refused::Full);
        }
        let (slot, state) = self.keys.entry(key.as_bytes(), sequence, now)?;
        let cell = state.cell_mut(sequence)?;
        let created = !core::mem::replace(&mut cell.queued.counted, true);
        self.imported = self.imported.saturating_add(u64::from(created));
        if cell.raise_other(region, count, now) {
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
