//! Writes a value as YAML that Envoy and Kubernetes' tools read as the same value.

use super::{Dialect, Value};
use alloc::borrow::Cow;
use alloc::format;
use alloc::string::{String, ToString};
use granit_parser::ScalarStyle;

/// Spaces of a level.
const STEP: usize = 2;

/// A value as a text with a field or an item on each line. It ends with a line break.
pub fn write(value: &Value<'_>) -> String {
    let mut text = String::new();
    write_at(value, 0, &mut text);
    text
}

/// Writes from the present column of a line, with further lines behind `indent` spaces.
fn write_at(value: &Value<'_>, indent: usize, text: &mut String) {
    match value {
        Value::List(items) if !items.is_empty() => {
            for (number, item) in items.iter().enumerate() {
                begin(number, indent, text);
                text.push_str("- ");
                write_at(item, indent.saturating_add(STEP), text);
            }
        }
        Value::Object(fields) if !fields.is_empty() => {
            for (number, (name, value)) in fields.iter().enumerate() {
                begin(number, indent, text);
                text.push_str(&quoted(name));
                text.push(':');
                let below = match value {
                    // Items stand below the name of their list.
                    Value::List(items) if !items.is_empty() => Some(indent),
                    Value::Object(fields) if !fields.is_empty() => Some(indent.saturating_add(STEP)),
                    _ => None,
                };
                match below {
                    Some(indent) => {
                        text.push('\n');
                        begin(1, indent, text);
                        write_at(value, indent, text);
                    }
                    None => {
                        text.push(' ');
                        write_at(value, indent, text);
                    }
                }
            }
        }
        scalar => {
            text.push_str(&written(scalar));
            text.push('\n');
        }
    }
}

/// Indents a line. The first field or item stands where its parent left off.
fn begin(number: usize, indent: usize, text: &mut String) {
    if number > 0 {
        text.extend(core::iter::repeat_n(' ', indent));
    }
}

fn written(scalar: &Value<'_>) -> Cow<'static, str> {
    match scalar {
        Value::Null => "null".into(),
        Value::Bool(value) => value.to_string().into(),
        Value::Unsigned(value) => value.to_string().into(),
        Value::Negative(value) => value.to_string().into(),
        Value::Float(value) => value.to_string().into(),
        Value::Text(value) => quoted(value).into(),
        Value::List(_) => "[]".into(),
        Value::Object(_) => "{}".into(),
    }
}

/// A text in quotes if any reader would take it for something else.
fn quoted(text: &str) -> String {
    let is_text = |dialect: Dialect| matches!(dialect.resolve(text.into(), ScalarStyle::Plain, None), Value::Text(read) if read == text);
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"_./-".contains(&byte);
    let begins =
        text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric() || b"_/".contains(&byte));
    if begins && text.bytes().all(is_word) && is_text(Dialect::Envoy) && is_text(Dialect::Kubernetes) {
        return text.to_string();
    }
    let is_hidden = |char: char| char.is_control() || ['\u{2028}', '\u{2029}', '\u{feff}'].contains(&char);
    if !text.contains(is_hidden) {
        return format!("'{}'", text.replace('\'', "''"));
    }
    let escaped = text.chars().map(|char| match char {
        '"' | '\\' => format!("\\{char}"),
        '\n' => "\\n".to_string(),
        '\t' => "\\t".to_string(),
        char if is_hidden(char) => format!("\\u{:04x}", u32::from(char)),
        char => char.to_string(),
    });
    format!("\"{}\"", escaped.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::super::documents;
    use super::*;
    use crate::fields::Bounds;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn value(json: &str) -> Value<'_> {
        Value::parse(json.as_bytes(), Bounds::OF_A_FILE).unwrap()
    }

    #[test]
    fn fields_and_items_stand_on_lines() {
        let json = r#"{"a": {"b": 1, "c": []}, "list": [{"name": "on", "of": {"x": true}}, ["no", "a b"], {}, null, 1.5],
            "on": "it's: so", "last": "a\nb"}"#;
        let text = write(&value(json));
        let expected = "a:\n  b: 1\n  c: []\nlist:\n- name: 'on'\n  of:\n    x: true\n- - 'no'\n  - 'a b'\n- {}\n- null\n- 1.5\n\
            'on': 'it''s: so'\nlast: \"a\\nb\"\n";
        assert_eq!(text, expected);
    }

    /// Values without floats and large numbers, which Envoy reads as texts.
    fn any_value() -> impl Strategy<Value = Value<'static>> {
        let text = "(yes|No|ON|y|~|null|0x1|0b1|010|1_0|1e3|1\\.5|-|\\?|:|#|\\||>|[a-c\u{7f}\u{85}\r'\"\\\\:#,\\[\\]{}&*!%@` \t\n\u{e4}\u{2028}-]{0,6})";
        let scalar = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::Bool),
            (0..=2_147_483_647_u64).prop_map(Value::Unsigned),
            (-2_147_483_648..0_i64).prop_map(Value::Negative),
            text.prop_map(|text| Value::Text(text.into())),
        ];
        scalar.prop_recursive(4, 24, 4, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::List),
                prop::collection::btree_map(text, inner, 0..4).prop_map(|fields| {
                    Value::Object(fields.into_iter().map(|(name, value)| (name.into(), value)).collect())
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(value in any_value()) {
            let text = write(&value);
            for dialect in [Dialect::Envoy, Dialect::Kubernetes] {
                // There, `<<` is no name.
                if matches!(dialect, Dialect::Kubernetes) && text.contains("<<") {
                    continue;
                }
                let read: Vec<_> = documents(text.as_bytes(), dialect).unwrap_or_else(|error| panic!("{error}\n{text}"));
                prop_assert_eq!(read.len(), 1);
                prop_assert_eq!(&read[0].value, &value, "{}", text);
            }
        }
    }
}
