//! Decides the limits of one call, and makes its response.
//!
//! In this order:
//! 1. Refunds. They deny nothing.
//! 2. Limits whose descriptors state their own hits, such as the tokens of a response: each by itself. What does not fit is
//!    charged in full nevertheless, unless the limit was exceeded before, so that it counts and denies later calls.
//! 3. Quotas are read. If no quota has room, the call is denied.
//! 4. All other enforced limits, with each quota that has room: all pass and are charged, or none.
//! 5. If the call passes, each limit in shadow mode. Otherwise those are only read.
//!
//! What is read decides only what is tried. What is charged is decided as it is charged.
//!
//! A call that passes these and has a limit that cannot be served is not decided; the caller's rule for failures applies.

use super::call::{Applied, AppliedLimits, Part, Refused};
use super::dynamic_metadata;
use super::settings::Answering;
use super::waits::{Tried, Waits};
use super::wire::{Code, DescriptorStatus, HeaderValue, RateLimit, RateLimitRequest, RateLimitResponse};
use crate::api::embedded::{CountedKey, EmbeddedLimiter, Failure, LimitCheck};
use crate::telemetry::metrics::limits::{Decided, LimitSeries};
use prost_types::{Duration as ProtoDuration, Struct};
use std::collections::HashSet;
use std::time::Duration;
use tokio::time::Instant;
use weir_core::limiter::Budget;
use weir_core::model::exact::{ChargeResult, Verdict};

/// Longest value of the header that names exceeded limits, in bytes.
const MAX_EXCEEDED_BYTES: usize = 1_024;

/// How a call ended, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Allowed.
    Allowed,
    /// Allowed, but a limit in shadow mode would have denied it.
    ShadowDenied,
    /// Denied by a limit.
    Denied,
}

/// What a call is decided with.
#[derive(Clone, Copy)]
pub struct CallContext<'a> {
    /// The embedded limiter.
    pub embedded: &'a EmbeddedLimiter,
    /// The service's settings.
    pub answering: &'a Answering,
}

/// A limit of the call.
#[derive(Clone, Copy)]
struct Limit<'a> {
    /// Its position among the limits of the call.
    at: usize,
    /// The position of its descriptor.
    descriptor: usize,
    shown: &'a RateLimit,
    part: Part,
    check: &'a LimitCheck,
    metadata: Option<&'a Struct>,
    series: Option<&'a LimitSeries>,
}

/// The decision on a limit.
#[derive(Clone, Copy)]
struct Decision {
    result: ChargeResult,
    /// The limit is exceeded.
    over: bool,
}

impl Decision {
    fn of(result: ChargeResult) -> Decision {
        Decision { result, over: matches!(result.verdict, Verdict::Denied { .. }) }
    }
}

impl CallContext<'_> {
    /// Answers a call within the given time; `of` has the limits of its descriptors.
    pub async fn answer(
        self,
        request: &RateLimitRequest,
        of: &AppliedLimits,
        within: Duration,
    ) -> Result<(RateLimitResponse, Outcome), Refused> {
        let AppliedLimits { all: applied, descriptors } = of;
        let deadline = Instant::now() + within;
        let placed = applied.iter().zip(descriptors).enumerate();
        let limits: Vec<Limit<'_>> =
            placed.filter_map(|(at, (one, descriptor))| self.limit(at, *descriptor, one)).collect();
        let mut decisions: Vec<Option<Decision>> = vec![None; applied.len()];
        for Limit { at, part, check, .. } in &limits {
            decisions[*at] = match part {
                Part { refund: true, .. } => Some(self.give_back(check, deadline).await?),
                Part { own_hits: true, .. } => Some(self.charge_alone(check, deadline).await?),
                _ => None,
            };
        }
        // Those that are left to decide, by kind.
        let left: Vec<Limit<'_>> =
            limits.iter().filter(|limit| decisions[limit.at].is_none()).copied().collect();
        let (shadowed, left): (Vec<_>, Vec<_>) = left.into_iter().partition(|limit| limit.part.shadow);
        let (quotas, enforced): (Vec<_>, Vec<_>) = left.into_iter().partition(|limit| limit.part.quota);
        for quota in &quotas {
            decisions[quota.at] = Some(self.read(quota.check, deadline).await?);
        }
        let enforced_over =
            limits.iter().any(|limit| limit.part.denies_alone() && is_over(&decisions, limit));
        let tries = !enforced_over && !self.quotas_deny(applied, &limits, &decisions);
        let charged = if tries {
            let parts = (limits.as_slice(), enforced.as_slice(), quotas.as_slice());
            self.charge_together(applied, parts, &mut decisions, deadline).await?
        } else {
            for limit in &enforced {
                decisions[limit.at] = Some(self.read(limit.check, deadline).await?);
            }
            None
        };
        let passes = charged.is_some();
        let mut charged = charged.unwrap_or_default();
        for limit in &shadowed {
            // If the key has been charged already, or the call is denied, the count is only read.
            decisions[limit.at] = if passes && charged.insert(limit.check.counted_key()) {
                let (_, results) = self.charge(&[limit.check], deadline).await?;
                results.first().copied().map(Decision::of)
            } else {
                Some(self.read_above(limit.check, deadline).await?)
            };
        }
        // The other limits of the call count, as callers let it pass unless they are told otherwise.
        let unserved = applied.iter().position(|one| *one == Applied::Unserved);
        match unserved.filter(|_| passes && !self.answering.shadow_mode) {
            Some(at) => Err(Refused::Unserved(descriptors.get(at).copied().unwrap_or(at))),
            None => {
                count(request, &limits, &decisions);
                Ok(self.respond(request, of, &limits, &decisions, passes))
            }
        }
    }

    /// Charges the enforced limits, and with them each quota that has room: all of these or none, in one step, so a call that is denied
    /// charges nothing. A quota whose room others have used up meanwhile is left out of the next attempt, unless all are over then. Returns
    /// the keys that are charged; `None` if the call is denied.
    async fn charge_together(
        self,
        applied: &[Applied],
        (limits, enforced, quotas): (&[Limit<'_>], &[Limit<'_>], &[Limit<'_>]),
        decisions: &mut [Option<Decision>],
        deadline: Instant,
    ) -> Result<Option<HashSet<CountedKey>>, Refused> {
        loop {
            let mut keys: HashSet<_> = enforced.iter().map(|limit| limit.check.counted_key()).collect();
            let joins = |quota: &&Limit<'_>| {
                !is_quota_over(limits, decisions, quota) && keys.insert(quota.check.counted_key())
            };
            let joined: Vec<&Limit<'_>> = quotas.iter().filter(joins).collect();
            let tried: Vec<&Limit<'_>> = enforced.iter().chain(joined).collect();
            let checks: Vec<&LimitCheck> = tried.iter().map(|limit| limit.check).collect();
            let (allowed, results) = self.charge(&checks, deadline).await?;
            let mut left_out = false;
            for (limit, decision) in tried.iter().zip(results.into_iter().map(Decision::of)) {
                left_out |= limit.part.quota && decision.over;
                // A quota that was not charged keeps what was read, unless it is over.
                if allowed || !limit.part.quota || decision.over {
                    decisions[limit.at] = Some(decision);
                }
            }
            if allowed {
                return Ok(Some(keys));
            }
            let denied = enforced.iter().any(|limit| is_over(decisions, limit));
            if denied || !left_out || self.quotas_deny(applied, limits, decisions) {
                return Ok(None);
            }
        }
    }

    /// Whether all quotas of the call are over. One in shadow mode never is; nor, where every descriptor is a quota, one without
    /// a limit.
    fn quotas_deny(self, applied: &[Applied], limits: &[Limit<'_>], decisions: &[Option<Decision>]) -> bool {
        let mut quotas = limits.iter().filter(|limit| limit.part.quota && !limit.part.refund);
        self.quotas_may_deny(applied, limits) && quotas.all(|quota| is_quota_over(limits, decisions, quota))
    }

    /// Whether the call is denied if all of its quotas are over.
    fn quotas_may_deny(self, applied: &[Applied], limits: &[Limit<'_>]) -> bool {
        let quotas = || limits.iter().filter(|limit| limit.part.quota && !limit.part.refund);
        let unlimited = || self.answering.quota_mode && applied.contains(&Applied::Nothing);
        quotas().next().is_some() && !quotas().any(|limit| limit.part.shadow) && !unlimited()
    }

    /// The limit at this position, with the settings that hold for all.
    fn limit<'a>(self, at: usize, descriptor: usize, applied: &'a Applied) -> Option<Limit<'a>> {
        let Applied::Limit { shown, part, check, metadata, series } = applied else { return None };
        let Answering { shadow_mode, quota_mode, .. } = *self.answering;
        let part = Part { shadow: part.shadow || shadow_mode, quota: part.quota || quota_mode, ..*part };
        let (metadata, series) = (metadata.as_deref(), series.as_deref());
        Some(Limit { at, descriptor, shown, part, check, metadata, series })
    }

    /// Charges all or none.
    async fn charge(
        self,
        checks: &[&LimitCheck],
        deadline: Instant,
    ) -> Result<(bool, Vec<ChargeResult>), Refused> {
        let checks: Vec<LimitCheck> = checks.iter().map(|check| (*check).clone()).collect();
        let answer = self.embedded.decide(&checks, Failure::Deny, left(deadline)).await;
        if answer.results.iter().any(|result| result.verdict == Verdict::Undecided) {
            return Err(Refused::Undecided);
        }
        Ok((answer.allowed, answer.results))
    }

    /// Charges one limit in full, unless it is exceeded already; denies what does not fit.
    async fn charge_alone(self, check: &LimitCheck, deadline: Instant) -> Result<Decision, Refused> {
        let (allowed, results) = self.charge(&[check], deadline).await?;
        if allowed || check.cost == 0 {
            return Ok(Decision::of(results.first().copied().unwrap_or(ChargeResult::UNDECIDED)));
        }
        // A cost above the limit is denied whatever the counts are, so these may not have been queried yet.
        let read = self.read_above(check, deadline).await?;
        if read.over || !self.embedded.charge_unless_exceeded(check).ok_or(Refused::Undecided)? {
            return Ok(Decision { over: true, ..read });
        }
        let charged = self.read_above(check, deadline).await?;
        Ok(Decision { over: true, ..charged })
    }

    /// Reads a count, and whether the cost would pass now.
    async fn read(self, check: &LimitCheck, deadline: Instant) -> Result<Decision, Refused> {
        let read = self.read_above(check, deadline).await?;
        Ok(Decision { over: read.over || read.result.remaining < check.cost, ..read })
    }

    /// Reads a count, and whether it is above its limit.
    async fn read_above(self, check: &LimitCheck, deadline: Instant) -> Result<Decision, Refused> {
        let read = [LimitCheck { cost: 0, ..check.clone() }];
        let answer = self.embedded.decide(&read, Failure::Deny, left(deadline)).await;
        let result = answer.results.first().copied().unwrap_or(ChargeResult::UNDECIDED);
        if result.verdict == Verdict::Undecided {
            return Err(Refused::Undecided);
        }
        Ok(Decision::of(result))
    }

    async fn give_back(self, check: &LimitCheck, deadline: Instant) -> Result<Decision, Refused> {
        // What counts in the region bounds what can be given back.
        self.read_above(check, deadline).await?;
        self.embedded.give_back(check);
        let read = self.read_above(check, deadline).await?;
        Ok(Decision { over: false, ..read })
    }

    fn respond(
        self,
        request: &RateLimitRequest,
        AppliedLimits { all: applied, descriptors }: &AppliedLimits,
        limits: &[Limit<'_>],
        decisions: &[Option<Decision>],
        allowed: bool,
    ) -> (RateLimitResponse, Outcome) {
        let decided =
            |limit: &Limit<'_>| decisions[limit.at].unwrap_or(Decision::of(ChargeResult::UNDECIDED));
        let shadow_denied = limits.iter().any(|limit| limit.part.shadow && decided(limit).over);
        let outcome = match (allowed, shadow_denied) {
            (false, _) => Outcome::Denied,
            (true, true) => Outcome::ShadowDenied,
            (true, false) => Outcome::Allowed,
        };
        let mut statuses: Vec<DescriptorStatus> = applied
            .iter()
            .map(|applied| if *applied == Applied::Unlimited { free(u32::MAX) } else { free(0) })
            .collect();
        // Most calls pass all of their limits, and wait for none.
        let is_over = !allowed || limits.iter().any(|limit| decided(limit).over);
        let waits = is_over.then(|| {
            let tried = limits.iter().map(|limit| {
                let Limit { at, descriptor, part, check, .. } = *limit;
                Tried { at, descriptor, part, check }
            });
            Waits::of(self.embedded, &tried.collect::<Vec<_>>(), self.quotas_may_deny(applied, limits))
        });
        let wait_s = waits.as_ref().filter(|_| !allowed).and_then(Waits::of_call);
        for limit in limits {
            // A limit that the configuration does not put in shadow mode shows what it decided.
            let own_shadow = matches!(&applied[limit.at], Applied::Limit { part, .. } if part.shadow);
            let Decision { result, over } = decided(limit);
            let shown = Decision { result, over: over && !own_shadow };
            let own_s = waits.as_ref().filter(|_| shown.over).and_then(|waits| waits.of_limit(limit.at));
            statuses[limit.at] = status(limit.shown, &shown, wait_s.max(own_s).unwrap_or_default());
        }
        let name = || "retry-after".to_owned();
        let wait = wait_s.map(|wait_s| HeaderValue { key: name(), value: wait_s.to_string() });
        let mut headers: Vec<HeaderValue> = wait.into_iter().collect();
        headers.extend(self.limit_headers(&statuses, limits));
        let statuses = of_descriptors(descriptors, limits, &statuses);
        let passed = limits.iter().filter(|limit| statuses[limit.descriptor].code() == Code::Ok);
        let dynamic_metadata = self
            .answering
            .dynamic_metadata
            .then(|| dynamic_metadata::of_response(request, passed.filter_map(|limit| limit.metadata)));
        let overall_code = if allowed { Code::Ok } else { Code::OverLimit } as i32;
        let over = limits.iter().filter(|limit| allowed && decided(limit).over);
        let response = RateLimitResponse {
            overall_code,
            statuses,
            response_headers_to_add: headers,
            request_headers_to_add: self.exceeded_header(over).into_iter().collect(),
            dynamic_metadata,
        };
        (response, outcome)
    }

    /// The header by which an upstream learns which limits a request exceeds that passes.
    fn exceeded_header<'a>(self, over: impl Iterator<Item = &'a Limit<'a>>) -> Option<HeaderValue> {
        let name = self.answering.exceeded_header.as_ref()?;
        let mut value = String::new();
        for limit in over {
            let named = match (limit.shown.name.as_str(), limit.series) {
                ("", Some(series)) => series.path(),
                (name, _) => name.to_owned(),
            };
            let named: String = named.chars().map(|one| if is_plain(one) { one } else { '_' }).collect();
            let is_listed = value.split(", ").any(|one| one == named);
            if !named.is_empty() && !is_listed && value.len() + named.len() < MAX_EXCEEDED_BYTES {
                value += if value.is_empty() { "" } else { ", " };
                value += &named;
            }
        }
        (!value.is_empty()).then(|| HeaderValue { key: name.clone(), value })
    }

    /// The headers that the settings name, of the limit that denies, or else of which the smallest share is left.
    fn limit_headers(self, statuses: &[DescriptorStatus], limits: &[Limit<'_>]) -> Vec<HeaderValue> {
        let Some(names) = &self.answering.response_headers else { return Vec::new() };
        let over = |limit: &&Limit<'_>| !limit.part.quota && statuses[limit.at].code() == Code::OverLimit;
        let budget = |limit: &Limit<'_>| budget(&statuses[limit.at]);
        let Some(shown) = limits.iter().rfind(over).or(nearest(limits.iter(), budget)) else {
            return Vec::new();
        };
        let reset = statuses[shown.at].duration_until_reset.map_or(0, |left| left.seconds);
        let Budget { limit, remaining, .. } = budget(shown);
        let values = [limit.to_string(), remaining.to_string(), reset.to_string()];
        names.iter().zip(values).map(|(name, value)| HeaderValue { key: name.clone(), value }).collect()
    }
}

/// Counts what the limits of each configured descriptor have decided by themselves: what would have passed counts as such, also if another
/// descriptor denies the call. Of several limits the one that is over counts, or that of which the smallest share is left.
fn count(request: &RateLimitRequest, limits: &[Limit<'_>], decisions: &[Option<Decision>]) {
    for (descriptor, own) in request.descriptors.iter().enumerate() {
        let of_descriptor = || limits.iter().filter(|limit| limit.descriptor == descriptor);
        let budget = |limit: &Limit<'_>| {
            let result = decisions[limit.at].map_or(ChargeResult::UNDECIDED, |decision| decision.result);
            Budget { rule: 0, limit: result.limit, remaining: result.remaining, reset_ms: 0 }
        };
        let over = of_descriptor().find(|limit| is_over(decisions, limit));
        let Some(Limit { at, part, check, series, .. }) = over.or_else(|| nearest(of_descriptor(), budget))
        else {
            continue;
        };
        let Some((series, decision)) = series.zip(decisions[*at]) else { continue };
        if part.refund {
            continue;
        }
        let Decision { result, over } = decision;
        let used = result.limit.saturating_sub(result.remaining);
        let decided = Decided { hits: check.cost, over, shadow: part.shadow, used, limit: result.limit };
        let entries = own.entries.iter();
        series.count(decided, entries.map(|entry| entry.value.trim_ascii()));
    }
}

/// Whether a character may stand in a list of names in a header.
fn is_plain(one: char) -> bool {
    one.is_ascii_graphic() && one != ','
}

/// Whether a limit was decided to be over.
fn is_over(decisions: &[Option<Decision>], limit: &Limit<'_>) -> bool {
    decisions[limit.at].is_some_and(|decision| decision.over)
}

/// Whether a quota is over: one of the limits of its descriptor is.
fn is_quota_over(limits: &[Limit<'_>], decisions: &[Option<Decision>], quota: &Limit<'_>) -> bool {
    limits.iter().any(|limit| limit.descriptor == quota.descriptor && is_over(decisions, limit))
}

/// The limit of which the smallest share is left.
fn nearest<'a, 'l: 'a>(
    limits: impl Iterator<Item = &'a Limit<'l>>,
    budget: impl Fn(&Limit<'l>) -> Budget,
) -> Option<&'a Limit<'l>> {
    limits.reduce(|one, other| if budget(other).ends_before(&budget(one)) { other } else { one })
}

/// The status of each descriptor: of its limits the one that is over, for the longest, or that of which the smallest share is left.
fn of_descriptors(
    descriptors: &[usize],
    limits: &[Limit<'_>],
    statuses: &[DescriptorStatus],
) -> Vec<DescriptorStatus> {
    let shown = |descriptor: usize| {
        let own = || limits.iter().filter(|limit| limit.descriptor == descriptor);
        let over = own().filter(|limit| statuses[limit.at].code() == Code::OverLimit);
        let wait = |limit: &&Limit<'_>| {
            statuses[limit.at].duration_until_reset.as_ref().map_or(0, |left| left.seconds)
        };
        over.max_by_key(wait).or_else(|| nearest(own(), |limit| budget(&statuses[limit.at])))
    };
    let all = descriptors.last().map_or(0, |last| last + 1);
    let first = |descriptor| descriptors.iter().position(|of| *of == descriptor);
    let place = |descriptor| shown(descriptor).map(|limit| limit.at).or_else(|| first(descriptor));
    (0..all).filter_map(place).map(|at| statuses[at].clone()).collect()
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// The status of a limit; its reset is not before the wait is over. Of a limit that denies nothing is left, as in the reference service:
/// Envoy shows clients the limit of which the least is left.
fn status(shown: &RateLimit, Decision { result, over }: &Decision, wait_s: u64) -> DescriptorStatus {
    let reset_s = i64::try_from(result.reset_ms.div_ceil(1_000).max(wait_s)).unwrap_or(i64::MAX);
    DescriptorStatus {
        code: if *over { Code::OverLimit } else { Code::Ok } as i32,
        current_limit: Some(applied_limit(shown, result)),
        limit_remaining: if *over { 0 } else { u32::try_from(result.remaining).unwrap_or(u32::MAX) },
        duration_until_reset: Some(ProtoDuration { seconds: reset_s, nanos: 0 }),
    }
}

/// Live control may have replaced the configured limit, and `limit_remaining` refers to the replacement.
fn applied_limit(shown: &RateLimit, result: &ChargeResult) -> RateLimit {
    let requests_per_unit = match result.verdict {
        Verdict::Undecided => shown.requests_per_unit,
        _ => u32::try_from(result.limit).unwrap_or(u32::MAX),
    };
    RateLimit { requests_per_unit, ..shown.clone() }
}

/// What is left of a limit.
fn budget(status: &DescriptorStatus) -> Budget {
    let limit = status.current_limit.as_ref().map_or(0, |limit| limit.requests_per_unit);
    Budget { rule: 0, limit: limit.into(), remaining: status.limit_remaining.into(), reset_ms: 0 }
}

/// The status of a descriptor without a limit.
fn free(limit_remaining: u32) -> DescriptorStatus {
    DescriptorStatus { code: Code::Ok as i32, limit_remaining, ..DescriptorStatus::default() }
}
