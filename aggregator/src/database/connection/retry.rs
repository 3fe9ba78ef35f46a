//! Deadlines and second tries.
//!
//! What databases give up on may succeed a moment later: a deadlock's victim, a wait for a lock, a connection that was
//! lost. Each write here is absolute, so it may be repeated without knowing whether it was done.
//!
//! Leaves to others: which errors those are (`error`).

use super::pool::Pool;
use super::{Arg, Connection};
use crate::database::error::{DatabaseError, Reason};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// Pauses before second tries, in milliseconds. Each becomes up to half as long again, so that two that met in a
/// deadlock do not meet again.
const PAUSES_MS: [u64; 3] = [50, 100, 200];

/// Something to be done on a connection, as often as it takes. A trait, as the futures of async closures that borrow
/// are not known to be `Send`.
pub(in crate::database) trait Work {
    /// What comes of it.
    type Output;

    /// Does it once.
    fn run(
        &mut self,
        connection: &mut Connection,
    ) -> impl Future<Output = Result<Self::Output, DatabaseError>> + Send;
}

/// A statement without an answer: the number of rows that it changed.
pub(in crate::database) struct Execute<'a>(pub &'static str, pub &'a [Arg<'a>]);

impl Work for Execute<'_> {
    type Output = u64;

    async fn run(&mut self, connection: &mut Connection) -> Result<u64, DatabaseError> {
        connection.execute(self.0, self.1).await
    }
}

/// Does `work` on a connection, again where that may help, until `deadline`.
pub(in crate::database) async fn until<W: Work>(
    deadline: Instant,
    pool: &Pool,
    mut work: W,
) -> Result<W::Output, DatabaseError> {
    let mut last = None;
    // What is given up at the deadline takes its connection along.
    let done = timeout_at(deadline, async {
        for pause_ms in PAUSES_MS {
            match once(pool, &mut work).await {
                Err(error) if error.is_transient() => last = Some(error),
                result => return result,
            }
            sleep(jittered(pause_ms)).await;
        }
        once(pool, &mut work).await
    });
    // That the time was over between two tries says less than why the first one failed.
    done.await.unwrap_or_else(|_| Err(last.unwrap_or_else(DatabaseError::timeout)))
}

async fn once<W: Work>(pool: &Pool, work: &mut W) -> Result<W::Output, DatabaseError> {
    let mut held = pool.hold().await?;
    let result = work.run(&mut held.connection).await;
    match &result {
        Ok(_) => held.keep(),
        Err(error) if error.spares_connection() => held.keep(),
        // What one connection has lost, the others probably have too.
        Err(error) if error.kind() == Reason::Unavailable => pool.close_idle(),
        Err(_) => {}
    }
    result
}

/// A pause of up to half as long again, so that those who met do not meet again.
pub(in crate::database) fn jittered(pause_ms: u64) -> Duration {
    Duration::from_millis(pause_ms + rand::random_range(0..=pause_ms / 2))
}
