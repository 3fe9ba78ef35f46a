//! The state of an aggregator: the region, which streams belong to which Envoy, and what else its parts share.
//!
//! Every part accesses the state for one short step at a time ([`Access`]). If a step makes work for another part, it
//! notifies an [`Event`]. A frame is processed in one step: some hundred microseconds for the largest.
//!
//! A report is acknowledged when the region's store has its counts. Counts are written to the store in *rounds*
//! (`replay`). The end of a round covers all that was merged before the round began, and releases each [`LateAck`] that
//! waits for it.

mod access;

use super::circuit_breaker::{DatabaseBreakers, StoreBreaker};
use super::events::{Event, Events};
use super::figures::{Figures, add};
use super::members::Members;
use super::streams::{Entered, StreamId, Streams};
use crate::model::breaker::Policy;
use crate::model::key::{HashKey, NodeId};
use crate::model::time::{MonoMs, Now};
use crate::model::wire::{Ack, Answer, FilterFrame, Pong, Push, Query, RegionFrame, Report, Snapshot};
use crate::region::{OtherRegion, Region, RegionLimits};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

pub use access::{Access, Alone};

/// How often to call [`RegionState::tick`], in milliseconds. While it returns true, call it again at once.
pub const TICK_MS: u64 = 1_000;
/// How long another region counts as alive after it was last seen to write to the database, in milliseconds.
const ALIVE_MS: u64 = 600_000;
/// Most cells of one round of replays while all counts are written again.
const RESENT_A_ROUND: usize = 65_536;

/// The write of all counts that follows a loss of the region's store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Rewriting {
    /// The store has them, or none was lost.
    #[default]
    Done,
    /// It has not begun.
    Waits,
    /// Some may be unwritten.
    Runs,
}

/// The aggregator already has as many nodes as its limit allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many nodes")]
pub struct TooManyNodes;

/// One round of replays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// Number of the round; the first is 1.
    pub number: u64,
    /// Cells that waited when the round began.
    pub waiting: usize,
}

/// The result of processing a frame.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FrameResult {
    /// What can be answered at once.
    pub reply: RegionFrame,
    /// The acknowledgement of the frame's report, if it has to wait for the store.
    pub ack: Option<LateAck>,
    /// Queries that the store has to answer.
    pub queries: Vec<Query>,
}

/// An acknowledgement that has to wait until a round has ended; then call [`RegionState::acknowledge`].
#[derive(Clone, Debug, PartialEq)]
pub struct LateAck {
    /// The round of replays that must have ended.
    pub after: u64,
    ack: Ack,
    /// Counts that were reported without a baseline: the position of each in the report, and what the region held of it. They
    /// are checked again when the round has ended.
    baselines: Vec<(u32, Snapshot)>,
}

/// The next action for a subscriber.
#[derive(Clone, Debug, PartialEq)]
pub enum Turn {
    /// Cells to send.
    Push(Push),
    /// Nothing is left to send.
    Idle,
    /// Another stream of the same Envoy has subscribed since, or this one has unsubscribed.
    Superseded,
}

/// The state of an aggregator; see the module.
#[derive(Debug)]
pub struct RegionState {
    /// All counts of the region.
    pub region: Region,
    /// Counters of what the aggregator has done.
    pub figures: Figures,
    /// The circuit breaker of the region's store, if there is a store.
    store: Option<StoreBreaker>,
    /// The circuit breakers of the database, if there is one.
    database: Option<DatabaseBreakers>,
    /// When each other region was last seen to write to the database.
    pub(super) others: BTreeMap<OtherRegion, MonoMs>,
    /// The aggregators that the region's store lists.
    pub(super) members: Members,
    /// Aggregators that write to the database for this region and are not of its store.
    pub(super) foreign_writers: usize,
    events: Events,
    streams: Streams,
    /// Number of rounds of replays that have begun.
    rounds: u64,
    /// Number of the last round that has ended.
    replayed: u64,
    /// Whether what the region's store has lost is written again. The heartbeat states it to peers while it is not.
    pub(super) rewriting: Rewriting,
    /// Losses of the region's store so far. Only the recovery grace period of the last one is in force.
    pub(super) losses: u64,
    /// What the region itself had published is being read from the database.
    pub(super) is_recovering: bool,
    /// When a loss of the region's counts was found, or the aggregator began to serve without them: from then on nodes send theirs again.
    pub(super) lost: Option<Now>,
    /// The number of losses of the database that were found when its own marker was read last; `None` while there is no marker. Only what is
    /// read of the database under a marker may count as published: a loss of it would show.
    pub(super) guard: Option<u64>,
    /// All that is due is to be published with the next packets: the aggregator ends.
    pub(super) publishes_all: bool,
    /// A subscription to the other aggregators' messages exists or existed. From then on a full read of the hot index
    /// misses nothing.
    pub(super) listens: bool,
}

impl RegionState {
    /// Lets what is due at any time be published at once, as the aggregator ends. It is once [`Figures::published_at`] is as
    /// late as this.
    pub fn publish_all(&mut self) {
        self.publishes_all = true;
        self.notify(Event::Publish);
    }

    /// An empty region without stores. `secret` must be random and unknown to clients.
    pub fn new(limits: RegionLimits, secret: HashKey) -> RegionState {
        RegionState {
            region: Region::new(limits, secret),
            figures: Figures::default(),
            store: None,
            database: None,
            others: BTreeMap::new(),
            members: Members::default(),
            foreign_writers: 0,
            events: Events::new(),
            streams: Streams::default(),
            rounds: 0,
            replayed: 0,
            rewriting: Rewriting::Done,
            losses: 0,
            is_recovering: false,
            lost: None,
            publishes_all: false,
            guard: None,
            listens: false,
        }
    }

    /// Adds a store that the region's aggregators share.
    #[must_use]
    pub fn with_store(mut self, policy: Policy) -> RegionState {
        self.region.attach_store();
        self.store = Some(StoreBreaker::new(policy));
        self
    }

    /// Adds a database that regions share. Imports may come from a replica of it.
    #[must_use]
    pub fn with_database(mut self, policy: Policy, has_replica: bool) -> RegionState {
        self.database = Some(DatabaseBreakers::new(policy, has_replica));
        self.region.set_regions(1);
        self
    }

    /// The circuit breaker of the region's store.
    pub fn store(&mut self) -> Option<&mut StoreBreaker> {
        self.store.as_mut()
    }

    /// Whether not all that the region itself had published before a loss was read from the database.
    pub fn is_recovering(&self) -> bool {
        self.is_recovering
    }

    /// Whether the aggregator receives messages of other aggregators, or did so before.
    pub fn receives_broadcasts(&self) -> bool {
        self.listens
    }

    /// The circuit breakers of the database.
    pub fn database(&mut self) -> Option<&mut DatabaseBreakers> {
        self.database.as_mut()
    }

    /// The other regions that were seen to write to the database, and when that was last.
    pub fn others(&self) -> impl Iterator<Item = (OtherRegion, MonoMs)> {
        self.others.iter().map(|(region, seen)| (*region, *seen))
    }

    /// Number of aggregators that write to the database for this region and are not of its store ([`super::global::split`]).
    pub fn foreign_writers(&self) -> usize {
        self.foreign_writers
    }

    /// The aggregators of this region, if it has a store that lists them.
    pub(super) fn members(&self) -> Option<&Members> {
        self.store.is_some().then_some(&self.members)
    }

    /// Number of other regions that have written to the database lately.
    pub(super) fn others_alive(&self, now: MonoMs) -> u64 {
        self.others.values().filter(|seen| now.since(**seen) < ALIVE_MS).count() as u64
    }

    /// Whether there is a store and it may be queried.
    pub fn is_usable(&self, now: MonoMs) -> bool {
        self.store.as_ref().is_some_and(|breaker| breaker.is_usable(now))
    }

    /// What was recovered is in components, as far as that is possible.
    pub(super) fn end_restoring(&mut self) {
        if self.region.set_restoring(false) {
            self.notify(Event::Push);
        }
    }

    /// Limits of live control were applied to keys.
    pub(super) fn limits_applied(&mut self) {
        self.notify(Event::Push);
        if self.store.is_some() {
            self.notify(Event::Replay);
        }
    }

    /// Notifies an event.
    pub fn notify(&mut self, event: Event) {
        self.events.notify(event);
    }

    /// Takes the events that were notified. The caller wakes the tasks that wait for them.
    pub fn take_events(&mut self) -> Events {
        if self.region.take_urgent() {
            self.notify(Event::Publish);
        }
        core::mem::take(&mut self.events)
    }

    /// Registers a stream of `node`. To remove it, call [`RegionState::leave`].
    pub fn enter(&mut self, node: NodeId, now: Now) -> Result<Entered, TooManyNodes> {
        if !self.region.nodes.received_from(node, now.mono) {
            return Err(TooManyNodes);
        }
        Ok(self.streams.enter(node))
    }

    /// Records that `node` has reported counts over a stream from `peer`. From now on it counts as a node.
    pub fn count_node(&mut self, node: NodeId, peer: u64) {
        if self.region.nodes.count(node, peer) {
            self.notify(Event::Heartbeat);
        }
    }

    /// Removes a stream. Returns true if it was the last one of its Envoy, which then no longer counts as alive.
    pub fn leave(&mut self, node: NodeId, id: StreamId) -> bool {
        self.unsubscribe(node, id);
        let is_last = self.streams.leave(node);
        if is_last {
            self.region.gone(node);
            self.notify(Event::Heartbeat);
        }
        is_last
    }

    /// Makes this stream its Envoy's subscriber. Returns the stream that it replaces.
    pub fn subscribe(&mut self, node: NodeId, id: StreamId) -> Option<StreamId> {
        self.region.subscribe(node);
        self.streams.subscribe(node, id)
    }

    /// Ends this stream's subscription. Returns false if it was no longer the current subscriber.
    pub fn unsubscribe(&mut self, node: NodeId, id: StreamId) -> bool {
        let subscribed = self.streams.unsubscribe(node, id);
        if subscribed {
            self.region.unsubscribe(node);
        }
        subscribed
    }

    /// The subscribers' streams for which cells wait to be sent.
    pub fn to_be_sent(&self) -> impl Iterator<Item = StreamId> + '_ {
        let subscribers = self.streams.subscribers();
        subscribers.filter(|(node, _)| self.region.has_push(*node)).map(|(_, id)| id)
    }

    /// The next push for a subscriber.
    pub fn next_push(&mut self, node: NodeId, id: StreamId, now: Now) -> Turn {
        if !self.streams.subscribes(node, id) {
            return Turn::Superseded;
        }
        self.region.next_push(node, now.unix).map_or(Turn::Idle, Turn::Push)
    }

    /// Processes a frame, except for its hello and what concerns exact limits.
    pub fn take(&mut self, node: NodeId, frame: FilterFrame, now: Now) -> Result<FrameResult, TooManyNodes> {
        if !self.region.nodes.received_from(node, now.mono) {
            return Err(TooManyNodes);
        }
        let mut result = FrameResult::default();
        let merged = frame.report.as_ref().map(|report| self.merge(node, report, now));
        result.reply.pong = frame.ping.as_ref().map(|ping| Pong {
            sent_ms: ping.sent_ms,
            unix_ms: now.unix.0,
            live_nodes: u32::try_from(self.region.nodes.alive_with(node, now.mono)).unwrap_or(u32::MAX),
        });
        if self.is_usable(now.mono) {
            result.queries = frame.queries;
        } else {
            result.reply.answers = self.answer_from_memory(node, &frame.queries, now);
        }
        match merged {
            Some(late) if self.store.is_some() => result.ack = Some(late),
            Some(LateAck { ack, baselines, .. }) => {
                let baselines = baselines.into_iter().map(|(_, baseline)| baseline).collect();
                result.reply.ack = Some(Ack { baselines, ..ack });
            }
            None => {}
        }
        Ok(result)
    }

    /// Answers queries from memory.
    pub fn answer_from_memory(&mut self, node: NodeId, queries: &[Query], now: Now) -> Vec<Answer> {
        if queries.is_empty() {
            return Vec::new();
        }
        self.notify(Event::Push);
        queries.iter().map(|query| self.answer(node, query, now)).collect()
    }

    /// The acknowledgement of a report after the end of the round that it waited for.
    pub fn acknowledge(&self, node: NodeId, late: LateAck) -> Ack {
        let mut ack = late.ack;
        for (place, snapshot) in late.baselines {
            match self.region.baseline(node, &snapshot) {
                Some(baseline) => ack.baselines.push(baseline),
                None => ack.refused.push(place),
            }
        }
        ack
    }

    /// Begins a round of replays.
    pub fn begin_replay(&mut self) -> Round {
        self.rounds = self.rounds.saturating_add(1);
        let waiting = self.region.pending_merges();
        // While all counts are written again, cells are queued as the resync finds them.
        let waiting = if self.region.has_merges() { waiting.max(RESENT_A_ROUND) } else { waiting };
        Round { number: self.rounds, waiting }
    }

    /// Ends a round: what was merged before it is in the store, or only in memory while the store is unavailable.
    pub fn end_replay(&mut self, round: Round) {
        self.replayed = self.replayed.max(round.number);
    }

    /// Number of the last round of replays that has ended.
    pub fn replayed(&self) -> u64 {
        self.replayed
    }

    /// Number of the next round of replays to begin. Its end covers all that has been merged by now.
    pub fn next_round(&self) -> u64 {
        self.rounds.saturating_add(1)
    }

    /// Evicts a part of the ended cells. Returns true if there are more; let other tasks run before the next call.
    pub fn tick(&mut self, now: Now) -> bool {
        self.region.tick(now.unix)
    }

    /// Counts an answer.
    pub(super) fn judged(&mut self, answer: Answer) -> Answer {
        add(if answer.granted { &mut self.figures.granted } else { &mut self.figures.denied }, 1);
        answer
    }

    /// Every query is answered. One that the region cannot judge is answered without a snapshot: nothing contradicts
    /// the request, and the filter decides from its own counts without waiting for its timeout.
    pub(super) fn unjudged(&mut self, query: &Query) -> Answer {
        add(&mut self.figures.unjudged, 1);
        Answer { id: query.id, ..Answer::default() }
    }

    pub(super) fn answer(&mut self, node: NodeId, query: &Query, now: Now) -> Answer {
        match self.region.query(node, query, now.unix) {
            Ok(answer) => self.judged(answer),
            Err(_) => self.unjudged(query),
        }
    }

    fn merge(&mut self, node: NodeId, report: &Report, now: Now) -> LateAck {
        let reported = self.region.report(node, &report.counts, now.unix);
        for (_, reason) in &reported.refused {
            self.figures.counts_refused.add(*reason);
        }
        add(&mut self.figures.reports, 1);
        let merged = report.counts.len().saturating_sub(reported.refused.len());
        add(&mut self.figures.counts_merged, merged);
        self.notify(Event::Push);
        if self.store.is_some() {
            self.notify(Event::Replay);
        }
        let refused = reported.refused.iter().map(|(place, _)| *place).collect();
        let ack = Ack { report_id: report.id, baselines: Vec::new(), refused };
        LateAck { after: self.next_round(), ack, baselines: reported.baselines }
    }
}

#[cfg(test)]
mod tests;
