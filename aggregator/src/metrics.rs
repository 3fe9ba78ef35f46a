//! The metrics of this program: names, help texts and handles. No label ever names an identifier or an origin.
//!
//! Leaves to others: when something is counted, and serving the text (`admin`).

use crate::refusal::Refusal;
use crate::throttle::Throttle;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Metric, Registry};
use std::time::Duration;
use weir_core::region::{Refused, RegionStats};

/// What every name begins with; counters end in `_total`.
pub const PREFIX: &str = "weir_aggregator";

const STREAMS: (&str, &str) = ("streams", "Streams of filters' workers that are open");
const LIVE_ORIGINS: (&str, &str) = ("live_origins", "Envoy processes heard of within the last two seconds");
const KEYS: (&str, &str) = ("keys", "Keys that the region holds");
const PUSH_QUEUE: (&str, &str) = ("push_queue", "Keys waiting to be pushed, summed over subscribers");
const REPORTS: (&str, &str) = ("reports", "Reports received and acknowledged");
const COUNTS_MERGED: (&str, &str) = ("counts_merged", "Counts of reports merged into the region");
const COUNTS_REFUSED: (&str, &str) = ("counts_refused", "Counts of reports not merged, by reason");
const CONSULTS: (&str, &str) = ("consults", "Consults by result: granted, refused, unjudged");
const PUSHES: (&str, &str) = ("pushes", "Frames pushed to subscribers");
const PUSHED_CELLS: (&str, &str) = ("pushed_cells", "Cells pushed to subscribers");
const SLOW_STREAMS: (&str, &str) = ("slow_streams_dropped", "Streams dropped as their peer did not read");
const FRAMES_REFUSED: (&str, &str) = ("frames_refused", "Frames that ended their stream, by reason");
const FRAME_SECONDS: (&str, &str) =
    ("frame_seconds", "Time to take one frame into the region, lock included");

/// One label, its name and value out of fixed sets.
type Label = [(&'static str, &'static str); 1];

/// A handle on each metric.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Warns of peers that misbehave, once in a while.
    pub warnings: Throttle,
    /// [`STREAMS`].
    pub streams: Gauge,
    /// [`REPORTS`].
    pub reports: Counter,
    /// [`COUNTS_MERGED`].
    pub counts_merged: Counter,
    /// [`PUSHES`].
    pub pushes: Counter,
    /// [`PUSHED_CELLS`].
    pub pushed_cells: Counter,
    /// [`SLOW_STREAMS`].
    pub slow_streams: Counter,
    /// [`FRAME_SECONDS`].
    pub frame_seconds: Histogram,
    live_origins: Gauge,
    keys: Gauge,
    push_queue: Gauge,
    counts_refused: Family<Label, Counter>,
    consults: Family<Label, Counter>,
    frames_refused: Family<Label, Counter>,
}

impl Default for Metrics {
    fn default() -> Self {
        const WARNING_INTERVAL: Duration = Duration::from_secs(10);
        let mut registry = Registry::with_prefix(PREFIX);
        let r = &mut registry;
        Metrics {
            warnings: Throttle::new(WARNING_INTERVAL),
            streams: register(r, STREAMS, Gauge::default()),
            reports: register(r, REPORTS, Counter::default()),
            counts_merged: register(r, COUNTS_MERGED, Counter::default()),
            pushes: register(r, PUSHES, Counter::default()),
            pushed_cells: register(r, PUSHED_CELLS, Counter::default()),
            slow_streams: register(r, SLOW_STREAMS, Counter::default()),
            frame_seconds: register(
                r,
                FRAME_SECONDS,
                Histogram::new(exponential_buckets(1e-6, 4.0, 10)), // 1 µs to 0.26 s
            ),
            live_origins: register(r, LIVE_ORIGINS, Gauge::default()),
            keys: register(r, KEYS, Gauge::default()),
            push_queue: register(r, PUSH_QUEUE, Gauge::default()),
            counts_refused: register(r, COUNTS_REFUSED, Family::default()),
            consults: register(r, CONSULTS, Family::default()),
            frames_refused: register(r, FRAMES_REFUSED, Family::default()),
            registry,
        }
    }
}

impl Metrics {
    /// Counts a count that was not merged.
    pub fn count_refused(&self, refused: Refused) {
        let reason = match refused {
            Refused::Key => "key",
            Refused::Sequence => "sequence",
            Refused::Component => "component",
            Refused::Full => "full",
        };
        self.counts_refused.get_or_create(&[("reason", reason)]).inc();
    }

    /// Counts a consult that was granted or not.
    pub fn consult_judged(&self, granted: bool) {
        self.consult(if granted { "granted" } else { "refused" });
    }

    /// Counts a consult that the region could not judge.
    pub fn consult_unjudged(&self) {
        self.consult("unjudged");
    }

    /// Counts a frame that ended its stream.
    pub fn frame_refused(&self, refusal: &Refusal) {
        self.frames_refused.get_or_create(&[("reason", refusal.label())]).inc();
    }

    /// Everything in Prometheus' text format; the region's figures as given.
    pub fn text(&self, stats: RegionStats) -> String {
        set(&self.live_origins, stats.live_origins);
        set(&self.keys, stats.keys);
        set(&self.push_queue, stats.pending_pushes);
        let mut text = String::new();
        // Writing into a string has no error.
        let _ = encode(&mut text, &self.registry);
        text
    }

    fn consult(&self, result: &'static str) {
        self.consults.get_or_create(&[("result", result)]).inc();
    }
}

fn register<M: Metric + Clone>(registry: &mut Registry, (name, help): (&str, &str), metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

fn set(gauge: &Gauge, value: usize) {
    gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
}
