//! Files of the aggregator: limits of the rate-limit service, also in a ConfigMap, and tokens. Those of Limitador are named.

use super::report::{Place, Report};
use super::{limits, tokens};
use crate::api::rls::config::{Domains, Limits};
use crate::api::rls::files;
use std::path::Path;
use weir_core::fields::Value;
use weir_core::fields::yaml::Document;
use weir_core::rules::{Documents, Written, documents, recognise};

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
            // No other file is a list. An empty one allows nobody.
            [Value::List(entries)] if entries.is_empty() || entries.iter().any(is_object) => {
                Some(Other::Tokens)
            }
            [one] if is_entry(one) || has_entries(one) => Some(Other::Tokens),
            _ if values.iter().any(|one| has(one, "descriptors") || has(one, "domain")) => {
                Some(Other::Limits)
            }
            _ => None,
        }
    }

    /// Validates a text.
    pub fn check(self, text: &[u8]) -> Report {
        match self {
            Other::Limits => {
                let text = String::from_utf8_lossy(text).into_owned();
                of_limits(Place::default(), vec![("limits".to_owned(), text)])
            }
            Other::Tokens => tokens::check(text),
            Other::Limitador => rejected(&Place::default(), LIMITADOR),
        }
    }
}

/// Validates a folder of the rate-limit service's limits.
pub fn check_folder(folder: &Path) -> Report {
    let texts = match files::read(folder) {
        Ok(texts) => texts,
        Err(error) => return rejected(&Place::default(), &error.to_string()),
    };
    // These are no limits, so errors in them would be misleading.
    let others: Vec<&str> = texts
        .iter()
        .filter(|(_, text)| configures_filters(text.as_bytes()))
        .map(|(name, _)| name.as_str())
        .collect();
    if others.is_empty() {
        return of_limits(Place::default(), texts);
    }
    let mut report = Report::default();
    for name in others {
        let message = format!(
            "{name}: it configures a filter, and a folder is read as the limits of --rls-config; expected such a file by itself"
        );
        report.reject(Place::default(), "", message);
    }
    report
}

/// Validates the files of a ConfigMap that have limits of the rate-limit service, as if they were a folder; `None` if there are none.
pub fn check_config_map(place: &Place, object: &serde_json::Value) -> Option<Report> {
    let data = object.get("data").filter(|_| object["kind"] == "ConfigMap")?.as_object()?;
    let texts = data.iter().filter_map(|(name, text)| Some((name.clone(), text.as_str()?.to_owned())));
    let limits: Vec<_> = texts.filter(|(_, text)| has_limits(text)).collect();
    let place = Place { path: "data".to_owned(), ..place.clone() };
    (!limits.is_empty()).then(|| of_limits(place, limits))
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

fn configures_filters(text: &[u8]) -> bool {
    let documents = match documents(text) {
        Ok(Documents::Json(document)) => vec![document],
        Ok(Documents::Yaml(documents)) => documents,
        Err(_) => return false,
    };
    documents.iter().any(|document| {
        let json = document.value.to_json();
        let is_own = json.get("rules").is_some() && json.get("aggregator").is_some();
        is_own || matches!(recognise(&json), Ok(Written::Envoy(_)))
    })
}

fn of_limits(place: Place, texts: Vec<(String, String)>) -> Report {
    let named = texts.iter().map(|(name, text)| (name.as_str(), text.as_str()));
    match Limits::parse(named, Domains::Unique) {
        Ok(limits) => {
            let mut report = Report::default();
            let head = format!("valid: limits of the rate-limit service, domains: {}", limits.len());
            report.accept(place, head + &limits::described(&texts));
            report
        }
        Err(errors) => rejected(&place, &errors.to_string()),
    }
}

fn rejected(place: &Place, errors: &str) -> Report {
    let mut report = Report::default();
    errors.lines().for_each(|line| report.reject(place.clone(), "", line.to_owned()));
    report
}
