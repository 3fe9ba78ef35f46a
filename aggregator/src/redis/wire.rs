//! One connection to one server, made again whenever it breaks, in the background and without end.
//!
//! A call while there is none fails at once. A server that hangs (paused, or behind a cut network) gives no error, so
//! a ping goes out regularly; when nothing at all has been answered for [`HUNG_AFTER`], the connection is given up,
//! and calls fail at once until a new one answers. A request whose caller has stopped waiting keeps its place among
//! the outstanding ones until it is answered or its connection ends, so that a hung server costs bounded memory.
//!
//! Leaves to others: what is sent and where ([`super::cluster::nodes`]).

use super::error::StoreError;
use super::script;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Pipeline, RedisError, RedisResult, Value};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// A connection that answered nothing for so long is given up. Longer than any single step of a working server.
pub(super) const HUNG_AFTER: Duration = Duration::from_secs(2);
/// A new connection must be usable within this.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Between pings; also how soon the end of an idle connection is noticed.
const PING_INTERVAL: Duration = Duration::from_millis(500);
const RETRY_MIN: Duration = Duration::from_millis(25);
const RETRY_MAX: Duration = Duration::from_millis(400);
/// A connection that lived no longer is not made again at once.
const SHORT_LIFE: Duration = Duration::from_secs(1);
/// Requests (a pipeline counts as one) that wait for their answers on one connection.
const MAX_OUTSTANDING: usize = 512;

/// A connection that heals.
pub(super) struct Wire {
    now: Arc<Now>,
    keeper: JoinHandle<()>,
}

type Now = Mutex<Result<Live, StoreError>>;

/// A connection in use.
#[derive(Clone)]
struct Live {
    connection: MultiplexedConnection,
    /// Somebody saw it broken.
    broken: Arc<Notify>,
    /// Closed when it is given up.
    given_up: watch::Receiver<()>,
    outstanding: Arc<Semaphore>,
    last_answer: Arc<Mutex<Instant>>,
}

impl Wire {
    /// Starts connecting; `server` is its name in the log. Needs a tokio runtime.
    pub(super) fn open(client: Client, server: String) -> Wire {
        let now = Arc::new(Mutex::new(Err(StoreError::Unavailable)));
        let keeper = tokio::spawn(keep(Arc::clone(&now), client, server));
        Wire { now, keeper }
    }

    /// Whether there is a connection.
    pub(super) fn is_up(&self) -> bool {
        self.now.lock().is_ok()
    }

    /// Gives the present connection up and makes another one.
    pub(super) fn connect_again(&self) {
        if let Ok(live) = &*self.now.lock() {
            live.broken.notify_one();
        }
    }

    /// Sends `count` commands at once; each has its own answer, which may be an error of the server.
    pub(super) async fn send(
        &self,
        pipeline: Pipeline,
        count: usize,
        deadline: Instant,
    ) -> Result<Vec<Value>, StoreError> {
        if Instant::now() >= deadline {
            return Err(StoreError::Timeout);
        }
        let live = self.now.lock().clone()?;
        let broken = Arc::clone(&live.broken);
        let permit = Arc::clone(&live.outstanding).try_acquire_owned().map_err(|_| StoreError::Busy)?;
        // A task of its own: see the module's text on callers that stop waiting.
        let request = tokio::spawn(live.request(pipeline, count, permit));
        match timeout_at(deadline, request).await {
            Err(_) => Err(StoreError::Timeout),
            Ok(Ok(Ok(values))) => Ok(values),
            Ok(Ok(Err(error))) => {
                broken.notify_one();
                Err(error)
            }
            Ok(Err(_)) => Err(StoreError::Unavailable), // the runtime ends
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.keeper.abort();
        // Ends what is still outstanding.
        *self.now.lock() = Err(StoreError::Unavailable);
    }
}

impl Live {
    async fn request(
        mut self,
        pipeline: Pipeline,
        count: usize,
        _permit: OwnedSemaphorePermit,
    ) -> Result<Vec<Value>, StoreError> {
        let answer = tokio::select! {
            answer = self.connection.send_packed_commands(&pipeline, 0, count) => answer,
            _ = self.given_up.changed() => return Err(StoreError::Unavailable),
        };
        let values = answer.map_err(|error| StoreError::of_connection(&error))?;
        *self.last_answer.lock() = Instant::now();
        Ok(values)
    }

    /// Pings until the connection is broken or hangs.
    async fn watch(mut self) {
        loop {
            tokio::select! {
                () = self.broken.notified() => return,
                () = sleep(PING_INTERVAL) => {}
            }
            let ping = redis::cmd("PING");
            let mut answer = std::pin::pin!(self.connection.send_packed_command(&ping));
            let mut patience = HUNG_AFTER;
            loop {
                match timeout(patience, &mut answer).await {
                    Ok(Ok(_)) => break,
                    Ok(Err(_)) => return,
                    Err(_) => {}
                }
                // Answers to others show that it works: it is only busy.
                let silent_for = self.last_answer.lock().elapsed();
                match HUNG_AFTER.checked_sub(silent_for) {
                    None | Some(Duration::ZERO) => return,
                    Some(left) => patience = left,
                }
            }
            *self.last_answer.lock() = Instant::now();
        }
    }
}

async fn keep(now: Arc<Now>, client: Client, server: String) {
    let mut pause = RETRY_MIN;
    let mut told = None;
    loop {
        match connect(&client).await {
            Ok(connection) => {
                pause = RETRY_MIN;
                let (_in_use, given_up) = watch::channel(());
                let live = Live {
                    connection,
                    broken: Arc::new(Notify::new()),
                    given_up,
                    outstanding: Arc::new(Semaphore::new(MAX_OUTSTANDING)),
                    last_answer: Arc::new(Mutex::new(Instant::now())),
                };
                *now.lock() = Ok(live.clone());
                tracing::info!(server, "connected to the regional store");
                told = None;
                let since = Instant::now();
                live.watch().await;
                *now.lock() = Err(StoreError::Unavailable);
                tracing::warn!(server, "lost the connection to the regional store");
                if since.elapsed() < SHORT_LIFE {
                    // Something in between accepts and cuts; there is no hurry to be cut again.
                    sleep(RETRY_MAX).await;
                }
            }
            Err(error) => {
                let error = StoreError::of_connection(&error);
                // Once for each reason, not for each try.
                if told.as_ref() != Some(&error) {
                    tracing::warn!(server, %error, "cannot connect to the regional store");
                    told = Some(error.clone());
                }
                *now.lock() = Err(error);
                sleep(pause).await;
                pause = (pause * 2).min(RETRY_MAX);
            }
        }
    }
}

/// A connection that has answered, and knows the scripts.
async fn connect(client: &Client) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        // Callers have deadlines of their own; a hung server is noticed by pings.
        .set_response_timeout(None);
    let ready = async {
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        // A server that refuses scripts says so again, and to whom it concerns, when one is called.
        let (pipeline, count) = script::load_all();
        connection.send_packed_commands(&pipeline, 0, count).await?;
        Ok(connection)
    };
    timeout(CONNECT_TIMEOUT, ready)
        .await
        .unwrap_or_else(|_| Err(RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut))))
}
