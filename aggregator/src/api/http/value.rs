//! A JSON parser for requests: shallow, small, and borrowing from the input.
//!
//! Input that nests deeper or has more values than any valid request is refused while it is parsed, before it takes memory.

use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserializer, de};
use std::borrow::Cow;
use std::fmt;

/// Deepest nesting: a request, its checks, a check, its identifier, a part of the identifier.
const MAX_DEPTH: usize = 5;
/// Most fields of an object.
const MAX_FIELDS: usize = 32;
/// Most values of a list: more than any valid list has, so that the error can give the number.
const MAX_VALUES: usize = 256;

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value<'a> {
    Null,
    Bool(bool),
    Integer(u64),
    /// Negative, fractional, or above what a double represents exactly.
    OtherNumber,
    Text(Cow<'a, str>),
    List(Vec<Value<'a>>),
    Object(Vec<(Cow<'a, str>, Value<'a>)>),
}

impl<'a> Value<'a> {
    /// Parses a whole text.
    pub fn parse(json: &'a [u8]) -> Result<Value<'a>, serde_json::Error> {
        let mut reader = serde_json::Deserializer::from_slice(json);
        let value = Depth(MAX_DEPTH).deserialize(&mut reader)?;
        reader.end()?;
        Ok(value)
    }
}

/// The number of levels that remain.
#[derive(Clone, Copy)]
struct Depth(usize);

impl Depth {
    fn below<E: Error>(self) -> Result<Depth, E> {
        match self.0.checked_sub(1) {
            Some(0) | None => {
                Err(E::custom(format!("it nests deeper than the {MAX_DEPTH} levels of a request")))
            }
            Some(left) => Ok(Depth(left)),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Depth {
    type Value = Value<'de>;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value<'de>, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Depth {
    type Value = Value<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Value<'de>, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value<'de>, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Value<'de>, E> {
        Ok(Value::Integer(number))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Value<'de>, E> {
        Ok(u64::try_from(number).map_or(Value::OtherNumber, Value::Integer))
    }

    /// Some clients write `1.0` or `1e3` for whole numbers.
    fn visit_f64<E: Error>(self, number: f64) -> Result<Value<'de>, E> {
        const EXACT_UP_TO: f64 = 9_007_199_254_740_992.0;
        let whole = number.trunc() == number && (0.0..=EXACT_UP_TO).contains(&number);
        Ok(if whole { Value::Integer(number as u64) } else { Value::OtherNumber })
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value<'de>, E> {
        Ok(Value::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Value<'de>, E> {
        Ok(Value::Text(Cow::Borrowed(text)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value<'de>, A::Error> {
        let below = self.below()?;
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(below)? {
            if values.len() == MAX_VALUES {
                return Err(de::Error::custom(format!("a list holds more than {MAX_VALUES} values")));
            }
            values.push(value);
        }
        Ok(Value::List(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Value<'de>, A::Error> {
        let below = self.below()?;
        let mut fields = Vec::with_capacity(8);
        while let Some(name) = object.next_key_seed(Name)? {
            if fields.len() == MAX_FIELDS {
                return Err(de::Error::custom(format!("an object has more than {MAX_FIELDS} fields")));
            }
            fields.push((name, object.next_value_seed(below)?));
        }
        Ok(Value::Object(fields))
    }
}

/// A field's name, which is nearly always borrowed.
struct Name;

impl<'de> DeserializeSeed<'de> for Name {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Cow<'de, str>, D::Error> {
        reader.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Name {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field's name")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Owned(text.to_owned()))
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Borrowed(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fails(json: &str, part: &str) {
        let error = Value::parse(json.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(part), "{json:.60}: {error}");
    }

    #[test]
    fn values() {
        let text = |text: &'static str| Value::Text(text.into());
        for (json, expected) in [
            ("null", Value::Null),
            (" true ", Value::Bool(true)),
            ("18446744073709551615", Value::Integer(u64::MAX)),
            ("1e3", Value::Integer(1_000)),
            ("2.0", Value::Integer(2)),
            ("-0.0", Value::Integer(0)),
            ("-1", Value::OtherNumber),
            ("1.5", Value::OtherNumber),
            ("1e300", Value::OtherNumber),
            (r#""\u00e4""#, text("ä")),
            (r#"[1, "a"]"#, Value::List(vec![Value::Integer(1), text("a")])),
            (r#"{"a": null}"#, Value::Object(vec![("a".into(), Value::Null)])),
        ] {
            assert_eq!(Value::parse(json.as_bytes()).unwrap(), expected, "{json}");
        }
        assert!(matches!(Value::parse(b"\"a\""), Ok(Value::Text(Cow::Borrowed("a")))));
    }

    #[test]
    fn what_is_too_much_is_refused_while_it_is_read() {
        fails("", "EOF");
        fails("{} x", "trailing");
        fails(r#""\ud800""#, "hex escape");
        fails(&"[".repeat(100_000), "nests deeper");
        fails(&r#"{"a":"#.repeat(100_000), "nests deeper");
        fails(&format!("[{}1]", "1,".repeat(MAX_VALUES)), "more than 256 values");
        fails(&format!("{{{}\"z\": 1}}", r#""a": 1,"#.repeat(MAX_FIELDS)), "more than 32 fields");
        assert!(Value::parse(b"\"\xff\"").is_err());
        assert!(Value::parse(br#"{"checks": [{"identifier": ["a"]}]}"#).is_ok());
    }
}
