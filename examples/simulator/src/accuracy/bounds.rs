//! Bounds of the error that Weir's design permits, as formulas. `accuracy` prints the measured error beside them.
//!
//! All bounds are parts of a limit. They apply to steady, evenly spread traffic without faults. `load` is the
//! traffic's rate divided by limit ÷ window. One Envoy alone has no error by its own clock, because all its workers
//! charge one table. By another clock, requests of the millisecond around a rollover may fall into the other cell.

use weir_core::limiter::{ANSWER_SERVES_MS, SLACK_PART, TICK_MS, TOLERANCE_PART, WAITING_TICK_MS};
use weir_core::model::schedule::Schedule;

/// One-way delay between two parts of a region, including the difference of their clocks, in milliseconds.
const WAY_MS: u64 = 2;
/// Least interval between two pushes, in milliseconds.
const PUSH_MS: u64 = 10;
/// The round trip to the database and the other statements of an interval, in milliseconds.
const DATABASE_MS: u64 = 400;
/// Standard deviations allowed for the number of arrivals.
const DEVIATIONS: f64 = 4.0;

/// A topology, a rule and a load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// Number of regions.
    pub regions: u64,
    /// Envoys of each region.
    pub envoys: u64,
    /// The rule's limit in a window.
    pub limit: u64,
    /// Length of the window in milliseconds.
    pub window_ms: u64,
    /// Rate of the traffic divided by limit ÷ window.
    pub load: f64,
}

impl Case {
    /// Most that all Envoys of a region admit beyond the limit.
    ///
    /// A region grants exactly by the use that it has received, so only use that it has not received can exceed the
    /// limit. That is the use that processes spend without a query, each up to its `allowance`: left ÷ (4 n), but at
    /// least limit ÷ (50 n). The sum is a quarter of what is left, or a fiftieth of the limit. Two things reduce it
    /// further:
    ///
    /// - The quarter can exceed the limit only if grants use up the rest before a report states the use. So the
    ///   excess is at most what arrives while use is unreported: a tick, a push and three one-way delays. A query
    ///   reports all that its process has spent, so this case needs one Envoy with very many requests and others with
    ///   few.
    /// - At the limit only the fiftieth is left, once for use that is not reported yet and once for use that others
    ///   have not received yet.
    ///
    /// Costs are whole requests: a process whose share is below one queries the region for each request.
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

    /// Most that all regions together admit beyond the limit.
    ///
    /// A region admits up to the limit, independent of use that it has not received from others. It receives nothing
    /// about another region's cell below the floor of half the limit, and the rest after one publication and one
    /// import: `late`. In that time each other region grows by g = load ÷ regions × late ÷ window. So each of them
    /// hides at most half a limit and g, or, near a rollover, g in each of two cells; never more than a limit; and all
    /// regions together never more than arrives. Each region rounds down what is left of a previous cell, so each may
    /// admit one more request. Requests that arrive while clocks disagree on a rollover may fall into either cell.
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

    /// Most that is admitted less than by one limiter in one place, as part of what that limiter admits.
    ///
    /// Budget that others reserve (a grant, a lease) is unavailable for the duration of a query, once in each
    /// window. The region also counts a grant that arrived after the request's timeout; the process spends that grant
    /// next. Whatever is admitted in excess in one window is unavailable in the next.
    pub fn under(&self) -> f64 {
        if self.envoys <= 1 && self.regions <= 1 {
            return 0.0;
        }
        let held_ms = (ANSWER_SERVES_MS + PUSH_MS + 2 * WAY_MS) as f64;
        (held_ms / self.window_ms as f64 + 1.0 / self.limit as f64).min(1.0) + self.over() / 2.0
    }

    /// Most arrivals to expect for this mean, both as parts of the limit.
    fn with_chance(&self, mean: f64) -> f64 {
        let requests = mean * self.limit as f64;
        (requests + DEVIATIONS * requests.sqrt() + DEVIATIONS) / self.limit as f64
    }
}

/// Longest time until another region has received a cell, in milliseconds: the longest time between two publications
/// and between two imports, each interval with its jitter, and the statements.
pub fn late_ms() -> u64 {
    let schedule = Schedule::default();
    let longest = |interval_ms: u64| interval_ms + 2 * (interval_ms * schedule.jitter_percent / 100);
    longest(schedule.publish_ms) + longest(schedule.import_ms) + DATABASE_MS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_follow_the_design() {
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
        assert_eq!(little.over(), 0.0, "nothing passes that does not arrive");
        assert_eq!(late_ms(), 28_400);
    }
}
