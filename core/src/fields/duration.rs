//! Durations: `"90s"`, or a whole number of milliseconds.

use super::errors::Errors;
use super::reader::Node;
use super::value::Value;
use crate::model::key::{MAX_DURATION_MS, MIN_DURATION_MS};
use alloc::format;
use alloc::string::String;

/// The range of durations that a field allows, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// The shortest.
    pub min_ms: u64,
    /// The longest.
    pub max_ms: u64,
    /// An example as text.
    pub example: &'static str,
}

impl Span {
    /// A window.
    pub const WINDOW: Span = Span { min_ms: MIN_DURATION_MS, max_ms: MAX_DURATION_MS, example: "1m" };

    /// Reads a field's value in milliseconds.
    pub fn read(&self, node: Node<'_>, errors: &mut Errors) -> Option<u64> {
        let parsed = match node.value {
            Value::Text(text) => parse_ms(text).or_else(|| node.value.as_integer()),
            other => other.as_integer(),
        };
        match parsed {
            Some(ms) if (self.min_ms..=self.max_ms).contains(&ms) => Some(ms),
            Some(_) => node.reject(errors, "is out of range", self.expected()),
            None => node.reject(errors, "is not a duration", self.expected()),
        }
    }

    fn expected(&self) -> String {
        let (min, max) = (written(self.min_ms), written(self.max_ms));
        format!(
            "a number with ms, s, m, h or d between {min} and {max}, such as \"{}\" (or whole milliseconds)",
            self.example
        )
    }
}

/// Milliseconds of `"250ms"`, `"1s"`, `"5m"`, `"2h"`, `"31d"`: digits and one unit, with nothing between.
pub fn parse_ms(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at_checked(digits)?;
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit_ms)
}

/// A duration as [`parse_ms`] reads it, in the largest unit that divides it: `90s`, `31d`.
pub fn written(ms: u64) -> String {
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")];
    let fitting = units.into_iter().find(|(unit_ms, _)| ms > 0 && ms.is_multiple_of(*unit_ms));
    let (unit_ms, unit) = fitting.unwrap_or((1, "ms"));
    format!("{}{unit}", ms / unit_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_written_as_it_is_read() {
        for (ms, expected) in [
            (0, "0ms"),
            (250, "250ms"),
            (1_000, "1s"),
            (90_000, "90s"),
            (5_400_000, "90m"),
            (86_400_000, "1d"),
            (2_678_400_000, "31d"),
            (u64::MAX, "18446744073709551615ms"),
        ] {
            assert_eq!(written(ms), expected);
            assert_eq!(parse_ms(expected), Some(ms));
        }
    }

    /// Envoy's YAML parser writes milliseconds as strings from 2147483648 on, and if they have a point or an exponent.
    #[test]
    fn milliseconds_as_a_string_are_read() {
        const SPAN: Span = Span { min_ms: 1, max_ms: 2_678_400_000, example: "1m" };
        for (text, expected) in [
            ("2678400000", Some(2_678_400_000)),
            ("6e4", Some(60_000)),
            ("60000.0", Some(60_000)),
            ("5", None),
        ] {
            let value = Value::Text(text.into());
            let read = SPAN.read(Node::root("window", &value), &mut Errors::default());
            assert_eq!(read, expected, "{text}");
        }
    }

    #[test]
    fn durations() {
        for (text, expected) in [
            ("0ms", Some(0)),
            ("250ms", Some(250)),
            ("1s", Some(1_000)),
            ("5m", Some(300_000)),
            ("2h", Some(7_200_000)),
            ("31d", Some(2_678_400_000)),
            ("007s", Some(7_000)),
            ("", None),
            ("s", None),
            ("5", None),
            ("5x", None),
            ("5 s", None),
            ("+5s", None),
            ("-5s", None),
            ("1.5s", None),
            ("1m30s", None),
            ("5S", None),
            ("٥s", None),
            ("99999999999999999999s", None),
            ("18446744073709551615d", None),
        ] {
            assert_eq!(parse_ms(text), expected, "{text:?}");
        }
    }
}
