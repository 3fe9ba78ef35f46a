//! Exact requests on their way, the requests that wait for them, and the refunds of their charges.
//!
//! ```text
//! awaited ─ response, timeout, end of the stream ─→ open ─ the request passes ─→ removed, the charges stay
//!                                                        ─ it is denied ─→ given up until its response has arrived,
//! shadow ─ response, timeout ─→ outcome                                     then its charges are refunded
//! ```
//! Each list is bounded. A request that must be removed before its response is refunded unseen: a refund of a charge that was never made
//! has no effect.

use crate::limiter::check::{Attempt, Check, Visibility};
use crate::limiter::rule_set::RuleSet;
use crate::limiter::stats::Stats;
use crate::model::exact::{ChargeResult, Verdict};
use crate::model::key::{HashKey, fingerprint};
use crate::model::time::MonoMs;
use crate::model::wire;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use prost::Message;

/// Most requests that wait for an exact response at once; for further ones none is sent.
pub(in crate::limiter) const MAX_AWAITED: usize = 16_384;
/// Most exact requests of shadow rules under way; further ones are not sent.
pub(super) const MAX_SHADOW: usize = 1_024;
/// Most denied requests whose exact response has not arrived; beyond that the oldest is refunded unseen.
pub(in crate::limiter) const MAX_GIVEN_UP: usize = 4_096;
/// Most refunds that wait for a stream or for a confirmation; further charges stay.
pub(super) const MAX_REFUNDS: usize = 4_096;
/// Time beyond the deadline after which a response is no longer expected.
pub(in crate::limiter) const LATE_MS: u64 = 5_000;
/// Bytes of an item in a frame besides its own: a tag and a length.
const FRAMING_BYTES: usize = 8;

/// One charge of an exact request, and its rules.
#[derive(Clone, Debug)]
pub(super) struct PendingCharge {
    /// The rule that outcomes name.
    pub(super) rule: u16,
    /// All rules of the charge.
    pub(super) rules: RuleSet,
    /// One of them has `on_failure: deny`.
    pub(super) deny_on_failure: bool,
    /// What clients see of any of them.
    pub(super) visibility: Visibility,
    /// Fingerprint of a log's key; denials of ledgers are not cached.
    pub(super) fingerprint: Option<u64>,
    pub(super) cost: u64,
    /// A log's limit; 0 for a ledger.
    pub(super) limit: u64,
}

impl PendingCharge {
    pub(super) fn attempt(&self) -> Attempt {
        Attempt { cost: self.cost, limit: self.limit }
    }
}

/// The response to an exact request.
#[derive(Debug, Default)]
pub(super) enum Response {
    #[default]
    Awaited,
    /// No response will arrive.
    Lost,
    Arrived(Vec<wire::ChargeResult>),
}

#[derive(Debug)]
pub(in crate::limiter) struct PendingRequest {
    pub(super) request: wire::ExactRequest,
    /// For each charge.
    pub(super) charges: Vec<PendingCharge>,
    pub(super) sent: Option<MonoMs>,
    /// The deadline.
    pub(super) until: MonoMs,
    pub(super) response: Response,
}

/// An exact request, and the request that it is sent for.
#[derive(Debug)]
pub(in crate::limiter) struct AwaitedRequest {
    pub(super) pending: PendingRequest,
    pub(super) request: u64,
}

#[derive(Debug, Default)]
pub(in crate::limiter) struct ExactRequests {
    last_id: u64,
    unsent: Vec<u64>,
    pub(in crate::limiter) awaited: BTreeMap<u64, AwaitedRequest>,
    pub(in crate::limiter) open: BTreeMap<u64, PendingRequest>,
    pub(in crate::limiter) given_up: BTreeMap<u64, PendingRequest>,
    pub(super) shadow: BTreeMap<u64, AwaitedRequest>,
    refunds: VecDeque<wire::Refund>,
    /// Refunds that were sent and not confirmed yet, with the time of sending.
    sent_refunds: VecDeque<(MonoMs, wire::Refund)>,
}

impl PendingRequest {
    /// An exact request for all `checks`. Checks of one limit are coalesced: largest cost, lowest limit. `None` if there are none.
    pub(super) fn about<'a>(
        checks: impl Iterator<Item = &'a Check<'a>>,
        secret: HashKey,
        now: MonoMs,
    ) -> Option<PendingRequest> {
        let mut request = wire::ExactRequest::default();
        let mut charges: Vec<PendingCharge> = Vec::new();
        let mut timeout_ms = u32::MAX;
        for check in checks {
            timeout_ms = timeout_ms.min(check.policy.timeout_ms);
            let (charge, new) = charge(check, secret);
            match request.charges.iter_mut().position(|other| same_limit(other, &charge)) {
                Some(at) => {
                    if let (Some(other), Some(merged)) = (request.charges.get_mut(at), charges.get_mut(at)) {
                        coalesce(other, merged, &new);
                    }
                }
                None => {
                    request.charges.push(charge);
                    charges.push(new);
                }
            }
        }
        request.timeout_ms = timeout_ms;
        let until = now.after(u64::from(timeout_ms));
        (!charges.is_empty()).then_some(PendingRequest {
            request,
            charges,
            sent: None,
            until,
            response: Response::Awaited,
        })
    }

    /// The results for its charges, without excess ones, to be returned in a refund.
    pub(super) fn of_charges(&self, response: &wire::ExactResponse) -> Vec<wire::ChargeResult> {
        response.results.iter().take(self.charges.len()).cloned().collect()
    }

    /// The result of each charge; a missing one is undecided.
    pub(super) fn results<'a>(
        &'a self,
        results: &'a [wire::ChargeResult],
    ) -> impl Iterator<Item = (&'a PendingCharge, ChargeResult)> {
        let results =
            results.iter().map(ChargeResult::from_wire).chain(core::iter::repeat(ChargeResult::UNDECIDED));
        self.charges.iter().zip(results)
    }
}

impl ExactRequests {
    /// Whether nothing is under way.
    pub(in crate::limiter) fn is_idle(&self) -> bool {
        self.awaited.is_empty() && self.given_up.is_empty() && self.shadow.is_empty()
    }

    /// Whether nothing is under way, and no refund waits to be sent or confirmed.
    pub(super) fn is_settled(&self) -> bool {
        self.is_idle() && self.open.is_empty() && self.refunds.is_empty() && self.sent_refunds.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.awaited.len() >= MAX_AWAITED
    }

    /// Makes `request` wait for the response to `pending`.
    pub(super) fn await_response(&mut self, request: u64, mut pending: PendingRequest) {
        let id = self.assign_id(&mut pending);
        self.awaited.insert(id, AwaitedRequest { pending, request });
    }

    /// Sets the trace context of the last exact request, if it is of `request`.
    pub(super) fn set_trace(&mut self, request: u64, trace: wire::Trace) {
        if let Some(mut last) = self.awaited.last_entry().filter(|last| last.get().request == request) {
            last.get_mut().pending.request.trace = Some(trace);
        }
    }

    /// Sends the exact request of a shadow rule. False if too many are under way.
    pub(super) fn send_shadow(&mut self, request: u64, mut pending: PendingRequest, now: MonoMs) -> bool {
        if self.shadow.len() >= MAX_SHADOW {
            return false;
        }
        pending.until = now.after(u64::from(pending.request.timeout_ms).saturating_add(LATE_MS));
        let id = self.assign_id(&mut pending);
        self.shadow.insert(id, AwaitedRequest { pending, request });
        true
    }

    /// Ends the request of `id`: its charges stay if it passes, and are refunded if not.
    pub(super) fn end(&mut self, id: u64, passes: bool, now: MonoMs, stats: &mut Stats) {
        let Some(mut pending) = self.open.remove(&id) else { return };
        if passes || pending.sent.is_none() {
            return;
        }
        match core::mem::take(&mut pending.response) {
            Response::Arrived(results) => self.take_back(pending.request, results, stats),
            Response::Lost => self.refund(pending.request, Vec::new(), stats),
            Response::Awaited => {
                pending.until = now.after(LATE_MS);
                self.given_up.insert(id, pending);
                if self.given_up.len() > MAX_GIVEN_UP
                    && let Some((_, oldest)) = self.given_up.pop_first()
                {
                    self.refund(oldest.request, Vec::new(), stats);
                }
            }
        }
    }

    /// Refunds what is allowed in `results`, if anything is.
    pub(super) fn take_back(
        &mut self,
        request: wire::ExactRequest,
        results: Vec<wire::ChargeResult>,
        stats: &mut Stats,
    ) {
        if results.iter().any(|result| ChargeResult::from_wire(result).verdict == Verdict::Allowed) {
            self.refund(request, results, stats);
        }
    }

    /// Removes the requests whose deadline has passed.
    pub(super) fn take_overdue(&mut self, now: MonoMs) -> Vec<(u64, AwaitedRequest)> {
        let late = self.awaited.iter().filter(|(_, awaited)| awaited.pending.until <= now);
        let late: Vec<u64> = late.map(|(id, _)| *id).collect();
        late.into_iter().filter_map(|id| self.awaited.remove(&id).map(|awaited| (id, awaited))).collect()
    }

    /// Refunds requests whose response is no longer expected.
    pub(super) fn expire_given_up(&mut self, now: MonoMs, stats: &mut Stats) {
        while let Some(oldest) = self.given_up.first_entry().filter(|oldest| oldest.get().until <= now) {
            let pending = oldest.remove();
            self.refund(pending.request, Vec::new(), stats);
        }
    }

    /// Removes a shadow rule's request whose response is no longer expected.
    pub(super) fn next_overdue_shadow(&mut self, now: MonoMs) -> Option<AwaitedRequest> {
        let oldest = self.shadow.first_entry().filter(|oldest| oldest.get().pending.until <= now)?;
        Some(oldest.remove())
    }

    /// Ends all requests, as the stream has ended. Returns those that requests wait for.
    pub(super) fn lose_all(&mut self, stats: &mut Stats) -> BTreeMap<u64, AwaitedRequest> {
        self.unsent.clear();
        for pending in self.open.values_mut() {
            if matches!(pending.response, Response::Awaited) {
                pending.response = Response::Lost;
            }
        }
        while let Some((_, refund)) = self.sent_refunds.pop_back() {
            self.refunds.push_front(refund);
        }
        for pending in core::mem::take(&mut self.given_up).into_values() {
            self.refund(pending.request, Vec::new(), stats);
        }
        core::mem::take(&mut self.awaited)
    }

    /// The frames to send now, exact requests first, as requests wait for them. All that was sent before a ping that was answered on the
    /// same stream, the last one at `echo`, has arrived.
    pub(super) fn take_frames(&mut self, echo: MonoMs, now: MonoMs, frames: &mut Vec<wire::FilterFrame>) {
        let mut exact_requests = Vec::new();
        for id in core::mem::take(&mut self.unsent) {
            if let Some(awaited) = self.awaited.get_mut(&id) {
                let left = awaited.pending.until.since(now);
                awaited.pending.request.timeout_ms = u32::try_from(left).unwrap_or(u32::MAX).max(1);
            }
            let Some(AwaitedRequest { pending, .. }) =
                self.awaited.get_mut(&id).or_else(|| self.shadow.get_mut(&id))
            else {
                continue;
            };
            pending.sent = Some(now);
            exact_requests.push(pending.request.clone());
        }
        let framed = |exact_requests| wire::FilterFrame { exact_requests, ..Default::default() };
        pack(exact_requests.into_iter(), framed, frames);
        let framed = |refunds| wire::FilterFrame { refunds, ..Default::default() };
        while self.sent_refunds.pop_front_if(|(sent, _)| *sent < echo).is_some() {}
        self.sent_refunds.extend(self.refunds.iter().map(|refund| (now, refund.clone())));
        pack(self.refunds.drain(..), framed, frames);
    }

    fn refund(&mut self, request: wire::ExactRequest, results: Vec<wire::ChargeResult>, stats: &mut Stats) {
        if self.refunds.len() + self.sent_refunds.len() >= MAX_REFUNDS {
            stats.refunds_lost += 1;
            return;
        }
        stats.refunds += 1;
        // A refund needs no trace context.
        let request = Some(wire::ExactRequest { trace: None, ..request });
        self.refunds.push_back(wire::Refund { request, results });
    }

    fn assign_id(&mut self, pending: &mut PendingRequest) -> u64 {
        self.last_id += 1;
        pending.request.id = self.last_id;
        self.unsent.push(self.last_id);
        self.last_id
    }
}

/// Packs as many of `items` into each frame as fit.
fn pack<T: Message>(
    items: impl Iterator<Item = T>,
    framed: impl Fn(Vec<T>) -> wire::FilterFrame,
    frames: &mut Vec<wire::FilterFrame>,
) {
    let (mut some, mut bytes) = (Vec::new(), 0usize);
    for item in items {
        let more = item.encoded_len() + FRAMING_BYTES;
        if !some.is_empty() && (some.len() >= wire::MAX_FRAME_CELLS || bytes + more > wire::MAX_FRAME_BYTES) {
            frames.push(framed(core::mem::take(&mut some)));
            bytes = 0;
        }
        bytes += more;
        some.push(item);
    }
    if !some.is_empty() {
        frames.push(framed(some));
    }
}

fn charge(check: &Check<'_>, secret: HashKey) -> (wire::Charge, PendingCharge) {
    let Check { rule, algorithm, key, limit, cost, policy, .. } = *check;
    let has_limit = algorithm.zone().is_none();
    let pending = PendingCharge {
        rule,
        rules: RuleSet::of(rule),
        deny_on_failure: policy.deny_on_failure,
        visibility: policy.visibility,
        fingerprint: has_limit.then(|| fingerprint(key, secret)),
        cost,
        limit: if has_limit { limit } else { 0 },
    };
    (algorithm.charge_to_wire(key, limit, cost), pending)
}

fn same_limit(one: &wire::Charge, other: &wire::Charge) -> bool {
    let logs = one.log.as_ref().map(|log| &log.key) == other.log.as_ref().map(|log| &log.key);
    logs && one.ledger == other.ledger
}

/// Adds a rule to a charge.
fn coalesce(charge: &mut wire::Charge, merged: &mut PendingCharge, new: &PendingCharge) {
    if new.limit < merged.limit {
        (merged.limit, merged.rule) = (new.limit, new.rule);
        if let Some(log) = &mut charge.log {
            log.most = new.limit;
        }
    }
    merged.cost = merged.cost.max(new.cost);
    charge.cost = merged.cost;
    merged.rules.extend(&new.rules);
    merged.deny_on_failure |= new.deny_on_failure;
    merged.visibility = merged.visibility.max(new.visibility);
}
