//! The running program: its listeners, its tasks, and its shutdown.
//!
//! To start, it waits for the database's tables (`check_database`), takes the region's time from Redis (`regional`), and reads from the
//! database what it would decide without otherwise (`read_stores`). Until then `/readyz` reports not ready, and the ports for filters and
//! applications refuse connections, as if the program was not there. If the database was not available in time, it serves filters, and is
//! ready once live control was read.
//!
//! To stop, it reports not ready at `/readyz`, accepts no more connections, serves what streams have already sent
//! (`stream`), ends the streams, and closes the remaining connections.

mod bind;
pub mod descriptors;
mod error;
mod grpc;
mod health;
mod open;
mod reflection;
mod settings;

use crate::admin;
use crate::api::EmbeddedLimiter;
use crate::api::authentication::Authentication;
use crate::api::http::{self, HttpApi};
use crate::api::rlqs::{QuotaService, Quotas};
use crate::api::rls::{self, Current, Files, FilesError, RateLimitService, Xds};
use crate::auth::{Authenticator, Tokens};
use crate::database::{Database, DatabaseError, Reason};
use crate::region::control;
use crate::region::global::{self, lease};
use crate::region::grpc::RegionService;
use crate::region::hub::Hub;
use crate::region::push;
use crate::region::regional;
use crate::region::services::Services;
use crate::region::status::limits::LimitsStatus;
use crate::region::status::peers;
use crate::region::stream::DRAIN;
use crate::server::bind::Bound;
use crate::server::descriptors::Connections;
use crate::server::grpc::ServedApi;
use crate::server::open::{Addresses, Ports, Stores};
use crate::telemetry::clock::Clock;
use crate::telemetry::spans::Telemetry;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet, yield_now};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tracing::{error, info, warn};
use weir_core::model::schedule::Schedule;
use weir_core::replication::Next;
use weir_core::replication::grace_period::GracePeriod;
use weir_core::replication::regional::watch::Watch;
use weir_core::replication::state::TICK_MS;

pub use error::ServeError;
pub use settings::Settings;

/// How long the check of the database's tables may take at the start.
const SCHEMA_CHECK: Duration = Duration::from_secs(5);
/// How often the tables are checked again while the start waits for them.
const SCHEMA_AGAIN: Duration = Duration::from_secs(1);
/// How often it is logged that the start waits for them.
const SCHEMA_REMINDER: Duration = Duration::from_secs(60);
/// How long connections may stay open after their streams have ended, to close in order.
const GOODBYE: Duration = Duration::from_millis(500);
/// How long the last packets to the database may take.
const LAST_PACKETS: Duration = Duration::from_millis(1_500);

/// A running server.
pub struct Server {
    services: Arc<Services>,
    embedded: Arc<EmbeddedLimiter>,
    addresses: Addresses,
    grpc: JoinHandle<()>,
    http: JoinHandle<()>,
    helpers: JoinSet<()>,
}

impl Server {
    /// Listens and serves until [`Server::stop`].
    pub async fn start(settings: Settings, clock: Arc<dyn Clock>) -> Result<Server, ServeError> {
        let mut helpers = JoinSet::new();
        let limits_source = Source::open(&settings.api.rls)?;
        let answering = settings.api.rls.answering.clone();
        let mut authentication = Authentication::open(&settings.api)?;
        let Stores { regional, global, database, exact } = Stores::open(&settings)?;
        let telemetry = Telemetry::start(settings.telemetry.as_ref(), &settings.region)?;
        let Ports { grpc, admin, http, addresses } = Ports::bind(&settings).await?;
        let authenticator = Authenticator::new(settings.token.clone(), authentication.tokens.clone());
        let listeners = (addresses.grpc, addresses.admin, addresses.http);
        authentication.admit(listeners, &authenticator, settings.api.insecure)?;
        info!(region = settings.region, admin = %addresses.admin, "weir-aggregator starts");
        authentication.describe(addresses.http, addresses.grpc, settings.token.is_some());
        log_who_can_connect(addresses, &authenticator);
        log_what_is_shared(&settings);

        let Settings { region, limits, schedule, admin_hosts, admin_links, migrate, .. } = settings;
        let services = Arc::new(Services::new(region, limits, clock, regional, global, exact, telemetry));
        helpers.spawn(tick(services.clone()));
        let connections = Connections::of_process();
        let admin = (admin.listen()?, connections.admin);
        helpers.spawn(admin::serve(services.clone(), admin_hosts, admin_links, admin));
        if let Some(database) = &database {
            check_database(database, migrate, &services, &mut helpers).await?;
        }
        hold_region(&services, &mut helpers).await?;
        let share = share_grants(services.hub.clone());
        share(&authentication.tokens);
        let stores = read_stores(&services).await;
        let grpc = (grpc.listen()?, connections.grpc);
        let http = http.map(Bound::listen).transpose()?.map(|socket| (socket, connections.http));
        services.serves.store(true, Relaxed);
        log_that_it_serves(&services, addresses);

        start_stores(&services, stores, schedule, &mut helpers);
        authentication.follow(&services.metrics, share, &mut helpers);
        let embedded = EmbeddedLimiter::start(services.clone(), schedule.leave_ms, &mut helpers);
        let limits = rate_limits(&services, limits_source, &mut helpers);
        let quotas = Quotas::new(services.clone(), embedded.clone(), limits.clone());
        helpers.spawn(quotas.clone().run());
        let quotas = QuotaService::new(quotas, authenticator.clone());
        let rate_limits = (limits, answering);
        let rate_limits =
            RateLimitService::new(services.clone(), embedded.clone(), rate_limits, authenticator.clone());
        let api = HttpApi {
            services: services.clone(),
            embedded: embedded.clone(),
            tokens: authentication.tokens.clone(),
        };
        let http = match http {
            Some(socket) => tokio::spawn(http::serve(api, socket, authentication.tls.clone())),
            None => tokio::spawn(drained(services.clone())),
        };
        let region = RegionService::new(services.clone(), authenticator);
        let apis = vec![
            ServedApi::new(RegionService::NAME, move |request| region.serve(request)),
            ServedApi::new(RateLimitService::NAME, move |request| rate_limits.serve(request)),
            ServedApi::new(QuotaService::NAME, move |request| quotas.serve(request)),
        ];
        let grpc = tokio::spawn(grpc::serve(services.clone(), apis, grpc, authentication.tls));
        Ok(Server { services, embedded, addresses, grpc, http, helpers })
    }

    /// The address for filters.
    pub fn grpc_address(&self) -> SocketAddr {
        self.addresses.grpc
    }

    /// The address for operators.
    pub fn admin_address(&self) -> SocketAddr {
        self.addresses.admin
    }

    /// The address for applications, if there is one.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.addresses.http
    }

    /// The parts of the region.
    pub fn services(&self) -> &Arc<Services> {
        &self.services
    }

    /// The embedded limiter of the APIs.
    pub fn embedded(&self) -> &Arc<EmbeddedLimiter> {
        &self.embedded
    }

    /// Completes only if the server, or a task that it cannot do without, ends by itself.
    pub async fn failed(&mut self) -> ServeError {
        loop {
            tokio::select! {
                ended = &mut self.grpc => return match ended {
                    Ok(()) => ServeError::Ended,
                    Err(error) => error.into(),
                },
                ended = &mut self.http => return match ended {
                    Ok(()) => ServeError::Ended,
                    Err(error) => error.into(),
                },
                () = self.services.taken_over.notified() => {
                    return ServeError::RegionTaken(self.services.region_name.clone());
                }
                // A task that ended without an error only had something to start.
                Some(ended) = self.helpers.join_next() => if let Err(error) = ended {
                    return error.into();
                },
            }
        }
    }

    /// Shuts down; waits for streams, within bounds.
    pub async fn stop(mut self) {
        self.services.draining.send_replace(Some(Instant::now()));
        let ended = async { tokio::join!(&mut self.grpc, &mut self.http) };
        if timeout(DRAIN + GOODBYE, ended).await.is_err() {
            info!("closing connections that did not end in time");
            self.grpc.abort();
            self.http.abort();
        }
        self.embedded.stop();
        // The last reports may be unacknowledged, and their filters gone. After the second round the hot index contains the
        // cells that became hot in the first, so the region's other aggregators find them.
        let written = async {
            self.services.stored().await;
            self.services.stored().await;
        };
        let schedule =
            self.services.regional.as_ref().map_or_else(Schedule::default, |regional| regional.schedule);
        if timeout(Duration::from_millis(schedule.last_replay_ms), written).await.is_err() {
            info!("could not write the last reports to the regional store in time");
        }
        if let Some(global) = &self.services.global {
            let published = global::publish_last(&self.services.hub, global);
            if timeout(LAST_PACKETS, published).await.is_err() {
                info!("could not write the last counts to the database in time");
            }
        }
        if let Some(regional) = &self.services.regional {
            let removal = peers::remove_status(&self.services.hub, &self.services.status, regional);
            // If the removal fails, the peers list this aggregator as silent for a minute.
            let _ = timeout(GOODBYE, removal).await;
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
        // The other tasks are aborted with their set.
        self.grpc.abort();
        self.http.abort();
    }
}

/// Without a Redis, a region with a database has one aggregator at a time: takes its lease, and keeps it.
async fn hold_region(services: &Services, helpers: &mut JoinSet<()>) -> Result<(), ServeError> {
    if let (None, Some(global)) = (&services.regional, &services.global) {
        let taken = lease::take(global).await;
        let until = taken.map_err(|_| ServeError::RegionTaken(services.region_name.clone()))?;
        services.hub.serves_until(until);
        helpers.spawn(lease::keep(services.hub.clone(), global.clone(), until));
    }
    Ok(())
}

/// Sets who may have which part of the room for keys.
fn share_grants(hub: Arc<Hub>) -> impl Fn(&Tokens) + Send + Sync + 'static {
    move |tokens| {
        // Thousands of names are put together before the region's lock is taken.
        let grants = tokens.grants();
        hub.region(|region, _| region.set_grants(grants));
    }
}

/// What the stores have answered before the first request is served.
struct StoresRead {
    watch: Option<Watch>,
    global: Option<global::Start>,
}

/// Before the first request is served, reads from the stores, within bounds.
async fn read_stores(services: &Services) -> StoresRead {
    // Boxed, as the program's start would otherwise hold its state on its stack.
    let watch = match &services.regional {
        Some(regional) => Some(Box::pin(regional::before_serving(&services.hub, regional)).await),
        None => None,
    };
    let Some(global) = &services.global else { return StoresRead { watch, global: None } };
    let start = global::before_serving(&services.hub, global, services.regional.is_none());
    let (start, ()) = tokio::join!(start, services.control.read_once(global));
    if !services.control.is_read() {
        warn!(
            "live control was not read from the database: until it is, calls of the APIs are undecided, and /readyz answers 503"
        );
    }
    StoresRead { watch, global: Some(start) }
}

/// Starts the tasks that exchange counts with the stores and with peers.
fn start_stores(services: &Arc<Services>, read: StoresRead, schedule: Schedule, helpers: &mut JoinSet<()>) {
    let hub = || services.hub.clone();
    helpers.spawn(push::watch(hub()));
    if let Some((global, start)) = services.global.as_ref().zip(read.global) {
        global::start(&services.hub, global, start, helpers);
        control::start(&services.control, global, helpers);
    }
    match services.regional.as_ref().zip(read.watch) {
        Some((regional, watch)) => {
            regional::start(&services.hub, regional, watch, helpers);
            let waiting = services.clone();
            let waits_for = move || waiting.waits_for().map(|what| what.into_str());
            helpers.spawn(peers::exchange(hub(), services.status.clone(), regional.clone(), waits_for));
        }
        None => drop(helpers.spawn(begin_anew(hub(), schedule))),
    }
}

/// Replaces a listener that is not configured: completes when the shutdown begins.
async fn drained(services: Arc<Services>) {
    // The sender lives as long as `services`.
    let _ = services.draining.subscribe().wait_for(Option::is_some).await;
}

/// Where the rate-limit service's limits come from.
enum Source {
    Files(Files),
    Xds(Xds),
    /// It has no limits and allows every request.
    None,
}

impl Source {
    fn open(settings: &rls::Settings) -> Result<Source, FilesError> {
        let rls::Settings { files, xds, domains, .. } = settings.clone();
        match (xds, files) {
            (Some(options), _) => Ok(Source::Xds(Xds::new(options, domains))),
            (None, Some(path)) => Ok(Source::Files(Files::open(path, domains)?)),
            (None, None) => Ok(Source::None),
        }
    }
}

/// The limits of the rate-limit service and the rate-limit quota service.
fn rate_limits(services: &Arc<Services>, source: Source, helpers: &mut JoinSet<()>) -> Current {
    let (name, limits) = match &source {
        Source::Files(files) => ("files", files.current()),
        Source::Xds(xds) => ("xds", xds.current()),
        Source::None => ("none", watch::Sender::new(Some(Arc::default())).subscribe()),
    };
    let domains = limits.borrow().as_ref().map(|limits| limits.len());
    services
        .metrics
        .limits
        .replace(limits.borrow().as_ref().map(|limits| limits.series()).unwrap_or_default());
    *services.status.limits.lock() = LimitsStatus::of(name, domains);
    match source {
        Source::Files(files) => drop(helpers.spawn(files.follow(services.clone()))),
        Source::Xds(xds) => drop(helpers.spawn(xds.follow(services.clone()))),
        Source::None => {}
    }
    limits
}

/// An unavailable database does not keep the aggregator from starting. If tables are missing, it waits until `migrate` has made them, as
/// a Job may that starts at the same time.
async fn check_database(
    database: &Database,
    migrate: bool,
    services: &Services,
    helpers: &mut JoinSet<()>,
) -> Result<(), ServeError> {
    let mut logged: Option<Instant> = None;
    loop {
        let checked = match migrate {
            true => migrate_soon(database).await,
            false => database.check_schema(SCHEMA_CHECK).await,
        };
        match checked {
            Ok(()) if logged.is_some() => info!("the database's tables are up to date"),
            Ok(()) => {}
            Err(error) if matches!(error.kind(), Reason::Unavailable | Reason::Timeout) => {
                warn!(%error, "database unavailable, this region does not share counts until it is available");
                if migrate {
                    helpers.spawn(migrate_later(database.clone()));
                }
            }
            Err(error) if error.kind() == Reason::Schema && migrate => return Err(error.into()),
            Err(error) if error.kind() == Reason::Schema => {
                services.lacks_tables.store(true, Relaxed);
                if logged.is_none_or(|logged| logged.elapsed() >= SCHEMA_REMINDER) {
                    warn!(%error, "the database's tables are missing or old; not ready until they are up to date");
                    logged = Some(Instant::now());
                }
                sleep(SCHEMA_AGAIN).await;
                continue;
            }
            // The error may be repaired while this aggregator serves; stopping would lose the region's counts.
            Err(error) => {
                error!(%error, "the database cannot be used, this region does not share counts until it is repaired")
            }
        }
        services.lacks_tables.store(false, Relaxed);
        return Ok(());
    }
}

/// Migrates, unless the database is not available soon. A migration itself has no timeout.
async fn migrate_soon(database: &Database) -> Result<(), DatabaseError> {
    match database.check_schema(SCHEMA_CHECK).await {
        Err(error) if matches!(error.kind(), Reason::Unavailable | Reason::Timeout) => Err(error),
        _ => {
            database.migrate().await?;
            // A table may have been dropped although its migration was applied.
            database.check_schema(SCHEMA_CHECK).await
        }
    }
}

/// Migrates as soon as the database is available.
async fn migrate_later(database: Database) {
    loop {
        sleep(SCHEMA_CHECK).await;
        match migrate_soon(&database).await {
            Ok(()) => return info!("database available, its tables are up to date"),
            Err(error) if matches!(error.kind(), Reason::Unavailable | Reason::Timeout) => {}
            Err(error) => return error!(%error, "could not bring the database's tables up to date"),
        }
    }
}

fn log_who_can_connect(addresses: Addresses, authenticator: &Authenticator) {
    let Addresses { grpc, admin, .. } = addresses;
    if !authenticator.filters_need_tokens() && !grpc.ip().is_loopback() {
        warn!(%grpc, "other machines can connect, and filters need no token; set --filter-token or WEIR_FILTER_TOKEN");
    }
    if !admin.ip().is_loopback() {
        warn!(%admin, "other machines can connect to the admin HTTP, which shows identifiers");
    }
}

fn log_that_it_serves(services: &Services, Addresses { grpc, admin, http }: Addresses) {
    info!(
        region = services.region_name,
        %grpc,
        %admin,
        http = %http.map_or_else(|| "none".to_owned(), |address| address.to_string()),
        "weir-aggregator serves"
    );
}

fn log_what_is_shared(settings: &Settings) {
    if settings.store.is_none() {
        info!(
            "no Redis is set (--redis-url): this is the region's only aggregator, and the region's counts are in its memory"
        );
    }
    if settings.database.is_none() {
        info!(
            "no database is set (--database-url): counts of other regions and live control are not available, and a ban that a \
                         rule makes holds only in its Envoy and can be neither seen nor lifted"
        );
    }
}

/// Starts with empty memory, which may mean that counts were lost. The connected nodes resync within a recovery grace period;
/// nodes that return later are merged as well.
async fn begin_anew(hub: Arc<Hub>, schedule: Schedule) {
    let mut grace = GracePeriod::anew(schedule, hub.now());
    loop {
        let next = grace.next(&mut &*hub);
        let (is_over, cells) = (next == Next::Over, grace.take_settled());
        if cells > 0 {
            info!(
                cells,
                "recovery grace period over: use that no node accounts for counts as the region's baseline"
            );
        }
        if is_over {
            return;
        }
        hub.idle(next).await;
    }
}

async fn tick(services: Arc<Services>) {
    let mut ticks = interval(Duration::from_millis(TICK_MS));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        services.read_clocks();
        // A step takes well below a millisecond; evicting millions of keys in one step would block streams.
        while services.tick() {
            yield_now().await;
        }
        while services.exact.tick() {
            yield_now().await;
        }
    }
}
