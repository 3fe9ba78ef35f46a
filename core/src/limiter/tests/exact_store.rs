//! Exact limits as the aggregators of a region hold them, on the world's clock: logs and ledgers, and their faults.

use super::harness::Random;
use crate::model::exact::{self, Charge, ChargeResult, Limit, Verdict};
use crate::model::wire;
use std::collections::{BTreeMap, BTreeSet};
use std::vec::Vec;

/// A worker's question: worker numbers are not known to the network, places are.
type Name = ((usize, usize), u64);

/// What was charged, in the order of time.
#[derive(Clone, Debug)]
pub(super) struct Use {
    pub(super) name: Name,
    pub(super) at: u64,
    pub(super) cost: u64,
}

#[derive(Debug, Default)]
pub(super) struct ExactStore {
    pub(super) logs: BTreeMap<Vec<u8>, Vec<Use>>,
    /// What passed, by zone and bucket.
    pub(super) ledgers: BTreeMap<(u32, Vec<u8>), Vec<Use>>,
    /// Rate and window of each zone.
    pub(super) zones: BTreeMap<u32, (u64, u64)>,
    pub(super) transactions: u64,
    /// How long a result takes, at the least and at the most.
    pub(super) slowness: (u64, u64),
    /// One result in so many never comes; 0: all come.
    pub(super) loses_one_in: u64,
    /// Charges nothing and decides nothing.
    pub(super) away: bool,
    pub(super) exact_requests: Vec<(Name, wire::ExactRequest)>,
    names: BTreeSet<Name>,
    pub(super) refunded: BTreeSet<Name>,
}

impl ExactStore {
    pub(super) fn takes_ms(&mut self, random: &mut Random) -> Option<u64> {
        let (least, most) = self.slowness;
        let lost = self.loses_one_in > 0 && random.below(self.loses_one_in) == 0;
        (!lost).then(|| 1 + least + random.below(most - least + 1))
    }

    pub(super) fn rule(
        &mut self,
        worker: (usize, usize),
        request: &wire::ExactRequest,
        now: u64,
    ) -> wire::ExactResponse {
        let name = (worker, request.id);
        assert!(self.names.insert(name), "asked twice under one name");
        assert!(request.timeout_ms > 0);
        self.exact_requests.push((name, request.clone()));
        let charges = exact::charges(request).unwrap();
        let results: Vec<ChargeResult> = match self.away {
            true => charges.iter().map(|_| ChargeResult::UNDECIDED).collect(),
            false => self.judge(name, &charges, now),
        };
        wire::ExactResponse { id: request.id, results: results.iter().map(ChargeResult::to_wire).collect() }
    }

    /// Undoes what a question charged, whatever is told of it.
    pub(super) fn refund(&mut self, worker: (usize, usize), refund: &wire::Refund) {
        let name = (worker, refund.request.as_ref().unwrap().id);
        self.refunded.insert(name);
        let all = self.logs.values_mut().chain(self.ledgers.values_mut());
        all.for_each(|uses| uses.retain(|one| one.name != name));
    }

    /// Sum of what stands in a log.
    pub(super) fn charged(&self, key: &[u8]) -> u64 {
        self.logs.get(key).into_iter().flatten().map(|one| one.cost).sum()
    }

    /// Sum of what stands in a ledger.
    pub(super) fn recorded(&self, zone: u32, bucket: &[u8]) -> u64 {
        self.ledgers.get(&(zone, bucket.to_vec())).into_iter().flatten().map(|one| one.cost).sum()
    }

    fn judge(&mut self, name: Name, charges: &[Charge], now: u64) -> Vec<ChargeResult> {
        let mut results: Vec<ChargeResult> =
            charges.iter().map(|charge| self.judge_one(charge, now)).collect();
        if exact::all_allowed(&results) {
            for charge in charges {
                let cost = charge.cost;
                self.uses(charge).push(Use { name, at: now, cost });
            }
            return results;
        }
        for result in results.iter_mut().filter(|result| result.is_allowed()) {
            result.verdict = Verdict::Untried;
        }
        results
    }

    fn judge_one(&mut self, charge: &Charge, now: u64) -> ChargeResult {
        let (most, window) = match &charge.limit {
            Limit::Log { key, most } => (*most, key.parts().duration_ms),
            Limit::Ledger { zone, .. } => self.zones[zone],
        };
        let transaction = matches!(charge.limit, Limit::Ledger { .. }).then(|| {
            self.transactions += 1;
            self.transactions
        });
        let uses = self.uses(charge);
        let live = || uses.iter().filter(|one| one.at + window > now);
        let used: u64 = live().map(|one| one.cost).sum();
        let reset_ms = live().next().map_or(0, |oldest| oldest.at + window - now);
        let fits = used + charge.cost <= most;
        let verdict = match fits {
            true => Verdict::Allowed,
            false => {
                let mut left = used;
                let mut leaves = live().find(|one| {
                    left -= one.cost;
                    left + charge.cost <= most
                });
                Verdict::Denied { retry_after_ms: leaves.take().map(|one| one.at + window - now) }
            }
        };
        let remaining = most.saturating_sub(used) - if fits { charge.cost } else { 0 };
        ChargeResult { verdict, limit: most, remaining, reset_ms, window_ms: window, transaction }
    }

    fn uses(&mut self, charge: &Charge) -> &mut Vec<Use> {
        match &charge.limit {
            Limit::Log { key, .. } => self.logs.entry(key.as_bytes().to_vec()).or_default(),
            Limit::Ledger { zone, bucket } => self.ledgers.entry((*zone, bucket.to_vec())).or_default(),
        }
    }
}
