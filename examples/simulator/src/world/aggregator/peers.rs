//! The streams of workers: their frames, and the replies, acknowledgements and pushes to them.

use super::Peer;
use crate::world::World;
use crate::world::event::{Carried, Due, End, Event};
use crate::world::network::StreamId;
use crate::world::request::{Caller, Reply, Request, Store};
use std::collections::BTreeMap;
use weir_core::model::key::NodeId;
use weir_core::model::wire::{Answer, FilterFrame, PROTOCOL_VERSION, Query, RegionFrame, Welcome};
use weir_core::replication::Event as RegionEvent;
use weir_core::replication::push::{COALESCE_MS, Pusher, Step};
use weir_core::replication::regional::queries::Queries;
use weir_core::replication::state::Alone;

/// Most frames of a stream whose queries wait for the store. Queries of further frames are decided from memory.
const OPEN_QUERIES_MAX: usize = 32;

impl World<'_> {
    pub(super) fn receive_frame(&mut self, at: usize, id: StreamId, mut frame: FilterFrame) {
        let now_us = self.now_us;
        let host = &mut self.aggregators[at];
        let now = host.now(now_us);
        let Some(process) = host.process.as_mut() else { return };
        let mut welcome = None;
        if !process.peers.contains_key(&id) {
            let hello = frame.hello.as_ref();
            let named = hello.and_then(|hello| Some((NodeId::parse(&hello.node)?, hello.worker)));
            let Some((node, worker)) = named else {
                return self.closed(id, End::Aggregator);
            };
            let Ok(entered) = process.state.enter(node, now) else {
                return self.closed(id, End::Aggregator);
            };
            // A filter counts as a node once it has reported its rules' counters, which it does after the welcome.
            // The simulated one reports none, so it is counted here.
            process.state.count_node(node, u64::from_le_bytes(core::array::from_fn(|at| node.0[at])));
            let peer = Peer {
                node,
                worker,
                id: entered.id,
                pusher: None,
                queries: 0,
                last_frame_us: now_us,
                open_queries: BTreeMap::new(),
            };
            process.peers.insert(id, peer);
            welcome = Some(Welcome { version: PROTOCOL_VERSION, region: "simulated".to_owned() });
        }
        if welcome.is_some() {
            self.reply(id, RegionFrame { welcome, ..RegionFrame::default() });
        }
        let subscribes = frame.hello.take().map(|hello| hello.subscriber);
        if let Some(subscribes) = subscribes {
            self.set_subscription(at, id, subscribes);
        }
        let host = &mut self.aggregators[at];
        let Some(process) = host.process.as_mut() else { return };
        let Some(peer) = process.peers.get_mut(&id) else { return };
        peer.last_frame_us = now_us;
        let (node, worker) = (peer.node, peer.worker);
        let (exact, refunds) =
            (std::mem::take(&mut frame.exact_requests), std::mem::take(&mut frame.refunds));
        for query in frame.queries.iter().filter(|query| query.cost > 0) {
            peer.open_queries.insert(query.id, query.clone());
            self.check.proposed(node, query, now_us);
        }
        let Ok(taken) = process.state.take(node, frame, now) else {
            return self.closed(id, End::Aggregator);
        };
        if process.state.region.stats(now.mono).keys >= self.plan.topology.region_keys {
            self.check.crowded(host.region);
        }
        if let Some(late) = taken.ack {
            process.late.push_back((id, late));
        }
        if taken.reply != RegionFrame::default() {
            self.reply(id, taken.reply);
        }
        if !taken.queries.is_empty() {
            self.query(at, id, node, taken.queries);
        }
        exact.iter().for_each(|query| self.exact_requested(at, id, worker, query));
        refunds.iter().for_each(|refund| self.exact_refunded(at, worker, refund));
    }

    fn query(&mut self, at: usize, id: StreamId, node: NodeId, queries: Vec<Query>) {
        let host = &mut self.aggregators[at];
        let now = host.now(self.now_us);
        let region = host.region;
        let Some(process) = host.process.as_mut() else { return };
        let Some(peer) = process.peers.get_mut(&id) else { return };
        if peer.queries >= OPEN_QUERIES_MAX {
            let answers = process.state.answer_from_memory(node, &queries, now);
            return self.reply(id, RegionFrame { answers, ..RegionFrame::default() });
        }
        peer.queries += 1;
        let queries = Queries::propose(&mut Alone { state: &mut process.state, now }, node, queries);
        if queries.merges().is_empty() {
            return self.conclude_queries(at, queries, id, Reply::Merged(Vec::new()));
        }
        let (request, within_ms) = (Request::Merge(queries.merges().to_vec()), queries.patience_ms());
        let caller = Caller::Queries(Box::new(queries), id);
        self.call(at, Store::Redis(region), request, within_ms, caller);
    }

    pub(in crate::world) fn conclude_queries(
        &mut self,
        at: usize,
        queries: Queries,
        id: StreamId,
        reply: Reply,
    ) {
        let Reply::Merged(results) = reply else { return };
        let host = &mut self.aggregators[at];
        let now = host.now(self.now_us);
        let Some(process) = host.process.as_mut() else { return };
        if let Some(peer) = process.peers.get_mut(&id) {
            peer.queries -= 1;
        }
        let answers = queries.conclude(&mut Alone { state: &mut process.state, now }, &results);
        self.reply(id, RegionFrame { answers, ..RegionFrame::default() });
        self.notify(at);
    }

    /// Starts or ends pushes, as the worker states whether it is the subscriber of its process.
    fn set_subscription(&mut self, at: usize, id: StreamId, subscribes: bool) {
        let Some(process) = self.aggregators[at].process.as_mut() else { return };
        let Some(peer) = process.peers.get_mut(&id) else { return };
        if subscribes == peer.pusher.is_some() {
            return;
        }
        let mine = peer.id;
        match subscribes {
            true => {
                let superseded = process.state.subscribe(peer.node, peer.id);
                peer.pusher = Some(Pusher::new(peer.node, peer.id));
                // Ends the pusher of the superseded stream, so that the stream may subscribe again.
                let theirs =
                    process.peers.values_mut().find(|peer| Some(peer.id) == superseded && peer.id != mine);
                if let Some(peer) = theirs {
                    peer.pusher = None;
                }
                self.push(at, id);
            }
            false => {
                peer.pusher = None;
                process.state.unsubscribe(peer.node, peer.id);
            }
        }
    }

    pub(super) fn leave(&mut self, at: usize, id: StreamId) {
        if let Some(process) = self.aggregators[at].process.as_mut()
            && let Some(peer) = process.peers.remove(&id)
        {
            process.state.leave(peer.node, peer.id);
        }
        self.closed(id, End::Aggregator);
    }

    /// Sends a frame on a stream.
    pub(in crate::world) fn reply(&mut self, id: StreamId, frame: RegionFrame) {
        let stream = self.streams.get(id).map(|stream| stream.aggregator);
        let process = stream.and_then(|at| self.aggregators[at].process.as_mut());
        if let Some(peer) = process.and_then(|process| process.peers.get_mut(&id)) {
            for Answer { id, granted, .. } in &frame.answers {
                if let Some(query) = peer.open_queries.remove(id).filter(|_| *granted) {
                    self.check.granted(peer.node, &query, self.now_us);
                }
            }
        }
        self.counts.frames += 1;
        self.carry(id, Carried::Down(Some(Box::new(frame))));
    }

    /// Sends the acknowledgements that finished rounds of replays permit.
    pub(in crate::world) fn acknowledge(&mut self, at: usize) {
        loop {
            let Some(process) = self.aggregators[at].process.as_mut() else { return };
            let replayed = process.state.replayed();
            if process.late.front().is_none_or(|(_, late)| late.after > replayed) {
                return;
            }
            let Some((id, late)) = process.late.pop_front() else { return };
            let Some(peer) = process.peers.get(&id) else { continue };
            let ack = Some(process.state.acknowledge(peer.node, late));
            self.reply(id, RegionFrame { ack, ..RegionFrame::default() });
        }
    }

    /// Starts the pushes to subscribers with pending counts, and pauses.
    pub(in crate::world) fn watch_pushes(&mut self, at: usize) {
        let host = &mut self.aggregators[at];
        let incarnation = host.incarnation;
        let Some(process) = host.process.as_mut() else { return };
        if process.push_paused || process.notified.take(RegionEvent::Push.into()).is_none() {
            return;
        }
        process.push_paused = true;
        let subscribers: Vec<_> = process.state.to_be_sent().collect();
        let peers = process.peers.iter().filter(|(_, peer)| subscribers.contains(&peer.id));
        let ids: Vec<StreamId> = peers.map(|(id, _)| *id).collect();
        let pause_ends = self.now_us + COALESCE_MS * 1_000;
        self.queue.plan(pause_ends, Event::Aggregator(at, incarnation, Due::Pushed));
        ids.into_iter().for_each(|id| self.push(at, id));
    }

    pub(super) fn push(&mut self, at: usize, id: StreamId) {
        loop {
            let host = &mut self.aggregators[at];
            let (incarnation, now) = (host.incarnation, host.now(self.now_us));
            let Some(process) = host.process.as_mut() else { return };
            let Some(peer) = process.peers.get_mut(&id) else { return };
            let Some(pusher) = &mut peer.pusher else { return };
            match pusher.next(&mut Alone { state: &mut process.state, now }) {
                Step::Send(push) => {
                    self.reply(id, RegionFrame { push: Some(push), ..RegionFrame::default() })
                }
                Step::Sleep(ms) => {
                    let due = Event::Aggregator(at, incarnation, Due::Pusher(id));
                    return self.queue.plan(self.now_us + ms * 1_000, due);
                }
                Step::Wait => return,
                Step::Over => {
                    peer.pusher = None;
                    return;
                }
            }
        }
    }
}
