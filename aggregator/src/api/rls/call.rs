//! One call of the rate-limit service: what it asks of the embedded, and what is answered.
//!
//! All limits that are enforced pass together or none is charged. Limits in shadow mode are decided apart, one by one,
//! and charged only where they would pass and the call passes.
//!
//! Leaves to others: the transport (`service`), which limit applies (`matching`), deciding (`embedded`).

use super::config::{Limits, MAX_TEXT_BYTES};
use super::matching::{Domain, Rule};
use super::naming;
use super::wire::{
    Code, Descriptor, DescriptorStatus, Duration as ProtoDuration, Entry, HeaderValue, Override, RateLimit,
    RateLimitRequest, RateLimitResponse, Unit,
};
use crate::api::embedded::{EmbeddedLimiter, Failure, Question};
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
    /// Which limits is not said.
    #[error("the domain is empty; set it in the filter's configuration")]
    NoDomain,
    /// Nothing is asked.
    #[error("there are no descriptors")]
    NoDescriptors,
    /// Too much is asked.
    #[error("{0} descriptors; at most {MAX_DESCRIPTORS} are allowed")]
    TooManyDescriptors(usize),
    /// A descriptor finds its limit by its entries.
    #[error("descriptor {0} has no entries")]
    NoEntries(usize),
    /// Deeper than any configuration.
    #[error("descriptor {0} has {1} entries; at most {MAX_ENTRIES} are allowed")]
    TooManyEntries(usize, usize),
    /// A configuration's keys are not empty.
    #[error("descriptor {0} has an entry without a key")]
    NoKey(usize),
    /// Longer than any configuration's. A value may have any length, as a client sends what it likes.
    #[error("descriptor {0} has a key of {1} bytes; at most {MAX_TEXT_BYTES} are allowed")]
    LongKey(usize, usize),
    /// Its limit has none that is known here, or a year.
    #[error("the limit of descriptor {0} is for no unit of time from second to month")]
    Unit(usize),
    /// Counts never fall.
    #[error("descriptor {0} gives hits back (is_negative_hits), which is not supported: counts never fall")]
    Negative(usize),
    /// The embedded did not decide.
    #[error("not decided in time")]
    Undecided,
}

/// How a call ended, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It passes.
    Allowed,
    /// It passes, but a limit in shadow mode would not have let it.
    ShadowDenied,
    /// It is over a limit.
    Denied,
}

/// What applies to one descriptor.
#[derive(Clone, Debug, PartialEq)]
pub enum Applied {
    /// No limit at all.
    Nothing,
    /// One that lets everything pass.
    Unlimited,
    /// A limit.
    Limit {
        /// As the answer says it.
        shown: RateLimit,
        /// It never refuses.
        shadow: bool,
        /// What the embedded is asked.
        question: Question,
    },
}

/// Answers a call, of whose descriptors this applies, within the time given.
pub async fn answer(
    embedded: &EmbeddedLimiter,
    applied: &[Applied],
    within: Duration,
) -> Result<(RateLimitResponse, Outcome), Refused> {
    let deadline = Instant::now() + within;
    let enforced: Vec<Question> =
        applied.iter().filter_map(|applied| applied.question(false)).cloned().collect();
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

/// What applies to each descriptor of a call, in order.
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

/// By a domain. A descriptor whose limit is replaced by another's of the same call passes.
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

/// A limit that the call brings counts where the configured one would: it is another limit, not another count.
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
    let question = Question {
        algorithm: Algorithm::Window,
        workspace: domain.workspace.clone(),
        namespace,
        identifier,
        // Only units that have a length come here.
        duration_ms: unit.ms().unwrap_or_default(),
        hard_limit: false,
        limit: u64::from(requests_per_unit),
        cost,
    };
    Applied::Limit { shown: RateLimit { requests_per_unit, unit: unit as i32, name }, shadow, question }
}

/// What the limits in shadow mode say, in order.
async fn shadow(
    embedded: &EmbeddedLimiter,
    applied: &[Applied],
    enforced: &[Question],
    allowed: bool,
    deadline: Instant,
) -> Vec<ChargeResult> {
    let key =
        |question: &Question| (question.namespace.clone(), question.identifier.clone(), question.duration_ms);
    let mut results = Vec::new();
    let mut charged: HashSet<_> = HashSet::new();
    for question in applied.iter().filter_map(|applied| applied.question(true)) {
        if charged.is_empty() {
            charged.extend(enforced.iter().map(key));
        }
        // What is charged to this count already, or not at all, is only looked at.
        let charges = allowed && charged.insert(key(question));
        let cost = if charges { question.cost } else { 0 };
        let asked = [Question { cost, ..question.clone() }];
        let within = deadline.saturating_duration_since(Instant::now());
        let answer = embedded.decide(&asked, Failure::Deny, within).await;
        results.extend(answer.results);
    }
    results
}

impl Applied {
    /// What the embedded is asked, if there is a limit that is in shadow mode or, for false, is not.
    pub fn question(&self, shadowed: bool) -> Option<&Question> {
        match self {
            Applied::Limit { shadow, question, .. } if *shadow == shadowed => Some(question),
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

/// Operators may have said another limit than the configuration, and what is left is left of that.
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

/// For a client that is refused: the longest wait, in whole seconds; none where it would never pass.
fn retry_after(results: &[ChargeResult]) -> Option<HeaderValue> {
    let waits = results.iter().filter_map(|result| match result.verdict {
        Verdict::Denied { retry_after_ms } => Some(retry_after_ms),
        _ => None,
    });
    let longest = waits.collect::<Option<Vec<u64>>>()?.into_iter().max()?;
    Some(HeaderValue { key: "retry-after".to_owned(), value: longest.div_ceil(1_000).to_string() })
}
