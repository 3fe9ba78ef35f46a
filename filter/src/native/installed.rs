//! The configurations of the process: each has a root, whatever the number of places in Envoy's configuration that have the same text, and
//! work that waits for the main thread.

use crate::host::calls::EnvoyConfig;
use crate::host::metrics::{self, Change};
use crate::host::stream::Job;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use weir_core::rules::Config;

/// Roots have the highest bit, and numbers of requests do not: a plugin's methods take either.
pub const FIRST_ROOT: u32 = 1 << 31;

static ALL: RwLock<Vec<Arc<Installed>>> = RwLock::new(Vec::new());
static LAST: AtomicU32 = AtomicU32::new(0);

/// A configuration of the filter.
pub struct Installed {
    /// Its number.
    pub root: u32,
    /// The configuration.
    pub config: Config,
    text: Box<[u8]>,
    places: Mutex<Vec<Arc<Place>>>,
    outbox: Mutex<Vec<(usize, Work)>>,
    /// The main thread was asked to look into the outbox.
    is_pending: AtomicBool,
}

/// A place in Envoy's configuration that has it.
#[derive(Debug)]
pub struct Place {
    /// Its number.
    pub number: u32,
    /// Envoy's object of it.
    pub envoy: EnvoyConfig,
    /// Envoy's numbers of the metrics, by the module's.
    metrics: BTreeMap<u32, usize>,
}

/// What the main thread is to do for the worker whose number stands beside it.
#[derive(Debug)]
pub enum Work {
    /// What it wants of its streams.
    Job(Job),
    /// It has begun anew, and has no stream.
    CloseAll,
    /// A stream of a place that has ended is to be removed.
    Reset(Arc<Place>, u64),
}

/// Takes a lock, after a panic as well.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Place {
    /// Defines the metrics of a configuration, which are possible only while Envoy makes it.
    pub fn new(envoy: EnvoyConfig, wanted: &[(crate::host::kinds::MetricType, String)]) -> Place {
        let define = |(kind, name): &(_, String)| {
            Some((metrics::define_metric(*kind, name)?, envoy.define(*kind, name)?))
        };
        let metrics = wanted.iter().filter_map(define).collect();
        Place { number: LAST.fetch_add(1, Ordering::Relaxed), envoy, metrics }
    }
}

impl Installed {
    /// The configuration of this text, if there is one.
    pub fn of_text(text: &[u8]) -> Option<Arc<Installed>> {
        all().into_iter().find(|installed| *installed.text == *text)
    }

    /// The configuration of this root.
    pub fn of_root(root: u32) -> Option<Arc<Installed>> {
        let all = ALL.read().unwrap_or_else(PoisonError::into_inner);
        all.iter().find(|installed| installed.root == root).cloned()
    }

    /// A new one.
    pub fn add(text: &[u8], config: Config) -> Arc<Installed> {
        let mut all = ALL.write().unwrap_or_else(PoisonError::into_inner);
        let after = all.last().map_or(FIRST_ROOT, |last| last.root.wrapping_add(1) | FIRST_ROOT);
        let installed = Arc::new(Installed {
            root: after,
            config,
            text: text.into(),
            places: Mutex::default(),
            outbox: Mutex::default(),
            is_pending: AtomicBool::new(false),
        });
        all.push(installed.clone());
        installed
    }

    /// Removes it.
    pub fn remove(&self) {
        let mut all = ALL.write().unwrap_or_else(PoisonError::into_inner);
        all.retain(|installed| installed.root != self.root);
    }

    /// Adds a place that has it.
    pub fn add_place(&self, place: Place) -> Arc<Place> {
        let place = Arc::new(place);
        lock(&self.places).push(place.clone());
        place
    }

    /// Removes a place. Returns whether it was the last one.
    pub fn remove_place(&self, number: u32) -> bool {
        let mut places = lock(&self.places);
        places.retain(|place| place.number != number);
        // What the removed place was asked for is lost.
        self.is_pending.store(false, Ordering::Release);
        let is_last = places.is_empty();
        drop(places);
        if !lock(&self.outbox).is_empty() {
            self.ask();
        }
        is_last
    }

    /// Whether Envoy has this place still.
    pub fn has_place(&self, number: u32) -> bool {
        lock(&self.places).iter().any(|place| place.number == number)
    }

    /// The first place, which streams and metrics belong to.
    pub fn first_place(&self) -> Option<Arc<Place>> {
        lock(&self.places).first().cloned()
    }

    /// Leaves work for the main thread.
    pub fn leave(&self, work: impl IntoIterator<Item = (usize, Work)>) {
        lock(&self.outbox).extend(work);
        self.ask();
    }

    /// Asks the main thread to look, unless it was asked.
    pub fn ask(&self) {
        if !self.is_pending.swap(true, Ordering::AcqRel) {
            match lock(&self.places).first() {
                Some(place) => place.envoy.commit(),
                None => self.is_pending.store(false, Ordering::Release),
            }
        }
    }

    /// The work that is left, on the main thread.
    pub fn take_work(&self) -> Vec<(usize, Work)> {
        self.is_pending.store(false, Ordering::Release);
        std::mem::take(&mut *lock(&self.outbox))
    }
}

/// All of them, the newest last.
pub fn all() -> Vec<Arc<Installed>> {
    ALL.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Leaves jobs of a worker for the main thread.
pub fn leave_jobs(slot: usize, jobs: Vec<(u32, Job)>) {
    let mut jobs = jobs.into_iter().peekable();
    while let Some((root, job)) = jobs.next() {
        let of_root = std::iter::from_fn(|| jobs.next_if(|(next, _)| *next == root).map(|(_, job)| job));
        let work = std::iter::once(job).chain(of_root).map(|job| (slot, Work::Job(job)));
        match Installed::of_root(root) {
            Some(installed) => installed.leave(work),
            None => work.for_each(drop),
        }
    }
}

/// Passes changes of metrics to Envoy, on the main thread: each to the newest configuration that has defined the metric.
pub fn pass_metrics() {
    let changes = metrics::take_changes();
    if changes.is_empty() {
        return;
    }
    let places: Vec<Arc<Place>> =
        all().iter().rev().filter_map(|installed| installed.first_place()).collect();
    for (id, kind, change) in changes {
        let found = places.iter().find_map(|place| Some((&place.envoy, *place.metrics.get(&id)?)));
        match (found, change) {
            (Some((envoy, id)), Change::By(by)) => envoy.increment(kind, id, by),
            (Some((envoy, id)), Change::To(value)) => envoy.record(id, value),
            (None, _) => {}
        }
    }
}
