//! What goes on beside requests, in rounds: each that has something to do is a trace of its own.
//!
//! Leaves to others: the work (`regional::replay`, `global`).

use super::{Active, Telemetry};

/// One round after the other.
pub struct Round {
    name: &'static str,
    under_way: Option<UnderWay>,
}

#[derive(Default)]
struct UnderWay {
    /// Nothing if it is not recorded.
    span: Option<Active>,
    cells: u64,
    calls: u64,
    failures: u64,
}

impl Round {
    /// None is under way.
    pub fn new(name: &'static str) -> Round {
        Round { name, under_way: None }
    }

    /// A call is about to be made, the first of a round perhaps; what it asks of a store is to be beneath the span.
    pub fn call(&mut self, telemetry: &Telemetry) -> Option<Active> {
        let begin = || UnderWay { span: telemetry.root(self.name), ..UnderWay::default() };
        self.under_way.get_or_insert_with(begin).span.clone()
    }

    /// The call is over: it was about so many cells, and may have failed.
    pub fn called(&mut self, cells: u64, failure: Option<&'static str>) {
        let Some(round) = &mut self.under_way else { return };
        round.calls += 1;
        round.cells = round.cells.saturating_add(cells);
        if let Some(reason) = failure {
            round.failures += 1;
            round.span.iter().for_each(|span| span.fail(reason));
        }
    }

    /// The round is over, if one was under way.
    pub fn end(&mut self) {
        let Some(UnderWay { span: Some(span), cells, calls, failures }) = self.under_way.take() else {
            return;
        };
        span.set_number("weir.cells", cells);
        span.set_number("weir.calls", calls);
        span.set_number("weir.failures", failures);
    }
}
