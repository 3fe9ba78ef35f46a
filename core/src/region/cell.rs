//! One cell: what each origin has used in it, and how much of that the stores behind the region are known to hold.
//!
//! Leaves to others: which cells a key has (`cells`), when stores are told (`work`).

use super::Refused;
use super::exchange::{BASELINE, Part};
use crate::model::key::OriginId;
use crate::model::time::UnixMs;
use crate::model::window::MAX_COUNT;
use smallvec::SmallVec;

/// Most components of a cell, and most followers of a key. A region's Envoys are fewer at any moment; but one that
/// starts again is a new origin, and what it has spent before counts on until its cell is over.
pub(super) const MAX_ORIGINS_A_KEY: usize = 4_096;
/// The regional store has never been told of a component.
const NEVER: u64 = u64::MAX;

/// What one origin has used in one cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Component {
    /// Who owns it; [`BASELINE`] where nobody knows any more.
    pub origin: OriginId,
    /// How much; never falls.
    pub own: u64,
    /// When it last grew.
    pub updated: UnixMs,
    /// What the regional store holds of it, or [`NEVER`]; means something in the life that the cell names.
    stored: u64,
    /// Its process has said what it has spent in all since the floor was last raised: by what it grows from then on,
    /// the region has used more than the floor says.
    above_lower_bound: bool,
}

/// The components of a cell; most cells have one writer, whose component needs no memory of its own.
pub type Components = SmallVec<[Component; 1]>;

/// One cell of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellState {
    /// Which cell.
    pub sequence: u64,
    /// Ordered by origin.
    pub components: Components,
    /// Sum of the other regions; never falls.
    pub global_others: u64,
    /// When that last grew.
    pub global_updated: UnixMs,
    /// Lowest limit that anybody applied to this cell; `u64::MAX` if unknown.
    pub limit: u64,
    /// Sum of the components, kept as they grow.
    sum: u64,
    /// The region is known to have used as much, whatever the components say: evidence after a loss.
    lower_bound: u64,
    /// What the global store is known to hold.
    pub(super) published: u64,
    /// The life of the regional store to which the marks on components belong.
    incarnation: u32,
    /// The life in which the store has said all that it holds of this cell.
    heard_in: u32,
    /// The life in which the hot index names this cell.
    pub(super) hot_in: u32,
    pub(super) queued: Queued,
}

/// The queues in which a cell stands, each at most once; and whether it has been counted, and whether the regional store
/// is to be asked of it even if nothing is new.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Queued {
    pub(super) replay: bool,
    pub(super) share: bool,
    pub(super) hot: bool,
    pub(super) publish: bool,
    pub(super) lower_bound: bool,
    pub(super) counted: bool,
    pub(super) query: bool,
}

/// What is used of a limit, added up over one cell or over the cells of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Usage {
    /// Sum of the region's components.
    sum: u64,
    /// Sum over region and globe.
    total: u64,
    /// Another region spoke of it.
    global_others: bool,
    /// Lowest limit that anybody applied; `u64::MAX` if unknown.
    limit: u64,
}

/// Who is to hear of a cell for what is used of its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    /// Past half its limit, or another region is: everybody in the region.
    pub(super) is_hot: bool,
    /// It has reached half its limit, or another region spoke of it: the other regions.
    pub(super) is_global: bool,
    /// Its share of the limit in thousandths, to tell the most used from others.
    pub(super) utilisation: u64,
}

impl Usage {
    /// Both together.
    pub(super) fn and(&self, other: &Usage) -> Usage {
        Usage {
            sum: self.sum.saturating_add(other.sum),
            total: self.total.saturating_add(other.total),
            global_others: self.global_others || other.global_others,
            limit: self.limit.min(other.limit),
        }
    }

    pub(super) fn is_hot(&self) -> bool {
        self.global_others || self.total > self.limit / 2
    }

    pub(super) fn load(&self) -> Load {
        let reached = self.limit != u64::MAX && self.sum >= self.limit.div_ceil(2);
        Load {
            is_hot: self.is_hot(),
            is_global: reached || self.global_others,
            utilisation: self.total.saturating_mul(1_000).checked_div(self.limit).unwrap_or(u64::MAX),
        }
    }
}

impl Load {
    /// That of a cell which belongs to both.
    pub(super) fn or(self, other: Load) -> Load {
        Load {
            is_hot: self.is_hot || other.is_hot,
            is_global: self.is_global || other.is_global,
            utilisation: self.utilisation.max(other.utilisation),
        }
    }
}

impl CellState {
    pub(super) fn new(sequence: u64) -> CellState {
        CellState {
            sequence,
            components: SmallVec::new(),
            global_others: 0,
            global_updated: UnixMs(0),
            limit: u64::MAX,
            sum: 0,
            lower_bound: 0,
            published: 0,
            incarnation: 0,
            heard_in: 0,
            hot_in: 0,
            queued: Queued::default(),
        }
    }

    /// What the region has used: the sum of its components, or what it is known to have used if that is more.
    pub fn regional_total(&self) -> u64 {
        self.sum.max(self.lower_bound)
    }

    /// Sum over region and globe.
    pub fn total(&self) -> u64 {
        self.regional_total().saturating_add(self.global_others)
    }

    /// Sum of the components alone: what the region says of itself to others, at most the highest count.
    pub(super) fn sum(&self) -> u64 {
        self.sum.min(MAX_COUNT)
    }

    /// What all components but one of `own` add up to.
    pub(super) fn of_others(&self, own: u64) -> u64 {
        self.sum.saturating_sub(own).min(MAX_COUNT)
    }

    /// What it holds itself.
    pub(super) fn usage(&self) -> Usage {
        let (sum, total, limit) = (self.sum, self.total(), self.limit);
        Usage { sum, total, global_others: self.global_others > 0, limit }
    }

    /// It has grown since the other regions heard of it.
    pub(super) fn is_unpublished(&self) -> bool {
        self.sum() > self.published
    }

    pub(super) fn component(&self, origin: OriginId) -> u64 {
        self.find(origin).ok().and_then(|found| self.components.get(found)).map_or(0, |found| found.own)
    }

    pub(super) fn has_baseline(&self) -> bool {
        self.find(BASELINE).is_ok()
    }

    /// True if the component grew; refused if there is no room for another one. A count of 0 makes a component that
    /// says that its origin follows the cell.
    pub(super) fn raise(&mut self, origin: OriginId, own: u64, now: UnixMs) -> Result<bool, Refused> {
        let shortage = self.shortage();
        let before = match self.find(origin) {
            Ok(found) => match self.components.get_mut(found) {
                Some(component) if component.own < own => {
                    component.updated = now;
                    if component.above_lower_bound && shortage > 0 {
                        self.lower_bound =
                            self.lower_bound.saturating_add(own - component.own).min(MAX_COUNT);
                    }
                    core::mem::replace(&mut component.own, own)
                }
                _ => return Ok(false),
            },
            Err(_) if self.components.len() >= MAX_ORIGINS_A_KEY => return Err(Refused::Full),
            Err(place) => {
                let new = Component { origin, own, updated: now, stored: NEVER, above_lower_bound: false };
                self.components.insert(place, new);
                0
            }
        };
        self.sum = self.sum.saturating_add(own - before);
        Ok(own > before)
    }

    pub(super) fn raise_global(&mut self, sum: u64, now: UnixMs) -> bool {
        let grew = self.global_others < sum;
        if grew {
            (self.global_others, self.global_updated) = (sum, now);
        }
        grew
    }

    /// The region has used `total` at the least. True if that is more than its components say.
    pub(super) fn raise_lower_bound(&mut self, total: u64) -> bool {
        let total = total.min(MAX_COUNT);
        if self.lower_bound < total {
            self.lower_bound = total;
            // The new floor may hold what components have grown by.
            self.components.iter_mut().for_each(|component| component.above_lower_bound = false);
        }
        self.lower_bound > self.sum
    }

    /// The component of `origin` is all that it has spent so far. While the floor is above what components say, what
    /// is spent from now on comes on top of it; else it would hide in there until the baseline is made, and then for good.
    pub(super) fn has_said_all(&mut self, origin: OriginId, now: UnixMs) {
        // Without room for it, it is refused elsewhere.
        if self.shortage() > 0
            && self.raise(origin, 0, now).is_ok()
            && let Some(component) = self.find(origin).ok().and_then(|at| self.components.get_mut(at))
        {
            component.above_lower_bound = true;
        }
    }

    /// Whether something is known of it that no origin would repeat, or that the region's other parts are still to be told.
    pub(super) fn must_stay(&self) -> bool {
        let Queued { replay, share, hot, lower_bound, query, .. } = self.queued;
        replay || share || hot || lower_bound || query || self.shortage() > 0 || self.has_baseline()
    }

    /// What is known to have been used and stands in no component.
    pub(super) fn shortage(&self) -> u64 {
        self.lower_bound.saturating_sub(self.sum)
    }

    /// What the region should have used at the least, where that is more than its components say.
    pub(super) fn missing_lower_bound(&self) -> Option<u64> {
        (self.shortage() > 0 && !self.has_baseline()).then_some(self.lower_bound)
    }

    /// Components that the store is not known to hold in this `incarnation`.
    pub(super) fn unstored(&self, incarnation: u32) -> impl Iterator<Item = &Component> {
        let known = self.incarnation == incarnation;
        self.components
            .iter()
            .filter(move |component| !known || component.stored == NEVER || component.stored < component.own)
    }

    /// How much more the components say than the store is known to hold in this `incarnation`.
    pub(super) fn on_its_way(&self, incarnation: u32) -> u64 {
        let stored = self.stored(incarnation).fold(0, |sum: u64, (_, own)| sum.saturating_add(own));
        self.sum.saturating_sub(stored)
    }

    /// What the store is known to hold in this `incarnation`.
    pub(super) fn stored(&self, incarnation: u32) -> impl Iterator<Item = Part> + '_ {
        let known = self.incarnation == incarnation;
        let held = self.components.iter().filter(move |component| known && component.stored != NEVER);
        held.map(|component| (component.origin, component.stored))
    }

    /// Whether the store has said in this `incarnation` all that it holds of this cell, and nobody has asked anew since. What
    /// other aggregators tell of it is only a part.
    pub(super) fn is_known_to(&self, incarnation: u32) -> bool {
        self.heard_in == incarnation
    }

    /// The store is to say anew what it holds: `origin` has forgotten its own count, which may have come to the store
    /// through another aggregator.
    pub(super) fn query_anew(&mut self) {
        self.heard_in = 0;
        self.queued.query = true;
    }

    /// The store has said all that it holds of the cell in this `incarnation`: what is more is taken, what is less is to be
    /// told again. Without a life it has said what it once held, which it may have lost since. True if the cell grew.
    pub(super) fn learn_all(&mut self, parts: &[Part], incarnation: Option<u32>, now: UnixMs) -> bool {
        let Some(incarnation) = incarnation else { return self.raise_all(parts, now) };
        (self.incarnation, self.heard_in) = (incarnation, incarnation);
        for component in &mut self.components {
            component.stored = NEVER;
        }
        self.learn(parts, incarnation, now)
    }

    /// The store is said to hold this much. True if the cell grew.
    pub(super) fn learn(&mut self, parts: &[Part], incarnation: u32, now: UnixMs) -> bool {
        if self.incarnation != incarnation {
            self.incarnation = incarnation;
            self.components.iter_mut().for_each(|component| component.stored = NEVER);
        }
        let grew = self.raise_all(parts, now);
        for (origin, own) in parts.iter().filter(|(_, own)| *own <= MAX_COUNT) {
            if let Some(component) = self.find(*origin).ok().and_then(|at| self.components.get_mut(at)) {
                let known = if component.stored == NEVER { 0 } else { component.stored };
                component.stored = known.max(*own);
            }
        }
        grew
    }

    fn raise_all(&mut self, parts: &[Part], now: UnixMs) -> bool {
        let mut grew = false;
        for (origin, own) in parts.iter().filter(|(_, own)| *own <= MAX_COUNT) {
            // Without room for it the component stays in the store alone.
            grew |= self.raise(*origin, *own, now).unwrap_or(false);
        }
        grew
    }

    fn find(&self, origin: OriginId) -> Result<usize, usize> {
        self.components.binary_search_by_key(&origin, |component| component.origin)
    }
}
