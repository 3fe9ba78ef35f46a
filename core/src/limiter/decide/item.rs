//! One cell that a request is charged to.

/// One cell that a request is to be charged to: its checks of the same key, folded.
#[derive(Clone, Copy, Debug)]
pub(in crate::limiter) struct Item {
    /// The check whose rule is shown.
    pub(in crate::limiter) check: usize,
    pub(in crate::limiter) fingerprint: u64,
    /// Largest cost of the folded checks.
    pub(in crate::limiter) cost: u64,
    /// Their lowest limit.
    pub(in crate::limiter) limit: u64,
    pub(in crate::limiter) shadow: bool,
    /// Another item charges the same cell, so this one only looks.
    pub(in crate::limiter) peeks: bool,
    /// The cost is reserved until the response tells it.
    pub(in crate::limiter) deferred: Option<DeferredCost>,
}

/// That an item's cost is told by the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::limiter) struct DeferredCost {
    /// The rules that will say what it costs: bit `n` for rule `n`.
    pub(in crate::limiter) rules: u64,
    /// What it costs at the least, by rules that know it.
    pub(in crate::limiter) least: u64,
    /// What it costs at the most, by rules that will be told.
    pub(in crate::limiter) most: u64,
    pub(in crate::limiter) within_ms: u32,
}
