//! Exit codes and errors of the commands.

use std::process::ExitCode;
use std::time::Duration;

/// Exit code for invalid arguments.
pub const UNUSABLE: u8 = 2;
const DAY_SECONDS: u64 = 24 * 3_600;

/// Prints an error and returns the exit code `code`.
pub fn fail(error: &impl std::fmt::Display, code: u8) -> ExitCode {
    eprintln!("error: {error}");
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
