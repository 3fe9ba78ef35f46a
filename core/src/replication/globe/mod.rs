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

use super::desk::Desk;
use super::guard::Traffic;
use crate::model::cadence::Beat;
use crate::model::time::Now;

/// How long an aggregator that starts waits for what the database knows, in milliseconds.
pub const PREPARATION_MS: u64 = 1_000;

/// How long until the next stroke, in milliseconds.
fn until(beat: &mut Beat, now: Now, random: u64) -> u64 {
    beat.next(now.mono, random).since(now.mono)
}

fn note(desk: &mut Desk, traffic: Traffic, went_well: bool, now: Now) {
    if let Some(gates) = desk.database() {
        gates.note(traffic, went_well, now.mono);
    }
}

fn allows(desk: &mut Desk, traffic: Traffic, now: Now) -> bool {
    desk.database().is_some_and(|gates| gates.allows(traffic, now.mono))
}
