//! The network between processes and their region, and the region's side of the protocol.
//!
//! A worker's frames arrive in order, delayed by `latency`. A closed stream loses the frames in flight. A paused region
//! processes no frames until it resumes.

use super::super::*;
use super::harness::{Process, World};
use crate::model::key::NodeId;
use crate::model::time::MonoMs;
use std::vec;

/// A stream, as the region's side sees it.
pub(super) struct Stream {
    pub(super) process: usize,
    pub(super) worker: usize,
    pub(super) aggregator: usize,
    pub(super) node: NodeId,
    /// When the last frame arrives in each direction, so that frames stay in order.
    pub(super) up: u64,
    pub(super) down: u64,
}

pub(super) enum Frame {
    Up(wire::FilterFrame),
    Down(wire::RegionFrame),
}

impl World {
    /// Does what a call of a limiter leads to.
    pub(super) fn drive(&mut self, process: usize, worker: usize) {
        let now = MonoMs(self.now);
        loop {
            let Process { shared, workers, .. } = &mut self.processes[process];
            let Some(state) = workers[worker].as_mut() else { return };
            let Some(output) = state.limiter.next(shared, now) else {
                // A decision may need a tick sooner than planned.
                state.next_tick = state.next_tick.min(now.0 + state.limiter.next_tick_ms());
                return;
            };
            match output {
                Output::Close(_) => {
                    if let Some(stream) = state.stream.take() {
                        self.close(stream);
                    }
                }
                Output::Open => self.open(process, worker),
                Output::Send(frame) => {
                    if let Some(stream) = state.stream {
                        self.send(stream, frame);
                    }
                }
                Output::Resolve { request, outcome } => {
                    let first = self.resolved.insert(request, (now.0, outcome));
                    assert!(first.is_none(), "request {request} resolved twice");
                }
                Output::Shadow { rule, outcome, .. } => self.shadow.push((rule, outcome)),
                Output::Struck(violator) => state.struck.push(violator),
            }
        }
    }

    fn send(&mut self, stream: u64, frame: wire::FilterFrame) {
        assert!(prost::Message::encoded_len(&frame) <= wire::MAX_FRAME_BYTES);
        assert!(frame.exact_requests.len().max(frame.refunds.len()) <= wire::MAX_FRAME_CELLS);
        self.pings += u64::from(frame.ping.is_some());
        self.sent_queries.extend(frame.queries.iter().map(|query| (self.now, query.clone())));
        self.transmit(stream, Frame::Up(frame));
    }

    fn transmit(&mut self, stream: u64, frame: Frame) {
        let (least, most) = self.latency;
        let copies = if self.repeat_frames { 1 + self.random.below(2) } else { 1 };
        let delay = least + self.random.below(most - least + 1);
        let Some(state) = self.streams.get_mut(&stream) else { return };
        let last = if matches!(frame, Frame::Up(_)) { &mut state.up } else { &mut state.down };
        *last = (*last).max(self.now + delay);
        let at = *last;
        for _ in 0..copies {
            self.last_id += 1;
            let frame = match &frame {
                Frame::Up(frame) => Frame::Up(frame.clone()),
                Frame::Down(frame) => Frame::Down(frame.clone()),
            };
            self.network.insert((at, self.last_id), (stream, frame));
        }
    }

    pub(super) fn deliver(&mut self) {
        while let Some((stream, frame)) = self.delayed_frames.pop_front_if(|_| !self.paused) {
            self.region_receives(stream, frame);
        }
        while let Some(next) = self.network.first_entry().filter(|next| next.key().0 <= self.now) {
            let (stream, frame) = next.remove();
            match frame {
                Frame::Up(frame) if self.paused => self.delayed_frames.push_back((stream, frame)),
                Frame::Up(frame) => self.region_receives(stream, frame),
                Frame::Down(frame) => self.worker_receives(stream, &frame),
            }
        }
    }

    fn worker_receives(&mut self, stream: u64, frame: &wire::RegionFrame) {
        let now = MonoMs(self.now);
        let Some(&Stream { process, worker, .. }) = self.streams.get(&stream) else { return };
        let Process { shared, workers, .. } = &mut self.processes[process];
        let Some(state) = workers[worker].as_mut().filter(|state| state.stream == Some(stream)) else {
            return;
        };
        state.limiter.on_frame(shared, frame, now);
        self.drive(process, worker);
    }

    pub(super) fn region_receives(&mut self, stream: u64, frame: wire::FilterFrame) {
        let Some(state) = self.streams.get(&stream) else { return };
        let (node, at, worker) = (state.node, state.aggregator, (state.process, state.worker));
        let now = self.unix_of(at);
        assert!(self.regions[at].nodes.received_from(node, MonoMs(self.now)));
        // A filter reports its counters as soon as it is welcomed.
        self.regions[at].nodes.count(node, u64::from(node.0[0]));
        let mut answer = wire::RegionFrame::default();
        if let Some(hello) = frame.hello {
            assert_eq!((hello.node, hello.version), (node.0.to_vec(), wire::PROTOCOL_VERSION));
            if hello.subscriber {
                self.subscribers.insert((at, node), stream);
                self.regions[at].subscribe(node);
            } else {
                self.unsubscribe(at, node, stream);
                answer.welcome = Some(wire::Welcome { version: 1, region: "r".into() });
            }
        }
        if let Some(report) = frame.report {
            self.reported += report.counts.len();
            let with_snapshots = report.counts.iter().filter(|count| count.region_others > 0);
            self.snapshots.extend(with_snapshots.map(|count| (at, count.clone())));
            let reported = self.regions[at].report(node, &report.counts, now);
            let refused = reported.refused.iter().map(|(place, _)| *place).collect();
            let ack = wire::Ack {
                report_id: report.id,
                baselines: reported.baselines.into_iter().map(|(_, baseline)| baseline).collect(),
                refused,
            };
            match self.ack_ms[at] {
                Some(0) => answer.ack = Some(ack),
                Some(ms) => {
                    self.last_id += 1;
                    let late = wire::RegionFrame { ack: Some(ack), ..Default::default() };
                    self.network.insert((self.now + ms, self.last_id), (stream, Frame::Down(late)));
                }
                None => {}
            }
        }
        for query in &frame.exact_requests {
            let results = self.exact_store.respond(worker, query, self.now);
            let Some(ms) = self.exact_store.draw_delay_ms(&mut self.random) else { continue };
            self.last_id += 1;
            let response = wire::RegionFrame { results: vec![results], ..Default::default() };
            self.network.insert((self.now + ms, self.last_id), (stream, Frame::Down(response)));
        }
        for refund in &frame.refunds {
            self.exact_store.refund(worker, refund, self.now);
        }
        self.queries += frame.queries.len() as u64;
        let undecided = |query: &wire::Query| wire::Answer { id: query.id, ..Default::default() };
        let region = &mut self.regions[at];
        let answers = frame
            .queries
            .iter()
            .map(|query| region.query(node, query, now).unwrap_or_else(|_| undecided(query)));
        answer.answers = answers.collect();
        if let Some(ping) = frame.ping {
            let live_nodes = self.regions[at].nodes.alive(MonoMs(self.now)) as u32;
            answer.pong = Some(wire::Pong { sent_ms: ping.sent_ms, unix_ms: now.0, live_nodes });
        }
        if answer != wire::RegionFrame::default() {
            self.transmit(stream, Frame::Down(answer));
        }
        self.push_at.get_or_insert(self.now + 5);
    }

    pub(super) fn push(&mut self) {
        if self.push_at.is_none_or(|at| at > self.now) {
            return;
        }
        self.push_at = self.paused.then_some(self.now + 5);
        if self.paused {
            return;
        }
        for at in 0..self.regions.len() {
            let now = self.unix_of(at);
            self.regions[at].tick(now);
        }
        for ((at, node), stream) in self.subscribers.clone() {
            let now = self.unix_of(at);
            while let Some(push) = self.regions[at].next_push(node, now) {
                assert!(push.snapshots.len() <= wire::MAX_FRAME_CELLS);
                self.transmit(
                    stream,
                    Frame::Down(wire::RegionFrame { push: Some(push), ..Default::default() }),
                );
            }
        }
    }

    pub(super) fn close(&mut self, stream: u64) {
        let Some(Stream { node, aggregator: at, .. }) = self.streams.remove(&stream) else { return };
        self.unsubscribe(at, node, stream);
        if !self.streams.values().any(|other| (other.aggregator, other.node) == (at, node)) {
            self.regions[at].gone(node);
        }
    }

    fn unsubscribe(&mut self, at: usize, node: NodeId, stream: u64) {
        if self.subscribers.get(&(at, node)) == Some(&stream) {
            self.subscribers.remove(&(at, node));
            self.regions[at].unsubscribe(node);
        }
    }
}
