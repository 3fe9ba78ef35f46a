//! What the table has, for a report of all counts (`connection::resync`).

use super::Local;
use super::outbox::{Row, row};
use super::transact::{Make, Subject, cell_ms};
use crate::limiter::table::{Bucket, Entry};
use crate::model::shared::{Place, Shared};
use crate::model::time::Now;
use crate::model::window::Position;

/// What a resync reports of a bucket.
#[derive(Clone, Copy, Debug)]
pub(in crate::limiter) struct Visit {
    /// Also others' counts, even of cells without own counts: the aggregator may have lost everything, and the other nodes may have ended.
    pub(in crate::limiter) snapshots: bool,
    /// All keys, or only those that the region refused.
    pub(in crate::limiter) all: bool,
}

impl Local {
    /// Notes the own counts in live cells of a bucket, and returns the number of cells.
    pub(in crate::limiter) fn visit(
        &mut self,
        shared: &mut impl Shared,
        place: Place,
        bucket: &mut Bucket,
        Visit { snapshots, all }: Visit,
        now: Now,
    ) -> usize {
        let mut noted = 0;
        shared.load(place, bucket.buffer());
        bucket.check();
        for (key, found) in bucket.entries() {
            let mut entry = found.entry;
            // An overflow cell is never evicted, so it needs no mark.
            if !all && !entry.unstored && place != Place::Overflow {
                continue;
            }
            let held = entry.reservations.len();
            let cell_ms = cell_ms(key);
            entry.advance(&Position::at(now.unix, cell_ms), now.mono);
            let reaped = entry.reservations.len() < held;
            // Use below an old grant is not reported, as the region has the grant. After a gap the region may have this row only.
            // All refused cells have expired.
            let over = |entry: &Entry| entry.unstored && entry.cells().all(|(_, cell)| cell.own == 0);
            if reaped || (snapshots && entry.holds_grants()) || over(&entry) {
                // Reservations of dead workers are turned into use, for all to read.
                let subject = Subject { fingerprint: entry.fingerprint, key: Some(key), make: Make::Never };
                let write = |entry: &mut Entry, _: &Position| {
                    if snapshots {
                        entry.drop_grants();
                    }
                    entry.unstored &= !over(entry);
                    ((), true)
                };
                if let Ok(done) = self.table.transact_at(shared, place, subject, now, &mut self.stats, write)
                {
                    entry = done.entry;
                }
            }
            for (sequence, cell) in entry.cells() {
                let region_others = if snapshots { cell.region_others } else { 0 };
                // An entry with others' use only has no limit yet.
                let limit = if entry.limit == 0 && cell.own == 0 { u64::MAX } else { entry.limit };
                if cell.own > 0 || region_others > 0 {
                    let row = row(&entry, key, sequence, cell);
                    self.outbox.note(&Row { limit, region_others, ..row }, now.mono);
                    noted += 1;
                }
            }
        }
        noted
    }
}
