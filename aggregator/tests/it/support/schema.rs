//! The part of OpenAPI 3.1 and JSON Schema that the API's description uses. An unknown keyword fails the test, so that
//! nothing in the description goes unchecked.

use crate::support::http::Answer;
use regex::Regex;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The description.
pub struct Document(pub Value);

impl Document {
    /// Every path, method and status.
    pub fn statuses(&self) -> BTreeSet<(String, String, u16)> {
        let mut all = BTreeSet::new();
        for (path, methods) in self.0["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                for status in operation["responses"].as_object().unwrap().keys() {
                    all.insert((path.clone(), method.clone(), status.parse().unwrap()));
                }
            }
        }
        all
    }

    /// Compares an answer with the description.
    pub fn check_answer(&self, path: &str, method: &str, answer: &Answer) {
        let responses = &self.0["paths"][path][method]["responses"];
        let described = self.resolve(&responses[answer.status.to_string()]);
        assert!(described.is_object(), "{method} {path} does not describe status {}", answer.status);
        for name in described["headers"].as_object().into_iter().flatten().map(|(name, _)| name) {
            assert!(answer.headers.contains_key(name.to_lowercase()), "{path}: no {name}");
        }
        let (kind, content) = described["content"].as_object().unwrap().iter().next().unwrap();
        assert_eq!(answer.headers["content-type"], kind.as_str());
        let wrong = self.wrong(&content["schema"], &answer.body);
        assert_eq!(wrong, None, "{path} {}: {}", answer.status, answer.body);
    }

    pub fn fits(&self, schema: &str, value: &Value) -> bool {
        self.wrong(&self.0["components"]["schemas"][schema], value).is_none()
    }

    /// The names of an object's fields.
    pub fn fields(&self, schema: &str) -> Vec<String> {
        self.0["components"]["schemas"][schema]["properties"].as_object().unwrap().keys().cloned().collect()
    }

    /// Values at and beyond each bound of a field, and of wrong types, and whether they are valid.
    pub fn probes(&self, schema: &str, field: &str) -> Vec<(Value, bool)> {
        let field = self.resolve(&self.0["components"]["schemas"][schema]["properties"][field]);
        let mut values = vec![
            json!(null),
            json!(true),
            json!(-1),
            json!(1.5),
            json!({}),
            json!([]),
            json!([[]]),
            json!(""),
        ];
        let kinds = field["oneOf"].as_array().cloned().unwrap_or_else(|| vec![field.clone()]);
        for kind in &kinds {
            values.extend(kind["enum"].as_array().cloned().unwrap_or_default());
            let (least, most) = (kind["minimum"].as_u64(), kind["maximum"].as_u64());
            values.extend(least.map(|least| json!(least)));
            values.extend(least.and_then(|least| least.checked_sub(1)).map(|below| json!(below)));
            values.extend(most.into_iter().flat_map(|most| [json!(most), json!(most + 1)]));
            let long = |kind: &Value| kind["maxLength"].as_u64().map(|most| usize::try_from(most).unwrap());
            values.extend(
                long(kind)
                    .into_iter()
                    .flat_map(|most| [json!("x".repeat(most)), json!("x".repeat(most + 1))]),
            );
            if let Some(most) = kind["maxItems"].as_u64().map(|most| usize::try_from(most).unwrap()) {
                values.extend([json!(vec!["x"; most]), json!(vec!["x"; most + 1]), json!([1])]);
                let item = long(&kind["items"]).unwrap();
                values.extend([json!(["x".repeat(item)]), json!(["x".repeat(item + 1)])]);
            }
            if kind["pattern"].is_string() {
                values.extend([json!("2s"), json!("2 s"), json!("2x")]);
            }
        }
        values.into_iter().map(|value| (value.clone(), self.wrong(field, &value).is_none())).collect()
    }

    fn resolve<'a>(&'a self, schema: &'a Value) -> &'a Value {
        match schema["$ref"].as_str() {
            Some(reference) => {
                let found = self.0.pointer(reference.strip_prefix('#').unwrap());
                found.unwrap_or_else(|| panic!("{reference} does not exist"))
            }
            None => schema,
        }
    }

    /// Why the value does not match the schema.
    fn wrong(&self, schema: &Value, value: &Value) -> Option<String> {
        let schema = self.resolve(schema);
        let not = |what: &Value| Some(format!("{value} is not {what}"));
        for (keyword, constraint) in schema.as_object().expect("a schema") {
            let fits = match keyword.as_str() {
                "description" | "default" => true,
                "type" => is_of_type(constraint.as_str().unwrap(), value),
                "enum" => constraint.as_array().unwrap().contains(value),
                "minimum" => value.as_f64().is_none_or(|number| number >= constraint.as_f64().unwrap()),
                "maximum" => value.as_u64().is_none_or(|number| number <= constraint.as_u64().unwrap()),
                "minLength" => {
                    value.as_str().is_none_or(|text| text.len() as u64 >= constraint.as_u64().unwrap())
                }
                "maxLength" => {
                    value.as_str().is_none_or(|text| text.len() as u64 <= constraint.as_u64().unwrap())
                }
                "minItems" => {
                    value.as_array().is_none_or(|list| list.len() as u64 >= constraint.as_u64().unwrap())
                }
                "maxItems" => {
                    value.as_array().is_none_or(|list| list.len() as u64 <= constraint.as_u64().unwrap())
                }
                "pattern" => {
                    let pattern = Regex::new(constraint.as_str().unwrap()).unwrap();
                    value.as_str().is_none_or(|text| pattern.is_match(text))
                }
                "required" => constraint.as_array().unwrap().iter().all(|name| {
                    value.as_object().is_none_or(|object| object.contains_key(name.as_str().unwrap()))
                }),
                "additionalProperties" => {
                    assert_eq!(constraint, false);
                    let properties = schema["properties"].as_object().unwrap();
                    value
                        .as_object()
                        .is_none_or(|object| object.keys().all(|name| properties.contains_key(name)))
                }
                "properties" => {
                    let wrong = constraint.as_object().unwrap().iter().find_map(|(name, schema)| {
                        self.wrong(schema, value.get(name)?).map(|reason| format!("{name}: {reason}"))
                    });
                    if wrong.is_some() {
                        return wrong;
                    }
                    true
                }
                "items" => {
                    let wrong =
                        value.as_array().into_iter().flatten().find_map(|item| self.wrong(constraint, item));
                    if wrong.is_some() {
                        return wrong;
                    }
                    true
                }
                "oneOf" => {
                    let kinds = constraint.as_array().unwrap().iter();
                    kinds.filter(|kind| self.wrong(kind, value).is_none()).count() == 1
                }
                other => panic!("the keyword {other} is not supported by this test"),
            };
            if !fits {
                return not(&json!({keyword: constraint}));
            }
        }
        None
    }
}

fn is_of_type(name: &str, value: &Value) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        other => panic!("the type {other} is not supported by this test"),
    }
}
