//! The arithmetic of a sliding window over cells.
//!
//! Usually over two: the current cell counts in full, the previous one by the share of it that the window still covers:
//! `effective = current + floor(previous × (1 − elapsed)) + cost`, denied when above the limit. The share falls
//! with time, so a denial states the earliest moment at which the same cost could pass.
//!
//! The share is an average: if all use of a cell was at its end, a true window contains up to twice the limit. With finer cells (a key's
//! resolution) all cells of a window count in full, so no true window contains more than the limit.
//!
//! All arithmetic saturates.

use crate::model::key::MAX_RESOLUTION;
use crate::model::time::UnixMs;

/// Highest value of any count: what a double holds exactly, as some stores compute in doubles.
pub const MAX_COUNT: u64 = 1 << 53;

/// The highest limit of a window, and the most that a node counts of a key in a cell: what a region counts as plausible at any time
/// ([`crate::region::MOST_A_SECOND`]). With a higher limit a node would admit costs that its region refuses to count.
pub const MAX_LIMIT: u64 = 60 << 40;

/// A time as a position in cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// `floor(unix_ms / cell_ms)`.
    pub sequence: u64,
    /// Milliseconds since the cell began; less than `cell_ms`.
    pub elapsed_ms: u64,
    /// Length of a cell in milliseconds; at least 1.
    pub cell_ms: u64,
}

impl Position {
    /// The position of `now` in cells of `cell_ms` (0 counts as 1).
    pub fn at(now: UnixMs, cell_ms: u64) -> Position {
        let cell_ms = cell_ms.max(1);
        let sequence = now.0.checked_div(cell_ms).unwrap_or(0);
        let elapsed_ms = now.0.checked_rem(cell_ms).unwrap_or(0);
        Position { sequence, elapsed_ms, cell_ms }
    }

    /// Milliseconds until the next cell begins; at least 1.
    pub const fn until_next_ms(&self) -> u64 {
        self.cell_ms.saturating_sub(self.elapsed_ms)
    }

    /// The time.
    pub const fn unix(&self) -> UnixMs {
        UnixMs(self.sequence.saturating_mul(self.cell_ms).saturating_add(self.elapsed_ms))
    }

    /// When the cell ends.
    pub const fn end(&self) -> UnixMs {
        UnixMs(self.sequence.saturating_add(1).saturating_mul(self.cell_ms))
    }

    /// The position in cell `sequence`: its start if it is ahead, its last millisecond if it has ended.
    pub const fn seen_from(&self, sequence: u64) -> Position {
        let elapsed_ms = if sequence == self.sequence {
            self.elapsed_ms
        } else if sequence > self.sequence {
            0
        } else {
            self.cell_ms.saturating_sub(1)
        };
        Position { sequence, elapsed_ms, cell_ms: self.cell_ms }
    }
}

/// Most cells that a window touches: one more than its resolution.
pub const MAX_CELLS: usize = MAX_RESOLUTION as usize + 1;

/// The use in the cells of a window, by all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Used {
    /// Two cells as long as the window: the previous one counts by the share of it that the window still covers.
    Average {
        /// Use in the current cell.
        current: u64,
        /// Use in the cell before.
        previous: u64,
    },
    /// Finer cells, all of which count in full.
    HardLimit(Counts),
}

/// The use in each cell of a window, from the current one back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    counts: [u64; MAX_CELLS],
    /// Number of cells; at least 1.
    cells: usize,
}

impl Counts {
    /// The first `cells` of `counts`, the current cell's first; missing ones are 0. At most [`MAX_CELLS`].
    pub fn new(cells: usize, counts: impl IntoIterator<Item = u64>) -> Counts {
        let cells = cells.clamp(1, MAX_CELLS);
        let mut all = [0; MAX_CELLS];
        for (place, count) in all.iter_mut().take(cells).zip(counts) {
            *place = count;
        }
        Counts { counts: all, cells }
    }

    fn sum(&self) -> u64 {
        self.counts.iter().fold(0, |sum: u64, count| sum.saturating_add(*count))
    }

    /// The same counts `cells` later.
    fn later(&self, cells: u64) -> Counts {
        let over = usize::try_from(cells).unwrap_or(usize::MAX).min(MAX_CELLS);
        let newer = core::iter::repeat_n(0, over);
        Counts::new(self.cells, newer.chain(self.counts.iter().copied()))
    }

    /// Number of cells after which no more than `spare` counts, if nothing more is used.
    fn cells_until(&self, spare: u64) -> u64 {
        let mut sum: u64 = 0;
        let stay = self.counts.iter().take(self.cells).take_while(|count| {
            sum = sum.saturating_add(**count);
            sum <= spare
        });
        self.cells.saturating_sub(stay.count()) as u64
    }
}

impl Used {
    /// No use, in the two cells of a usual window.
    pub const NOTHING: Used = Used::Average { current: 0, previous: 0 };

    /// The use of a key of this `resolution`, by its cells from the current one back; missing ones are 0.
    pub fn of(resolution: u16, counts: impl IntoIterator<Item = u64>) -> Used {
        let cells = usize::from(resolution).saturating_add(1);
        match Counts::new(cells, counts) {
            Counts { counts: [current, previous, ..], .. } if resolution <= 1 => {
                Used::Average { current, previous }
            }
            counts => Used::HardLimit(counts),
        }
    }

    /// What counts against the limit at `at`, without any cost.
    pub fn effective(&self, at: &Position) -> u64 {
        match self {
            Used::Average { current, previous } => {
                current.saturating_add(weighted(*previous, at.until_next_ms(), at.cell_ms))
            }
            Used::HardLimit(counts) => counts.sum(),
        }
    }

    /// Whether `cost` more may pass.
    pub fn admits(&self, at: &Position, cost: u64, limit: u64) -> bool {
        cost <= limit && self.effective(at) <= limit.saturating_sub(cost)
    }

    /// The remaining budget at `at`.
    pub fn remaining(&self, at: &Position, limit: u64) -> u64 {
        limit.saturating_sub(self.effective(at))
    }

    /// The same use `ms` after `at`, and the position then.
    pub fn later(&self, at: &Position, ms: u64) -> (Used, Position) {
        let into = at.elapsed_ms.saturating_add(ms);
        let cells = into.checked_div(at.cell_ms).unwrap_or(0);
        let used = match (self, cells) {
            (_, 0) => *self,
            (Used::Average { current, .. }, 1) => Used::Average { current: 0, previous: *current },
            (Used::Average { .. }, _) => Used::NOTHING,
            (Used::HardLimit(counts), _) => Used::HardLimit(counts.later(cells)),
        };
        let elapsed_ms = into.checked_rem(at.cell_ms).unwrap_or(0);
        (used, Position { sequence: at.sequence.saturating_add(cells), elapsed_ms, cell_ms: at.cell_ms })
    }

    /// Milliseconds until `cost` could pass if nothing more is used; 0 if it passes now, `None` if it never can.
    pub fn wait_ms(&self, at: &Position, cost: u64, limit: u64) -> Option<u64> {
        let spare = limit.checked_sub(cost)?;
        if self.admits(at, cost, limit) {
            return Some(0);
        }
        Some(match self {
            Used::Average { current, previous } => wait_for_share(*current, *previous, spare, at),
            Used::HardLimit(counts) => {
                let further = counts.cells_until(spare).saturating_sub(1);
                at.until_next_ms().saturating_add(further.saturating_mul(at.cell_ms))
            }
        })
    }
}

/// Milliseconds until no more than `spare` of two cells counts; more counts now.
fn wait_for_share(current: u64, previous: u64, spare: u64, at: &Position) -> u64 {
    if let Some(spare_now) = spare.checked_sub(current) {
        let covered_ms = longest_cover(previous, spare_now, at.cell_ms);
        return at.until_next_ms().saturating_sub(covered_ms);
    }
    let covered_ms = longest_cover(current, spare, at.cell_ms);
    at.until_next_ms().saturating_add(at.cell_ms.saturating_sub(covered_ms))
}

/// `floor(count × covered / cell)`.
fn weighted(count: u64, covered_ms: u64, cell_ms: u64) -> u64 {
    let product = u128::from(count).saturating_mul(u128::from(covered_ms.min(cell_ms)));
    let share = product.checked_div(u128::from(cell_ms)).unwrap_or(0);
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// `ceil(count × covered / cell)`.
pub(crate) fn weighted_up(count: u64, covered_ms: u64, cell_ms: u64) -> u64 {
    let product = u128::from(count).saturating_mul(u128::from(covered_ms.min(cell_ms)));
    let share = product.div_ceil(u128::from(cell_ms.max(1)));
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// The longest covered time, in whole milliseconds, for which `weighted(count, …) <= spare`.
fn longest_cover(count: u64, spare: u64, cell_ms: u64) -> u64 {
    // floor(count × covered / cell) <= spare  ⇔  count × covered < (spare + 1) × cell
    let bound = u128::from(spare).saturating_add(1).saturating_mul(u128::from(cell_ms));
    let covered = bound.saturating_sub(1).checked_div(u128::from(count)).unwrap_or(u128::MAX);
    u64::try_from(covered).unwrap_or(u64::MAX).min(cell_ms)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(elapsed_ms: u64, cell_ms: u64) -> Position {
        Position { sequence: 7, elapsed_ms, cell_ms }
    }

    #[test]
    fn decisions() {
        const MAX: u64 = u64::MAX;
        // (current, previous, elapsed of 1000 ms, cost, limit) → (admits, remaining, wait)
        let cases = [
            ((0, 0, 0, 1, 10), (true, 10, Some(0))),
            ((9, 0, 0, 1, 10), (true, 1, Some(0))),
            ((10, 0, 0, 1, 10), (false, 0, Some(1_001))), // the next cell, once 10 × (1 − x) is below 10
            ((10, 0, 999, 1, 10), (false, 0, Some(2))),
            ((10, 0, 0, 0, 10), (true, 0, Some(0))), // cost 0 passes at exactly the limit
            ((11, 0, 0, 0, 10), (false, 0, Some(1_001))), // 11 × (1 − x) below 11
            ((4, 0, 0, 7, 10), (false, 6, Some(1_001))), // a denial of a cost of 7 with 6 left reports 6
            ((0, 10, 0, 1, 10), (false, 0, Some(1))), // floor(10 × 0.999) = 9
            ((0, 10, 500, 5, 10), (true, 5, Some(0))),
            ((0, 10, 500, 6, 10), (false, 5, Some(1))),
            ((5, 10, 500, 1, 10), (false, 0, Some(1))),
            ((5, 10, 500, 5, 10), (false, 0, Some(401))), // floor(10 × (1 − x)) = 0 needs x > 0.9
            ((0, 10, 500, 11, 10), (false, 5, None)),     // more than the limit never passes
            ((0, 0, 0, 0, 0), (true, 0, Some(0))),
            ((0, 0, 0, 1, 0), (false, 0, None)),
            ((MAX, MAX, 0, MAX, MAX), (false, 0, Some(2_000))),
            ((0, 0, 0, MAX, MAX), (true, MAX, Some(0))),
            ((1, 0, 0, MAX, MAX), (false, MAX - 1, Some(1_001))),
            ((0, MAX, 0, 1, MAX), (false, 0, Some(1))),
        ];
        for ((current, previous, elapsed_ms, cost, limit), expected) in cases {
            let used = Used::Average { current, previous };
            let at = at(elapsed_ms, 1_000);
            let got =
                (used.admits(&at, cost, limit), used.remaining(&at, limit), used.wait_ms(&at, cost, limit));
            assert_eq!(got, expected, "{used:?} at {elapsed_ms} cost {cost} limit {limit}");
        }
    }

    /// Counts of cells, newest first.
    fn hard_limit(counts: &[u64]) -> Used {
        Used::HardLimit(Counts::new(counts.len(), counts.iter().copied()))
    }

    #[test]
    fn decisions_of_a_hard_limit() {
        const MAX: u64 = u64::MAX;
        // (counts, elapsed of 100 ms, cost, limit) → (admits, remaining, wait)
        let cases: [(&[u64], _, _, _, _); 10] = [
            (&[0, 0, 0], 30, 1, 10, (true, 10, Some(0))),
            (&[0, 0, 10], 30, 1, 10, (false, 0, Some(70))), // the oldest counts until it leaves as a whole
            (&[0, 10, 0], 30, 1, 10, (false, 0, Some(170))),
            (&[10, 0, 0], 30, 1, 10, (false, 0, Some(270))),
            (&[10, 0, 0], 0, 0, 10, (true, 0, Some(0))),
            (&[3, 3, 3], 99, 2, 10, (false, 1, Some(1))),
            (&[3, 3, 3], 99, 5, 10, (false, 1, Some(101))),
            (&[3, 3, 3], 99, 11, 10, (false, 1, None)),
            (&[MAX, MAX, MAX], 0, MAX, MAX, (false, 0, Some(300))),
            (&[0, MAX, MAX], 0, 1, MAX, (false, 0, Some(200))),
        ];
        for (counts, elapsed_ms, cost, limit, expected) in cases {
            let (used, at) = (hard_limit(counts), at(elapsed_ms, 100));
            let got =
                (used.admits(&at, cost, limit), used.remaining(&at, limit), used.wait_ms(&at, cost, limit));
            assert_eq!(got, expected, "{counts:?} at {elapsed_ms} cost {cost} limit {limit}");
        }
    }

    fn used() -> impl Strategy<Value = Used> {
        let average =
            (0u64..50, 0u64..50).prop_map(|(current, previous)| Used::Average { current, previous });
        let cells = prop::collection::vec(0u64..20, 1..=MAX_CELLS).prop_map(|counts| hard_limit(&counts));
        prop_oneof![average, cells]
    }

    proptest! {
        #[test]
        fn the_wait_is_the_earliest_moment(
            used in used(), elapsed_ms in 0u64..1_000, cost in 0u64..30, limit in 0u64..40
        ) {
            let at = at(elapsed_ms, 1_000);
            let passes = |wait| { let (u, p) = used.later(&at, wait); u.admits(&p, cost, limit) };
            match used.wait_ms(&at, cost, limit) {
                None => prop_assert!(cost > limit),
                Some(wait) => {
                    prop_assert!(passes(wait));
                    prop_assert!(wait == 0 || !passes(wait - 1));
                    prop_assert!(passes(wait + 1), "a cost that passes also passes later");
                }
            }
        }

        #[test]
        fn a_hard_limit_counts_the_sum_of_the_cells_that_a_window_touches(
            spent in prop::collection::vec((0u64..3_000, 1u64..5), 0..30), now in 2_000u64..4_000,
            resolution in 1u64..=10, later in 0u64..3_000
        ) {
            let cell_ms = 1_000 / resolution;
            let counted = |when: u64, until: u64| {
                let now = when / cell_ms;
                let counts = (0..=resolution).map(|back| {
                    let of = |(at, _): &&(u64, u64)| *at <= until && at / cell_ms + back == now;
                    spent.iter().filter(of).map(|(_, cost)| cost).sum()
                });
                Used::HardLimit(Counts::new(resolution as usize + 1, counts))
            };
            let used = counted(now, now);
            let at = Position::at(UnixMs(now), cell_ms);
            let true_window: u64 =
                spent.iter().filter(|(at, _)| *at <= now && at + cell_ms * resolution > now).map(|(_, cost)| cost).sum();
            prop_assert!(used.effective(&at) >= true_window);
            let (moved, then) = used.later(&at, later);
            prop_assert_eq!(moved, counted(now + later, now));
            prop_assert_eq!(then, Position::at(UnixMs(now + later), cell_ms));
            prop_assert!(moved.effective(&then) <= used.effective(&at), "the used amount only falls without new charges");
        }

        #[test]
        fn nothing_overflows(
            current in any::<u64>(), previous in any::<u64>(), now in any::<u64>(), cell in any::<u64>(),
            cost in any::<u64>(), limit in any::<u64>()
        ) {
            let used = Used::Average { current, previous };
            let at = Position::at(UnixMs(now), cell);
            prop_assert!(at.elapsed_ms < at.cell_ms);
            let wait = used.wait_ms(&at, cost, limit);
            prop_assert_eq!(wait == Some(0), used.admits(&at, cost, limit));
        }

        #[test]
        fn the_weight_only_falls_with_time(previous in any::<u64>(), a in 0u64..1_000, b in 0u64..1_000) {
            let used = Used::Average { current: 0, previous };
            let (early, late) = (a.min(b), a.max(b));
            prop_assert!(used.effective(&at(early, 1_000)) >= used.effective(&at(late, 1_000)));
        }
    }
}
