//! Files of the aggregator: limits of the rate-limit service, and tokens.

use super::report::{Place, Report};
use crate::api::rls::config::{Domains, Limits};
use crate::api::rls::files;
use crate::auth::Tokens;
use std::fmt::Display;
use std::path::Path;
use weir_core::fields::Value;
use weir_core::fields::yaml::Document;

/// Which file of the aggregator a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Other {
    /// That of `--rls-config`.
    Limits,
    /// That of `--tokens-file`.
    Tokens,
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
            Other::Limits => {
                of_limits(Limits::parse([("limits", &*text)], Domains::Unique).map(|limits| limits.len()))
            }
            Other::Tokens => {
                let checked = Tokens::parse(text.as_bytes());
                let is_valid = checked.map(|_| "valid: tokens".to_owned());
                reported(is_valid.map_err(|error| format!("it is taken for a tokens file: {error}")))
            }
        }
    }
}

/// Validates a folder of the rate-limit service's limits.
pub fn check_folder(folder: &Path) -> Report {
    of_limits(files::check(folder, Domains::Unique))
}

fn of_limits(domains: Result<usize, impl Display>) -> Report {
    reported(domains.map(|domains| format!("valid: limits of the rate-limit service, domains: {domains}")))
}

fn reported(checked: Result<String, impl Display>) -> Report {
    let mut report = Report::default();
    match checked {
        Ok(summary) => report.accept(Place::default(), summary),
        Err(errors) => {
            errors.to_string().lines().for_each(|line| report.reject(Place::default(), "", line.to_owned()));
        }
    }
    report
}
