//! A few connections, kept between calls.
//!
//! Not sqlx's own pool, for three reasons: that one waits for a server that refuses until its timeout and then says no
//! more than that, it asks a connection whose call was given up whether it still lives, and it cannot be told that one
//! lost connection makes all the others suspect.
//!
//! Leaves to others: trying again, and the deadline of a call (`retry`).

use super::connection::{Connection, Statements, Target};
use super::error::{DatabaseError, Reason};
use parking_lot::Mutex;
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};

/// Connections at one time: a publication, an import, the sentinel or lease, and one to spare.
const MAX_CONNECTIONS: usize = 4;
/// How long a call waits for one that another has.
const MAX_WAIT: Duration = Duration::from_secs(2);
/// A connection that was idle for longer is asked first whether it lives; the answer may take as long.
const FRESH: Duration = Duration::from_secs(1);
/// A connection that was idle for longer is closed.
const MAX_IDLE: Duration = Duration::from_secs(60);
/// An older connection is closed, so that a database which moved to another address, or a file that was replaced, is
/// noticed.
const MAX_AGE: Duration = Duration::from_secs(600);

/// Connections to one place.
pub(super) struct Pool {
    target: Target,
    slots: Semaphore,
    idle: Mutex<Vec<Idle>>,
}

struct Idle {
    connection: Connection,
    opened: Instant,
    since: Instant,
}

/// A connection in use. Dropping it closes it.
pub(super) struct Held<'a> {
    pub connection: Connection,
    opened: Instant,
    pool: &'a Pool,
    _slot: SemaphorePermit<'a>,
}

impl Pool {
    pub fn new(target: Target) -> Pool {
        Pool { target, slots: Semaphore::new(MAX_CONNECTIONS), idle: Mutex::default() }
    }

    pub fn statements(&self) -> &'static Statements {
        self.target.statements()
    }

    /// A connection that lives, as far as can be told.
    pub async fn hold(&self) -> Result<Held<'_>, DatabaseError> {
        let busy = || DatabaseError::new(Reason::Timeout, "all connections to the database are busy");
        let slot =
            timeout(MAX_WAIT, self.slots.acquire()).await.ok().and_then(Result::ok).ok_or_else(busy)?;
        let (connection, opened) = match self.kept().await {
            Some(Idle { connection, opened, .. }) => (connection, opened),
            None => (self.target.connect().await?, Instant::now()),
        };
        Ok(Held { connection, opened, pool: self, _slot: slot })
    }

    async fn kept(&self) -> Option<Idle> {
        let now = Instant::now();
        let mut kept = {
            let mut idle = self.idle.lock();
            idle.retain(|idle| now - idle.since < MAX_IDLE && now - idle.opened < MAX_AGE);
            idle.pop()?
        };
        if now - kept.since < FRESH || matches!(timeout(FRESH, kept.connection.ping()).await, Ok(Ok(()))) {
            return Some(kept);
        }
        self.close_idle();
        None
    }

    /// Closes all that are not in use.
    pub fn close_idle(&self) {
        let closed = std::mem::take(&mut *self.idle.lock());
        drop(closed);
    }
}

impl Held<'_> {
    /// Keeps the connection for the next call.
    pub fn keep(self) {
        let Held { connection, opened, pool, _slot } = self;
        pool.idle.lock().push(Idle { connection, opened, since: Instant::now() });
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.target.fmt(f)
    }
}
