//! How a command ends: its exit code, its error, and the database that it works on.

use crate::cli::args::DatabaseUrl;
use crate::database::Database;
use std::process::ExitCode;
use std::time::Duration;

/// The exit code for arguments that cannot be used.
pub const UNUSABLE: u8 = 2;
const DAY_SECONDS: u64 = 24 * 3_600;

/// Prints an error; the exit code is `code`.
pub fn fail(error: &impl std::fmt::Display, code: u8) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::from(code)
}

/// A time as people write it: in days, as months have no fixed length.
pub fn in_days(time: Duration) -> String {
    let (days, rest) = (time.as_secs() / DAY_SECONDS, time.as_secs() % DAY_SECONDS);
    let rest = humantime::format_duration(Duration::from_secs(rest));
    match (days, rest.to_string()) {
        (0, rest) => rest,
        (days, rest) if rest == "0s" => format!("{days}d"),
        (days, rest) => format!("{days}d {rest}"),
    }
}

/// Opens the database that the arguments name, and says how `work` on it ended.
#[tokio::main(flavor = "current_thread")]
pub async fn with_database(
    url: DatabaseUrl,
    work: impl AsyncFnOnce(Database) -> anyhow::Result<()>,
) -> ExitCode {
    let options = match url.options() {
        Ok(options) => options,
        Err(error) => return fail(&error, UNUSABLE),
    };
    for warning in options.unverified() {
        eprintln!("warning: {warning}");
    }
    let database = match Database::open(&options) {
        Ok(database) => database,
        Err(error) => return fail(&error, UNUSABLE),
    };
    match work(database).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error, 1),
    }
}
