//! The region behind its lock, and which streams belong to which Envoy.
//!
//! Every frame is taken under one lock that is held for the frame's own work only: some hundred microseconds for
//! the largest. The lock is a fair one, so that a peer that sends without pause cannot keep the others out.
//!
//! Leaves to others: reading frames and sending replies (`stream`), and when pushes are sent (`push`).

use crate::clock::Clock;
use crate::exact::Exact;
use crate::global::Global;
use crate::metrics::Metrics;
use crate::refusal::Refusal;
use crate::regional::Regional;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{Notify, watch};
use tracing::{info, warn};
use weir_core::key::OriginId;
use weir_core::region::{Explained, Region, RegionLimits, RegionStats};
use weir_core::time::UnixMs;
use weir_core::wire::{Ack, Answer, Consult, FilterFrame, Pong, Push, RegionFrame, Report, View};

/// Most cells of one round of replays while everything is told again.
const RETOLD_A_ROUND: usize = 65_536;

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
    /// Woken when the region may have lost what its own published figures could make up for.
    pub lost: Notify,
    /// Woken when another aggregator serves the region, and this one must not.
    pub taken_over: Notify,
    /// The region's store, if it has one.
    pub regional: Option<Arc<Regional>>,
    /// The database that regions share, if there is one.
    pub global: Option<Arc<Global>>,
    /// What rules on limits that are held exactly.
    pub exact: Exact,
    /// The last round of replays that is over.
    pub replayed: watch::Sender<u64>,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

/// One round of replays: everything that was merged before it began is dealt with when it is over.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    number: u64,
    /// Cells that waited as it began.
    pub waiting: usize,
}

/// What became of a frame.
#[derive(Debug, Default)]
pub struct Taken {
    /// What can be said at once.
    pub reply: RegionFrame,
    /// The acknowledgement of its report, where that has to wait for the store.
    pub ack: Option<LateAck>,
    /// Questions for the store.
    pub asks: Vec<Consult>,
}

/// An acknowledgement that has to wait.
#[derive(Debug)]
pub struct LateAck {
    /// What to say.
    pub ack: Ack,
    /// Counts that came without a base: their places, and what was known of them. To be looked at again then.
    pub bases: Vec<(u32, View)>,
    /// The round of replays that must be over.
    pub after: u64,
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
    /// Rounds of replays that have begun.
    rounds: u64,
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
        regional: Option<Arc<Regional>>,
        global: Option<Arc<Global>>,
        exact: Exact,
    ) -> Shared {
        let region = Region::new(limits, (rand::random(), rand::random()));
        Shared {
            region_name,
            token,
            metrics: Metrics::new(exact.figures()),
            draining: watch::Sender::new(None),
            changed: Notify::new(),
            lost: Notify::new(),
            taken_over: Notify::new(),
            regional,
            global,
            exact,
            replayed: watch::Sender::new(0),
            clock,
            state: Mutex::new(State { region, origins: HashMap::new(), next_stream: 0, rounds: 0 }),
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
            self.origins_changed();
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
            self.origins_changed();
        }
    }

    /// Does something with the region, at this moment. Keep it short: everybody waits.
    pub fn region<R>(&self, act: impl FnOnce(&mut Region, UnixMs) -> R) -> R {
        let now = self.now();
        let mut state = self.state.lock();
        let result = act(&mut state.region, now);
        MutexGuard::unlock_fair(state);
        result
    }

    /// Begins a round of replays.
    pub fn begin_replay(&self) -> Round {
        let mut state = self.state.lock();
        state.rounds += 1;
        let waiting = state.region.pending_merges();
        // While all is told again, cells are queued as the walk finds them.
        let waiting = if state.region.has_merges() { waiting.max(RETOLD_A_ROUND) } else { waiting };
        Round { number: state.rounds, waiting }
    }

    /// Ends it: what was merged before it is in the store, or as safe as it can be while the store is away.
    pub fn replayed(&self, round: Round) {
        self.replayed.send_replace(round.number);
    }

    /// Waits until all that was merged before now is in the store, or the store is known to be away.
    pub async fn stored(&self) {
        let Some(regional) = &self.regional else { return };
        let next = self.state.lock().rounds + 1;
        regional.unstored.notify_one();
        self.after_replay(next).await;
    }

    /// Waits until a round is over. False if the program ends before.
    pub async fn after_replay(&self, round: u64) -> bool {
        self.replayed.subscribe().wait_for(|done| *done >= round).await.is_ok()
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

    /// Takes all of a frame but its hello.
    pub fn take(&self, origin: OriginId, frame: FilterFrame) -> Result<Taken, Refusal> {
        let started = Instant::now();
        let now = self.now();
        let asks_store = self.regional.as_ref().is_some_and(|regional| regional.is_usable());
        let mut state = self.state.lock();
        if !state.region.heard(origin, now) {
            return Err(Refusal::TooManyOrigins);
        }
        let after = state.rounds + 1;
        let region = &mut state.region;
        let mut taken = Taken::default();
        let merged = frame.report.as_ref().map(|report| self.merge(region, origin, report, now));
        taken.reply.pong = frame.ping.as_ref().map(|ping| Pong {
            sent_ms: ping.sent_ms,
            unix_ms: now.0,
            live_origins: u32::try_from(region.live_origins(now)).unwrap_or(u32::MAX),
        });
        if asks_store {
            taken.asks = frame.consults;
        } else {
            let answers = frame.consults.iter().map(|consult| self.answer(region, origin, consult, now));
            taken.reply.answers = answers.collect();
        }
        MutexGuard::unlock_fair(state);
        match (&self.regional, merged) {
            (_, None) => {}
            (None, Some((ack, bases))) => {
                let bases = bases.into_iter().map(|(_, base)| base).collect();
                taken.reply.ack = Some(Ack { bases, ..ack });
            }
            (Some(regional), Some((ack, bases))) => {
                taken.ack = Some(LateAck { ack, bases, after });
                regional.unstored.notify_one();
            }
        }
        if frame.report.is_some() || !taken.reply.answers.is_empty() {
            self.changed.notify_one();
        }
        self.metrics.frame_seconds.observe(started.elapsed().as_secs_f64());
        Ok(taken)
    }

    /// Answers from memory.
    pub fn answer_from_memory(&self, origin: OriginId, consults: &[Consult]) -> Vec<Answer> {
        let answers = self.region(|region, now| {
            consults.iter().map(|consult| self.answer(region, origin, consult, now)).collect()
        });
        self.changed.notify_one();
        answers
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

    /// All metrics, in Prometheus' text format.
    pub fn metrics_text(&self) -> String {
        let regional = self.regional.as_ref().map(|regional| ("regional", regional.breaker_state()));
        let global = self.global.iter().flat_map(|global| global.breaker_states());
        let exact = self.exact.breaker_states();
        let breakers: Vec<_> = regional.into_iter().chain(global).chain(exact).collect();
        self.metrics.text(self.stats(), &breakers)
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

    fn merge(
        &self,
        region: &mut Region,
        origin: OriginId,
        report: &Report,
        now: UnixMs,
    ) -> (Ack, Vec<(u32, View)>) {
        let reported = region.report(origin, &report.counts, now);
        reported.refused.iter().for_each(|(_, reason)| self.metrics.count_refused(*reason));
        self.metrics.reports.inc();
        self.metrics.counts_merged.inc_by(report.counts.len().saturating_sub(reported.refused.len()) as u64);
        let refused = reported.refused.iter().map(|(place, _)| *place).collect();
        (Ack { report_id: report.id, bases: Vec::new(), refused }, reported.bases)
    }

    fn answer(&self, region: &mut Region, origin: OriginId, consult: &Consult, now: UnixMs) -> Answer {
        match region.consult(origin, consult, now) {
            Ok(answer) => self.judged(answer),
            Err(_) => self.unjudged(consult),
        }
    }

    /// Counts an answer.
    pub fn judged(&self, answer: Answer) -> Answer {
        self.metrics.consult_judged(answer.granted);
        answer
    }

    /// Every consult is answered. One that the region cannot judge is answered without a view: nothing speaks against
    /// the request, and the filter need not wait for its timeout to decide on what it knows itself.
    pub fn unjudged(&self, consult: &Consult) -> Answer {
        self.metrics.consult_unjudged();
        Answer { id: consult.id, ..Answer::default() }
    }

    fn origins_changed(&self) {
        if let Some(regional) = &self.regional {
            regional.origins.notify_one();
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
