//! What a VM has once for all its configurations that name one aggregator: the limiter, live control, and the stream.
//!
//! Envoy runs one VM for each thread, and in it a root for each configuration: those of several listeners, and those that drain after a
//! reload has replaced them. A worker outlives them, so that a thread has one cache, one entry in the worker registry and one stream,
//! however often it is configured.
//!
//! For Envoy a stream belongs to the root that opened it, and ends with that root. So the newest root opens it. After that root was
//! replaced, the stream moves once no request waits.

use crate::counters::metrics::LimiterMetrics;
use crate::counters::reporter::CounterReporter;
use crate::faults;
use crate::host::calls;
use crate::host::kinds::Here;
use crate::host::log_throttle::quoted;
use crate::host::shared::EnvoyShared;
use crate::host::stream::Stream;
use prost::Message;
use weir_core::bans::proposals::Proposals;
use weir_core::control::Keeper;
use weir_core::limiter::table::{Geometry, Meta};
use weir_core::limiter::{CloseReason, Limiter, Setup};
use weir_core::model::key::{HashKey, NodeId};
use weir_core::model::time::{MonoMs, Now};
use weir_core::model::wire::{FilterFrame, RegionFrame};
use weir_core::rules::{Aggregator, Config};

/// The gRPC status if no aggregator was reached.
const UNAVAILABLE: u32 = 14;
/// Most sets of four keys in the worker cache: 32 768 keys, some 6 MB once all are used.
const LOCAL_SETS: usize = 8_192;
/// Time after which a stream moves to the newest root. Each move lets the process repeat all its counts, so that updates which follow each
/// other do not move it each time.
const MOVE_AFTER_MS: u64 = 60_000;

/// A VM's limiter, live control and stream, for one aggregator.
pub struct Worker {
    /// The aggregator that its configurations name.
    aggregator: Aggregator,
    /// Decides.
    pub limiter: Limiter,
    /// Live control.
    pub keeper: Keeper,
    /// Counts of decisions for the aggregator.
    pub reporter: CounterReporter,
    /// The error of the wall clock that a test has set.
    pub clock_shift_ms: i64,
    stream: Stream,
    /// Since when the stream's root is not the newest.
    outdated: Option<MonoMs>,
    proposals: Proposals,
    metrics: LimiterMetrics,
}

impl Worker {
    /// For a configuration. The table is the one that the process has, or the one that this worker proposes.
    pub fn new(config: &Config, now: Now) -> Worker {
        let setup = Setup {
            meta: Meta::establish(&mut EnvoyShared, proposal(config)),
            worker: u64::from_le_bytes(calls::random()),
            local_sets: LOCAL_SETS,
        };
        Worker {
            aggregator: Aggregator { trace: false, ..config.aggregator.clone() },
            limiter: Limiter::new(setup, now),
            keeper: Keeper::load(&mut EnvoyShared, now),
            reporter: CounterReporter::default(),
            clock_shift_ms: 0,
            stream: Stream::new(&config.aggregator),
            outdated: None,
            proposals: Proposals::default(),
            metrics: LimiterMetrics::default(),
        }
    }

    /// Whether it is the worker of a configuration that names `aggregator`.
    pub fn is_for(&self, aggregator: &Aggregator) -> bool {
        let Aggregator { cluster, token, authority, trace: _ } = aggregator;
        let own = &self.aggregator;
        (&own.cluster, &own.token, &own.authority) == (cluster, token, authority)
    }

    /// Whether `token` names the stream, as a stream of `root`.
    pub fn has_stream(&self, root: u32, token: u32) -> bool {
        self.stream.is(root, token)
    }

    /// Handles a message on the stream. Returns whether it has live controls.
    pub fn on_message(&mut self, here: Here, mono: MonoMs) -> bool {
        match calls::grpc_message(|bytes| RegionFrame::decode(bytes)) {
            Ok(frame) => {
                self.take(&frame, mono);
                frame.controls.is_some()
            }
            Err(error) => {
                self.stream.log_failure(&format!("its message is malformed: {error}"), mono);
                self.break_stream(here, mono);
                false
            }
        }
    }

    /// Handles the end of the stream.
    pub fn on_stream_closed(&mut self, here: Here, status: u32, mono: MonoMs) {
        let hint = match status {
            UNAVAILABLE => "; check the cluster's address, and that it has http2_protocol_options",
            _ => "",
        };
        self.stream.log_failure(&format!("it ended with gRPC status {status}{hint}"), mono);
        self.break_stream(here, mono);
    }

    fn take(&mut self, frame: &RegionFrame, mono: MonoMs) {
        if let Some(error) = &frame.error {
            let what = format!("the aggregator refuses it: {}", quoted(&error.reason));
            self.stream.log_failure(&what, mono);
        }
        if frame.welcome.is_some() {
            self.stream.welcomed();
            self.reporter.begin();
            self.proposals.propose_anew();
        }
        self.limiter.on_frame(&mut EnvoyShared, frame, mono);
        if let Some(controls) = &frame.controls {
            self.keeper.on_frame(&mut EnvoyShared, controls);
        }
    }

    /// Does periodic work.
    pub fn tick(&mut self, mono: MonoMs) {
        let unix = faults::shifted(calls::unix_now(), self.clock_shift_ms);
        self.limiter.tick(&mut EnvoyShared, Now { unix, mono });
        let now = self.limiter.moment(mono);
        self.keeper.tick(&mut EnvoyShared, now);
    }

    /// Wakes from its idle pace for a request, and reads what live control other workers have stored since the last tick.
    pub fn wake(&mut self, mono: MonoMs) {
        self.limiter.wake(&mut EnvoyShared, mono);
        let now = self.limiter.moment(mono);
        self.keeper.tick(&mut EnvoyShared, now);
    }

    /// Moves the stream if its root was replaced long ago. `here` is the newest root.
    pub fn move_outdated(&mut self, here: Here, mono: MonoMs) {
        match self.stream.root() {
            Some(root) if root != here.root => {
                let since = *self.outdated.get_or_insert(mono);
                if self.limiter.is_quiet() && mono.since(since) >= MOVE_AFTER_MS {
                    self.move_stream(here, mono);
                }
            }
            _ => self.outdated = None,
        }
    }

    /// Opens a stream of `root`.
    pub fn open(&mut self, root: u32, here: Here, mono: MonoMs) {
        if let Err(refused) = self.stream.open(root, here) {
            let what =
                format!("Envoy cannot open it (status {}), as where it has no such cluster", refused.0);
            self.stream.log_failure(&what, mono);
            self.break_stream(here, mono);
        }
    }

    /// Cancels the stream, which the limiter has ended.
    pub fn cancel(&mut self, reason: CloseReason, here: Here, mono: MonoMs) {
        let failure = match reason {
            CloseReason::Unanswered => Some("the aggregator does not answer"),
            CloseReason::Unacknowledged => Some("the aggregator acknowledges nothing; another one may"),
            CloseReason::Idle => None,
        };
        if let Some(what) = failure {
            self.stream.log_failure(what, mono);
        }
        self.stream.close(here);
    }

    /// Notes that Envoy has deleted `root`, and with it the streams that it opened.
    pub fn on_root_ended(&mut self, root: u32, here: Here, mono: MonoMs) {
        if self.stream.root() == Some(root) {
            self.move_stream(here, mono);
        }
    }

    /// Sends a frame of the limiter. With the hello, the aggregator learns what the credential has to cover.
    pub fn send_of_limiter(&mut self, mut frame: FilterFrame, here: Here, mono: MonoMs) {
        if let Some(hello) = &mut frame.hello {
            hello.workspaces = self.reporter.workspaces();
        }
        self.send(&frame, here, mono);
    }

    fn send(&mut self, frame: &FilterFrame, here: Here, mono: MonoMs) {
        if !self.stream.send(frame, here) {
            self.break_stream(here, mono);
        }
    }

    /// Sends which live control it has, if the aggregator is to learn that.
    pub fn send_known_controls(&mut self, here: Here, mono: MonoMs) {
        if let Some(known) = self.keeper.to_send(self.limiter.is_subscribed()) {
            self.send(&FilterFrame { controls_known: Some(known), ..Default::default() }, here, mono);
        }
    }

    /// Sends the proposals of bans that are due. `rule_in` names the rule that bans in a workspace and namespace.
    pub fn send_proposals<'a>(
        &mut self,
        rule_in: impl Fn(&str, &str) -> Option<&'a str>,
        here: Here,
        mono: MonoMs,
    ) {
        if self.limiter.is_subscribed() {
            let frames = self.proposals.take_frames(&self.keeper, rule_in, self.limiter.moment(mono));
            for frame in frames {
                if !self.stream.send(&frame, here) {
                    return self.break_stream(here, mono);
                }
            }
        }
    }

    /// Sends counts of decisions. A failure is ignored here, as frames of the limiter find a broken stream.
    pub fn send_counters(&mut self, here: Here, mono: MonoMs) {
        if self.stream.is_welcome()
            && let Some(frame) = self.reporter.next(mono)
        {
            self.stream.send(&frame, here);
        }
    }

    /// Sends all counts of decisions, as a configuration ends.
    pub fn send_last_counters(&mut self, here: Here) {
        if self.stream.is_welcome() {
            self.reporter.rest().iter().for_each(|frame| {
                self.stream.send(frame, here);
            });
        }
    }

    /// Writes the limiter's figures to Envoy's statistics, if that is due or `now_or_never`.
    pub fn flush(&mut self, mono: MonoMs, now_or_never: bool) {
        self.metrics.flush(self.limiter.stats(mono), mono, now_or_never);
    }

    /// Stores the controls and bans of the process, as the worker's last configuration ends.
    pub fn save_controls(&mut self, mono: MonoMs) {
        let now = self.limiter.moment(mono);
        self.keeper.shutdown(&mut EnvoyShared, now);
    }

    fn move_stream(&mut self, here: Here, mono: MonoMs) {
        self.outdated = None;
        self.stream.close(here);
        self.limiter.on_moved(&mut EnvoyShared, mono);
    }

    fn break_stream(&mut self, here: Here, mono: MonoMs) {
        // A stream whose root has ended did not fail.
        if self.stream.has_lost_root(here) {
            return self.move_stream(here, mono);
        }
        self.stream.close(here);
        self.limiter.on_closed(&mut EnvoyShared, mono);
    }
}

fn proposal(config: &Config) -> Meta {
    let [a, b]: [[u8; 8]; 2] = [calls::random(), calls::random()];
    Meta {
        node: NodeId(calls::random()),
        secret: HashKey(u64::from_le_bytes(a), u64::from_le_bytes(b)),
        geometry: Geometry::of_keys(config.table.max_keys),
    }
}
