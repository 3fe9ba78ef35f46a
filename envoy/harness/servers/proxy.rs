//! A TCP proxy whose network fails on demand: between an aggregator and a store, or between an Envoy and its
//! aggregator.
//!
//! It forwards; holds back (a black hole: connections are accepted and kept, and no byte moves, as behind a cable that
//! was pulled); refuses new connections; or cuts those that there are. What the proxy holds back is delivered
//! when it forwards again, as TCP would do. A distant proxy delivers all bytes after a fixed time, however many are on their way.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::net::{Shutdown, listen, shutdown};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

use crate::processes::ports;

const BACKLOG: i32 = 1_024;
const BUFFER_BYTES: usize = 16 * 1024;
/// Most reads of a connection that are on their way in one direction.
const MAX_CHUNKS: usize = 1_024;

/// A proxy on its own port; it ends when this value is dropped, and its connections with it.
pub struct Proxy {
    port: u16,
    state: watch::Sender<State>,
    listening: watch::Receiver<bool>,
    serving: JoinHandle<()>,
}

/// How the proxy treats bytes and connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Forward,
    BlackHole,
    Refuse,
}

#[derive(Clone, Copy, Debug)]
struct State {
    mode: Mode,
    /// Connections that were accepted at a lower number must end.
    cuts: u64,
}

impl Proxy {
    /// Starts forwarding to `target`, which may start later.
    pub async fn start(target: SocketAddr) -> Result<Self> {
        Self::start_distant(target, Duration::ZERO).await
    }

    /// The same for a target that bytes reach after `one_way`, as do those in the other direction.
    pub async fn start_distant(target: SocketAddr, one_way: Duration) -> Result<Self> {
        let port = ports::free()?;
        let held = std::net::TcpListener::bind(ports::local(port)).context("starting a proxy")?;
        held.set_nonblocking(true)?;
        let (state, states) = watch::channel(State { mode: Mode::Forward, cuts: 0 });
        let (listens, listening) = watch::channel(false);
        let serving = tokio::spawn(async move {
            // The proxy then serves no clients, and the scenario's deadlines fail.
            if let Err(error) = serve(held, (target, one_way), states, listens).await {
                eprintln!("the proxy on port {port} ends: {error}");
            }
        });
        let proxy = Self { port, state, listening, serving };
        proxy.settled(true).await?;
        Ok(proxy)
    }

    /// The address to which clients connect.
    pub fn address(&self) -> SocketAddr {
        ports::local(self.port)
    }

    /// The port of [`Proxy::address`].
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Forwards everything again, beginning with the bytes that were held back.
    pub async fn forward(&self) -> Result<()> {
        self.enter(Mode::Forward).await
    }

    /// Moves no bytes from now on. Connections stay open, and new ones are accepted.
    pub async fn black_hole(&self) -> Result<()> {
        self.enter(Mode::BlackHole).await
    }

    /// Refuses new connections from now on; existing ones continue until they are [cut](Self::cut).
    pub async fn refuse(&self) -> Result<()> {
        self.enter(Mode::Refuse).await
    }

    /// Closes all existing connections on both sides. Bytes in transit are lost.
    pub fn cut(&self) {
        self.state.send_modify(|state| state.cuts += 1);
    }

    async fn enter(&self, mode: Mode) -> Result<()> {
        self.state.send_modify(|state| state.mode = mode);
        self.settled(mode != Mode::Refuse).await
    }

    async fn settled(&self, listening: bool) -> Result<()> {
        let mut listens = self.listening.clone();
        listens.wait_for(|now| *now == listening).await.context("the proxy has ended")?;
        Ok(())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Serves on the socket `held`, which has the port until the proxy ends. While the proxy refuses, the socket does not listen, so
/// that connections are refused. It is not closed and bound again: a program that another thread starts has a copy of the socket
/// until it is executed, and the port would be in use.
async fn serve(
    held: std::net::TcpListener,
    target: (SocketAddr, Duration),
    mut states: watch::Receiver<State>,
    listens: watch::Sender<bool>,
) -> io::Result<()> {
    // All connections end with this task.
    let mut connections = JoinSet::new();
    loop {
        if states.wait_for(|state| state.mode != Mode::Refuse).await.is_err() {
            return Ok(());
        }
        listen(&held, BACKLOG)?;
        let listener = TcpListener::from_std(held.try_clone()?)?;
        listens.send_replace(true);
        accept(&listener, target, &mut states, &mut connections).await;
        drop(listener);
        // Ends listening, and keeps the port.
        shutdown(&held, Shutdown::Both)?;
        listens.send_replace(false);
    }
}

/// Accepts connections until the mode is `Refuse`.
async fn accept(
    listener: &TcpListener,
    target: (SocketAddr, Duration),
    states: &mut watch::Receiver<State>,
    connections: &mut JoinSet<()>,
) {
    let watched = states.clone();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = states.wait_for(|state| state.mode == Mode::Refuse) => return,
            Some(_) = connections.join_next() => continue,
        };
        // An accept fails when file descriptors run out; the next one may succeed.
        let Ok((client, _)) = accepted else { continue };
        let mut until_cut = watched.clone();
        let cuts = until_cut.borrow().cuts;
        let carried = carry(client, target, watched.clone());
        connections.spawn(async move {
            tokio::select! {
                // An error on one side closes both, which needs no further handling.
                _ = carried => {}
                _ = until_cut.wait_for(|state| state.cuts > cuts) => {}
            }
        });
    }
}

async fn carry(
    client: TcpStream,
    (target, one_way): (SocketAddr, Duration),
    mut states: watch::Receiver<State>,
) -> io::Result<()> {
    passing(&mut states).await;
    let server = TcpStream::connect(target).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let up = pump(from_client, to_server, one_way, states.clone());
    tokio::try_join!(up, pump(from_server, to_client, one_way, states)).map(drop)
}

/// Reads on while earlier bytes are on their way. An empty chunk is the end.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    one_way: Duration,
    mut states: watch::Receiver<State>,
) -> io::Result<()> {
    let (sent, mut on_their_way) = mpsc::channel::<(Instant, Vec<u8>)>(MAX_CHUNKS);
    let read = async move {
        loop {
            let mut buffer = vec![0; BUFFER_BYTES];
            let read = from.read(&mut buffer).await?;
            buffer.truncate(read);
            if sent.send((Instant::now() + one_way, buffer)).await.is_err() || read == 0 {
                return Ok(());
            }
        }
    };
    let write = async move {
        while let Some((arrives, bytes)) = on_their_way.recv().await {
            sleep_until(arrives).await;
            passing(&mut states).await;
            if bytes.is_empty() {
                return to.shutdown().await;
            }
            to.write_all(&bytes).await?;
        }
        Ok(())
    };
    tokio::try_join!(read, write).map(drop)
}

/// Waits until the mode is not `BlackHole`.
async fn passing(states: &mut watch::Receiver<State>) {
    // An error means that the proxy was dropped, which ends this task too.
    let _ = states.wait_for(|state| state.mode != Mode::BlackHole).await;
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::time::timeout;

    use super::*;

    const SOON: Duration = Duration::from_secs(10);
    /// Long enough for a byte to arrive on one machine if it were forwarded.
    const MOMENT: Duration = Duration::from_millis(100);

    /// A server that returns the bytes that it receives.
    async fn echo() -> SocketAddr {
        let listener = TcpListener::bind(ports::local(0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.split();
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                });
            }
        });
        address
    }

    async fn answers(stream: &mut TcpStream, sent: &[u8]) -> bool {
        let mut received = vec![0; sent.len()];
        let exchange = async {
            stream.write_all(sent).await?;
            stream.read_exact(&mut received).await
        };
        exchange.await.is_ok() && received == sent
    }

    #[tokio::test]
    async fn it_forwards_holds_back_refuses_and_cuts() {
        let proxy = Proxy::start(echo().await).await.unwrap();
        let mut kept = TcpStream::connect(proxy.address()).await.unwrap();
        assert!(answers(&mut kept, b"forward").await);

        proxy.black_hole().await.unwrap();
        kept.write_all(b"held").await.unwrap();
        let mut received = [0; 4];
        assert!(timeout(MOMENT, kept.read_exact(&mut received)).await.is_err(), "no byte moves");
        let mut new = TcpStream::connect(proxy.address()).await.unwrap();
        assert!(timeout(MOMENT, answers(&mut new, b"new")).await.is_err(), "though it is accepted");
        proxy.forward().await.unwrap();
        timeout(SOON, kept.read_exact(&mut received)).await.unwrap().unwrap();
        assert_eq!(&received, b"held");

        proxy.refuse().await.unwrap();
        let refused = TcpStream::connect(proxy.address()).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        assert!(answers(&mut kept, b"goes on").await);
        proxy.cut();
        assert_eq!(timeout(SOON, kept.read(&mut received)).await.unwrap().unwrap_or(0), 0, "cut");

        proxy.forward().await.unwrap();
        let mut again = TcpStream::connect(proxy.address()).await.unwrap();
        assert!(answers(&mut again, b"the same port").await);
    }

    /// A program that another thread starts has this process's sockets until it is executed.
    #[tokio::test]
    async fn it_keeps_its_port_while_programs_are_started() {
        let ended = Arc::new(AtomicBool::new(false));
        let (starts, end) = (ended.clone(), ended);
        let starting = tokio::task::spawn_blocking(move || {
            while !starts.load(Ordering::Relaxed) {
                Command::new("true").status().unwrap();
            }
        });
        let proxy = Proxy::start(echo().await).await.unwrap();
        for _ in 0..2_000 {
            proxy.refuse().await.unwrap();
            assert!(TcpStream::connect(proxy.address()).await.is_err());
            proxy.forward().await.unwrap();
            assert!(TcpStream::connect(proxy.address()).await.is_ok());
        }
        end.store(true, Ordering::Relaxed);
        starting.await.unwrap();
    }

    #[tokio::test]
    async fn it_closes_either_side_when_the_other_has_ended() {
        let proxy = Proxy::start(echo().await).await.unwrap();
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        stream.write_all(b"last").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut received = Vec::new();
        timeout(SOON, stream.read_to_end(&mut received)).await.unwrap().unwrap();
        assert_eq!(received, b"last");

        let unreachable = Proxy::start(ports::local(ports::free().unwrap())).await.unwrap();
        let mut stream = TcpStream::connect(unreachable.address()).await.unwrap();
        assert_eq!(timeout(SOON, stream.read(&mut [0; 1])).await.unwrap().unwrap_or(0), 0);
    }

    #[tokio::test]
    async fn bytes_to_a_distant_target_arrive_after_both_ways() {
        const ONE_WAY: Duration = Duration::from_millis(60);
        let proxy = Proxy::start_distant(echo().await, ONE_WAY).await.unwrap();
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        let began = Instant::now();
        assert!(answers(&mut stream, b"hello").await);
        assert!(began.elapsed() >= 2 * ONE_WAY);
    }
}
