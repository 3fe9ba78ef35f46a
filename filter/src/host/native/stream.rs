//! The worker's gRPC stream to the aggregator.
//!
//! Envoy's streams outside of requests belong to a configuration, and only the main thread may use them. So what a worker wants of its stream
//! is a [`Job`] for that thread. Whoever calls a plugin takes the jobs of its thread afterwards ([`take_jobs`]).

use super::calls::{self, Refused};
use crate::host::kinds::{Here, LogLevel};
use crate::host::log_throttle::LogThrottle;
use prost::Message;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use weir_core::model::time::MonoMs;
use weir_core::model::wire;
use weir_core::rules::Aggregator;

/// The head of a gRPC message: whether it is compressed, and its length.
pub const HEAD_BYTES: usize = 5;
/// Most bytes of all streams that wait for the main thread. One that would wait beyond it has ended.
const MAX_QUEUED_BYTES: usize = 16 * 1_024 * 1_024;

static LAST_TOKEN: AtomicU32 = AtomicU32::new(0);
static QUEUED_BYTES: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static JOBS: RefCell<Vec<(u32, Job)>> = const { RefCell::new(Vec::new()) };
}

/// What the main thread is to do with a stream, which a token names.
#[derive(Debug)]
pub enum Job {
    /// Opens it.
    Open(u32, Arc<Call>),
    /// Sends a message, with its head.
    Send(u32, Framed),
    /// Closes it.
    Close(u32),
}

/// A message that waits for the main thread, and is counted as long.
#[derive(Debug)]
pub struct Framed(Vec<u8>);

impl Framed {
    fn new(frame: &wire::FilterFrame) -> Option<Framed> {
        let mut bytes = vec![0; HEAD_BYTES];
        frame.encode(&mut bytes).ok()?;
        let length = u32::try_from(bytes.len().checked_sub(HEAD_BYTES)?).ok()?;
        bytes.get_mut(1..HEAD_BYTES)?.copy_from_slice(&length.to_be_bytes());
        let queued = QUEUED_BYTES.fetch_add(bytes.len(), Ordering::Relaxed);
        let message = Framed(bytes);
        (queued <= MAX_QUEUED_BYTES).then_some(message)
    }

    /// The bytes to send.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Framed {
    fn drop(&mut self) {
        QUEUED_BYTES.fetch_sub(self.0.len(), Ordering::Relaxed);
    }
}

/// The request that opens a stream.
#[derive(Debug)]
pub struct Call {
    /// The aggregator's cluster.
    pub cluster: String,
    path: String,
    authority: String,
    /// The filter's token, which the aggregator checks before it reads a frame.
    bearer: Option<String>,
}

impl Call {
    /// Its headers.
    pub fn headers(&self) -> Vec<(&str, &str)> {
        let mut headers = vec![
            (":method", "POST"),
            (":path", self.path.as_str()),
            (":scheme", "http"),
            (":authority", self.authority.as_str()),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ];
        headers.extend(self.bearer.as_deref().map(|bearer| ("authorization", bearer)));
        headers
    }
}

/// The jobs that calls in this thread have led to, each with the root whose stream it is about.
pub fn take_jobs() -> Vec<(u32, Job)> {
    JOBS.with_borrow_mut(std::mem::take)
}

/// Whether there are such jobs.
pub fn has_jobs() -> bool {
    JOBS.with_borrow(|jobs| !jobs.is_empty())
}

/// At most one stream at a time.
#[derive(Debug)]
pub struct Stream {
    call: Arc<Call>,
    /// The root that opened it, and its token.
    opened: Option<(u32, u32)>,
    log_throttle: LogThrottle,
    /// The aggregator has accepted it.
    is_welcome: bool,
}

impl Stream {
    /// For the aggregator that a configuration names; not open yet.
    pub fn new(aggregator: &Aggregator) -> Stream {
        let Aggregator { cluster, token, authority, trace: _ } = aggregator;
        let call = Call {
            cluster: cluster.clone(),
            path: format!("/{}/{}", wire::SERVICE, wire::METHOD),
            authority: authority.as_ref().unwrap_or(cluster).clone(),
            bearer: token.as_ref().map(|token| format!("Bearer {}", token.reveal())),
        };
        let log_throttle = LogThrottle::new(cluster);
        Stream { call: Arc::new(call), opened: None, log_throttle, is_welcome: false }
    }

    /// Opens it for `root`. That it could not be opened is told as its end.
    pub fn open(&mut self, root: u32, here: Here) -> Result<(), Refused> {
        self.close(here);
        self.log_throttle.attempt();
        let token = LAST_TOKEN.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        self.opened = Some((root, token));
        push(root, Job::Open(token, self.call.clone()));
        Ok(())
    }

    /// The root that opened it; `None` if it is closed.
    pub fn root(&self) -> Option<u32> {
        self.opened.map(|(root, _)| root)
    }

    /// Whether it is open for a root that Envoy has deleted. The end of a root is told, so it is not looked for.
    pub fn has_lost_root(&self, _here: Here) -> bool {
        false
    }

    /// Logs a failure, unless its reason was logged since the last accepted stream.
    pub fn log_failure(&mut self, what: &str, now: MonoMs) {
        if let Some(line) = self.log_throttle.wrong(what, now) {
            calls::log(LogLevel::Warn, &line);
        }
    }

    /// Notes that the aggregator accepted it.
    pub fn welcomed(&mut self) {
        self.is_welcome = true;
        if let Some(line) = self.log_throttle.right() {
            calls::log(LogLevel::Info, &line);
        }
    }

    /// Whether the aggregator has accepted it.
    pub fn is_welcome(&self) -> bool {
        self.is_welcome
    }

    /// Whether `token` of `root` names this stream.
    pub fn is(&self, root: u32, token: u32) -> bool {
        self.opened == Some((root, token))
    }

    /// Sends a frame; false if the stream has ended, or the main thread takes nothing.
    pub fn send(&mut self, frame: &wire::FilterFrame, _here: Here) -> bool {
        let Some((root, token)) = self.opened else { return false };
        let Some(message) = Framed::new(frame) else { return false };
        push(root, Job::Send(token, message));
        true
    }

    /// Closes it.
    pub fn close(&mut self, _here: Here) {
        self.is_welcome = false;
        if let Some((root, token)) = self.opened.take() {
            push(root, Job::Close(token));
        }
    }
}

fn push(root: u32, job: Job) {
    JOBS.with_borrow_mut(|jobs| jobs.push((root, job)));
}
