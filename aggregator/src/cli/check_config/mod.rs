//! `check-config`: validates a filter's configuration with the parser that runs in the filter.
//!
//! The file has the filter's own object, a whole Envoy configuration or Kubernetes objects, in JSON or YAML, also several
//! documents of YAML. All configurations of the filter in it are validated. Kubernetes objects without one are left alone.
//! Any other document is taken for the filter's object, so that an error always names what is expected.
//!
//! - `documents` reads the file, `judge` checks what is in it, `summary` describes what is valid, and `report` has the result.

mod documents;
mod judge;
mod report;
mod summary;
#[cfg(test)]
mod tests;

pub use report::Report;

use crate::net::yaml::MAX_BYTES;
use documents::{documents, plain, recognise_plain};
use judge::{judge_document, judge_text};
use report::Place;
use std::io::Read;
use std::path::Path;
use weir_core::fields::Value;
use weir_core::rules::{Written, object_name, recognise};

/// The file name that stands for the standard input.
const STDIN: &str = "-";
const NOTHING_FOUND: &str = "no document of this file has a configuration of Weir's filter; expected a WasmPlugin, a \
    TrafficExtension, an EnvoyExtensionPolicy, an EnvoyFilter, an Envoy configuration or the filter's own object";

/// Validates a file, or the standard input if the name is `-`. Returns the reason if it cannot be read.
pub fn check(file: &Path) -> Result<Report, String> {
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
    let documents = match documents(text) {
        Ok(documents) => documents,
        Err(error) => {
            match recognise(text, &Err::<serde_json::Value, _>(error)) {
                Ok(_) => report.append(judge_text(Place::default(), text)),
                Err(message) => report.reject(Place::default(), "", message),
            }
            return report;
        }
    };
    // The filter's parser reports where JSON is wrong, and repeated fields.
    if let [_] | [] = documents.as_slice()
        && text.iter().find(|byte| !byte.is_ascii_whitespace()).is_none_or(|first| *first == b'{')
        && matches!(
            documents.first().map(|one| recognise_plain(&plain(one))),
            None | Some(Ok(Written::Filter))
        )
        && documents.first().and_then(|one| object_name(&plain(one))).is_none()
    {
        return judge_text(Place::default(), text);
    }
    let several = documents.len() > 1;
    for (number, document) in
        (1..).zip(&documents).filter(|(_, document)| !several || **document != Value::Null)
    {
        let json = plain(document);
        let place = Place {
            document: if several { number } else { 0 },
            object: object_name(&json),
            path: String::new(),
        };
        report.append(judge_document(&place, document, &json));
    }
    if report.is_empty() {
        report.reject(Place::default(), "", NOTHING_FOUND.to_owned());
    }
    report
}
