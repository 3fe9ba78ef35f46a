//! Files that are read again when they change: certificates, tokens.
//!
//! Contents are compared, not times: a symbolic link that is swapped, as Kubernetes does with secrets, keeps old times.
//! A change is taken once two readings in a row are equal, so that a file is not taken while it is being written, nor a
//! certificate without its new key.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

/// How often files are read.
pub const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Largest file that is read, in bytes.
pub const MAX_FILE_BYTES: u64 = 4 * 1024 * 1024;

/// The contents of several files, in the order of their paths.
pub type Contents = Vec<Vec<u8>>;

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {}: {source}", path.display())]
pub struct ReadError {
    path: PathBuf,
    source: io::Error,
}

/// Watched files, and the contents in force.
#[derive(Debug)]
pub struct Followed {
    paths: Vec<PathBuf>,
    taken: Contents,
    /// The contents at the last reading, if they were new.
    seen: Option<Contents>,
    refused: Option<Contents>,
    unreadable: Option<String>,
}

/// The result of a reading.
#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing new.
    Same,
    /// The files contain again what is in force; before this they had other contents, or could not be read.
    Back,
    /// New and stable contents. Answer with [`Followed::take`] or [`Followed::refuse`].
    Changed(Contents),
    /// The files cannot be read, for a reason not returned before.
    Unreadable(String),
}

impl Followed {
    /// Reads all files for the first time.
    pub fn open(paths: Vec<PathBuf>) -> Result<Followed, ReadError> {
        let taken = read_all(&paths)?;
        Ok(Followed { paths, taken, seen: None, refused: None, unreadable: None })
    }

    /// The contents in force.
    pub fn contents(&self) -> &Contents {
        &self.taken
    }

    /// Reads all files again. Blocks as long as their file system does.
    pub fn poll(&mut self) -> Change {
        let found = match read_all(&self.paths) {
            Ok(found) => found,
            Err(error) => return self.complain(error.to_string()),
        };
        let was_unreadable = self.unreadable.take().is_some();
        if found == self.taken {
            self.seen = None;
            let was_refused = self.refused.take().is_some();
            return if was_unreadable || was_refused { Change::Back } else { Change::Same };
        }
        if self.refused.as_ref() == Some(&found) {
            return Change::Same;
        }
        if self.seen.as_ref() == Some(&found) {
            return Change::Changed(found);
        }
        self.seen = Some(found);
        Change::Same
    }

    /// Puts these contents in force.
    pub fn take(&mut self, contents: Contents) {
        (self.taken, self.seen, self.refused) = (contents, None, None);
    }

    /// Rejects these contents; those in force stay.
    pub fn refuse(&mut self, contents: Contents) {
        (self.seen, self.refused) = (None, Some(contents));
    }

    fn complain(&mut self, reason: String) -> Change {
        self.seen = None;
        if self.unreadable.as_ref() == Some(&reason) {
            return Change::Same;
        }
        self.unreadable = Some(reason.clone());
        Change::Unreadable(reason)
    }
}

/// Watches files until the program ends. `take` puts new contents in force, or returns why it cannot. `tell` is called after
/// each change: with `Ok` if the contents of the files are in force, otherwise with the reason why not.
pub async fn follow(
    mut followed: Followed,
    mut take: impl FnMut(&Contents) -> Result<(), String>,
    mut tell: impl FnMut(Result<(), &str>),
) {
    let mut looks = interval(LOOK_INTERVAL);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let looked = spawn_blocking(move || (followed.poll(), followed)).await;
        // Fails only while the runtime shuts down.
        let Ok((poll, back)) = looked else { return };
        followed = back;
        match poll {
            Change::Same => {}
            Change::Back => tell(Ok(())),
            Change::Unreadable(reason) => tell(Err(&reason)),
            Change::Changed(contents) => match take(&contents) {
                Ok(()) => {
                    followed.take(contents);
                    tell(Ok(()));
                }
                Err(reason) => {
                    followed.refuse(contents);
                    tell(Err(&reason));
                }
            },
        }
    }
}

fn read_all(paths: &[PathBuf]) -> Result<Contents, ReadError> {
    paths
        .iter()
        .map(|path| read(path, MAX_FILE_BYTES).map_err(|source| ReadError { path: path.clone(), source }))
        .collect()
}

/// The contents of a file. A pipe, a device and a file longer than `most` bytes are errors.
pub(crate) fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    // Checked before opening, as opening a pipe would wait for its writer.
    if !path.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!("it is longer than {most} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{remove_file, write};

    #[test]
    fn what_changed_is_taken_when_it_rests_and_told_once() {
        let folder = tempfile::tempdir().unwrap();
        let paths: Vec<PathBuf> = ["a", "b"].map(|name| folder.path().join(name)).into();
        let set = |index: usize, text: &str| write(&paths[index], text).unwrap();
        set(0, "1");
        assert!(Followed::open(paths.clone()).unwrap_err().to_string().contains("/b"));
        set(1, "1");
        let mut followed = Followed::open(paths.clone()).unwrap();
        assert_eq!(followed.poll(), Change::Same);
        set(0, "2");
        assert_eq!(followed.poll(), Change::Same);
        set(1, "2");
        assert_eq!(followed.poll(), Change::Same, "it changed since the last reading");
        let both = vec![b"2".to_vec(), b"2".to_vec()];
        assert_eq!(followed.poll(), Change::Changed(both.clone()));
        followed.refuse(both.clone());
        assert_eq!((followed.poll(), followed.poll()), (Change::Same, Change::Same));
        set(0, "1");
        set(1, "1");
        assert_eq!((followed.poll(), followed.poll()), (Change::Back, Change::Same));
        set(0, "2");
        set(1, "2");
        assert_eq!((followed.poll(), followed.poll()), (Change::Same, Change::Changed(both.clone())));
        followed.take(both);
        remove_file(&paths[0]).unwrap();
        assert!(matches!(followed.poll(), Change::Unreadable(_)));
        assert_eq!(followed.poll(), Change::Same);
        set(0, "2");
        assert_eq!((followed.poll(), followed.poll()), (Change::Back, Change::Same));
        set(0, &"x".repeat(MAX_FILE_BYTES as usize + 1));
        assert!(matches!(followed.poll(), Change::Unreadable(reason) if reason.contains("longer")));
    }
}
