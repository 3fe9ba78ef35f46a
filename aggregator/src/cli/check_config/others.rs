//! Files of the aggregator: limits of the rate-limit service, also in a ConfigMap, and tokens. Those of Limitador are named.

use super::report::{Place, Report};
use crate::api::rls::config::{Domains, Limits};
use crate::api::rls::files;
use crate::auth::Tokens;
use std::fmt::Display;
use std::path::Path;
use weir_core::fields::Value;
use weir_core::fields::yaml::Document;
use weir_core::rules::{Documents, documents};

const LIMITADOR: &str = "it has limits of Limitador; expected them in the format of the reference rate-limit service, as \
    envoy/MOVING.md states for Limitador";

/// Which file of the aggregator a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Other {
    /// That of `--rls-config`.
    Limits,
    /// That of `--tokens-file`.
    Tokens,
    /// The limits of Limitador, which is another rate-limit service.
    Limitador,
}

impl Other {
    /// By its documents; `None` for any other text.
    pub fn of(documents: &[Document<'_>]) -> Option<Other> {
        let values: Vec<_> = documents.iter().map(|document| &document.value).collect();
        let has = |value: &Value<'_>, name: &str| match value {
            Value::Object(fields) => fields.iter().any(|(field, _)| field == name),
            _ => false,
        };
        let is_object = |value: &Value<'_>| matches!(value, Value::Object(_));
        let is_entry = |value: &Value<'_>| has(value, "sha256") || has(value, "san");
        // Entries under a name of their own, which no tokens file has.
        let has_entries = |value: &Value<'_>| match value {
            Value::Object(fields) => fields.iter().any(|(_, value)| match value {
                Value::List(items) => items.iter().any(is_entry),
                other => is_entry(other),
            }),
            _ => false,
        };
        match &values[..] {
            [Value::List(limits)] if limits.iter().any(|limit| has(limit, "max_value")) => {
                Some(Other::Limitador)
            }
            // No other file is a list.
            [Value::List(entries)] if entries.iter().any(is_object) => Some(Other::Tokens),
            [one] if is_entry(one) || has_entries(one) => Some(Other::Tokens),
            _ if values.iter().any(|one| has(one, "descriptors") || has(one, "domain")) => {
                Some(Other::Limits)
            }
            _ => None,
        }
    }

    /// Validates a text.
    pub fn check(self, text: &[u8]) -> Report {
        let text = String::from_utf8_lossy(text);
        match self {
            Other::Limits => of_limits(Place::default(), parsed([("limits", &*text)])),
            Other::Tokens => {
                let checked = Tokens::parse(text.as_bytes());
                let is_valid = checked.map(|_| "valid: tokens".to_owned());
                let is_valid = is_valid.map_err(|error| format!("it is taken for a tokens file: {error}"));
                reported(Place::default(), is_valid)
            }
            Other::Limitador => reported(Place::default(), Err(LIMITADOR)),
        }
    }
}

/// Validates a folder of the rate-limit service's limits.
pub fn check_folder(folder: &Path) -> Report {
    of_limits(Place::default(), files::check(folder, Domains::Unique))
}

/// Validates the files of a ConfigMap that have limits of the rate-limit service, as if they were a folder; `None` if there are none.
pub fn check_config_map(place: &Place, object: &serde_json::Value) -> Option<Report> {
    let data = object.get("data").filter(|_| object["kind"] == "ConfigMap")?.as_object()?;
    let texts = data.iter().filter_map(|(name, text)| Some((name.as_str(), text.as_str()?)));
    let limits: Vec<_> = texts.filter(|(_, text)| has_limits(text)).collect();
    let place = Place { path: "data".to_owned(), ..place.clone() };
    (!limits.is_empty()).then(|| of_limits(place, parsed(limits)))
}

/// Whether a text of a ConfigMap, which may have files of any program, has limits.
fn has_limits(text: &str) -> bool {
    let other = match documents(text.as_bytes()) {
        Ok(Documents::Yaml(documents)) => Other::of(&documents),
        Ok(Documents::Json(document)) => Other::of(&[document]),
        // What keeps it from being read is then reported.
        Err(_) => text.contains("descriptors:").then_some(Other::Limits),
    };
    other == Some(Other::Limits)
}

/// The number of domains in limits, each text with its name.
fn parsed<'a>(limits: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<usize, impl Display> {
    Limits::parse(limits, Domains::Unique).map(|limits| limits.len())
}

fn of_limits(place: Place, domains: Result<usize, impl Display>) -> Report {
    let summary = |domains| format!("valid: limits of the rate-limit service, domains: {domains}");
    reported(place, domains.map(summary))
}

fn reported(place: Place, checked: Result<String, impl Display>) -> Report {
    let mut report = Report::default();
    match checked {
        Ok(summary) => report.accept(place, summary),
        Err(errors) => {
            errors.to_string().lines().for_each(|line| report.reject(place.clone(), "", line.to_owned()));
        }
    }
    report
}
