//! How calls of stores went last: when, how long they took, and why one failed.
//!
//! Leaves to others: counting them (`metrics`).

use crate::metrics::Operation;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

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

impl Recent {
    /// A call was made.
    pub fn made(&self, operation: Operation, took: Duration) {
        let at = Instant::now();
        let mut calls = self.calls.lock();
        let call =
            calls.entry(operation.word()).or_insert(Call { made: 0, failed: 0, at, took, failure: None });
        (call.at, call.took, call.made) = (at, took, call.made.saturating_add(1));
    }

    /// It failed.
    pub fn failed(&self, operation: Operation, reason: &'static str) {
        if let Some(call) = self.calls.lock().get_mut(operation.word()) {
            call.failed = call.failed.saturating_add(1);
            call.failure = Some((Instant::now(), reason));
        }
    }

    /// How the last of each of these went, as far as they were made.
    pub fn went(&self, operations: &[Operation]) -> Vec<Went> {
        let ms = |at: Instant| u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX);
        let calls = self.calls.lock();
        let known = operations.iter().filter_map(|operation| calls.get_key_value(operation.word()));
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
