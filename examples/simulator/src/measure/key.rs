//! The state of one key: both reference limiters, and what Weir admitted.

use super::cells::Cells;
use crate::plan::Rule;
use std::collections::VecDeque;
use weir_core::model::exact::ExactRequestId;
use weir_core::region::log::{EntryId, Log, Micros, Outcome};

/// A reference limiter.
#[derive(Clone, Copy, Debug)]
pub enum Reference {
    /// The sliding log; the number identifies the request's charge in it.
    Exact(u64),
    /// The rule's formula in one place.
    Central,
}

/// The state of one key.
#[derive(Debug)]
pub struct Key {
    exact: Log,
    central: Cells,
    passed: Cells,
    /// Time and cost of what passed in the window that ends now, oldest first.
    recent: VecDeque<(u64, u64)>,
    recent_cost: u64,
    window_us: u64,
    /// Requests that Weir admitted, less those that the exact reference admitted.
    pub balance: i64,
    /// When the key was last used, in microseconds.
    pub last_used_us: u64,
}

impl Key {
    /// A key without use.
    pub fn new(rule: &Rule) -> Key {
        let window_us = rule.window_ms.saturating_mul(1_000);
        Key {
            exact: Log::new(window_us),
            central: Cells::new(rule),
            passed: Cells::new(rule),
            recent: VecDeque::new(),
            recent_cost: 0,
            window_us,
            balance: 0,
            last_used_us: 0,
        }
    }

    /// Whether `reference` admits `cost`; charges nothing.
    pub fn admits(&mut self, reference: Reference, at_us: u64, cost: u64, limit: u64) -> bool {
        match reference {
            Reference::Exact(number) => {
                let decided = self.exact.peek(Micros(at_us), entry(number), cost, limit);
                decided.outcome == Outcome::Allowed
            }
            Reference::Central => self.central.effective(at_us).saturating_add(cost) <= limit,
        }
    }

    /// Charges an admitted cost to `reference`.
    pub fn charge(&mut self, reference: Reference, at_us: u64, cost: u64) {
        match reference {
            Reference::Exact(number) => drop(self.exact.decide(Micros(at_us), entry(number), cost, u64::MAX)),
            Reference::Central => self.central.charge(at_us, cost),
        }
    }

    /// Refunds the log's charge of this number.
    pub fn refund(&mut self, number: u64) {
        self.exact.refund(entry(number));
    }

    /// Adds what Weir admitted. Returns the excess over the limit by the rule's formula, and the use of the true
    /// window that ends now, both as parts of the limit.
    pub fn passed(&mut self, at_us: u64, cost: u64, limit: u64) -> (f64, f64) {
        self.evict(at_us);
        if cost > 0 {
            self.recent.push_back((at_us, cost));
        }
        self.recent_cost += cost;
        self.passed.charge(at_us, cost);
        let limit = limit.max(1) as f64;
        let over = self.passed.effective(at_us) as f64 - limit;
        ((over / limit).max(0.0), self.recent_cost as f64 / limit)
    }

    /// The use of the true window that ends at `at_us`: by the exact log, and by Weir.
    pub fn in_window(&mut self, at_us: u64) -> (u64, u64) {
        self.evict(at_us);
        // A cost of 0 reads without charging.
        (self.exact.peek(Micros(at_us), entry(0), 0, u64::MAX).used, self.recent_cost)
    }

    fn evict(&mut self, at_us: u64) {
        while let Some((at, cost)) = self.recent.front().copied()
            && at_us.saturating_sub(at) >= self.window_us
        {
            self.recent.pop_front();
            self.recent_cost -= cost;
        }
    }
}

fn entry(number: u64) -> EntryId {
    EntryId { request: ExactRequestId(u128::from(number).to_be_bytes()), place: 0 }
}
