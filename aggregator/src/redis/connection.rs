//! One connection to one server, which reconnects in the background for as long as it exists.
//!
//! Calls fail at once while there is no connection. A hung server (paused, or behind a broken network) causes no error,
//! so pings are sent at an interval. If nothing was answered for [`HUNG_AFTER`], the connection is dropped, and calls
//! fail at once until a new one works. All connections of a server end together, also when Sentinels name another primary: its name may
//! lead to another server by then, and what one
//! connection has written to the former would count as stored in the one whose marker the other reads. A request whose caller has stopped waiting still counts as outstanding until it
//! is answered or its connection ends, so a hung server costs bounded memory. Workspaces [share](weir_core::model::room) what may be
//! outstanding of exact requests, so that those of one, however many or slow, leave room to those of others. What is for the counts of
//! all has places of its own, of which queries leave some to the region's own calls.

use super::command::{How, Part};
use super::error::StoreError;
use super::script;
use super::target::Target;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Pipeline, RedisError, RedisResult, Value};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use weir_core::model::room::Places;

/// A connection that answered nothing for this long is dropped. Longer than any single step of a working server.
pub(super) const HUNG_AFTER: Duration = Duration::from_secs(2);
/// A new connection must be usable within this time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval between pings; also how soon the loss of an idle connection is noticed.
const PING_INTERVAL: Duration = Duration::from_millis(500);
const RETRY_MIN: Duration = Duration::from_millis(25);
const RETRY_MAX: Duration = Duration::from_millis(400);
/// A connection that lasted less than this is not replaced at once.
const SHORT_LIFE: Duration = Duration::from_secs(1);
/// Most exact requests in flight on one connection, and most other requests; a pipeline counts as one.
const MAX_OUTSTANDING: usize = 512;

/// A connection that reconnects.
pub(super) struct Connection {
    now: Arc<Now>,
    keeper: JoinHandle<()>,
}

type Now = Mutex<Result<Live, StoreError>>;

/// A working connection.
#[derive(Clone)]
struct Live {
    connection: MultiplexedConnection,
    /// Notified when a request finds the connection broken.
    broken: Arc<Notify>,
    /// Closed when the connection is dropped.
    given_up: watch::Receiver<()>,
    outstanding: Arc<Mutex<Rooms>>,
    last_answer: Arc<Mutex<Instant>>,
}

/// An outstanding request, until it is dropped.
struct Outstanding {
    all: Arc<Mutex<Rooms>>,
    part: Part,
}

/// The places of outstanding requests.
struct Rooms {
    exact: Places<Part>,
    counts: Places<Part>,
}

impl Rooms {
    fn new() -> Rooms {
        let room = || Places::new(MAX_OUTSTANDING);
        Rooms { exact: room(), counts: room() }
    }

    fn of(&mut self, part: Part) -> &mut Places<Part> {
        match part {
            Part::Workspace(_) => &mut self.exact,
            Part::Region | Part::Queries => &mut self.counts,
        }
    }
}

impl Drop for Outstanding {
    fn drop(&mut self) {
        self.all.lock().of(self.part).leave(&self.part);
    }
}

impl Connection {
    /// Starts connecting. `ends` is shared with the other connections to `target`, and has the server to which they lead. Must be called
    /// within a tokio runtime.
    pub(super) fn open(target: Target, ends: watch::Sender<String>) -> Connection {
        let now = Arc::new(Mutex::new(Err(StoreError::Unavailable)));
        let keeper = tokio::spawn(keep(Arc::clone(&now), target, ends));
        Connection { now, keeper }
    }

    /// Whether there is a connection.
    pub(super) fn is_up(&self) -> bool {
        self.now.lock().is_ok()
    }

    /// Drops the current connection and makes a new one.
    pub(super) fn connect_again(&self) {
        if let Ok(live) = &*self.now.lock() {
            live.broken.notify_one();
        }
    }

    /// Sends `count` commands at once; each has its own answer, which may be an error.
    pub(super) async fn send(
        &self,
        pipeline: Pipeline,
        count: usize,
        How { part, deadline, .. }: How,
    ) -> Result<Vec<Value>, StoreError> {
        if Instant::now() >= deadline {
            return Err(StoreError::Timeout);
        }
        let live = self.now.lock().clone()?;
        let broken = Arc::clone(&live.broken);
        let outstanding = live.outstanding(part)?;
        // The request is a separate task, so that it stays outstanding if its caller stops waiting (see the module).
        let request = tokio::spawn(live.request(pipeline, count, outstanding));
        match timeout_at(deadline, request).await {
            Err(_) => Err(StoreError::Timeout),
            Ok(Ok(Ok(values))) => Ok(values),
            Ok(Ok(Err(error))) => {
                broken.notify_one();
                Err(error)
            }
            Ok(Err(_)) => Err(StoreError::Unavailable), // the runtime shuts down
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.keeper.abort();
        // Ends all outstanding requests.
        *self.now.lock() = Err(StoreError::Unavailable);
    }
}

impl Live {
    /// A place for a request of a part.
    fn outstanding(&self, part: Part) -> Result<Outstanding, StoreError> {
        let all = Arc::clone(&self.outstanding);
        let has_place = all.lock().of(part).take(part);
        // Not made before it has a place, as it gives that back.
        has_place.then(|| Outstanding { all, part }).ok_or(StoreError::Busy)
    }

    async fn request(
        mut self,
        pipeline: Pipeline,
        count: usize,
        _outstanding: Outstanding,
    ) -> Result<Vec<Value>, StoreError> {
        let answer = tokio::select! {
            answer = self.connection.send_packed_commands(&pipeline, 0, count) => answer,
            _ = self.given_up.changed() => return Err(StoreError::Unavailable),
        };
        let values = answer.map_err(|error| StoreError::of_request(&error))?;
        *self.last_answer.lock() = Instant::now();
        Ok(values)
    }

    /// Sends pings until the connection is broken or hangs.
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
                // Other answers show that the server works and is only busy.
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

async fn keep(now: Arc<Now>, target: Target, ends: watch::Sender<String>) {
    let mut pause = RETRY_MIN;
    let mut logged = None;
    loop {
        match connect(&target, &ends).await {
            Ok((connection, mut another_ends)) => {
                pause = RETRY_MIN;
                let (_in_use, given_up) = watch::channel(());
                let live = Live {
                    connection,
                    broken: Arc::new(Notify::new()),
                    given_up,
                    outstanding: Arc::new(Mutex::new(Rooms::new())),
                    last_answer: Arc::new(Mutex::new(Instant::now())),
                };
                *now.lock() = Ok(live.clone());
                let server = another_ends.borrow().clone();
                tracing::info!(server, "connected to the regional store");
                logged = None;
                let since = Instant::now();
                let is_lost = tokio::select! {
                    () = live.watch() => true,
                    _ = another_ends.changed() => false,
                };
                *now.lock() = Err(StoreError::Unavailable);
                if !is_lost {
                    continue;
                }
                ends.send_modify(|_| {});
                tracing::warn!(server, "lost the connection to the regional store");
                if since.elapsed() < SHORT_LIFE {
                    // Something between accepts connections and closes them, so reconnecting at once is useless.
                    sleep(RETRY_MAX).await;
                }
            }
            Err(error) => {
                let error = StoreError::of_connection(&error);
                // Logs each reason once, not each try.
                if logged.as_ref() != Some(&error) {
                    tracing::warn!(%target, %error, "cannot connect to the regional store");
                    logged = Some(error.clone());
                }
                *now.lock() = Err(error);
                sleep(pause).await;
                pause = (pause * 2).min(RETRY_MAX);
            }
        }
    }
}

/// Makes a connection that has answered and has loaded the scripts. With it is returned what ends it. If it leads to another server than
/// the others, they end.
async fn connect(
    target: &Target,
    ends: &watch::Sender<String>,
) -> RedisResult<(MultiplexedConnection, watch::Receiver<String>)> {
    let client = target.find().await?;
    let server = client.get_connection_info().addr().to_string();
    ends.send_if_modified(|last| {
        let is_another = !last.is_empty() && *last != server;
        *last = server;
        is_another
    });
    let another_ends = ends.subscribe();
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        // Callers have their own deadlines; pings detect a hung server.
        .set_response_timeout(None);
    let ready = async {
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        // A server that rejects scripts does so again at each call, where the error reaches the caller.
        let (mut pipeline, commands) = (Pipeline::new(), script::load_all());
        for command in &commands {
            pipeline.add_command(command.clone());
        }
        connection.send_packed_commands(&pipeline, 0, commands.len()).await?;
        Ok((connection, another_ends))
    };
    timeout(CONNECT_TIMEOUT, ready)
        .await
        .unwrap_or_else(|_| Err(RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut))))
}
