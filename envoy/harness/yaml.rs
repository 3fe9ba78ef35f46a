//! YAML of pages and manifests, as Kubernetes' tools read it.

use serde_json::Value;
use weir_core::fields::yaml::{Dialect, documents};

/// The only document of a text, null if there is none, without fields that are given twice.
pub fn yaml(text: &str) -> Result<Value, String> {
    let documents = documents(text.as_bytes(), Dialect::Kubernetes)?;
    let document = match &documents[..] {
        [] => return Ok(Value::Null),
        [document] => document,
        many => return Err(format!("it has {} documents", many.len())),
    };
    match document.repeated.first() {
        Some(field) => Err(format!("{}: {}", field.path, field.problem())),
        None => Ok(document.value.to_json()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn one_document_without_repeated_fields() {
        assert_eq!(yaml("a: {b: 1.5, c: [yes]}\n"), Ok(json!({ "a": { "b": 1.5, "c": [true] } })));
        assert_eq!(yaml("a: 1\na: 2\n"), Err("a: it is given twice, again at line 2, column 1".to_owned()));
        assert_eq!(yaml("# nothing\n"), Ok(Value::Null));
        for wrong in ["a: 1\n---\nb: 2\n", "a: b: c"] {
            assert!(yaml(wrong).is_err(), "{wrong}");
        }
    }
}
