//! How calls of stores went last: when, how long they took, and why one failed.
//!
//! Also which streams were refused lately. Leaves to others: counting them (`metrics`).

use crate::telemetry::metrics::Operation;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What was longer ago tells nothing of now.
const LATELY: Duration = Duration::from_secs(60);

/// The last calls, by what was asked.
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

/// What is shown of one kind of call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Went {
    /// What was asked.
    pub operation: String,
    /// How often.
    pub calls: u64,
    /// How often that failed.
    pub failures: u64,
    /// Since the last answer.
    pub age_ms: u64,
    /// How long that took.
    pub took_ms: f64,
    /// Since the last failure.
    pub failure_age_ms: Option<u64>,
    /// Why it was one.
    pub failure: Option<String>,
}

/// The last refusal of a stream, by why.
#[derive(Debug, Default)]
pub struct RefusedStreams {
    last: Mutex<BTreeMap<&'static str, Instant>>,
}

/// Streams that were refused.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Refused {
    /// Why, as the metric `frames_refused_total` has it.
    pub reason: String,
    /// Since the last of them.
    pub age_ms: u64,
}

impl RefusedStreams {
    /// A stream was refused; `reason` is out of a fixed set.
    pub fn note(&self, reason: &'static str) {
        self.last.lock().insert(reason, Instant::now());
    }

    /// What was refused within the last minute, the last first.
    pub fn lately(&self) -> Vec<Refused> {
        let mut last: Vec<_> = self.last.lock().iter().map(|(reason, at)| (*at, *reason)).collect();
        last.retain(|(at, _)| at.elapsed() < LATELY);
        last.sort_unstable_by(|one, other| other.cmp(one));
        let refused = |(at, reason): (Instant, &str)| Refused { reason: reason.to_owned(), age_ms: ms(at) };
        last.into_iter().map(refused).collect()
    }
}

fn ms(at: Instant) -> u64 {
    u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX)
}

impl Went {
    /// Whether the last of these calls failed, and lately.
    pub fn fails(&self) -> bool {
        // A call is noted first, and then that it failed.
        let lately = |age: &u64| Duration::from_millis(*age) < LATELY;
        self.failure_age_ms.filter(lately).is_some_and(|age| age <= self.age_ms)
    }
}

impl Recent {
    /// A call was made.
    pub fn made(&self, operation: Operation, took: Duration) {
        let at = Instant::now();
        let mut calls = self.calls.lock();
        let call =
            calls.entry(operation.into_str()).or_insert(Call { made: 0, failed: 0, at, took, failure: None });
        (call.at, call.took, call.made) = (at, took, call.made.saturating_add(1));
    }

    /// It failed.
    pub fn failed(&self, operation: Operation, reason: &'static str) {
        if let Some(call) = self.calls.lock().get_mut(operation.into_str()) {
            call.failed = call.failed.saturating_add(1);
            call.failure = Some((Instant::now(), reason));
        }
    }

    /// How the last of each of these went, as far as they were made.
    pub fn went(&self, operations: &[Operation]) -> Vec<Went> {
        let (calls, now) = (self.calls.lock(), Instant::now());
        let ms =
            |at: Instant| u64::try_from(now.saturating_duration_since(at).as_millis()).unwrap_or(u64::MAX);
        let known = operations.iter().filter_map(|operation| calls.get_key_value(operation.into_str()));
        known
            .map(|(operation, call)| Went {
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
