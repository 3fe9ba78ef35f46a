//! Files that are read again when they change: certificates, tokens, limits of the rate-limit service.
//!
//! Contents are compared, not times: a symbolic link that is swapped, as Kubernetes does with secrets, keeps old times.
//! A change is taken once two readings in a row are equal, so that a file is not taken while it is being written, nor a
//! certificate without its new key.

use std::fs::File;
use std::io::{self, Read as _};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

/// How often files are read.
const INTERVAL: Duration = Duration::from_secs(1);
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

/// Something that is read again and again, and its contents in force.
pub struct Followed<C> {
    read: Read<C>,
    in_force: Arc<C>,
    /// What was handled last: the contents in force, rejected contents, or why nothing could be read.
    handled: Result<Arc<C>, String>,
    /// The last reading, if it was new.
    seen: Option<Result<C, String>>,
}

type Read<C> = Box<dyn Fn() -> Result<C, String> + Send>;

impl Followed<Contents> {
    /// Reads these files for the first time.
    pub fn open(paths: Vec<PathBuf>) -> Result<Followed<Contents>, ReadError> {
        let contents = read_all(&paths)?;
        Ok(Followed::new(contents, move || read_all(&paths).map_err(|error| error.to_string())))
    }
}

impl<C: PartialEq + Send + Sync + 'static> Followed<C> {
    /// The contents in force, and how to read them again.
    pub fn new(in_force: C, read: impl Fn() -> Result<C, String> + Send + 'static) -> Followed<C> {
        let in_force = Arc::new(in_force);
        Followed { read: Box::new(read), handled: Ok(in_force.clone()), in_force, seen: None }
    }

    /// The contents in force.
    pub fn contents(&self) -> &C {
        &self.in_force
    }

    /// Reads once, and handles what was read.
    fn poll(&mut self, take: impl FnMut(&C) -> Result<(), String>) -> Option<Result<(), String>> {
        let reading = (self.read)();
        self.handle(reading, take)
    }

    /// Handles a reading. The result is `None` unless the reading is new and the second of its kind in a row. Otherwise it is
    /// whether the contents read are in force, because `take` accepted them or because they were before.
    fn handle(
        &mut self,
        reading: Result<C, String>,
        mut take: impl FnMut(&C) -> Result<(), String>,
    ) -> Option<Result<(), String>> {
        let is_handled = match (&self.handled, &reading) {
            (Ok(handled), Ok(contents)) => **handled == *contents,
            (Err(handled), Err(error)) => handled == error,
            _ => false,
        };
        if is_handled {
            self.seen = None;
            return None;
        }
        if self.seen.as_ref() != Some(&reading) {
            self.seen = Some(reading);
            return None;
        }
        self.seen = None;
        self.handled = reading.map(Arc::new);
        let contents = match &self.handled {
            Ok(contents) => contents.clone(),
            Err(reason) => return Some(Err(reason.clone())),
        };
        if contents != self.in_force {
            if let Err(reason) = take(&contents) {
                return Some(Err(reason));
            }
            self.in_force = contents;
        }
        Some(Ok(()))
    }
}

/// Watches until the program ends. `take` puts new contents in force, or returns why it cannot; parsing them may take long, so it is called
/// where it keeps no other task from running. `report` is called after each change: with `Ok` if the present contents are in force,
/// otherwise with the reason why not.
pub async fn follow<C: PartialEq + Send + Sync + 'static>(
    mut followed: Followed<C>,
    mut take: impl FnMut(&C) -> Result<(), String> + Send + 'static,
    mut report: impl FnMut(Result<(), &str>),
) {
    let mut readings = interval(INTERVAL);
    readings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        readings.tick().await;
        // Reading blocks as long as the file system does.
        let polled = spawn_blocking(move || (followed.poll(&mut take), followed, take)).await;
        let state = match polled {
            Ok((state, followed_again, take_again)) => {
                (followed, take) = (followed_again, take_again);
                state
            }
            Err(failed) if failed.is_panic() => resume_unwind(failed.into_panic()),
            // The runtime shuts down.
            Err(_) => return,
        };
        if let Some(state) = state {
            report(match &state {
                Ok(()) => Ok(()),
                Err(reason) => Err(reason),
            });
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
    use std::sync::mpsc;
    use tokio::sync::mpsc::unbounded_channel;

    /// A single thread runs all tasks here.
    #[tokio::test]
    async fn contents_that_take_long_to_parse_keep_no_other_task_from_running() {
        let (release, released) = mpsc::channel();
        let (begins, mut has_begun) = unbounded_channel();
        let (reports, mut reported) = unbounded_channel();
        let take = move |_: &u8| {
            let _ = begins.send(());
            released.recv_timeout(Duration::from_secs(10)).map_err(|error| error.to_string())
        };
        let following = follow(Followed::new(0, || Ok(1)), take, |state| {
            let _ = reports.send(state.map_err(str::to_owned));
        });
        let releasing = async {
            has_begun.recv().await;
            release.send(()).unwrap();
            reported.recv().await
        };
        tokio::select! {
            () = following => panic!("it follows until the program ends"),
            state = releasing => assert_eq!(state, Some(Ok(()))),
        }
    }

    #[test]
    fn a_change_is_taken_once_two_readings_are_equal() {
        let folder = tempfile::tempdir().unwrap();
        let paths: Vec<PathBuf> = ["a", "b"].map(|name| folder.path().join(name)).into();
        let set = |index: usize, text: &str| write(&paths[index], text).unwrap();
        set(0, "1");
        assert!(Followed::open(paths.clone()).err().unwrap().to_string().contains("/b"));
        set(1, "1");
        let mut followed = Followed::open(paths.clone()).unwrap();
        let mut poll =
            |accepted: bool| followed.poll(|_| if accepted { Ok(()) } else { Err("rejected".to_owned()) });
        let rejected = Some(Err("rejected".to_owned()));
        assert_eq!(poll(true), None);
        set(0, "2");
        assert_eq!(poll(true), None);
        set(1, "2");
        assert_eq!(poll(true), None, "it changed since the last reading");
        assert_eq!((poll(false), poll(false), poll(false)), (rejected, None, None), "reported once");
        set(0, "1");
        set(1, "1");
        assert_eq!((poll(false), poll(false), poll(false)), (None, Some(Ok(())), None), "never replaced");
        set(0, "2");
        set(1, "2");
        assert_eq!((poll(true), poll(true), poll(true)), (None, Some(Ok(())), None));
        remove_file(&paths[0]).unwrap();
        let unreadable = (poll(true), poll(true), poll(true));
        assert!(matches!(unreadable, (None, Some(Err(_)), None)), "{unreadable:?}");
        set(0, "2");
        assert_eq!((poll(false), poll(false), poll(false)), (None, Some(Ok(())), None));
        set(0, &"x".repeat(MAX_FILE_BYTES as usize + 1));
        let unreadable = (poll(true), poll(true));
        assert!(matches!(unreadable, (None, Some(Err(reason))) if reason.contains("longer")));
    }
}
