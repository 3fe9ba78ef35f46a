//! One key of a region: its live cells, and its followers, the nodes that touch it.

use super::cell::others::RegionSet;
use super::cell::sharing::{Sharing, Standing};
use super::cell::{CellState, Load, MAX_NODES_A_KEY, Peer, Usage};
use super::plausibility::{MAX_WINDOW_SKEW, Refused};
use super::reserved::ReservedAmounts;
use super::shares::Lineage;
use crate::model::key::{Key, KeyParts, NodeId};
use crate::model::time::UnixMs;
use crate::model::window::{MAX_COUNT, Position, Used, weighted_up};
use crate::model::wire;
use alloc::vec::Vec;
use smallvec::SmallVec;

/// Windows shorter than this are not shared between regions: they would be over, or nearly so, when the other regions receive their
/// counts, after a second or two.
pub const SHORTEST_PUBLISHED_MS: u64 = 10_000;

#[derive(Clone, Debug)]
pub(super) struct KeyState {
    cell_ms: u64,
    /// Cells per window; at least 1.
    resolution: u16,
    /// Ordered by sequence.
    cells: Vec<CellState>,
    /// The nodes that touch the key, and the last sequence in which each did; ordered by node. Most keys have one.
    followers: SmallVec<[(NodeId, u64); 1]>,
    pub(super) sharing: Sharing,
    pub(super) newest_limit: NewestLimit,
    pub(super) reserved: ReservedAmounts,
}

/// The limit that was applied last to a key, by any node, and the one that applies without live control: a register in which the latest
/// write wins. Of equal times the lower limit does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NewestLimit {
    limit: u64,
    /// 0: no time is known, and so no limit.
    applied: UnixMs,
    /// The limit without live control, as its writer stated it; `u64::MAX` if it is not known.
    configured: u64,
}

impl Default for NewestLimit {
    fn default() -> Self {
        NewestLimit { limit: 0, applied: UnixMs(0), configured: u64::MAX }
    }
}

/// The limit that live control sets for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveLimit {
    /// It sets none.
    Unset,
    /// It sets one that depends on the configured limit, which is not known.
    Unknown,
    /// This one.
    Set(u64),
}

impl NewestLimit {
    /// A time after `now` counts as now, also one that is held: the clock may have been set back. Only a node has both limits from the
    /// rules, so whether live control sets the one need not be known here: a node may apply a control before this aggregator does.
    pub(super) fn note(&mut self, limit: u64, configured: u64, applied: UnixMs, now: UnixMs) {
        if limit == u64::MAX {
            return;
        }
        let applied = applied.min(now);
        let is_newer = (self.applied.min(now), limit) < (applied, self.limit);
        if is_newer {
            (self.limit, self.applied) = (limit, applied);
        }
        // A row that repeats an earlier one has no time. After a loss it is all that shows the configured limit.
        if self.configured == u64::MAX || (is_newer && configured != u64::MAX) {
            self.configured = configured;
        }
    }

    /// Notes the limit of a query. It may have waited for long, and another limit have been applied meanwhile.
    pub(super) fn note_query(&mut self, query: &wire::Query, now: UnixMs) {
        let limit = query.limit.min(MAX_COUNT);
        let applied = if query.applied_ms == 0 { now } else { UnixMs(query.applied_ms) };
        self.note(limit, query.configured.unwrap_or(limit), applied, now);
    }

    /// Notes the limit that live control sets, or that applies without it.
    pub(super) fn set(&mut self, limit: u64, now: UnixMs) {
        (self.limit, self.applied) = (limit, now);
    }

    /// The last limit without live control, if it is known.
    pub(super) fn configured(&self) -> Option<u64> {
        (self.configured != u64::MAX).then_some(self.configured)
    }

    /// The limit that applies by what live control sets, if it differs.
    pub(super) fn changed_by(&self, live: LiveLimit) -> Option<u64> {
        let applies = match live {
            LiveLimit::Set(limit) => Some(limit),
            LiveLimit::Unset => self.configured(),
            LiveLimit::Unknown => None,
        };
        applies.filter(|limit| self.limit() != Some(*limit))
    }

    /// The limit and its time, if they are known.
    pub(super) fn at(&self) -> Option<(u64, UnixMs)> {
        (self.applied > UnixMs(0)).then_some((self.limit, self.applied))
    }

    pub(super) fn limit(&self) -> Option<u64> {
        self.at().map(|(limit, _)| limit)
    }
}

/// How much a key is used, and by how many nodes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Weight {
    /// Whether it is past half its limit.
    pub(super) is_hot: bool,
    /// The used share of its limit in thousandths.
    pub(super) utilisation: u64,
    /// Nodes that follow it or have a component in one of its cells.
    pub(super) nodes: usize,
    /// Whether a node of this region uses it.
    pub(super) is_followed: bool,
    /// When a component last grew.
    pub(super) touched: UnixMs,
}

impl KeyState {
    /// The state of a new key.
    pub(super) fn new(parts: &KeyParts<'_>, lineage: Lineage) -> KeyState {
        let (cell_ms, resolution) = (parts.cell_ms(), parts.resolution.max(1));
        let sharing = Sharing { lineage, ..Sharing::default() };
        let (cells, followers, newest_limit) = (Vec::new(), SmallVec::new(), NewestLimit::default());
        let reserved = ReservedAmounts::default();
        KeyState { cell_ms, resolution, cells, followers, sharing, newest_limit, reserved }
    }

    /// Whether other regions receive its counts, once they are large enough.
    pub(super) fn is_shared_between_regions(&self) -> bool {
        self.duration_ms() >= SHORTEST_PUBLISHED_MS
    }

    pub(super) fn cell_ms(&self) -> u64 {
        self.cell_ms
    }

    /// The length of a window; a whole number of cells.
    fn duration_ms(&self) -> u64 {
        self.cell_ms.saturating_mul(self.resolution())
    }

    /// Cells per window; also how many cells before the current one a window touches.
    pub(super) fn resolution(&self) -> u64 {
        u64::from(self.resolution)
    }

    /// Most cells kept: as many as a plausible sequence can name.
    fn max_cells(&self) -> usize {
        let either_side = MAX_WINDOW_SKEW.saturating_mul(self.resolution());
        usize::try_from(either_side.saturating_mul(2).saturating_add(1)).unwrap_or(usize::MAX)
    }

    /// The oldest cell that a window at `now` touches.
    pub(super) fn oldest(&self, now: UnixMs) -> u64 {
        Position::at(now, self.cell_ms()).sequence.saturating_sub(self.resolution())
    }

    /// The sequences before `sequence` whose cells are touched by a window that ends in it, newest first.
    pub(super) fn before(&self, sequence: u64) -> impl Iterator<Item = u64> + use<> {
        (sequence.saturating_sub(self.resolution())..sequence).rev()
    }

    /// When no window touches cell `sequence` any more.
    pub(super) fn expires(&self, sequence: u64) -> UnixMs {
        let end = sequence.saturating_add(1).saturating_mul(self.cell_ms());
        UnixMs(end.saturating_add(self.duration_ms()))
    }

    pub(super) fn cells(&self) -> &[CellState] {
        &self.cells
    }

    /// The second from which no window touches cell `sequence`, or the current cell if that is newer.
    pub(super) fn expires_s(&self, sequence: u64, now: UnixMs) -> u64 {
        let sequence = sequence.max(Position::at(now, self.cell_ms()).sequence);
        self.expires(sequence).0.div_ceil(1_000)
    }

    /// Drops ended cells. Returns the newest sequence that is left, and how many of the dropped cells had been counted.
    pub(super) fn drop_old(&mut self, now: UnixMs) -> (Option<u64>, usize) {
        let oldest = self.oldest(now);
        let mut forgotten = 0;
        self.cells.retain(|cell| {
            let stays = cell.sequence >= oldest;
            forgotten += usize::from(!stays && cell.queued.counted);
            stays
        });
        self.followers.retain(|(_, touched)| *touched >= oldest);
        let touched = self.followers.iter().map(|(_, touched)| *touched).max();
        (self.cells.last().map(|cell| cell.sequence).max(touched), forgotten)
    }

    /// The criteria for evicting the key. `None` while any of its cells waits to be sent, or shows more use than its
    /// nodes' components: no node would send that again.
    pub(super) fn weight(&self) -> Option<Weight> {
        let nodes = self.followers.len();
        let mut weight = Weight { nodes, is_followed: self.is_followed(), ..Weight::default() };
        for cell in &self.cells {
            if cell.must_stay() {
                return None;
            }
            weight.nodes = weight.nodes.max(cell.components.len());
            let touched = cell.components.iter().map(|component| component.updated).max();
            weight.touched = weight.touched.max(touched.unwrap_or_default());
            if cell.total() > 0 {
                let load = self.load(cell.sequence);
                weight.is_hot |= load.is_hot;
                weight.utilisation = weight.utilisation.max(load.utilisation);
            }
        }
        Some(weight)
    }

    /// Whether a node of this region uses it.
    pub(super) fn is_followed(&self) -> bool {
        !self.followers.is_empty()
    }

    /// Cells that are included in the region's number of stored cells.
    pub(super) fn counted(&self) -> usize {
        self.cells.iter().filter(|cell| cell.queued.counted).count()
    }

    /// Returns true if `node` is a follower from now on; false if it was one before, or if there is no room for
    /// another.
    pub(super) fn follow(&mut self, node: NodeId, sequence: u64) -> bool {
        match self.follower(node) {
            Ok(found) => {
                if let Some((_, touched)) = self.followers.get_mut(found) {
                    *touched = sequence.max(*touched);
                }
                false
            }
            Err(_) if self.followers.len() >= MAX_NODES_A_KEY => false,
            Err(place) => {
                self.followers.insert(place, (node, sequence));
                true
            }
        }
    }

    pub(super) fn follows(&self, node: NodeId) -> bool {
        self.follower(node).is_ok()
    }

    pub(super) fn has_no_follower(&self) -> bool {
        self.followers.is_empty()
    }

    pub(super) fn followers(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.followers.iter().map(|(follower, _)| *follower)
    }

    pub(super) fn has_others(&self, node: NodeId) -> bool {
        self.cells
            .iter()
            .any(|cell| cell.global_others > 0 || cell.components.iter().any(|other| other.node != node))
    }

    /// Whether several nodes have used the cells that a window which ends in `sequence` touches.
    pub(super) fn has_several_users(&self, sequence: u64) -> bool {
        let mut users = self.touching(sequence).flat_map(|cell| &cell.components).map(|user| user.node);
        users.next().is_some_and(|first| users.any(|user| user != first))
    }

    /// What nodes other than `node` have used in the cells that a window which ends in `sequence` touches.
    pub(super) fn of_others(&self, sequence: u64, node: NodeId) -> u64 {
        let others = self.touching(sequence).map(|cell| cell.of_others(cell.component(node)));
        others.fold(0, u64::saturating_add)
    }

    /// Past half the limit in any live cell, by what is pushed of it; if windows have several cells, in any window. A lower bound is not
    /// pushed: a node that never used the key would take the components alone for all there is, and would not query it.
    pub(super) fn is_pushed_to_all(&self) -> bool {
        self.cells.iter().any(|cell| match self.resolution() {
            1 => cell.pushed_usage().is_hot(),
            _ => self.window(cell.sequence, CellState::pushed_usage).is_some_and(|window| window.is_hot()),
        })
    }

    /// What is used of the limit that cell `sequence` counts against: in the cell itself, or, if windows have several
    /// cells, in the windows that touch it. A tenth of a window rarely holds half of a limit.
    pub(super) fn load(&self, sequence: u64) -> Load {
        if self.resolution() == 1 {
            return self.cell(sequence).map(|cell| cell.usage().load()).unwrap_or_default();
        }
        let ends = sequence..=sequence.saturating_add(self.resolution());
        let ends = self.cells.iter().map(|cell| cell.sequence).filter(|end| ends.contains(end));
        let windows = ends.filter_map(|end| self.window(end, CellState::usage));
        windows.map(|window| window.load()).fold(Load::default(), Load::or)
    }

    /// What decides whether the key is published at `now`.
    pub(super) fn standing(&self, now: UnixMs) -> Standing {
        let at = Position::at(now, self.cell_ms());
        let oldest = self.oldest(now);
        let averages = self.resolution() == 1;
        let limit = self.newest_limit.limit().unwrap_or(u64::MAX);
        let mut standing = Standing { limit, lowest_limit: u64::MAX, is_first: true, ..Standing::default() };
        // Newest first.
        for cell in self.cells().iter().rev().take_while(|cell| cell.sequence >= oldest) {
            let counts = |count: u64| match averages && cell.sequence < at.sequence {
                true => weighted_up(count, at.until_next_ms(), at.cell_ms),
                false => count,
            };
            let add = |to: &mut u64, count: u64| *to = to.saturating_add(counts(count));
            add(&mut standing.known, cell.total());
            add(&mut standing.own, cell.to_publish());
            add(&mut standing.unpublished, cell.to_publish().saturating_sub(cell.published));
            if standing.limit == u64::MAX {
                standing.limit = cell.limit;
            }
            standing.lowest_limit = standing.lowest_limit.min(cell.limit).min(cell.others_limit);
            standing.is_first &= cell.published == 0;
            standing.limit_fell |= cell.published > 0 && cell.limit < cell.published_limit;
        }
        standing.users = self.other_users(now).len().saturating_add(1);
        standing
    }

    /// The use in all cells of the window that ends with cell `end`.
    fn window(&self, end: u64, usage: impl Fn(&CellState) -> Usage) -> Option<Usage> {
        self.touching(end).map(usage).reduce(|all, cell| all.and(&cell))
    }

    /// The cells that a window which ends in `sequence` touches.
    pub(super) fn touching(&self, sequence: u64) -> impl Iterator<Item = &CellState> {
        let touched = sequence.saturating_sub(self.resolution())..=sequence;
        self.cells.iter().filter(move |cell| touched.contains(&cell.sequence))
    }

    /// The other regions that have used a cell which the window at `now` touches.
    pub(super) fn other_users(&self, now: UnixMs) -> RegionSet {
        let oldest = self.oldest(now);
        let mut users = RegionSet::default();
        let touched = self.cells.iter().filter(|cell| cell.sequence >= oldest);
        touched.flat_map(|cell| &cell.others).for_each(|other| users.insert(other.region));
        users
    }

    /// Merges by maximum. Returns true if the component grew.
    pub(super) fn raise(
        &mut self,
        sequence: u64,
        (peer, node): (Peer, NodeId),
        own: u64,
        now: UnixMs,
    ) -> Result<bool, Refused> {
        if own == 0 {
            return Ok(false);
        }
        self.cell_mut(sequence)?.raise_of(peer, node, own, now)
    }

    /// Lowers the cell's limit. Returns true if that alone makes the cell hot, so that all subscribers must receive it
    /// though it has not grown.
    pub(super) fn note_limit(&mut self, sequence: u64, limit: u64) -> bool {
        if self.cell_mut(sequence).map_or(true, |cell| cell.limit <= limit) {
            return false;
        }
        let was_hot = self.load(sequence).is_hot;
        if let Some(cell) = self.known_mut(sequence) {
            cell.limit = limit;
        }
        !was_hot && self.load(sequence).is_hot
    }

    /// Use in `sequence` and the cells before, with `node`'s component at least `own`.
    pub(super) fn used_with(&self, sequence: u64, node: NodeId, own: u64) -> Used {
        let current = self.cell(sequence).map_or(own, |cell| {
            let component = cell.component(node);
            cell.total().saturating_sub(component).saturating_add(component.max(own))
        });
        let total = |sequence: u64| self.cell(sequence).map_or(0, CellState::total);
        let resolution = u16::try_from(self.resolution()).unwrap_or(u16::MAX);
        Used::of(resolution, core::iter::once(current).chain(self.before(sequence).map(total)))
    }

    /// The cell as it is sent to `node`; the caller fills in the key. It contains the sum of the others' components,
    /// not the lower bound: that may include some of the node's own use, and only the node has that count.
    pub(super) fn snapshot(&self, sequence: u64, node: NodeId) -> wire::Snapshot {
        let Some(cell) = self.cell(sequence) else {
            return wire::Snapshot { sequence, ..Default::default() };
        };
        let own = cell.component(node);
        wire::Snapshot {
            key: Vec::new(),
            sequence,
            own,
            region_others: cell.of_others(own),
            global_others: cell.global_others,
        }
    }

    /// The same for a node that has just sent its whole use of the cell, so that the rest of the lower bound is the
    /// others'.
    pub(super) fn snapshot_in_full(&self, sequence: u64, node: NodeId) -> wire::Snapshot {
        let mut snapshot = self.snapshot(sequence, node);
        let total = self.cell(sequence).map_or(0, CellState::regional_total);
        snapshot.region_others =
            snapshot.region_others.max(total.min(MAX_COUNT).saturating_sub(snapshot.own));
        snapshot
    }

    /// The cells that a window at `now` touches, and any newer one.
    pub(super) fn snapshots<'a>(
        &'a self,
        key: &'a Key,
        node: NodeId,
        now: UnixMs,
    ) -> impl Iterator<Item = wire::Snapshot> + 'a {
        self.shown(now).map(move |cell| wire::Snapshot {
            key: key.as_bytes().to_vec(),
            ..self.snapshot(cell.sequence, node)
        })
    }

    /// How many snapshots [`KeyState::snapshots`] returns.
    pub(super) fn snapshots_len(&self, now: UnixMs) -> usize {
        self.shown(now).count()
    }

    fn shown(&self, now: UnixMs) -> impl Iterator<Item = &CellState> {
        let oldest = self.oldest(now);
        let most = usize::try_from(self.resolution()).unwrap_or(usize::MAX).saturating_add(1);
        self.cells.iter().filter(move |cell| cell.sequence >= oldest).take(most)
    }

    /// The position of `node` among the followers, or where to insert it.
    fn follower(&self, node: NodeId) -> Result<usize, usize> {
        self.followers.binary_search_by_key(&node, |(follower, _)| *follower)
    }

    pub(super) fn cell(&self, sequence: u64) -> Option<&CellState> {
        self.cells.iter().find(|cell| cell.sequence == sequence)
    }

    /// Records that the global store may hold nothing of the key.
    pub(super) fn forget_published(&mut self) {
        self.cells.iter_mut().for_each(CellState::note_unpublished);
    }

    /// The cell, if it exists.
    pub(super) fn known_mut(&mut self, sequence: u64) -> Option<&mut CellState> {
        self.cells.iter_mut().find(|cell| cell.sequence == sequence)
    }

    /// The cell, created if it does not exist. Refused only if newer cells fill all the room.
    pub(super) fn cell_mut(&mut self, sequence: u64) -> Result<&mut CellState, Refused> {
        let place = match self.cells.binary_search_by_key(&sequence, |cell| cell.sequence) {
            Ok(found) => return self.cells.get_mut(found).ok_or(Refused::Full),
            Err(place) => place,
        };
        let mut displaced = false;
        let place = match (self.cells.len() >= self.max_cells(), place.checked_sub(1)) {
            (false, _) => place,
            (true, None) => return Err(Refused::Full),
            (true, Some(before)) => {
                displaced = self.cells.remove(0).queued.counted;
                before
            }
        };
        // Most keys have two cells most of the time; the default growth would reserve room for four.
        self.cells.reserve_exact(1);
        let mut cell = CellState::new(sequence);
        // The new cell inherits the mark of the one it displaces, so that the number of counted cells stays correct.
        cell.queued.counted = displaced;
        self.cells.insert(place, cell);
        self.cells.get_mut(place).ok_or(Refused::Full)
    }
}
