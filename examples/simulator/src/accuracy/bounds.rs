//! How far Weir may be off by its design, as formulas: what is measured stands beside them (`accuracy`).
//!
//! All are shares of a limit, of steady traffic that is spread evenly, with nothing wrong. `load` is the traffic's rate divided
//! by limit ÷ window. In one Envoy nothing is off by its own clock: all its workers charge one table. Measured by another clock, what
//! arrives in the millisecond around a rollover may stand in the other cell.
//!
//! Leaves to others: measuring.

use weir_core::limiter::{ANSWER_SERVES_MS, SLACK_PART, TICK_MS, TOLERANCE_PART, WAITING_TICK_MS};
use weir_core::model::schedule::Schedule;

/// A way between two parts of a region, the clocks' disagreement over it included, in milliseconds.
const WAY_MS: u64 = 2;
/// Pushes are woken at most that often, in milliseconds.
const PUSH_MS: u64 = 10;
/// A way to the database and back, and the other statements of a interval, in milliseconds.
const DATABASE_MS: u64 = 400;
/// How many deviations of chance are allowed for where the bound is what arrives.
const DEVIATIONS: f64 = 4.0;

/// One region of several Envoys; one window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// Regions.
    pub regions: u64,
    /// Envoys of each.
    pub envoys: u64,
    /// So much may pass in a window.
    pub limit: u64,
    /// Its length in milliseconds.
    pub window_ms: u64,
    /// Rate of the traffic, as part of the limit's.
    pub load: f64,
}

impl Case {
    /// Most that all Envoys of a region let pass beyond the limit.
    ///
    /// A region grants exactly by what it knows, so what it does not know may come on top. That is what processes spend
    /// without asking, each up to its `allowance`: left ÷ (4 n), and at the least limit ÷ (50 n), summed a quarter of what is
    /// left or a fiftieth of the limit. Two things limit it further:
    ///
    /// - A quarter of what is left can only be spent on top where grants use up the rest within the same time, before a report
    ///   tells of it. So no more comes on top than arrives while what is spent is unknown: a tick, a push and three ways.
    ///   Who asks tells all that he has spent, so that takes one Envoy that is flooded and others that get a trickle.
    /// - At the limit only the fiftieth is left, once of what is not reported yet and once of what others have not heard yet.
    ///
    /// Whole requests: a process whose share is below one asks for each.
    pub fn over_region(&self) -> f64 {
        if self.envoys <= 1 {
            return 0.0;
        }
        let others = (self.envoys - 1) as f64 / self.envoys as f64;
        let unknown_ms = (TICK_MS + WAITING_TICK_MS + PUSH_MS + 3 * WAY_MS) as f64;
        let arrives = self.with_chance(self.load * unknown_ms / self.window_ms as f64);
        let slack = (others / SLACK_PART as f64).min(arrives);
        let share =
            if self.limit / (TOLERANCE_PART * self.envoys) > 0 { 2.0 / TOLERANCE_PART as f64 } else { 0.0 };
        slack + share.min(arrives)
    }

    /// Most that all regions together let pass beyond the limit.
    ///
    /// A region lets pass up to the limit what it has not heard of others. It hears nothing of another's cell below the floor,
    /// half the limit, and of the rest after a publication and an import: `late`. In that time each of the others
    /// grows by g = load ÷ regions × late ÷ window. So each of them hides half a limit and g at the most, or, near a
    /// rollover, g in each of two cells; never more than a limit; and all regions together never more than arrives. What is left
    /// of a previous cell is rounded down in each region for itself, so each may let one more pass; and what arrives while clocks do not
    /// agree on a rollover may stand in either cell.
    pub fn over(&self) -> f64 {
        let region = self.over_region();
        if self.regions <= 1 {
            return region;
        }
        let others = (self.regions - 1) as f64;
        let growth = self.load / self.regions as f64 * late_ms() as f64 / self.window_ms as f64;
        let hidden = (0.5 + growth).max(2.0 * growth).min(1.0);
        let arrives = (self.with_chance(self.load) - 1.0).max(0.0);
        let rounded = self.regions as f64 / self.limit as f64;
        let clocks = self.load * WAY_MS as f64 / self.window_ms as f64;
        ((1.0 + others * hidden) * (1.0 + region) - 1.0 + rounded + clocks).min(arrives)
    }

    /// Most that passes less than in one place, as part of what passes there.
    ///
    /// What others hold for a moment (a reserved grant, a lease) is missing for as long as an answer takes, once in each
    /// window; and the region counts what it granted to a request that was answered too late, which the process spends
    /// next. What is let pass too much in one window is missing in the next.
    pub fn under(&self) -> f64 {
        if self.envoys <= 1 && self.regions <= 1 {
            return 0.0;
        }
        let held_ms = (ANSWER_SERVES_MS + PUSH_MS + 2 * WAY_MS) as f64;
        (held_ms / self.window_ms as f64 + 1.0 / self.limit as f64).min(1.0) + self.over() / 2.0
    }

    /// What arrives at the most where so much, as part of the limit, does on the average.
    fn with_chance(&self, mean: f64) -> f64 {
        let requests = mean * self.limit as f64;
        (requests + DEVIATIONS * requests.sqrt() + DEVIATIONS) / self.limit as f64
    }
}

/// Until another region hears of a cell at the latest, in milliseconds: the longest time between two publications and
/// between two imports, each tick a jitter early or late, and the statements.
pub fn late_ms() -> u64 {
    let schedule = Schedule::default();
    let longest = |interval_ms: u64| interval_ms + 2 * (interval_ms * schedule.jitter_percent / 100);
    longest(schedule.publish_ms) + longest(schedule.import_ms) + DATABASE_MS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_say_what_the_design_does() {
        let case = Case { regions: 1, envoys: 1, limit: 100, window_ms: 60_000, load: 10.0 };
        assert_eq!((case.over(), case.under()), (0.0, 0.0), "one Envoy is exact");
        let nine = Case { envoys: 9, limit: 10_000, ..case };
        assert!((0.02..0.05).contains(&nine.over()), "{}", nine.over());
        let short = Case { window_ms: 1_000, ..nine };
        assert!(short.over() > nine.over() && short.over() < 0.5, "{}", short.over());
        let ten = Case { regions: 10, ..case };
        assert!((8.5..9.7).contains(&ten.over()), "a window as short as the schedule: {}", ten.over());
        let long = Case { window_ms: 3_600_000, ..ten };
        assert!(long.over() < 5.0, "{}", long.over());
        let little = Case { load: 0.5, limit: 10_000, ..ten };
        assert_eq!(little.over(), 0.0, "what does not arrive cannot pass");
        assert_eq!(late_ms(), 28_400);
    }
}
