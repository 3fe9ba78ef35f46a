//! The worker cache: leases, denials, and what the region acknowledged, so that most requests need no shared access.
//!
//! It is set-associative by fingerprint. Evicting a slot costs one access to the table, unless it has a lease; slots with a lease are not
//! evicted.
//!
//! Its memory follows the keys of the last minute, up to a bound. The first key brings the first slots. It grows at ticks, after a key had
//! to evict another one that was used lately, and an idle worker gives all of it back. So decisions neither allocate nor move slots, and a
//! thread that decides nothing has no slots.

use crate::limiter::check::Attempt;
use crate::model::time::MonoMs;
use crate::model::window::{Position, Used};
use alloc::vec::Vec;

/// Slots of a set; a fingerprint is in one set.
const WAYS: usize = 4;
/// Sets that the first key brings.
const FIRST_SETS: usize = 16;
/// Factor by which the sets grow at a tick.
const GROWTH: usize = 4;
/// A slot that was not used for this time may be evicted before the cache grows.
const RECENT_MS: u64 = 60_000;
/// A cache that was not used for this time is given back.
pub(super) const IDLE_MS: u64 = 60_000;

/// The cache's slot of one key.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slot {
    pub(super) fingerprint: u64,
    pub(super) used: MonoMs,
    pub(super) lease: Lease,
    pub(super) denied: Option<CachedDenial>,
    pub(super) acked: Acked,
    pub(super) noted: Option<NotedLimit>,
}

/// A limit of the key that this worker has noted for the region, or a lower one, with each cell up to `through`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotedLimit {
    limit: u64,
    through: u64,
}

/// A lease: budget that may be spent without the table.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lease {
    /// Reserved in the table; 0: no lease.
    pub(super) amount: u64,
    /// The part of it that was spent.
    pub(super) spent: u64,
    /// Its cell.
    pub(super) sequence: u64,
    /// When it is to be returned.
    pub(super) due: MonoMs,
    /// Until when it may be spent.
    pub(super) until: MonoMs,
    /// The limit under which it was taken, and the one without live control if live control set it. It serves no request with others: what
    /// the region shows would be outdated, and use under a higher limit may exceed a lower one.
    pub(super) limits: (u64, Option<u64>),
    /// What was left of the limit besides the lease.
    pub(super) spare: u64,
    /// Size of the last lease, from which the next one's follows.
    pub(super) last: u64,
}

/// What the region acknowledged of a key and is not in the table yet. It covers two cells, as a report after a cell's end contains the
/// rest of that cell too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Acked {
    /// The newer cell.
    pub(super) sequence: u64,
    /// The acknowledged count of the newer cell.
    pub(super) own: u64,
    /// The acknowledged count of the cell before.
    pub(super) before: u64,
}

/// Time for which a cached denial applies before the table is read again: other workers may have admitted smaller costs, and other nodes
/// may have used the key.
pub(in crate::limiter) const CACHED_MS: u64 = 1_000;

/// A cached denial, valid until a time; that of its making if the table did not deny.
#[derive(Clone, Copy, Debug)]
pub(super) struct CachedDenial {
    /// The use that led to it, its position in the cell, and its time.
    pub(super) used: Remains,
    pub(super) at: Position,
    pub(super) since: MonoMs,
    /// What was denied, and until when the denial is valid.
    pub(super) attempt: Attempt,
    pub(super) until: MonoMs,
    /// How often the clock had stepped when it was made.
    pub(super) clock_steps: u64,
}

/// A cached denial as it is seen later.
#[derive(Clone, Copy, Debug)]
pub(super) struct SeenDenial {
    /// Until when an attempt is denied.
    pub(super) until: MonoMs,
    /// What is left of the limit.
    pub(super) remaining: u64,
    /// Milliseconds until the next cell.
    pub(super) reset_ms: u64,
}

/// The use on which a denial rests.
#[derive(Clone, Copy, Debug)]
pub(super) enum Remains {
    /// Two cells, from which the use at any later time follows.
    Cells { current: u64, previous: u64 },
    /// The sum of more cells, valid until the current one ends. Storing all cells would double each slot, to save one access to the table
    /// in a tenth of a window.
    Sum(u64),
}

#[derive(Debug)]
pub(super) struct WorkerCache {
    /// The sets, a power of two; none before the first key.
    slots: Vec<Slot>,
    most_sets: usize,
    /// A key had to evict one that was used lately.
    is_crowded: bool,
}

impl WorkerCache {
    /// An empty cache that grows to at most `sets` × 4 slots, rounded up to a power of two.
    pub(super) fn new(sets: usize) -> WorkerCache {
        WorkerCache { slots: Vec::new(), most_sets: sets.max(1).next_power_of_two(), is_crowded: false }
    }

    pub(super) fn get(&mut self, fingerprint: u64) -> Option<&mut Slot> {
        self.set(fingerprint).iter_mut().find(|slot| slot.fingerprint == fingerprint)
    }

    /// The slot of `fingerprint`. If there is none, it replaces the least recently used one without a lease.
    pub(super) fn entry(&mut self, fingerprint: u64, now: MonoMs) -> Option<&mut Slot> {
        if self.slots.is_empty() {
            self.slots.resize(FIRST_SETS.min(self.most_sets) * WAYS, Slot::default());
        }
        let at = self.place(fingerprint);
        let set = self.slots.get_mut(at..at + WAYS)?;
        if let Some(at) = set.iter().position(|slot| slot.fingerprint == fingerprint) {
            return set.get_mut(at);
        }
        let slot = set.iter_mut().filter(|slot| slot.lease.amount == 0).min_by_key(|slot| slot.used);
        self.is_crowded |=
            slot.as_ref().is_none_or(|slot| slot.fingerprint != 0 && now.since(slot.used) < RECENT_MS);
        let slot = slot?;
        *slot = Slot { fingerprint, used: now, ..Slot::default() };
        Some(slot)
    }

    /// Makes more sets, if keys lacked them. A set's slots go to sets of their own, so each finds its place free.
    pub(super) fn grow(&mut self) {
        let sets = self.slots.len() / WAYS;
        if !core::mem::take(&mut self.is_crowded) || sets >= self.most_sets {
            return;
        }
        let grown = sets.saturating_mul(GROWTH).min(self.most_sets) * WAYS;
        let before = core::mem::replace(&mut self.slots, alloc::vec![Slot::default(); grown]);
        for slot in before.into_iter().filter(|slot| slot.fingerprint != 0) {
            let at = self.place(slot.fingerprint);
            let set = self.slots.get_mut(at..at + WAYS).unwrap_or_default();
            if let Some(free) = set.iter_mut().find(|slot| slot.fingerprint == 0) {
                *free = slot;
            }
        }
    }

    /// Gives all slots back. Call it while none has a lease.
    pub(super) fn clear(&mut self) {
        (self.slots, self.is_crowded) = (Vec::new(), false);
    }

    fn set(&mut self, fingerprint: u64) -> &mut [Slot] {
        let at = self.place(fingerprint);
        self.slots.get_mut(at..at + WAYS).unwrap_or_default()
    }

    /// Index of the first slot of the fingerprint's set.
    fn place(&self, fingerprint: u64) -> usize {
        let sets = self.slots.len() / WAYS;
        (fingerprint as usize & sets.saturating_sub(1)) * WAYS
    }
}

impl Acked {
    /// Notes that the region has `own` of cell `sequence`.
    pub(super) fn note(&mut self, sequence: u64, own: u64) {
        if sequence == self.sequence {
            self.own = self.own.max(own);
        } else if sequence.checked_add(1) == Some(self.sequence) {
            self.before = self.before.max(own);
        } else if sequence > self.sequence {
            let follows = self.sequence.checked_add(1) == Some(sequence);
            *self = Acked { sequence, own, before: if follows { self.own } else { 0 } };
        }
    }
}

impl NotedLimit {
    /// Notes that `limit` applies to the cells up to `newest`. Returns the first cell that is to be reported with it.
    pub(super) fn note(held: &mut Option<NotedLimit>, limit: u64, newest: u64) -> u64 {
        let first = match *held {
            Some(noted) if noted.limit <= limit => noted.through.saturating_add(1).min(newest),
            _ => 0,
        };
        // What has a lower limit has this one too.
        if held.is_none_or(|noted| limit < noted.limit || noted.through < newest) {
            *held = Some(NotedLimit { limit, through: newest });
        }
        first
    }
}

impl Remains {
    pub(super) fn of(used: &Used, at: &Position) -> Remains {
        match used {
            Used::Average { current, previous } => Remains::Cells { current: *current, previous: *previous },
            Used::HardLimit(_) => Remains::Sum(used.effective(at)),
        }
    }
}

impl CachedDenial {
    /// The denial of `attempt` as it is seen at `now`. `None` if a denial does not follow.
    pub(super) fn seen_at(&self, now: MonoMs, attempt: Attempt) -> Option<SeenDenial> {
        let Attempt { cost, limit } = attempt;
        let passed_ms = now.since(self.since);
        let is_same = attempt == self.attempt;
        match self.used {
            Remains::Cells { current, previous } => {
                let used = Used::Average { current, previous };
                let until = match is_same {
                    true => self.until,
                    false => self.since.after(used.wait_ms(&self.at, cost, limit)?),
                };
                let (used, at) = used.later(&self.at, passed_ms);
                let (remaining, reset_ms) = (used.remaining(&at, limit), at.until_next_ms());
                Some(SeenDenial { until, remaining, reset_ms })
            }
            Remains::Sum(sum) => {
                let reset_ms = self.at.until_next_ms().checked_sub(passed_ms).filter(|left| *left > 0)?;
                let remaining = limit.saturating_sub(sum);
                is_same.then_some(SeenDenial { until: self.until, remaining, reset_ms })
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_follows_the_keys_and_no_lease_is_lost() {
        let mut cache = WorkerCache::new(8_192);
        assert_eq!((cache.get(7).is_none(), cache.slots.capacity()), (true, 0));
        let spread = |key: u64| key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut leased = 0;
        for key in 1..10_000 {
            if let Some(slot) = cache.entry(spread(key), MonoMs(1_000)) {
                slot.lease.amount = key;
                leased += 1;
            }
            assert!(key > 20 || cache.slots.len() == FIRST_SETS * WAYS, "{} slots", cache.slots.len());
            if key % 20 == 0 {
                cache.grow();
            }
        }
        let has_lease = |key: &u64| cache.get(spread(*key)).is_some_and(|slot| slot.lease.amount == *key);
        assert_eq!((1..10_000).filter(has_lease).count(), leased);
        assert!(leased > 9_000 && cache.slots.len() >= 10_000, "{leased} leases, {}", cache.slots.len());
        cache.clear();
        assert_eq!((cache.get(spread(5)).is_none(), cache.slots.capacity()), (true, 0));
    }

    #[test]
    fn keys_that_come_one_after_the_other_do_not_let_it_grow() {
        let mut cache = WorkerCache::new(8_192);
        for key in 0..100_000u64 {
            // Ten keys a second.
            cache.entry(key.wrapping_mul(0x9e37_79b9_7f4a_7c15), MonoMs(1_000 + key * 100));
            cache.grow();
        }
        assert!(cache.slots.len() <= 4 * 1_024, "{} slots for 600 keys a minute", cache.slots.len());
    }

    #[test]
    fn a_limit_is_noted_for_the_cells_that_have_no_lower_one() {
        let mut noted = None;
        for (limit, newest, first) in [
            (1_000, 20, 0),
            (900, 20, 0),
            (1_000, 20, 20),
            (900, 20, 20),
            (1_000, 21, 21),
            (900, 21, 0), // cell 21 has 1000
            (1_000, 21, 21),
            (950, 25, 22),
            (1_000, 25, 25),
            (900, 25, 0),
            (900, 24, 24), // the clock was set back
        ] {
            assert_eq!(NotedLimit::note(&mut noted, limit, newest), first, "{limit} in cell {newest}");
        }
    }

    #[test]
    fn the_acknowledged_counts_of_two_cells_are_kept_in_any_order() {
        let acked = |acks: &[(u64, u64)]| {
            let mut acked = Acked::default();
            acks.iter().for_each(|(sequence, own)| acked.note(*sequence, *own));
            (acked.sequence, acked.own, acked.before)
        };
        assert_eq!(acked(&[(7, 3), (8, 2)]), (8, 2, 3));
        assert_eq!(acked(&[(8, 2), (7, 3), (7, 1), (8, 4)]), (8, 4, 3));
        assert_eq!(acked(&[(7, 3), (9, 1), (7, 5)]), (9, 1, 0));
    }
}
