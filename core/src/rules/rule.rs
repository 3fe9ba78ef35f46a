//! One rule: whom it limits, and how much.
//!
//! Reading it from configuration is here; what its parts mean is `matcher`, `identifier`, `strategy`,
//! `overrides` and `cost`.

use super::ban::Ban;
use super::cost::Cost;
use super::identifier::{Part, optional_parts};
use super::matcher::Conditions;
use super::overrides::Overrides;
use super::parse::errors::Errors;
use super::parse::fields::Node;
use super::strategy::{Held, Kind};
use crate::model::exact::Strategy;
use crate::model::key::{CEILING_RESOLUTION, MAX_TEXT_BYTES};
use alloc::format;
use alloc::string::String;

/// One of `rules`, in force for each request that its `match` fits.
#[derive(Clone, Debug)]
pub struct Rule {
    /// `name` (required): 1 to 64 characters of `A-Za-z0-9_.-`, unlike any other rule's; shown in headers, metrics
    /// and logs.
    pub name: String,
    /// `namespace` (default: the rule's name): where identifiers are counted. Rules of one namespace and window count
    /// together, those with a ceiling apart.
    pub namespace: String,
    /// `strategy` (default `window`): how the limit is held; with `ledger` goes a `zone` of at least 1.
    pub strategy: Strategy,
    /// `limit` (required, but for a ledger, whose zone says it): how much may be used in a window. 0 denies every
    /// request that costs anything. A log's is at most [`MAX_LOG_LIMIT`](crate::model::exact::MAX_LOG_LIMIT); a ledger's is 0.
    pub limit: u64,
    /// `window` (required, but for a ledger, whose zone says it): `"1s"` to `"31d"`, or whole milliseconds; here in
    /// milliseconds; a ledger's is 0.
    pub duration_ms: u64,
    /// `ceiling` (default false; a window's only, of a multiple of 10 ms): no true window holds more than the limit, wherever it
    /// begins.
    pub ceiling: bool,
    /// `cost` (default 1): what a request uses, as a number of 0 or more, or as
    /// `{header, cap, default}` by a header of at least 1 (default 1 without it) and at most the cap, or by a header of the
    /// response (see [`ResponseCost`](super::ResponseCost); a window's only, without a ceiling).
    pub cost: Cost,
    /// `hash` (default false): identifiers are secrets. Only a keyed digest of them leaves the filter; overrides are matched
    /// against the text itself.
    pub hash: bool,
    /// `missing` (default `shared`): what happens when a part of the identifier is missing.
    pub missing: Missing,
    /// `ambiguous` (default `shared`, or `deny` where `missing` is `deny`): what happens when a part of the identifier has several
    /// values.
    pub ambiguous: Ambiguous,
    /// `shadow` (default false): the rule decides, counts and reports, but never denies.
    pub shadow: bool,
    /// `consult_timeout` (default `"50ms"`, `"100ms"` for a log or a ledger): `"1ms"` to `"1s"`, up to `"10s"` for a log
    /// or a ledger, or whole milliseconds; here in milliseconds.
    pub consult_timeout_ms: u64,
    /// `on_consult_failure` (default `allow`, `deny` for a log or a ledger): what a request gets that had to ask and got
    /// no answer.
    pub on_consult_failure: OnConsultFailure,
    /// `first_request` (default `consult`; a window's only): what a key gets that this Envoy has not seen.
    pub first_request: FirstRequest,
    /// `ban` (default: none): who is denied too often is denied for a while; see [`Ban`]. Needs a namespace of at most 63
    /// characters.
    pub ban: Option<Ban>,
    /// `match` (default: every request).
    pub(super) conditions: Conditions,
    /// `identifier` (required): one part or a list of up to 8.
    pub(super) parts: alloc::vec::Vec<Part>,
    /// `overrides` (default: none): up to 10 000 identifiers or patterns with a limit of their own.
    pub(super) overrides: Overrides,
}

/// What happens to a request that lacks a part of the identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Missing {
    /// `shared`: all requests that lack the same parts are counted together.
    #[default]
    Shared,
    /// `skip`: the rule is not for them.
    Skip,
    /// `deny`: they are denied.
    Deny,
}

/// What happens to a request that has several values for a part of the identifier, of which an upstream may take any. It is
/// never let pass uncounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Ambiguous {
    /// `shared`: all such requests are counted together, apart from those that lack the part.
    #[default]
    Shared,
    /// `deny`: they are denied.
    Deny,
}

/// What happens to a request whose consult failed or came too late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnConsultFailure {
    /// `allow`: the view that this Envoy has decides; it has none of a log or a ledger, so those let pass.
    Allow,
    /// `deny`: it is denied.
    Deny,
}

/// What a key gets that this Envoy has not seen before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FirstRequest {
    /// `consult`: its region is asked.
    #[default]
    Consult,
    /// `trust`: it is taken to be below half its limit when a complete snapshot of the region does not show it.
    Trust,
}

const FIELDS: [&str; 19] = [
    "name",
    "match",
    "namespace",
    "identifier",
    "hash",
    "strategy",
    "zone",
    "limit",
    "window",
    "ceiling",
    "cost",
    "overrides",
    "missing",
    "ambiguous",
    "shadow",
    "consult_timeout",
    "on_consult_failure",
    "first_request",
    "ban",
];

impl Rule {
    /// Cells per window of the keys on which the rule counts.
    pub fn resolution(&self) -> u16 {
        if self.ceiling { CEILING_RESOLUTION } else { 1 }
    }

    /// How many identifiers and patterns have a limit of their own, or none.
    pub fn overrides_listed(&self) -> usize {
        self.overrides.count
    }

    /// What a client can leave out so that this rule does not apply to it: kind and name of a part.
    pub fn left_out(&self) -> Option<(&'static str, &[u8])> {
        optional_parts(&self.parts).next().filter(|_| self.missing == Missing::Skip)
    }

    /// Whether this rule certainly limits every request that the other one is for.
    pub fn covers(&self, other: &Rule) -> bool {
        // Conditions hold compiled expressions, which can only be compared as they are written.
        let alike = || format!("{:?}", self.conditions) == format!("{:?}", other.conditions);
        !self.shadow && self.left_out().is_none() && (self.conditions.is_empty() || alike())
    }

    pub(super) fn read(node: Node<'_>, errors: &mut Errors) -> Option<Rule> {
        let fields = node.object(&FIELDS, errors)?;
        let name = fields.required("name", "a name for headers, metrics and logs", errors, |n, e| n.name(e));
        let conditions = fields.or("match", Conditions::default(), errors, Conditions::read);
        let namespace = fields.optional("namespace", errors, |n, e| n.name(e));
        let parts = fields.required(
            "identifier",
            "one part or a list of parts, such as {\"header\": \"x-api-key\"}",
            errors,
            Part::read_all,
        );
        let hash = fields.or("hash", false, errors, |n, e| n.boolean(e));
        let kind = fields.or("strategy", Kind::default(), errors, Kind::read);
        // What follows a strategy that cannot be read is read as the usual one's.
        let of = kind.unwrap_or_default();
        let held = of.read_limit(&fields, errors);
        let ceiling = of.read_ceiling(&fields, held.as_ref(), errors);
        let cost = fields.or("cost", Cost::Fixed(1), errors, Cost::read);
        let told = of.check_cost(&fields, cost.as_ref(), ceiling == Some(true), errors);
        let overrides =
            fields.or("overrides", Overrides::default(), errors, |n, e| Overrides::read(n, of, e));
        let missing = fields.or("missing", Missing::default(), errors, Missing::read);
        let ambiguous = fields.optional("ambiguous", errors, Ambiguous::read);
        let shadow = fields.or("shadow", false, errors, |n, e| n.boolean(e));
        let consult_timeout_ms = of.read_timeout(&fields, errors);
        let on_failure = OnConsultFailure::default_of(of);
        let on_consult_failure = fields.or("on_consult_failure", on_failure, errors, OnConsultFailure::read);
        let first_request = fields.or("first_request", FirstRequest::default(), errors, FirstRequest::read);
        let ban = fields.optional("ban", errors, Ban::read);
        let others = of.check_others(&fields, errors);
        let (name, _, (), ()) = (name?, kind?, others?, told?);
        let Held { strategy, limit, duration_ms } = held?;
        let namespace = namespace?.unwrap_or_else(|| name.clone());
        let long = namespace.len() >= MAX_TEXT_BYTES;
        if let Some(ban) = fields.get("ban").filter(|_| long) {
            let expected = "a namespace of at most 63 characters";
            return ban.reject(errors, "cannot be counted beside so long a namespace", expected);
        }
        Some(Rule {
            namespace,
            name,
            strategy,
            limit,
            duration_ms,
            ceiling: ceiling?,
            cost: cost?,
            hash: hash?,
            missing: missing?,
            ambiguous: ambiguous?.unwrap_or(match missing? {
                Missing::Deny => Ambiguous::Deny,
                Missing::Shared | Missing::Skip => Ambiguous::Shared,
            }),
            shadow: shadow?,
            consult_timeout_ms: consult_timeout_ms?,
            on_consult_failure: on_consult_failure?,
            first_request: first_request?,
            ban: ban?,
            conditions: conditions?,
            parts: parts?,
            overrides: overrides?,
        })
    }
}

impl Missing {
    fn read(node: Node<'_>, errors: &mut Errors) -> Option<Missing> {
        node.word(&[("shared", Missing::Shared), ("skip", Missing::Skip), ("deny", Missing::Deny)], errors)
    }
}

impl Ambiguous {
    fn read(node: Node<'_>, errors: &mut Errors) -> Option<Ambiguous> {
        node.word(&[("shared", Ambiguous::Shared), ("deny", Ambiguous::Deny)], errors)
    }
}

impl OnConsultFailure {
    /// An Envoy has no count of a log or a ledger to decide by, and a limit that is worth a round trip must not pass for
    /// want of an answer.
    fn default_of(kind: Kind) -> OnConsultFailure {
        match kind {
            Kind::Window => OnConsultFailure::Allow,
            Kind::Log | Kind::Ledger => OnConsultFailure::Deny,
        }
    }

    fn read(node: Node<'_>, errors: &mut Errors) -> Option<OnConsultFailure> {
        node.word(&[("allow", OnConsultFailure::Allow), ("deny", OnConsultFailure::Deny)], errors)
    }
}

impl FirstRequest {
    fn read(node: Node<'_>, errors: &mut Errors) -> Option<FirstRequest> {
        node.word(&[("consult", FirstRequest::Consult), ("trust", FirstRequest::Trust)], errors)
    }
}
