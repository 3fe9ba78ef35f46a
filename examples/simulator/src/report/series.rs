//! A run over time: at even intervals, the requests so far, the true use of one key, and what each part counts of it.
//!
//! Recording does not change the run: the world is only read between events.

use crate::measure::observe::{Decided, Observer, Verdict};
use crate::measure::{Comparison, Measure};
use crate::plan::Plan;
use crate::plan::traffic::{Arrival, Shape};
use crate::run::{Expected, Outcome, judge};
use crate::world::{Snapshot, World};
use serde::Serialize;

/// Approximate number of points of a run.
const POINTS: u64 = 160;
/// Possible intervals between points, in milliseconds.
const STEPS_MS: [u64; 12] = [10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000];
/// The time shown after the traffic is this fraction of the traffic's duration: one part in ten.
const AFTER_PART: u64 = 10;

/// A run's result and its course over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Recorded {
    /// The result.
    pub outcome: Outcome,
    /// The course over time.
    pub series: Series,
}

/// The course of a run over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Series {
    /// Interval between two points, in milliseconds.
    pub step_ms: u64,
    /// The key that is recorded.
    pub key: Watched,
    /// The points in order of time; the first is one interval after the traffic's beginning.
    pub points: Vec<Point>,
}

/// A rule and an identifier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Watched {
    /// The rule's number in the plan.
    pub rule: usize,
    /// The identifier.
    pub identifier: u64,
    /// The rule's limit in a window.
    pub limit: u64,
    /// Length of the window in milliseconds.
    pub window_ms: u64,
}

/// The interval that ends at a point, and the recorded key at the point.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Point {
    /// Milliseconds since the traffic began.
    pub at_ms: u64,
    /// Requests that reached an Envoy.
    pub arrived: u64,
    /// Requests that passed.
    pub admitted: u64,
    /// Requests that were denied, for any reason.
    pub denied: u64,
    /// Decided requests that the exact log admits.
    pub exact_admitted: u64,
    /// Cost that Weir admitted for the key in the true window that ends at the point.
    pub window: u64,
    /// Cost that the exact log admits in that window.
    pub exact_window: u64,
    /// What counts against the key's limit, computed from the admitted cost.
    pub truth: u64,
    /// What counts against the key's limit, by each region's and its Envoys' counts.
    pub snapshots: Vec<Snapshot>,
}

/// Carries out `plan` as [`run`](crate::run::run) does, except that a panic is not caught, and records it. `progress`
/// receives the completed part of the run, from 0 to 1.
pub fn record(plan: &Plan, expected: &Expected, progress: &mut dyn FnMut(f64)) -> Recorded {
    let mut watch = Watch { measure: Measure::new(plan), point: Point::default() };
    let mut world = World::new(plan);
    let mut before = Comparison::default();
    let end_ms = plan.traffic_ms.saturating_add(plan.quiet_ms);
    let shown_ms = end_ms.min(plan.traffic_ms.saturating_add(plan.traffic_ms / AFTER_PART));
    let mut series = Series { step_ms: step_ms(shown_ms), key: watched(plan), points: Vec::new() };
    let mut at_ms = 0;
    while at_ms < end_ms {
        at_ms = at_ms.saturating_add(series.step_ms).min(end_ms);
        world.run_until(i64::try_from(at_ms).unwrap_or(i64::MAX), &mut watch);
        if at_ms <= shown_ms {
            series.points.push(watch.take(&world, &series.key, &mut before, at_ms));
        }
        progress(at_ms as f64 / end_ms as f64);
    }
    let figures = world.run(&mut watch);
    let comparison = watch.measure.comparison();
    let failures = judge(expected, &comparison, &figures);
    Recorded { outcome: Outcome { comparison, figures, failures }, series }
}

/// The key to record: the one of the first source, under that source's first rule.
pub fn watched(plan: &Plan) -> Watched {
    let first = plan.traffic.first();
    let rule = first.map_or(0, |traffic| traffic.rules.trailing_zeros() as usize);
    let identifier = match first.map(|traffic| &traffic.shape) {
        Some(
            Shape::Steady { identifier, .. }
            | Shape::Bursts { identifier, .. }
            | Shape::WindowEnd { identifier, .. }
            | Shape::UnderFloor { identifier, .. },
        ) => *identifier,
        Some(Shape::Fresh { from, .. }) => *from,
        Some(Shape::Trace { arrivals }) => arrivals.first().map_or(0, |arrival| arrival.identifier),
        // The first of several identifiers; under Zipf's law it has the most requests.
        Some(Shape::Spread { .. } | Shape::Zipf { .. }) | None => 0,
    };
    let limits = plan.rules.get(rule).map_or((0, 0), |rule| (rule.limit, rule.window_ms));
    Watched { rule, identifier, limit: limits.0, window_ms: limits.1 }
}

fn step_ms(shown_ms: u64) -> u64 {
    let fits = |step: &&u64| shown_ms / **step <= POINTS;
    STEPS_MS.iter().find(fits).copied().unwrap_or((shown_ms / POINTS).max(1))
}

struct Watch {
    measure: Measure,
    point: Point,
}

impl Watch {
    /// Ends the current interval with a point, and begins the next one.
    fn take(&mut self, world: &World<'_>, key: &Watched, before: &mut Comparison, at_ms: u64) -> Point {
        let now = self.measure.comparison();
        let exact_admitted = now.exact.admitted.saturating_sub(before.exact.admitted);
        *before = now;
        let at_us = at_ms.saturating_mul(1_000);
        let (exact_window, window) = self.measure.in_window(key.rule, key.identifier, at_us);
        let key_counts = world.key_counts(key.identifier, key.rule);
        let (truth, snapshots) =
            key_counts.map_or_else(Default::default, |key_counts| (key_counts.truth, key_counts.snapshots));
        let counted = std::mem::take(&mut self.point);
        Point { at_ms, exact_admitted, window, exact_window, truth, snapshots, ..counted }
    }
}

impl Observer for Watch {
    fn arrived(&mut self, arrival: &Arrival) {
        self.point.arrived += 1;
        self.measure.arrived(arrival);
    }

    fn decided(&mut self, decided: &Decided) {
        match decided.verdict {
            Verdict::Admitted => self.point.admitted += 1,
            Verdict::Denied | Verdict::Reserved | Verdict::Undecided => self.point.denied += 1,
            Verdict::Lost => {}
        }
        self.measure.decided(decided);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::observe::NoObserver;
    use crate::run::run;
    use crate::scenarios;

    #[test]
    fn recording_does_not_change_a_run_and_points_sum_to_its_totals() {
        for name in ["one-envoy", "skew-2s", "random"] {
            let plan = (scenarios::find(name).unwrap().plan)(3);
            let mut last = 0.0;
            let recorded = record(&plan, &Expected::default(), &mut |part| {
                assert!(part >= last);
                last = part;
            });
            let outcome = run(&plan, &Expected::default(), &mut NoObserver);
            assert_eq!(recorded.outcome, outcome, "{name}");
            assert_eq!(last, 1.0);
            let sum = |of: fn(&Point) -> u64| recorded.series.points.iter().map(of).sum::<u64>();
            let Comparison { requests, admitted, lost, exact, .. } = outcome.comparison;
            assert_eq!(sum(|point| point.admitted), admitted, "{name}");
            assert_eq!(sum(|point| point.exact_admitted), exact.admitted, "{name}");
            assert_eq!(sum(|point| point.admitted + point.denied), requests, "{name}");
            assert!((requests..=requests + lost).contains(&sum(|point| point.arrived)), "{name}");
        }
    }

    #[test]
    fn every_region_receives_the_key_and_the_exact_log_keeps_the_limit() {
        let plan = (scenarios::find("ten-regions").unwrap().plan)(1);
        let Series { key, points, .. } = record(&plan, &Expected::default(), &mut |_| {}).series;
        assert!(points.iter().all(|point| point.exact_window <= key.limit));
        assert!(points.iter().all(|point| point.snapshots.len() == plan.topology.regions));
        let received_by_all = |point: &Point| {
            point.truth > 0 && point.snapshots.iter().all(|snapshot| snapshot.region > Some(0))
        };
        assert!(points.iter().any(received_by_all), "every region receives the key");
        let late = |point: &Point| point.snapshots.iter().any(|snapshot| snapshot.region < Some(point.truth));
        assert!(points.iter().any(late), "no region receives it at once");
    }

    #[test]
    fn intervals_between_points_are_round() {
        for (shown_ms, step) in [(0, 10), (40_000, 250), (60_000, 500), (198_000, 2_500), (6_600_000, 60_000)]
        {
            assert_eq!(step_ms(shown_ms), step, "{shown_ms}");
        }
        assert!(step_ms(u64::MAX) > 60_000);
    }
}
