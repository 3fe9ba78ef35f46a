//! Denials as errors of JSON-RPC 2.0. A client finds the call that an error answers by its id, which a filter before this one has left
//! in metadata. The id is encoded again, so that nothing but a number or a text gets into the response.

use crate::fields::{Errors, Fields, Node, Value};
use crate::rules::request::property::Property;
use alloc::format;
use alloc::string::{String, ToString};

/// The values of `format`.
pub(in crate::rules) const FORMATS: [(&str, Format); 2] =
    [("json_rpc", Format::JsonRpc), ("openai", Format::OpenAi)];
/// The status of a response to a call whose id is known: clients read the bodies of no others.
pub(in crate::rules) const STATUS_OK: u16 = 200;
/// Longest text that is repeated as an id.
const ID_BYTES_MAX: usize = 128;
/// The code of the error, of those that JSON-RPC leaves to servers.
const CODE: i32 = -32_029;

/// The form of a denial's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rules) enum Format {
    JsonRpc,
    OpenAi,
}

/// Whether `format` is that of OpenAI's API.
pub(super) fn is_openai(format: &Node<'_>) -> bool {
    matches!(format.value, Value::Text(word) if word == "openai")
}

/// Denials as errors of JSON-RPC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonRpc {
    id: Property,
}

impl JsonRpc {
    /// Reads `format` and `id`; `None` within if `format` is not given.
    pub(in crate::rules) fn read(fields: &Fields<'_>, errors: &mut Errors) -> Option<Option<JsonRpc>> {
        let format = fields.optional("format", errors, |node, errors| node.word(&FORMATS, errors));
        let id = fields.or("id", Property::of_mcp_id(), errors, Property::read_metadata);
        let is_rpc = fields.get("format").is_some_and(|format| !is_openai(&format));
        if let Some(node) = fields.get("id").filter(|_| !is_rpc) {
            return node.reject(errors, "has no effect without a format", "it only beside format: json_rpc");
        }
        let id = id?;
        format.map(|format| format.filter(|format| *format == Format::JsonRpc).map(|_| JsonRpc { id }))
    }

    /// Rejects fields that have no effect beside `format`.
    pub(in crate::rules) fn check_others(fields: &Fields<'_>, errors: &mut Errors) -> Option<()> {
        let given = ["body", "content_type"].into_iter().find_map(|name| fields.get(name));
        match given.filter(|_| fields.get("format").is_some()) {
            Some(node) => node.reject(errors, "has no effect beside a format", "only one of body and format"),
            None => Some(()),
        }
    }

    /// The status, which is 200 or one of a denial.
    pub(in crate::rules) fn is_ok(node: &Node<'_>, fields: &Fields<'_>) -> bool {
        let is_rpc = fields.get("format").is_some_and(|format| !is_openai(&format));
        is_rpc && node.value.as_integer() == Some(STATUS_OK.into())
    }

    /// The path of the property that holds the id.
    pub fn id_path(&self) -> &[u8] {
        self.id.path()
    }

    /// The id as JSON: a whole number up to 2⁵³, or a text of at most 128 bytes. `None` for anything else.
    pub fn id(&self, bytes: &[u8]) -> Option<String> {
        if let Some(number) = self.id.number(bytes) {
            return Some(number.to_string());
        }
        let text = self.id.text(bytes).filter(|text| (1..=ID_BYTES_MAX).contains(&text.len()))?;
        serde_json::to_string(core::str::from_utf8(text).ok()?).ok()
    }

    /// The body of a denial. `numbers` are the limit and the seconds until a retry may pass, 0 if none may; `None` to show neither.
    pub fn error(message: &str, rule: &str, numbers: Option<(u64, u64)>) -> String {
        let message = serde_json::Value::from(message);
        let data = numbers.map(|(limit, retry_after_s)| {
            let retry_after = match retry_after_s {
                0 => String::new(),
                wait => format!(r#","retry_after":{wait}"#),
            };
            format!(r#","data":{{"rule":{},"limit":{limit}{retry_after}}}"#, serde_json::Value::from(rule))
        });
        format!(r#"{{"code":{CODE},"message":{message}{}}}"#, data.unwrap_or_default())
    }

    /// The response with an error to a call. Without an id it is `null`.
    pub fn response(id: Option<&str>, error: &str) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":{},"error":{error}}}"#, id.unwrap_or("null"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn of_mcp() -> JsonRpc {
        JsonRpc { id: Property::of_mcp_id() }
    }

    #[test]
    fn ids_are_repeated_or_null() {
        let rpc = of_mcp();
        let number = |number: f64| number.to_le_bytes().to_vec();
        for (bytes, expected) in [
            (number(0.0), Some("0")),
            (number(-1.0), Some("-1")),
            (number(9_007_199_254_740_992.0), Some("9007199254740992")),
            (number(9_007_199_254_740_994.0), None),
            (number(1.5), None),
            (number(1e300), None),
            (number(f64::NAN), None),
            (b"a\"b".to_vec(), Some(r#""a\"b""#)),
            (b"7".to_vec(), Some(r#""7""#)),
            (b" a\n\\\x01 ".to_vec(), Some(r#"" a\n\\\u0001 ""#)),
            ("é\u{2028}".as_bytes().to_vec(), Some("\"é\u{2028}\"")),
            ("i".repeat(128).into_bytes(), Some(&*format!("\"{}\"", "i".repeat(128)))),
            ("i".repeat(129).into_bytes(), None),
            ("i".repeat(10_240).into_bytes(), None),
            (b"".to_vec(), None),
            (b"\xff\xfe".to_vec(), None),
            (Vec::from([1]), None),
            (Vec::from([0; 4]), None),
        ] {
            assert_eq!(rpc.id(&bytes).as_deref(), expected, "{bytes:?}");
        }
    }

    #[test]
    fn the_error_is_json() {
        let error = JsonRpc::error("rate limit exceeded", "a.b", Some((5, 60)));
        let body: Value = serde_json::from_str(&JsonRpc::response(Some("7"), &error)).unwrap();
        let expected = json!({ "jsonrpc": "2.0", "id": 7, "error": {
            "code": -32_029, "message": "rate limit exceeded",
            "data": { "rule": "a.b", "limit": 5, "retry_after": 60 },
        }});
        assert_eq!(body, expected);
        let error = JsonRpc::error("banned", "a.b", Some((5, 0)));
        let body: Value = serde_json::from_str(&JsonRpc::response(None, &error)).unwrap();
        assert_eq!(
            (&body["id"], &body["error"]["data"]),
            (&Value::Null, &json!({ "rule": "a.b", "limit": 5 }))
        );
        let body: Value = serde_json::from_str(&JsonRpc::error("banned", "a.b", None)).unwrap();
        assert_eq!(body, json!({ "code": -32_029, "message": "banned" }));
    }

    proptest! {
        #[test]
        fn any_id_gives_one_line_of_json(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let id = of_mcp().id(&bytes);
            let body = JsonRpc::response(id.as_deref(), &JsonRpc::error("no", "r", None));
            prop_assert!(!body.contains(['\n', '\r']) && body.len() < 1_000);
            let value: Value = serde_json::from_str(&body).unwrap();
            prop_assert_eq!(value.as_object().unwrap().len(), 3);
            prop_assert_eq!(value["id"].is_null(), id.is_none());
            if let Value::String(text) = &value["id"] {
                prop_assert_eq!(text.as_bytes(), &bytes[..]);
            }
        }
    }
}
