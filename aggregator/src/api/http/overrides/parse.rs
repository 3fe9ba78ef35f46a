//! Parsers of the requests for live control: pure functions from bytes to requests, or to what is invalid in them.

use super::super::checks::read_body;
use super::super::problem::{FieldProblem, Problem};
use super::LATEST;
use crate::controls::{AuditFilter, ControlFilter, MAX_PAGE, MAX_REASON_BYTES, PlaceFilter};
use crate::net::percent;
use std::ops::RangeInclusive;
use std::time::UNIX_EPOCH;
use weir_core::control::{ControlError, Effect, MAX_PATTERN_BYTES, Selector, Slot, Target};
use weir_core::fields::{Errors, Fields, Node, Span, Value, parse_ms};
use weir_core::matching::networks::parse_network;
use weir_core::model::key::{MAX_DURATION_MS, MAX_TEXT_BYTES, MIN_DURATION_MS};
use weir_core::model::time::UnixMs;
use weir_core::model::window::MAX_COUNT;

/// From a second to ten years.
const EXPIRES_IN: Span = Span { min_ms: 1_000, max_ms: 315_360_000_000, example: "1h" };
const EFFECTS: [&str; 6] = ["limit", "exempt", "ban", "credit", "reset", "shadow"];
const PUT_FIELDS: [&str; 16] = [
    "workspace",
    "namespace",
    "identifier",
    "network",
    "rule",
    "window",
    "limit",
    "exempt",
    "ban",
    "credit",
    "reset",
    "shadow",
    "expires_in",
    "expires_at",
    "reason",
    "author",
];
const MOMENT: &str =
    "a time in the future, such as \"2030-01-31T12:00:00Z\", or in milliseconds of Unix time";
/// Longest author's name without a token; the stored name has a suffix that marks it as unverified.
const MAX_CLAIMED_BYTES: usize = 100;
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
            Expiry::At(_) => Err(wrong("expires_at", &format!("expected {MOMENT}"))),
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
        let fields = node.object(&PUT_FIELDS, errors)?;
        let effect = effect(fields, errors);
        let place = place(fields, errors);
        let expires_in = fields.optional("expires_in", errors, |n, e| EXPIRES_IN.read_with(span_ms, n, e));
        let expires_at = fields.optional("expires_at", errors, moment);
        let reason = fields.optional("reason", errors, |n, e| n.plain_text(MAX_REASON_BYTES, e));
        let author = fields.optional("author", errors, |n, e| n.plain_text(MAX_CLAIMED_BYTES, e));
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
                    reason: reason.unwrap_or_default().to_owned(),
                    author: author?.map(str::to_owned),
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

/// A duration as in a rule, or as on the command line, such as `1w` and `1h 30m`.
fn span_ms(text: &str) -> Option<u64> {
    let of_commands = || u64::try_from(humantime::parse_duration(text).ok()?.as_millis()).ok();
    parse_ms(text).or_else(of_commands)
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
    let mut text = |name, bytes_max| {
        let text = fields.optional(name, errors, |n, e| n.plain_text(bytes_max, e));
        text.map(|text| text.map(str::to_owned))
    };
    let workspace = text("workspace", MAX_TEXT_BYTES);
    let namespace = text("namespace", MAX_TEXT_BYTES);
    let identifier = text("identifier", MAX_PATTERN_BYTES);
    let network = text("network", MAX_TEXT_BYTES);
    let rule = text("rule", MAX_TEXT_BYTES);
    let window_ms = fields.optional("window", errors, |n, e| Span::WINDOW.read_with(span_ms, n, e));
    let given = Given {
        workspace: workspace?,
        namespace: namespace?,
        identifier: identifier?,
        network: network?,
        rule: rule?,
        window_ms: window_ms?,
    };
    match given.place() {
        Ok(place) => Some(place),
        Err((field, message)) => fields.reject(field, message, "", errors),
    }
}

/// The fields that name a target.
#[derive(Default)]
struct Given {
    workspace: Option<String>,
    namespace: Option<String>,
    identifier: Option<String>,
    network: Option<String>,
    rule: Option<String>,
    window_ms: Option<u64>,
}

impl Given {
    fn place(self) -> Result<Place, (&'static str, String)> {
        const TARGETS: &str = "expected an identifier or a network in a namespace, or a rule";
        let Given { workspace, namespace, identifier, network, rule, window_ms } = self;
        let selector = match (identifier, network, &rule) {
            (Some(identifier), None, None) => Selector::Identifier(identifier),
            (None, Some(network), None) => {
                Selector::Network(parse_network(&network).map_err(|error| ("network", error.to_string()))?)
            }
            (None, None, Some(_)) => Selector::Rule,
            (None, None, None) => return Err(("identifier", format!("missing; {TARGETS}"))),
            _ => return Err(("identifier", format!("{TARGETS}, and no more than one"))),
        };
        let scope = match (namespace, rule) {
            (None, Some(rule)) => rule,
            (Some(namespace), None) => namespace,
            (Some(_), Some(_)) => {
                return Err(("namespace", "a rule has its namespace; leave it out".to_owned()));
            }
            (None, None) => {
                return Err(("namespace", "missing; expected a namespace, or * for all".to_owned()));
            }
        };
        Ok(Place { workspace, scope, selector, window_ms })
    }
}

/// Parses the query of `DELETE /v1/overrides`: a target, `kind` (`override`, `credit`, `reset`; for a rule its shadow switch),
/// `reason` and `author`.
pub fn parse_delete(query: &str) -> Result<Removal, Problem> {
    let (mut given, mut slot, mut reason, mut author) = (Given::default(), None, None, None);
    each(query, |name, value| {
        let place = match name {
            "workspace" => &mut given.workspace,
            "namespace" => &mut given.namespace,
            "identifier" => &mut given.identifier,
            "network" => &mut given.network,
            "rule" => &mut given.rule,
            "reason" if value.len() > MAX_REASON_BYTES => return Err(wrong(name, "longer than 500 bytes")),
            "reason" => &mut reason,
            "author" if value.len() > MAX_CLAIMED_BYTES => return Err(wrong(name, "longer than 100 bytes")),
            "author" => &mut author,
            "kind" => {
                slot = Some(slot_of(&value)?);
                return Ok(());
            }
            "window" => {
                given.window_ms = Some(window_of(&value)?);
                return Ok(());
            }
            _ => return Err(no_such(name)),
        };
        *place = Some(value);
        Ok(())
    })?;
    let place = given.place().map_err(|(field, message)| wrong(field, &message))?;
    let slot = match (&place.selector, slot) {
        (Selector::Rule, None | Some(Slot::Shadow)) => Slot::Shadow,
        (Selector::Rule, _) | (_, Some(Slot::Shadow)) => {
            return Err(wrong(
                "kind",
                "a rule has a shadow switch and no other control; only a rule has one",
            ));
        }
        (_, slot) => slot.unwrap_or(Slot::Override),
    };
    Ok(Removal { place, slot, reason: reason.unwrap_or_default(), author })
}

/// Parses the query of `GET /v1/overrides`.
pub fn parse_list(query: &str) -> Result<ControlFilter, Problem> {
    let mut filter = ControlFilter { limit: DEFAULT_PAGE, ..ControlFilter::default() };
    each(query, |name, value| {
        match name {
            "kind" => filter.slot = Some(slot_of(&value)?),
            "matching" => filter.matching = Some(value),
            "after" => filter.after = number(name, &value, 0..=i64::MAX.cast_unsigned())?,
            "limit" => filter.limit = page(&value)?,
            _ => narrow(&mut filter.place, name, value)?,
        }
        Ok(())
    })?;
    Ok(filter)
}

/// Parses the query of `GET /v1/overrides/audit`.
pub fn parse_audit(query: &str) -> Result<AuditFilter, Problem> {
    let mut filter = AuditFilter { limit: DEFAULT_PAGE, ..AuditFilter::default() };
    each(query, |name, value| {
        match name {
            "author" => filter.author = value,
            "before" => filter.before = Some(number(name, &value, 1..=u64::MAX)?),
            "limit" => filter.limit = page(&value)?,
            _ => narrow(&mut filter.place, name, value)?,
        }
        Ok(())
    })?;
    Ok(filter)
}

fn narrow(place: &mut PlaceFilter, name: &str, value: String) -> Result<(), Problem> {
    match name {
        "workspace" => place.workspace = value,
        "namespace" | "rule" => place.scope = value,
        "identifier" => place.identifier = value,
        "network" => place.network = network_of(&value)?,
        _ => return Err(no_such(name)),
    }
    Ok(())
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
    wrong(field, &message)
}

/// Calls `take` with each parameter, which may occur only once.
fn each(query: &str, mut take: impl FnMut(&str, String) -> Result<(), Problem>) -> Result<(), Problem> {
    let mut seen = Vec::new();
    for (name, value) in percent::parameters(query) {
        let value = value.and_then(|bytes| String::from_utf8(bytes).ok());
        let value = value.filter(|value| !value.is_empty() && !value.chars().any(char::is_control));
        let value = value.ok_or_else(|| wrong(&shown(name), "expected a percent-encoded text"))?;
        take(name, value)?;
        if seen.contains(&name) {
            return Err(wrong(&shown(name), "given more than once"));
        }
        seen.push(name);
    }
    Ok(())
}

fn slot_of(word: &str) -> Result<Slot, Problem> {
    match word {
        "override" => Ok(Slot::Override),
        "credit" => Ok(Slot::Credit),
        "reset" => Ok(Slot::Reset),
        "shadow" => Ok(Slot::Shadow),
        _ => {
            Err(wrong("kind", "expected override (a limit, an exemption or a ban), credit, reset or shadow"))
        }
    }
}

fn window_of(text: &str) -> Result<u64, Problem> {
    let ms = text.parse().ok().or_else(|| span_ms(text));
    let ms = ms.filter(|ms| (MIN_DURATION_MS..=MAX_DURATION_MS).contains(ms));
    ms.ok_or_else(|| wrong("window", "expected 1s to 366d, such as 1m, or milliseconds"))
}

fn network_of(text: &str) -> Result<String, Problem> {
    let network = parse_network(text).map_err(|error| wrong("network", &error.to_string()))?;
    Ok(network.to_string())
}

fn page(value: &str) -> Result<u32, Problem> {
    let limit = number("limit", value, 1..=u64::from(MAX_PAGE))?;
    Ok(u32::try_from(limit).unwrap_or(MAX_PAGE))
}

fn number(name: &str, value: &str, range: RangeInclusive<u64>) -> Result<u64, Problem> {
    let number = value.parse::<u64>().ok().filter(|number| range.contains(number));
    let expected = || format!("expected a whole number from {} to {}", range.start(), range.end());
    number.ok_or_else(|| wrong(name, &expected()))
}

fn wrong(field: &str, message: &str) -> Problem {
    Problem::fields(vec![FieldProblem { field: field.to_owned(), message: message.to_owned() }])
}

fn no_such(name: &str) -> Problem {
    wrong(&shown(name), "there is no such parameter")
}

fn shown(name: &str) -> String {
    name.chars().take(64).collect()
}

#[cfg(test)]
mod tests;
