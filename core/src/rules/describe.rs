//! Pieces of JSON Schema, for the configuration's.

use crate::fields::reader::{HEADER_NAME_BYTES_MAX, NAME_BYTES_MAX};
use crate::fields::{Span, written};
use alloc::format;
use alloc::string::ToString;
use core::ops::RangeInclusive;
use serde_json::{Map, Value, json};

pub(super) fn object(fields: &[&str], required: &[&str], of: impl Fn(&str) -> Value) -> Value {
    let properties: Map<_, _> = fields.iter().map(|name| (name.to_string(), of(name))).collect();
    let mut schema = json!({ "type": "object", "properties": properties, "additionalProperties": false });
    if !required.is_empty() {
        extend(&mut schema, json!({ "required": required }));
    }
    schema
}

/// An object with exactly one of the fields `kinds`.
pub(super) fn one_of(kinds: &[&str], mut object: Value) -> Value {
    extend(&mut object, json!({ "oneOf": required_each(kinds.iter().copied()) }));
    object
}

pub(super) fn required_each<'a>(names: impl IntoIterator<Item = &'a str>) -> Value {
    names.into_iter().map(|name| json!({ "required": [name] })).collect()
}

pub(super) fn any_of<const N: usize>(schemas: [Value; N]) -> Value {
    json!({ "anyOf": Value::from_iter(schemas) })
}

pub(super) fn list(item: Value, count: RangeInclusive<usize>) -> Value {
    json!({ "type": "array", "items": item, "minItems": count.start(), "maxItems": count.end() })
}

pub(super) fn one_or_list(item: Value, most: usize) -> Value {
    any_of([item.clone(), list(item, 1..=most)])
}

pub(super) fn boolean() -> Value {
    json!({ "type": "boolean" })
}

/// A number with a point or an exponent, of which Envoy's YAML reader makes a string.
pub(super) const DECIMAL: &str = "^[0-9+-]*[.eE][0-9.eE+-]*$";
/// Such a number, or a whole one of more than 32 bits.
const DECIMAL_OR_LARGE: &str = "^([0-9+-]*[.eE][0-9.eE+-]*|[0-9]{10,})$";

pub(super) fn number_text(pattern: &str) -> Value {
    json!({ "type": "string", "pattern": pattern })
}

/// A whole number, or the string that Envoy's YAML reader makes of it.
pub(super) fn integer(range: RangeInclusive<u64>) -> Value {
    let number = json!({ "type": "integer", "minimum": range.start(), "maximum": range.end() });
    let is_large = *range.end() > i32::MAX as u64;
    any_of([number, number_text(if is_large { DECIMAL_OR_LARGE } else { DECIMAL })])
}

pub(super) fn duration(span: &Span) -> Value {
    let text = json!({ "type": "string", "pattern": "^[0-9]+(ms|s|m|h|d)$" });
    let mut schema = any_of([text, integer(span.min_ms..=span.max_ms)]);
    let (min, max) = (written(span.min_ms), written(span.max_ms));
    extend(
        &mut schema,
        json!({ "description": format!("A duration from {min} to {max}, or milliseconds.") }),
    );
    schema
}

pub(super) fn text(most: usize) -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": most })
}

pub(super) fn visible(length: RangeInclusive<usize>) -> Value {
    json!({ "type": "string", "pattern": "^[!-~]+$", "minLength": length.start(), "maxLength": length.end() })
}

pub(super) fn secret(bytes: &RangeInclusive<usize>) -> Value {
    visible(bytes.clone())
}

pub(super) fn name() -> Value {
    json!({ "type": "string", "pattern": "^[A-Za-z0-9_.-]+$", "maxLength": NAME_BYTES_MAX })
}

pub(super) fn header_name() -> Value {
    let pattern = "^:?[!#$%&'*+.^_`|~0-9A-Za-z-]+$";
    json!({ "type": "string", "pattern": pattern, "maxLength": HEADER_NAME_BYTES_MAX })
}

pub(super) fn words<T>(words: &[(&str, T)]) -> Value {
    let names: Value = words.iter().map(|(name, _)| Value::from(*name)).collect();
    json!({ "enum": names })
}

/// Adds the fields of `more`.
pub(super) fn extend(schema: &mut Value, more: Value) {
    if let (Value::Object(fields), Value::Object(more)) = (schema, more) {
        fields.extend(more);
    }
}
