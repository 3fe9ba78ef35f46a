//! Reads what a response states of the cost of the current request.
//!
//! The cost is known with the response's headers, or at its end: with the access log, which Envoy writes when trailers and metadata of the
//! body are there. A response that Envoy follows, by an internal redirect, is seen with the access log alone.

use crate::host::calls;
use crate::host::headers::Nothing;
use crate::host::properties::Envoy;
use crate::host::request::{Headers, Raw};
use weir_core::rules::{Cost, End, Rule, Settled, Stage, Trailers};
use weir_core::usage::Ratios;

/// The current request, whose cost is to be settled by what there is of its response.
pub struct Settlement<'a> {
    rules: &'a [Rule],
    stage: Stage,
    /// Costs that are known, by rule.
    settled: Vec<(u16, Settled)>,
    ratios: &'a mut Ratios,
    buffer: Vec<u8>,
}

impl<'a> Settlement<'a> {
    /// The current request under these rules.
    pub fn new(rules: &'a [Rule], stage: Stage, ratios: &'a mut Ratios) -> Self {
        Settlement { rules, stage, settled: Vec::new(), ratios, buffer: Vec::new() }
    }

    /// The cost under a rule that has reserved so much, if it is known already.
    pub fn cost(&mut self, rule: u16, reserved: u64) -> Option<u64> {
        let Some(cost) = self.rules.get(usize::from(rule)).map(|rule| &rule.cost) else { return Some(0) };
        if self.stage == Stage::Headers && !cost.settles_by_headers() {
            return None;
        }
        let settled = self.read(cost, rule, reserved)?;
        self.settled.push((rule, settled));
        Some(settled.cost)
    }

    /// What was settled under a rule.
    pub fn settled(&self, rule: u16) -> Option<Settled> {
        self.settled.iter().find(|(of, _)| *of == rule).map(|(_, settled)| *settled)
    }

    fn read(&mut self, cost: &Cost, rule: u16, reserved: u64) -> Option<Settled> {
        let Settlement { stage, ratios, buffer, .. } = self;
        let stage = *stage;
        let mut settle = |bytes: &Raw| {
            let end = End { response: &Headers::new(bytes, Envoy::default()), stage, rule, reserved };
            cost.settle(&end, ratios, buffer)
        };
        match stage {
            Stage::Unanswered => settle(&[]),
            Stage::Headers | Stage::Ended(_) => calls::response_headers(settle),
        }
    }
}

/// The end of the current request, if it has a response.
pub fn ended() -> Option<Stage> {
    if calls::response_headers(|bytes| Headers::new(bytes, Nothing).is_empty()) {
        return None;
    }
    let grpc_status = calls::response_trailers(|bytes| {
        std::str::from_utf8(Headers::new(bytes, Nothing).first(b"grpc-status")?).ok()?.parse().ok()
    });
    Some(Stage::Ended(Trailers { grpc_status }))
}
