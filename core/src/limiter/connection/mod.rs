//! What one worker exchanges with its aggregator, and with the other workers of its process.
//!
//! - `link`: state of the stream. `subscription`: whether it receives pushes. `frames`: what is sent and received.
//! - `waiting`: the requests that wait: for answers to `queries` (`ration` bounds them; `answers` decides the requests), or for responses to
//!   `exact_requests` (`exact` decides them; `denials` caches the denials of logs).
//! - `registry`: the worker registry; `clock`: the time that its workers share. `resync`: reports of the whole table.
//! - `pace`: how often all of this is done.

mod answers;
mod clock;
mod denials;
mod exact;
pub(super) mod exact_requests;
mod frames;
pub(super) mod link;
pub(super) mod pace;
pub(super) mod queries;
mod ration;
mod registry;
mod resync;
mod subscription;
mod waiting;

use super::check::{Check, Decision, Outcome, ShadowOutcome};
use super::local::judge::Health;
use super::local::{Local, Turn};
use super::output::{CloseReason, Output};
use super::{FRESH_MS, REGISTRY_MS};
use crate::model::key::NodeId;
use crate::model::shared::Shared;
use crate::model::time::{MonoMs, Now};
use crate::model::trace::Trace;
use crate::model::wire::FilterFrame;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use clock::Clock;
use exact::Exact;
use link::Link;
use pace::Pace;
use queries::Queries;
use registry::WorkerRegistry;
use resync::Resyncs;
use subscription::Subscription;
use waiting::{ExactPart, WaitingRequest, WaitingRequests};

/// What one worker exchanges.
#[derive(Debug)]
pub(super) struct Connection {
    node: NodeId,
    worker: u64,
    link: Link,
    subscription: Subscription,
    /// Requests that wait for an exact response or for answers.
    waiting: WaitingRequests,
    queries: Queries,
    pub(super) exact: Exact,
    pub(super) registry: WorkerRegistry,
    /// When this worker last updated the registry.
    synced: Option<MonoMs>,
    /// Live nodes of the region, as the aggregators of the process' workers reported them.
    registered_nodes: u32,
    /// Whether it decides requests.
    pub(super) serves: bool,
    pub(super) resync: Resyncs,
    clock: Clock,
    /// When it last sent reports.
    flushed: MonoMs,
    pace: Pace,
    outputs: Outputs,
}

/// What the driver is to do.
#[derive(Debug, Default)]
struct Outputs {
    /// This worker has ended the stream.
    closes: Option<CloseReason>,
    /// A tick was made since it was last checked whether to cancel or to open a stream.
    ticked: bool,
    /// The frames of this run of [`Connection::next`] have been collected.
    collected: bool,
    frames: VecDeque<FilterFrame>,
    /// Requests that waited and have been decided.
    resolved: VecDeque<(u64, Outcome)>,
    /// Outcomes of exact shadow rules, each with its request and rule.
    shadow: VecDeque<(u64, u16, ShadowOutcome)>,
}

impl Connection {
    pub(super) fn new(node: NodeId, worker: u64, now: Now) -> Connection {
        Connection {
            node,
            worker,
            link: Link::new(worker),
            subscription: Subscription::default(),
            waiting: WaitingRequests::default(),
            queries: Queries::new(now.mono),
            exact: Exact::default(),
            registry: WorkerRegistry::default(),
            synced: None,
            registered_nodes: 1,
            serves: false,
            resync: Resyncs::default(),
            clock: Clock::new(now),
            flushed: MonoMs(0),
            pace: Pace::default(),
            outputs: Outputs::default(),
        }
    }

    /// Both clocks at `mono`, the same for all workers of the process.
    pub(super) fn moment(&self, mono: MonoMs) -> Now {
        self.clock.moment(self.registry.clock, mono)
    }

    /// Live nodes of the region, this one included, as the aggregator of this or another worker counts them.
    pub(super) fn nodes(&self, now: MonoMs) -> u32 {
        self.link.nodes(now).max(self.registered_nodes)
    }

    /// What a decision rests on now.
    pub(super) fn view(&self, now: MonoMs) -> Health {
        Health {
            usable: self.link.is_usable(),
            fresh: self.registry.complete
                && self.registry.echo != MonoMs(0)
                && now.since(self.registry.echo) < FRESH_MS,
            complete: self.registry.complete,
            nodes: self.nodes(now),
            strict: self.queries.strict.is_left(now),
            cold: self.queries.cold.is_left(now),
        }
    }

    /// Whether this worker receives the region's pushes for its process.
    pub(super) fn is_subscriber(&self) -> bool {
        self.registry.subscriber == self.worker
    }

    /// Whether this worker's stream receives the region's pushes.
    pub(super) fn is_subscribed(&self) -> bool {
        self.subscription.is_active() && self.link.is_up()
    }

    /// Whether the stream is open.
    pub(super) fn is_up(&self) -> bool {
        self.link.is_up()
    }

    /// Whether no request waits.
    pub(super) fn is_quiet(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether nothing waits that the end of the stream would lose.
    pub(super) fn is_at_rest(&self) -> bool {
        !self.waiting.has_queries() && self.resync.is_idle()
    }

    /// Whether besides that nothing waits for a response, to be confirmed or to be offered again.
    pub(super) fn is_settled(&self) -> bool {
        self.is_quiet() && self.exact.requests.is_settled() && !self.resync.has_offer()
    }

    /// Time between the subscription's last confirmation and `now`; `u64::MAX` if there was none.
    pub(super) fn snapshot_age_ms(&self, now: MonoMs) -> u64 {
        match self.registry.echo {
            MonoMs(0) => u64::MAX,
            echo => now.since(echo),
        }
    }

    /// Decides a request by its windows alone, or makes it wait for answers.
    pub(super) fn decide(
        &mut self,
        local: &mut Local,
        shared: &mut impl Shared,
        request: u64,
        checks: &[Check<'_>],
        now: Now,
    ) -> Outcome {
        match local.round(shared, request, checks, || self.view(now.mono), now) {
            Ok(outcome) => outcome,
            Err(_) if self.waiting.is_full() => {
                local.unanswered(shared, request, checks, self.nodes(now.mono), now)
            }
            Err(needs) => {
                let waiting = WaitingRequest::for_answers(checks, ExactPart::default(), now.mono);
                self.query(&mut Turn { local, shared, now }, request, waiting, &needs.all);
                Outcome::of(Decision::Wait)
            }
        }
    }

    /// Adds a trace context to the queries of `request`, which has just begun to wait.
    pub(super) fn trace(&mut self, request: u64, trace: &Trace<'_>) {
        let trace = trace.to_wire();
        if self.waiting.set_trace(request, &trace) {
            self.exact.requests.set_trace(request, trace);
        }
    }

    /// Does periodic work: timeouts, the registry, resync.
    pub(super) fn tick(&mut self, turn: &mut Turn<'_, impl Shared>) {
        self.expire_exact(turn);
        self.expire_waiting(turn);
        turn.local.expire_open(turn.shared, turn.now);
        if self.synced.is_none_or(|synced| turn.now.mono.since(synced) >= REGISTRY_MS) {
            self.sync_registry(turn);
            // Not at the short ticks while requests wait, as this can take milliseconds.
            turn.local.settle_due(turn.shared, self.nodes(turn.now.mono), turn.now);
            turn.local.flush_violations(turn.shared, turn.now);
            let leads = (self.is_subscriber() && self.link.is_up()).then_some(&self.registry);
            self.resync.plan(turn.local, leads, self.link.is_up(), turn.now);
            self.resync.step(turn.local, turn.shared, turn.now);
            self.resync.finish(turn.local.outbox.stored_through(turn.now.mono));
            turn.local.fit_cache(turn.now.mono);
        }
        self.set_pace(turn.local, turn.now.mono);
        self.outputs.ticked = true;
    }

    /// Notes whether this worker is idle. What it waits for or owes is never idle, nor what it has to repeat.
    fn set_pace(&mut self, local: &Local, now: MonoMs) {
        let own = self.pace.active(local.decided);
        let active = if self.is_subscriber() { own.max(self.registry.active) } else { own };
        let has_snapshot = !self.is_subscriber() || self.subscription.is_complete();
        let may_rest = self.is_at_rest()
            && self.is_settled()
            && local.owes_nothing()
            && self.link.has_settled(now)
            && self.registry.is_resent()
            && has_snapshot;
        self.pace.tick(may_rest, now.since(active));
    }

    /// Whether this worker ticks and pings rarely.
    pub(super) fn is_idle(&self) -> bool {
        self.pace.is_idle()
    }

    /// Notes a request that may be refused before it is decided.
    pub(super) fn note_request(&mut self, mono: MonoMs) {
        self.pace.note(mono);
    }

    /// Whether this worker was woken, and has a ping to send.
    pub(super) fn has_woken(&self) -> bool {
        self.pace.is_due()
    }

    /// Milliseconds until the next tick while no request waits.
    pub(super) fn tick_ms(&self) -> u64 {
        self.pace.tick_ms()
    }

    /// Notes the machine's clock. Cached denials are dropped after a step, as their times are wrong. The counts belong to other cells then,
    /// so they are reported again.
    pub(super) fn read_clock(&mut self, local: &mut Local, now: Now) -> Now {
        self.clock.tick(self.registry.clock, now);
        let now = self.moment(now.mono);
        if self.clock.steps_to(now) {
            local.clock_steps = local.clock_steps.wrapping_add(1);
            if self.is_subscriber() {
                self.resync.note_gap();
            }
        }
        now
    }

    /// The next thing to do: what is due of the stream, then its frames, then what was decided.
    pub(super) fn next(&mut self, turn: &mut Turn<'_, impl Shared>) -> Option<Output> {
        if let Some(reason) = self.outputs.closes.take() {
            return Some(Output::Close(reason));
        }
        if self.outputs.ticked {
            if let Some(reason) = self.should_give_up(turn.local, turn.now.mono) {
                self.on_closed(turn);
                return Some(Output::Close(reason));
            }
            self.outputs.ticked = false;
            if self.link.should_open(turn.now.mono) {
                self.link.opening(turn.now.mono);
                self.subscription.opening();
                return Some(Output::Open);
            }
        }
        if !core::mem::replace(&mut self.outputs.collected, true) {
            self.outputs.frames = self.take_frames(turn).into();
        }
        let Outputs { frames, resolved, shadow, .. } = &mut self.outputs;
        let sent = frames.pop_front().map(Output::Send);
        let decided = || resolved.pop_front().map(|(request, outcome)| Output::Resolve { request, outcome });
        let shadows =
            || shadow.pop_front().map(|(request, rule, outcome)| Output::Shadow { request, rule, outcome });
        sent.or_else(decided).or_else(shadows)
    }

    /// Ends a run of [`Connection::next`]; the next one collects frames again.
    pub(super) fn end_run(&mut self) {
        self.outputs.collected = false;
    }

    /// Whether and why to cancel the stream.
    fn should_give_up(&self, local: &Local, now: MonoMs) -> Option<CloseReason> {
        self.link.should_give_up(local.outbox.owed_since(), now)
    }

    /// Notes that the stream ended, or could not be opened.
    pub(super) fn on_closed(&mut self, turn: &mut Turn<'_, impl Shared>) {
        let unacknowledged =
            self.should_give_up(turn.local, turn.now.mono) == Some(CloseReason::Unacknowledged);
        turn.local.stats.unacknowledged =
            turn.local.stats.unacknowledged.saturating_add(u64::from(unacknowledged));
        self.link.closed(turn.now.mono);
        turn.local.outbox.broken();
        self.subscription.closed();
        self.pace.closed();
        self.outputs.frames.clear();
        self.end_waits(turn);
    }

    /// Ends the stream, as this worker is idle.
    pub(super) fn leave(&mut self, turn: &mut Turn<'_, impl Shared>) {
        self.on_closed(turn);
        self.link.left();
        (self.outputs.closes, self.outputs.ticked) = (Some(CloseReason::Idle), false);
    }

    /// Notes that the stream ended without a failure, and that another one is opened at once.
    pub(super) fn on_moved(&mut self, turn: &mut Turn<'_, impl Shared>) {
        self.on_closed(turn);
        self.link.moved();
    }

    /// Ends all waits for the aggregator. First those for exact responses, as their requests may have to wait for queries then.
    fn end_waits(&mut self, turn: &mut Turn<'_, impl Shared>) {
        self.break_exact(turn);
        self.break_waiting(turn);
    }

    /// Enters the registry if this worker is new, idle, or was inactive for so long that others may take it for dead. Otherwise its counts
    /// could leave the table before they are reported. Returns the time.
    pub(super) fn enter(&mut self, local: &mut Local, shared: &mut impl Shared, mono: MonoMs) -> Now {
        let wakes = self.pace.wake();
        if wakes {
            self.link.ping_at_once();
        }
        if wakes || self.synced.is_none_or(|synced| mono.since(synced) > registry::DEAD_MS / 2) {
            let now = self.moment(mono);
            self.sync_registry(&mut Turn { local, shared, now });
        }
        self.moment(mono)
    }

    /// Ends the worker: it sends what is left, and leaves the registry.
    pub(super) fn shutdown(&mut self, turn: &mut Turn<'_, impl Shared>) {
        self.end_waits(turn);
        turn.local.shutdown(turn.shared, self.nodes(turn.now.mono), turn.now);
        self.outputs.frames = self.last_frames(turn).into();
        (self.outputs.collected, self.outputs.ticked) = (true, false);
        self.sign_off(turn);
    }

    /// Leaves the registry, so that other workers do not have to detect this one's end.
    fn sign_off(&mut self, turn: &mut Turn<'_, impl Shared>) {
        turn.local.stats.gauges.add(&WorkerRegistry::sign_off(turn.shared, self.worker, turn.now.mono));
    }

    /// Ends the stream and leaves the registry until this worker enters it again.
    pub(super) fn rest(&mut self, turn: &mut Turn<'_, impl Shared>) {
        self.leave(turn);
        self.sign_off(turn);
        // Another worker is the subscriber now.
        (self.registry.subscriber, self.synced) = (0, None);
    }

    fn sync_registry(&mut self, turn: &mut Turn<'_, impl Shared>) {
        let (recall, recalls_all) = turn.local.leases.take_recalls();
        let recovering = self.resync.recovers();
        let mut me = registry::Entry {
            worker: self.worker,
            acked_through: turn.local.outbox.acked_through(turn.now.mono).filter(|_| !recovering),
            serves: self.serves,
            connected: self.link.is_up(),
            echo: self.link.echo(),
            complete: self.subscription.is_complete(),
            last_seen: self.link.last_seen(),
            clock: self.link.clock(),
            machine_offset_ms: self.clock.machine_offset_ms(),
            nodes: self.link.nodes(turn.now.mono),
            gap: self.resync.gap(),
            resent: self.resync.resent(),
            recall,
            recalls_all,
            settled: self.link.has_settled(turn.now.mono),
            report_queue: turn.local.outbox.len() as u64,
            active: self.pace.active(turn.local.decided),
            is_idle: self.pace.is_idle() && turn.local.owes_nothing(),
        };
        let Some(registry) = WorkerRegistry::sync(turn.shared, &me, turn.now.mono) else {
            turn.local.leases.keep_recalls(me.recall, me.recalls_all);
            return;
        };
        turn.local.leases.keep_recalls(me.recall.split_off(registry.listed), false);
        self.synced = Some(turn.now.mono);
        turn.local.stats.gauges.add(&registry.gauge_changes);
        self.resync.registered();
        self.subscription.registered(me.connected);
        let before = core::mem::replace(&mut self.registry, registry);
        turn.local.table.safe_before = self.registry.safe_before(turn.now.mono);
        self.registered_nodes = self.registry.nodes(turn.now.mono);
        if let Some(count) = self.registry.settled_nodes(turn.now.mono) {
            self.link.suppose_nodes(count);
        }
        let recalled: Option<Vec<u64>> = self.registry.recalled_since(&before).map(Iterator::collect);
        let nodes = self.nodes(turn.now.mono);
        match recalled {
            Some(recalled) => {
                recalled
                    .into_iter()
                    .for_each(|key| turn.local.settle(turn.shared, key, false, nodes, turn.now));
            }
            None => turn.local.leases.recall_all(),
        }
    }
}
