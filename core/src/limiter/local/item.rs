//! One cell that a request is charged to.

use crate::limiter::check::Attempt;
use crate::limiter::rule_set::RuleSet;

/// One cell that a request is charged to: its checks of the same key, coalesced.
#[derive(Clone, Debug)]
pub(super) struct Item {
    /// The check whose rule is named in the outcome.
    pub(super) check: usize,
    pub(super) fingerprint: u64,
    /// Largest cost of the coalesced checks.
    pub(super) cost: u64,
    /// Their lowest limit.
    pub(super) limit: u64,
    /// That of the check with the lowest limit.
    pub(super) configured: Option<u64>,
    pub(super) shadow: bool,
    /// Another item charges the same cell, so this one only peeks.
    pub(super) peeks: bool,
    /// The cost is deferred: reserved until the response states it.
    pub(super) deferred: Option<DeferredCost>,
    pub(super) provision: Provision,
}

impl Item {
    pub(super) fn attempt(&self) -> Attempt {
        Attempt { cost: self.cost, limit: self.limit }
    }
}

/// Where the cost of an enforcing item comes from, while the other items of the request are decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Provision {
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
pub(super) struct DeferredCost {
    /// The rules that take their cost from the response.
    pub(super) rules: RuleSet,
    /// Those of them for which the charge counts towards a ban.
    pub(super) banning: RuleSet,
    /// Lowest cost, by rules whose cost is known.
    pub(super) least: u64,
    /// Highest cost, by rules that take it from the response.
    pub(super) most: u64,
    /// Largest cost of the checks that is no estimate: what is reserved is above the limit by that alone.
    pub(super) firm: u64,
    pub(super) within_ms: u32,
}
