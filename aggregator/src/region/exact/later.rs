//! Refunds that no request waits for: of charges whose requests ended without an answer, and refunds that failed at first.
//!
//! A charge without an answer is refunded after its deadline; from then on the store refuses to make it. A refund that
//! fails is tried again until the charge would have left its window, or for a minute. A charge whose refund finds no
//! room here, or is given up, only counts for longer than it should. Workspaces, and zones of the ledger, share the room, so that
//! the refunds of one leave some to the others.

use super::{REFUND, Stores};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use weir_core::model::exact::{Charge, ChargeResult, ExactRequestId, Verdict};
use weir_core::model::room::most_of_part;
use weir_core::region::log::LogCharge;
use weir_core::replication::exact::plan::{ChargeCall, Plan, Transaction};

/// Most refunds that wait.
const MAX_WAITING: usize = 8_192;
/// Most charges and transactions in all of them.
const MAX_CHARGES_WAITING: usize = 65_536;
/// Refunds that are made concurrently.
const AT_ONCE: usize = 64;
/// How late a store's clock may be read.
const GRACE: Duration = Duration::from_millis(100);
/// Time between two attempts.
const AGAIN_AFTER: Duration = Duration::from_millis(250);
/// How long a refund is attempted.
const GIVE_UP_AFTER: Duration = Duration::from_secs(60);

/// Charges and transactions that wait to be refunded.
pub(super) struct PendingRefund {
    pub(super) charges: Vec<LogCharge>,
    pub(super) transactions: Vec<Transaction>,
    due: Instant,
    until: Instant,
}

/// Sends refunds to the task that makes them.
pub(super) struct Later {
    sender: mpsc::Sender<PendingRefund>,
    room: Arc<Mutex<Room>>,
    stores: Arc<Stores>,
}

/// Whose refund it is. The first charge of a request decides.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    Workspace(Box<[u8]>),
    Zone(u32),
}

/// How much waits, in all and of each owner.
#[derive(Debug, Default)]
struct Room {
    all: Held,
    of: BTreeMap<Owner, Held>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Held {
    refunds: usize,
    charges: usize,
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

impl PendingRefund {
    /// A refund of what was certainly charged, due at once.
    pub(super) fn now(charges: Vec<LogCharge>, transactions: Vec<Transaction>) -> PendingRefund {
        let now = Instant::now();
        let windows = charges.iter().map(|charge| Duration::from_millis(charge.key.parts().duration_ms));
        let longest = windows.max().filter(|_| transactions.is_empty()).unwrap_or(GIVE_UP_AFTER);
        PendingRefund { charges, transactions, due: now, until: now + longest.min(GIVE_UP_AFTER) }
    }

    /// A refund of what may be charged up to `deadline`, due after it.
    pub(super) fn of_undecided(charges: Vec<LogCharge>, deadline: Instant) -> PendingRefund {
        let refund = PendingRefund::now(charges, Vec::new());
        let later = (deadline + GRACE).saturating_duration_since(refund.due);
        PendingRefund { due: refund.due + later, until: refund.until + later, ..refund }
    }

    /// A refund of all that a request was charged according to its decisions. A log without a decision may have been charged.
    pub(super) fn of(
        request: ExactRequestId,
        charges: &[Charge],
        results: &[ChargeResult],
    ) -> Option<PendingRefund> {
        let plan = Plan::of(request, charges)?;
        let charged = |place: usize| {
            results.get(place).is_none_or(|r| matches!(r.verdict, Verdict::Allowed | Verdict::Undecided))
        };
        let mut logs = vec![false; plan.logs.len()];
        let mut transactions = Vec::new();
        for (place, call) in plan.calls.iter().enumerate() {
            match call {
                ChargeCall::Log(log) => {
                    if let Some(log) = logs.get_mut(*log) {
                        *log |= charged(place);
                    }
                }
                ChargeCall::Ledger(charge) => {
                    let id = results.get(place).filter(|_| charged(place)).and_then(|r| r.transaction);
                    transactions.extend(id.map(|id| charge.transaction(id)));
                }
            }
        }
        let charges = plan.logs.into_iter().zip(logs).filter(|(log, charged)| *charged && log.cost > 0);
        let refund = PendingRefund::now(charges.map(|(log, _)| log).collect(), transactions);
        (!refund.is_empty()).then_some(refund)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.charges.is_empty() && self.transactions.is_empty()
    }

    fn len(&self) -> usize {
        self.charges.len() + self.transactions.len()
    }

    fn owner(&self) -> Owner {
        match (self.charges.first(), self.transactions.first()) {
            (None, Some(transaction)) => Owner::Zone(transaction.zone),
            (charge, _) => {
                Owner::Workspace(charge.map(|charge| charge.key.parts().workspace.into()).unwrap_or_default())
            }
        }
    }
}

impl Later {
    /// Starts the task that makes refunds; it ends when this value is dropped.
    pub(super) fn start(stores: Arc<Stores>) -> Later {
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        let room = Arc::<Mutex<Room>>::default();
        tokio::spawn(run(stores.clone(), receiver, room.clone()));
        Later { sender, room, stores }
    }

    /// Adds a refund, if there is room.
    pub(super) fn push(&self, refund: PendingRefund) {
        let (owner, charges) = (refund.owner(), refund.len());
        let mut room = self.room.lock();
        // The channel has room for all that may wait.
        if room.has_place(&owner) && self.sender.try_send(refund).is_ok() {
            room.add(owner, charges);
        } else {
            self.stores.figures.refunds_given_up(charges as u64);
        }
    }
}

async fn run(stores: Arc<Stores>, mut incoming: mpsc::Receiver<PendingRefund>, room: Arc<Mutex<Room>>) {
    let mut waiting: BTreeMap<(Instant, u64), PendingRefund> = BTreeMap::new();
    for number in 0.. {
        let due = waiting.first_key_value().map(|((due, _), _)| *due);
        let pause = async {
            match due {
                Some(due) => sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            refund = incoming.recv() => match refund {
                Some(refund) => drop(waiting.insert((refund.due, number), refund)),
                None => return,
            },
            () = pause => refund(&stores, &mut waiting, &room).await,
        }
    }
}

/// Makes the refunds that are due; those that fail wait again.
async fn refund(
    stores: &Arc<Stores>,
    waiting: &mut BTreeMap<(Instant, u64), PendingRefund>,
    room: &Mutex<Room>,
) {
    let now = Instant::now();
    let mut tasks = JoinSet::new();
    while tasks.len() < AT_ONCE
        && let Some(first) = waiting.first_entry()
        && first.key().0 <= now
    {
        let ((_, number), refund) = first.remove_entry();
        room.lock().remove(&refund.owner(), refund.len());
        let stores = stores.clone();
        tasks.spawn(async move { (number, stores.take_back(refund, now + REFUND).await) });
    }
    while let Some(done) = tasks.join_next().await {
        let Ok((number, Some(left))) = done else { continue };
        let due = Instant::now() + AGAIN_AFTER;
        if due < left.until {
            room.lock().add(left.owner(), left.len());
            waiting.insert((due, number), left);
        } else {
            stores.figures.refunds_given_up(left.len() as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refunds_of_one_workspace_leave_room_to_the_others() {
        let mut room = Room::default();
        let workspace = |name: &str| Owner::Workspace(name.as_bytes().into());
        let fill = |room: &mut Room, owner: &Owner, charges: usize| {
            (0..100_000)
                .take_while(|_| {
                    let has_place = room.has_place(owner);
                    if has_place {
                        room.add(owner.clone(), charges);
                    }
                    has_place
                })
                .count()
        };
        let refunds = fill(&mut room, &workspace("mobile"), 1);
        assert_eq!(refunds, MAX_WAITING / 4 * 3);
        assert!(room.has_place(&workspace("default")) && room.has_place(&Owner::Zone(1)));
        (0..refunds).for_each(|_| room.remove(&workspace("mobile"), 1));
        assert_eq!((room.all, room.of.len()), (Held::default(), 0));
        fill(&mut room, &workspace("mobile"), 100);
        assert!(room.all.charges <= MAX_CHARGES_WAITING / 4 * 3 + 100);
        assert!(room.has_place(&workspace("default")));
    }
}
