//! Refunds that no request waits for: of charges whose requests ended without an answer, and refunds that failed at first.
//!
//! A charge without an answer is refunded after its deadline; from then on the store refuses to make it. A refund that
//! fails is tried again until the charge would have left its window, or for a minute. A charge whose refund finds no
//! room here, or is given up, only counts for longer than it should.

use super::plan::{ChargeCall, Plan, Transaction};
use super::{REFUND, Stores};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use weir_core::model::exact::{Charge, ChargeResult, ExactRequestId, Verdict};
use weir_core::region::log::LogCharge;

/// Most refunds that wait, and most in the channel to this task.
const MAX_WAITING: usize = 4_096;
/// Most charges and transactions in all of them.
const MAX_CHARGES_WAITING: u64 = 65_536;
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
    waiting: Arc<AtomicU64>,
    stores: Arc<Stores>,
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
                ChargeCall::Ledger { zone, bucket, .. } => {
                    let id = results.get(place).filter(|_| charged(place)).and_then(|r| r.transaction);
                    let bucket = bucket.clone();
                    transactions.extend(id.map(|id| Transaction { id, zone: *zone, bucket }));
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

    fn len(&self) -> u64 {
        (self.charges.len() + self.transactions.len()) as u64
    }
}

impl Later {
    /// Starts the task that makes refunds; it ends when this value is dropped.
    pub(super) fn start(stores: Arc<Stores>) -> Later {
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        let waiting = Arc::new(AtomicU64::new(0));
        tokio::spawn(run(stores.clone(), receiver, waiting.clone()));
        Later { sender, waiting, stores }
    }

    /// Adds a refund, if there is room.
    pub(super) fn push(&self, refund: PendingRefund) {
        let charges = refund.len();
        let before = self.waiting.fetch_add(charges, Relaxed);
        if before > MAX_CHARGES_WAITING || self.sender.try_send(refund).is_err() {
            self.waiting.fetch_sub(charges, Relaxed);
            self.stores.figures.refunds_given_up(charges);
        }
    }
}

async fn run(stores: Arc<Stores>, mut incoming: mpsc::Receiver<PendingRefund>, charges: Arc<AtomicU64>) {
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
            refund = incoming.recv(), if waiting.len() < MAX_WAITING => match refund {
                Some(refund) => drop(waiting.insert((refund.due, number), refund)),
                None => return,
            },
            () = pause => {
                let settled = refund(&stores, &mut waiting).await;
                charges.fetch_sub(settled, Relaxed);
            }
        }
    }
}

/// Makes the refunds that are due; those that fail wait again. Returns how many charges no longer wait.
async fn refund(stores: &Arc<Stores>, waiting: &mut BTreeMap<(Instant, u64), PendingRefund>) -> u64 {
    let now = Instant::now();
    let (mut tasks, mut settled) = (JoinSet::new(), 0);
    while tasks.len() < AT_ONCE
        && let Some(first) = waiting.first_entry()
        && first.key().0 <= now
    {
        let ((_, number), refund) = first.remove_entry();
        settled += refund.len();
        let stores = stores.clone();
        tasks.spawn(async move { (number, stores.take_back(refund, now + REFUND).await) });
    }
    while let Some(done) = tasks.join_next().await {
        let Ok((number, Some(left))) = done else { continue };
        let due = Instant::now() + AGAIN_AFTER;
        if due < left.until {
            settled -= left.len();
            waiting.insert((due, number), left);
        } else {
            stores.figures.refunds_given_up(left.len());
        }
    }
    settled
}
