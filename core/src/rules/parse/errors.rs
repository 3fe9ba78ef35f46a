//! Configuration errors, and the collector that gathers all of them in one pass.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

/// Further errors are counted, but not kept: four megabytes of invalid text must not exhaust a VM's memory.
const ERRORS_KEPT_MAX: usize = 1_000;

/// One error in a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {problem}; expected {expected}")]
pub struct ConfigError {
    /// The path of the value: `rules[2].identifier[0].header`, or `configuration` for the whole.
    pub path: String,
    /// The value, and what is wrong with it.
    pub problem: String,
    /// What is expected instead.
    pub expected: String,
}

/// All errors in a configuration, in the order of its text; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors {
    kept: Vec<ConfigError>,
    omitted: usize,
}

impl ConfigErrors {
    /// The errors; at most the first thousand.
    pub fn iter(&self) -> core::slice::Iter<'_, ConfigError> {
        self.kept.iter()
    }

    /// The number of all errors.
    pub fn count(&self) -> usize {
        self.kept.len().saturating_add(self.omitted)
    }
}

impl<'a> IntoIterator for &'a ConfigErrors {
    type Item = &'a ConfigError;
    type IntoIter = core::slice::Iter<'a, ConfigError>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for ConfigErrors {
    /// One error in each line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.kept.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{error}")?;
        }
        if self.omitted > 0 {
            write!(f, "\nand {} more", self.omitted)?;
        }
        Ok(())
    }
}

impl core::error::Error for ConfigErrors {}

/// The path from the configuration's root to a value. It is formatted only for an error.
#[derive(Clone, Copy, Debug)]
pub(in crate::rules) enum Path<'a> {
    Root,
    Field(&'a Path<'a>, &'a str),
    Index(&'a Path<'a>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Root => f.write_str("configuration"),
            Path::Field(Path::Root, name) => f.write_str(name),
            Path::Field(parent, name) => write!(f, "{parent}.{name}"),
            Path::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

/// Collects errors while parsing continues.
#[derive(Debug, Default)]
pub(in crate::rules) struct Errors {
    kept: Vec<ConfigError>,
    omitted: usize,
}

impl Errors {
    /// Records one error. Returns `None` in place of the value that could not be read.
    pub fn reject<T>(
        &mut self,
        path: &Path<'_>,
        problem: impl Into<String>,
        expected: impl Into<String>,
    ) -> Option<T> {
        if self.kept.len() < ERRORS_KEPT_MAX {
            let (path, problem, expected) = (path.to_string(), problem.into(), expected.into());
            self.kept.push(ConfigError { path, problem, expected });
        } else {
            self.omitted = self.omitted.saturating_add(1);
        }
        None
    }

    /// Returns the value if it was read and no error was recorded.
    pub fn finish<T>(mut self, value: Option<T>) -> Result<T, ConfigErrors> {
        match value {
            Some(value) if self.kept.is_empty() => Ok(value),
            _ => {
                if self.kept.is_empty() {
                    self.reject::<T>(&Path::Root, "it could not be read", "a complete configuration");
                }
                Err(ConfigErrors { kept: self.kept, omitted: self.omitted })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn paths_read_like_the_configuration() {
        let root = Path::Root;
        let rules = Path::Field(&root, "rules");
        let rule = Path::Index(&rules, 2);
        assert_eq!(format!("{root}"), "configuration");
        assert_eq!(format!("{}", Path::Field(&rule, "window")), "rules[2].window");
    }

    #[test]
    fn errors_past_the_cap_are_counted() {
        let mut errors = Errors::default();
        for _ in 0..ERRORS_KEPT_MAX + 5 {
            errors.reject::<()>(&Path::Root, "wrong", "right");
        }
        let errors = errors.finish(Some(())).unwrap_err();
        assert_eq!(errors.iter().count(), ERRORS_KEPT_MAX);
        assert_eq!(errors.count(), ERRORS_KEPT_MAX + 5);
        assert!(format!("{errors}").ends_with("\nand 5 more"));
    }
}
