//! Exit codes and errors of the commands.

use crate::admin::text::identifier;
use std::process::ExitCode;
use std::time::Duration;

/// Exit code for invalid arguments.
pub const UNUSABLE: u8 = 2;
const DAY_SECONDS: u64 = 24 * 3_600;

/// A text of several lines without characters that a terminal would interpret: a server or a file may have chosen it.
pub fn plain_lines(text: &str) -> String {
    text.split('\n').map(|line| identifier(line.as_bytes())).collect::<Vec<_>>().join("\n")
}

/// Prints an error and returns the exit code `code`.
pub fn fail(error: &impl std::fmt::Display, code: u8) -> ExitCode {
    eprintln!("error: {}", plain_lines(&error.to_string()));
    ExitCode::from(code)
}

/// A duration in days and smaller units; humantime's months have no fixed length.
pub fn in_days(time: Duration) -> String {
    let (days, rest) = (time.as_secs() / DAY_SECONDS, time.as_secs() % DAY_SECONDS);
    let rest = humantime::format_duration(Duration::from_secs(rest));
    match (days, rest.to_string()) {
        (0, rest) => rest,
        (days, rest) if rest == "0s" => format!("{days}d"),
        (days, rest) => format!("{days}d {rest}"),
    }
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
}
