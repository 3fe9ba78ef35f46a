//! The region's state behind a lock, with its events and its clock. Every task of the region uses it.
//!
//! Every frame is processed under one lock, held only for that frame: some hundred microseconds for the largest. The
//! lock is fair, so a node that sends without pause cannot starve the others.

use crate::region::clocks::Clocks;
use crate::region::stream_error::StreamError;
use crate::telemetry::clock::{Clock, since_boot};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::spans::Telemetry;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};
use weir_core::model::key::NodeId;
use weir_core::model::time::{MonoMs, Now, UnixMs};
use weir_core::model::wire::{Ack, Answer, FilterFrame, Query};
use weir_core::region::nodes::OWN_PEER;
use weir_core::region::{KeyCells, Region, RegionStats};
use weir_core::replication::regional::clock::{RegionClock, TimeProposal};
use weir_core::replication::state::{FrameResult, LateAck};
use weir_core::replication::{Access, Event, Events, Next, RegionState, StreamId};

/// The region's state behind a lock, the events that wake its tasks, its clock and its metrics.
pub struct Hub {
    /// The region's name, as sent to filters.
    pub region_name: String,
    /// The metrics of this program.
    pub metrics: Arc<Metrics>,
    /// Set to the moment at which the shutdown began.
    pub draining: watch::Sender<Option<Instant>>,
    /// Notified when another aggregator serves the region, so that this one must stop.
    pub taken_over: Notify,
    /// Until when this aggregator is known to serve the region alone, by [`since_boot`]: the region lease. Without one always.
    serves_until_ms: AtomicU64,
    /// Creates spans, if tracing is configured.
    pub telemetry: Telemetry,
    events: [(Event, Notify); Event::ALL.len()],
    /// The number of the last replay round that has completed.
    replayed: watch::Sender<u64>,
    clock: Arc<dyn Clock>,
    region_clock: Mutex<RegionClock>,
    clocks: Mutex<Clocks>,
    started: Instant,
    locked: Mutex<Locked>,
}

struct Locked {
    state: RegionState,
    /// Notified when there is something to push to the subscriber of a stream.
    turns: HashMap<StreamId, Arc<Notify>>,
}

impl Access for &Hub {
    fn state<R>(&mut self, act: impl FnOnce(&mut RegionState, Now) -> R) -> R {
        Hub::state(self, act)
    }
}

impl Hub {
    /// A region called `region_name` with the initial `state`.
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
            serves_until_ms: AtomicU64::new(u64::MAX),
            telemetry,
            events: Event::ALL.map(|event| (event, Notify::new())),
            replayed: watch::Sender::new(0),
            clock,
            region_clock: Mutex::default(),
            clocks: Mutex::default(),
            started: Instant::now(),
            locked: Mutex::new(Locked { state, turns: HashMap::new() }),
        }
    }

    /// The region's time.
    pub fn now(&self) -> UnixMs {
        self.moment().unix
    }

    /// The region's time, and that of the monotonic clock.
    pub fn moment(&self) -> Now {
        let mut clock = self.region_clock.lock();
        clock.at(self.machine())
    }

    /// What a heartbeat sends, so that the aggregators of the region agree on one time.
    pub fn propose_time(&self) -> TimeProposal {
        let mut clock = self.region_clock.lock();
        clock.propose(self.machine())
    }

    /// Takes the region's time, which was `region_us` between `sent` and now, as the store's clock showed `store`.
    pub fn follow_time(&self, region_us: u64, store: UnixMs, sent: MonoMs) {
        self.region_clock.lock().follow(region_us, sent, self.machine().mono);
        self.clocks.lock().read_redis(ahead_ms(store, UnixMs(region_us / 1_000)));
    }

    /// Reads how far the machine's clock is ahead of the region's time.
    pub fn read_clocks(&self) {
        let machine = self.machine();
        let region = self.region_clock.lock().at(machine);
        self.clocks.lock().read_machine(ahead_ms(machine.unix, region.unix));
    }

    /// How far clocks are ahead of the region's time, in milliseconds.
    pub fn clocks_ahead(&self) -> Vec<(&'static str, i64)> {
        self.clocks.lock().ahead().collect()
    }

    /// The machine's clocks.
    fn machine(&self) -> Now {
        let mono = MonoMs(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX));
        Now { unix: self.clock.now(), mono }
    }

    /// Runs `act` on the state under the lock, then notifies the events that it raised. Keep `act` short: all other tasks wait.
    pub fn state<R>(&self, act: impl FnOnce(&mut RegionState, Now) -> R) -> R {
        self.step(|locked, now| act(&mut locked.state, now))
    }

    /// Runs `act` on the region's counts under the lock. Keep `act` short: all other tasks wait.
    pub fn region<R>(&self, act: impl FnOnce(&mut Region, UnixMs) -> R) -> R {
        self.state(|state, now| act(&mut state.region, now.unix))
    }

    /// Waits, sleeps or yields as a state machine requires before its next step; a call is left to the caller. Returns the
    /// event that ended a wait.
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

    /// Waits until one of these events is notified.
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

    /// Admits a stream of `node`, which is an Envoy or the embedded limiter. End it with [`Hub::leave`].
    pub fn enter(&self, node: NodeId, peer: u64) -> Result<StreamId, StreamError> {
        let entered = self.state(|state, now| {
            let is_admitted = state.region.nodes.admit(node, peer, now.mono);
            is_admitted.then(|| state.enter(node, now).ok()).flatten()
        });
        let entered = entered.ok_or(StreamError::TooManyNodes)?;
        match (entered.is_first, peer == OWN_PEER) {
            (true, false) => info!(%node, "Envoy connected"),
            (true, true) => debug!(%node, "stream of the embedded limiter opened"),
            (false, _) => {}
        }
        Ok(entered.id)
    }

    /// Ends a stream. With the last stream of an Envoy, the Envoy no longer counts as alive.
    pub fn leave(&self, node: NodeId, id: StreamId, is_embedded: bool) {
        self.unsubscribe(node, id);
        match (self.state(|state, _| state.leave(node, id)), is_embedded) {
            (true, false) => info!(%node, "Envoy disconnected"),
            (true, true) => debug!(%node, "stream of the embedded limiter closed"),
            (false, _) => {}
        }
    }

    /// Waits until everything merged before now is in the store, or the store is known to be unavailable.
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

    /// Waits until a replay round has completed. False if the program ends before.
    pub async fn after_replay(&self, round: u64) -> bool {
        self.replayed.subscribe().wait_for(|done| *done >= round).await.is_ok()
    }

    /// Makes this stream its Envoy's subscriber, in place of any other. The result is notified when there is something to push.
    pub fn subscribe(&self, node: NodeId, id: StreamId) -> Arc<Notify> {
        let turn = Arc::new(Notify::new());
        self.step(|locked, _| {
            if let Some(superseded) = locked.state.subscribe(node, id) {
                locked.dismiss(superseded);
            }
            locked.turns.insert(id, turn.clone());
        });
        turn
    }

    /// Ends this stream's subscription, if the stream is still its Envoy's subscriber.
    pub fn unsubscribe(&self, node: NodeId, id: StreamId) {
        self.step(|locked, _| {
            if locked.state.unsubscribe(node, id) {
                locked.dismiss(id);
            }
        });
    }

    /// Wakes every subscriber for which there is something to push.
    pub fn wake_subscribers(&self) {
        let locked = self.locked.lock();
        for id in locked.state.to_be_sent() {
            if let Some(turn) = locked.turns.get(&id) {
                turn.notify_one();
            }
        }
    }

    /// Takes all parts of a frame except its hello and its exact requests. Queries have no answer while another aggregator may serve
    /// the region.
    pub fn take(&self, node: NodeId, mut frame: FilterFrame) -> Result<FrameResult, StreamError> {
        let started = Instant::now();
        if !self.serves() {
            frame.queries.clear();
        }
        let result = self.state(|state, now| state.take(node, frame, now));
        let result = result.map_err(|_| StreamError::TooManyNodes)?;
        self.metrics.program.frame_seconds.observe(started.elapsed().as_secs_f64());
        Ok(result)
    }

    /// Another aggregator may serve the region after this moment, by [`since_boot`].
    pub fn serves_until(&self, moment: MonoMs) {
        self.serves_until_ms.store(moment.0, Relaxed);
    }

    /// Whether no other aggregator can serve the region. A process that was frozen decides nothing until it has renewed its
    /// lease.
    pub fn serves(&self) -> bool {
        let until_ms = self.serves_until_ms.load(Relaxed);
        until_ms == u64::MAX || since_boot().0 < until_ms
    }

    /// Answers queries from memory.
    pub fn answer_from_memory(&self, node: NodeId, queries: &[Query]) -> Vec<Answer> {
        if !self.serves() {
            return Vec::new();
        }
        self.state(|state, now| state.answer_from_memory(node, queries, now))
    }

    /// The acknowledgement of a report, once the replay round that it waited for has completed.
    pub fn acknowledge(&self, node: NodeId, late: LateAck) -> Ack {
        self.state(|state, _| state.acknowledge(node, late))
    }

    /// Whether the region has a store and its circuit breaker permits calls.
    pub fn store_is_usable(&self) -> bool {
        self.state(|state, now| state.is_usable(now.mono))
    }

    /// Evicts some expired entries; true if more remain. Yield to other tasks before the next call.
    pub fn tick(&self) -> bool {
        self.state(|state, now| state.tick(now))
    }

    /// The region's statistics.
    pub fn stats(&self) -> RegionStats {
        self.state(|state, now| state.region.stats(now.mono))
    }

    /// All counts held for an identifier.
    pub fn explain(&self, workspace: &[u8], namespace: &[u8], identifier: &[u8]) -> Vec<KeyCells> {
        self.region(|region, _| region.explain(workspace, namespace, identifier))
    }

    /// Logs that a peer misbehaves, at a limited rate for each place that calls this.
    #[track_caller]
    pub fn warn(&self, what: &str, node: Option<NodeId>) {
        if let Some(held_back) = self.metrics.warnings.pass() {
            let node = node.map(tracing::field::display);
            warn!(node, held_back, "{what}");
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

fn ahead_ms(clock: UnixMs, region: UnixMs) -> i64 {
    clock.0.cast_signed().saturating_sub(region.0.cast_signed())
}

impl Locked {
    /// Removes a stream as its Envoy's subscriber, and wakes its pushing task so that it ends.
    fn dismiss(&mut self, id: StreamId) {
        if let Some(turn) = self.turns.remove(&id) {
            turn.notify_one();
        }
    }
}
