//! The file of results, against which a test holds the pages that quote them.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

/// A table: its title, its columns but the first, and the cells of each row.
#[derive(Clone, Debug)]
pub struct Table {
    pub title: String,
    pub columns: Vec<String>,
    pub rows: Vec<(String, Vec<String>)>,
}

impl Table {
    /// As a page shows it.
    pub fn markdown(&self) -> String {
        let line = |first: &str, cells: &[String]| format!("| {first} | {} |\n", cells.join(" | "));
        let head = line(&self.title, &self.columns) + "|---|" + &"--:|".repeat(self.columns.len()) + "\n";
        head + &self.rows.iter().map(|(row, cells)| line(row, cells)).collect::<String>()
    }
}

/// Writes tables into a file in place of those of the same titles.
pub fn write(file: &Path, tables: &[Table]) -> Result<()> {
    let replace = || -> Result<()> {
        let before = if file.exists() { std::fs::read_to_string(file)? } else { "{}".to_owned() };
        Ok(std::fs::write(file, replaced(&before, tables)?)?)
    };
    replace().with_context(|| format!("writing {}", file.display()))
}

/// The content of a file, of which `before` is the content so far: by title the columns, and by row the cells.
fn replaced(before: &str, tables: &[Table]) -> Result<String> {
    let mut results: Map<String, Value> = serde_json::from_str(before)?;
    for table in tables {
        let rows: Map<String, Value> =
            table.rows.iter().map(|(row, cells)| (row.clone(), json!(cells))).collect();
        results.insert(table.title.clone(), json!({ "columns": table.columns, "rows": rows }));
    }
    Ok(format!("{:#}\n", Value::from(results)))
}

/// A figure with three digits or two decimals, in groups of three digits.
pub fn cell(value: f64) -> String {
    match value {
        value if value.is_nan() => "–".to_owned(),
        value if value.abs() < 10.0 => format!("{value:.2}"),
        value if value.abs() < 100.0 => format!("{value:.1}"),
        value => grouped(value),
    }
}

fn grouped(value: f64) -> String {
    let unit = 10_f64.powf((value.abs().log10().floor() - 2.0).max(0.0));
    let digits = format!("{:.0}", (value / unit).round() * unit);
    let place = |index: usize| digits.len() - index;
    let separated = digits.char_indices().map(|(index, digit)| match index > 0 && place(index) % 3 == 0 {
        true => format!(" {digit}"),
        false => digit.to_string(),
    });
    separated.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_its_title_above_its_rows() {
        let rows = vec![("a".to_owned(), vec!["1".to_owned(), "2".to_owned()])];
        let columns = vec!["x".to_owned(), "y".to_owned()];
        let text = Table { title: "t".to_owned(), columns, rows }.markdown();
        assert_eq!(text, "| t | x | y |\n|---|--:|--:|\n| a | 1 | 2 |\n");
    }

    #[test]
    fn figures_have_three_digits() {
        for (value, expected) in [
            (f64::NAN, "–"),
            (0.0, "0.00"),
            (1.234, "1.23"),
            (12.34, "12.3"),
            (123.4, "123"),
            (1_234.0, "1 230"),
            (33_912.0, "33 900"),
            (3_437_000.0, "3 440 000"),
            (60_000.0, "60 000"),
        ] {
            assert_eq!(cell(value), expected);
        }
    }

    #[test]
    fn results_replace_those_of_their_title_alone() {
        let table = |cell: &str| Table {
            title: "one".to_owned(),
            columns: vec!["ms".to_owned()],
            rows: vec![("a".to_owned(), vec![cell.to_owned()])],
        };
        let before = json!({ "one": { "columns": [], "rows": { "b": ["1"] } }, "two": 3 }).to_string();
        let results: Value = serde_json::from_str(&replaced(&before, &[table("5")]).unwrap()).unwrap();
        assert_eq!(results, json!({ "one": { "columns": ["ms"], "rows": { "a": ["5"] } }, "two": 3 }));
        let file = tempfile::NamedTempFile::new().unwrap();
        let file = file.path().with_extension("json");
        write(&file, &[table("5")]).unwrap();
        write(&file, &[table("6")]).unwrap();
        assert!(std::fs::read_to_string(&file).unwrap().contains("\"6\""));
        std::fs::remove_file(file).unwrap();
    }
}
