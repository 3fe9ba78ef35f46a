//! What a run reports to an observer: each request as it arrives and as it is decided.

use crate::plan::traffic::Arrival;
use serde::Serialize;

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Verdict {
    /// It passed and was charged.
    Admitted,
    /// It was denied because a limit is used up.
    Denied,
    /// It was denied because others had reserved the budget.
    Reserved,
    /// It was denied because its region could not decide in time and the rule denies in that case.
    Undecided,
    /// Its Envoy or worker ended before it was decided.
    Lost,
}

/// A request and its outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Decided {
    /// The request.
    pub arrival: Arrival,
    /// When it was decided, in microseconds after the traffic's beginning.
    pub at_us: u64,
    /// The outcome.
    pub verdict: Verdict,
    /// Shadow rules that would have denied it: one bit for each rule of the plan.
    pub shadow_denied: u64,
    /// The time after which the client may retry, in milliseconds.
    pub retry_after_ms: Option<u64>,
}

/// Receives the requests of a run.
pub trait Observer {
    /// A request reached a running Envoy.
    fn arrived(&mut self, arrival: &Arrival) {
        let _ = arrival;
    }

    /// A request was decided or lost.
    fn decided(&mut self, decided: &Decided) {
        let _ = decided;
    }
}

/// Ignores everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoObserver;

impl Observer for NoObserver {}
