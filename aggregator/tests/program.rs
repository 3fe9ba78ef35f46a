//! The program as an operator meets it: exit codes, error lines, signals.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir-aggregator"));
    let variables = std::env::vars_os().filter(|(name, _)| !name.to_string_lossy().starts_with("WEIR_"));
    command.args(arguments).env_clear().envs(variables).stdin(Stdio::null());
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Ends the program if the test does not.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Fails only where it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_missing_or_empty_region_is_an_error_that_says_how_to_set_it() {
    let long = "r".repeat(49);
    let cases: [(&[&str], Option<&str>); 6] = [
        (&["serve"], None),
        (&["serve"], Some("")),
        (&["serve", "--region", ""], None),
        (&["serve", "--region", "  "], None),
        (&["serve", "--region", &long], None),
        (&["serve", "--region", "a\nb"], None),
    ];
    for (arguments, variable) in cases {
        let output = program(arguments).envs(variable.map(|value| ("WEIR_REGION", value))).output().unwrap();
        let said = said(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        for part in ["region", "--region", "WEIR_REGION"] {
            assert!(said.contains(part), "{arguments:?}: {said}");
        }
    }
}

#[test]
fn other_arguments_that_cannot_be_used_have_the_same_exit_code() {
    let cases: [&[&str]; 4] = [
        &[],
        &["serve", "--region", "r", "--max-keys", "0"],
        &["serve", "--region", "r", "--log", "a=b=c"],
        &["serve", "--region", "r", "--nonsense"],
    ];
    for arguments in cases {
        assert_eq!(program(arguments).output().unwrap().status.code(), Some(2), "{arguments:?}");
    }
    assert!(program(&["--version"]).output().unwrap().status.success());
}

#[test]
fn a_busy_port_is_named_in_one_line() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for option in ["--grpc-listen", "--admin-listen"] {
        let other = if option == "--grpc-listen" { "--admin-listen" } else { "--grpc-listen" };
        let arguments = ["serve", "--region", "r", option, &address, other, "127.0.0.1:0", "--log", "error"];
        let output = program(&arguments).output().unwrap();
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains(&address) && said.contains(option), "{said}");
    }
}

#[test]
fn it_says_where_it_serves_and_ends_well_on_a_signal() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let listen = ["--grpc-listen", "0.0.0.0:0", "--admin-listen", "127.0.0.1:0"];
        let child = program(&["serve", "--region", "here", "--log-format", "json"])
            .args(listen)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut running = Running(child);
        let mut log = BufReader::new(running.0.stderr.take().unwrap());
        let mut line = String::new();
        log.read_line(&mut line).unwrap();
        let first: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(first["fields"]["region"], "here", "{line}");
        kill(Pid::from_raw(running.0.id().cast_signed()), signal).unwrap();
        let mut rest = String::new();
        log.read_to_string(&mut rest).unwrap();
        assert!(rest.contains("no token is set"), "{rest}");
        assert_eq!(running.0.wait().unwrap().code(), Some(0), "{rest}");
    }
}

#[test]
fn configurations_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_string_lossy().into_owned()
    };
    let sound = write(
        "sound.json",
        r#"{"aggregator": {"cluster": "weir"}, "rules": [{"name": "keys", "namespace": "api",
            "identifier": [{"header": "x-api-key"}], "limit": 100, "window": "1h"}]}"#,
    );
    let wrong = write("wrong.json", r#"{"aggregator": {"cluster": "weir"}, "rules": [{"limit": -1}]}"#);
    let output = program(&["check-config", &sound]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("keys: 100 per 1h"));
    let output = program(&["check-config", &wrong]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("rules[0].limit: ") && said(&output).contains("expected"));
    let output = program(&["check-config", "/nowhere.json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("/nowhere.json"));
}
