//! The stream of one worker: its hello, its frames, the replies to them, and the reasons for its end.
//!
//! A stream waits only for its own node. Replies go through a bounded queue. While the queue is full, the stream reads no
//! further frame from the node; a node that does not read at all is disconnected.

use crate::auth::Scope;
use crate::net::listen::peer_of;
use crate::region::control::push::ControlStream;
use crate::region::send_queue::SendQueue;
use crate::region::services::Services;
use crate::region::slots::Slot;
use crate::region::status::streams::Seat;
use crate::region::stream_error::{StreamError, check_hello, digest};
use crate::region::{push, regional};
use crate::telemetry::request_log;
use crate::telemetry::spans::{QuerySpans, around};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_stream::{Stream as FrameStream, StreamExt};
use tonic::{Code, Status};
use tracing::{Instrument, debug};
use weir_core::model::exact::MAX_CHARGES;
use weir_core::model::key::NodeId;
use weir_core::model::wire::{
    self, ExactRequest, FilterFrame, Hello, MAX_FRAME_CELLS, MAX_FRAME_CONTROLS, MAX_FRAME_COUNTERS, Query,
    RegionFrame, Welcome,
};
use weir_core::region::nodes::OWN_PEER;
use weir_core::replication::StreamId;
use weir_core::replication::state::LateAck;

/// Time within which a new stream must send its hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
/// How long streams are still served after the shutdown has begun.
pub const DRAIN: Duration = Duration::from_secs(2);
/// During the shutdown, a stream on which no frame arrives for this long is assumed to have none on the way.
const QUIET: Duration = Duration::from_millis(30);
/// Most reports of one stream that wait for their acknowledgement; a filter sends at most sixteen.
const LATE_ACKS: usize = 64;
/// Most frames of one stream whose queries wait for the store; the queries of further frames are decided from memory.
const MAX_OPEN_QUERIES: usize = 32;
/// Most exact requests of one stream that wait; further ones are answered as undecided.
const MAX_OPEN_EXACT: usize = 256;
/// How often a stream may change its subscription at once; one more change is allowed for each second of its life.
const SUBSCRIPTION_CHANGES: u64 = 10;

/// The frames of a node, received over a connection or from the embedded limiter.
pub trait Incoming: FrameStream<Item = Result<FilterFrame, Status>> + Send + Unpin {}

impl<S: FrameStream<Item = Result<FilterFrame, Status>> + Send + Unpin> Incoming for S {}

/// Serves a stream until it ends, within the `scope` of its credential. A stream over a connection has been
/// authenticated and has a slot; the stream of the embedded limiter has none.
pub async fn run(
    services: Arc<Services>,
    mut incoming: impl Incoming,
    send_queue: SendQueue,
    scope: Arc<Scope>,
    mut slot: Option<Slot>,
) {
    services.metrics.program.streams.inc();
    let mut node = None;
    let end = serve(&services, &mut incoming, &send_queue, scope, &mut node, slot.as_mut()).await;
    services.metrics.program.streams.dec();
    if send_queue.was_abandoned() {
        services.metrics.program.slow_streams_dropped.inc();
        services.warn(
            "closed a stream whose node does not read its frames; the node resyncs when it reconnects",
            node,
        );
        return;
    }
    match end {
        End::Left => debug!("stream ended"),
        End::Drained => send_queue.end(Status::unavailable("the aggregator is shutting down")),
        End::Refused(error) => refuse(&services, send_queue, &error, node).await,
    }
}

enum End {
    /// The node disconnected, or takes no more frames.
    Left,
    /// The aggregator shuts down.
    Drained,
    /// The aggregator refuses to continue the stream.
    Refused(StreamError),
}

async fn serve(
    services: &Arc<Services>,
    incoming: &mut impl Incoming,
    send_queue: &SendQueue,
    scope: Arc<Scope>,
    acknowledged: &mut Option<NodeId>,
    slot: Option<&mut Slot>,
) -> End {
    let address: Option<SocketAddr> = slot.as_ref().map(|slot| slot.address());
    let (node, hello, first) = match first_frame(services, incoming, send_queue, &scope).await {
        Ok(first) => first,
        Err(end) => return end,
    };
    *acknowledged = Some(node);
    let peer = address.map_or(OWN_PEER, |address| peer_number(address.ip()));
    let id = match services.enter(node, peer) {
        Ok(id) => id,
        Err(error) => return End::Refused(error),
    };
    slot.into_iter().for_each(Slot::greeted);
    debug!(%node, worker = hello.worker, credential = scope.name, "stream began");
    let (acks, late) = mpsc::channel(LATE_ACKS);
    tokio::spawn(acknowledge(services.clone(), node, late, send_queue.clone()));
    let stream = Stream {
        services,
        send_queue,
        scope,
        seat: services.status.seat(node, address, services.moment().mono),
        node,
        is_embedded: address.is_none(),
        sender: sender(node, hello.worker),
        peer,
        is_node: false,
        id,
        pusher: None,
        control_stream: None,
        began: Instant::now(),
        changes: 0,
        acks,
        open_queries: Arc::new(Semaphore::new(MAX_OPEN_QUERIES)),
        exact: Arc::new(Semaphore::new(MAX_OPEN_EXACT)),
    };
    match stream.serve(hello, first, incoming).await {
        Ok(()) => End::Left,
        Err(end) => end,
    }
}

/// The checked hello, and the frame that contained it.
async fn first_frame(
    services: &Services,
    incoming: &mut impl Incoming,
    send_queue: &SendQueue,
    scope: &Scope,
) -> Result<(NodeId, Hello, FilterFrame), End> {
    let silent = StreamError::Silent(HELLO_TIMEOUT.as_millis() as u64);
    let mut frame = timeout(HELLO_TIMEOUT, next_frame(services, incoming, send_queue))
        .await
        .map_err(|_| End::Refused(silent))??;
    let hello = frame.hello.take().ok_or(End::Refused(StreamError::NoHello))?;
    let node = check_hello(&hello).map_err(End::Refused)?;
    check_workspaces(scope, &hello.workspaces).map_err(End::Refused)?;
    Ok((node, hello, frame))
}

/// Whether the credential covers the workspaces of the filter's configurations. If it does not, that is an operator's mistake, which an
/// error states.
fn check_workspaces<'f>(
    scope: &Scope,
    workspaces: impl IntoIterator<Item = &'f String>,
) -> Result<(), StreamError> {
    match workspaces.into_iter().find(|workspace| !scope.has_workspace(workspace)) {
        Some(other) => Err(StreamError::Workspace(scope.name.clone(), other.clone())),
        None => Ok(()),
    }
}

/// The next frame, or the reason why there is none.
async fn next_frame(
    services: &Services,
    incoming: &mut impl Incoming,
    send_queue: &SendQueue,
) -> Result<FilterFrame, End> {
    tokio::select! {
        biased;
        () = send_queue.closed() => Err(End::Left),
        () = overdue(services, Duration::ZERO, DRAIN) => Err(End::Drained),
        frame = incoming.next() => match frame {
            Some(Ok(frame)) => Ok(frame),
            None => Err(End::Left),
            Some(Err(status)) => Err(bad_frame(&status)),
        },
        () = overdue(services, QUIET, Duration::ZERO) => Err(End::Drained),
    }
}

/// Completes during the shutdown: `quiet` from now, but not before the shutdown has lasted for `at_least`.
async fn overdue(services: &Services, quiet: Duration, at_least: Duration) {
    let mut draining = services.draining.subscribe();
    let began = match draining.wait_for(Option::is_some).await {
        Ok(began) => began.unwrap_or_else(Instant::now),
        Err(_) => return,
    };
    tokio::time::sleep_until((Instant::now() + quiet).max(began + at_least).into()).await;
}

/// Maps the transport's status for undecodable bytes to an error; any other status means that the node disconnected.
fn bad_frame(status: &Status) -> End {
    match status.code() {
        Code::Internal | Code::Unimplemented => {
            End::Refused(StreamError::Malformed(status.message().to_owned()))
        }
        Code::OutOfRange | Code::ResourceExhausted => {
            End::Refused(StreamError::Oversized(status.message().to_owned()))
        }
        _ => End::Left,
    }
}

/// Sends the error to the node and ends the stream.
pub async fn refuse(services: &Services, send_queue: SendQueue, error: &StreamError, node: Option<NodeId>) {
    services.metrics.frame_refused(error.label());
    services.warn(&format!("refused a stream: {error}"), node);
    let reason = error.to_string();
    let word = wire::StreamError { reason: reason.clone() };
    // The error is dropped if the node is gone or does not read.
    let _ = send_queue.send(RegionFrame { error: Some(word), ..RegionFrame::default() }).await;
    send_queue.end(Status::new(error.code(), reason));
}

/// An accepted stream.
struct Stream<'a> {
    services: &'a Arc<Services>,
    send_queue: &'a SendQueue,
    /// What the node may count.
    scope: Arc<Scope>,
    seat: Seat<'a>,
    node: NodeId,
    /// Whether this is the stream of the embedded limiter.
    is_embedded: bool,
    /// Identifies the stream's exact requests; differs for each node.
    sender: u64,
    /// The address that counts as one peer, as a number.
    peer: u64,
    /// Whether the node has reported something.
    is_node: bool,
    id: StreamId,
    pusher: Option<JoinHandle<()>>,
    control_stream: Option<ControlStream>,
    began: Instant,
    changes: u64,
    acks: mpsc::Sender<LateAck>,
    open_queries: Arc<Semaphore>,
    exact: Arc<Semaphore>,
}

impl Stream<'_> {
    async fn serve(
        mut self,
        hello: Hello,
        first: FilterFrame,
        incoming: &mut impl Incoming,
    ) -> Result<(), End> {
        let region = self.services.region_name.clone();
        let welcome = Welcome { version: wire::PROTOCOL_VERSION, region };
        self.send(RegionFrame { welcome: Some(welcome), ..RegionFrame::default() }).await?;
        self.take_role(&hello);
        self.take(first).await?;
        loop {
            let frame = tokio::select! {
                () = self.scope.revoked() => return Err(End::Refused(StreamError::Revoked)),
                frame = next_frame(self.services, incoming, self.send_queue) => frame?,
            };
            self.take(frame).await?;
        }
    }

    async fn take(&mut self, mut frame: FilterFrame) -> Result<(), End> {
        self.check(&frame).map_err(End::Refused)?;
        self.confine(&mut frame).map_err(End::Refused)?;
        self.count_node(&frame);
        self.seat.received(frame.counters.take().as_ref(), self.services.moment().mono);
        let exact_requests = std::mem::take(&mut frame.exact_requests);
        frame.refunds.iter().for_each(|refund| self.services.exact.undo(self.sender, refund));
        if let Some(hello) = &frame.hello {
            self.take_role(hello);
        }
        let mut traced = self.services.telemetry.queries(&frame.queries);
        self.take_control(&mut frame);
        let result = self.services.take(self.node, frame).map_err(End::Refused)?;
        traced.iter_mut().for_each(|traced| traced.answered(&result.reply.answers));
        if let Some(ack) = result.ack {
            // The acknowledging task runs until this sender is dropped.
            let _ = self.acks.send(ack).await;
        }
        if result.reply != RegionFrame::default() {
            self.send(result.reply).await?;
        }
        if !result.queries.is_empty() {
            self.query(result.queries, traced).await?;
        }
        self.rule(exact_requests).await
    }

    /// Restricts the frame to the workspaces of the filter's credential. A configuration of another workspace, which the filter may have
    /// received since its hello, ends the stream. Counts of other workspaces may remain from a former configuration, so those are dropped
    /// one by one.
    fn confine(&self, frame: &mut FilterFrame) -> Result<(), StreamError> {
        check_workspaces(&self.scope, frame.counters.iter().map(|counters| &counters.workspace))?;
        let outside = self.scope.confine(frame);
        if outside > 0 {
            let name = &self.scope.name;
            self.services.warn(
                                &format!("dropped {outside} parts of a frame: the credential {name:?} does not allow their workspaces"),
                Some(self.node),
            );
        }
        Ok(())
    }

    /// A filter counts as a node once it has sent a report, decision counters or a query.
    fn count_node(&mut self, frame: &FilterFrame) {
        let reports = frame.report.is_some() || frame.counters.is_some() || !frame.queries.is_empty();
        // Repeated with the counters, once a second, since a place among the nodes of its address may have become free.
        if reports && (!std::mem::replace(&mut self.is_node, true) || frame.counters.is_some()) {
            self.services.state(|state, _| state.count_node(self.node, self.peer));
        }
    }

    /// Takes the filter's revision of live control, and the bans that its rules propose.
    fn take_control(&mut self, frame: &mut FilterFrame) {
        if let Some(known) = frame.controls_known.take().filter(|_| self.pushes()) {
            self.services.control.acknowledged(known, self.services.now());
            match &self.control_stream {
                Some(control_stream) => control_stream.acknowledged(known),
                None => {
                    self.control_stream = Some(ControlStream::begin(
                        self.services.control.clone(),
                        self.send_queue.clone(),
                        self.scope.clone(),
                        known,
                    ))
                }
            }
        }
        let bans = std::mem::take(&mut frame.bans);
        // Without a database a ban holds only in its own Envoy.
        if !bans.is_empty() && self.services.global.is_some() {
            let refused = self.services.control.bans.propose(&bans, self.services.now());
            if refused > 0 {
                self.services.warn(&format!("refused {refused} bans proposed by rules"), Some(self.node));
            }
        }
    }

    /// Decides each exact request in a task of its own, so that neither the stream nor the other requests wait for it.
    async fn rule(&self, exact_requests: Vec<ExactRequest>) -> Result<(), End> {
        let mut rejected = Vec::new();
        for request in exact_requests {
            let room = self.exact.clone().try_acquire_owned().ok();
            let Some(room) = room.filter(|_| self.services.serves()) else {
                rejected.push(self.services.exact.reject(&request));
                continue;
            };
            let (services, sender, send_queue) =
                (self.services.clone(), self.sender, self.send_queue.clone());
            tokio::spawn(async move {
                let span = services.telemetry.exact_request(&request);
                let ruled = services.exact.answer(sender, &request);
                let ruled = ruled.instrument(request_log::of_question(request.trace.as_ref()));
                let results = around(span.as_ref(), ruled).await;
                span.into_iter().for_each(|span| span.ruled(&results));
                let results = vec![results];
                // If the node is gone, the response is dropped, and the node does not use what it was charged.
                let _ = send_queue.send(RegionFrame { results, ..RegionFrame::default() }).await;
                drop(room);
            });
        }
        if rejected.is_empty() {
            return Ok(());
        }
        self.send(RegionFrame { results: rejected, ..RegionFrame::default() }).await
    }

    /// Lets the store answer these queries without blocking the stream.
    async fn query(&self, queries: Vec<Query>, mut traced: Option<QuerySpans>) -> Result<(), End> {
        let room = self.open_queries.clone().try_acquire_owned();
        let (Some(store), Ok(room)) = (self.services.regional.clone(), room) else {
            let answers = self.services.answer_from_memory(self.node, &queries);
            traced.iter_mut().for_each(|traced| traced.answered(&answers));
            return self.send(RegionFrame { answers, ..RegionFrame::default() }).await;
        };
        let (services, node, send_queue) = (self.services.clone(), self.node, self.send_queue.clone());
        tokio::spawn(async move {
            let answers = regional::answer(&services, &store, node, queries, traced).await;
            // If the node is gone, the answers are dropped.
            let _ = send_queue.send(RegionFrame { answers, ..RegionFrame::default() }).await;
            drop(room);
        });
        Ok(())
    }

    fn check(&mut self, frame: &FilterFrame) -> Result<(), StreamError> {
        let counts = frame.report.as_ref().map_or(0, |report| report.counts.len());
        if counts > MAX_FRAME_CELLS {
            return Err(StreamError::TooManyCounts(counts));
        }
        if frame.queries.len() > MAX_FRAME_CELLS {
            return Err(StreamError::TooManyQueries(frame.queries.len()));
        }
        let counters = frame.counters.as_ref().map_or(0, |counters| counters.rules.len());
        if counters > MAX_FRAME_COUNTERS {
            return Err(StreamError::TooManyCounters(counters));
        }
        check_exact(frame)?;
        let Some(hello) = &frame.hello else { return Ok(()) };
        if check_hello(hello)? != self.node {
            return Err(StreamError::NodeChanged);
        }
        if hello.subscriber != self.pushes() {
            self.changes += 1;
        }
        if self.changes > SUBSCRIPTION_CHANGES + self.began.elapsed().as_secs() {
            return Err(StreamError::Unsteady);
        }
        Ok(())
    }

    /// Starts or stops the pushes when the worker becomes, or ceases to be, the subscriber of its process.
    fn take_role(&mut self, hello: &Hello) {
        if hello.subscriber == self.pushes() {
            return;
        }
        self.stop_pushes();
        self.seat.subscribes(hello.subscriber);
        if hello.subscriber {
            let wake = self.services.subscribe(self.node, self.id);
            let (hub, send_queue, scope) =
                (self.services.hub.clone(), self.send_queue.clone(), self.scope.clone());
            let pushes = push::follow(hub, (self.node, self.id), wake, send_queue, scope);
            self.pusher = Some(tokio::spawn(pushes));
        }
    }

    /// Whether pushes go to this stream; another stream of the same Envoy may have replaced it as the subscriber.
    fn pushes(&self) -> bool {
        self.pusher.as_ref().is_some_and(|pusher| !pusher.is_finished())
    }

    async fn send(&self, frame: RegionFrame) -> Result<(), End> {
        self.send_queue.send(frame).await.map_err(|_| End::Left)
    }

    fn stop_pushes(&mut self) {
        self.control_stream = None;
        if let Some(pusher) = self.pusher.take() {
            pusher.abort();
            self.services.unsubscribe(self.node, self.id);
        }
    }
}

/// Identifies the exact requests of a worker. Workers choose their own number, so the number alone is not unique.
fn sender(node: NodeId, worker: u64) -> u64 {
    digest(b"weir asker", &[&node.0, &worker.to_le_bytes()])
}

/// A number for an address; addresses that count as one peer have the same number.
fn peer_number(address: IpAddr) -> u64 {
    match peer_of(address) {
        IpAddr::V4(address) => u64::from(u32::from(address)),
        IpAddr::V6(network) => u64::try_from(u128::from(network) >> 64).unwrap_or(u64::MAX),
    }
}

/// Checks the number of exact requests, refunds, bans and charges in a frame.
fn check_exact(frame: &FilterFrame) -> Result<(), StreamError> {
    if frame.exact_requests.len() > MAX_FRAME_CELLS {
        return Err(StreamError::TooManyExactRequests(frame.exact_requests.len()));
    }
    if frame.bans.len() > MAX_FRAME_CONTROLS {
        return Err(StreamError::TooManyBans(frame.bans.len()));
    }
    if frame.refunds.len() > MAX_FRAME_CELLS {
        return Err(StreamError::TooManyRefunds(frame.refunds.len()));
    }
    let refunded = frame.refunds.iter().filter_map(|refund| refund.request.as_ref());
    let charges =
        frame.exact_requests.iter().chain(refunded).map(|request| request.charges.len()).max().unwrap_or(0);
    if charges > MAX_CHARGES { Err(StreamError::TooManyCharges(charges)) } else { Ok(()) }
}

/// Acknowledges reports in order, each once the store holds its counts or is known to be unavailable.
async fn acknowledge(
    services: Arc<Services>,
    node: NodeId,
    mut late: mpsc::Receiver<LateAck>,
    send_queue: SendQueue,
) {
    while let Some(late) = late.recv().await {
        tokio::select! {
            // If the node is gone it needs no acknowledgement; its counts are stored all the same.
            () = send_queue.closed() => return,
            over = services.after_replay(late.after) => if !over { return },
        }
        let ack = services.acknowledge(node, late);
        if send_queue.send(RegionFrame { ack: Some(ack), ..RegionFrame::default() }).await.is_err() {
            return;
        }
    }
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        self.stop_pushes();
        self.services.leave(self.node, self.id, self.is_embedded);
    }
}
