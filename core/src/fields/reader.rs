//! Reads objects field by field: reports unknown and repeated fields, wrong types and ranges, each with its path.
//!
//! Every reader returns `None` after it has reported an error, so that the caller continues and reports the other
//! errors too.

use super::errors::{Errors, Path};
use super::value::{QUOTED_CHARS_MAX, Value};
use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ops::RangeInclusive;

/// Names of rules, namespaces and workspaces are part of headers and metrics, so they must be short and plain.
pub const NAME_BYTES_MAX: usize = 64;

/// Names that other programs, or other places of a text, have for a field: the name, the field beside which it is meant, and what is
/// meant.
const NEIGHBOURS: [(&str, &str, &str); 14] = [
    ("shadow", "shadow_mode", "shadow_mode"),
    ("dry_run", "shadow_mode", "shadow_mode"),
    ("prefix", "path", "path.prefix"),
    ("exact", "path", "path.exact"),
    ("regex", "path", "path.regex"),
    ("segments", "path", "path.segments"),
    ("duration", "window", "window"),
    ("period", "window", "window"),
    ("interval", "window", "window"),
    ("unit", "window", "window, such as \"1m\""),
    ("requests_per_unit", "limit", "limit, with a window"),
    ("burst", "limit", "limit, all of which may be used at once"),
    ("key", "identifier", "identifier"),
    ("failure_mode", "on_failure", "on_failure"),
];

pub(crate) const HEADER_NAME_BYTES_MAX: usize = 128;

/// A value and its path.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    /// The value.
    pub value: &'a Value<'a>,
    /// Its path.
    pub path: Path<'a>,
}

impl<'a> Node<'a> {
    /// The whole text; `name` is shown in errors for it, and may be empty.
    pub fn root(name: &'a str, value: &'a Value<'a>) -> Self {
        Node { value, path: Path::Root(name) }
    }

    /// Reports this value as invalid.
    pub fn reject<T>(&self, errors: &mut Errors, why: &str, expected: impl Into<String>) -> Option<T> {
        errors.reject(&self.path, format!("{} {why}", self.value.describe()), expected)
    }

    /// The object's fields, after reporting unknown and repeated ones.
    pub fn object(&'a self, known: &[&str], errors: &mut Errors) -> Option<Fields<'a>> {
        let Value::Object(entries) = self.value else {
            return self.reject(errors, "is not an object", format!("an object with {}", list_of(known)));
        };
        let fields = Fields { path: &self.path, entries };
        let mut seen = Vec::new();
        for (name, _) in entries {
            if !known.contains(&name.as_ref()) {
                fields.reject_unknown(name, known, errors);
            } else if seen.contains(&name.as_ref()) {
                errors.reject::<()>(&Path::Field(&self.path, name), "it is given twice", "one value");
            } else {
                seen.push(name.as_ref());
            }
        }
        Some(fields)
    }

    /// The list's values. `read` is called for every one, and all must succeed.
    pub fn list<T>(
        &self,
        count: RangeInclusive<usize>,
        of: &str,
        errors: &mut Errors,
        mut read: impl FnMut(Node<'_>, &mut Errors) -> Option<T>,
    ) -> Option<Vec<T>> {
        let expected = || match *count.end() {
            usize::MAX => format!("a list of {of}"),
            end => format!("a list of {} to {end} {of}", count.start()),
        };
        let Value::List(items) = self.value else {
            return self.reject(errors, "is not a list", expected());
        };
        if !count.contains(&items.len()) {
            errors.reject::<()>(&self.path, format!("it has {} {of}", items.len()), expected());
        }
        let mut values = Vec::new();
        for (index, value) in items.iter().enumerate().take(*count.end()) {
            let path = Path::Index(&self.path, index);
            values.extend(read(Node { value, path }, errors));
        }
        (values.len() == items.len()).then_some(values)
    }

    /// The values of an object whose fields have any name, in the order of their names. `read` is called for every one, and all must
    /// succeed.
    pub fn entries<T>(
        &self,
        count: RangeInclusive<usize>,
        of: &str,
        errors: &mut Errors,
        mut read: impl FnMut(&str, Node<'_>, &mut Errors) -> Option<T>,
    ) -> Option<Vec<T>> {
        let expected = || format!("an object with {} to {} {of}", count.start(), count.end());
        let Value::Object(entries) = self.value else {
            return self.reject(errors, "is not an object", expected());
        };
        if !count.contains(&entries.len()) {
            return errors.reject(&self.path, format!("it has {} {of}", entries.len()), expected());
        }
        let mut entries: Vec<_> = entries.iter().collect();
        entries.sort_by_key(|(name, _)| name);
        let mut values = Vec::new();
        let mut last = None;
        for (name, value) in &entries {
            let path = Path::Field(&self.path, name);
            if last.replace(name) == Some(name) {
                errors.reject::<()>(&path, "it is given twice", "one value");
                continue;
            }
            values.extend(read(name, Node { value, path }, errors));
        }
        (values.len() == entries.len()).then_some(values)
    }

    /// One value, or a list of them.
    pub fn one_or_list<T>(
        &self,
        count: RangeInclusive<usize>,
        of: &str,
        errors: &mut Errors,
        mut read: impl FnMut(Node<'_>, &mut Errors) -> Option<T>,
    ) -> Option<Vec<T>> {
        match self.value {
            Value::List(_) => self.list(count, of, errors, read),
            _ => read(*self, errors).map(|value| Vec::from([value])),
        }
    }

    /// `true` or `false`.
    pub fn boolean(&self, errors: &mut Errors) -> Option<bool> {
        match self.value {
            Value::Bool(value) => Some(*value),
            _ => self.reject(errors, "is not a boolean", "true or false"),
        }
    }

    /// A whole number in `range`.
    pub fn integer(&self, range: RangeInclusive<u64>, errors: &mut Errors) -> Option<u64> {
        let expected = || match (*range.start(), *range.end()) {
            (0, u64::MAX) => "a whole number, 0 or more".to_string(),
            (start, u64::MAX) => format!("a whole number of at least {start}"),
            (start, end) => format!("a whole number from {start} to {end}"),
        };
        match self.value.as_integer() {
            Some(value) if range.contains(&value) => Some(value),
            Some(_) => self.reject(errors, "is out of range", expected()),
            None => self.reject(errors, self.no_integer(&range), expected()),
        }
    }

    fn no_integer(&self, range: &RangeInclusive<u64>) -> &'static str {
        let is_quoted = |text: &str| {
            let is_short = text == "0" || !text.starts_with('0');
            is_short && text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u64>().is_ok()
        };
        match self.value {
            Value::Text(text) if is_quoted(text) => "is a text; write it without quotes",
            _ if *range == (0..=u64::MAX) => "is not a whole number",
            _ => "is not a whole number in range",
        }
    }

    /// A text of 1 to `bytes_max` bytes.
    pub fn text(&self, bytes_max: usize, errors: &mut Errors) -> Option<&'a str> {
        let expected = || format!("a string of 1 to {bytes_max} bytes");
        match self.value {
            Value::Text(text) if text.is_empty() => self.reject(errors, "is empty", expected()),
            Value::Text(text) if text.len() > bytes_max => {
                self.reject(errors, &format!("has {} bytes", text.len()), expected())
            }
            Value::Text(text) => Some(text),
            _ => self.reject(errors, "is not a string", expected()),
        }
    }

    /// A text of 1 to `bytes_max` bytes without control characters.
    pub fn plain_text(&self, bytes_max: usize, errors: &mut Errors) -> Option<&'a str> {
        let text = self.text(bytes_max, errors)?;
        if text.chars().any(char::is_control) {
            return self.reject(errors, "contains control characters", "a string without control characters");
        }
        Some(text)
    }

    /// A text of printable ASCII without spaces, for names that are defined elsewhere.
    pub fn visible(&self, bytes_max: usize, errors: &mut Errors) -> Option<&'a str> {
        let text = self.text(bytes_max, errors)?;
        if text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Some(text);
        }
        let expected = "printable ASCII characters without spaces";
        self.reject(errors, "contains characters other than printable ASCII", expected)
    }

    /// A name that Weir shows in headers and metrics.
    pub fn name(&self, errors: &mut Errors) -> Option<String> {
        let expected = format!("1 to {NAME_BYTES_MAX} characters of A-Z, a-z, 0-9, '_', '.' and '-'");
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        match self.value {
            Value::Text(text) if (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(plain) => {
                Some(text.clone().into_owned())
            }
            _ => self.reject(errors, "is not a name", expected),
        }
    }

    /// A header's name in lower case, including pseudo headers such as `:method`.
    pub fn header_name(&self, errors: &mut Errors) -> Option<Box<[u8]>> {
        let text = self.text(HEADER_NAME_BYTES_MAX, errors)?;
        let token = text.strip_prefix(':').unwrap_or(text);
        if !token.is_empty() && token.bytes().all(is_token_byte) {
            return Some(text.to_ascii_lowercase().into_bytes().into());
        }
        self.reject(errors, "is not a header name", "a header name such as \"x-api-key\"")
    }

    /// One of several keywords.
    pub fn word<T: Copy>(&self, words: &[(&str, T)], errors: &mut Errors) -> Option<T> {
        let names: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
        let Value::Text(text) = self.value else {
            return self.reject(errors, "is not a string", list_of(&names));
        };
        match words.iter().find(|(name, _)| *name == *text) {
            Some((_, value)) => Some(*value),
            None => self.reject(errors, "is not one of its values", list_of(&names)),
        }
    }
}

/// The fields of one object.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a> {
    path: &'a Path<'a>,
    entries: &'a [(Cow<'a, str>, Value<'a>)],
}

impl<'a> Fields<'a> {
    /// The field of that name, if it is given.
    pub fn get(&self, name: &'a str) -> Option<Node<'a>> {
        let (_, value) = self.entries.iter().find(|(field, _)| field == name)?;
        Some(Node { value, path: Path::Field(self.path, name) })
    }

    /// Reports each field of `names` that is given, as it has no meaning here.
    pub fn reject_given(&self, names: &[&str], why: &str, errors: &mut Errors) {
        for name in names {
            if self.entries.iter().any(|(field, _)| field == name) {
                errors.reject::<()>(&Path::Field(self.path, name), why, "");
            }
        }
    }

    /// Reports a field as invalid, whether it is given or not.
    pub fn reject<T>(
        &self,
        name: &str,
        problem: impl Into<String>,
        expected: impl Into<String>,
        errors: &mut Errors,
    ) -> Option<T> {
        errors.reject(&Path::Field(self.path, name), problem, expected)
    }

    /// A required field. If it is missing, `expected` is reported as what is expected.
    pub fn required<T>(
        &self,
        name: &'a str,
        expected: &str,
        errors: &mut Errors,
        read: impl FnOnce(Node<'a>, &mut Errors) -> Option<T>,
    ) -> Option<T> {
        match self.get(name) {
            Some(node) => read(node, errors),
            None => errors.reject(&Path::Field(self.path, name), "it is missing", expected),
        }
    }

    /// An optional field: `Some(None)` if it is absent, `None` if it is invalid.
    pub fn optional<T>(
        &self,
        name: &'a str,
        errors: &mut Errors,
        read: impl FnOnce(Node<'a>, &mut Errors) -> Option<T>,
    ) -> Option<Option<T>> {
        match self.get(name) {
            Some(node) => read(node, errors).map(Some),
            None => Some(None),
        }
    }

    /// A field with a default.
    pub fn or<T>(
        &self,
        name: &'a str,
        default: T,
        errors: &mut Errors,
        read: impl FnOnce(Node<'a>, &mut Errors) -> Option<T>,
    ) -> Option<T> {
        self.optional(name, errors, read).map(|value| value.unwrap_or(default))
    }

    /// The only field of `names` that is given. None or several are an error.
    pub fn exactly_one<'n>(&self, names: &[&'n str], errors: &mut Errors) -> Option<&'n str> {
        let mut given =
            names.iter().copied().filter(|name| self.entries.iter().any(|(field, _)| field == name));
        let expected = || format!("exactly one of {}", list_of(names));
        match (given.next(), given.next()) {
            (Some(name), None) => Some(name),
            (Some(one), Some(other)) => {
                errors.reject(self.path, format!("both {one} and {other} are given"), expected())
            }
            _ => errors.reject(self.path, format!("none of {} is given", list_of(names)), expected()),
        }
    }

    fn reject_unknown(&self, name: &str, known: &[&str], errors: &mut Errors) {
        let neighbour = || {
            let mut others =
                NEIGHBOURS.iter().filter(|(other, field, _)| *other == name && known.contains(field));
            others.next().map(|(.., meant)| *meant)
        };
        let problem = match closest(name, known).or_else(neighbour) {
            Some(near) => format!("there is no such field; did you mean {near}?"),
            None => "there is no such field".to_string(),
        };
        let shown: String = name.chars().take(QUOTED_CHARS_MAX).flat_map(char::escape_debug).collect();
        errors.reject::<()>(&Path::Field(self.path, &shown), problem, list_of(known));
    }
}

/// "a, b or c"
fn list_of(names: &[&str]) -> String {
    match names.split_last() {
        Some((last, [])) => last.to_string(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => "no fields".to_string(),
    }
}

/// The known name that differs from `name` by one or two typing errors.
fn closest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let reach = match name.len() {
        0..=2 => return None,
        3..=4 => 1,
        5..=40 => 2,
        _ => return None,
    };
    let near = known.iter().map(|candidate| (distance(name, candidate), *candidate)).min()?;
    (near.0 <= reach).then_some(near.1)
}

/// The Levenshtein distance, ignoring case and treating `-` as `_`.
fn distance(left: &str, right: &str) -> usize {
    let fold = |byte: u8| if byte == b'-' { b'_' } else { byte.to_ascii_lowercase() };
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (line, l) in left.bytes().map(fold).enumerate() {
        let mut diagonal = line;
        let mut before = line.saturating_add(1);
        let mut cells = row.iter_mut();
        if let Some(first) = cells.next() {
            *first = before;
        }
        for (cell, r) in cells.zip(right.bytes().map(fold)) {
            let change = diagonal.saturating_add(usize::from(l != r));
            diagonal = *cell;
            *cell = change.min(before.saturating_add(1)).min(diagonal.saturating_add(1));
            before = *cell;
        }
    }
    row.last().copied().unwrap_or(usize::MAX)
}

/// The `tchar` of RFC 9110.
pub fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closest_field_is_named() {
        let known = ["limit", "window", "identifier", "on_failure"];
        for (name, expected) in [
            ("limits", Some("limit")),
            ("Limit", Some("limit")),
            ("widnow", Some("window")),
            ("identifer", Some("identifier")),
            ("on-failures", Some("on_failure")),
            ("burst", None),
            ("", None),
            ("l", None),
        ] {
            assert_eq!(closest(name, &known), expected, "{name}");
        }
    }

    #[test]
    fn the_neighbour_of_an_unknown_field_is_named() {
        let rule = ["identifier", "limit", "window", "shadow_mode", "match"];
        for (known, name, expected) in [
            (&rule[..], "shadow", "did you mean shadow_mode?"),
            (&rule, "duration", "did you mean window?"),
            (&rule, "unit", "did you mean window, such as \"1m\"?"),
            (&rule, "requests_per_unit", "did you mean limit, with a window?"),
            (&rule, "burst", "did you mean limit, all of which may be used at once?"),
            (&rule, "colour", "there is no such field; expected"),
            (&["path", "methods"], "prefix", "did you mean path.prefix?"),
            (&["threshold", "duration"], "unit", "there is no such field; expected"),
        ] {
            let value = Value::Object([(name.into(), Value::Null)].into());
            let mut errors = Errors::default();
            Node::root("", &value).object(known, &mut errors);
            let errors = errors.finish(Some(())).unwrap_err().to_string();
            assert!(errors.contains(expected), "{errors}");
        }
    }

    #[test]
    fn a_number_in_quotes_is_named() {
        let error = |text: &str, range: RangeInclusive<u64>| {
            let mut errors = Errors::default();
            Node::root("", &Value::Text(text.into())).integer(range, &mut errors);
            errors.finish(Some(())).unwrap_err().to_string()
        };
        let (all, some) = (0..=u64::MAX, 1..=5);
        assert_eq!(
            error("10", all.clone()),
            "\"10\" is a text; write it without quotes; expected a whole number, 0 or more"
        );
        assert_eq!(
            error("10k", all.clone()),
            "\"10k\" is not a whole number; expected a whole number, 0 or more"
        );
        assert!(error("08", all).contains("is not a whole number;"));
        assert!(
            error("many", some.clone())
                .contains("is not a whole number in range; expected a whole number from 1 to 5")
        );
        assert!(error("3", some).contains("is a text"));
    }

    #[test]
    fn distance_counts_edits() {
        for (left, right, expected) in
            [("", "", 0), ("a", "", 1), ("", "ab", 2), ("kitten", "sitting", 3), ("ab", "ab", 0)]
        {
            assert_eq!(distance(left, right), expected, "{left} {right}");
        }
    }
}
