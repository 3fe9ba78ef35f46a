//! Calls of the APIs: each is decided by several exact limits and windows together, all or none.

use super::World;
use super::event::Event;
use super::exact::key_of;
use super::request::{ExactWork, PendingCall};
use crate::plan::Exact;
use crate::plan::keys;
use crate::plan::traffic::Arrival;
use weir_core::model::exact::{Charge, ExactKey, ExactRequestId, MAX_LOG_LIMIT, Verdict};
use weir_core::model::key::Key;
use weir_core::region::log::Micros;
use weir_core::replication::exact::mixed::{MixedRequest, Step, WindowsResult};
use weir_core::replication::exact::request::Request;

/// No worker has this number.
const SENDER: u64 = 0;

impl World<'_> {
    /// Plans the next call, unless the traffic is over by then.
    pub(super) fn plan_api_call(&mut self) {
        let Some(calls) = self.plan.calls else { return };
        let next_us = self.now_us.max(self.begin_us) + calls.every_ms.max(1) * 1_000;
        if next_us <= self.begin_us + self.plan.traffic_ms * 1_000 {
            self.queue.plan(next_us, Event::ApiCall);
        }
    }

    /// A call arrives at one of the aggregators. One that does not run refuses it, and so does one that is frozen, by its silence.
    pub(super) fn route_api_call(&mut self) {
        self.plan_api_call();
        let Some(calls) = self.plan.calls else { return };
        let at = usize::try_from(self.chance.api.below(self.aggregators.len() as u64)).unwrap_or(0);
        let identifier = self.chance.api.below(calls.identifiers);
        let cost = self.chance.api.below(calls.cost + 1);
        let deny_on_failure = self.chance.api.per_mille(500);
        let number = self.chance.api.next();
        if self.aggregators[at].is_frozen() || self.aggregators[at].process.is_none() {
            return;
        }
        let charges: Vec<(usize, Charge)> =
            keys::rules(calls.rules).filter_map(|rule| self.charge_of(rule, identifier, cost)).collect();
        let id = ExactRequestId::of(SENDER, number);
        let of_rules: Vec<Charge> = charges.iter().map(|(_, charge)| charge.clone()).collect();
        let request = Request::new(id, &of_rules, calls.within_ms * 1_000, Micros(self.now_us));
        let request = MixedRequest::new(request, deny_on_failure);
        self.step_api_call(at, Box::new(PendingCall { id, charges, identifier, request }));
        self.make_refunds(at);
    }

    fn charge_of(&self, rule: usize, identifier: u64, cost: u64) -> Option<(usize, Charge)> {
        let shape = self.shapes.get(rule)?;
        let key = shape.key(identifier);
        let (key, most) = match shape.rule.exact? {
            Exact::Log => (ExactKey::Log(Key::parse(&key).ok()?), shape.rule.limit.min(MAX_LOG_LIMIT)),
            Exact::Ledger => (ExactKey::Ledger { zone: rule as u32, bucket: key.into() }, 0),
        };
        Some((rule, Charge { key, most, cost }))
    }

    /// Continues a call until a store is called, or it is over.
    pub(super) fn step_api_call(&mut self, at: usize, mut call: Box<PendingCall>) {
        let chances = self.plan.calls.map_or(0, |calls| calls.windows_per_mille);
        loop {
            let Some(process) = self.aggregators[at].process.as_mut() else { return };
            match call.request.step(&mut process.exact, Micros(self.now_us)) {
                Step::Peek => call.request.peeked(self.chance.api.per_mille(chances)),
                Step::Exact => return self.drive_exact(at, Box::new(ExactWork::Call(call))),
                Step::Charge => {
                    let drawn = [(); 2].map(|()| self.chance.api.per_mille(chances));
                    call.request.charged(match drawn {
                        [true, _] => WindowsResult::Denied,
                        [_, true] => WindowsResult::Undecided,
                        _ => WindowsResult::Allowed,
                    });
                }
                Step::Over => return self.conclude_api_call(at, &mut call),
            }
        }
    }

    /// Records what a call was charged for good, and checks its denials.
    fn conclude_api_call(&mut self, at: usize, call: &mut PendingCall) {
        let (now_us, region) = (self.now_us, self.aggregators[at].region);
        self.check_cached_denial(at, call.request.request());
        let results = call.request.results().unwrap_or_default();
        let is_denied = results.iter().any(|result| result.is_denied());
        let is_overturned = results.iter().any(|result| result.verdict == Verdict::Untried);
        self.counts.overturned += u64::from(is_overturned && !is_denied);
        for ((rule, charge), result) in call.charges.iter().zip(&results) {
            let key = (self.shapes[*rule].counts, call.identifier);
            if result.is_allowed() {
                self.check.exact.kept(key, charge.cost, now_us);
                continue;
            }
            self.check.exact.in_vain(key_of(charge), call.id);
            if result.is_denied() {
                let arrival = Arrival {
                    at_us: now_us,
                    region: region as u16,
                    envoy: 0,
                    worker: 0,
                    identifier: call.identifier,
                    cost: charge.cost,
                    rules: 1 << rule,
                };
                self.check.denied_exactly((*rule, &self.shapes[*rule]), region, &arrival, now_us);
            }
        }
    }

    /// The aggregator has ended during a call, so no part refunds what it was charged.
    pub(super) fn abandon_api_call(&mut self, call: &PendingCall) {
        for (_, charge) in &call.charges {
            self.check.exact.may_remain(key_of(charge), call.id, charge.cost);
        }
    }
}
