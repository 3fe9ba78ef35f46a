//! The plugin's stream to the aggregator: opens and closes it, passes received frames to the limiter and to live control, and sends
//! theirs.

use super::Plugin;
use super::verdict::Effect;
use crate::host::calls;
use crate::host::log_throttle::quoted;
use crate::host::shared::EnvoyShared;
use prost::Message;
use weir_core::limiter::GiveUp;
use weir_core::model::time::MonoMs;
use weir_core::model::wire::{FilterFrame, RegionFrame};

impl Plugin {
    /// Handles a message on stream `token`.
    pub fn on_message(&mut self, token: u32) -> Vec<(u32, Effect)> {
        if !self.stream.is(token) {
            return Vec::new();
        }
        let mono = calls::mono_now();
        match calls::grpc_message(|bytes| RegionFrame::decode(bytes)) {
            Ok(frame) => self.take(&frame, mono),
            Err(error) => {
                self.stream.log_failure(&format!("its message is malformed: {error}"), mono);
                self.break_stream(mono);
            }
        }
        self.go_on(mono)
    }

    /// Handles the end of stream `token`.
    pub fn on_stream_closed(&mut self, token: u32, status: u32) -> Vec<(u32, Effect)> {
        if !self.stream.is(token) {
            return Vec::new();
        }
        let mono = calls::mono_now();
        self.stream.log_failure(&format!("it ended with gRPC status {status}"), mono);
        self.break_stream(mono);
        self.go_on(mono)
    }

    fn take(&mut self, frame: &RegionFrame, mono: MonoMs) {
        if let Some(error) = &frame.error {
            let what = format!("the aggregator refuses it: {}", quoted(&error.reason));
            self.stream.log_failure(&what, mono);
        }
        if frame.welcome.is_some() {
            self.stream.welcomed();
            self.statistics.begin();
            self.bans.propose_anew();
        }
        self.limiter.on_frame(&mut EnvoyShared, frame, mono);
        if let Some(controls) = &frame.controls {
            self.keeper.on_frame(&mut EnvoyShared, controls);
            self.switch_shadows(self.limiter.moment(mono).unix);
        }
    }

    /// Closes a stream that the limiter gave up, and opens one if there is none.
    pub(super) fn check_stream(&mut self, mono: MonoMs) {
        if let Some(why) = self.limiter.should_give_up(mono) {
            let what = match why {
                GiveUp::Unanswered => "the aggregator does not answer",
                GiveUp::Unacknowledged => "the aggregator acknowledges nothing; another one may",
            };
            self.stream.log_failure(what, mono);
            self.break_stream(mono);
        }
        if self.limiter.should_open(mono) {
            self.limiter.on_opening(mono);
            if let Err(refused) = self.stream.open() {
                let what =
                    format!("Envoy cannot open it (status {}), as where it has no such cluster", refused.0);
                self.stream.log_failure(&what, mono);
                self.break_stream(mono);
            }
        }
    }

    /// Sends all frames that are ready.
    pub(super) fn send(&mut self, mono: MonoMs) {
        let mut frames = self.limiter.take_frames(&mut EnvoyShared, mono);
        if let Some(known) = self.keeper.to_send(self.limiter.is_subscribed()) {
            frames.push(FilterFrame { controls_known: Some(known), ..Default::default() });
        }
        if self.limiter.is_subscribed() {
            frames.extend(self.bans.take_frames(&self.keeper, self.limiter.moment(mono)));
        }
        for frame in frames {
            if !self.stream.send(&frame) {
                self.break_stream(mono);
                return;
            }
        }
    }

    /// Sends counts of decisions. A failure is ignored here, as frames of the limiter find a broken stream.
    pub(super) fn send_counters(&mut self, mono: MonoMs) {
        if self.stream.is_welcome()
            && let Some(frame) = self.statistics.frame(&self.config, mono)
        {
            self.stream.send(&frame);
        }
    }

    fn break_stream(&mut self, mono: MonoMs) {
        self.stream.close();
        self.limiter.on_closed(&mut EnvoyShared, mono);
    }
}
