//! What this program knows for people who look: what rules decide, who is connected, what the region's other aggregators
//! say of themselves, and the keys nearest their limits.
//!
//! In reading order: [`counters`] (what filters count, as rates), [`streams`], [`peers`] (the other aggregators),
//! [`recent`] (how calls of stores went), [`top`] (a walk over all keys, once a second for all who look).
//!
//! Nothing here is waited for by a request, and nothing grows with how many look.
//!
//! Leaves to others: pages and their text (`admin`), the terminal (`terminal`).

pub mod counters;
pub mod peers;
pub mod streams;
pub mod top;

use counters::Counters;
use parking_lot::Mutex;
use peers::Peers;
use streams::Streams;
use top::Scans;

/// All of it.
#[derive(Default)]
pub struct Status {
    /// What rules decide.
    pub counters: Mutex<Counters>,
    /// Who is connected.
    pub streams: Streams,
    /// The region's other aggregators.
    pub peers: Peers,
    /// The keys nearest their limits.
    pub scan: Scans,
}
