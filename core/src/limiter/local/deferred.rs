//! Deferred costs: requests whose cost is stated by the response. Reserves an amount for them and settles it.
//!
//! When a request is admitted, its check's cost is reserved in the table, so that concurrent requests cannot pass the limit together.
//! The response's cost is charged in the cell of that time, and the reservation is returned. The table has one reservation for each
//! worker and key (`ReservationKind::Deferred`) with the latest expiry; each request's own deadline is kept here.
//!
//! If no response arrives, or there is no room for a reservation, the reserve counts as spent. A late response can then only add to it.
//!
//! A worker waits for a bounded number of responses. Beyond that, the oldest request makes room, preferably one whose deadline has
//! passed. Its cost will not be known, so it is charged the highest possible. Otherwise slow requests could fill all places, and every
//! other request would cost its reserve alone, however much it uses.

use super::Local;
use super::item::{DeferredCost, Item};
use super::transact::{Failed, Make, Subject};
use crate::limiter::check::Check;
use crate::limiter::rule_set::RuleSet;
use crate::limiter::table::{Entry, ReservationKind, Tag};
use crate::model::shared::Shared;
use crate::model::time::{MonoMs, Now};
use crate::model::window::Position;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use smallvec::SmallVec;

/// Most requests of a worker with a deferred cost; beyond that the oldest are charged their highest cost.
pub const MAX_DEFERRED_REQUESTS: usize = 16_384;
/// Time by which a reservation in the table outlives its request's deadline; a live worker spends it before.
const GRACE_MS: u64 = 1_000;

/// A deferred charge of a request in one cell.
#[derive(Clone, Debug)]
struct Charge {
    key: Vec<u8>,
    fingerprint: u64,
    deferred_cost: DeferredCost,
    limit: u64,
    configured: Option<u64>,
    reserve: Reserve,
    shadow: bool,
    since: MonoMs,
    until: MonoMs,
}

/// A charge whose cost is settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettledCharge {
    /// The key on which it counts.
    pub key: Vec<u8>,
    /// The rules that take their cost from the response, and count on it.
    pub rules: RuleSet,
    /// Whether these are in shadow mode for the request.
    pub shadow: bool,
    /// What was reserved in place of the cost.
    pub reserve: u64,
}

/// The charges of a request that are settled.
pub type SettledCharges = SmallVec<[SettledCharge; 1]>;

/// What stands for a deferred cost until it is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reserve {
    pub(super) amount: u64,
    /// Whether it is a reservation in the table; otherwise it is spent.
    pub(super) held: bool,
    /// Whether it is in the overflow cell that the key shares with others.
    pub(super) overflow: bool,
}

#[derive(Debug, Default)]
pub(super) struct DeferredCosts {
    /// Charges of the current request.
    new: Vec<Charge>,
    requests: BTreeMap<u64, Vec<Charge>>,
    /// Requests whose deadline has not passed, by deadline.
    due: BTreeSet<(MonoMs, u64)>,
    /// All requests, in the order in which they make room.
    places: BTreeSet<Place>,
    /// Charges whose cost is known, but whose settlement failed by conflicts in the table; they are tried again.
    again: Vec<(Charge, u64)>,
}

/// A request's place in the order of eviction: first those whose deadline has passed, the oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    waits: bool,
    since: MonoMs,
    request: u64,
}

impl DeferredCost {
    /// The deferred cost of a check, if the response states it.
    pub(super) fn of(check: &Check<'_>) -> Option<DeferredCost> {
        let within_ms = check.policy.settles_within_ms;
        (within_ms > 0).then(|| DeferredCost {
            rules: RuleSet::of(check.rule),
            least: 0,
            most: check.policy.settles_at_most,
            within_ms,
        })
    }

    /// Joins two items of the same cell, each with its cost and its deferred cost.
    pub(super) fn coalesce(
        one: (Option<DeferredCost>, u64),
        other: (Option<DeferredCost>, u64),
    ) -> Option<DeferredCost> {
        match (one, other) {
            ((None, _), (None, _)) => None,
            ((Some(deferred), _), (None, cost)) | ((None, cost), (Some(deferred), _)) => {
                Some(DeferredCost { least: deferred.least.max(cost), ..deferred })
            }
            ((Some(mut one), _), (Some(other), _)) => {
                one.rules.extend(&other.rules);
                Some(DeferredCost {
                    rules: one.rules,
                    least: one.least.max(other.least),
                    most: one.most.max(other.most),
                    within_ms: one.within_ms.max(other.within_ms),
                })
            }
        }
    }

    /// Reserves `cost` on the entry; false if there is no room, or nothing to reserve.
    pub(super) fn reserve(&self, entry: &mut Entry, tag: Tag, cost: u64, now: MonoMs) -> bool {
        cost > 0 && entry.reserve(tag, cost, self.until(now).after(GRACE_MS))
    }

    fn until(&self, now: MonoMs) -> MonoMs {
        now.after(u64::from(self.within_ms))
    }
}

impl Local {
    /// Whether any request has a deferred cost.
    pub(in crate::limiter) fn has_deferred(&self) -> bool {
        !self.deferred.requests.is_empty()
    }

    /// Whether `request` has a deferred cost.
    pub(in crate::limiter) fn is_deferred(&self, request: u64) -> bool {
        self.deferred.requests.contains_key(&request)
    }

    /// See [`Limiter::settle_cost`](crate::limiter::Limiter::settle_cost).
    pub(in crate::limiter) fn settle_cost(
        &mut self,
        shared: &mut impl Shared,
        request: u64,
        mut cost_of: impl FnMut(u16, u64) -> Option<u64>,
        now: Now,
    ) -> SettledCharges {
        let (mut settled, mut unsettled) = (SettledCharges::new(), Vec::new());
        for charge in self.deferred.take(request).into_iter().flatten() {
            match charge.deferred_cost.cost(charge.reserve.amount, &mut cost_of) {
                Some(cost) => {
                    settled.push(SettledCharge {
                        key: charge.key.clone(),
                        rules: charge.deferred_cost.rules.clone(),
                        shadow: charge.shadow,
                        reserve: charge.reserve.amount,
                    });
                    self.settle_charge(shared, charge, cost, now);
                }
                None => unsettled.push(charge),
            }
        }
        if !unsettled.is_empty() {
            self.deferred.put(request, unsettled);
        }
        settled
    }

    /// Notes a deferred charge of the current request.
    pub(super) fn opened(&mut self, item: &Item, check: &Check<'_>, reserve: Reserve, now: Now) {
        let Some(deferred_cost) = item.deferred.clone() else { return };
        self.deferred.new.push(Charge {
            key: check.key.to_vec(),
            fingerprint: item.fingerprint,
            until: deferred_cost.until(now.mono),
            deferred_cost,
            limit: item.limit,
            configured: item.configured,
            reserve,
            shadow: item.shadow,
            since: now.mono,
        });
    }

    /// Assigns the noted charges to `request`.
    pub(super) fn keep_open(&mut self, shared: &mut impl Shared, request: u64, now: Now) {
        if self.deferred.new.is_empty() {
            return;
        }
        let charges = core::mem::take(&mut self.deferred.new);
        self.make_room(shared, request, now);
        // If the number was used before, the earlier request was never settled.
        for charge in self.deferred.put(request, charges).into_iter().flatten() {
            let reserve = charge.reserve.amount;
            self.settle_charge(shared, charge, reserve, now);
        }
    }

    /// If there is no place for `request`, evicts another.
    fn make_room(&mut self, shared: &mut impl Shared, request: u64, now: Now) {
        if self.is_deferred(request) || self.deferred.requests.len() < MAX_DEFERRED_REQUESTS {
            return;
        }
        let Some(charges) = self.deferred.take_first() else { return };
        self.stats.unawaited = self.stats.unawaited.saturating_add(1);
        for charge in charges {
            let most = charge.deferred_cost.least.max(charge.deferred_cost.most);
            self.settle_charge(shared, charge, most, now);
        }
    }

    /// Spends the reserves of requests whose deadline has passed, and repeats settlements that failed by conflicts.
    pub(in crate::limiter) fn expire_open(&mut self, shared: &mut impl Shared, now: Now) {
        for (charge, cost) in core::mem::take(&mut self.deferred.again) {
            self.settle_charge(shared, charge, cost, now);
        }
        while let Some(request) = self.deferred.next_due(now.mono) {
            self.spend_open(shared, request, now);
        }
    }

    /// Spends all reserves, as no response will arrive.
    pub(super) fn spend_all_open(&mut self, shared: &mut impl Shared, now: Now) {
        let requests: Vec<u64> = self.deferred.requests.keys().copied().collect();
        for request in requests {
            self.spend_open(shared, request, now);
        }
    }

    /// Spends the reserve of `request`; a late response can only add to it.
    fn spend_open(&mut self, shared: &mut impl Shared, request: u64, now: Now) {
        let Some(charges) = self.deferred.requests.get(&request).cloned() else { return };
        for charge in charges.into_iter().filter(|charge| charge.reserve.held) {
            let reserve = charge.reserve.amount;
            self.settle_charge(shared, charge, reserve, now);
        }
        for charge in self.deferred.requests.get_mut(&request).into_iter().flatten() {
            charge.reserve.held = false;
        }
    }

    fn settle_charge(&mut self, shared: &mut impl Shared, charge: Charge, cost: u64, now: Now) {
        let Reserve { amount, held, overflow } = charge.reserve;
        if !held && cost <= amount {
            return;
        }
        let tag = self.tag(ReservationKind::Deferred);
        let change = |entry: &mut Entry, _: &Position| {
            let taken_back = if held { entry.release_part(tag, amount) } else { 0 };
            let spent = amount.saturating_sub(taken_back);
            if entry.limit == 0 {
                entry.apply(charge.limit, charge.configured);
            }
            entry.charge(cost.saturating_sub(spent), now.mono);
            ((), true)
        };
        let subject = Subject { fingerprint: charge.fingerprint, key: Some(&charge.key), make: Make::Always };
        match self.table.transact_where(shared, overflow, subject, now, &mut self.stats, change) {
            Ok(done) => self.note_cells(&done.entry, now.mono),
            Err(Failed::Exhausted | Failed::Absent) => {
                // What is not settled stays reserved, and counts as spent when the reservation expires.
                if self.deferred.again.len() < MAX_DEFERRED_REQUESTS {
                    self.deferred.again.push((charge, cost));
                }
            }
        }
    }
}

impl DeferredCost {
    fn cost(&self, reserve: u64, cost_of: &mut impl FnMut(u16, u64) -> Option<u64>) -> Option<u64> {
        self.rules.iter().try_fold(self.least, |most, rule| Some(most.max(cost_of(rule, reserve)?)))
    }
}

impl DeferredCosts {
    fn put(&mut self, request: u64, charges: Vec<Charge>) -> Option<Vec<Charge>> {
        let before = self.take(request);
        if let Some((since, until)) = times(&charges) {
            self.due.insert((until, request));
            self.places.insert(Place { waits: true, since, request });
        }
        self.requests.insert(request, charges);
        before
    }

    fn take(&mut self, request: u64) -> Option<Vec<Charge>> {
        let charges = self.requests.remove(&request)?;
        if let Some((since, until)) = times(&charges) {
            let waits = self.due.remove(&(until, request));
            self.places.remove(&Place { waits, since, request });
        }
        Some(charges)
    }

    fn take_first(&mut self) -> Option<Vec<Charge>> {
        self.take(self.places.first()?.request)
    }

    fn next_due(&mut self, now: MonoMs) -> Option<u64> {
        let (until, request) = self.due.first().copied().filter(|(until, _)| *until <= now)?;
        self.due.remove(&(until, request));
        if let Some((since, _)) = self.requests.get(&request).and_then(|charges| times(charges)) {
            self.places.remove(&Place { waits: true, since, request });
            self.places.insert(Place { waits: false, since, request });
        }
        Some(request)
    }
}

/// Arrival and deadline of a request with these charges.
fn times(charges: &[Charge]) -> Option<(MonoMs, MonoMs)> {
    let since = charges.iter().map(|charge| charge.since).min()?;
    let until = charges.iter().map(|charge| charge.until).max()?;
    Some((since, until))
}
