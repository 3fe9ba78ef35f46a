//! The tables: one for each measurement, medians over rounds.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::Result;
use serde_json::{Map, Value, json};

use crate::case::{Case, Measurement};
use crate::median::median;
use crate::stats::spread_percent;

/// The results of each case, by round.
#[derive(Default)]
pub struct Tables(BTreeMap<Case, Vec<Vec<f64>>>);

impl Tables {
    /// Notes one round of a case.
    pub fn add(&mut self, case: Case, values: Vec<f64>) {
        self.0.entry(case).or_default().push(values);
    }

    /// All tables.
    pub fn markdown(&self) -> String {
        let mut text = String::new();
        let mut under: Option<Measurement> = None;
        for (case, rounds) in &self.0 {
            let measurement = case.measurement();
            let columns = measurement.columns();
            if under.replace(measurement) != Some(measurement) {
                // Writing into a string has no error.
                let _ = write!(text, "\n{}\n\n| | {} |", measurement.title(), columns.join(" | "));
                let _ = writeln!(text, "\n|---|{}", "--:|".repeat(columns.len()));
            }
            let _ = writeln!(text, "| {} | {} |", case.title(), medians(*case, rounds).join(" | "));
        }
        text
    }

    /// A file of results, of which `before` is the content so far, with these tables in place of those of the same measurements: by
    /// title the columns, and by case the cells.
    pub fn results(&self, before: &str) -> Result<String> {
        let mut results: Map<String, Value> = serde_json::from_str(before)?;
        for case in self.0.keys() {
            results.remove(case.measurement().title());
        }
        for (case, rounds) in &self.0 {
            let measurement = case.measurement();
            let table = results
                .entry(measurement.title())
                .or_insert_with(|| json!({ "columns": measurement.columns(), "rows": {} }));
            table["rows"][case.title()] = json!(medians(*case, rounds));
        }
        Ok(format!("{:#}\n", Value::from(results)))
    }

    /// How much the rounds of a case differ, which shows how quiet the machine was.
    pub fn noise(&self) -> String {
        let mut text = String::new();
        for (case, rounds) in self.0.iter().filter(|(_, rounds)| rounds.len() > 1) {
            let column =
                |place: usize| rounds.iter().filter_map(|values| values.get(place).copied()).collect();
            let spreads = (0..case.measurement().columns().len()).map(|place| {
                let values: Vec<f64> = column(place);
                spread_percent(&values)
            });
            let middle = median(spreads.filter(|spread| spread.is_finite()));
            let _ = writeln!(text, "{:5.0} %  {}: {}", middle, case.measurement().title(), case.title());
        }
        if text.is_empty() {
            text
        } else {
            format!("Rounds lay this far apart (median over columns):\n{text}")
        }
    }
}

/// The cells of a case: medians over its rounds.
fn medians(case: Case, rounds: &[Vec<f64>]) -> Vec<String> {
    let column = |place: usize| rounds.iter().filter_map(move |values| values.get(place).copied());
    (0..case.measurement().columns().len()).map(|place| cell(median(column(place)))).collect()
}

fn cell(value: f64) -> String {
    match value {
        value if value.is_nan() => "–".to_owned(),
        value if value.abs() >= 100.0 => format!("{value:.0}"),
        value if value.abs() >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_measurement_has_a_table_of_medians() {
        let mut tables = Tables::default();
        for (round, own) in [(1.0, 10.0), (2.0, 20.0), (6.0, 60.0)] {
            tables.add(Case::Scan(240_000), vec![round, own, f64::NAN, 0.0, 0.0, 1_234.5]);
        }
        tables.add(Case::Push, vec![1.0; 6]);
        let text = tables.markdown();
        assert!(text.contains("| 240000 cells | 2.00 | 20.0 | – | 0.00 | 0.00 | 1234 |"), "{text}");
        assert_eq!(text.matches("|---|").count(), 2, "{text}");
        let noise = tables.noise();
        assert!(noise.contains("240000 cells") && !noise.contains("aggregators"), "{noise}");
    }

    #[test]
    fn results_replace_those_of_their_measurement_alone() {
        let mut tables = Tables::default();
        tables.add(Case::Scan(240_000), vec![1.0; 6]);
        let push = Measurement::Push.title();
        let before =
            json!({ Measurement::Scan.title(): { "columns": [], "rows": { "7 cells": ["1"] } }, push: 3 });
        let results: Value = serde_json::from_str(&tables.results(&before.to_string()).unwrap()).unwrap();
        assert_eq!(results[push], 3);
        let table = &results[Measurement::Scan.title()];
        assert_eq!(
            table["rows"],
            json!({ "240000 cells": ["1.00", "1.00", "1.00", "1.00", "1.00", "1.00"] })
        );
        assert_eq!(table["columns"][0], "10 % due, ms");
    }
}
