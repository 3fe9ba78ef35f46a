//! Ports for scenarios: free ones for tests, named ones checked for the launcher.
//!
//! A free port lies below those that the kernel gives to connections, and belongs to its process until that ends: tests that run
//! at the same time, in several processes, do not meet in one between asking and listening.

use std::collections::hash_map::RandomState;
use std::fs::{self, File};
use std::hash::BuildHasher;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::sync::Mutex;

use anyhow::{Context, Result};

/// Linux gives connections 32768 and above.
const PORTS: Range<u16> = 20_000..32_000;
/// A process takes so many at a time.
const BLOCK: u16 = 100;

/// What this process has taken.
static TAKEN: Mutex<Taken> = Mutex::new(Taken { locks: Vec::new(), left: 0..0 });

struct Taken {
    /// Of each block; they end with the process.
    locks: Vec<File>,
    /// Those that nobody has got yet.
    left: Range<u16>,
}

/// A port that nobody listens on, and that no other caller gets while this process lives.
pub fn free() -> Result<u16> {
    let mut taken = TAKEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    loop {
        if let Some(port) = taken.left.find(|port| check_free(local(*port)).is_ok()) {
            return Ok(port);
        }
        let (lock, block) = take_block()?;
        taken.locks.push(lock);
        taken.left = block;
    }
}

/// A block that no process has, looked for from a place of chance.
fn take_block() -> Result<(File, Range<u16>)> {
    let locks = std::env::temp_dir().join("weir-ports");
    fs::create_dir_all(&locks).with_context(|| locks.display().to_string())?;
    // Everybody's, if it is ours.
    let _ = fs::set_permissions(&locks, fs::Permissions::from_mode(0o1777));
    let blocks = (PORTS.end - PORTS.start) / BLOCK;
    let first = u16::try_from(RandomState::new().hash_one(()) % u64::from(blocks))?;
    for block in (first..blocks).chain(0..first) {
        let start = PORTS.start + block * BLOCK;
        let file = locks.join(start.to_string());
        // One that somebody else made can be locked all the same.
        let lock = File::open(&file).or_else(|_| File::create(&file)).context("reserving ports")?;
        if lock.try_lock().is_ok() {
            return Ok((lock, start..start + BLOCK));
        }
    }
    anyhow::bail!("all ports of {PORTS:?} are taken by tests")
}

/// Whether `address` can be listened on. What is wrong with it otherwise is in the error.
pub fn check_free(address: SocketAddr) -> std::io::Result<()> {
    TcpListener::bind(address).map(drop)
}

/// `port` on this machine alone.
pub fn local(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}
