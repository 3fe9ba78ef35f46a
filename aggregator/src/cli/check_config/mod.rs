//! `check-config`: validates a filter's configuration with the parser that runs in the filter.
//!
//! The file has the filter's own object, a whole Envoy configuration or Kubernetes objects, in JSON or YAML, also several
//! documents of YAML. All configurations of the filter in it are validated. Kubernetes objects without one are left alone.
//! Limits of the rate-limit service, also in a ConfigMap, and tokens files are read as the aggregator reads them. Any other document is taken for the filter's
//! object, so that an error always names what is expected.
//!
//! - `judge` checks what is in a file, `conditions` what looks like a pattern and is none, `around` cluster and connection manager,
//!   `order` the filters around it, `quic` its listener, and `bodies` those that parse bodies; `others` finds out which file of the aggregator a text is, `limits` and
//!   `tokens` check it. `summary` describes what is valid, and `report` has the result.

mod around;
mod bodies;
mod conditions;
mod judge;
mod limits;
mod order;
mod others;
mod quic;
mod report;
mod summary;
#[cfg(test)]
mod tests;
mod tokens;

pub use report::Report;

use crate::auth::begins_with_a_token;
use judge::{Text, judge_document, judge_text};
use others::Other;
use report::Place;
use std::io::Read;
use std::path::Path;
use weir_core::fields::Value;
use weir_core::fields::yaml::{Document, MAX_BYTES};
use weir_core::rules::{Documents, Written, documents, object_name, recognise};

/// The file name that stands for the standard input.
const STDIN: &str = "-";
const NOTHING_FOUND: &str = "no document of this file has a configuration of Weir's filter; expected ";
const EXPECTED: &str = "a WasmPlugin, a TrafficExtension, an EnvoyExtensionPolicy, an EnvoyFilter, an Envoy configuration, the \
    filter's own object, limits of --rls-config or a tokens file";
/// Fields around the filter's object that some copy with it.
const AROUND_OWN: [&str; 4] = ["configuration", "value", "config", "pluginConfig"];

/// Validates a file, a folder of limits of the rate-limit service, or the standard input if the name is `-`. Returns the reason if it
/// cannot be read.
pub fn check(file: &Path) -> Result<Report, String> {
    if file.is_dir() {
        return Ok(others::check_folder(file));
    }
    let read = match file == Path::new(STDIN) {
        true => start_of(std::io::stdin().lock()),
        false => std::fs::File::open(file).and_then(start_of),
    };
    let text = read.map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    Ok(check_text(&text))
}

/// One byte more than a text may have, at most.
fn start_of(reader: impl Read) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let most = u64::try_from(MAX_BYTES).unwrap_or(u64::MAX).saturating_add(1);
    reader.take(most).read_to_end(&mut text).map(|_| text)
}

/// Validates the content of a file.
pub fn check_text(text: &[u8]) -> Report {
    let mut report = Report::default();
    if begins_with_a_token(text) {
        return tokens::check(text);
    }
    let documents = match documents(text) {
        // The filter's parser reports repeated fields, too, in the order of the text.
        Ok(Documents::Json(document)) if is_filters_own(&document) => {
            let json = document.value.to_json();
            return wrapped(&json).unwrap_or_else(|| judge_text(Place::default(), text, &json));
        }
        Ok(Documents::Json(document)) => Vec::from([document]),
        Ok(Documents::Yaml(documents)) => documents,
        Err(message) => {
            report.reject(Place::default(), "", format!("{message}; expected {EXPECTED}"));
            return report;
        }
    };
    if let Some(other) = Other::of(&documents) {
        return other.check(text);
    }
    let several = documents.len() > 1;
    for (number, document) in
        (1..).zip(&documents).filter(|(_, document)| !several || document.value != Value::Null)
    {
        let json = document.value.to_json();
        let place = Place {
            document: if several { number } else { 0 },
            object: object_name(&json),
            path: String::new(),
        };
        if let Some(wrapped) = wrapped(&json).filter(|_| !several) {
            return wrapped;
        }
        report.append(match others::check_config_map(&place, &json) {
            Some(limits) => limits,
            None => {
                let text = Text { text: std::str::from_utf8(text).unwrap_or_default(), document: number - 1 };
                judge_document(&place, &text, &document.repeated, &json)
            }
        });
    }
    if report.is_empty() {
        report.reject(Place::default(), "", NOTHING_FOUND.to_owned() + EXPECTED);
    }
    report
}

/// Refuses the filter's object if it was copied with what is around it in an Envoy configuration.
fn wrapped(json: &serde_json::Value) -> Option<Report> {
    let is_own =
        |value: &serde_json::Value| value.get("rules").is_some() || value.get("aggregator").is_some();
    if is_own(json) || !matches!(recognise(json), Ok(Written::Filter)) {
        return None;
    }
    let around = AROUND_OWN.into_iter().find(|name| {
        json.get(name).is_some_and(|inner| is_own(inner) || inner.get("value").is_some_and(is_own))
    })?;
    let mut report = Report::default();
    let message =
        "the filter's object is in it; expected that object alone, or the whole Envoy configuration";
    report.reject(Place::default(), around, message.to_owned());
    Some(report)
}

/// Whether a value is taken for the filter's own object.
fn is_filters_own(document: &Document<'_>) -> bool {
    let json = document.value.to_json();
    let is_other = Other::of(std::slice::from_ref(document)).is_some();
    matches!(recognise(&json), Ok(Written::Filter)) && object_name(&json).is_none() && !is_other
}
