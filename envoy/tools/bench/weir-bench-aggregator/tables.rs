//! The tables: one for each measurement, medians over rounds.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::case::Case;
use crate::median::median;
use crate::results::{Table, cell};
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
        self.results().iter().map(Table::markdown).collect::<Vec<_>>().join("\n")
    }

    /// As the file of results has them.
    pub fn results(&self) -> Vec<Table> {
        let mut tables: Vec<Table> = Vec::new();
        for (case, rounds) in &self.0 {
            let measurement = case.measurement();
            let row = (case.title(), medians(*case, rounds));
            match tables.last_mut().filter(|table| table.title == measurement.title()) {
                Some(table) => table.rows.push(row),
                None => tables.push(Table {
                    title: measurement.title().to_owned(),
                    columns: measurement.columns().iter().map(|column| (*column).to_owned()).collect(),
                    rows: vec![row],
                }),
            }
        }
        tables
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Measurement;

    #[test]
    fn each_measurement_has_a_table_of_medians() {
        let mut tables = Tables::default();
        for (round, own) in [(1.0, 10.0), (2.0, 20.0), (6.0, 60.0)] {
            tables.add(Case::Scan(240_000), vec![round, own, f64::NAN, 0.0, 0.0, 1_234.5]);
        }
        tables.add(Case::Push, vec![1.0; 6]);
        let text = tables.markdown();
        assert!(text.contains("| 240000 cells | 2.00 | 20.0 | – | 0.00 | 0.00 | 1 230 |"), "{text}");
        assert_eq!(text.matches("|---|").count(), 2, "{text}");
        let noise = tables.noise();
        assert!(noise.contains("240000 cells") && !noise.contains("aggregators"), "{noise}");
    }

    #[test]
    fn results_are_by_measurement() {
        let mut tables = Tables::default();
        tables.add(Case::Scan(240_000), vec![1.0; 6]);
        tables.add(Case::Scan(5_000_000), vec![2.0; 6]);
        tables.add(Case::Push, vec![1.0; 6]);
        let results = tables.results();
        let titles: Vec<_> = results.iter().map(|table| (table.title.as_str(), table.rows.len())).collect();
        assert_eq!(titles, [(Measurement::Push.title(), 1), (Measurement::Scan.title(), 2)]);
        assert_eq!(results[1].rows[0], ("240000 cells".to_owned(), vec!["1.00".to_owned(); 6]));
        assert_eq!(results[1].columns[0], "10 % due, ms");
    }
}
