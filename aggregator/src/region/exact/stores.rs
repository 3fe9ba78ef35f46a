//! Drives the machines of exact requests and refunds: makes their calls, by their deadlines.

use super::ledgers::Ledgers;
use super::logs::Logs;
use crate::database::Database;
use crate::redis::Store;
use crate::telemetry::metrics::ExactFigures;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};
use weir_core::region::log::{LogCharge, LogDecision, Micros};
use weir_core::replication::Next;
use weir_core::replication::exact::logs::{Charging, NoAnswer};
use weir_core::replication::exact::refunding::Refunding;
use weir_core::replication::exact::{Call, ExactState, Machine, Reply};

/// The logs, the ledgers, and what the core keeps of them.
pub(super) struct Stores {
    state: Mutex<ExactState>,
    /// Notified when another refund is the next.
    refunds: Notify,
    /// The zero of the core's times.
    started: Instant,
    pub(super) logs: Logs,
    pub(super) ledgers: Ledgers,
    pub(super) figures: ExactFigures,
}

/// The task that makes refunds for which no request waits; it ends when this value is dropped.
pub(super) struct Refunds(JoinHandle<()>);

/// A machine that is driven. It is cancelled when its driver is.
struct Driven<'a, M: Machine> {
    stores: &'a Stores,
    machine: &'a mut M,
}

impl Stores {
    pub(super) fn new(store: Option<Store>, database: Option<Database>) -> Stores {
        let logs = Logs::new(store);
        Stores {
            state: Mutex::new(ExactState::new(logs.are_stored())),
            refunds: Notify::new(),
            started: Instant::now(),
            logs,
            ledgers: Ledgers::new(database),
            figures: ExactFigures::default(),
        }
    }

    pub(super) fn now(&self) -> Micros {
        micros(self.started.elapsed())
    }

    /// What the core does with its state, and the metrics of that.
    pub(super) fn state<R>(&self, act: impl FnOnce(&mut ExactState, Micros) -> R) -> R {
        let mut state = self.state.lock();
        let before = state.next_due();
        let result = act(&mut state, self.now());
        let (counters, due) = (state.take_counters(), state.next_due());
        drop(state);
        self.figures.count(&counters);
        if due != before {
            self.refunds.notify_one();
        }
        result
    }

    /// Makes the calls of a machine until it is over.
    pub(super) async fn drive(&self, machine: &mut impl Machine) {
        let driven = Driven { stores: self, machine };
        loop {
            match self.state(|state, now| driven.machine.next(state, now)) {
                Next::Call(call) => {
                    let reply = self.call(&call, driven.machine.deadline()).await;
                    self.state(|state, now| driven.machine.replied(state, reply, now));
                }
                Next::Sleep(ms) => sleep(Duration::from_millis(ms)).await,
                Next::Wait { .. } | Next::Yield | Next::Over => return,
            }
        }
    }

    /// Reads logs: lets each of them decide, by `deadline`.
    pub(super) async fn read(
        &self,
        logs: Vec<LogCharge>,
        within: Duration,
    ) -> Vec<Result<LogDecision, NoAnswer>> {
        let mut reading = Charging::new(logs, self.now().after(micros(within).0));
        self.drive(&mut reading).await;
        reading.results()
    }

    async fn call(&self, call: &Call, deadline: Micros) -> Reply {
        let within = Duration::from_micros(deadline.since(self.now()));
        match call {
            Call::ChargeLogs(charges) => {
                Reply::LogsCharged(self.logs.charge(charges, within, self.now()).await)
            }
            Call::RefundLogs(charges) => Reply::LogsRefunded(self.logs.refund(charges, within).await),
            Call::ChargeLedger(charge) => {
                Reply::LedgerCharged(self.ledgers.charge(charge, within, &self.figures).await)
            }
            Call::RefundLedger(transaction) => {
                Reply::LedgerRefunded(self.ledgers.refund(transaction, within).await)
            }
        }
    }
}

impl Refunds {
    /// Starts the task.
    pub(super) fn start(stores: Arc<Stores>) -> Refunds {
        Refunds(tokio::spawn(make_refunds(stores)))
    }
}

impl Drop for Refunds {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn make_refunds(stores: Arc<Stores>) {
    let mut under_way = JoinSet::new();
    loop {
        while let Some(mut refunding) = stores.state(Refunding::due) {
            let stores = stores.clone();
            under_way.spawn(async move { stores.drive(&mut refunding).await });
        }
        let due = stores.state(|state, _| state.next_due());
        let pause = async {
            match due {
                Some(due) => sleep_until(stores.started + Duration::from_micros(due.0)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = pause => {}
            () = stores.refunds.notified() => {}
            Some(_) = under_way.join_next() => {}
        }
    }
}

impl<M: Machine> Drop for Driven<'_, M> {
    fn drop(&mut self) {
        let Driven { stores, machine } = self;
        stores.state(|state, now| machine.cancel(state, now));
    }
}

pub(super) fn micros(time: Duration) -> Micros {
    Micros(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}
