//! Ports for scenarios: free ones for tests, named ones checked for the launcher.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use anyhow::{Context, Result};

/// A port that was free a moment ago. The kernel hands out each in turn, so two callers rarely meet in one.
pub fn free() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("asking for a free port")?;
    Ok(listener.local_addr()?.port())
}

/// Whether `address` can be listened on. What is wrong with it otherwise is in the error.
pub fn check_free(address: SocketAddr) -> std::io::Result<()> {
    TcpListener::bind(address).map(drop)
}

/// `port` on this machine alone.
pub fn local(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}
