//! Reads the rows of the database page by page: those of the own region after a loss (`recover`), and those of the other regions
//! (`import`).
//!
//! A page that fails is read again; the pages before it are not. After a timeout the page has half as many rows and twice as much time, so
//! that a slow database is read in the end. An aggregator that starts waits for all pages before it serves, but not for long if no page
//! arrives.

use crate::model::schedule::Schedule;
use crate::model::time::{MonoMs, UnixMs};
use crate::region::exchange::PageEnd;
use crate::replication::failure::Failure;

/// Least rows of a page.
const LEAST_ROWS: usize = 64;
/// Time until a failed page is read again, before the aggregator serves or within the recovery grace period. Later it is the interval of
/// publications.
const PAUSE_MS: u64 = 300;

/// A call to the database: return the rows after a place, in the order of their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadPage {
    /// Where the page before ended.
    pub after: PageEnd,
    /// Most rows to read, those of all regions and markers included.
    pub rows: usize,
    /// The deadline in milliseconds.
    pub within_ms: u64,
}

/// How far the rows were read.
#[derive(Debug)]
pub(super) struct Paging {
    schedule: Schedule,
    /// Where the last page ended; `None` before the first.
    after: Option<PageEnd>,
    rows: usize,
    within_ms: u64,
    /// When an aggregator that starts began to wait for the pages; `None` once it serves.
    waits_since: Option<MonoMs>,
    /// When the last page arrived.
    progress: MonoMs,
}

impl Paging {
    /// For an aggregator that serves.
    pub(super) fn new(schedule: Schedule) -> Paging {
        Paging {
            schedule,
            after: None,
            rows: schedule.page_rows,
            within_ms: first_timeout_ms(&schedule),
            waits_since: None,
            progress: MonoMs(0),
        }
    }

    /// For an aggregator that waits for the pages before it serves.
    pub(super) fn before_serving(schedule: Schedule, now: MonoMs) -> Paging {
        Paging { waits_since: Some(now), progress: now, ..Paging::new(schedule) }
    }

    /// The next page. The first begins with the rows that have not expired.
    pub(super) fn page(&self, now: UnixMs) -> ReadPage {
        let after = self.after.unwrap_or(PageEnd::expired_at(now));
        ReadPage { after, rows: self.rows, within_ms: self.within_ms }
    }

    /// Takes the end of a page; `None` for the last. Returns whether there are more. If not, the next page is the first one again.
    pub(super) fn read(&mut self, end: Option<PageEnd>, now: MonoMs) -> bool {
        self.progress = now;
        self.rows = self.rows.saturating_mul(2).min(self.schedule.page_rows);
        self.within_ms = (self.within_ms / 2).max(first_timeout_ms(&self.schedule));
        // A place that is not after the last one would never end.
        self.after = end.filter(|end| self.after.is_none_or(|after| *end > after));
        self.after.is_some()
    }

    /// The page failed. Returns the time in milliseconds until it is read again.
    pub(super) fn failed(&mut self, failure: Failure, is_urgent: bool) -> u64 {
        if failure == Failure::Timeout {
            self.rows = (self.rows / 2).max(LEAST_ROWS.min(self.schedule.page_rows));
            self.within_ms = self.within_ms.saturating_mul(2).min(self.schedule.global_timeout_ms);
        }
        if is_urgent { PAUSE_MS } else { self.schedule.publish_ms }
    }

    /// Whether an aggregator that starts has waited long enough for the pages that are left.
    pub(super) fn has_waited(&self, now: MonoMs) -> bool {
        self.waits_since.is_none_or(|since| {
            now.since(since) >= self.schedule.restore_ms
                || now.since(self.progress) >= self.schedule.restore_stall_ms
        })
    }

    /// The aggregator serves.
    pub(super) fn serve(&mut self) {
        self.waits_since = None;
    }

    /// Whether the aggregator does not serve yet.
    pub(super) fn is_before_serving(&self) -> bool {
        self.waits_since.is_some()
    }
}

fn first_timeout_ms(schedule: &Schedule) -> u64 {
    schedule.page_timeout_ms.min(schedule.global_timeout_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(row: u64) -> PageEnd {
        PageEnd { expires: UnixMs(9), row }
    }

    #[test]
    fn a_failed_page_is_read_again_and_a_slow_one_in_smaller_parts() {
        let schedule = Schedule { page_rows: 200, ..Schedule::default() };
        let mut paging = Paging::new(schedule);
        let first = ReadPage { after: PageEnd::expired_at(UnixMs(7)), rows: 200, within_ms: 1_000 };
        assert_eq!(paging.page(UnixMs(7)), first);
        assert!(paging.read(Some(end(200)), MonoMs(1)));
        for (failure, rows, within_ms) in [
            (Failure::Unavailable, 200, 1_000),
            (Failure::Timeout, 100, 2_000),
            (Failure::Timeout, 64, 4_000),
            (Failure::Timeout, 64, 8_000),
            (Failure::Timeout, 64, 10_000),
        ] {
            assert_eq!(paging.failed(failure, true), PAUSE_MS);
            assert_eq!(paging.page(UnixMs(8)), ReadPage { after: end(200), rows, within_ms });
        }
        assert_eq!(paging.failed(Failure::Refused, false), schedule.publish_ms);
        assert!(paging.read(Some(end(264)), MonoMs(2)));
        let ReadPage { rows, within_ms, .. } = paging.page(UnixMs(8));
        assert_eq!((rows, within_ms), (128, 5_000), "both return to what they were");
        assert!(!paging.read(None, MonoMs(3)));
        assert_eq!(paging.page(UnixMs(8)).after, PageEnd::expired_at(UnixMs(8)));
    }

    #[test]
    fn pages_that_do_not_advance_end() {
        let mut paging = Paging::new(Schedule::default());
        assert!(paging.read(Some(end(5)), MonoMs(1)));
        assert!(!paging.read(Some(end(5)), MonoMs(1)));
    }

    #[test]
    fn an_aggregator_waits_while_pages_arrive_and_never_longer_than_the_bound() {
        let schedule = Schedule::default();
        let (bound, stall) = (schedule.restore_ms, schedule.restore_stall_ms);
        let mut paging = Paging::before_serving(schedule, MonoMs(0));
        assert!(!paging.has_waited(MonoMs(stall - 1)) && paging.has_waited(MonoMs(stall)));
        for at in (0..bound).step_by(1_000) {
            paging.read(Some(end(at + 1)), MonoMs(at));
            assert!(!paging.has_waited(MonoMs(at + 999)));
        }
        assert!(paging.has_waited(MonoMs(bound)));
        assert!(Paging::new(schedule).has_waited(MonoMs(0)), "it serves already");
    }
}
