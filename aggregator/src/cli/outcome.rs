//! Exit codes and errors of the commands.

use crate::telemetry::text::{identifier, is_seen};
use std::fmt::{Display, Write};
use std::io::Write as _;
use std::process::ExitCode;

/// Exit code for invalid arguments.
pub const UNUSABLE: u8 = 2;

/// A text of several lines without characters that a terminal would interpret: a server or a file may have chosen it.
pub fn plain_lines(text: &str) -> String {
    text.split('\n').map(|line| identifier(line.as_bytes())).collect::<Vec<_>>().join("\n")
}

/// The same JSON without characters that a terminal would interpret, which it has in strings alone.
pub fn plain_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for character in json.chars() {
        match is_seen(character) || character == '\n' {
            true => out.push(character),
            // All of these have one unit in UTF-16. Writing to a `String` cannot fail.
            false => drop(write!(out, "\\u{:04x}", u32::from(character))),
        }
    }
    out
}

/// Prints a line to the standard output. Nobody may read it any more, as behind `| head -1`; that is no failure of the command.
pub fn print(line: &impl Display) {
    drop(writeln!(std::io::stdout(), "{line}"));
}

/// The same to the standard error.
pub fn print_error(line: &impl Display) {
    drop(writeln!(std::io::stderr(), "{line}"));
}

/// Prints an error and returns the exit code `code`.
pub fn fail(error: &impl Display, code: u8) -> ExitCode {
    print_error(&format_args!("error: {}", plain_lines(&error.to_string())));
    ExitCode::from(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_moves_no_cursor() {
        assert_eq!(
            plain_lines("a\x1b[2J\u{9b}1m\u{202e}b\r\n\nc"),
            "a\\u{1b}[2J\\u{9b}1m\\u{202e}b\\u{d}\n\nc"
        );
    }

    #[test]
    fn json_that_is_shown_moves_no_cursor_and_is_the_same() {
        let value = serde_json::json!({"zo\u{eb}\u{202e}": ["\u{9b}2J\u{7f}\u{85}\u{2066}b", "\u{1b}\n\u{1f600}", 7]});
        for text in [value.to_string(), format!("{value:#}")] {
            let plain = plain_json(&text);
            assert!(plain.chars().all(|one| one == '\n' || is_seen(one)), "{plain}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&plain).unwrap(), value);
        }
        assert_eq!(plain_json("\"a\u{9b}\u{202e}\""), r#""a\u009b\u202e""#);
    }
}
