//! Metrics of the native filter. Envoy takes definitions only while it makes a configuration, and changes from its own threads, so a change is
//! kept here until the main thread passes it on.
//!
//! A label's value is a part of a metric's name, as with the WASM filter, so that one set of `stats_tags` and of dashboards serves both.

use crate::host::kinds::MetricType;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

static METRICS: Mutex<Metrics> = Mutex::new(Metrics { ids: BTreeMap::new(), all: Vec::new() });
static HAS_CHANGES: AtomicBool = AtomicBool::new(false);

/// The metrics of the process, each with what has changed of it.
struct Metrics {
    ids: BTreeMap<String, u32>,
    all: Vec<(MetricType, Option<Change>)>,
}

/// What has changed of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It grew, or a gauge fell, by so much.
    By(i64),
    /// It is this.
    To(u64),
}

fn lock() -> MutexGuard<'static, Metrics> {
    METRICS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of the metric of this name; a new one if it is new.
pub fn define_metric(kind: MetricType, name: &str) -> Option<u32> {
    let Metrics { ids, all } = &mut *lock();
    if let Some(id) = ids.get(name) {
        return Some(*id);
    }
    let id = u32::try_from(all.len()).ok()?;
    ids.insert(name.to_owned(), id);
    all.push((kind, None));
    Some(id)
}

/// Adds to a counter or gauge.
pub fn increment_metric(id: u32, by: i64) {
    change(id, |before| match before {
        Some(Change::By(before)) => Change::By(before.saturating_add(by)),
        _ => Change::By(by),
    });
}

/// Sets a gauge.
pub fn record_metric(id: u32, value: u64) {
    change(id, |_| Change::To(value));
}

fn change(id: u32, to: impl FnOnce(Option<Change>) -> Change) {
    let found = usize::try_from(id).unwrap_or(usize::MAX);
    if let Some((_, change)) = lock().all.get_mut(found) {
        *change = Some(to(*change));
        HAS_CHANGES.store(true, Ordering::Release);
    }
}

/// Whether something is to be passed on.
pub fn has_changes() -> bool {
    HAS_CHANGES.load(Ordering::Acquire)
}

/// What has changed since the last call, by the numbers of the metrics.
pub fn take_changes() -> Vec<(u32, MetricType, Change)> {
    if !HAS_CHANGES.swap(false, Ordering::AcqRel) {
        return Vec::new();
    }
    let changed = |((kind, change), id): (&mut (MetricType, Option<Change>), u32)| {
        change.take().map(|change| (id, *kind, change))
    };
    lock().all.iter_mut().zip(0..).filter_map(changed).collect()
}
