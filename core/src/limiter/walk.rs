//! A walk over the whole table, a part at each tick: everything this process owns in live cells goes to the outbox.
//!
//! Done by the subscriber after any worker's stream came up (whoever that worker talked to before may have died with
//! what it alone knew), after a worker died with work unreported, and by any worker whose outbox was too small.

use super::Limiter;
use super::outbox::Row;
use super::transact::{Make, Subject};
use crate::table::{Bucket, Entry, Place, Shared};
use crate::time::{MonoMs, Now};
use crate::window::Position;
use alloc::vec::Vec;

/// Buckets looked at in one tick: a few milliseconds at worst, the default table in less than a second.
const BUCKETS_A_TICK: u32 = 2_048;
/// After a gap the walk waits this long for workers that hear nothing: where all have lost the same aggregator, they
/// come back one after the other, and each would need a walk of its own.
const GATHER_MS: u64 = 250;
/// The walk waits while this many cells wait to be reported.
const MAX_WAITING_ROWS: usize = 4_096;

#[derive(Debug, Default)]
pub(super) struct Walk {
    next: u32,
    /// Dead workers whose work it reports.
    pub(super) burying: Vec<u64>,
    /// It looks for what this worker had no room to note.
    pub(super) recovers: bool,
    /// It repeats what aggregators may have lost until there were this many gaps.
    pub(super) resends: Option<u64>,
    /// When it had seen the whole table.
    pub(super) done: Option<MonoMs>,
}

impl Limiter {
    /// Begins a walk, if one is due and none is under way.
    pub(super) fn plan_walk(&mut self, now: Now) {
        if self.walk.is_some() {
            return;
        }
        let recovers = self.outbox.has_lost();
        let leads = self.is_subscriber() && self.link.is_up();
        let burying: Vec<u64> = if leads { self.roster.dead(now.mono).collect() } else { Vec::new() };
        let resends = if leads { self.gaps_to_close(now) } else { None };
        if recovers || resends.is_some() || !burying.is_empty() {
            self.outbox.found_again();
            self.walk = Some(Walk { burying, recovers, resends, ..Walk::default() });
        }
    }

    /// Up to which gap a walk that begins now would tell everything; `None` if none is needed yet.
    fn gaps_to_close(&mut self, now: Now) -> Option<u64> {
        if self.roster.is_resent() {
            self.gap_seen = None;
            return None;
        }
        let seen = *self.gap_seen.get_or_insert(now.mono);
        let gathered = self.roster.all_hear(now.mono) || now.mono.since(seen) >= GATHER_MS;
        gathered.then_some(self.roster.gaps)
    }

    /// Goes on with the walk.
    pub(super) fn step_walk(&mut self, shared: &mut impl Shared, now: Now) {
        let Some(mut walk) = self.walk.take() else { return };
        let end = self.table.geometry.buckets;
        let mut bucket = core::mem::take(&mut self.walk_bucket);
        for _ in 0..BUCKETS_A_TICK {
            if walk.done.is_some() || self.outbox.len() >= MAX_WAITING_ROWS {
                break;
            }
            let place = if walk.next < end { Place::Bucket(walk.next) } else { Place::Overflow };
            self.visit(shared, place, &mut bucket, walk.resends.is_some(), now);
            walk.done = (walk.next >= end).then_some(now.mono);
            walk.next += 1;
        }
        self.walk_bucket = bucket;
        self.walk = Some(walk);
    }

    /// Notes what is owned in the live cells of a bucket; with `views` also what was told of the others, even where
    /// nothing is owned: whoever reads it may have lost everything, and the others may be gone.
    fn visit(&mut self, shared: &mut impl Shared, place: Place, bucket: &mut Bucket, views: bool, now: Now) {
        shared.load(place, bucket.buffer());
        bucket.check();
        for (key, found) in bucket.entries() {
            let mut entry = found.entry;
            let held = entry.reservations.len();
            let cell_ms = super::transact::cell_ms(key);
            entry.advance(&Position::at(now.unix, cell_ms), now.mono);
            if entry.reservations.len() < held {
                // Somebody died with it: written down, so that it is spent for all.
                let subject = Subject { fingerprint: entry.fingerprint, key: Some(key), make: Make::Never };
                let write = |_: &mut Entry, _: &Position| ((), true);
                if let Ok(done) = self.table.transact_at(shared, place, subject, now, &mut self.stats, write)
                {
                    entry = done.entry;
                }
            }
            for (sequence, cell) in entry.cells() {
                let region_others = if views { cell.region_others } else { 0 };
                // An entry of which only others are known to make use has no limit yet.
                let limit = if entry.limit == 0 && cell.own == 0 { u64::MAX } else { entry.limit };
                if cell.own > 0 || region_others > 0 {
                    let row = super::charge::row(&entry, key, sequence, cell);
                    self.outbox.note(&Row { limit, region_others, ..row }, now.mono);
                }
            }
        }
    }
}
