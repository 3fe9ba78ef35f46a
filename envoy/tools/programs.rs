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
