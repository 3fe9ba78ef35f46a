//! The requests of a plan, as data.

use serde::{Deserialize, Serialize};

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrival {
    /// Microseconds since the traffic began.
    pub at_us: u64,
    /// Where.
    pub region: u16,
    /// At which Envoy of the region.
    pub envoy: u16,
    /// At which of its serving workers, from 0.
    pub worker: u16,
    /// Whose.
    pub identifier: u64,
    /// What it costs.
    pub cost: u64,
    /// Which of the plan's rules apply: one bit for each.
    pub rules: u64,
}

/// A source of arrivals.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Traffic {
    /// When it begins, counted from the beginning of all traffic.
    #[serde(default)]
    pub from_ms: u64,
    /// When it ends; with the traffic as a whole if not given.
    #[serde(default)]
    pub until_ms: Option<u64>,
    /// Which of the plan's rules apply: one bit for each.
    #[serde(default = "first_rule")]
    pub rules: u64,
    /// What one request costs: at least, at most.
    #[serde(default = "one")]
    pub cost: (u64, u64),
    /// Which of the regions' Envoys are asked; all if empty. Each is a region and a number in it; those that the topology
    /// does not have are left out.
    #[serde(default)]
    pub at: Vec<(u16, u16)>,
    /// The shape.
    pub shape: Shape,
}

fn first_rule() -> u64 {
    1
}

fn one() -> (u64, u64) {
    (1, 1)
}

/// How arrivals are spread over time and identifiers. Rates are requests a second over all Envoys together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Shape {
    /// Independent arrivals for one identifier.
    Steady {
        /// Whose.
        identifier: u64,
        /// A second.
        rate: f64,
    },
    /// Independent arrivals for each of many identifiers alike.
    Spread {
        /// How many, from identifier 0.
        identifiers: u64,
        /// A second, all together.
        rate: f64,
    },
    /// Bursts of so many at once, with pauses.
    Bursts {
        /// Whose.
        identifier: u64,
        /// At once.
        requests: u64,
        /// From one to the next.
        every_ms: u64,
        /// Each burst takes this long.
        over_ms: u64,
    },
    /// Against averages over two cells, each three windows anew: silence for one, the whole limit at the very end of the
    /// next, and as much as is let pass in the third.
    WindowEnd {
        /// Whose.
        identifier: u64,
        /// So much in the burst.
        limit: u64,
        /// The windows that are aimed at.
        window_ms: u64,
        /// A second, after the burst.
        rate: f64,
    },
    /// So much in each window, spread evenly over all regions and Envoys and over the window's first half.
    UnderFloor {
        /// Whose.
        identifier: u64,
        /// In one region and window.
        requests: u64,
        /// The windows that are aimed at.
        window_ms: u64,
    },
    /// Identifiers by Zipf's law.
    Zipf {
        /// How many.
        identifiers: u64,
        /// How unequal; 1 is the classic.
        exponent: f64,
        /// A second, all together.
        rate: f64,
    },
    /// Each arrival with an identifier that nobody has had before.
    Fresh {
        /// The first of them; the next ones count up.
        from: u64,
        /// A second.
        rate: f64,
    },
    /// As it was recorded: places, costs and rules are the arrivals' own, times count from the source's beginning.
    Trace {
        /// Those at places or of workers that the topology does not have are left out.
        arrivals: Vec<Arrival>,
    },
}
