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
        Budget { remaining: budget.remaining.saturating_add(left).min(budget.limit), ..budget }
    }

    /// [`Engine::peek`] with what was given back and is left.
    pub(super) fn peek_with_given(&mut self, check: &Check<'_>, now: MonoMs) -> Result<Budget, Denial> {
        let left = self.left_of_given(check, now);
        let rest = Check { cost: check.cost.saturating_sub(left), ..*check };
        let add = |budget: Budget| Budget {
            remaining: budget.remaining.saturating_add(left).min(budget.limit),
            ..budget
        };
        let peeked = self.peek(&rest, now);
        peeked.map(add).map_err(|denial| Denial { budget: add(denial.budget), ..denial })
    }

    fn left_of_given(&mut self, check: &Check<'_>, now: MonoMs) -> u64 {
        if !self.given_back.has(check.key) {
            return 0;
        }
        let ((sequence, _), _) = self.current_cell(check, now);
        self.given_back.left(check.key, sequence)
    }
}
