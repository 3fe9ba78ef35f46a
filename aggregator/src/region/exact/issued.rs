//! Which worker was allowed which ledger transaction, so that no other worker can refund it.
//!
//! A filter refunds a transaction some milliseconds after it was issued. A transaction that is no longer stored here, or was
//! issued by another aggregator, cannot be refunded and counts for longer than it should.

use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// How long a transaction may be refunded.
const KEPT: Duration = Duration::from_secs(60);
/// Most transactions that are stored; beyond that the oldest is evicted.
const MOST: usize = 65_536;

/// The issued transactions.
#[derive(Default)]
pub(super) struct Issued {
    noted: Mutex<Noted>,
}

#[derive(Default)]
struct Noted {
    senders: HashMap<u64, (u64, Instant)>,
    order: VecDeque<u64>,
}

impl Issued {
    /// Stores that these transactions were issued to `sender`.
    pub(super) fn note(&self, sender: u64, transactions: impl Iterator<Item = u64>, now: Instant) {
        let mut noted = self.noted.lock();
        for id in transactions {
            noted.make_room(now);
            if noted.senders.insert(id, (sender, now)).is_none() {
                noted.order.push_back(id);
            }
        }
    }

    /// Whether this transaction was issued to `sender` and may still be refunded.
    pub(super) fn is_of(&self, sender: u64, id: u64, now: Instant) -> bool {
        let noted = self.noted.lock();
        noted.senders.get(&id).is_some_and(|(of, at)| *of == sender && now.duration_since(*at) < KEPT)
    }
}

impl Noted {
    fn make_room(&mut self, now: Instant) {
        while let Some(oldest) = self.order.front()
            && (self.order.len() >= MOST
                || self.senders.get(oldest).is_none_or(|(_, at)| now.duration_since(*at) >= KEPT))
        {
            self.senders.remove(oldest);
            self.order.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_belongs_to_the_sender_that_received_it() {
        let (issued, now) = (Issued::default(), Instant::now());
        issued.note(1, [7, 8].into_iter(), now);
        issued.note(2, [9].into_iter(), now);
        let of = |sender| [7, 8, 9, 10].map(|id| issued.is_of(sender, id, now));
        assert_eq!((of(1), of(2)), ([true, true, false, false], [false, false, true, false]));
        assert!(!issued.is_of(1, 7, now + KEPT), "refunded too late");
    }

    #[test]
    fn a_flood_is_noted_within_bounds() {
        let (issued, now) = (Issued::default(), Instant::now());
        let many = MOST as u64 + 5;
        issued.note(1, 0..many, now);
        assert!(!issued.is_of(1, 0, now) && issued.is_of(1, many - 1, now));
        let held = || {
            let noted = issued.noted.lock();
            (noted.senders.len(), noted.order.len())
        };
        assert_eq!(held(), (MOST, MOST));
        issued.note(1, [many].into_iter(), now + KEPT);
        assert_eq!(held(), (1, 1));
    }
}
