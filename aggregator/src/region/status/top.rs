//! A scan of all keys for those nearest to their limits, shared by all viewers.
//!
//! It locks the region for some thousand keys at a time. The time between two scans is at least a second, and at least twenty
//! times as long as a scan takes, so that scanning takes at most a twentieth of the time.

use super::Status;
use super::counters::Rule;
use crate::region::hub::Hub;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use tokio::task::yield_now;
use tokio::time::sleep_until;
use weir_core::model::exact::AlgorithmKind;
use weir_core::model::key::Key;
use weir_core::model::time::UnixMs;
use weir_core::region::top::{Scope, Top};

/// Least time between two scans.
const INTERVAL: Duration = Duration::from_secs(1);
/// The least time between two scans, in multiples of a scan's duration.
const REST: u32 = 20;
/// Longest pause before a search.
const MAX_REST: Duration = Duration::from_secs(2);
/// Growth over a longer time than this is not shown as a rate.
const MAX_SPAN: Duration = Duration::from_secs(30);

/// The results of the last scan and of the last search.
#[derive(Default)]
pub struct Scans {
    last: Mutex<Option<Arc<Scan>>>,
    found: Mutex<Found>,
}

/// The last search.
#[derive(Default)]
struct Found {
    /// Its text and result.
    last: Option<(Vec<u8>, Arc<Scan>)>,
    took: Duration,
    /// When the next may begin.
    rests_until: Option<Instant>,
}

/// The result of a scan.
#[derive(Debug)]
pub struct Scan {
    /// The keys.
    pub top: Top,
    /// The growth of the nearest keys for each second since the scan before.
    pub growth: HashMap<Key, f64>,
    /// Number of keys in memory.
    pub held: usize,
    /// When the scan ended, by the region's time.
    pub unix: UnixMs,
    /// When the scan ended.
    pub at: Instant,
    took: Duration,
}

impl Scan {
    fn is_fresh(&self) -> bool {
        self.at.elapsed() < INTERVAL.max(self.took.saturating_mul(REST))
    }
}

impl Scans {
    /// The result of the last scan, or of a new one if that is too old. Callers during a scan wait for it.
    pub async fn latest(&self, hub: &Hub, status: &Status) -> Arc<Scan> {
        let mut last = self.last.lock().await;
        if let Some(scan) = last.as_ref().filter(|scan| scan.is_fresh()) {
            return scan.clone();
        }
        let scan = Arc::new(scan(hub, status, last.as_deref()).await);
        *last = Some(scan.clone());
        scan
    }

    /// The keys that match `text`. One search runs at a time, and rests like the scan. A search that is dropped, as its caller has gone,
    /// leaves the queue or ends where it is.
    pub async fn matching(&self, text: &[u8], hub: &Hub, status: &Status) -> Arc<Scan> {
        let mut found = self.found.lock().await;
        if let Some((_, scan)) = found.last.as_ref().filter(|(last, scan)| last == text && scan.is_fresh()) {
            return scan.clone();
        }
        if let Some(at) = found.rests_until {
            sleep_until(at.into()).await;
        }
        let rest = |took: Duration| took.saturating_mul(REST).min(MAX_REST);
        // If it is dropped before its end, the next one rests as after the last complete one.
        found.rests_until = Some(Instant::now() + rest(found.took));
        let top = Top::new(shadow_scopes(status)).matching(text);
        let scan = Arc::new(walk(top, hub, None).await);
        (found.took, found.rests_until) = (scan.took, Some(scan.at + rest(scan.took)));
        found.last = Some((text.to_vec(), scan.clone()));
        scan
    }
}

async fn scan(hub: &Hub, status: &Status, before: Option<&Scan>) -> Scan {
    walk(Top::new(shadow_scopes(status)), hub, before).await
}

async fn walk(mut top: Top, hub: &Hub, before: Option<&Scan>) -> Scan {
    let started = Instant::now();
    while hub.region(|region, now| region.rank(&mut top, now)) {
        yield_now().await;
    }
    let (at, stats) = (Instant::now(), hub.stats());
    let growth = before.map(|before| growth(&top, before, at)).unwrap_or_default();
    Scan { top, growth, held: stats.keys, unix: hub.now(), at, took: started.elapsed() }
}

/// What shadow rules count, each with whether another rule enforces a limit on it. For these the scan also finds the keys that would be
/// denied.
fn shadow_scopes(status: &Status) -> BTreeMap<Scope, bool> {
    let rules = status.rules_of_region();
    let windows = || rules.iter().filter(|rule| rule.is(AlgorithmKind::Window));
    let scope = |rule: &Rule| Scope {
        workspace: rule.workspace.clone().into_bytes(),
        namespace: rule.namespace.clone().into_bytes(),
        window_ms: rule.window_ms,
    };
    let mut scopes: BTreeMap<Scope, bool> =
        windows().filter(|rule| rule.shadow).map(|rule| (scope(rule), false)).collect();
    for rule in windows().filter(|rule| !rule.shadow) {
        if let Some(is_enforced) = scopes.get_mut(&scope(rule)) {
            *is_enforced = true;
        }
    }
    scopes
}

fn growth(top: &Top, before: &Scan, at: Instant) -> HashMap<Key, f64> {
    let span = at.saturating_duration_since(before.at);
    if span > MAX_SPAN || span.is_zero() {
        return HashMap::new();
    }
    let previous: HashMap<_, _> = before.top.nearest.iter().map(|one| (&one.key, one.usage)).collect();
    let grown = top.nearest.iter().filter_map(|one| {
        let then = previous.get(&one.key).filter(|then| then.sequence == one.usage.sequence)?;
        let more = one.usage.current.saturating_sub(then.current);
        Some((one.key.clone(), more as f64 / span.as_secs_f64()))
    });
    grown.collect()
}
