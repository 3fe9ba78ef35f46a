//! Reads the documents of a file.

use crate::net::yaml;
use serde_json::Map;
use std::convert::Infallible;
use weir_core::fields::Value;
use weir_core::rules::{Written, recognise};

/// The documents of a YAML text, which JSON is too.
pub fn documents(text: &[u8]) -> Result<Vec<Value<'_>>, serde_yaml_ng::Error> {
    yaml::documents(text).collect()
}

/// What a document contains.
pub fn recognise_plain(json: &serde_json::Value) -> Result<Written, String> {
    recognise(b"", &Ok::<_, Infallible>(json.clone()))
}

/// A value without what JSON has not. Of repeated fields the last one is kept; `repeated` finds them.
pub fn plain(value: &Value<'_>) -> serde_json::Value {
    match value {
        Value::Null => serde_json::Value::Null,
        Value::Bool(value) => (*value).into(),
        Value::Unsigned(value) => (*value).into(),
        Value::Negative(value) => (*value).into(),
        Value::Float(value) => (*value).into(),
        Value::Text(text) => text.as_ref().into(),
        Value::List(items) => items.iter().map(plain).collect(),
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| (name.to_string(), plain(value))).collect::<Map<_, _>>().into()
        }
    }
}

/// The paths of fields that an object has twice. A parser of YAML keeps one of them, and which one differs.
pub fn repeated(document: &Value<'_>) -> Vec<String> {
    let mut found = Vec::new();
    find_repeated(document, String::new(), &mut found);
    found
}

fn find_repeated(value: &Value<'_>, path: String, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (at, (name, child)) in fields.iter().enumerate() {
                let dot = if path.is_empty() { "" } else { "." };
                let path = format!("{path}{dot}{name}");
                if fields.iter().take(at).any(|(earlier, _)| earlier == name) {
                    found.push(path.clone());
                }
                find_repeated(child, path, found);
            }
        }
        Value::List(items) => {
            let each = items.iter().enumerate();
            each.for_each(|(at, item)| find_repeated(item, format!("{path}[{at}]"), found));
        }
        _ => {}
    }
}
