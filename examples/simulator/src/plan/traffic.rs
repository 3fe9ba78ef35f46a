//! The requests of a plan, as data.

use serde::{Deserialize, Serialize};

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrival {
    /// Microseconds since the traffic began.
    pub at_us: u64,
    /// Its region.
    pub region: u16,
    /// The Envoy's number in the region.
    pub envoy: u16,
    /// The worker's number in the Envoy, from 0, without the main thread.
    pub worker: u16,
    /// The identifier that the rules count it for.
    pub identifier: u64,
    /// Its cost.
    pub cost: u64,
    /// The rules that apply: one bit for each rule of the plan.
    pub rules: u64,
}

/// A source of requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Traffic {
    /// When it begins, in milliseconds after the beginning of all traffic.
    #[serde(default)]
    pub from_ms: u64,
    /// When it ends, in the same unit; if not given, at the end of all traffic.
    #[serde(default)]
    pub until_ms: Option<u64>,
    /// The rules that apply: one bit for each rule of the plan.
    #[serde(default = "first_rule")]
    pub rules: u64,
    /// The cost of a request: least, most.
    #[serde(default = "one")]
    pub cost: (u64, u64),
    /// The Envoys that receive the requests, each as a region and a number in it; all if empty. Envoys that the
    /// topology does not have are left out.
    #[serde(default)]
    pub at: Vec<(u16, u16)>,
    /// How the requests are spread over time and identifiers.
    pub shape: Shape,
}

fn first_rule() -> u64 {
    1
}

fn one() -> (u64, u64) {
    (1, 1)
}

/// How requests are spread over time and identifiers. Rates are requests per second at all Envoys together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Shape {
    /// Independent requests for one identifier.
    Steady {
        /// The identifier.
        identifier: u64,
        /// Requests per second.
        rate: f64,
    },
    /// Independent requests, spread evenly over identifiers.
    Spread {
        /// Number of identifiers, counted from 0.
        identifiers: u64,
        /// Requests per second for all identifiers together.
        rate: f64,
    },
    /// Bursts for one identifier, with pauses between them.
    Bursts {
        /// The identifier.
        identifier: u64,
        /// Requests in a burst.
        requests: u64,
        /// Time between the beginnings of two bursts, in milliseconds.
        every_ms: u64,
        /// Duration of a burst, in milliseconds.
        over_ms: u64,
    },
    /// Targets the average over two cells. It repeats every three windows: no requests in the first, the whole limit
    /// at the end of the second, and a steady rate in the third.
    WindowEnd {
        /// The identifier.
        identifier: u64,
        /// Requests in the burst.
        limit: u64,
        /// Length of the targeted windows, in milliseconds.
        window_ms: u64,
        /// Requests per second after the burst.
        rate: f64,
    },
    /// The same number of requests in each window, spread evenly over all regions and Envoys and over the window's
    /// first half.
    UnderFloor {
        /// The identifier.
        identifier: u64,
        /// Requests in one region and window.
        requests: u64,
        /// Length of the targeted windows, in milliseconds.
        window_ms: u64,
    },
    /// Identifiers distributed by Zipf's law.
    Zipf {
        /// Number of identifiers.
        identifiers: u64,
        /// The law's exponent; 1 is the classic law.
        exponent: f64,
        /// Requests per second for all identifiers together.
        rate: f64,
    },
    /// A new identifier for each request.
    Fresh {
        /// The first identifier; the next ones count up.
        from: u64,
        /// Requests per second.
        rate: f64,
    },
    /// Recorded arrivals. They have their own places, costs and rules; their times count from the source's
    /// beginning.
    Trace {
        /// The arrivals. Those at Envoys or workers that the topology does not have are left out.
        arrivals: Vec<Arrival>,
    },
}
