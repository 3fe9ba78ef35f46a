//! A small pool of connections that are reused between calls.
//!
//! It replaces sqlx's pool for three reasons. If a server refuses connections, sqlx's pool waits for its timeout and
//! hides the cause. It pings a connection whose call was cancelled. It cannot drop all idle connections after one of
//! them was lost.

use super::Connection;
use crate::database::dialect::{FileId, MAX_IDLE, Purpose, Server, Statements};
use crate::database::error::{DatabaseError, Reason};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};

/// How long a call waits for a free connection.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(2);
/// Most calls that wait for a connection; further calls fail at once.
pub(super) const MAX_WAITING: usize = 1_024;
/// A connection that was idle for longer is pinged before use. The ping may take as long.
const FRESH: Duration = Duration::from_secs(1);
/// An older connection is closed, so that the pool notices a database with a new address.
const MAX_AGE: Duration = Duration::from_secs(600);

/// Connections to one database.
pub(in crate::database) struct Pool {
    server: Arc<dyn Server>,
    /// The option that configured the server, for error texts.
    option: &'static str,
    purpose: Purpose,
    slots: Semaphore,
    waiting: AtomicUsize,
    idle: Mutex<Vec<Idle>>,
}

struct Idle {
    connection: Box<Connection>,
    opened: Opened,
    since: Instant,
}

/// What a connection was opened to, and when.
#[derive(Clone, Copy)]
struct Opened {
    /// The file of a database that is one. If the address names another file now, that one was lost or replaced.
    file: Option<FileId>,
    at: Instant,
}

/// The right to use one connection.
pub(in crate::database) struct Slot<'a> {
    pool: &'a Pool,
    permit: SemaphorePermit<'a>,
}

/// A connection in use. Dropping it closes it.
pub(in crate::database) struct Borrowed<'a> {
    pub connection: Box<Connection>,
    opened: Opened,
    pool: &'a Pool,
    _slot: SemaphorePermit<'a>,
}

/// Number of connections of a pool.
fn connections(purpose: Purpose, server: &dyn Server) -> usize {
    match purpose {
        // A packet, an import, the lease or live control, and one spare.
        Purpose::Counts => 4,
        Purpose::Ledger => server.ledger_connections(),
    }
}

impl Pool {
    pub fn new(server: Arc<dyn Server>, option: &'static str, purpose: Purpose) -> Pool {
        let slots = Semaphore::new(connections(purpose, &*server));
        Pool { server, option, purpose, slots, waiting: AtomicUsize::new(0), idle: Mutex::default() }
    }

    /// Its number of connections.
    pub fn connections(&self) -> usize {
        connections(self.purpose, &*self.server)
    }

    pub fn statements(&self) -> &'static Statements {
        self.server.statements()
    }

    /// A connection that was used or pinged recently.
    pub async fn hold(&self) -> Result<Borrowed<'_>, DatabaseError> {
        self.slot().await?.hold().await
    }

    /// Waits for the right to use a connection.
    pub async fn slot(&self) -> Result<Slot<'_>, DatabaseError> {
        if let Ok(permit) = self.slots.try_acquire() {
            return Ok(Slot { pool: self, permit });
        }
        let _waiting = Waiting::among(&self.waiting).ok_or_else(busy)?;
        let permit = timeout(MAX_WAIT, self.slots.acquire()).await.ok().and_then(Result::ok);
        permit.map(|permit| Slot { pool: self, permit }).ok_or_else(busy)
    }

    async fn kept(&self) -> Option<Idle> {
        let now = Instant::now();
        let mut kept = {
            let mut idle = self.idle.lock();
            idle.retain(|idle| now - idle.since < MAX_IDLE && now - idle.opened.at < MAX_AGE);
            idle.pop()?
        };
        let is_alive =
            now - kept.since < FRESH || matches!(timeout(FRESH, kept.connection.ping()).await, Ok(Ok(())));
        if is_alive && kept.opened.file == self.server.file().await {
            return Some(kept);
        }
        self.close_idle();
        None
    }

    /// Makes an empty database if there is none and its kind can.
    pub async fn create(&self) -> Result<(), DatabaseError> {
        self.server.create().await.map_err(|error| self.at(error))
    }

    /// An error with the place of the database and the option that configured it.
    fn at(&self, error: DatabaseError) -> DatabaseError {
        error.at(&self.server, self.option)
    }

    /// An error of a statement. If tables are missing, it names the database, as the address may be that of another one.
    pub fn explain(&self, error: DatabaseError) -> DatabaseError {
        if error.kind() == Reason::Schema { self.at(error) } else { error }
    }

    /// Closes all idle connections.
    pub fn close_idle(&self) {
        let closed = std::mem::take(&mut *self.idle.lock());
        drop(closed);
    }
}

impl<'a> Slot<'a> {
    /// A connection that was used or pinged recently.
    pub async fn hold(self) -> Result<Borrowed<'a>, DatabaseError> {
        let Slot { pool, permit } = self;
        let (connection, opened) = match pool.kept().await {
            Some(Idle { connection, opened, .. }) => (connection, opened),
            None => {
                // Read before it is opened: if it is replaced meanwhile, the next call opens the other one.
                let file = pool.server.file().await;
                let connected = pool.server.connect(pool.purpose).await;
                let opened = Opened { file, at: Instant::now() };
                (connected.map_err(|error| pool.at(error))?, opened)
            }
        };
        Ok(Borrowed { connection, opened, pool, _slot: permit })
    }
}

/// Counts a waiting call for as long as it lives.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn among(waiting: &'a AtomicUsize) -> Option<Waiting<'a>> {
        let place = waiting.fetch_add(1, Relaxed);
        let one = Waiting(waiting);
        (place < MAX_WAITING).then_some(one)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// The error if no connection became free in time.
pub(in crate::database) fn busy() -> DatabaseError {
    DatabaseError::new(Reason::Timeout, "all connections to the database are busy")
}

impl Borrowed<'_> {
    /// Returns the connection to the pool.
    pub fn keep(self) {
        let Borrowed { connection, opened, pool, _slot } = self;
        pool.idle.lock().push(Idle { connection, opened, since: Instant::now() });
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.server.fmt(f)
    }
}
