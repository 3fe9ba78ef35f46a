//! Every input that the fuzzer found worth keeping, on the stable compiler: none may panic or break a promise.

use std::fs;
use std::path::{Path, PathBuf};
use weir_fuzz::TARGETS;

/// What `just fuzz --keep` leaves of a corpus, and a little that was written by hand.
const MAX_INPUTS: usize = 110;
const MAX_BYTES: usize = 220 * 1024;
const MAX_BYTES_OF_ALL: usize = 2 * 1024 * 1024;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn every_kept_input_is_taken() {
    let mut bytes_of_all = 0;
    for (name, target) in TARGETS {
        let mut bytes = 0;
        let corpus = folder("corpus").join(name);
        let inputs = names_in(&corpus);
        assert!((3..=MAX_INPUTS).contains(&inputs.len()), "{name} has {} inputs", inputs.len());
        for input in inputs {
            // Shown if the target panics.
            println!("{name}: {input}");
            let input = fs::read(corpus.join(input)).unwrap();
            bytes += input.len();
            target(&input);
        }
        assert!(bytes <= MAX_BYTES, "the corpus of {name} has {bytes} bytes");
        bytes_of_all += bytes;
    }
    assert!(bytes_of_all <= MAX_BYTES_OF_ALL, "all corpora have {bytes_of_all} bytes");
}

#[test]
fn each_target_has_a_corpus_and_a_program_and_nothing_is_left_over() {
    let mut known: Vec<_> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    known.sort();
    assert_eq!(names_in(&folder("corpus")), known);
    let programs: Vec<_> = known.iter().map(|name| format!("{name}.rs")).collect();
    assert_eq!(names_in(&folder("targets")), programs);
    let manifest = fs::read_to_string(folder("Cargo.toml")).unwrap();
    for (name, _) in TARGETS {
        assert!(manifest.contains(&format!("path = \"targets/{name}.rs\"")), "{name} is not in Cargo.toml");
    }
}
