//! Connections from the socket to their API: bounded in number, over TLS if configured, and closed when their peers
//! stall. The peer of a connection is the client that opened it.
//!
//! Each TLS handshake runs in a task of its own, so a slow peer delays no other. An API's [`Patience`] sets how long a peer
//! may take for each step:
//!
//! ```text
//! TLS handshake ─ idle ─ first byte of a request … its head is complete ─ served ─ response written ─ idle ─ …
//!   handshake      idle        head                                     (its API)     write
//! ```
//!
//! [`places`] bounds the number of connections and chooses which one is displaced.

mod places;

use crate::net::tls::{CertificateNames, Protocol, Tls};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::throttle::Throttle;
use prometheus_client::metrics::gauge::Gauge;
use std::future::Future;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
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

/// How long a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Least time between two warnings about connections that cannot be accepted.
const BETWEEN_WARNINGS: Duration = Duration::from_secs(5);
/// How often a full listener checks whether a connection can be displaced.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);
/// Length of the connection preface of an HTTP/2 client (RFC 9113, section 3.4), in bytes.
const PREFACE_BYTES: usize = 24;

/// A bound socket, and how its connections are treated.
pub struct Listener {
    /// The name of the API in metrics.
    pub api: &'static str,
    /// The bound socket.
    pub socket: TcpListener,
    /// The certificates; without them connections are in plain text.
    pub tls: Option<Arc<Tls>>,
    /// The protocol inside TLS.
    pub protocol: Protocol,
    /// Most connections at one time, including those in a handshake; one address may have half as many. A further connection
    /// displaces the one that gives way and has been idle for the longest (see [`Turn`]). If none gives way, it waits to be
    /// accepted, or is closed if its address already has its half.
    pub max_connections: usize,
    /// When connections are closed.
    pub patience: Patience,
}

/// How long the peer of a connection may take.
#[derive(Clone, Copy, Debug)]
pub enum Patience {
    /// For HTTP/2: to send the preface. Later on, keepalive and the streams have their own timeouts.
    Preface(Duration),
    /// For HTTP/1.1: for each part of an exchange.
    Exchange {
        /// Between a response and the first byte of the next request.
        idle: Duration,
        /// From that byte until the request's head is complete.
        head: Duration,
        /// To read a response that does not fit into the system's buffers.
        write: Duration,
    },
}

/// Whose turn it is on a connection: the peer's, or the API's while it serves a request, a call or a stream. On the peer's turn
/// the connection is idle and gives way to others; if the peer has presented a credential, only to others of its own address, or of the
/// same credential.
#[derive(Debug, Default)]
pub struct Turn {
    number: AtomicU32,
    /// Calls and streams that are served.
    calls: AtomicU32,
    /// A hash of the name of the credential that the peer has presented; 0 if there is none.
    credential: AtomicU64,
    /// Its listener's places, and its number there.
    place: OnceLock<(Weak<Places>, u64)>,
    /// When the peer's turn began: a number of [`MOMENTS`].
    idle_since: AtomicU64,
}

/// A call or a stream that is served on a connection, until this is dropped.
pub struct Served(Arc<Turn>);

/// Numbers the moments at which connections became idle.
static MOMENTS: AtomicU64 = AtomicU64::new(0);

/// What a service receives about the connection of a call.
#[derive(Clone, Debug)]
pub struct ConnectionInfo {
    /// The peer's address; `None` once the connection has ended.
    pub address: Option<SocketAddr>,
    /// Used to note that the peer was authenticated, and what is served.
    pub turn: Arc<Turn>,
    /// The names in the peer's certificate.
    pub certificate: CertificateNames,
}

/// An accepted connection.
pub struct Connection {
    stream: Stream,
    turn: Arc<Turn>,
    /// Completes when another connection displaces this one.
    gives_way: oneshot::Receiver<()>,
    reading: Reading,
    write_timeout: Option<Duration>,
    write_until: Option<Instant>,
    read_timer: Timer,
    write_timer: Timer,
    _slot: Slot,
}

/// Counts one open connection of an API.
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
    /// Nothing, without a deadline.
    Free,
    Preface {
        bytes_left: usize,
        until: Instant,
    },
    Exchange {
        idle: Duration,
        head: Duration,
        /// The turn to which `until` belongs.
        turn: u32,
        until: Option<Instant>,
        began: bool,
    },
}

impl Listener {
    /// Accepts connections and serves each in a task of its own until `ending` completes; then waits for those that remain.
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
                    // For example, no file descriptors are left; ending connections free some.
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
            let Some((place, mut gives_way, displaced)) = self.place(places, address, &turn, &warnings).await
            else {
                metrics.api.connection_refused(api);
                if let Some(held_back) = warnings.pass() {
                    warn!(%address, api, held_back, "closed a connection: its address already has half of all connections, all of them in use");
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
                        debug!(%error, api, "TLS handshake failed");
                    }
                }
            });
        }
    }
}

impl Listener {
    /// Waits for a place. `None` if the address has as many as it may have.
    async fn place(
        &self,
        places: &Arc<Places>,
        address: SocketAddr,
        turn: &Arc<Turn>,
        warnings: &Throttle,
    ) -> Option<(Place, oneshot::Receiver<()>, bool)> {
        loop {
            match places.enter(address.ip(), turn.clone()) {
                Entry::Placed(place, gives_way, displaced) => return Some((place, gives_way, displaced)),
                Entry::AddressFull => return None,
                // Wakes up after `BETWEEN_LOOKS` too, since a connection may give way without having ended.
                Entry::Full => {
                    if let Some(held_back) = warnings.pass() {
                        let (api, most) = (self.api, self.max_connections);
                        warn!(
                            api,
                            most, held_back, "all connections are in use or authenticated, new ones wait"
                        );
                    }
                    let _ = timeout(BETWEEN_LOOKS, places.freed()).await;
                }
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
    // Fails only on a closed connection, which reading will show.
    let _ = socket.set_nodelay(true);
    let Some(tls) = tls else { return Ok(Stream::Plain(socket)) };
    match timeout(HANDSHAKE_TIMEOUT, tls.acceptor(protocol).accept(socket)).await {
        Ok(shaken) => shaken.map(|stream| Stream::Tls(Box::new(stream))),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

impl Turn {
    /// A request's head is complete: the API's turn begins.
    pub fn begin(&self) {
        self.number.fetch_add(1, Relaxed);
    }

    /// The response is complete: the peer's turn begins.
    pub fn end(&self) {
        self.rest();
        self.number.fetch_add(1, Relaxed);
    }

    /// A call or a stream is served, whose caller was accepted.
    pub fn serve(self: &Arc<Self>) -> Served {
        self.calls.fetch_add(1, Relaxed);
        Served(self.clone())
    }

    /// The peer has presented the credential with this name, where callers need one.
    pub fn authenticated(&self, name: &str) {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let credential = hasher.finish().max(1);
        if self.credential.swap(credential, Relaxed) != credential
            && let Some((places, number)) = self.place.get()
            && let Some(places) = places.upgrade()
        {
            places.authenticated(*number, credential);
        }
    }

    fn has_credential(&self) -> bool {
        self.credential.load(Relaxed) != 0
    }

    /// The connection has a place of its listener.
    fn placed(&self, places: &Arc<Places>, number: u64) {
        // A connection has one place.
        let _ = self.place.set((Arc::downgrade(places), number));
    }

    /// The connection is idle from now on; returns the number of the moment.
    fn rest(&self) -> u64 {
        let moment = MOMENTS.fetch_add(1, Relaxed);
        self.idle_since.store(moment, Relaxed);
        moment
    }

    /// The moment since which the connection is idle, if it is.
    fn idle_since(&self) -> Option<u64> {
        let is_idle = self.of_peer().is_some() && self.calls.load(Relaxed) == 0;
        is_idle.then(|| self.idle_since.load(Relaxed))
    }

    /// The number of the peer's turn, if it is its turn. The peer's turns have even numbers.
    fn of_peer(&self) -> Option<u32> {
        let number = self.number.load(Relaxed);
        number.is_multiple_of(2).then_some(number)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.0.rest();
        self.0.calls.fetch_sub(1, Relaxed);
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
                // A new connection is expected to send a request.
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

    /// The turn, for the API to mark when a request is served.
    pub fn turn(&self) -> Arc<Turn> {
        self.turn.clone()
    }

    /// Whether another connection has displaced this one; if not, the task is woken when that happens.
    fn has_given_way(&mut self, cx: &mut Context<'_>) -> bool {
        // The sender lives as long as the connection's place, or was used.
        !self.gives_way.is_terminated()
            && matches!(Pin::new(&mut self.gives_way).poll(cx), Poll::Ready(Ok(())))
    }

    /// Applies the write timeout to the result of a write operation. `all` means that the operation flushes everything.
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
    /// Notes that bytes were received.
    fn received(&mut self, bytes: usize, turn: &Turn) {
        match self {
            Reading::Free => {}
            Reading::Preface { bytes_left, .. } => {
                *bytes_left = bytes_left.saturating_sub(bytes);
                if *bytes_left == 0 {
                    *self = Reading::Free;
                }
            }
            Reading::Exchange { head, turn: last, until, began, .. } => {
                if let Some(now) = turn.of_peer()
                    && (*last != now || !*began)
                {
                    (*last, *until, *began) = (now, Some(Instant::now() + *head), true);
                }
            }
        }
    }

    /// Until when more bytes have to arrive.
    fn until(&mut self, turn: &Turn) -> Option<Instant> {
        match self {
            Reading::Free => None,
            Reading::Preface { until, .. } => Some(*until),
            Reading::Exchange { idle, turn: last, until, began, .. } => {
                let now = turn.of_peer()?;
                if *last != now {
                    (*last, *until, *began) = (now, Some(Instant::now() + *idle), false);
                }
                *until
            }
        }
    }
}

/// A timer that is seldom reset: if its deadline is only postponed, it fires at the old one and is then set again.
#[derive(Default)]
struct Timer(Option<Pin<Box<Sleep>>>);

impl Timer {
    /// Whether the deadline has passed; if not, the task is woken when it does.
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
    io::Error::new(io::ErrorKind::ConnectionAborted, "displaced by another connection")
}

fn stalled() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the peer did not send or read in time")
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
            this.reading.received(buf.filled().len() - before, &this.turn);
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
