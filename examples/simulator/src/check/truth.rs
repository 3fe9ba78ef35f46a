//! The true use of each cell that a window may still touch.

use crate::plan::keys::Shape;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use weir_core::model::key::NodeId;
use weir_core::model::window::Used;

/// Cells are kept for this many windows after they are over, because late messages may concern them.
const KEPT_WINDOWS: u64 = 3;
/// Least time for which cells are kept, in milliseconds: calls that wait for a frozen store arrive late.
const KEPT_MS: u64 = 30_000;

/// A cell of an identifier under a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CellId {
    /// The rule's number in the plan.
    pub rule: usize,
    /// The cell's number.
    pub sequence: u64,
    /// The identifier.
    pub identifier: u64,
}

/// The true use of a cell.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    /// One share for each node that used or queried the cell.
    pub shares: SmallVec<[Share; 2]>,
    /// When it was first used.
    pub first_used_us: u64,
    /// When it last changed.
    pub changed_us: u64,
    /// The Envoy that was last found without the current use, by its number in the world.
    pub lags: usize,
    /// A check for rest is scheduled.
    pub watched: bool,
}

/// The use of a cell by one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// The node's number, in the order of their beginnings.
    pub node: u32,
    /// Cost that it admitted.
    pub admitted: u64,
    /// The part of it that was decided at the border of cells and may be in a neighbouring cell.
    pub border: u64,
    /// Cost that was admitted at the border, is recorded in a neighbouring cell, and may be in this one.
    pub neighbour: u64,
    /// By how much the costs that answers stated exceeded what was reserved for them.
    pub exceeded: u64,
    /// Cost that workers had reserved when they ended or froze, and that may count as spent.
    pub reserved: u64,
    /// The largest component that the region granted it.
    pub granted: u64,
    /// The largest component that it proposed to the region.
    pub proposed: u64,
    /// What its table holds as spent; if the table has evicted the cell, the most that it held.
    pub own: u64,
    /// What its region held of it when the process ended.
    pub at_end: u64,
    /// What its table held of others' use: in its region, and in other regions.
    pub others: (u64, u64),
    /// The table has evicted the cell and does not have its baseline.
    pub evicted: bool,
    /// Its region has refused to store it at some time.
    pub refused: bool,
}

/// A node: one lifetime of a table.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    /// Its id.
    pub id: NodeId,
    /// The Envoy's number in the world.
    pub envoy: usize,
    /// Its region.
    pub region: usize,
    /// The process is running.
    pub running: bool,
    /// Entries were evicted from its table or went to an overflow cell, so its own components may be incomplete.
    pub incomplete: bool,
}

/// All cells and nodes.
#[derive(Debug)]
pub struct Truth {
    cells: Vec<BTreeMap<(u64, u64), Cell>>,
    cell_ms: Vec<u64>,
    /// For each rule: the number of cells in its window.
    resolutions: Vec<u16>,
    /// For each rule: the oldest cell that is kept.
    oldest: Vec<u64>,
    /// For each rule, cell and node: what the node's overflow cell holds as spent, for all identifiers.
    overflows: BTreeMap<(usize, u64, u32), u64>,
    /// The same with what it reserves, and with what the node's region granted it.
    diverted: BTreeMap<(usize, u64, u32), u64>,
    nodes: Vec<Node>,
    numbers: BTreeMap<NodeId, u32>,
    envoys: usize,
    /// For each region: when it lost data that only its aggregators held.
    pub lost_us: Vec<Option<u64>>,
    /// The most that a clock of the plan may be behind.
    pub behind_ms: u64,
    /// Regions with an aggregator that has held its maximum of keys. Use for which the aggregator had no room stays
    /// with the Envoys that spent it.
    pub crowded: Vec<bool>,
}

impl Share {
    /// The most that any part may hold of it.
    pub fn most(&self) -> u64 {
        (self.admitted + self.neighbour + self.reserved).max(self.own).max(self.proposed)
    }

    /// What every part must receive soon, including what is leased and not yet returned.
    pub fn expected(&self) -> u64 {
        self.admitted.max(self.at_rest())
    }

    /// What every part must hold when the cell is at rest.
    pub fn at_rest(&self) -> u64 {
        self.own.max(self.granted)
    }

    /// What the region's parts must hold of it at rest: of an ended process what had reached its region. No process reports a
    /// grant that its region lost (`inexact`) and that was not spent.
    pub fn at_rest_in_region(&self, node: &Node, inexact: bool) -> u64 {
        match node.running {
            true if inexact => self.own,
            true => self.at_rest(),
            false => self.at_end,
        }
    }
}

impl Truth {
    /// Empty.
    pub fn new(shapes: &[Shape], regions: usize, envoys: usize) -> Truth {
        Truth {
            cells: shapes.iter().map(|_| BTreeMap::new()).collect(),
            cell_ms: shapes.iter().map(|shape| shape.cell_ms).collect(),
            resolutions: shapes.iter().map(|shape| shape.rule.resolution()).collect(),
            oldest: vec![0; shapes.len()],
            overflows: BTreeMap::new(),
            diverted: BTreeMap::new(),
            nodes: Vec::new(),
            numbers: BTreeMap::new(),
            envoys: envoys.max(1),
            lost_us: vec![None; regions],
            behind_ms: 0,
            crowded: vec![false; regions],
        }
    }

    pub fn begins(&mut self, id: NodeId, envoy: usize) {
        self.numbers.insert(id, self.nodes.len() as u32);
        let region = envoy / self.envoys;
        self.nodes.push(Node { id, envoy, region, running: true, incomplete: false });
    }

    pub fn ends(&mut self, id: NodeId) {
        if let Some(node) = self.node_mut(id) {
            node.running = false;
        }
    }

    /// How many nodes run.
    pub fn running(&self) -> u64 {
        self.nodes.iter().filter(|node| node.running).count() as u64
    }

    pub fn number(&self, id: NodeId) -> Option<u32> {
        self.numbers.get(&id).copied()
    }

    pub fn node(&self, number: u32) -> Option<&Node> {
        self.nodes.get(number as usize)
    }

    pub fn node_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        let number = self.number(id)?;
        self.nodes.get_mut(number as usize)
    }

    /// The node's own components may be incomplete from now on.
    pub fn mark_incomplete(&mut self, number: u32) {
        if let Some(node) = self.nodes.get_mut(number as usize) {
            node.incomplete = true;
        }
    }

    /// A node's overflow cell holds `own` as spent.
    pub fn overflows(&mut self, rule: usize, sequence: u64, node: u32, own: u64) {
        let held = self.overflows.entry((rule, sequence, node)).or_default();
        *held = own.max(*held);
    }

    /// What a node's overflow cell holds as spent for the rule of cell `id`.
    pub fn overflow_of(&self, id: CellId, node: u32) -> u64 {
        self.overflows.get(&(id.rule, id.sequence, node)).copied().unwrap_or(0)
    }

    /// A node's overflow cell holds `held` as spent or reserved, or was granted as much.
    pub fn diverts(&mut self, rule: usize, sequence: u64, node: u32, held: u64) {
        let most = self.diverted.entry((rule, sequence, node)).or_default();
        *most = held.max(*most);
    }

    /// The most that the overflow cells of nodes held for the rule of cell `id`; of all nodes, or of one.
    pub fn diverted(&self, id: CellId, node: Option<u32>) -> u64 {
        let (first, last) = node.map_or((0, u32::MAX), |node| (node, node));
        let of_cell = (id.rule, id.sequence, first)..=(id.rule, id.sequence, last);
        self.diverted.range(of_cell).map(|(_, held)| held).sum()
    }

    /// Whether a node's overflow cell accounts for `missing` of cell `id`. The amount is subtracted, so that in
    /// total the overflow cell accounts for no more than it holds.
    pub fn accounts_for(&mut self, id: CellId, node: u32, missing: u64) -> bool {
        let remaining = self.overflows.get_mut(&(id.rule, id.sequence, node));
        missing == 0
            || remaining.is_some_and(|held| held.checked_sub(missing).map(|less| *held = less).is_some())
    }

    pub fn cell_ms(&self, rule: usize) -> u64 {
        self.cell_ms.get(rule).copied().unwrap_or(1)
    }

    pub fn window_ms(&self, rule: usize) -> u64 {
        self.cell_ms(rule) * u64::from(self.resolution(rule))
    }

    pub fn resolution(&self, rule: usize) -> u16 {
        self.resolutions.get(rule).copied().unwrap_or(1)
    }

    /// When the first of the cells of the window that ends in cell `id` was first used.
    pub fn first_used_us(&self, id: CellId) -> Option<u64> {
        self.cells_of_window(id).filter_map(|id| self.cell(id)).map(|cell| cell.first_used_us).min()
    }

    /// The cells of the window that ends in cell `id`, newest first.
    pub fn cells_of_window(&self, id: CellId) -> impl Iterator<Item = CellId> + use<> {
        let back = 0..=u64::from(self.resolution(id.rule));
        back.map_while(move |back| Some(CellId { sequence: id.sequence.checked_sub(back)?, ..id }))
    }

    /// The use of the cells of the window that ends in cell `id`; `of` gives the use of each.
    pub fn used(&self, id: CellId, of: impl Fn(CellId) -> u64) -> Used {
        Used::of(self.resolution(id.rule), self.cells_of_window(id).map(of))
    }

    /// The largest sum of `of` in any window that touches cell `id`; for a rule with one cell per window, the use of
    /// the cell itself.
    pub fn load(&self, id: CellId, of: impl Fn(CellId) -> u64) -> u64 {
        let resolution = u64::from(self.resolution(id.rule));
        if resolution == 1 {
            return of(id);
        }
        let first = id.sequence.saturating_sub(resolution);
        let counts: Vec<u64> =
            (first..=id.sequence + resolution).map(|sequence| of(CellId { sequence, ..id })).collect();
        counts.windows(resolution as usize + 1).map(|window| window.iter().sum()).max().unwrap_or(0)
    }

    pub fn cell(&self, id: CellId) -> Option<&Cell> {
        self.cells.get(id.rule)?.get(&(id.sequence, id.identifier))
    }

    pub fn cell_mut(&mut self, id: CellId) -> Option<&mut Cell> {
        self.cells.get_mut(id.rule)?.get_mut(&(id.sequence, id.identifier))
    }

    /// The share of a node, created if necessary; `None` if the cell is no longer kept.
    pub fn share(&mut self, id: CellId, node: u32, now_us: u64) -> Option<(&mut Cell, usize)> {
        if id.sequence < self.oldest.get(id.rule).copied()? {
            return None;
        }
        let cell = self.cells.get_mut(id.rule)?.entry((id.sequence, id.identifier));
        let cell =
            cell.or_insert_with(|| Cell { first_used_us: now_us, changed_us: now_us, ..Cell::default() });
        let at = match cell.shares.iter().position(|share| share.node == node) {
            Some(at) => at,
            None => {
                cell.shares.push(Share { node, ..Share::default() });
                cell.shares.len() - 1
            }
        };
        Some((cell, at))
    }

    /// The share of a node; empty if there is none.
    pub fn share_of(&self, id: CellId, node: u32) -> Share {
        let cell = self.cell(id);
        let share = cell.and_then(|cell| cell.shares.iter().find(|share| share.node == node));
        share.copied().unwrap_or(Share { node, ..Share::default() })
    }

    /// The sum of `what` over all shares whose node satisfies `of`.
    pub fn sum(&self, id: CellId, of: impl Fn(&Node) -> bool, what: impl Fn(&Share) -> u64) -> u64 {
        self.sum_of(id, |node, share| if of(node) { what(share) } else { 0 })
    }

    /// The least that a region must count of a cell at rest. If the region lost data, what only ended processes had reported may
    /// be lost.
    pub fn least_in_region(&self, id: CellId, region: usize) -> u64 {
        let inexact = self.cell(id).is_some_and(|cell| self.is_inexact(region, cell.first_used_us));
        self.sum_of(id, |node, share| match node.region == region && (node.running || !inexact) {
            true => share.at_rest_in_region(node, inexact),
            false => 0,
        })
    }

    fn sum_of(&self, id: CellId, what: impl Fn(&Node, &Share) -> u64) -> u64 {
        let shares = self.cell(id).into_iter().flat_map(|cell| &cell.shares);
        let counts = shares.filter_map(|share| self.node(share.node).map(|node| what(node, share)));
        counts.fold(0, u64::saturating_add)
    }

    /// Whether a region may lack use of its Envoys because an aggregator had no room for it.
    pub fn is_crowded(&self, region: usize) -> bool {
        self.crowded.get(region).copied().unwrap_or(false)
    }

    /// Whether a region may have lost use of a cell that was first used at `first_used_us`, and restored it as an
    /// inexact baseline.
    pub fn is_inexact(&self, region: usize, first_used_us: u64) -> bool {
        self.lost_us.get(region).copied().flatten().is_some_and(|lost_us| first_used_us <= lost_us)
    }

    /// All cells of a rule from cell number `sequence` on, in order.
    pub fn since(&self, rule: usize, sequence: u64) -> impl Iterator<Item = CellId> + '_ {
        let cells = self.cells.get(rule).into_iter().flat_map(move |cells| cells.range((sequence, 0)..));
        cells.map(move |((sequence, identifier), _)| CellId {
            rule,
            sequence: *sequence,
            identifier: *identifier,
        })
    }

    /// Removes the cells that no window touches any more.
    pub fn evict(&mut self, unix_ms: u64) {
        let rules = self.cells.iter_mut().zip(&self.cell_ms).zip(&self.resolutions).zip(&mut self.oldest);
        for (((cells, cell_ms), resolution), oldest) in rules {
            let kept = (KEPT_WINDOWS * u64::from(*resolution)).max(KEPT_MS / cell_ms);
            *oldest = (unix_ms.saturating_sub(self.behind_ms) / cell_ms).saturating_sub(kept);
            while cells.first_key_value().is_some_and(|((sequence, _), _)| sequence < oldest) {
                cells.pop_first();
            }
        }
        let oldest = &self.oldest;
        for held in [&mut self.overflows, &mut self.diverted] {
            held.retain(|(rule, sequence, _), _| oldest.get(*rule).is_some_and(|first| sequence >= first));
        }
    }
}
