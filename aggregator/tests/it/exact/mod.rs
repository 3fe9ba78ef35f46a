//! Exact limits: logs on Redis or in memory, ledgers in the database.

mod exact_logs;
mod exact_streams;
mod ledger;
mod ledger_by_hand;
mod ledger_faults;

use std::time::Duration;
use weir_aggregator::region::exact::Exact;
use weir_core::model::exact::{Charge, ChargeResult, ExactRequestId};
use weir_core::replication::exact::refund::Withdrawal;
use weir_envoy::wait;

/// Refunds a request by its results, and waits until that many of its charges were refunded, or found missing.
async fn refund(
    exact: &Exact,
    id: ExactRequestId,
    charges: &[Charge],
    results: &[ChargeResult],
    refunds: u64,
) {
    let made = || ["done", "missing"].map(|result| exact.figures().refunds(result)).iter().sum::<u64>();
    let (before, charges, results) = (made(), charges.to_vec(), results.to_vec());
    exact.refund_later(&Withdrawal { id, charges, results, still_us: 0 });
    let all = async || made() >= before + refunds;
    wait::until("the charges are refunded", Duration::from_secs(10), all).await.unwrap();
}
