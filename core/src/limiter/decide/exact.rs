//! Requests with exact rules: they wait for an exact response, and either all charges are made or none.
//!
//! A cached denial of a log, or a window that would deny, decides without an exact request. Otherwise all exact charges are sent
//! together. Windows are charged only after they pass, as windows can be decided again, while an exact charge would have to be refunded.
//! If the windows or another exact rule deny then, exact charges are refunded. If no response arrives in time, each rule's
//! `on_failure` decides; a late charge is refunded if the request was denied.

use super::charge::UNDECIDED_RETRY_MS;
use super::round::{tighter, worse};
use crate::limiter::Limiter;
use crate::limiter::cache::denials::{KnownDenial, RECHECK_MS};
use crate::limiter::check::{
    Budget, Cause, Check, Decision, Denial, ExactCheck, ExactDetails, ExactLimit, ExactResult, Outcome,
    ShadowOutcome, Transactions,
};
use crate::limiter::remote::consults::Waiting;
use crate::limiter::remote::exact_requests::{Known, Paused, PendingCharge, PendingRequest};
use crate::model::exact::{ChargeResult, Verdict};
use crate::model::key::fingerprint;
use crate::model::shared::Shared;
use crate::model::time::{MonoMs, Now};
use crate::model::wire;
use alloc::vec::Vec;

/// No exact request is sent on a stream whose last answered ping is older than this.
const LIVE_MS: u64 = 1_000;
/// Most outcomes of shadow rules that wait to be taken.
const MAX_SHADOW_OUTCOMES: usize = 4 * crate::limiter::remote::exact_requests::MAX_SHADOW;

/// Outcome of a request's exact rules.
#[derive(Debug, Default)]
struct Settled {
    denial: Option<Denial>,
    budget: Option<Budget>,
    /// The window of each decided rule, in milliseconds.
    windows: Vec<(u16, u64)>,
    undecided: u64,
    transactions: Transactions,
}

/// State of a request until its windows are decided.
#[derive(Debug, Default)]
pub(in crate::limiter) struct PendingExact {
    /// The exact request with its charges.
    request: Option<u64>,
    settled: Settled,
    shadows: Vec<PendingRequest>,
}

impl Limiter {
    /// Decides a request that `exact` rules apply to beside `checks`; else like [`Limiter::decide`].
    pub fn decide_exact(
        &mut self,
        shared: &mut impl Shared,
        request: u64,
        checks: &[Check<'_>],
        exact: &[ExactCheck<'_>],
        now: MonoMs,
    ) -> Outcome {
        self.serves = true;
        let now = self.enter(shared, now);
        let denied =
            self.cached_exact_denial(exact, now.mono).or_else(|| self.certain_denial(shared, checks, now));
        if let Some(denial) = denied {
            return self.refused(shared, checks, denial, now);
        }
        let secret = self.table.secret;
        let enforcing = exact.iter().filter(|check| !check.policy.shadow);
        let shadows = exact.iter().filter(|check| check.policy.shadow);
        let shadows: Vec<PendingRequest> = shadows
            .filter_map(|check| PendingRequest::about([check].into_iter(), secret, now.mono))
            .collect();
        let Some(pending) = PendingRequest::about(enforcing, secret, now.mono) else {
            return self.decide_windows(
                shared,
                request,
                checks,
                PendingExact { shadows, ..PendingExact::default() },
                now,
            );
        };
        if self.may_send(now.mono) && !self.exact_requests.is_full() {
            self.stats.exact_requests += 1;
            self.exact_requests.pause(request, pending, checks, shadows, now.mono);
            return Outcome::of(Decision::Wait, 0);
        }
        self.stats.exact_unsent += 1;
        let pending_exact = PendingExact { request: None, settled: unruled(&pending), shadows };
        self.decide_settled(shared, request, checks, pending_exact, now)
    }

    /// Takes the outcomes of exact shadow rules since the last call, each with its rule.
    pub fn take_shadow_outcomes(&mut self) -> Vec<(u16, ShadowOutcome)> {
        core::mem::take(&mut self.shadow_outcomes)
    }

    /// Applies an exact response.
    pub(in crate::limiter) fn ruled(
        &mut self,
        shared: &mut impl Shared,
        came: &wire::ExactResponse,
        now: Now,
    ) {
        if let Some(Paused { mut pending, request, windows, shadows }) =
            self.exact_requests.paused.remove(&came.id)
        {
            self.count_results(&pending, &came.results);
            self.cache_denials(&pending, &came.results, now.mono);
            let pending_exact =
                PendingExact { request: Some(came.id), settled: settle(&pending, &came.results), shadows };
            pending.known = Known::Ruled(pending.of_charges(came));
            self.exact_requests.open.insert(came.id, pending);
            self.go_on(shared, request, &windows, pending_exact, now);
        } else if let Some(mut pending) = self.exact_requests.open.remove(&came.id) {
            self.cache_denials(&pending, &came.results, now.mono);
            if matches!(pending.known, Known::Awaited) {
                pending.known = Known::Ruled(pending.of_charges(came));
            }
            self.exact_requests.open.insert(came.id, pending);
        } else if let Some(pending) = self.exact_requests.given_up.remove(&came.id) {
            self.cache_denials(&pending, &came.results, now.mono);
            let results = pending.of_charges(came);
            self.exact_requests.take_back(pending.request, results, &mut self.stats);
        } else if let Some(pending) = self.exact_requests.shadow.remove(&came.id) {
            self.count_results(&pending, &came.results);
            self.cache_denials(&pending, &came.results, now.mono);
            for (asked, result) in pending.results(&came.results) {
                let said = match result.verdict {
                    Verdict::Allowed => ShadowOutcome::Allowed,
                    Verdict::Denied { .. } => ShadowOutcome::Denied,
                    Verdict::Undecided | Verdict::Untried => ShadowOutcome::Undecided,
                };
                self.push_shadow_outcome(asked.rule, said);
            }
        }
    }

    /// Ends exact requests whose deadline has passed.
    pub(in crate::limiter) fn expire_exact(&mut self, shared: &mut impl Shared, now: Now) {
        if self.exact_requests.is_idle() {
            return;
        }
        for (id, paused) in self.exact_requests.overdue(now.mono) {
            self.give_up(shared, id, paused, ExactResult::Timeout, now);
        }
        self.exact_requests.forget_given_up(now.mono, &mut self.stats);
        while let Some(pending) = self.exact_requests.next_unheard(now.mono) {
            self.unheard(&pending, ExactResult::Timeout);
        }
    }

    /// Ends all exact requests, as the stream has ended.
    pub(in crate::limiter) fn break_exact(&mut self, shared: &mut impl Shared, now: Now) {
        for pending in core::mem::take(&mut self.exact_requests.shadow).into_values() {
            self.unheard(&pending, ExactResult::Broken);
        }
        for (id, mut paused) in self.exact_requests.lose_all(&mut self.stats) {
            paused.pending.known = Known::Lost;
            self.give_up(shared, id, paused, ExactResult::Broken, now);
        }
    }

    /// Resolves a request that waited, and adds the outcome of its exact rules.
    pub(in crate::limiter) fn resolve(&mut self, request: u64, outcome: Outcome, now: Now) {
        let outcome = match self.pending_exact.remove(&request) {
            Some(pending_exact) => self.finish(pending_exact, outcome, now),
            None => outcome,
        };
        self.resolved.push((request, outcome));
    }

    /// Whether an exact request can be sent now.
    fn may_send(&self, now: MonoMs) -> bool {
        self.link.is_usable() && (self.link.is_first() || now.since(self.link.heard()) <= LIVE_MS)
    }

    /// The longest denial that needs no exact request.
    fn cached_exact_denial(&mut self, exact: &[ExactCheck<'_>], now: MonoMs) -> Option<Denial> {
        let mut denied = None;
        for check in exact.iter().filter(|check| !check.policy.shadow) {
            let ExactLimit::Log { key, most } = check.limit else { continue };
            let budget = Budget { rule: check.rule, limit: most, remaining: 0, reset_ms: 0 };
            let denial = match check.cost > most {
                true => Some(Denial { budget, retry_after_ms: None, cause: Cause::Cost }),
                false => self.known_denial(fingerprint(key, self.table.secret), (check.cost, most), now).map(
                    |known| Denial {
                        budget: Budget {
                            remaining: known.remaining,
                            reset_ms: known.reset.since(now),
                            ..budget
                        },
                        retry_after_ms: Some(known.until.since(now)),
                        cause: Cause::Limit,
                    },
                ),
            };
            denied = worse(denied, denial);
        }
        self.stats.spared += u64::from(denied.is_some_and(|denial| denial.cause == Cause::Limit));
        denied
    }

    fn known_denial(
        &mut self,
        fingerprint: u64,
        cost_and_limit: (u64, u64),
        now: MonoMs,
    ) -> Option<KnownDenial> {
        let may_send = self.may_send(now) && !self.exact_requests.is_full();
        self.denials.find(fingerprint, cost_and_limit, self.version, may_send, now)
    }

    /// Continues a request whose exact rules were decided.
    fn go_on(
        &mut self,
        shared: &mut impl Shared,
        request: u64,
        windows: &Waiting,
        pending_exact: PendingExact,
        now: Now,
    ) {
        let outcome = self.decide_settled(shared, request, &windows.checks(), pending_exact, now);
        if outcome.decision != Decision::Wait {
            self.resolved.push((request, outcome));
        } else if let Some(trace) = &windows.trace {
            self.consults.trace(request, trace);
        }
    }

    /// Ends the wait of a request without a response.
    fn give_up(&mut self, shared: &mut impl Shared, id: u64, paused: Paused, result: ExactResult, now: Now) {
        let Paused { pending, request, windows, shadows } = paused;
        self.stats.ruled(result);
        let pending_exact = PendingExact { request: Some(id), settled: unruled(&pending), shadows };
        self.exact_requests.open.insert(id, pending);
        self.go_on(shared, request, &windows, pending_exact, now);
    }

    /// Denies if the exact rules deny, else decides the windows.
    fn decide_settled(
        &mut self,
        shared: &mut impl Shared,
        request: u64,
        checks: &[Check<'_>],
        pending_exact: PendingExact,
        now: Now,
    ) -> Outcome {
        match pending_exact.settled.denial {
            Some(denial) => {
                let outcome = self.refused(shared, checks, denial, now);
                self.finish(pending_exact, outcome, now)
            }
            None => self.decide_windows(shared, request, checks, pending_exact, now),
        }
    }

    fn decide_windows(
        &mut self,
        shared: &mut impl Shared,
        request: u64,
        checks: &[Check<'_>],
        pending_exact: PendingExact,
        now: Now,
    ) -> Outcome {
        let outcome = match self.round(shared, request, checks, false, now) {
            Ok(outcome) => outcome,
            Err(_) if self.consults.is_full() => self.unanswered(shared, request, checks, now),
            Err(needs) => {
                self.pending_exact.insert(request, pending_exact);
                self.query(request, Waiting::new(checks, now.mono), &needs, now.mono);
                return Outcome::of(Decision::Wait, 0);
            }
        };
        self.finish(pending_exact, outcome, now)
    }

    /// Adds the outcome of the exact rules, and keeps or refunds their charges.
    fn finish(&mut self, pending_exact: PendingExact, mut outcome: Outcome, now: Now) -> Outcome {
        let PendingExact { request, settled, shadows } = pending_exact;
        let shown = match &mut outcome.decision {
            Decision::Allow(budget) => {
                *budget = tighter(*budget, settled.budget);
                *budget
            }
            Decision::Deny(denial) => Some(denial.budget),
            Decision::Wait => None,
        };
        let of_shown = |(rule, _): &&(u16, u64)| shown.is_some_and(|budget| budget.rule == *rule);
        outcome.exact = ExactDetails {
            undecided: settled.undecided,
            window_ms: settled.windows.iter().find(of_shown).map_or(0, |(_, window_ms)| *window_ms),
            transactions: settled.transactions,
        };
        let passes = outcome.passes();
        if let Some(id) = request {
            self.exact_requests.end(id, passes, now.mono, &mut self.stats);
        }
        for pending in shadows.into_iter().filter(|_| passes) {
            self.send_shadow(pending, now.mono);
        }
        outcome
    }

    /// Sends the exact request of a shadow rule, once its request has passed.
    fn send_shadow(&mut self, pending: PendingRequest, now: MonoMs) {
        let Some(asked) = pending.asked.first().copied() else { return };
        if let Some(fingerprint) = asked.fingerprint {
            let known = self.known_denial(fingerprint, (asked.cost, asked.limit), now).is_some();
            self.stats.spared += u64::from(known);
            if known || asked.cost > asked.limit {
                return self.push_shadow_outcome(asked.rule, ShadowOutcome::Denied);
            }
        }
        if self.may_send(now) && self.exact_requests.send_shadow(pending, now) {
            self.stats.exact_requests += 1;
        } else {
            self.stats.exact_unsent += 1;
            self.push_shadow_outcome(asked.rule, ShadowOutcome::Undecided);
        }
    }

    fn unheard(&mut self, pending: &PendingRequest, result: ExactResult) {
        self.stats.ruled(result);
        for asked in &pending.asked {
            self.push_shadow_outcome(asked.rule, ShadowOutcome::Undecided);
        }
    }

    fn push_shadow_outcome(&mut self, rule: u16, said: ShadowOutcome) {
        if self.shadow_outcomes.len() < MAX_SHADOW_OUTCOMES {
            self.shadow_outcomes.push((rule, said));
        }
    }

    fn count_results(&mut self, pending: &PendingRequest, came: &[wire::ChargeResult]) {
        let (mut denied, mut allowed) = (false, true);
        for (_, result) in pending.results(came) {
            denied |= matches!(result.verdict, Verdict::Denied { .. });
            allowed &= result.is_allowed();
        }
        self.stats.ruled(match (denied, allowed) {
            (true, _) => ExactResult::Denied,
            (false, true) => ExactResult::Allowed,
            (false, false) => ExactResult::Undecided,
        });
    }

    /// Caches denials of logs, and removes those that no longer apply. Their time counts from when the request was sent, so that none is
    /// applied too long.
    fn cache_denials(&mut self, pending: &PendingRequest, came: &[wire::ChargeResult], now: MonoMs) {
        let sent = pending.sent.unwrap_or_default();
        for (asked, result) in pending.results(came) {
            let Some(fingerprint) = asked.fingerprint else { continue };
            let retry_after_ms = match result.verdict {
                Verdict::Denied { retry_after_ms: Some(retry_after_ms) } => retry_after_ms,
                Verdict::Allowed => {
                    self.denials.refute(fingerprint, (asked.cost, asked.limit));
                    continue;
                }
                _ => continue,
            };
            let until = sent.after(retry_after_ms);
            if now < until {
                self.denials.put(KnownDenial {
                    fingerprint,
                    version: self.version,
                    cost: asked.cost,
                    limit: asked.limit,
                    until,
                    recheck: now.after(RECHECK_MS),
                    remaining: result.remaining,
                    reset: sent.after(result.reset_ms),
                });
            }
        }
    }
}

/// Outcome of a request by the results of its charges.
fn settle(pending: &PendingRequest, came: &[wire::ChargeResult]) -> Settled {
    let mut settled = Settled::default();
    let is_denied =
        |(_, result): (&PendingCharge, ChargeResult)| matches!(result.verdict, Verdict::Denied { .. });
    let denied = pending.results(came).any(is_denied);
    for (asked, result) in pending.results(came) {
        if let Some(transaction) = result.transaction {
            settled.transactions.push(transaction);
        }
        if result.window_ms > 0 {
            settled.windows.push((asked.rule, result.window_ms));
        }
        let limit = if result.limit > 0 { result.limit } else { asked.limit };
        let ChargeResult { remaining, reset_ms, .. } = result;
        let budget = Budget { rule: asked.rule, limit, remaining, reset_ms };
        match result.verdict {
            Verdict::Allowed => settled.budget = tighter(settled.budget, Some(budget)),
            Verdict::Denied { retry_after_ms } => {
                let cause = if retry_after_ms.is_some() { Cause::Limit } else { Cause::Cost };
                settled.denial = worse(settled.denial, Some(Denial { budget, retry_after_ms, cause }));
            }
            // Another charge was denied, so this one was not tried.
            Verdict::Untried if denied => {}
            Verdict::Untried | Verdict::Undecided => settled.leave_undecided(asked, denied),
        }
    }
    settled
}

/// Outcome of a request without results.
fn unruled(pending: &PendingRequest) -> Settled {
    let mut settled = Settled::default();
    pending.asked.iter().for_each(|asked| settled.leave_undecided(asked, false));
    settled
}

impl Settled {
    /// Leaves a charge undecided: its rules' `on_failure` applies, unless another charge is `denied`.
    fn leave_undecided(&mut self, asked: &PendingCharge, denied: bool) {
        self.undecided |= asked.rules;
        if asked.deny_on_failure && !denied {
            let budget = Budget { rule: asked.rule, limit: asked.limit, remaining: 0, reset_ms: 0 };
            self.denial.get_or_insert(Denial {
                budget,
                retry_after_ms: Some(UNDECIDED_RETRY_MS),
                cause: Cause::Undecided,
            });
        }
    }
}
