//! The rate that the proxies of a division may use together, if the window is too short to be divided in amounts.
//!
//! It is the limit less what others use: clients of the APIs, filters, and the proxies of the region's other aggregators. It moves half the
//! way at each step, because two aggregators that both gave away all would otherwise both take back all.

use super::allotment::Room;
use crate::model::window::{Position, Used};

#[derive(Clone, Debug, Default)]
pub(super) struct Pace {
    /// Thousandths of a request a second; `None` before the first step.
    pool: Option<u64>,
    /// Average use of others in a window.
    others: u64,
    /// The cell in which this division charged last, and what it charged there and in the one before.
    sequence: u64,
    current: u64,
    previous: u64,
}

impl Pace {
    pub(super) fn thousandths(&self) -> u64 {
        self.pool.unwrap_or(0)
    }

    pub(super) fn charged(&mut self, amount: u64, at: &Position) {
        self.turn(at);
        self.current = self.current.saturating_add(amount);
    }

    /// The first step, if there was none.
    pub(super) fn begin(&mut self, room: &Room) {
        if self.pool.is_none() {
            self.step(room);
        }
    }

    pub(super) fn step(&mut self, room: &Room) {
        self.turn(&room.at);
        let own = Used::Average { current: self.current, previous: self.previous }.effective(&room.at);
        let others = room.limit.saturating_sub(room.left).saturating_sub(own);
        self.others = match self.pool {
            None => others,
            Some(_) => (self.others.saturating_mul(3).saturating_add(others)) / 4,
        };
        let in_window = room.limit.saturating_sub(self.others);
        let target = u128::from(in_window).saturating_mul(1_000_000) / u128::from(room.at.cell_ms.max(1));
        let target = u64::try_from(target).unwrap_or(u64::MAX);
        self.pool = Some(match self.pool {
            None => target,
            // The last difference would be halved without end.
            Some(pool) if pool.abs_diff(target) <= target / 64 => target,
            Some(pool) => (pool / 2).saturating_add(target / 2),
        });
    }

    fn turn(&mut self, at: &Position) {
        if at.sequence == self.sequence {
            return;
        }
        let follows = at.sequence == self.sequence.saturating_add(1);
        self.previous = if follows { self.current } else { 0 };
        (self.current, self.sequence) = (0, at.sequence);
    }
}
