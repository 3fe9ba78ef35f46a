//! How a limit is divided among proxies that decide alone and report afterwards, as Envoy's `rate_limit_quota` filter does.
//!
//! Between two reports of a proxy its use is unknown, so the division reserves for each proxy the most that it may have spent since its last
//! report and may spend until the next one ([`share`]). A new bucket takes a part of what is neither used nor reserved for the other proxies.
//! So proxies that report stay within the limit together, however their load is spread. What can exceed it:
//!
//! - what a proxy still has when it gets another bucket: it is reserved beside the new one until the next report, as it may be spent before the
//!   new one arrives, so that in some reports more is reserved than is left;
//! - other users of the limit, which do not see what is reserved: at most by [`PART`] of what was left;
//! - requests that a proxy admits between a report and the answer to it, before its first allotment, or by its own configuration after the last
//!   one has expired.
//!
//! A proxy whose stream is lost may have spent all that it held, so that counts as spent until its window is over. Hence a proxy holds no more
//! than a few times what it used between its last reports, and at first what the limit lets pass in a minute ([`START_MS`]): a restart costs
//! little of a long window. A proxy that ends its stream after a last report has spent nothing more.
//!
//! A window that is shorter than the time between two reports cannot be divided in amounts. Such a limit is divided as a rate ([`pace`]).
//!
//! Proxies get parts by their demand, so the part of an idle proxy goes to a busy one.

mod allotment;
mod pace;
mod share;

use crate::model::room::most_of_part;
use crate::model::time::MonoMs;
use crate::model::window::Position;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use allotment::{portion, portion_up};
use pace::Pace;

pub use allotment::{Allotment, FILL_MS, Report, Room};
pub use share::Share;

/// Time between two reports of a proxy: what Envoy 1.40 uses, whatever its configuration states.
pub const REPORT_MS: u64 = 5_000;
/// Time from a report until the next one must have arrived; what a proxy may spend in it is reserved.
pub const HORIZON_MS: u64 = REPORT_MS + 1_000;
/// Time for which an allotment is valid.
pub const VALID_MS: u64 = 15_000;
/// The part of what is neither used nor reserved that one allotment takes, as numerator and denominator; the rest is for proxies that join.
pub const PART: (u64, u64) = (3, 4);
/// A proxy gets at least what the limit lets pass on average in this time, or [`START_LEAST`], if that is free.
pub const START_MS: u64 = 60_000;
/// See [`START_MS`].
const START_LEAST: u64 = 8;
/// A proxy gets more than that only up to so many times what it was asked for between two reports.
pub const GROWTH: u64 = 3;
/// A proxy that ends its stream has spent nothing since a report that is no older.
pub const LAST_REPORT_MS: u64 = 1_000;
/// Windows shorter than this are divided as rates.
pub const PACED_BELOW_MS: u64 = 2 * REPORT_MS;
/// Most proxies of one limit. Those of one owner are three quarters of them at most.
pub const MAX_SHARES: usize = 4_096;

/// The division of one limit.
#[derive(Clone, Debug)]
pub struct Division {
    is_paced: bool,
    shares: BTreeMap<u64, Share>,
    pace: Pace,
    /// Use that was reported and is not charged yet.
    owed: u64,
    /// The part of it to charge in one second, if the limit is paced.
    step: u64,
}

impl Division {
    /// The division of a limit with this window among no proxies.
    pub fn new(window_ms: u64) -> Division {
        Division {
            is_paced: window_ms < PACED_BELOW_MS,
            shares: BTreeMap::new(),
            pace: Pace::default(),
            owed: 0,
            step: 0,
        }
    }

    /// Adds a proxy of an owner, which has nothing yet. False if there are [`MAX_SHARES`] already, or as many of that owner as its part.
    pub fn join(&mut self, id: u64, owner: u64, now: MonoMs) -> bool {
        if self.shares.contains_key(&id) {
            return true;
        }
        if !self.has_room(owner) {
            return false;
        }
        let Weights { demand, count } = self.weights();
        // Until its own demand is known, it counts as an average one.
        let demand = demand.checked_div(count).unwrap_or(0);
        self.shares.insert(id, Share::new(owner, demand, now));
        true
    }

    /// Notes that a proxy ended its stream. If it has just reported, it returns what it has.
    pub fn end(&mut self, id: u64, now: MonoMs) {
        match self.shares.get(&id).is_some_and(|share| share.has_reported(LAST_REPORT_MS, now)) {
            true => {
                self.shares.remove(&id);
            }
            false => self.leave(id, now),
        }
    }

    /// Notes that the stream of a proxy was lost. What it may still spend stays reserved until its allotment expires, and counts as spent
    /// then.
    pub fn leave(&mut self, id: u64, now: MonoMs) {
        if let Some(share) = self.shares.get_mut(&id) {
            share.leave(now.after(VALID_MS));
        }
    }

    /// Removes a proxy, and returns its share. What is reserved in it is free here, so either it may spend nothing any more, or another
    /// division, to which its reports are charged from now on, takes the share: see [`Division::accept`].
    pub fn remove(&mut self, id: u64) -> Option<Share> {
        self.shares.remove(&id)
    }

    /// Adds a proxy with the share that it had in another division. What it may have spent and may spend of that is reserved here. False if
    /// there is no room, as in [`Division::join`].
    pub fn accept(&mut self, id: u64, share: Share, now: MonoMs) -> bool {
        let has_room = self.has_room(share.owner());
        if has_room {
            self.shares.insert(id, if self.is_paced { share.to_paced(now) } else { share.to_divided(now) });
        }
        has_room
    }

    /// Adds a proxy with the share that was just [removed](Division::remove).
    pub fn put_back(&mut self, id: u64, share: Share) {
        self.shares.insert(id, share);
    }

    /// Whether another proxy of this owner may join. Those that have left and may still spend something count too.
    fn has_room(&self, owner: u64) -> bool {
        let held = self.shares.values().filter(|share| share.owner() == owner).count();
        held < most_of_part(MAX_SHARES.saturating_sub(self.shares.len()))
    }

    /// Takes a report of a proxy. What it has admitted is to be charged: see [`Division::due`].
    pub fn report(&mut self, id: u64, report: Report, now: MonoMs) {
        if let Some(share) = self.shares.get_mut(&id) {
            share.report(report, now);
        }
        self.owe(report);
    }

    /// Takes use that is to be charged, of a proxy that has no share.
    pub fn owe(&mut self, Report { allowed, within_ms, .. }: Report) {
        self.owed = self.owed.saturating_add(allowed);
        let seconds = within_ms.clamp(1, 2 * REPORT_MS).div_ceil(1_000);
        self.step = self.owed.div_ceil(seconds.max(1));
    }

    /// What is to be charged to the limit now. The use of several seconds would exceed a window of one second, so it is charged over as many
    /// seconds as it was reported for: a part of it once a second (`second`).
    pub fn due(&self, second: bool) -> u64 {
        match (self.is_paced, second) {
            (false, _) => self.owed,
            (true, true) => self.step.min(self.owed),
            (true, false) => 0,
        }
    }

    /// Notes that so much of it was charged.
    pub fn charged(&mut self, amount: u64, at: &Position) {
        self.owed = self.owed.saturating_sub(amount);
        self.pace.charged(amount, at);
    }

    /// Whether it has no proxies, none whose allotment has not expired, and owes nothing.
    pub fn is_over(&self) -> bool {
        self.shares.is_empty() && self.owed == 0
    }

    /// What a proxy has at present.
    pub fn allotment(&self, id: u64) -> Allotment {
        self.shares.get(&id).map_or(Allotment::Nothing, Share::allotment)
    }

    /// A new allotment for a proxy that has just reported, if it is to have another than at present.
    pub fn divide_for(&mut self, id: u64, room: &Room, now: MonoMs) -> Option<Allotment> {
        self.expire(now);
        if self.is_paced {
            self.pace.begin(room);
            let weights = self.weights();
            return self.set_pace(id, weights, now);
        }
        let reserved = self.reserved(now);
        self.allot(id, room, reserved, self.weights(), true, now)
    }

    /// New allotments for all proxies that are to have another than at present. Those that have waited longest come first. To be called once
    /// a second.
    pub fn divide(&mut self, room: &Room, now: MonoMs) -> Vec<(u64, Allotment)> {
        self.expire(now);
        let mut ids: Vec<(MonoMs, u64)> =
            self.connected().map(|(id, share)| (share.allotted(), id)).collect();
        ids.sort_unstable();
        let weights = self.weights();
        if self.is_paced {
            self.pace.step(room);
            let set = |(_, id)| Some((id, self.set_pace(id, weights, now)?));
            return ids.into_iter().filter_map(set).collect();
        }
        let mut changed = Vec::new();
        let mut reserved = self.reserved(now);
        for (_, id) in ids {
            let before = self.reserved_for(id, now);
            if let Some(allotment) = self.allot(id, room, reserved, weights, false, now) {
                let after = self.reserved_for(id, now);
                reserved = reserved.saturating_sub(before).saturating_add(after);
                changed.push((id, allotment));
            }
        }
        changed
    }

    /// What is reserved for all proxies: what they may have spent since their last reports, and may spend until the next ones.
    pub fn reserved(&self, now: MonoMs) -> u64 {
        self.shares.values().fold(0, |sum, share| sum.saturating_add(share.reserved(now)))
    }

    fn reserved_for(&self, id: u64, now: MonoMs) -> u64 {
        self.shares.get(&id).map_or(0, |share| share.reserved(now))
    }

    fn connected(&self) -> impl Iterator<Item = (u64, &Share)> {
        self.shares.iter().filter(|(_, share)| share.is_connected()).map(|(id, share)| (*id, share))
    }

    /// The sum of the demands of the connected proxies, and their number.
    fn weights(&self) -> Weights {
        self.connected().fold(Weights::default(), |Weights { demand, count }, (_, share)| Weights {
            demand: demand.saturating_add(share.demand()),
            count: count.saturating_add(1),
        })
    }

    /// Charges what was reserved for proxies that have left and whose allotments have expired.
    pub fn expire(&mut self, now: MonoMs) {
        let mut lost = 0_u64;
        self.shares.retain(|_, share| {
            let expired = share.has_expired(now);
            lost = lost.saturating_add(if expired { share.reserved(now) } else { 0 });
            !expired
        });
        // Of a rate nothing is reserved.
        if !self.is_paced {
            self.owed = self.owed.saturating_add(lost);
        }
    }

    /// `reserved` is what is reserved for all proxies, this one included.
    fn allot(
        &mut self,
        id: u64,
        room: &Room,
        reserved: u64,
        Weights { demand, count }: Weights,
        reported: bool,
        now: MonoMs,
    ) -> Option<Allotment> {
        // What is to be charged is in no share any more.
        let left = room.left.saturating_sub(self.owed);
        let share = self.shares.get_mut(&id).filter(|share| share.is_connected())?;
        let free = left.saturating_sub(reserved.saturating_sub(share.reserved(now)));
        let weight = share.demand().saturating_add(1);
        let part = portion_up(room.left, weight, demand.saturating_add(count));
        let start = portion_up(room.limit, START_MS, room.at.cell_ms).max(START_LEAST);
        let most = share.demand().saturating_mul(GROWTH).max(start);
        share.allot(part.min(portion_up(free, PART.0, PART.1)).min(most), free, reported, now)
    }

    fn set_pace(&mut self, id: u64, weights: Weights, now: MonoMs) -> Option<Allotment> {
        let Weights { demand, count } = weights;
        // An idle proxy keeps an eighth of an average part, as it reports a burst only afterwards.
        let base = demand.checked_div(count.saturating_mul(8)).unwrap_or(0).saturating_add(1);
        let all = demand.saturating_add(base.saturating_mul(count));
        let left: u64 = self.shares.values().filter(|share| !share.is_connected()).map(Share::rate).sum();
        let share = self.shares.get_mut(&id).filter(|share| share.is_connected())?;
        let pool = self.pace.thousandths().saturating_sub(left);
        share.pace(portion(pool, share.demand().saturating_add(base), all), now)
    }
}

/// By what a limit is divided.
#[derive(Clone, Copy, Debug, Default)]
struct Weights {
    /// Sum of the demands of the connected proxies.
    demand: u64,
    /// Number of connected proxies.
    count: u64,
}

#[cfg(test)]
mod tests;
