//! The tables: one for each measurement, medians over rounds.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::median::median;
use crate::stats::spread_percent;
use crate::{Case, Measurement};

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
            let column = |place: usize| rounds.iter().filter_map(move |values| values.get(place).copied());
            let medians = (0..columns.len()).map(|place| cell(median(column(place))));
            let _ = writeln!(text, "| {} | {} |", case.title(), medians.collect::<Vec<_>>().join(" | "));
        }
        text
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
}
