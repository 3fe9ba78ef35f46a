//! The desk behind its lock, and who waits for its bells.
//!
//! Every frame is taken under one lock that is held for the frame's own work only: some hundred microseconds for
//! the largest. The lock is a fair one, so that a peer that sends without pause cannot keep the others out.
//!
//! Leaves to others: what is done at the desk (`weir_core::replication`), reading frames and sending replies (`stream`).

use crate::region::control::Live;
use crate::region::exact::Exact;
use crate::region::global::Global;
use crate::region::refusal::Refusal;
use crate::region::regional::Regional;
use crate::region::status::Window;
use crate::telemetry::clock::Clock;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::spans::Telemetry;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};
use weir_core::model::breaker::State as Breaker;
use weir_core::model::key::OriginId;
use weir_core::model::time::{MonoMs, Now, UnixMs};
use weir_core::model::wire::{Ack, Answer, Consult, FilterFrame};
use weir_core::region::{Explained, Region, RegionLimits, RegionStats};
use weir_core::replication::desk::{LateAck, Taken};
use weir_core::replication::{Access, Bell, Bells, Desk, Next, StreamId};

/// What is known of the region, by all tasks of this program.
pub struct Shared {
    /// The region's name, as said to filters.
    pub region_name: String,
    /// What happened so far.
    pub metrics: Arc<Metrics>,
    /// Set to the moment at which draining began.
    pub draining: watch::Sender<Option<Instant>>,
    /// Woken when another aggregator serves the region, and this one must not.
    pub taken_over: Notify,
    /// The region's store, if it has one.
    pub regional: Option<Arc<Regional>>,
    /// The database that regions share, if there is one.
    pub global: Option<Arc<Global>>,
    /// What rules on limits that are held exactly.
    pub exact: Exact,
    /// What makes spans, if anything does.
    pub telemetry: Telemetry,
    /// Live control, as far as it is known.
    pub control: Live,
    /// What is known for people who look.
    pub window: Window,
    bells: [(Bell, Notify); Bell::ALL.len()],
    /// The last round of replays that is over.
    replayed: watch::Sender<u64>,
    clock: Arc<dyn Clock>,
    started: Instant,
    state: Mutex<State>,
}

struct State {
    desk: Desk,
    /// Woken when a subscriber's stream has a turn.
    turns: HashMap<StreamId, Arc<Notify>>,
}

impl Access for &Shared {
    fn desk<R>(&mut self, act: impl FnOnce(&mut Desk, Now) -> R) -> R {
        Shared::desk(self, act)
    }
}

impl Shared {
    /// An empty region called `region_name`.
    pub fn new(
        region_name: String,
        limits: RegionLimits,
        clock: Arc<dyn Clock>,
        regional: Option<Arc<Regional>>,
        global: Option<Arc<Global>>,
        exact: Exact,
        telemetry: Telemetry,
    ) -> Shared {
        let mut desk = Desk::new(limits, (rand::random(), rand::random()));
        if let Some(regional) = &regional {
            desk = desk.with_store(regional.cadence.store_breaker);
        }
        if let Some(global) = &global {
            desk = desk.with_database(global.cadence.global_breaker, global.database.has_replica());
        }
        Shared {
            region_name,
            metrics: Arc::new(Metrics::new(exact.figures(), telemetry.figures())),
            draining: watch::Sender::new(None),
            taken_over: Notify::new(),
            regional,
            global,
            exact,
            telemetry,
            control: Live::default(),
            window: Window::default(),
            bells: Bell::ALL.map(|bell| (bell, Notify::new())),
            replayed: watch::Sender::new(0),
            clock,
            started: Instant::now(),
            state: Mutex::new(State { desk, turns: HashMap::new() }),
        }
    }

    /// The moment, by the wall clock.
    pub fn now(&self) -> UnixMs {
        self.clock.now()
    }

    /// The moment, by both clocks.
    pub fn moment(&self) -> Now {
        let mono = MonoMs(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX));
        Now { unix: self.now(), mono }
    }

    /// Does something at the desk, at this moment, and wakes who is to do more. Keep it short: everybody waits.
    pub fn desk<R>(&self, act: impl FnOnce(&mut Desk, Now) -> R) -> R {
        self.step(|state, now| act(&mut state.desk, now))
    }

    /// Does something with the region, at this moment. Keep it short: everybody waits.
    pub fn region<R>(&self, act: impl FnOnce(&mut Region, UnixMs) -> R) -> R {
        self.desk(|desk, now| act(&mut desk.region, now.unix))
    }

    /// Does what a machine wants before it is asked again, but for calls. The bell that rang, where it waited for one.
    pub async fn idle<C>(&self, next: Next<C>) -> Option<Bell> {
        match next {
            Next::Call(_) | Next::Over => None,
            Next::Yield => {
                yield_now().await;
                None
            }
            Next::Sleep(ms) => {
                sleep(Duration::from_millis(ms)).await;
                None
            }
            Next::Wait { bells, at_most_ms: None } => Some(self.rung(bells).await),
            Next::Wait { bells, at_most_ms: Some(ms) } => {
                timeout(Duration::from_millis(ms), self.rung(bells)).await.ok()
            }
        }
    }

    /// Waits until one of these bells rings.
    pub async fn rung(&self, bells: Bells) -> Bell {
        let awaited = self.bells.iter().filter(|(bell, _)| bells.has(*bell));
        let mut rings: Vec<_> = awaited.map(|(bell, rings)| (*bell, Box::pin(rings.notified()))).collect();
        poll_fn(|context| {
            let ready = rings
                .iter_mut()
                .find_map(|(bell, ring)| ring.as_mut().poll(context).is_ready().then_some(*bell));
            ready.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Admits a stream of `origin`, an Envoy's or that of this program's own doors; leave it with [`Shared::leave`].
    pub fn enter(&self, origin: OriginId, is_door: bool) -> Result<StreamId, Refusal> {
        let entered = self.desk(|desk, now| desk.enter(origin, now)).map_err(|_| Refusal::TooManyOrigins)?;
        match (entered.is_first, is_door) {
            (true, false) => info!(%origin, "an Envoy connected"),
            (true, true) => debug!(%origin, "this program's doors are in use"),
            (false, _) => {}
        }
        Ok(entered.id)
    }

    /// Ends a stream; with the last one of its Envoy, the Envoy no longer counts as alive.
    pub fn leave(&self, origin: OriginId, id: StreamId, is_door: bool) {
        self.unsubscribe(origin, id);
        match (self.desk(|desk, _| desk.leave(origin, id)), is_door) {
            (true, false) => info!(%origin, "an Envoy disconnected"),
            (true, true) => debug!(%origin, "this program's doors are in use no more"),
            (false, _) => {}
        }
    }

    /// Waits until all that was merged before now is in the store, or the store is known to be away.
    pub async fn stored(&self) {
        if self.regional.is_none() {
            return;
        }
        let next = self.desk(|desk, _| {
            desk.ring(Bell::Replay);
            desk.next_round()
        });
        self.after_replay(next).await;
    }

    /// Waits until a round is over. False if the program ends before.
    pub async fn after_replay(&self, round: u64) -> bool {
        self.replayed.subscribe().wait_for(|done| *done >= round).await.is_ok()
    }

    /// Makes this stream its Envoy's subscriber, in place of any other; woken when it has a turn.
    pub fn subscribe(&self, origin: OriginId, id: StreamId) -> Arc<Notify> {
        let turn = Arc::new(Notify::new());
        self.step(|state, _| {
            if let Some(superseded) = state.desk.subscribe(origin, id) {
                state.dismiss(superseded);
            }
            state.turns.insert(id, turn.clone());
        });
        turn
    }

    /// Ends this stream's subscription, if it is still the one that counts.
    pub fn unsubscribe(&self, origin: OriginId, id: StreamId) {
        self.step(|state, _| {
            if state.desk.unsubscribe(origin, id) {
                state.dismiss(id);
            }
        });
    }

    /// Wakes every subscriber that has something to be told.
    pub fn wake_subscribers(&self) {
        let state = self.state.lock();
        for id in state.desk.to_be_told() {
            if let Some(turn) = state.turns.get(&id) {
                turn.notify_one();
            }
        }
    }

    /// Takes all of a frame but its hello, and what concerns limits that are held exactly.
    pub fn take(&self, origin: OriginId, frame: FilterFrame) -> Result<Taken, Refusal> {
        let started = Instant::now();
        let taken = self.desk(|desk, now| desk.take(origin, frame, now));
        let taken = taken.map_err(|_| Refusal::TooManyOrigins)?;
        self.metrics.frame_seconds.observe(started.elapsed().as_secs_f64());
        Ok(taken)
    }

    /// Answers from memory.
    pub fn answer_from_memory(&self, origin: OriginId, consults: &[Consult]) -> Vec<Answer> {
        self.desk(|desk, now| desk.answer_from_memory(origin, consults, now))
    }

    /// The acknowledgement, now that the round that it waited for is over.
    pub fn acknowledge(&self, origin: OriginId, late: LateAck) -> Ack {
        self.desk(|desk, _| desk.acknowledge(origin, late))
    }

    /// Whether there is a store of the region, and it is asked.
    pub fn store_is_usable(&self) -> bool {
        self.desk(|desk, now| desk.is_usable(now.mono))
    }

    /// Forgets some of what is over; true if there is more. Let others have their turn before the next call.
    pub fn tick(&self) -> bool {
        self.desk(|desk, now| desk.tick(now))
    }

    /// The region's figures.
    pub fn stats(&self) -> RegionStats {
        self.desk(|desk, now| desk.region.stats(now.mono))
    }

    /// All metrics, in Prometheus' text format.
    pub fn metrics_text(&self) -> String {
        let (now, figures, stats, mut breakers) = self.desk(|desk, now| {
            (now, desk.figures.clone(), desk.region.stats(now.mono), breakers(desk, now.mono))
        });
        breakers.extend(self.exact.breaker_states());
        self.metrics.text(&figures, now.mono, stats, &breakers)
    }

    /// Everything held of an identifier.
    pub fn explain(&self, workspace: &[u8], namespace: &[u8], identifier: &[u8]) -> Vec<Explained> {
        self.region(|region, _| region.explain(workspace, namespace, identifier))
    }

    /// Says now and then that a peer misbehaves.
    pub fn warn(&self, what: &str, origin: Option<OriginId>) {
        if let Some(held_back) = self.metrics.warnings.pass() {
            let origin = origin.map(tracing::field::display);
            warn!(origin, held_back, "{what}");
        }
    }

    fn step<R>(&self, act: impl FnOnce(&mut State, Now) -> R) -> R {
        let now = self.moment();
        let mut state = self.state.lock();
        let result = act(&mut state, now);
        let (rung, replayed) = (state.desk.take_bells(), state.desk.replayed());
        MutexGuard::unlock_fair(state);
        for (_, waiting) in self.bells.iter().filter(|(bell, _)| rung.has(*bell)) {
            waiting.notify_one();
        }
        if *self.replayed.borrow() < replayed {
            self.replayed.send_replace(replayed);
        }
        result
    }
}

impl State {
    /// A stream is its Envoy's subscriber no more, and is to hear of that.
    fn dismiss(&mut self, id: StreamId) {
        if let Some(turn) = self.turns.remove(&id) {
            turn.notify_one();
        }
    }
}

fn breakers(desk: &mut Desk, now: MonoMs) -> Vec<(&'static str, Breaker)> {
    let regional = desk.store().map(|guard| ("regional", guard.state(now)));
    let global = desk.database().map(|gates| gates.states(now));
    let replica = global.and_then(|(_, replica)| replica).map(|state| ("global_replica", state));
    regional.into_iter().chain(global.map(|(state, _)| ("global", state))).chain(replica).collect()
}
