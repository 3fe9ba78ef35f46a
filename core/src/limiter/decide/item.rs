//! One cell that a request is charged to.

use crate::limiter::check::Attempt;
use crate::limiter::rule_set::RuleSet;

/// One cell that a request is charged to: its checks of the same key, coalesced.
#[derive(Clone, Debug)]
pub(in crate::limiter) struct Item {
    /// The check whose rule is named in the outcome.
    pub(in crate::limiter) check: usize,
    pub(in crate::limiter) fingerprint: u64,
    /// Largest cost of the coalesced checks.
    pub(in crate::limiter) cost: u64,
    /// Their lowest limit.
    pub(in crate::limiter) limit: u64,
    /// That of the check with the lowest limit.
    pub(in crate::limiter) configured: Option<u64>,
    pub(in crate::limiter) shadow: bool,
    /// Another item charges the same cell, so this one only peeks.
    pub(in crate::limiter) peeks: bool,
    /// The cost is deferred: reserved until the response states it.
    pub(in crate::limiter) deferred: Option<DeferredCost>,
    pub(in crate::limiter) provision: Provision,
}

impl Item {
    pub(in crate::limiter) fn attempt(&self) -> Attempt {
        Attempt { cost: self.cost, limit: self.limit }
    }
}

/// Where the cost of an enforcing item comes from, while the other items of the request are decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::limiter) enum Provision {
    /// The table, which is not charged yet.
    #[default]
    Table,
    /// A lease of this worker.
    Lease,
    /// It is held in the table, in the overflow entry if `overflow`.
    Held { overflow: bool },
}

/// The deferred cost of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::limiter) struct DeferredCost {
    /// The rules that take their cost from the response.
    pub(in crate::limiter) rules: RuleSet,
    /// Lowest cost, by rules whose cost is known.
    pub(in crate::limiter) least: u64,
    /// Highest cost, by rules that take it from the response.
    pub(in crate::limiter) most: u64,
    pub(in crate::limiter) within_ms: u32,
}
