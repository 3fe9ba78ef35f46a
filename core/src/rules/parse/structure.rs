//! Decodes a configuration that Envoy received as a `google.protobuf.Struct`.
//!
//! Envoy's documentation states that a plugin receives such a configuration as JSON. Envoy 1.40 passes the encoded
//! message instead, so it is decoded here and returned as JSON text. Its fields are sorted, since a protobuf map has no
//! order.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use prost::Message;
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
    Struct::decode(bytes).ok().map(|decoded| decoded.into_json().to_string())
}

#[derive(Clone, PartialEq, Message)]
struct Struct {
    #[prost(btree_map = "string, message", tag = "1")]
    fields: BTreeMap<String, Item>,
}

#[derive(Clone, PartialEq, Message)]
struct List {
    #[prost(message, repeated, tag = "1")]
    items: Vec<Item>,
}

#[derive(Clone, PartialEq, Message)]
struct Item {
    #[prost(oneof = "Kind", tags = "1, 2, 3, 4, 5, 6")]
    kind: Option<Kind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Kind {
    #[prost(int32, tag = "1")]
    Null(i32),
    #[prost(double, tag = "2")]
    Number(f64),
    #[prost(string, tag = "3")]
    Text(String),
    #[prost(bool, tag = "4")]
    Bool(bool),
    #[prost(message, tag = "5")]
    Struct(Box<Struct>),
    #[prost(message, tag = "6")]
    List(Box<List>),
}

impl Struct {
    fn into_json(self) -> Value {
        self.fields.into_iter().map(|(name, item)| (name, item.into_json())).collect()
    }
}

impl Item {
    fn into_json(self) -> Value {
        match self.kind {
            None | Some(Kind::Null(_)) => Value::Null,
            Some(Kind::Number(number)) => number_of(number),
            Some(Kind::Text(text)) => Value::String(text),
            Some(Kind::Bool(value)) => Value::Bool(value),
            Some(Kind::Struct(value)) => value.into_json(),
            Some(Kind::List(list)) => list.items.into_iter().map(Item::into_json).collect(),
        }
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
    use serde_json::json;

    fn item(value: &Value) -> Item {
        let kind = match value {
            Value::Null => Kind::Null(0),
            Value::Bool(value) => Kind::Bool(*value),
            Value::Number(number) => Kind::Number(number.as_f64().unwrap()),
            Value::String(text) => Kind::Text(text.clone()),
            Value::Array(list) => Kind::List(Box::new(List { items: list.iter().map(item).collect() })),
            Value::Object(_) => Kind::Struct(Box::new(structure(value))),
        };
        Item { kind: Some(kind) }
    }

    fn structure(value: &Value) -> Struct {
        let fields = value.as_object().unwrap().iter();
        Struct { fields: fields.map(|(name, value)| (name.clone(), item(value))).collect() }
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
