//! The database that regions share: what they tell each other, every ten seconds or so.
//!
//! In reading order: [`publish`] (this region's use goes out), [`import`] (the others' comes in), [`recover`] (a region that
//! has lost everything reads its own figures), [`controls`] (live control is read), [`lease`] (a region without a store of its own has one aggregator).
//!
//! An aggregator that starts reads first and serves then ([`import::Importer::once`], [`recover::Recovery::once`]), if the
//! database answers at once: else what it grants in its first seconds would rest on nothing. Nothing else that a request
//! waits for is here. While the database is away, the region goes on with what it has imported.
//!
//! Leaves to others: rows and statements (`aggregator`), what is published and merged (`region`).

pub mod controls;
pub mod import;
pub mod lease;
pub mod publish;
pub mod recover;

use super::circuit_breaker::Traffic;
use super::state::RegionState;
use crate::model::schedule::Interval;
use crate::model::time::Now;

/// How long an aggregator that starts waits for what the database knows, in milliseconds.
pub const PREPARATION_MS: u64 = 1_000;

/// How long until the next tick, in milliseconds.
fn until(interval: &mut Interval, now: Now, random: u64) -> u64 {
    interval.next(now.mono, random).since(now.mono)
}

fn note(state: &mut RegionState, traffic: Traffic, went_well: bool, now: Now) {
    if let Some(breakers) = state.database() {
        breakers.note(traffic, went_well, now.mono);
    }
}

fn allows(state: &mut RegionState, traffic: Traffic, now: Now) -> bool {
    state.database().is_some_and(|breakers| breakers.allows(traffic, now.mono))
}
