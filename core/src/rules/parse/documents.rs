//! Reads the documents of a file that has configurations: JSON, or YAML as Envoy or Kubernetes' tools read it.

use super::manifest::object_name;
use crate::fields::yaml::{self, Dialect, Document, MAX_BYTES, Repeated};
use crate::fields::{Bounds, Path, Value};
use alloc::borrow::ToOwned;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// Most repeated fields of a document that are reported.
const MAX_REPEATED: usize = 50;

/// A byte order mark, as some editors write one.
const MARK: char = '\u{feff}';

/// What a file has.
#[derive(Debug)]
pub enum Documents<'a> {
    /// One value, in JSON.
    Json(Document<'a>),
    /// The documents of a YAML text, each as Kubernetes' tools or Envoy read it.
    Yaml(Vec<Document<'a>>),
}

impl<'a> Documents<'a> {
    /// The only document that is not empty.
    pub fn into_one(self) -> Result<Document<'a>, String> {
        let documents = match self {
            Documents::Json(document) => return Ok(document),
            Documents::Yaml(documents) => documents,
        };
        let mut some = documents.into_iter().filter(|document| document.value != Value::Null);
        match (some.next(), some.count()) {
            (Some(one), 0) => Ok(one),
            (None, _) => Err("it is empty".to_owned()),
            (Some(_), more) => Err(format!("it has {} documents; expected one", more.saturating_add(1))),
        }
    }
}

/// Reads the documents of a text. Returns why they cannot be read.
pub fn documents(text: &[u8]) -> Result<Documents<'_>, String> {
    if text.len() > MAX_BYTES {
        return Err(format!("it has more than {MAX_BYTES} bytes"));
    }
    let text = core::str::from_utf8(text).map_err(|error| yaml::not_utf8(text, error))?;
    let marked = text.strip_prefix(MARK);
    let text = marked.unwrap_or(text);
    let json = match Value::parse(text.as_bytes(), Bounds::OF_A_FILE) {
        Ok(_) if marked.is_some() => {
            return Err("it begins with a byte order mark, which JSON may not have: remove it".to_owned());
        }
        Ok(value) => {
            let mut repeated = Vec::new();
            find_repeated(&value, &Path::Root(""), &mut repeated);
            return Ok(Documents::Json(Document { value, repeated }));
        }
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
    if of_envoy.iter().all(|document| document.value == Value::Null) {
        return Err("it is empty".to_owned());
    }
    let is_manifest = |document: &Document<'_>| object_name(&document.value.to_json()).is_some();
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

/// The fields that an object has twice.
fn find_repeated(value: &Value<'_>, path: &Path<'_>, found: &mut Vec<Repeated>) {
    match value {
        Value::Object(fields) => {
            let mut names = BTreeSet::new();
            for (name, child) in fields {
                let path = Path::Field(path, name);
                if !names.insert(name) && found.len() < MAX_REPEATED {
                    found.push(Repeated { path: path.to_string(), place: None });
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
        let found = |text: &str| -> Vec<_> {
            let document = match documents(text.as_bytes()).unwrap() {
                Documents::Json(document) => document,
                Documents::Yaml(mut documents) => documents.remove(0),
            };
            document.repeated.into_iter().map(|field| (field.path, field.place.unwrap_or_default())).collect()
        };
        let many: String = (0..300_000).map(|number| format!("  k{number}: 1\n")).collect();
        let expected = |places: [&str; 2]| {
            ["a.k7", "b[1].c"]
                .map(str::to_owned)
                .into_iter()
                .zip(places.map(str::to_owned))
                .collect::<Vec<_>>()
        };
        let text = format!("a:\n{many}  k7: 2\nb: [0, {{c: 1, c: 2}}]\n");
        assert_eq!(found(&text), expected(["line 300002, column 3", "line 300003, column 15"]));
        let many: String = (0..300_000).map(|number| format!("\"k{number}\":1,")).collect();
        let text = format!(r#"{{"a": {{{many} "k7": 2}}, "b": [0, {{"c": 1, "c": 2}}]}}"#);
        assert_eq!(found(&text), expected(["", ""]));
    }
}
