//! The size of leases, and when they are returned.
//!
//! If much is left of a limit, a worker takes a small part of it and spends it without shared access. Near the limit leases shrink to
//! none. A lease is returned after a time, when its cell ends, or when it caused a denial in the process.
//!
//! What was spent of a lease is reported only after its return, so leases are returned after a second. A lease that is tiny compared to
//! its limit may stay for five seconds: returning it costs as much as a charge, so a key with a few requests a second would gain nothing.

use super::judge::slack;
use super::worker_cache::{Acked, Slot};
use crate::limiter::table::{Entry, Tag};
use crate::model::time::MonoMs;
use crate::model::window::MAX_COUNT;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

/// Time after which a lease is returned. It may be spent for twice as long if ticks are late, and counts as spent after four times as
/// long, since its worker must be dead.
const SETTLE_MS: u64 = 1_000;
/// The same for a tiny lease.
const SETTLE_SMALL_MS: u64 = 5_000;
/// A lease is tiny up to this part of its limit.
const SMALL_PART: u64 = 4_096;
/// A lease takes at most this part of what is left.
const LEASE_PART: u64 = 64;
/// It also takes at most this part of the process' slack, so that the leases of all workers stay within it.
const LEASE_SLACK_PART: u64 = 4;
/// Size of the first lease on a key, in multiples of the request's cost.
const FIRST_LEASE: u64 = 8;
/// Smallest lease, in multiples of the request's cost; smaller ones do not pay for their return.
const MIN_LEASE: u64 = 4;
/// Largest lease.
const MAX_LEASE: u64 = 1 << 20;

/// Milliseconds until a lease of `amount` is returned.
pub(super) fn settle_ms(amount: u64, limit: u64) -> u64 {
    if amount <= limit / SMALL_PART { SETTLE_SMALL_MS } else { SETTLE_MS }
}

/// Most keys that wait to be recalled: a second's, within which leases are returned anyway. With one more, all leases are recalled.
const MAX_RECALLS: usize = 256;
/// Most leases that are returned in one tick.
const RETURNS_A_TICK: usize = 4_096;

/// A lease that was just taken; none if its amount is 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewLease {
    pub(super) amount: u64,
    /// What is left of the limit besides it.
    pub(super) spare: u64,
}

/// The leases of a worker, and those that other workers are to return.
#[derive(Debug, Default)]
pub(in crate::limiter) struct Leases {
    /// When each lease is to be returned.
    by_time: BTreeSet<(MonoMs, u64)>,
    /// Keys whose leases the other workers are to return.
    recalls: Vec<u64>,
    /// The same for all keys, as too many waited.
    recalls_all: bool,
    /// Leases that are still to be returned, as all are recalled.
    returning: usize,
}

impl Leases {
    pub(super) fn push(&mut self, due: MonoMs, fingerprint: u64) {
        self.by_time.insert((due, fingerprint));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_time.is_empty()
    }

    /// The leases to return in this tick, because all are recalled.
    pub(super) fn take_recalled(&mut self) -> Vec<u64> {
        let returned = self.returning.min(RETURNS_A_TICK);
        self.returning -= returned;
        (0..returned).map_while(|_| self.by_time.pop_first()).map(|(_, fingerprint)| fingerprint).collect()
    }

    /// The leases that are due, at most those of one tick.
    pub(super) fn take_due(&mut self, now: MonoMs) -> Vec<(MonoMs, u64)> {
        let mut due = Vec::new();
        while due.len() < RETURNS_A_TICK
            && let Some(first) = self.by_time.first().copied().filter(|(at, _)| *at <= now)
        {
            self.by_time.remove(&first);
            due.push(first);
        }
        due
    }

    /// All leases are to be returned.
    pub(in crate::limiter) fn recall_all(&mut self) {
        self.returning = self.by_time.len();
    }

    /// Asks the other workers to return their leases on a key.
    pub(super) fn recall(&mut self, fingerprint: u64) {
        if self.recalls_all || self.recalls.contains(&fingerprint) {
            return;
        }
        if self.recalls.len() >= MAX_RECALLS {
            self.recalls.clear();
            self.recalls_all = true;
            return;
        }
        self.recalls.push(fingerprint);
    }

    /// The keys to recall with the next access to the registry, and whether all are.
    pub(in crate::limiter) fn take_recalls(&mut self) -> (Vec<u64>, bool) {
        (core::mem::take(&mut self.recalls), core::mem::take(&mut self.recalls_all))
    }

    /// Keeps the recalls for which the registry had no room, or to which the access failed.
    pub(in crate::limiter) fn keep_recalls(&mut self, recalls: Vec<u64>, all: bool) {
        (self.recalls, self.recalls_all) = (recalls, all);
    }

    /// All leases.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = u64> + use<> {
        core::mem::take(&mut self.by_time).into_iter().map(|(_, fingerprint)| fingerprint)
    }
}

/// Charges what was spent of the lease, returns the rest, and copies what the region acknowledged.
pub(super) fn settle_into(entry: &mut Entry, slot: Option<&Slot>, tag: Tag, now: MonoMs) -> bool {
    let Some(slot) = slot else { return false };
    let Acked { sequence, own, before } = slot.acked;
    entry.confirm(sequence, own);
    entry.confirm(sequence.saturating_sub(1), before);
    if slot.lease.amount == 0 {
        return false;
    }
    // If it is missing, it has expired and counts as spent already.
    // A worker has one lease on a key; the number of its cell may have changed when the clock stepped.
    if let Some((sequence, _)) = entry.release_newest(tag)
        && slot.lease.spent > 0
    {
        entry.charge_in(sequence, slot.lease.spent, now);
    }
    true
}

/// Reserves a lease if it pays and leaves enough to others; returns its size.
pub(super) fn take_lease(
    entry: &mut Entry,
    slot: Option<&Slot>,
    tag: Tag,
    spare: u64,
    cost: u64,
    nodes: u32,
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
    let within_slack = slack(spared, nodes).saturating_sub(entry.unconfirmed_with(0)) / LEASE_SLACK_PART;
    let amount = wanted.min(spare / LEASE_PART).min(within_slack).min(MAX_LEASE).min(MAX_COUNT);
    let expires_ms = settle_ms(amount, entry.limit).saturating_mul(4);
    let worth_it = amount >= cost.saturating_mul(MIN_LEASE);
    if worth_it && entry.reserve(tag, amount, now.after(expires_ms)) { amount } else { 0 }
}
