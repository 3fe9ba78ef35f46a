//! The charges of an exact request as calls to logs and ledgers, and their results as decisions.
//!
//! Charges of one log become one charge of that log, so that they pass together or not at all: the sum of their costs
//! against the lowest of their limits, with the place of the first.

use crate::model::exact::{Charge, ChargeResult, ExactKey, ExactRequestId, MAX_CHARGES, Verdict};
use crate::region::log::{EntryId, LogCharge, LogDecision};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// The calls that a request needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Each log once.
    pub logs: Vec<LogCharge>,
    /// For each charge, in order, where it is decided.
    pub calls: Vec<ChargeCall>,
}

/// Where a charge is decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChargeCall {
    /// The log at this index.
    Log(usize),
    /// A zone of the ledger.
    Ledger(LedgerCharge),
}

/// A charge of a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerCharge {
    /// The zone.
    pub zone: u32,
    /// The bucket.
    pub bucket: Box<[u8]>,
    /// The cost.
    pub cost: u64,
}

/// An attempt that a ledger allowed, by its number. Zone and bucket show whether the number belongs to the attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// The number.
    pub id: u64,
    /// The zone.
    pub zone: u32,
    /// The bucket.
    pub bucket: Box<[u8]>,
    /// How long ago it was made at least, in microseconds. A younger one with its number was made since the database was set back.
    pub age_us: u64,
}

impl Plan {
    /// The plan for a request; `None` for too many charges.
    pub fn of(request: ExactRequestId, charges: &[Charge]) -> Option<Plan> {
        let mut plan = Plan { logs: Vec::new(), calls: Vec::new() };
        let mut places = BTreeMap::new();
        if charges.len() > MAX_CHARGES {
            return None;
        }
        for (place, charge) in (0_u8..).zip(charges) {
            let call = match &charge.key {
                ExactKey::Ledger { zone, bucket } => {
                    let (zone, bucket, cost) = (*zone, bucket.clone(), charge.cost);
                    ChargeCall::Ledger(LedgerCharge { zone, bucket, cost })
                }
                key => {
                    let log = *places.entry(key).or_insert(plan.logs.len());
                    match plan.logs.get_mut(log) {
                        Some(same) => {
                            same.cost = same.cost.saturating_add(charge.cost);
                            same.most = same.most.min(charge.most);
                        }
                        None => plan.logs.extend(LogCharge::of(charge, EntryId { request, place })),
                    }
                    ChargeCall::Log(log)
                }
            };
            plan.calls.push(call);
        }
        Some(plan)
    }

    /// The charges of ledgers, in order.
    pub fn ledgers(&self) -> impl Iterator<Item = &LedgerCharge> {
        self.calls.iter().filter_map(|call| match call {
            ChargeCall::Ledger(charge) => Some(charge),
            ChargeCall::Log(_) => None,
        })
    }

    /// The transactions of the attempts that ledgers allowed, given the ledgers' decisions in order.
    pub fn transactions(&self, ledgers: &[ChargeResult]) -> Vec<Transaction> {
        let allowed = self.ledgers().zip(ledgers).filter(|(_, result)| result.is_allowed());
        allowed.filter_map(|(charge, result)| Some(charge.transaction(result.transaction?))).collect()
    }

    /// The decisions on all charges: those of the logs, and those of the ledgers that were charged. If `in_vain`, the
    /// charges that passed are returned as untried.
    pub fn results(
        &self,
        log: impl Fn(usize) -> LogAnswer,
        ledgers: &[ChargeResult],
        in_vain: bool,
    ) -> Vec<ChargeResult> {
        let mut ledgers = ledgers.iter().copied();
        let each = self.calls.iter().map(|call| match call {
            ChargeCall::Log(place) => self.logs.get(*place).map_or(ChargeResult::UNDECIDED, |charge| {
                let result = log_result(charge, log(*place));
                if in_vain && result.is_allowed() { untried(result, charge.cost) } else { result }
            }),
            ChargeCall::Ledger(charge) => match ledgers.next() {
                Some(result) if in_vain && result.is_allowed() => untried(result, charge.cost),
                Some(result) => result,
                None => ChargeResult { verdict: Verdict::Untried, ..ChargeResult::UNDECIDED },
            },
        });
        each.collect()
    }
}

impl LedgerCharge {
    /// The attempt that was recorded under this number.
    pub fn transaction(&self, id: u64) -> Transaction {
        Transaction { id, zone: self.zone, bucket: self.bucket.clone(), age_us: 0 }
    }
}

/// A log's decision, as far as there is one.
#[derive(Clone, Copy, Debug)]
pub enum LogAnswer {
    /// It has decided.
    Decided(LogDecision),
    /// It has not answered.
    Undecided,
    /// It was not called.
    Untried,
}

/// The decision on a charge that was refunded or not tried; `remaining` is given as it is without the charge.
fn untried(result: ChargeResult, cost: u64) -> ChargeResult {
    let remaining = result.remaining.saturating_add(cost).min(result.limit);
    ChargeResult { verdict: Verdict::Untried, remaining, ..result }
}

fn log_result(charge: &LogCharge, answer: LogAnswer) -> ChargeResult {
    let window_ms = charge.key.parts().duration_ms;
    let undecided = ChargeResult { limit: charge.most, window_ms, ..ChargeResult::UNDECIDED };
    match answer {
        LogAnswer::Decided(decided) => decided.result(charge.most, window_ms),
        LogAnswer::Undecided => undecided,
        LogAnswer::Untried => ChargeResult { verdict: Verdict::Untried, ..undecided },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::key::{Key, KeyParts};
    use crate::region::log::{Micros, Outcome};
    use std::vec;

    fn log(identifier: &[u8], cost: u64, most: u64) -> Charge {
        let (workspace, namespace) = (b"w", b"n");
        let parts =
            KeyParts { workspace, namespace, identifier, duration_ms: 1_000, epoch: 0, resolution: 1 };
        Charge { key: ExactKey::Log(Key::new(&parts).unwrap()), most, cost }
    }

    fn ledger(zone: u32) -> Charge {
        Charge { key: ExactKey::Ledger { zone, bucket: Box::from(*b"b") }, most: 0, cost: 1 }
    }

    #[test]
    fn charges_of_one_log_are_one() {
        let charges = [ledger(1), log(b"a", 2, 9), log(b"b", 1, 5), log(b"a", 3, 7), ledger(2)];
        let plan = Plan::of(ExactRequestId([1; 16]), &charges).unwrap();
        let logs: Vec<_> = plan.logs.iter().map(|log| (log.id.place, log.cost, log.most)).collect();
        assert_eq!((logs, plan.ledgers().count()), (vec![(1, 5, 7), (2, 1, 5)], 2));
        let decided = LogDecision { outcome: Outcome::Allowed, at: Micros(1), used: 6, reset_us: 1 };
        let answer = |place| if place == 0 { LogAnswer::Decided(decided) } else { LogAnswer::Undecided };
        let results = plan.results(answer, &[], true);
        let summary: Vec<_> = results.iter().map(|r| (r.verdict, r.limit, r.remaining)).collect();
        let (untried, undecided) = (Verdict::Untried, Verdict::Undecided);
        let expected =
            [(untried, 0, 0), (untried, 7, 6), (undecided, 5, 0), (untried, 7, 6), (untried, 0, 0)];
        assert_eq!(summary, expected);
    }

    #[test]
    fn too_many_charges_are_no_plan() {
        assert!(Plan::of(ExactRequestId([1; 16]), &vec![ledger(1); MAX_CHARGES]).is_some());
        assert!(Plan::of(ExactRequestId([1; 16]), &vec![ledger(1); MAX_CHARGES + 1]).is_none());
    }
}
