//! Hits that callers give back (`is_negative_hits`).
//!
//! A count of a window never falls, since others may have merged it. So what is given back is kept here, as an amount that the
//! next hits on the same key use up before they are charged: the count then stays where it is, and is again what was used. The
//! amount holds for calls to this aggregator, until the window's cell ends, and is at most what counts at that time. If it
//! cannot be kept, less passes, never more.

use crate::api::embedded::{CountedKey, LimitCheck};
use parking_lot::Mutex;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};
use weir_core::model::time::UnixMs;

/// Most keys with an amount. Further ones get none until cells end.
pub const MAX_KEYS: usize = 65_536;

/// The amounts of all keys.
#[derive(Debug, Default)]
pub struct Refunds {
    amounts: Mutex<Amounts>,
    /// Their number, so that a call without refunds takes no lock.
    held: AtomicUsize,
}

#[derive(Debug, Default)]
struct Amounts {
    of: HashMap<CountedKey, Amount>,
    /// The second in which ended amounts were last removed to make room.
    cleaned: u64,
}

#[derive(Clone, Copy, Debug)]
struct Amount {
    hits: u64,
    /// The cell in which it was given back.
    sequence: u64,
}

impl Amount {
    fn holds(&self, key: &CountedKey, now: UnixMs) -> bool {
        self.sequence == sequence(key.duration_ms, now)
    }
}

impl Refunds {
    /// Gives hits of the check's key back at the time `now`. `used` is what counts on it then; no more than that is held.
    pub fn give(&self, check: &LimitCheck, hits: u64, used: u64, now: UnixMs) {
        let key = check.counted_key();
        let new = Amount { hits: hits.min(used), sequence: sequence(key.duration_ms, now) };
        if new.hits == 0 {
            return;
        }
        let mut amounts = self.amounts.lock();
        if let Some(amount) = amounts.of.get_mut(&key) {
            match amount.sequence.cmp(&new.sequence) {
                Ordering::Less => *amount = new,
                Ordering::Equal => amount.hits = amount.hits.saturating_add(hits).min(used),
                // A call that began in an earlier cell gives back what it had taken.
                Ordering::Greater => {}
            }
            return;
        }
        let second = now.0 / 1_000;
        if amounts.of.len() >= MAX_KEYS && amounts.cleaned != second {
            amounts.cleaned = second;
            amounts.of.retain(|key, amount| amount.holds(key, now));
        }
        if amounts.of.len() < MAX_KEYS {
            amounts.of.insert(key, new);
        }
        self.held.store(amounts.of.len(), Release);
    }

    /// Takes as much as there is, at most the check's cost.
    pub fn take(&self, check: &LimitCheck, now: UnixMs) -> u64 {
        if self.held.load(Acquire) == 0 {
            return 0;
        }
        let key = check.counted_key();
        let mut amounts = self.amounts.lock();
        let Some(amount) = amounts.of.get_mut(&key) else { return 0 };
        let holds = amount.holds(&key, now);
        let taken = if holds { amount.hits.min(check.cost) } else { 0 };
        amount.hits -= taken;
        if !holds || amount.hits == 0 {
            amounts.of.remove(&key);
            self.held.store(amounts.of.len(), Release);
        }
        taken
    }

    /// What is left for the check's key.
    pub fn left(&self, check: &LimitCheck, now: UnixMs) -> u64 {
        if self.held.load(Acquire) == 0 {
            return 0;
        }
        let key = check.counted_key();
        let amounts = self.amounts.lock();
        amounts.of.get(&key).filter(|amount| amount.holds(&key, now)).map_or(0, |amount| amount.hits)
    }
}

/// The number of the window's cell at that time. A window of the rate-limit service has one cell.
fn sequence(duration_ms: u64, now: UnixMs) -> u64 {
    now.0 / duration_ms.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::model::exact::Algorithm;

    const NOW: UnixMs = UnixMs(600_000);

    fn check(identifier: &str, cost: u64) -> LimitCheck {
        LimitCheck {
            algorithm: Algorithm::Window,
            workspace: b"w".to_vec(),
            namespace: b"n".to_vec(),
            identifier: identifier.into(),
            duration_ms: 60_000,
            hard_limit: false,
            limit: 10,
            cost,
        }
    }

    #[test]
    fn an_amount_is_used_once_by_its_own_key() {
        let refunds = Refunds::default();
        refunds.give(&check("a", 0), 5, 8, NOW);
        assert_eq!(refunds.take(&check("b", 9), NOW), 0, "another key");
        let taken = [2, 9, 9].map(|cost| refunds.take(&check("a", cost), NOW));
        assert_eq!(taken, [2, 3, 0]);
    }

    #[test]
    fn no_more_is_held_than_counts() {
        let refunds = Refunds::default();
        refunds.give(&check("a", 0), u64::MAX, 8, NOW);
        refunds.give(&check("a", 0), u64::MAX, 8, NOW);
        assert_eq!(refunds.left(&check("a", 0), NOW), 8);
        refunds.give(&check("b", 0), 5, 0, NOW);
        assert_eq!(refunds.take(&check("b", 5), NOW), 0, "nothing was used");
    }

    #[test]
    fn an_amount_ends_with_its_cell() {
        let (refunds, later) = (Refunds::default(), UnixMs(660_000));
        refunds.give(&check("a", 0), 5, 8, NOW);
        assert_eq!((refunds.left(&check("a", 0), later), refunds.take(&check("a", 1), later)), (0, 0));
        assert_eq!(refunds.held.load(Acquire), 0, "and takes no room");
        refunds.give(&check("a", 0), 5, 8, NOW);
        refunds.give(&check("a", 0), 1, 8, later);
        refunds.give(&check("a", 0), 5, u64::MAX, NOW);
        assert_eq!(refunds.left(&check("a", 0), later), 1, "a late return comes into no later cell");
    }

    #[test]
    fn a_flood_of_keys_takes_bounded_room() {
        let refunds = Refunds::default();
        for key in 0..MAX_KEYS + 10 {
            refunds.give(&check(&key.to_string(), 0), 1, 1, NOW);
        }
        assert_eq!(refunds.amounts.lock().of.len(), MAX_KEYS);
        refunds.give(&check("0", 0), 5, 9, NOW);
        assert_eq!(refunds.left(&check("0", 0), NOW), 6, "a key that has an amount keeps its room");
        refunds.give(&check("new", 0), 1, 1, UnixMs(660_000));
        assert_eq!(refunds.amounts.lock().of.len(), 1, "ended amounts make room");
    }
}
