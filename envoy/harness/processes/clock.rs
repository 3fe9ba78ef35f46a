//! A wall clock for processes that a test can move forwards and back while they run. Monotonic clocks are not changed,
//! as when an operator corrects the wall clock. `envoy/tools/test/clock-shim.rs` is the part inside the processes.

use std::fs::File;
use std::path::PathBuf;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicI64, Ordering};

use anyhow::{Context, Result};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use tempfile::TempDir;

use crate::processes::binaries;

const SIZE: usize = size_of::<AtomicI64>();

/// A clock that runs at normal speed, at an offset from this machine's clock.
pub struct Clock {
    // Shared with the processes and atomic, so that they read each change at once and never in part.
    offset_nanos: NonNull<AtomicI64>,
    folder: TempDir,
}

// SAFETY: all access to the shared value is atomic.
unsafe impl Send for Clock {}
// SAFETY: as above.
unsafe impl Sync for Clock {}

impl Clock {
    /// A clock with offset 0.
    pub fn new() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("weir-clock-").tempdir()?;
        let file =
            File::options().read(true).write(true).create_new(true).open(folder.path().join("offset"))?;
        file.set_len(u64::try_from(SIZE)?)?;
        // SAFETY: a new mapping of a file that is long enough, at an address that the kernel chooses.
        let mapping =
            unsafe { mmap(null_mut(), SIZE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0) };
        let mapping = NonNull::new(mapping.context("mapping the clock")?).context("mapped nowhere")?;
        Ok(Self { offset_nanos: mapping.cast(), folder })
    }

    /// Sets the offset from this machine's clock in seconds; a negative offset is in the past.
    pub fn set(&self, offset_seconds: i64) {
        // SAFETY: the mapping lives as long as this value, and starts at zero, which is a valid number.
        unsafe { self.offset_nanos.as_ref() }
            .store(offset_seconds.saturating_mul(1_000_000_000), Ordering::Relaxed);
    }

    /// The environment variables with which a process uses this clock. Several processes may share it.
    pub fn environment(&self) -> Result<Vec<(String, String)>> {
        let file: PathBuf = self.folder.path().join("offset");
        let pairs = [("LD_PRELOAD", binaries::clock_shim()?), ("WEIR_CLOCK_FILE", file)];
        Ok(pairs.map(|(name, value)| (name.to_owned(), value.display().to_string())).to_vec())
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        // SAFETY: the mapping was created with this size, and no reference to it remains.
        let _ = unsafe { munmap(self.offset_nanos.as_ptr().cast(), SIZE) };
    }
}
