//! What a run comes to, apart from the decisions themselves: what was sent, how long it took, what must not have happened.
//!
//! Leaves to others: gathering it (`world`, `check`), comparing decisions with others' (`measure`), printing (`report`).

use serde::Serialize;

/// Figures of a whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Frames on streams, both ways.
    pub frames: u64,
    /// Messages between aggregators.
    pub messages: u64,
    /// Commands to Redis, each cell of a batch counting.
    pub redis_commands: u64,
    /// Statements to the database.
    pub database_statements: u64,
    /// Questions that requests waited for.
    pub consults: u64,
    /// Requests that waited.
    pub waits: Spread,
    /// From the last change of a cell until everybody who was to know it did, in milliseconds; one value for each cell and
    /// time that it came to rest.
    pub convergence: Spread,
    /// Most of anything that was held at once, and its bound.
    pub peaks: Vec<Peak>,
    /// What must not happen and did.
    pub violations: Vec<Violation>,
}

/// How values are spread; microseconds or milliseconds as the field says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Spread {
    /// How many there were.
    pub count: u64,
    /// Half were at most this.
    pub p50: u64,
    /// Of a hundred, ninety-nine.
    pub p99: u64,
    /// All of them.
    pub max: u64,
}

impl Spread {
    /// Of `values`, which are sorted for it.
    pub fn of(values: &mut [u64]) -> Spread {
        values.sort_unstable();
        let at = |share: usize| {
            let place = (values.len().saturating_sub(1) * share).div_ceil(100);
            values.get(place).copied().unwrap_or(0)
        };
        Spread { count: values.len() as u64, p50: at(50), p99: at(99), max: at(100) }
    }
}

/// The most that was ever held of something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Peak {
    /// Of what, and where.
    pub what: String,
    /// So much.
    pub most: u64,
    /// It may be so much.
    pub bound: u64,
}

/// Something that must never be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Milliseconds since the traffic began.
    pub at_ms: i64,
    /// Which of the checkers found it.
    pub checker: &'static str,
    /// What it saw.
    pub what: String,
}
