//! Parsers of the checks that applications send: pure functions from bytes to checks, or to a list of all invalid fields.

use super::problem::{MAX_PROBLEMS, Problem};
use crate::api::{Failure, LimitCheck};
use std::time::Duration;
use weir_core::fields::{Bounds, Errors, Fields, Node, Span, Value};
use weir_core::model::exact::{Algorithm, AlgorithmKind};
use weir_core::model::key::{HARD_LIMIT_RESOLUTION, MAX_TEXT_BYTES, RESERVED_PREFIX, is_reserved};
use weir_core::model::window::MAX_COUNT;
use weir_core::rules::identifier::identifier_of;

/// Most checks of one request.
pub const MAX_CHECKS: usize = 100;
/// Longest namespace, in bytes.
pub const MAX_NAMESPACE_BYTES: usize = MAX_TEXT_BYTES;
/// Most parts of an identifier, as in a rule of the filter.
pub const MAX_PARTS: usize = 8;
/// Longest part, in bytes.
pub const MAX_PART_BYTES: usize = 1_024;

/// A request nests five levels: itself, its checks, a check, its identifier, a part of the identifier. A list may be longer
/// than any valid one, so that the error can give the number of its values.
pub(super) const BOUNDS: Bounds = Bounds { depth: 5, fields: 32, values: 256, bytes: usize::MAX };
/// The body has no name in errors.
pub(super) const BODY: &str = "";

pub(super) const TIMEOUT: Span = Span { min_ms: 1, max_ms: 5_000, example: "100ms" };
pub(super) const DEFAULT_TIMEOUT_MS: u64 = 100;
const DEFAULT_NAMESPACE: &str = "default";

const REQUEST_FIELDS: [&str; 3] = ["workspace", "on_failure", "timeout"];
const CHECK_FIELDS: [&str; 8] =
    ["identifier", "algorithm", "limit", "duration", "cost", "namespace", "hard_limit", "zone"];

/// One parsed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckRequest {
    /// The workspace; the caller's own if `None`.
    pub workspace: Option<String>,
    /// The result if nothing is decided.
    pub on_failure: OnFailure,
    /// How long to wait for a decision.
    pub within: Duration,
    /// The checks; their workspace is not set yet.
    pub checks: Vec<LimitCheck>,
}

/// The result of checks that could not be decided in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// Deny. This is the default, because a caller that checks a limit expects it to hold.
    #[default]
    Deny,
    /// Allow.
    Allow,
}

impl From<OnFailure> for Failure {
    fn from(on_failure: OnFailure) -> Failure {
        match on_failure {
            OnFailure::Deny => Failure::Deny,
            OnFailure::Allow => Failure::Allow,
        }
    }
}

/// Parses the body of `POST /v1/check`.
pub fn parse_check(json: &[u8]) -> Result<CheckRequest, Problem> {
    parse(json, &CHECK_FIELDS, |fields, errors| Some(vec![read_check(fields, errors)?]))
}

/// Parses the body of `POST /v1/check/batch`.
pub fn parse_batch(json: &[u8]) -> Result<CheckRequest, Problem> {
    parse(json, &["checks"], |fields, errors| {
        fields.required("checks", "a list of 1 to 100 checks", errors, |node, errors| {
            node.list(1..=MAX_CHECKS, "checks", errors, |check, errors| {
                read_check(check.object(&CHECK_FIELDS, errors)?, errors)
            })
        })
    })
}

/// Parses a body, of which `read` reads the checks. Every invalid field is reported.
fn parse(
    json: &[u8],
    own_fields: &[&str],
    read: impl FnOnce(Fields<'_>, &mut Errors) -> Option<Vec<LimitCheck>>,
) -> Result<CheckRequest, Problem> {
    read_body(json, |node, errors| {
        let fields = node.object(&[&REQUEST_FIELDS, own_fields].concat(), errors)?;
        let workspace = fields.optional("workspace", errors, |n, e| n.plain_text(MAX_TEXT_BYTES, e));
        let words = [("deny", OnFailure::Deny), ("allow", OnFailure::Allow)];
        let on_failure = fields.or("on_failure", OnFailure::Deny, errors, |n, e| n.word(&words, e));
        let timeout_ms = fields.or("timeout", DEFAULT_TIMEOUT_MS, errors, |n, e| TIMEOUT.read(n, e));
        let checks = read(fields, errors);
        Some(CheckRequest {
            workspace: workspace?.map(str::to_owned),
            on_failure: on_failure?,
            within: Duration::from_millis(timeout_ms?),
            checks: checks?,
        })
    })
}

/// Parses a body as JSON, and reads it.
pub(super) fn read_body<T>(
    json: &[u8],
    read: impl FnOnce(Node<'_>, &mut Errors) -> Option<T>,
) -> Result<T, Problem> {
    read_value(&Value::parse(json, BOUNDS).map_err(|error| Problem::json(&error))?, read)
}

/// Reads a body, or the parameters of a query.
pub(super) fn read_value<T>(
    value: &Value<'_>,
    read: impl FnOnce(Node<'_>, &mut Errors) -> Option<T>,
) -> Result<T, Problem> {
    let mut errors = Errors::keeping(MAX_PROBLEMS);
    let found = read(Node::root(BODY, value), &mut errors);
    errors.finish(found).map_err(|errors| Problem::fields(errors.iter().map(Into::into).collect()))
}

pub(super) fn read_check(fields: Fields<'_>, errors: &mut Errors) -> Option<LimitCheck> {
    let kind = fields.or("algorithm", AlgorithmKind::Window, errors, |n, e| n.word(&AlgorithmKind::WORDS, e));
    let expected = "a string of 1 to 1024 bytes, or a list of 1 to 8 strings that are not all empty";
    let identifier =
        fields.required("identifier", expected, errors, |node, errors| match identifier(node.value) {
            Some(identifier) => Some(identifier),
            None => node.reject(errors, "is not an identifier", expected),
        });
    let cost = fields.or("cost", 1, errors, |n, e| n.integer(0..=MAX_COUNT, e));
    // The other fields depend on the algorithm. If that is invalid, they are read as for a window.
    let limited = match kind.unwrap_or(AlgorithmKind::Window) {
        AlgorithmKind::Ledger => ledger(fields, errors),
        window_or_log => limited(window_or_log, fields, errors),
    };
    kind?;
    let Limited { algorithm, namespace, duration_ms, hard_limit, limit } = limited?;
    let (workspace, identifier, cost) = (Vec::new(), identifier?, cost?);
    Some(LimitCheck { algorithm, workspace, namespace, identifier, duration_ms, hard_limit, limit, cost })
}

/// The fields that depend on the algorithm.
struct Limited {
    algorithm: Algorithm,
    namespace: Vec<u8>,
    duration_ms: u64,
    hard_limit: bool,
    limit: u64,
}

fn limited(kind: AlgorithmKind, fields: Fields<'_>, errors: &mut Errors) -> Option<Limited> {
    let namespace = fields.or("namespace", DEFAULT_NAMESPACE, errors, |node, errors| {
        let name = node.plain_text(MAX_NAMESPACE_BYTES, errors)?;
        match is_reserved(name.as_bytes()) {
            true => {
                node.reject(errors, "is reserved", format!("one that does not begin with {RESERVED_PREFIX}"))
            }
            false => Some(name),
        }
    });
    let expected = "how much may be used in the duration, such as 100";
    let limit = fields.required("limit", expected, errors, |n, e| n.integer(0..=kind.max_limit(), e));
    let expected = "the window, such as \"1m\" or 60000";
    let duration = fields.required("duration", expected, errors, |node, errors| {
        Span::WINDOW.read(node, errors).map(|ms| (node, ms))
    });
    if kind.is_exact() {
        let why = format!("no window of a {} ever holds more than its limit; leave it out", kind.word());
        fields.reject_given(&["hard_limit"], &why, errors);
    }
    fields.reject_given(
        &["zone"],
        "only the ledger has zones; use it with \"algorithm\": \"ledger\"",
        errors,
    );
    let hard_limit = fields.or("hard_limit", false, errors, |n, e| n.boolean(e))?;
    let (duration, duration_ms) = duration?;
    if hard_limit && !duration_ms.is_multiple_of(HARD_LIMIT_RESOLUTION.into()) {
        return duration.reject(errors, "is too fine for a hard limit", "a multiple of 10ms");
    }
    let namespace = namespace?.as_bytes().to_vec();
    Some(Limited { algorithm: kind.algorithm(0), namespace, duration_ms, hard_limit, limit: limit? })
}

fn ledger(fields: Fields<'_>, errors: &mut Errors) -> Option<Limited> {
    let why = "no window of a ledger ever holds more than its rate; leave it out";
    fields.reject_given(&["hard_limit"], why, errors);
    let why = "the ledger's zone defines this; leave it out";
    fields.reject_given(&["namespace", "limit", "duration"], why, errors);
    let zone = fields.required("zone", "the number of the ledger's zone", errors, |node, errors| {
        node.integer(1..=u32::MAX.into(), errors)
    });
    let algorithm = Algorithm::Ledger { zone: u32::try_from(zone?).ok()? };
    Some(Limited { algorithm, namespace: Vec::new(), duration_ms: 0, hard_limit: false, limit: 0 })
}

/// The identifier in canonical form, from a text, or from a list of texts as a rule's parts would yield.
fn identifier(value: &Value<'_>) -> Option<Vec<u8>> {
    let list = match value {
        Value::List(list) => list.as_slice(),
        text => std::slice::from_ref(text),
    };
    let parts = list.iter().map(|part| match part {
        Value::Text(text) if text.len() <= MAX_PART_BYTES => Some(text.as_bytes()),
        _ => None,
    });
    let parts: Vec<&[u8]> = parts.collect::<Option<_>>()?;
    if parts.len() > MAX_PARTS || parts.iter().all(|part| part.is_empty()) {
        return None;
    }
    let mut out = Vec::new();
    identifier_of(&parts, &mut out);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, prop_assert, proptest};
    use serde_json::json;
    use weir_core::model::key::{MAX_DURATION_MS, MIN_DURATION_MS};

    fn wrong(json: serde_json::Value, expected: &[(&str, &str)]) {
        let text = json.to_string();
        let parse = if json.get("checks").is_some() { parse_batch } else { parse_check };
        let problem = parse(text.as_bytes()).expect_err(&text);
        let found: Vec<(&str, &str)> =
            problem.fields.iter().map(|wrong| (wrong.field.as_str(), wrong.message.as_str())).collect();
        assert_eq!(found.len(), expected.len(), "{text}: {found:?}");
        for ((field, message), (name, part)) in found.iter().zip(expected) {
            assert!(field == name && message.contains(part), "{text}: {field}: {message}");
        }
    }

    fn right(json: serde_json::Value) -> LimitCheck {
        let request =
            parse_check(json.to_string().as_bytes()).unwrap_or_else(|problem| panic!("{problem:?}"));
        request.checks.into_iter().next().unwrap()
    }

    #[test]
    fn defaults() {
        let request = parse_check(br#"{"identifier": "a", "limit": 5, "duration": 60000}"#).unwrap();
        let check = LimitCheck {
            algorithm: Algorithm::Window,
            workspace: vec![],
            namespace: b"default".to_vec(),
            identifier: b"a".to_vec(),
            duration_ms: 60_000,
            hard_limit: false,
            limit: 5,
            cost: 1,
        };
        let (workspace, within) = (None, Duration::from_millis(100));
        let checks = vec![check];
        assert_eq!(request, CheckRequest { workspace, on_failure: OnFailure::Deny, within, checks });
    }

    #[test]
    fn all_fields_are_read() {
        let request = parse_batch(
            br#"{"workspace": "w", "on_failure": "allow", "timeout": "2s", "checks": [
                {"namespace": "n", "identifier": ["a|b", ""], "limit": 0, "duration": "31d", "cost": 0, "algorithm": "sliding_log"},
                {"identifier": "b", "algorithm": "ledger", "zone": 7, "cost": 3}]}"#,
        )
        .unwrap();
        assert_eq!(request.workspace.as_deref(), Some("w"));
        assert_eq!((request.on_failure, request.within), (OnFailure::Allow, Duration::from_secs(2)));
        let [log, ledger] = request.checks.try_into().unwrap();
        assert_eq!(log.identifier, br"a\|b|\-");
        assert_eq!((log.algorithm, log.duration_ms, log.cost), (Algorithm::Log, 2_678_400_000, 0));
        assert_eq!((ledger.algorithm, ledger.cost), (Algorithm::Ledger { zone: 7 }, 3));
    }

    #[test]
    fn identifiers_are_those_of_rules() {
        let of = |identifier: serde_json::Value| {
            right(json!({"identifier": identifier, "limit": 1, "duration": "1s"})).identifier
        };
        assert_eq!(of(json!("alice")), b"alice");
        assert_eq!(of(json!(["alice"])), b"alice");
        assert_eq!(of(json!("a|b")), br"a\|b");
        assert_eq!(of(json!(["a", "b"])), b"a|b");
        assert_eq!(of(json!("x".repeat(1_024))).len(), 50);
    }

    fn sound() -> serde_json::Value {
        json!({"identifier": "a", "limit": 1, "duration": "1m"})
    }

    /// A sound check with a field of this value.
    fn with(name: &str, value: serde_json::Value) -> serde_json::Value {
        let mut json = sound();
        json[name] = value;
        json
    }

    #[test]
    fn every_invalid_field_is_reported() {
        wrong(json!([]), &[("", "not an object")]);
        wrong(json!({}), &[("identifier", "missing"), ("limit", "missing"), ("duration", "missing")]);
        for (name, value, part) in [
            ("limit", json!(-1), "from 0 to 9007199254740992"),
            ("limit", json!("1"), "whole number"),
            ("limit", json!(MAX_COUNT + 1), "9007199254740992"),
            ("cost", json!(1.5), "whole number"),
            ("cost", json!(null), "whole number"),
            ("duration", json!(999), "between 1s and 366d"),
            ("duration", json!("367d"), "between 1s and 366d"),
            ("duration", json!("1 m"), "between 1s and 366d"),
            ("timeout", json!("6s"), "between 1ms and 5s"),
            ("timeout", json!(0), "between 1ms and 5s"),
            ("on_failure", json!("maybe"), "deny or allow"),
            ("algorithm", json!("leaky"), "sliding_window, sliding_log or ledger"),
            ("namespace", json!(""), "1 to 64 bytes"),
            ("namespace", json!("n".repeat(65)), "1 to 64 bytes"),
            ("namespace", json!("a\nb"), "control"),
            ("namespace", json!("~login"), "does not begin with ~"),
            ("workspace", json!(7), "1 to 64 bytes"),
            ("identifier", json!(""), "1 to 1024 bytes"),
            ("identifier", json!("x".repeat(1_025)), "1 to 1024 bytes"),
            ("identifier", json!([]), "1 to 8 strings"),
            ("identifier", json!(["", ""]), "not all empty"),
            ("identifier", json!(["a", 1]), "1 to 8 strings"),
            ("identifier", json!([["a"]]), "1 to 8 strings"),
            ("identifier", json!(vec!["a"; 9]), "1 to 8 strings"),
            ("zone", json!(1), "only the ledger"),
            ("hard_limit", json!(1), "true or false"),
            ("window", json!(1), "no such field"),
        ] {
            wrong(with(name, value), &[(name, part)]);
        }
        wrong(
            json!({"identifier": "a", "algorithm": "sliding_log", "limit": 100_001, "duration": "1m"}),
            &[("limit", "from 0 to 100000")],
        );
        wrong(
            json!({"identifier": "a", "algorithm": "ledger", "limit": 1, "duration": 1, "namespace": "n"}),
            &[
                ("namespace", "zone defines"),
                ("limit", "zone defines"),
                ("duration", "zone defines"),
                ("zone", "missing"),
            ],
        );
        let twice =
            parse_check(br#"{"identifier": "a", "limit": 1, "duration": "1m", "limit": 2}"#).unwrap_err();
        assert_eq!(twice.message, "limit: it is given twice; expected one value");
    }

    #[test]
    fn a_hard_limit_is_one_of_a_window_that_ten_cells_divide() {
        assert!(right(with("hard_limit", json!(true))).hard_limit);
        assert!(!right(with("hard_limit", json!(false))).hard_limit);
        for (fields, field, part) in [
            (json!({"limit": 1, "duration": 1_005}), "duration", "multiple of 10ms"),
            (json!({"algorithm": "sliding_log", "limit": 1, "duration": "1m"}), "hard_limit", "of a log"),
            (json!({"algorithm": "ledger", "zone": 1}), "hard_limit", "of a ledger"),
        ] {
            let mut json = json!({"identifier": "a", "hard_limit": true});
            json.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            wrong(json, &[(field, part)]);
        }
    }

    #[test]
    fn every_invalid_check_of_a_batch_is_reported() {
        wrong(json!({"checks": []}), &[("checks", "it has 0 checks; expected a list of 1 to 100")]);
        wrong(json!({"checks": vec![sound(); 101]}), &[("checks", "it has 101 checks")]);
        wrong(json!({"checks": {}}), &[("checks", "not a list")]);
        wrong(
            json!({"checks": [sound(), 1, {"identifier": "a", "limit": 1, "duration": 1, "timeout": 1}]}),
            &[
                ("checks[1]", "not an object"),
                ("checks[2].timeout", "no such field"),
                ("checks[2].duration", "between 1s and 366d"),
            ],
        );
        let many = parse_batch(json!({"checks": vec![json!({}); 100]}).to_string().as_bytes()).unwrap_err();
        assert_eq!(many.fields.len(), MAX_PROBLEMS);
    }

    proptest! {
        #[test]
        fn any_bytes_have_a_result(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let (one, many) = (parse_check(&bytes), parse_batch(&bytes));
            prop_assert!(one.is_ok() || many.is_ok() || one.is_err_and(|problem| !problem.message.is_empty()));
        }

        #[test]
        fn accepted_values_are_within_their_bounds(
            limit in any::<u64>(), cost in any::<u64>(), duration in 0_u64..4_000_000_000, zone in any::<u64>(),
            algorithm in "window|log|ledger", parts in proptest::collection::vec(".{0,40}", 0..10),
        ) {
            let json = match algorithm.as_str() {
                "ledger" => json!({"algorithm": algorithm, "zone": zone, "cost": cost, "identifier": parts}),
                _ => json!({"algorithm": algorithm, "limit": limit, "cost": cost, "duration": duration, "identifier": parts}),
            };
            if let Ok(request) = parse_check(json.to_string().as_bytes()) {
                let [check] = request.checks.try_into().unwrap();
                prop_assert!(check.limit <= MAX_COUNT && check.cost <= MAX_COUNT);
                prop_assert!((1..=64).contains(&check.identifier.len()));
                prop_assert!(check.algorithm != Algorithm::Log || check.limit <= 100_000);
                prop_assert!(algorithm == "ledger" || (MIN_DURATION_MS..=MAX_DURATION_MS).contains(&check.duration_ms));
            }
        }
    }
}
