//! The program's output and exit codes.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn simulate(directory: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weir-simulate")).current_dir(directory).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A separate directory for each test.
fn directory(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

#[test]
fn scenarios_are_listed_with_descriptions() {
    let listed = text(&simulate(&directory("list"), &["--list"]).stdout);
    assert!(listed.lines().count() > 30, "{listed}");
    assert!(listed.lines().any(|line| line.starts_with("skew-2s ")), "{listed}");
    assert!(listed.lines().all(|line| line.split_whitespace().count() > 3), "{listed}");
}

#[test]
fn the_seed_is_printed_first_and_determines_every_byte() {
    let directory = directory("seed");
    let run = || simulate(&directory, &["--scenario", "one-envoy", "--seed", "4", "--runs", "2", "--json"]);
    let (first, second) = (run(), run());
    assert_eq!(first, second);
    assert_eq!(first.status.code(), Some(0), "{}", text(&first.stderr));
    let lines: Vec<String> = text(&first.stdout).lines().map(str::to_owned).collect();
    assert_eq!((lines.len(), lines[0].as_str()), (3, "seed 4"));
    for (line, seed) in lines[1..].iter().zip([4, 5]) {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!((&row["scenario"], &row["seed"]), (&"one-envoy".into(), &seed.into()));
        assert!(row["comparison"]["requests"].as_u64() > Some(1_000), "{line}");
    }
    let table = text(&simulate(&directory, &["--scenario", "one-envoy", "--seed", "4"]).stdout);
    assert!(table.contains("\n1 runs, 0 failed\n"), "{table}");
}

#[test]
fn a_plan_and_a_trace_can_be_written_and_repeated() {
    let directory = directory("files");
    let shown = text(&simulate(&directory, &["--scenario", "one-envoy", "--seed", "4", "--show"]).stdout);
    let plan = shown.strip_prefix("seed 4\n").unwrap();
    std::fs::write(directory.join("plan.json"), plan).unwrap();
    let recorded = simulate(&directory, &["--plan", "plan.json", "--record", "trace.txt"]);
    assert_eq!(recorded.status.code(), Some(0), "{}", text(&recorded.stderr));
    let row = |args: &[&str]| -> serde_json::Value {
        let lines = text(&simulate(&directory, args).stdout);
        serde_json::from_str(lines.lines().nth(1).unwrap()).unwrap()
    };
    let by_plan = row(&["--plan", "plan.json", "--json"]);
    let by_trace = row(&["--plan", "plan.json", "--trace", "trace.txt", "--json"]);
    assert_eq!(by_plan, by_trace, "the same arrivals give the same result");
}

#[test]
fn invalid_arguments_and_files_return_errors() {
    let directory = directory("errors");
    std::fs::write(directory.join("plan.json"), "{\"seed\": 1}").unwrap();
    std::fs::write(directory.join("trace.txt"), "1 2 3\n").unwrap();
    for (args, error) in [
        (vec!["--scenario", "nothing"], "there is no scenario nothing"),
        (vec!["--plan", "plan.json"], "missing field `topology`"),
        (vec!["--plan", "nowhere.json"], "nowhere.json"),
        (vec!["--trace", "trace.txt"], "line 1 of the trace: 3 fields instead of 7"),
    ] {
        let output = simulate(&directory, &args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains(error), "{args:?}: {}", text(&output.stderr));
    }
}
