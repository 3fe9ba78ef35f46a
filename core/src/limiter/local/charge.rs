//! Charges one key: by the worker's lease, or in the table by the decision of `judge`.

use super::Local;
use super::deferred::Reserve;
use super::item::Item;
use super::judge::{Basis, Obstacle, is_strict};
use super::lease::{self, NewLease, settle_into, take_lease};
use super::outbox::{Reserved, Row, row};
use super::transact::{Done, Failed, Make, Subject};
use super::trial::{Judged, RAISED_MS, Trial};
use super::worker_cache::{CACHED_MS, CachedDenial, Lease, NotedLimit, Remains, SeenDenial, Slot};
use crate::limiter::TICK_MS;
use crate::limiter::check::{Budget, Cause, Check, Decision, Denial};
use crate::limiter::table::{Cell, Entry, Reservation, ReservationKind};
use crate::model::shared::Shared;
use crate::model::time::{MonoMs, Now, UnixMs};
use crate::model::window::{Position, Used};
use core::convert::Infallible;

/// A reservation of a [`Hold`] counts as spent after this time, as its worker must have died.
const HOLD_EXPIRES_MS: u64 = 4_000;
/// `retry-after` of a denial that was caused by a missing answer of the region.
pub(in crate::limiter) const UNDECIDED_RETRY_MS: u64 = 1_000;

/// Why an item is not charged. `Q` is the query that its basis allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal<Q> {
    Denied(Denial),
    Query(Q),
}

impl Refusal<Infallible> {
    /// The denial, where no query may be sent.
    pub(super) fn denial(self) -> Denial {
        let Refusal::Denied(denial) = self;
        denial
    }
}

/// A cost that is reserved in the table until the other cells of its request have been decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hold {
    pub(super) budget: Budget,
    /// It is in the overflow cell that the key shares with others.
    pub(super) overflow: bool,
}

/// What was done about a cost that is spent.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    /// Size of the lease that was taken in the same transaction.
    leased: u64,
    /// The cost is reserved, as it is deferred.
    reserved: bool,
}

impl Local {
    /// The remaining budget if the worker's lease covers the item's cost. Spends nothing yet.
    pub(super) fn covered_by_lease(&mut self, item: &Item, check: &Check<'_>, now: Now) -> Option<Budget> {
        let slot = self.worker_cache.get(item.fingerprint)?;
        slot.used = now.mono;
        let mut lease = slot.lease;
        spend(&mut lease, item, check, now)
    }

    /// Decides by the worker cache alone: a cached denial, or a lease, which is spent.
    pub(super) fn decide_from_cache(&mut self, item: &Item, check: &Check<'_>, now: Now) -> Option<Decision> {
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

    /// Spends the lease that [`Local::covered_by_lease`] found.
    pub(super) fn spend_lease(&mut self, item: &Item, check: &Check<'_>, now: Now) {
        let sequence = Position::at(now.unix, check.cell_ms).sequence;
        if let Some(slot) = self.worker_cache.get(item.fingerprint) {
            slot.lease.spend(item.cost, sequence, now.mono);
            slot.denied = None;
        }
    }

    /// Whether the counts at the last reading of the table deny the item. Counts only grow, so a denial is certain; `None` if the table has
    /// to be read.
    pub(super) fn cached_denial(
        &mut self,
        item: &Item,
        check: &Check<'_>,
        now: MonoMs,
    ) -> Option<Option<Denial>> {
        let clock_steps = self.clock_steps;
        cached_denial(self.worker_cache.get(item.fingerprint)?, clock_steps, item, check, now)
    }

    /// Decides one item in the table, and charges nothing.
    pub(super) fn look<B: Basis>(
        &mut self,
        shared: &mut impl Shared,
        item: &Item,
        check: &Check<'_>,
        basis: &B,
        now: Now,
    ) -> Result<Budget, Refusal<B::Query>> {
        let trial = Trial { item, check, basis, lease_tag: self.tag(ReservationKind::Lease), now: now.mono };
        let subject = Subject { fingerprint: item.fingerprint, key: Some(check.key), make: Make::Look };
        let change = |entry: &mut Entry, at: &Position| trial.look(entry, at);
        match self.table.transact(shared, subject, now, &mut self.stats, change) {
            Ok(done) => {
                let (judged, done) = done.split();
                self.note_judged(&judged, &done, now);
                if !done.overflow {
                    self.cache_look(item, (done.entry.used(), judged.at), now.mono);
                }
                self.conclude(item, check, judged, &done, now.mono).map(|(budget, ())| budget)
            }
            Err(_) => Err(Refusal::Denied(self.crowded(item, check, now))),
        }
    }

    /// Decides one item in the table, and spends its cost, or reserves it if it is deferred. A lease may be taken with it.
    pub(super) fn spend<B: Basis>(
        &mut self,
        shared: &mut impl Shared,
        item: &Item,
        check: &Check<'_>,
        basis: &B,
        now: Now,
    ) -> Result<Budget, Refusal<B::Query>> {
        let slot = self.worker_cache.get(item.fingerprint).copied();
        let trial = Trial { item, check, basis, lease_tag: self.tag(ReservationKind::Lease), now: now.mono };
        let deferred_tag = self.tag(ReservationKind::Deferred);
        let subject = Subject { fingerprint: item.fingerprint, key: Some(check.key), make: Make::Always };
        let change = |entry: &mut Entry, at: &Position| {
            // Use under one limit may exceed another, and a lease of that would not show it.
            let has_one_limit = entry.limit == 0 || entry.limit == item.limit;
            trial.charge(entry, at, slot.as_ref(), |entry, spare| {
                if entry.viewed == MonoMs(0) && basis.covers_unreceived(&check.policy) {
                    entry.viewed = now.mono;
                }
                let reserved = item
                    .deferred
                    .as_ref()
                    .is_some_and(|deferred| deferred.reserve(entry, deferred_tag, item.cost, now.mono));
                if !reserved {
                    entry.charge(item.cost, now.mono);
                }
                let may_lease = trial.is_own(entry) && has_one_limit && item.deferred.is_none();
                let leased = match may_lease && !is_strict(entry, at, item.limit, basis.nodes(), now.mono) {
                    true => {
                        let nodes = basis.nodes();
                        take_lease(entry, slot.as_ref(), trial.lease_tag, spare, item.cost, nodes, now.mono)
                    }
                    false => 0,
                };
                Ok(Spent { leased, reserved })
            })
        };
        let Ok(done) = self.table.transact(shared, subject, now, &mut self.stats, change) else {
            return Err(Refusal::Denied(self.crowded(item, check, now)));
        };
        let (judged, done) = done.split();
        self.note_judged(&judged, &done, now);
        self.note_charged(item, slot.as_ref(), &judged, judged.verdict.ok(), &done, now);
        let (budget, spent) = self.conclude(item, check, judged, &done, now.mono)?;
        let reserve = Reserve { amount: item.cost, held: spent.reserved, overflow: done.overflow };
        if spent.reserved {
            self.note_reserved(&done.entry, now);
        }
        self.opened(item, check, reserve, now);
        Ok(Budget { remaining: budget.remaining.saturating_add(spent.leased), ..budget })
    }

    /// Decides one item in the table, and reserves its cost until the other cells of the request have been decided. End it by
    /// [`Local::spend_hold`] or [`Local::return_hold`].
    pub(super) fn hold<B: Basis>(
        &mut self,
        shared: &mut impl Shared,
        item: &Item,
        check: &Check<'_>,
        basis: &B,
        now: Now,
    ) -> Result<Hold, Refusal<B::Query>> {
        let slot = self.worker_cache.get(item.fingerprint).copied();
        let trial = Trial { item, check, basis, lease_tag: self.tag(ReservationKind::Lease), now: now.mono };
        let hold_tag = self.tag(ReservationKind::Hold);
        let subject = Subject { fingerprint: item.fingerprint, key: Some(check.key), make: Make::Always };
        let change = |entry: &mut Entry, at: &Position| {
            trial.charge(entry, at, slot.as_ref(), |entry, _| {
                // Without a reservation the cost could not be charged later, so the request is denied as reserved.
                let is_held = entry.reserve(hold_tag, item.cost, now.mono.after(HOLD_EXPIRES_MS));
                is_held.then_some(()).ok_or(Obstacle::Reserved)
            })
        };
        let Ok(done) = self.table.transact(shared, subject, now, &mut self.stats, change) else {
            return Err(Refusal::Denied(self.crowded(item, check, now)));
        };
        let (judged, done) = done.split();
        self.note_judged(&judged, &done, now);
        self.note_charged(item, slot.as_ref(), &judged, None, &done, now);
        let (budget, ()) = self.conclude(item, check, judged, &done, now.mono)?;
        Ok(Hold { budget, overflow: done.overflow })
    }

    /// Spends a hold, or turns it into a deferred cost's reservation. `overflow` is that of the [`Hold`].
    pub(super) fn spend_hold(
        &mut self,
        shared: &mut impl Shared,
        item: &Item,
        check: &Check<'_>,
        overflow: bool,
        now: Now,
    ) {
        let tag = self.tag(ReservationKind::Hold);
        let deferred_tag = self.tag(ReservationKind::Deferred);
        let subject = Subject { fingerprint: item.fingerprint, key: Some(check.key), make: Make::Never };
        let change = |entry: &mut Entry, _: &Position| {
            let Some((sequence, amount)) = entry.release_newest(tag) else { return (false, false) };
            let reserved = item
                .deferred
                .as_ref()
                .is_some_and(|deferred| deferred.reserve(entry, deferred_tag, amount, now.mono));
            if !reserved {
                entry.charge_in(sequence, amount, now.mono);
            }
            (reserved, true)
        };
        let ended = self.table.transact_where(shared, overflow, subject, now, &mut self.stats, change);
        let held = ended.as_ref().is_ok_and(|done| done.result);
        self.opened(item, check, Reserve { amount: item.cost, held, overflow }, now);
        if let Ok(done) = ended {
            self.note_cells(&done.entry, now.mono);
            if held {
                self.note_reserved(&done.entry, now);
            }
        }
    }

    /// Returns a hold. `overflow` is that of the [`Hold`].
    pub(super) fn return_hold(
        &mut self,
        shared: &mut impl Shared,
        item: &Item,
        check: &Check<'_>,
        overflow: bool,
        now: Now,
    ) {
        let tag = self.tag(ReservationKind::Hold);
        let subject = Subject { fingerprint: item.fingerprint, key: Some(check.key), make: Make::Never };
        let change = |entry: &mut Entry, _: &Position| ((), entry.release_newest(tag).is_some());
        let ended = self.table.transact_where(shared, overflow, subject, now, &mut self.stats, change);
        if let Some(done) = ended.ok().filter(|done| done.regained) {
            self.note_cells(&done.entry, now.mono);
        }
    }

    /// Returns a lease to the table; takes a new one if it was used and may be renewed.
    pub(in crate::limiter) fn settle(
        &mut self,
        shared: &mut impl Shared,
        fingerprint: u64,
        go_on: bool,
        nodes: u32,
        now: Now,
    ) {
        let Some(slot) = self.worker_cache.get(fingerprint).copied().filter(|slot| slot.lease.amount > 0)
        else {
            return;
        };
        let tag = self.tag(ReservationKind::Lease);
        let go_on = go_on && slot.lease.spent > 0;
        let change = |entry: &mut Entry, at: &Position| {
            settle_into(entry, Some(&slot), tag, now.mono);
            let spare = entry.used_and_reserved().remaining(at, entry.limit);
            let has_one_limit = slot.lease.limits == (entry.limit, entry.configured);
            let go_on = go_on && has_one_limit && !is_strict(entry, at, entry.limit, nodes, now.mono);
            let amount =
                if go_on { take_lease(entry, Some(&slot), tag, spare, 1, nodes, now.mono) } else { 0 };
            ((NewLease { amount, spare: spare.saturating_sub(amount) }, *at), true)
        };
        let subject = Subject { fingerprint, key: None, make: Make::Never };
        match self.table.transact(shared, subject, now, &mut self.stats, change) {
            Ok(Done { result: (lease, at), entry, .. }) => {
                self.note_cells(&entry, now.mono);
                self.put_lease(fingerprint, lease, &entry, &at, now.mono);
            }
            Err(Failed::Absent) => {
                if let Some(slot) = self.worker_cache.get(fingerprint) {
                    slot.lease = Lease::default();
                }
            }
            Err(Failed::Exhausted) => self.leases.push(now.mono.after(TICK_MS), fingerprint),
        }
    }

    /// Queues the entry's counts for the next report.
    pub(super) fn note_cells(&mut self, entry: &Entry, now: MonoMs) {
        self.note_where(entry, now, UnixMs(0), |_, cell| cell.is_unreported());
    }

    /// The same where a request has applied the entry's limit now.
    pub(super) fn note_applied(&mut self, entry: &Entry, now: Now) {
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
    pub(super) fn note_based_cells(&mut self, entry: &Entry, now: MonoMs) {
        let which = |_, cell: &Cell| !cell.without_baseline && cell.is_unreported();
        self.note_where(entry, now, UnixMs(0), which);
    }

    /// Queues what is reserved of the entry for deferred costs, as it has changed. A cell that waits for its baseline is in a report already.
    pub(super) fn note_reserved(&mut self, entry: &Entry, now: Now) {
        if entry.current.without_baseline {
            return;
        }
        let reserved = Some(Reserved { at: now.unix, amount: entry.deferred() });
        let row = row(entry, self.table.key(), entry.sequence, &entry.current);
        self.outbox.note(&Row { reserved, ..row }, now.mono);
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

    /// Notes what a transaction has changed beside the charge.
    fn note_judged<T, Q>(&mut self, judged: &Judged<T, Q>, done: &Done<()>, now: Now) {
        self.stats.strict = self.stats.strict.saturating_add(u64::from(judged.begins_strict));
        if done.regained {
            self.note_cells(&done.entry, now.mono);
        }
        if judged.limit_changed {
            self.note_limit(&done.entry, now);
        }
        if judged.recalls {
            self.leases.recall(done.entry.fingerprint);
        }
    }

    /// Notes what was `spent`, and the lease that was settled or taken for it.
    fn note_charged<T, Q>(
        &mut self,
        item: &Item,
        slot: Option<&Slot>,
        judged: &Judged<T, Q>,
        spent: Option<Spent>,
        done: &Done<()>,
        now: Now,
    ) {
        let had_lease = slot.is_some_and(|slot| slot.lease.amount > 0);
        if spent.is_none() && !had_lease {
            return;
        }
        match spent {
            _ if judged.limit_changed => {}
            Some(_) => self.note_applied(&done.entry, now),
            None => self.note_cells(&done.entry, now.mono),
        }
        self.worker_cache.entry(item.fingerprint, now.mono);
        let leased = spent.unwrap_or_default().leased;
        let lease = NewLease { amount: leased, spare: judged.remaining };
        self.put_lease(item.fingerprint, lease, &done.entry, &judged.at, now.mono);
    }

    /// What was done about an admitted cost and the budget that remains, or the reason why it is not admitted.
    fn conclude<T, Q>(
        &mut self,
        item: &Item,
        check: &Check<'_>,
        judged: Judged<T, Q>,
        done: &Done<()>,
        now: MonoMs,
    ) -> Result<(Budget, T), Refusal<Q>> {
        let Judged { verdict, remaining, at, .. } = judged;
        let budget = Budget { rule: check.rule, limit: item.limit, remaining, reset_ms: at.until_next_ms() };
        let denied = |cause, retry_after_ms| Refusal::Denied(Denial { budget, retry_after_ms, cause });
        Err(match verdict {
            Ok(charged) => return Ok((budget, charged)),
            Err(Obstacle::Query(query)) => Refusal::Query(query),
            Err(Obstacle::Undecided) => denied(Cause::Undecided, Some(UNDECIDED_RETRY_MS)),
            Err(Obstacle::Reserved) => {
                // Holds and queries end by themselves soon.
                let lease = |held: &Reservation| held.tag.kind == ReservationKind::Lease;
                if done.entry.reservations.iter().any(lease) {
                    self.leases.recall(done.entry.fingerprint);
                }
                denied(Cause::Reserved, Some(TICK_MS))
            }
            Err(Obstacle::Deny { wait_ms }) => {
                if !done.overflow {
                    self.cache_denial(item, (done.entry.used(), at), wait_ms, now);
                }
                denied(Cause::Limit, wait_ms)
            }
        })
    }

    /// Caches what was read without a charge. If it does not deny, that is known for as long as a denial would be.
    fn cache_look(&mut self, item: &Item, read: (Used, Position), now: MonoMs) {
        if !item.shadow && item.cost > 0 {
            self.cache_denial(item, read, Some(0), now);
        }
    }

    fn cache_denial(&mut self, item: &Item, (used, at): (Used, Position), wait_ms: Option<u64>, now: MonoMs) {
        let clock_steps = self.clock_steps;
        let Some(wait_ms) = wait_ms else { return };
        if let Some(slot) = self.worker_cache.entry(item.fingerprint, now) {
            let (attempt, until) = (item.attempt(), now.after(wait_ms));
            let used = Remains::of(&used, &at);
            slot.denied = Some(CachedDenial { used, at, since: now, attempt, until, clock_steps });
        }
    }

    pub(super) fn put_lease(
        &mut self,
        fingerprint: u64,
        NewLease { amount, spare }: NewLease,
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
    pub(super) fn is_due(&mut self, fingerprint: u64, due: MonoMs) -> bool {
        self.worker_cache.get(fingerprint).is_some_and(|slot| slot.lease.amount > 0 && slot.lease.due <= due)
    }

    pub(super) fn untouched(&self, item: &Item, check: &Check<'_>, now: Now) -> Budget {
        let reset_ms = Position::at(now.unix, check.cell_ms).until_next_ms();
        Budget { rule: check.rule, limit: item.limit, remaining: item.limit, reset_ms }
    }

    pub(super) fn crowded(&self, item: &Item, check: &Check<'_>, now: Now) -> Denial {
        let budget = Budget { remaining: 0, ..self.untouched(item, check, now) };
        Denial { budget, retry_after_ms: Some(TICK_MS), cause: Cause::Reserved }
    }
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
    let cached_limit = cached.attempt.limit;
    if item.limit < cached_limit
        || (item.limit > cached_limit && now.since(cached.since) > RAISED_MS.min(check.cell_ms / 8))
    {
        return None;
    }
    let SeenDenial { until, remaining, reset_ms } = cached.seen_at(now, item.attempt())?;
    let budget = Budget { rule: check.rule, limit: item.limit, remaining, reset_ms };
    let denied = Denial { budget, retry_after_ms: Some(until.since(now)), cause: Cause::Limit };
    Some((now < until).then_some(denied))
}
