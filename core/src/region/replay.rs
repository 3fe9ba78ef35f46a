//! The region's store: what is to be raised in it, what it says, and what the region's other aggregators say.
//!
//! Every aggregator holds the components that its own filters report, and learns the others' from the store's word on
//! each cell that it raises, from the other aggregators' messages, and from repeated reads of the hot index. All of
//! that is merged by max. What the store holds is marked on each component for the store's present *life*; when a wipe
//! begins another life, every mark is void at once, and all that is held here is told again.
//!
//! Leaves to others: talking to the store, timeouts, and whether it is asked at all (`aggregator`).

use super::cells::KeyState;
use super::exchange::{BASELINE, Merge, Merged, Part, Proposal};
use super::filters::{admits, answer, checked_proposal, touch};
use super::subscribers::Subscribers;
use super::work::{Errand, Spot};
use super::{Refused, Region, checked};
use crate::model::key::{Key, OriginId};
use crate::model::time::UnixMs;
use crate::model::window::MAX_COUNT;
use crate::model::wire;
use alloc::vec::Vec;

/// Most components that a proposal repeats although the store should hold them: so many make it proof against a wipe
/// that nobody has noticed yet.
const MAX_REPEATED: usize = 64;

/// What is known of the store behind a region.
#[derive(Debug, Default)]
pub(super) struct Backing {
    /// Counts the store's lives; `None` without a store.
    incarnation: Option<u32>,
    /// The hot index was read since the store was found.
    complete: bool,
    /// All cells are to be told again; the slot to go on from.
    resend: Option<usize>,
}

impl Backing {
    pub(super) fn incarnation(&self) -> Option<u32> {
        self.incarnation
    }

    /// Everything hot in the region is known here.
    pub(super) fn is_complete(&self) -> bool {
        self.incarnation.is_none() || self.complete
    }
}

/// What becomes of a consult where a store has the last word.
#[derive(Clone, Debug, PartialEq)]
pub enum Proposed {
    /// What is known here speaks against it already.
    Settled(wire::Answer),
    /// The store is to be asked.
    Query(Merge),
}

/// A cell for the hot index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotCell {
    /// Whose cell.
    pub key: Key,
    /// Which cell.
    pub sequence: u64,
    /// It leaves the index then.
    pub expires: UnixMs,
    /// Its share of its limit in thousandths.
    pub utilisation: u64,
}

impl Region {
    /// From now on there is a store behind this region, which it knows nothing of yet.
    pub fn back(&mut self) {
        self.backing.incarnation.get_or_insert(1);
    }

    /// The store has lost what it held, or was replaced: all that is known here is to be told again.
    pub fn store_wiped(&mut self) {
        if let Some(incarnation) = &mut self.backing.incarnation {
            *incarnation = incarnation.wrapping_add(1).max(1);
            self.backing.resend = Some(0);
        }
    }

    /// Which of the store's lives this is, as the region counts them.
    pub fn store_incarnation(&self) -> u32 {
        self.backing.incarnation.unwrap_or_default()
    }

    /// Whether all that is hot in the store is known here. Subscribers hear that their snapshot is complete only then.
    pub fn set_complete(&mut self, complete: bool) {
        self.backing.complete = complete;
    }

    /// Whether anything waits for the store.
    pub fn has_merges(&self) -> bool {
        self.backing.resend.is_some() || self.pending_merges() > 0
    }

    /// Cells that wait for the store; while all is told again there are more to come.
    pub fn pending_merges(&self) -> usize {
        self.work.len(Errand::Replay)
    }

    /// Up to `most` cells that the store is to hear of. Each comes once, until it changes or [`Region::merge_failed`].
    pub fn next_merges(&mut self, most: usize) -> Vec<Merge> {
        let Some(incarnation) = self.backing.incarnation else { return Vec::new() };
        self.resend_some(incarnation);
        let mut merges = Vec::new();
        while merges.len() < most {
            let Some(spot) = self.work.pop(Errand::Replay, &mut self.keys) else { break };
            merges.extend(self.merge_of(spot, incarnation));
        }
        merges
    }

    /// Takes the store's word on a merge.
    pub fn merged(&mut self, merge: &Merge, merged: &Merged, now: UnixMs) {
        let Some(slot) = self.keys.find(&merge.key) else { return };
        self.learn_all(slot, merge, merged, now, None);
        self.share(slot, merge.sequence);
    }

    /// The store did not take these: they wait again.
    pub fn merge_failed(&mut self, merges: &[Merge]) {
        for merge in merges {
            let Some(slot) = self.keys.find(&merge.key) else { continue };
            let Some((_, state)) = self.keys.at_mut(slot) else { continue };
            if let Some(cell) = state.known_mut(merge.sequence).filter(|_| merge.parts.is_empty()) {
                // Nothing was to be told: it is the answer that is waited for.
                cell.query_anew();
                self.work.push(Errand::Replay, slot, cell);
            }
            self.work.note(slot, merge.sequence, state, self.backing.incarnation);
        }
    }

    /// Begins a consult on which the store has the last word. What speaks against it here is final, as fresher data
    /// could only raise a count; one that asks for nothing always goes to the store, as it wants to know.
    pub fn propose(
        &mut self,
        origin: OriginId,
        query: &wire::Consult,
        now: UnixMs,
    ) -> Result<Proposed, Refused> {
        let incarnation = self.backing.incarnation.unwrap_or_default();
        let at = checked_proposal(query, now)?;
        let (slot, state) =
            touch(&mut self.keys, &mut self.subscribers, &query.key, origin, query.sequence, now)?;
        // Also a count of 0 needs its place: without one, what is granted would be forgotten here.
        let grew = state.cell_mut(query.sequence)?.raise(origin, query.own, now)?;
        if state.note_limit(query.sequence, query.limit.min(MAX_COUNT)) || grew {
            self.subscribers.changed(slot, state, origin);
        }
        let fits = admits(state, &at, origin, query);
        if !fits && query.cost > 0 {
            self.work.note(slot, query.sequence, state, self.backing.incarnation);
            return Ok(Proposed::Settled(answer(state, origin, query, false)));
        }
        let global = |sequence: u64| state.cell(sequence).map_or(0, |cell| cell.global_others);
        let global_previous = state.before(query.sequence).map(global).fold(0, u64::saturating_add);
        let proposal = Proposal {
            origin,
            own: query.own.saturating_add(query.cost).min(MAX_COUNT),
            limit: query.limit.min(MAX_COUNT),
            global_current: global(query.sequence),
            global_previous: global_previous.min(MAX_COUNT),
            // Several count in full, as far as each reaches into the window.
            covered_ms: if state.resolution() == 1 { at.until_next_ms() } else { at.cell_ms },
            cell_ms: at.cell_ms,
        };
        let expires = state.expires(query.sequence);
        let cell = state.cell_mut(query.sequence)?;
        let parts: Vec<Part> = if cell.components.len() <= MAX_REPEATED {
            cell.components.iter().map(|component| (component.origin, component.own)).collect()
        } else {
            cell.unstored(incarnation).map(|component| (component.origin, component.own)).collect()
        };
        let limit = cell.limit;
        let (key, _) = self.keys.at(slot).ok_or(Refused::Full)?;
        Ok(Proposed::Query(Merge {
            key: key.clone(),
            sequence: query.sequence,
            parts,
            limit,
            expires,
            proposal: Some(proposal),
            wants_previous: true,
            incarnation,
        }))
    }

    /// Ends a consult with the store's word.
    pub fn concluded(
        &mut self,
        origin: OriginId,
        query: &wire::Consult,
        merge: &Merge,
        merged: &Merged,
        now: UnixMs,
    ) -> Result<wire::Answer, Refused> {
        let granted = merged.granted == Some(true);
        let slot = self.keys.find(&merge.key).ok_or(Refused::Full)?;
        // What the question itself brought the store, whatever its word, no replay will bring, and so none will share.
        let incarnation = self.backing.incarnation.unwrap_or_default();
        let state = self.keys.at(slot).and_then(|(_, state)| state.cell(merge.sequence));
        let brought = state.is_some_and(|cell| cell.unstored(incarnation).any(|component| component.own > 0));
        self.learn_all(slot, merge, merged, now, Some(origin));
        if granted || brought {
            self.share(slot, merge.sequence);
        }
        let (_, state) = self.keys.at(slot).ok_or(Refused::Full)?;
        Ok(answer(state, origin, query, granted))
    }

    /// Takes what the store holds of a cell: read from it, or told by another aggregator that has written it.
    pub fn learn(
        &mut self,
        key: &Key,
        sequence: u64,
        limit: u64,
        parts: &[Part],
        now: UnixMs,
    ) -> Result<(), Refused> {
        let Some(incarnation) = self.backing.incarnation else { return Ok(()) };
        checked(key.as_bytes(), sequence, 0, now)?;
        if !self.keys.has_room_for(key.as_bytes()) {
            return Err(Refused::Full);
        }
        let (slot, state) = self.keys.entry(key.as_bytes(), sequence, now)?;
        let became_hot = state.note_limit(sequence, limit);
        if state.cell_mut(sequence)?.learn(parts, incarnation, now) || became_hot {
            self.subscribers.changed_outside(slot, state);
        }
        follow(&mut self.subscribers, slot, state, sequence, parts);
        self.work.note(slot, sequence, state, self.backing.incarnation);
        Ok(())
    }

    /// Up to `most` cells that the region's other aggregators are to hear of, as they are now in the store.
    pub fn next_changes(&mut self, most: usize) -> Vec<wire::Change> {
        let mut changes = Vec::new();
        while changes.len() < most {
            let Some(spot) = self.work.pop(Errand::Share, &mut self.keys) else { break };
            changes.extend(self.change_of(spot));
        }
        changes
    }

    /// Cells that are hot and that the hot index may not name yet.
    pub fn next_hot(&mut self, most: usize) -> Vec<HotCell> {
        let Some(incarnation) = self.backing.incarnation else { return Vec::new() };
        let mut hot = Vec::new();
        while hot.len() < most {
            let Some(spot) = self.work.pop(Errand::Hot, &mut self.keys) else { break };
            let Some((key, state)) = self.keys.at_mut(spot.slot) else { continue };
            let expires = state.expires(spot.sequence);
            let utilisation = state.load(spot.sequence).utilisation;
            let Some(cell) = state.known_mut(spot.sequence) else { continue };
            cell.hot_in = incarnation;
            hot.push(HotCell { key: key.clone(), sequence: spot.sequence, expires, utilisation });
        }
        hot
    }

    /// The hot index did not take these: they wait again.
    pub fn hot_failed(&mut self, hot: &[HotCell]) {
        for one in hot {
            let Some(slot) = self.keys.find(&one.key) else { continue };
            let Some((_, state)) = self.keys.at_mut(slot) else { continue };
            if let Some(cell) = state.known_mut(one.sequence) {
                cell.hot_in = 0;
            }
            self.work.note(slot, one.sequence, state, self.backing.incarnation);
        }
    }

    fn resend_some(&mut self, incarnation: u32) {
        let Some(from) = self.backing.resend else { return };
        let (slots, next) = self.keys.step(from);
        for slot in slots {
            let Some((_, state)) = self.keys.at_mut(slot) else { continue };
            let sequences: Vec<u64> = state.cells().iter().map(|cell| cell.sequence).collect();
            for sequence in sequences {
                self.work.note(slot, sequence, state, Some(incarnation));
            }
        }
        self.backing.resend = next;
    }

    fn merge_of(&mut self, spot: Spot, incarnation: u32) -> Option<Merge> {
        let (key, state) = self.keys.at_mut(spot.slot)?;
        let expires = state.expires(spot.sequence);
        let cell = state.known_mut(spot.sequence)?;
        let queries = core::mem::take(&mut cell.queued.query);
        let parts: Vec<Part> =
            cell.unstored(incarnation).map(|component| (component.origin, component.own)).collect();
        (queries || !parts.is_empty()).then(|| Merge {
            key: key.clone(),
            sequence: spot.sequence,
            parts,
            limit: cell.limit,
            expires,
            proposal: None,
            wants_previous: !cell.is_known_to(incarnation),
            incarnation,
        })
    }

    fn learn_all(
        &mut self,
        slot: usize,
        merge: &Merge,
        merged: &Merged,
        now: UnixMs,
        sender: Option<OriginId>,
    ) {
        let Some(incarnation) = self.backing.incarnation else { return };
        let Some((_, state)) = self.keys.at_mut(slot) else { return };
        let sequence = merge.sequence;
        // A word that was on its way while the store was found wiped may be about what it held before.
        let holds = (merge.incarnation == incarnation).then_some(incarnation);
        // A cell that was forgotten since is over.
        if state.cell(sequence).is_none() {
            return;
        }
        let mut grew = state.note_limit(sequence, merged.limit);
        if let Some(cell) = state.known_mut(sequence) {
            grew |= cell.learn_all(&merged.current, holds, now);
        }
        let oldest = state.oldest(now);
        for (before, parts) in state.before(sequence).zip(&merged.previous) {
            if before >= oldest && (!parts.is_empty() || state.cell(before).is_some()) {
                grew |= state.cell_mut(before).is_ok_and(|cell| cell.learn_all(parts, holds, now));
                self.work.note(slot, before, state, Some(incarnation));
            }
        }
        follow(&mut self.subscribers, slot, state, sequence, &merged.current);
        self.work.note(slot, sequence, state, Some(incarnation));
        if !grew {
            return;
        }
        match sender {
            Some(sender) => self.subscribers.changed(slot, state, sender),
            None => self.subscribers.changed_outside(slot, state),
        }
    }

    /// Queues a cell that was just raised in the store for the region's other aggregators: where it is hot, or where
    /// somebody uses it, or used the one before, who may be subscribed elsewhere: at a rollover filters count on hearing
    /// of keys that they follow.
    fn share(&mut self, slot: usize, sequence: u64) {
        let Some((_, state)) = self.keys.at_mut(slot) else { return };
        let shared = state.load(sequence).is_hot || is_followed_elsewhere(state, sequence, &self.subscribers);
        let Some(cell) = state.known_mut(sequence).filter(|_| shared) else { return };
        self.work.push(Errand::Share, slot, cell);
    }

    fn change_of(&self, spot: Spot) -> Option<wire::Change> {
        let (key, state) = self.keys.at(spot.slot)?;
        let cell = state.cell(spot.sequence)?;
        let ours = |origin: OriginId| origin == BASELINE || self.origins.contains_key(&origin);
        // Of few, all are said: also those of an Envoy that has left in the meantime.
        let few = cell.components.len() <= MAX_REPEATED;
        let parts = cell.stored(self.backing.incarnation?).filter(|(origin, _)| few || ours(*origin));
        let parts: Vec<_> =
            parts.map(|(origin, own)| wire::Part { origin: origin.0.to_vec(), own }).collect();
        (!parts.is_empty()).then(|| wire::Change {
            key: key.as_bytes().to_vec(),
            sequence: spot.sequence,
            limit: cell.limit,
            parts,
        })
    }
}

/// Whoever has a component in the cell follows it, also where all that it reports of it goes to another aggregator: it may
/// be subscribed here, and one that is new to the cell hears what is known.
fn follow(subscribers: &mut Subscribers, slot: usize, state: &mut KeyState, sequence: u64, parts: &[Part]) {
    for (origin, _) in parts.iter().filter(|(origin, _)| *origin != BASELINE) {
        if state.follow(*origin, sequence) {
            subscribers.enqueue(*origin, slot);
        }
    }
}

/// Whether an origin that does not subscribe here uses the cell or one before that counts, and is not the only one.
fn is_followed_elsewhere(state: &KeyState, sequence: u64, subscribers: &Subscribers) -> bool {
    let users = state.touching(sequence).flat_map(|cell| &cell.components);
    let (mut first, mut several, mut elsewhere) = (None, false, false);
    for user in users.map(|component| component.origin) {
        several |= *first.get_or_insert(user) != user;
        elsewhere |= user != BASELINE && !subscribers.has(user);
        if several && elsewhere {
            return true;
        }
    }
    false
}
