//! What is known for certain of each cell that a window may still touch.
//!
//! Leaves to others: what must follow from it.

use crate::plan::keys::Shape;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use weir_core::model::key::OriginId;
use weir_core::model::window::Used;

/// Cells are kept this long after they are over, in lengths of themselves: late words about them may come.
const KEPT_WINDOWS: u64 = 3;
/// And for so long at the least: what waits for a store that is frozen comes late.
const KEPT_MS: u64 = 30_000;

/// One cell of one identifier under one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CellId {
    /// The rule, by its number in the plan.
    pub rule: usize,
    /// Which cell.
    pub sequence: u64,
    /// Whose.
    pub identifier: u64,
}

/// One cell.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    /// One for each origin that has to do with it.
    pub shares: SmallVec<[Share; 2]>,
    /// When it was first used.
    pub born_us: u64,
    /// When it last changed.
    pub changed_us: u64,
    /// Who was found not to know it last, by number in the world.
    pub lags: usize,
    /// Somebody looks already whether it has come to rest.
    pub watched: bool,
}

/// What one origin has to do with a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Which, in the order of their beginnings.
    pub origin: u32,
    /// Cost of what it let pass.
    pub admitted: u64,
    /// Of that, what may as well stand in the cell before or after: it was decided at the border.
    pub border: u64,
    /// Costs at the border that were given to a neighbour and may stand here.
    pub neighbour: u64,
    /// Reserved by workers that died or slept, so that it may count as spent.
    pub reserved: u64,
    /// The most that the region granted it.
    pub granted: u64,
    /// The most that it asked the region for.
    pub proposed: u64,
    /// What its table holds as spent; the most that it held if it was forgotten there.
    pub own: u64,
    /// What its region held of it when it ended.
    pub left: u64,
    /// What its table was seen to believe of its region's others and of other regions.
    pub heard: (u64, u64),
    /// The table has forgotten it and does not know its base.
    pub forgotten: bool,
    /// Its region has refused to store it at times.
    pub refused: bool,
}

/// One life of a table.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// Its id.
    pub id: OriginId,
    /// At which Envoy of the world.
    pub envoy: usize,
    /// Its region.
    pub region: usize,
    /// It lives.
    pub incarnations: bool,
    /// Entries have left its table, or went to an overflow cell: what it knows of itself is not all.
    pub forgets: bool,
}

/// All cells and origins.
#[derive(Debug)]
pub struct Truth {
    cells: Vec<BTreeMap<(u64, u64), Cell>>,
    cell_ms: Vec<u64>,
    /// Of each rule: into how many cells its window is cut.
    resolutions: Vec<u16>,
    /// Of each rule: cells before this are forgotten.
    oldest: Vec<u64>,
    /// Of each rule, cell and origin: what its overflow cell holds as spent, whoever's.
    overflows: BTreeMap<(usize, u64, u32), u64>,
    origins: Vec<Origin>,
    numbers: BTreeMap<OriginId, u32>,
    envoys: usize,
    /// When a region lost what only its aggregators knew, by region.
    pub lost_us: Vec<Option<u64>>,
    /// Of each region, until when the clocks of its aggregators differed; `u64::MAX` while they do.
    pub apart_us: Vec<Option<u64>>,
    /// The most that a clock of the plan may be behind.
    pub behind_ms: u64,
    /// Regions of which an aggregator has held as many keys as it may: what it had no room for stays with the Envoys that
    /// spent it.
    pub crowded: Vec<bool>,
}

impl Share {
    /// The most that anybody may believe of it.
    pub fn most(&self) -> u64 {
        (self.admitted + self.neighbour + self.reserved).max(self.own).max(self.proposed)
    }

    /// What everybody is to know soon: also what is only leased and not returned yet.
    pub fn believed(&self) -> u64 {
        self.admitted.max(self.known())
    }

    /// What everybody is to know when it has come to rest.
    pub fn known(&self) -> u64 {
        self.own.max(self.granted)
    }
}

impl Truth {
    /// Nothing is known yet.
    pub fn new(shapes: &[Shape], regions: usize, envoys: usize) -> Truth {
        Truth {
            cells: shapes.iter().map(|_| BTreeMap::new()).collect(),
            cell_ms: shapes.iter().map(|shape| shape.cell_ms).collect(),
            resolutions: shapes.iter().map(|shape| shape.rule.resolution()).collect(),
            oldest: vec![0; shapes.len()],
            overflows: BTreeMap::new(),
            origins: Vec::new(),
            numbers: BTreeMap::new(),
            envoys: envoys.max(1),
            lost_us: vec![None; regions],
            apart_us: vec![None; regions],
            behind_ms: 0,
            crowded: vec![false; regions],
        }
    }

    pub fn begins(&mut self, id: OriginId, envoy: usize) {
        self.numbers.insert(id, self.origins.len() as u32);
        let region = envoy / self.envoys;
        self.origins.push(Origin { id, envoy, region, incarnations: true, forgets: false });
    }

    pub fn ends(&mut self, id: OriginId) {
        if let Some(origin) = self.origin_mut(id) {
            origin.incarnations = false;
        }
    }

    pub fn number(&self, id: OriginId) -> Option<u32> {
        self.numbers.get(&id).copied()
    }

    pub fn origin(&self, number: u32) -> Option<&Origin> {
        self.origins.get(number as usize)
    }

    pub fn origin_mut(&mut self, id: OriginId) -> Option<&mut Origin> {
        let number = self.number(id)?;
        self.origins.get_mut(number as usize)
    }

    /// What it knows of itself is not all any more.
    pub fn forgets(&mut self, number: u32) {
        if let Some(origin) = self.origins.get_mut(number as usize) {
            origin.forgets = true;
        }
    }

    /// An origin's overflow cell holds `own` as spent.
    pub fn overflows(&mut self, rule: usize, sequence: u64, origin: u32, own: u64) {
        let known = self.overflows.entry((rule, sequence, origin)).or_default();
        *known = own.max(*known);
    }

    /// Whether an origin's overflow cell accounts for `missing` of cell `id`. What it did is taken from it, so that it
    /// accounts for no more than it holds.
    pub fn accounts_for(&mut self, id: CellId, origin: u32, missing: u64) -> bool {
        let left = self.overflows.get_mut(&(id.rule, id.sequence, origin));
        missing == 0 || left.is_some_and(|left| left.checked_sub(missing).map(|less| *left = less).is_some())
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
    pub fn born_us(&self, id: CellId) -> Option<u64> {
        let cells = (0..=u64::from(self.resolution(id.rule))).map_while(|back| id.sequence.checked_sub(back));
        cells.filter_map(|sequence| self.cell(CellId { sequence, ..id })).map(|cell| cell.born_us).min()
    }

    /// What was used in the cells of the window that ends in cell `id`, by what `of` says of each.
    pub fn used(&self, id: CellId, of: impl Fn(CellId) -> u64) -> Used {
        let resolution = self.resolution(id.rule);
        let cells = (0..=u64::from(resolution)).map_while(|back| id.sequence.checked_sub(back));
        Used::of(resolution, cells.map(|sequence| of(CellId { sequence, ..id })))
    }

    /// The most that `of` adds up to in any window that touches cell `id`; of usual windows, in the cell itself.
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

    /// The share of an origin, made if there is none; `None` where the cell has been forgotten.
    pub fn share(&mut self, id: CellId, origin: u32, now_us: u64) -> Option<(&mut Cell, usize)> {
        if id.sequence < self.oldest.get(id.rule).copied()? {
            return None;
        }
        let cell = self.cells.get_mut(id.rule)?.entry((id.sequence, id.identifier));
        let cell = cell.or_insert_with(|| Cell { born_us: now_us, changed_us: now_us, ..Cell::default() });
        let at = match cell.shares.iter().position(|share| share.origin == origin) {
            Some(at) => at,
            None => {
                cell.shares.push(Share { origin, ..Share::default() });
                cell.shares.len() - 1
            }
        };
        Some((cell, at))
    }

    /// The share of an origin, if there is one.
    pub fn share_of(&self, id: CellId, origin: u32) -> Share {
        let cell = self.cell(id);
        let share = cell.and_then(|cell| cell.shares.iter().find(|share| share.origin == origin));
        share.copied().unwrap_or(Share { origin, ..Share::default() })
    }

    /// Adds up something of all shares whose origin is `of`.
    pub fn sum(&self, id: CellId, of: impl Fn(&Origin) -> bool, what: impl Fn(&Share) -> u64) -> u64 {
        let shares = self.cell(id).into_iter().flat_map(|cell| &cell.shares);
        let counted = shares.filter(|share| self.origin(share.origin).is_some_and(&of));
        counted.fold(0, |sum: u64, share| sum.saturating_add(what(share)))
    }

    /// Whether a region may lack what its Envoys spent, as an aggregator had no room for it.
    pub fn is_crowded(&self, region: usize) -> bool {
        self.crowded.get(region).copied().unwrap_or(false)
    }

    /// Whether an aggregator of a region may have taken a cell that was first used at `born_us` for over while another did not.
    pub fn is_apart(&self, region: usize, born_us: u64) -> bool {
        self.apart_us.get(region).copied().flatten().is_some_and(|apart_us| born_us <= apart_us)
    }

    /// What a region may have lost and made up for by a base, which is not exact.
    pub fn is_made_up(&self, region: usize, born_us: u64) -> bool {
        self.lost_us.get(region).copied().flatten().is_some_and(|lost_us| born_us <= lost_us)
    }

    /// All cells of one sequence or a later one, in order.
    pub fn since(&self, rule: usize, sequence: u64) -> impl Iterator<Item = CellId> + '_ {
        let cells = self.cells.get(rule).into_iter().flat_map(move |cells| cells.range((sequence, 0)..));
        cells.map(move |((sequence, identifier), _)| CellId {
            rule,
            sequence: *sequence,
            identifier: *identifier,
        })
    }

    /// Forgets what no window touches any more.
    pub fn forget(&mut self, unix_ms: u64) {
        let rules = self.cells.iter_mut().zip(&self.cell_ms).zip(&self.resolutions).zip(&mut self.oldest);
        for (((cells, cell_ms), resolution), oldest) in rules {
            let kept = (KEPT_WINDOWS * u64::from(*resolution)).max(KEPT_MS / cell_ms);
            *oldest = (unix_ms.saturating_sub(self.behind_ms) / cell_ms).saturating_sub(kept);
            while cells.first_key_value().is_some_and(|((sequence, _), _)| sequence < oldest) {
                cells.pop_first();
            }
        }
        let oldest = &self.oldest;
        self.overflows
            .retain(|(rule, sequence, _), _| oldest.get(*rule).is_some_and(|first| sequence >= first));
    }
}
