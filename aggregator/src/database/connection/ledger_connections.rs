//! What stands before the ledger: its own connections, turns to have one, deadlines, and a breaker.
//!
//! An attempt is recorded each time that it is made, so a try that failed is repeated only where the database has
//! certainly undone it, or never heard of it. Whether a connection was lost before or after a commit nobody knows.
//!
//! Leaves to others: what is asked (`ledger`), connections themselves (`pool`).

use super::pool::{Pool, busy};
use super::retry::{Work, jittered};
use crate::database::error::{DatabaseError, Reason};
use parking_lot::Mutex;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};
use weir_core::model::breaker::{Breaker, Policy, State};
use weir_core::model::time::MonoMs;

/// Half of so many calls have to fail before nobody is asked for a while: a server that is gone costs a few timeouts.
const BREAKER: Policy = Policy { window: 20, least: 5, failed_percent: 50, rest_ms: 500 };
/// Pauses before second tries, in milliseconds, and up to half as long again; somebody waits.
const PAUSES_MS: [u64; 4] = [5, 10, 20, 40];

/// The way to the ledger.
pub(in crate::database) struct LedgerConnections {
    pool: Pool,
    breaker: Mutex<Breaker>,
    started: Instant,
}

/// Why a try failed.
struct Failed {
    error: DatabaseError,
    /// It certainly changed nothing.
    is_undone: bool,
}

impl LedgerConnections {
    pub fn new(pool: Pool) -> LedgerConnections {
        LedgerConnections { pool, breaker: Mutex::new(Breaker::new(BREAKER)), started: Instant::now() }
    }

    /// What the breaker lets through.
    pub fn state(&self) -> State {
        self.breaker.lock().state(self.now())
    }

    /// Does `work` within the time given, once; again only where a try was undone.
    pub async fn call<W: Work>(&self, within: Duration, mut work: W) -> Result<W::Output, DatabaseError> {
        let deadline = Instant::now() + within;
        for pause_ms in PAUSES_MS {
            let error = match self.once(deadline, &mut work).await {
                Err(Failed { error, is_undone: true }) if error.is_transient() => error,
                result => return result.map_err(|failed| failed.error),
            };
            if timeout_at(deadline, sleep(jittered(pause_ms))).await.is_err() {
                return Err(error);
            }
        }
        self.once(deadline, &mut work).await.map_err(|failed| failed.error)
    }

    async fn once<W: Work>(&self, deadline: Instant, work: &mut W) -> Result<W::Output, Failed> {
        let slot = timeout_at(deadline, self.pool.slot()).await.unwrap_or_else(|_| Err(busy()));
        let slot = slot.map_err(Failed::finally)?;
        // Asked only now: those who waited for a server that is gone are not to try it one after the other.
        let attempt = self.admit().map_err(Failed::finally)?;
        let mut held = match timeout_at(deadline, slot.hold()).await {
            Ok(Ok(held)) => held,
            Ok(Err(error)) => {
                attempt.failed();
                return Err(Failed { error, is_undone: true });
            }
            Err(_) => {
                attempt.failed();
                return Err(Failed::finally(DatabaseError::timeout()));
            }
        };
        // What is given up at the deadline takes its connection along.
        let result = timeout_at(deadline, work.run(&mut held.connection)).await;
        let error = match result.unwrap_or_else(|_| Err(DatabaseError::timeout())) {
            Ok(output) => {
                attempt.answered();
                held.keep();
                return Ok(output);
            }
            Err(error) => error,
        };
        match error.kind() {
            Reason::Unavailable | Reason::Timeout => attempt.failed(),
            _ => attempt.answered(),
        }
        if error.spares_connection() {
            held.keep();
        } else if error.kind() == Reason::Unavailable {
            self.pool.close_idle();
        }
        let is_undone = matches!(error.kind(), Reason::Deadlock | Reason::LockWait);
        Err(Failed { error, is_undone })
    }

    fn admit(&self) -> Result<Attempt<'_>, DatabaseError> {
        let is_allowed = self.breaker.lock().allows(self.now());
        if is_allowed {
            return Ok(Attempt { ledger: self, is_recorded: false });
        }
        Err(DatabaseError::new(
            Reason::Unavailable,
            "the database failed lately and is not asked for a moment",
        ))
    }

    fn now(&self) -> MonoMs {
        MonoMs(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX))
    }
}

impl Failed {
    /// Not to be repeated.
    fn finally(error: DatabaseError) -> Failed {
        Failed { error, is_undone: false }
    }
}

/// A call that the breaker let through, and that has to tell how it went.
struct Attempt<'a> {
    ledger: &'a LedgerConnections,
    is_recorded: bool,
}

impl Attempt<'_> {
    fn answered(mut self) {
        self.is_recorded = true;
        self.ledger.breaker.lock().succeeded();
    }

    fn failed(mut self) {
        self.is_recorded = true;
        self.ledger.breaker.lock().failed(self.ledger.now());
    }
}

/// A call that its caller gave up says nothing about the database, but another has to find out then.
impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let now = self.ledger.now();
        let mut breaker = self.ledger.breaker.lock();
        if !self.is_recorded && breaker.state(now) != State::Closed {
            breaker.failed(now);
        }
    }
}
