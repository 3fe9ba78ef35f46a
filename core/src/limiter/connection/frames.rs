//! The frames of a stream: what is sent now, and what follows from one that was received.

use super::{Connection, REGISTRY_MS};
use crate::limiter::FLUSH_ROWS;
use crate::limiter::local::Turn;
use crate::limiter::local::transact::Make;
use crate::model::shared::Shared;
use crate::model::time::Now;
use crate::model::wire::{self, FilterFrame};
use alloc::vec::Vec;

impl Connection {
    /// The frames to send now, in order. Empty unless a stream is open.
    pub(super) fn take_frames(&mut self, turn: &mut Turn<'_, impl Shared>) -> Vec<FilterFrame> {
        let mut frames = Vec::new();
        self.pace.sends();
        if self.link.is_closed() {
            return frames;
        }
        let wanted = self.is_subscriber() && self.link.is_up();
        if let Some(subscriber) = self.subscription.renew(wanted) {
            frames.push(FilterFrame { hello: Some(self.hello(subscriber)), ..Default::default() });
        }
        if !self.link.is_up() {
            return frames;
        }
        let queries = self.send_queries(turn);
        for some in queries.chunks(wire::MAX_FRAME_CELLS) {
            frames.push(FilterFrame { queries: some.to_vec(), ..Default::default() });
        }
        self.exact.requests.take_frames(self.link.echo(), turn.now.mono, &mut frames);
        if turn.local.outbox.len() >= FLUSH_ROWS || turn.now.mono.since(self.flushed) >= REGISTRY_MS {
            self.flushed = turn.now.mono;
            push_reports(turn, false, &mut frames);
        }
        if let Some(ping) = self.link.next_ping(self.pace.is_idle(), turn.now.mono) {
            frames.push(FilterFrame { ping: Some(ping), ..Default::default() });
        }
        frames
    }

    /// The last frames: exact requests, refunds and all reports.
    pub(super) fn last_frames(&mut self, turn: &mut Turn<'_, impl Shared>) -> Vec<FilterFrame> {
        let mut frames = Vec::new();
        if self.link.is_up() {
            self.exact.requests.take_frames(self.link.echo(), turn.now.mono, &mut frames);
            push_reports(turn, true, &mut frames);
        }
        frames
    }

    /// Applies a frame of the aggregator.
    pub(in crate::limiter) fn on_frame(
        &mut self,
        turn: &mut Turn<'_, impl Shared>,
        frame: &wire::RegionFrame,
    ) {
        if let Some(welcome) = &frame.welcome {
            self.on_welcome(welcome, turn.now);
        }
        if let Some(pong) = &frame.pong {
            self.link.on_pong(pong, turn.now.mono);
        }
        for answer in &frame.answers {
            self.on_answer(turn, answer);
        }
        for response in &frame.results {
            self.on_exact_response(turn, response);
        }
        if let Some(ack) = &frame.ack
            && turn.local.on_ack(turn.shared, ack, turn.now)
        {
            self.resync.plan_offer(turn.now.mono);
        }
        if let Some(push) = &frame.push {
            turn.local.merge_snapshots(turn.shared, &push.snapshots, Make::WhereFree, turn.now);
            self.subscription.on_push(push.complete);
        }
    }

    fn on_welcome(&mut self, welcome: &wire::Welcome, now: Now) {
        if welcome.version == wire::PROTOCOL_VERSION {
            self.link.on_welcome(now.mono);
            self.subscription.on_welcome();
            // The aggregator of this stream may have fewer counts than the process.
            self.resync.note_gap();
        }
    }

    fn hello(&self, subscriber: bool) -> wire::Hello {
        wire::Hello {
            version: wire::PROTOCOL_VERSION,
            node: self.node.0.to_vec(),
            worker: self.worker,
            subscriber,
            // The limiter knows none; the filter adds those of its configurations.
            workspaces: Vec::new(),
        }
    }
}

fn push_reports(turn: &mut Turn<'_, impl Shared>, last: bool, frames: &mut Vec<FilterFrame>) {
    let mut reports = Vec::new();
    turn.local.outbox.take(last, turn.now.mono, &mut reports);
    let framed = |report| FilterFrame { report: Some(report), ..Default::default() };
    frames.extend(reports.into_iter().map(framed));
}
