//! How large a lease is, and when it comes back.
//!
//! Where much is left of a limit a worker takes a small part of it and spends it without touching anything shared;
//! near the limit leases shrink to none. A lease is returned when its time has come, when its cell is over, or when
//! somebody of the process was refused because of it.
//!
//! What a lease has spent is not reported before it is returned. So one of any size comes back after a second; only one
//! that is next to nothing beside its limit may stay for five, as bringing back a lease costs as much as a charge, and
//! a key that is asked for a few times a second would gain nothing from it otherwise.
//!
//! Leaves to others: spending it (`charge`), remembering it (`worker_cache`).

use super::judge::slack;
use crate::limiter::cache::worker_cache::{Acked, Slot};
use crate::limiter::table::{Entry, Tag};
use crate::model::time::MonoMs;
use crate::model::window::MAX_COUNT;
use alloc::collections::BTreeSet;

/// A lease is brought back to the table after this long. It may be spent for twice as long, should its worker's ticks
/// be late, and counts as spent after four times, its worker being dead.
const SETTLE_MS: u64 = 1_000;
/// And one that is next to nothing.
const SETTLE_SMALL_MS: u64 = 5_000;
/// A lease is next to nothing up to this part of its limit.
const SMALL_PART: u64 = 4_096;
/// A lease takes at most this part of what is left.
const LEASE_PART: u64 = 64;
/// And of the process' slack, so that what its workers hold together stays within it.
const LEASE_SLACK_PART: u64 = 4;
/// First lease on a key, in costs of the request at hand.
const FIRST_LEASE: u64 = 8;
/// Smaller leases than this many costs are not worth their return.
const MIN_LEASE: u64 = 4;
/// Largest lease.
const MAX_LEASE: u64 = 1 << 20;

/// Milliseconds until a lease of `amount` is brought back.
pub(in crate::limiter) fn settle_ms(amount: u64, limit: u64) -> u64 {
    if amount <= limit / SMALL_PART { SETTLE_SMALL_MS } else { SETTLE_MS }
}

/// Which leases are to be brought back when.
#[derive(Debug, Default)]
pub(in crate::limiter) struct Due {
    by_time: BTreeSet<(MonoMs, u64)>,
}

impl Due {
    pub(in crate::limiter) fn push(&mut self, due: MonoMs, fingerprint: u64) {
        self.by_time.insert((due, fingerprint));
    }

    /// The next one whose time has come.
    pub(in crate::limiter) fn pop(&mut self, now: MonoMs) -> Option<(MonoMs, u64)> {
        let first = self.by_time.first().copied().filter(|(due, _)| *due <= now)?;
        self.by_time.remove(&first);
        Some(first)
    }

    pub(in crate::limiter) fn len(&self) -> usize {
        self.by_time.len()
    }

    /// All of them.
    pub(in crate::limiter) fn take_all(&mut self) -> impl Iterator<Item = u64> + use<> {
        core::mem::take(&mut self.by_time).into_iter().map(|(_, fingerprint)| fingerprint)
    }
}

/// Spends what was spent of the lease and gives back the rest; takes over what the region acknowledged.
pub(in crate::limiter) fn settle_into(entry: &mut Entry, slot: Option<&Slot>, tag: Tag, now: MonoMs) -> bool {
    let Some(slot) = slot else { return false };
    let Acked { sequence, own, before } = slot.acked;
    entry.confirm(sequence, own);
    entry.confirm(sequence.saturating_sub(1), before);
    if slot.lease.amount == 0 {
        return false;
    }
    // No longer there: its time was over and it counts as spent already.
    // A worker has one lease on a key, whose cell may have another number since the clock stepped.
    if let Some((sequence, _)) = entry.release_newest(tag)
        && slot.lease.spent > 0
    {
        entry.charge_in(sequence, slot.lease.spent, now);
    }
    true
}

/// Reserves a lease where it pays and leaves enough to others; returns its size.
pub(in crate::limiter) fn take_lease(
    entry: &mut Entry,
    slot: Option<&Slot>,
    tag: Tag,
    spare: u64,
    cost: u64,
    origins: u32,
    now: MonoMs,
) -> u64 {
    let pause_ms = settle_ms(cost.saturating_mul(FIRST_LEASE), entry.limit) / 2;
    let Some(slot) = slot.filter(|slot| now.since(slot.used) <= pause_ms || slot.lease.spent > 0) else {
        return 0;
    };
    if cost == 0 {
        return 0;
    }
    let lease = &slot.lease;
    let grown =
        if lease.spent.saturating_mul(2) >= lease.last { lease.last.saturating_mul(2) } else { lease.last };
    let wanted = grown.max(cost.saturating_mul(FIRST_LEASE));
    let spared = spare.min(entry.spared_at_once(entry.limit));
    let within_slack = slack(spared, origins).saturating_sub(entry.unconfirmed()) / LEASE_SLACK_PART;
    let amount = wanted.min(spare / LEASE_PART).min(within_slack).min(MAX_LEASE).min(MAX_COUNT);
    let expires_ms = settle_ms(amount, entry.limit).saturating_mul(4);
    let worth_it = amount >= cost.saturating_mul(MIN_LEASE);
    if worth_it && entry.reserve(tag, amount, now.after(expires_ms)) { amount } else { 0 }
}
