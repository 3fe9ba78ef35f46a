//! What this program knows for people who look: what rules decide, who is connected, what the region's other aggregators
//! say of themselves, and the keys nearest their limits.
//!
//! In reading order: [`tallies`] (what filters count, as rates), [`peers`] (streams), [`sisters`] (the other aggregators),
//! [`recent`] (how calls of stores went), [`top`] (a walk over all keys, once a second for all who look).
//!
//! Nothing here is waited for by a request, and nothing grows with how many look.
//!
//! Leaves to others: pages and their text (`admin`), the terminal (`terminal`).

pub mod peers;
pub mod sisters;
pub mod tallies;
pub mod top;

use parking_lot::Mutex;
use peers::Peers;
use sisters::Sisters;
use tallies::Tallies;
use top::Walk;

/// All of it.
#[derive(Default)]
pub struct Window {
    /// What rules decide.
    pub tallies: Mutex<Tallies>,
    /// Who is connected.
    pub peers: Peers,
    /// The region's other aggregators.
    pub sisters: Sisters,
    /// The keys nearest their limits.
    pub walk: Walk,
}
