//! Tests of `migrate`, `cleanup` and `zones` as run by an operator or a cron job.

use crate::support::database::ledger::*;
use crate::support::database::packets::Node;
use crate::support::database::*;
use std::process::{Command, Output, Stdio};
use weir_aggregator::telemetry::clock::{Clock, SystemClock};
use weir_core::model::time::UnixMs;
use weir_core::region::exchange::Publication;
use weir_envoy::ports;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb() {
    let store = Store::mariadb().await;
    migrate_and_clean_up(&store).await;
    zones(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql() {
    if let Some(store) = Store::mysql().await {
        migrate_and_clean_up(&store).await;
        zones(&store).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite() {
    let store = Store::sqlite();
    migrate_and_clean_up(&store).await;
    zones(&store).await;
}

fn program(arguments: &[&str], url: Option<&str>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir-aggregator"));
    let variables = std::env::vars_os().filter(|(name, _)| !name.to_string_lossy().starts_with("WEIR_"));
    command.args(arguments).env_clear().envs(variables).stdin(Stdio::null());
    command.envs(url.map(|url| ("WEIR_DATABASE_URL", url)));
    command
}

/// Exit code, standard output, standard error.
fn run(arguments: &[&str], url: Option<&str>) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = program(arguments, url).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

/// A server that accepts connections and sends nothing, such as a load balancer without a database behind it.
#[test]
fn a_database_that_never_answers_ends_a_migration() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("mysql://weir:geheim@{}/weir", silent.local_addr().unwrap());
    let began = std::time::Instant::now();
    let (code, _, error) = run(&["migrate"], Some(&url));
    println!("ended after {:?}: {error}", began.elapsed());
    assert_eq!(code, Some(1), "{error}");
    assert!(
        error.lines().filter(|line| line.starts_with("waiting for the database since")).count() >= 3,
        "{error}"
    );
    for part in ["did not answer within 30 s", "--database-url", "WEIR_DATABASE_URL"] {
        assert!(error.contains(part), "{error}");
    }
    assert!(!error.contains("geheim"), "{error}");
}

async fn migrate_and_clean_up(store: &Store) {
    let scene = store.empty().await;
    let url = Some(scene.url.as_str());
    let (code, _, error) = run(&["cleanup"], url);
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("weir-aggregator migrate") && !error.contains("geheim"), "{error}");

    // Two concurrent migrations both succeed, and each migration is applied by one of them.
    let spawn = || program(&["migrate"], url).stdout(Stdio::piped()).spawn().unwrap();
    let output: String = [spawn(), spawn()]
        .into_iter()
        .map(|child| {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success());
            String::from_utf8(output.stdout).unwrap()
        })
        .collect();
    assert_eq!(output.matches("applied 0001 window counts\n").count(), 1, "{output}");
    assert_eq!(output.matches("applied 0002 region leases\n").count(), 1, "{output}");
    let all = migrations(&scene);
    let nothing = (Some(0), format!("nothing to do: all {all} migrations had been applied\n"), String::new());
    assert_eq!(run(&["migrate", "--database-url", &scene.url], None), nothing);

    // A newer version has been here.
    scene
        .run(
            "INSERT INTO weir_migrations (version, description, success, checksum, execution_time)
             VALUES (9001, 'of a newer version', TRUE, '', 0)",
        )
        .await;
    let newer = run(&["migrate", "--database-url", &scene.url], None);
    assert_eq!(newer.0, Some(0), "{newer:?}");
    assert!(newer.1.contains("a newer version has applied migration 9001"), "{newer:?}");

    let now = SystemClock.now().0;
    let ago = |prefix: &str, minutes: u64| -> Vec<_> {
        let expires = UnixMs(now - minutes * 60_000);
        rows(prefix, 30, 1).into_iter().map(|row| Publication { expires, ..row }).collect()
    };
    let mut node = Node { now: UnixMs(now), ..Node::new(scene.open("a"), 1) };
    for rows in [ago("old", 61), ago("recent", 30)] {
        node.write(&rows).await;
    }
    let deleted = |output: (Option<i32>, String, String), expected: &str| {
        let ledger = "deleted 0 transactions of the ledger and 0 bucket locks older than 90d";
        let controls = "deleted 0 live controls that ended more than 30d ago and 0 changes older than 400d";
        let expected_output = format!("deleted {expected} ago\n{ledger}\n{controls}\n");
        assert_eq!(output, (Some(0), expected_output, String::new()));
    };
    deleted(run(&["cleanup", "--batch", "7"], url), "30 rows that expired more than 1h");
    deleted(run(&["cleanup"], url), "0 rows that expired more than 1h");
    deleted(run(&["cleanup", "--older-than", "10m"], url), "30 rows that expired more than 10m");
    assert_eq!(scene.rows().await, 1, "the marker");
}

/// An operator changes a zone that a running aggregator uses.
async fn zones(store: &Store) {
    let scene = store.fresh().await;
    let url = Some(scene.url.as_str());
    let aggregator = scene.open("here");
    let output_of = |arguments: &[&str]| {
        let (code, stdout, error) = run(arguments, url);
        assert_eq!((code, error.as_str()), (Some(0), ""), "{arguments:?}");
        stdout
    };
    assert_eq!(output_of(&["zones", "list", "--json"]), "[]\n");
    let set = ["zones", "set", "--zone", "7", "--rate", "1", "--window", "1m", "--description", "log-ins, é"];
    assert_eq!(output_of(&set), "created zone 7 with 1 per 1m\n");
    assert!(!check(&aggregator, "x", 1).await.blocked && check(&aggregator, "x", 1).await.blocked);
    let more = ["zones", "set", "--zone", "7", "--rate", "2", "--window", "1h"];
    assert_eq!(output_of(&more), "changed zone 7 to 2 per 1h; before: 1 per 1m\n");
    assert!(!check(&aggregator, "x", 1).await.blocked && check(&aggregator, "x", 1).await.blocked);
    let listed: serde_json::Value = serde_json::from_str(&output_of(&["zones", "list", "--json"])).unwrap();
    let expected =
        serde_json::json!([{"id": 7, "description": "log-ins, é", "rate": 2, "window_seconds": 3_600}]);
    assert_eq!(listed, expected);
    let table = output_of(&["zones", "list"]);
    assert!(table.lines().count() == 2 && table.contains("log-ins, é") && table.contains(" 1h "), "{table}");
    let deleted = "deleted zone 7; 4 of its transactions stay until the cleanup\n";
    assert_eq!(output_of(&["zones", "delete", "--zone", "7"]), deleted);
    let (code, _, error) = run(&["zones", "delete", "--zone", "7"], url);
    assert!(code == Some(1) && error.contains("no zone 7"), "{error}");
    // The retention decides, and nothing is deleted earlier.
    let clean = |retention: Option<&str>| {
        let output =
            program(&["cleanup"], url).envs(retention.map(|it| ("WEIR_LEDGER_RETENTION", it))).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    assert!(clean(None).contains("deleted 0 transactions of the ledger and 0 bucket locks older than 90d"));
    assert!(clean(Some("0s")).contains("deleted 4 transactions of the ledger"));
}

#[test]
fn what_cannot_be_used() {
    let unreachable = format!("mysql://u:geheim@127.0.0.1:{}/d", ports::free().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let unwritable = format!("sqlite://{}/no/such/folder/x.db", folder.path().display());
    let zone = ["zones", "set", "--zone", "1", "--rate"];
    let with = |rest: [&'static str; 3]| [zone.as_slice(), &rest].concat();
    let (rate, window) = (with(["9007199254740993", "--window", "1m"]), with(["1", "--window", "1500ms"]));
    let file = format!("{unwritable} (--database-url): ");
    let server = format!("{} (--database-url): ", unreachable.replace("u:geheim@", ""));
    let cases: [(&[&str], Option<&str>, i32, &str); 21] = [
        (&["zones", "list"], None, 2, "WEIR_DATABASE_URL"),
        (&["zones", "delete", "--zone", "-1"], Some(&unreachable), 2, "--zone"),
        (
            &["zones", "set", "--zone", "0", "--rate", "1", "--window", "1h"],
            Some(&unreachable),
            2,
            "0 is not in 1..=4294967295",
        ),
        (&rate, Some(&unreachable), 2, "--rate"),
        (&window, Some(&unreachable), 2, "--window"),
        (&["zones", "list"], Some(&unreachable), 1, "cannot be reached"),
        (&["cleanup", "--ledger-retention", "soon"], Some(&unreachable), 2, "--ledger-retention"),
        (&["migrate"], None, 2, "WEIR_DATABASE_URL"),
        (&["cleanup"], None, 2, "--database-url"),
        (&["migrate"], Some(""), 2, "WEIR_DATABASE_URL"),
        (&["migrate"], Some("postgres://u:geheim@h/d"), 2, "\"postgres\""),
        (&["migrate"], Some("mysql://u:geheim@h"), 2, "names no database"),
        (&["cleanup", "--batch", "0"], Some(&unreachable), 2, "--batch"),
        (&["cleanup", "--older-than", "soon"], Some(&unreachable), 2, "--older-than"),
        (&["cleanup", "--region", "r"], Some(&unreachable), 2, "--region"),
        (&["migrate"], Some(&unreachable), 1, "cannot be reached"),
        (&["cleanup"], Some(&unreachable), 1, "cannot be reached"),
        (&["migrate"], Some(&unwritable), 1, "unable to open"),
        (&["migrate"], Some(&unwritable), 1, &file),
        (&["migrate"], Some(&unreachable), 1, &server),
        (&["zones", "list"], Some(&unreachable), 1, &server),
    ];
    for (arguments, url, expected, part) in cases {
        let (code, stdout, error) = run(arguments, url);
        assert_eq!(code, Some(expected), "{arguments:?} {url:?}: {stdout}{error}");
        assert!(error.contains(part), "{arguments:?} {url:?}: {error}");
        assert!(!format!("{stdout}{error}").contains("geheim"), "{error}");
    }
}
