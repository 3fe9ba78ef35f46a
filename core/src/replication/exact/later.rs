//! Refunds that no request waits for: of charges whose requests ended without an answer, and refunds that failed at first.
//!
//! A charge without an answer is refunded after its deadline; from then on the store refuses to make it. A refund that
//! fails is tried again until the charge would have left its window, or for a minute. A charge whose refund finds no
//! room here, or is given up, only counts for longer than it should. Workspaces, and zones of the ledger, share the room, so that
//! the refunds of one leave some to the others.

use super::refund::PendingRefund;
use crate::model::room::most_of_part;
use crate::region::log::Micros;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;

/// Most refunds that wait.
const MAX_WAITING: usize = 8_192;
/// Most charges and transactions in all of them.
const MAX_CHARGES_WAITING: usize = 65_536;
/// Refunds that are made concurrently.
const AT_ONCE: usize = 64;
/// Time between two attempts, in microseconds.
const AGAIN_AFTER_US: u64 = 250_000;

/// The refunds that wait.
#[derive(Clone, Debug, Default)]
pub struct Later {
    /// By the time at which they are due, and their number.
    waiting: BTreeMap<(Micros, u64), PendingRefund>,
    numbers: u64,
    room: Room,
    /// Refunds that are being made.
    under_way: usize,
}

/// Whose refund it is. The first charge of a request decides.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    Workspace(Box<[u8]>),
    Zone(u32),
}

/// How much waits, in all and of each owner.
#[derive(Clone, Debug, Default)]
struct Room {
    all: Held,
    of: BTreeMap<Owner, Held>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Held {
    refunds: usize,
    charges: usize,
}

impl Later {
    /// Adds a refund. Returns it if there is no room.
    pub fn push(&mut self, refund: PendingRefund) -> Option<PendingRefund> {
        if !self.room.has_place(&Owner::of(&refund)) {
            return Some(refund);
        }
        self.insert(refund);
        None
    }

    /// Removes the next refund that is due. It is under way until [`Later::ended`].
    pub fn due(&mut self, now: Micros) -> Option<PendingRefund> {
        if self.next_due()? > now {
            return None;
        }
        let (_, refund) = self.waiting.pop_first()?;
        self.room.remove(&Owner::of(&refund), refund.len());
        self.under_way += 1;
        Some(refund)
    }

    /// When [`Later::due`] has a refund; `None` if none waits, or if as many are under way as may be.
    pub fn next_due(&self) -> Option<Micros> {
        let (due, _) = self.waiting.keys().next()?;
        (self.under_way < AT_ONCE).then_some(*due)
    }

    /// A refund has ended that was under way. What it has left is attempted again, or returned if it is given up.
    pub fn ended(&mut self, left: PendingRefund, now: Micros) -> Option<PendingRefund> {
        self.under_way = self.under_way.saturating_sub(1);
        let due = now.after(AGAIN_AFTER_US);
        if left.is_empty() {
            return None;
        }
        if due >= left.until {
            return Some(left);
        }
        self.insert(PendingRefund { due, ..left });
        None
    }

    /// The refunds that wait.
    pub fn waiting(&self) -> impl Iterator<Item = &PendingRefund> {
        self.waiting.values()
    }

    fn insert(&mut self, refund: PendingRefund) {
        self.room.add(Owner::of(&refund), refund.len());
        self.numbers = self.numbers.saturating_add(1);
        self.waiting.insert((refund.due, self.numbers), refund);
    }
}

impl Owner {
    fn of(refund: &PendingRefund) -> Owner {
        match (refund.charges.first(), refund.transactions.first()) {
            (None, Some(transaction)) => Owner::Zone(transaction.zone),
            (charge, _) => {
                Owner::Workspace(charge.map(|charge| charge.key.parts().workspace.into()).unwrap_or_default())
            }
        }
    }
}

impl Held {
    fn add(&mut self, charges: usize) {
        *self = Held { refunds: self.refunds + 1, charges: self.charges.saturating_add(charges) };
    }

    fn remove(&mut self, charges: usize) {
        let Held { refunds, charges: held } = *self;
        *self = Held { refunds: refunds.saturating_sub(1), charges: held.saturating_sub(charges) };
    }
}

impl Room {
    /// Whether there is room for another refund of an owner.
    fn has_place(&self, owner: &Owner) -> bool {
        let held = self.of.get(owner).copied().unwrap_or_default();
        held.refunds < most_of_part(MAX_WAITING.saturating_sub(self.all.refunds))
            && held.charges < most_of_part(MAX_CHARGES_WAITING.saturating_sub(self.all.charges))
    }

    fn add(&mut self, owner: Owner, charges: usize) {
        self.all.add(charges);
        self.of.entry(owner).or_default().add(charges);
    }

    fn remove(&mut self, owner: &Owner, charges: usize) {
        self.all.remove(charges);
        let Some(held) = self.of.get_mut(owner) else { return };
        held.remove(charges);
        if held.refunds == 0 {
            self.of.remove(owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replication::exact::plan::Transaction;
    use crate::replication::exact::tests::{NOW, log};
    use std::vec;
    use std::vec::Vec;

    fn refund(name: &str, charges: usize) -> PendingRefund {
        PendingRefund::now((0..charges).map(|_| log(name, 1, 5)).collect(), vec![], NOW)
    }

    /// Pushes refunds until there is no room.
    fn fill(later: &mut Later, one: &PendingRefund) -> usize {
        (0..100_000).take_while(|_| later.push(one.clone()).is_none()).count()
    }

    #[test]
    fn refunds_of_one_workspace_leave_room_to_the_others() {
        let mut later = Later::default();
        let of_zone = |zone| {
            let transaction = Transaction { id: 1, zone, bucket: Box::from(*b"b"), age_us: 0 };
            PendingRefund::now(vec![], vec![transaction], NOW)
        };
        let refunds = fill(&mut later, &refund("a", 1));
        assert_eq!(refunds, MAX_WAITING / 4 * 3);
        assert_eq!(later.push(refund("a", 1)), Some(refund("a", 1)));
        assert_eq!(later.push(of_zone(1)), None, "a zone finds room");
        while later.due(NOW).is_some_and(|one| later.ended(PendingRefund::default(), NOW) != Some(one)) {}
        assert_eq!((later.room.all, later.room.of.len(), later.under_way), (Held::default(), 0, 0));
        fill(&mut later, &refund("a", 100));
        assert!(later.room.all.charges <= MAX_CHARGES_WAITING / 4 * 3 + 100);
        assert_eq!(later.push(of_zone(1)), None);
    }

    #[test]
    fn a_refund_that_fails_is_attempted_again_until_its_charge_has_left_the_window() {
        let mut later = Later::default();
        later.push(PendingRefund { until: NOW.after(1_000_000), ..refund("a", 1) });
        let mut attempts = Vec::new();
        let given_up = loop {
            let now = later.next_due().unwrap();
            assert_eq!(later.due(Micros(now.0 - 1)), None);
            let one = later.due(now).unwrap();
            attempts.push(now.since(NOW) / 1_000);
            if let Some(given_up) = later.ended(one, now) {
                break given_up;
            }
        };
        assert_eq!((attempts, given_up.len()), (vec![0, 250, 500, 750], 1));
        assert_eq!((later.next_due(), later.room.all), (None, Held::default()));
    }

    #[test]
    fn so_many_are_made_at_once_and_no_more() {
        let mut later = Later::default();
        (0..AT_ONCE + 1).for_each(|_| drop(later.push(refund("a", 1))));
        assert_eq!(core::iter::from_fn(|| later.due(NOW)).count(), AT_ONCE);
        assert_eq!(later.next_due(), None);
        later.ended(PendingRefund::default(), NOW);
        assert!(later.due(NOW).is_some());
    }
}
