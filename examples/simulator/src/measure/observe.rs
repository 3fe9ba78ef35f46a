//! What a run tells whoever watches: requests as they arrive and as they are decided.
//!
//! Leaves to others: what is made of it (`measure`, `check`, the playground).

use crate::plan::traffic::Arrival;
use serde::Serialize;

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Verdict {
    /// It passed, and was charged.
    Admitted,
    /// A limit is used up.
    Denied,
    /// Others held the budget for a moment.
    Reserved,
    /// Nobody could be asked, and the rule denies then.
    Undecided,
    /// Its Envoy died, or its worker did, before it was decided.
    Lost,
}

/// A request, decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Decided {
    /// The request.
    pub arrival: Arrival,
    /// When, in microseconds since the traffic began.
    pub at_us: u64,
    /// How.
    pub verdict: Verdict,
    /// One bit for each of the plan's rules: shadow rules that would have denied.
    pub shadow_denied: u64,
    /// What it was told to wait, in milliseconds.
    pub retry_after_ms: Option<u64>,
}

/// Watches a run.
pub trait Observer {
    /// A request reached an Envoy that is alive.
    fn arrived(&mut self, arrival: &Arrival) {
        let _ = arrival;
    }

    /// A request was decided, or lost.
    fn decided(&mut self, decided: &Decided) {
        let _ = decided;
    }
}

/// Watches nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nobody;

impl Observer for Nobody {}
