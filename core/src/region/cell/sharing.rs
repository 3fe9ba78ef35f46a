//! When a region publishes a key.
//!
//! If the sum over R regions exceeds a limit, at least one region holds more than limit ÷ R (the pigeonhole principle). So a region
//! publishes a key once the effective use, its own and what it has imported, reaches limit ÷ (2 R); the half is a
//! margin for what all regions spend until they have received each other's counts. What stays below that in every region cannot exceed the
//! limit. From then on, use that is not published yet is bounded by a share of what is left, as in a region for each Envoy.
//!
//! The rule ends by itself: use that stays below the threshold in all regions together leaves nothing due, whichever of them published
//! first.

use crate::model::time::UnixMs;
use crate::region::shares::Lineage;

/// A key is published from the limit, divided by this and by the number of regions.
pub const THRESHOLD_MARGIN: u64 = 2;
/// Part of what is left that all regions together may use without publishing it.
const UNPUBLISHED_PART: u64 = 4;
/// Part of the limit that regions may always use without publishing it, together.
pub const TOLERANCE_PART: u64 = 50;
/// The same part for a region that is the key's only user.
pub const LONE_TOLERANCE_PART: u64 = 20;
/// Most regions by which a share is divided.
pub const MAX_SHARING_REGIONS: u64 = 64;
/// How long a key's number of users counts as the number of all regions, in milliseconds: after its first publication and after each new
/// region. Regions that begin at the same time have not received each other's counts yet.
pub const PROBATION_MS: u64 = 2_000;

/// When a key is published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Due {
    /// Not at all.
    #[default]
    No,
    /// At the next interval.
    AtInterval,
    /// At the next tick.
    AtTick,
    /// At once.
    Now,
    /// At once, and for the first time in its window.
    First,
}

/// What is stored with a key for its publication.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::region) struct Sharing {
    /// Where its namespace stands among those that share the room.
    pub(in crate::region) lineage: Lineage,
    /// The queue in which it waits.
    pub(in crate::region) due: Due,
    /// A filter has reported or queried it here. What other aggregators of the region have received, they publish at once, and this one
    /// at the next interval.
    pub(in crate::region) is_local: bool,
    /// The end of its probation.
    pub(in crate::region) probation: UnixMs,
}

/// What decides whether a key is due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::region) struct Standing {
    /// The effective use that is known here, of all regions. The share of the previous cell is rounded up.
    pub(in crate::region) known: u64,
    /// The effective use of this region.
    pub(in crate::region) own: u64,
    /// How much of that is not published.
    pub(in crate::region) unpublished: u64,
    /// The limit that this region has applied last; `u64::MAX` if none is known.
    pub(in crate::region) limit: u64,
    /// The lowest limit of this region and the others; `u64::MAX` if none is known.
    pub(in crate::region) lowest_limit: u64,
    /// Regions that have used the key, this one included.
    pub(in crate::region) users: u64,
    /// No cell that the window touches was published.
    pub(in crate::region) is_first: bool,
    /// A lower limit than the published one applies.
    pub(in crate::region) limit_fell: bool,
}

impl Standing {
    /// Whether the use may be part of an excess.
    pub(in crate::region) fn is_candidate(&self, regions: u64) -> bool {
        let times = u128::from(THRESHOLD_MARGIN.saturating_mul(regions.clamp(1, MAX_SHARING_REGIONS)));
        self.lowest_limit != u64::MAX
            && u128::from(self.known).saturating_mul(times) >= u128::from(self.lowest_limit)
    }

    /// How much use may stay unpublished.
    pub(in crate::region) fn allowance(&self, users: u64) -> u64 {
        let limit = if self.limit == u64::MAX { self.lowest_limit } else { self.limit };
        let left = limit.saturating_sub(self.known);
        let users = users.clamp(1, MAX_SHARING_REGIONS);
        let part = |whole: u64, parts: u64| whole.checked_div(parts.saturating_mul(users)).unwrap_or(0);
        match users {
            1 => (left / UNPUBLISHED_PART).max(limit / LONE_TOLERANCE_PART),
            _ => part(left, UNPUBLISHED_PART).max(part(limit, TOLERANCE_PART)),
        }
    }

    /// When the key is published, given the number of regions alive and whether the key is on probation.
    pub(in crate::region) fn due(&self, regions: u64, on_probation: bool) -> Due {
        if (self.unpublished == 0 && !self.limit_fell) || !self.is_candidate(regions) {
            return Due::No;
        }
        if self.is_first {
            return Due::First;
        }
        let users = if on_probation { self.users.max(regions) } else { self.users };
        let is_above = self.unpublished > self.allowance(users);
        match () {
            () if self.limit_fell || (is_above && users >= 2) => Due::Now,
            () if is_above || (self.users >= 2 && self.known >= self.lowest_limit) => Due::AtTick,
            () if self.users >= 2 || self.own >= self.limit.div_ceil(2) => Due::AtInterval,
            () => Due::No,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STANDING: Standing = Standing {
        known: 100,
        own: 100,
        unpublished: 10,
        limit: 1_000,
        lowest_limit: 1_000,
        users: 1,
        is_first: false,
        limit_fell: false,
    };

    #[test]
    fn a_key_is_due_by_its_use_and_its_users() {
        let all = |known, unpublished| Standing { known, unpublished, users: 3, ..STANDING };
        let cases = [
            (Standing { known: 249, is_first: true, ..STANDING }, 2, Due::No),
            (Standing { known: 250, is_first: true, ..STANDING }, 2, Due::First),
            (Standing { known: 50, is_first: true, ..STANDING }, 10, Due::First),
            (Standing { known: 49, is_first: true, ..STANDING }, 10, Due::No),
            (Standing { known: 7, is_first: true, ..STANDING }, 100, Due::No), // as for 64 regions
            (Standing { known: 8, is_first: true, ..STANDING }, 100, Due::First),
            (Standing { unpublished: 0, users: 3, ..STANDING }, 10, Due::No),
            (Standing { known: 49, users: 3, ..STANDING }, 10, Due::No), // although others use it too
            (Standing { known: 20, lowest_limit: 20, ..STANDING }, 1, Due::No), // below a fifth of its own limit
            (Standing { unpublished: 225, known: 100, ..STANDING }, 10, Due::No), // a quarter of 900 is left
            (Standing { unpublished: 226, known: 100, ..STANDING }, 10, Due::AtTick),
            (Standing { unpublished: 51, known: 1_000, own: 400, ..STANDING }, 10, Due::AtTick),
            (Standing { unpublished: 50, known: 1_000, own: 400, ..STANDING }, 10, Due::No),
            (Standing { unpublished: 50, known: 1_000, own: 500, ..STANDING }, 10, Due::AtInterval),
            (all(100, 75), 10, Due::AtInterval), // a twelfth of 900 is left for each of three
            (all(100, 76), 10, Due::Now),
            (all(1_000, 6), 10, Due::AtTick),
            (all(1_000, 7), 10, Due::Now),
            (Standing { unpublished: 0, limit_fell: true, ..STANDING }, 10, Due::Now),
            (Standing { lowest_limit: u64::MAX, limit: u64::MAX, is_first: true, ..STANDING }, 10, Due::No),
        ];
        for (standing, regions, due) in cases {
            assert_eq!(standing.due(regions, false), due, "{standing:?} of {regions} regions");
        }
        let alone = Standing { unpublished: 23, ..STANDING };
        assert_eq!(alone.due(10, false), Due::No);
        assert_eq!(alone.due(10, true), Due::Now, "on probation the share is that of ten regions");
    }

    #[test]
    fn numbers_at_their_bounds_do_not_overflow() {
        let most = Standing { known: u64::MAX, own: u64::MAX, unpublished: u64::MAX, ..STANDING };
        assert_eq!(most.due(u64::MAX, true), Due::Now);
        assert_eq!(Standing { limit: 0, lowest_limit: 0, ..most }.due(0, false), Due::AtTick);
    }
}
