//! A run as data: who is there, what is asked of them, and what goes wrong when. It can be written as JSON and read again.
//!
//! Leaves to others: carrying it out (`world`), the arrivals of the traffic (`traffic`).

pub(crate) mod keys;
pub mod traffic;

use serde::{Deserialize, Serialize};
use traffic::Traffic;
use weir_core::model::key::HARD_LIMIT_RESOLUTION;
use weir_core::model::schedule::Schedule as Paces;
use weir_core::region::RegionLimits;

/// Unix time at which the traffic of every run begins, in milliseconds: a whole minute, so that it is also the beginning
/// of every window that divides a minute.
pub const START_UNIX_MS: u64 = 1_700_000_040_000;

/// A reserve counts as spent when no response has come for so long, in milliseconds.
pub const HOLD_MS: u64 = 2_000;

/// Everything that decides a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Decides all chance.
    pub seed: u64,
    /// Who is there.
    pub topology: Topology,
    /// What limits there are; an arrival names those that apply to it.
    pub rules: Vec<Rule>,
    /// Who asks; several at the same time.
    pub traffic: Vec<Traffic>,
    /// What goes wrong.
    #[serde(default)]
    pub faults: Vec<Fault>,
    /// How messages travel where nothing is wrong.
    #[serde(default)]
    pub network: Network,
    /// How often regions speak to the database.
    #[serde(default)]
    pub schedule: Schedule,
    /// Before the traffic begins, everybody has so long to connect.
    #[serde(default = "settle_ms")]
    pub settle_ms: u64,
    /// Traffic ends then, counted from its beginning.
    pub traffic_ms: u64,
    /// Then all faults end, and the world has so long to come to rest.
    pub quiet_ms: u64,
}

fn settle_ms() -> u64 {
    3_000
}

/// Who is there; the same in each region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// Regions; with more than one, a database that they share.
    pub regions: usize,
    /// Aggregators of a region; with more than one, a Redis that they share.
    pub aggregators: usize,
    /// Envoys of a region.
    pub envoys: usize,
    /// Workers of an Envoy that serve requests. There is a main thread beside them, which does not.
    pub workers: usize,
    /// Buckets of an Envoy's table.
    pub buckets: u32,
    /// Keys of a bucket.
    pub keys_per_bucket: u32,
    /// Keys that an aggregator holds at most.
    #[serde(default = "region_keys")]
    pub region_keys: usize,
}

fn region_keys() -> usize {
    RegionLimits::default().max_keys
}

impl Topology {
    /// One region of `envoys` with two workers each, and an aggregator.
    pub fn region(envoys: usize) -> Topology {
        Topology {
            regions: 1,
            aggregators: 1,
            envoys,
            workers: 2,
            buckets: 1_024,
            keys_per_bucket: 8,
            region_keys: region_keys(),
        }
    }
}

/// One limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// So much may pass in a window.
    pub limit: u64,
    /// Its length in milliseconds.
    pub window_ms: u64,
    /// Partly covered cells count in full.
    #[serde(default)]
    pub hard_limit: bool,
    /// How long a request waits for its region at the most, in milliseconds.
    #[serde(default = "timeout_ms")]
    pub timeout_ms: u32,
    /// Deny what nobody could be asked about.
    #[serde(default)]
    pub deny_on_failure: bool,
    /// A key that a complete snapshot did not bring is below half its limit.
    #[serde(default)]
    pub trust_first: bool,
    /// Decided and told, never enforced.
    #[serde(default)]
    pub shadow: bool,
    /// Reserved for each request, whose cost its response says; 0: the cost is known from the request.
    #[serde(default)]
    pub reserve: u64,
    /// How long a response takes at most, in milliseconds; at most [`HOLD_MS`]. Without a reserve it means nothing.
    #[serde(default)]
    pub response_ms: u64,
    /// Held exactly, by the region's log or by a ledger; if not given, by the windows of where the request is.
    #[serde(default)]
    pub exact: Option<Exact>,
}

/// How a limit is held exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exact {
    /// By a sliding log in the region's Redis, or in the memory of its only aggregator.
    Log,
    /// By a ledger in the database; in one region there is none, and nothing is decided.
    Ledger,
}

fn timeout_ms() -> u32 {
    50
}

impl Rule {
    /// Into how many cells its window is cut.
    pub fn resolution(&self) -> u16 {
        if self.hard_limit { HARD_LIMIT_RESOLUTION } else { 1 }
    }

    /// `limit` in `window_ms`, by the usual average.
    pub fn new(limit: u64, window_ms: u64) -> Rule {
        Rule {
            limit,
            window_ms,
            hard_limit: false,
            timeout_ms: timeout_ms(),
            deny_on_failure: false,
            trust_first: false,
            shadow: false,
            reserve: 0,
            response_ms: 0,
            exact: None,
        }
    }
}

/// How messages travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// One way between Envoys, aggregators and Redis of a region, in microseconds: at least, at most.
    pub regional_us: (u64, u64),
    /// One way between an aggregator and the database, in microseconds: at least, at most.
    pub global_us: (u64, u64),
}

impl Default for Network {
    fn default() -> Self {
        Network { regional_us: (50, 500), global_us: (20_000, 80_000) }
    }
}

/// How often regions speak to the database. All else keeps its pace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// Between two publications, in milliseconds; at least 1.
    pub publish_ms: u64,
    /// Between two imports, in milliseconds; at least 1.
    pub import_ms: u64,
}

impl Default for Schedule {
    fn default() -> Self {
        let Paces { publish_ms, import_ms, .. } = Paces::default();
        Schedule { publish_ms, import_ms }
    }
}

impl Schedule {
    /// With all other paces of an aggregator.
    pub fn paces(&self) -> Paces {
        let (publish_ms, import_ms) = (self.publish_ms.max(1), self.import_ms.max(1));
        Paces { publish_ms, import_ms, ..Paces::default() }
    }
}

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// When it begins, counted from the traffic's beginning.
    pub at_ms: u64,
    /// How long it lasts. What happens at once (a crash, a wipe, a step) takes that long to come back, if it does.
    pub for_ms: u64,
    /// What.
    pub what: Wrong,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wrong {
    /// Messages of a link take up to so much longer, each its own time.
    Delay {
        /// Between whom.
        link: Link,
        /// At most, in milliseconds.
        ms: u64,
    },
    /// So many of a thousand messages get lost. On a stream that means the stream.
    Lose {
        /// Between whom.
        link: Link,
        /// Of a thousand.
        per_mille: u64,
    },
    /// So many of a thousand messages come twice.
    Repeat {
        /// Between whom.
        link: Link,
        /// Of a thousand.
        per_mille: u64,
    },
    /// Messages may overtake each other, where the transport allows it (a stream never does).
    Reorder {
        /// Between whom.
        link: Link,
    },
    /// Nothing gets through, and nobody is told; connections are found dead by their keepalive.
    Cut {
        /// Between whom.
        link: Link,
    },
    /// It does nothing, and goes on afterwards where it was.
    Freeze {
        /// Who.
        part: Part,
    },
    /// It dies at once and loses its memory; it comes back empty when the time is over.
    Crash {
        /// Who.
        part: Part,
    },
    /// It ends in good order, and another takes its place when the time is over.
    Restart {
        /// Who.
        part: Part,
    },
    /// A store loses everything, and keeps its connections.
    Wipe {
        /// Which.
        part: Part,
    },
    /// A wall clock is off by so much.
    Skew {
        /// Whose.
        part: Part,
        /// Ahead, in milliseconds; negative: behind.
        ms: i64,
    },
    /// A store takes so much longer over each call.
    Slow {
        /// Which.
        part: Part,
        /// In milliseconds.
        ms: u64,
    },
    /// One Envoy's listener is removed and added: its table and with it its origin are gone, its machine stays.
    Rebuild {
        /// Which Envoy.
        part: Part,
    },
    /// All Envoys of a region are restarted one after the other, spread over the time.
    Roll {
        /// Which region.
        region: usize,
    },
    /// So many new identifiers a second ask at one Envoy, under the first rule.
    Flood {
        /// At which Envoy.
        part: Part,
        /// A second.
        identifiers: u64,
    },
}

/// Who there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Part {
    /// One process.
    Envoy {
        /// Its region.
        region: usize,
        /// Its number there.
        envoy: usize,
    },
    /// One thread of it.
    Worker {
        /// Its region.
        region: usize,
        /// Its process.
        envoy: usize,
        /// Its number there; 0 is the main thread.
        worker: usize,
    },
    /// One of a region's servers.
    Aggregator {
        /// Its region.
        region: usize,
        /// Its number there.
        aggregator: usize,
    },
    /// A region's Redis.
    Redis {
        /// Its region.
        region: usize,
    },
    /// What all regions share.
    Database,
}

/// Between whom messages travel; all there are where a number is not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Link {
    /// Between a region's Envoys and its aggregators.
    Streams {
        /// The region.
        region: usize,
        /// One Envoy only.
        envoy: Option<usize>,
        /// One aggregator only.
        aggregator: Option<usize>,
    },
    /// Between one worker and all aggregators of its region.
    Worker {
        /// The region.
        region: usize,
        /// The Envoy.
        envoy: usize,
        /// The worker; 0 is the main thread.
        worker: usize,
    },
    /// Between aggregators and their Redis.
    Redis {
        /// The region.
        region: usize,
        /// One aggregator only.
        aggregator: Option<usize>,
    },
    /// What aggregators publish to each other.
    Peers {
        /// The region.
        region: usize,
    },
    /// Between a region and the database.
    Database {
        /// The region; all if not given.
        region: Option<usize>,
    },
}
