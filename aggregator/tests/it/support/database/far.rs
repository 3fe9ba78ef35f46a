//! A TCP proxy to a database that adds latency and counts round trips.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};
use weir_envoy::ports;

/// Stops accepting when dropped; existing connections continue until either side closes them.
pub struct Far {
    port: u16,
    trips: Arc<AtomicUsize>,
    serving: JoinHandle<()>,
}

impl Far {
    /// A proxy to `target` with at least `round_trip` between a request and its answer.
    pub async fn start(target: SocketAddr, round_trip: Duration) -> Far {
        let listener = TcpListener::bind(ports::local(0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let trips = Arc::new(AtomicUsize::new(0));
        let counted = trips.clone();
        let serving = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(target).await.unwrap();
                carry(client, server, round_trip / 2, &counted);
            }
        });
        Far { port, trips, serving }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// How often clients sent a request after receiving an answer, summed over all connections.
    pub fn round_trips(&self) -> usize {
        self.trips.load(Relaxed)
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn carry(client: TcpStream, server: TcpStream, delay: Duration, trips: &Arc<AtomicUsize>) {
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let client_sends = Arc::new(AtomicBool::new(false));
    let (sending, trips) = (client_sends.clone(), trips.clone());
    let up = move || {
        if !sending.swap(true, Relaxed) {
            trips.fetch_add(1, Relaxed);
        }
    };
    pump(from_client, to_server, delay, up);
    pump(from_server, to_client, delay, move || client_sends.store(false, Relaxed));
}

/// Forwards bytes in one direction; any number may be in flight.
fn pump(
    mut from: impl AsyncRead + Send + Unpin + 'static,
    mut to: impl AsyncWrite + Send + Unpin + 'static,
    delay: Duration,
    on_read: impl Fn() + Send + 'static,
) {
    let (send, mut receive) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    tokio::spawn(async move {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(read @ 1..) = from.read(&mut buffer).await {
            on_read();
            if send.send((Instant::now() + delay, buffer[..read].to_vec())).is_err() {
                return;
            }
        }
    });
    tokio::spawn(async move {
        while let Some((due, bytes)) = receive.recv().await {
            sleep_until(due).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
        let _ = to.shutdown().await;
    });
}
