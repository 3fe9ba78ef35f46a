//! One run of a plan: carried out, compared and judged.
//!
//! Leaves to others: what happens (`world`), what a scenario expects (`scenarios`), printing (`report`).

pub mod shrink;

use crate::measure::figures::Figures;
use crate::measure::observe::{Decided, Observer};
use crate::measure::{Comparison, Measure};
use crate::plan::Plan;
use crate::plan::traffic::Arrival;
use crate::world::World;
use serde::Serialize;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a run may come to. What is not said is not judged; a violation always fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Expected {
    /// [`Comparison::over`] at the most.
    pub over: Option<f64>,
    /// [`Comparison::under`] at the most.
    pub under: Option<f64>,
    /// [`Comparison::worst_window`] at the most.
    pub worst_window: Option<f64>,
}

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// Beside other judges.
    pub comparison: Comparison,
    /// What was sent, and what must not have been.
    pub figures: Figures,
    /// Why it failed; empty if it did not.
    pub failures: Vec<Failure>,
}

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The checker, or the expectation.
    pub checker: String,
    /// Milliseconds since the traffic began; of an expectation, none.
    pub at_ms: Option<i64>,
    /// What was seen.
    pub what: String,
}

/// Carries out `plan`, tells `also` what happens, and judges what came of it. A panic is a failure like any other.
pub fn run(plan: &Plan, expected: &Expected, also: &mut dyn Observer) -> Outcome {
    let mut measure = Measure::new(plan);
    // Nothing of the world is looked at after a panic, and observers only count.
    let world = || World::new(plan).run(&mut Both(&mut measure, also));
    let ran = catch_unwind(AssertUnwindSafe(world));
    let comparison = measure.comparison();
    let figures = match ran {
        Ok(figures) => figures,
        Err(panic) => {
            let said = panic.downcast_ref::<String>().cloned();
            let what = said.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
            let what = what.unwrap_or_else(|| "a panic without words".to_owned());
            let failures = vec![Failure { checker: "panic".to_owned(), at_ms: None, what }];
            return Outcome { comparison, figures: Figures::default(), failures };
        }
    };
    let failures = judge(expected, &comparison, &figures);
    Outcome { comparison, figures, failures }
}

/// Why a run failed: each checker's first violation, and each expectation that was not met.
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
    ] {
        if let Some(most) = most.filter(|most| got > *most) {
            let what = format!("{got:.4} where {most:.4} is expected at the most");
            failures.push(Failure { checker: name.to_owned(), at_ms: None, what });
        }
    }
    failures
}

/// Tells two observers.
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
    fn each_checker_fails_once_and_each_expectation_is_held() {
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
        let met = Expected { over: Some(0.2), under: Some(0.0), worst_window: Some(1.5) };
        assert_eq!(failed(met), always);
        let not_met = Expected { over: Some(0.1), under: Some(0.0), worst_window: Some(1.0) };
        let and = [("over".to_owned(), None), ("worst-window".to_owned(), None)];
        assert_eq!(failed(not_met), [always, and.to_vec()].concat());
    }
}
