//! The database that regions share: how they exchange their counts, within a second or two where a limit may be exceeded.
//!
//! In reading order: [`packet`] (what is written and read at once), [`sync`] (when packets are exchanged), [`import`] (reads everything
//! once a minute), [`recover`] (after a loss, reads what this region had published), [`controls`] (reads live controls), [`lease`] (allows
//! one aggregator only in a region without a store).
//!
//! An aggregator that starts reads from the database before it serves ([`import::Importer::once`],
//! [`recover::Recovery::once`]), provided that the database answers at once. Otherwise its first grants would rest on
//! no counts at all. No request waits for anything else here. While the database is unavailable, the region uses what
//! it has imported.

pub mod controls;
pub mod import;
pub mod lease;
pub mod packet;
pub mod recover;
pub mod sync;

use super::circuit_breaker::Traffic;
use super::state::RegionState;
use crate::model::schedule::Interval;
use crate::model::time::Now;

/// How long an aggregator that starts waits for each read of the database, in milliseconds.
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
