//! One call of the rate-limit service: its limits, as checks for the embedded limiter.

use super::config::{Limits, MAX_TEXT_BYTES};
use super::matching::{Domain, Limit, Rate, Rule};
use super::naming;
use super::wire::{Descriptor, Entry, Override, RateLimit, RateLimitRequest, Unit};
use crate::api::embedded::LimitCheck;
use crate::telemetry::metrics::limits::LimitSeries;
use prost_types::Struct;
use std::collections::HashSet;
use std::sync::Arc;

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
    /// The limit in the request has no unit, or an unknown one.
    #[error(
        "the limit of descriptor {0} has no supported unit; expected second, minute, hour, day, week, month or year"
    )]
    Unit(usize),
    /// The xDS server has sent no configuration yet.
    #[error("the xDS server has not sent limits yet")]
    NoLimits,
    /// The call would pass, but for the limit of this descriptor, which cannot be served.
    #[error(
        "the limit of descriptor {0} cannot be served; the log and rate_limits in /v1/parts have the reason"
    )]
    Unserved(usize),
    /// The embedded limiter did not decide.
    #[error("not decided in time")]
    Undecided,
}

/// The limit that applies to one descriptor.
#[derive(Clone, Debug, PartialEq)]
pub enum Applied {
    /// No limit.
    Nothing,
    /// An unlimited descriptor.
    Unlimited,
    /// A limit that cannot be served, and is not in shadow mode.
    Unserved,
    /// A limit.
    Limit {
        /// The limit as shown in the response.
        shown: RateLimit,
        /// How it takes part in the call.
        part: Part,
        /// The check for the embedded limiter; of a refund, its cost is what is given back.
        check: LimitCheck,
        /// What the response contains if it passes.
        metadata: Option<Arc<Struct>>,
        /// The metrics of the configured limit.
        series: Option<Arc<LimitSeries>>,
    },
}

/// The limits of a call: of each descriptor one, or as many as it has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AppliedLimits {
    /// All of them, in the order of the descriptors.
    pub all: Vec<Applied>,
    /// The position of each one's descriptor.
    pub descriptors: Vec<usize>,
}

/// How a limit takes part in a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// It is in shadow mode and never denies.
    pub shadow: bool,
    /// It is a quota: it denies only together with all other quotas of the call.
    pub quota: bool,
    /// Its descriptor states the hits, which count whether or not they fit.
    pub own_hits: bool,
    /// The hits are given back, and none are charged.
    pub refund: bool,
}

impl Part {
    /// Whether it denies the call if it is over.
    pub fn denies_alone(&self) -> bool {
        !self.shadow && !self.quota && !self.refund
    }

    fn of(descriptor: &Descriptor) -> Part {
        let own_hits = descriptor.hits_addend.is_some();
        Part { own_hits, refund: descriptor.is_negative_hits, ..Part::default() }
    }
}

/// The limits of each descriptor of a call, in order.
pub fn applied(limits: &Limits, request: &RateLimitRequest) -> Result<AppliedLimits, Refused> {
    check(request)?;
    match limits.domain(&request.domain) {
        Some(domain) => apply(domain, request),
        None => Ok(AppliedLimits {
            all: request.descriptors.iter().map(|_| Applied::Nothing).collect(),
            descriptors: (0..request.descriptors.len()).collect(),
        }),
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
    Ok(())
}

/// The limits of a domain. A descriptor whose limit is replaced by another limit of the same call passes.
fn apply(domain: &Domain, request: &RateLimitRequest) -> Result<AppliedLimits, Refused> {
    let rules: Vec<&[Arc<Rule>]> =
        request.descriptors.iter().map(|descriptor| domain.find(&descriptor.entries)).collect();
    let own = |descriptor: &Descriptor| descriptor.limit.is_some();
    let replacing = rules.iter().zip(&request.descriptors).filter(|(_, descriptor)| !own(descriptor));
    let replaced: HashSet<&str> = replacing
        .flat_map(|(rules, _)| rules.iter().filter(|rule| rule.limit != Limit::Unserved))
        .flat_map(|rule| rule.replaces.iter().map(String::as_str))
        .collect();
    let mut applied = AppliedLimits::default();
    for (at, (descriptor, rules)) in request.descriptors.iter().zip(rules).enumerate() {
        let hits = descriptor.hits_addend.unwrap_or(u64::from(request.hits_addend.max(1)));
        let is_replaced = |rule: &Rule| !rule.name.is_empty() && replaced.contains(rule.name.as_str());
        match &descriptor.limit {
            Some(limit) => applied.push(at, overridden(at, domain, descriptor, limit, rules, hits)?),
            None if rules.is_empty() => applied.push(at, Applied::Nothing),
            None => rules.iter().for_each(|rule| {
                let one = match is_replaced(rule) {
                    true => Applied::Nothing,
                    false => configured(domain, descriptor, rule, hits),
                };
                applied.push(at, one);
            }),
        }
    }
    Ok(applied)
}

impl AppliedLimits {
    fn push(&mut self, descriptor: usize, applied: Applied) {
        self.all.push(applied);
        self.descriptors.push(descriptor);
    }
}

fn configured(domain: &Domain, descriptor: &Descriptor, rule: &Rule, cost: u64) -> Applied {
    let rate = match rule.limit {
        Limit::Rate(rate) => rate,
        Limit::Unlimited => return Applied::Unlimited,
        Limit::Unserved if rule.shadow => return Applied::Nothing,
        Limit::Unserved => return Applied::Unserved,
    };
    let check = domain.check(rule.counted(&descriptor.entries), rate, cost);
    let part = Part { shadow: rule.shadow, quota: rule.quota, ..Part::of(descriptor) };
    let shown =
        RateLimit { requests_per_unit: rate.requests, unit: rate.unit as i32, name: rule.name.clone() };
    let series = Some(Arc::clone(&rule.series));
    Applied::Limit { shown, part, check, metadata: rule.metadata.clone(), series }
}

/// A limit in the request counts on the same key as the configured limit that it replaces: of several the one of its interval, or the first.
/// The others do not apply.
fn overridden(
    at: usize,
    domain: &Domain,
    descriptor: &Descriptor,
    given: &Override,
    rules: &[Arc<Rule>],
    cost: u64,
) -> Result<Applied, Refused> {
    let unit = Unit::try_from(given.unit).ok();
    let rate = unit.and_then(|unit| Rate::new(given.requests_per_unit, unit, 1)).ok_or(Refused::Unit(at))?;
    let is_same =
        |rule: &&Arc<Rule>| matches!(rule.limit, Limit::Rate(own) if own.interval_ms == rate.interval_ms);
    let rule = rules.iter().find(is_same).or(rules.first());
    let counted = match rule {
        Some(rule) => rule.counted(&descriptor.entries),
        None => naming::of_override(&domain.name, &descriptor.entries),
    };
    let check = domain.check(counted, rate, cost);
    let shown = RateLimit { requests_per_unit: rate.requests, unit: rate.unit as i32, name: String::new() };
    let series = rule.map(|rule| Arc::clone(&rule.series));
    Ok(Applied::Limit { shown, part: Part::of(descriptor), check, metadata: None, series })
}
