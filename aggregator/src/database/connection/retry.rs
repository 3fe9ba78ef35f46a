//! Deadlines and retries.
//!
//! Some failures are transient: a deadlock, a lock timeout, a lost connection. Each write through [`until`] is
//! absolute, so it may be repeated without knowing whether it was applied. A packet is tried [`once`]; its caller sends
//! the rows again in another packet.

use super::pool::Pool;
use super::{Arg, Connection, Row};
use crate::database::error::{DatabaseError, Reason};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// Pauses before retries, in milliseconds. Jitter adds up to half, so that two transactions that deadlocked do not
/// collide again.
const PAUSES_MS: [u64; 3] = [50, 100, 200];

/// An operation on a connection that may be repeated. It is a trait because the futures of async closures that borrow
/// cannot be proved `Send`.
pub(in crate::database) trait Work {
    /// The result of the operation.
    type Output;

    /// Runs the operation once.
    fn run(
        &mut self,
        connection: &mut Connection,
    ) -> impl Future<Output = Result<Self::Output, DatabaseError>> + Send;
}

/// A statement without result rows; its output is the number of rows that it changed.
pub(in crate::database) struct Execute<'a>(pub &'static str, pub &'a [Arg<'a>]);

impl Work for Execute<'_> {
    type Output = u64;

    async fn run(&mut self, connection: &mut Connection) -> Result<u64, DatabaseError> {
        connection.execute(self.0, self.1).await
    }
}

/// The number in the first row of a query, if there is one.
pub(in crate::database) struct Number<'a>(pub &'static str, pub &'a [Arg<'a>]);

impl Work for Number<'_> {
    type Output = Option<u64>;

    async fn run(&mut self, connection: &mut Connection) -> Result<Option<u64>, DatabaseError> {
        let mut number = None;
        connection.each(self.0, self.1, &mut |row| number = row.number(0)).await?;
        Ok(number)
    }
}

/// The rows of a query that the function can read.
pub(in crate::database) struct Rows<'a, T>(
    pub &'static str,
    pub &'a [Arg<'a>],
    pub fn(&Row<'_>) -> Option<T>,
);

impl<T: Send> Work for Rows<'_, T> {
    type Output = Vec<T>;

    async fn run(&mut self, connection: &mut Connection) -> Result<Vec<T>, DatabaseError> {
        let (mut found, read) = (Vec::new(), self.2);
        connection.each(self.0, self.1, &mut |row| found.extend(read(row))).await?;
        Ok(found)
    }
}

/// Runs `work` on a connection. Repeats it after transient errors until `deadline`.
pub(in crate::database) async fn until<W: Work>(
    deadline: Instant,
    pool: &Pool,
    mut work: W,
) -> Result<W::Output, DatabaseError> {
    let mut last = None;
    // If the deadline passes, the connection is dropped and thereby closed.
    let done = timeout_at(deadline, async {
        for pause_ms in PAUSES_MS {
            match attempt(pool, &mut work).await {
                Err(error) if error.is_transient() => last = Some(error),
                result => return result,
            }
            sleep(jittered(pause_ms)).await;
        }
        attempt(pool, &mut work).await
    });
    // The error of the last try explains more than "timeout" does.
    done.await.unwrap_or_else(|_| Err(last.unwrap_or_else(DatabaseError::timeout)))
}

/// Runs `work` once. The connection is reused only after a success; after any error, and at `deadline`, it is closed.
pub(in crate::database) async fn once<W: Work>(
    deadline: Instant,
    pool: &Pool,
    mut work: W,
) -> Result<W::Output, DatabaseError> {
    let done = timeout_at(deadline, async {
        let mut held = pool.hold().await?;
        let output = work.run(&mut *held.connection).await.map_err(|error| pool.explain(error))?;
        held.keep();
        Ok(output)
    });
    let result = done.await.unwrap_or_else(|_| Err(DatabaseError::timeout()));
    if result.as_ref().is_err_and(|error| error.kind() == Reason::Unavailable) {
        pool.close_idle();
    }
    result
}

async fn attempt<W: Work>(pool: &Pool, work: &mut W) -> Result<W::Output, DatabaseError> {
    let mut held = pool.hold().await?;
    let result = work.run(&mut *held.connection).await.map_err(|error| pool.explain(error));
    match &result {
        Ok(_) => held.keep(),
        Err(error) if error.spares_connection() => held.keep(),
        // If one connection was lost, the other idle connections probably were too.
        Err(error) if error.kind() == Reason::Unavailable => pool.close_idle(),
        Err(_) => {}
    }
    result
}

/// `pause_ms` plus a random part of up to half, so that colliding transactions do not collide again.
pub(in crate::database) fn jittered(pause_ms: u64) -> Duration {
    Duration::from_millis(pause_ms + rand::random_range(0..=pause_ms / 2))
}
