//! What one worker remembers in its own memory, so that most requests touch nothing shared: leases, denials, and
//! what the region acknowledged.
//!
//! A set-associative cache by fingerprint: bounded, made once, no allocation afterwards. Losing a slot costs a look
//! at the table and nothing else, except where it holds a lease, so those stay.

use crate::time::MonoMs;
use crate::window::{Position, Used};
use alloc::vec::Vec;

/// Slots of a set, any of which may hold a given fingerprint.
const WAYS: usize = 4;

/// A worker's memory of one key.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slot {
    pub(super) fingerprint: u64,
    pub(super) used: MonoMs,
    pub(super) lease: Lease,
    pub(super) denied: Option<Remembered>,
    /// The region acknowledged this much of that cell.
    pub(super) acked: (u64, u64),
}

/// What may be spent without asking the table.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lease {
    /// Reserved in the table; 0: no lease.
    pub(super) amount: u64,
    /// Of that, spent.
    pub(super) spent: u64,
    /// In which cell.
    pub(super) sequence: u64,
    /// When it is to be brought back.
    pub(super) due: MonoMs,
    /// Until when it may be spent.
    pub(super) until: MonoMs,
    /// The limit that it was taken under: it says nothing about lower ones.
    pub(super) limit: u64,
    /// What was left of the limit beside it.
    pub(super) spare: u64,
    /// Size of the last one, to size the next.
    pub(super) last: u64,
}

/// A denial that stays true until a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remembered {
    /// What was used, where in the cell, and when that was.
    pub(super) used: Used,
    pub(super) at: Position,
    pub(super) since: MonoMs,
    /// What was denied, and until when it would be.
    pub(super) cost: u64,
    pub(super) limit: u64,
    pub(super) until: MonoMs,
    pub(super) version: u64,
}

#[derive(Debug)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    sets: usize,
}

impl Slots {
    /// Room for `sets` × 4 keys.
    pub(super) fn new(sets: usize) -> Slots {
        let sets = sets.max(1);
        Slots { slots: alloc::vec![Slot::default(); sets * WAYS], sets }
    }

    pub(super) fn get(&mut self, fingerprint: u64) -> Option<&mut Slot> {
        self.set(fingerprint).iter_mut().find(|slot| slot.fingerprint == fingerprint)
    }

    /// The slot of `fingerprint`, made in place of the longest unused one without a lease.
    pub(super) fn entry(&mut self, fingerprint: u64, now: MonoMs) -> Option<&mut Slot> {
        let set = self.set(fingerprint);
        if let Some(at) = set.iter().position(|slot| slot.fingerprint == fingerprint) {
            return set.get_mut(at);
        }
        let slot = set.iter_mut().filter(|slot| slot.lease.amount == 0).min_by_key(|slot| slot.used)?;
        *slot = Slot { fingerprint, used: now, ..Slot::default() };
        Some(slot)
    }

    fn set(&mut self, fingerprint: u64) -> &mut [Slot] {
        let set = (fingerprint as usize).checked_rem(self.sets).unwrap_or(0);
        self.slots.get_mut(set * WAYS..(set + 1) * WAYS).unwrap_or_default()
    }
}

impl Lease {
    /// Spends `cost` of the lease, if it covers it.
    pub(super) fn spend(&mut self, cost: u64, sequence: u64, now: MonoMs) -> bool {
        let covers = self.amount.saturating_sub(self.spent) >= cost;
        let good = self.amount > 0 && covers && self.sequence == sequence && now < self.until;
        if good {
            self.spent += cost;
        }
        good
    }
}
