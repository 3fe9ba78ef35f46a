//! What a limiter is asked and what it answers.

/// One rule that applies to a request, resolved to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check<'a> {
    /// The rule, as an index that the caller understands; below 64 for shadow rules.
    pub rule: u16,
    /// Canonical key bytes.
    pub key: &'a [u8],
    /// Length of one cell of the key in milliseconds.
    pub cell_ms: u64,
    /// Most that may be used in a window; values above [`crate::model::window::MAX_COUNT`] count as that.
    pub limit: u64,
    /// What the request uses; 0 only checks.
    pub cost: u64,
    /// How the rule behaves.
    pub policy: Policy,
}

/// How a rule behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Decides and counts, but never denies nor pauses.
    pub shadow: bool,
    /// A key that a complete snapshot does not name is taken to be below half its limit, without a consult.
    pub trust_first: bool,
    /// Where a consult fails: deny instead of deciding by the local view.
    pub deny_on_failure: bool,
    /// Longest that a request may wait for consults, in milliseconds.
    pub timeout_ms: u32,
    /// What the request costs is known only from its response: until [`Limiter::settle_cost`](super::Limiter::settle_cost)
    /// says it the check's cost is reserved, and counts as spent after so many milliseconds. 0: the cost is known.
    pub settles_within_ms: u32,
    /// What the response may say at the most; charged to a request that too many others wait beside to wait for it.
    pub settles_at_most: u64,
}

/// One rule that applies to a request and whose limit is held exactly, where all counts meet (see [`crate::model::exact`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExactCheck<'a> {
    /// The rule, as an index that the caller understands, below 64.
    pub rule: u16,
    /// Which limit.
    pub limit: ExactLimit<'a>,
    /// What the request uses; 0 only asks.
    pub cost: u64,
    /// How the rule behaves. Whether a first request is trusted means nothing here.
    pub policy: Policy,
}

/// A limit that is held exactly, for one identifier; see [`crate::model::exact::Limit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExactLimit<'a> {
    /// An exact sliding log.
    Log {
        /// Canonical key bytes.
        key: &'a [u8],
        /// Most in any window.
        most: u64,
    },
    /// A zone of the ledger.
    Ledger {
        /// The zone's number.
        zone: u32,
        /// The canonical identifier.
        bucket: &'a [u8],
    },
}

/// The answer for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Whether the request passes.
    pub decision: Decision,
    /// Shadow rules that would have denied: bit `n` for rule `n`. Exact ones say so later, in
    /// `Limiter::take_shadow_outcomes`.
    pub shadow_denied: u64,
    /// What is to be told of the rules that are held exactly.
    pub exact: ExactDetails,
}

/// What a request is told of exact rules beside its decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExactDetails {
    /// Rules that nobody has decided: bit `n` for rule `n`.
    pub undecided: u64,
    /// The window of the rule that the decision's budget names, in milliseconds, where it was ruled; else 0.
    pub window_ms: u64,
    /// Under which numbers the ledger recorded the request.
    pub transactions: Transactions,
}

/// Most transactions that a request is told of; a ledger has more of them where more rules apply.
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

/// How a shadow rule that is held exactly was ruled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShadowOutcome {
    /// It passes, and is charged.
    Allowed,
    /// It would be refused.
    Denied,
    /// Nobody has said.
    Undecided,
}

impl Outcome {
    /// Where no rule is held exactly.
    pub(super) fn of(decision: Decision, shadow_denied: u64) -> Outcome {
        Outcome { decision, shadow_denied, exact: ExactDetails::default() }
    }

    /// Whether the request passes.
    pub(super) fn passes(&self) -> bool {
        matches!(self.decision, Decision::Allow(_))
    }
}

/// Whether a request passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It passes and is charged; the budget of the most restrictive rule (`None` if no rule enforces).
    Allow(Option<Budget>),
    /// It is refused and nothing is charged.
    Deny(Denial),
    /// The region is asked; the answer comes from `Limiter::take_resolved`.
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

/// Why and for how long a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denial {
    /// The rule that refused, with what is really left of it.
    pub budget: Budget,
    /// Milliseconds until the same cost could pass, given what is known now; `None`: never, it exceeds the limit.
    pub retry_after_ms: Option<u64>,
    /// What the refusal rests on.
    pub cause: Cause,
}

/// What a refusal rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The limit is used up: final until the window has moved on.
    Limit,
    /// The cost is above the limit: never passes.
    Cost,
    /// What is left is reserved by others of this process: may pass at the next tick.
    Reserved,
    /// The region did not answer, or did not decide, and the rule asks to deny then.
    Undecided,
}

/// Why the region is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// Nothing is known of the region's view.
    Cold,
    /// The process forgot its own count.
    Baseline,
    /// A denial happened lately.
    Strict,
    /// What is known is old.
    Stale,
    /// The process has spent its share of what is left.
    Slack,
}

/// How a consult ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConsultResult {
    /// The region took up the proposal.
    Granted,
    /// It did not.
    Refused,
    /// It did not answer in time.
    Timeout,
    /// The stream broke.
    Broken,
    /// It could not judge: it is full, or the clocks differ too much.
    Unjudged,
}

/// How a question about exact limits ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExactResult {
    /// All of it passes.
    Allowed,
    /// Some of it does not.
    Denied,
    /// Some of it could not be decided, and nothing is denied.
    Undecided,
    /// There was no result in time.
    Timeout,
    /// The stream broke.
    Broken,
}
