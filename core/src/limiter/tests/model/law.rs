//! The law, counted naively: every admitted cost is added to its cell in 128 bits. No cache, no lease, no reservation.

use super::super::harness::{check, hard_limit_key, key};
use crate::limiter::Check;
use crate::model::key::{HARD_LIMIT_RESOLUTION, Key};
use std::collections::{BTreeMap, VecDeque};
use std::format;

/// Time for which single admissions are kept, so that the counts of an earlier moment can be computed.
const KEPT_MS: u64 = 12_000;

/// A limit, with what was admitted under it.
pub(super) struct Law {
    pub(super) key: Key,
    pub(super) limit: u64,
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
        Law { key, limit, window_ms, cell_ms, admitted, newest, lost }
    }

    pub(super) fn cell_ms(&self) -> u64 {
        self.cell_ms
    }

    /// The same limit, of which nothing is used.
    pub(super) fn without_use(&self) -> Law {
        Law::new(0, self.window_ms, self.limit, self.cell_ms < self.window_ms)
    }

    /// A check of `cost` by rule `rule`.
    pub(super) fn check(&self, rule: usize, cost: u64) -> Check<'_> {
        Check { rule: rule as u16, ..check(&self.key, self.limit, cost) }
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
