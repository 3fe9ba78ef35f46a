//! What a limiter counts, for metrics.

use super::check::{ConsultResult, ExactResult, Reason};
use crate::limiter::table::Left;

/// Counters since the limiter was made, and gauges as of the last tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Questions asked, by [`Reason`] in its order.
    pub consults: [u64; 5],
    /// How they ended, by [`ConsultResult`] in its order.
    pub results: [u64; 5],
    /// Questions about exact limits.
    pub exact_requests: u64,
    /// How they ended, by [`ExactResult`] in its order.
    pub exact_results: [u64; 5],
    /// Requests whose exact rules could not be asked about: there was nobody to ask, or too many waited.
    pub exact_unsent: u64,
    /// Requests that a remembered denial of a log decided without asking.
    pub spared: u64,
    /// Questions whose charges were taken back.
    pub refunds: u64,
    /// Questions whose charges may stay, as too many were to be taken back while there was no stream.
    pub refunds_lost: u64,
    /// Entries that left their bucket for others while a window still touched them.
    pub evictions: u64,
    /// Charges that went to an overflow cell.
    pub overflows: u64,
    /// Times that the table was changed by somebody else first.
    pub conflicts: u64,
    /// Charges given up after too many of those; the request was refused as [`super::Cause::Reserved`].
    pub exhausted: u64,
    /// Requests that were charged the most they may cost, as too many others waited beside them to be told theirs.
    pub unawaited: u64,
    /// Leases taken.
    pub leases: u64,
    /// Keys that entered the table.
    pub keys_added: u64,
    /// Keys that left it, evicted or over.
    pub keys_removed: u64,
    /// Cells waiting to be reported.
    pub report_queue: u64,
    /// The stream is up.
    pub connected: bool,
    /// It has been up for long enough to be believed how many processes there are.
    pub settled: bool,
    /// This worker takes the pushes for its process.
    pub subscriber: bool,
    /// Milliseconds since the subscription was last known to be alive; `u64::MAX` if never.
    pub snapshot_age_ms: u64,
    /// Views merged from pushes.
    pub snapshots: u64,
    /// Cells that the region refused.
    pub refused: u64,
    /// Denials that began strict mode on a key: the first for a window's length.
    pub strict: u64,
    /// Streams given up as [`super::GiveUp::Unacknowledged`].
    pub unacknowledged: u64,
}

impl Stats {
    pub(super) fn asked(&mut self, reason: Reason) {
        if let Some(count) = self.consults.get_mut(reason as usize) {
            *count += 1;
        }
    }

    pub(super) fn ruled(&mut self, result: ExactResult) {
        if let Some(count) = self.exact_results.get_mut(result as usize) {
            *count += 1;
        }
    }

    /// A key entered the table, and `left` made room for it.
    pub(super) fn made(&mut self, left: &Left) {
        self.keys_added += 1;
        self.keys_removed += u64::from(left.over) + u64::from(left.evicted);
        self.evictions += u64::from(left.evicted);
    }

    pub(super) fn ended(&mut self, result: ConsultResult) {
        if let Some(count) = self.results.get_mut(result as usize) {
            *count += 1;
        }
    }
}
