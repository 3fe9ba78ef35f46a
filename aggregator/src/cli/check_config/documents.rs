//! Reads the documents of a file.

use crate::net::yaml::{self, Dialect, MAX_BYTES};
use serde_json::Map;
use std::collections::HashSet;
use std::convert::Infallible;
use weir_core::fields::{Bounds, Path, Value};
use weir_core::rules::{Written, object_name, recognise};

/// Most repeated fields of a document that are reported.
const MAX_REPEATED: usize = 50;

/// A byte order mark, as some editors write one.
const MARK: char = '\u{feff}';

/// What a file has.
#[derive(Debug)]
pub enum Documents<'a> {
    /// One value, in JSON.
    Json(Value<'a>),
    /// The documents of a YAML text, each as Kubernetes' tools or Envoy read it.
    Yaml(Vec<Value<'a>>),
}

/// Reads the documents of a text. Returns why they cannot be read.
pub fn documents(text: &[u8]) -> Result<Documents<'_>, String> {
    if text.len() > MAX_BYTES {
        return Err(format!("it has more than {MAX_BYTES} bytes"));
    }
    let text = std::str::from_utf8(text)
        .map_err(|error| format!("it is not UTF-8: byte {} cannot be read", error.valid_up_to() + 1))?;
    let marked = text.strip_prefix(MARK);
    let text = marked.unwrap_or(text);
    let json = match Value::parse(text.as_bytes(), Bounds::OF_A_FILE) {
        Ok(_) if marked.is_some() => {
            return Err("it begins with a byte order mark, which JSON may not have: remove it".to_owned());
        }
        Ok(value) => return Ok(Documents::Json(value)),
        Err(error) => error,
    };
    let is_json = text.trim_ascii_start().starts_with(['{', '[']);
    // YAML would take a comment for the beginning of a name.
    if is_json && has_comments(text) {
        return Err(format!("it is not JSON: {json}; JSON has no comments"));
    }
    let json = json.to_string();
    // YAML may have one.
    if is_json && json.contains("trailing comma") {
        return Err(format!(
            "it is not JSON: {json}: JSON has no comma after the last value of a list or an object"
        ));
    }
    let of_envoy = yaml::documents(text.as_bytes(), Dialect::Envoy).map_err(|yaml| match is_json {
        true => format!("it is not JSON: {json}"),
        false => format!("it is neither JSON nor YAML: {yaml}{}", hint_of_yaml(text)),
    })?;
    if of_envoy.iter().all(|document| *document == Value::Null) {
        return Err("it is empty".to_owned());
    }
    let is_manifest = |document: &Value<'_>| object_name(&plain(document)).is_some();
    if !of_envoy.iter().any(is_manifest) {
        return Ok(Documents::Yaml(of_envoy));
    }
    let manifests = yaml::documents(text.as_bytes(), Dialect::Kubernetes)?;
    let each = of_envoy.into_iter().zip(manifests);
    let read = each.map(|(of_envoy, manifest)| if is_manifest(&manifest) { manifest } else { of_envoy });
    Ok(Documents::Yaml(read.collect()))
}

/// Whether a line is a comment as in JavaScript.
fn has_comments(text: &str) -> bool {
    text.lines().map(str::trim_ascii_start).any(|line| line.starts_with("//") || line.starts_with("/*"))
}

/// What may be wrong with a text that is not YAML.
fn hint_of_yaml(text: &str) -> String {
    let has_tab = |line: &str| line.trim_start_matches(' ').starts_with('\t');
    match (1..).zip(text.lines()).find(|(_, line)| has_tab(line)) {
        Some((number, _)) => format!("; line {number} is indented with a tab: use spaces"),
        None => String::new(),
    }
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
        let Documents::Yaml(documents) = documents(text.as_bytes()).unwrap() else {
            panic!("it is not JSON")
        };
        assert_eq!(repeated(&documents[0]), ["a.k7", "b[1].c"]);
    }
}
