//! One rule: whom it limits, and how much.
//!
//! Reading it from configuration is here; what its parts mean is `matcher`, `identifier`, `algorithm`,
//! `overrides` and `cost`.

pub(super) mod algorithm;
pub(super) mod ban;
pub(super) mod cost;
pub(super) mod overrides;

use super::identifier::{Part, optional_parts};
use super::matcher::Conditions;
use super::parse::errors::Errors;
use super::parse::fields::Node;
use crate::model::exact::Algorithm;
use crate::model::key::{HARD_LIMIT_RESOLUTION, MAX_TEXT_BYTES};
use algorithm::{Held, Kind};
use alloc::format;
use alloc::string::String;
use ban::Ban;
use cost::Cost;
use overrides::Overrides;

/// One of `rules`, in force for each request that its `match` fits.
#[derive(Clone, Debug)]
pub struct Rule {
    /// `name` (required): 1 to 64 characters of `A-Za-z0-9_.-`, unlike any other rule's; shown in headers, metrics
    /// and logs.
    pub name: String,
    /// `namespace` (default: the rule's name): where identifiers are counted. Rules of one namespace and window count
    /// together, those with a hard limit apart.
    pub namespace: String,
    /// `algorithm` (default `window`): how the limit is held; with `ledger` goes a `zone` of at least 1.
    pub algorithm: Algorithm,
    /// `limit` (required, but for a ledger, whose zone says it): how much may be used in a window. 0 denies every
    /// request that costs anything. A log's is at most [`MAX_LOG_LIMIT`](crate::model::exact::MAX_LOG_LIMIT); a ledger's is 0.
    pub limit: u64,
    /// `window` (required, but for a ledger, whose zone says it): `"1s"` to `"31d"`, or whole milliseconds; here in
    /// milliseconds; a ledger's is 0.
    pub duration_ms: u64,
    /// `hard_limit` (default false; a window's only, of a multiple of 10 ms): no true window holds more than the limit, wherever it
    /// begins.
    pub hard_limit: bool,
    /// `cost` (default 1): what a request uses, as a number of 0 or more, or as
    /// `{header, cap, default}` by a header of at least 1 (default 1 without it) and at most the cap, or by a header of the
    /// response (see [`ResponseCost`](super::ResponseCost); a window's only, without a hard limit).
    pub cost: Cost,
    /// `hash` (default false): identifiers are secrets. Only a keyed digest of them leaves the filter; overrides are matched
    /// against the text itself.
    pub hash: bool,
    /// `on_missing_identifier` (default `shared`): what happens when a part of the identifier is missing.
    pub missing: Missing,
    /// `on_ambiguous_identifier` (default `shared`, or `deny` where `on_missing_identifier` is `deny`): what happens when a part of the identifier has several
    /// values.
    pub ambiguous: Ambiguous,
    /// `shadow_mode` (default false): the rule decides, counts and reports, but never denies.
    pub shadow: bool,
    /// `timeout` (default `"50ms"`, `"100ms"` for a log or a ledger): `"1ms"` to `"1s"`, up to `"10s"` for a log
    /// or a ledger, or whole milliseconds; here in milliseconds.
    pub timeout_ms: u64,
    /// `on_failure` (default `allow`, `deny` for a log or a ledger): what a request gets that had to ask and got
    /// no answer.
    pub on_failure: OnFailure,
    /// `unknown_key` (default `consult`; a window's only): what a key gets that this Envoy has not seen.
    pub unknown_key: UnknownKey,
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
pub enum OnFailure {
    /// `allow`: the view that this Envoy has decides; it has none of a log or a ledger, so those let pass.
    Allow,
    /// `deny`: it is denied.
    Deny,
}

/// What a key gets that this Envoy has not seen before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum UnknownKey {
    /// `query`: its region is asked.
    #[default]
    Query,
    /// `assume_low`: it is taken to be below half its limit when a complete snapshot of the region does not show it.
    AssumeLow,
}

const FIELDS: [&str; 19] = [
    "name",
    "match",
    "namespace",
    "identifier",
    "hash",
    "algorithm",
    "zone",
    "limit",
    "window",
    "hard_limit",
    "cost",
    "overrides",
    "on_missing_identifier",
    "on_ambiguous_identifier",
    "shadow_mode",
    "timeout",
    "on_failure",
    "unknown_key",
    "ban",
];

impl Rule {
    /// Cells per window of the keys on which the rule counts.
    pub fn resolution(&self) -> u16 {
        if self.hard_limit { HARD_LIMIT_RESOLUTION } else { 1 }
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
        let kind = fields.or("algorithm", Kind::default(), errors, Kind::read);
        // What follows an algorithm that cannot be read is read as the usual one's.
        let of = kind.unwrap_or_default();
        let held = of.read_limit(&fields, errors);
        let hard_limit = of.read_hard_limit(&fields, held.as_ref(), errors);
        let cost = fields.or("cost", Cost::Fixed(1), errors, Cost::read);
        let told = of.check_cost(&fields, cost.as_ref(), hard_limit == Some(true), errors);
        let overrides =
            fields.or("overrides", Overrides::default(), errors, |n, e| Overrides::read(n, of, e));
        let missing = fields.or("on_missing_identifier", Missing::default(), errors, Missing::read);
        let ambiguous = fields.optional("on_ambiguous_identifier", errors, Ambiguous::read);
        let shadow = fields.or("shadow_mode", false, errors, |n, e| n.boolean(e));
        let timeout_ms = of.read_timeout(&fields, errors);
        let on_failure = OnFailure::default_of(of);
        let on_failure = fields.or("on_failure", on_failure, errors, OnFailure::read);
        let unknown_key = fields.or("unknown_key", UnknownKey::default(), errors, UnknownKey::read);
        let ban = fields.optional("ban", errors, Ban::read);
        let others = of.check_others(&fields, errors);
        let (name, _, (), ()) = (name?, kind?, others?, told?);
        let Held { algorithm, limit, duration_ms } = held?;
        let namespace = namespace?.unwrap_or_else(|| name.clone());
        let long = namespace.len() >= MAX_TEXT_BYTES;
        if let Some(ban) = fields.get("ban").filter(|_| long) {
            let expected = "a namespace of at most 63 characters";
            return ban.reject(errors, "cannot be counted beside so long a namespace", expected);
        }
        Some(Rule {
            namespace,
            name,
            algorithm,
            limit,
            duration_ms,
            hard_limit: hard_limit?,
            cost: cost?,
            hash: hash?,
            missing: missing?,
            ambiguous: ambiguous?.unwrap_or(match missing? {
                Missing::Deny => Ambiguous::Deny,
                Missing::Shared | Missing::Skip => Ambiguous::Shared,
            }),
            shadow: shadow?,
            timeout_ms: timeout_ms?,
            on_failure: on_failure?,
            unknown_key: unknown_key?,
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

impl OnFailure {
    /// An Envoy has no count of a log or a ledger to decide by, and a limit that is worth a round trip must not pass for
    /// want of an answer.
    fn default_of(kind: Kind) -> OnFailure {
        match kind {
            Kind::Window => OnFailure::Allow,
            Kind::Log | Kind::Ledger => OnFailure::Deny,
        }
    }

    fn read(node: Node<'_>, errors: &mut Errors) -> Option<OnFailure> {
        node.word(&[("allow", OnFailure::Allow), ("deny", OnFailure::Deny)], errors)
    }
}

impl UnknownKey {
    fn read(node: Node<'_>, errors: &mut Errors) -> Option<UnknownKey> {
        node.word(&[("query", UnknownKey::Query), ("assume_low", UnknownKey::AssumeLow)], errors)
    }
}
