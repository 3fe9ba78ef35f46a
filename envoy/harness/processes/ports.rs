//! Ports for scenarios: free ports for tests, and checks of fixed ports for the launcher.
//!
//! A free port is below the range that the kernel assigns to outgoing connections. It is reserved for its process until
//! that ends, so tests in several processes do not choose the same port between the check and the bind.

use std::collections::hash_map::RandomState;
use std::fs::{self, File};
use std::hash::BuildHasher;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::sync::Mutex;

use anyhow::{Context, Result};
use tokio::net::TcpSocket;

/// Below 32768, where Linux's ephemeral ports begin.
const PORTS: Range<u16> = 20_000..32_000;
/// Number of ports that a process reserves at a time.
const BLOCK: u16 = 100;

/// The ports that this process has reserved.
static TAKEN: Mutex<Taken> = Mutex::new(Taken { locks: Vec::new(), left: 0..0 });

struct Taken {
    /// A lock for each block; the locks end with the process.
    locks: Vec<File>,
    /// The ports of the last block that have not been handed out.
    left: Range<u16>,
}

/// A port without a listener. No other caller receives it while this process lives.
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

/// Reserves a block that no other process has, searching from a random start.
fn take_block() -> Result<(File, Range<u16>)> {
    let locks = std::env::temp_dir().join("weir-ports");
    fs::create_dir_all(&locks).with_context(|| locks.display().to_string())?;
    // Makes the folder writable for all users, if this user owns it.
    let _ = fs::set_permissions(&locks, fs::Permissions::from_mode(0o1777));
    let blocks = (PORTS.end - PORTS.start) / BLOCK;
    let first = u16::try_from(RandomState::new().hash_one(()) % u64::from(blocks))?;
    for block in (first..blocks).chain(0..first) {
        let start = PORTS.start + block * BLOCK;
        let file = locks.join(start.to_string());
        // A lock file of another user can be opened for reading, which suffices to lock it.
        let lock = File::open(&file).or_else(|_| File::create(&file)).context("reserving ports")?;
        if lock.try_lock().is_ok() {
            return Ok((lock, start..start + BLOCK));
        }
    }
    anyhow::bail!("all ports of {PORTS:?} are taken by tests")
}

/// Checks that `address` can be bound; otherwise returns the error. The socket does not listen: a program that another thread
/// starts at this moment has it too until it is executed, and must not accept connections.
pub fn check_free(address: SocketAddr) -> std::io::Result<()> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Nor may such a socket keep others from the port.
    socket.set_reuseaddr(true)?;
    socket.bind(address)
}

/// `port` on the loopback address.
pub fn local(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;
    use std::net::{TcpListener, TcpStream};
    use std::process::Command;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    /// A program that another thread starts has this process's sockets until it is executed.
    #[test]
    fn a_free_port_refuses_connections_while_programs_are_started() {
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    Command::new("true").status().unwrap();
                }
            });
            let port = local(free().unwrap());
            let refused = |_: &u32| {
                let connected = check_free(port).and_then(|()| TcpStream::connect(port));
                connected.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
            };
            let count = (0..4_000).filter(refused).count();
            ended.store(true, Ordering::Relaxed);
            assert_eq!(count, 4_000);
        });
    }

    #[test]
    fn a_port_with_a_listener_is_not_free() {
        for address in [(Ipv4Addr::LOCALHOST, 0), (Ipv4Addr::UNSPECIFIED, 0)] {
            let listener = TcpListener::bind(address).unwrap();
            let port = local(listener.local_addr().unwrap().port());
            assert_eq!(check_free(port).unwrap_err().kind(), ErrorKind::AddrInUse);
        }
    }
}
