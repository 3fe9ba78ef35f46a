//! The algorithm of a rule, and what it requires of the rule's other fields.
//!
//! A window and a log have a limit and a window of their own; those of a ledger are set by its zone. A field without
//! effect on the algorithm is an error, since its author expects an effect.

use super::carried::CarriedLimit;
use super::cost::usage::millionths;
use super::cost::{Cost, RequestCost};
use crate::fields::Errors;
use crate::fields::duration::Span;
use crate::fields::{Fields, Node, Value};
use crate::model::exact::Algorithm;
use crate::model::key::HARD_LIMIT_RESOLUTION;
use crate::model::window::MAX_COUNT;
use alloc::format;
use core::ops::RangeInclusive;

pub(in crate::rules) use crate::model::exact::AlgorithmKind;

/// With a window, the decision can be made without the query's answer.
pub(in crate::rules) const QUERY_TIMEOUT: Span = Span { min_ms: 1, max_ms: 1_000, example: "50ms" };
const QUERY_TIMEOUT_MS_DEFAULT: u64 = 50;
/// With a log or a ledger, the answer is the decision.
pub(in crate::rules) const EXACT_TIMEOUT: Span = Span { min_ms: 1, max_ms: 10_000, example: "100ms" };
const EXACT_TIMEOUT_MS_DEFAULT: u64 = 100;

/// The algorithm of a rule with its own fields.
#[derive(Clone, Debug)]
pub(in crate::rules) struct AlgorithmFields {
    pub algorithm: Algorithm,
    /// 0 if the algorithm has no limit of its own.
    pub limit: u64,
    /// Where a request carries a limit in place of this one.
    pub carried: Option<CarriedLimit>,
    /// 0 if the algorithm has no window of its own.
    pub duration_ms: u64,
}

/// The field of a limit in dollars.
pub(in crate::rules) const MONEY: &str = "usd";

/// The numbers of zones.
pub(in crate::rules) const ZONES: RangeInclusive<u64> = 1..=u32::MAX as u64;

impl AlgorithmKind {
    /// Reads `algorithm`.
    pub(in crate::rules) fn read(node: Node<'_>, errors: &mut Errors) -> Option<AlgorithmKind> {
        node.word(&AlgorithmKind::WORDS, errors)
    }

    /// Reads `limit`, `window` and `zone`, of which each algorithm has some.
    pub(in crate::rules) fn read_limit(
        self,
        fields: &Fields<'_>,
        errors: &mut Errors,
    ) -> Option<AlgorithmFields> {
        if self == AlgorithmKind::Ledger {
            return read_ledger(fields, errors);
        }
        let limit = fields
            .required("limit", "a whole number, 0 or more", errors, |n, e| self.read_limit_itself(n, e));
        let duration_ms =
            fields.required("window", "a duration such as \"1m\"", errors, |n, e| Span::WINDOW.read(n, e));
        let why = "has no effect here, as only a ledger has a zone";
        let zoneless = without("zone", why, "\"algorithm\": \"ledger\" with it, or no zone", fields, errors);
        zoneless?;
        let (limit, carried) = limit?;
        Some(AlgorithmFields { algorithm: self.algorithm(0), limit, carried, duration_ms: duration_ms? })
    }

    /// Reads `hard_limit`, which requires a window of ten cells of whole milliseconds.
    pub(in crate::rules) fn read_hard_limit(
        self,
        fields: &Fields<'_>,
        own: Option<&AlgorithmFields>,
        errors: &mut Errors,
    ) -> Option<bool> {
        if !self.is_exact() {
            return read_windows_hard_limit(fields, own, errors);
        }
        let (word, most) = (self.word(), if self == AlgorithmKind::Ledger { "rate" } else { "limit" });
        let why = format!("has no effect here, as no window of a {word} ever holds more than its {most}");
        without("hard_limit", &why, "\"algorithm\": \"sliding_window\", or no hard limit", fields, errors)
            .map(|()| false)
    }

    /// Reads the limit of a rule: a number, or where a request carries it, with the limit of others.
    fn read_limit_itself(self, node: Node<'_>, errors: &mut Errors) -> Option<(u64, Option<CarriedLimit>)> {
        if let Value::Object(fields) = node.value
            && fields.iter().all(|(name, _)| name != MONEY)
        {
            let (default, carried) = CarriedLimit::read(node, |n, e| self.read_most(n, e), errors)?;
            return Some((default, Some(carried)));
        }
        self.read_most(node, errors).map(|limit| (limit, None))
    }

    /// Reads the limit of a rule or of an override.
    pub(in crate::rules) fn read_most(self, node: Node<'_>, errors: &mut Errors) -> Option<u64> {
        match self {
            AlgorithmKind::Window if matches!(node.value, Value::Object(_)) => read_money(node, errors),
            AlgorithmKind::Window => node.integer(0..=u64::MAX, errors),
            AlgorithmKind::Ledger => node.reject(
                errors,
                "has no effect here, as a ledger's zone sets the rate",
                "\"exempt\": true, or no override",
            ),
            exact => node.integer(0..=exact.max_limit(), errors),
        }
    }

    /// Reads `timeout`.
    pub(in crate::rules) fn read_timeout(self, fields: &Fields<'_>, errors: &mut Errors) -> Option<u64> {
        let (span, default) = match self.is_exact() {
            false => (QUERY_TIMEOUT, QUERY_TIMEOUT_MS_DEFAULT),
            true => (EXACT_TIMEOUT, EXACT_TIMEOUT_MS_DEFAULT),
        };
        fields.or("timeout", default, errors, |n, e| span.read(n, e))
    }

    /// Refuses a cost from the response if the algorithm has to charge the request before, and one that no ledger can record.
    pub(in crate::rules) fn check_cost(
        self,
        fields: &Fields<'_>,
        cost: Option<&Cost>,
        hard_limit: bool,
        errors: &mut Errors,
    ) -> Option<()> {
        let is_priced = matches!(cost, Some(Cost::Usage(cost)) if cost.is_money);
        let in_dollars = || ["limit", "overrides"].iter().find_map(|name| fields.get(name).filter(has_money));
        if let Some(limit) = in_dollars().filter(|_| cost.is_some() && !is_priced) {
            return limit.reject(
                errors,
                "is in dollars, and the cost is not",
                "a number, or a cost with prices",
            );
        }
        let why = match (self.is_exact(), hard_limit) {
            (false, false) => return Some(()),
            (false, true) => "cannot come from a response, as a hard limit needs the cost before it",
            (true, _) => "cannot come from a response, as a log or a ledger is charged before it",
        };
        let expected = "a number, or a cost from the request";
        match (fields.get("cost"), cost) {
            (Some(node), Some(Cost::Response(_))) => node.reject(errors, why, expected),
            (Some(_), Some(Cost::When(cost))) if hard_limit && cost.most() <= cost.reserve => Some(()),
            (Some(node), Some(Cost::When(_))) if hard_limit => {
                let expected = "costs of at most the reserve, or no hard limit";
                node.reject(errors, "can be more than its reserve, which a hard limit must hold", expected)
            }
            (Some(node), Some(Cost::When(_) | Cost::Usage(_))) => node.reject(errors, why, expected),
            (Some(node), Some(Cost::Fixed(most) | Cost::Request(RequestCost { max: most, .. })))
                if self == AlgorithmKind::Ledger && *most > MAX_COUNT =>
            {
                node.reject(errors, "is more than a ledger records", "at most 9007199254740992")
            }
            _ => Some(()),
        }
    }

    /// Refuses fields without effect on the algorithm.
    pub(in crate::rules) fn check_others(self, fields: &Fields<'_>, errors: &mut Errors) -> Option<()> {
        let why = "has no effect here, as every request is queried";
        let unknown_key_fits = !self.is_exact()
            || without(
                "unknown_key",
                why,
                "\"algorithm\": \"sliding_window\", or no unknown_key",
                fields,
                errors,
            )
            .is_some();
        let why = "has no effect here, as a ledger counts by its zone";
        let namespace_fits = self != AlgorithmKind::Ledger
            || without("namespace", why, "no namespace", fields, errors).is_some();
        (unknown_key_fits && namespace_fits).then_some(())
    }
}

/// A limit in dollars, in micro-dollars.
fn read_money(node: Node<'_>, errors: &mut Errors) -> Option<u64> {
    let fields = node.object(&[MONEY], errors)?;
    let expected = "dollars, such as 500 or 0.25, with at most six decimals";
    fields.required(MONEY, expected, errors, |node, errors| match millionths(node.value) {
        Some(limit) => Some(limit),
        None => node.reject(errors, "is no amount of money", expected),
    })
}

/// Whether a limit, one of those that it has for plans or requests, or that of an override is in dollars. Where a number stands, an object
/// states dollars.
fn has_money(node: &Node<'_>) -> bool {
    let is_object = |value: &Value<'_>| matches!(value, Value::Object(_));
    match node.value {
        Value::Object(fields) => fields.iter().any(|(name, value)| match (name.as_ref(), value) {
            ("default" | "max", value) => is_object(value),
            ("of", Value::Object(plans)) => plans.iter().any(|(_, limit)| is_object(limit)),
            (name, _) => name == MONEY,
        }),
        Value::List(overrides) => overrides.iter().any(|entry| match entry {
            Value::Object(fields) => fields.iter().any(|(name, value)| name == "limit" && is_object(value)),
            _ => false,
        }),
        _ => false,
    }
}

fn read_windows_hard_limit(
    fields: &Fields<'_>,
    own: Option<&AlgorithmFields>,
    errors: &mut Errors,
) -> Option<bool> {
    let hard_limit = fields.or("hard_limit", false, errors, |n, e| n.boolean(e))?;
    let uneven = own.is_some_and(|own| !own.duration_ms.is_multiple_of(HARD_LIMIT_RESOLUTION.into()));
    match fields.get("window").filter(|_| hard_limit && uneven) {
        Some(window) => window.reject(
            errors,
            "cannot be divided into ten cells of whole milliseconds, as a hard limit requires",
            "a multiple of 10ms, or no hard limit",
        ),
        None => Some(hard_limit),
    }
}

fn read_ledger(fields: &Fields<'_>, errors: &mut Errors) -> Option<AlgorithmFields> {
    let why = "has no effect here, as a ledger's zone sets rate and window";
    let limitless = without("limit", why, "no limit: see `weir-aggregator zones`", fields, errors);
    let windowless = without("window", why, "no window: see `weir-aggregator zones`", fields, errors);
    let expected = "the number of the ledger's zone, 1 or more";
    let zone = fields.required("zone", expected, errors, |n, e| n.integer(ZONES, e));
    limitless.and(windowless)?;
    let algorithm = Algorithm::Ledger { zone: u32::try_from(zone?).ok()? };
    Some(AlgorithmFields { algorithm, limit: 0, carried: None, duration_ms: 0 })
}

fn without<'a>(
    name: &'a str,
    why: &str,
    expected: &str,
    fields: &Fields<'a>,
    errors: &mut Errors,
) -> Option<()> {
    match fields.get(name) {
        Some(node) => node.reject(errors, why, expected),
        None => Some(()),
    }
}
