//! What callers give back, applied to the windows of a call.
//!
//! All of it is decided behind the engine's lock, by the key in which a check counts: amounts are taken and the rest is charged in one
//! step, and what was taken for a call that is denied is there for the next.

use super::engine::Engine;
use weir_core::limiter::{Budget, Check, Denial};
use weir_core::model::time::MonoMs;

/// What was taken for a check, and the cell in which it had been given back.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Taken {
    pub(super) hits: u64,
    sequence: u64,
}

impl Engine {
    /// Takes what was given back, at most the check's cost.
    pub(super) fn take_given(&mut self, check: &Check<'_>, now: MonoMs) -> Taken {
        if check.cost == 0 || !self.given_back.has(check.key) {
            return Taken::default();
        }
        let ((sequence, _), _) = self.current_cell(check, now);
        Taken { hits: self.given_back.take(check.key, check.cost, sequence), sequence }
    }

    /// Returns what was taken for a check that is not charged, unless its cell has ended.
    pub(super) fn return_taken(&mut self, check: &Check<'_>, taken: Taken, now: MonoMs) {
        if taken.hits == 0 {
            return;
        }
        let (cell, until) = self.current_cell(check, now);
        if cell.0 == taken.sequence {
            self.given_back.give(check.key, taken.hits, cell, until, now);
        }
    }

    /// Gives the check's cost back; returns how much of it is kept.
    pub(super) fn give_back(&mut self, check: &Check<'_>, now: MonoMs) -> u64 {
        let (cell, until) = self.current_cell(check, now);
        let before = self.given_back.left(check.key, cell.0);
        self.given_back.give(check.key, check.cost, cell, until, now);
        self.given_back.left(check.key, cell.0).saturating_sub(before)
    }

    /// A budget with what was given back and is left.
    pub(super) fn with_given(&mut self, check: &Check<'_>, budget: Budget, now: MonoMs) -> Budget {
        let left = self.left_of_given(check, now);
        if left == 0 {
            return budget;
        }
        // What is above the limit uses up a part of it, which the remainder does not show.
        let (Ok(room) | Err(Denial { budget: room, .. })) =
            self.above(&Check { cost: 0, ..*check }, left, now);
        Budget { remaining: room.remaining.min(budget.limit), ..budget }
    }

    /// Whether the check passes if its limit is higher by what was given back. Changes nothing.
    fn above(&mut self, check: &Check<'_>, given: u64, now: MonoMs) -> Result<Budget, Denial> {
        self.peek(&Check { limit: check.limit.saturating_add(given), ..*check }, now)
    }

    /// Whether a check whose whole cost was taken of what had been given back passes, though the count alone is above the
    /// limit: what was given back and is left makes up for that.
    pub(super) fn is_made_up_for(&mut self, check: &Check<'_>, taken: Taken, now: MonoMs) -> bool {
        let left = self.left_of_given(check, now);
        let rest = Check { cost: 0, ..*check };
        taken.hits == check.cost
            && taken.hits.saturating_add(left) > 0
            && self.peek(&rest, now).is_err()
            && self.above(&rest, left, now).is_ok()
    }

    /// Whether the count is above the limit without what was given back, which includes what was `taken` of it.
    pub(super) fn is_exceeded(&mut self, check: &Check<'_>, taken: Taken, now: MonoMs) -> bool {
        let given = self.left_of_given(check, now).saturating_add(taken.hits);
        self.above(&Check { cost: 0, ..*check }, given, now).is_err()
    }

    /// [`Engine::peek`] with what was given back and is left.
    pub(super) fn peek_with_given(&mut self, check: &Check<'_>, now: MonoMs) -> Result<Budget, Denial> {
        let left = self.left_of_given(check, now);
        let limit = check.limit;
        let shown = |budget: Budget| Budget { remaining: budget.remaining.min(limit), limit, ..budget };
        let peeked = self.above(check, left, now);
        peeked.map(shown).map_err(|denial| Denial { budget: shown(denial.budget), ..denial })
    }

    fn left_of_given(&mut self, check: &Check<'_>, now: MonoMs) -> u64 {
        if !self.given_back.has(check.key) {
            return 0;
        }
        let ((sequence, _), _) = self.current_cell(check, now);
        self.given_back.left(check.key, sequence)
    }
}
