//! Questions and refunds as they come on filters' streams.
//!
//! Leaves to others: how many of a stream wait at a time, and sending the answers (`stream`).

use super::Exact;
use std::time::{Duration, Instant};
use weir_core::model::exact::{AskId, Ruling, charges};
use weir_core::model::wire;

/// What a filter waits for if it does not say, and for how long one is answered at most.
const DEFAULT_TIMEOUT_MS: u32 = 100;
const MAX_TIMEOUT_MS: u32 = 10_000;
/// What the way back takes of that.
const RESERVE_MS: u32 = 10;

impl Exact {
    /// The rulings on a question of `asker`, within the time that it waits. One that cannot be read is undecided.
    pub async fn answer(&self, asker: u64, ask: &wire::Ask) -> wire::Rulings {
        let Ok(charges) = charges(ask) else {
            self.figures().asked("malformed");
            return undecided(ask);
        };
        self.figures().asked("taken");
        let rulings = self.decide(AskId::of(asker, ask.id), &charges, patience(ask.timeout_ms)).await;
        let transactions = rulings.iter().filter(|ruling| ruling.is_allowed());
        self.issued.note(asker, transactions.filter_map(|ruling| ruling.transaction), Instant::now());
        wire::Rulings { id: ask.id, rulings: rulings.iter().map(Ruling::to_wire).collect() }
    }

    /// The answer to a question for which there is no room.
    pub fn reject(&self, ask: &wire::Ask) -> wire::Rulings {
        self.figures().asked("rejected");
        undecided(ask)
    }

    /// Has a question of `asker` undone, without waiting for that. The ledger numbers transactions one after the other, so
    /// one that this asker was not told of here is left as it is.
    pub fn undo(&self, asker: u64, refund: &wire::Refund) {
        let Some(ask) = &refund.ask else { return };
        match charges(ask) {
            Ok(charges) => {
                let mut rulings: Vec<_> = refund.rulings.iter().map(Ruling::from_wire).collect();
                for ruling in &mut rulings {
                    if ruling.transaction.is_some_and(|id| !self.issued.is_of(asker, id, Instant::now())) {
                        self.figures().refunded("foreign");
                        ruling.transaction = None;
                    }
                }
                self.refund_later(AskId::of(asker, ask.id), &charges, &rulings, patience(ask.timeout_ms));
            }
            Err(_) => self.figures().asked("malformed"),
        }
    }
}

fn undecided(ask: &wire::Ask) -> wire::Rulings {
    let rulings = ask.charges.iter().map(|_| Ruling::UNDECIDED.to_wire()).collect();
    wire::Rulings { id: ask.id, rulings }
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
