//! The results of runs as text: a table, and the details of each failure.
//!
//! - `series`: a run over time, for plots.
//! - `trail`: the last events before a moment.

pub mod series;
pub mod trail;

use crate::measure::figures::Spread;
use crate::plan::Plan;
use crate::report::trail::Trail;
use crate::run::{Failure, Outcome};
use crate::scenarios::link;
use serde::Serialize;
use std::fmt::Write as _;

/// The address of the playground with the defaults of `./justw playground`.
const PLAYGROUND: &str = "http://127.0.0.1:7081/";

/// One row of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The scenario's name, or the path of the plan's file.
    pub scenario: String,
    /// The seed of the run.
    pub seed: u64,
    /// The run's result.
    #[serde(flatten)]
    pub outcome: Outcome,
}

impl Row {
    /// Whether the run has no failure.
    pub fn has_passed(&self) -> bool {
        self.outcome.failures.is_empty()
    }
}

const HEAD: [&str; 13] = [
    "scenario",
    "seed",
    "requests",
    "admitted",
    "beyond",
    "denied wrongly",
    "window",
    "over",
    "p50 ms",
    "p99 ms",
    "max ms",
    "messages",
    "store calls",
];

/// The table, with a sentence that explains its columns.
pub fn table(rows: &[Row]) -> String {
    let cells: Vec<Vec<String>> = rows.iter().map(cells).collect();
    let head: Vec<String> =
        HEAD.iter().map(|name| (*name).to_owned()).chain(["verdict".to_owned()]).collect();
    let lines = || std::iter::once(&head).chain(&cells);
    let widths: Vec<usize> = (0..head.len())
        .map(|column| {
            lines().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for line in lines() {
        let mut out = String::new();
        for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
            // Text is aligned to the left, numbers to the right.
            let is_text = column == 0 || column + 1 == head.len();
            let _ = if is_text { write!(out, "{cell:<width$}  ") } else { write!(out, "{cell:>width$}  ") };
        }
        let _ = writeln!(text, "{}", out.trim_end());
    }
    let failed = rows.iter().filter(|row| !row.has_passed()).count();
    let _ = writeln!(text, "{} runs, {failed} failed", rows.len());
    text.push_str(
        "beyond, denied wrongly: against an exact sliding log; window: most cost in any true window, as part of the limit;\n\
         over: most beyond the limit by the rule's own formula; ms: from a cell's last change until all parts received it\n",
    );
    text
}

fn cells(row: &Row) -> Vec<String> {
    let Outcome { comparison, figures, failures } = &row.outcome;
    let Spread { p50, p99, max, .. } = figures.convergence;
    let verdict = match failures.first() {
        None => "ok".to_owned(),
        Some(first) => format!("FAILED: {}", first.checker),
    };
    vec![
        row.scenario.clone(),
        row.seed.to_string(),
        comparison.requests.to_string(),
        comparison.admitted.to_string(),
        comparison.exact.beyond.to_string(),
        comparison.exact.wrongly_denied.to_string(),
        format!("{:.3}", comparison.worst_window),
        format!("{:.2} %", comparison.over * 100.0),
        p50.to_string(),
        p99.to_string(),
        max.to_string(),
        (figures.frames + figures.messages).to_string(),
        (figures.redis_commands + figures.database_statements).to_string(),
        verdict,
    ]
}

/// The details of a failure. `repeat` is the arguments of `./justw simulate` that repeat it, `fragment` is its link
/// in the playground.
pub fn failure(row: &Row, repeat: &str, fragment: &str) -> String {
    let mut text = format!("{} with seed {} failed:\n", row.scenario, row.seed);
    for Failure { checker, at_ms, what } in &row.outcome.failures {
        let at = at_ms.map_or(String::new(), |ms| format!(" at {ms} ms"));
        let _ = writeln!(text, "  {checker}{at}: {what}");
    }
    let _ = writeln!(text, "  repeat the run: ./justw simulate {repeat}");
    append_link(&mut text, fragment);
    text
}

/// Appends the playground's address of the run, unless it is too long.
fn append_link(text: &mut String, fragment: &str) {
    if fragment.len() <= link::LONGEST {
        let _ = writeln!(text, "  show the run: start ./justw playground and open {PLAYGROUND}#{fragment}");
    }
}

/// A shrunk failing plan, with the last events before the failure.
pub fn shrunk(plan: &Plan, runs: usize, failure: &Failure, trail: &Trail, repeat: &str) -> String {
    let at = failure.at_ms.map_or(String::new(), |ms| format!(" at {ms} ms"));
    let mut text = format!("  shrunk in {runs} runs, fails{at}: {}\n", failure.what);
    for event in trail.events() {
        let _ = writeln!(text, "    {event}");
    }
    let json = serde_json::to_string(plan).unwrap_or_else(|error| error.to_string());
    let _ = writeln!(text, "  {json}\n  repeat the shrunk run: ./justw simulate {repeat}");
    append_link(&mut text, &link::of_plan(plan));
    text
}

/// The identifier that a failure concerns, if its text names one.
pub fn identifier(failure: &Failure) -> Option<u64> {
    let after = failure.what.split("identifier: ").nth(1)?;
    after.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed() -> Row {
        let what = "Envoy 1 holds 3 of CellId { rule: 0, identifier: 17, sequence: 5 } after 4".to_owned();
        let failures = vec![Failure { checker: "falls".to_owned(), at_ms: Some(1_234), what }];
        Row { scenario: "random".to_owned(), seed: 7, outcome: Outcome { failures, ..Outcome::default() } }
    }

    #[test]
    fn the_table_has_a_line_for_each_run_and_aligned_columns() {
        let passed = Row { scenario: "one-envoy".to_owned(), seed: 123_456, outcome: Outcome::default() };
        let text = table(&[passed, failed()]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 6, "{text}");
        for (line, verdict) in [(lines[0], "verdict"), (lines[1], "ok"), (lines[2], "FAILED: falls")] {
            assert_eq!(line.find(verdict), lines[0].find("verdict"), "{text}");
        }
        assert_eq!(lines[3], "2 runs, 1 failed");
        assert!(lines[1].contains("0.00 %"));
    }

    #[test]
    fn a_failure_has_its_time_its_key_and_the_command_to_repeat_it() {
        let row = failed();
        let text = failure(&row, "--scenario random --seed 7", "scenario=random&seed=7");
        assert!(text.starts_with("random with seed 7 failed:\n  falls at 1234 ms: Envoy 1 holds"), "{text}");
        assert!(text.contains("./justw simulate --scenario random --seed 7\n"), "{text}");
        assert!(text.ends_with("http://127.0.0.1:7081/#scenario=random&seed=7\n"), "{text}");
        let long = failure(&row, "--plan p.json", &"x".repeat(link::LONGEST + 1));
        assert!(long.ends_with("./justw simulate --plan p.json\n"), "{long}");
        assert_eq!(identifier(&row.outcome.failures[0]), Some(17));
        let without_identifier =
            Failure { what: "a request waited".to_owned(), ..row.outcome.failures[0].clone() };
        assert_eq!(identifier(&without_identifier), None);
    }
}
