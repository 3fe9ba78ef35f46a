//! Charges one key: by the worker's lease, or in the table by the decision of `judge`.

use super::item::Item;
use super::judge::{Health, Verdict, is_strict, judge};
use super::lease::{self, settle_into, take_lease};
use crate::limiter::Limiter;
use crate::limiter::cache::worker_cache::{CACHED_MS, CachedDenial, Lease, NotedLimit, Remains, Slot};
use crate::limiter::check::{Budget, Cause, Check, Decision, Denial, Reason};
use crate::limiter::report::outbox::{Row, row};
use crate::limiter::table::{Cell, Entry, Reservation, ReservationKind, Tag};
use crate::limiter::transact::{Done, Failed, Make, Subject};
use crate::model::shared::Shared;
use crate::model::time::{MonoMs, Now, UnixMs};
use crate::model::window::{Position, Used};

/// A reservation of [`Mode::Hold`] counts as spent after this time, as its worker must have died.
const HOLD_EXPIRES_MS: u64 = 4_000;
/// A denial under a higher limit than that of the entry passes it on at most once in this time. A lower limit is passed on at once.
const RAISED_MS: u64 = 1_000;
/// `retry-after` of a denial that was caused by a missing answer of the region.
pub(in crate::limiter) const UNDECIDED_RETRY_MS: u64 = 1_000;

/// Result of charging an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::limiter) enum Charged {
    /// Charged; the remaining budget.
    Admitted(Budget),
    /// Reserved; `overflow` if in the overflow cell that the key shares with others.
    Deferred {
        budget: Budget,
        overflow: bool,
    },
    Denied(Denial),
    Query(Reason),
}

/// How an item is charged in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::limiter) enum Mode {
    /// Spends the cost.
    Spend,
    /// Reserves the cost until the other cells of the request have been decided.
    Hold,
    /// Changes nothing.
    Peek,
}

/// Result of a transaction on an entry.
#[derive(Clone, Copy, Debug)]
struct Judged {
    verdict: Verdict,
    /// Size of the lease that was taken in the same transaction.
    leased: u64,
    /// The cost was reserved for a request with a deferred cost.
    held: bool,
    /// Remaining budget, the lease included.
    remaining: u64,
    /// The position in the entry's cells.
    at: Position,
    /// The denial begins strict mode.
    begins_strict: bool,
    /// Another limit than before applies, which the region is to receive.
    limit_changed: bool,
    /// The limit rises while other workers have leases under the former one.
    recalls: bool,
}

impl Limiter {
    /// The remaining budget if the worker's lease covers the item's cost. Spends nothing yet.
    pub(in crate::limiter) fn covered_by_lease(
        &mut self,
        item: &Item,
        check: &Check<'_>,
        now: Now,
    ) -> Option<Budget> {
        let slot = self.worker_cache.get(item.fingerprint)?;
        slot.used = now.mono;
        let mut lease = slot.lease;
        spend(&mut lease, item, check, now)
    }

    /// Decides by the worker cache alone: a cached denial, or a lease, which is spent.
    pub(in crate::limiter) fn decide_from_cache(
        &mut self,
        item: &Item,
        check: &Check<'_>,
        now: Now,
    ) -> Option<Decision> {
        let clock_steps = self.clock_steps;
        let slot = self.worker_cache.get(item.fingerprint)?;
        if let Some(Some(denial)) = cached_denial(slot, clock_steps, item, check, now.mono) {
            return Some(Decision::Deny(denial));
        }
        slot.used = now.mono;
        let budget = spend(&mut slot.lease, item, check, now)?;
        slot.denied = None;
        Some(Decision::Allow(Some(budget)))
    }

    /// Spends the lease that [`Limiter::covered_by_lease`] found.
    pub(in crate::limiter) fn spend_lease(&mut self, item: &Item, check: &Check<'_>, now: Now) {
        let sequence = Position::at(now.unix, check.cell_ms).sequence;
        if let Some(slot) = self.worker_cache.get(item.fingerprint) {
            slot.lease.spend(item.cost, sequence, now.mono);
            slot.denied = None;
        }
    }

    /// Whether the counts at the last reading of the table deny the item. Counts only grow, so a denial is certain; `None` if the table has
    /// to be read.
    pub(in crate::limiter) fn cached_denial(
        &mut self,
        item: &Item,
        check: &Check<'_>,
        now: MonoMs,
    ) -> Option<Option<Denial>> {
        let clock_steps = self.clock_steps;
        cached_denial(self.worker_cache.get(item.fingerprint)?, clock_steps, item, check, now)
    }

    /// Decides one item in the table. `health` is `None` if the region was queried already or is not to be queried.
    pub(in crate::limiter) fn charge(
        &mut self,
        shared: &mut impl Shared,
        item: &Item,
        check: &Check<'_>,
        mode: Mode,
        health: Option<&Health>,
        now: Now,
    ) -> Charged {
        let slot = self.worker_cache.get(item.fingerprint).copied();
        let lease_tag = self.tag(ReservationKind::Lease);
        let hold_tag = self.tag(ReservationKind::Hold);
        let open_tag = self.tag(ReservationKind::Deferred);
        let origins = self.origins(now.mono);
        let trusted = health
            .filter(|s| (check.policy.trust_first || !s.cold) && s.usable && s.has_snapshot())
            .is_some();
        let subject = Subject {
            fingerprint: item.fingerprint,
            key: Some(check.key),
            make: if mode == Mode::Peek { Make::Look } else { Make::Always },
        };
        let change = |entry: &mut Entry, at: &Position| {
            // The worker cache does not apply to an overflow cell: a lease could not be found again by the key's fingerprint, and the
            // region's acknowledgement of the key does not cover the cell.
            let is_own = entry.fingerprint == item.fingerprint;
            let settles = is_own && mode != Mode::Peek;
            let settled = settles && settle_into(entry, slot.as_ref(), lease_tag, now.mono);
            let cost_and_limit = (item.cost, item.limit);
            let mut verdict = judge(entry, at, cost_and_limit, &check.policy, health, now.mono);
            let (mut leased, mut held) = (0, false);
            let mut begins_strict = false;
            let before = entry.limit;
            let configured_before = entry.configured;
            let is_lower = is_own && !item.peeks && lowers(entry, item.limit, &verdict);
            if is_lower {
                entry.apply(item.limit, item.configured);
            }
            let mut kept = settled || is_lower;
            match (verdict, mode) {
                (Verdict::Admit { spare }, Mode::Spend) => {
                    entry.apply(item.limit, item.configured);
                    if trusted && entry.viewed == MonoMs(0) {
                        entry.viewed = now.mono;
                    }
                    held = item
                        .deferred
                        .as_ref()
                        .is_some_and(|deferred| deferred.reserve(entry, open_tag, item.cost, now.mono));
                    if !held {
                        entry.charge(item.cost, now.mono);
                    }
                    let strict = is_strict(entry, at, item.limit, origins, now.mono);
                    // Use under one limit may exceed another, and a lease of that would not show it.
                    let has_one_limit = before == 0 || before == item.limit;
                    if is_own && has_one_limit && item.deferred.is_none() && !strict {
                        leased =
                            take_lease(entry, slot.as_ref(), lease_tag, spare, item.cost, origins, now.mono);
                    }
                    kept = true;
                }
                (Verdict::Admit { .. }, Mode::Hold) => {
                    entry.apply(item.limit, item.configured);
                    // Without a reservation the cost could not be charged later, so the request is denied as reserved.
                    if entry.reserve(hold_tag, item.cost, now.mono.after(HOLD_EXPIRES_MS)) {
                        kept = true;
                    } else {
                        verdict = Verdict::Reserved;
                    }
                }
                // A shadow rule's denial does not count as one.
                (Verdict::Deny { .. }, Mode::Spend | Mode::Hold) if !item.shadow => {
                    begins_strict = entry.strict_until <= now.mono;
                    kept |= note_denial(entry, at, is_own.then_some((item.limit, item.configured)), now.mono);
                }
                _ => {}
            }
            let limit_changed = is_own && (entry.limit, entry.configured) != (before, configured_before);
            let has_lease =
                |held: &Reservation| held.tag.kind == ReservationKind::Lease && held.tag != lease_tag;
            let recalls = limit_changed && entry.limit > before && entry.reservations.iter().any(has_lease);
            let remaining = match verdict {
                Verdict::Deny { .. } => entry.used().remaining(at, item.limit),
                _ => entry.used_and_reserved().remaining(at, item.limit).saturating_add(leased),
            };
            let at = *at;
            let judged =
                Judged { verdict, leased, held, remaining, at, begins_strict, limit_changed, recalls };
            (judged, kept)
        };
        match self.table.transact(shared, subject, now, &mut self.stats, change) {
            Ok(done) => self.conclude(item, check, mode, slot, done, now),
            // The key is not in the table, so nothing of it is used.
            Err(Failed::Absent) => {
                let at = Position::at(now.unix, check.cell_ms);
                self.cache_peek(item, (Used::NOTHING, at), mode, now.mono);
                Charged::Admitted(self.untouched(item, check, now))
            }
            Err(Failed::Exhausted) => Charged::Denied(self.crowded(item, check, now)),
        }
    }

    /// Ends a reservation of [`Mode::Hold`]: spends it, turns it into a deferred cost's reservation, or returns it. `overflow` is that of
    /// [`Charged::Deferred`].
    pub(in crate::limiter) fn end_hold(
        &mut self,
        shared: &mut impl Shared,
        item: &Item,
        check: &Check<'_>,
        (overflow, spend): (bool, bool),
        now: Now,
    ) {
        let tag = self.tag(ReservationKind::Hold);
        let open_tag = self.tag(ReservationKind::Deferred);
        let subject = Subject { fingerprint: item.fingerprint, key: Some(check.key), make: Make::Never };
        let change = |entry: &mut Entry, _: &Position| {
            let held = entry.release_newest(tag);
            let mut goes_on = false;
            if let Some((sequence, amount)) = held.filter(|_| spend) {
                goes_on = item
                    .deferred
                    .as_ref()
                    .is_some_and(|deferred| deferred.reserve(entry, open_tag, amount, now.mono));
                if !goes_on {
                    entry.charge_in(sequence, amount, now.mono);
                }
            }
            (goes_on, held.is_some())
        };
        let ended = self.table.transact_where(shared, overflow, subject, now, &mut self.stats, change);
        if spend {
            let held = ended.as_ref().is_ok_and(|done| done.result);
            self.opened(item, check, (held, overflow), now);
        }
        if let Some(done) = ended.ok().filter(|done| spend || done.regained) {
            self.note_cells(&done.entry, now.mono);
        }
    }

    /// Returns a lease to the table; takes a new one if it was used and may be renewed.
    pub(in crate::limiter) fn settle(
        &mut self,
        shared: &mut impl Shared,
        fingerprint: u64,
        go_on: bool,
        now: Now,
    ) {
        let Some(slot) = self.worker_cache.get(fingerprint).copied().filter(|slot| slot.lease.amount > 0)
        else {
            return;
        };
        let tag = self.tag(ReservationKind::Lease);
        let origins = self.origins(now.mono);
        let go_on = go_on && slot.lease.spent > 0;
        let change = |entry: &mut Entry, at: &Position| {
            settle_into(entry, Some(&slot), tag, now.mono);
            let spare = entry.used_and_reserved().remaining(at, entry.limit);
            let has_one_limit = slot.lease.limits == (entry.limit, entry.configured);
            let go_on = go_on && has_one_limit && !is_strict(entry, at, entry.limit, origins, now.mono);
            let leased =
                if go_on { take_lease(entry, Some(&slot), tag, spare, 1, origins, now.mono) } else { 0 };
            ((leased, spare, *at), true)
        };
        let subject = Subject { fingerprint, key: None, make: Make::Never };
        match self.table.transact(shared, subject, now, &mut self.stats, change) {
            Ok(Done { result: (leased, spare, at), entry, .. }) => {
                self.note_cells(&entry, now.mono);
                self.put_lease(fingerprint, (leased, spare.saturating_sub(leased)), &entry, &at, now.mono);
            }
            Err(Failed::Absent) => {
                if let Some(slot) = self.worker_cache.get(fingerprint) {
                    slot.lease = Lease::default();
                }
            }
            Err(Failed::Exhausted) => self.leases.push(now.mono.after(crate::limiter::TICK_MS), fingerprint),
        }
    }

    pub(in crate::limiter) fn tag(&self, kind: ReservationKind) -> Tag {
        Tag { worker: self.worker, kind }
    }

    /// Queues the entry's counts for the next report.
    pub(in crate::limiter) fn note_cells(&mut self, entry: &Entry, now: MonoMs) {
        self.note_where(entry, now, UnixMs(0), |_, cell| cell.is_unreported());
    }

    /// The same where a request has applied the entry's limit now.
    pub(in crate::limiter) fn note_applied(&mut self, entry: &Entry, now: Now) {
        self.note_where(entry, now.mono, now.unix, |_, cell| cell.is_unreported());
    }

    /// The same where the limit differs from the former one, with the newest cell, and with those that are reported already under higher
    /// limits alone. Where two limits alternate, the newest cell has each change.
    fn note_limit(&mut self, entry: &Entry, now: Now) {
        let newest = entry.sequence;
        let slot = self.worker_cache.entry(entry.fingerprint, now.mono);
        let first = slot.map_or(0, |slot| NotedLimit::note(&mut slot.noted, entry.limit, newest));
        let applies = |sequence, cell: &Cell| {
            sequence == newest || (cell.own > 0 && sequence >= first) || cell.is_unreported()
        };
        self.note_where(entry, now.mono, now.unix, applies);
    }

    /// The same for cells whose baseline is known: what was reported without it was not stored. Cells that wait for their baseline are in
    /// a report already.
    pub(in crate::limiter) fn note_based_cells(&mut self, entry: &Entry, now: MonoMs) {
        let which = |_, cell: &Cell| !cell.without_baseline && cell.is_unreported();
        self.note_where(entry, now, UnixMs(0), which);
    }

    fn note_where(
        &mut self,
        entry: &Entry,
        now: MonoMs,
        applied: UnixMs,
        which: impl Fn(u64, &Cell) -> bool,
    ) {
        for (sequence, cell) in entry.cells().filter(|(sequence, cell)| which(*sequence, cell)) {
            let row = row(entry, self.table.key(), sequence, cell);
            // What a key used in an overflow cell may become its own before a request shows the limit.
            let is_unknown = entry.limit == 0 && entry.configured.is_none() && applied == UnixMs(0);
            let limit = if is_unknown { u64::MAX } else { entry.limit };
            self.outbox.note(&Row { limit, applied, ..row }, now);
        }
    }

    fn conclude(
        &mut self,
        item: &Item,
        check: &Check<'_>,
        mode: Mode,
        slot: Option<Slot>,
        done: Done<Judged>,
        now: Now,
    ) -> Charged {
        let Judged { verdict, leased, held, remaining, at, begins_strict, limit_changed, recalls } =
            done.result;
        self.stats.strict = self.stats.strict.saturating_add(u64::from(begins_strict));
        let had_lease = slot.is_some_and(|slot| slot.lease.amount > 0) && mode != Mode::Peek;
        if done.regained {
            self.note_cells(&done.entry, now.mono);
        }
        let spends = verdict_spends(verdict, mode);
        match (limit_changed, spends) {
            (true, _) => self.note_limit(&done.entry, now),
            (false, true) => self.note_applied(&done.entry, now),
            (false, false) if had_lease => self.note_cells(&done.entry, now.mono),
            (false, false) => {}
        }
        if recalls {
            self.leases.recall(done.entry.fingerprint);
        }
        if spends || had_lease {
            self.worker_cache.entry(item.fingerprint, now.mono);
            let spare = remaining.saturating_sub(leased);
            self.put_lease(item.fingerprint, (leased, spare), &done.entry, &at, now.mono);
        }
        if spends {
            self.opened(item, check, (held, done.overflow), now);
        }
        let budget = Budget { rule: check.rule, limit: item.limit, remaining, reset_ms: at.until_next_ms() };
        if !done.overflow {
            self.cache_peek(item, (done.entry.used(), at), mode, now.mono);
        }
        match verdict {
            Verdict::Admit { .. } if mode == Mode::Hold => {
                Charged::Deferred { budget, overflow: done.overflow }
            }
            Verdict::Admit { .. } => Charged::Admitted(budget),
            Verdict::Query(reason) => Charged::Query(reason),
            Verdict::Undecided => Charged::Denied(Denial {
                budget,
                retry_after_ms: Some(UNDECIDED_RETRY_MS),
                cause: Cause::Undecided,
            }),
            Verdict::Reserved => {
                // Holds and queries end by themselves soon.
                let lease = |held: &Reservation| held.tag.kind == ReservationKind::Lease;
                let fingerprint = done.entry.fingerprint;
                if done.entry.reservations.iter().any(lease) {
                    self.leases.recall(fingerprint);
                }
                Charged::Denied(Denial {
                    budget,
                    retry_after_ms: Some(crate::limiter::TICK_MS),
                    cause: Cause::Reserved,
                })
            }
            Verdict::Deny { wait_ms } => {
                if !done.overflow {
                    self.cache_denial(item, (done.entry.used(), at), wait_ms, now.mono);
                }
                Charged::Denied(Denial { budget, retry_after_ms: wait_ms, cause: Cause::Limit })
            }
        }
    }

    /// Caches what was read without a charge. If it does not deny, that is known for as long as a denial would be.
    fn cache_peek(&mut self, item: &Item, read: (Used, Position), mode: Mode, now: MonoMs) {
        if mode == Mode::Peek && !item.shadow && item.cost > 0 {
            self.cache_denial(item, read, Some(0), now);
        }
    }

    fn cache_denial(&mut self, item: &Item, (used, at): (Used, Position), wait_ms: Option<u64>, now: MonoMs) {
        let clock_steps = self.clock_steps;
        let Some(wait_ms) = wait_ms else { return };
        if let Some(slot) = self.worker_cache.entry(item.fingerprint, now) {
            let (cost, limit, until) = (item.cost, item.limit, now.after(wait_ms));
            let used = Remains::of(&used, &at);
            slot.denied = Some(CachedDenial { used, at, since: now, cost, limit, until, clock_steps });
        }
    }

    pub(in crate::limiter) fn put_lease(
        &mut self,
        fingerprint: u64,
        (amount, spare): (u64, u64),
        entry: &Entry,
        at: &Position,
        now: MonoMs,
    ) {
        let Some(slot) = self.worker_cache.get(fingerprint) else { return };
        // The cached denial is outdated, as more is used now.
        slot.denied = None;
        slot.used = now;
        let last = if amount > 0 { amount } else { slot.lease.last };
        let limits = (entry.limit, entry.configured);
        let settle_ms = lease::settle_ms(amount, entry.limit);
        let due = now.after(settle_ms.min(at.until_next_ms()));
        let until = now.after(settle_ms.saturating_mul(2));
        slot.lease = Lease { amount, spent: 0, sequence: at.sequence, due, until, limits, spare, last };
        if amount > 0 {
            self.stats.leases += 1;
            self.leases.push(due, fingerprint);
        }
    }

    /// Whether the lease is still the one that is due at `due`, and not a later one.
    pub(in crate::limiter) fn is_due(&mut self, fingerprint: u64, due: MonoMs) -> bool {
        self.worker_cache.get(fingerprint).is_some_and(|slot| slot.lease.amount > 0 && slot.lease.due <= due)
    }

    pub(in crate::limiter) fn untouched(&self, item: &Item, check: &Check<'_>, now: Now) -> Budget {
        let reset_ms = Position::at(now.unix, check.cell_ms).until_next_ms();
        Budget { rule: check.rule, limit: item.limit, remaining: item.limit, reset_ms }
    }

    fn crowded(&self, item: &Item, check: &Check<'_>, now: Now) -> Denial {
        let budget = Budget { remaining: 0, ..self.untouched(item, check, now) };
        Denial { budget, retry_after_ms: Some(crate::limiter::TICK_MS), cause: Cause::Reserved }
    }
}

fn verdict_spends(verdict: Verdict, mode: Mode) -> bool {
    mode == Mode::Spend && matches!(verdict, Verdict::Admit { .. })
}

/// Whether a limit is lower than the one that the region has from this process. Where the process has used nothing, the region has none,
/// and a denial shows which applies.
fn lowers(entry: &Entry, limit: u64, verdict: &Verdict) -> bool {
    let is_unused = entry.limit == 0 && entry.charged == MonoMs(0);
    limit < entry.limit || (is_unused && limit > 0 && matches!(verdict, Verdict::Deny { .. }))
}

/// Notes a denial under a limit, which the entry takes over with the end of strict mode. Returns true if the entry has changed.
fn note_denial(entry: &mut Entry, at: &Position, applied: Option<(u64, Option<u64>)>, now: MonoMs) -> bool {
    let is_higher = applied.is_some_and(|(limit, _)| entry.limit < limit);
    let moves = note_strict(entry, at, is_higher, now);
    if let Some((limit, configured)) = applied.filter(|_| moves) {
        entry.apply(limit, configured);
    }
    moves
}

/// Begins or extends strict mode: for a window's length after a denial the local count alone does not admit. If the denied limit
/// `is_higher` than the entry's, it moves at least once in [`RAISED_MS`].
fn note_strict(entry: &mut Entry, at: &Position, is_higher: bool, now: MonoMs) -> bool {
    let window_ms = entry.window_ms(at.cell_ms);
    let until = now.after(window_ms);
    let pause_ms = if is_higher { RAISED_MS.min(window_ms / 8) } else { window_ms / 8 };
    let moves = until.since(entry.strict_until) > pause_ms;
    if moves {
        entry.strict_until = until;
    }
    moves
}

/// Spends the item's cost of a lease; returns the remaining budget. `None`, and nothing is spent, if the lease does not cover it.
fn spend(lease: &mut Lease, item: &Item, check: &Check<'_>, now: Now) -> Option<Budget> {
    if lease.amount == 0 || lease.limits != (item.limit, item.configured) || item.deferred.is_some() {
        return None;
    }
    let at = Position::at(now.unix, check.cell_ms);
    lease.spend(item.cost, at.sequence, now.mono).then(|| {
        let remaining = lease.spare.saturating_add(lease.amount - lease.spent);
        Budget { rule: check.rule, limit: item.limit, remaining, reset_ms: at.until_next_ms() }
    })
}

/// What the cache has of the key: a denial, or that the table did not deny; `None` if that does not follow.
fn cached_denial(
    slot: &Slot,
    clock_steps: u64,
    item: &Item,
    check: &Check<'_>,
    now: MonoMs,
) -> Option<Option<Denial>> {
    let is_recent =
        |cached: &&CachedDenial| cached.clock_steps == clock_steps && now.since(cached.since) < CACHED_MS;
    let cached = slot.denied.as_ref().filter(is_recent)?;
    // The table is read once for another limit, so that the region receives it.
    if item.limit < cached.limit
        || (item.limit > cached.limit && now.since(cached.since) > RAISED_MS.min(check.cell_ms / 8))
    {
        return None;
    }
    let same = (item.cost, item.limit) == (cached.cost, cached.limit);
    let (until, remaining, reset_ms) = cached.seen_at(now, same, (item.cost, item.limit))?;
    let budget = Budget { rule: check.rule, limit: item.limit, remaining, reset_ms };
    let denied = Denial { budget, retry_after_ms: Some(until.since(now)), cause: Cause::Limit };
    Some((now < until).then_some(denied))
}
