//! The exchange with other regions: which keys are published to them, and what is imported from them.
//!
//! A region publishes what it has used itself, and nothing that it imported, so that no region counts its own use twice.
//! [`sharing`] states when a key is due, and `due` holds the keys that are; a key is due with every cell that its window
//! touches. The rule is applied whenever a key grows, here or by an import, and when its limit or the number of regions
//! changes.
//!
//! [`sharing`]: crate::region::cell::sharing

use super::due::DueKeys;
use super::excess::Excesses;
use crate::model::key::Key;
use crate::model::time::UnixMs;
use crate::region::cell::CellState;
use crate::region::cell::sharing::{Due, MAX_SHARING_REGIONS, PROBATION_MS};
use crate::region::exchange::{Publication, Stored};
use crate::region::key_state::{KeyState, SHORTEST_PUBLISHED_MS};
use crate::region::plausibility::{Refused, checked};
use crate::region::top::{KeyUsage, Scope};
use crate::region::{OtherRegion, Region};
use alloc::vec::Vec;

/// The part of a packet that is reserved for keys which are published for the first time.
const FIRST_PART: usize = 4;

/// The state of the exchange with other regions.
#[derive(Debug, Default)]
pub(in crate::region) struct Publishing {
    /// Number of regions alive, this one included; `None` without a database.
    regions: Option<u64>,
    pub(in crate::region) due: DueKeys,
    excesses: Excesses,
    /// All keys must be examined again; the slot at which that continues.
    walk: Option<Walk>,
}

#[derive(Clone, Copy, Debug)]
struct Walk {
    from: usize,
    /// The global store may hold nothing of what was published.
    is_lost: bool,
}

/// What an import has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImportedCell {
    /// The cell was not stored before.
    pub created: bool,
    /// The other region's count has grown.
    pub grew: bool,
}

impl Publishing {
    /// Queues a key if it is due.
    pub(in crate::region) fn consider(&mut self, slot: usize, state: &mut KeyState, now: UnixMs) {
        let Some(regions) = self.regions.filter(|_| state.is_shared_between_regions()) else { return };
        let due = state.due(regions, now);
        let sharing = &mut state.sharing;
        self.due.push(slot, sharing.lineage, due, &mut sharing.due);
    }
}

impl KeyState {
    /// When the key is published, if `regions` are alive.
    fn due(&self, regions: u64, now: UnixMs) -> Due {
        let due = self.standing(now).due(regions, now < self.sharing.probation);
        if self.sharing.is_local { due } else { due.min(Due::AtInterval) }
    }
}

impl Region {
    /// Lets the region publish, given the number of regions alive, this one included.
    pub fn set_regions(&mut self, regions: u64) {
        let regions = regions.clamp(1, MAX_SHARING_REGIONS);
        let before = self.publishing.regions.replace(regions);
        // With more regions a key is published earlier.
        if before.is_some_and(|before| before < regions) && self.publishing.walk.is_none() {
            self.publishing.walk = Some(Walk { from: 0, is_lost: false });
        }
    }

    /// Number of regions alive, this one included; 0 without a database.
    pub fn regions(&self) -> u64 {
        self.publishing.regions.unwrap_or_default()
    }

    /// Up to `most` rows of the keys that are due at `least` or sooner. Pass them to [`Region::published`] or to
    /// [`Region::publish_failed`].
    pub fn next_rows(&mut self, least: Due, most: usize, now: UnixMs) -> Vec<Publication> {
        self.examine_some(now);
        let mut rows = Vec::new();
        self.take_rows(Due::First, most / FIRST_PART, &mut rows, now);
        for due in [Due::Now, Due::AtTick, Due::AtInterval, Due::First] {
            if due >= least {
                self.take_rows(due, most, &mut rows, now);
            }
        }
        rows
    }

    /// Whether a key has become due at once since the last call.
    pub fn take_urgent(&mut self) -> bool {
        self.publishing.due.take_urgent()
    }

    /// Number of keys that wait to be published.
    pub fn waiting_keys(&self) -> usize {
        self.publishing.due.len(Due::AtInterval)
    }

    /// Whether rows wait that are due at `least` or sooner.
    pub fn has_rows(&self, least: Due) -> bool {
        self.publishing.walk.is_some() || self.publishing.due.len(least) > 0
    }

    fn take_rows(&mut self, due: Due, most: usize, rows: &mut Vec<Publication>, now: UnixMs) {
        while rows.len() < most {
            let Some(slot) = self.publishing.due.pop(due, &mut self.keys) else { return };
            let Some(regions) = self.publishing.regions else { return };
            let Some((key, state)) = self.keys.at_mut(slot) else { continue };
            if state.due(regions, now) == Due::No {
                continue;
            }
            let oldest = state.oldest(now);
            let waits = |cell: &&CellState| cell.sequence >= oldest && cell.is_unpublished();
            let cells: Vec<&CellState> = state.cells().iter().filter(waits).collect();
            if !rows.is_empty() && rows.len().saturating_add(cells.len()) > most {
                let sharing = &mut state.sharing;
                return self.publishing.due.push(slot, sharing.lineage, due, &mut sharing.due);
            }
            rows.extend(cells.into_iter().map(|cell| Publication {
                key: key.clone(),
                sequence: cell.sequence,
                count: cell.to_publish(),
                limit: cell.limit,
                expires: state.expires(cell.sequence),
            }));
        }
    }

    /// Records that the global store holds these rows.
    pub fn published(&mut self, rows: &[Publication], now: UnixMs) {
        for row in rows {
            let Some((_, state)) = self.keys.find(&row.key).and_then(|slot| self.keys.at_mut(slot)) else {
                continue;
            };
            let is_first = state.standing(now).is_first;
            if let Some(cell) = state.known_mut(row.sequence) {
                cell.note_published(row.count, row.limit);
                if is_first {
                    state.sharing.probation = UnixMs(now.0.saturating_add(PROBATION_MS));
                }
            }
        }
    }

    /// The global store does not hold these rows; their keys wait again.
    pub fn publish_failed<'a>(&mut self, rows: impl IntoIterator<Item = &'a Publication>, now: UnixMs) {
        for row in rows {
            let Some(slot) = self.keys.find(&row.key) else { continue };
            if let Some((_, state)) = self.keys.at_mut(slot) {
                self.publishing.consider(slot, state, now);
            }
        }
    }

    /// The global store holds a cell of this region: another aggregator, or this one before its restart, has published it.
    pub fn published_elsewhere(&mut self, stored: &Stored) {
        let Some((_, state)) = self.keys.find(&stored.key).and_then(|slot| self.keys.at_mut(slot)) else {
            return;
        };
        if let Some(cell) = state.known_mut(stored.sequence) {
            cell.note_published(stored.count, stored.limit);
        }
    }

    /// The global store has lost its data: all that was published is due again.
    pub fn forget_published(&mut self) {
        self.publishing.walk = Some(Walk { from: 0, is_lost: true });
    }

    /// The number of another region, for [`Region::import`]. Refused if there are too many regions.
    pub fn other_region(&mut self, name: &[u8]) -> Result<OtherRegion, Refused> {
        self.others.entry(name)
    }

    /// The name of another region.
    pub fn name_of_other(&self, region: OtherRegion) -> &[u8] {
        self.others.name(region)
    }

    /// Takes what another region has used in a cell, which only grows.
    pub fn import(
        &mut self,
        region: OtherRegion,
        stored: &Stored,
        now: UnixMs,
    ) -> Result<ImportedCell, Refused> {
        let Stored { key, sequence, count, limit } = stored;
        checked(key.as_bytes(), *sequence, *count, now)?;
        if key.parts().duration_ms < SHORTEST_PUBLISHED_MS {
            return Err(Refused::Key);
        }
        let is_hot = *limit != u64::MAX && *count > limit / 2;
        if !self.keys.makes_room_for(key.as_bytes(), is_hot) {
            return Err(Refused::Full);
        }
        let (slot, state) = self.keys.entry(key.as_bytes(), *sequence, now)?;
        let is_new = !state.other_users(now).has(region);
        let cell = state.cell_mut(*sequence)?;
        let created = !core::mem::replace(&mut cell.queued.counted, true);
        self.imported = self.imported.saturating_add(u64::from(created));
        let before = cell.global_others;
        let grew = cell.raise_other(region, *count, now);
        let grown = cell.global_others.saturating_sub(before);
        let limit_fell = *limit < cell.others_limit;
        cell.others_limit = cell.others_limit.min(*limit);
        if grew || limit_fell {
            if is_new {
                state.sharing.probation = UnixMs(now.0.saturating_add(PROBATION_MS));
            }
            self.subscribers.changed_outside(slot, state);
            self.work.note(slot, *sequence, state, self.backing.incarnation());
            self.publishing.consider(slot, state, now);
            self.suspect_excess(slot, grown, now);
        }
        Ok(ImportedCell { created, grew })
    }

    /// The largest excess by scope that this and the other regions together were found to have used within the last minutes, in thousandths
    /// of the limit.
    pub fn excesses(&self, now: UnixMs) -> impl Iterator<Item = (&Scope, u64)> {
        self.publishing.excesses.all(now)
    }

    /// Examines a key's use after another region's count of it has `grown`.
    fn suspect_excess(&mut self, slot: usize, grown: u64, now: UnixMs) {
        let Some((key, state)) = self.keys.at(slot) else { return };
        let KeyUsage { used, limit, .. } = usage_of(key, state, now);
        if limit.is_some_and(|limit| used > limit) {
            self.publishing.excesses.suspect(key, used.saturating_sub(grown), used, now);
        }
    }

    /// Records the excesses that were found some seconds ago.
    pub(in crate::region) fn judge_excesses(&mut self, now: UnixMs) {
        let keys = &self.keys;
        let limit = |key: &Key| usage_of(key, keys.get(key)?, now).limit;
        self.publishing.excesses.judge(limit, now);
    }

    /// Examines the next keys of a walk over all.
    fn examine_some(&mut self, now: UnixMs) {
        let Some(Walk { from, is_lost }) = self.publishing.walk else { return };
        let (slots, next) = self.keys.step(from);
        for slot in slots {
            let Some((_, state)) = self.keys.at_mut(slot) else { continue };
            if is_lost {
                state.forget_published();
            }
            self.publishing.consider(slot, state, now);
        }
        self.publishing.walk = next.map(|from| Walk { from, is_lost });
    }
}

fn usage_of(key: &Key, state: &KeyState, now: UnixMs) -> KeyUsage {
    let parts = key.parts();
    let limit = state.newest_limit.limit();
    KeyUsage::of(state.cells(), (parts.cell_ms(), parts.resolution), limit, now)
}
