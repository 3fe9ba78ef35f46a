//! The decision on one entry, at one time, for one cost.
//!
//! A denial is final, since fresher data can only raise a count. An admission requires that the local data is fresh and the process has
//! slack; otherwise the region is queried. Where no query may be sent, the local counts decide alone; the [`Basis`] of a decision states
//! which of both applies, and its type whether the decision may be a query.

use crate::limiter::check::{Attempt, Policy, Reason};
use crate::limiter::table::Entry;
use crate::model::time::MonoMs;
use crate::model::window::Position;
use core::convert::Infallible;

/// Time for which an answer of the region decides all requests of its key.
pub const ANSWER_SERVES_MS: u64 = 20;
/// Time after which the region's count of a key is stale, unless a live subscription keeps it fresh.
pub const STALE_MS: u64 = 100;

/// The part of a limit (one in this many) that all processes of a region together may pass beyond it before their counts have
/// reached each other.
pub const TOLERANCE_PART: u64 = 50;
/// A process spends what is left ÷ (this × number of processes) before it queries the region.
///
/// While the region acknowledges what was spent, and until the others have received it, a process may spend its slack twice. All
/// together spend, not yet received by the others, at most `u = 2 × (left + u) ÷ SLACK_PART`, where each of them computes `left + u` as
/// left, since it has not received `u`. With 4 that is `u = left`; with 2 it would have no bound.
pub const SLACK_PART: u64 = 4;

/// Strict mode: after a denial a process spends no slack on a key whose limit allows at most this many a second, but
/// queries the region for each request that it would admit. Above this rate the slack of [`TOLERANCE_PART`] holds.
pub const STRICT_PER_SECOND: u64 = 50;

/// State of the connection to the region, as far as it affects decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Queries can be sent.
    pub usable: bool,
    /// The process' subscription is alive: a change of a subscribed key would have been received.
    pub fresh: bool,
    /// The snapshot is complete: all keys past half their limits were received.
    pub complete: bool,
    /// Live processes of the region, this one included.
    pub nodes: u32,
    /// The worker may send further queries for strict mode.
    pub strict: bool,
    /// The worker may send further queries for new keys.
    pub cold: bool,
}

impl Health {
    /// Whether the process has a complete snapshot, so that a key which is not in it is below half its limit.
    fn has_snapshot(&self) -> bool {
        self.fresh && self.complete
    }
}

/// What a decision is based on.
pub trait Basis {
    /// Why the region is to be queried, if it may be.
    type Query: Copy + Into<Reason>;

    /// Why a cost that fits by the local count is not admitted yet; `left` is what may be spent without a query.
    fn objection(
        &self,
        entry: &Entry,
        at: &Position,
        attempt: Attempt,
        left: u64,
        policy: &Policy,
        now: MonoMs,
    ) -> Option<Obstacle<Self::Query>>;

    /// Whether a key that was never received counts as received with its first cost.
    fn covers_unreceived(&self, policy: &Policy) -> bool;

    /// Live processes of the region, this one included, by which a lease is taken.
    fn nodes(&self) -> u32;
}

/// The local counts alone: the region was queried already, or is not to be queried.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalCounts {
    /// Live processes of the region. What charges nothing needs no number.
    pub nodes: u32,
}

impl Basis for LocalCounts {
    type Query = Infallible;

    fn objection(
        &self,
        _: &Entry,
        _: &Position,
        _: Attempt,
        _: u64,
        _: &Policy,
        _: MonoMs,
    ) -> Option<Obstacle<Infallible>> {
        None
    }

    fn covers_unreceived(&self, _: &Policy) -> bool {
        false
    }

    fn nodes(&self) -> u32 {
        self.nodes
    }
}

impl From<Infallible> for Reason {
    fn from(none: Infallible) -> Reason {
        match none {}
    }
}

/// The local counts, as far as they are known to be fresh.
impl Basis for Health {
    type Query = Reason;

    fn objection(
        &self,
        entry: &Entry,
        at: &Position,
        attempt: Attempt,
        left: u64,
        policy: &Policy,
        now: MonoMs,
    ) -> Option<Obstacle<Reason>> {
        if !self.usable && !policy.deny_on_failure {
            return None;
        }
        let reason = self.reason_to_query(entry, at, attempt, left, policy, now)?;
        Some(if self.usable { Obstacle::Query(reason) } else { Obstacle::Undecided })
    }

    fn covers_unreceived(&self, policy: &Policy) -> bool {
        (policy.trust_first || !self.cold) && self.usable && self.has_snapshot()
    }

    fn nodes(&self) -> u32 {
        self.nodes
    }
}

/// Why a cost is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle<Q> {
    /// It does not fit, whatever becomes of reservations.
    Deny {
        /// Milliseconds until it would fit; `None`: never.
        wait_ms: Option<u64>,
    },
    /// It would fit without the reservations of others.
    Reserved,
    /// It would fit by the local count; the region is to be queried.
    Query(Q),
    /// It would fit by the local count, which may be wrong; no query can be sent, and the rule denies on failure.
    Undecided,
}

/// Decides an attempt on `entry` at `at`. Returns what is left after an admitted cost and all reservations.
pub fn judge<B: Basis>(
    entry: &Entry,
    at: &Position,
    attempt: Attempt,
    policy: &Policy,
    basis: &B,
    now: MonoMs,
) -> Result<u64, Obstacle<B::Query>> {
    let Attempt { cost, limit } = attempt;
    let used = entry.used();
    if !used.admits(at, cost, limit) {
        return Err(Obstacle::Deny { wait_ms: used.wait_ms(at, cost, limit) });
    }
    let reserved = if entry.reservations.is_empty() { used } else { entry.used_and_reserved() };
    if !reserved.admits(at, cost, limit) {
        return Err(Obstacle::Reserved);
    }
    let remaining = reserved.remaining(at, limit);
    let left = remaining.min(entry.spared_at_once(limit));
    match basis.objection(entry, at, attempt, left, policy, now) {
        Some(obstacle) => Err(obstacle),
        None => Ok(remaining.saturating_sub(cost)),
    }
}

/// What this process may spend beyond its acknowledged count: what is left ÷ ([`SLACK_PART`] × live nodes). If it is the only node of
/// the region, it may spend all.
pub fn slack(left: u64, nodes: u32) -> u64 {
    match nodes {
        0 | 1 => u64::MAX,
        _ => left.checked_div(SLACK_PART.saturating_mul(u64::from(nodes))).unwrap_or(0),
    }
}

/// What this process may spend on a cell beyond its acknowledged count: its slack, or its share of [`TOLERANCE_PART`] if that is more.
/// Otherwise each request would be queried at the limit, where almost nothing is left.
fn allowance(limit: u64, left: u64, nodes: u32) -> u64 {
    let share = limit.checked_div(TOLERANCE_PART.saturating_mul(u64::from(nodes))).unwrap_or(0);
    slack(left, nodes).max(share)
}

/// Whether the region decides a key: it was denied within the last window, other processes may spend on it too, and its
/// limit is at most [`STRICT_PER_SECOND`].
pub(super) fn is_strict(entry: &Entry, at: &Position, limit: u64, nodes: u32, now: MonoMs) -> bool {
    let window_ms = entry.window_ms(at.cell_ms);
    let is_affordable = limit.saturating_mul(1_000) <= STRICT_PER_SECOND.saturating_mul(window_ms);
    now < entry.strict_until && nodes > 1 && is_affordable
}

impl Health {
    /// Whether the first request of a key is admitted without a query, as the ration of those is used up. It bounds what a flood of
    /// invented keys costs the region. The next request of the key is decided as usual.
    fn is_spared(&self, entry: &Entry) -> bool {
        let is_first = entry.charged == MonoMs(0) && entry.reservations.is_empty();
        let is_unknown = entry.is_without_baseline() || entry.viewed == MonoMs(0);
        !self.cold && is_first && is_unknown && self.has_snapshot()
    }

    /// The reason to query the region, if there is one.
    fn reason_to_query(
        &self,
        entry: &Entry,
        at: &Position,
        Attempt { cost, limit }: Attempt,
        left: u64,
        policy: &Policy,
        now: MonoMs,
    ) -> Option<Reason> {
        let never_viewed = entry.viewed == MonoMs(0);
        if self.is_spared(entry) {
            return None;
        }
        if entry.is_without_baseline() {
            return Some(Reason::Baseline);
        }
        if never_viewed && !(policy.trust_first && self.has_snapshot()) {
            return Some(Reason::Cold);
        }
        // A deferred cost is reserved, which an answer cannot grant.
        let may_send = cost > 0 && policy.settles_within_ms == 0 && self.strict;
        if may_send && is_strict(entry, at, limit, self.nodes, now) {
            return Some(Reason::Strict);
        }
        if cost > 0 && entry.unconfirmed_with(cost) > allowance(limit, left, self.nodes) {
            return Some(Reason::Slack);
        }
        if self.fresh || now.since(entry.viewed) <= ANSWER_SERVES_MS {
            return None;
        }
        if now < entry.strict_until {
            return Some(Reason::Strict);
        }
        (now.since(entry.viewed) > STALE_MS).then_some(Reason::Stale)
    }
}
