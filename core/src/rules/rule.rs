//! One rule: whom it limits, and how much.
//!
//! Reading it from configuration is here; what its parts mean is `matcher`, `identifier`, `overrides` and `cost`.

use super::cost::Cost;
use super::duration::Span;
use super::errors::Errors;
use super::fields::Node;
use super::identifier::Part;
use super::matcher::Conditions;
use super::overrides::Overrides;
use alloc::string::String;

const WINDOW: Span = Span { min_ms: 1_000, max_ms: 2_678_400_000, words: ("1s", "31d"), example: "1m" };

const CONSULT_TIMEOUT: Span = Span { min_ms: 1, max_ms: 1_000, words: ("1ms", "1s"), example: "50ms" };
const CONSULT_TIMEOUT_MS_DEFAULT: u64 = 50;

/// One of `rules`, in force for each request that its `match` fits.
#[derive(Clone, Debug)]
pub struct Rule {
    /// `name` (required): 1 to 64 characters of `A-Za-z0-9_.-`, unlike any other rule's; shown in headers, metrics
    /// and logs.
    pub name: String,
    /// `namespace` (default: the rule's name): where identifiers are counted. Rules of one namespace and window count
    /// together.
    pub namespace: String,
    /// `limit` (required): how much may be used in a window. 0 denies every request that costs anything.
    pub limit: u64,
    /// `window` (required): `"1s"` to `"31d"`, or whole milliseconds; here in milliseconds.
    pub duration_ms: u64,
    /// `cost` (default 1): what a request uses, as a number of 0 or more, or as
    /// `{header, cap, default}` by a header of at least 1 (default 1 without it) and at most the cap.
    pub cost: Cost,
    /// `missing` (default `shared`): what happens when a part of the identifier is missing.
    pub missing: Missing,
    /// `shadow` (default false): the rule decides, counts and reports, but never denies.
    pub shadow: bool,
    /// `consult_timeout` (default `"50ms"`): `"1ms"` to `"1s"`, or whole milliseconds; here in milliseconds.
    pub consult_timeout_ms: u64,
    /// `on_consult_failure` (default `allow`): what a request gets that had to ask and got no answer.
    pub on_consult_failure: OnConsultFailure,
    /// `first_request` (default `consult`): what a key gets that this Envoy has not seen.
    pub first_request: FirstRequest,
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

/// What happens to a request whose consult failed or came too late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnConsultFailure {
    /// `allow`: the view that this Envoy has decides.
    #[default]
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

const FIELDS: [&str; 13] = [
    "name",
    "match",
    "namespace",
    "identifier",
    "limit",
    "window",
    "cost",
    "overrides",
    "missing",
    "shadow",
    "consult_timeout",
    "on_consult_failure",
    "first_request",
];

impl Rule {
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
        let limit =
            fields.required("limit", "a whole number, 0 or more", errors, |n, e| n.integer(0..=u64::MAX, e));
        let duration_ms =
            fields.required("window", "a duration such as \"1m\"", errors, |n, e| WINDOW.read(n, e));
        let cost = fields.or("cost", Cost::Fixed(1), errors, Cost::read);
        let overrides = fields.or("overrides", Overrides::default(), errors, Overrides::read);
        let missing = fields.or("missing", Missing::default(), errors, Missing::read);
        let shadow = fields.or("shadow", false, errors, |n, e| n.boolean(e));
        let consult_timeout_ms = fields
            .or("consult_timeout", CONSULT_TIMEOUT_MS_DEFAULT, errors, |n, e| CONSULT_TIMEOUT.read(n, e));
        let on_consult_failure =
            fields.or("on_consult_failure", OnConsultFailure::default(), errors, OnConsultFailure::read);
        let first_request = fields.or("first_request", FirstRequest::default(), errors, FirstRequest::read);
        let name = name?;
        Some(Rule {
            namespace: namespace?.unwrap_or_else(|| name.clone()),
            name,
            limit: limit?,
            duration_ms: duration_ms?,
            cost: cost?,
            missing: missing?,
            shadow: shadow?,
            consult_timeout_ms: consult_timeout_ms?,
            on_consult_failure: on_consult_failure?,
            first_request: first_request?,
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

impl OnConsultFailure {
    fn read(node: Node<'_>, errors: &mut Errors) -> Option<OnConsultFailure> {
        node.word(&[("allow", OnConsultFailure::Allow), ("deny", OnConsultFailure::Deny)], errors)
    }
}

impl FirstRequest {
    fn read(node: Node<'_>, errors: &mut Errors) -> Option<FirstRequest> {
        node.word(&[("consult", FirstRequest::Consult), ("trust", FirstRequest::Trust)], errors)
    }
}
