//! The exchange with filters: reports, queries, pushes.

use super::key_state::{KeyState, LiveLimit};
use super::keys::Keys;
use super::plausibility::{Refused, checked_own, most_by_now};
use super::reserved::Reserved;
use super::subscribers::Subscribers;
use super::work::Errand;
use super::{Region, ReportResult};
use crate::model::key::{Key, KeyParts, Namespace, NodeId};
use crate::model::time::UnixMs;
use crate::model::window::{MAX_COUNT, Position};
use crate::model::wire;
use alloc::vec::Vec;

impl Region {
    /// Merges the counts that `node` reports.
    pub fn report(&mut self, node: NodeId, counts: &[wire::Count], now: UnixMs) -> ReportResult {
        let mut reported = ReportResult::default();
        for (place, count) in (0..).zip(counts) {
            match self.merge_count(node, count, now) {
                Ok(None) => {}
                Ok(Some(baseline)) => reported.baselines.push((place, baseline)),
                Err(refused) => reported.refused.push((place, refused)),
            }
        }
        reported
    }

    /// Grants `own + cost` or not, and returns the counts of the cell and of those before that its window touches. An
    /// error means that the region cannot judge the query.
    pub fn query(&mut self, node: NodeId, query: &wire::Query, now: UnixMs) -> Result<wire::Answer, Refused> {
        let (at, peer) = (checked_proposal(query, now)?, self.nodes.peer_of(node));
        let (slot, state) =
            touch(&mut self.keys, &mut self.subscribers, &query.key, node, query.sequence, now)?;
        if query.without_baseline && !sends_baseline(state, query.sequence, self.backing.incarnation()) {
            return Err(Refused::Baseline);
        }
        let mut changed = state.raise(query.sequence, (peer, node), query.own, now)?;
        let proposed = query.own.saturating_add(query.cost);
        let (limit, incarnation) = (query.limit.min(MAX_COUNT), self.backing.incarnation());
        changed |= self.work.note_limit(slot, query.sequence, state, limit, incarnation);
        state.newest_limit.note_query(query, now);
        // A count that the node had evicted is in no component but in the lower bound. What it reports later is added
        // to that as well.
        if let Some(cell) = state.known_mut(query.sequence) {
            cell.has_said_all(node, now);
        }
        let granted = admits(state, &at, node, query);
        if granted && query.cost > 0 {
            changed |= state.raise(query.sequence, (peer, node), proposed, now)?;
        }
        if changed {
            self.subscribers.changed(slot, state, node);
        }
        self.work.note(slot, query.sequence, state, self.backing.incarnation());
        self.publishing.consider(slot, state, now);
        Ok(answer(state, node, query, granted))
    }

    /// Applies the limits of live control to the keys that are held here of an identifier: no node may have a request that would show
    /// them. `live` returns what live control sets for a key, given its limit without live control; `None` changes nothing.
    pub fn control_identifier(
        &mut self,
        namespace: Namespace<&[u8]>,
        identifier: &[u8],
        mut live: impl FnMut(&KeyParts<'_>, Option<u64>) -> Option<LiveLimit>,
        now: UnixMs,
    ) {
        let keys = self.keys.of_identifier(namespace.workspace, namespace.name, identifier).into_iter();
        let slots: Vec<usize> = keys.filter_map(|(key, _)| self.keys.find(key)).collect();
        slots.into_iter().for_each(|slot| self.control_slot(slot, &mut live, now));
    }

    /// The same for some keys, from slot `from` on. Returns the slot to continue from; `None` after the last.
    pub fn control_some(
        &mut self,
        from: usize,
        mut live: impl FnMut(&KeyParts<'_>, Option<u64>) -> Option<LiveLimit>,
        now: UnixMs,
    ) -> Option<usize> {
        let (slots, next) = self.keys.short_step(from);
        slots.for_each(|slot| self.control_slot(slot, &mut live, now));
        next
    }

    fn control_slot(
        &mut self,
        slot: usize,
        live: &mut impl FnMut(&KeyParts<'_>, Option<u64>) -> Option<LiveLimit>,
        now: UnixMs,
    ) {
        let Some((key, state)) = self.keys.at_mut(slot) else { return };
        let Some(live) = live(&key.parts(), state.newest_limit.configured()) else { return };
        if let Some(limit) = state.newest_limit.changed_by(live) {
            self.apply_limit(slot, limit, now);
        }
    }

    fn apply_limit(&mut self, slot: usize, limit: u64, now: UnixMs) {
        let Some((_, state)) = self.keys.at_mut(slot) else { return };
        let incarnation = self.backing.incarnation();
        let mut became_hot = false;
        let sequences: Vec<u64> = state.cells().iter().map(|cell| cell.sequence).collect();
        for sequence in sequences {
            became_hot |= self.work.note_limit(slot, sequence, state, limit, incarnation);
            self.work.note(slot, sequence, state, incarnation);
        }
        state.newest_limit.set(limit, now);
        if became_hot {
            self.subscribers.changed_outside(slot, state);
        }
        self.publishing.consider(slot, state, now);
    }

    /// Starts (or restarts) pushes to `node`, beginning with all keys that it follows and all that are hot.
    pub fn subscribe(&mut self, node: NodeId) {
        self.subscribers.start(node);
    }

    /// Ends the pushes to `node`, which remains alive.
    pub fn unsubscribe(&mut self, node: NodeId) {
        self.subscribers.remove(node);
    }

    /// The next push for `node`. Call until it returns `None`. A push is empty if a step of a snapshot over many keys
    /// found none; it need not be sent.
    pub fn next_push(&mut self, node: NodeId, now: UnixMs) -> Option<wire::Push> {
        if !self.subscribers.has_work(node, self.is_complete()) {
            return None;
        }
        self.subscribers.go_on(node, &self.keys);
        let keys = &self.keys;
        let snapshots_of = |slot: usize| keys.at(slot).map_or(0, |(_, state)| state.snapshots_len(now));
        let (slots, complete) =
            self.subscribers.take(node, wire::MAX_FRAME_CELLS, snapshots_of, self.is_complete());
        let snapshots = slots
            .into_iter()
            .filter_map(|slot| self.keys.at(slot))
            .flat_map(|(key, state)| state.snapshots(key, node, now))
            .collect();
        Some(wire::Push { snapshots, complete })
    }

    /// The baseline after the store was queried. `None` if the store has not answered for that cell, so that the
    /// baseline may be higher than what is stored here.
    pub fn baseline(&self, node: NodeId, requested: &wire::Snapshot) -> Option<wire::Snapshot> {
        let key = Key::parse(&requested.key).ok()?;
        let state = self.keys.get(&key)?;
        sends_baseline(state, requested.sequence, self.backing.incarnation()).then(|| wire::Snapshot {
            key: requested.key.clone(),
            ..state.snapshot(requested.sequence, node)
        })
    }

    /// Whether [`Region::next_push`] has cells for `node`.
    pub fn has_push(&self, node: NodeId) -> bool {
        self.subscribers.has_work(node, self.is_complete())
    }

    fn merge_count(
        &mut self,
        node: NodeId,
        count: &wire::Count,
        now: UnixMs,
    ) -> Result<Option<wire::Snapshot>, Refused> {
        let at = checked_own(&count.key, count.sequence, count.own, now)?;
        // The others may have used more than one node can, and one of them may have reported what it has not used. As evidence their sum
        // counts up to that bound; it makes the node's own count no less plausible.
        let region_others = count.region_others.min(most_by_now(count.sequence, at.cell_ms, now));
        if count.own == 0 && region_others > 0 {
            // The count states only what the node had received. That does not make it a user of the cell.
            return self.witness(&count.key, count.sequence, region_others, now).map(|()| None);
        }
        let peer = self.nodes.peer_of(node);
        let (slot, state) =
            touch(&mut self.keys, &mut self.subscribers, &count.key, node, count.sequence, now)?;
        if count.reserved_ms > 0 {
            let reserved = Reserved { node, amount: count.reserved, read: UnixMs(count.reserved_ms) };
            state.reserved.note(reserved, now);
        }
        let incarnation = self.backing.incarnation();
        let became_hot = self.work.note_limit(slot, count.sequence, state, count.limit, incarnation);
        let configured = count.configured.unwrap_or(count.limit);
        state.newest_limit.note(count.limit, configured, UnixMs(count.applied_ms), now);
        if count.without_baseline {
            if self.backing.incarnation().is_some() {
                // The store may hold counts that this aggregator never received. To query it, the cell is written with
                // nothing new.
                let cell = state.cell_mut(count.sequence)?;
                cell.raise_of(peer, node, 0, now)?;
                cell.query_anew();
                self.work.push(Errand::Replay, slot, cell);
                self.work.note(slot, count.sequence, state, self.backing.incarnation());
            }
            self.publishing.consider(slot, state, now);
            if became_hot {
                self.subscribers.changed(slot, state, node);
            }
            return Ok(Some(wire::Snapshot {
                key: count.key.clone(),
                ..state.snapshot(count.sequence, node)
            }));
        }
        let mut changed = state.raise(count.sequence, (peer, node), count.own, now)? || became_hot;
        if region_others > 0 {
            let total = count.own.saturating_add(region_others);
            changed |= self.work.raise_lower_bound(slot, count.sequence, state, total)?;
        }
        if changed {
            self.subscribers.changed(slot, state, node);
        }
        self.work.note(slot, count.sequence, state, self.backing.incarnation());
        self.publishing.consider(slot, state, now);
        Ok(None)
    }
}

/// Whether what is stored here of a node's count is all there is. This must be certain, since a process accepts a
/// baseline once.
fn sends_baseline(state: &KeyState, sequence: u64, incarnation: Option<u32>) -> bool {
    let Some(incarnation) = incarnation else { return true };
    // What the node itself has reported here may be incomplete, since its workers may report to other aggregators too.
    state.cell(sequence).is_some_and(|cell| cell.is_known_to(incarnation))
}

/// Whether a query and the count it proposes are plausible; and the present position in the key's windows as its filter
/// sees it.
pub(super) fn checked_proposal(query: &wire::Query, now: UnixMs) -> Result<Position, Refused> {
    let at = checked_own(&query.key, query.sequence, query.own, now)?;
    let proposed = query.own.saturating_add(query.cost);
    // A cost above the limit is denied, however large it is.
    if proposed <= query.limit && proposed > most_by_now(query.sequence, at.cell_ms, now) {
        return Err(Refused::Component);
    }
    Ok(at.seen_from(query.sequence))
}

/// Whether the counts stored here leave room for the query.
pub(super) fn admits(state: &KeyState, at: &Position, node: NodeId, query: &wire::Query) -> bool {
    let proposed = query.own.saturating_add(query.cost);
    let limit = query.limit.min(MAX_COUNT);
    let used = state.used_with(query.sequence, node, proposed);
    proposed <= MAX_COUNT && query.cost <= limit && used.admits(at, 0, limit)
}

/// The counts of the queried cell and of those before that its window touches.
pub(super) fn answer(state: &KeyState, node: NodeId, query: &wire::Query, granted: bool) -> wire::Answer {
    let mut before = state.before(query.sequence).map(|sequence| state.snapshot(sequence, node));
    wire::Answer {
        id: query.id,
        granted,
        current: Some(state.snapshot_in_full(query.sequence, node)),
        previous: before.next(),
        older: before.collect(),
    }
}

/// The key's state, with `node` among its followers. A new follower of a key that other nodes have used gets a push.
pub(super) fn touch<'a>(
    keys: &'a mut Keys,
    subscribers: &mut Subscribers,
    key: &[u8],
    node: NodeId,
    sequence: u64,
    now: UnixMs,
) -> Result<(usize, &'a mut KeyState), Refused> {
    let (slot, state) = keys.entry_of(Some(node), key, sequence, now)?;
    state.sharing.is_local = true;
    if state.follow(node, sequence) && state.has_others(node) {
        subscribers.enqueue(node, slot);
    }
    Ok((slot, state))
}
