//! The configuration's files: read at the start, and again when they change.
//!
//! The path is a file, or a folder. As in the reference service, all files of the folder and of the folders in it are read, whatever
//! their names end with, in the order of their paths; those whose names begin with a dot are not. If files cannot be read or used, or one
//! has no domain, the former limits stay in force.

use super::config::{Domains, LimitErrors, Limits, MAX_FILE_BYTES};
use crate::net::follow::{self, Followed};
use crate::region::services::Services;
use crate::telemetry::metrics::api;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::watch;
use tracing::{error, info};

/// Most files and folders of a folder, at all depths.
const MAX_FILES: usize = 1_024;

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// A file or the folder does not exist, or cannot be read.
    #[error("{path}: cannot be read: {source}")]
    Read {
        /// The path.
        path: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The folder has too many files.
    #[error("{0} has more than {MAX_FILES} files and folders")]
    TooMany(String),
    /// The folder has no file of limits.
    #[error("{0} has no file")]
    Empty(String),
    /// The files are invalid.
    #[error("{0}")]
    Wrong(#[from] LimitErrors),
}

/// Names and texts of all files.
pub type Texts = Vec<(String, String)>;

/// The configuration in force; `None` until an xDS server has sent one.
pub type Current = watch::Receiver<Option<Arc<Limits>>>;

/// Watched files.
pub struct Files {
    path: PathBuf,
    domains: Domains,
    followed: Followed<Texts>,
    current: watch::Sender<Option<Arc<Limits>>>,
}

impl Files {
    /// Reads the files for the first time.
    pub fn open(path: PathBuf, domains: Domains) -> Result<Files, FilesError> {
        let texts = read(&path)?;
        let limits = parse(&texts, domains)?;
        info!(path = %path.display(), domains = limits.len(), "read the rate-limit service's limits");
        let read = {
            let path = path.clone();
            move || read(&path).map_err(|error| error.to_string())
        };
        Ok(Files {
            path,
            domains,
            followed: Followed::new(texts, read),
            current: watch::Sender::new(Some(Arc::new(limits))),
        })
    }

    /// The configuration in force, now and after changes.
    pub fn current(&self) -> Current {
        self.current.subscribe()
    }

    /// Watches the files until the program ends.
    pub async fn follow(self, services: Arc<Services>) {
        let Files { path, domains, followed, current } = self;
        let (path, in_force) = (path.display(), current.subscribe());
        let metrics = services.metrics.limits.clone();
        let take = move |texts: &Texts| {
            let limits = parse(texts, domains).map_err(|error| error.to_string())?;
            metrics.replace(limits.series());
            current.send_replace(Some(Arc::new(limits)));
            Ok(())
        };
        let in_force = || in_force.borrow().as_ref().map_or(0, |limits| limits.len());
        follow::follow(followed, take, |state| {
            services.status.limits.lock().read(state.ok().map(|()| in_force()), None, state.err());
            services.metrics.api.files_read(api::Files::RateLimits, state.is_ok());
            match state {
                Ok(()) => {
                    let domains = in_force();
                    info!(%path, domains, "the rate-limit service's limits changed");
                }
                Err(error) => {
                    error!(%path, error, "the rate-limit service's limits changed and cannot be used, the former limits stay in force");
                }
            }
        })
        .await;
    }
}

fn parse(texts: &Texts, domains: Domains) -> Result<Limits, LimitErrors> {
    Limits::parse(texts.iter().map(|(name, text)| (name.as_str(), text.as_str())), domains)
}

/// Reads a file, or all files of a folder.
pub fn read(path: &Path) -> Result<Texts, FilesError> {
    let failed = |path: &Path| {
        let path = path.display().to_string();
        |source| FilesError::Read { path, source }
    };
    if !path.metadata().map_err(failed(path))?.is_dir() {
        return Ok(vec![(path.display().to_string(), text(path).map_err(failed(path))?)]);
    }
    let (mut folders, mut files) = (vec![path.to_owned()], Vec::new());
    let mut found = 0;
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir().map_err(failed(&folder))? {
            let entry = entry.map_err(failed(&folder))?;
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            found += 1;
            if found > MAX_FILES {
                return Err(FilesError::TooMany(path.display().to_string()));
            }
            // Volumes of Kubernetes link folders. The system refuses a circle of links; the most files bound all else.
            let path = entry.path();
            match path.metadata().map_err(failed(&path))?.is_dir() {
                true => folders.push(path),
                false => files.push(path),
            }
        }
    }
    if files.is_empty() {
        return Err(FilesError::Empty(path.display().to_string()));
    }
    files.sort();
    files.iter().map(|file| Ok((file.display().to_string(), text(file).map_err(failed(file))?))).collect()
}

fn text(path: &Path) -> io::Result<String> {
    let bytes = follow::read(path, u64::try_from(MAX_FILE_BYTES).unwrap_or(u64::MAX))?;
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, Mode, mkfifoat};

    const LIMIT: &str = "descriptors: [{key: k, rate_limit: {unit: second, requests_per_unit: 1}}]";

    #[test]
    fn files_that_can_be_used_are_parsed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.yaml");
        let parsed = || {
            let texts = read(folder.path()).map_err(|error| error.to_string())?;
            parse(&texts, Domains::Unique).map_err(|error| error.to_string())
        };
        for broken in ["domain: [", "", "# nothing yet\n"] {
            std::fs::write(&file, broken).unwrap();
            assert!(parsed().is_err(), "{broken:?}");
        }
        std::fs::remove_file(&file).unwrap();
        mkfifoat(CWD, &file, Mode::RWXU).unwrap();
        assert!(parsed().is_err_and(|error| error.contains("not a regular file")), "a pipe does not block");
        std::fs::remove_file(&file).unwrap();
        std::fs::write(&file, format!("domain: three\n{LIMIT}")).unwrap();
        std::fs::write(folder.path().join("b.yml"), format!("domain: four\n{LIMIT}")).unwrap();
        std::fs::write(folder.path().join(".hidden.yaml"), "[").unwrap();
        // A file that is left out would leave its domain without limits.
        std::fs::write(folder.path().join("five"), format!("domain: five\n{LIMIT}")).unwrap();
        let inner = folder.path().join("more/and-more");
        std::fs::create_dir_all(&inner).unwrap();
        std::fs::write(inner.join("six.conf"), format!("domain: six\n{LIMIT}")).unwrap();
        let limits = parsed().unwrap();
        for domain in ["three", "four", "five", "six"] {
            assert!(limits.domain(domain).is_some(), "{domain}");
        }
        std::os::unix::fs::symlink(folder.path(), inner.join("circle")).unwrap();
        assert!(parsed().is_err_and(|error| error.contains("circle: cannot be read")), "no circles");
        std::fs::remove_file(inner.join("circle")).unwrap();
        std::fs::write(folder.path().join("notes.txt"), "not limits").unwrap();
        assert!(parsed().is_err_and(|error| error.contains("notes.txt: ")));
    }

    #[test]
    fn errors_name_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let error =
            |path: &Path| Files::open(path.to_owned(), Domains::Unique).map(drop).unwrap_err().to_string();
        assert!(error(&folder.path().join("none.yaml")).contains("none.yaml: cannot be read"));
        assert!(error(folder.path()).contains("has no file"));
        let empty = folder.path().join("empty.yaml");
        std::fs::write(&empty, "---\n").unwrap();
        assert!(error(&empty).contains("empty.yaml: the file has no domain"));
    }
}
