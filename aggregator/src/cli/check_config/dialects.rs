//! YAML as Envoy and Kubernetes read it, whose scalars without quotes mean different things.
//!
//! Envoy (yaml-cpp) reads `yes` and `on` as booleans and `010` as octal, passes whole numbers of more than 32 bits on as
//! strings, and all other numbers in the author's spelling. Kubernetes' tools read the same booleans, and all numbers.

use granit_parser::{Event, Parser, ScalarStyle, StrInput, Tag};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use weir_core::fields::{Bounds, Value};

const BOUNDS: Bounds = Bounds::OF_A_FILE;
/// The booleans of YAML 1.1.
const BOOLEANS: [(&str, bool); 8] = [
    ("true", true),
    ("false", false),
    ("yes", true),
    ("no", false),
    ("on", true),
    ("off", false),
    ("y", true),
    ("n", false),
];

/// Whose reading of plain scalars applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Envoy's.
    Envoy,
    /// That of the tools which turn manifests into JSON.
    Kubernetes,
}

/// All documents of a text. Returns the first error, with its place.
pub fn documents(text: &str, dialect: Dialect) -> Result<Vec<Value<'_>>, String> {
    let mut reader =
        Reader { events: Parser::new_from_str(text), dialect, anchors: HashMap::new(), left: BOUNDS.bytes };
    let mut documents = Vec::new();
    loop {
        match reader.next()? {
            Event::StreamEnd => return Ok(documents),
            node if node.is_node() => documents.push(reader.value(node, BOUNDS.depth)?),
            _ => {}
        }
    }
}

/// A field of an object.
type Field<'a> = (Cow<'a, str>, Value<'a>);

/// The fields of an object, with those that it merges from others by `<<` below its own ones.
fn merged(fields: Vec<Field<'_>>) -> Result<Vec<Field<'_>>, String> {
    let (merges, mut own): (Vec<_>, Vec<_>) = fields.into_iter().partition(|(name, _)| name == "<<");
    if merges.is_empty() {
        return Ok(own);
    }
    let mut names: HashSet<Cow<'_, str>> = own.iter().map(|(name, _)| name.clone()).collect();
    for (_, value) in merges {
        let objects = match value {
            Value::List(items) => items,
            one => vec![one],
        };
        for object in objects {
            let Value::Object(fields) = object else { return Err("<< merges what is no object".to_owned()) };
            own.extend(fields.into_iter().filter(|(name, _)| names.insert(name.clone())));
        }
    }
    Ok(own)
}

struct Reader<'a> {
    events: Parser<'a, StrInput<'a>>,
    dialect: Dialect,
    /// Values that aliases may repeat, each with the bytes that it takes.
    anchors: HashMap<usize, (Value<'a>, usize)>,
    /// Bytes that further values may take.
    left: usize,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<Event<'a>, String> {
        match self.events.next_event() {
            Some(Ok((event, _))) => Ok(event),
            Some(Err(error)) => Err(error.to_string()),
            None => Ok(Event::StreamEnd),
        }
    }

    /// The next event of a list or an object; `None` at its end.
    fn child(&mut self) -> Result<Option<Event<'a>>, String> {
        loop {
            match self.next()? {
                Event::SequenceEnd | Event::MappingEnd => return Ok(None),
                Event::StreamEnd => return Err("it ends too early".to_owned()),
                node if node.is_node() => return Ok(Some(node)),
                _ => {}
            }
        }
    }

    fn take(&mut self, bytes: usize) -> Result<(), String> {
        let left = self.left.checked_sub(bytes);
        let too_many = || format!("its values take more than {} bytes, repeated ones included", BOUNDS.bytes);
        self.left = left.ok_or_else(too_many)?;
        Ok(())
    }

    /// The value that begins with an event and may nest `levels`.
    fn value(&mut self, event: Event<'a>, levels: usize) -> Result<Value<'a>, String> {
        let below = levels.saturating_sub(1);
        if below == 0 {
            return Err(format!("it nests deeper than {} levels", BOUNDS.depth));
        }
        let anchor = event.anchor_id();
        let before = self.left;
        self.take(size_of::<(Cow<'_, str>, Value<'_>)>())?;
        let value = match event {
            Event::Alias(anchor) => {
                let repeated = self.anchors.get(&anchor).map(|(_, bytes)| *bytes);
                self.take(repeated.ok_or("an alias stands in what it repeats")?)?;
                self.anchors.get(&anchor).map_or(Value::Null, |(value, _)| value.clone())
            }
            Event::SequenceStart(..) => {
                let mut items = Vec::new();
                while let Some(item) = self.child()? {
                    items.push(self.value(item, below)?);
                }
                Value::List(items)
            }
            Event::MappingStart(..) => {
                let mut fields = Vec::new();
                while let Some(name) = self.child()? {
                    let Event::Scalar(name, ..) = name else {
                        return Err("a field's name is a list, an object or an alias".to_owned());
                    };
                    self.take(name.len())?;
                    let value = self.child()?.ok_or("a field has no value")?;
                    fields.push((name, self.value(value, below)?));
                }
                Value::Object(match self.dialect {
                    Dialect::Kubernetes => merged(fields)?,
                    Dialect::Envoy => fields,
                })
            }
            Event::Scalar(text, style, _, tag) => {
                self.take(text.len())?;
                match style {
                    ScalarStyle::Plain => self.dialect.resolve(text, tag.as_deref()),
                    _ => Value::Text(text),
                }
            }
            _ => Value::Null,
        };
        if let Some(anchor) = anchor {
            let bytes = before.saturating_sub(self.left);
            self.take(bytes)?;
            self.anchors.insert(anchor, (value.clone(), bytes));
        }
        Ok(value)
    }
}

impl Dialect {
    /// What a scalar without quotes means.
    fn resolve<'a>(self, text: Cow<'a, str>, tag: Option<&Tag>) -> Value<'a> {
        let is_text = tag.is_some_and(|tag| tag.is_yaml_core_schema_tag("str"));
        if self == Dialect::Kubernetes && is_text {
            return Value::Text(text);
        }
        if matches!(&*text, "" | "~" | "null" | "Null" | "NULL") {
            return Value::Null;
        }
        if let Some((_, value)) = BOOLEANS.iter().find(|(word, _)| is_flexibly(&text, word)) {
            return Value::Bool(*value);
        }
        let number = match self {
            Dialect::Envoy => of_envoy(&text),
            Dialect::Kubernetes => of_kubernetes(&text.replace('_', "")),
        };
        number.unwrap_or(Value::Text(text))
    }
}

/// Whether a text is a word in lower case, in capitals, or with a capital first.
fn is_flexibly(text: &str, word: &str) -> bool {
    let capital_first =
        || text.get(1..) == word.get(1..) && text.get(..1) == Some(&word[..1].to_ascii_uppercase());
    text == word || text == word.to_ascii_uppercase() || capital_first()
}

/// A whole number, as a string if it takes more than 32 bits.
fn of_envoy(text: &str) -> Option<Value<'static>> {
    let number = i64::try_from(integer(text, &[("0x", 16), ("0X", 16), ("0", 8)])?).ok()?;
    match i32::try_from(number) {
        Ok(_) => Some(whole(number.into())),
        Err(_) => Some(Value::Text(number.to_string().into())),
    }
}

fn of_kubernetes(text: &str) -> Option<Value<'static>> {
    const PREFIXES: [(&str, u32); 7] =
        [("0x", 16), ("0X", 16), ("0o", 8), ("0O", 8), ("0b", 2), ("0B", 2), ("0", 8)];
    if let Some(number) = integer(text, &PREFIXES).filter(|number| u64::try_from(number.abs()).is_ok()) {
        return Some(whole(number));
    }
    let is_number = text.bytes().any(|byte| byte.is_ascii_digit())
        && text.bytes().all(|byte| byte.is_ascii_digit() || b".eE+-".contains(&byte));
    text.parse().ok().filter(|_| is_number).map(Value::Float)
}

/// A whole number with a sign and a base.
fn integer(text: &str, prefixes: &[(&str, u32)]) -> Option<i128> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let based = prefixes.iter().find_map(|(prefix, base)| {
        digits.strip_prefix(prefix).filter(|digits| !digits.is_empty()).map(|digits| (digits, *base))
    });
    let (digits, base) = based.unwrap_or((digits, 10));
    let plain = !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(base));
    i128::from_str_radix(digits, base).ok().filter(|_| plain)?.checked_mul(sign)
}

fn whole(number: i128) -> Value<'static> {
    match (u64::try_from(number), i64::try_from(number)) {
        (Ok(number), _) => Value::Unsigned(number),
        (_, Ok(number)) => Value::Negative(number),
        _ => Value::Float(number as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str, dialect: Dialect) -> Value<'_> {
        documents(text, dialect).unwrap().remove(0)
    }

    #[test]
    fn scalars_without_quotes() {
        let text = |text: &'static str| Value::Text(text.into());
        let number = Value::Unsigned;
        for (written, envoy, kubernetes) in [
            ("~", Value::Null, Value::Null),
            ("yes", Value::Bool(true), Value::Bool(true)),
            ("OFF", Value::Bool(false), Value::Bool(false)),
            ("No", Value::Bool(false), Value::Bool(false)),
            ("nO", text("nO"), text("nO")),
            ("\"yes\"", text("yes"), text("yes")),
            ("'1'", text("1"), text("1")),
            ("100", number(100), number(100)),
            ("+100", number(100), number(100)),
            ("-1", Value::Negative(-1), Value::Negative(-1)),
            ("010", number(8), number(8)),
            ("08", text("08"), Value::Float(8.0)),
            ("0x1f", number(31), number(31)),
            ("0o17", text("0o17"), number(15)),
            ("1_000", text("1_000"), number(1_000)),
            ("2147483647", number(2_147_483_647), number(2_147_483_647)),
            ("2147483648", text("2147483648"), number(2_147_483_648)),
            ("18446744073709551615", text("18446744073709551615"), number(u64::MAX)),
            ("12.34", text("12.34"), Value::Float(12.34)),
            ("100.0", text("100.0"), Value::Float(100.0)),
            ("1e2", text("1e2"), Value::Float(100.0)),
            ("1h", text("1h"), text("1h")),
            ("!!str 5", number(5), text("5")),
        ] {
            assert_eq!(one(written, Dialect::Envoy), envoy, "{written}");
            assert_eq!(one(written, Dialect::Kubernetes), kubernetes, "{written}");
        }
    }

    #[test]
    fn manifests_merge_fields_as_kubernetes_tools_do() {
        let text = "a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: {<<: [*a, {z: 4}]}\n";
        let shown = |dialect| format!("{:?}", documents(text, dialect).unwrap());
        let merged = "a: {x: 1, y: 2}\nb: {y: 3, x: 1}\nc: {x: 1, y: 2, z: 4}\n";
        let expected = format!("{:?}", documents(merged, Dialect::Kubernetes).unwrap());
        assert_eq!(shown(Dialect::Kubernetes), expected);
        assert!(shown(Dialect::Envoy).contains("<<"), "Envoy merges nothing");
        assert!(documents("{<<: 5}", Dialect::Kubernetes).is_err());
    }

    #[test]
    fn what_repeats_or_nests_beyond_bounds_is_refused() {
        let refused = |text: &str| documents(text, Dialect::Envoy).unwrap_err();
        let repeated = |times: usize| {
            format!("a: &a {}\nb: [{}]\n", "x".repeat(1_000_000), vec!["*a"; times].join(", "))
        };
        assert!(documents(&repeated(100), Dialect::Envoy).is_ok());
        assert!(refused(&repeated(2_000)).contains("repeated ones included"));
        let bomb = (1..64).fold("- &a0 [x, x]\n".to_owned(), |text, level| {
            format!("{text}- &a{level} [*a{0}, *a{0}]\n", level - 1)
        });
        assert!(refused(&bomb).contains("repeated ones included"));
        for deep in ["[".repeat(200_000), "- ".repeat(200_000), "{a: ".repeat(200_000), "? ".repeat(200_000)]
        {
            refused(&deep);
        }
        assert!(refused("a: &a [*a]\n").contains("alias"));
        assert!(refused("? [a]\n: b\n").contains("name"));
        let many = documents("a: &x {b: 1, b: 2}\n---\n- *x\n", Dialect::Envoy);
        assert!(many.is_err(), "anchors end with their document");
        assert_eq!(documents("a: 1\n---\n# nothing\n---\nb: 2\n", Dialect::Envoy).unwrap().len(), 3);
    }
}
