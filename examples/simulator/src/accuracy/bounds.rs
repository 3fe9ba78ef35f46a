//! Bounds of the error that Weir's design permits, as formulas. `accuracy` prints the measured error beside them.
//!
//! All bounds are parts of a limit. They apply to steady, evenly spread traffic without faults. `load` is the
//! traffic's rate divided by limit ÷ window. One Envoy alone has no error by its own clock, because all its workers
//! charge one table. By another clock, requests of the millisecond around a rollover may fall into the other cell.

use crate::plan::Network;
use weir_core::limiter::{ANSWER_SERVES_MS, SLACK_PART, TICK_MS, TOLERANCE_PART, WAITING_TICK_MS};
use weir_core::model::schedule::Schedule;
use weir_core::region::{
    LONE_TOLERANCE_PART, SHORTEST_PUBLISHED_MS, THRESHOLD_MARGIN as SHARING_MARGIN,
    TOLERANCE_PART as SHARING_TOLERANCE_PART,
};

/// One-way delay between two parts of a region, including the difference of their clocks, in milliseconds.
const WAY_MS: u64 = 2;
/// Least interval between two pushes, in milliseconds.
const PUSH_MS: u64 = 10;
/// From a request to its aggregator, and from an aggregator to the Envoys, in milliseconds: a report and a push.
const REGION_MS: u64 = 64;
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
    /// A region admits up to the limit, independent of use that it has not received. Regions publish a key once together they may exceed
    /// its limit, so the use that is hidden from a region is the largest of three:
    ///
    /// - what the others use while counts are on their way ([`delay_ms`]), and the allowance that all may keep to themselves at the limit,
    ///   once unpublished and once on its way;
    /// - at the beginning, what all use until each has first published (at half the limit, together) and the others have read it;
    /// - the use of one region that was alone so far, which keeps more to itself and publishes once a second.
    ///
    /// No region hides more than a limit, and all together never more than arrives. Each region rounds down what is left of a previous
    /// cell, so each may admit one more request. Requests that arrive while clocks disagree on a rollover may fall into either cell.
    /// Windows that are not shared hide a limit in each region.
    pub fn over(&self) -> f64 {
        let region = self.over_region();
        if self.regions <= 1 {
            return region;
        }
        let others = (self.regions - 1) as f64;
        let window_ms = self.window_ms as f64;
        let (delay, seen) = (delay_ms() as f64 / window_ms, (delay_ms() + exchange_ms()) as f64 / window_ms);
        let all = self.load;
        let without_largest = self.load * others / self.regions as f64;
        let hidden = match self.window_ms < SHORTEST_PUBLISHED_MS {
            true => others,
            false => (self.with_chance(without_largest * delay) + 2.0 / SHARING_TOLERANCE_PART as f64)
                .max(self.with_chance(all * seen) - 1.0 / SHARING_MARGIN as f64)
                .max(1.0 / LONE_TOLERANCE_PART as f64 + seen)
                .min(others),
        };
        let arrives = (self.with_chance(self.load) - 1.0).max(0.0);
        let rounded = self.regions as f64 / self.limit as f64;
        let clocks = (1.0 + self.load) * WAY_MS as f64 / window_ms;
        ((1.0 + hidden) * (1.0 + region) - 1.0 + rounded + clocks).min(arrives)
    }

    /// Most that all regions together admit beyond the limit, other than by rare chance, if many use the key alike from its beginning.
    /// What is hidden at the moment at which the limit is reached is what the others use within the delays of their counts.
    /// The delays of many regions average out, so the mean delay counts, not the longest; and the allowance counts once.
    pub fn over_of_many(&self) -> f64 {
        let others = self.load * self.regions.saturating_sub(1) as f64 / self.regions as f64;
        let hidden = self.with_chance(others * mean_delay_ms() as f64 / self.window_ms as f64);
        hidden + 1.0 / SHARING_TOLERANCE_PART as f64
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

/// Longest time from a request to its count in another region, while that sends packets, in milliseconds: to the aggregator and from the
/// other one, the packet before at either end, its pause, three halves of a round trip, and a full one of the packet before.
pub fn delay_ms() -> u64 {
    let schedule = Schedule::default();
    let (_, way_us) = Network::default().global_us;
    let pause_ms = schedule.packet_pause_ms * (100 + schedule.jitter_percent) / 100;
    REGION_MS + 3 * (2 * way_us / 1_000) + 2 * pause_ms
}

/// The mean of that, in milliseconds: half a tick and half a pause between pushes, one way to the database and back, and half of the time
/// between two packets at either end.
pub fn mean_delay_ms() -> u64 {
    let schedule = Schedule::default();
    let (least_us, most_us) = Network::default().global_us;
    let round_trip_ms = (least_us + most_us) / 1_000;
    let between_ms = (round_trip_ms + schedule.packet_pause_ms).max(2 * schedule.packet_pause_ms);
    TICK_MS / 2 + PUSH_MS / 2 + 2 * WAY_MS / 2 + round_trip_ms + between_ms
}

/// Longest time between two packets of a region that has nothing to write, in milliseconds.
pub fn exchange_ms() -> u64 {
    let schedule = Schedule::default();
    schedule.exchange_ms * (100 + schedule.jitter_percent) / 100
}

/// Longest time between two intervals at which all that is due is published, in milliseconds.
pub fn interval_ms() -> u64 {
    let schedule = Schedule::default();
    schedule.publish_ms * (100 + 2 * schedule.jitter_percent) / 100
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
        let ten = Case { regions: 10, limit: 10_000, ..case };
        assert!((0.1..0.2).contains(&ten.over()), "{}", ten.over());
        let long = Case { window_ms: 3_600_000, ..ten };
        assert!(long.over() < 0.06, "{}", long.over());
        let short = Case { window_ms: 10_000, ..ten };
        assert!((0.5..1.6).contains(&short.over()), "{}", short.over());
        let unshared = Case { window_ms: 9_999, ..ten };
        assert!((8.9..9.1).contains(&unshared.over()), "each region has the limit: {}", unshared.over());
        let little = Case { load: 0.5, limit: 10_000, ..ten };
        assert_eq!(little.over(), 0.0, "nothing passes that does not arrive");
        let all_at_once = Case { regions: 10, limit: 1_000, ..case };
        assert!((0.10..0.11).contains(&all_at_once.over_of_many()), "{}", all_at_once.over_of_many());
        assert_eq!((delay_ms(), mean_delay_ms(), exchange_ms(), interval_ms()), (784, 332, 1_200, 14_000));
    }
}
