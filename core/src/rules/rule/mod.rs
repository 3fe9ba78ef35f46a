//! One rule: which requests it limits, and how much. Its parts are in `matcher`, `identifier`, `algorithm`, `carried`,
//! `plans`, `overrides`, `cost`, `ban`, `response` (`json_rpc`) and `share`.

pub(super) mod algorithm;
pub(super) mod ban;
pub(super) mod carried;
pub(super) mod cost;
pub(super) mod json_rpc;
pub(super) mod overrides;
mod pattern;
pub(super) mod plans;
pub(super) mod response;
pub(super) mod share;

use super::identifier::{
    MetadataPart, Part, can_be_missing, evaded_parts, header_parts, metadata_parts, optional_parts,
    query_parts, reads_path, skips_unlisted, spelt_parts,
};
use super::matcher::Conditions;
use crate::fields::Errors;
use crate::fields::Node;
use crate::limiter::{CompiledRule, Policy, Visibility};
use crate::model::exact::Algorithm;
use crate::model::key::{HARD_LIMIT_RESOLUTION, KeyParts, MAX_TEXT_BYTES};
use algorithm::{AlgorithmFields, AlgorithmKind};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use ban::Ban;
use carried::CarriedLimit;
use cost::Cost;
use overrides::Overrides;
use plans::Plans;
use response::{LimitHeaders, OwnResponse};
use share::Share;

/// One of `rules`. It applies to each request that fulfils its `match`.
#[derive(Clone, Debug)]
pub struct Rule {
    /// `name` (required): 1 to 64 characters of `A-Za-z0-9_.-`, different from any other rule's. It is shown in
    /// headers, metrics and logs.
    pub name: String,
    /// `namespace` (default: the rule's name): the namespace of the keys. Rules with the same namespace and window
    /// share their counts; those with a hard limit share them separately.
    pub namespace: String,
    /// `algorithm` (default `sliding_window`): how the limit is enforced. `ledger` requires a `zone` of at least 1.
    pub algorithm: Algorithm,
    /// `limit` (required, except for a ledger, whose zone sets it): how much may be used in a window. 0 denies every
    /// request with a cost above 0. For a log it is at most [`MAX_LOG_LIMIT`](crate::model::exact::MAX_LOG_LIMIT); for
    /// a ledger it is 0 here.
    pub limit: u64,
    /// `limit: {metadata | filter_state, default, max}` or `limit: {by, of, default}` (default: none): where a request carries a limit
    /// in place of `limit`, or a plan that has one; `limit` is the default then. Overrides and live control take precedence.
    pub carried: Option<CarriedLimit>,
    /// `window` (required, except for a ledger, whose zone sets it): `"1s"` to `"366d"`, or whole milliseconds; here in
    /// milliseconds. For a ledger it is 0 here.
    pub duration_ms: u64,
    /// `hard_limit` (default false; only with `sliding_window`, and a window that is a multiple of 10 ms): no window of
    /// any placement holds more than the limit.
    pub hard_limit: bool,
    /// `cost` (default 1): what a request uses. Either a number of 0 or more; or `{request: {header | metadata}, max,
    /// default}`, what a request header or metadata states, at least 1 and at most `max`, with `default` (1) if that is
    /// missing. Only with `sliding_window` also the value of a response header (see [`ResponseCost`](super::ResponseCost); not with a
    /// hard limit), or by what the response is (see [`WhenCost`](super::WhenCost); with a hard limit at most the reserve).
    pub cost: Cost,
    /// `hash` (default false): identifiers are secrets. Only a keyed digest of them leaves the filter. Overrides are
    /// matched against the original text.
    pub hash: bool,
    /// `on_missing_identifier` (default `shared`): what to do if a part of the identifier is missing.
    pub missing: Missing,
    /// `on_ambiguous_identifier` (default `shared`, or `deny` if `on_missing_identifier` is `deny`): what to do if a
    /// part of the identifier has several values.
    pub ambiguous: Ambiguous,
    /// `shadow_mode` (default false): the rule decides, counts and reports, but never denies.
    pub shadow: bool,
    /// `enforce_percent` (default 100): 0 to 100 with two decimals; the share of identifiers for which the rule is
    /// enforced. For the others it is in shadow mode.
    pub enforced: Share,
    /// `timeout` (default `"50ms"`, `"100ms"` for a log or a ledger): `"1ms"` to `"1s"`, up to `"10s"` for a log or a
    /// ledger, or whole milliseconds; here in milliseconds.
    pub timeout_ms: u64,
    /// `on_failure` (default `allow`, `deny` for a log or a ledger): the decision on a request whose query got no
    /// answer.
    pub on_failure: OnFailure,
    /// `unknown_key` (default `query`; only with `sliding_window`): what to do with a key that this Envoy has not
    /// stored.
    pub unknown_key: UnknownKey,
    /// `ban` (default: none): bans an identifier that is denied too often; see [`Ban`]. Needs a namespace of at most 63
    /// characters.
    pub ban: Option<Ban>,
    /// `response` (default: as `responses` states): the response to requests that the rule denies; see
    /// [`OwnResponse`].
    pub response: Option<Box<OwnResponse>>,
    /// `path_group` (default: none): of the rules of one group that a request matches only the one with the most specific path applies.
    pub path_group: Option<String>,
    /// The rules of its group with a more specific path.
    pub(super) more_specific: Box<[u16]>,
    /// `match` (default: every request).
    pub(super) conditions: Conditions,
    /// `identifier` (required): one part or a list of up to 8.
    pub(super) parts: alloc::vec::Vec<Part>,
    /// `overrides` (default: none): up to 10 000 identifiers or patterns with a limit of their own.
    pub(super) overrides: Overrides,
}

/// What to do with a request that lacks a part of the identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Missing {
    /// `shared`: all requests that lack the same parts share one key.
    #[default]
    Shared,
    /// `skip`: the rule does not apply to them.
    Skip,
    /// `deny`: they are denied.
    Deny,
}

/// What to do with a request that has several values for a part of the identifier, since an upstream may use any of
/// them. Such a request is never admitted without being counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Ambiguous {
    /// `shared`: all such requests share one key, different from that of requests that lack the part.
    #[default]
    Shared,
    /// `deny`: they are denied.
    Deny,
}

/// What to do with a request whose query failed or was answered too late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// `allow`: this Envoy's own snapshot decides. For a log or a ledger there is none, so the request is admitted.
    Allow,
    /// `deny`: the request is denied.
    Deny,
}

/// What to do with a key that this Envoy has not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum UnknownKey {
    /// `query`: query the aggregator.
    #[default]
    Query,
    /// `assume_low`: assume that the key is below half its limit if a complete snapshot of the region does not contain
    /// it.
    AssumeLow,
}

pub(super) const FIELDS: [&str; 22] = [
    "name",
    "match",
    "path_group",
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
    "enforce_percent",
    "timeout",
    "on_failure",
    "unknown_key",
    "ban",
    "response",
];

impl Rule {
    /// Cells per window of the keys on which the rule counts.
    pub fn resolution(&self) -> u16 {
        if self.hard_limit { HARD_LIMIT_RESOLUTION } else { 1 }
    }

    /// The rule as a limiter applies it, with the rule's number in its configuration.
    pub fn compiled(&self, number: u16, workspace: &str) -> CompiledRule {
        let parts = KeyParts {
            workspace: workspace.as_bytes(),
            namespace: self.namespace.as_bytes(),
            identifier: b"",
            duration_ms: self.duration_ms,
            epoch: 0,
            resolution: self.resolution(),
        };
        CompiledRule::new(number, self.algorithm, &parts, self.policy())
    }

    fn policy(&self) -> Policy {
        let deferral = self.cost.deferral();
        let (settles_within_ms, settles_at_most) =
            deferral.map_or((0, 0), |deferral| (deferral.hold_timeout_ms, deferral.most));
        Policy {
            shadow: self.shadow,
            trust_first: self.unknown_key == UnknownKey::AssumeLow,
            deny_on_failure: self.on_failure == OnFailure::Deny,
            visibility: if self.is_hidden() { Visibility::Hidden } else { Visibility::Shown },
            timeout_ms: u32::try_from(self.timeout_ms).unwrap_or(u32::MAX),
            settles_within_ms,
            settles_at_most,
            estimates: matches!(self.cost, Cost::Usage(_)),
            bans_by_charge: false,
        }
    }

    /// How many regular expressions it has.
    pub(super) fn expressions(&self) -> usize {
        self.conditions.expressions().saturating_add(self.cost.expressions())
    }

    /// Whether no response has headers about this limit.
    pub fn is_hidden(&self) -> bool {
        self.headers() == LimitHeaders::Hidden
    }

    /// Which headers responses have about this limit.
    pub fn headers(&self) -> LimitHeaders {
        self.response.as_ref().map(|response| response.headers).unwrap_or_default()
    }

    /// How many identifiers and patterns have an override.
    pub fn overrides_listed(&self) -> usize {
        self.overrides.count
    }

    /// Of how many parts its raw identifiers are.
    pub fn parts_of_raw_identifiers(&self) -> usize {
        self.parts.len()
    }

    /// Of how many parts the identifiers are that keys and live control have; 0 where they are digests.
    pub fn parts_of_identifiers(&self) -> usize {
        if self.hash { 0 } else { self.parts.len() }
    }

    /// The kind and name of a part that a client can omit, so that this rule does not apply to its request.
    pub fn left_out(&self) -> Option<(&'static str, &[u8])> {
        optional_parts(&self.parts).next().filter(|_| self.missing == Missing::Skip)
    }

    /// The kind and name of a part whose value a client can choose so that this rule does not apply to its request.
    pub fn evaded_by(&self) -> Option<(&'static str, &[u8])> {
        evaded_parts(&self.parts).next()
    }

    /// The places of the rules of its group that may apply in its place.
    pub fn replaced_by(&self) -> impl Iterator<Item = usize> {
        self.more_specific.iter().map(|at| usize::from(*at))
    }

    /// The metadata of its identifier.
    pub fn metadata_parts(&self) -> impl Iterator<Item = MetadataPart<'_>> {
        metadata_parts(&self.parts)
    }

    /// Whether it does not apply to requests with a value that is not listed.
    fn skips_unlisted(&self) -> bool {
        skips_unlisted(&self.parts)
    }

    /// The field that reads the path, if there is one.
    pub fn reads_path(&self) -> Option<&'static str> {
        let of_match = self.conditions.reads_path().then_some("match.path");
        let of_header = || self.compares_sent_path().then_some("match.headers on :path");
        of_match.or_else(|| reads_path(&self.parts)).or_else(of_header)
    }

    /// The name of a query parameter of the identifier, if the rule is for requests that have a body as a rule.
    pub fn query_beside_body(&self) -> Option<&[u8]> {
        query_parts(&self.parts).next().filter(|_| self.conditions.allows_body())
    }

    /// Whether a condition compares the path as it was sent, in any spelling.
    pub fn compares_sent_path(&self) -> bool {
        self.conditions.compares_sent_path()
    }

    /// The limits by plan, if it has some.
    pub fn plans(&self) -> Option<&Plans> {
        match &self.carried {
            Some(CarriedLimit::ByPlan(plans)) => Some(plans),
            _ => None,
        }
    }

    /// A header that the rule reads, with the field that names it, of which upstreams that take `_` for `-` accept another name.
    pub fn aliased_header(&self) -> Option<(&'static str, &[u8])> {
        let of_cost = match &self.cost {
            Cost::Request(cost) => cost.header(),
            Cost::Fixed(_) | Cost::Response(_) | Cost::When(_) | Cost::Usage(_) => None,
        };
        let of_plan = self.plans().and_then(Plans::header);
        let mut read = header_parts(&self.parts)
            .map(|name| ("identifier", name))
            .chain(self.conditions.headers().map(|name| ("match.headers", name)))
            .chain(of_cost.map(|name| ("cost", name)))
            .chain(of_plan.map(|name| ("limit.by", name)));
        read.find(|(_, name)| name.iter().any(|byte| matches!(byte, b'-' | b'_')))
    }

    /// Headers of the identifier of which upstreams accept many spellings, each with the part to use in its place.
    pub fn spelt_headers(&self) -> impl Iterator<Item = (&[u8], &'static str)> {
        spelt_parts(&self.parts)
    }

    /// Whether this rule certainly limits every request that the other one applies to.
    pub fn covers(&self, other: &Rule) -> bool {
        // Conditions contain compiled expressions, which can only be compared by their text.
        let alike = || format!("{:?}", self.conditions) == format!("{:?}", other.conditions);
        let skips_missing = self.missing == Missing::Skip && can_be_missing(&self.parts);
        let skips = skips_missing || self.skips_unlisted();
        !self.shadow && self.enforced == Share::ALL && !skips && (self.conditions.is_empty() || alike())
    }

    pub(super) fn read(node: Node<'_>, errors: &mut Errors) -> Option<Rule> {
        let fields = node.object(&FIELDS, errors)?;
        let name = fields.required("name", "a name for headers, metrics and logs", errors, |n, e| n.name(e));
        let conditions = fields.or("match", Conditions::default(), errors, Conditions::read);
        let path_group = fields.optional("path_group", errors, |n, e| n.name(e));
        let namespace = fields.optional("namespace", errors, |n, e| n.name(e));
        let parts = fields.required(
            "identifier",
            "one part or a list of parts, such as {\"header\": \"x-api-key\"}",
            errors,
            Part::read_all,
        );
        let hash = fields.or("hash", false, errors, |n, e| n.boolean(e));
        let kind = fields.or("algorithm", AlgorithmKind::default(), errors, AlgorithmKind::read);
        // If the algorithm cannot be read, the other fields are read as for the default one.
        let of = kind.unwrap_or_default();
        let own = of.read_limit(&fields, errors);
        let hard_limit = of.read_hard_limit(&fields, own.as_ref(), errors);
        let cost = fields.or("cost", Cost::Fixed(1), errors, Cost::read);
        let cost_fits = of.check_cost(&fields, cost.as_ref(), hard_limit == Some(true), errors);
        let overrides =
            fields.or("overrides", Overrides::default(), errors, |n, e| Overrides::read(n, of, e));
        let missing = fields.or("on_missing_identifier", Missing::default(), errors, Missing::read);
        let ambiguous = fields.optional("on_ambiguous_identifier", errors, Ambiguous::read);
        let shadow = fields.or("shadow_mode", false, errors, |n, e| n.boolean(e));
        let enforced = fields.or("enforce_percent", Share::ALL, errors, Share::read);
        let timeout_ms = of.read_timeout(&fields, errors);
        let on_failure = OnFailure::default_of(of);
        let on_failure = fields.or("on_failure", on_failure, errors, OnFailure::read);
        let unknown_key = fields.or("unknown_key", UnknownKey::default(), errors, UnknownKey::read);
        let is_deferred = cost.as_ref().is_none_or(|cost| cost.deferral().is_some());
        let ban = fields.optional("ban", errors, |n, e| Ban::read(n, is_deferred, e));
        let response = fields.optional("response", errors, OwnResponse::read);
        let others = of.check_others(&fields, errors);
        let (name, _, (), ()) = (name?, kind?, others?, cost_fits?);
        let AlgorithmFields { algorithm, limit, carried, duration_ms } = own?;
        let namespace = namespace?.unwrap_or_else(|| name.clone());
        let long = namespace.len() >= MAX_TEXT_BYTES;
        if let Some(ban) = fields.get("ban").filter(|_| long) {
            let expected = "a namespace of at most 63 characters";
            return ban.reject(errors, "cannot be used with so long a namespace", expected);
        }
        Some(Rule {
            namespace,
            name,
            algorithm,
            limit,
            carried,
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
            enforced: enforced?,
            timeout_ms: timeout_ms?,
            on_failure: on_failure?,
            unknown_key: unknown_key?,
            ban: ban?,
            response: response?.map(Box::new),
            path_group: path_group?,
            more_specific: Box::default(),
            conditions: conditions?,
            parts: parts?,
            overrides: overrides?,
        })
    }
}

impl Missing {
    pub(super) const WORDS: [(&str, Missing); 3] =
        [("shared", Missing::Shared), ("skip", Missing::Skip), ("deny", Missing::Deny)];

    fn read(node: Node<'_>, errors: &mut Errors) -> Option<Missing> {
        node.word(&Missing::WORDS, errors)
    }
}

impl Ambiguous {
    pub(super) const WORDS: [(&str, Ambiguous); 2] =
        [("shared", Ambiguous::Shared), ("deny", Ambiguous::Deny)];

    fn read(node: Node<'_>, errors: &mut Errors) -> Option<Ambiguous> {
        node.word(&Ambiguous::WORDS, errors)
    }
}

impl OnFailure {
    pub(super) const WORDS: [(&str, OnFailure); 2] = [("allow", OnFailure::Allow), ("deny", OnFailure::Deny)];

    /// For a log or a ledger an Envoy has no counts of its own to decide from. A limit that is worth a round trip must
    /// not be exceeded because an answer is missing.
    fn default_of(kind: AlgorithmKind) -> OnFailure {
        if kind.is_exact() { OnFailure::Deny } else { OnFailure::Allow }
    }

    fn read(node: Node<'_>, errors: &mut Errors) -> Option<OnFailure> {
        node.word(&OnFailure::WORDS, errors)
    }
}

impl UnknownKey {
    pub(super) const WORDS: [(&str, UnknownKey); 2] =
        [("query", UnknownKey::Query), ("assume_low", UnknownKey::AssumeLow)];

    fn read(node: Node<'_>, errors: &mut Errors) -> Option<UnknownKey> {
        node.word(&UnknownKey::WORDS, errors)
    }
}
