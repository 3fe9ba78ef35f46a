//! The running program: two listeners, a clock that ticks, and an end in good order.
//!
//! To stop, it says so at `/readyz`, takes no more connections, serves what streams have already sent (`stream`),
//! ends them, and lets go of whoever still holds a connection.
//!
//! Leaves to others: arguments (`main`), streams (`grpc`, `stream`), HTTP (`admin`).

use crate::clock::Clock;
use crate::grpc::RegionService;
use crate::shared::Shared;
use crate::stream::DRAIN;
use crate::{admin, push};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle, yield_now};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tonic::transport::server::TcpIncoming;
use tracing::{info, warn};
use weir_core::region::RegionLimits;

/// How often cells that are over are looked for.
const TICK: Duration = Duration::from_secs(1);
/// How often an idle connection is asked whether its peer is still there, and how long the answer may take.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// Most streams on one connection. An Envoy's worker opens one or two on its own.
const MAX_STREAMS_PER_CONNECTION: u32 = 256;
/// What connections get beyond the draining of their streams, to say goodbye.
const GOODBYE: Duration = Duration::from_millis(500);

/// What the program is told to do.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name of the region.
    pub region: String,
    /// Where filters connect, `host:port`.
    pub grpc_listen: String,
    /// Where operators and Prometheus connect, `host:port`.
    pub admin_listen: String,
    /// What filters must know.
    pub token: Option<String>,
    /// Bounds of the region.
    pub limits: RegionLimits,
}

/// Why the program does not start, or does not go on.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Usually a busy port.
    #[error("cannot listen on {address} for {purpose}: {source}; choose another with {option}")]
    Listen {
        /// As it was given.
        address: String,
        /// Which listener.
        purpose: &'static str,
        /// How to choose another address.
        option: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The transport gave up.
    #[error("the gRPC server failed: {0}")]
    Grpc(#[from] tonic::transport::Error),
    /// The gRPC server ended without being asked to.
    #[error("the gRPC server ended by itself")]
    Ended,
    /// A task of the program panicked.
    #[error("a task failed: {0}")]
    Task(#[from] JoinError),
}

/// A program that serves.
pub struct Server {
    shared: Arc<Shared>,
    grpc_address: SocketAddr,
    admin_address: SocketAddr,
    grpc: JoinHandle<Result<(), tonic::transport::Error>>,
    helpers: Vec<JoinHandle<()>>,
}

impl Server {
    /// Listens and serves until [`Server::stop`].
    pub async fn start(settings: Settings, clock: Arc<dyn Clock>) -> Result<Server, ServeError> {
        let (grpc_listener, grpc_address) =
            listen(&settings.grpc_listen, "filters (gRPC)", "--grpc-listen or WEIR_GRPC_LISTEN").await?;
        let (admin_listener, admin_address) =
            listen(&settings.admin_listen, "the admin HTTP", "--admin-listen or WEIR_ADMIN_LISTEN").await?;
        info!(region = settings.region, grpc = %grpc_address, admin = %admin_address, "weir-aggregator serves");
        if settings.token.is_none() && !grpc_address.ip().is_loopback() {
            warn!(grpc = %grpc_address, "other machines can connect, and no token is set (--token or WEIR_TOKEN)");
        }
        if !admin_address.ip().is_loopback() {
            warn!(admin = %admin_address, "other machines can connect to the admin HTTP, which shows identifiers");
        }
        let Settings { region, token, limits, .. } = settings;
        let shared = Arc::new(Shared::new(region, token, limits, clock));
        let helpers = vec![
            tokio::spawn(push::watch(shared.clone())),
            tokio::spawn(tick(shared.clone())),
            tokio::spawn(admin::serve(shared.clone(), admin_listener)),
        ];
        let grpc = tokio::spawn(serve_grpc(shared.clone(), grpc_listener));
        Ok(Server { shared, grpc_address, admin_address, grpc, helpers })
    }

    /// Where filters connect.
    pub fn grpc_address(&self) -> SocketAddr {
        self.grpc_address
    }

    /// Where operators connect.
    pub fn admin_address(&self) -> SocketAddr {
        self.admin_address
    }

    /// What this server holds.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Completes only if the server ends by itself.
    pub async fn failed(&mut self) -> ServeError {
        match (&mut self.grpc).await {
            Ok(Ok(())) => ServeError::Ended,
            Ok(Err(error)) => error.into(),
            Err(error) => error.into(),
        }
    }

    /// Ends in good order; takes as long as streams need, within bounds.
    pub async fn stop(mut self) {
        self.shared.draining.send_replace(Some(Instant::now()));
        if timeout(DRAIN + GOODBYE, &mut self.grpc).await.is_err() {
            info!("connections that did not end are cut");
            self.grpc.abort();
        }
        info!("weir-aggregator ends");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.grpc.abort();
        self.helpers.iter().for_each(JoinHandle::abort);
    }
}

async fn listen(
    address: &str,
    purpose: &'static str,
    option: &'static str,
) -> Result<(TcpListener, SocketAddr), ServeError> {
    let failed = |source| ServeError::Listen { address: address.to_owned(), purpose, option, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

async fn serve_grpc(shared: Arc<Shared>, listener: TcpListener) -> Result<(), tonic::transport::Error> {
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let draining = draining(shared.draining.subscribe());
    tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
        .max_concurrent_streams(MAX_STREAMS_PER_CONNECTION)
        .add_service(RegionService::new(shared))
        .serve_with_incoming_shutdown(incoming, draining)
        .await
}

/// Completes when the program begins to end.
async fn draining(mut draining: watch::Receiver<Option<Instant>>) {
    // An error means that everything is gone already.
    let _ = draining.wait_for(Option::is_some).await;
}

async fn tick(shared: Arc<Shared>) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // A step takes well below a millisecond; millions of keys at a stretch would keep streams waiting.
        while shared.tick() {
            yield_now().await;
        }
    }
}
