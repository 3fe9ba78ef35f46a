//! Deferred costs: requests whose cost is stated by the response. Reserves an amount for them and settles it.
//!
//! When a request is admitted, its check's cost is reserved in the table, so that concurrent requests cannot pass the limit together.
//! The response's cost is charged in the cell of that time, and the reservation is returned. The table has one reservation for each
//! worker and key (`ReservationKind::Deferred`) with the latest expiry; each request's own deadline is kept here.
//!
//! If no response arrives, or there is no room for a reservation, the reserve counts as spent. A late response can then only add to it.
//!
//! A worker waits for a bounded number of responses. Beyond that, a request makes room: one whose deadline has passed, else one that can
//! cost no more than its reserve, else one with the least reserve, and of these the oldest. Its cost will not be known, so it is charged the
//! highest possible. Otherwise slow requests could fill all places, and every other request would cost its reserve alone, however much it
//! uses. Keys share the places, and the requests of one key have three times what is free at most: beyond that, one of its own makes room.

use super::Local;
use super::item::{DeferredCost, Item};
use super::transact::{Failed, Make, Subject};
use crate::limiter::check::Check;
use crate::limiter::rule_set::RuleSet;
use crate::limiter::table::{Entry, ReservationKind, Tag};
use crate::model::room::most_of_part;
use crate::model::shared::Shared;
use crate::model::time::{MonoMs, Now};
use crate::model::window::Position;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use smallvec::SmallVec;

/// Most requests of a worker with a deferred cost; beyond that some are charged their highest cost.
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
    /// The key on which it counts, if the charge counts towards a ban; otherwise nothing.
    pub key: Vec<u8>,
    /// The rules that take their cost from the response, and count on it.
    pub rules: RuleSet,
    /// Those of them for which it counts towards a ban.
    pub banning: RuleSet,
    /// Whether these are in shadow mode for the request.
    pub shadow: bool,
    /// What was reserved in place of the cost.
    pub reserve: u64,
    /// What was charged: the highest cost of all rules that count on the key.
    pub cost: u64,
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
    requests: BTreeMap<u64, Request>,
    /// Requests whose deadline has not passed, by deadline.
    due: BTreeSet<(MonoMs, u64)>,
    /// All requests, in the order in which they make room.
    places: BTreeSet<Place>,
    /// The same of each key.
    of_keys: BTreeSet<(u64, Place)>,
    /// How many requests each key has.
    held: BTreeMap<u64, usize>,
    /// Charges whose cost is known, but whose settlement failed by conflicts in the table; they are tried again.
    again: Vec<(Charge, u64)>,
}

/// A request with deferred costs.
#[derive(Debug)]
struct Request {
    charges: Vec<Charge>,
    /// The key that has its place: of those that it is charged to the one that had the fewest.
    key: u64,
    place: Place,
    until: MonoMs,
}

/// A request's place in the order of eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    /// Whether its deadline has not passed.
    waits: bool,
    /// Whether it may cost more than is reserved.
    loses: bool,
    reserve: u64,
    since: MonoMs,
    request: u64,
}

impl DeferredCost {
    /// The deferred cost of a check, if the response states it.
    pub(super) fn of(check: &Check<'_>) -> Option<DeferredCost> {
        let Check { rule, cost, policy, .. } = *check;
        let within_ms = policy.settles_within_ms;
        (within_ms > 0).then(|| DeferredCost {
            rules: RuleSet::of(rule),
            banning: if policy.bans_by_charge { RuleSet::of(rule) } else { RuleSet::default() },
            least: 0,
            most: if policy.estimates && cost == 0 { 0 } else { policy.settles_at_most },
            firm: if policy.estimates { 0 } else { cost },
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
                let (least, firm) = (deferred.least.max(cost), deferred.firm.max(cost));
                Some(DeferredCost { least, firm, ..deferred })
            }
            ((Some(mut one), _), (Some(other), _)) => {
                one.rules.extend(&other.rules);
                one.banning.extend(&other.banning);
                Some(DeferredCost {
                    rules: one.rules,
                    banning: one.banning,
                    least: one.least.max(other.least),
                    most: one.most.max(other.most),
                    firm: one.firm.max(other.firm),
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
                    let DeferredCost { rules, banning, .. } = charge.deferred_cost.clone();
                    let key = if banning.is_empty() { Vec::new() } else { charge.key.clone() };
                    let (shadow, reserve) = (charge.shadow, charge.reserve.amount);
                    settled.push(SettledCharge { key, rules, banning, shadow, reserve, cost });
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
        self.make_room(shared, request, &charges, now);
        // If the number was used before, the earlier request was never settled.
        for charge in self.deferred.put(request, charges).into_iter().flatten() {
            let reserve = charge.reserve.amount;
            self.settle_charge(shared, charge, reserve, now);
        }
    }

    /// If there is no place for `request` with these charges, evicts another.
    fn make_room(&mut self, shared: &mut impl Shared, request: u64, charges: &[Charge], now: Now) {
        if self.is_deferred(request) {
            return;
        }
        let Some(evicted) = self.deferred.evicted_for(charges) else { return };
        let Some(charges) = self.deferred.take(evicted) else { return };
        self.stats.unawaited = self.stats.unawaited.saturating_add(1);
        for charge in charges {
            let most = charge.most();
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
        let Some(Request { charges, .. }) = self.deferred.requests.get(&request) else { return };
        let held: Vec<Charge> = charges.iter().filter(|charge| charge.reserve.held).cloned().collect();
        for charge in held {
            let reserve = charge.reserve.amount;
            self.settle_charge(shared, charge, reserve, now);
        }
        if let Some(Request { charges, .. }) = self.deferred.requests.get_mut(&request) {
            charges.iter_mut().for_each(|charge| charge.reserve.held = false);
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
            Ok(done) => {
                self.note_cells(&done.entry, now.mono);
                if held {
                    self.note_reserved(&done.entry, now);
                }
            }
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
        let key = self.fewest(&charges);
        if let (Some(place), Some(key)) = (Place::of(request, &charges), key) {
            let until = charges.iter().map(|charge| charge.until).max().unwrap_or_default();
            self.due.insert((until, request));
            self.places.insert(place);
            self.of_keys.insert((key, place));
            let held = self.held.entry(key).or_default();
            *held = held.saturating_add(1);
            self.requests.insert(request, Request { charges, key, place, until });
        }
        before
    }

    fn take(&mut self, request: u64) -> Option<Vec<Charge>> {
        let Request { charges, key, place, until } = self.requests.remove(&request)?;
        self.due.remove(&(until, request));
        self.places.remove(&place);
        self.of_keys.remove(&(key, place));
        if let Some(held) = self.held.get_mut(&key) {
            *held = held.saturating_sub(1);
            if *held == 0 {
                self.held.remove(&key);
            }
        }
        Some(charges)
    }

    fn held_by(&self, key: u64) -> usize {
        self.held.get(&key).copied().unwrap_or(0)
    }

    /// Of the keys of these charges the one with the fewest requests.
    fn fewest(&self, charges: &[Charge]) -> Option<u64> {
        charges.iter().map(|charge| charge.fingerprint).min_by_key(|key| self.held_by(*key))
    }

    /// The request that makes room for one with these charges, if there is no place for it.
    fn evicted_for(&self, charges: &[Charge]) -> Option<u64> {
        let key = self.fewest(charges)?;
        let free = MAX_DEFERRED_REQUESTS.saturating_sub(self.requests.len());
        if self.held_by(key) < most_of_part(free) {
            return None;
        }
        let own = self.of_keys.range((key, Place::FIRST)..).next().filter(|(of, _)| *of == key);
        own.map(|(_, place)| place).or_else(|| self.places.first()).map(|place| place.request)
    }

    fn next_due(&mut self, now: MonoMs) -> Option<u64> {
        let (until, request) = self.due.first().copied().filter(|(until, _)| *until <= now)?;
        self.due.remove(&(until, request));
        if let Some(Request { key, place, .. }) = self.requests.get_mut(&request) {
            self.places.remove(place);
            self.of_keys.remove(&(*key, *place));
            place.waits = false;
            self.places.insert(*place);
            self.of_keys.insert((*key, *place));
        }
        Some(request)
    }
}

impl Place {
    /// Before all others.
    const FIRST: Place = Place { waits: false, loses: false, reserve: 0, since: MonoMs(0), request: 0 };

    fn of(request: u64, charges: &[Charge]) -> Option<Place> {
        Some(Place {
            waits: true,
            loses: charges.iter().any(|charge| charge.most() > charge.reserve.amount),
            reserve: charges.iter().map(|charge| charge.reserve.amount).fold(0, u64::saturating_add),
            since: charges.iter().map(|charge| charge.since).min()?,
            request,
        })
    }
}

impl Charge {
    /// The most that it may cost.
    fn most(&self) -> u64 {
        self.deferred_cost.least.max(self.deferred_cost.most)
    }
}
