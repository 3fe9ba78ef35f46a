//! The exact limits of a region, as its aggregators hold them: logs and ledgers on the world's clock, with faults.

use super::harness::Random;
use crate::model::exact::{self, Charge, ChargeResult, Limit, Verdict};
use crate::model::wire;
use std::collections::{BTreeMap, BTreeSet};
use std::vec::Vec;

/// A worker's exact request: the worker's place in the world, and the id of the request.
type RequestId = ((usize, usize), u64);

/// A charge.
#[derive(Clone, Debug)]
pub(super) struct Use {
    pub(super) id: RequestId,
    pub(super) at: u64,
    pub(super) cost: u64,
}

#[derive(Debug, Default)]
pub(super) struct ExactStore {
    /// Charges in the order of time.
    pub(super) logs: BTreeMap<Vec<u8>, Vec<Use>>,
    /// Admitted charges, by zone and bucket.
    pub(super) ledgers: BTreeMap<(u32, Vec<u8>), Vec<Use>>,
    /// Rate and window of each zone.
    pub(super) zones: BTreeMap<u32, (u64, u64)>,
    pub(super) transactions: u64,
    /// The least and the most that a response is delayed.
    pub(super) delay_ms: (u64, u64),
    /// One response in so many is lost; 0: none is lost.
    pub(super) loses_one_in: u64,
    /// Charges nothing, and responds that all is undecided.
    pub(super) unavailable: bool,
    pub(super) exact_requests: Vec<(RequestId, wire::ExactRequest)>,
    received: BTreeSet<RequestId>,
    pub(super) refunded: BTreeSet<RequestId>,
}

impl ExactStore {
    pub(super) fn draw_delay_ms(&mut self, random: &mut Random) -> Option<u64> {
        let (least, most) = self.delay_ms;
        let lost = self.loses_one_in > 0 && random.below(self.loses_one_in) == 0;
        (!lost).then(|| 1 + least + random.below(most - least + 1))
    }

    pub(super) fn respond(
        &mut self,
        worker: (usize, usize),
        request: &wire::ExactRequest,
        now: u64,
    ) -> wire::ExactResponse {
        let id = (worker, request.id);
        assert!(self.received.insert(id), "two exact requests with one id");
        assert!(request.timeout_ms > 0);
        self.exact_requests.push((id, request.clone()));
        let charges = exact::charges(request).unwrap();
        let results: Vec<ChargeResult> = match self.unavailable {
            true => charges.iter().map(|_| ChargeResult::UNDECIDED).collect(),
            false => self.decide(id, &charges, now),
        };
        wire::ExactResponse { id: request.id, results: results.iter().map(ChargeResult::to_wire).collect() }
    }

    /// Removes the charges of an exact request.
    pub(super) fn refund(&mut self, worker: (usize, usize), refund: &wire::Refund) {
        let id = (worker, refund.request.as_ref().unwrap().id);
        self.refunded.insert(id);
        let all = self.logs.values_mut().chain(self.ledgers.values_mut());
        all.for_each(|uses| uses.retain(|one| one.id != id));
    }

    /// The sum of the charges in a log.
    pub(super) fn charged(&self, key: &[u8]) -> u64 {
        self.logs.get(key).into_iter().flatten().map(|one| one.cost).sum()
    }

    /// The sum of the charges in a ledger.
    pub(super) fn recorded(&self, zone: u32, bucket: &[u8]) -> u64 {
        self.ledgers.get(&(zone, bucket.to_vec())).into_iter().flatten().map(|one| one.cost).sum()
    }

    fn decide(&mut self, id: RequestId, charges: &[Charge], now: u64) -> Vec<ChargeResult> {
        let mut results: Vec<ChargeResult> =
            charges.iter().map(|charge| self.decide_one(charge, now)).collect();
        if exact::all_allowed(&results) {
            for charge in charges {
                let cost = charge.cost;
                self.uses(charge).push(Use { id, at: now, cost });
            }
            return results;
        }
        for result in results.iter_mut().filter(|result| result.is_allowed()) {
            result.verdict = Verdict::Untried;
        }
        results
    }

    fn decide_one(&mut self, charge: &Charge, now: u64) -> ChargeResult {
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
