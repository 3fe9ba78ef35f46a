//! When a cell has come to rest: who is to know it, and what.
//!
//! Leaves to others: reading tables and regions (`world`).

use super::truth::Share;
use super::{CellId, Check};
use weir_core::region::SHORTEST_PUBLISHED_MS;

/// What an Envoy is to know of a cell that has come to rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// What its region used.
    pub near: u64,
    /// What other regions did, as far as they speak of it.
    pub far: u64,
    /// Everybody in the region is to know it, not only those who use it.
    pub by_all: bool,
}

impl Check {
    /// What is to be known in a region.
    pub(crate) fn expected(
        &self,
        id: CellId,
        region: usize,
        limit: u64,
        window_ms: u64,
        of: impl Fn(&Share) -> u64,
    ) -> Expected {
        let near = self.truth.sum(id, |one| one.region == region, &of);
        let regions = self.truth.lost_us.len();
        let sums = (0..regions).map(|region| self.truth.sum(id, |one| one.region == region, &of));
        let spoken_of = regions > 1
            && window_ms >= SHORTEST_PUBLISHED_MS
            && sums.into_iter().any(|sum| sum >= limit.div_ceil(2));
        let far = if spoken_of { self.truth.sum(id, |one| one.region != region, &of) } else { 0 };
        Expected { near, far, by_all: far > 0 || near > limit / 2 }
    }
}
