//! Parsers of the requests for live control: pure functions from bytes to requests, or to what is invalid in them.

use super::super::checks::{read_body, read_value};
use super::super::problem::Problem;
use super::super::{MAX_PART_BYTES, MAX_PARTS};
use super::LATEST;
use crate::controls::{AuditFilter, ControlFilter, MAX_PAGE, MAX_REASON_BYTES, PlaceFilter};
use crate::net::percent;
use std::time::UNIX_EPOCH;
use weir_core::control::{ControlError, Effect, MAX_PATTERN_BYTES, Selector, Slot, Target};
use weir_core::fields::{Errors, Fields, Node, Span, Value};
use weir_core::matching::networks::{IpNet, parse_network};
use weir_core::model::key::MAX_TEXT_BYTES;
use weir_core::model::time::UnixMs;
use weir_core::model::window::MAX_COUNT;

/// From a second to ten years.
const EXPIRES_IN: Span = Span { min_ms: 1_000, max_ms: 315_360_000_000, example: "1h" };
const EFFECTS: [&str; 6] = ["limit", "exempt", "ban", "credit", "reset", "shadow"];
const PLACE_FIELDS: [&str; 6] = ["workspace", "namespace", "identifier", "network", "rule", "window"];
const PUT_FIELDS: [&str; 4] = ["expires_in", "expires_at", "reason", "author"];
const FILTER_FIELDS: [&str; 5] = ["workspace", "namespace", "rule", "identifier", "network"];
/// The parameters of queries that are numbers. A window may be a duration too.
const NUMBERS: [&str; 4] = ["window", "after", "before", "limit"];
const MOMENT: &str =
    "a time in the future, such as \"2030-01-31T12:00:00Z\", or in milliseconds of Unix time";
/// Longest author's name without a token; the stored name has a suffix that marks it as unverified.
const MAX_CLAIMED_BYTES: usize = 100;
/// Longest author of an audit entry that is selected: such a name with its suffix, or the name of a token or a rule.
const MAX_AUTHOR_BYTES: usize = 128;
/// Most characters of a parameter's name.
const MAX_SHOWN_CHARS: usize = 64;
const DEFAULT_PAGE: u32 = 100;

/// A parsed `PUT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlRequest {
    /// The target.
    pub place: Place,
    /// The effect.
    pub effect: Effect,
    /// The end; `None` for no end.
    pub expires: Option<Expiry>,
    /// The reason, or empty.
    pub reason: String,
    /// The author's name as given in the request.
    pub author: Option<String>,
}

/// A parsed `DELETE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    /// The target.
    pub place: Place,
    /// The kind of control.
    pub slot: Slot,
    /// The reason, or empty.
    pub reason: String,
    /// The author's name as given in the request.
    pub author: Option<String>,
}

/// The target of a control; in the caller's workspace if it names none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The workspace, if given.
    pub workspace: Option<String>,
    scope: String,
    selector: Selector,
    window_ms: Option<u64>,
}

/// When a control ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// This many milliseconds from now.
    In(u64),
    /// At this time.
    At(UnixMs),
}

impl Expiry {
    pub(super) fn at(self, now: UnixMs) -> Result<UnixMs, Problem> {
        match self {
            Expiry::In(ms) => Ok(UnixMs(now.0.saturating_add(ms))),
            Expiry::At(at) if (now..=LATEST).contains(&at) && at != now => Ok(at),
            Expiry::At(_) => Err(Problem::field("expires_at", &format!("expected {MOMENT}"))),
        }
    }
}

impl Place {
    pub(super) fn target(&self, workspace: String) -> Target {
        Target {
            workspace,
            scope: self.scope.clone(),
            selector: self.selector.clone(),
            window_ms: self.window_ms,
        }
    }
}

/// Parses the body of `PUT /v1/overrides`. Every invalid field is reported.
pub fn parse_put(json: &[u8]) -> Result<ControlRequest, Problem> {
    read_body(json, |node, errors| {
        let known = [&PLACE_FIELDS[..], &EFFECTS, &PUT_FIELDS].concat();
        let fields = node.object(&known, errors)?;
        let effect = effect(fields, errors);
        let place = place(fields, errors);
        let expires_in = fields.optional("expires_in", errors, |n, e| EXPIRES_IN.read(n, e));
        let expires_at = fields.optional("expires_at", errors, moment);
        let reason = text("reason", MAX_REASON_BYTES, fields, errors);
        let author = text("author", MAX_CLAIMED_BYTES, fields, errors);
        let expires = match (expires_in?, expires_at?) {
            (Some(_), Some(_)) => {
                return fields.reject(
                    "expires_at",
                    "both this and expires_in are given",
                    "one of them",
                    errors,
                );
            }
            (Some(ms), None) => Some(Expiry::In(ms)),
            (None, at) => at.map(Expiry::At),
        };
        let (effect, reason) = (effect?, reason?);
        let (field, problem) = match effect {
            Effect::Ban if reason.is_none() => {
                ("reason", "it is missing; a ban needs one, so that it can be understood later")
            }
            Effect::Credit(_) if expires.is_none() => {
                ("expires_in", "it is missing; a credit adds to the limit until it expires, such as \"1h\"")
            }
            Effect::Reset if expires.is_some() => {
                ("expires_in", "a reset cannot expire, because the former counts would return; leave it out")
            }
            _ => {
                return Some(ControlRequest {
                    place: place?,
                    effect,
                    expires,
                    reason: reason.unwrap_or_default(),
                    author: author?,
                });
            }
        };
        fields.reject(field, problem, "", errors)
    })
}

/// A time as RFC 3339, or in milliseconds.
fn moment(node: Node<'_>, errors: &mut Errors) -> Option<UnixMs> {
    let ms = match node.value {
        Value::Text(text) if node.value.as_integer().is_none() => {
            let at = humantime::parse_rfc3339_weak(text).ok();
            let since = at.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
            since.and_then(|since| u64::try_from(since.as_millis()).ok())
        }
        other => other.as_integer(),
    };
    match ms.filter(|ms| (1..=LATEST.0).contains(ms)) {
        Some(ms) => Some(UnixMs(ms)),
        None => node.reject(errors, "is not such a time", MOMENT),
    }
}

fn effect(fields: Fields<'_>, errors: &mut Errors) -> Option<Effect> {
    match fields.exactly_one(&EFFECTS, errors)? {
        "limit" => fields.required("limit", "", errors, amount).map(Effect::Limit),
        "credit" => fields.required("credit", "", errors, amount).map(Effect::Credit),
        "exempt" => fields.required("exempt", "", errors, only_true).map(|()| Effect::Exempt),
        "ban" => fields.required("ban", "", errors, only_true).map(|()| Effect::Ban),
        "reset" => fields.required("reset", "", errors, only_true).map(|()| Effect::Reset),
        _ => fields.required("shadow", "", errors, |n, e| n.boolean(e)).map(Effect::Shadow),
    }
}

fn amount(node: Node<'_>, errors: &mut Errors) -> Option<u64> {
    node.integer(0..=MAX_COUNT, errors)
}

fn only_true(node: Node<'_>, errors: &mut Errors) -> Option<()> {
    match node.value {
        Value::Bool(true) => Some(()),
        _ => node.reject(errors, "is not true", "true; DELETE removes it"),
    }
}

fn place(fields: Fields<'_>, errors: &mut Errors) -> Option<Place> {
    const TARGETS: &str = "an identifier or a network in a namespace, or a rule";
    let workspace = text("workspace", MAX_TEXT_BYTES, fields, errors);
    let namespace = text("namespace", MAX_TEXT_BYTES, fields, errors);
    let identifier = text("identifier", MAX_PATTERN_BYTES, fields, errors);
    let network = fields.optional("network", errors, network);
    let rule = text("rule", MAX_TEXT_BYTES, fields, errors);
    let window_ms = fields.optional("window", errors, |n, e| Span::WINDOW.read(n, e));
    let (namespace, rule) = (namespace?, rule?);
    let selector = match (identifier?, network?, &rule) {
        (Some(identifier), None, None) => Selector::Identifier(identifier),
        (None, Some(network), None) => Selector::Network(network),
        (None, None, Some(_)) => Selector::Rule,
        (None, None, None) => return fields.reject("identifier", "it is missing", TARGETS, errors),
        _ => {
            let expected = format!("{TARGETS}, and no more than one");
            return fields.reject("identifier", "several targets are given", expected, errors);
        }
    };
    let scope = match (namespace, rule) {
        (None, Some(rule)) => rule,
        (Some(namespace), None) => namespace,
        (Some(_), Some(_)) => {
            return fields.reject("namespace", "a rule has its namespace; leave it out", "", errors);
        }
        (None, None) => {
            return fields.reject("namespace", "it is missing", "a namespace, or * for all", errors);
        }
    };
    Some(Place { workspace: workspace?, scope, selector, window_ms: window_ms? })
}

fn network(node: Node<'_>, errors: &mut Errors) -> Option<IpNet> {
    let text = node.plain_text(MAX_TEXT_BYTES, errors)?;
    parse_network(text).map_err(|error| errors.reject::<()>(&node.path, error.to_string(), "")).ok()
}

/// A text that may be left out.
fn text<'a>(
    name: &'a str,
    bytes_max: usize,
    fields: Fields<'a>,
    errors: &mut Errors,
) -> Option<Option<String>> {
    fields.optional(name, errors, |n, e| n.plain_text(bytes_max, e).map(str::to_owned))
}

/// Parses the query of `DELETE /v1/overrides`: a target, `kind` (`override`, `credit`, `reset`; for a rule its shadow switch),
/// `reason` and `author`.
pub fn parse_delete(query: &str) -> Result<Removal, Problem> {
    read_query(query, |node, errors| {
        let fields = node.object(&[&PLACE_FIELDS[..], &["kind", "reason", "author"]].concat(), errors)?;
        let place = place(fields, errors);
        let slot = fields.optional("kind", errors, |n, e| n.word(&Slot::WORDS, e));
        let reason = text("reason", MAX_REASON_BYTES, fields, errors);
        let author = text("author", MAX_CLAIMED_BYTES, fields, errors);
        let (place, slot) = (place?, slot?);
        let slot = match (&place.selector, slot) {
            (Selector::Rule, None | Some(Slot::Shadow)) => Slot::Shadow,
            (Selector::Rule, _) | (_, Some(Slot::Shadow)) => {
                let problem = "a rule has a shadow switch and no other control; only a rule has one";
                return fields.reject("kind", problem, "", errors);
            }
            (_, slot) => slot.unwrap_or(Slot::Override),
        };
        Some(Removal { place, slot, reason: reason?.unwrap_or_default(), author: author? })
    })
}

/// Parses the query of `GET /v1/overrides`.
pub fn parse_list(query: &str) -> Result<ControlFilter, Problem> {
    read_query(query, |node, errors| {
        let own = ["kind", "matching", "after", "limit"];
        let fields = node.object(&[&FILTER_FIELDS[..], &own].concat(), errors)?;
        let place = place_filter(fields, errors);
        let slot = fields.optional("kind", errors, |n, e| n.word(&Slot::WORDS, e));
        let matching = text("matching", MAX_PARTS * MAX_PART_BYTES, fields, errors);
        let after = fields.or("after", 0, errors, |n, e| n.integer(0..=i64::MAX.cast_unsigned(), e));
        let limit = page(fields, errors);
        Some(ControlFilter { place: place?, slot: slot?, matching: matching?, after: after?, limit: limit? })
    })
}

/// Parses the query of `GET /v1/overrides/audit`.
pub fn parse_audit(query: &str) -> Result<AuditFilter, Problem> {
    read_query(query, |node, errors| {
        let fields = node.object(&[&FILTER_FIELDS[..], &["author", "before", "limit"]].concat(), errors)?;
        let place = place_filter(fields, errors);
        let author = text("author", MAX_AUTHOR_BYTES, fields, errors);
        let before = fields.optional("before", errors, |n, e| n.integer(1..=u64::MAX, e));
        let limit = page(fields, errors);
        Some(AuditFilter {
            place: place?,
            author: author?.unwrap_or_default(),
            before: before?,
            limit: limit?,
        })
    })
}

fn place_filter(fields: Fields<'_>, errors: &mut Errors) -> Option<PlaceFilter> {
    let workspace = text("workspace", MAX_TEXT_BYTES, fields, errors);
    let namespace = text("namespace", MAX_TEXT_BYTES, fields, errors);
    let rule = text("rule", MAX_TEXT_BYTES, fields, errors);
    let identifier = text("identifier", MAX_PATTERN_BYTES, fields, errors);
    let network = fields.optional("network", errors, network);
    Some(PlaceFilter {
        workspace: workspace?.unwrap_or_default(),
        scope: namespace?.or(rule?).unwrap_or_default(),
        identifier: identifier?.unwrap_or_default(),
        network: network?.map(|network| network.to_string()).unwrap_or_default(),
    })
}

fn page(fields: Fields<'_>, errors: &mut Errors) -> Option<u32> {
    let limit = fields.or("limit", DEFAULT_PAGE.into(), errors, |n, e| n.integer(1..=MAX_PAGE.into(), e));
    u32::try_from(limit?).ok()
}

/// Reads the parameters of a query as the fields of an object.
fn read_query<T>(query: &str, read: impl FnOnce(Node<'_>, &mut Errors) -> Option<T>) -> Result<T, Problem> {
    let mut fields = Vec::new();
    for (name, value) in percent::parameters(query) {
        let name: String = name.chars().take(MAX_SHOWN_CHARS).collect();
        let Some(text) = value.and_then(|bytes| String::from_utf8(bytes).ok()) else {
            return Err(Problem::field(&name, "expected a percent-encoded text"));
        };
        let number = NUMBERS.contains(&name.as_str()).then(|| text.parse().ok()).flatten();
        fields.push((name.into(), number.map_or(Value::Text(text.into()), Value::Unsigned)));
    }
    read_value(&Value::Object(fields), read)
}

/// The error of an invalid control, with the field of the body that it concerns.
pub(super) fn explain(error: &ControlError, effect: Effect) -> Problem {
    let message = error.to_string();
    let field = match error {
        ControlError::Name(name) | ControlError::Reserved(name) => {
            name.rsplit(' ').next().unwrap_or("namespace")
        }
        ControlError::Network(_) => "network",
        ControlError::Window => "window",
        ControlError::Amount | ControlError::Kind(_) | ControlError::Mismatch(_) => {
            crate::controls::name_and_value(&effect).0
        }
        _ => "identifier",
    };
    Problem::field(field, &message)
}

#[cfg(test)]
mod tests;
