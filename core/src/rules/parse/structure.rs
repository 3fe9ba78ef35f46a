//! Decodes a configuration that Envoy received as a `google.protobuf.Struct`.
//!
//! Envoy's documentation states that a plugin receives such a configuration as JSON. Envoy 1.40 passes the encoded
//! message instead, so it is decoded here and returned as JSON text. Its fields are sorted, since a protobuf map has no
//! order.

use alloc::string::{String, ToString};
use prost::Message;
use prost_types::Struct;
use prost_types::value::Kind;
use serde_json::{Number, Value};

/// The tag of `Struct.fields`, the first byte of each struct that has a field. In JSON text it is a line feed.
const FIELDS_TAG: u8 = 0x0a;
/// The tag of a field's value. JSON text never contains this byte, not even in a string.
const VALUE_TAG: u8 = 0x12;

/// The JSON text of an encoded struct; `None` for any other bytes, including JSON text.
pub(in crate::rules) fn json_of(bytes: &[u8]) -> Option<String> {
    if bytes.first() != Some(&FIELDS_TAG) || !bytes.contains(&VALUE_TAG) {
        return None;
    }
    Struct::decode(bytes).ok().map(|decoded| json_of_struct(decoded).to_string())
}

fn json_of_struct(object: Struct) -> Value {
    object.fields.into_iter().map(|(name, value)| (name, json_of_value(value))).collect()
}

fn json_of_value(value: prost_types::Value) -> Value {
    match value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::NumberValue(number)) => number_of(number),
        Some(Kind::StringValue(text)) => Value::String(text),
        Some(Kind::BoolValue(value)) => Value::Bool(value),
        Some(Kind::StructValue(object)) => json_of_struct(object),
        Some(Kind::ListValue(list)) => list.values.into_iter().map(json_of_value).collect(),
    }
}

/// Converts whole numbers to integers, so that errors print 10 as `10`.
fn number_of(number: f64) -> Value {
    let whole = number as i64;
    if whole as f64 == number && whole.unsigned_abs() <= 1 << 53 {
        return Value::from(whole);
    }
    Number::from_f64(number).map_or(Value::Null, Value::Number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use serde_json::json;

    fn value(json: &Value) -> prost_types::Value {
        match json {
            Value::Null => Kind::NullValue(0).into(),
            Value::Bool(value) => (*value).into(),
            Value::Number(number) => number.as_f64().unwrap().into(),
            Value::String(text) => text.as_str().into(),
            Value::Array(list) => list.iter().map(value).collect::<Vec<_>>().into(),
            Value::Object(_) => Kind::StructValue(structure(json)).into(),
        }
    }

    fn structure(json: &Value) -> Struct {
        let fields = json.as_object().unwrap().iter();
        Struct { fields: fields.map(|(name, json)| (name.clone(), value(json))).collect() }
    }

    #[test]
    fn a_struct_becomes_its_json() {
        for value in [
            json!({"a": null}),
            json!({"rules": [{"limit": 10, "window": "1m", "shadow": false, "cost": {"max": 0.5}}, [], {}]}),
            json!({"\n": "\n\u{12}é", "large": 9_007_199_254_740_992_u64, "negative": -3}),
        ] {
            let text = json_of(&structure(&value).encode_to_vec()).unwrap();
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value, "{text}");
        }
        let number = |number| json_of(&structure(&json!({ "n": number })).encode_to_vec()).unwrap();
        assert_eq!((number(1e6), number(1e300)), ("{\"n\":1000000}".into(), "{\"n\":1e+300}".into()));
    }

    #[test]
    fn the_encoding_is_protobufs() {
        let bytes = b"\n\x1f\n\naggregator\x12\x11*\x0f\n\x0d\n\x07cluster\x12\x02\x1a\0";
        assert_eq!(json_of(bytes).unwrap(), r#"{"aggregator":{"cluster":""}}"#);
    }

    #[test]
    fn json_text_is_not_decoded() {
        for text in ["", "\n", "\n{\"rules\": []}", "{\"a\": \"\\u0012\"}", "\n\u{12}"] {
            assert_eq!(json_of(text.as_bytes()), None, "{text:?}");
        }
        let deep = (0..1_000).fold(json!({}), |inner, _| json!({ "a": inner }));
        assert_eq!(json_of(&structure(&deep).encode_to_vec()), None, "too deep");
    }
}
