//! Denials as errors of JSON-RPC 2.0. A client finds the call that an error answers by its id, which a filter before this one has left
//! in metadata. The id is encoded again, so that nothing but a number or a text gets into the response.

use crate::fields::{Errors, Fields, Node, Value};
use crate::rules::request::property::Property;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use prost::Message;
use prost_types::Struct;
use prost_types::value::Kind;

/// The values of `format`.
pub(in crate::rules) const FORMATS: [(&str, Format); 2] =
    [("json_rpc", Format::JsonRpc), ("openai", Format::OpenAi)];
/// The status of a response to a call whose id is known: clients read the bodies of no others.
pub(in crate::rules) const STATUS_OK: u16 = 200;
/// The path of a request's whole metadata, an encoded `envoy.config.core.v3.Metadata`.
pub const METADATA_PATH: &[u8] = b"metadata";
/// The largest number whose neighbours are other numbers for every parser of JSON.
const NUMBER_MAX: u64 = (1 << 53) - 1;
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

/// The part of `envoy.config.core.v3.Metadata` that is not typed.
#[derive(Clone, PartialEq, Message)]
struct WholeMetadata {
    #[prost(btree_map = "string, message", tag = "1")]
    filter_metadata: BTreeMap<String, Struct>,
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

    /// The id as JSON: a whole number from −(2⁵³−1) to 2⁵³−1, or a text of at most 128 bytes. `None` for anything else. `metadata` is the
    /// whole [`METADATA_PATH`], or nothing if it is not known: it is needed only if the bytes [may be either](JsonRpc::is_ambiguous).
    pub fn id(&self, bytes: &[u8], metadata: &[u8]) -> Option<String> {
        if let Some(number) = self.id.number(bytes) {
            return (number.unsigned_abs() <= NUMBER_MAX).then(|| number.to_string());
        }
        if let Some(number) = self.id.hidden_number(bytes).filter(|_| self.is_number_in(metadata)) {
            return Some(number.to_string());
        }
        let text = self.id.text(bytes).filter(|text| (1..=ID_BYTES_MAX).contains(&text.len()))?;
        serde_json::to_string(core::str::from_utf8(text).ok()?).ok()
    }

    /// Whether the bytes are a text, and those of a number that may be an id.
    pub fn is_ambiguous(&self, bytes: &[u8]) -> bool {
        self.id.hidden_number(bytes).is_some()
    }

    /// Whether the id is a number in the metadata of a request.
    fn is_number_in(&self, metadata: &[u8]) -> bool {
        let Ok(WholeMetadata { filter_metadata }) = WholeMetadata::decode(metadata) else { return false };
        let mut keys = self.id.elements_of_metadata();
        let top = keys.next().and_then(|namespace| filter_metadata.get(namespace));
        let Some((top, first)) = top.zip(keys.next()) else { return false };
        let value = keys.try_fold(top.fields.get(first), |value, key| match value.map(|value| &value.kind) {
            Some(Some(Kind::StructValue(object))) => Some(object.fields.get(key)),
            _ => None,
        });
        matches!(value.flatten(), Some(prost_types::Value { kind: Some(Kind::NumberValue(_)) }))
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
            (number(9_007_199_254_740_991.0), Some("9007199254740991")),
            (number(-9_007_199_254_740_991.0), Some("-9007199254740991")),
            (number(9_007_199_254_740_992.0), None),
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
            assert!(!rpc.is_ambiguous(&bytes));
            assert_eq!(rpc.id(&bytes, &[]).as_deref(), expected, "{bytes:?}");
        }
    }

    /// Metadata of Envoy's filter for MCP, as Envoy encodes the whole.
    fn whole(fields: &[(&str, Kind)]) -> Vec<u8> {
        let fields = fields.iter().map(|(name, kind)| (name.to_string(), kind.clone().into())).collect();
        let filter_metadata = [("envoy.filters.http.mcp".to_string(), Struct { fields })].into();
        WholeMetadata { filter_metadata }.encode_to_vec()
    }

    #[test]
    fn a_number_that_reads_as_a_text_is_told_by_the_whole_metadata() {
        let rpc = of_mcp();
        let (text, number) = ("abcdef3C", 5_460_610_219_467_361.0);
        let bytes = f64::to_le_bytes(number);
        assert_eq!((bytes.as_slice(), rpc.is_ambiguous(&bytes)), (text.as_bytes(), true));
        let id = |metadata: &[u8]| rpc.id(&bytes, metadata).unwrap();
        assert_eq!(id(&whole(&[("id", Kind::NumberValue(number))])), "5460610219467361");
        let as_text = "\"abcdef3C\"";
        assert_eq!(id(&whole(&[("id", Kind::StringValue(text.into()))])), as_text);
        assert_eq!(id(&whole(&[("other", Kind::NumberValue(number))])), as_text);
        assert_eq!([id(&[]), id(b"\xff")], [as_text, as_text]);
        // Larger numbers are no ids, and others are no whole ones.
        assert!(
            !rpc.is_ambiguous(b"abcdefgC") && !rpc.is_ambiguous(b"abcdef#C") && !rpc.is_ambiguous(b"abcdef3")
        );
        let typed = JsonRpc { id: Property::metadata("typed", "a", &["b".to_string()]) };
        assert!(!typed.is_ambiguous(&bytes));
    }

    #[test]
    fn the_number_may_be_below_other_keys() {
        let keys = ["call".to_string(), "id".to_string()];
        let rpc = JsonRpc { id: Property::metadata("filter", "envoy.filters.http.mcp", &keys) };
        let object = |kind: Kind| Struct { fields: [("id".to_string(), kind.into())].into() };
        let number = 5_460_610_219_467_361.0;
        let id = |kind: Kind| rpc.id(&f64::to_le_bytes(number), &whole(&[("call", kind)])).unwrap();
        assert_eq!(id(Kind::StructValue(object(Kind::NumberValue(number)))), "5460610219467361");
        assert_eq!(id(Kind::StructValue(object(Kind::BoolValue(true)))), "\"abcdef3C\"");
        assert_eq!(id(Kind::NumberValue(number)), "\"abcdef3C\"");
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
            let id = of_mcp().id(&bytes, &[]);
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
