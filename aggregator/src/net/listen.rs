//! Connections, from the socket to those who serve them: bounded in number, over TLS where that is set up, and cut when
//! their peers stall.
//!
//! Each connection shakes hands in a task of its own, so nobody waits for a peer that is slow to. What a peer may take
//! its time with, and for how long, is its API's [`Patience`]:
//!
//! ```text
//! TLS handshake ─ idle ─ first byte of a request … its head is whole ─ served ─ answer written ─ idle ─ …
//!   handshake      idle        head                                  (its API)     write
//! ```
//!
//! Leaves to others: how many there are, and which gives way ([`places`]); certificates (`tls`), what is served (`serve`,
//! `admin`, `api::http`).

mod places;

use crate::net::tls::{CertificateNames, Protocol, Tls};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::throttle::Throttle;
use prometheus_client::metrics::gauge::Gauge;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout};
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;
use tracing::{debug, warn};

use places::{Entry, Place, Places};

pub use places::{most_of_address, peer_of};

/// How long a peer may take for a TLS handshake.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two warnings of connections that cannot be accepted.
const BETWEEN_WARNINGS: Duration = Duration::from_secs(5);
/// How often a full listener looks whether a connection gives way by now.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);
/// What an HTTP/2 client sends first (RFC 9113, section 3.4), in bytes.
const PREFACE_BYTES: usize = 24;

/// A bound socket, and how its connections are treated.
pub struct Listener {
    /// The name of the API in metrics.
    pub api: &'static str,
    /// The socket.
    pub socket: TcpListener,
    /// Who shakes hands; nobody without TLS.
    pub tls: Option<Arc<Tls>>,
    /// What is spoken.
    pub protocol: Protocol,
    /// Most connections at one time, those that still shake hands included, and half as many of one address. A further
    /// one takes the place of the oldest that gives way (see [`Turn`]). Where none does, it waits to be accepted, or is
    /// closed where its address has its half.
    pub max_connections: usize,
    /// When connections are cut.
    pub patience: Patience,
}

/// How long a connection's peer may take.
#[derive(Clone, Copy, Debug)]
pub enum Patience {
    /// For HTTP/2: for the preface. What comes after it, keepalive and the streams look after.
    Preface(Duration),
    /// For HTTP/1.1: for each part of an exchange.
    Exchange {
        /// Between an answer and the first byte of the next request.
        idle: Duration,
        /// From there until the request's head is whole.
        head: Duration,
        /// Until an answer that does not fit into the system's buffers is written.
        write: Duration,
    },
}

/// Whose turn it is on a connection: its peer's, or its API's while that serves a request; and whether the API has
/// admitted the peer. While it is the turn of a peer that is not admitted, the connection gives way to others.
#[derive(Debug, Default)]
pub struct Turn {
    number: AtomicU32,
    admitted: AtomicBool,
}

/// What a service learns of the connection that a call comes on.
#[derive(Clone, Debug)]
pub struct ConnectionInfo {
    /// Where it comes from; unknown once it has ended.
    pub address: Option<SocketAddr>,
    /// To admit its peer.
    pub turn: Arc<Turn>,
    /// The names in its peer's certificate.
    pub certificate: CertificateNames,
}

/// A connection that is served.
pub struct Connection {
    stream: Stream,
    turn: Arc<Turn>,
    /// Completes when the connection gives way to another.
    gives_way: oneshot::Receiver<()>,
    reading: Reading,
    write_timeout: Option<Duration>,
    write_until: Option<Instant>,
    read_timer: Timer,
    write_timer: Timer,
    _slot: Slot,
}

/// One of the connections that an API has at a time.
struct Slot {
    open: Gauge,
    _place: Place,
}

enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// What the peer is expected to send.
enum Reading {
    /// Nothing by any time.
    Free,
    Preface {
        bytes_left: usize,
        until: Instant,
    },
    Exchange {
        idle: Duration,
        head: Duration,
        /// The turn that `until` is for.
        turn: u32,
        until: Option<Instant>,
        began: bool,
    },
}

impl Listener {
    /// Accepts connections and serves each in a task of its own until `ending` completes, then waits for those that are
    /// left.
    pub async fn run<S, F>(self, metrics: Arc<Metrics>, ending: impl Future<Output = ()>, serve: S)
    where
        S: Fn(Connection) -> F + Clone + Send + 'static,
        F: Future<Output = ()> + Send,
    {
        let places = Places::new(self.max_connections);
        tokio::select! {
            () = self.accept(&places, metrics, serve) => {}
            () = ending => {}
        }
        drop(self.socket);
        places.emptied().await;
    }

    async fn accept<S, F>(&self, places: &Arc<Places>, metrics: Arc<Metrics>, serve: S)
    where
        S: Fn(Connection) -> F + Clone + Send + 'static,
        F: Future<Output = ()> + Send,
    {
        let warnings = Throttle::new(BETWEEN_WARNINGS);
        loop {
            let (socket, address) = match self.socket.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    // No more file descriptors, perhaps; connections that end give some back.
                    if let Some(held_back) = warnings.pass() {
                        warn!(%error, api = self.api, held_back, "could not accept a connection");
                    }
                    sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let (api, patience, protocol) = (self.api, self.patience, self.protocol);
            let (tls, metrics, serve) = (self.tls.clone(), metrics.clone(), serve.clone());
            let turn = Arc::<Turn>::default();
            let Some((place, mut gives_way, displaced)) = self.place(places, address, &turn).await else {
                metrics.api.connection_refused(api);
                if let Some(held_back) = warnings.pass() {
                    warn!(%address, api, held_back, "closed a connection: its address has half of all, each in use");
                }
                continue;
            };
            if displaced {
                metrics.api.connection_evicted(api);
            }
            let slot = Slot::new(place, metrics.api.connections(api));
            tokio::spawn(async move {
                let opened = tokio::select! {
                    opened = open(socket, tls.as_deref(), protocol) => opened,
                    Ok(()) = &mut gives_way => return,
                };
                match opened {
                    Ok(stream) => serve(Connection::new(stream, patience, turn, gives_way, slot)).await,
                    Err(error) => {
                        metrics.api.handshake_failed(api);
                        debug!(%error, api, "a TLS handshake failed");
                    }
                }
            });
        }
    }
}

impl Listener {
    /// Waits for a place. Nothing if the address has as many as it may have.
    async fn place(
        &self,
        places: &Arc<Places>,
        address: SocketAddr,
        turn: &Arc<Turn>,
    ) -> Option<(Place, oneshot::Receiver<()>, bool)> {
        loop {
            match places.enter(address.ip(), turn.clone()) {
                Entry::Placed(place, gives_way, displaced) => return Some((place, gives_way, displaced)),
                Entry::AddressFull => return None,
                // A connection that gives way by then is as good as one that has ended.
                Entry::Full => drop(timeout(BETWEEN_LOOKS, places.freed()).await),
            }
        }
    }
}

impl Slot {
    fn new(place: Place, open: Gauge) -> Slot {
        open.inc();
        Slot { open, _place: place }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.open.dec();
    }
}

async fn open(socket: TcpStream, tls: Option<&Tls>, protocol: Protocol) -> io::Result<Stream> {
    // Fails only on a connection that is gone, which reading will show.
    let _ = socket.set_nodelay(true);
    let Some(tls) = tls else { return Ok(Stream::Plain(socket)) };
    match timeout(HANDSHAKE_TIMEOUT, tls.acceptor(protocol).accept(socket)).await {
        Ok(shaken) => shaken.map(|stream| Stream::Tls(Box::new(stream))),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

impl Turn {
    /// A request's head is whole.
    pub fn begin(&self) {
        self.number.fetch_add(1, Relaxed);
    }

    /// Its answer is made.
    pub fn end(&self) {
        self.number.fetch_add(1, Relaxed);
    }

    /// The API has admitted the peer: the connection gives way to no other from now on.
    pub fn admit(&self) {
        self.admitted.store(true, Relaxed);
    }

    /// Whether the connection may be closed in favour of another.
    fn gives_way(&self) -> bool {
        !self.admitted.load(Relaxed) && self.of_peer().is_some()
    }

    /// The number of the peer's turn, if it is its turn. Theirs are the even ones.
    fn of_peer(&self) -> Option<u32> {
        let number = self.number.load(Relaxed);
        number.is_multiple_of(2).then_some(number)
    }
}

impl Connection {
    fn new(
        stream: Stream,
        patience: Patience,
        turn: Arc<Turn>,
        gives_way: oneshot::Receiver<()>,
        slot: Slot,
    ) -> Connection {
        let (reading, write_timeout) = match patience {
            Patience::Preface(time) => {
                (Reading::Preface { bytes_left: PREFACE_BYTES, until: Instant::now() + time }, None)
            }
            Patience::Exchange { idle, head, write } => {
                // Whoever connects has something to say.
                let until = Some(Instant::now() + head);
                (Reading::Exchange { idle, head, turn: 0, until, began: true }, Some(write))
            }
        };
        Connection {
            stream,
            turn,
            gives_way,
            reading,
            write_timeout,
            write_until: None,
            read_timer: Timer::default(),
            write_timer: Timer::default(),
            _slot: slot,
        }
    }

    /// The names in the peer's certificate.
    fn certificate(&self) -> CertificateNames {
        match &self.stream {
            Stream::Plain(_) => CertificateNames::default(),
            Stream::Tls(stream) => CertificateNames::of(stream.get_ref().1.peer_certificates()),
        }
    }

    /// To be told when a request is served.
    pub fn turn(&self) -> Arc<Turn> {
        self.turn.clone()
    }

    /// Whether it gives way to another connection; if not, the task is woken when it does.
    fn has_given_way(&mut self, cx: &mut Context<'_>) -> bool {
        // The sending end lives as long as the connection's place, or was used.
        !self.gives_way.is_terminated()
            && matches!(Pin::new(&mut self.gives_way).poll(cx), Poll::Ready(Ok(())))
    }

    /// What was asked of the stream is done, or has to wait within its time.
    fn written<T>(
        &mut self,
        cx: &mut Context<'_>,
        done: Poll<io::Result<T>>,
        all: bool,
    ) -> Poll<io::Result<T>> {
        if done.is_pending() && self.has_given_way(cx) {
            return Poll::Ready(Err(displaced()));
        }
        let Some(time) = self.write_timeout else { return done };
        match done {
            Poll::Pending => {
                let until = *self.write_until.get_or_insert_with(|| Instant::now() + time);
                if self.write_timer.is_over(until, cx) { Poll::Ready(Err(stalled())) } else { Poll::Pending }
            }
            Poll::Ready(_) => {
                if all {
                    self.write_until = None;
                }
                done
            }
        }
    }
}

impl Reading {
    /// Bytes came.
    fn heard(&mut self, bytes: usize, turn: &Turn) {
        match self {
            Reading::Free => {}
            Reading::Preface { bytes_left, .. } => {
                *bytes_left = bytes_left.saturating_sub(bytes);
                if *bytes_left == 0 {
                    *self = Reading::Free;
                }
            }
            Reading::Exchange { head, turn: known, until, began, .. } => {
                if let Some(now) = turn.of_peer()
                    && (*known != now || !*began)
                {
                    (*known, *until, *began) = (now, Some(Instant::now() + *head), true);
                }
            }
        }
    }

    /// Until when more has to come.
    fn until(&mut self, turn: &Turn) -> Option<Instant> {
        match self {
            Reading::Free => None,
            Reading::Preface { until, .. } => Some(*until),
            Reading::Exchange { idle, turn: known, until, began, .. } => {
                let now = turn.of_peer()?;
                if *known != now {
                    (*known, *until, *began) = (now, Some(Instant::now() + *idle), false);
                }
                *until
            }
        }
    }
}

/// A timer that is moved seldom: while its moment is only put off, it is left to fire and is set anew then.
#[derive(Default)]
struct Timer(Option<Pin<Box<Sleep>>>);

impl Timer {
    /// Whether the moment has come; if not, the task is woken when it has.
    fn is_over(&mut self, until: Instant, cx: &mut Context<'_>) -> bool {
        let sleep = self.0.get_or_insert_with(|| Box::pin(sleep_until(until)));
        if sleep.deadline() > until {
            sleep.as_mut().reset(until);
        }
        while sleep.as_mut().poll(cx).is_ready() {
            if sleep.deadline() >= until {
                return true;
            }
            sleep.as_mut().reset(until);
        }
        false
    }
}

fn displaced() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "another connection has taken the place of this one")
}

fn stalled() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the peer took too long")
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buf.filled().len();
        let read = match &mut this.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        };
        if read.is_ready() {
            this.reading.heard(buf.filled().len() - before, &this.turn);
            return read;
        }
        if this.has_given_way(cx) {
            return Poll::Ready(Err(displaced()));
        }
        match this.reading.until(&this.turn) {
            Some(until) if this.read_timer.is_over(until, cx) => Poll::Ready(Err(stalled())),
            _ => Poll::Pending,
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let done = match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Stream::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        };
        self.written(cx, done, false)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let done = match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Stream::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        };
        self.written(cx, done, false)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(cx),
        };
        self.written(cx, done, true)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        };
        self.written(cx, done, true)
    }
}

impl Connected for Connection {
    type ConnectInfo = ConnectionInfo;

    fn connect_info(&self) -> ConnectionInfo {
        let address = match &self.stream {
            Stream::Plain(stream) => stream.peer_addr().ok(),
            Stream::Tls(stream) => stream.get_ref().0.peer_addr().ok(),
        };
        ConnectionInfo { address, turn: self.turn.clone(), certificate: self.certificate() }
    }
}
