//! Each target takes each of its inputs in `corpus/`, without a fuzzer: none may panic or break a promise.

use std::fs;
use std::path::{Path, PathBuf};
use weir_fuzz::TARGETS;

/// Few enough to be read; a fuzzer finds the rest from them.
const MAX_INPUTS: usize = 10;
const MAX_INPUT_BYTES: usize = 8 * 1024;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn every_kept_input_is_taken() {
    for (name, target) in TARGETS {
        let folder = corpus().join(name);
        let inputs = names_in(&folder);
        assert!((3..=MAX_INPUTS).contains(&inputs.len()), "{name} has {} inputs", inputs.len());
        for input in inputs {
            // Shown if the target panics.
            println!("{name}: {input}");
            let bytes = fs::read(folder.join(input)).unwrap();
            assert!(bytes.len() <= MAX_INPUT_BYTES, "it has {} bytes", bytes.len());
            target(&bytes);
        }
    }
}

#[test]
fn each_target_has_a_corpus_and_nothing_is_left_over() {
    let mut known: Vec<_> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    known.sort();
    let crates = names_in(&corpus()).into_iter();
    let found: Vec<_> = crates
        .flat_map(|of| names_in(&corpus().join(&of)).into_iter().map(move |name| format!("{of}/{name}")))
        .collect();
    assert_eq!(found, known);
}
