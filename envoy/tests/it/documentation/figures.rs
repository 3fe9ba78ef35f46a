//! A measured figure stands in one place: the README's are those of the pages that they link to, and tables of these pages are those
//! of the runs that made them.

use std::path::Path;

use serde_json::Value;

use super::{joined, links, read, slug};

/// Begins the README's table of figures.
const FIGURES: &str = "| measured | figure | where |";
/// What `just bench-aggregator --results` has written.
const RESULTS: &str = "envoy/tools/bench/results.json";

/// The numbers in a text: `33 900`, `0.19`.
fn numbers(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let chars: Vec<char> = text.chars().collect();
    let digit = |place: usize| chars.get(place).is_some_and(char::is_ascii_digit);
    let mut place = 0;
    while place < chars.len() {
        let mut number = String::new();
        while digit(place) {
            number.push(chars[place]);
            place += 1;
            // A blank or a point belongs to it if it is followed by three digits, or by some.
            let group = chars.get(place) == Some(&' ')
                && (1..=3).all(|next| digit(place + next))
                && !digit(place + 4);
            let point = chars.get(place) == Some(&'.') && digit(place + 1);
            if point {
                number.push('.');
            }
            place += usize::from(group || point);
        }
        if number.is_empty() {
            place += 1;
        } else {
            found.push(number);
        }
    }
    found
}

/// The text below a heading, up to the next heading of its level or a higher one.
fn section(page: &str, anchor: &str) -> String {
    let level = |line: &str| line.len() - line.trim_start_matches('#').len();
    let mut lines = page
        .lines()
        .skip_while(|line| !line.starts_with('#') || slug(line.trim_start_matches('#')) != anchor);
    let heading = lines.next().unwrap_or_else(|| panic!("there is no section {anchor}"));
    let ends = |line: &&str| !line.starts_with('#') || level(line) > level(heading);
    lines.take_while(ends).collect::<Vec<_>>().join("\n")
}

#[test]
fn numbers_are_those_of_tables() {
    assert_eq!(
        numbers("33 900; 0.19 ms, 2 of 3. 10 000 000 at 99 %"),
        ["33900", "0.19", "2", "3", "10000000", "99"]
    );
    assert_eq!(numbers("| 1 | 1 060 | 59 |"), ["1", "1060", "59"]);
    assert_eq!(section("# A\n## B c\n1\n### D\n2\n## E\n3", "b-c"), "1\n### D\n2");
}

#[test]
fn figures_of_the_readme_are_those_of_their_pages() {
    let readme = read(Path::new("README.md"));
    let (_, table) = readme.split_once(FIGURES).expect("a table of figures");
    let mut checked = 0;
    for row in table.lines().skip(2).take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.split(" | ").collect();
        let [_, figures, place] = cells[..] else { panic!("three columns: {row}") };
        let link = &links(place)[0];
        let (page, anchor) = link.split_once('#').expect("a section");
        let measured = numbers(&section(&read(&joined(Path::new("README.md"), page)), anchor));
        for figure in numbers(figures) {
            checked += 1;
            assert!(measured.contains(&figure), "{figure} of the README is not in {link}");
        }
    }
    assert!(checked > 10, "{checked} figures");
}

/// The cells of a line of a table.
fn cells(line: &str) -> Vec<String> {
    line.trim().trim_matches('|').split('|').map(|cell| cell.trim().replace('*', "")).collect()
}

/// The cell of a row and a column of results, of which either may be the row there.
fn result<'a>(table: &'a Value, row: &str, column: &str) -> Option<&'a str> {
    let at = |row: &str, column: &str| {
        let place = table["columns"].as_array()?.iter().position(|name| name == column)?;
        table["rows"][row].get(place)?.as_str()
    };
    at(row, column).or_else(|| at(column, row))
}

#[test]
fn tables_are_those_of_the_runs() {
    let page = read(Path::new("envoy/BENCHMARKS.md"));
    let results: Value = serde_json::from_str(&read(Path::new(RESULTS))).unwrap();
    let mut rows = 0;
    let tables: Vec<(&str, &str)> = page
        .split("<!-- results: ")
        .skip(1)
        .map(|marked| marked.split_once(" -->\n\n").expect("a table below each marker"))
        .collect();
    for title in results.as_object().unwrap().keys() {
        assert!(tables.iter().any(|(shown, _)| shown == title), "the page has no table {title}");
    }
    for (title, shown) in tables {
        let table = results.get(title).unwrap_or_else(|| panic!("no run has a table {title}"));
        let mut lines = shown.lines().take_while(|line| line.starts_with('|')).map(cells);
        let header = lines.next().unwrap();
        for row in lines.skip(1) {
            for (column, cell) in header.iter().zip(&row).skip(1) {
                let expected = result(table, &row[0], column);
                assert_eq!(expected, Some(&**cell), "{title}: {}, {column}", row[0]);
            }
            rows += 1;
        }
    }
    assert!(rows > 2, "{rows} rows");
}

/// One combination of `examples/simulator/accuracy.txt`: its shares in per cent.
struct Measured {
    place: String,
    limit: u64,
    window_s: u64,
    load: f64,
    more: f64,
    less: f64,
    over: f64,
    bound: f64,
}

fn measured() -> Vec<Measured> {
    let text = read(Path::new("examples/simulator/accuracy.txt"));
    let rows = text
        .lines()
        .filter(|line| line.starts_with("| ") && line.contains(" × ") && !line.contains("regions"));
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [place, limit, window, load, more, less, _, over, bound] = cells[..] else { panic!("{line}") };
        let share = |cell: &str| cell.trim_end_matches(" %").parse().unwrap();
        Measured {
            place: place.to_owned(),
            limit: limit.parse().unwrap(),
            window_s: window.trim_end_matches(" s").parse().unwrap(),
            load: load.parse().unwrap(),
            more: share(more),
            less: share(less),
            over: share(over),
            bound: share(bound),
        }
    };
    rows.map(row).collect()
}

/// Whether a combination belongs to a row of the page, by the row's title.
fn belongs(title: &str, cell: &Measured) -> bool {
    let (place, conditions) = title.split_once(',').unwrap_or((title, ""));
    let window = match conditions {
        _ if conditions.contains("windows from 60 s") => cell.window_s >= 60,
        _ if conditions.contains("windows of 10 s") => cell.window_s == 10,
        _ if conditions.contains("windows below 10 s") => cell.window_s < 10,
        _ => true,
    };
    cell.place == place && window && (!conditions.contains("limits from 50") || cell.limit >= 50)
}

/// The median and the largest.
fn spread(cells: &[&Measured], of: fn(&Measured) -> f64) -> String {
    let mut values: Vec<f64> = cells.iter().map(|cell| of(cell)).collect();
    values.sort_by(f64::total_cmp);
    format!("{:.2} %, {:.2} %", values[values.len() / 2], values[values.len() - 1])
}

#[test]
fn tables_of_accuracy_are_those_of_the_simulator() {
    let (page, all) = (read(Path::new("examples/simulator/ACCURACY.md")), measured());
    let mut rows = 0;
    for row in page
        .lines()
        .filter(|line| line.starts_with("| ") && line.contains(" × 1") || line.starts_with("| 1 × "))
    {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [title, more, _, less, over, ..] = cells[..] else { panic!("{row}") };
        let group: Vec<&Measured> = all.iter().filter(|cell| belongs(title, cell)).collect();
        assert_eq!(
            (more, over),
            (&*spread(&group, |cell| cell.more), &*spread(&group, |cell| cell.over)),
            "{row}"
        );
        assert!(spread(&group, |cell| cell.less).ends_with(&format!(", {less}")), "{row}");
        rows += 1;
    }
    assert_eq!(rows, 9);
    let (_, of_regions) = page.split_once("| regions, window |").unwrap();
    let mut shown = 0;
    for row in of_regions.lines().skip(2).take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let (regions, window) = cells[0].split_once(", ").unwrap();
        for (cell, load) in cells[1..].iter().zip([1.0, 1.5, 2.0, 10.0]) {
            let is_it = |cell: &&Measured| {
                cell.place == format!("{regions} × 1")
                    && (cell.limit, cell.load) == (10_000, load)
                    && window == format!("{} s", cell.window_s)
            };
            let found = all.iter().find(is_it).unwrap();
            assert_eq!(*cell, format!("{:.1} of {:.1}", found.over, found.bound), "{row}");
            shown += 1;
        }
    }
    assert_eq!(shown, 24);
}
