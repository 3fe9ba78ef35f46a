//! The region's store: what must be written to it, and what it and the region's other aggregators return.
//!
//! Every aggregator holds the components that its own filters report. It receives the others' from the store's answers
//! to its writes, from the other aggregators' messages, and from repeated reads of the hot index. All are merged by
//! maximum. Each component is marked with what the store holds of it in its present *incarnation*. When a wipe begins
//! another incarnation, every mark becomes void at once, and all counts are written again.

use super::Region;
use super::exchange::{BASELINE, Merge, Merged, Part, Proposal, StoreIds};
use super::filters::{admits, answer, checked_proposal, touch};
use super::key_state::KeyState;
use super::plausibility::{Refused, checked};
use super::subscribers::Subscribers;
use super::work::{Errand, Spot};
use crate::model::key::{Key, NodeId};
use crate::model::time::UnixMs;
use crate::model::window::MAX_COUNT;
use crate::model::wire;
use alloc::vec::Vec;

/// Most components that a proposal repeats although the store should hold them. Up to this number a proposal is safe
/// from a wipe that was not noticed yet.
const MAX_REPEATED: usize = 64;

/// The state of the region's store.
#[derive(Debug, Default)]
pub(super) struct Backing {
    /// The number of the store's incarnation; `None` without a store.
    incarnation: Option<u32>,
    /// The ids of that incarnation, which all aggregators of the region have; none before the store was found.
    ids: StoreIds,
    /// Whether the hot index was fully read since the store was found.
    complete: bool,
    /// If all cells must be written again: the slot to continue from.
    resend: Option<usize>,
}

impl Backing {
    pub(super) fn incarnation(&self) -> Option<u32> {
        self.incarnation
    }

    /// Whether all hot cells of the region are stored here.
    pub(super) fn is_complete(&self) -> bool {
        self.incarnation.is_none() || self.complete
    }
}

/// What to do with a query that the store decides.
#[derive(Clone, Debug, PartialEq)]
pub enum Proposed {
    /// The counts stored here suffice to deny it.
    Settled(wire::Answer),
    /// The store must be queried.
    Query(Merge),
}

/// A cell for the hot index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotCell {
    /// The key.
    pub key: Key,
    /// The cell's number.
    pub sequence: u64,
    /// When it leaves the index.
    pub expires: UnixMs,
    /// The used share of its limit in thousandths.
    pub utilisation: u64,
}

impl Region {
    /// Adds a store to this region. Nothing is known about its contents yet.
    pub fn attach_store(&mut self) {
        self.backing.incarnation.get_or_insert(1);
    }

    /// The store has lost its data, or was replaced: all cells stored here must be written again.
    pub fn store_wiped(&mut self) {
        self.store_lost();
        self.write_again();
    }

    /// The same, without writing them yet: until [`Region::write_again`], those are written that are used.
    pub fn store_lost(&mut self) {
        if let Some(incarnation) = &mut self.backing.incarnation {
            *incarnation = incarnation.wrapping_add(1).max(1);
        }
    }

    /// Writes all cells that the store lacks.
    pub fn write_again(&mut self) {
        self.backing.resend = self.backing.incarnation.map(|_| 0);
    }

    /// The number of the store's incarnation.
    pub fn store_incarnation(&self) -> u32 {
        self.backing.incarnation.unwrap_or_default()
    }

    /// Records the ids by which all aggregators name the store's present incarnation.
    pub fn set_store_ids(&mut self, ids: StoreIds) {
        self.backing.ids = ids;
    }

    /// The ids of the store's incarnation: what is marked as stored was stored in it. Sent with
    /// [`Region::next_changes`].
    pub fn store_ids(&self) -> &StoreIds {
        &self.backing.ids
    }

    /// Whether all that is hot in the store is stored here. Only then are subscribers' snapshots reported as complete.
    pub fn set_complete(&mut self, complete: bool) {
        self.backing.complete = complete;
    }

    /// Whether anything waits to be written to the store.
    pub fn has_merges(&self) -> bool {
        self.backing.resend.is_some() || self.pending_merges() > 0
    }

    /// Cells that wait to be written to the store. While all cells are written again, more will follow.
    pub fn pending_merges(&self) -> usize {
        self.work.len(Errand::Replay)
    }

    /// Up to `most` cells to write to the store. Each is returned once, until it changes or is passed to
    /// [`Region::merge_failed`].
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

    /// Takes the store's answer to a merge.
    pub fn merged(&mut self, merge: &Merge, merged: &Merged, now: UnixMs) {
        let Some(slot) = self.keys.find(&merge.key) else { return };
        self.learn_all(slot, merge, merged, now, None);
        self.share(slot, merge.sequence);
    }

    /// The store did not take these; they wait again.
    pub fn merge_failed(&mut self, merges: &[Merge]) {
        for merge in merges {
            let Some(slot) = self.keys.find(&merge.key) else { continue };
            let Some((_, state)) = self.keys.at_mut(slot) else { continue };
            if let Some(cell) = state.known_mut(merge.sequence).filter(|_| merge.parts.is_empty()) {
                // There was nothing to write: the cell waits for the answer only.
                cell.query_anew();
                self.work.push(Errand::Replay, slot, cell);
            }
            self.work.note(slot, merge.sequence, state, self.backing.incarnation);
        }
    }

    /// Begins a query that the store decides. A denial from the counts stored here is final, as fresher counts can only
    /// be higher. A query with a cost of 0 always goes to the store, since it requests counts.
    pub fn propose(&mut self, node: NodeId, query: &wire::Query, now: UnixMs) -> Result<Proposed, Refused> {
        let incarnation = self.backing.incarnation.unwrap_or_default();
        let (at, peer) = (checked_proposal(query, now)?, self.nodes.peer_of(node));
        let (slot, state) =
            touch(&mut self.keys, &mut self.subscribers, &query.key, node, query.sequence, now)?;
        // A count of 0 needs a component as well. Without one, a grant could not be stored here.
        let grew = state.cell_mut(query.sequence)?.raise_of(peer, node, query.own, now)?;
        let limit = query.limit.min(MAX_COUNT);
        state.newest_limit.note_query(query, now);
        if self.work.note_limit(slot, query.sequence, state, limit, self.backing.incarnation) || grew {
            self.subscribers.changed(slot, state, node);
        }
        let fits = admits(state, &at, node, query);
        if !fits && query.cost > 0 {
            self.work.note(slot, query.sequence, state, self.backing.incarnation);
            self.publishing.consider(slot, state, now);
            return Ok(Proposed::Settled(answer(state, node, query, false)));
        }
        let global = |sequence: u64| state.cell(sequence).map_or(0, |cell| cell.global_others);
        let global_previous = state.before(query.sequence).map(global).fold(0, u64::saturating_add);
        let proposal = Proposal {
            node,
            own: query.own.saturating_add(query.cost).min(MAX_COUNT),
            limit: query.limit.min(MAX_COUNT),
            global_current: global(query.sequence),
            global_previous: global_previous.min(MAX_COUNT),
            // Several cells count in full, as far as each reaches into the window.
            covered_ms: if state.resolution() == 1 { at.until_next_ms() } else { at.cell_ms },
            cell_ms: at.cell_ms,
        };
        let expires = state.expires(query.sequence);
        let cell = state.cell_mut(query.sequence)?;
        let parts: Vec<Part> = if cell.components.len() <= MAX_REPEATED {
            cell.components.iter().map(|component| (component.node, component.own)).collect()
        } else {
            cell.unstored(incarnation).map(|component| (component.node, component.own)).collect()
        };
        let limit = cell.limit;
        let (lower_bound, above) = cell.evidence();
        // The query states all that the node has used.
        cell.has_said_all(node, now);
        let (key, _) = self.keys.at(slot).ok_or(Refused::Full)?;
        Ok(Proposed::Query(Merge {
            key: key.clone(),
            sequence: query.sequence,
            parts,
            limit,
            lower_bound,
            above,
            expires,
            proposal: Some(proposal),
            wants_previous: true,
            incarnation,
        }))
    }

    /// Concludes a query with the store's answer.
    pub fn concluded(
        &mut self,
        node: NodeId,
        query: &wire::Query,
        merge: &Merge,
        merged: &Merged,
        now: UnixMs,
    ) -> Result<wire::Answer, Refused> {
        let granted = merged.granted == Some(true);
        let slot = self.keys.find(&merge.key).ok_or(Refused::Full)?;
        // What the query itself wrote to the store will not be written by a replay, and so would not be published to
        // the peers.
        let incarnation = self.backing.incarnation.unwrap_or_default();
        let state = self.keys.at(slot).and_then(|(_, state)| state.cell(merge.sequence));
        let brought = state.is_some_and(|cell| cell.unstored(incarnation).any(|component| component.own > 0));
        self.learn_all(slot, merge, merged, now, Some(node));
        if granted || brought {
            self.share(slot, merge.sequence);
        }
        let (_, state) = self.keys.at(slot).ok_or(Refused::Full)?;
        Ok(answer(state, node, query, granted))
    }

    /// Takes what the store holds of a cell, as read from it in its present incarnation.
    pub fn learn(
        &mut self,
        key: &Key,
        sequence: u64,
        limit: u64,
        parts: &[Part],
        now: UnixMs,
    ) -> Result<(), Refused> {
        self.learn_some(key, sequence, limit, parts, self.backing.incarnation, now)
    }

    /// Takes what another aggregator has found in the store's incarnation with these ids. In any other incarnation it
    /// counts, but has to be written again.
    pub fn learn_from_peer(
        &mut self,
        key: &Key,
        sequence: u64,
        limit: u64,
        parts: &[Part],
        store_ids: &StoreIds,
        now: UnixMs,
    ) -> Result<(), Refused> {
        let holds = self.backing.incarnation.filter(|_| self.backing.ids.agree(store_ids));
        self.learn_some(key, sequence, limit, parts, holds, now)
    }

    fn learn_some(
        &mut self,
        key: &Key,
        sequence: u64,
        limit: u64,
        parts: &[Part],
        holds: Option<u32>,
        now: UnixMs,
    ) -> Result<(), Refused> {
        if self.backing.incarnation.is_none() {
            return Ok(());
        }
        checked(key.as_bytes(), sequence, 0, now)?;
        let used = parts.iter().fold(0, |sum: u64, (_, own)| sum.saturating_add(*own));
        if !self.keys.makes_room_for(key.as_bytes(), limit != u64::MAX && used > limit / 2) {
            return Err(Refused::Full);
        }
        let (slot, state) = self.keys.entry(key.as_bytes(), sequence, now)?;
        let became_hot = state.note_limit(sequence, limit);
        if state.cell_mut(sequence)?.learn(parts, holds, now) || became_hot {
            self.subscribers.changed_outside(slot, state);
        }
        follow(&mut self.subscribers, slot, state, sequence, parts);
        self.work.note(slot, sequence, state, self.backing.incarnation);
        self.publishing.consider(slot, state, now);
        Ok(())
    }

    /// Takes the limit that was applied last to a key by a node of another aggregator, and when, and the one without live control.
    pub fn learn_limit(&mut self, key: &Key, change: &wire::Change, now: UnixMs) {
        if let Some((_, state)) = self.keys.find(key).and_then(|slot| self.keys.at_mut(slot)) {
            let configured = change.configured.unwrap_or(u64::MAX);
            state.newest_limit.note(change.newest_limit, configured, UnixMs(change.applied_ms), now);
        }
    }

    /// Up to `most` cells to publish to the region's other aggregators, with the counts that the store holds.
    pub fn next_changes(&mut self, most: usize) -> Vec<wire::Change> {
        let mut changes = Vec::new();
        while changes.len() < most {
            let Some(spot) = self.work.pop(Errand::Share, &mut self.keys) else { break };
            changes.extend(self.change_of(spot));
        }
        changes
    }

    /// Hot cells that the hot index may not name yet.
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

    /// The hot index did not take these; they wait again.
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

    /// Whether cells of before a loss of the store are still being queued to be written again.
    pub fn is_resending(&self) -> bool {
        self.backing.resend.is_some()
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
            cell.unstored(incarnation).map(|component| (component.node, component.own)).collect();
        let (lower_bound, above) = cell.evidence();
        (queries || !parts.is_empty()).then(|| Merge {
            key: key.clone(),
            sequence: spot.sequence,
            parts,
            limit: cell.limit,
            lower_bound,
            above,
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
        sender: Option<NodeId>,
    ) {
        let Some(incarnation) = self.backing.incarnation else { return };
        let Some((_, state)) = self.keys.at_mut(slot) else { return };
        let sequence = merge.sequence;
        // An answer that was on its way when the store was found wiped may contain data from before the wipe.
        let holds = (merge.incarnation == incarnation).then_some(incarnation);
        // A cell that was dropped meanwhile has ended.
        if state.cell(sequence).is_none() {
            return;
        }
        let of_others = |state: &KeyState| sender.map(|sender| state.of_others(sequence, sender));
        let known = of_others(state);
        let mut grew = state.note_limit(sequence, merged.limit);
        if let Some(cell) = state.known_mut(sequence) {
            grew |= cell.learn_all(&merged.current, merged.lower_bound, holds, now);
            if cell.shortage() > 0 {
                self.work.push(Errand::LowerBound, slot, cell);
            }
        }
        let oldest = state.oldest(now);
        for (before, parts) in state.before(sequence).zip(&merged.previous) {
            if before >= oldest && (!parts.is_empty() || state.cell(before).is_some()) {
                grew |= state.cell_mut(before).is_ok_and(|cell| cell.learn_all(parts, 0, holds, now));
                self.work.note(slot, before, state, Some(incarnation));
            }
        }
        follow(&mut self.subscribers, slot, state, sequence, &merged.current);
        self.work.note(slot, sequence, state, Some(incarnation));
        self.publishing.consider(slot, state, now);
        if !grew {
            return;
        }
        // The answer to the sender may be lost, or arrive too late and be dropped. So it does not replace a push.
        match sender.filter(|_| of_others(state) == known) {
            Some(sender) => self.subscribers.changed(slot, state, sender),
            None => self.subscribers.changed_outside(slot, state),
        }
    }

    /// Queues a cell that was just written to the store for the region's other aggregators, if it is hot, or if several
    /// nodes use it or a cell before that counts. It does not matter where they are subscribed now: what is pushed on a
    /// stream may be lost with it, and the next aggregator must have it. At a rollover filters rely on receiving the keys
    /// that they follow.
    fn share(&mut self, slot: usize, sequence: u64) {
        let Some((_, state)) = self.keys.at_mut(slot) else { return };
        let shared = state.load(sequence).is_hot || state.has_several_users(sequence);
        let Some(cell) = state.known_mut(sequence).filter(|_| shared) else { return };
        self.work.push(Errand::Share, slot, cell);
    }

    fn change_of(&self, spot: Spot) -> Option<wire::Change> {
        let (key, state) = self.keys.at(spot.slot)?;
        let cell = state.cell(spot.sequence)?;
        let ours = |node: NodeId| node == BASELINE || self.nodes.contains(node);
        // If the components are few, all are sent: also those of an Envoy that has disconnected meanwhile.
        let few = cell.components.len() <= MAX_REPEATED;
        let parts = cell.stored(self.backing.incarnation?).filter(|(node, _)| few || ours(*node));
        let parts: Vec<_> = parts.map(|(node, own)| wire::Part { node: node.0.to_vec(), own }).collect();
        let (newest_limit, applied) = state.newest_limit.at().unwrap_or_default();
        (!parts.is_empty()).then(|| wire::Change {
            key: key.as_bytes().to_vec(),
            sequence: spot.sequence,
            limit: cell.limit,
            parts,
            newest_limit,
            applied_ms: applied.0,
            configured: state.newest_limit.configured(),
        })
    }
}

/// Makes every node with a component in the cell its follower, also if it reports the cell to another aggregator only.
/// It may be subscribed here, and a new follower receives what is stored.
fn follow(subscribers: &mut Subscribers, slot: usize, state: &mut KeyState, sequence: u64, parts: &[Part]) {
    for (node, _) in parts.iter().filter(|(node, _)| *node != BASELINE) {
        if state.follow(*node, sequence) {
            subscribers.enqueue(*node, slot);
        }
    }
}
