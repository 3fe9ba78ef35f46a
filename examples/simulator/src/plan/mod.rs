//! A run as data: the parts that exist, their traffic, and the faults with their times. Plans are written and read as
//! JSON.
//!
//! - `keys`: the plan's rules as the limiter checks them.
//! - `traffic`: requests and their sources.

pub(crate) mod keys;
pub mod traffic;

use serde::{Deserialize, Serialize};
use traffic::Traffic;
use weir_core::model::key::HARD_LIMIT_RESOLUTION;
use weir_core::model::schedule::Schedule as CoreSchedule;
use weir_core::region::RegionLimits;

/// Most rows of a page that is read from the database: few, so that a recovery reads many pages.
const PAGE_ROWS: usize = 256;

/// Unix time at which the traffic of every run begins, in milliseconds. It is a whole minute, so every window that
/// divides a minute begins there too.
pub const START_UNIX_MS: u64 = 1_700_000_040_000;

/// A reserve counts as spent if no response has arrived for this long, in milliseconds.
pub const HOLD_MS: u64 = 2_000;

/// Everything that determines a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The seed of all random choices.
    pub seed: u64,
    /// The parts that exist.
    pub topology: Topology,
    /// The limits; an arrival names those that apply to it.
    pub rules: Vec<Rule>,
    /// The sources of requests; all are active at the same time.
    pub traffic: Vec<Traffic>,
    /// Calls of the aggregators' APIs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls: Option<ApiCalls>,
    /// The faults.
    #[serde(default)]
    pub faults: Vec<Fault>,
    /// Delays of messages without faults.
    #[serde(default)]
    pub network: Network,
    /// How often regions exchange counts with the database.
    #[serde(default)]
    pub schedule: Schedule,
    /// How long the parts have to connect before the traffic begins, in milliseconds.
    #[serde(default = "settle_ms")]
    pub settle_ms: u64,
    /// How long the traffic lasts, in milliseconds.
    pub traffic_ms: u64,
    /// How long the run continues after the traffic, without faults, so that counts can converge, in milliseconds.
    pub quiet_ms: u64,
}

fn settle_ms() -> u64 {
    3_000
}

/// The parts that exist; the same in each region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// Number of regions; if there is more than one, they share a database.
    pub regions: usize,
    /// Aggregators of a region; if there is more than one, they share a Redis.
    pub aggregators: usize,
    /// Envoys of a region.
    pub envoys: usize,
    /// Workers of an Envoy that serve requests. The main thread, which serves none, is not counted.
    pub workers: usize,
    /// Buckets of an Envoy's table.
    pub buckets: u32,
    /// Keys of a bucket.
    pub keys_per_bucket: u32,
    /// Most keys that an aggregator holds.
    #[serde(default = "region_keys")]
    pub region_keys: usize,
    /// After how long without a request an Envoy leaves its region until the next one, as an aggregator's embedded limiter
    /// does, in milliseconds; 0: never.
    #[serde(default)]
    pub idle_ms: u64,
}

fn region_keys() -> usize {
    RegionLimits::default().max_keys
}

impl Topology {
    /// One region with one aggregator and `envoys` Envoys of two workers each.
    pub fn region(envoys: usize) -> Topology {
        Topology {
            regions: 1,
            aggregators: 1,
            envoys,
            workers: 2,
            buckets: 1_024,
            keys_per_bucket: 8,
            region_keys: region_keys(),
            idle_ms: 0,
        }
    }
}

/// One limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Most cost that may pass in a window.
    pub limit: u64,
    /// Length of the window in milliseconds.
    pub window_ms: u64,
    /// Cells that the window covers in part count in full.
    #[serde(default)]
    pub hard_limit: bool,
    /// Longest time that a request waits for its region, in milliseconds.
    #[serde(default = "timeout_ms")]
    pub timeout_ms: u32,
    /// Deny a request if its region cannot decide in time.
    #[serde(default)]
    pub deny_on_failure: bool,
    /// Assume that a key is below half its limit if a complete snapshot does not contain it.
    #[serde(default)]
    pub trust_first: bool,
    /// Count and decide, but never deny.
    #[serde(default)]
    pub shadow: bool,
    /// Cost to reserve for each request until its response states the cost; 0: the request states the cost.
    #[serde(default)]
    pub reserve: u64,
    /// Longest time until a response, in milliseconds; at most [`HOLD_MS`]. Without a reserve it has no effect.
    #[serde(default)]
    pub response_ms: u64,
    /// Responses are answers of a language model, whose tokens are charged. Without a reserve it has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answers: Option<Answers>,
    /// Hold the limit exactly, by the region's log or by a ledger. If not given, the limit is counted in windows.
    #[serde(default)]
    pub exact: Option<Exact>,
    /// Count the keys of an earlier rule with this number, which has the same window: another limit of the same keys. A
    /// request is subject to one of such rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys_of: Option<usize>,
}

/// Answers of a language model, as a stream of events. The cost of a request is the number of its answer's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answers {
    /// Bytes of each token of an answer: least, most.
    pub bytes_a_token: (u64, u64),
    /// How many of a thousand clients leave during the answer, so that its use is estimated.
    pub aborted_per_mille: u64,
}

/// How an exact limit is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exact {
    /// A sliding log in the region's Redis, or in the memory of its only aggregator.
    Log,
    /// A ledger in the database. With one region there is no database, so requests stay undecided.
    Ledger,
}

fn timeout_ms() -> u32 {
    50
}

impl Rule {
    /// The number of the rule whose keys this one counts; it is the `number`-th.
    pub fn counts(&self, number: usize) -> usize {
        self.keys_of.unwrap_or(number).min(number)
    }

    /// The number of cells in its window.
    pub fn resolution(&self) -> u16 {
        if self.hard_limit { HARD_LIMIT_RESOLUTION } else { 1 }
    }

    /// `limit` in `window_ms`, with defaults for everything else.
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
            answers: None,
            exact: None,
            keys_of: None,
        }
    }
}

/// Calls of the aggregators' APIs, each under all of some exact rules and under windows. Windows are no rules here: chance decides
/// what they decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApiCalls {
    /// Time between two calls, in milliseconds; at least 1.
    pub every_ms: u64,
    /// The rules that apply, those of them that are exact: one bit for each rule of the plan.
    pub rules: u64,
    /// Number of identifiers, counted from 0.
    pub identifiers: u64,
    /// Highest cost of a call.
    pub cost: u64,
    /// Time for the decision, in milliseconds.
    pub within_ms: u64,
    /// How many of a thousand calls the windows deny before the exact rules are asked, how many afterwards, and how many they leave
    /// undecided.
    pub windows_per_mille: u64,
}

/// Delays of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// One-way delay between Envoys, aggregators and Redis of a region, in microseconds: least, most.
    pub regional_us: (u64, u64),
    /// One-way delay between an aggregator and the database, in microseconds: least, most.
    pub global_us: (u64, u64),
    /// Further one-way delay between the regions and the database, in microseconds: that of the first region, that of the last. The other
    /// regions lie between them at equal distances.
    #[serde(default)]
    pub distance_us: (u64, u64),
}

impl Default for Network {
    fn default() -> Self {
        Network { regional_us: (50, 500), global_us: (20_000, 80_000), distance_us: (0, 0) }
    }
}

/// How often regions exchange counts with the database. All other intervals have their defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// Between two publications of all that is due, in milliseconds; at least 1.
    pub publish_ms: u64,
    /// Between two packets that only read, in milliseconds; at least 1.
    pub exchange_ms: u64,
}

impl Default for Schedule {
    fn default() -> Self {
        let CoreSchedule { publish_ms, exchange_ms, .. } = CoreSchedule::default();
        Schedule { publish_ms, exchange_ms }
    }
}

impl Schedule {
    /// This schedule with the default of every other interval of an aggregator.
    pub fn intervals(&self) -> CoreSchedule {
        let (publish_ms, exchange_ms) = (self.publish_ms.max(1), self.exchange_ms.max(1));
        CoreSchedule { publish_ms, exchange_ms, page_rows: PAGE_ROWS, ..CoreSchedule::default() }
    }
}

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// When it begins, in milliseconds after the traffic's beginning.
    pub at_ms: u64,
    /// How long it lasts, in milliseconds. A part that crashes or restarts starts again after this time.
    pub for_ms: u64,
    /// The kind of fault, and the part or link that it affects.
    pub what: Wrong,
}

/// Kinds of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wrong {
    /// Each message of a link is delayed by a random time of up to `ms`.
    Delay {
        /// The link.
        link: Link,
        /// The longest additional time, in milliseconds.
        ms: u64,
    },
    /// Messages of a link are lost. On a stream, a loss ends the stream.
    Lose {
        /// The link.
        link: Link,
        /// How many of a thousand.
        per_mille: u64,
    },
    /// Messages of a link are delivered twice.
    Repeat {
        /// The link.
        link: Link,
        /// How many of a thousand.
        per_mille: u64,
    },
    /// Messages of a link may overtake each other, if the transport allows it. A stream keeps its order.
    Reorder {
        /// The link.
        link: Link,
    },
    /// No message of a link arrives, and neither end is notified; the keepalives time out.
    Cut {
        /// The link.
        link: Link,
    },
    /// A part does nothing, and continues afterwards with the state it had.
    Freeze {
        /// The part.
        part: Part,
    },
    /// A part ends at once and loses its memory; it starts again without it.
    Crash {
        /// The part.
        part: Part,
    },
    /// A part shuts down in order, and a new one replaces it.
    Restart {
        /// The part.
        part: Part,
    },
    /// A store loses all data and keeps its connections.
    Wipe {
        /// The store.
        part: Part,
    },
    /// The database is set back: when the fault ends, it holds what it held when the fault began.
    Restore {
        /// The database.
        part: Part,
    },
    /// A Redis is replaced by its replica when the fault ends. The replica has the data of the fault's beginning.
    FailOver {
        /// The region.
        region: usize,
    },
    /// The machine of a Redis is set back when the fault ends, to its data of the fault's beginning.
    SetBack {
        /// The region.
        region: usize,
    },
    /// The wall clock of a part's machine is wrong.
    Skew {
        /// The part.
        part: Part,
        /// How far it is ahead, in milliseconds; negative: behind.
        ms: i64,
    },
    /// A store needs more time for each call.
    Slow {
        /// The store.
        part: Part,
        /// The additional time, in milliseconds.
        ms: u64,
    },
    /// An Envoy's listener is removed and added: its table and its node are lost, its machine stays.
    Rebuild {
        /// The Envoy.
        part: Part,
    },
    /// All Envoys of a region are restarted in turn, spread over the fault's time.
    Roll {
        /// The region.
        region: usize,
    },
    /// Requests with new identifiers arrive at one Envoy, under the first rule.
    Flood {
        /// The Envoy.
        part: Part,
        /// New identifiers per second.
        identifiers: u64,
    },
}

/// A part of the topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Part {
    /// An Envoy process.
    Envoy {
        /// Its region.
        region: usize,
        /// Its number in the region.
        envoy: usize,
    },
    /// A worker thread of an Envoy.
    Worker {
        /// Its region.
        region: usize,
        /// Its Envoy's number in the region.
        envoy: usize,
        /// Its number in the Envoy; 0 is the main thread.
        worker: usize,
    },
    /// An aggregator.
    Aggregator {
        /// Its region.
        region: usize,
        /// Its number in the region.
        aggregator: usize,
    },
    /// A region's Redis.
    Redis {
        /// Its region.
        region: usize,
    },
    /// The database that all regions share.
    Database,
}

/// A link on which messages travel. A number that is not given stands for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Link {
    /// Streams between a region's Envoys and its aggregators.
    Streams {
        /// The region.
        region: usize,
        /// Only this Envoy's.
        envoy: Option<usize>,
        /// Only this aggregator's.
        aggregator: Option<usize>,
    },
    /// Streams of one worker to the aggregators of its region.
    Worker {
        /// The region.
        region: usize,
        /// The Envoy.
        envoy: usize,
        /// The worker; 0 is the main thread.
        worker: usize,
    },
    /// Between a region's aggregators and their Redis.
    Redis {
        /// The region.
        region: usize,
        /// Only this aggregator's.
        aggregator: Option<usize>,
    },
    /// Messages that aggregators publish to their peers.
    Peers {
        /// The region.
        region: usize,
    },
    /// Between a region and the database.
    Database {
        /// The region; if not given, all.
        region: Option<usize>,
    },
}
