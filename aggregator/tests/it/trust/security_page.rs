//! Tests that each row of the attacker tables in `SECURITY.md` names a test that exists, and that its bounds are those of the code.

use std::path::{Path, PathBuf};
use weir_aggregator::api::rls::xds::{MAX_MESSAGES, MAX_RESPONSE_BYTES};
use weir_core::region::nodes::MAX_NODES_OF_PEER;
use weir_core::region::{MOST_A_SECOND, SHORTEST_PUBLISHED_MS};
use weir_core::rules::MAX_SPLIT_RULES;

/// The folders of the tests that the page names by file, at any depth.
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

#[test]
fn each_row_names_a_test_that_exists() {
    let page = std::fs::read_to_string(root().join("SECURITY.md")).unwrap();
    let mut rows = 0;
    let mut shown_by = false;
    for line in page.lines() {
        shown_by = line.starts_with('|') && (shown_by || line.ends_with("| shown by |"));
        if !shown_by || line.ends_with("| shown by |") || line.starts_with("|---") {
            continue;
        }
        rows += 1;
        let named: Vec<_> = line.split('`').filter_map(|text| text.split_once("::")).collect();
        assert!(!named.is_empty(), "no test in {line}");
        for (file, test) in named {
            assert!(exists(file, test), "there is no {file}::{test}");
        }
    }
    assert!(rows > 25, "{rows} rows were found");
}

#[test]
fn its_bounds_are_those_of_the_code() {
    let page = std::fs::read_to_string(root().join("SECURITY.md")).unwrap();
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
