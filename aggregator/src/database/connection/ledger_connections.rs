//! Access to the ledger: its own connection pool, deadlines, and a circuit breaker. Zones share the connections: slow or many calls of one
//! leave some to the others.
//!
//! Each call records an attempt, so a failed try is repeated only if the database certainly rolled it back or never
//! received it. If a connection is lost, it is unknown whether the transaction was committed.

use super::pool::{MAX_WAIT, MAX_WAITING, Pool, busy};
use super::retry::{Work, jittered};
use super::turns::Turns;
use crate::database::error::{DatabaseError, Reason};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};
use weir_core::model::breaker::{Breaker, Policy, Shown, State};
use weir_core::model::time::MonoMs;

/// If half of the last 20 calls failed, the breaker opens for 500 ms. A server that is down therefore costs only a few
/// timeouts.
const BREAKER: Policy = Policy { window: 20, least: 5, failed_percent: 50, rest_ms: 500 };
/// Pauses before retries, in milliseconds; jitter adds up to half. Short, because a client waits for the answer.
const PAUSES_MS: [u64; 4] = [5, 10, 20, 40];

/// Connections to the ledger behind a circuit breaker.
pub(in crate::database) struct LedgerConnections {
    pool: Pool,
    /// As many as there are connections.
    turns: Arc<Turns<u32>>,
    breaker: Mutex<Breaker>,
    started: Instant,
}

/// Why a try failed.
struct Failed {
    error: DatabaseError,
    /// The try certainly changed nothing.
    is_undone: bool,
}

impl LedgerConnections {
    pub fn new(pool: Pool) -> LedgerConnections {
        let turns = Turns::new(pool.connections(), MAX_WAITING);
        LedgerConnections { pool, turns, breaker: Mutex::new(Breaker::new(BREAKER)), started: Instant::now() }
    }

    /// The state of the circuit breaker.
    pub fn state(&self) -> State {
        self.breaker.lock().state(self.now())
    }

    /// Runs `work` for a zone within the given time. Repeats it only if a try was rolled back.
    pub async fn call<W: Work>(
        &self,
        zone: u32,
        within: Duration,
        mut work: W,
    ) -> Result<W::Output, DatabaseError> {
        let deadline = Instant::now() + within;
        for pause_ms in PAUSES_MS {
            let error = match self.once(zone, deadline, &mut work).await {
                Err(Failed { error, is_undone: true }) if error.is_transient() => error,
                result => return result.map_err(|failed| failed.error),
            };
            if timeout_at(deadline, sleep(jittered(pause_ms))).await.is_err() {
                return Err(error);
            }
        }
        self.once(zone, deadline, &mut work).await.map_err(|failed| failed.error)
    }

    async fn once<W: Work>(&self, zone: u32, deadline: Instant, work: &mut W) -> Result<W::Output, Failed> {
        let turn = self.turns.take(zone, deadline.min(Instant::now() + MAX_WAIT)).await;
        let _turn = turn.ok_or_else(|| Failed::finally(busy()))?;
        let slot = timeout_at(deadline, self.pool.slot()).await.unwrap_or_else(|_| Err(busy()));
        let slot = slot.map_err(Failed::finally)?;
        // The breaker is checked only after the wait for a turn. Otherwise calls that queued for an unreachable server
        // would all try it in turn.
        let attempt = self.admit(deadline).map_err(Failed::finally)?;
        let mut held = match timeout_at(deadline, slot.hold()).await {
            Ok(Ok(held)) => held,
            Ok(Err(error)) => {
                attempt.shows(Shown::Failed);
                return Err(Failed { error, is_undone: true });
            }
            Err(_) => {
                attempt.shows(Shown::TimedOut);
                return Err(Failed::finally(DatabaseError::timeout()));
            }
        };
        // If the deadline passes, the connection is dropped and thereby closed.
        let result = timeout_at(deadline, work.run(&mut held.connection)).await;
        let error = match result.unwrap_or_else(|_| Err(DatabaseError::timeout())) {
            Ok(output) => {
                attempt.shows(Shown::Answered);
                held.keep();
                return Ok(output);
            }
            Err(error) => error,
        };
        attempt.shows(match error.kind() {
            Reason::Unavailable => Shown::Failed,
            Reason::Timeout => Shown::TimedOut,
            _ => Shown::Answered,
        });
        if error.spares_connection() {
            held.keep();
        } else if error.kind() == Reason::Unavailable {
            self.pool.close_idle();
        }
        let is_undone = matches!(error.kind(), Reason::Deadlock | Reason::LockWait);
        Err(Failed { error, is_undone })
    }

    fn admit(&self, deadline: Instant) -> Result<Attempt<'_>, DatabaseError> {
        let since = self.now();
        let patience = deadline.saturating_duration_since(Instant::now()).as_millis();
        let patience_ms = u64::try_from(patience).unwrap_or(u64::MAX);
        if self.breaker.lock().allows_within(patience_ms, since) {
            return Ok(Attempt { ledger: self, since, shown: Shown::Nothing });
        }
        Err(DatabaseError::new(
            Reason::Unavailable,
            "the circuit breaker of the ledger is open after recent database failures; retry in a second",
        ))
    }

    fn now(&self) -> MonoMs {
        MonoMs(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX))
    }
}

impl Failed {
    /// A failure that must not be retried.
    fn finally(error: DatabaseError) -> Failed {
        Failed { error, is_undone: false }
    }
}

/// A call that the breaker admitted. What it has shown is reported to the breaker when it is dropped.
struct Attempt<'a> {
    ledger: &'a LedgerConnections,
    since: MonoMs,
    shown: Shown,
}

impl Attempt<'_> {
    fn shows(mut self, shown: Shown) {
        self.shown = shown;
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let now = self.ledger.now();
        self.ledger.breaker.lock().showed(self.shown, self.since, now);
    }
}
