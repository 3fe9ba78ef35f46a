//! Options of the database: URLs and the region's name, parsed and checked before the first connection.
//!
//! A URL contains a password, so errors and `Debug` output show only its scheme and place.

use super::dialect::{self, Server, UrlError};
use std::fmt;
use std::sync::Arc;

/// Longest region name in bytes, the size of the table's column.
pub const MAX_REGION_BYTES: usize = 48;

/// Names of the options on the command line.
pub(super) const URL: &str = "--database-url";
pub(super) const READ_URL: &str = "--database-read-url";

/// Which global store to use, and for which region.
#[derive(Clone, Default)]
pub struct DatabaseOptions {
    /// `mysql://user:password@host:port/database` (MariaDB too) or `sqlite:///path/file.db`.
    pub url: String,
    /// A read replica for imports.
    pub read_url: Option<String>,
    /// The region whose rows are written, and left out of imports. May be empty for commands that do not count, such as
    /// migrate and cleanup.
    pub region: String,
}

/// Why the options are invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// The scheme is neither MySQL nor SQLite.
    #[error(
        "{option} has the scheme {scheme:?}; expected mysql://user:password@host/database or sqlite:///path/file.db"
    )]
    Scheme {
        /// The option.
        option: &'static str,
        /// The scheme of the URL.
        scheme: String,
    },
    /// The URL is malformed.
    #[error(
        "{option} cannot be read: {reason}; expected mysql://user:password@host/database or sqlite:///path/file.db"
    )]
    Malformed {
        /// The option.
        option: &'static str,
        /// What is wrong with the URL.
        reason: String,
    },
    /// The URL names a server but no database.
    #[error("{option} names no database; expected mysql://user:password@host/database")]
    NoDatabase {
        /// The option.
        option: &'static str,
    },
    /// An in-memory database cannot be shared with another process.
    #[error(
        "{option} is an SQLite database in memory, which other processes cannot access; expected sqlite:///path/file.db"
    )]
    InMemory {
        /// The option.
        option: &'static str,
    },
    /// The folder of an SQLite file does not exist, so that the file can never be opened.
    #[error("{option}: there is no folder {folder:?} for the SQLite file")]
    Folder {
        /// The option.
        option: &'static str,
        /// The folder.
        folder: String,
    },
    /// The two URLs are of different kinds of database.
    #[error("--database-read-url is no replica of --database-url: they are different kinds of database")]
    Mixed,
    /// The region's name is longer than its column.
    #[error("the region's name has {0} bytes; expected {MAX_REGION_BYTES} at most")]
    Region(usize),
}

/// A connection to another machine that does not verify the server's certificate. An attacker on the network could read
/// and change all data.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{option}: the server's certificate is not verified {why}")]
pub struct Unverified {
    /// The option.
    option: &'static str,
    /// Why, and what to do.
    why: String,
}

/// The primary, and a replica if one is set.
type Targets = (Arc<dyn Server>, Option<Arc<dyn Server>>);

impl DatabaseOptions {
    /// Checks the options.
    pub fn check(&self) -> Result<(), OptionsError> {
        self.targets().map(drop)
    }

    /// Refuses an SQLite file in a folder that does not exist.
    pub fn check_folders(&self) -> Result<(), OptionsError> {
        let (primary, replica) = self.targets()?;
        for (option, target) in [(URL, Some(primary)), (READ_URL, replica)] {
            let folder = target.as_ref().and_then(|target| target.folder());
            if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
                return Err(OptionsError::Folder { option, folder: folder.display().to_string() });
            }
        }
        Ok(())
    }

    /// The URLs of other machines whose server certificate is not verified. Empty if the options are invalid.
    pub fn unverified(&self) -> Vec<Unverified> {
        let Ok((primary, replica)) = self.targets() else { return Vec::new() };
        let targets = [(URL, Some(primary)), (READ_URL, replica)];
        let why = |(option, target): (_, Option<Arc<dyn Server>>)| {
            target?.unverified().map(|why| Unverified { option, why })
        };
        targets.into_iter().filter_map(why).collect()
    }

    pub(super) fn targets(&self) -> Result<Targets, OptionsError> {
        if self.region.len() > MAX_REGION_BYTES {
            return Err(OptionsError::Region(self.region.len()));
        }
        let primary = target(URL, &self.url)?;
        let replica = match self.read_url.as_deref().filter(|url| !url.is_empty()) {
            Some(url) => Some(target(READ_URL, url)?),
            None => None,
        };
        let system = primary.statements().system;
        match replica.as_ref().is_some_and(|replica| replica.statements().system != system) {
            true => Err(OptionsError::Mixed),
            false => Ok((primary, replica)),
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

/// The part of a URL that certainly contains no password.
fn scheme(url: &str) -> &str {
    url.split_once(':').map_or("", |(scheme, _)| scheme)
}

fn target(option: &'static str, url: &str) -> Result<Arc<dyn Server>, OptionsError> {
    let scheme = scheme(url);
    dialect::server(scheme, url).map_err(|error| match error {
        UrlError::Scheme => OptionsError::Scheme { option, scheme: scheme.to_owned() },
        UrlError::Malformed(reason) => OptionsError::Malformed { option, reason },
        UrlError::NoDatabase => OptionsError::NoDatabase { option },
        UrlError::InMemory => OptionsError::InMemory { option },
    })
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
