//! The lock around the region's state, its events and its clock: what every task of the region uses.
//!
//! Every frame is taken under one lock that is held for the frame's own work only: some hundred microseconds for
//! the largest. The lock is a fair one, so that a peer that sends without pause cannot keep the others out.

use crate::region::stream_error::StreamError;
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
use weir_core::model::key::OriginId;
use weir_core::model::time::{MonoMs, Now, UnixMs};
use weir_core::model::wire::{Ack, Answer, Consult, FilterFrame};
use weir_core::region::{Explained, Region, RegionStats};
use weir_core::replication::state::{LateAck, Taken};
use weir_core::replication::{Access, Event, Events, Next, RegionState, StreamId};

/// The region's state behind its lock, the events that wake its tasks, its clock and its metrics.
pub struct Hub {
    /// The region's name, as sent to filters.
    pub region_name: String,
    /// The metrics of this program.
    pub metrics: Arc<Metrics>,
    /// Set to the moment at which draining began.
    pub draining: watch::Sender<Option<Instant>>,
    /// Notified when another aggregator serves the region, and this one must not.
    pub taken_over: Notify,
    /// What makes spans, if anything does.
    pub telemetry: Telemetry,
    events: [(Event, Notify); Event::ALL.len()],
    /// The last round of replays that is over.
    replayed: watch::Sender<u64>,
    clock: Arc<dyn Clock>,
    started: Instant,
    locked: Mutex<Locked>,
}

struct Locked {
    state: RegionState,
    /// Woken when a subscriber's stream has a turn.
    turns: HashMap<StreamId, Arc<Notify>>,
}

impl Access for &Hub {
    fn state<R>(&mut self, act: impl FnOnce(&mut RegionState, Now) -> R) -> R {
        Hub::state(self, act)
    }
}

impl Hub {
    /// A region called `region_name`, with its state as it begins.
    pub fn new(
        region_name: String,
        state: RegionState,
        clock: Arc<dyn Clock>,
        metrics: Arc<Metrics>,
        telemetry: Telemetry,
    ) -> Hub {
        Hub {
            region_name,
            metrics,
            draining: watch::Sender::new(None),
            taken_over: Notify::new(),
            telemetry,
            events: Event::ALL.map(|event| (event, Notify::new())),
            replayed: watch::Sender::new(0),
            clock,
            started: Instant::now(),
            locked: Mutex::new(Locked { state, turns: HashMap::new() }),
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

    /// Does something at the state, at this moment, and wakes who is to do more. Keep it short: everybody waits.
    pub fn state<R>(&self, act: impl FnOnce(&mut RegionState, Now) -> R) -> R {
        self.step(|locked, now| act(&mut locked.state, now))
    }

    /// Does something with the region, at this moment. Keep it short: everybody waits.
    pub fn region<R>(&self, act: impl FnOnce(&mut Region, UnixMs) -> R) -> R {
        self.state(|state, now| act(&mut state.region, now.unix))
    }

    /// Does what a machine wants before it is asked again, but for calls. The event that notified, where it waited for one.
    pub async fn idle<C>(&self, next: Next<C>) -> Option<Event> {
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
            Next::Wait { events, at_most_ms: None } => Some(self.notified(events).await),
            Next::Wait { events, at_most_ms: Some(ms) } => {
                timeout(Duration::from_millis(ms), self.notified(events)).await.ok()
            }
        }
    }

    /// Waits until one of these events notifications.
    pub async fn notified(&self, events: Events) -> Event {
        let awaited = self.events.iter().filter(|(event, _)| events.has(*event));
        let mut notifications: Vec<_> =
            awaited.map(|(event, notifications)| (*event, Box::pin(notifications.notified()))).collect();
        poll_fn(|context| {
            let ready = notifications
                .iter_mut()
                .find_map(|(event, ring)| ring.as_mut().poll(context).is_ready().then_some(*event));
            ready.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Admits a stream of `origin`, an Envoy's or that of this program's own APIs; leave it with [`Hub::leave`].
    pub fn enter(&self, origin: OriginId, is_embedded: bool) -> Result<StreamId, StreamError> {
        let entered =
            self.state(|state, now| state.enter(origin, now)).map_err(|_| StreamError::TooManyOrigins)?;
        match (entered.is_first, is_embedded) {
            (true, false) => info!(%origin, "an Envoy connected"),
            (true, true) => debug!(%origin, "the API's stream is open"),
            (false, _) => {}
        }
        Ok(entered.id)
    }

    /// Ends a stream; with the last one of its Envoy, the Envoy no longer counts as alive.
    pub fn leave(&self, origin: OriginId, id: StreamId, is_embedded: bool) {
        self.unsubscribe(origin, id);
        match (self.state(|state, _| state.leave(origin, id)), is_embedded) {
            (true, false) => info!(%origin, "an Envoy disconnected"),
            (true, true) => debug!(%origin, "the API's stream is closed"),
            (false, _) => {}
        }
    }

    /// Waits until all that was merged before now is in the store, or the store is known to be away.
    pub async fn stored(&self) {
        let next = self.state(|state, _| {
            state.store()?;
            state.notify(Event::Replay);
            Some(state.next_round())
        });
        if let Some(next) = next {
            self.after_replay(next).await;
        }
    }

    /// Waits until a round is over. False if the program ends before.
    pub async fn after_replay(&self, round: u64) -> bool {
        self.replayed.subscribe().wait_for(|done| *done >= round).await.is_ok()
    }

    /// Makes this stream its Envoy's subscriber, in place of any other; woken when it has a turn.
    pub fn subscribe(&self, origin: OriginId, id: StreamId) -> Arc<Notify> {
        let turn = Arc::new(Notify::new());
        self.step(|locked, _| {
            if let Some(superseded) = locked.state.subscribe(origin, id) {
                locked.dismiss(superseded);
            }
            locked.turns.insert(id, turn.clone());
        });
        turn
    }

    /// Ends this stream's subscription, if it is still the one that counts.
    pub fn unsubscribe(&self, origin: OriginId, id: StreamId) {
        self.step(|locked, _| {
            if locked.state.unsubscribe(origin, id) {
                locked.dismiss(id);
            }
        });
    }

    /// Wakes every subscriber that has something to be told.
    pub fn wake_subscribers(&self) {
        let locked = self.locked.lock();
        for id in locked.state.to_be_sent() {
            if let Some(turn) = locked.turns.get(&id) {
                turn.notify_one();
            }
        }
    }

    /// Takes all of a frame but its hello, and what concerns limits that are held exactly.
    pub fn take(&self, origin: OriginId, frame: FilterFrame) -> Result<Taken, StreamError> {
        let started = Instant::now();
        let taken = self.state(|state, now| state.take(origin, frame, now));
        let taken = taken.map_err(|_| StreamError::TooManyOrigins)?;
        self.metrics.frame_seconds.observe(started.elapsed().as_secs_f64());
        Ok(taken)
    }

    /// Answers from memory.
    pub fn answer_from_memory(&self, origin: OriginId, consults: &[Consult]) -> Vec<Answer> {
        self.state(|state, now| state.answer_from_memory(origin, consults, now))
    }

    /// The acknowledgement, now that the round that it waited for is over.
    pub fn acknowledge(&self, origin: OriginId, late: LateAck) -> Ack {
        self.state(|state, _| state.acknowledge(origin, late))
    }

    /// Whether there is a store of the region, and it is asked.
    pub fn store_is_usable(&self) -> bool {
        self.state(|state, now| state.is_usable(now.mono))
    }

    /// Forgets some of what is over; true if there is more. Let others have their turn before the next call.
    pub fn tick(&self) -> bool {
        self.state(|state, now| state.tick(now))
    }

    /// The region's figures.
    pub fn stats(&self) -> RegionStats {
        self.state(|state, now| state.region.stats(now.mono))
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

    fn step<R>(&self, act: impl FnOnce(&mut Locked, Now) -> R) -> R {
        let now = self.moment();
        let mut locked = self.locked.lock();
        let result = act(&mut locked, now);
        let (notified, replayed) = (locked.state.take_events(), locked.state.replayed());
        MutexGuard::unlock_fair(locked);
        for (_, waiting) in self.events.iter().filter(|(event, _)| notified.has(*event)) {
            waiting.notify_one();
        }
        if *self.replayed.borrow() < replayed {
            self.replayed.send_replace(replayed);
        }
        result
    }
}

impl Locked {
    /// A stream is its Envoy's subscriber no more, and is to hear of that.
    fn dismiss(&mut self, id: StreamId) {
        if let Some(turn) = self.turns.remove(&id) {
            turn.notify_one();
        }
    }
}
