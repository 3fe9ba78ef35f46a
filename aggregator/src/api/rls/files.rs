//! The configuration's files: read at the start, and again when they change.
//!
//! The path is a file, or a folder whose `.yaml` and `.yml` files are read in the order of their names. Contents are compared
//! each second, not times of change: these are not reliable if links are swapped or two changes share one timestamp. A
//! change is taken once two readings in a row are equal, so a file is not taken while it is being written. If files cannot
//! be read or used, or one has no domain, the former limits stay in force.

use super::config::{Errors, Limits, MAX_FILE_BYTES};
use crate::net::follow;
use crate::region::services::Services;
use crate::telemetry::metrics::api;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::{error, info};

/// Time between two readings.
const PAUSE: Duration = Duration::from_secs(1);
/// Most files of a folder.
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
    #[error("{0} has more than {MAX_FILES} files")]
    TooMany(String),
    /// The folder has no file of limits.
    #[error("{0} has no .yaml or .yml file")]
    Empty(String),
    /// The files are invalid.
    #[error("{0}")]
    Wrong(#[from] Errors),
}

/// Names and texts of all files.
type Texts = Vec<(String, String)>;

/// The configuration in force.
pub type Current = watch::Receiver<Arc<Limits>>;

/// Watched files.
pub struct Files {
    path: PathBuf,
    /// The last contents accepted or rejected, or why they could not be read.
    last: Result<Texts, String>,
    /// The result of the last reading, if it was new.
    seen: Option<Result<Texts, String>>,
    current: watch::Sender<Arc<Limits>>,
}

impl Files {
    /// Reads the files for the first time.
    pub fn open(path: PathBuf) -> Result<Files, FilesError> {
        let texts = read(&path)?;
        let limits = parse(&texts)?;
        info!(path = %path.display(), domains = limits.len(), "read the rate-limit service's limits");
        Ok(Files { path, last: Ok(texts), seen: None, current: watch::Sender::new(Arc::new(limits)) })
    }

    /// The configuration in force, now and after changes.
    pub fn current(&self) -> Current {
        self.current.subscribe()
    }

    /// Watches the files until the program ends.
    pub async fn follow(mut self, services: Arc<Services>) {
        loop {
            sleep(PAUSE).await;
            let path = self.path.clone();
            // A reading that panicked has no result.
            let Ok(texts) = spawn_blocking(move || read(&path)).await else { continue };
            if let Some(good) = self.take(texts) {
                services.metrics.api.files_read(api::Files::RateLimits, good);
            }
        }
    }

    /// Takes the result of a reading. `None` if it is not new or not yet stable, otherwise whether it is valid.
    fn take(&mut self, texts: Result<Texts, FilesError>) -> Option<bool> {
        let new = texts.map_err(|error| error.to_string());
        if new == self.last {
            self.seen = None;
            return None;
        }
        if self.seen.as_ref() != Some(&new) {
            self.seen = Some(new);
            return None;
        }
        self.seen = None;
        let limits = match &new {
            Ok(texts) => parse(texts).map_err(|error| error.to_string()),
            Err(error) => Err(error.clone()),
        };
        self.last = new;
        let path = self.path.display();
        match limits {
            Ok(limits) => {
                info!(%path, domains = limits.len(), "the rate-limit service's limits changed");
                self.current.send_replace(Arc::new(limits));
                Some(true)
            }
            Err(error) => {
                error!(%path, %error, "the rate-limit service's limits changed and cannot be used, the former limits stay in force");
                Some(false)
            }
        }
    }
}

fn parse(texts: &Texts) -> Result<Limits, Errors> {
    Limits::parse(texts.iter().map(|(name, text)| (name.as_str(), text.as_str())))
}

fn read(path: &Path) -> Result<Texts, FilesError> {
    let failed = |path: &Path| {
        let path = path.display().to_string();
        |source| FilesError::Read { path, source }
    };
    if !path.metadata().map_err(failed(path))?.is_dir() {
        return Ok(vec![(path.display().to_string(), text(path).map_err(failed(path))?)]);
    }
    let mut files = Vec::new();
    for entry in path.read_dir().map_err(failed(path))? {
        let file = entry.map_err(failed(path))?.path();
        let hidden = file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if !hidden && file.extension().is_some_and(|end| end == "yaml" || end == "yml") {
            files.push(file);
        }
        if files.len() > MAX_FILES {
            return Err(FilesError::TooMany(path.display().to_string()));
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
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    const LIMIT: &str = "descriptors: [{key: k, rate_limit: {unit: second, requests_per_unit: 1}}]";

    #[test]
    fn a_broken_file_leaves_in_force_what_was() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.yaml");
        let write = |domain: &str| std::fs::write(&file, format!("domain: {domain}\n{LIMIT}")).unwrap();
        write("one");
        let mut files = Files::open(folder.path().to_owned()).unwrap();
        let current = files.current();
        let mut look = || files.take(read(folder.path()));
        let knows = |domain: &str| current.borrow().domain(domain).is_some();
        assert_eq!((look(), look(), knows("one")), (None, None, true), "nothing new");
        write("two");
        assert_eq!((look(), knows("one")), (None, true), "it may be partly written");
        assert_eq!((look(), knows("one"), knows("two")), (Some(true), false, true));
        write("other");
        assert_eq!(look(), None);
        write("two");
        assert_eq!((look(), look(), knows("two")), (None, None, true));
        for broken in ["domain: [", "", "# nothing yet\n"] {
            std::fs::write(&file, broken).unwrap();
            assert_eq!((look(), look(), knows("two")), (None, Some(false), true), "{broken:?}");
            assert_eq!((look(), look()), (None, None), "reported once");
        }
        std::fs::remove_file(&file).unwrap();
        assert_eq!((look(), look(), knows("two")), (None, Some(false), true));
        mkfifo(&file, Mode::S_IRWXU).unwrap();
        assert_eq!((look(), look(), knows("two")), (None, Some(false), true), "a pipe does not block");
        std::fs::remove_file(&file).unwrap();
        write("three");
        std::fs::write(folder.path().join("b.yml"), format!("domain: four\n{LIMIT}")).unwrap();
        std::fs::write(folder.path().join(".hidden.yaml"), "[").unwrap();
        std::fs::write(folder.path().join("notes.txt"), "[").unwrap();
        assert_eq!((look(), look(), knows("three"), knows("four")), (None, Some(true), true, true));
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let said = |path: &Path| Files::open(path.to_owned()).map(drop).unwrap_err().to_string();
        assert!(said(&folder.path().join("none.yaml")).contains("none.yaml: cannot be read"));
        assert!(said(folder.path()).contains("has no .yaml or .yml file"));
        let empty = folder.path().join("empty.yaml");
        std::fs::write(&empty, "---\n").unwrap();
        assert!(said(&empty).contains("empty.yaml: the file has no domain"));
    }
}
