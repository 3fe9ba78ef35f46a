//! Calls to stores, as metrics name them.

use strum::IntoStaticStr;

/// A call to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Operation {
    /// Writing the counts that filters reported.
    Replay,
    /// A query that a request waits for.
    Query,
    /// Adding cells to the hot index.
    NameHot,
    /// Reading a shard of the hot index.
    ReadHot,
    /// A message to the other aggregators.
    Broadcast,
    /// Exchanging which Envoys are alive.
    Heartbeat,
    /// Reading the markers.
    ReadMarkers,
    /// Writing this region's rows, and reading new rows of other writers.
    Exchange,
    /// Reading all rows of the other regions.
    Import,
    /// Reading this region's own rows, after a loss.
    Recover,
    /// Reading live controls.
    ReadControls,
}

impl Operation {
    /// Calls to the regional store.
    pub const REGIONAL: [Operation; 7] = [
        Operation::Replay,
        Operation::Query,
        Operation::NameHot,
        Operation::ReadHot,
        Operation::Broadcast,
        Operation::Heartbeat,
        Operation::ReadMarkers,
    ];
    /// Calls to the database.
    pub const GLOBAL: [Operation; 4] =
        [Operation::Exchange, Operation::Import, Operation::Recover, Operation::ReadControls];
}
