//! One run of a plan: it is carried out, compared with the reference limiters, and checked for failures.
//!
//! - `shrink`: makes a failing plan smaller.

pub mod shrink;

use crate::measure::figures::Figures;
use crate::measure::observe::{Decided, Observer};
use crate::measure::{Comparison, Measure};
use crate::plan::Plan;
use crate::plan::traffic::Arrival;
use crate::world::World;
use serde::Serialize;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Bounds of a run's result. A bound that is not given is not checked; a violation always fails the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Expected {
    /// Upper bound of [`Comparison::over`].
    pub over: Option<f64>,
    /// Upper bound of [`Comparison::under`].
    pub under: Option<f64>,
    /// Upper bound of [`Comparison::worst_window`].
    pub worst_window: Option<f64>,
    /// Upper bound of [`Figures::database_rows`].
    pub rows: Option<f64>,
    /// Lower bound of [`Figures::set_backs`].
    pub set_backs: Option<u64>,
    /// Lower bound of [`Figures::unreached`].
    pub unreached: Option<u64>,
    /// Lower bound of [`Figures::overturned`].
    pub overturned: Option<u64>,
}

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// The comparison with the reference limiters.
    pub comparison: Comparison,
    /// Counters and violations.
    pub figures: Figures,
    /// Why the run failed; empty if it passed.
    pub failures: Vec<Failure>,
}

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The checker that found it, or the bound that was exceeded.
    pub checker: String,
    /// Milliseconds after the traffic's beginning; `None` for a bound and for a panic.
    pub at_ms: Option<i64>,
    /// What the checker found.
    pub what: String,
}

/// Carries out `plan`, reports its requests to `also`, and lists its failures. A panic counts as a failure.
pub fn run(plan: &Plan, expected: &Expected, also: &mut dyn Observer) -> Outcome {
    let mut measure = Measure::new(plan);
    // After a panic the world is not used any more, and observers only count.
    let world = || World::new(plan).run(&mut Both(&mut measure, also));
    let ran = catch_unwind(AssertUnwindSafe(world));
    let comparison = measure.comparison();
    let figures = match ran {
        Ok(figures) => figures,
        Err(panic) => {
            let message = panic.downcast_ref::<String>().cloned();
            let what = message.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
            let what = what.unwrap_or_else(|| "a panic without a message".to_owned());
            let failures = vec![Failure { checker: "panic".to_owned(), at_ms: None, what }];
            return Outcome { comparison, figures: Figures::default(), failures };
        }
    };
    let failures = judge(expected, &comparison, &figures);
    Outcome { comparison, figures, failures }
}

/// The failures of a run: the first violation of each checker, and each bound that was exceeded.
pub fn judge(expected: &Expected, comparison: &Comparison, figures: &Figures) -> Vec<Failure> {
    let mut failures: Vec<Failure> = Vec::new();
    for violation in &figures.violations {
        if failures.iter().all(|failure| failure.checker != violation.checker) {
            let (checker, what) = (violation.checker.to_owned(), violation.what.clone());
            failures.push(Failure { checker, at_ms: Some(violation.at_ms), what });
        }
    }
    for (name, got, most) in [
        ("over", comparison.over, expected.over),
        ("under", comparison.under(), expected.under),
        ("worst-window", comparison.worst_window, expected.worst_window),
        ("rows", figures.database_rows as f64, expected.rows),
    ] {
        if let Some(most) = most.filter(|most| got > *most) {
            let what = format!("{got:.4}; expected at most {most:.4}");
            failures.push(Failure { checker: name.to_owned(), at_ms: None, what });
        }
    }
    for (name, got, least) in [
        ("set-backs", figures.set_backs, expected.set_backs),
        ("unreached", figures.unreached, expected.unreached),
        ("overturned", figures.overturned, expected.overturned),
    ] {
        if let Some(least) = least.filter(|least| got < *least) {
            let what = format!("{got}; expected at least {least}");
            failures.push(Failure { checker: name.to_owned(), at_ms: None, what });
        }
    }
    failures
}

/// Forwards to two observers.
struct Both<'a>(&'a mut dyn Observer, &'a mut dyn Observer);

impl Observer for Both<'_> {
    fn arrived(&mut self, arrival: &Arrival) {
        self.0.arrived(arrival);
        self.1.arrived(arrival);
    }

    fn decided(&mut self, decided: &Decided) {
        self.0.decided(decided);
        self.1.decided(decided);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::figures::Violation;

    #[test]
    fn each_checker_fails_once_and_each_bound_is_checked() {
        let violation = |checker, at_ms| Violation { at_ms, checker, what: at_ms.to_string() };
        let violations = vec![violation("truth", 5), violation("wait", 6), violation("truth", 7)];
        let figures = Figures { violations, ..Figures::default() };
        let comparison = Comparison { over: 0.2, worst_window: 1.5, ..Comparison::default() };
        let failed = |expected: Expected| -> Vec<(String, Option<i64>)> {
            let failures = judge(&expected, &comparison, &figures);
            failures.into_iter().map(|failure| (failure.checker, failure.at_ms)).collect()
        };
        let always = vec![("truth".to_owned(), Some(5)), ("wait".to_owned(), Some(6))];
        assert_eq!(failed(Expected::default()), always);
        let met = Expected {
            over: Some(0.2),
            under: Some(0.0),
            worst_window: Some(1.5),
            rows: Some(0.0),
            set_backs: Some(0),
            unreached: Some(0),
            overturned: Some(0),
        };
        assert_eq!(failed(met), always);
        let not_met = Expected {
            over: Some(0.1),
            under: Some(0.0),
            worst_window: Some(1.0),
            rows: None,
            set_backs: Some(1),
            unreached: Some(1),
            overturned: Some(1),
        };
        let and = ["over", "worst-window", "set-backs", "unreached", "overturned"];
        let and = and.map(|name| (name.to_owned(), None));
        assert_eq!(failed(not_met), [always, and.to_vec()].concat());
    }
}
