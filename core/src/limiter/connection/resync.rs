//! Resync: a scan of the whole table, a part at each tick, that reports all own counts of live cells.
//!
//! The subscriber resyncs after each gap: a worker's stream was opened, since the aggregator of the earlier stream may have been lost with
//! counts that only it had, or a worker ended, perhaps with unreported counts. A worker whose outbox was full resyncs as well.
//!
//! A worker whose counts the region refused scans every few seconds for keys that are marked (`Entry::unstored`), and offers them
//! again, since the region may have room by then.

use super::registry::WorkerRegistry;
use crate::limiter::local::Local;
use crate::limiter::local::visit::Visit;
use crate::limiter::table::Bucket;
use crate::model::shared::{Place, Shared};
use crate::model::time::{MonoMs, Now};

/// Buckets that are scanned in one tick: a few milliseconds at worst, the default table in less than a second.
const BUCKETS_A_TICK: u32 = 2_048;
/// Time to wait after a gap while workers are disconnected. If all have lost the same aggregator they reconnect one after the other, and
/// each would need a resync of its own.
const GATHER_MS: u64 = 250;
/// The resync pauses while this many cells wait to be reported.
const MAX_WAITING_ROWS: usize = 4_096;
/// Time after which refused counts are offered again.
const OFFER_MS: u64 = 5_000;
/// Most cells offered in one scan; the next scan continues with the others.
const MAX_OFFERED_ROWS: usize = 4_096;

/// The next offer of refused counts.
#[derive(Debug, Default)]
struct Offer {
    due: Option<MonoMs>,
    /// The first bucket of the scan.
    from: u32,
}

impl Offer {
    /// Plans an offer after a refusal.
    fn plan(&mut self, now: MonoMs) {
        self.due.get_or_insert(now.after(OFFER_MS));
    }

    fn is_due(&self, now: MonoMs) -> bool {
        self.due.is_some_and(|due| due <= now)
    }
}

#[derive(Debug, Default)]
struct Resync {
    next: u32,
    /// It finds rows that had no room in the outbox.
    recovers: bool,
    /// It repeats all counts after this many gaps.
    resends: Option<u64>,
    /// It only offers refused counts: the first bucket, and the cells offered so far.
    offers: Option<(u32, usize)>,
    /// When it had scanned the whole table.
    done: Option<MonoMs>,
}

/// The resyncs of a worker: the one under way, and why the next one is needed.
#[derive(Debug, Default)]
pub(in crate::limiter) struct Resyncs {
    scan: Option<Resync>,
    offer: Offer,
    /// A buffer for the scan.
    bucket: Bucket,
    /// The stream was opened since the last access to the registry.
    gap: bool,
    /// A resync has sent everything up to this gap; written at the next access to the registry.
    resent: Option<u64>,
    /// When this worker first read the gap that is to be closed next.
    gap_seen: Option<MonoMs>,
}

impl Resyncs {
    /// The aggregator may have fewer counts than the process.
    pub(super) fn note_gap(&mut self) {
        self.gap = true;
    }

    /// Plans an offer of refused counts.
    pub(super) fn plan_offer(&mut self, now: MonoMs) {
        self.offer.plan(now);
    }

    /// Whether refused counts are to be offered again.
    pub(super) fn has_offer(&self) -> bool {
        self.offer.due.is_some()
    }

    /// Whether no resync is under way.
    pub(in crate::limiter) fn is_idle(&self) -> bool {
        self.scan.is_none()
    }

    /// Whether the resync under way finds rows that had no room in the outbox.
    pub(super) fn recovers(&self) -> bool {
        self.scan.as_ref().is_some_and(|resync| resync.recovers)
    }

    /// Whether to write a gap to the registry.
    pub(super) fn gap(&self) -> bool {
        self.gap
    }

    /// Which gap to write to the registry as closed.
    pub(super) fn resent(&self) -> Option<u64> {
        self.resent
    }

    /// The registry has these values.
    pub(super) fn registered(&mut self) {
        (self.gap, self.resent) = (false, None);
    }

    /// Ends the resync once all that it reported is stored.
    pub(super) fn finish(&mut self, stored: MonoMs) {
        if let Some(resync) = self.scan.take_if(|resync| resync.is_over(stored)) {
            self.resent = resync.resends.or(self.resent);
        }
    }
}

impl Resync {
    /// Whether the table was scanned and all that it reported is stored. An offer need not be stored, as a refusal plans the next one.
    fn is_over(&self, stored: MonoMs) -> bool {
        self.done.is_some_and(|done| stored > done || self.offers.is_some())
    }
}

impl Resyncs {
    /// Begins a resync if one is due and none is under way. An offer is replaced by any other. `leads`: the registry, if this worker is the
    /// subscriber.
    pub(super) fn plan(&mut self, local: &mut Local, leads: Option<&WorkerRegistry>, is_up: bool, now: Now) {
        let offers = self.scan.as_ref().map(|resync| resync.offers.is_some());
        if offers == Some(false) {
            return;
        }
        let recovers = local.outbox.has_lost();
        let resends = leads.and_then(|registry| self.gaps_to_close(registry, now));
        if recovers || resends.is_some() {
            local.outbox.found_again();
            if offers.is_some() {
                self.offer.plan(now.mono);
            }
            self.scan = Some(Resync { recovers, resends, ..Resync::default() });
        } else if offers.is_none() && self.offer.is_due(now.mono) && is_up {
            let Offer { from, .. } = core::mem::take(&mut self.offer);
            self.scan = Some(Resync { next: from, offers: Some((from, 0)), ..Resync::default() });
        }
    }

    /// The number of gaps that a resync which begins now would close; `None` if none is needed yet.
    fn gaps_to_close(&mut self, registry: &WorkerRegistry, now: Now) -> Option<u64> {
        if registry.is_resent() {
            self.gap_seen = None;
            return None;
        }
        let seen = *self.gap_seen.get_or_insert(now.mono);
        let gathered = registry.all_receive(now.mono) || now.mono.since(seen) >= GATHER_MS;
        gathered.then_some(registry.gaps)
    }

    /// Continues the resync.
    pub(super) fn step(&mut self, local: &mut Local, shared: &mut impl Shared, now: Now) {
        let Resyncs { scan: Some(resync), offer, bucket, .. } = self else { return };
        let end = local.table.geometry.buckets;
        for _ in 0..BUCKETS_A_TICK {
            if resync.done.is_some() || local.outbox.len() >= MAX_WAITING_ROWS {
                break;
            }
            let place = if resync.next < end { Place::Bucket(resync.next) } else { Place::Overflow };
            let visit = Visit { snapshots: resync.resends.is_some(), all: resync.offers.is_none() };
            let noted = local.visit(shared, place, bucket, visit, now);
            resync.done = (resync.next >= end).then_some(now.mono);
            resync.next += 1;
            if let Some((from, offered)) = &mut resync.offers {
                *offered = offered.saturating_add(noted);
                let goes_on = resync.done.is_none() && *offered >= MAX_OFFERED_ROWS;
                if goes_on {
                    (offer.from, resync.done) = (resync.next, Some(now.mono));
                }
                // A scan that began in the middle leaves the first part to the next one.
                if goes_on || (resync.done.is_some() && *from > 0) {
                    offer.plan(now.mono);
                }
            }
        }
    }
}
