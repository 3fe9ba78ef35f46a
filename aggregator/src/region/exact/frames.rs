//! Exact requests and refunds that filters send on their streams.

use super::Exact;
use std::time::{Duration, Instant};
use weir_core::model::exact::{ChargeResult, ExactRequestId, charges};
use weir_core::model::wire;
use weir_core::replication::exact::refund::Withdrawal;
use weir_core::replication::exact::timeout::within_us;

impl Exact {
    /// The exact response to a request of `sender`, within the request's timeout. An invalid request is undecided.
    pub async fn answer(&self, sender: u64, request: &wire::ExactRequest) -> wire::ExactResponse {
        let Ok(charges) = charges(request) else {
            self.figures().requested("malformed");
            return undecided(request);
        };
        self.figures().requested("taken");
        let within = Duration::from_micros(within_us(request.timeout_ms));
        let results = self.decide(ExactRequestId::of(sender, request.id), &charges, within).await;
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
        match Withdrawal::read(sender, refund) {
            Ok(Some(mut withdrawal)) => {
                let foreign = withdrawal.disown(|id| self.issued.is_of(sender, id, Instant::now()));
                self.figures().refunded("foreign", foreign);
                self.refund_later(&withdrawal);
            }
            Ok(None) => {}
            Err(_) => self.figures().requested("malformed"),
        }
    }
}

fn undecided(request: &wire::ExactRequest) -> wire::ExactResponse {
    let results = request.charges.iter().map(|_| ChargeResult::UNDECIDED.to_wire()).collect();
    wire::ExactResponse { id: request.id, results }
}
