//! `check-config`: a filter's configuration, judged by the parser that runs in the filter.
//!
//! Leaves to others: what is right and what is wrong (`weir_core::rules`), printing and exit codes (`main`).

use std::path::Path;

/// What is to be said of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All of it can be used; a summary of the rules.
    Sound(String),
    /// Every error, a line each.
    Wrong(String),
    /// It could not be read as a configuration at all.
    Unreadable(String),
}

/// Judges a file.
pub fn check(file: &Path) -> Verdict {
    Verdict::Unreadable(format!("{}", file.display()))
}
