//! The running program: three listeners, a clock that ticks, and an end in good order.
//!
//! To stop, it says so at `/readyz`, takes no more connections, serves what streams have already sent (`stream`),
//! ends them, and lets go of whoever still holds a connection.
//!
//! Leaves to others: arguments (`main`), streams (`grpc`, `stream`), HTTP (`admin`).

pub mod descriptors;

use crate::admin;
use crate::api::authentication::{Authentication, AuthenticationError};
use crate::api::http::{self, HttpApi, Ledger};
use crate::api::rls::{Files, FilesError, RateLimitService};
use crate::api::ruled::Ruled;
use crate::api::{ApiSettings, EmbeddedLimiter};
use crate::auth::Authenticator;
use crate::database::{Database, DatabaseError, DatabaseOptions, Reason};
use crate::net::hosts::Hosts;
use crate::net::listen::{Connection, Listener, Patience};
use crate::net::shutdown::draining;
use crate::net::tls::{Protocol, Tls};
use crate::redis::{Store, StoreOptions};
use crate::region::control;
use crate::region::exact::Exact;
use crate::region::global::{self, Global, lease};
use crate::region::grpc::RegionService;
use crate::region::hub::Hub;
use crate::region::push;
use crate::region::regional::{self, Regional};
use crate::region::services::Services;
use crate::region::slots::MAX_STREAMS;
use crate::region::status::peers;
use crate::region::stream::DRAIN;
use crate::telemetry::clock::Clock;
use crate::telemetry::spans::{Telemetry, TelemetryOptions};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinHandle, JoinSet, yield_now};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tracing::{error, info, warn};
use weir_core::model::schedule::Schedule;
use weir_core::region::RegionLimits;
use weir_core::replication::Next;
use weir_core::replication::grace_period::GracePeriod;
use weir_core::replication::state::TICK_MS;

/// How often an idle connection is asked whether its peer is still there, and how long the answer may take.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// Most streams on one connection. An Envoy's worker opens one or two on its own.
const MAX_STREAMS_PER_CONNECTION: u32 = 256;
/// How long a gRPC client may take to begin.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the database may take at the start to say whether its tables are there.
const SCHEMA_CHECK: Duration = Duration::from_secs(5);
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
    /// The names that they may use for it, beside addresses and `localhost`.
    pub admin_hosts: Hosts,
    /// What filters must know.
    pub token: Option<String>,
    /// Bounds of the region.
    pub limits: RegionLimits,
    /// Where the region's aggregators meet; without it there is one, which keeps the region in memory.
    pub store: Option<StoreOptions>,
    /// Where regions meet; without it there is one.
    pub database: Option<DatabaseOptions>,
    /// Whether the database's tables are brought up to date first.
    pub migrate: bool,
    /// When stores are spoken to.
    pub schedule: Schedule,
    /// The APIs for those who have no filter.
    pub api: ApiSettings,
    /// Where spans go; without it none are made.
    pub telemetry: Option<TelemetryOptions>,
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
    /// Certificates or tokens cannot be used.
    #[error("{0}")]
    Authentication(#[from] AuthenticationError),
    /// The Redis settings cannot be used.
    #[error("{0}; see --redis-url or WEIR_REDIS_URL")]
    Store(#[from] crate::redis::OptionsError),
    /// The database settings cannot be used.
    #[error("{0}")]
    DatabaseOptions(#[from] crate::database::OptionsError),
    /// The database is there but not as it should be.
    #[error("{0}")]
    Database(#[from] DatabaseError),
    /// The rate-limit service's limits cannot be used.
    #[error("{0}\nsee --rls-config or WEIR_RLS_CONFIG")]
    RateLimits(#[from] FilesError),
    /// Spans cannot be exported.
    #[error("{0}")]
    Telemetry(#[from] crate::telemetry::spans::OptionsError),
    /// Two aggregators with a memory each would keep two limits.
    #[error(
        "another aggregator serves region {0:?}; without a Redis of its own a region has one. End the other, or give \
         both the same Redis with --redis-url or WEIR_REDIS_URL"
    )]
    RegionTaken(String),
    /// The transport gave up.
    #[error("the gRPC server failed: {0}")]
    Grpc(#[from] tonic::transport::Error),
    /// A server ended without being asked to.
    #[error("the gRPC or the HTTP server ended by itself")]
    Ended,
    /// A task of the program panicked.
    #[error("a task failed: {0}")]
    Task(#[from] JoinError),
}

/// A program that serves.
pub struct Server {
    services: Arc<Services>,
    embedded: Arc<EmbeddedLimiter>,
    grpc_address: SocketAddr,
    admin_address: SocketAddr,
    http_address: Option<SocketAddr>,
    grpc: JoinHandle<Result<(), tonic::transport::Error>>,
    http: JoinHandle<()>,
    helpers: JoinSet<()>,
}

impl Server {
    /// Listens and serves until [`Server::stop`].
    pub async fn start(settings: Settings, clock: Arc<dyn Clock>) -> Result<Server, ServeError> {
        let mut helpers = JoinSet::new();
        let limits_files = settings.api.rls_config.clone().map(Files::open).transpose()?;
        let mut authentication = Authentication::open(&settings.api)?;
        let store = settings.store.as_ref().map(Store::open).transpose()?;
        let database = settings.database.as_ref().map(Database::open).transpose()?;
        for warning in settings.database.iter().flat_map(DatabaseOptions::unverified) {
            warn!("{warning}");
        }
        let telemetry = Telemetry::start(settings.telemetry.as_ref(), &settings.region)?;
        let exact = Exact::new(store.clone(), database.clone());
        let ledger = database.clone();
        let regional = store.map(|store| Arc::new(Regional::new(store, settings.schedule)));
        let global = match database {
            Some(database) => Some(check_database(database, &settings, &mut helpers).await?),
            None => None,
        };
        if let (None, Some(global)) = (&regional, &global) {
            lease::take(global).await.map_err(|_| ServeError::RegionTaken(settings.region.clone()))?;
        }
        let (grpc_socket, grpc_address) =
            listen(&settings.grpc_listen, "filters (gRPC)", "--grpc-listen or WEIR_GRPC_LISTEN").await?;
        let (admin_socket, admin_address) =
            listen(&settings.admin_listen, "the admin HTTP", "--admin-listen or WEIR_ADMIN_LISTEN").await?;
        let http_socket = match &settings.api.http_listen {
            Some(address) => {
                Some(listen(address, "applications (HTTP)", "--http-listen or WEIR_HTTP_LISTEN").await?)
            }
            None => None,
        };
        let http_address = http_socket.as_ref().map(|(_, address)| *address);
        let addresses = (grpc_address, admin_address, http_address);
        let authenticator = Authenticator::new(settings.token.clone(), authentication.tokens.clone());
        authentication.admit(addresses, &authenticator, settings.api.insecure)?;
        info!(
            region = settings.region,
            grpc = %grpc_address,
            admin = %admin_address,
            http = %http_address.map_or_else(|| "none".to_owned(), |address| address.to_string()),
            "weir-aggregator serves"
        );
        authentication.describe(http_address, grpc_address, settings.token.is_some());
        if !authenticator.filters_need_tokens() && !grpc_address.ip().is_loopback() {
            warn!(grpc = %grpc_address, "other machines can connect, and filters need no token (--filter-token or WEIR_FILTER_TOKEN)");
        }
        if !admin_address.ip().is_loopback() {
            warn!(admin = %admin_address, "other machines can connect to the admin HTTP, which shows identifiers");
        }
        say_what_is_shared(&settings);
        let Settings { region, limits, schedule, admin_hosts, .. } = settings;
        let services = Arc::new(Services::new(region, limits, clock, regional, global, exact, telemetry));
        prepare(&services).await;
        helpers.spawn(push::watch(services.hub.clone()));
        helpers.spawn(tick(services.clone()));
        helpers.spawn(admin::serve(services.clone(), admin_hosts, admin_socket));
        if let Some(global) = &services.global {
            global::start(&services.hub, global, &mut helpers);
            control::start(&services.control, global, &mut helpers);
        }
        match (&services.regional, &services.global) {
            (Some(regional), _) => {
                regional::start(&services.hub, regional, &mut helpers);
                let (hub, status) = (services.hub.clone(), services.status.clone());
                helpers.spawn(peers::exchange(hub, status, regional.clone()));
            }
            (None, Some(global)) => {
                helpers.spawn(lease::keep(services.hub.clone(), global.clone()));
                helpers.spawn(begin_anew(services.hub.clone(), schedule));
            }
            (None, None) => {
                helpers.spawn(begin_anew(services.hub.clone(), schedule));
            }
        }
        authentication.follow(&services.metrics, &mut helpers);
        let embedded = EmbeddedLimiter::start(services.clone(), &mut helpers);
        let ruled: Arc<Ruled> = Arc::default();
        let rate_limits = rate_limits(
            &services,
            &embedded,
            limits_files,
            (authenticator.clone(), ruled.clone()),
            &mut helpers,
        );
        let api = HttpApi {
            services: services.clone(),
            embedded: embedded.clone(),
            tokens: authentication.tokens.clone(),
            ledger: ledger.map(|database| Arc::new(Ledger::new(database))),
            overrides: Arc::default(),
            ruled,
        };
        let http = match http_socket {
            Some((socket, _)) => tokio::spawn(http::serve(api, socket, authentication.tls.clone())),
            None => tokio::spawn(drained(services.clone())),
        };
        let grpc = tokio::spawn(serve_grpc(
            services.clone(),
            authenticator,
            rate_limits,
            grpc_socket,
            authentication.tls,
        ));
        Ok(Server { services, embedded, grpc_address, admin_address, http_address, grpc, http, helpers })
    }

    /// Where filters connect.
    pub fn grpc_address(&self) -> SocketAddr {
        self.grpc_address
    }

    /// Where operators connect.
    pub fn admin_address(&self) -> SocketAddr {
        self.admin_address
    }

    /// Where applications connect, if they can.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http_address
    }

    /// What this server holds.
    pub fn services(&self) -> &Arc<Services> {
        &self.services
    }

    /// What decides for its APIs.
    pub fn embedded(&self) -> &Arc<EmbeddedLimiter> {
        &self.embedded
    }

    /// Completes only if the server, or a part without which it would be half dead, ends by itself.
    pub async fn failed(&mut self) -> ServeError {
        loop {
            tokio::select! {
                ended = &mut self.grpc => return match ended {
                    Ok(Ok(())) => ServeError::Ended,
                    Ok(Err(error)) => error.into(),
                    Err(error) => error.into(),
                },
                ended = &mut self.http => return match ended {
                    Ok(()) => ServeError::Ended,
                    Err(error) => error.into(),
                },
                () = self.services.taken_over.notified() => {
                    return ServeError::RegionTaken(self.services.region_name.clone());
                }
                // What ends well had only something to begin.
                Some(ended) = self.helpers.join_next() => if let Err(error) = ended {
                    return error.into();
                },
            }
        }
    }

    /// Ends in good order; takes as long as streams need, within bounds.
    pub async fn stop(mut self) {
        self.services.draining.send_replace(Some(Instant::now()));
        let ended = async { tokio::join!(&mut self.grpc, &mut self.http) };
        if timeout(DRAIN + GOODBYE, ended).await.is_err() {
            info!("connections that did not end are cut");
            self.grpc.abort();
            self.http.abort();
        }
        self.embedded.stop();
        // What a filter said last was not acknowledged perhaps, and the filter may be gone. When a second round is over,
        // the index names what became hot in the first, so that the region's other aggregators find it.
        let told = async {
            self.services.stored().await;
            self.services.stored().await;
        };
        let schedule =
            self.services.regional.as_ref().map_or_else(Schedule::default, |regional| regional.schedule);
        if timeout(Duration::from_millis(schedule.last_replay_ms), told).await.is_err() {
            info!("the regional store does not take what was reported last");
        }
        if let Some(regional) = &self.services.regional {
            let goodbye = peers::say_goodbye(&self.services.hub, &self.services.status, regional);
            // Those who are not told see it silent for a minute.
            let _ = timeout(GOODBYE, goodbye).await;
        }
        if let (None, Some(global)) = (&self.services.regional, &self.services.global) {
            lease::release(global).await;
        }
        self.services.telemetry.end().await;
        info!("weir-aggregator ends");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The others end with their set.
        self.grpc.abort();
        self.http.abort();
    }
}

/// Reads what the database holds, as far as it answers at once, before the first request is served.
async fn prepare(services: &Services) {
    let Some(global) = &services.global else { return };
    let own = async {
        if services.regional.is_none() {
            global::recover_once(&services.hub, global).await;
        }
    };
    tokio::join!(own, global::import_once(&services.hub, global), services.control.read_once(global));
}

/// In place of a listener: ends when the program drains.
async fn drained(services: Arc<Services>) {
    // The sender lives as long as `services`.
    let _ = services.draining.subscribe().wait_for(Option::is_some).await;
}

/// Envoy's rate-limit service; without a file it knows no limit, and lets everything pass.
fn rate_limits(
    services: &Arc<Services>,
    embedded: &Arc<EmbeddedLimiter>,
    files: Option<Files>,
    (authenticator, ruled): (Authenticator, Arc<Ruled>),
    helpers: &mut JoinSet<()>,
) -> RateLimitService {
    let limits = match files {
        Some(files) => {
            let current = files.current();
            helpers.spawn(files.follow(services.clone()));
            current
        }
        None => watch::Sender::default().subscribe(),
    };
    RateLimitService::new(services.clone(), embedded.clone(), limits, authenticator, ruled)
}

/// A database that is away is no reason not to serve; one without our tables is a mistake that somebody should hear of.
async fn check_database(
    database: Database,
    settings: &Settings,
    helpers: &mut JoinSet<()>,
) -> Result<Arc<Global>, ServeError> {
    let checked = match settings.migrate {
        true => migrate_soon(&database).await,
        false => database.check_schema(SCHEMA_CHECK).await,
    };
    match checked {
        Ok(()) => {}
        Err(error) if matches!(error.kind(), Reason::Unavailable | Reason::Timeout) => {
            warn!(%error, "the database is away; this region goes on alone until it is back");
            if settings.migrate {
                helpers.spawn(migrate_later(database.clone()));
            }
        }
        Err(error) if error.kind() == Reason::Schema => return Err(error.into()),
        // It may be mended while this aggregator serves; to end would take the region's limits along.
        Err(error) => {
            error!(%error, "the database cannot be used; this region goes on alone until that is mended")
        }
    }
    Ok(Arc::new(Global::new(database, settings.schedule)))
}

/// Migrates, unless the database is not to be reached soon. Once it is, a migration may take its time.
async fn migrate_soon(database: &Database) -> Result<(), DatabaseError> {
    match database.check_schema(SCHEMA_CHECK).await {
        Err(error) if matches!(error.kind(), Reason::Unavailable | Reason::Timeout) => Err(error),
        _ => database.migrate().await.map(drop),
    }
}

/// Migrates when the database is back.
async fn migrate_later(database: Database) {
    loop {
        sleep(SCHEMA_CHECK).await;
        match migrate_soon(&database).await {
            Ok(()) => return info!("the database is back, and its tables are up to date"),
            Err(error) if matches!(error.kind(), Reason::Unavailable | Reason::Timeout) => {}
            Err(error) => return error!(%error, "the database's tables cannot be brought up to date"),
        }
    }
}

fn say_what_is_shared(settings: &Settings) {
    if settings.store.is_none() {
        info!(
            "no Redis is set (--redis-url): this is the region's only aggregator, and its memory is the region's"
        );
    }
    if settings.database.is_none() {
        info!(
            "no database is set (--database-url): other regions are not heard of, there is no live control, and a ban that a \
             rule makes stays in its Envoy, where nobody sees or lifts it"
        );
    }
}

/// A memory that begins empty may have lost something: the living have a recovery grace period to repeat what they know, and
/// those that take longer to come back are heard as well.
async fn begin_anew(hub: Arc<Hub>, schedule: Schedule) {
    let mut grace = GracePeriod::anew(schedule, hub.now());
    loop {
        let next = grace.next(&mut &*hub);
        let (is_over, cells) = (next == Next::Over, grace.take_settled());
        if cells > 0 {
            info!(cells, "what nobody could account for after the start counts as the region's baseline");
        }
        if is_over {
            return;
        }
        hub.idle(next).await;
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

async fn serve_grpc(
    services: Arc<Services>,
    authenticator: Authenticator,
    rate_limits: RateLimitService,
    socket: TcpListener,
    tls: Option<Arc<Tls>>,
) -> Result<(), tonic::transport::Error> {
    let listener = Listener {
        api: "grpc",
        socket,
        tls,
        protocol: Protocol::Grpc,
        // Each worker of an Envoy has a connection of its own.
        max_connections: MAX_STREAMS,
        patience: Patience::Preface(PREFACE_TIMEOUT),
    };
    let (opened, connections) = mpsc::channel::<io::Result<Connection>>(1);
    let accepting =
        listener.run(services.metrics.clone(), draining(services.draining.subscribe()), move |connection| {
            let opened = opened.clone();
            // The server ends first, and needs no more connections then.
            async move { drop(opened.send(Ok(connection)).await) }
        });
    let serving = tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
        .max_concurrent_streams(MAX_STREAMS_PER_CONNECTION)
        .add_service(RegionService::new(services.clone(), authenticator))
        .add_service(rate_limits)
        .serve_with_incoming_shutdown(
            ReceiverStream::new(connections),
            draining(services.draining.subscribe()),
        );
    tokio::pin!(accepting, serving);
    tokio::select! {
        served = &mut serving => served,
        () = &mut accepting => serving.await,
    }
}

async fn tick(services: Arc<Services>) {
    let mut ticks = interval(Duration::from_millis(TICK_MS));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // A step takes well below a millisecond; millions of keys at a stretch would keep streams waiting.
        while services.tick() {
            yield_now().await;
        }
        while services.exact.tick() {
            yield_now().await;
        }
    }
}
