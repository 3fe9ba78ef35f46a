//! A walk over the whole table, a part at each tick: everything this process owns in live cells goes to the outbox.
//!
//! Done by the subscriber after any worker's stream came up (whoever that worker talked to before may have died with
//! what it alone knew), after a worker died with work unreported, and by any worker whose outbox was too small.
//!
//! A worker whose counts the region has refused walks as well, every few seconds, and reports only the keys that are marked for that
//! (`Entry::unstored`): the region may have room by now.

use super::outbox::Row;
use crate::limiter::Limiter;
use crate::limiter::table::{Bucket, Entry};
use crate::limiter::transact::{Make, Subject};
use crate::model::shared::{Place, Shared};
use crate::model::time::{MonoMs, Now};
use crate::model::window::Position;
use alloc::vec::Vec;

/// Buckets looked at in one tick: a few milliseconds at worst, the default table in less than a second.
const BUCKETS_A_TICK: u32 = 2_048;
/// After a gap the walk waits this long for workers that hear nothing: where all have lost the same aggregator, they
/// come back one after the other, and each would need a walk of its own.
const GATHER_MS: u64 = 250;
/// The walk waits while this many cells wait to be reported.
const MAX_WAITING_ROWS: usize = 4_096;
/// What the region has refused is offered again after this long.
const OFFER_MS: u64 = 5_000;
/// Most cells offered in one walk; the next one goes on with the others.
const MAX_OFFERED_ROWS: usize = 4_096;

/// When to offer again what the region has refused.
#[derive(Debug, Default)]
pub(in crate::limiter) struct Offer {
    due: Option<MonoMs>,
    /// The bucket to begin with.
    from: u32,
}

impl Offer {
    /// Something was refused.
    pub(in crate::limiter) fn plan(&mut self, now: MonoMs) {
        self.due.get_or_insert(now.after(OFFER_MS));
    }

    fn is_due(&self, now: MonoMs) -> bool {
        self.due.is_some_and(|due| due <= now)
    }
}

#[derive(Debug, Default)]
pub(in crate::limiter) struct Resync {
    next: u32,
    /// Dead workers whose work it reports.
    pub(in crate::limiter) reaping: Vec<u64>,
    /// It looks for what this worker had no room to note.
    pub(in crate::limiter) recovers: bool,
    /// It repeats what aggregators may have lost until there were this many gaps.
    pub(in crate::limiter) resends: Option<u64>,
    /// It only offers what the region has refused: from so many buckets on, as many cells.
    offers: Option<(u32, usize)>,
    /// When it had seen the whole table.
    pub(in crate::limiter) done: Option<MonoMs>,
}

/// What a walk reports of a bucket.
#[derive(Clone, Copy, Debug)]
struct Visit {
    /// Also what was told of the others, even where nothing is owned: whoever reads it may have lost everything, and the others
    /// may be gone.
    snapshots: bool,
    /// All keys, or those alone that the region has refused.
    all: bool,
}

impl Resync {
    /// It has seen the table, and what it found is stored. An offer waits for nothing: a refusal plans the next one.
    pub(in crate::limiter) fn is_over(&self, stored: MonoMs) -> bool {
        self.done.is_some_and(|done| stored > done || self.offers.is_some())
    }
}

impl Limiter {
    /// Begins a walk, if one is due and none is under way. One that only offers makes room for any other.
    pub(in crate::limiter) fn plan_resync(&mut self, now: Now) {
        let offers = self.resync.as_ref().map(|resync| resync.offers.is_some());
        if offers == Some(false) {
            return;
        }
        let recovers = self.outbox.has_lost();
        let leads = self.is_subscriber() && self.link.is_up();
        let reaping: Vec<u64> = if leads { self.registry.dead(now.mono).collect() } else { Vec::new() };
        let resends = if leads { self.gaps_to_close(now) } else { None };
        if recovers || resends.is_some() || !reaping.is_empty() {
            self.outbox.found_again();
            if offers.is_some() {
                self.offer.plan(now.mono);
            }
            self.resync = Some(Resync { reaping, recovers, resends, ..Resync::default() });
        } else if offers.is_none() && self.offer.is_due(now.mono) && self.link.is_up() {
            let Offer { from, .. } = core::mem::take(&mut self.offer);
            self.resync = Some(Resync { next: from, offers: Some((from, 0)), ..Resync::default() });
        }
    }

    /// Up to which gap a walk that begins now would tell everything; `None` if none is needed yet.
    fn gaps_to_close(&mut self, now: Now) -> Option<u64> {
        if self.registry.is_resent() {
            self.gap_seen = None;
            return None;
        }
        let seen = *self.gap_seen.get_or_insert(now.mono);
        let gathered = self.registry.all_receive(now.mono) || now.mono.since(seen) >= GATHER_MS;
        gathered.then_some(self.registry.gaps)
    }

    /// Goes on with the walk.
    pub(in crate::limiter) fn step_resync(&mut self, shared: &mut impl Shared, now: Now) {
        let Some(mut resync) = self.resync.take() else { return };
        let end = self.table.geometry.buckets;
        let mut bucket = core::mem::take(&mut self.resync_bucket);
        for _ in 0..BUCKETS_A_TICK {
            if resync.done.is_some() || self.outbox.len() >= MAX_WAITING_ROWS {
                break;
            }
            let place = if resync.next < end { Place::Bucket(resync.next) } else { Place::Overflow };
            let visit = Visit { snapshots: resync.resends.is_some(), all: resync.offers.is_none() };
            let noted = self.visit(shared, place, &mut bucket, visit, now);
            resync.done = (resync.next >= end).then_some(now.mono);
            resync.next += 1;
            if let Some((from, offered)) = &mut resync.offers {
                *offered = offered.saturating_add(noted);
                let goes_on = resync.done.is_none() && *offered >= MAX_OFFERED_ROWS;
                if goes_on {
                    (self.offer.from, resync.done) = (resync.next, Some(now.mono));
                }
                // One that began amid the table leaves the rest to the next as well.
                if goes_on || (resync.done.is_some() && *from > 0) {
                    self.offer.plan(now.mono);
                }
            }
        }
        self.resync_bucket = bucket;
        self.resync = Some(resync);
    }

    /// Notes what is owned in the live cells of a bucket, and returns how many cells these are.
    fn visit(
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
            // Keys that share an overflow cell do not mark it, as it never leaves.
            if !all && !entry.unstored && place != Place::Overflow {
                continue;
            }
            let held = entry.reservations.len();
            let cell_ms = crate::limiter::transact::cell_ms(key);
            entry.advance(&Position::at(now.unix, cell_ms), now.mono);
            let reaped = entry.reservations.len() < held;
            // Use below an old grant is not reported, as the region holds the grant. After a gap it may hold only this row.
            // The cells that were refused are over.
            let over = |entry: &Entry| entry.unstored && entry.cells().all(|(_, cell)| cell.own == 0);
            if reaped || (snapshots && entry.holds_grants()) || over(&entry) {
                // What dead workers reserved is written down as well, so that it is spent for all.
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
                // An entry of which only others are known to make use has no limit yet.
                let limit = if entry.limit == 0 && cell.own == 0 { u64::MAX } else { entry.limit };
                if cell.own > 0 || region_others > 0 {
                    let row = super::outbox::row(&entry, key, sequence, cell);
                    self.outbox.note(&Row { limit, region_others, ..row }, now.mono);
                    noted += 1;
                }
            }
        }
        noted
    }
}
