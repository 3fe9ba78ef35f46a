//! Parsers of the requests for live control: pure functions from bytes to requests, or to what is invalid in them.

use super::super::ask::{Fields, Problems};
use super::super::problem::Problem;
use super::super::value::Value;
use super::{LATEST, wrong};
use crate::database::{AuditFilter, ControlFilter, MAX_PAGE, MAX_REASON_BYTES, PlaceFilter};
use crate::net::percent::decode;
use std::ops::RangeInclusive;
use std::time::UNIX_EPOCH;
use weir_core::control::{ControlError, Effect, MAX_PATTERN_BYTES, Slot, Target, Who};
use weir_core::matching::networks::parse_network;
use weir_core::model::key::{MAX_DURATION_MS, MAX_TEXT_BYTES, MIN_DURATION_MS};
use weir_core::model::time::UnixMs;
use weir_core::model::window::MAX_COUNT;
use weir_core::rules::parse::duration::parse_ms;

/// From a second to ten years.
const EXPIRES_IN_MS: RangeInclusive<u64> = 1_000..=315_360_000_000;
const EFFECTS: &str = "one of limit, exempt, ban, credit, reset and shadow";
const MOMENT: &str =
    "expected a time in the future, such as \"2030-01-31T12:00:00Z\", or in milliseconds of Unix time";
/// Longest author's name without a token; the stored name has a suffix that marks it as unverified.
const MAX_CLAIMED_BYTES: usize = 100;
const DEFAULT_PAGE: u32 = 100;

/// A parsed `PUT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
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
    who: Who,
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
            Expiry::At(_) => Err(wrong("expires_at", MOMENT)),
        }
    }
}

impl Place {
    pub(super) fn target(&self, workspace: String) -> Target {
        Target { workspace, scope: self.scope.clone(), who: self.who.clone(), window_ms: self.window_ms }
    }
}

/// Parses the body of `PUT /v1/overrides`.
pub fn parse_put(json: &[u8]) -> Result<Asked, Problem> {
    let value = Value::parse(json).map_err(|error| Problem::json(&error))?;
    let mut problems = Problems::default();
    let asked = Fields::of(value, None, &mut problems).and_then(|mut fields| {
        let asked = asked(&mut fields, &mut problems);
        fields.end(&mut problems);
        asked
    });
    match asked {
        Some(asked) if problems.0.is_empty() => Ok(asked),
        _ => Err(Problem::fields(problems.0)),
    }
}

/// Reads all fields even if some are invalid, so that every error is reported.
fn asked(fields: &mut Fields<'_>, problems: &mut Problems) -> Option<Asked> {
    let effect = effect(fields, problems);
    let place = place(fields, problems);
    let spans = "1s to 3650d, such as \"1h\" or 3600000";
    let expires_in = fields.span_read("expires_in", EXPIRES_IN_MS, spans, span_ms, problems);
    let expires_at = moment(fields, problems);
    let reason = fields.text("reason", MAX_REASON_BYTES, problems);
    let author = fields.text("author", MAX_CLAIMED_BYTES, problems);
    let expires = match (expires_in?, expires_at?) {
        (Some(_), Some(_)) => {
            return problems.wrong(None, "expires_at", "expected either this or expires_in".to_owned());
        }
        (Some(ms), None) => Some(Expiry::In(ms)),
        (None, at) => at.map(|at| Expiry::At(UnixMs(at))),
    };
    let (effect, reason) = (effect?, reason?.map(std::borrow::Cow::into_owned));
    let lacks = match effect {
        Effect::Ban if reason.is_none() => {
            Some(("reason", "missing; a ban needs one, so that it can be understood later"))
        }
        Effect::Credit(_) if expires.is_none() => {
            Some(("expires_in", "missing; a credit adds to the limit until it expires, such as \"1h\""))
        }
        Effect::Reset if expires.is_some() => Some((
            "expires_in",
            "a reset cannot expire, because the former counts would return; leave it out",
        )),
        _ => None,
    };
    if let Some((field, message)) = lacks {
        return problems.wrong(None, field, message.to_owned());
    }
    let author = author?.map(std::borrow::Cow::into_owned);
    Some(Asked { place: place?, effect, expires, reason: reason.unwrap_or_default(), author })
}

/// The end as RFC 3339, or in milliseconds.
fn moment(fields: &mut Fields<'_>, problems: &mut Problems) -> Option<Option<u64>> {
    let ms = match fields.take("expires_at") {
        None => return Some(None),
        Some(Value::Integer(ms)) => Some(ms),
        Some(Value::Text(text)) => {
            let at = humantime::parse_rfc3339_weak(&text).ok();
            let since = at.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
            since.and_then(|since| u64::try_from(since.as_millis()).ok())
        }
        Some(_) => None,
    };
    match ms.filter(|ms| (1..=LATEST.0).contains(ms)) {
        Some(ms) => Some(Some(ms)),
        None => problems.wrong(None, "expires_at", MOMENT.to_owned()),
    }
}

/// A duration as in a rule, or as on the command line, such as `1w` and `1h 30m`.
fn span_ms(text: &str) -> Option<u64> {
    let of_commands = || u64::try_from(humantime::parse_duration(text).ok()?.as_millis()).ok();
    parse_ms(text).or_else(of_commands)
}

fn effect(fields: &mut Fields<'_>, problems: &mut Problems) -> Option<Effect> {
    let amount =
        |fields: &mut Fields<'_>, name, problems: &mut Problems| fields.number(name, 0..=MAX_COUNT, problems);
    let limit = amount(fields, "limit", problems);
    let credit = amount(fields, "credit", problems);
    let exempt = only_true(fields, "exempt", problems);
    let ban = only_true(fields, "ban", problems);
    let reset = only_true(fields, "reset", problems);
    let shadow = fields.boolean("shadow", problems);
    let found: Vec<Effect> = [
        limit?.map(Effect::Limit),
        credit?.map(Effect::Credit),
        exempt?.map(|_| Effect::Exempt),
        ban?.map(|_| Effect::Ban),
        reset?.map(|_| Effect::Reset),
        shadow?.map(Effect::Shadow),
    ]
    .into_iter()
    .flatten()
    .collect();
    match found.as_slice() {
        [only] => Some(*only),
        [] => problems.wrong(None, "limit", format!("missing; expected {EFFECTS}")),
        _ => problems.wrong(None, "limit", format!("expected {EFFECTS}, and no more than one")),
    }
}

fn only_true(fields: &mut Fields<'_>, name: &'static str, problems: &mut Problems) -> Option<Option<bool>> {
    match fields.take(name) {
        None => Some(None),
        Some(Value::Bool(true)) => Some(Some(true)),
        Some(_) => problems.wrong(None, name, "expected true; to remove it, use DELETE".to_owned()),
    }
}

fn place(fields: &mut Fields<'_>, problems: &mut Problems) -> Option<Place> {
    let workspace = fields.text("workspace", MAX_TEXT_BYTES, problems);
    let namespace = fields.text("namespace", MAX_TEXT_BYTES, problems);
    let identifier = fields.text("identifier", MAX_PATTERN_BYTES, problems);
    let network = fields.text("network", MAX_TEXT_BYTES, problems);
    let rule = fields.text("rule", MAX_TEXT_BYTES, problems);
    let windows = MIN_DURATION_MS..=MAX_DURATION_MS;
    let window = fields.span_read("window", windows, "1s to 31d, such as \"1m\"", span_ms, problems);
    let text = |text: Option<std::borrow::Cow<'_, str>>| text.map(std::borrow::Cow::into_owned);
    let given = Given {
        workspace: text(workspace?),
        namespace: text(namespace?),
        identifier: text(identifier?),
        network: text(network?),
        rule: text(rule?),
        window_ms: window?,
    };
    match given.place() {
        Ok(place) => Some(place),
        Err((field, message)) => problems.wrong(None, field, message),
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
        const WHO: &str = "expected an identifier or a network in a namespace, or a rule";
        let Given { workspace, namespace, identifier, network, rule, window_ms } = self;
        let who = match (identifier, network, &rule) {
            (Some(identifier), None, None) => Who::Identifier(identifier),
            (None, Some(network), None) => {
                Who::Network(parse_network(&network).map_err(|error| ("network", error.to_string()))?)
            }
            (None, None, Some(_)) => Who::Rule,
            (None, None, None) => return Err(("identifier", format!("missing; {WHO}"))),
            _ => return Err(("identifier", format!("{WHO}, and no more than one"))),
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
        Ok(Place { workspace, scope, who, window_ms })
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
    let slot = match (&place.who, slot) {
        (Who::Rule, None | Some(Slot::Shadow)) => Slot::Shadow,
        (Who::Rule, _) | (_, Some(Slot::Shadow)) => {
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
        ControlError::Name(name) => name.rsplit(' ').next().unwrap_or("namespace"),
        ControlError::Network(_) => "network",
        ControlError::Window => "window",
        ControlError::Amount | ControlError::Kind(_) | ControlError::Mismatch(_) => {
            crate::database::said(&effect).0
        }
        _ => "identifier",
    };
    wrong(field, &message)
}

/// Calls `take` with each parameter, which may occur only once.
fn each(query: &str, mut take: impl FnMut(&str, String) -> Result<(), Problem>) -> Result<(), Problem> {
    let mut seen = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = decode(value).and_then(|bytes| String::from_utf8(bytes).ok());
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
    ms.ok_or_else(|| wrong("window", "expected 1s to 31d, such as 1m, or milliseconds"))
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

fn no_such(name: &str) -> Problem {
    wrong(&shown(name), "there is no such parameter")
}

fn shown(name: &str) -> String {
    name.chars().take(64).collect()
}

#[cfg(test)]
mod tests;
