//! The region behind its lock, and which streams belong to which Envoy.
//!
//! Every frame is taken under one lock that is held for the frame's own work only: some hundred microseconds for
//! the largest. The lock is a fair one, so that a peer that sends without pause cannot keep the others out.
//!
//! Leaves to others: reading frames and sending replies (`stream`), and when pushes are sent (`push`).

use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::refusal::Refusal;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{Notify, watch};
use tracing::{info, warn};
use weir_core::key::OriginId;
use weir_core::region::{Explained, Region, RegionLimits, RegionStats};
use weir_core::time::UnixMs;
use weir_core::wire::{Ack, Answer, Consult, FilterFrame, Pong, Push, RegionFrame, Report};

/// Names one stream for as long as this program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamId(pub u64);

/// What is known of the region, by all tasks of this program.
pub struct Shared {
    /// The region's name, as said to filters.
    pub region_name: String,
    /// What a hello must carry.
    pub token: Option<String>,
    /// What happened so far.
    pub metrics: Metrics,
    /// Set to the moment at which draining began.
    pub draining: watch::Sender<Option<Instant>>,
    /// Woken when a subscriber may have something to be told.
    pub changed: Notify,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

/// What a subscriber's turn brought.
#[derive(Debug)]
pub enum Turn {
    /// Cells to send.
    Push(Push),
    /// All is told.
    Idle,
    /// Another stream of the same Envoy subscribed since, or this one ceased to.
    Superseded,
}

struct State {
    region: Region,
    origins: HashMap<OriginId, Streams>,
    next_stream: u64,
}

/// The streams of one Envoy.
#[derive(Default)]
struct Streams {
    open: usize,
    subscriber: Option<(StreamId, Arc<Notify>)>,
}

impl Shared {
    /// An empty region called `region_name`.
    pub fn new(
        region_name: String,
        token: Option<String>,
        limits: RegionLimits,
        clock: Arc<dyn Clock>,
    ) -> Shared {
        let region = Region::new(limits, (rand::random(), rand::random()));
        Shared {
            region_name,
            token,
            metrics: Metrics::default(),
            draining: watch::Sender::new(None),
            changed: Notify::new(),
            clock,
            state: Mutex::new(State { region, origins: HashMap::new(), next_stream: 0 }),
        }
    }

    /// The moment, by the wall clock.
    pub fn now(&self) -> UnixMs {
        self.clock.now()
    }

    /// Admits a stream of `origin`; leave it with [`Shared::leave`].
    pub fn enter(&self, origin: OriginId) -> Result<StreamId, Refusal> {
        let now = self.now();
        let mut state = self.state.lock();
        if !state.region.heard(origin, now) {
            return Err(Refusal::TooManyOrigins);
        }
        state.next_stream += 1;
        let id = StreamId(state.next_stream);
        let streams = state.origins.entry(origin).or_default();
        streams.open += 1;
        let first = streams.open == 1;
        drop(state);
        if first {
            info!(%origin, "an Envoy connected");
        }
        Ok(id)
    }

    /// Ends a stream; with the last one of its Envoy, the Envoy no longer counts as alive.
    pub fn leave(&self, origin: OriginId, id: StreamId) {
        let mut state = self.state.lock();
        state.unsubscribe(origin, id);
        let Some(streams) = state.origins.get_mut(&origin) else { return };
        streams.open -= 1;
        let last = streams.open == 0;
        if last {
            state.origins.remove(&origin);
            state.region.gone(origin);
        }
        drop(state);
        if last {
            info!(%origin, "an Envoy disconnected");
        }
    }

    /// Makes this stream its Envoy's subscriber, in place of any other; woken when it has a turn.
    pub fn subscribe(&self, origin: OriginId, id: StreamId) -> Arc<Notify> {
        let wake = Arc::new(Notify::new());
        let mut state = self.state.lock();
        let streams = state.origins.entry(origin).or_default();
        if let Some((_, superseded)) = streams.subscriber.replace((id, wake.clone())) {
            superseded.notify_one();
        }
        state.region.subscribe(origin);
        wake
    }

    /// Ends this stream's subscription, if it is still the one that counts.
    pub fn unsubscribe(&self, origin: OriginId, id: StreamId) {
        self.state.lock().unsubscribe(origin, id);
    }

    /// The next push for a subscriber.
    pub fn next_push(&self, origin: OriginId, id: StreamId) -> Turn {
        let now = self.now();
        let mut state = self.state.lock();
        if !state.subscribes(origin, id) {
            return Turn::Superseded;
        }
        state.region.next_push(origin, now).map_or(Turn::Idle, Turn::Push)
    }

    /// Wakes every subscriber that has something to be told.
    pub fn wake_subscribers(&self) {
        let state = self.state.lock();
        for (origin, streams) in &state.origins {
            if let Some((_, wake)) = &streams.subscriber
                && state.region.has_push(*origin)
            {
                wake.notify_one();
            }
        }
    }

    /// Takes all of a frame but its hello; the reply holds whatever the frame asked for.
    pub fn take(&self, origin: OriginId, frame: &FilterFrame) -> Result<RegionFrame, Refusal> {
        let started = Instant::now();
        let now = self.now();
        let mut state = self.state.lock();
        if !state.region.heard(origin, now) {
            return Err(Refusal::TooManyOrigins);
        }
        let region = &mut state.region;
        let reply = RegionFrame {
            ack: frame.report.as_ref().map(|report| self.merge(region, origin, report, now)),
            answers: frame.consults.iter().map(|consult| self.answer(region, origin, consult, now)).collect(),
            pong: frame.ping.as_ref().map(|ping| Pong {
                sent_ms: ping.sent_ms,
                unix_ms: now.0,
                live_origins: u32::try_from(region.live_origins(now)).unwrap_or(u32::MAX),
            }),
            ..RegionFrame::default()
        };
        MutexGuard::unlock_fair(state);
        if reply.ack.is_some() || !reply.answers.is_empty() {
            self.changed.notify_one();
        }
        self.metrics.frame_seconds.observe(started.elapsed().as_secs_f64());
        Ok(reply)
    }

    /// Forgets some of what is over; true if there is more. Let others have their turn before the next call.
    pub fn tick(&self) -> bool {
        let now = self.now();
        let mut state = self.state.lock();
        let more = state.region.tick(now);
        MutexGuard::unlock_fair(state);
        more
    }

    /// The region's figures.
    pub fn stats(&self) -> RegionStats {
        let now = self.now();
        self.state.lock().region.stats(now)
    }

    /// Everything held of an identifier.
    pub fn explain(&self, workspace: &[u8], namespace: &[u8], identifier: &[u8]) -> Vec<Explained> {
        self.state.lock().region.explain(workspace, namespace, identifier)
    }

    /// Says now and then that a peer misbehaves.
    pub fn warn(&self, what: &str, origin: Option<OriginId>) {
        if let Some(held_back) = self.metrics.warnings.pass() {
            let origin = origin.map(tracing::field::display);
            warn!(origin, held_back, "{what}");
        }
    }

    fn merge(&self, region: &mut Region, origin: OriginId, report: &Report, now: UnixMs) -> Ack {
        let reported = region.report(origin, &report.counts, now);
        reported.refused.iter().for_each(|(_, reason)| self.metrics.count_refused(*reason));
        self.metrics.reports.inc();
        self.metrics.counts_merged.inc_by(report.counts.len().saturating_sub(reported.refused.len()) as u64);
        let refused = reported.refused.iter().map(|(place, _)| *place).collect();
        Ack { report_id: report.id, bases: reported.bases, refused }
    }

    /// Every consult is answered. One that the region cannot judge is answered without a view: nothing speaks against
    /// the request, and the filter need not wait for its timeout to decide on what it knows itself.
    fn answer(&self, region: &mut Region, origin: OriginId, consult: &Consult, now: UnixMs) -> Answer {
        match region.consult(origin, consult, now) {
            Ok(answer) => {
                self.metrics.consult_judged(answer.granted);
                answer
            }
            Err(_) => {
                self.metrics.consult_unjudged();
                Answer { id: consult.id, granted: false, current: None, previous: None }
            }
        }
    }
}

impl State {
    fn subscribes(&self, origin: OriginId, id: StreamId) -> bool {
        let subscriber = self.origins.get(&origin).and_then(|streams| streams.subscriber.as_ref());
        subscriber.is_some_and(|(subscriber, _)| *subscriber == id)
    }

    fn unsubscribe(&mut self, origin: OriginId, id: StreamId) {
        if !self.subscribes(origin, id) {
            return;
        }
        if let Some((_, ended)) = self.origins.get_mut(&origin).and_then(|streams| streams.subscriber.take())
        {
            ended.notify_one();
        }
        self.region.unsubscribe(origin);
    }
}
