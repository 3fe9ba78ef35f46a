//! Reads the documents of a file.

use crate::net::yaml;
use serde_json::Map;
use std::collections::HashSet;
use std::convert::Infallible;
use weir_core::fields::{Path, Value, Verbatim};
use weir_core::rules::{Written, recognise};

/// Most repeated fields of a document that are reported.
const MAX_REPEATED: usize = 50;

/// The documents of a YAML text, which JSON is too.
pub fn documents(text: &[u8]) -> Result<Vec<Value<'_>>, String> {
    yaml::documents(text, Verbatim::default())
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
    find_repeated(document, &Path::Root(""), &mut found);
    found
}

fn find_repeated(value: &Value<'_>, path: &Path<'_>, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            let mut names = HashSet::new();
            for (name, child) in fields {
                let path = Path::Field(path, name);
                if !names.insert(name) && found.len() < MAX_REPEATED {
                    found.push(path.to_string());
                }
                find_repeated(child, &path, found);
            }
        }
        Value::List(items) => {
            let each = (0..).zip(items);
            each.for_each(|(at, item)| find_repeated(item, &Path::Index(path, at), found));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compared with each other one by one, these fields would take minutes.
    #[test]
    fn a_repeated_field_is_found_among_many() {
        let many: String = (0..300_000).map(|number| format!("  k{number}: 1\n")).collect();
        let text = format!("a:\n{many}  k7: 2\nb: [0, {{c: 1, c: 2}}]\n");
        let documents = documents(text.as_bytes()).unwrap();
        assert_eq!(repeated(&documents[0]), ["a.k7", "b[1].c"]);
    }
}
