//! The store's word on what filters ask, within the time that they wait; memory's word where there is none.
//!
//! Leaves to others: sending the answers (`stream`), judging (`weir_core::region`, and the store's script).

use super::{Regional, first_error};
use crate::metrics::Operation;
use crate::shared::Shared;
use crate::store::StoreError;
use std::time::{Duration, Instant};
use weir_core::key::OriginId;
use weir_core::region::Proposed;
use weir_core::region::exchange::{Merge, Merged};
use weir_core::wire::{Answer, Consult};

/// What a filter waits for if it does not say.
const DEFAULT_TIMEOUT_MS: u32 = 50;
/// What an answer from memory and its way back take of that.
const RESERVE_MS: u32 = 10;
/// A store that works answers within this, unless the machine is very busy.
const FAIR_PATIENCE: Duration = Duration::from_millis(25);

/// Answers every consult, in any order.
pub async fn answer(
    shared: &Shared,
    regional: &Regional,
    origin: OriginId,
    consults: &[Consult],
) -> Vec<Answer> {
    let asked_at = Instant::now();
    let mut answers = Vec::with_capacity(consults.len());
    let (mut asks, mut merges) = (Vec::new(), Vec::new());
    shared.region(|region, now| {
        for consult in consults {
            match region.propose(origin, consult, now) {
                Ok(Proposed::Settled(answer)) => answers.push(shared.judged(answer)),
                Ok(Proposed::Ask(merge)) => {
                    asks.push(consult);
                    merges.push(merge);
                }
                Err(_) => answers.push(shared.unjudged(consult)),
            }
        }
    });
    if !merges.is_empty() {
        ask(shared, regional, origin, &asks, &merges, &mut answers, asked_at).await;
        regional.changed.notify_one();
    }
    shared.changed.notify_one();
    regional.unstored.notify_one();
    answers
}

async fn ask(
    shared: &Shared,
    regional: &Regional,
    origin: OriginId,
    asks: &[&Consult],
    merges: &[Merge],
    answers: &mut Vec<Answer>,
    asked_at: Instant,
) {
    let patience = patience(asks);
    let results = regional.store.merge(merges, patience).await;
    note(shared, regional, asked_at, patience, &results);
    shared.region(|region, now| {
        for ((ask, merge), result) in asks.iter().zip(merges).zip(&results) {
            let answer = match result {
                Ok(merged) => region.concluded(origin, ask, merge, merged, now),
                Err(_) => region.consult(origin, ask, now),
            };
            answers.push(match answer {
                Ok(answer) => shared.judged(answer),
                Err(_) => shared.unjudged(ask),
            });
        }
    });
}

/// A store that missed a deadline which it could hardly keep has not failed.
fn note(
    shared: &Shared,
    regional: &Regional,
    asked_at: Instant,
    patience: Duration,
    results: &[Result<Merged, StoreError>],
) {
    let hurried = patience < FAIR_PATIENCE && first_error(results) == Some(&StoreError::Timeout);
    if hurried {
        shared.metrics.operation_failed(Operation::Consult, "hurried");
    } else {
        regional.note_parts(&shared.metrics, Operation::Consult, asked_at, results);
    }
}

/// The shortest time that anybody waits, less what the way back takes.
fn patience(asks: &[&Consult]) -> Duration {
    let waits = asks.iter().map(|ask| if ask.timeout_ms == 0 { DEFAULT_TIMEOUT_MS } else { ask.timeout_ms });
    let shortest = waits.min().unwrap_or(DEFAULT_TIMEOUT_MS);
    Duration::from_millis(u64::from(shortest.saturating_sub(RESERVE_MS).max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_gets_what_the_most_hurried_filter_leaves() {
        let consult = |timeout_ms| Consult { timeout_ms, ..Consult::default() };
        let cases: [(&[u32], u64); 4] = [(&[0], 40), (&[100, 30], 20), (&[10], 1), (&[3], 1)];
        for (waits, expected) in cases {
            let consults: Vec<_> = waits.iter().map(|wait| consult(*wait)).collect();
            let asks: Vec<_> = consults.iter().collect();
            assert_eq!(patience(&asks), Duration::from_millis(expected), "{waits:?}");
        }
    }
}
