//! The status that operators see: what rules decide, which Envoys are connected, the status of the region's other
//! aggregators, and the keys nearest to their limits.
//!
//! In reading order: [`counters`] (rates from the filters' counters), [`streams`] (connected Envoys), [`peers`] (the other
//! aggregators), [`limits`] (the rate-limit service's limits), [`top`] (a scan of all keys, at most once a second, shared by all
//! viewers).
//!
//! Requests wait for none of this, and its cost does not depend on the number of viewers.

pub mod counters;
pub mod limits;
pub mod peers;
pub mod streams;
pub mod top;

use counters::Counters;
use limits::LimitsStatus;
use parking_lot::Mutex;
use peers::Peers;
use streams::Streams;
use top::Scans;

/// All of it.
#[derive(Default)]
pub struct Status {
    /// What rules decide.
    pub counters: Mutex<Counters>,
    /// The connected streams.
    pub streams: Streams,
    /// The region's other aggregators.
    pub peers: Peers,
    /// The rate-limit service's limits.
    pub limits: Mutex<LimitsStatus>,
    /// The keys nearest to their limits.
    pub scan: Scans,
}
