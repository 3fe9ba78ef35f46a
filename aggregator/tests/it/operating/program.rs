//! Tests of the program from outside: exit codes, errors, signals.

use clap::CommandFactory as _;
use rustix::process::{Pid, Signal, kill_process};
use sqlx::Connection as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::Arc;
use weir_aggregator::api::ApiSettings;
use weir_aggregator::api::rls::{self, XdsOptions};
use weir_aggregator::auth::{Authenticator, Presented, Tokens, Unauthorized};
use weir_aggregator::cli::args::Cli;
use weir_aggregator::database::DatabaseOptions;
use weir_aggregator::redis::StoreOptions;
use weir_aggregator::server::Settings;
use weir_aggregator::telemetry::build::{REVISION, RUST_VERSION, VERSION};
use weir_core::fields::yaml::{self, Dialect};
use weir_envoy::ports;

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir-aggregator"));
    let variables = std::env::vars_os().filter(|(name, _)| !name.to_string_lossy().starts_with("WEIR_"));
    command.args(arguments).env_clear().envs(variables).stdin(Stdio::null());
    command
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What the program prints, if it succeeds.
fn printed(arguments: &[&str]) -> String {
    let output = program(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

const ANYWHERE: [&str; 6] =
    ["--grpc-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"];

fn start(command: &mut Command) -> (Running, BufReader<ChildStderr>) {
    let mut running = Running(command.stderr(Stdio::piped()).spawn().unwrap());
    let log = BufReader::new(running.0.stderr.take().unwrap());
    (running, log)
}

/// The first line of the log that contains `part`.
fn line_with(log: &mut impl BufRead, part: &str) -> String {
    let mut line = String::new();
    while !line.contains(part) {
        line.clear();
        assert!(log.read_line(&mut line).unwrap() > 0, "the program ends without {part:?}");
    }
    line
}

/// Ends the program with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Fails only if it has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// As Compose passes those that its user has not set.
#[test]
fn an_empty_variable_counts_as_not_given_for_each_option() {
    let mut cli = Cli::command();
    let serve = cli.find_subcommand_mut("serve").unwrap();
    let names: Vec<_> =
        serve.get_arguments().filter_map(|arg| arg.get_env()).map(ToOwned::to_owned).collect();
    assert!(names.len() > 30 && names.contains(&"WEIR_TOKENS_FILE".into()), "{names:?}");
    let mut command = program(&["serve", "--region", "here"]);
    let empty = names.iter().map(|name| (name, ""));
    let (_running, mut log) = start(command.args(ANYWHERE).envs(empty).env("WEIR_LOG_FORMAT", ""));
    line_with(&mut log, "weir-aggregator serves");
    for word in ["shop", "2"] {
        let mut command = program(&["serve", "--region", "here"]);
        let output = command.args(ANYWHERE).env("WEIR_MIGRATE", word).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains("--migrate"), "{}", stderr(&output));
    }
}

#[test]
fn a_switch_is_on_by_the_usual_words() {
    for word in ["1", "true", "yes", "on"] {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}/weir.db", folder.path().display());
        let mut command = program(&["serve", "--region", "here", "--database-url", &url]);
        let (_running, mut log) = start(command.args(ANYWHERE).env("WEIR_MIGRATE", word));
        line_with(&mut log, "weir-aggregator serves");
    }
}

#[test]
fn a_missing_or_empty_region_is_an_error_that_names_the_option() {
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
        let stderr = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        for part in ["region", "--region", "WEIR_REGION"] {
            assert!(stderr.contains(part), "{arguments:?}: {stderr}");
        }
    }
}

#[test]
fn other_arguments_that_cannot_be_used_have_the_same_exit_code() {
    let cases: [&[&str]; 20] = [
        &[],
        &["serve", "--region", "r", "--tls-cert-file", "a"],
        &["serve", "--region", "r", "--tls-key-file", "a"],
        &["serve", "--region", "r", "--tls-client-ca-file", "a"],
        &["token"],
        &["token", "--name", "a\"b"],
        &["token", "--name", "a", "--workspaces", ""],
        &["token", "--name", "a", "--workspaces", "w", "--control"],
        &["token", "--name", "a", "--zones", "one"],
        &["token", "--name", "a", "--san", ""],
        &["serve", "--region", "r", "--max-keys", "0"],
        &["serve", "--region", "r", "--log", "a=b=c"],
        &["serve", "--region", "r", "--admin-hosts", "weir.internal:7070"],
        &["serve", "--region", "r", "--nonsense"],
        &["serve", "--region", "r", "--grpc-listen", "localhost"],
        &["serve", "--region", "r", "--http-listen", "127.0.0.1:http"],
        &["serve", "--region", "r", "--database-url", "foo"],
        &["explain", "--namespace", "n", "--identifier", "i", "--window", "5x"],
        // Durations are those of rules.
        &["explain", "--namespace", "n", "--identifier", "i", "--window", "1h 30m"],
        &["cleanup", "--database-url", "sqlite:///nowhere/weir.db", "--older-than", "1week"],
    ];
    for arguments in cases {
        assert_eq!(program(arguments).output().unwrap().status.code(), Some(2), "{arguments:?}");
    }
    let output = program(&["serve", "--region", "r", "--grpc-listen", "localhost"]).output().unwrap();
    assert!(stderr(&output).contains("a host and a port"), "{}", stderr(&output));
    let explain = ["explain", "--namespace", "n", "--identifier", "i", "--window", "367d"];
    assert!(stderr(&program(&explain).output().unwrap()).contains("1s to 366d"));
}

/// Of the build: a version, and a commit that is known in releases only.
#[test]
fn the_version_has_the_commit_and_the_compiler() {
    let printed = printed(&["--version"]);
    let expected = format!("weir-aggregator {} (commit {REVISION}, Rust {RUST_VERSION})\n", VERSION);
    assert_eq!((printed, VERSION), (expected, env!("CARGO_PKG_VERSION")));
    let is_commit = REVISION.chars().take_while(char::is_ascii_hexdigit).count() == 12;
    assert!(REVISION == "unknown" || is_commit, "{REVISION}");
    assert!(
        RUST_VERSION.split('.').filter(|part| part.parse::<u32>().is_ok()).count() >= 2,
        "{RUST_VERSION}"
    );
    let (_running, mut log) = start(program(&["serve", "--region", "here"]).args(ANYWHERE));
    let line = line_with(&mut log, "weir-aggregator serves");
    let address = line.split("admin=").nth(1).unwrap().split_whitespace().next().unwrap();
    let mut connection = TcpStream::connect(address).unwrap();
    connection.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let mut metrics = String::new();
    connection.read_to_string(&mut metrics).unwrap();
    let labels = format!(
        "weir_build_info{{version=\"{VERSION}\",revision=\"{REVISION}\",rust_version=\"{RUST_VERSION}\"}} 1"
    );
    assert!(metrics.contains(&labels), "{labels} is not in {metrics}");
}

#[test]
fn shells_complete_commands_and_options() {
    for (shell, start) in [
        ("bash", "_weir__aggregator() {"),
        ("zsh", "#compdef weir-aggregator\n"),
        ("fish", "# Print an optspec"),
    ] {
        let script = printed(&["completions", shell]);
        assert!(script.starts_with(start), "{shell}: {script}");
        for part in ["check-config", "healthcheck", "redis-url", "log-format"] {
            assert!(script.contains(part), "{shell} has no {part}");
        }
    }
    // What bash offers for the last word.
    let offered = |words: &[&str]| {
        let [.., previous, word] = words else { panic!("{words:?}") };
        let (line, at) = (words.join(" "), words.len() - 1);
        let script = format!(
            "source /dev/stdin; COMP_WORDS=({line}); COMP_CWORD={at}; _weir__aggregator weir-aggregator {word} {previous}; \
             echo \"${{COMPREPLY[*]}}\""
        );
        let mut bash = Command::new("bash");
        bash.args(["--norc", "-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut bash = Running(bash.spawn().unwrap());
        bash.0.stdin.take().unwrap().write_all(printed(&["completions", "bash"]).as_bytes()).unwrap();
        let mut offers = String::new();
        bash.0.stdout.take().unwrap().read_to_string(&mut offers).unwrap();
        offers.trim().to_owned()
    };
    assert_eq!(offered(&["weir-aggregator", "he"]), "healthcheck");
    assert_eq!(offered(&["weir-aggregator", "serve", "--redis-u"]), "--redis-url");
    assert_eq!(offered(&["weir-aggregator", "serve", "--log-format", "js"]), "json");
    assert_eq!(offered(&["weir-aggregator", "zones", "set", "--ra"]), "--rate");
}

#[test]
fn a_busy_port_is_named_in_one_line() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    const OPTIONS: [&str; 3] = ["--grpc-listen", "--admin-listen", "--http-listen"];
    for option in OPTIONS {
        let others = OPTIONS.iter().filter(|other| **other != option);
        let others = others.flat_map(|other| [*other, "127.0.0.1:0"]);
        let arguments = ["serve", "--region", "r", option, &address, "--log", "error"];
        let output = program(&arguments).args(others).output().unwrap();
        let stderr = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(stderr.contains(&address) && stderr.contains(option), "{stderr}");
    }
}

#[test]
fn it_logs_its_addresses_and_ends_in_good_order_on_a_signal() {
    for signal in [Signal::TERM, Signal::INT] {
        let listen =
            ["--grpc-listen", "0.0.0.0:0", "--admin-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"];
        let child = program(&["serve", "--region", "here", "--log-format", "json", "--insecure", "grpc"])
            .args(listen)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut running = Running(child);
        let mut log = BufReader::new(running.0.stderr.take().unwrap());
        let mut before = String::new();
        let line = loop {
            let mut line = String::new();
            assert!(log.read_line(&mut line).unwrap() > 0, "the program ends without serving: {before}");
            if line.contains("weir-aggregator serves") {
                break line;
            }
            before += &line;
        };
        let logged: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(logged["fields"]["region"], "here", "{line}");
        let pid = Pid::from_child(&running.0);
        // As a program that rotates logs sends it.
        kill_process(pid, Signal::HUP).unwrap();
        line_with(&mut log, "SIGHUP: nothing to do");
        kill_process(pid, signal).unwrap();
        let mut rest = before;
        log.read_to_string(&mut rest).unwrap();
        assert!(rest.contains("filters need no token"), "{rest}");
        assert!(rest.contains("loopback only, without TLS, without tokens"), "{rest}");
        let grpc =
            "from other machines, without TLS, filters without tokens, the rate-limit service without tokens";
        assert!(rest.contains(grpc), "{rest}");
        assert_eq!(running.0.wait().unwrap().code(), Some(0), "{rest}");
    }
}

#[test]
fn a_reader_that_has_gone_ends_neither_the_program_nor_a_command() {
    let gone = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        writer
    };
    let schema = program(&["check-config", "--schema"]).stdout(gone()).status().unwrap();
    assert_eq!(schema.code(), Some(0));
    let wrong = program(&["check-config", "no such file"]).stderr(gone()).status().unwrap();
    assert_eq!(wrong.code(), Some(2));
    let (mut running, log) = start(program(&["serve", "--region", "here"]).args(ANYWHERE));
    let mut log = log;
    line_with(&mut log, "weir-aggregator serves");
    drop(log);
    let pid = Pid::from_child(&running.0);
    kill_process(pid, Signal::HUP).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(running.0.wait().unwrap().code(), Some(0));
}

#[test]
fn a_log_level_that_is_none_is_refused() {
    for wrong in ["debg", "info,verbose"] {
        let output = program(&["serve", "--region", "here", "--log", wrong]).args(ANYWHERE).output().unwrap();
        assert!(stderr(&output).contains("is no level"), "{}", stderr(&output));
    }
}

#[test]
fn a_dropped_table_is_named_by_migrate() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/weir.db", folder.path().display());
    printed(&["migrate", "--database-url", &url]);
    let drop_table = async {
        let mut connection = sqlx::SqliteConnection::connect(&url).await.unwrap();
        sqlx::query("DROP TABLE weir_controls").execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
    };
    tokio::runtime::Runtime::new().unwrap().block_on(drop_table);
    let output = program(&["migrate", "--database-url", &url]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("restore it from a backup"), "{}", stderr(&output));
}

/// As a Job may that starts at the same time.
#[test]
fn it_waits_for_the_tables_of_its_database_and_is_not_ready() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/weir.db", folder.path().display());
    let (running, mut log) =
        start(program(&["serve", "--region", "here", "--database-url", &url]).args(ANYWHERE));
    let line = line_with(&mut log, "weir-aggregator starts");
    let address = line.split("admin=").nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
    let waiting = line_with(&mut log, "not ready until they are up to date");
    assert!(waiting.contains(&format!("{url} (--database-url): there is no such file")), "{waiting}");
    let check = || program(&["healthcheck", "--admin-listen", &address]).output().unwrap();
    let waits = check();
    assert_eq!(waits.status.code(), Some(1), "{}", stderr(&waits));
    assert!(stderr(&waits).contains("503"), "{}", stderr(&waits));
    let shown = || printed(&["top", "--once", "--admin-url", &format!("http://{address}")]);
    let top = shown();
    assert!(top.contains("! waiting for the database's tables"), "{top}");
    assert!(!top.contains("all well") && !top.contains("serving"), "{top}");
    printed(&["migrate", "--database-url", &url]);
    line_with(&mut log, "weir-aggregator serves");
    let serves = check();
    assert_eq!(serves.status.code(), Some(0), "{}", stderr(&serves));
    assert!(!shown().contains("waiting"), "{}", shown());
    drop(running);
}

#[test]
fn an_sqlite_file_without_a_folder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/missing/weir.db", folder.path().display());
    let output =
        program(&["serve", "--region", "here", "--database-url", &url]).args(ANYWHERE).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("there is no folder"), "{}", stderr(&output));
}

/// Other machines could use such a listener without authentication.
#[test]
fn a_listener_without_authentication_serves_no_other_machines() {
    const OPTIONS: [(&str, &str); 3] =
        [("--grpc-listen", "grpc"), ("--admin-listen", "admin"), ("--http-listen", "http")];
    for (option, part) in OPTIONS {
        let address = |other: &str| if other == option { "0.0.0.0:0" } else { "127.0.0.1:0" };
        let listen: Vec<_> = OPTIONS.iter().flat_map(|(other, _)| [*other, address(other)]).collect();
        // Consent for another interface does not suffice.
        for insecure in [&[][..], &["--insecure", "control"]] {
            let output =
                program(&["serve", "--region", "here"]).args(insecure).args(&listen).output().unwrap();
            let stderr = stderr(&output);
            assert_eq!(output.status.code(), Some(1), "{stderr}");
            let accepted = format!("--insecure {part} (WEIR_INSECURE={part})");
            assert!(
                stderr.contains(option) && stderr.contains(&accepted) && !stderr.contains("serves"),
                "{stderr}"
            );
        }
        let insecure = ["--insecure", &format!("control,{part}")];
        let (_running, mut log) = start(program(&["serve", "--region", "here"]).args(insecure).args(&listen));
        line_with(&mut log, "weir-aggregator serves");
    }
    let listen = ["--grpc-listen", "0.0.0.0:0", "--admin-listen", "127.0.0.1:0", "--http-listen", "none"];
    let (_running, mut log) =
        start(program(&["serve", "--region", "here", "--filter-token", "secret"]).args(listen));
    assert!(line_with(&mut log, "weir-aggregator serves").contains("http=none"), "a token suffices");
}

/// Any program on the host may use the API without tokens, but must not change limits unless that is configured.
#[test]
fn secrets_may_be_files() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let url = file("url", &format!("sqlite://{}/weir.db\n", folder.path().display()));
    let output = program(&["migrate"]).env("WEIR_DATABASE_URL_FILE", &url).output().unwrap();
    assert!(output.status.success() && folder.path().join("weir.db").exists(), "{}", stderr(&output));
    let token = file("token", "a secret\r\n");
    let mut serve = program(&["serve", "--region", "here"]);
    serve.args(ANYWHERE).env("WEIR_FILTER_TOKEN_FILE", &token).env("WEIR_DATABASE_URL_FILE", &url);
    let (_running, mut log) = start(&mut serve);
    assert!(line_with(&mut log, "gRPC at").contains("filters by --filter-token"));
    let missing = folder.path().join("missing");
    for (variable, value, parts) in [
        ("WEIR_FILTER_TOKEN", token.as_path(), ["WEIR_FILTER_TOKEN and WEIR_FILTER_TOKEN_FILE", "both set"]),
        ("WEIR_REDIS_URL_FILE", missing.as_path(), ["WEIR_REDIS_URL_FILE", "cannot be read"]),
    ] {
        let mut serve = program(&["serve", "--region", "here"]);
        let output =
            serve.args(ANYWHERE).env("WEIR_FILTER_TOKEN_FILE", &token).env(variable, value).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        parts.iter().for_each(|part| assert!(stderr(&output).contains(part), "{}", stderr(&output)));
    }
}

#[test]
fn live_control_needs_tokens_unless_it_is_insecure() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/weir.db", folder.path().display());
    for (insecure, allowed) in [("grpc", false), ("control", true)] {
        let mut command = program(&["serve", "--region", "here", "--migrate", "--log-format", "json"]);
        let (_running, mut log) =
            start(command.args(ANYWHERE).args(["--insecure", insecure]).env("WEIR_DATABASE_URL", &url));
        let line = line_with(&mut log, "weir-aggregator serves");
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        let server = format!("http://{}", line["fields"]["http"].as_str().unwrap());
        let output = program(&["overrides", "list"]).env("WEIR_API_URL", &server).output().unwrap();
        assert_eq!(output.status.success(), allowed, "{}", stderr(&output));
        assert!(allowed || stderr(&output).contains("--insecure control"), "{}", stderr(&output));
    }
}

#[test]
fn it_logs_how_each_api_is_authenticated() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens.yaml");
    std::fs::write(&tokens, "[]").unwrap();
    let file = ["--tokens-file", tokens.to_str().unwrap()];
    let token = ["--filter-token", "secret"];
    let cases = [
        (vec![], "filters without tokens, the rate-limit service without tokens"),
        (token.to_vec(), "filters by --filter-token, the rate-limit service by --filter-token\n"),
        (file.to_vec(), "filters without tokens, the rate-limit service by --tokens-file"),
        (
            [token, file].concat(),
            "filters by --filter-token, the rate-limit service by --filter-token or --tokens-file",
        ),
    ];
    for (arguments, expected) in cases {
        let mut command = program(&["serve", "--region", "here"]);
        let (_running, mut log) = start(command.args(ANYWHERE).args(arguments));
        let line = line_with(&mut log, "gRPC at 127.0.0.1:");
        assert!(line.contains(expected), "{line}");
    }
}

#[test]
fn changes_are_logged_without_identifiers() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/weir.db", folder.path().display());
    let mut command = program(&["serve", "--region", "here", "--migrate", "--log-format", "json"]);
    let (_running, mut log) =
        start(command.args(ANYWHERE).args(["--insecure", "control"]).env("WEIR_DATABASE_URL", url));
    let line: serde_json::Value =
        serde_json::from_str(&line_with(&mut log, "weir-aggregator serves")).unwrap();
    let server = format!("http://{}", line["fields"]["http"].as_str().unwrap());
    let target = ["--namespace", "per-key", "--identifier", "sk-secret"];
    for (arguments, action) in [(&["set", "--limit", "5"][..], "set"), (&["delete"], "deleted")] {
        let mut command = program(&["overrides"]);
        let output = command
            .args(arguments)
            .args(target)
            .env("WEIR_API_URL", &server)
            .env_remove("USER")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let line = line_with(&mut log, "live control changed");
        assert!(!line.contains("sk-secret"), "{line}");
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        let field = |name: &str| line["fields"][name].as_str().unwrap_or_default().to_owned();
        let expected = [action, "limit", "default", "per-key", "anybody"];
        assert_eq!(["action", "kind", "workspace", "scope", "author"].map(field), expected, "{line}");
        assert!(line["fields"]["revision"].as_u64().unwrap() > 0, "{line}");
    }
}

#[test]
fn a_healthcheck_fails_unless_the_aggregator_is_ready() {
    // On all interfaces, as in a container; queried on this machine.
    let admin = format!("0.0.0.0:{}", ports::free().unwrap());
    let listen = ["--grpc-listen", "127.0.0.1:0", "--admin-listen", &admin, "--http-listen", "127.0.0.1:0"];
    let (mut running, mut log) =
        start(program(&["serve", "--region", "here", "--insecure", "admin"]).args(listen));
    let line = line_with(&mut log, "weir-aggregator serves");
    let address = line.split("admin=").nth(1).unwrap().split_whitespace().next().unwrap();
    let healthcheck = || program(&["healthcheck"]).env("WEIR_ADMIN_LISTEN", address).output().unwrap();
    let output = healthcheck();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    running.0.kill().unwrap();
    running.0.wait().unwrap();
    let output = healthcheck();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains(address) && stderr(&output).lines().count() == 1, "{}", stderr(&output));
    // Another server on that port that does not answer.
    let unresponsive = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = unresponsive.local_addr().unwrap().to_string();
    let output = program(&["healthcheck", "--admin-listen", &address]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
}

/// Full listeners need more open files than systems allow by default.
#[test]
fn it_opens_as_many_files_as_it_may() {
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -Sn 200 && ulimit -Hn 700 && exec \"$0\" \"$@\""]);
    limited.arg(env!("CARGO_BIN_EXE_weir-aggregator")).args(["serve", "--region", "here"]).args(ANYWHERE);
    let (running, mut log) = start(&mut limited);
    let warning = line_with(&mut log, "the limit of open files is too low");
    assert!(warning.contains("700"), "{warning}");
    line_with(&mut log, "weir-aggregator serves");
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", running.0.id())).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(files.split_whitespace().skip(3).take(2).collect::<Vec<_>>(), ["700", "700"]);
}

/// The output of `weir-aggregator token` with these arguments.
fn made(arguments: &[&str]) -> String {
    printed(&[&["token"], arguments].concat())
}

fn tokens_of(file: &str) -> Arc<Tokens> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens.yaml");
    std::fs::write(&path, file).unwrap();
    Tokens::read(path).unwrap().0
}

#[test]
fn a_token_is_made_once_and_its_entry_can_be_used_as_it_is() {
    let make = || made(&["--name", "the shop", "--workspace", "eu"]);
    let (printed, other) = (make(), make());
    let (token, rest) = printed.split_once("\n\n").unwrap();
    assert!(token.starts_with("weir_") && token.len() == 69, "{token}");
    assert!(!rest.contains(token) && !other.contains(token), "it is printed once, and random");
    let header = format!("bearer {token}");
    let presented = Presented { header: Some(header.as_bytes()), ..Presented::default() };
    let caller = tokens_of(rest).check(presented).unwrap();
    assert_eq!((caller.name.as_str(), caller.workspace(None)), ("the shop", Some(b"eu".as_slice())));
    assert!(!caller.may_use(1) && !caller.may_control(), "neither zones nor live control by default");
    assert!(caller.may_count(b"rls|edge|user|", true) && !caller.may_count(b"n", false));
}

#[test]
fn a_token_is_made_with_what_it_allows() {
    let arguments =
        ["--name", "shop", "--zones", "1,7", "--namespaces", "cart,job-*", "--max-cost", "5", "--control"];
    let printed = made(&arguments);
    let (token, rest) = printed.split_once("\n\n").unwrap();
    let header = format!("Bearer {token}");
    let presented = Presented { header: Some(header.as_bytes()), ..Presented::default() };
    let caller = tokens_of(rest).check(presented).unwrap();
    assert!(caller.may_use(7) && !caller.may_use(2) && caller.may_control());
    assert!(caller.may_count(b"job-1", false) && !caller.may_count(b"jobs", true));
    assert_eq!(caller.max_cost(), 5);

    let printed = made(&["--name", "gateways", "--workspaces", "default,mobile"]);
    let (token, rest) = printed.split_once("\n\n").unwrap();
    let (header, tokens) = (format!("Bearer {token}"), tokens_of(rest));
    let presented = Presented { header: Some(header.as_bytes()), ..Presented::default() };
    assert_eq!(tokens.check(presented), Err(Unauthorized::OfFilter));
    let scope = Authenticator::new(None, tokens).admit_filter(presented).unwrap();
    assert!(scope.has_workspace("mobile") && !scope.has_workspace("other") && !scope.has_zone(1));

    let printed =
        made(&["--name", "gateways", "--workspaces", "all", "--san", "spiffe://example.org/gateway"]);
    assert!(!printed.contains("weir_"), "a certificate replaces the token: {printed}");
    assert!(tokens_of(&printed).name_filters());
}

/// The entries of a file's content.
fn entries_of(text: &str) -> Vec<serde_json::Value> {
    let documents = yaml::documents(text.as_bytes(), Dialect::Kubernetes).unwrap();
    documents[0].value.to_json().as_array().unwrap().clone()
}

/// The commands above the entries in README.md make these entries, but for the digest.
#[test]
fn the_commands_of_the_page_make_its_entries() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, section) = page.split_once("## Tokens").unwrap();
    let yaml = section.split("```").nth(1).unwrap().strip_prefix("yaml").unwrap();
    let entries = entries_of(yaml);
    let commands: Vec<_> = yaml
        .lines()
        .filter_map(|line| line.split_once("weir-aggregator token "))
        .map(|(_, rest)| rest)
        .collect();
    assert_eq!(commands.len(), 2, "{yaml}");
    for (command, expected) in commands.iter().zip(&entries) {
        let arguments: Vec<_> = command.split(' ').map(|word| word.trim_matches('\'')).collect();
        let made = entries_of(made(&arguments).split_once("\n\n").unwrap().1);
        let fields = |entry: &serde_json::Value| {
            let mut fields = entry.as_object().unwrap().clone();
            assert!(fields.remove("sha256").is_some());
            fields
        };
        assert_eq!(fields(&made[0]), fields(expected), "{command}");
    }
}

#[test]
fn top_and_explain_show_what_the_page_shows() {
    let mut command = program(&["serve", "--region", "here", "--log-format", "json"]);
    let (_running, mut log) = start(command.args(ANYWHERE));
    let line: serde_json::Value =
        serde_json::from_str(&line_with(&mut log, "weir-aggregator serves")).unwrap();
    let server = format!("http://{}", line["fields"]["admin"].as_str().unwrap());
    let run = |arguments: &[&str]| {
        let output = program(arguments).env("WEIR_ADMIN_URL", &server).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout.clone()).unwrap() + &stderr(&output))
    };
    for arguments in [&["top"][..], &["top", "--once"]] {
        let (code, shown) = run(arguments);
        assert_eq!(code, Some(0), "{shown}");
        for part in ["region here", "all well", "IDENTIFIER", "RULE", "this aggregator", "Redis"] {
            assert!(shown.contains(part), "no {part:?} in\n{shown}");
        }
        assert!(!shown.contains('\x1b'), "{shown}");
    }
    let (code, shown) = run(&["top", "--json"]);
    let look: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(
        (code, &look["parts"]["region"], &look["top"]["keys_held"]),
        (Some(0), &"here".into(), &0.into())
    );
    let (code, shown) = run(&["explain", "--namespace", "n", "--identifier", "a b&c"]);
    assert_eq!((code, shown.contains("no counts of this identifier")), (Some(1), true), "{shown}");
    assert_eq!(run(&["explain", "--namespace", "n"]).0, Some(2));
    let (code, shown) = run(&["explain", "--identifier", "a b&c"]);
    assert_eq!(
        (code, shown.contains("no filter has reported rules of workspace default")),
        (Some(1), true),
        "{shown}"
    );
    let (code, shown) = run(&["top", "--text", "a b&c"]);
    assert_eq!((code, shown.contains("no key that was used")), (Some(1), true), "{shown}");
    assert_eq!(run(&["top", "--text", "a b&c", "--json"]).0, Some(0));
    let (code, shown) = run(&["top", "--admin-url", "https://weir"]);
    let hint = "(it has no TLS), as in http://127.0.0.1:7070";
    assert_eq!((code, shown.contains(hint)), (Some(2), true), "{shown}");
    let unreachable = ports::local(ports::free().unwrap());
    let (code, shown) = run(&["top", "--admin-url", &format!("http://{unreachable}")]);
    assert_eq!((code, shown.contains("cannot reach an aggregator at")), (Some(1), true), "{shown}");
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
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("keys: 100 per 1h"));
    let output = program(&["check-config", &wrong]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("rules[0].limit: ") && stderr(&output).contains("expected"));
    let piped = std::fs::File::open(&sound).unwrap();
    let output = program(&["check-config", "-"]).stdin(piped).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("keys: 100 per 1h"));
    let output = program(&["check-config", "/nowhere.json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("/nowhere.json"));
}

#[test]
fn settings_are_printed_without_their_secrets() {
    const SECRET: &str = "hunter2";
    let url = format!("mysql://weir:{SECRET}@db.example/weir");
    let database = DatabaseOptions { url: url.clone(), read_url: Some(url), region: "a".into() };
    let xds =
        XdsOptions::new("https://xds.example".into(), "n".into(), None, (None, None), Some(SECRET.into()));
    let redis = StoreOptions::parse(&format!("redis://weir:{SECRET}@redis.example"), "a").unwrap();
    let rls = rls::Settings { xds: Some(xds.unwrap()), ..rls::Settings::default() };
    let settings = Settings {
        token: Some(SECRET.into()),
        store: Some(redis.clone()),
        database: Some(database.clone()),
        api: ApiSettings { rls, ..ApiSettings::default() },
        ..crate::support::server::settings()
    };
    for shown in [format!("{settings:?}"), format!("{:?}", settings.api), format!("{redis:?} {database:?}")] {
        assert!(!shown.contains(SECRET), "{shown}");
    }
}
