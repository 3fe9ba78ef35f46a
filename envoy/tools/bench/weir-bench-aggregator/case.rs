//! What is measured: a table for each measurement, with a row for each case.

use clap::ValueEnum;
use weir_core::limiter::{IDLE_PING_MS, PING_MS};

use crate::decide::Crowd;
use crate::ingest::Keys;
use crate::memory::Users;
use crate::query::Load;
use crate::stage::Store;
use crate::{decide, delay, idle, ingest, memory, push, query, regions, scan};

/// One table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Measurement {
    /// Reports merged.
    Ingest,
    /// Queries answered.
    Query,
    /// Decisions of the aggregator: exact limits, applications, Envoy's rate-limit filter.
    Decide,
    /// From a report at one aggregator to the push at another.
    Push,
    /// Ten regions on one database.
    Regions,
    /// From a report in one region to the push in another.
    Delay,
    /// The core's search for cells that are due, and the memory of a cell.
    Scan,
    /// The memory of a key.
    Memory,
    /// Idle streams.
    Idle,
}

/// One row of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Case {
    Ingest(Store, Keys),
    Query(Store, Load),
    Decide(Crowd),
    Push,
    Regions {
        /// By how much there is more than the present load.
        scale: usize,
        aggregators: usize,
    },
    Delay,
    /// Cells.
    Scan(usize),
    Memory(Users),
    /// Milliseconds between the pings of a stream.
    Idle(u64),
}

impl Measurement {
    pub fn title(self) -> &'static str {
        match self {
            Self::Ingest => "Reports of 256 counts, 4 streams",
            Self::Query => "Queries, 5 000 a second in an open loop, 8 streams",
            Self::Decide => "Decisions, each client sends a request when it has the last response",
            Self::Push => "From a report at one aggregator to the push at another",
            Self::Regions => "Ten regions on one MariaDB",
            Self::Delay => "From a report in one region to the push in another",
            Self::Scan => "Everything due for other regions is taken; memory",
            Self::Memory => "Memory of an aggregator",
            Self::Idle => "Idle streams",
        }
    }

    pub fn columns(self) -> &'static [&'static str] {
        match self {
            Self::Ingest => &ingest::COLUMNS,
            Self::Query => &query::COLUMNS,
            Self::Decide => &decide::COLUMNS,
            Self::Push => &push::COLUMNS,
            Self::Regions => &regions::COLUMNS,
            Self::Delay => &delay::COLUMNS,
            Self::Scan => &scan::COLUMNS,
            Self::Memory => &memory::COLUMNS,
            Self::Idle => &idle::COLUMNS,
        }
    }
}

impl Case {
    pub fn all(quick: bool) -> Vec<Case> {
        let mut cases = vec![
            Case::Ingest(Store::Memory, Keys::Own),
            Case::Ingest(Store::Memory, Keys::Shared),
            Case::Ingest(Store::Redis, Keys::Own),
            Case::Query(Store::Memory, Load::Many),
            Case::Query(Store::Memory, Load::One),
            Case::Query(Store::Redis, Load::Many),
            Case::Query(Store::Redis, Load::One),
            Case::Query(Store::Redis, Load::BesideReports),
        ];
        cases.extend(Crowd::all().map(Case::Decide));
        cases.extend([Case::Push, Case::Regions { scale: 1, aggregators: regions::REGIONS }]);
        if !quick {
            cases.push(Case::Regions { scale: 10, aggregators: regions::REGIONS });
            cases.push(Case::Regions { scale: 1, aggregators: regions::INSTANCES });
        }
        cases.extend([Case::Delay, Case::Scan(240_000)]);
        cases.extend((!quick).then_some(Case::Scan(5_000_000)));
        cases.extend([Users::Envoys, Users::Application].map(Case::Memory));
        cases.extend([IDLE_PING_MS, PING_MS].map(Case::Idle));
        cases
    }

    pub fn measurement(self) -> Measurement {
        match self {
            Case::Ingest(..) => Measurement::Ingest,
            Case::Query(..) => Measurement::Query,
            Case::Decide(_) => Measurement::Decide,
            Case::Push => Measurement::Push,
            Case::Regions { .. } => Measurement::Regions,
            Case::Delay => Measurement::Delay,
            Case::Scan(_) => Measurement::Scan,
            Case::Memory(_) => Measurement::Memory,
            Case::Idle(_) => Measurement::Idle,
        }
    }

    pub fn title(self) -> String {
        let store = |store| match store {
            Store::Memory => "memory",
            Store::Redis => "Redis",
        };
        match self {
            Case::Ingest(place, Keys::Own) => format!("{}, own keys", store(place)),
            Case::Ingest(place, Keys::Shared) => {
                format!("{}, shared keys, all are pushed to", store(place))
            }
            Case::Query(place, Load::Many) => format!("{}, many keys", store(place)),
            Case::Query(place, Load::One) => format!("{}, one key", store(place)),
            Case::Query(place, Load::BesideReports) => {
                format!("{}, many keys, beside reports without pause", store(place))
            }
            Case::Decide(crowd) => crowd.title(),
            Case::Push => "two aggregators, one Redis".to_owned(),
            Case::Regions { scale, aggregators } => {
                format!("{} windows, {aggregators} aggregators", scale * regions::WINDOWS)
            }
            Case::Delay => "two regions, 50 ms from their MariaDB".to_owned(),
            Case::Scan(cells) => format!("{cells} cells"),
            Case::Memory(Users::Envoys) => "keys that Envoys use".to_owned(),
            Case::Idle(pause_ms) => format!("a ping every {pause_ms} ms"),
            Case::Memory(Users::Application) => "keys that an application uses by the HTTP API".to_owned(),
        }
    }
}
