//! The frames of a stream: what is sent now, and what follows from one that was received.

use super::{Connection, REGISTRY_MS};
use crate::limiter::FLUSH_ROWS;
use crate::limiter::local::Local;
use crate::limiter::local::transact::Make;
use crate::model::shared::Shared;
use crate::model::time::{MonoMs, Now};
use crate::model::wire::{self, FilterFrame};
use alloc::vec::Vec;

impl Connection {
    /// The frames to send now, in order. Empty unless a stream is open.
    pub(super) fn take_frames(
        &mut self,
        local: &mut Local,
        shared: &mut impl Shared,
        now: Now,
    ) -> Vec<FilterFrame> {
        let mut frames = Vec::new();
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
        let queries = self.send_queries(local, shared, now);
        for some in queries.chunks(wire::MAX_FRAME_CELLS) {
            frames.push(FilterFrame { queries: some.to_vec(), ..Default::default() });
        }
        self.exact.requests.take_frames(self.link.echo(), now.mono, &mut frames);
        if local.outbox.len() >= FLUSH_ROWS || now.mono.since(self.flushed) >= REGISTRY_MS {
            self.flushed = now.mono;
            push_reports(local, false, now.mono, &mut frames);
        }
        if let Some(ping) = self.link.next_ping(now.mono) {
            frames.push(FilterFrame { ping: Some(ping), ..Default::default() });
        }
        frames
    }

    /// The last frames: exact requests, refunds and all reports.
    pub(super) fn last_frames(&mut self, local: &mut Local, now: MonoMs) -> Vec<FilterFrame> {
        let mut frames = Vec::new();
        if self.link.is_up() {
            self.exact.requests.take_frames(self.link.echo(), now, &mut frames);
            push_reports(local, true, now, &mut frames);
        }
        frames
    }

    /// Applies a frame of the aggregator.
    pub(in crate::limiter) fn on_frame(
        &mut self,
        local: &mut Local,
        shared: &mut impl Shared,
        frame: &wire::RegionFrame,
        now: Now,
    ) {
        if let Some(welcome) = &frame.welcome {
            self.on_welcome(welcome, now);
        }
        if let Some(pong) = &frame.pong {
            self.link.on_pong(pong, now.mono);
        }
        for answer in &frame.answers {
            self.on_answer(local, shared, answer, now);
        }
        for response in &frame.results {
            self.on_exact_response(local, shared, response, now);
        }
        if let Some(ack) = &frame.ack
            && local.on_ack(shared, ack, now)
        {
            self.resync.plan_offer(now.mono);
        }
        if let Some(push) = &frame.push {
            local.merge_snapshots(shared, &push.snapshots, Make::WhereFree, now);
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
        }
    }
}

fn push_reports(local: &mut Local, last: bool, now: MonoMs, frames: &mut Vec<FilterFrame>) {
    let mut reports = Vec::new();
    local.outbox.take(last, now, &mut reports);
    let framed = |report| FilterFrame { report: Some(report), ..Default::default() };
    frames.extend(reports.into_iter().map(framed));
}
