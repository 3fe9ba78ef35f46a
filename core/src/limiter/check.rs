//! Checks that a limiter decides, and its outcomes.

use super::rule_set::RuleSet;
use crate::model::exact::Algorithm;
use crate::model::outcome::RuleOutcome;
use alloc::vec::Vec;
use core::cmp::Ordering;

/// One rule that applies to a request, resolved to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check<'a> {
    /// The rule's index, chosen by the caller.
    pub rule: u16,
    /// Where the limit is decided: by this limiter, or in one place for all nodes (see [`crate::model::exact`]).
    pub algorithm: Algorithm,
    /// Canonical key bytes; for a ledger its bucket, the canonical identifier.
    pub key: &'a [u8],
    /// Length of one cell of the key in milliseconds; not used by exact rules.
    pub cell_ms: u64,
    /// Most that may be used in a window; values above [`crate::model::window::MAX_LIMIT`] count as that. Not used for a
    /// ledger, whose zone defines it.
    pub limit: u64,
    /// The limit without live control, if live control sets `limit`. It decides nothing; the region shows the key by it when the
    /// control ends.
    pub configured: Option<u64>,
    /// Cost of the request; 0 only checks.
    pub cost: u64,
    /// How the rule behaves.
    pub policy: Policy,
}

impl Check<'_> {
    /// Whether this limiter decides it.
    pub fn is_window(&self) -> bool {
        self.algorithm == Algorithm::Window
    }
}

/// A cost that is to pass under a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::limiter) struct Attempt {
    pub(in crate::limiter) cost: u64,
    pub(in crate::limiter) limit: u64,
}

impl Attempt {
    /// Whether it cannot pass before `other` does: its cost is not lower, and its limit not higher.
    pub(in crate::limiter) fn is_no_easier_than(&self, other: &Attempt) -> bool {
        self.cost >= other.cost && self.limit <= other.limit
    }
}

/// The checks of one request, with their keys in one buffer. Clearing keeps the memory.
#[derive(Clone, Debug, Default)]
pub struct Checks {
    keys: Vec<u8>,
    checks: Vec<Stored>,
}

/// A check whose key ends at `key_end`, where that of the next check begins.
#[derive(Clone, Copy, Debug)]
struct Stored {
    key_end: usize,
    check: Check<'static>,
}

impl Checks {
    /// Copies checks.
    pub fn of(checks: &[Check<'_>]) -> Checks {
        let mut copies = Checks::default();
        for check in checks {
            copies.push(Check { key: &[], ..*check }, |keys| keys.extend_from_slice(check.key));
        }
        copies
    }

    /// Appends a check. `write_key` appends its key to the buffer; the check's own key is not used.
    pub fn push(&mut self, check: Check<'static>, write_key: impl FnOnce(&mut Vec<u8>)) {
        write_key(&mut self.keys);
        self.checks.push(Stored { key_end: self.keys.len(), check });
    }

    /// Removes all checks.
    pub fn clear(&mut self) {
        self.keys.clear();
        self.checks.clear();
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.checks.is_empty()
    }

    /// The check at this place.
    pub fn get(&self, place: usize) -> Option<Check<'_>> {
        self.iter().nth(place)
    }

    /// The check of a request with one.
    pub fn only(&self) -> Option<Check<'_>> {
        match self.checks.as_slice() {
            [stored] => Some(Check { key: &self.keys, ..stored.check }),
            _ => None,
        }
    }

    /// Each check, in order.
    pub fn iter(&self) -> impl Iterator<Item = Check<'_>> + '_ {
        let mut begin = 0;
        self.checks.iter().map(move |stored| {
            let key = self.keys.get(begin..stored.key_end).unwrap_or_default();
            begin = stored.key_end;
            Check { key, ..stored.check }
        })
    }
}

/// Policy of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Decides and counts, but never denies nor pauses.
    pub shadow: bool,
    /// Assume without a query that a key which is not in the complete snapshot is below half its limit. No effect on exact rules.
    pub trust_first: bool,
    /// If a query fails, deny instead of deciding by the local count.
    pub deny_on_failure: bool,
    /// What clients see of this limit in an allowed request's outcome.
    pub visibility: Visibility,
    /// Longest time that a request waits for queries, in milliseconds.
    pub timeout_ms: u32,
    /// The cost comes from the response. Until [`Limiter::settle_cost`](super::Limiter::settle_cost) the check's cost is reserved, and
    /// after this many milliseconds it counts as spent. 0: the cost is known.
    pub settles_within_ms: u32,
    /// Highest cost that the response may state. It is charged at once if too many requests wait for their cost.
    pub settles_at_most: u64,
    /// What is reserved is an estimate: at most the limit, also the lower one of a rule that counts on the same key, and 0 only of a request
    /// that costs nothing.
    pub estimates: bool,
    /// What the response charges counts towards a ban.
    pub bans_by_charge: bool,
}

/// What clients see of a limit if a request passes. Of rules that share a charge, the last in this order applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Visibility {
    /// Neither its budget nor its transaction.
    Hidden,
    /// Its budget, if it is the one that ends first, and its transaction.
    #[default]
    Shown,
    /// The outcome also lists its budget, so that clients may see more than the one that ends first.
    Listed,
}

/// The outcome of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Whether the request passes.
    pub decision: Decision,
    /// Shadow rules that would have denied. Exact shadow rules follow later, as `Output::Shadow`.
    pub shadow_denied: RuleSet,
    /// Of a request that passes: what is left of its rules that are [`Visibility::Listed`]. At most [`MAX_BUDGETS`], those that end
    /// first, in no order. Empty if a window alone applies, whose budget the decision has.
    pub budgets: Vec<Budget>,
    /// Details of exact rules, for response headers.
    pub exact: ExactDetails,
}

/// Details of exact rules beside the decision, for response headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExactDetails {
    /// Exact rules that were not decided.
    pub undecided: RuleSet,
    /// Rules whose windows the exact response states, with these, in milliseconds.
    pub windows: Vec<(u16, u64)>,
    /// Numbers under which ledgers recorded the request.
    pub transactions: Transactions,
}

impl ExactDetails {
    /// The window of a rule in milliseconds, if the exact response states it.
    pub fn window_ms(&self, rule: u16) -> Option<u64> {
        self.windows.iter().find(|(of, _)| *of == rule).map(|(_, window_ms)| *window_ms)
    }
}

/// Most budgets that an outcome lists; more rules may apply.
pub const MAX_BUDGETS: usize = 8;

/// Most transactions that an outcome lists; ledgers record more if more rules apply.
pub const MAX_TRANSACTIONS: usize = 4;

/// Numbers of transactions, in the order of the rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transactions([u64; MAX_TRANSACTIONS]);

impl Transactions {
    /// Adds one, if there is room.
    pub fn push(&mut self, transaction: u64) {
        if let Some(free) = self.0.iter_mut().find(|one| **one == 0) {
            *free = transaction;
        }
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().copied().filter(|one| *one != 0)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }
}

/// Outcome of an exact shadow rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShadowOutcome {
    /// It passes, and is charged.
    Allowed,
    /// It would be denied.
    Denied,
    /// It was not decided.
    Undecided,
}

impl From<ShadowOutcome> for RuleOutcome {
    fn from(outcome: ShadowOutcome) -> RuleOutcome {
        match outcome {
            ShadowOutcome::Allowed => RuleOutcome::Allowed,
            ShadowOutcome::Denied => RuleOutcome::ShadowDenied,
            ShadowOutcome::Undecided => RuleOutcome::Undecided,
        }
    }
}

impl Outcome {
    /// An outcome that no shadow rule and no exact rule has a part in.
    pub fn of(decision: Decision) -> Outcome {
        Outcome {
            decision,
            shadow_denied: RuleSet::default(),
            budgets: Vec::new(),
            exact: ExactDetails::default(),
        }
    }

    /// Whether the request passes.
    pub(super) fn passes(&self) -> bool {
        matches!(self.decision, Decision::Allow(_))
    }
}

/// Whether a request passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It passes and is charged; the budget that ends first (`None` if no rule enforces, or clients may see none).
    Allow(Option<Budget>),
    /// It is denied, and nothing is charged.
    Deny(Denial),
    /// It waits for the region; `Output::Resolve` has its outcome.
    Wait,
}

/// What is left of a rule's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The rule.
    pub rule: u16,
    /// Its limit for this identifier.
    pub limit: u64,
    /// What could still be used now.
    pub remaining: u64,
    /// Milliseconds until the current cell ends; of an exact rule, until its oldest use no longer counts.
    pub reset_ms: u64,
}

impl Budget {
    /// Whether a smaller share of its limit is left than of the other's; of the same shares, whether less is left. Numbers alone do not
    /// compare, as a request may cost one rule 1 and another 1 000.
    pub fn ends_before(&self, other: &Budget) -> bool {
        self.order(other) == Ordering::Less
    }

    fn order(&self, other: &Budget) -> Ordering {
        let share = |left: &Budget, of: &Budget| u128::from(left.remaining) * u128::from(of.limit);
        (share(self, other), self.remaining).cmp(&(share(other, self), other.remaining))
    }
}

/// What is left of a request's limits, of which clients may see.
#[derive(Clone, Debug, Default)]
pub(super) struct ShownBudgets {
    /// The budget that ends first.
    pub(super) first: Option<Budget>,
    /// See [`Outcome::budgets`].
    pub(super) listed: Vec<Budget>,
}

impl ShownBudgets {
    /// Adds the budget of a rule.
    pub(super) fn add(&mut self, budget: Budget, visibility: Visibility) {
        if visibility == Visibility::Hidden {
            return;
        }
        if self.first.is_none_or(|first| budget.ends_before(&first)) {
            self.first = Some(budget);
        }
        if visibility == Visibility::Listed {
            self.list(budget);
        }
    }

    /// Adds what is left of other rules.
    pub(super) fn extend(&mut self, other: ShownBudgets) {
        if let Some(budget) = other.first {
            self.add(budget, Visibility::Shown);
        }
        other.listed.into_iter().for_each(|budget| self.list(budget));
    }

    /// Lists a budget; without room, in place of one that ends later.
    fn list(&mut self, budget: Budget) {
        if self.listed.len() < MAX_BUDGETS {
            return self.listed.push(budget);
        }
        let last = self.listed.iter_mut().max_by(|one, other| one.order(other));
        if let Some(last) = last.filter(|last| budget.ends_before(last)) {
            *last = budget;
        }
    }
}

/// Why and for how long a request is denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denial {
    /// The budget of the rule that denied.
    pub budget: Budget,
    /// Milliseconds until the same cost could pass by the present counts; `None`: never, it exceeds the limit.
    pub retry_after_ms: Option<u64>,
    /// Cause of the denial.
    pub cause: Cause,
}

/// Cause of a denial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The limit is used up: final until the window has moved on.
    Limit,
    /// The cost is above the limit: never passes.
    Cost,
    /// The rest is reserved: by other workers of this process, so that it may pass at the next tick, or for deferred costs of requests under way.
    Reserved,
    /// The region did not decide in time, and the rule has `on_failure: deny`.
    Undecided,
}

/// An enum whose variants are the values of a label of metrics, each with its name.
macro_rules! label_values {
    ($(#[$about:meta])* $values:ident { $($(#[$meaning:meta])* $variant:ident = $name:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $values {
            $($(#[$meaning])* $variant,)*
        }

        impl $values {
            /// The names of all, in their order.
            pub const NAMES: &[&str] = &[$($name),*];
        }
    };
}

label_values! {
    /// Why the region is queried: the local count may be wrong.
    Reason {
        /// The region's count was never received.
        Cold = "cold",
        /// The process evicted its own count, and its baseline has not returned.
        Baseline = "baseline",
        /// The key was denied within the last window.
        Strict = "strict",
        /// The region's count is old.
        Stale = "stale",
        /// The process has spent its slack.
        Slack = "slack",
    }
}

label_values! {
    /// Result of a query.
    QueryResult {
        /// The region accepted the proposed count.
        Granted = "granted",
        /// The region rejected it.
        Refused = "refused",
        /// There was no answer in time.
        Timeout = "timeout",
        /// The stream ended.
        Broken = "broken",
        /// The region could not decide: it is full, or the clocks differ too much.
        Unjudged = "unjudged",
    }
}

label_values! {
    /// Result of an exact request.
    ExactResult {
        /// All charges pass.
        Allowed = "allowed",
        /// A charge does not pass.
        Denied = "denied",
        /// A charge could not be decided, and none is denied.
        Undecided = "undecided",
        /// There was no response in time.
        Timeout = "timeout",
        /// The stream ended.
        Broken = "broken",
    }
}
