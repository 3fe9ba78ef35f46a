//! The state of an aggregator: the region, which streams belong to which Envoy, and what else its parts know together.
//!
//! Whatever goes on in an aggregator comes here for one short step at a time ([`Access`]). What a step makes
//! for others to do notifications a [`Event`]. A frame is taken in one step: some hundred microseconds for the largest.
//!
//! A report is acknowledged when the region's store has what it says. The store is told in *rounds* (`replay`): all that was
//! merged before one began is dealt with when it is over, and so is a [`LateAck`] that waits for it.
//!
//! Leaves to others: counting (`region`), frames and connections, and waking who waits (`aggregator`).

mod access;

use super::circuit_breaker::{DatabaseBreakers, StoreBreaker};
use super::events::{Event, Events};
use super::figures::{Figures, add};
use super::streams::{Entered, StreamId, Streams};
use crate::model::breaker::Policy;
use crate::model::key::OriginId;
use crate::model::time::{MonoMs, Now};
use crate::model::wire::{Ack, Answer, Consult, FilterFrame, Pong, Push, RegionFrame, Report, Snapshot};
use crate::region::{Region, RegionLimits};
use alloc::vec::Vec;

pub use access::{Access, Alone};

/// How often [`RegionState::tick`] is to be called, in milliseconds, and again at once while it says so.
pub const TICK_MS: u64 = 1_000;
/// Most cells of one round of replays while everything is told again.
const RETOLD_A_ROUND: usize = 65_536;

/// There are as many Envoys already as there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many origins")]
pub struct TooManyOrigins;

/// One round of replays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// Counts rounds from 1.
    pub number: u64,
    /// Cells that waited as it began.
    pub waiting: usize,
}

/// What became of a frame.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Taken {
    /// What can be said at once.
    pub reply: RegionFrame,
    /// The acknowledgement of its report, where that has to wait for the store.
    pub ack: Option<LateAck>,
    /// Questions for the store.
    pub queries: Vec<Consult>,
}

/// An acknowledgement that has to wait until a round is over; then see [`RegionState::acknowledge`].
#[derive(Clone, Debug, PartialEq)]
pub struct LateAck {
    /// The round of replays that must be over.
    pub after: u64,
    ack: Ack,
    /// Counts that came without a base: their places, and what was known of them. To be looked at again then.
    baselines: Vec<(u32, Snapshot)>,
}

/// What a subscriber's turn brought.
#[derive(Clone, Debug, PartialEq)]
pub enum Turn {
    /// Cells to send.
    Push(Push),
    /// All is told.
    Idle,
    /// Another stream of the same Envoy subscribed since, or this one ceased to.
    Superseded,
}

/// See the module.
#[derive(Debug)]
pub struct RegionState {
    /// What is counted.
    pub region: Region,
    /// What happened so far.
    pub figures: Figures,
    /// Before the region's store, if there is one.
    store: Option<StoreBreaker>,
    /// Before the database, if there is one.
    database: Option<DatabaseBreakers>,
    events: Events,
    streams: Streams,
    /// Rounds of replays that have begun.
    rounds: u64,
    /// The last one that is over.
    replayed: u64,
    /// Losses of the region's store so far; the last one's recovery grace period is the one that counts.
    pub(super) losses: u64,
    /// Messages of other aggregators are heard, or were: from then on a full read of the hot index misses nothing.
    pub(super) listens: bool,
}

impl RegionState {
    /// An empty region without stores; `secret` is random and unknown to clients.
    pub fn new(limits: RegionLimits, secret: (u64, u64)) -> RegionState {
        RegionState {
            region: Region::new(limits, secret),
            figures: Figures::default(),
            store: None,
            database: None,
            events: Events::new(),
            streams: Streams::default(),
            rounds: 0,
            replayed: 0,
            losses: 0,
            listens: false,
        }
    }

    /// With a store that the region's aggregators share.
    #[must_use]
    pub fn with_store(mut self, policy: Policy) -> RegionState {
        self.region.back();
        self.store = Some(StoreBreaker::new(policy));
        self
    }

    /// With a database that regions share; imports may come from a replica of it.
    #[must_use]
    pub fn with_database(mut self, policy: Policy, has_replica: bool) -> RegionState {
        self.database = Some(DatabaseBreakers::new(policy, has_replica));
        self
    }

    /// What stands before the region's store.
    pub fn store(&mut self) -> Option<&mut StoreBreaker> {
        self.store.as_mut()
    }

    /// Whether messages of other aggregators are heard, or were.
    pub fn receives_broadcasts(&self) -> bool {
        self.listens
    }

    /// What stands before the database.
    pub fn database(&mut self) -> Option<&mut DatabaseBreakers> {
        self.database.as_mut()
    }

    /// Whether there is a store, and it is asked.
    pub fn is_usable(&self, now: MonoMs) -> bool {
        self.store.as_ref().is_some_and(|breaker| breaker.is_usable(now))
    }

    /// Rings a event.
    pub fn notify(&mut self, event: Event) {
        self.events.notify(event);
    }

    /// Takes the events that were notified: whoever waits for one is to be woken.
    pub fn take_events(&mut self) -> Events {
        core::mem::take(&mut self.events)
    }

    /// Admits a stream of `origin`; leave it with [`RegionState::leave`].
    pub fn enter(&mut self, origin: OriginId, now: Now) -> Result<Entered, TooManyOrigins> {
        if !self.region.heard(origin, now.mono) {
            return Err(TooManyOrigins);
        }
        Ok(self.streams.enter(origin))
    }

    /// Notes that `origin`, whose streams come from `peer`, has reported something: from now on it counts as a node.
    pub fn count_node(&mut self, origin: OriginId, peer: u64) {
        if self.region.count_node(origin, peer) {
            self.notify(Event::Heartbeat);
        }
    }

    /// Ends a stream. True with the last one of its Envoy, which no longer counts as alive.
    pub fn leave(&mut self, origin: OriginId, id: StreamId) -> bool {
        self.unsubscribe(origin, id);
        let is_last = self.streams.leave(origin);
        if is_last {
            self.region.gone(origin);
            self.notify(Event::Heartbeat);
        }
        is_last
    }

    /// Makes this stream its Envoy's subscriber, in place of the one that is returned.
    pub fn subscribe(&mut self, origin: OriginId, id: StreamId) -> Option<StreamId> {
        self.region.subscribe(origin);
        self.streams.subscribe(origin, id)
    }

    /// Ends this stream's subscription. False if it was no longer the one that counts.
    pub fn unsubscribe(&mut self, origin: OriginId, id: StreamId) -> bool {
        let subscribed = self.streams.unsubscribe(origin, id);
        if subscribed {
            self.region.unsubscribe(origin);
        }
        subscribed
    }

    /// The streams that have something to be told.
    pub fn to_be_sent(&self) -> impl Iterator<Item = StreamId> + '_ {
        let subscribers = self.streams.subscribers();
        subscribers.filter(|(origin, _)| self.region.has_push(*origin)).map(|(_, id)| id)
    }

    /// The next push for a subscriber.
    pub fn next_push(&mut self, origin: OriginId, id: StreamId, now: Now) -> Turn {
        if !self.streams.subscribes(origin, id) {
            return Turn::Superseded;
        }
        self.region.next_push(origin, now.unix).map_or(Turn::Idle, Turn::Push)
    }

    /// Takes all of a frame but its hello, and what concerns limits that are held exactly.
    pub fn take(&mut self, origin: OriginId, frame: FilterFrame, now: Now) -> Result<Taken, TooManyOrigins> {
        if !self.region.heard(origin, now.mono) {
            return Err(TooManyOrigins);
        }
        let mut taken = Taken::default();
        let merged = frame.report.as_ref().map(|report| self.merge(origin, report, now));
        taken.reply.pong = frame.ping.as_ref().map(|ping| Pong {
            sent_ms: ping.sent_ms,
            unix_ms: now.unix.0,
            live_origins: u32::try_from(self.region.live_origins_with(origin, now.mono)).unwrap_or(u32::MAX),
        });
        if self.is_usable(now.mono) {
            taken.queries = frame.consults;
        } else {
            taken.reply.answers = self.answer_from_memory(origin, &frame.consults, now);
        }
        match merged {
            Some(late) if self.store.is_some() => taken.ack = Some(late),
            Some(LateAck { ack, baselines, .. }) => {
                let baselines = baselines.into_iter().map(|(_, baseline)| baseline).collect();
                taken.reply.ack = Some(Ack { baselines, ..ack });
            }
            None => {}
        }
        Ok(taken)
    }

    /// Answers from memory.
    pub fn answer_from_memory(&mut self, origin: OriginId, consults: &[Consult], now: Now) -> Vec<Answer> {
        if consults.is_empty() {
            return Vec::new();
        }
        self.notify(Event::Push);
        consults.iter().map(|consult| self.answer(origin, consult, now)).collect()
    }

    /// The acknowledgement, now that the round that it waited for is over.
    pub fn acknowledge(&self, origin: OriginId, late: LateAck) -> Ack {
        let mut ack = late.ack;
        for (place, asked) in late.baselines {
            match self.region.baseline(origin, &asked) {
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
        // While all is told again, cells are queued as the walk finds them.
        let waiting = if self.region.has_merges() { waiting.max(RETOLD_A_ROUND) } else { waiting };
        Round { number: self.rounds, waiting }
    }

    /// Ends it: what was merged before it is in the store, or as safe as it can be while the store is away.
    pub fn end_replay(&mut self, round: Round) {
        self.replayed = self.replayed.max(round.number);
    }

    /// The last round of replays that is over.
    pub fn replayed(&self) -> u64 {
        self.replayed
    }

    /// The next round of replays to begin: with it, all that was merged by now is dealt with.
    pub fn next_round(&self) -> u64 {
        self.rounds.saturating_add(1)
    }

    /// Forgets some of what is over; true if there is more. Let others have their turn before the next call.
    pub fn tick(&mut self, now: Now) -> bool {
        self.region.tick(now.unix)
    }

    /// Counts an answer.
    pub(super) fn judged(&mut self, answer: Answer) -> Answer {
        add(if answer.granted { &mut self.figures.granted } else { &mut self.figures.denied }, 1);
        answer
    }

    /// Every consult is answered. One that the region cannot judge is answered without a view: nothing speaks against
    /// the request, and the filter need not wait for its timeout to decide on what it knows itself.
    pub(super) fn unjudged(&mut self, consult: &Consult) -> Answer {
        add(&mut self.figures.unjudged, 1);
        Answer { id: consult.id, ..Answer::default() }
    }

    pub(super) fn answer(&mut self, origin: OriginId, consult: &Consult, now: Now) -> Answer {
        match self.region.consult(origin, consult, now.unix) {
            Ok(answer) => self.judged(answer),
            Err(_) => self.unjudged(consult),
        }
    }

    fn merge(&mut self, origin: OriginId, report: &Report, now: Now) -> LateAck {
        let reported = self.region.report(origin, &report.counts, now.unix);
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
