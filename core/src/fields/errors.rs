//! Errors of fields, and the collector that gathers all of them in one pass.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

/// Further errors are counted, but not kept: four megabytes of invalid text must not exhaust a VM's memory.
const KEPT_MAX: usize = 1_000;

/// One error in a text: `path: problem; expected …`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// The path of the value, such as `rules[2].identifier[0].header`. The whole text has the path that the caller named,
    /// which may be empty.
    pub path: String,
    /// The value, and what is wrong with it.
    pub problem: String,
    /// What is expected instead, unless `problem` implies it.
    pub expected: String,
}

/// All errors in a text; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldErrors {
    kept: Vec<FieldError>,
    omitted: usize,
}

impl FieldErrors {
    /// The errors that are kept, the first ones.
    pub fn iter(&self) -> core::slice::Iter<'_, FieldError> {
        self.kept.iter()
    }

    /// The number of all errors.
    pub fn count(&self) -> usize {
        self.kept.len().saturating_add(self.omitted)
    }
}

impl FieldError {
    /// The error without its path.
    pub fn message(&self) -> String {
        match self.expected.is_empty() {
            true => self.problem.clone(),
            false => format!("{}; expected {}", self.problem, self.expected),
        }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message())
    }
}

impl core::error::Error for FieldError {}

impl<'a> IntoIterator for &'a FieldErrors {
    type Item = &'a FieldError;
    type IntoIter = core::slice::Iter<'a, FieldError>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for FieldErrors {
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

impl core::error::Error for FieldErrors {}

/// The path from the whole text to a value. It is formatted only for an error.
#[derive(Clone, Copy, Debug)]
pub enum Path<'a> {
    /// The whole text, by the name that errors show for it.
    Root(&'a str),
    /// A field of an object.
    Field(&'a Path<'a>, &'a str),
    /// A value of a list.
    Index(&'a Path<'a>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Root(name) | Path::Field(Path::Root(_), name) => f.write_str(name),
            Path::Field(parent, name) => write!(f, "{parent}.{name}"),
            Path::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

/// Collects errors while parsing continues.
#[derive(Debug)]
pub struct Errors {
    kept: Vec<FieldError>,
    kept_max: usize,
    omitted: usize,
}

impl Default for Errors {
    fn default() -> Errors {
        Errors::keeping(KEPT_MAX)
    }
}

impl Errors {
    /// Keeps at most this many errors, and counts the others.
    pub fn keeping(kept_max: usize) -> Errors {
        Errors { kept: Vec::new(), kept_max, omitted: 0 }
    }

    /// Records one error. Returns `None` in place of the value that could not be read.
    pub fn reject<T>(
        &mut self,
        path: &Path<'_>,
        problem: impl Into<String>,
        expected: impl Into<String>,
    ) -> Option<T> {
        if self.kept.len() < self.kept_max {
            let (path, problem, expected) = (path.to_string(), problem.into(), expected.into());
            self.kept.push(FieldError { path, problem, expected });
        } else {
            self.omitted = self.omitted.saturating_add(1);
        }
        None
    }

    /// Returns the value if it was read and no error was recorded.
    pub fn finish<T>(mut self, value: Option<T>) -> Result<T, FieldErrors> {
        match value {
            Some(value) if self.kept.is_empty() => Ok(value),
            _ => {
                if self.kept.is_empty() {
                    self.reject::<T>(&Path::Root(""), "it could not be read", "");
                }
                Err(FieldErrors { kept: self.kept, omitted: self.omitted })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn paths_read_like_the_configuration() {
        let root = Path::Root("configuration");
        let rules = Path::Field(&root, "rules");
        let rule = Path::Index(&rules, 2);
        assert_eq!(format!("{root}"), "configuration");
        assert_eq!(format!("{}", Path::Field(&rule, "window")), "rules[2].window");
    }

    #[test]
    fn errors_past_the_cap_are_counted() {
        let mut errors = Errors::default();
        for _ in 0..KEPT_MAX + 5 {
            errors.reject::<()>(&Path::Root(""), "wrong", "right");
        }
        let errors = errors.finish(Some(())).unwrap_err();
        assert_eq!(errors.iter().count(), KEPT_MAX);
        assert_eq!(errors.count(), KEPT_MAX + 5);
        assert!(format!("{errors}").ends_with("\nand 5 more"));
    }
}
