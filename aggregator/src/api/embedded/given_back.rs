//! What callers give back, applied to the windows of a call.
//!
//! All of it is decided behind the engine's lock, by the key in which a check counts: amounts are taken and the rest is charged in one
//! step, and what was taken for a call that is denied is there for the next.

use super::engine::{Engine, Taken};
use weir_core::limiter::{Budget, Cause, CellCount, Check, Denial};
use weir_core::model::time::MonoMs;

impl Engine {
    /// Takes what was given back, at most the check's cost.
    pub(super) fn take_given(&mut self, check: &Check<'_>, now: MonoMs) -> Taken {
        if check.cost == 0 || !self.given_back.has(check.key) {
            return Taken::default();
        }
        let (CellCount { sequence, .. }, _) = self.current_cell(check.key, check.cell_ms, now);
        let hits = self.given_back.take(check.key, check.cost, sequence);
        Taken { key: check.key.to_vec(), cell_ms: check.cell_ms, hits, sequence }
    }

    /// Returns what was taken for a check that is not charged, unless its cell has ended.
    pub(super) fn return_taken(&mut self, taken: Taken, now: MonoMs) {
        let Taken { key, cell_ms, hits, sequence } = taken;
        if hits == 0 {
            return;
        }
        let (cell, until) = self.current_cell(&key, cell_ms, now);
        if cell.sequence == sequence {
            self.given_back.give(&key, hits, cell, until, now);
        }
    }

    /// Gives the check's cost back; returns how much of it is kept.
    pub(super) fn give_back(&mut self, check: &Check<'_>, now: MonoMs) -> u64 {
        let (cell, until) = self.current_cell(check.key, check.cell_ms, now);
        let before = self.given_back.left(check.key, cell.sequence);
        self.given_back.give(check.key, check.cost, cell, until, now);
        self.given_back.left(check.key, cell.sequence).saturating_sub(before)
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
    pub(super) fn is_made_up_for(&mut self, check: &Check<'_>, taken: &Taken, now: MonoMs) -> bool {
        let left = self.left_of_given(check, now);
        let rest = Check { cost: 0, ..*check };
        taken.hits == check.cost
            && taken.hits.saturating_add(left) > 0
            && self.peek(&rest, now).is_err()
            && self.above(&rest, left, now).is_ok()
    }

    /// Whether the count is above the limit without what was given back, which includes what was `taken` of it.
    pub(super) fn is_exceeded(&mut self, check: &Check<'_>, taken: &Taken, now: MonoMs) -> bool {
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

    /// Milliseconds until the check passes, at least `from_ms`, by the local counts and if nothing more is used; `None` if it never does. What
    /// was given back ends with its cell, so nothing beyond that rests on it.
    pub(super) fn wait_ms(&mut self, check: &Check<'_>, from_ms: u64, now: MonoMs) -> Option<u64> {
        let wait = |peeked: Result<Budget, Denial>| match peeked {
            Ok(_) => Some(from_ms),
            Err(denial) => denial.retry_after_ms.map(|wait_ms| wait_ms.max(from_ms)),
        };
        let given = self.left_of_given(check, now);
        if given > 0 {
            let (_, end) = self.current_cell(check.key, check.cell_ms, now);
            let soon = wait(self.above(check, given, now)).filter(|wait_ms| now.after(*wait_ms) < end);
            if soon.is_some() {
                return soon;
            }
        }
        wait(self.peek(check, now))
    }

    /// The wait of a denial, with what was given back.
    pub(super) fn denied_for_ms(&mut self, check: &Check<'_>, denial: &Denial, now: MonoMs) -> Option<u64> {
        match self.given_back.has(check.key) && denial.cause == Cause::Limit {
            true => self.wait_ms(check, 1, now),
            false => denial.retry_after_ms,
        }
    }

    fn left_of_given(&mut self, check: &Check<'_>, now: MonoMs) -> u64 {
        if !self.given_back.has(check.key) {
            return 0;
        }
        let (CellCount { sequence, .. }, _) = self.current_cell(check.key, check.cell_ms, now);
        self.given_back.left(check.key, sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::limiter::{Decision, Policy};
    use weir_core::model::exact::Algorithm;
    use weir_core::model::key::{Key, KeyParts};
    use weir_core::model::time::{Now, UnixMs};

    /// While a call waits for the region's answer, its caller disconnects. Then it is denied.
    #[test]
    fn what_was_taken_for_a_call_whose_caller_disconnects_is_returned() {
        let at = |ms: u64| Now { unix: UnixMs(1_000_000_000_000 + ms), mono: MonoMs(100_000 + ms) };
        let parts = KeyParts {
            workspace: b"w",
            namespace: b"n",
            identifier: b"i",
            duration_ms: 3_600_000,
            epoch: 0,
            resolution: 1,
        };
        let key = Key::new(&parts).unwrap();
        let check = |cost| Check {
            algorithm: Algorithm::Window,
            rule: 0,
            key: key.as_bytes(),
            cell_ms: parts.duration_ms,
            limit: 10,
            configured: None,
            cost,
            policy: Policy { timeout_ms: 50, ..Policy::default() },
        };
        let mut engine = Engine::new(at(0).unix);
        engine.tick(at(0));
        assert!(engine.charge_spent(&check(3), at(0).mono));
        let mut first = engine.decide(1, &[check(7)], Vec::new(), at(1).mono).expect_err("it waits");
        assert_eq!(engine.give_back(&check(2), at(1).mono), 2);
        let taken = engine.take_given(&check(6), at(2).mono);
        assert_eq!(taken.hits, 2);
        let second = engine.decide(2, &[check(4)], vec![taken], at(2).mono).expect_err("it waits");
        drop(second);
        engine.tick(at(60));
        engine.tick(at(70));
        assert!(matches!(first.try_recv().unwrap().decision, Decision::Allow(_)));
        assert_eq!(engine.take_given(&check(9), at(71).mono).hits, 2, "the second one was denied");
    }
}
