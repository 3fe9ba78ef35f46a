//! The result of a validation, as text and as JSON.

use serde_json::json;
use std::fmt::Write as _;
use weir_core::fields::FieldErrors;

/// The path of an error about a whole configuration.
const WHOLE: &str = "configuration";

/// The result of a validation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What was found: each valid configuration with a summary of its rules.
    valid: Vec<(Place, String)>,
    errors: Vec<Problem>,
}

/// Where a configuration stands in a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// The document's number from 1; 0 if the file has only one.
    pub document: usize,
    /// Kind and name of the Kubernetes object.
    pub object: Option<String>,
    /// The path in the document; empty for the filter's own object.
    pub path: String,
}

/// An error at a path in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Problem {
    place: Place,
    path: String,
    message: String,
}

impl Report {
    /// Whether all that was found is valid.
    pub fn is_valid(&self) -> bool {
        self.errors.is_empty()
    }

    /// What was found, as text: a summary of the rules, or one line for each error.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        let mut last = None;
        let errors = self.errors.iter().map(|problem| (&problem.place, problem.line()));
        let valid = self.valid.iter().map(|(place, summary)| (place, summary.clone()));
        let lines: Vec<_> = if self.is_valid() { valid.collect() } else { errors.collect() };
        for (place, line) in lines {
            let heading = place.heading();
            if last != Some(place) && !heading.is_empty() {
                // Writing to a `String` cannot fail.
                let _ = writeln!(text, "{heading}:");
            }
            let indent = if heading.is_empty() { "" } else { "  " };
            let _ = writeln!(text, "{indent}{}", line.replace('\n', &format!("\n{indent}")));
            last = Some(place);
        }
        text.trim_end().to_owned()
    }

    /// What was found, as one JSON object.
    pub fn to_json(&self) -> serde_json::Value {
        let of = |place: &Place, path: &str| {
            let path = if path == WHOLE { "" } else { path };
            let dot = if place.path.is_empty() || path.is_empty() { "" } else { "." };
            let path = format!("{}{dot}{path}", place.path);
            json!({ "document": place.document.max(1), "object": place.object, "path": path })
        };
        let with = |mut object: serde_json::Value, name: &str, text: &str| {
            object[name] = text.into();
            object
        };
        let valid = self.valid.iter().map(|(place, summary)| with(of(place, ""), "summary", summary));
        let errors = self.errors.iter();
        let errors =
            errors.map(|problem| with(of(&problem.place, &problem.path), "message", &problem.message));
        json!({
            "valid": self.is_valid(),
            "configurations": valid.collect::<Vec<_>>(),
            "errors": errors.collect::<Vec<_>>(),
        })
    }

    /// Whether no configuration was found, valid or not.
    pub(super) fn is_empty(&self) -> bool {
        self.valid.is_empty() && self.errors.is_empty()
    }

    /// Adds a valid configuration with a summary of its rules.
    pub(super) fn accept(&mut self, place: Place, summary: String) {
        self.valid.push((place, summary));
    }

    /// Adds an error at a path in a configuration.
    pub(super) fn reject(&mut self, place: Place, path: impl Into<String>, message: String) {
        self.errors.push(Problem { place, path: path.into(), message });
    }

    /// Adds the errors of the filter's parser.
    pub(super) fn reject_all(&mut self, place: &Place, errors: &FieldErrors) {
        for error in errors {
            self.reject(place.clone(), error.path.as_str(), error.message());
        }
        match errors.count() - errors.iter().count() {
            0 => {}
            more => self.reject(place.clone(), "", format!("and {more} more")),
        }
    }

    /// Adds the results of another validation.
    pub(super) fn append(&mut self, other: Report) {
        self.valid.extend(other.valid);
        self.errors.extend(other.errors);
    }
}

impl Place {
    fn heading(&self) -> String {
        let document = (self.document > 0).then(|| format!("document {}", self.document));
        let object = self.object.clone().filter(|_| self.document > 0);
        let path = Some(self.path.clone()).filter(|path| !path.is_empty());
        [document, object, path].into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

impl Problem {
    fn line(&self) -> String {
        let colon = if self.path.is_empty() { "" } else { ": " };
        format!("{}{colon}{}", self.path, self.message)
    }
}
