//! One call of the rate-limit service: its checks for the embedded limiter, and the response.
//!
//! All enforced limits pass together, or none is charged. Limits in shadow mode are decided separately, one by one, and
//! charged only if they would pass and the call passes.

use super::config::{Limits, MAX_TEXT_BYTES};
use super::matching::{Domain, Rule};
use super::naming;
use super::wire::{
    Code, Descriptor, DescriptorStatus, Duration as ProtoDuration, Entry, HeaderValue, Override, RateLimit,
    RateLimitRequest, RateLimitResponse, Unit,
};
use crate::api::embedded::{EmbeddedLimiter, Failure, LimitCheck};
use std::collections::HashSet;
use std::time::Duration;
use tokio::time::Instant;
use weir_core::model::exact::{Algorithm, ChargeResult, Verdict};

/// Most descriptors of one call.
pub const MAX_DESCRIPTORS: usize = 64;
/// Most entries of one descriptor.
pub const MAX_ENTRIES: usize = 32;

/// Why a call cannot be answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The request names no domain.
    #[error("the domain is empty; set it in the filter's configuration")]
    NoDomain,
    /// The request has no descriptors.
    #[error("there are no descriptors")]
    NoDescriptors,
    /// The request has too many descriptors.
    #[error("{0} descriptors; at most {MAX_DESCRIPTORS} are allowed")]
    TooManyDescriptors(usize),
    /// A descriptor has no entries, by which its limit is found.
    #[error("descriptor {0} has no entries")]
    NoEntries(usize),
    /// A descriptor has more entries than any configuration has levels.
    #[error("descriptor {0} has {1} entries; at most {MAX_ENTRIES} are allowed")]
    TooManyEntries(usize, usize),
    /// An entry has an empty key, which no configuration has.
    #[error("descriptor {0} has an entry without a key")]
    NoKey(usize),
    /// A key is longer than any in a configuration. The length of a value is not bounded, as clients send it.
    #[error("descriptor {0} has a key of {1} bytes; at most {MAX_TEXT_BYTES} are allowed")]
    LongKey(usize, usize),
    /// The limit in the request has no unit, an unknown one, or a year.
    #[error(
        "the limit of descriptor {0} has no supported unit; expected second, minute, hour, day, week or month"
    )]
    Unit(usize),
    /// Counts never decrease.
    #[error("descriptor {0} has is_negative_hits, which is not supported, as counts never decrease")]
    Negative(usize),
    /// The embedded limiter did not decide.
    #[error("not decided in time")]
    Undecided,
}

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

/// The limit that applies to one descriptor.
#[derive(Clone, Debug, PartialEq)]
pub enum Applied {
    /// No limit.
    Nothing,
    /// An unlimited descriptor.
    Unlimited,
    /// A limit.
    Limit {
        /// The limit as shown in the response.
        shown: RateLimit,
        /// Whether it is in shadow mode and never denies.
        shadow: bool,
        /// The check for the embedded limiter.
        check: LimitCheck,
    },
}

/// Answers a call within the given time; `applied` has the limit of each of its descriptors.
pub async fn answer(
    embedded: &EmbeddedLimiter,
    applied: &[Applied],
    within: Duration,
) -> Result<(RateLimitResponse, Outcome), Refused> {
    let deadline = Instant::now() + within;
    let enforced: Vec<LimitCheck> =
        applied.iter().filter_map(|applied| applied.check(false)).cloned().collect();
    let decided = embedded.decide(&enforced, Failure::Deny, within).await;
    if decided.results.iter().any(|result| result.verdict == Verdict::Undecided) {
        return Err(Refused::Undecided);
    }
    let shadowed = shadow(embedded, applied, &enforced, decided.allowed, deadline).await;
    let outcome = match (decided.allowed, shadowed.iter().any(is_denied)) {
        (false, _) => Outcome::Denied,
        (true, true) => Outcome::ShadowDenied,
        (true, false) => Outcome::Allowed,
    };
    let (mut results, mut shadowed) = (decided.results.iter(), shadowed.iter());
    let statuses = applied.iter().map(|applied| match applied {
        Applied::Limit { shown, shadow: true, .. } => status(shown, shadowed.next(), true),
        Applied::Limit { shown, .. } => status(shown, results.next(), false),
        Applied::Unlimited => passes(u32::MAX),
        Applied::Nothing => passes(0),
    });
    let response = RateLimitResponse {
        overall_code: if decided.allowed { Code::Ok } else { Code::OverLimit } as i32,
        statuses: statuses.collect(),
        response_headers_to_add: retry_after(&decided.results).into_iter().collect(),
    };
    Ok((response, outcome))
}

/// The limit of each descriptor of a call, in order.
pub fn applied(limits: &Limits, request: &RateLimitRequest) -> Result<Vec<Applied>, Refused> {
    check(request)?;
    match limits.domain(&request.domain) {
        Some(domain) => apply(domain, request),
        None => Ok(request.descriptors.iter().map(|_| Applied::Nothing).collect()),
    }
}

fn check(request: &RateLimitRequest) -> Result<(), Refused> {
    if request.domain.is_empty() {
        return Err(Refused::NoDomain);
    }
    match request.descriptors.len() {
        0 => return Err(Refused::NoDescriptors),
        1..=MAX_DESCRIPTORS => {}
        more => return Err(Refused::TooManyDescriptors(more)),
    }
    request.descriptors.iter().enumerate().try_for_each(|(at, descriptor)| check_descriptor(at, descriptor))
}

fn check_descriptor(at: usize, descriptor: &Descriptor) -> Result<(), Refused> {
    match descriptor.entries.len() {
        0 => return Err(Refused::NoEntries(at)),
        1..=MAX_ENTRIES => {}
        more => return Err(Refused::TooManyEntries(at, more)),
    }
    for Entry { key, .. } in &descriptor.entries {
        if key.is_empty() {
            return Err(Refused::NoKey(at));
        }
        if key.len() > MAX_TEXT_BYTES {
            return Err(Refused::LongKey(at, key.len()));
        }
    }
    if descriptor.is_negative_hits {
        return Err(Refused::Negative(at));
    }
    Ok(())
}

/// The limits of a domain. A descriptor whose limit is replaced by another limit of the same call passes.
fn apply(domain: &Domain, request: &RateLimitRequest) -> Result<Vec<Applied>, Refused> {
    let rules: Vec<Option<&Rule>> = request
        .descriptors
        .iter()
        .map(|descriptor| domain.find(&descriptor.entries).map(|rule| &**rule))
        .collect();
    let own = |descriptor: &Descriptor| descriptor.limit.is_some();
    let replacing = rules.iter().zip(&request.descriptors).filter(|(_, descriptor)| !own(descriptor));
    let replaced: HashSet<&str> = replacing
        .filter_map(|(rule, _)| *rule)
        .flat_map(|rule| rule.replaces.iter().map(String::as_str))
        .collect();
    let all = request.descriptors.iter().zip(rules).enumerate();
    all.map(|(at, (descriptor, rule))| {
        let hits = descriptor.hits_addend.unwrap_or(u64::from(request.hits_addend.max(1)));
        match (&descriptor.limit, rule) {
            (Some(limit), rule) => overridden(at, domain, descriptor, limit, rule, hits),
            (None, Some(rule)) if !rule.name.is_empty() && replaced.contains(rule.name.as_str()) => {
                Ok(Applied::Nothing)
            }
            (None, Some(rule)) => Ok(configured(domain, descriptor, rule, hits)),
            (None, None) => Ok(Applied::Nothing),
        }
    })
    .collect()
}

fn configured(domain: &Domain, descriptor: &Descriptor, rule: &Rule, cost: u64) -> Applied {
    let Some((unit, requests)) = rule.limit else { return Applied::Unlimited };
    let counted = (rule.namespace.clone(), naming::identifier(&descriptor.entries, &rule.free));
    limit(domain, counted, (unit, requests), rule.name.clone(), rule.shadow, cost)
}

/// A limit in the request counts on the same key as the configured limit that it replaces.
fn overridden(
    at: usize,
    domain: &Domain,
    descriptor: &Descriptor,
    given: &Override,
    rule: Option<&Rule>,
    cost: u64,
) -> Result<Applied, Refused> {
    let unit = Unit::try_from(given.unit).ok().filter(|unit| unit.ms().is_some()).ok_or(Refused::Unit(at))?;
    let counted = match rule {
        Some(rule) => (rule.namespace.clone(), naming::identifier(&descriptor.entries, &rule.free)),
        None => naming::of_override(&domain.name, &descriptor.entries),
    };
    Ok(limit(domain, counted, (unit, given.requests_per_unit), String::new(), false, cost))
}

fn limit(
    domain: &Domain,
    (namespace, identifier): (Vec<u8>, Vec<u8>),
    (unit, requests_per_unit): (Unit, u32),
    name: String,
    shadow: bool,
    cost: u64,
) -> Applied {
    let check = LimitCheck {
        algorithm: Algorithm::Window,
        workspace: domain.workspace.clone(),
        namespace,
        identifier,
        // Only units that have a length reach this line.
        duration_ms: unit.ms().unwrap_or_default(),
        hard_limit: false,
        limit: u64::from(requests_per_unit),
        cost,
    };
    Applied::Limit { shown: RateLimit { requests_per_unit, unit: unit as i32, name }, shadow, check }
}

/// The decisions of the limits in shadow mode, in order.
async fn shadow(
    embedded: &EmbeddedLimiter,
    applied: &[Applied],
    enforced: &[LimitCheck],
    allowed: bool,
    deadline: Instant,
) -> Vec<ChargeResult> {
    let key = |check: &LimitCheck| (check.namespace.clone(), check.identifier.clone(), check.duration_ms);
    let mut results = Vec::new();
    let mut charged: HashSet<_> = HashSet::new();
    for check in applied.iter().filter_map(|applied| applied.check(true)) {
        if charged.is_empty() {
            charged.extend(enforced.iter().map(key));
        }
        // If the key has been charged already, or the call is denied, the count is only read.
        let charges = allowed && charged.insert(key(check));
        let cost = if charges { check.cost } else { 0 };
        let shadowed = [LimitCheck { cost, ..check.clone() }];
        let within = deadline.saturating_duration_since(Instant::now());
        let answer = embedded.decide(&shadowed, Failure::Deny, within).await;
        results.extend(answer.results);
    }
    results
}

impl Applied {
    /// The check for the embedded limiter, if there is a limit and its shadow mode is as given.
    pub fn check(&self, shadowed: bool) -> Option<&LimitCheck> {
        match self {
            Applied::Limit { shadow, check, .. } if *shadow == shadowed => Some(check),
            _ => None,
        }
    }
}

fn status(shown: &RateLimit, result: Option<&ChargeResult>, shadow: bool) -> DescriptorStatus {
    let result = result.copied().unwrap_or(ChargeResult::UNDECIDED);
    let over = is_denied(&result) && !shadow;
    DescriptorStatus {
        code: if over { Code::OverLimit } else { Code::Ok } as i32,
        current_limit: Some(applied_limit(shown, &result)),
        limit_remaining: u32::try_from(result.remaining).unwrap_or(u32::MAX),
        duration_until_reset: Some(ProtoDuration {
            seconds: i64::try_from(result.reset_ms / 1_000).unwrap_or(i64::MAX),
            // Below a second.
            nanos: (result.reset_ms % 1_000) as i32 * 1_000_000,
        }),
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

fn passes(limit_remaining: u32) -> DescriptorStatus {
    DescriptorStatus { code: Code::Ok as i32, limit_remaining, ..DescriptorStatus::default() }
}

fn is_denied(result: &ChargeResult) -> bool {
    matches!(result.verdict, Verdict::Denied { .. })
}

/// The header for a denied client: the longest wait, in whole seconds; none if it would never pass.
fn retry_after(results: &[ChargeResult]) -> Option<HeaderValue> {
    let waits = results.iter().filter_map(|result| match result.verdict {
        Verdict::Denied { retry_after_ms } => Some(retry_after_ms),
        _ => None,
    });
    let longest = waits.collect::<Option<Vec<u64>>>()?.into_iter().max()?;
    Some(HeaderValue { key: "retry-after".to_owned(), value: longest.div_ceil(1_000).to_string() })
}
