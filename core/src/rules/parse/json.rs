//! A JSON tree that keeps what `serde_json::Value` drops: repeated fields and the order of fields.
//!
//! A field given twice is most often a limit that its author assumes to be in force, so it must be detected.

use super::errors::{Errors, Path};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// Strings are shortened to this many characters when an error quotes them.
const QUOTED_CHARS_MAX: usize = 64;

#[derive(Clone, Debug, PartialEq)]
pub(in crate::rules) enum Json {
    Null,
    Bool(bool),
    Unsigned(u64),
    Negative(i64),
    Float(f64),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Parses one JSON text with nothing after it. A syntax error is reported with line and column.
    pub fn parse(text: &[u8], errors: &mut Errors) -> Option<Json> {
        if text.iter().all(u8::is_ascii_whitespace) {
            return errors.reject(&Path::Root, "it is empty", "a JSON object");
        }
        let mut reader = serde_json::Deserializer::from_slice(text);
        let parsed = Json::deserialize(&mut reader).and_then(|json| reader.end().map(|()| json));
        match parsed {
            Ok(json) => Some(json),
            Err(error) => {
                let (line, column) = (error.line(), error.column());
                let message = error.to_string();
                let message =
                    message.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&message);
                let problem = format!("not JSON at line {line}, column {column}: {message}");
                errors.reject(&Path::Root, problem, "a JSON object")
            }
        }
    }

    /// The value as shown in an error.
    pub fn describe(&self) -> String {
        match self {
            Json::Null => "null".to_string(),
            Json::Bool(value) => value.to_string(),
            Json::Unsigned(value) => value.to_string(),
            Json::Negative(value) => value.to_string(),
            Json::Float(value) => value.to_string(),
            Json::Text(value) => quoted(value),
            Json::List(_) => "a list".to_string(),
            Json::Object(_) => "an object".to_string(),
        }
    }

    /// The value as a whole number. A protobuf `Struct` carries every number as a double, so that 100 may arrive as
    /// `100.0` or `1e2`; doubles without a fraction are accepted. Envoy's YAML parser turns an integer of more than 32
    /// bits into a string, so quoted digits are accepted from that size on.
    pub fn as_integer(&self) -> Option<u64> {
        const TWO_TO_THE_64: f64 = 18_446_744_073_709_551_616.0;
        match *self {
            Json::Unsigned(value) => Some(value),
            Json::Text(ref text) if text.bytes().all(|byte| byte.is_ascii_digit()) => {
                text.parse().ok().filter(|value| *value > i32::MAX as u64)
            }
            Json::Float(value) if (0.0..TWO_TO_THE_64).contains(&value) => {
                let whole = value as u64;
                (whole as f64 == value).then_some(whole)
            }
            _ => None,
        }
    }
}

/// `text` in quotes, escaped and shortened.
pub(in crate::rules) fn quoted(text: &str) -> String {
    let mut shown: String = text.chars().take(QUOTED_CHARS_MAX).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    format!("{shown:?}")
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Unsigned(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(u64::try_from(value).map_or(Json::Negative(value), Json::Unsigned))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(Json::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::Text(value.to_string()))
    }

    fn visit_string<E>(self, value: String) -> Result<Json, E> {
        Ok(Json::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = access.next_element()? {
            list.push(item);
        }
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Json, A::Error> {
        let mut object = Vec::new();
        while let Some(entry) = access.next_entry()? {
            object.push(entry);
        }
        Ok(Json::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Option<u64>) {
        let json = Json::parse(text.as_bytes(), &mut Errors::default()).unwrap();
        assert_eq!(json.as_integer(), expected, "{text}");
    }

    #[test]
    fn whole_doubles_are_integers() {
        for (text, expected) in [
            ("0", Some(0)),
            ("100", Some(100)),
            ("100.0", Some(100)),
            ("1e2", Some(100)),
            ("-0.0", Some(0)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("1e19", Some(10_000_000_000_000_000_000)),
            ("1e300", None),
            ("1.5", None),
            ("-1", None),
            ("-1.0", None),
            ("\"1\"", None),
            ("\"2147483647\"", None),
            ("\"2147483648\"", Some(2_147_483_648)),
            ("\"18446744073709551615\"", Some(u64::MAX)),
            ("\"18446744073709551616\"", None),
            ("\"+3000000000\"", None),
            ("\"\"", None),
            ("null", None),
        ] {
            check(text, expected);
        }
    }

    #[test]
    fn long_strings_are_shortened_when_quoted() {
        let text = "é".repeat(100);
        assert_eq!(quoted(&text).chars().count(), QUOTED_CHARS_MAX + 3);
        assert_eq!(quoted("a\"\n"), "\"a\\\"\\n\"");
    }
}
