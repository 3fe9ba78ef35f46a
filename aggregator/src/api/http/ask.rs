//! Parsers of the checks that applications send: pure functions from bytes to checks, or to a list of all invalid fields.

use super::problem::{FieldProblem, MAX_PROBLEMS, Problem};
use super::value::Value;
use crate::api::{Failure, Question};
use std::borrow::Cow;
use std::ops::RangeInclusive;
use std::time::Duration;
use weir_core::model::exact::{Algorithm, MAX_LOG_LIMIT};
use weir_core::model::key::{HARD_LIMIT_RESOLUTION, MAX_TEXT_BYTES};
use weir_core::model::window::MAX_COUNT;
use weir_core::rules::identifier::identifier_of;
use weir_core::rules::parse::duration::parse_ms;

/// Most checks of one request.
pub const MAX_CHECKS: usize = 100;
/// Longest namespace, in bytes.
pub const MAX_NAMESPACE_BYTES: usize = MAX_TEXT_BYTES;
/// Most parts of an identifier, as in a rule of the filter.
pub const MAX_PARTS: usize = 8;
/// Longest part, in bytes.
pub const MAX_PART_BYTES: usize = 1_024;

const DURATION_MS: RangeInclusive<u64> = 1_000..=2_678_400_000;
const TIMEOUT_MS: RangeInclusive<u64> = 1..=5_000;
const DEFAULT_TIMEOUT_MS: u64 = 100;
const DEFAULT_NAMESPACE: &str = "default";

/// One parsed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The workspace; the caller's own if `None`.
    pub workspace: Option<String>,
    /// The result if nothing is decided.
    pub on_failure: OnFailure,
    /// How long to wait for a decision.
    pub within: Duration,
    /// The checks; their workspace is not set yet.
    pub questions: Vec<Question>,
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
pub fn parse_check(json: &[u8]) -> Result<Asked, Problem> {
    parse(json, |fields, problems| Some(vec![question(fields, None, problems)?]))
}

/// Parses the body of `POST /v1/check/batch`.
pub fn parse_batch(json: &[u8]) -> Result<Asked, Problem> {
    parse(json, |fields, problems| {
        let expected = "a list of 1 to 100 checks";
        let list = match fields.take("checks") {
            Some(Value::List(list)) if (1..=MAX_CHECKS).contains(&list.len()) => list,
            Some(Value::List(list)) => {
                return problems.wrong(None, "checks", format!("{} checks; expected {expected}", list.len()));
            }
            Some(_) => return problems.wrong(None, "checks", format!("not a list; expected {expected}")),
            None => return problems.wrong(None, "checks", format!("missing; expected {expected}")),
        };
        let questions: Vec<Option<Question>> = list
            .into_iter()
            .enumerate()
            .map(|(index, check)| {
                let mut fields = Fields::of(check, Some(index), problems)?;
                let question = question(&mut fields, Some(index), problems);
                fields.end(problems);
                question
            })
            .collect();
        questions.into_iter().collect()
    })
}

fn parse(
    json: &[u8],
    read: impl FnOnce(&mut Fields<'_>, &mut Problems) -> Option<Vec<Question>>,
) -> Result<Asked, Problem> {
    let value = Value::parse(json).map_err(|error| Problem::json(&error))?;
    let mut problems = Problems::default();
    let asked = Fields::of(value, None, &mut problems).and_then(|mut fields| {
        let asked = ask(&mut fields, &mut problems, read);
        fields.end(&mut problems);
        asked
    });
    match asked {
        Some(asked) if problems.0.is_empty() => Ok(asked),
        _ => Err(Problem::fields(problems.0)),
    }
}

/// Reads all fields even if some are invalid, so that every error is reported.
fn ask(
    fields: &mut Fields<'_>,
    problems: &mut Problems,
    read: impl FnOnce(&mut Fields<'_>, &mut Problems) -> Option<Vec<Question>>,
) -> Option<Asked> {
    let workspace = fields.text("workspace", MAX_TEXT_BYTES, problems);
    let on_failure =
        fields.word("on_failure", &[("deny", OnFailure::Deny), ("allow", OnFailure::Allow)], problems);
    let within = fields.span("timeout", TIMEOUT_MS, "1ms to 5s, such as \"100ms\"", problems);
    let questions = read(fields, problems);
    Some(Asked {
        workspace: workspace?.map(Cow::into_owned),
        on_failure: on_failure?.unwrap_or_default(),
        within: Duration::from_millis(within?.unwrap_or(DEFAULT_TIMEOUT_MS)),
        questions: questions?,
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Window,
    Log,
    Ledger,
}

fn question(fields: &mut Fields<'_>, check: Option<usize>, problems: &mut Problems) -> Option<Question> {
    let kinds = [("sliding_window", Kind::Window), ("sliding_log", Kind::Log), ("ledger", Kind::Ledger)];
    let kind = fields.word("algorithm", &kinds, problems);
    let identifier = identifier(fields, check, problems);
    let cost = fields.number("cost", 0..=MAX_COUNT, problems);
    // The other fields depend on the algorithm. If that is invalid, they are read as for a window.
    let kind = kind.map(|kind| kind.unwrap_or(Kind::Window));
    let limited = match kind.unwrap_or(Kind::Window) {
        Kind::Ledger => ledger(fields, check, problems),
        window_or_log => limited(window_or_log, fields, check, problems),
    };
    kind?;
    let Limited { algorithm, namespace, duration_ms, hard_limit, limit } = limited?;
    let (workspace, identifier, cost) = (Vec::new(), identifier?, cost?.unwrap_or(1));
    Some(Question { algorithm, workspace, namespace, identifier, duration_ms, hard_limit, limit, cost })
}

/// The fields that depend on the algorithm.
struct Limited {
    algorithm: Algorithm,
    namespace: Vec<u8>,
    duration_ms: u64,
    hard_limit: bool,
    limit: u64,
}

fn limited(
    kind: Kind,
    fields: &mut Fields<'_>,
    check: Option<usize>,
    problems: &mut Problems,
) -> Option<Limited> {
    let (algorithm, most) =
        if kind == Kind::Log { (Algorithm::Log, MAX_LOG_LIMIT) } else { (Algorithm::Window, MAX_COUNT) };
    let namespace = fields.text("namespace", MAX_NAMESPACE_BYTES, problems);
    let limit = fields.number("limit", 0..=most, problems);
    let duration = fields.span("duration", DURATION_MS, "1s to 31d, such as \"1m\" or 60000", problems);
    let hard_limit = match kind {
        Kind::Window => fields.boolean("hard_limit", problems),
        _ => fields.useless(
            "hard_limit",
            "no window of a log ever holds more than its limit; leave it out",
            problems,
        ),
    };
    if fields.take("zone").is_some() {
        problems.add(check, "zone", "only the ledger has zones; use it with \"algorithm\": \"ledger\"");
    }
    let limit =
        required(limit, check, "limit", "how much may be used in the duration, such as 100", problems);
    let duration_ms = required(duration, check, "duration", "the window, such as \"1m\" or 60000", problems);
    let (hard_limit, duration_ms) = (hard_limit?.unwrap_or(false), duration_ms?);
    if hard_limit && !duration_ms.is_multiple_of(HARD_LIMIT_RESOLUTION.into()) {
        return problems.wrong(check, "duration", "with a hard limit, expected a multiple of 10ms".into());
    }
    let namespace = namespace?.unwrap_or(Cow::Borrowed(DEFAULT_NAMESPACE)).into_owned().into_bytes();
    Some(Limited { algorithm, namespace, duration_ms, hard_limit, limit: limit? })
}

fn ledger(fields: &mut Fields<'_>, check: Option<usize>, problems: &mut Problems) -> Option<Limited> {
    fields.useless(
        "hard_limit",
        "no window of a ledger ever holds more than its rate; leave it out",
        problems,
    );
    for name in ["namespace", "limit", "duration"] {
        if fields.take(name).is_some() {
            problems.add(check, name, "the ledger's zone defines this; leave it out");
        }
    }
    let zone = fields.number("zone", 1..=u64::from(u32::MAX), problems);
    let zone = required(zone, check, "zone", "the number of the ledger's zone", problems)?;
    let algorithm = Algorithm::Ledger { zone: u32::try_from(zone).ok()? };
    Some(Limited { algorithm, namespace: Vec::new(), duration_ms: 0, hard_limit: false, limit: 0 })
}

/// The identifier in canonical form, from a text, or from a list of texts as a rule's parts would yield.
fn identifier(fields: &mut Fields<'_>, check: Option<usize>, problems: &mut Problems) -> Option<Vec<u8>> {
    const EXPECTED: &str = "a text of 1 to 1024 bytes, or a list of 1 to 8 texts that are not all empty";
    let mut out = Vec::new();
    let fits = |text: &str| text.len() <= MAX_PART_BYTES;
    let sound = match fields.take("identifier") {
        Some(Value::Text(text)) if fits(&text) && !text.is_empty() => {
            identifier_of(&[text.as_bytes()], &mut out);
            true
        }
        Some(Value::List(list)) => {
            let texts: Vec<&[u8]> = list
                .iter()
                .filter_map(|part| match part {
                    Value::Text(text) if fits(text) => Some(text.as_bytes()),
                    _ => None,
                })
                .collect();
            identifier_of(&texts, &mut out);
            texts.len() == list.len() && texts.len() <= MAX_PARTS && texts.iter().any(|text| !text.is_empty())
        }
        Some(_) => false,
        None => return problems.wrong(check, "identifier", format!("missing; expected {EXPECTED}")),
    };
    if !sound {
        return problems.wrong(check, "identifier", format!("expected {EXPECTED}"));
    }
    Some(out)
}

fn required(
    value: Option<Option<u64>>,
    check: Option<usize>,
    name: &str,
    expected: &str,
    problems: &mut Problems,
) -> Option<u64> {
    match value? {
        Some(value) => Some(value),
        None => problems.wrong(check, name, format!("missing; expected {expected}")),
    }
}

/// The fields of an object that were not read yet. A reading method returns `None` if the field is invalid, and `Some(None)`
/// if it is missing.
pub(super) struct Fields<'a> {
    left: Vec<(Cow<'a, str>, Value<'a>)>,
    taken: Vec<&'static str>,
    check: Option<usize>,
}

impl<'a> Fields<'a> {
    pub(super) fn of(value: Value<'a>, check: Option<usize>, problems: &mut Problems) -> Option<Fields<'a>> {
        match value {
            Value::Object(left) => Some(Fields { left, taken: Vec::with_capacity(16), check }),
            _ => problems.wrong(
                check,
                "",
                "not an object; expected {\"identifier\": …, \"limit\": …, …}".into(),
            ),
        }
    }

    pub(super) fn take(&mut self, name: &'static str) -> Option<Value<'a>> {
        self.taken.push(name);
        let place = self.left.iter().position(|(known, _)| known == name)?;
        Some(self.left.swap_remove(place).1)
    }

    pub(super) fn number(
        &mut self,
        name: &'static str,
        range: RangeInclusive<u64>,
        problems: &mut Problems,
    ) -> Option<Option<u64>> {
        match self.take(name) {
            None => Some(None),
            Some(Value::Integer(number)) if range.contains(&number) => Some(Some(number)),
            Some(_) => {
                let (least, most) = range.into_inner();
                problems.wrong(self.check, name, format!("expected a whole number from {least} to {most}"))
            }
        }
    }

    pub(super) fn boolean(&mut self, name: &'static str, problems: &mut Problems) -> Option<Option<bool>> {
        match self.take(name) {
            None => Some(None),
            Some(Value::Bool(value)) => Some(Some(value)),
            Some(_) => problems.wrong(self.check, name, "expected true or false".into()),
        }
    }

    /// A field that has no meaning for this algorithm.
    fn useless(&mut self, name: &'static str, why: &str, problems: &mut Problems) -> Option<Option<bool>> {
        match self.take(name) {
            None => Some(None),
            Some(_) => problems.wrong(self.check, name, why.into()),
        }
    }

    pub(super) fn span(
        &mut self,
        name: &'static str,
        range: RangeInclusive<u64>,
        expected: &str,
        problems: &mut Problems,
    ) -> Option<Option<u64>> {
        self.span_read(name, range, expected, parse_ms, problems)
    }

    /// A duration whose text is parsed with `read`.
    pub(super) fn span_read(
        &mut self,
        name: &'static str,
        range: RangeInclusive<u64>,
        expected: &str,
        read: fn(&str) -> Option<u64>,
        problems: &mut Problems,
    ) -> Option<Option<u64>> {
        let ms = match self.take(name) {
            None => return Some(None),
            Some(Value::Integer(ms)) => Some(ms),
            Some(Value::Text(text)) => read(&text),
            Some(_) => None,
        };
        match ms.filter(|ms| range.contains(ms)) {
            Some(ms) => Some(Some(ms)),
            None => problems.wrong(
                self.check,
                name,
                format!("expected a duration of {expected}, in milliseconds or as text"),
            ),
        }
    }

    pub(super) fn text(
        &mut self,
        name: &'static str,
        most: usize,
        problems: &mut Problems,
    ) -> Option<Option<Cow<'a, str>>> {
        match self.take(name) {
            None => Some(None),
            Some(Value::Text(text))
                if (1..=most).contains(&text.len()) && !text.chars().any(char::is_control) =>
            {
                Some(Some(text))
            }
            Some(_) => problems.wrong(
                self.check,
                name,
                format!("expected a text of 1 to {most} bytes without control characters"),
            ),
        }
    }

    fn word<T: Copy>(
        &mut self,
        name: &'static str,
        words: &[(&str, T)],
        problems: &mut Problems,
    ) -> Option<Option<T>> {
        let Some(value) = self.take(name) else { return Some(None) };
        let found = words.iter().find(|(word, _)| matches!(&value, Value::Text(text) if text == word));
        if let Some((_, meaning)) = found {
            return Some(Some(*meaning));
        }
        let known: Vec<String> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
        problems.wrong(self.check, name, format!("expected {}", known.join(" or ")))
    }

    /// Reports the fields that are left: they occur twice, or are unknown.
    pub(super) fn end(self, problems: &mut Problems) {
        for (name, _) in &self.left {
            let reason = match self.taken.iter().any(|taken| taken == name) {
                true => "given more than once",
                false => "there is no such field",
            };
            let shown: String = name.chars().take(64).collect();
            problems.add(self.check, &shown, reason);
        }
    }
}

#[derive(Default)]
pub(super) struct Problems(pub(super) Vec<FieldProblem>);

impl Problems {
    pub(super) fn add(&mut self, check: Option<usize>, name: &str, message: impl Into<String>) {
        if self.0.len() == MAX_PROBLEMS {
            return;
        }
        let field = match (check, name) {
            (None, name) => name.to_owned(),
            (Some(index), "") => format!("checks[{index}]"),
            (Some(index), name) => format!("checks[{index}].{name}"),
        };
        self.0.push(FieldProblem { field, message: message.into() });
    }

    pub(super) fn wrong<T>(&mut self, check: Option<usize>, name: &str, message: String) -> Option<T> {
        self.add(check, name, message);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, prop_assert, proptest};
    use serde_json::json;

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

    fn right(json: serde_json::Value) -> Question {
        let asked = parse_check(json.to_string().as_bytes()).unwrap_or_else(|problem| panic!("{problem:?}"));
        asked.questions.into_iter().next().unwrap()
    }

    #[test]
    fn defaults() {
        let asked = parse_check(br#"{"identifier": "a", "limit": 5, "duration": 60000}"#).unwrap();
        let question = Question {
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
        let questions = vec![question];
        assert_eq!(asked, Asked { workspace, on_failure: OnFailure::Deny, within, questions });
    }

    #[test]
    fn everything_can_be_said() {
        let asked = parse_batch(
            br#"{"workspace": "w", "on_failure": "allow", "timeout": "2s", "checks": [
                {"namespace": "n", "identifier": ["a|b", ""], "limit": 0, "duration": "31d", "cost": 0, "algorithm": "sliding_log"},
                {"identifier": "b", "algorithm": "ledger", "zone": 7, "cost": 3}]}"#,
        )
        .unwrap();
        assert_eq!(asked.workspace.as_deref(), Some("w"));
        assert_eq!((asked.on_failure, asked.within), (OnFailure::Allow, Duration::from_secs(2)));
        let [log, ledger] = asked.questions.try_into().unwrap();
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

    #[test]
    fn every_wrong_field_is_told() {
        let sound = json!({"identifier": "a", "limit": 1, "duration": "1m"});
        let with = |name: &str, value: serde_json::Value| {
            let mut json = sound.clone();
            json[name] = value;
            json
        };
        wrong(json!([]), &[("", "not an object")]);
        wrong(json!({}), &[("identifier", "missing"), ("limit", "missing"), ("duration", "missing")]);
        for (name, value, part) in [
            ("limit", json!(-1), "from 0 to 9007199254740992"),
            ("limit", json!("1"), "whole number"),
            ("limit", json!(MAX_COUNT + 1), "9007199254740992"),
            ("cost", json!(1.5), "whole number"),
            ("cost", json!(null), "whole number"),
            ("duration", json!(999), "1s to 31d"),
            ("duration", json!("32d"), "1s to 31d"),
            ("duration", json!("1 m"), "1s to 31d"),
            ("timeout", json!("6s"), "1ms to 5s"),
            ("timeout", json!(0), "1ms to 5s"),
            ("on_failure", json!("maybe"), "\"deny\" or \"allow\""),
            ("algorithm", json!("leaky"), "\"sliding_window\" or \"sliding_log\" or \"ledger\""),
            ("namespace", json!(""), "1 to 64 bytes"),
            ("namespace", json!("n".repeat(65)), "1 to 64 bytes"),
            ("namespace", json!("a\nb"), "control"),
            ("workspace", json!(7), "1 to 64 bytes"),
            ("identifier", json!(""), "1 to 1024 bytes"),
            ("identifier", json!("x".repeat(1_025)), "1 to 1024 bytes"),
            ("identifier", json!([]), "1 to 8 texts"),
            ("identifier", json!(["", ""]), "not all empty"),
            ("identifier", json!(["a", 1]), "1 to 8 texts"),
            ("identifier", json!([["a"]]), "1 to 8 texts"),
            ("identifier", json!(vec!["a"; 9]), "1 to 8 texts"),
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
        wrong(
            json!({"identifier": "a", "algorithm": "ledger", "limit": 1, "duration": 1, "namespace": "n"}),
            &[
                ("namespace", "zone defines"),
                ("limit", "zone defines"),
                ("duration", "zone defines"),
                ("zone", "missing"),
            ],
        );
        wrong(json!({"checks": []}), &[("checks", "0 checks; expected a list of 1 to 100")]);
        wrong(json!({"checks": vec![sound.clone(); 101]}), &[("checks", "101 checks")]);
        wrong(json!({"checks": {}}), &[("checks", "not a list")]);
        wrong(
            json!({"checks": [sound, 1, {"identifier": "a", "limit": 1, "duration": 1, "timeout": 1}]}),
            &[
                ("checks[1]", "not an object"),
                ("checks[2].duration", "1s to 31d"),
                ("checks[2].timeout", "no such field"),
            ],
        );
        let twice =
            parse_check(br#"{"identifier": "a", "limit": 1, "duration": "1m", "limit": 2}"#).unwrap_err();
        assert_eq!(twice.message, "limit: given more than once");
        let many = parse_batch(json!({"checks": vec![json!({}); 100]}).to_string().as_bytes()).unwrap_err();
        assert_eq!(many.fields.len(), MAX_PROBLEMS);
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let (one, many) = (parse_check(&bytes), parse_batch(&bytes));
            prop_assert!(one.is_ok() || many.is_ok() || one.is_err_and(|problem| !problem.message.is_empty()));
        }

        #[test]
        fn what_is_taken_is_within_its_bounds(
            limit in any::<u64>(), cost in any::<u64>(), duration in 0_u64..4_000_000_000, zone in any::<u64>(),
            algorithm in "window|log|ledger", parts in proptest::collection::vec(".{0,40}", 0..10),
        ) {
            let json = match algorithm.as_str() {
                "ledger" => json!({"algorithm": algorithm, "zone": zone, "cost": cost, "identifier": parts}),
                _ => json!({"algorithm": algorithm, "limit": limit, "cost": cost, "duration": duration, "identifier": parts}),
            };
            if let Ok(asked) = parse_check(json.to_string().as_bytes()) {
                let [question] = asked.questions.try_into().unwrap();
                prop_assert!(question.limit <= MAX_COUNT && question.cost <= MAX_COUNT);
                prop_assert!((1..=64).contains(&question.identifier.len()));
                prop_assert!(question.algorithm != Algorithm::Log || question.limit <= MAX_LOG_LIMIT);
                prop_assert!(algorithm == "ledger" || DURATION_MS.contains(&question.duration_ms));
            }
        }
    }
}
