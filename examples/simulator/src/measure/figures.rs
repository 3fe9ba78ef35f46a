//! What a run reports at its end, apart from decisions: counters, durations, peaks and violations.

use serde::Serialize;

/// Counters, durations, peaks and violations of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Frames on streams, in both directions.
    pub frames: u64,
    /// Messages between aggregators.
    pub messages: u64,
    /// Commands to Redis; each cell of a batch counts as one.
    pub redis_commands: u64,
    /// Statements to the database.
    pub database_statements: u64,
    /// Rows that packets wrote to the database.
    pub database_rows: u64,
    /// Times that a Redis was set back, or replaced by a replica.
    pub set_backs: u64,
    /// Calls for exact requests and refunds that could not reach their store.
    pub unreached: u64,
    /// Calls of APIs whose exact limits passed, and were refunded because windows did not.
    #[serde(skip_serializing_if = "is_zero")]
    pub overturned: u64,
    /// Queries that requests waited for.
    pub queries: u64,
    /// Times that requests waited, in microseconds.
    pub waits: Spread,
    /// Time from the last change of a cell until every part that must receive it has it, in milliseconds. There is
    /// one value for each cell and each time that the cell reached rest.
    pub convergence: Spread,
    /// Largest amounts that parts held, with their bounds.
    pub peaks: Vec<Peak>,
    /// Violations of invariants.
    pub violations: Vec<Violation>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Percentiles of values, in the unit that the field states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Spread {
    /// Number of values.
    pub count: u64,
    /// Median.
    pub p50: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Largest value.
    pub max: u64,
}

impl Spread {
    /// The percentiles of `values`, which are sorted in place.
    pub fn of(values: &mut [u64]) -> Spread {
        values.sort_unstable();
        let at = |share: usize| {
            let place = (values.len().saturating_sub(1) * share).div_ceil(100);
            values.get(place).copied().unwrap_or(0)
        };
        Spread { count: values.len() as u64, p50: at(50), p99: at(99), max: at(100) }
    }
}

/// The largest amount of something that was held at any time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Peak {
    /// What it is, and which part held it.
    pub what: String,
    /// The largest amount.
    pub most: u64,
    /// Its bound.
    pub bound: u64,
}

/// A violation of an invariant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Milliseconds since the traffic began.
    pub at_ms: i64,
    /// The checker that found it.
    pub checker: &'static str,
    /// What the checker found.
    pub what: String,
}
