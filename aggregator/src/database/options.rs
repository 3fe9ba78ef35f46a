//! Which database, and as which region: URLs read and checked before anything connects.
//!
//! A password stands in a URL, so no error and no `Debug` here shows more of one than its scheme and place.
//!
//! Leaves to others: connecting (`connection`), how a session is set up (`mysql`, `sqlite`).

use super::connection::Target;
use sqlx::mysql::{MySqlConnectOptions, MySqlSslMode};
use sqlx::sqlite::SqliteConnectOptions;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Longest name of a region in bytes: what the table's column holds.
pub const MAX_REGION_BYTES: usize = 48;

/// The options as people give them.
pub(super) const URL: &str = "--database-url";
pub(super) const READ_URL: &str = "--database-read-url";

/// Which global store to use, and as whom.
#[derive(Clone, Default)]
pub struct DatabaseOptions {
    /// `mysql://user:password@host:port/database` (MariaDB too) or `sqlite:///path/file.db`.
    pub url: String,
    /// A read replica for imports.
    pub read_url: Option<String>,
    /// Whose rows are written, and left out of what is imported. May be empty where nothing is counted: to migrate
    /// and to clean up.
    pub region: String,
}

/// Why options cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// Neither MySQL nor SQLite.
    #[error(
        "{option} has the scheme {scheme:?}; expected mysql://user:password@host/database or sqlite:///path/file.db"
    )]
    Scheme {
        /// Which URL.
        option: &'static str,
        /// What it begins with.
        scheme: String,
    },
    /// Not a URL of its scheme.
    #[error(
        "{option} cannot be read: {reason}; expected mysql://user:password@host/database or sqlite:///path/file.db"
    )]
    Malformed {
        /// Which URL.
        option: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The URL names a server and none of its databases.
    #[error("{option} names no database; expected mysql://user:password@host/database")]
    NoDatabase {
        /// Which URL.
        option: &'static str,
    },
    /// A database that ends with its process cannot be shared.
    #[error(
        "{option} is an SQLite database in memory, which no other process sees; expected sqlite:///path/file.db"
    )]
    InMemory {
        /// Which URL.
        option: &'static str,
    },
    /// One is MySQL, the other SQLite.
    #[error("--database-read-url is no replica of --database-url: one is MySQL, the other SQLite")]
    Mixed,
    /// The region's name does not fit into its column.
    #[error("the region's name has {0} bytes; expected {MAX_REGION_BYTES} at most")]
    Region(usize),
}

/// A connection to another machine that does not verify the server. An attacker between the two can read and change all
/// that is sent.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error(
    "{option}: the server's certificate is not verified (ssl-mode {mode:?}); append \
     ?ssl-mode=VERIFY_IDENTITY&ssl-ca=/path/ca.pem to the URL"
)]
pub struct Unverified {
    /// Which URL.
    option: &'static str,
    mode: MySqlSslMode,
}

impl DatabaseOptions {
    /// Whether they can be used.
    pub fn check(&self) -> Result<(), OptionsError> {
        self.targets().map(drop)
    }

    /// The URLs that lead to another machine without a verified server. Empty where the options cannot be used.
    pub fn unverified(&self) -> Vec<Unverified> {
        let Ok((primary, replica)) = self.targets() else { return Vec::new() };
        let targets = [(URL, Some(primary)), (READ_URL, replica)];
        targets.into_iter().filter_map(|(option, target)| unverified(option, &target?)).collect()
    }

    pub(super) fn targets(&self) -> Result<(Target, Option<Target>), OptionsError> {
        if self.region.len() > MAX_REGION_BYTES {
            return Err(OptionsError::Region(self.region.len()));
        }
        let primary = target(URL, &self.url)?;
        let replica = match self.read_url.as_deref().filter(|url| !url.is_empty()) {
            Some(url) => Some(target(READ_URL, url)?),
            None => None,
        };
        match (&primary, &replica) {
            (Target::MySql(_), Some(Target::Sqlite(_))) | (Target::Sqlite(_), Some(Target::MySql(_))) => {
                Err(OptionsError::Mixed)
            }
            _ => Ok((primary, replica)),
        }
    }
}

impl fmt::Debug for DatabaseOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatabaseOptions")
            .field("url", &scheme(&self.url))
            .field("read_url", &self.read_url.as_deref().map(scheme))
            .field("region", &self.region)
            .finish()
    }
}

fn unverified(option: &'static str, target: &Target) -> Option<Unverified> {
    let Target::MySql(options) = target else { return None };
    let mode = options.get_ssl_mode();
    let verifies = matches!(mode, MySqlSslMode::VerifyCa | MySqlSslMode::VerifyIdentity);
    let host = options.get_host().trim_start_matches('[').trim_end_matches(']');
    let is_loopback = host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback());
    let is_local = options.get_socket().is_some() || is_loopback;
    (!verifies && !is_local).then_some(Unverified { option, mode })
}

/// All of a URL that is certain to hold no password.
fn scheme(url: &str) -> &str {
    url.split_once(':').map_or("", |(scheme, _)| scheme)
}

fn target(option: &'static str, url: &str) -> Result<Target, OptionsError> {
    // The errors behind say what is wrong with a URL, never what is in it.
    let malformed = |error: sqlx::Error| OptionsError::Malformed { option, reason: error.to_string() };
    match scheme(url) {
        "mysql" | "mariadb" => {
            let options = MySqlConnectOptions::from_str(url).map_err(malformed)?;
            if options.get_database().is_none_or(str::is_empty) {
                return Err(OptionsError::NoDatabase { option });
            }
            Ok(Target::MySql(Box::new(super::connection::mysql::session(options))))
        }
        "sqlite" => {
            if url.contains(":memory:") || url.contains("mode=memory") {
                return Err(OptionsError::InMemory { option });
            }
            let options = SqliteConnectOptions::from_str(url).map_err(malformed)?;
            Ok(Target::Sqlite(Box::new(super::connection::sqlite::session(options))))
        }
        scheme => Err(OptionsError::Scheme { option, scheme: scheme.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(url: &str, read_url: Option<&str>) -> DatabaseOptions {
        DatabaseOptions { url: url.to_owned(), read_url: read_url.map(str::to_owned), region: "r".to_owned() }
    }

    #[test]
    fn urls() {
        let cases = [
            ("mysql://u:geheim@h/d", None, Ok(())),
            ("mariadb://u:geheim@h:3307/d?ssl-mode=REQUIRED", Some("mysql://u:geheim@h2/d"), Ok(())),
            ("sqlite:///tmp/weir.db", None, Ok(())),
            ("sqlite:///tmp/weir.db", Some(""), Ok(())),
            ("mysql://u:geheim@h", None, Err("no database")),
            ("mysql://u:geheim@h:port/d", None, Err("--database-url cannot be read")),
            ("mysql://u:geheim@h/d?ssl-mode=geheim", None, Err("cannot be read")),
            ("postgres://u:geheim@h/d", None, Err("\"postgres\"")),
            ("u:geheim@h/d", None, Err("scheme \"u\"")),
            ("geheim", None, Err("scheme \"\"")),
            ("", None, Err("scheme \"\"")),
            ("sqlite::memory:", None, Err("in memory")),
            ("sqlite://?mode=memory", None, Err("in memory")),
            ("mysql://u:geheim@h/d", Some("sqlite:///tmp/weir.db"), Err("no replica")),
            ("mysql://u:geheim@h/d", Some("mysql://u:geheim@h"), Err("--database-read-url")),
        ];
        for (url, read_url, expected) in cases {
            let options = options(url, read_url);
            let targets = options.targets();
            assert!(
                !format!("{options:?} {targets:?}").contains("u:geheim"),
                "{url}: {options:?} {targets:?}"
            );
            match (targets, expected) {
                (Ok(_), Ok(())) => {}
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{url}: {error}"),
                (targets, _) => panic!("{url}: {targets:?}"),
            }
        }
        let region = "r".repeat(MAX_REGION_BYTES + 1);
        let long = DatabaseOptions { region, ..options("sqlite:///tmp/weir.db", None) };
        assert_eq!(long.targets().err(), Some(OptionsError::Region(49)));
    }

    #[test]
    fn a_server_elsewhere_is_verified_or_warned_of() {
        let cases = [
            ("mysql://u:secret@db.internal/d", None, 1),
            ("mysql://u:secret@db.internal/d?ssl-mode=DISABLED", None, 1),
            ("mysql://u:secret@10.0.0.1/d?ssl-mode=REQUIRED", Some("mysql://u:secret@r/d"), 2),
            ("mysql://u:secret@db.internal/d?ssl-mode=VERIFY_CA", None, 0),
            ("mysql://u:secret@db.internal/d?ssl-mode=VERIFY_IDENTITY", Some("mysql://u:secret@r/d"), 1),
            ("mysql://u:secret@localhost/d", Some("mysql://u:secret@127.0.0.1/d"), 0),
            ("mysql://u:secret@[::1]/d", None, 0),
            ("mysql://u:secret@db/d?socket=/run/mysqld.sock", None, 0),
            ("sqlite:///tmp/weir.db", None, 0),
            ("postgres://u:secret@h/d", None, 0),
        ];
        for (url, read_url, expected) in cases {
            let warnings = options(url, read_url).unverified();
            assert_eq!(warnings.len(), expected, "{url}: {warnings:?}");
            let texts: Vec<String> = warnings.iter().map(ToString::to_string).collect();
            assert!(texts.iter().all(|text| text.contains("url: ") && !text.contains("secret")), "{texts:?}");
        }
    }
}
