//! The law, counted naively: every admitted cost is added to its cell in 128 bits. No cache, no lease, no reservation.

use super::super::harness::{check, hard_limit_key, key};
use crate::limiter::Check;
use crate::model::key::{HARD_LIMIT_RESOLUTION, Key};
use std::collections::{BTreeMap, VecDeque};
use std::format;
use std::vec::Vec;

/// Time for which single admissions are kept, so that the counts of an earlier moment can be computed.
const KEPT_MS: u64 = 12_000;
/// What was spent of a lease is in the table after its return: a second after it was taken, five if it is tiny, and a tick.
const LEASED_MS: u64 = 1_060;
const TINY_LEASED_MS: u64 = 5_060;
/// No lease is taken under a lower limit: it is a 64th of what is left, and at least four times a cost.
const LEASES_FROM: u64 = 256;
/// No lease is tiny under a lower limit: it is at most a part in 4 096 of it.
const TINY_FROM: u64 = 4 * 4_096;

/// A limit, with what was admitted under it.
pub(super) struct Law {
    pub(super) key: Key,
    pub(super) limit: u64,
    /// The limit without live control, if live control sets `limit`.
    pub(super) configured: Option<u64>,
    /// Until when another limit applied, and that limit.
    former: Vec<(u64, u64)>,
    window_ms: u64,
    cell_ms: u64,
    admitted: BTreeMap<u64, u128>,
    /// The newest admissions: the time and the cost.
    newest: VecDeque<(u64, u128)>,
    /// What counts as spent although no request was admitted: reservations of workers that were killed.
    lost: BTreeMap<u64, u128>,
}

/// Which counts apply.
#[derive(Clone, Copy)]
pub(super) enum Counts {
    /// All that was admitted.
    Admitted,
    /// What was admitted until a time.
    Until(u64),
    /// All that was admitted or lost.
    WithLost,
}

impl Law {
    pub(super) fn new(number: usize, window_ms: u64, limit: u64, is_hard: bool) -> Law {
        let name = format!("k{number}");
        let key = if is_hard { hard_limit_key(&name, window_ms) } else { key(&name, window_ms) };
        let cell_ms = if is_hard { window_ms / u64::from(HARD_LIMIT_RESOLUTION) } else { window_ms };
        let (admitted, newest, lost) = (BTreeMap::new(), VecDeque::new(), BTreeMap::new());
        let (configured, former) = (None, Vec::new());
        Law { key, limit, configured, former, window_ms, cell_ms, admitted, newest, lost }
    }

    pub(super) fn cell_ms(&self) -> u64 {
        self.cell_ms
    }

    /// What keys have in common that share an overflow cell: the window, and whether the limit is hard.
    pub(super) fn family(&self) -> (u64, bool) {
        (self.window_ms, self.cell_ms < self.window_ms)
    }

    /// The same limit, of which nothing is used.
    pub(super) fn without_use(&self) -> Law {
        let (window_ms, is_hard) = self.family();
        Law::new(0, window_ms, self.limit, is_hard)
    }

    /// A check of `cost` by rule `rule`.
    pub(super) fn check(&self, rule: usize, cost: u64) -> Check<'_> {
        Check { rule: rule as u16, configured: self.configured, ..check(&self.key, self.limit, cost) }
    }

    /// From now on `limit` applies, set by live control if there is a configured one besides.
    pub(super) fn apply(&mut self, limit: u64, configured: Option<u64>, unix: u64) {
        self.former.push((unix, self.limit));
        (self.limit, self.configured) = (limit, configured);
    }

    /// Since when the limit has applied.
    pub(super) fn applied_since(&self) -> u64 {
        self.former.last().map_or(0, |(until, _)| *until)
    }

    /// The limit, and the one that applies without live control.
    pub(super) fn limits(&self) -> (u64, u64) {
        (self.limit, self.configured.unwrap_or(self.limit))
    }

    /// Whether it is lower than all that have applied.
    pub(super) fn is_lowest(&self) -> bool {
        self.former.iter().all(|(_, limit)| self.limit < *limit)
    }

    /// How long what leases hold may be missing in the table, by the limits under which they were taken.
    pub(super) fn leased_ms(&self, unix: u64) -> u64 {
        let former = self.former.iter().filter(|(until, _)| until + TINY_LEASED_MS > unix);
        match former.map(|(_, limit)| *limit).fold(self.limit, u64::max) {
            ..LEASES_FROM => 0,
            LEASES_FROM..TINY_FROM => LEASED_MS,
            _ => TINY_LEASED_MS,
        }
    }

    pub(super) fn admit(&mut self, unix: u64, cost: u64) {
        *self.admitted.entry(unix / self.cell_ms).or_default() += u128::from(cost);
        self.newest.push_back((unix, cost.into()));
        while self.newest.front().is_some_and(|(at, _)| at + KEPT_MS < unix) {
            self.newest.pop_front();
        }
    }

    pub(super) fn lose(&mut self, sequence: u64, amount: u64) {
        *self.lost.entry(sequence).or_default() += u128::from(amount);
    }

    /// What counts at `unix`: `current + floor(previous × (1 − elapsed))`; of a hard limit, all cells that the window touches.
    pub(super) fn effective(&self, unix: u64, counts: Counts) -> u128 {
        let (sequence, elapsed_ms) = (unix / self.cell_ms, unix % self.cell_ms);
        let count = |sequence| self.count(sequence, counts);
        if self.cell_ms < self.window_ms {
            let cells = self.window_ms / self.cell_ms;
            return (sequence - cells..=sequence).map(count).sum();
        }
        let covered_ms = u128::from(self.cell_ms - elapsed_ms);
        count(sequence) + count(sequence - 1) * covered_ms / u128::from(self.cell_ms)
    }

    pub(super) fn admits(&self, unix: u64, cost: u64, counts: Counts) -> bool {
        self.effective(unix, counts) + u128::from(cost) <= u128::from(self.limit)
    }

    pub(super) fn remaining(&self, unix: u64, counts: Counts) -> u64 {
        u128::from(self.limit).saturating_sub(self.effective(unix, counts)) as u64
    }

    /// Milliseconds until `cost` would pass if nothing more was admitted; `None`: never.
    pub(super) fn wait_ms(&self, unix: u64, cost: u64, counts: Counts) -> Option<u64> {
        (cost <= self.limit).then(|| {
            // What counts only falls, so the first moment is found by halving.
            let (mut denied, mut admitted) = (0, 2 * self.window_ms);
            if self.admits(unix, cost, counts) {
                return 0;
            }
            while denied + 1 < admitted {
                let middle = (denied + admitted) / 2;
                match self.admits(unix + middle, cost, counts) {
                    true => admitted = middle,
                    false => denied = middle,
                }
            }
            admitted
        })
    }

    fn count(&self, sequence: u64, counts: Counts) -> u128 {
        let of = |cells: &BTreeMap<u64, u128>| cells.get(&sequence).copied().unwrap_or(0);
        match counts {
            Counts::Admitted => of(&self.admitted),
            Counts::WithLost => of(&self.admitted) + of(&self.lost),
            Counts::Until(until) => {
                let later = self.newest.iter().rev().take_while(|(at, _)| *at > until);
                let of_cell = later.filter(|(at, _)| at / self.cell_ms == sequence);
                of(&self.admitted) - of_cell.map(|(_, cost)| cost).sum::<u128>()
            }
        }
    }
}
