//! Tests that each statement of `SECURITY.md` about hostile parts is shown by tests that exist, which `security.txt` names, and that its
//! bounds are those of the code.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use weir_aggregator::api::rls::xds::{MAX_MESSAGES, MAX_RESPONSE_BYTES};
use weir_core::region::nodes::MAX_NODES_OF_PEER;
use weir_core::region::{MOST_A_SECOND, SHORTEST_PUBLISHED_MS};
use weir_core::rules::MAX_SPLIT_RULES;

/// The tests of each statement.
const TESTS: &str = include_str!("security.txt");
/// The folders of the tests that are named by file, at any depth.
const FOLDERS: [&str; 3] = ["aggregator/tests", "core/tests", "envoy/tests/it/scenarios"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Whether a file of this name has a test, or a server's scenario, of this name.
fn exists(file: &str, test: &str) -> bool {
    let sources = FOLDERS.iter().flat_map(|folder| sources_of(file, &root().join(folder)));
    sources.into_iter().any(|source| source.contains(&format!("fn {test}(")))
}

fn sources_of(file: &str, folder: &Path) -> Vec<String> {
    let mut sources: Vec<_> = std::fs::read_to_string(folder.join(file)).into_iter().collect();
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            sources.extend(sources_of(file, &entry.path()));
        }
    }
    sources
}

fn page() -> String {
    std::fs::read_to_string(root().join("SECURITY.md")).unwrap()
}

/// A text without its line ends.
fn joined(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The statements of the sections about hostile parts, by section.
fn statements() -> Vec<(String, String)> {
    let page = page();
    let (_, parts) = page.split_once("\n## Trust boundaries\n").unwrap();
    let sections = parts.split("\n### ").skip(1).filter_map(|section| section.split_once('\n'));
    let items = sections.flat_map(|(heading, text)| {
        let items = text.split("\n- ").skip(1);
        items.map(|item| (heading.to_owned(), joined(item.split("\n\n").next().unwrap_or_default())))
    });
    items.collect()
}

/// The beginnings of statements in `security.txt`, by section, and the tests of each.
fn listed() -> BTreeMap<(&'static str, &'static str), Vec<&'static str>> {
    let (mut listed, mut section, mut statement) = (BTreeMap::new(), "", "");
    for line in TESTS.lines().filter(|line| !line.is_empty()) {
        match (line.strip_prefix("## "), line.strip_prefix("  ")) {
            (Some(heading), _) => section = heading,
            (None, Some(test)) => listed.entry((section, statement)).or_insert_with(Vec::new).push(test),
            (None, None) => statement = line,
        }
    }
    listed
}

#[test]
fn each_statement_is_shown_by_tests_that_exist() {
    let (statements, listed) = (statements(), listed());
    let begins = |(section, text): &(String, String), (heading, beginning): &(&str, &str)| {
        section == heading && text.starts_with(beginning)
    };
    for statement in &statements {
        let named = listed.keys().filter(|listed| begins(statement, listed)).count();
        assert_eq!(named, 1, "tests of {statement:?}");
    }
    for (beginning, tests) in &listed {
        let of_page = statements.iter().filter(|statement| begins(statement, beginning)).count();
        assert_eq!(of_page, 1, "statements that begin with {beginning:?}");
        for (file, test) in tests.iter().map(|test| test.split_once("::").unwrap()) {
            assert!(exists(file, test), "there is no {file}::{test}");
        }
    }
    assert!(statements.len() > 40, "{} statements were found", statements.len());
}

#[test]
fn its_bounds_are_those_of_the_code() {
    let page = joined(&page());
    assert_eq!((MOST_A_SECOND, MAX_MESSAGES), (1 << 40, 200_000));
    for bound in [
        format!("beyond {MAX_SPLIT_RULES} rules"),
        format!("{MAX_NODES_OF_PEER} of one address"),
        "2⁴⁰".to_owned(),
        format!("{} MiB", MAX_RESPONSE_BYTES >> 20),
        "200 000 nested messages".to_owned(),
        format!("windows from {} s", SHORTEST_PUBLISHED_MS / 1_000),
    ] {
        assert!(page.contains(&bound), "the page states another bound than {bound:?}");
    }
}
