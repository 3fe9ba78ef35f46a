//! Exact requests and refunds that filters send on their streams.

use super::Exact;
use std::time::{Duration, Instant};
use weir_core::model::exact::{ChargeResult, ExactRequestId, charges};
use weir_core::model::wire;

/// Timeout of a request that states none, and the longest that is accepted.
const DEFAULT_TIMEOUT_MS: u32 = 100;
const MAX_TIMEOUT_MS: u32 = 10_000;
/// The part of the timeout kept for the response's way back.
const RESERVE_MS: u32 = 10;

impl Exact {
    /// The exact response to a request of `sender`, within the request's timeout. An invalid request is undecided.
    pub async fn answer(&self, sender: u64, request: &wire::ExactRequest) -> wire::ExactResponse {
        let Ok(charges) = charges(request) else {
            self.figures().requested("malformed");
            return undecided(request);
        };
        self.figures().requested("taken");
        let results =
            self.decide(ExactRequestId::of(sender, request.id), &charges, patience(request.timeout_ms)).await;
        let transactions = results.iter().filter(|result| result.is_allowed());
        self.issued.note(sender, transactions.filter_map(|result| result.transaction), Instant::now());
        wire::ExactResponse { id: request.id, results: results.iter().map(ChargeResult::to_wire).collect() }
    }

    /// The exact response to a request for which there is no room.
    pub fn reject(&self, request: &wire::ExactRequest) -> wire::ExactResponse {
        self.figures().requested("rejected");
        undecided(request)
    }

    /// Starts the refund of a request of `sender`. Ledger transactions have consecutive numbers that could be guessed, so a
    /// transaction that this aggregator did not issue to `sender` is not refunded.
    pub fn undo(&self, sender: u64, refund: &wire::Refund) {
        let Some(request) = &refund.request else { return };
        match charges(request) {
            Ok(charges) => {
                let mut results: Vec<_> = refund.results.iter().map(ChargeResult::from_wire).collect();
                for result in &mut results {
                    if result.transaction.is_some_and(|id| !self.issued.is_of(sender, id, Instant::now())) {
                        self.figures().refunded("foreign");
                        result.transaction = None;
                    }
                }
                self.refund_later(
                    ExactRequestId::of(sender, request.id),
                    &charges,
                    &results,
                    patience(request.timeout_ms),
                );
            }
            Err(_) => self.figures().requested("malformed"),
        }
    }
}

fn undecided(request: &wire::ExactRequest) -> wire::ExactResponse {
    let results = request.charges.iter().map(|_| ChargeResult::UNDECIDED.to_wire()).collect();
    wire::ExactResponse { id: request.id, results }
}

fn patience(timeout_ms: u32) -> Duration {
    let waits = if timeout_ms == 0 { DEFAULT_TIMEOUT_MS } else { timeout_ms.min(MAX_TIMEOUT_MS) };
    Duration::from_millis(u64::from(waits.saturating_sub(RESERVE_MS).max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_get_what_the_filter_leaves() {
        for (waits, expected) in [(0, 90), (100, 90), (15, 5), (5, 1), (u32::MAX, 9_990)] {
            assert_eq!(patience(waits), Duration::from_millis(expected), "{waits}");
        }
    }
}
