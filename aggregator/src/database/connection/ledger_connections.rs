//! Access to the ledger: its own connection pool, deadlines, and the circuit breaker and retries of the core
//! (`weir_core::replication::exact::ledger`). Zones share the connections: slow or many calls of one leave some to the others.

use super::pool::{MAX_WAIT, MAX_WAITING, Pool, busy};
use super::retry::{Work, jittered};
use super::turns::Turns;
use crate::database::error::{DatabaseError, Reason};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};
use weir_core::model::breaker::State;
use weir_core::model::time::MonoMs;
use weir_core::replication::exact::ledger::{LedgerBreaker, Tried, Tries};

/// Connections to the ledger behind a circuit breaker.
pub(in crate::database) struct LedgerConnections {
    pool: Pool,
    /// As many as there are connections.
    turns: Arc<Turns<u32>>,
    breaker: Mutex<LedgerBreaker>,
    started: Instant,
}

/// Why a try failed.
struct Failed {
    error: DatabaseError,
    /// The pause before another try.
    pause_ms: Option<u64>,
}

impl LedgerConnections {
    pub fn new(pool: Pool) -> LedgerConnections {
        let turns = Turns::new(pool.connections(), MAX_WAITING);
        LedgerConnections { pool, turns, breaker: Mutex::default(), started: Instant::now() }
    }

    /// The state of the circuit breaker.
    pub fn state(&self) -> State {
        self.breaker.lock().state(self.now())
    }

    /// Runs `work` for a zone within the given time. Repeats it only if a try changed nothing.
    pub async fn call<W: Work>(
        &self,
        zone: u32,
        within: Duration,
        mut work: W,
    ) -> Result<W::Output, DatabaseError> {
        let deadline = Instant::now() + within;
        let mut tries = Tries::new(self.mono(deadline));
        loop {
            let (error, pause_ms) = match self.once(zone, deadline, &mut work, &mut tries).await {
                Ok(output) => return Ok(output),
                Err(Failed { error, pause_ms: None }) => return Err(error),
                Err(Failed { error, pause_ms: Some(pause_ms) }) => (error, pause_ms),
            };
            if timeout_at(deadline, sleep(jittered(pause_ms))).await.is_err() {
                return Err(error);
            }
        }
    }

    async fn once<W: Work>(
        &self,
        zone: u32,
        deadline: Instant,
        work: &mut W,
        tries: &mut Tries,
    ) -> Result<W::Output, Failed> {
        let turn = self.turns.take(zone, deadline.min(Instant::now() + MAX_WAIT)).await;
        let _turn = turn.ok_or_else(|| Failed::finally(busy()))?;
        let slot = timeout_at(deadline, self.pool.slot()).await.unwrap_or_else(|_| Err(busy()));
        let slot = slot.map_err(Failed::finally)?;
        // The breaker is checked only after the wait for a turn. Otherwise calls that queued for an unreachable server
        // would all try it in turn.
        let attempt = self.admit(tries).map_err(Failed::finally)?;
        let mut held = match timeout_at(deadline, slot.hold()).await {
            Ok(Ok(held)) => held,
            Ok(Err(error)) => {
                let tried = if error.is_transient() { Tried::Unreachable } else { Tried::Failed };
                return Err(Failed { error, pause_ms: attempt.end(tried) });
            }
            Err(_) => {
                return Err(Failed {
                    pause_ms: attempt.end(Tried::TimedOut),
                    error: DatabaseError::timeout(),
                });
            }
        };
        // If the deadline passes, the connection is dropped and thereby closed.
        let result = timeout_at(deadline, work.run(&mut *held.connection)).await;
        let error = match result.unwrap_or_else(|_| Err(DatabaseError::timeout())) {
            Ok(output) => {
                attempt.end(Tried::Answered);
                held.keep();
                return Ok(output);
            }
            Err(error) => error,
        };
        let pause_ms = attempt.end(match error.kind() {
            Reason::Unavailable => Tried::Failed,
            Reason::Timeout => Tried::TimedOut,
            Reason::Deadlock | Reason::LockWait => Tried::Undone,
            _ => Tried::Answered,
        });
        if error.spares_connection() {
            held.keep();
        } else if error.kind() == Reason::Unavailable {
            self.pool.close_idle();
        }
        Err(Failed { error: self.pool.explain(error), pause_ms })
    }

    fn admit<'a>(&'a self, tries: &'a mut Tries) -> Result<Attempt<'a>, DatabaseError> {
        if tries.begin(&mut self.breaker.lock(), self.now()) {
            return Ok(Attempt { ledger: self, tries });
        }
        Err(DatabaseError::new(
            Reason::Unavailable,
            "the circuit breaker of the ledger is open after recent database failures; retry in a second",
        ))
    }

    fn now(&self) -> MonoMs {
        self.mono(Instant::now())
    }

    fn mono(&self, at: Instant) -> MonoMs {
        let since = at.saturating_duration_since(self.started).as_millis();
        MonoMs(u64::try_from(since).unwrap_or(u64::MAX))
    }
}

impl Failed {
    /// A failure after which there is no further try.
    fn finally(error: DatabaseError) -> Failed {
        Failed { error, pause_ms: None }
    }
}

/// A try that the breaker admitted. If it is dropped before its end, it shows nothing.
struct Attempt<'a> {
    ledger: &'a LedgerConnections,
    tries: &'a mut Tries,
}

impl Attempt<'_> {
    /// Returns the pause before the next try, in milliseconds.
    fn end(self, tried: Tried) -> Option<u64> {
        let now = self.ledger.now();
        self.tries.end(&mut self.ledger.breaker.lock(), tried, now)
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let now = self.ledger.now();
        self.tries.cancel(&mut self.ledger.breaker.lock(), now);
    }
}
