//! A descriptor's `metadata`: `google.protobuf.Struct` as values of a configuration.
//!
//! Source: `google/protobuf/struct.proto`.

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value as Member};
use std::collections::BTreeMap;
use weir_core::fields::{Errors, Node, Path, Value};

/// Deepest nesting of a descriptor's metadata. Envoy refuses messages of more than 100 levels, of which each level here takes
/// three.
pub const MAX_DEPTH: usize = 16;
/// Longest encoding of a descriptor's metadata, in bytes.
pub const MAX_BYTES: usize = 16 * 1024;

/// Reads an object of a configuration.
pub fn read(node: &Node<'_>, errors: &mut Errors) -> Option<Struct> {
    let Some(Kind::StructValue(read)) = member(node, MAX_DEPTH, errors)?.kind else {
        return node.reject(errors, "is not an object", "an object");
    };
    let bytes = prost::Message::encoded_len(&read);
    if bytes > MAX_BYTES {
        return node.reject(errors, &format!("has {bytes} bytes"), format!("at most {MAX_BYTES}"));
    }
    Some(read)
}

/// The value that a configuration would contain.
pub fn value_of(object: Struct) -> Value<'static> {
    let field = |(name, member): (String, Member)| (name.into(), value_of_member(member));
    Value::Object(object.fields.into_iter().map(field).collect())
}

/// Adds the fields of `other` that are missing, at all depths of objects.
pub fn add(object: &mut Struct, other: &Struct) {
    for (name, member) in &other.fields {
        match (object.fields.get_mut(name).map(|own| &mut own.kind), &member.kind) {
            (None, _) => drop(object.fields.insert(name.clone(), member.clone())),
            (Some(Some(Kind::StructValue(own))), Some(Kind::StructValue(other))) => add(own, other),
            (Some(_), _) => {}
        }
    }
}

fn value_of_member(member: Member) -> Value<'static> {
    match member.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::NumberValue(number)) => Value::Float(number),
        Some(Kind::StringValue(text)) => Value::Text(text.into()),
        Some(Kind::BoolValue(bool)) => Value::Bool(bool),
        Some(Kind::StructValue(object)) => value_of(object),
        Some(Kind::ListValue(list)) => Value::List(list.values.into_iter().map(value_of_member).collect()),
    }
}

fn member(node: &Node<'_>, levels: usize, errors: &mut Errors) -> Option<Member> {
    let Some(below) = levels.checked_sub(1) else {
        return node.reject(errors, "is nested too deep", format!("at most {MAX_DEPTH} levels of metadata"));
    };
    let kind = match node.value {
        Value::Null => Kind::NullValue(0),
        Value::Bool(bool) => Kind::BoolValue(*bool),
        // A protobuf number is a double.
        Value::Unsigned(number) => Kind::NumberValue(*number as f64),
        Value::Negative(number) => Kind::NumberValue(*number as f64),
        Value::Float(number) => Kind::NumberValue(*number),
        Value::Text(text) => Kind::StringValue(text.clone().into_owned()),
        Value::List(_) => {
            let read = |node: Node<'_>, errors: &mut Errors| member(&node, below, errors);
            Kind::ListValue(ListValue { values: node.list(0..=usize::MAX, "values", errors, read)? })
        }
        Value::Object(entries) => {
            let mut fields = BTreeMap::new();
            for (name, value) in entries {
                let node = Node { value, path: Path::Field(&node.path, name) };
                let member = member(&node, below, errors)?;
                if fields.insert(name.clone().into_owned(), member).is_some() {
                    return errors.reject(&node.path, "it is given twice", "one value");
                }
            }
            Kind::StructValue(Struct { fields })
        }
    };
    Some(Member { kind: Some(kind) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    fn read(json: &str) -> Result<Struct, String> {
        let value = Value::parse(json.as_bytes(), weir_core::fields::Bounds::OF_A_FILE).unwrap();
        let mut errors = Errors::keeping(3);
        let read = super::read(&Node::root("metadata", &value), &mut errors);
        errors.finish(read).map_err(|errors| errors.to_string())
    }

    #[test]
    fn a_value_survives_the_way_over_the_wire() {
        let json = r#"{"a": {"b": [1, 2.5, -3, "x", true, null]}, "c": {}}"#;
        let decoded = Struct::decode(read(json).unwrap().encode_to_vec().as_slice()).unwrap();
        assert_eq!(decoded, read(json).unwrap());
        let back = value_of(decoded.clone());
        assert_eq!(super::read(&Node::root("", &back), &mut Errors::keeping(1)), Some(decoded));
        // The bytes as another implementation writes them.
        let bytes = b"\x0a\x0a\x0a\x01k\x12\x05\x1a\x03abc";
        assert_eq!(Struct::decode(bytes.as_slice()).unwrap(), read(r#"{"k": "abc"}"#).unwrap());
    }

    #[test]
    fn deep_long_and_ambiguous_metadata_is_refused() {
        let deep = format!("{}1{}", r#"{"a":"#.repeat(20), "}".repeat(20));
        let long = format!(r#"{{"a": "{}"}}"#, "x".repeat(MAX_BYTES));
        for (json, expected) in [
            (deep.as_str(), "is nested too deep"),
            (&long, "bytes"),
            (r#"{"a": 1, "a": 2}"#, "a: it is given twice"),
            ("[]", "is not an object"),
        ] {
            let error = read(json).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
