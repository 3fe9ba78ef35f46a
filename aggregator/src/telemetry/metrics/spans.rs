//! Counters of spans.

use super::{Label, at_zero};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

/// The number of spans, by result.
#[derive(Clone, Debug)]
pub struct SpanFigures {
    /// All of them, by `result`.
    pub results: Family<Label, Counter>,
    /// The collector accepted them.
    pub(crate) exported: Counter,
    /// The queue was full.
    pub(crate) dropped: Counter,
    /// The collector did not accept them.
    pub(crate) failed: Counter,
}

impl Default for SpanFigures {
    fn default() -> SpanFigures {
        let results = at_zero("result", &["exported", "dropped", "failed"]);
        let of = |result| results.get_or_create_owned(&[("result", result)]);
        let (exported, dropped, failed) = (of("exported"), of("dropped"), of("failed"));
        SpanFigures { results, exported, dropped, failed }
    }
}
