//! A tree of values that keeps what `serde_json::Value` drops: repeated fields and the order of fields.
//!
//! A field given twice is most often a limit that its author assumes to be in force, so it must be detected.

use alloc::borrow::Cow;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::cell::Cell;
use core::fmt;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Strings are shortened to this many characters when an error quotes them.
pub const QUOTED_CHARS_MAX: usize = 64;

/// A value; texts are borrowed from the input where it allows that.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number of at least 0.
    Unsigned(u64),
    /// A whole number below 0.
    Negative(i64),
    /// Any other number.
    Float(f64),
    /// A string.
    Text(Cow<'a, str>),
    /// A list.
    List(Vec<Value<'a>>),
    /// An object: names and values in the order of the text.
    Object(Vec<(Cow<'a, str>, Value<'a>)>),
}

/// Bounds of a text. A text beyond them is refused while it is parsed, before it takes memory.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Deepest nesting, counting the whole value and its innermost values.
    pub depth: usize,
    /// Most fields of an object.
    pub fields: usize,
    /// Most values of a list.
    pub values: usize,
    /// Most bytes of all values together. YAML may repeat a text by a few bytes.
    pub bytes: usize,
}

impl Bounds {
    /// For texts whose length is already bounded. Parsers end at this depth by themselves.
    pub const OF_A_FILE: Bounds =
        Bounds { depth: 128, fields: usize::MAX, values: usize::MAX, bytes: 128 * 1024 * 1024 };
}

impl<'a> Value<'a> {
    /// The value without what JSON's values have not: of a field that is given twice the last value is kept.
    pub fn to_json(&self) -> serde_json::Value {
        match self {
            Value::Null => serde_json::Value::Null,
            Value::Bool(value) => (*value).into(),
            Value::Unsigned(value) => (*value).into(),
            Value::Negative(value) => (*value).into(),
            Value::Float(value) => (*value).into(),
            Value::Text(text) => text.as_ref().into(),
            Value::List(items) => items.iter().map(Value::to_json).collect(),
            Value::Object(fields) => {
                fields.iter().map(|(name, value)| (name.to_string(), value.to_json())).collect()
            }
        }
    }

    /// Parses one JSON text with nothing after it.
    pub fn parse(json: &'a [u8], bounds: Bounds) -> Result<Value<'a>, serde_json::Error> {
        let mut reader = serde_json::Deserializer::from_slice(json);
        let bytes = Cell::new(bounds.bytes);
        let value = Level { bounds, left: bounds.depth, bytes: &bytes }.deserialize(&mut reader)?;
        reader.end()?;
        Ok(value)
    }

    /// The value as shown in an error.
    pub fn describe(&self) -> String {
        match self {
            Value::Null => "null".to_string(),
            Value::Bool(value) => value.to_string(),
            Value::Unsigned(value) => value.to_string(),
            Value::Negative(value) => value.to_string(),
            Value::Float(value) => value.to_string(),
            Value::Text(value) => quoted(value),
            Value::List(_) => "a list".to_string(),
            Value::Object(_) => "an object".to_string(),
        }
    }

    /// The value as a whole number. A protobuf `Struct` carries every number as a double, so that 100 may arrive as
    /// `100.0` or `1e2`; doubles without a fraction are accepted. Protobuf's JSON mapping, and Envoy's YAML parser, write an
    /// integer of more than 32 bits as a string, so quoted digits are accepted from that size on.
    pub fn as_integer(&self) -> Option<u64> {
        match *self {
            Value::Unsigned(value) => Some(value),
            Value::Text(ref text) if text.bytes().all(|byte| byte.is_ascii_digit()) => {
                text.parse().ok().filter(|value| *value > i32::MAX as u64)
            }
            _ => self.as_decimal().and_then(whole),
        }
    }

    /// The value as a number with a point or an exponent. Envoy's YAML parser writes such a number as a string, in the
    /// author's spelling.
    pub fn as_decimal(&self) -> Option<f64> {
        match self {
            Value::Float(value) => Some(*value),
            Value::Text(text) if text.bytes().any(|byte| b".eE".contains(&byte)) => {
                let is_number = text.bytes().all(|byte| byte.is_ascii_digit() || b".eE+-".contains(&byte));
                text.parse().ok().filter(|_| is_number)
            }
            _ => None,
        }
    }
}

/// A double as a whole number of at least 0.
fn whole(value: f64) -> Option<u64> {
    const TWO_TO_THE_64: f64 = 18_446_744_073_709_551_616.0;
    let whole = value as u64;
    ((0.0..TWO_TO_THE_64).contains(&value) && whole as f64 == value).then_some(whole)
}

/// `text` in quotes, escaped and shortened.
pub fn quoted(text: &str) -> String {
    let mut shown: String = text.chars().take(QUOTED_CHARS_MAX).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    format!("{shown:?}")
}

/// Reads a value that may nest `left` levels.
#[derive(Clone, Copy)]
struct Level<'b> {
    bounds: Bounds,
    left: usize,
    /// What is left of [`Bounds::bytes`].
    bytes: &'b Cell<usize>,
}

/// Least room of a list or an object that is not empty, in values. Most have no more.
const LEAST_ROOM: usize = 4;

impl Level<'_> {
    /// Makes room for one more, and counts what that takes.
    fn grow<T, E: Error>(self, list: &mut Vec<T>) -> Result<(), E> {
        if list.len() < list.capacity() {
            return Ok(());
        }
        let more = list.len().max(LEAST_ROOM);
        self.take(more.saturating_mul(size_of::<T>()))?;
        list.reserve_exact(more);
        Ok(())
    }

    /// Counts this many bytes.
    fn take<E: Error>(self, bytes: usize) -> Result<(), E> {
        let left = self.bytes.get().checked_sub(bytes);
        self.bytes.set(left.ok_or_else(|| {
            E::custom(format!(
                "its values take more than {} bytes, repeated ones included",
                self.bounds.bytes
            ))
        })?);
        Ok(())
    }

    fn below<E: Error>(self) -> Result<Self, E> {
        match self.left.checked_sub(1) {
            Some(0) | None => Err(E::custom(format!("it nests deeper than {} levels", self.bounds.depth))),
            Some(left) => Ok(Level { left, ..self }),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Level<'_> {
    type Value = Value<'de>;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value<'de>, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Level<'_> {
    type Value = Value<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value<'de>, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value<'de>, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value<'de>, E> {
        Ok(Value::Unsigned(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value<'de>, E> {
        Ok(u64::try_from(value).map_or(Value::Negative(value), Value::Unsigned))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value<'de>, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value<'de>, E> {
        self.take(value.len())?;
        Ok(Value::Text(Cow::Owned(value.to_string())))
    }

    fn visit_borrowed_str<E: Error>(self, value: &'de str) -> Result<Value<'de>, E> {
        // It takes no memory here, but its copies do.
        self.take(value.len())?;
        Ok(Value::Text(Cow::Borrowed(value)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value<'de>, A::Error> {
        let below = self.below()?;
        let mut list = Vec::new();
        while let Some(item) = access.next_element_seed(below)? {
            if list.len() == self.bounds.values {
                return Err(A::Error::custom(format!(
                    "a list holds more than {} values",
                    self.bounds.values
                )));
            }
            self.grow(&mut list)?;
            list.push(item);
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value<'de>, A::Error> {
        let below = self.below()?;
        let mut object = Vec::new();
        while let Some(name) = access.next_key_seed(Name)? {
            if object.len() == self.bounds.fields {
                return Err(A::Error::custom(format!(
                    "an object has more than {} fields",
                    self.bounds.fields
                )));
            }
            self.take(name.len())?;
            let value = access.next_value_seed(below)?;
            self.grow(&mut object)?;
            object.push((name, value));
        }
        Ok(Value::Object(object))
    }
}

/// Reads a field's name, borrowed where the input allows that.
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

    fn visit_str<E>(self, text: &str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Owned(text.to_string()))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Borrowed(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    const SMALL: Bounds = Bounds { depth: 5, fields: 32, values: 256, bytes: 64 * 1024 };

    #[test]
    fn values_of_all_kinds() {
        let text = |text: &'static str| Value::Text(text.into());
        for (json, expected) in [
            ("null", Value::Null),
            (" true ", Value::Bool(true)),
            ("18446744073709551615", Value::Unsigned(u64::MAX)),
            ("-1", Value::Negative(-1)),
            ("1.5", Value::Float(1.5)),
            (r#""\u00e4""#, text("ä")),
            (r#"[1, "a"]"#, Value::List(vec![Value::Unsigned(1), text("a")])),
            (r#"{"a": null}"#, Value::Object(vec![("a".into(), Value::Null)])),
        ] {
            assert_eq!(Value::parse(json.as_bytes(), SMALL).unwrap(), expected, "{json}");
        }
        assert!(matches!(Value::parse(b"\"a\"", SMALL), Ok(Value::Text(Cow::Borrowed("a")))));
    }

    #[test]
    fn texts_beyond_the_bounds_are_refused_while_they_are_parsed() {
        for (json, part) in [
            (String::new(), "EOF"),
            ("{} x".into(), "trailing"),
            (r#""\ud800""#.into(), "hex escape"),
            ("[".repeat(100_000), "nests deeper than 5 levels"),
            (r#"{"a":"#.repeat(100_000), "nests deeper"),
            (format!("[{}1]", "1,".repeat(256)), "more than 256 values"),
            (format!("[{:?}, {:?}]", "x".repeat(40_000), "x".repeat(40_000)), "more than 65536 bytes"),
            (format!("{{{}\"z\": 1}}", r#""a": 1,"#.repeat(32)), "more than 32 fields"),
        ] {
            let error = Value::parse(json.as_bytes(), SMALL).unwrap_err().to_string();
            assert!(error.contains(part), "{json:.60}: {error}");
        }
        assert!(Value::parse(b"\"\xff\"", SMALL).is_err());
        assert!(Value::parse(br#"{"checks": [{"identifier": ["a"]}]}"#, SMALL).is_ok());
        assert!(Value::parse("[".repeat(100_000).as_bytes(), Bounds::OF_A_FILE).is_err());
    }

    /// The memory that a value takes beside itself.
    fn held(value: &Value<'_>) -> usize {
        match value {
            Value::Text(Cow::Owned(text)) => text.len(),
            Value::List(list) => {
                list.capacity() * size_of::<Value<'_>>() + list.iter().map(held).sum::<usize>()
            }
            Value::Object(object) => {
                let fields = object.iter().map(|(_, value)| held(value)).sum::<usize>();
                object.capacity() * size_of::<(Cow<'_, str>, Value<'_>)>() + fields
            }
            _ => 0,
        }
    }

    #[test]
    fn values_take_no_more_memory_than_is_counted() {
        for json in [
            format!("[{}{{}}]", "{},".repeat(10_000)),
            format!("[{}[]]", r#"{"a":1},"#.repeat(10_000)),
            format!("[{}[]]", "[[]],".repeat(10_000)),
            format!("{{{}\"z\":1}}", r#""a":[{"b":[0]}],"#.repeat(10_000)),
            format!("[{}0]", r#""a\u00e4","#.repeat(10_000)),
        ] {
            let value = Value::parse(json.as_bytes(), Bounds::OF_A_FILE).unwrap();
            let bounds = Bounds { bytes: held(&value) - 1, ..Bounds::OF_A_FILE };
            assert!(Value::parse(json.as_bytes(), bounds).is_err(), "{json:.40} takes {}", held(&value));
        }
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
            ("\"100.0\"", Some(100)),
            ("\"1e2\"", Some(100)),
            ("\"1E+2\"", Some(100)),
            ("\"12.34\"", None),
            ("\"-1.0\"", None),
            ("\"1e\"", None),
            ("\"e\"", None),
            ("\"1e400\"", None),
            ("\"1 e2\"", None),
            ("\"infinite\"", None),
            ("\"\"", None),
            ("null", None),
        ] {
            let value = Value::parse(text.as_bytes(), SMALL).unwrap();
            assert_eq!(value.as_integer(), expected, "{text}");
        }
    }

    #[test]
    fn long_strings_are_shortened_when_quoted() {
        let text = "é".repeat(100);
        assert_eq!(quoted(&text).chars().count(), QUOTED_CHARS_MAX + 3);
        assert_eq!(quoted("a\"\n"), "\"a\\\"\\n\"");
    }
}
