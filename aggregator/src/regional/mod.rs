//! The region's store at work: what several aggregators of one region do to be of one mind.
//!
//! In reading order: `replay` (what filters reported goes to the store), `consult` (the store's word on a question),
//! `sisters` (what the other aggregators say, and the hot index behind it), `watch` (is it there, has it lost
//! anything, who is alive).
//!
//! While the store is away, or as long as its breaker says so, everything is answered from memory; what it could not
//! be told waits, one entry for each cell.
//!
//! Leaves to others: the store itself (`store`), what is told and learnt (`weir_core::region`).

mod consult;
mod replay;
mod sisters;
mod watch;

use crate::metrics::{Metrics, Operation};
use crate::shared::Shared;
use crate::store::{Store, StoreError};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use weir_core::breaker::{Breaker, State};
use weir_core::cadence::Cadence;
use weir_core::time::MonoMs;

pub use consult::answer;

/// Times of grace after a loss. A filter that cannot connect tries again each second or so.
pub const GRACES: usize = 5;

/// The store, and what is known of how it does.
pub struct Regional {
    store: Store,
    /// Names this aggregator among those of its region.
    id: [u8; 16],
    cadence: Cadence,
    breaker: Mutex<Breaker>,
    started: Instant,
    /// Woken when something waits for the store.
    pub unstored: Notify,
    /// Woken when something waits for the other aggregators.
    changed: Notify,
    /// Woken when this aggregator's Envoys changed.
    pub origins: Notify,
    /// Woken when another aggregator's did.
    sisters_origins: Notify,
    /// Woken when messages may have been missed.
    missed: Notify,
    /// The sentinels were read. Before that a wipe would not be noticed, and nothing is written or asked.
    found: AtomicBool,
    /// Messages are heard, or were: from then on a full read of the hot index misses nothing.
    listens: AtomicBool,
    /// Losses of the store so far; the last one's time of grace is the one that counts.
    losses: AtomicU64,
}

impl Regional {
    /// A store that nothing is known of yet.
    pub fn new(store: Store, cadence: Cadence) -> Regional {
        Regional {
            store,
            id: rand::random(),
            cadence,
            breaker: Mutex::new(Breaker::new(cadence.store_breaker)),
            started: Instant::now(),
            unstored: Notify::new(),
            changed: Notify::new(),
            origins: Notify::new(),
            sisters_origins: Notify::new(),
            missed: Notify::new(),
            found: AtomicBool::new(false),
            listens: AtomicBool::new(false),
            losses: AtomicU64::new(0),
        }
    }

    /// Whether the store is asked at all.
    pub fn is_usable(&self) -> bool {
        self.found.load(Ordering::Acquire) && self.breaker_state() == State::Closed
    }

    /// What the breaker lets through.
    pub fn breaker_state(&self) -> State {
        self.breaker.lock().state(self.now())
    }

    fn now(&self) -> MonoMs {
        MonoMs(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// Notes how a call of several parts went that began at `started`. Only one that did nothing at all speaks against
    /// the store: of several servers one may be away, and one cell may not be what it should.
    fn note_parts<T>(
        &self,
        metrics: &Metrics,
        operation: Operation,
        started: Instant,
        results: &[Result<T, StoreError>],
    ) {
        match first_error(results) {
            Some(error) if did_nothing(results) => {
                self.note::<()>(metrics, operation, started, &Err(error.clone()));
            }
            Some(error) => {
                self.note(metrics, operation, started, &Ok(()));
                metrics.operation_failed(operation, error.reason());
            }
            None => self.note(metrics, operation, started, &Ok(())),
        }
    }

    /// Notes how a call went that began at `started`.
    fn note<T>(
        &self,
        metrics: &Metrics,
        operation: Operation,
        started: Instant,
        result: &Result<T, StoreError>,
    ) {
        metrics.operation(operation, started.elapsed());
        match result {
            Ok(_) => self.breaker.lock().succeeded(),
            Err(error) => {
                metrics.operation_failed(operation, error.reason());
                // That too much is asked at once says nothing of the store.
                if *error != StoreError::Busy {
                    self.breaker.lock().failed(self.now());
                }
            }
        }
    }
}

/// Begins everything that goes on beside streams.
pub fn start(shared: &Arc<Shared>, regional: &Arc<Regional>, tasks: &mut JoinSet<()>) {
    shared.region(|region, _| region.back());
    let (shared, regional) = (|| shared.clone(), || regional.clone());
    tasks.spawn(replay::run(shared(), regional()));
    tasks.spawn(watch::run(shared(), regional()));
    tasks.spawn(watch::announce(shared(), regional()));
    tasks.spawn(sisters::tell(shared(), regional()));
    tasks.spawn(sisters::listen(shared(), regional()));
    tasks.spawn(sisters::read_hot(shared(), regional()));
}

/// Whether every part of a call failed, and none because of its own cell.
fn did_nothing<T>(results: &[Result<T, StoreError>]) -> bool {
    results.iter().all(|result| result.as_ref().is_err_and(|error| !error.is_of_the_cell()))
}

/// It speaks for all that failed.
fn first_error<T>(results: &[Result<T, StoreError>]) -> Option<&StoreError> {
    results.iter().find_map(|result| result.as_ref().err())
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
