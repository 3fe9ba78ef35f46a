//! Counters of spans.

use super::families::{Label, at_zero};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

table! {
    /// The number of spans.
    #[derive(Clone)]
    pub struct SpanTable {
        spans: Family<Label, Counter> =
            "Ended spans by result: exported, dropped (too many waited), failed (not accepted by the collector)",
            at_zero("result", &["exported", "dropped", "failed"]);
    }
}

/// The number of spans, by result.
#[derive(Clone, Debug)]
pub struct SpanFigures {
    table: SpanTable,
    /// The collector accepted them.
    pub(crate) exported: Counter,
    /// The queue was full.
    pub(crate) dropped: Counter,
    /// The collector did not accept them.
    pub(crate) failed: Counter,
}

impl Default for SpanFigures {
    fn default() -> SpanFigures {
        let table = SpanTable::default();
        let of = |result| table.spans.get_or_create_owned(&[("result", result)]);
        let (exported, dropped, failed) = (of("exported"), of("dropped"), of("failed"));
        SpanFigures { table, exported, dropped, failed }
    }
}

impl SpanFigures {
    /// Adds the counters to a registry.
    pub fn register(&self, registry: &mut Registry) {
        self.table.register(registry);
    }
}
