//! Each program of this package prints its options. With this test, the programs are built together with the tests.

use std::process::Command;

#[test]
fn each_program_prints_its_options() {
    for program in [
        env!("CARGO_BIN_EXE_weir-up"),
        env!("CARGO_BIN_EXE_weir-pages"),
        env!("CARGO_BIN_EXE_weir-bench-filter"),
        env!("CARGO_BIN_EXE_weir-bench-aggregator"),
        env!("CARGO_BIN_EXE_weir-compose-test"),
    ] {
        let output = Command::new(program).arg("--help").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.contains("Options:"), "{program}: {text}");
    }
}

/// Nothing is started for a configuration that the filter refuses.
#[test]
fn a_wrong_rule_is_refused_before_anything_starts() {
    let file = std::env::temp_dir().join(format!("weir-up-{}.yaml", std::process::id()));
    std::fs::write(
        &file,
        "aggregator: { cluster: weir }\nrules:\n  - { name: a, limit: many, window: 1m }\n",
    )
    .unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_weir-up")).arg("--config").arg(&file).output().unwrap();
    std::fs::remove_file(&file).unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && error.contains("rules[0].limit: "), "{error}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "", "nothing is started");
}
