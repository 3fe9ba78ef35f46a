//! The decision itself: one entry, one moment, one cost.
//!
//! Deny is final, since fresher data can only raise a count. Allow is only good where what is known is fresh and the
//! process has not used up its slack; else the region is asked.
//!
//! Leaves to others: loading the entry and acting on the verdict (`charge`).

use crate::limiter::check::{Policy, Reason};
use crate::limiter::table::Entry;
use crate::model::time::MonoMs;
use crate::model::window::Position;

/// An answer serves its key for this long, however many requests come.
pub const ANSWER_SERVES_MS: u64 = 20;
/// A view of a key that no live stream follows is stale after this long.
pub const STALE_MS: u64 = 100;

/// One part in this many of a limit may pass beyond it for each time that the others have not heard yet, summed over all
/// processes of a region.
pub const TOLERANCE_PART: u64 = 50;
/// A process spends its part in this many of what is left, divided by the processes, before it asks.
///
/// While the region confirms what was spent, and until the others have heard of that, a process may spend its slack
/// twice. All together spend, unheard, at most `u = 2 × (left + u) ÷ SLACK_PART`, where each of them takes `left + u` to be
/// left, `u` being what it has not heard: with 4 that is `u = left`. With 2 it would have no bound.
pub const SLACK_PART: u64 = 4;

/// Strict mode: after a denial a process spends no slack on a key whose limit allows at most this many a second, but
/// queries the region for each request that it would admit. Above this rate the slack of [`TOLERANCE_PART`] holds.
pub const STRICT_PER_SECOND: u64 = 50;

/// What a worker knows of its region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// There is somebody to ask.
    pub usable: bool,
    /// The process' subscription is alive: a change of a followed key would have been heard.
    pub fresh: bool,
    /// The subscription has brought all keys past half their limits.
    pub complete: bool,
    /// Live processes of the region, this one included.
    pub origins: u32,
    /// The worker's ration of questions for strict mode is not used up.
    pub strict: bool,
    /// The worker's ration of questions about keys at first sight is not used up.
    pub cold: bool,
}

impl Health {
    /// The process has the region's complete snapshot: a key that it has not brought is below half its limit.
    pub fn has_snapshot(&self) -> bool {
        self.fresh && self.complete
    }
}

/// What becomes of a cost on one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Fits; `spare` is what is left after it, reservations taken off.
    Admit {
        /// Left after this cost.
        spare: u64,
    },
    /// Does not fit into what is spent.
    Deny {
        /// Milliseconds until it would.
        wait_ms: Option<u64>,
    },
    /// Would fit but for reservations.
    Reserved,
    /// Would fit by what is known here; the region is to be asked.
    Query(Reason),
    /// Would fit by what is known here, but that is not good enough, nobody can be asked, and the rule denies then.
    Undecided,
}

/// Judges `cost` against `limit` on `entry` at `at`. Without a `health` the region has been asked, or is not to be.
pub fn judge(
    entry: &Entry,
    at: &Position,
    (cost, limit): (u64, u64),
    policy: &Policy,
    health: Option<&Health>,
    now: MonoMs,
) -> Verdict {
    let used = entry.used();
    if !used.admits(at, cost, limit) {
        return Verdict::Deny { wait_ms: used.wait_ms(at, cost, limit) };
    }
    let reserved = if entry.reservations.is_empty() { used } else { entry.used_and_reserved() };
    if !reserved.admits(at, cost, limit) {
        return Verdict::Reserved;
    }
    let left = reserved.remaining(at, limit).min(entry.spared_at_once(limit));
    if let Some(health) = health.filter(|health| health.usable || policy.deny_on_failure)
        && let Some(reason) = reason_to_query(entry, at, (cost, limit), left, policy, health, now)
    {
        return if health.usable { Verdict::Query(reason) } else { Verdict::Undecided };
    }
    Verdict::Admit { spare: reserved.remaining(at, limit).saturating_sub(cost) }
}

/// What this process may spend beyond what the region knows: what is left ÷ ([`SLACK_PART`] × live origins). Alone in its
/// region it may spend all.
pub fn slack(left: u64, origins: u32) -> u64 {
    match origins {
        0 | 1 => u64::MAX,
        _ => left.checked_div(SLACK_PART.saturating_mul(u64::from(origins))).unwrap_or(0),
    }
}

/// What this process may spend on a cell beyond what the region knows, at the least its share of [`TOLERANCE_PART`]:
/// at the limit, where almost nothing is left at any moment, every single request would have to ask otherwise.
fn allowance(limit: u64, left: u64, origins: u32) -> u64 {
    let share = limit.checked_div(TOLERANCE_PART.saturating_mul(u64::from(origins))).unwrap_or(0);
    slack(left, origins).max(share)
}

/// Whether the region decides a key: it was denied within the last window, other processes may spend on it too, and its
/// limit is at most [`STRICT_PER_SECOND`].
pub(in crate::limiter) fn is_strict(
    entry: &Entry,
    at: &Position,
    limit: u64,
    origins: u32,
    now: MonoMs,
) -> bool {
    let window_ms = entry.window_ms(at.cell_ms);
    let is_affordable = limit.saturating_mul(1_000) <= STRICT_PER_SECOND.saturating_mul(window_ms);
    now < entry.strict_until && origins > 1 && is_affordable
}

/// Whether the first request of a key is admitted without a question, as the ration of those is used up: a flood of invented
/// keys costs the region no more than that. The next request of the key is judged as usual.
fn is_spared(entry: &Entry, health: &Health) -> bool {
    let is_first = entry.charged == MonoMs(0) && entry.reservations.is_empty();
    let is_unknown = entry.is_without_baseline() || entry.viewed == MonoMs(0);
    !health.cold && is_first && is_unknown && health.has_snapshot()
}

/// Why the local view would not do, if so.
fn reason_to_query(
    entry: &Entry,
    at: &Position,
    (cost, limit): (u64, u64),
    left: u64,
    policy: &Policy,
    health: &Health,
    now: MonoMs,
) -> Option<Reason> {
    let never_viewed = entry.viewed == MonoMs(0);
    if is_spared(entry, health) {
        return None;
    }
    if entry.is_without_baseline() {
        return Some(Reason::Baseline);
    }
    if never_viewed && !(policy.trust_first && health.has_snapshot()) {
        return Some(Reason::Cold);
    }
    // A cost that the response reveals is held back as a reservation, which an answer cannot grant.
    let may_send = cost > 0 && policy.settles_within_ms == 0 && health.strict;
    if may_send && is_strict(entry, at, limit, health.origins, now) {
        return Some(Reason::Strict);
    }
    if cost > 0 && entry.unconfirmed().saturating_add(cost) > allowance(limit, left, health.origins) {
        return Some(Reason::Slack);
    }
    if health.fresh || now.since(entry.viewed) <= ANSWER_SERVES_MS {
        return None;
    }
    if now < entry.strict_until {
        return Some(Reason::Strict);
    }
    (now.since(entry.viewed) > STALE_MS).then_some(Reason::Stale)
}
