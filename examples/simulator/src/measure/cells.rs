//! The formula of a rule over its cells, implemented independently of the core: two cells, of which the previous one
//! counts in part, or the eleven cells of a hard limit, which count in full.

use crate::plan::{Rule, START_UNIX_MS};
use std::collections::VecDeque;

/// Cells in a window of a rule with a hard limit.
pub const HARD_LIMIT_CELLS: u64 = 10;

/// The use of one key, in cells.
#[derive(Clone, Debug)]
pub struct Cells {
    cell_ms: u64,
    hard_limit: bool,
    /// Number and use of each cell that the window touches, oldest first.
    used: VecDeque<(u64, u64)>,
}

impl Cells {
    /// Creates the cells of a key under `rule`, without use.
    pub fn new(rule: &Rule) -> Cells {
        let parts = if rule.hard_limit { HARD_LIMIT_CELLS } else { 1 };
        Cells { cell_ms: (rule.window_ms / parts).max(1), hard_limit: rule.hard_limit, used: VecDeque::new() }
    }

    /// What counts against the limit at `at_us` after the traffic's beginning.
    pub fn effective(&mut self, at_us: u64) -> u64 {
        let unix_ms = START_UNIX_MS.saturating_add(at_us / 1_000);
        let now = unix_ms / self.cell_ms;
        let oldest = now.saturating_sub(if self.hard_limit { HARD_LIMIT_CELLS } else { 1 });
        while self.used.front().is_some_and(|(cell, _)| *cell < oldest) {
            self.used.pop_front();
        }
        let left_ms = self.cell_ms - unix_ms % self.cell_ms;
        let (whole, part) = if self.hard_limit { (oldest, oldest) } else { (now, oldest) };
        let in_full: u64 = self.used.iter().filter(|(cell, _)| *cell >= whole).map(|(_, used)| used).sum();
        let in_part = self.used.iter().filter(|(cell, _)| (part..whole).contains(cell));
        let in_part: u64 = in_part.map(|(_, used)| share(*used, left_ms, self.cell_ms)).sum();
        in_full.saturating_add(in_part)
    }

    /// Adds `cost` at `at_us`.
    pub fn charge(&mut self, at_us: u64, cost: u64) {
        let cell = START_UNIX_MS.saturating_add(at_us / 1_000) / self.cell_ms;
        match self.used.back_mut() {
            Some((last, used)) if *last >= cell => *used = used.saturating_add(cost),
            _ => self.used.push_back((cell, cost)),
        }
    }
}

fn share(used: u64, left_ms: u64, cell_ms: u64) -> u64 {
    let share = u128::from(used) * u128::from(left_ms) / u128::from(cell_ms);
    u64::try_from(share).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::model::time::UnixMs;
    use weir_core::model::window::{Position, Used};

    #[test]
    fn two_cells_agree_with_the_core() {
        let mut random = crate::random::Random::new(1);
        let mut cells = Cells::new(&Rule::new(1, 1_000));
        let (mut counts, mut sequence, mut at_us) = ([0; 2], 0, 0);
        for _ in 0..10_000 {
            at_us += random.below(400_000);
            let at = Position::at(UnixMs(START_UNIX_MS + at_us / 1_000), 1_000);
            for _ in 0..at.sequence.saturating_sub(sequence).min(2) {
                counts = [0, counts[0]];
            }
            sequence = at.sequence;
            assert_eq!(cells.effective(at_us), Used::of(1, counts).effective(&at));
            let cost = random.below(9);
            cells.charge(at_us, cost);
            counts[0] += cost;
        }
    }

    #[test]
    fn a_hard_limit_counts_every_cell_that_the_window_touches() {
        let mut cells = Cells::new(&Rule { hard_limit: true, ..Rule::new(1, 1_000) });
        cells.charge(99_999, 3);
        cells.charge(150_000, 4);
        for (at_ms, expected) in [(150, 7), (1_099, 7), (1_100, 4), (1_199, 4), (1_200, 0)] {
            assert_eq!(cells.clone().effective(at_ms * 1_000), expected, "{at_ms}");
        }
    }
}
