//! Ports of listeners: taken at the start, so that a port in use is found at once, and opened when the program serves.

use super::error::ServeError;
use std::io;
use std::net::SocketAddr;
use tokio::net::{TcpListener, TcpSocket, lookup_host};

/// Connections that wait to be accepted, as for `TcpListener::bind`.
const BACKLOG: u32 = 1_024;

/// A port that this program has, and that refuses connections until [`Bound::listen`].
pub(super) struct Bound {
    socket: TcpSocket,
    failed: Box<dyn Fn(io::Error) -> ServeError + Send>,
}

impl Bound {
    /// Accepts connections from now on.
    pub(super) fn listen(self) -> Result<TcpListener, ServeError> {
        self.socket.listen(BACKLOG).map_err(self.failed)
    }
}

/// Binds an address, `host:port`; the errors name what it is for and the option that sets it.
pub(super) async fn bind(
    address: &str,
    purpose: &'static str,
    option: &'static str,
) -> Result<(Bound, SocketAddr), ServeError> {
    let address = address.to_owned();
    let addresses = lookup_host(address.clone()).await.map(Vec::from_iter);
    let failed = move |source| ServeError::Listen { address: address.clone(), purpose, option, source };
    let mut last = io::Error::new(io::ErrorKind::InvalidInput, "the name has no address");
    for address in addresses.map_err(&failed)? {
        match bound(address) {
            Ok((socket, bound)) => return Ok((Bound { socket, failed: Box::new(failed) }, bound)),
            Err(error) => last = error,
        }
    }
    Err(failed(last))
}

fn bound(address: SocketAddr) -> io::Result<(TcpSocket, SocketAddr)> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // As `TcpListener::bind` does: connections of a process before this one may still be closing.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    let bound = socket.local_addr()?;
    Ok((socket, bound))
}
