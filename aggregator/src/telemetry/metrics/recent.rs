//! The last calls to stores: when they were made, how long they took, and why one failed. Also which streams were refused
//! recently.

use super::operation::Operation;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Failures and refusals that are older than this are not shown as current.
const LATELY: Duration = Duration::from_secs(60);

/// The last calls, by operation.
#[derive(Debug, Default)]
pub struct Recent {
    calls: Mutex<BTreeMap<&'static str, Call>>,
}

#[derive(Clone, Copy, Debug)]
struct Call {
    made: u64,
    failed: u64,
    at: Instant,
    took: Duration,
    failure: Option<(Instant, &'static str)>,
}

/// The last calls of one operation, as shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecentCalls {
    /// The operation.
    pub operation: String,
    /// The number of calls.
    pub calls: u64,
    /// The number of calls that failed.
    pub failures: u64,
    /// Time since the last call.
    pub age_ms: u64,
    /// Duration of the last call.
    pub took_ms: f64,
    /// Time since the last failure.
    pub failure_age_ms: Option<u64>,
    /// Reason of the last failure.
    pub failure: Option<String>,
}

/// When a stream was last refused, by reason.
#[derive(Debug, Default)]
pub struct RefusedStreams {
    last: Mutex<BTreeMap<&'static str, Instant>>,
}

/// A reason for which streams were refused.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RefusedStream {
    /// The reason, as in the metric `frames_refused_total`.
    pub reason: String,
    /// Time since the last refusal.
    pub age_ms: u64,
}

impl RefusedStreams {
    /// Notes that a stream was refused; `reason` is from a fixed set.
    pub fn note(&self, reason: &'static str) {
        self.last.lock().insert(reason, Instant::now());
    }

    /// The refusals of the last minute, the latest first.
    pub fn lately(&self) -> Vec<RefusedStream> {
        let mut last: Vec<_> = self.last.lock().iter().map(|(reason, at)| (*at, *reason)).collect();
        last.retain(|(at, _)| at.elapsed() < LATELY);
        last.sort_unstable_by(|one, other| other.cmp(one));
        let refused =
            |(at, reason): (Instant, &str)| RefusedStream { reason: reason.to_owned(), age_ms: ms(at) };
        last.into_iter().map(refused).collect()
    }
}

fn ms(at: Instant) -> u64 {
    u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX)
}

impl RecentCalls {
    /// Whether the last of these calls failed recently.
    pub fn fails(&self) -> bool {
        // A call is noted before its failure.
        let lately = |age: &u64| Duration::from_millis(*age) < LATELY;
        self.failure_age_ms.filter(lately).is_some_and(|age| age <= self.age_ms)
    }
}

impl Recent {
    /// Notes a call.
    pub fn made(&self, operation: Operation, took: Duration) {
        let at = Instant::now();
        let mut calls = self.calls.lock();
        let call =
            calls.entry(operation.into_str()).or_insert(Call { made: 0, failed: 0, at, took, failure: None });
        (call.at, call.took, call.made) = (at, took, call.made.saturating_add(1));
    }

    /// Notes that the call failed.
    pub fn failed(&self, operation: Operation, reason: &'static str) {
        if let Some(call) = self.calls.lock().get_mut(operation.into_str()) {
            call.failed = call.failed.saturating_add(1);
            call.failure = Some((Instant::now(), reason));
        }
    }

    /// The last calls of each operation, if there were any.
    pub fn went(&self, operations: &[Operation]) -> Vec<RecentCalls> {
        let (calls, now) = (self.calls.lock(), Instant::now());
        let ms =
            |at: Instant| u64::try_from(now.saturating_duration_since(at).as_millis()).unwrap_or(u64::MAX);
        let known = operations.iter().filter_map(|operation| calls.get_key_value(operation.into_str()));
        known
            .map(|(operation, call)| RecentCalls {
                operation: (*operation).to_owned(),
                calls: call.made,
                failures: call.failed,
                age_ms: ms(call.at),
                took_ms: call.took.as_secs_f64() * 1e3,
                failure_age_ms: call.failure.map(|(at, _)| ms(at)),
                failure: call.failure.map(|(_, reason)| reason.to_owned()),
            })
            .collect()
    }
}
