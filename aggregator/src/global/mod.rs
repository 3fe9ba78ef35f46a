//! The global store at work: what the regions tell each other, every ten seconds or so.
//!
//! In reading order: `publish` (this region's use goes out), `import` (the others' comes in), `lease` (a region without
//! a store of its own has one aggregator), `recover` (a region that has lost everything reads its own figures).
//!
//! An aggregator that starts reads first and serves then, if the database answers at once: else what it grants in its
//! first seconds would rest on nothing. Nothing else that a request waits for is here. While the database is away, the
//! region goes on with what it has imported.
//!
//! Leaves to others: rows and statements (`database`), what is published and merged (`weir_core::region`).

mod import;
pub mod lease;
mod publish;
mod recover;

use crate::database::{Database, DatabaseError};
use crate::metrics::{Metrics, Operation};
use crate::shared::Shared;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::sleep_until;
use weir_core::breaker::{Breaker, State};
use weir_core::cadence::{Beat, Cadence};
use weir_core::time::MonoMs;

/// The database, and what is known of how it does.
pub struct Global {
    database: Database,
    /// Names this aggregator where only one may serve.
    id: [u8; 16],
    cadence: Cadence,
    breaker: Mutex<Breaker>,
    /// A sick replica keeps nobody from publishing, nor a sick primary from importing.
    replica_breaker: Option<Mutex<Breaker>>,
    started: Instant,
}

/// How long an aggregator that starts waits for what the database knows.
const PREPARATION: Duration = Duration::from_secs(1);

impl Global {
    /// A database that nothing is known of yet.
    pub fn new(database: Database, cadence: Cadence) -> Global {
        let breaker = || Mutex::new(Breaker::new(cadence.global_breaker));
        let replica_breaker = database.has_replica().then(breaker);
        let (id, started) = (rand::random(), Instant::now());
        Global { database, id, cadence, breaker: breaker(), replica_breaker, started }
    }

    /// What the breakers let through, and before what they stand.
    pub fn breaker_states(&self) -> impl Iterator<Item = (&'static str, State)> {
        let replica = self.replica_breaker.as_ref().map(|breaker| ("global_replica", breaker));
        let breakers = std::iter::once(("global", &self.breaker)).chain(replica);
        breakers.map(|(store, breaker)| (store, breaker.lock().state(self.now())))
    }

    fn now(&self) -> MonoMs {
        MonoMs(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    fn is_allowed(&self, operation: Operation) -> bool {
        self.breaker_of(operation).lock().allows(self.now())
    }

    fn breaker_of(&self, operation: Operation) -> &Mutex<Breaker> {
        let replica = self.replica_breaker.as_ref().filter(|_| operation == Operation::Import);
        replica.unwrap_or(&self.breaker)
    }

    /// How long a call may take.
    fn within(&self) -> Duration {
        Duration::from_millis(self.cadence.global_timeout_ms)
    }

    /// Notes how a call went that began at `started`.
    fn note<T>(
        &self,
        metrics: &Metrics,
        operation: Operation,
        started: Instant,
        result: &Result<T, DatabaseError>,
    ) {
        metrics.operation(operation, started.elapsed());
        match result {
            Ok(_) => self.breaker_of(operation).lock().succeeded(),
            Err(error) => {
                metrics.operation_failed(operation, error.reason());
                self.breaker_of(operation).lock().failed(self.now());
            }
        }
    }

    fn beat(&self, interval_ms: u64) -> Beat {
        Beat::new(interval_ms, self.cadence.jitter_percent, self.now(), rand::random())
    }

    async fn wait_for(&self, beat: &mut Beat) {
        let stroke = beat.next(self.now(), rand::random());
        sleep_until((self.started + Duration::from_millis(stroke.0)).into()).await;
    }
}

/// Reads what the database knows, as far as it answers at once; before anybody is served.
pub async fn prepare(shared: &Shared, global: &Global) {
    let is_all_there_is = shared.regional.is_none();
    let own = async {
        if is_all_there_is && !recover::recover(shared, global, PREPARATION).await {
            // It is asked over and over then, while others are served already.
            shared.lost.notify_one();
        }
    };
    let others = import::import_now(shared, global, PREPARATION);
    tokio::join!(own, others);
}

/// Begins everything that goes on beside streams.
pub fn start(shared: &Arc<Shared>, global: &Arc<Global>, tasks: &mut JoinSet<()>) {
    let (shared, global) = (|| shared.clone(), || global.clone());
    tasks.spawn(publish::run(shared(), global()));
    tasks.spawn(import::run(shared(), global()));
    tasks.spawn(recover::run(shared(), global()));
}
