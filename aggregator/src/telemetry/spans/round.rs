//! Spans of background work. It runs in rounds, and each round that has something to do is a trace of its own.

use super::{Active, Telemetry};

/// The rounds of one kind of work.
pub struct Round {
    name: &'static str,
    under_way: Option<UnderWay>,
}

#[derive(Default)]
struct UnderWay {
    /// `None` if it is not recorded.
    span: Option<Active>,
    cells: u64,
    calls: u64,
    failures: u64,
}

impl Round {
    /// Without a round in progress.
    pub fn new(name: &'static str) -> Round {
        Round { name, under_way: None }
    }

    /// Begins a call, and a round if there is none. The returned span is the parent of the call's own spans.
    pub fn call(&mut self, telemetry: &Telemetry) -> Option<Active> {
        let begin = || UnderWay { span: telemetry.root(self.name), ..UnderWay::default() };
        self.under_way.get_or_insert_with(begin).span.clone()
    }

    /// Ends a call that concerned this many cells, and may have failed.
    pub fn called(&mut self, cells: u64, failure: Option<&'static str>) {
        let Some(round) = &mut self.under_way else { return };
        round.calls += 1;
        round.cells = round.cells.saturating_add(cells);
        if let Some(reason) = failure {
            round.failures += 1;
            round.span.iter().for_each(|span| span.fail(reason));
        }
    }

    /// Ends the round, if there is one.
    pub fn end(&mut self) {
        let Some(UnderWay { span: Some(span), cells, calls, failures }) = self.under_way.take() else {
            return;
        };
        span.set_number("weir.cells", cells);
        span.set_number("weir.calls", calls);
        span.set_number("weir.failures", failures);
    }
}
