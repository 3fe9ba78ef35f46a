//! How far other clocks are ahead of the region's time, which numbers windows. Nothing is decided by these differences; they are shown to
//! operators, and logged when they change.

use tracing::{info, warn};

/// A difference is logged when it has changed at once, or has grown, by this many milliseconds.
const STEP_MS: u64 = 5_000;
/// Clocks agree when they differ by less.
const AGREES_MS: u64 = 1_000;

/// The differences.
#[derive(Debug)]
pub struct Clocks {
    machine: Difference,
    redis: Difference,
}

#[derive(Debug)]
struct Difference {
    clock: &'static str,
    /// How far the clock is ahead, in milliseconds, by the last reading.
    ahead_ms: Option<i64>,
    /// The difference that was logged last.
    logged_ms: i64,
}

/// What a reading has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Nothing,
    Differs,
    Agrees,
}

impl Default for Clocks {
    fn default() -> Self {
        let difference = |clock| Difference { clock, ahead_ms: None, logged_ms: 0 };
        Clocks { machine: difference("machine"), redis: difference("redis") }
    }
}

impl Clocks {
    /// The machine's clock is ahead by this many milliseconds.
    pub fn read_machine(&mut self, ahead_ms: i64) {
        self.machine.read(ahead_ms);
    }

    /// The clock of the Redis server that holds the region's time is ahead by this many milliseconds.
    pub fn read_redis(&mut self, ahead_ms: i64) {
        self.redis.read(ahead_ms);
    }

    /// The differences that were read, by clock, in milliseconds.
    pub fn ahead(&self) -> impl Iterator<Item = (&'static str, i64)> {
        [&self.machine, &self.redis].into_iter().filter_map(|one| Some((one.clock, one.ahead_ms?)))
    }
}

impl Difference {
    fn read(&mut self, ahead_ms: i64) {
        let (clock, ahead_seconds) = (self.clock, ahead_ms as f64 / 1e3);
        match self.change(ahead_ms) {
            Change::Nothing => {}
            Change::Differs => {
                warn!(
                    clock,
                    ahead_seconds,
                    "a clock differs from the region's time; windows begin and end by the latter"
                );
            }
            Change::Agrees => info!(clock, ahead_seconds, "a clock agrees with the region's time again"),
        }
    }

    fn change(&mut self, ahead_ms: i64) -> Change {
        let last_ms = self.ahead_ms.replace(ahead_ms).unwrap_or(0);
        let (size, logged) = (ahead_ms.unsigned_abs(), self.logged_ms.unsigned_abs());
        if size < AGREES_MS && logged > 0 {
            self.logged_ms = 0;
            return Change::Agrees;
        }
        let has_stepped = ahead_ms.abs_diff(last_ms) >= STEP_MS;
        if (has_stepped || size >= logged.saturating_add(STEP_MS)) && size >= AGREES_MS {
            self.logged_ms = ahead_ms;
            return Change::Differs;
        }
        Change::Nothing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_and_a_growth_are_logged_once_and_the_way_back_at_its_end() {
        let mut difference = Clocks::default().machine;
        let mut changes = |readings: &[i64]| {
            let changes = readings.iter().map(|reading| difference.change(*reading));
            changes.filter(|change| *change != Change::Nothing).collect::<Vec<_>>()
        };
        assert_eq!(changes(&[0, 40, -300, 900, 3_000, 4_900]), [], "small");
        assert_eq!(changes(&[5_000, 5_100, 9_000]), [Change::Differs], "grown");
        assert_eq!(changes(&[3_609_000, 3_608_000]), [Change::Differs], "stepped");
        assert_eq!(changes(&[3_604_500, 3_600_000, 3_596_000]), [], "it approaches");
        assert_eq!(changes(&[-4_000, -4_100]), [Change::Differs], "stepped to the other side");
        assert_eq!(changes(&[-2_000, -999, -998, 0]), [Change::Agrees]);
        assert_eq!(changes(&[6_000]), [Change::Differs]);
    }
}
