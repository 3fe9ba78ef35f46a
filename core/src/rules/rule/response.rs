//! A rule's own response to requests that it denies: status, body, and whether clients see headers of the limit.
//!
//! The body is a template. It is split into pieces when the configuration is read, so that a denial only joins them.
//! A JSON template is valid JSON for all values of its placeholders: numbers are digits, and the names of rules contain
//! no character that JSON escapes.

use super::json_rpc::{JsonRpc, STATUS_OK, is_openai};
use crate::fields::{Bounds, Errors, Node, Value, is_token_byte, quoted};
use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write as _;
use core::ops::RangeInclusive;

pub(in crate::rules) const FIELDS: [&str; 6] = ["status", "body", "content_type", "headers", "format", "id"];
pub(in crate::rules) const STATUS: RangeInclusive<u64> = 400..=599;
/// Length of the longest template, in bytes.
pub(in crate::rules) const BODY_BYTES_MAX: usize = 4_096;
pub(in crate::rules) const CONTENT_TYPE_BYTES_MAX: usize = 128;
/// The values of `headers`.
pub(in crate::rules) const HEADERS: [(&str, LimitHeaders); 3] =
    [("shown", LimitHeaders::Shown), ("hidden", LimitHeaders::Hidden), ("openai", LimitHeaders::OpenAi)];
/// A denial as OpenAI's clients read it.
const OPENAI_BODY: &str = r#"{"error":{"message":"The limit of {rule}, {limit}, is reached. Try again in {retry_after}s.","type":"tokens","param":null,"code":"rate_limit_exceeded"}}"#;
const JSON: &str = "application/json";

const TEXT: &str = "text/plain";
const PLACEHOLDERS: &str = "{limit}, {retry_after} or {rule}";

/// `response`: the response to requests that the rule denies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnResponse {
    /// `status` (default: 429, or 403 for a ban without an end): 400 to 599. With `format: json_rpc` 200 is possible, and the default
    /// where the id is known.
    pub status: Option<u16>,
    /// `body` and `content_type` (default: as `responses` states).
    pub body: Option<Body>,
    /// `headers` (default `shown`): which headers responses have about this limit.
    pub headers: LimitHeaders,
    /// `format: json_rpc` and `id` (default: none): denials are errors of JSON-RPC. `format: openai` is a body that OpenAI's clients
    /// understand.
    pub json_rpc: Option<JsonRpc>,
}

/// Which headers responses have about a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum LimitHeaders {
    /// `shown`: as `responses` states.
    #[default]
    Shown,
    /// `hidden`: none.
    Hidden,
    /// `openai`: those of OpenAI's API for tokens too.
    OpenAi,
}

/// A body with placeholders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body {
    /// `content_type` (default `text/plain`): a media type.
    pub content_type: String,
    /// Whether the body is JSON by its content type.
    pub is_json: bool,
    /// Text without placeholders, each but the last followed by one.
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(Box<str>),
    Limit,
    RetryAfter,
    Rule,
}

impl OwnResponse {
    pub(in crate::rules) fn read(node: Node<'_>, errors: &mut Errors) -> Option<OwnResponse> {
        let fields = node.object(&FIELDS, errors)?;
        let status = fields.optional("status", errors, |n, e| match JsonRpc::is_ok(&n, &fields) {
            true => Some(STATUS_OK),
            false => n.integer(STATUS, e).and_then(|status| u16::try_from(status).ok()),
        });
        let content_type = fields.optional("content_type", errors, read_content_type);
        let is_json = matches!(content_type, Some(Some(kind)) if is_json(kind));
        let pieces = fields.optional("body", errors, |n, e| read_body(n, is_json, e));
        let headers = fields.or("headers", LimitHeaders::default(), errors, |n, e| n.word(&HEADERS, e));
        let json_rpc = JsonRpc::read(&fields, errors);
        JsonRpc::check_others(&fields, errors)?;
        if let Some(node) = fields.get("content_type").filter(|_| fields.get("body").is_none()) {
            return node.reject(errors, "has no effect without a body", "it only beside body");
        }
        let content_type = content_type?.unwrap_or(TEXT).to_owned();
        let body = match fields.get("format").filter(is_openai) {
            Some(node) => {
                let pieces = split(OPENAI_BODY, node, errors)?;
                Some(Body { content_type: JSON.to_owned(), is_json: true, pieces })
            }
            None => pieces?.map(|pieces| Body { content_type, is_json, pieces }),
        };
        Some(OwnResponse { status: status?, body, headers: headers?, json_rpc: json_rpc? })
    }
}

impl Body {
    /// The body for a denial.
    pub fn render(&self, rule: &str, limit: u64, retry_after_s: u64) -> String {
        let mut text = String::new();
        for piece in &self.pieces {
            // Writing to a `String` cannot fail.
            let _ = match piece {
                Piece::Text(literal) => text.write_str(literal),
                Piece::Rule => text.write_str(rule),
                Piece::Limit => write!(text, "{limit}"),
                Piece::RetryAfter => write!(text, "{retry_after_s}"),
            };
        }
        text
    }
}

/// Reads a template and checks that it is JSON if it has to be.
fn read_body(node: Node<'_>, is_json: bool, errors: &mut Errors) -> Option<Vec<Piece>> {
    let template = node.text(BODY_BYTES_MAX, errors)?;
    let pieces = split(template, node, errors)?;
    if !is_json {
        return Some(pieces);
    }
    let body = Body { content_type: String::new(), is_json, pieces };
    // Several numbers in one place are JSON only if the first cannot be 0, so 0 is one of the values to try.
    for number in [0, u64::MAX] {
        if let Err(error) = Value::parse(body.render("rule", number, number).as_bytes(), Bounds::OF_A_FILE) {
            return node.reject(
                errors,
                &format!("is not JSON with its placeholders filled in ({error})"),
                "JSON, as the content type states",
            );
        }
    }
    Some(body.pieces)
}

/// Splits a template at its placeholders: a word in braces. Other braces are text.
fn split(template: &str, node: Node<'_>, errors: &mut Errors) -> Option<Vec<Piece>> {
    let mut pieces = Vec::new();
    let mut text = String::new();
    let mut rest = template;
    let mut sound = Some(());
    while let Some((before, after)) = rest.split_once('{') {
        text.push_str(before);
        match after.split_once('}').filter(|(name, _)| is_word(name)) {
            Some((name, behind)) => {
                rest = behind;
                let piece = match name {
                    "limit" => Piece::Limit,
                    "retry_after" => Piece::RetryAfter,
                    "rule" => Piece::Rule,
                    _ => {
                        let problem = format!("there is no placeholder {}", quoted(&format!("{{{name}}}")));
                        sound = errors.reject(&node.path, problem, PLACEHOLDERS);
                        continue;
                    }
                };
                push_text(&mut text, &mut pieces);
                pieces.push(piece);
            }
            None => {
                text.push('{');
                rest = after;
            }
        }
    }
    text.push_str(rest);
    push_text(&mut text, &mut pieces);
    sound.map(|()| pieces)
}

fn push_text(text: &mut String, pieces: &mut Vec<Piece>) {
    if !text.is_empty() {
        pieces.push(Piece::Text(core::mem::take(text).into()));
    }
}

/// Whether a text in braces is meant as a placeholder. In JSON, braces around a word alone do not occur.
fn is_word(name: &str) -> bool {
    let name = name.trim_matches(' ');
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
}

fn read_content_type<'a>(node: Node<'a>, errors: &mut Errors) -> Option<&'a str> {
    let text = node.text(CONTENT_TYPE_BYTES_MAX, errors)?;
    let is_token = |part: &str| !part.is_empty() && part.bytes().all(is_token_byte);
    let is_type = essence(text).split_once('/').is_some_and(|(kind, sub)| is_token(kind) && is_token(sub));
    if is_type && text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return Some(text);
    }
    node.reject(errors, "is not a content type", "a media type such as \"application/json\"")
}

/// A media type without its parameters.
fn essence(content_type: &str) -> &str {
    content_type.split_once(';').map_or(content_type, |(essence, _)| essence).trim_end_matches(' ')
}

fn is_json(content_type: &str) -> bool {
    let essence = essence(content_type).to_ascii_lowercase();
    essence == "application/json" || essence.ends_with("+json")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::Path;
    use alloc::string::ToString;

    fn read(json: &str) -> Result<OwnResponse, String> {
        let mut errors = Errors::default();
        let json = Value::parse(json.as_bytes(), Bounds::OF_A_FILE).unwrap();
        let root = Path::Root("");
        let node = Node { value: &json, path: Path::Field(&root, "response") };
        let response = OwnResponse::read(node, &mut errors);
        errors.finish(response).map_err(|errors| errors.to_string())
    }

    fn body(template: &str, content_type: &str) -> Result<Body, String> {
        let json = serde_json::json!({"body": template, "content_type": content_type});
        read(&json.to_string()).map(|response| response.body.unwrap())
    }

    #[test]
    fn the_least_response_changes_nothing() {
        assert_eq!(
            read("{}"),
            Ok(OwnResponse { status: None, body: None, headers: LimitHeaders::Shown, json_rpc: None })
        );
        let hidden = read(r#"{"headers": "hidden", "status": 503}"#).unwrap();
        assert_eq!((hidden.headers, hidden.status), (LimitHeaders::Hidden, Some(503)));
        assert_eq!(read(r#"{"headers": "shown"}"#).unwrap().headers, LimitHeaders::Shown);
        let plain = read(r#"{"body": "no"}"#).unwrap().body.unwrap();
        assert_eq!((plain.content_type.as_str(), plain.is_json), ("text/plain", false));
    }

    #[test]
    fn json_rpc_needs_no_more_than_its_format() {
        let least = read(r#"{"format": "json_rpc"}"#).unwrap();
        let id = |response: &OwnResponse| response.json_rpc.as_ref().unwrap().id_path().to_vec();
        assert_eq!(
            (least.status, &*id(&least)),
            (None, &b"metadata\0filter_metadata\0envoy.filters.http.mcp\0id"[..])
        );
        let own = read(r#"{"format": "json_rpc", "status": 200, "id": {"typed": "a", "key": ["b", "c"]}}"#)
            .unwrap();
        assert_eq!((own.status, &*id(&own)), (Some(200), &b"metadata\0typed_filter_metadata\0a\0b\0c"[..]));
        assert_eq!(read(r#"{"format": "json_rpc", "status": 503}"#).unwrap().status, Some(503));
    }

    #[test]
    fn placeholders_are_filled_in() {
        for (template, expected) in [
            ("no", "no"),
            ("{rule}: {limit}, {retry_after}", "r: 5, 60"),
            ("{limit}{limit}", "55"),
            ("{ a: {limit} }", "{ a: 5 }"),
            ("{{limit}}", "{5}"),
            ("{", "{"),
            ("}{", "}{"),
            ("{limit", "{limit"),
            ("{}", "{}"),
            ("a{color:red}", "a{color:red}"),
            ("{ü}{limit}", "{ü}5"),
        ] {
            assert_eq!(body(template, "text/plain").unwrap().render("r", 5, 60), expected, "{template}");
        }
    }

    #[test]
    fn unknown_placeholders_are_errors() {
        for name in ["{limits}", "{Limit}", "{retry-after}", "{ limit }", "{0}"] {
            let error = body(&format!("a {name} b"), "text/plain").unwrap_err();
            let expected = format!(
                "response.body: there is no placeholder \"{name}\"; expected {{limit}}, {{retry_after}} or {{rule}}"
            );
            assert_eq!(error, expected);
        }
        let both = body("{one} {two}", "application/json").unwrap_err();
        assert_eq!(both.lines().count(), 2, "{both}");
    }

    #[test]
    fn json_is_json_for_all_values() {
        for kind in ["application/json", "Application/JSON; charset=utf-8", "application/problem+json"] {
            let good = body(r#"{"rule":"{rule}","limit":{limit},"in":"{retry_after}s"}"#, kind).unwrap();
            assert!(good.is_json);
            let value: serde_json::Value =
                serde_json::from_str(&good.render("a.b-c_d", u64::MAX, 0)).unwrap();
            assert_eq!(value["limit"], u64::MAX);
            assert_eq!((&value["rule"], &value["in"]), (&"a.b-c_d".into(), &"0s".into()));
            for bad in
                ["no", r#"{"rule":{rule}}"#, r#"[{limit}{limit}]"#, r#"[{limit},]"#, r#"[0{limit}]"#, "{"]
            {
                let error = body(bad, kind).unwrap_err();
                assert!(error.contains("is not JSON with its placeholders filled in"), "{bad}: {error}");
            }
            assert!(body(&"[".repeat(BODY_BYTES_MAX), kind).is_err());
        }
        assert!(!body("{", "application/jsonp").unwrap().is_json);
    }

    #[test]
    fn errors_name_the_field() {
        let long = format!(r#"{{"body": "{}"}}"#, "x".repeat(BODY_BYTES_MAX + 1));
        for (json, expected) in [
            (
                r#"{"status": 399}"#,
                "response.status: 399 is out of range; expected a whole number from 400 to 599",
            ),
            (r#"{"status": 600}"#, "response.status: 600 is out of range"),
            (r#"{"status": "429"}"#, "response.status: \"429\" is a text; write it without quotes"),
            (r#"{"body": ""}"#, "response.body: \"\" is empty"),
            (r#"{"body": {}}"#, "response.body: an object is not a string"),
            (long.as_str(), "response.body: "),
            (
                r#"{"headers": "none"}"#,
                "response.headers: \"none\" is not one of its values; expected shown, hidden or openai",
            ),
            (r#"{"headers": false}"#, "response.headers: false is not a string"),
            (
                r#"{"content_type": "text/html"}"#,
                "response.content_type: \"text/html\" has no effect without a body",
            ),
            (
                r#"{"body": "x", "content_type": "html"}"#,
                "response.content_type: \"html\" is not a content type",
            ),
            (r#"{"body": "x", "content_type": "a/b/c"}"#, "response.content_type: "),
            (r#"{"body": "x", "content_type": "a/b;\r\nx: y"}"#, "response.content_type: "),
            (
                r#"{"code": 1}"#,
                "response.code: there is no such field; expected status, body, content_type, headers, format or id",
            ),
            ("7", "response: 7 is not an object"),
            (r#"{"format": "xml"}"#, "response.format: \"xml\" is not one of its values; expected json_rpc"),
            (r#"{"status": 200}"#, "response.status: 200 is out of range"),
            (r#"{"format": "json_rpc", "status": 201}"#, "response.status: 201 is out of range"),
            (r#"{"format": "json_rpc", "body": "x"}"#, "response.body: \"x\" has no effect beside a format"),
            (
                r#"{"id": {"filter": "a", "key": "id"}}"#,
                "response.id: an object has no effect without a format",
            ),
            (r#"{"format": "json_rpc", "id": {"key": "id"}}"#, "response.id"),
        ] {
            let error = read(json).unwrap_err();
            assert!(error.starts_with(expected), "{json}: {error}");
        }
    }
}
