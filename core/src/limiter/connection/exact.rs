//! Requests with exact rules: they wait for an exact response, and either all charges are made or none.
//!
//! A cached denial of a log, or a window that would deny, decides without an exact request. Otherwise all exact charges are sent
//! together. Windows are charged only after they pass, as windows can be decided again, while an exact charge would have to be refunded.
//! If the windows or another exact rule deny then, exact charges are refunded. If no response arrives in time, each rule's
//! `on_failure` decides; a late charge is refunded if the request was denied.

use super::Connection;
use super::denials::{CachedDenial, Denials, RECHECK_MS};
use super::exact_requests::{AwaitedRequest, ExactRequests, PendingCharge, PendingRequest, Response};
use super::waiting::{ExactPart, Settled, WaitingRequest};
use crate::limiter::check::{
    Attempt, Budget, Cause, Check, Decision, Denial, ExactDetails, ExactResult, Outcome, ShadowOutcome,
    ShownBudgets, Visibility,
};
use crate::limiter::local::Turn;
use crate::limiter::local::charge::UNDECIDED_RETRY_MS;
use crate::limiter::local::round::{Need, worse};
use crate::model::exact::{Algorithm, ChargeResult, Verdict};
use crate::model::key::fingerprint;
use crate::model::shared::Shared;
use crate::model::time::MonoMs;
use crate::model::wire;
use alloc::vec::Vec;

/// Most outcomes of shadow rules that wait to be taken.
const MAX_SHADOW_OUTCOMES: usize = 4 * super::exact_requests::MAX_SHADOW;

/// State of the exact rules.
#[derive(Debug, Default)]
pub(in crate::limiter) struct Exact {
    pub(in crate::limiter) requests: ExactRequests,
    denials: Denials,
}

impl Connection {
    /// Decides a request that `exact` rules apply to beside the windows of `checks`.
    pub(in crate::limiter) fn decide_exact(
        &mut self,
        turn: &mut Turn<'_, impl Shared>,
        request: u64,
        checks: &[Check<'_>],
        exact: &[Check<'_>],
    ) -> Outcome {
        let denied = self
            .cached_exact_denial(turn, exact)
            .or_else(|| turn.local.certain_denial(turn.shared, checks, turn.now));
        if let Some(denial) = denied {
            return turn.local.refused(turn.shared, checks, denial, turn.now);
        }
        let secret = turn.local.table.secret;
        let enforcing = exact.iter().filter(|check| !check.policy.shadow);
        let shadows = exact.iter().filter(|check| check.policy.shadow);
        let shadows: Vec<PendingRequest> = shadows
            .filter_map(|check| PendingRequest::about([check].into_iter(), secret, turn.now.mono))
            .collect();
        let Some(pending) = PendingRequest::about(enforcing, secret, turn.now.mono) else {
            let exact = ExactPart { shadows, ..ExactPart::default() };
            return self.decide_settled(turn, request, checks, exact);
        };
        if self.may_send(turn.now.mono) && !self.exact.requests.is_full() {
            turn.local.stats.exact_requests += 1;
            self.exact.requests.await_response(request, pending);
            let exact = ExactPart { shadows, ..ExactPart::default() };
            self.waiting.insert(request, WaitingRequest::for_exact_response(checks, exact));
            return Outcome::of(Decision::Wait);
        }
        turn.local.stats.exact_unsent += 1;
        let exact = ExactPart { id: None, settled: without_response(&pending), shadows };
        self.decide_settled(turn, request, checks, exact)
    }

    /// Applies an exact response.
    pub(super) fn on_exact_response(
        &mut self,
        turn: &mut Turn<'_, impl Shared>,
        response: &wire::ExactResponse,
    ) {
        let (id, results) = (response.id, &response.results);
        if let Some(AwaitedRequest { mut pending, request }) = self.exact.requests.awaited.remove(&id) {
            self.count_results(turn, &pending, results);
            self.cache_denials(turn, &pending, results);
            let settled = settle(&pending, results);
            pending.response = Response::Arrived(pending.of_charges(response));
            self.exact.requests.open.insert(id, pending);
            self.go_on(turn, request, id, settled);
        } else if let Some(mut pending) = self.exact.requests.open.remove(&id) {
            self.cache_denials(turn, &pending, results);
            if matches!(pending.response, Response::Awaited) {
                pending.response = Response::Arrived(pending.of_charges(response));
            }
            self.exact.requests.open.insert(id, pending);
        } else if let Some(pending) = self.exact.requests.given_up.remove(&id) {
            self.cache_denials(turn, &pending, results);
            let results = pending.of_charges(response);
            self.exact.requests.take_back(pending.request, results, &mut turn.local.stats);
        } else if let Some(AwaitedRequest { pending, request }) = self.exact.requests.shadow.remove(&id) {
            self.count_results(turn, &pending, results);
            self.cache_denials(turn, &pending, results);
            for (charge, result) in pending.results(results) {
                let outcome = match result.verdict {
                    Verdict::Allowed => ShadowOutcome::Allowed,
                    Verdict::Denied { .. } => ShadowOutcome::Denied,
                    Verdict::Undecided | Verdict::Untried => ShadowOutcome::Undecided,
                };
                self.push_shadow_outcome(request, charge.rule, outcome);
            }
        }
    }

    /// Ends exact requests whose deadline has passed.
    pub(super) fn expire_exact(&mut self, turn: &mut Turn<'_, impl Shared>) {
        if self.exact.requests.is_idle() {
            return;
        }
        for (id, awaited) in self.exact.requests.take_overdue(turn.now.mono) {
            self.give_up(turn, id, awaited, ExactResult::Timeout);
        }
        self.exact.requests.expire_given_up(turn.now.mono, &mut turn.local.stats);
        while let Some(overdue) = self.exact.requests.next_overdue_shadow(turn.now.mono) {
            self.end_shadow(turn, &overdue, ExactResult::Timeout);
        }
    }

    /// Ends all exact requests, as the stream has ended.
    pub(super) fn break_exact(&mut self, turn: &mut Turn<'_, impl Shared>) {
        for lost in core::mem::take(&mut self.exact.requests.shadow).into_values() {
            self.end_shadow(turn, &lost, ExactResult::Broken);
        }
        for (id, mut awaited) in self.exact.requests.lose_all(&mut turn.local.stats) {
            awaited.pending.response = Response::Lost;
            self.give_up(turn, id, awaited, ExactResult::Broken);
        }
    }

    /// Resolves a request that waited, and adds the outcome of its exact rules.
    pub(super) fn resolve(
        &mut self,
        turn: &mut Turn<'_, impl Shared>,
        request: u64,
        exact: ExactPart,
        outcome: Outcome,
    ) {
        let outcome = self.finish(turn, request, exact, outcome);
        self.outputs.resolved.push_back((request, outcome));
    }

    /// Whether an exact request can be sent now.
    fn may_send(&self, now: MonoMs) -> bool {
        self.link.is_usable() && (self.link.is_first() || self.link.is_live(now))
    }

    /// The longest denial that needs no exact request.
    fn cached_exact_denial(
        &mut self,
        turn: &mut Turn<'_, impl Shared>,
        exact: &[Check<'_>],
    ) -> Option<Denial> {
        let mut denied = None;
        for check in exact.iter().filter(|check| !check.policy.shadow) {
            let Check { algorithm: Algorithm::Log, key, limit: most, .. } = *check else { continue };
            let budget = Budget { rule: check.rule, limit: most, remaining: 0, reset_ms: 0 };
            let denial = match check.cost > most {
                true => Some(Denial { budget, retry_after_ms: None, cause: Cause::Cost }),
                false => self
                    .cached_log_denial(
                        turn,
                        fingerprint(key, turn.local.table.secret),
                        Attempt { cost: check.cost, limit: most },
                    )
                    .map(|cached| Denial {
                        budget: Budget {
                            remaining: cached.remaining,
                            reset_ms: cached.reset.since(turn.now.mono),
                            ..budget
                        },
                        retry_after_ms: Some(cached.until.since(turn.now.mono)),
                        cause: Cause::Limit,
                    }),
            };
            denied = worse(denied, denial);
        }
        turn.local.stats.spared += u64::from(denied.is_some_and(|denial| denial.cause == Cause::Limit));
        denied
    }

    fn cached_log_denial(
        &mut self,
        turn: &mut Turn<'_, impl Shared>,
        fingerprint: u64,
        attempt: Attempt,
    ) -> Option<CachedDenial> {
        let may_send = self.may_send(turn.now.mono) && !self.exact.requests.is_full();
        self.exact.denials.find(fingerprint, attempt, turn.local.clock_steps, may_send, turn.now.mono)
    }

    /// Continues a request whose exact rules were decided by the exact request of `id`.
    fn go_on(&mut self, turn: &mut Turn<'_, impl Shared>, request: u64, id: u64, settled: Settled) {
        let Some(mut waiting) = self.waiting.remove(request) else {
            return self.exact.requests.end(id, false, turn.now.mono, &mut turn.local.stats);
        };
        let denial = settled.denial;
        (waiting.exact.id, waiting.exact.settled) = (Some(id), settled);
        match self.outcome_after(turn, request, &waiting.windows(), denial) {
            Ok(outcome) => self.resolve(turn, request, waiting.exact, outcome),
            Err(needs) => {
                waiting.wait_for_answers(turn.now.mono);
                self.query(turn, request, waiting, &needs);
            }
        }
    }

    /// Ends the wait of a request without a response.
    fn give_up(
        &mut self,
        turn: &mut Turn<'_, impl Shared>,
        id: u64,
        awaited: AwaitedRequest,
        result: ExactResult,
    ) {
        let AwaitedRequest { pending, request } = awaited;
        turn.local.stats.count_exact(result);
        let settled = without_response(&pending);
        self.exact.requests.open.insert(id, pending);
        self.go_on(turn, request, id, settled);
    }

    /// Decides a new request whose exact rules are settled, or makes it wait for answers about its windows.
    fn decide_settled(
        &mut self,
        turn: &mut Turn<'_, impl Shared>,
        request: u64,
        windows: &[Check<'_>],
        exact: ExactPart,
    ) -> Outcome {
        match self.outcome_after(turn, request, windows, exact.settled.denial) {
            Ok(outcome) => self.finish(turn, request, exact, outcome),
            Err(needs) => {
                let waiting = WaitingRequest::for_answers(windows, exact, turn.now.mono);
                self.query(turn, request, waiting, &needs);
                Outcome::of(Decision::Wait)
            }
        }
    }

    /// The outcome of a request whose exact rules have led to `denial`, or the queries that its windows need first.
    fn outcome_after(
        &mut self,
        turn: &mut Turn<'_, impl Shared>,
        request: u64,
        windows: &[Check<'_>],
        denial: Option<Denial>,
    ) -> Result<Outcome, Vec<Need>> {
        match denial {
            Some(denial) => Ok(turn.local.refused(turn.shared, windows, denial, turn.now)),
            None => self.decide_windows(turn, request, windows),
        }
    }

    /// Adds the outcome of the exact rules, and keeps or refunds their charges.
    fn finish(
        &mut self,
        turn: &mut Turn<'_, impl Shared>,
        request: u64,
        exact: ExactPart,
        mut outcome: Outcome,
    ) -> Outcome {
        let ExactPart { id, settled, shadows } = exact;
        if let Decision::Allow(budget) = &mut outcome.decision {
            let mut left = ShownBudgets { first: *budget, listed: core::mem::take(&mut outcome.budgets) };
            if left.listed.is_empty() && !settled.left.listed.is_empty() {
                left.listed.extend(*budget);
            }
            left.extend(settled.left);
            (*budget, outcome.budgets) = (left.first, left.listed);
        }
        outcome.exact = ExactDetails {
            undecided: settled.undecided,
            windows: settled.windows,
            transactions: settled.transactions,
        };
        let passes = outcome.passes();
        if let Some(id) = id {
            self.exact.requests.end(id, passes, turn.now.mono, &mut turn.local.stats);
        }
        for pending in shadows.into_iter().filter(|_| passes) {
            self.send_shadow(turn, request, pending);
        }
        outcome
    }

    /// Sends the exact request of a shadow rule, once its request has passed.
    fn send_shadow(&mut self, turn: &mut Turn<'_, impl Shared>, request: u64, pending: PendingRequest) {
        let Some(charge) = pending.charges.first().cloned() else { return };
        if let Some(fingerprint) = charge.fingerprint {
            let denied = self.cached_log_denial(turn, fingerprint, charge.attempt()).is_some();
            turn.local.stats.spared += u64::from(denied);
            if denied || charge.cost > charge.limit {
                return self.push_shadow_outcome(request, charge.rule, ShadowOutcome::Denied);
            }
        }
        if self.may_send(turn.now.mono) && self.exact.requests.send_shadow(request, pending, turn.now.mono) {
            turn.local.stats.exact_requests += 1;
        } else {
            turn.local.stats.exact_unsent += 1;
            self.push_shadow_outcome(request, charge.rule, ShadowOutcome::Undecided);
        }
    }

    /// Leaves the exact request of a shadow rule undecided.
    fn end_shadow(&mut self, turn: &mut Turn<'_, impl Shared>, ended: &AwaitedRequest, result: ExactResult) {
        turn.local.stats.count_exact(result);
        for charge in &ended.pending.charges {
            self.push_shadow_outcome(ended.request, charge.rule, ShadowOutcome::Undecided);
        }
    }

    fn push_shadow_outcome(&mut self, request: u64, rule: u16, outcome: ShadowOutcome) {
        if self.outputs.shadow.len() < MAX_SHADOW_OUTCOMES {
            self.outputs.shadow.push_back((request, rule, outcome));
        }
    }

    fn count_results(
        &mut self,
        turn: &mut Turn<'_, impl Shared>,
        pending: &PendingRequest,
        results: &[wire::ChargeResult],
    ) {
        let (mut denied, mut allowed) = (false, true);
        for (_, result) in pending.results(results) {
            denied |= matches!(result.verdict, Verdict::Denied { .. });
            allowed &= result.is_allowed();
        }
        turn.local.stats.count_exact(match (denied, allowed) {
            (true, _) => ExactResult::Denied,
            (false, true) => ExactResult::Allowed,
            (false, false) => ExactResult::Undecided,
        });
    }

    /// Caches denials of logs, and removes those that no longer apply. Their time counts from when the request was sent, so that none is
    /// applied too long.
    fn cache_denials(
        &mut self,
        turn: &mut Turn<'_, impl Shared>,
        pending: &PendingRequest,
        results: &[wire::ChargeResult],
    ) {
        let sent = pending.sent.unwrap_or_default();
        for (charge, result) in pending.results(results) {
            let Some(fingerprint) = charge.fingerprint else { continue };
            let retry_after_ms = match result.verdict {
                Verdict::Denied { retry_after_ms: Some(retry_after_ms) } => retry_after_ms,
                Verdict::Allowed => {
                    self.exact.denials.refute(fingerprint, charge.attempt());
                    continue;
                }
                _ => continue,
            };
            let until = sent.after(retry_after_ms);
            if turn.now.mono < until {
                self.exact.denials.put(CachedDenial {
                    fingerprint,
                    clock_steps: turn.local.clock_steps,
                    attempt: charge.attempt(),
                    until,
                    recheck: turn.now.mono.after(RECHECK_MS),
                    remaining: result.remaining,
                    reset: sent.after(result.reset_ms),
                });
            }
        }
    }
}

/// Outcome of a request by the results of its charges.
fn settle(pending: &PendingRequest, results: &[wire::ChargeResult]) -> Settled {
    let mut settled = Settled::default();
    let is_denied =
        |(_, result): (&PendingCharge, ChargeResult)| matches!(result.verdict, Verdict::Denied { .. });
    let denied = pending.results(results).any(is_denied);
    for (charge, result) in pending.results(results) {
        if let Some(transaction) = result.transaction.filter(|_| charge.visibility != Visibility::Hidden) {
            settled.transactions.push(transaction);
        }
        if result.window_ms > 0 {
            settled.windows.push((charge.rule, result.window_ms));
        }
        let limit = if result.limit > 0 { result.limit } else { charge.limit };
        let ChargeResult { remaining, reset_ms, .. } = result;
        let budget = Budget { rule: charge.rule, limit, remaining, reset_ms };
        match result.verdict {
            Verdict::Allowed => settled.left.add(budget, charge.visibility),
            Verdict::Denied { retry_after_ms } => {
                let cause = if retry_after_ms.is_some() { Cause::Limit } else { Cause::Cost };
                settled.denial = worse(settled.denial, Some(Denial { budget, retry_after_ms, cause }));
            }
            // Another charge was denied, so this one was not tried.
            Verdict::Untried if denied => {}
            Verdict::Untried | Verdict::Undecided => settled.leave_undecided(charge, denied),
        }
    }
    settled
}

/// Outcome of a request without results.
fn without_response(pending: &PendingRequest) -> Settled {
    let mut settled = Settled::default();
    pending.charges.iter().for_each(|charge| settled.leave_undecided(charge, false));
    settled
}

impl Settled {
    /// Leaves a charge undecided: its rules' `on_failure` applies, unless another charge is `denied`.
    fn leave_undecided(&mut self, charge: &PendingCharge, denied: bool) {
        self.undecided.extend(&charge.rules);
        if charge.deny_on_failure && !denied {
            let budget = Budget { rule: charge.rule, limit: charge.limit, remaining: 0, reset_ms: 0 };
            self.denial.get_or_insert(Denial {
                budget,
                retry_after_ms: Some(UNDECIDED_RETRY_MS),
                cause: Cause::Undecided,
            });
        }
    }
}
