//! The database that regions share: how they exchange their counts, within a second or two where a limit may be exceeded.
//!
//! In reading order: [`packet`] (what is written and read at once), [`sync`] (when packets are exchanged), [`paging`] (reads all rows in
//! parts), [`import`] (reads those of the others once a minute), [`recover`] (after a loss, reads what this region had published),
//! [`controls`] (reads live controls), [`lease`] (allows one aggregator only in a region without a store), [`split`] (detects two groups of
//! aggregators with one region's name).
//!
//! An aggregator that starts reads all rows before it serves, as its first grants would rest on no counts otherwise. It waits for at most
//! [`Schedule::restore_ms`], and for a page for [`Schedule::restore_stall_ms`]. No request waits for anything else here. While the database
//! is unavailable, the region uses what it has imported.
//!
//! [`Schedule::restore_ms`]: crate::model::schedule::Schedule::restore_ms
//! [`Schedule::restore_stall_ms`]: crate::model::schedule::Schedule::restore_stall_ms

pub mod controls;
pub mod import;
pub mod lease;
pub mod packet;
pub mod paging;
pub mod recover;
pub mod split;
pub mod sync;

use super::circuit_breaker::Traffic;
use super::state::RegionState;
use crate::model::schedule::Interval;
use crate::model::time::Now;

/// How long an aggregator that starts waits for each read of live control, in milliseconds.
pub const PREPARATION_MS: u64 = 1_000;

/// The time until the next tick, in milliseconds.
fn until(interval: &mut Interval, now: Now, random: u64) -> u64 {
    interval.next(now.mono, random).since(now.mono)
}

/// Records the result of a call.
fn note(state: &mut RegionState, traffic: Traffic, went_well: bool, now: Now) {
    if let Some(breakers) = state.database() {
        breakers.note(traffic, went_well, now.mono);
    }
}

fn allows(state: &mut RegionState, traffic: Traffic, now: Now) -> bool {
    state.database().is_some_and(|breakers| breakers.allows(traffic, now.mono))
}
