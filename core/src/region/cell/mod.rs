//! One cell: a grow-only counter (a state-based CRDT) with a component for each node, and how much of each component the region's
//! stores are known to have. `others`: the components of other regions; `sharing`: the rule by which a key is published to them.

pub(super) mod others;
pub(super) mod sharing;

use super::exchange::{BASELINE, Part};
use super::plausibility::Refused;
use crate::model::key::NodeId;
use crate::model::room::most_of_part;
use crate::model::time::UnixMs;
use crate::model::window::MAX_COUNT;
use alloc::vec::Vec;
use others::{OtherComponents, OtherRegion};
use smallvec::SmallVec;

/// Most components of a cell, and most followers of a key. A region has fewer Envoys at any moment; but an Envoy that
/// restarts is a new node, and what it has spent before counts until its cell ends. Peers share those of a cell, so that one that
/// invents nodes leaves some to others.
pub(super) const MAX_NODES_A_KEY: usize = 4_096;
/// No count of a component was ever written to the regional store.
const NEVER: u64 = u64::MAX;

/// What one node has used in one cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Component {
    /// The owner; [`BASELINE`] if the use cannot be attributed to a node.
    pub node: NodeId,
    /// The count; it never falls.
    pub own: u64,
    /// When the count last grew.
    pub updated: UnixMs,
    /// What the regional store holds of it, or [`NEVER`]. Valid only in the incarnation that the cell names.
    stored: u64,
    /// Whether the node has sent its whole use since the lower bound was last raised. If so, further growth is in
    /// addition to the lower bound.
    above_lower_bound: bool,
    /// The peer whose node it was when it was added.
    peer: Peer,
}

/// The peer of a node, by a part of its hash; 0 for nodes elsewhere.
pub(super) type Peer = u32;

/// A component that was not added by a node here.
pub(super) const ELSEWHERE: Peer = 0;

/// The components of a cell. Most cells have one writer, whose component is stored inline.
pub type Components = SmallVec<[Component; 1]>;

/// One cell of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellState {
    /// The number of the cell.
    pub sequence: u64,
    /// Ordered by node.
    pub components: Components,
    /// What each of the other regions has published.
    pub others: OtherComponents,
    /// The sum of the other regions, at most [`MAX_COUNT`]; it never falls.
    pub global_others: u64,
    /// The lowest limit applied to this cell; `u64::MAX` if unknown.
    pub limit: u64,
    /// The lowest limit that another region has applied to it; `u64::MAX` if unknown. It denies nothing here.
    pub others_limit: u64,
    /// The sum of the components, updated as they grow.
    sum: u64,
    /// The least that the region is known to have used, whatever the components add up to: evidence after a loss.
    lower_bound: u64,
    /// What the global store is known to hold.
    pub(super) published: u64,
    /// The limit with which that was published.
    pub(super) published_limit: u64,
    /// The incarnation of the regional store to which `stored` of the components belongs.
    incarnation: u32,
    /// The incarnation in which the store has returned all that it holds of this cell.
    heard_in: u32,
    /// The incarnation in which the hot index names this cell.
    pub(super) hot_in: u32,
    /// The incarnation in which the lower bound known here became a part of the baseline.
    settled_in: u32,
    pub(super) queued: Queued,
}

/// The queues that contain the cell, each at most once; what was counted of it; and whether the regional store
/// must be queried for it even if there is nothing new to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Queued {
    pub(super) replay: bool,
    pub(super) share: bool,
    pub(super) hot: bool,
    pub(super) lower_bound: bool,
    pub(super) counted: bool,
    pub(super) query: bool,
    /// Its components have grown by what was in the lower bound already.
    pub(super) filled: bool,
}

/// What is used of a limit, summed over one cell or over the cells of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Usage {
    /// The sum over all regions.
    total: u64,
    /// Whether another region has published it.
    global_others: bool,
    /// The lowest limit applied in any region; `u64::MAX` if unknown.
    limit: u64,
}

/// Who must receive a cell, depending on what is used of its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    /// Past half the lowest limit of all regions: all nodes of the region must receive it.
    pub(super) is_hot: bool,
    /// The used share of the limit in thousandths, to order cells by use.
    pub(super) utilisation: u64,
}

impl Usage {
    /// The sum of both.
    pub(super) fn and(&self, other: &Usage) -> Usage {
        Usage {
            total: self.total.saturating_add(other.total),
            global_others: self.global_others || other.global_others,
            limit: self.limit.min(other.limit),
        }
    }

    pub(super) fn is_hot(&self) -> bool {
        match self.limit {
            u64::MAX => self.global_others,
            limit => self.total > limit / 2,
        }
    }

    pub(super) fn load(&self) -> Load {
        Load {
            is_hot: self.is_hot(),
            utilisation: self.total.saturating_mul(1_000).checked_div(self.limit).unwrap_or(u64::MAX),
        }
    }
}

impl Load {
    /// The load of a cell that belongs to both windows.
    pub(super) fn or(self, other: Load) -> Load {
        Load { is_hot: self.is_hot || other.is_hot, utilisation: self.utilisation.max(other.utilisation) }
    }
}

impl CellState {
    pub(super) fn new(sequence: u64) -> CellState {
        CellState {
            sequence,
            components: SmallVec::new(),
            others: OtherComponents::new(),
            global_others: 0,
            limit: u64::MAX,
            others_limit: u64::MAX,
            sum: 0,
            lower_bound: 0,
            published: 0,
            published_limit: u64::MAX,
            incarnation: 0,
            heard_in: 0,
            hot_in: 0,
            settled_in: 0,
            queued: Queued::default(),
        }
    }

    /// What the region has used: the sum of its components, or the lower bound if that is more.
    pub fn regional_total(&self) -> u64 {
        self.sum.max(self.lower_bound)
    }

    /// The sum over all regions.
    pub fn total(&self) -> u64 {
        self.regional_total().saturating_add(self.global_others)
    }

    /// What the region publishes: what it has used, at most [`MAX_COUNT`]. While counts are restored, what was used since the
    /// loss is in no component that would add to what is published already, so the lower bound is a part of it.
    pub(super) fn to_publish(&self) -> u64 {
        self.regional_total().min(MAX_COUNT)
    }

    /// The sum of all components without one of `own`.
    pub(super) fn of_others(&self, own: u64) -> u64 {
        self.sum.saturating_sub(own).min(MAX_COUNT)
    }

    /// The use of this cell alone.
    pub(super) fn usage(&self) -> Usage {
        let limit = self.limit.min(self.others_limit);
        Usage { total: self.total(), global_others: self.global_others > 0, limit }
    }

    /// The same without the lower bound, which is not pushed.
    pub(super) fn pushed_usage(&self) -> Usage {
        Usage { total: self.sum.saturating_add(self.global_others), ..self.usage() }
    }

    /// Whether it has grown since it was last published to the other regions, or a lower limit applies.
    pub(super) fn is_unpublished(&self) -> bool {
        self.to_publish() > self.published || (self.published > 0 && self.limit < self.published_limit)
    }

    /// Records that the global store holds `count` of it, published with `limit`.
    pub(super) fn note_published(&mut self, count: u64, limit: u64) {
        self.published = self.published.max(count);
        self.published_limit = self.published_limit.min(limit);
    }

    /// Records that the global store may hold nothing of it.
    pub(super) fn note_unpublished(&mut self) {
        (self.published, self.published_limit) = (0, u64::MAX);
    }

    pub(super) fn component(&self, node: NodeId) -> u64 {
        self.find(node).ok().and_then(|found| self.components.get(found)).map_or(0, |found| found.own)
    }

    pub(super) fn has_baseline(&self) -> bool {
        self.find(BASELINE).is_ok()
    }

    /// Returns true if the component grew; refused if there is no room for another component. A count of 0 creates a
    /// component, which marks its node as a follower of the cell.
    pub(super) fn raise(&mut self, node: NodeId, own: u64, now: UnixMs) -> Result<bool, Refused> {
        self.raise_of(ELSEWHERE, node, own, now)
    }

    /// The same for a node of this peer.
    pub(super) fn raise_of(
        &mut self,
        peer: Peer,
        node: NodeId,
        own: u64,
        now: UnixMs,
    ) -> Result<bool, Refused> {
        let shortage = self.shortage();
        let known = self.find(node).ok().and_then(|found| self.components.get(found));
        let above = known.filter(|component| component.above_lower_bound && shortage > 0);
        let new = above.map_or(0, |component| own.saturating_sub(component.own));
        self.lower_bound = self.lower_bound.saturating_add(new).min(MAX_COUNT);
        self.raise_known(peer, node, own, now)
    }

    /// The same for a count that is in the lower bound already, as far as it is new use.
    fn raise_known(&mut self, peer: Peer, node: NodeId, own: u64, now: UnixMs) -> Result<bool, Refused> {
        let shortage = self.shortage();
        let before = match self.find(node) {
            Ok(found) => match self.components.get_mut(found) {
                Some(component) if component.own < own => {
                    component.updated = now;
                    core::mem::replace(&mut component.own, own)
                }
                _ => return Ok(false),
            },
            Err(_) if !self.has_room_for(peer) => return Err(Refused::Full),
            Err(place) => {
                let new =
                    Component { node, own, updated: now, stored: NEVER, above_lower_bound: false, peer };
                self.components.insert(place, new);
                0
            }
        };
        self.sum = self.sum.saturating_add(own - before);
        self.queued.filled |= self.shortage() < shortage;
        Ok(own > before)
    }

    /// Whether there is room for another component of a peer.
    fn has_room_for(&self, peer: Peer) -> bool {
        let all = self.components.len();
        let free = MAX_NODES_A_KEY.saturating_sub(all);
        let most = if peer == ELSEWHERE { usize::MAX } else { most_of_part(free) };
        // Components are counted only in cells of many.
        free > 0
            && (all < most
                || self.components.iter().filter(|component| component.peer == peer).count() < most)
    }

    /// Merges another region's component. Returns true if the sum of the other regions grew.
    pub(super) fn raise_other(&mut self, region: OtherRegion, count: u64, now: UnixMs) -> bool {
        let before = self.global_others;
        let grown = others::raise(&mut self.others, region, count, now);
        self.global_others = before.saturating_add(grown).min(MAX_COUNT);
        self.global_others > before
    }

    /// Records that the region has used at least `total`. Returns true if that is more than the sum of the components.
    pub(super) fn raise_lower_bound(&mut self, total: u64) -> bool {
        let total = total.min(MAX_COUNT);
        if self.lower_bound < total {
            self.lower_bound = total;
            // The new lower bound may include what components have grown by.
            self.components.iter_mut().for_each(|component| component.above_lower_bound = false);
        }
        self.lower_bound > self.sum
    }

    /// Records that the component of `node` is all that it has spent so far. While the lower bound exceeds the sum of
    /// the components, what the node spends from now on is added to the lower bound. Otherwise it would be absorbed by
    /// the lower bound until the baseline is created, and then for good.
    pub(super) fn has_said_all(&mut self, node: NodeId, now: UnixMs) {
        // If there is no room for the component, the caller refuses the count itself.
        if self.shortage() > 0
            && self.raise(node, 0, now).is_ok()
            && let Some(component) = self.find(node).ok().and_then(|at| self.components.get_mut(at))
        {
            component.above_lower_bound = true;
        }
    }

    /// Whether the cell holds counts that no node would send again, or that wait to be sent within the region.
    pub(super) fn must_stay(&self) -> bool {
        let Queued { replay, share, hot, lower_bound, query, .. } = self.queued;
        replay || share || hot || lower_bound || query || self.shortage() > 0 || self.has_baseline()
    }

    /// What the store needs of the lower bound to grant a proposal: the lower bound, if it exceeds the sum of the
    /// components, and the nodes whose further use adds to it.
    pub(super) fn evidence(&self) -> (u64, Vec<NodeId>) {
        if self.shortage() == 0 {
            return (0, Vec::new());
        }
        let above = self.components.iter().filter(|component| component.above_lower_bound);
        (self.lower_bound, above.map(|component| component.node).collect())
    }

    /// What is known to have been used beyond the sum of the components.
    pub(super) fn shortage(&self) -> u64 {
        self.lower_bound.saturating_sub(self.sum)
    }

    /// The lower bound, if it exceeds the sum of the components and was not settled in this `incarnation`. Another aggregator may have
    /// settled a lower one.
    pub(super) fn missing_lower_bound(&self, incarnation: u32) -> Option<u64> {
        (self.shortage() > 0 && self.settled_in != incarnation).then_some(self.lower_bound)
    }

    /// Records that the baseline has what the lower bound had beyond the other components.
    pub(super) fn settle(&mut self, incarnation: u32) {
        self.settled_in = incarnation;
    }

    /// Components that the store is not known to hold in this `incarnation`.
    pub(super) fn unstored(&self, incarnation: u32) -> impl Iterator<Item = &Component> {
        let known = self.incarnation == incarnation;
        self.components
            .iter()
            .filter(move |component| !known || component.stored == NEVER || component.stored < component.own)
    }

    /// How much the sum of the components exceeds what the store is known to hold in this `incarnation`.
    pub(super) fn on_its_way(&self, incarnation: u32) -> u64 {
        let stored = self.stored(incarnation).fold(0, |sum: u64, (_, own)| sum.saturating_add(own));
        self.sum.saturating_sub(stored)
    }

    /// What the store is known to hold in this `incarnation`.
    pub(super) fn stored(&self, incarnation: u32) -> impl Iterator<Item = Part> + '_ {
        let known = self.incarnation == incarnation;
        let held = self.components.iter().filter(move |component| known && component.stored != NEVER);
        held.map(|component| (component.node, component.stored))
    }

    /// Whether the store has returned in this `incarnation` all that it holds of this cell, and no new query is
    /// pending. Changes from other aggregators contain only a part of it.
    pub(super) fn is_known_to(&self, incarnation: u32) -> bool {
        self.heard_in == incarnation
    }

    /// Requires the store to return again what it holds: `node` has evicted its own count, which another aggregator
    /// may have written to the store.
    pub(super) fn query_anew(&mut self) {
        self.heard_in = 0;
        self.queued.query = true;
    }

    /// Takes all that the store holds of the cell in this `incarnation`, and its lower bound. Higher counts are merged; lower
    /// ones must be written again. Without an incarnation they are what the store once held, and may have lost since. Returns
    /// true if a component grew.
    pub(super) fn learn_all(
        &mut self,
        parts: &[Part],
        lower_bound: u64,
        incarnation: Option<u32>,
        now: UnixMs,
    ) -> bool {
        let (shortage, filled) = (self.shortage(), self.queued.filled);
        // What it has grown by in the store is new use, so this is no further evidence: what nodes spend from now on adds to it.
        self.lower_bound = self.lower_bound.max(lower_bound.min(MAX_COUNT));
        if let Some(incarnation) = incarnation {
            (self.incarnation, self.heard_in) = (incarnation, incarnation);
            self.components.iter_mut().for_each(|component| component.stored = NEVER);
        }
        let grew = self.learn(parts, incarnation, now);
        self.queued.filled = filled || self.shortage() < shortage;
        grew
    }

    /// Takes a part of what the store holds in this `incarnation`, or once held. Returns true if the cell grew.
    pub(super) fn learn(&mut self, parts: &[Part], incarnation: Option<u32>, now: UnixMs) -> bool {
        let Some(incarnation) = incarnation else { return self.raise_all(parts, now) };
        if self.incarnation != incarnation {
            self.incarnation = incarnation;
            self.components.iter_mut().for_each(|component| component.stored = NEVER);
        }
        let grew = self.raise_all(parts, now);
        for (node, own) in parts.iter().filter(|(_, own)| *own <= MAX_COUNT) {
            if let Some(component) = self.find(*node).ok().and_then(|at| self.components.get_mut(at)) {
                let known = if component.stored == NEVER { 0 } else { component.stored };
                component.stored = known.max(*own);
            }
        }
        grew
    }

    fn raise_all(&mut self, parts: &[Part], now: UnixMs) -> bool {
        let mut grew = false;
        for (node, own) in parts.iter().filter(|(_, own)| *own <= MAX_COUNT) {
            // If there is no room for the component, it stays in the store only.
            grew |= self.raise_known(ELSEWHERE, *node, *own, now).unwrap_or(false);
        }
        grew
    }

    fn find(&self, node: NodeId) -> Result<usize, usize> {
        self.components.binary_search_by_key(&node, |component| component.node)
    }
}
