//! Tests of live control through running aggregators: set over HTTP or by the commands, received by filters of the same
//! and of other regions, applied by the APIs, and kept while the database is unavailable.

use crate::support::database::Store;
use crate::support::http::{Client, JSON, OVERRIDES, put, token, until_read_back, write};
use crate::support::server::{DEADLINE, Peer, Weir, hello_frame, settings, start_with};
use serde_json::{Value, json};
use sqlx::{Connection, Executor};
use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::time::{sleep, timeout};
use weir_aggregator::admin::explain::explain;
use weir_aggregator::admin::query::KeyQuery;
use weir_aggregator::admin::view::Explanation;
use weir_aggregator::api::ApiSettings;
use weir_aggregator::database::DatabaseOptions;
use weir_aggregator::redis::StoreOptions;
use weir_aggregator::server::Settings;
use weir_core::model::schedule::Schedule;
use weir_core::model::wire::{Ban, Controls, ControlsKnown, Counters, FilterFrame, RuleCounters};
use weir_envoy::{Redis, RedisOptions};

fn of(region: &str, url: &str, schedule: Schedule) -> Settings {
    let database = DatabaseOptions { url: url.to_owned(), read_url: None, region: region.to_owned() };
    Settings { region: region.into(), database: Some(database), migrate: true, schedule, ..settings() }
}

fn sqlite(folder: &Path) -> String {
    format!("sqlite://{}/weir.db", folder.display())
}

/// A subscriber that reports the revision it has.
async fn subscriber(weir: &Weir, revision: ControlsKnown) -> Peer {
    let mut peer = Peer::open(weir.connect().await).await;
    peer.send(hello_frame(1, true)).await;
    peer.next_with(|frame| frame.welcome).await;
    peer.send(FilterFrame { controls_known: Some(revision), ..FilterFrame::default() }).await;
    peer
}

async fn next_controls(peer: &mut Peer) -> Controls {
    peer.next_with(|frame| frame.controls).await
}

/// Waits until a subscriber receives a control for an identifier.
async fn control_of(peer: &mut Peer, identifier: &str) -> weir_core::model::wire::Control {
    let named = |frame: Controls| frame.entries.into_iter().find(|entry| entry.identifier == identifier);
    peer.next_with(|frame| named(frame.controls?)).await
}

async fn limit(weir: &Weir, identifier: &str) -> Value {
    let body = json!({"namespace": "n", "identifier": identifier, "limit": 2, "duration": "1h"});
    Client::connect(weir).await.post("/v1/check", &body).await.body
}

/// The explanation of a key, once it is as expected.
async fn explained(weir: &Weir, identifier: &str, is_so: impl Fn(&Explanation) -> bool) {
    let query = KeyQuery::parse(&format!("namespace=n&identifier={identifier}")).unwrap();
    let explaining = async {
        loop {
            let explanation = explain(weir.server.services(), &query).await;
            if is_so(&explanation) {
                return;
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(DEADLINE, explaining)
        .await
        .unwrap_or_else(|_| panic!("the explanation of {identifier} is not as expected"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn live_control_of_one_region_applies_in_all_and_outlasts_the_database() {
    let mut store = Store::mariadb().await;
    let scene = store.fresh().await;
    let url = scene.url.clone();
    let server = store.server.as_mut().unwrap();
    let here = start_with(of("here", &url, Schedule::for_tests())).await;
    let there = start_with(of("there", &url, Schedule::for_tests())).await;
    let nothing = ControlsKnown::default();
    let (mut near, mut far) = (subscriber(&here, nothing).await, subscriber(&there, nothing).await);
    let first = next_controls(&mut near).await;
    assert!(first.from_scratch && first.entries.is_empty() && first.complete_through > 0);
    assert_eq!(next_controls(&mut far).await.incarnation, first.incarnation);

    let began = Instant::now();
    let launch = || json!({"namespace": "n", "identifier": "alice", "limit": 3, "reason": "launch"});
    let stored = put(&here, launch()).await;
    assert_eq!(stored["changed"], true);
    let control = control_of(&mut near, "alice").await;
    eprintln!("a filter of the same region received the control after {:?}", began.elapsed());
    assert_eq!((control.kind, control.amount, Some(control.revision)), (1, 3, stored["revision"].as_u64()));
    assert_eq!(control_of(&mut far, "alice").await, control);
    eprintln!(
        "a filter of another region received it after {:?}, with an import each 300 ms",
        began.elapsed()
    );
    let again = put(&here, launch()).await;
    assert_eq!((&again["changed"], &again["known"]), (&json!(false), &json!(true)), "{again}");

    the_apis_of_both_regions_apply_it(&here, &there).await;

    // A caller that waits in vain for another transaction gets an error about that, not that the database is
    // unavailable.
    let mut other = scene.mysql().await;
    let mut held = other.begin().await.unwrap();
    held.execute("SELECT * FROM weir_control_edition FOR UPDATE").await.unwrap();
    let late = json!({"namespace": "n", "identifier": "late", "limit": 1}).to_string();
    let answer = Client::connect(&here).await.send("PUT", OVERRIDES, &[JSON], late.as_bytes()).await;
    assert_eq!((answer.status, &answer.body["error"]["code"]), (503, &json!("busy")), "{answer:?}");
    drop(held);
    drop(other);

    // While the database is unavailable, no control is lost and no change is half done.
    server.process().kill().unwrap();
    let answer = Client::connect(&here).await.send("PUT", OVERRIDES, &[JSON], late.as_bytes()).await;
    assert_eq!((answer.status, &answer.body["error"]["code"]), (503, &json!("database_unavailable")));
    assert_eq!(limit(&there, "mallory").await["allowed"], false);
    let mut newcomer = subscriber(&there, nothing).await;
    assert_eq!(
        next_controls(&mut newcomer).await.entries.len(),
        5,
        "a filter that starts now must receive all controls"
    );
    let blind = start_with(of("blind", &url, Schedule::for_tests())).await;
    let stamp = here.server.services().control.book().of_revision(control.revision).unwrap().stamp;
    let has = ControlsKnown { incarnation: first.incarnation, revision: control.revision, stamp, ..nothing };
    let mut waiting = subscriber(&blind, has).await;
    server.restart().await.unwrap();
    // An instruction to discard the filter's controls would have been sent first.
    let update = next_controls(&mut waiting).await;
    assert!(
        !update.from_scratch && update.entries.iter().all(|entry| entry.revision > control.revision),
        "{update:?}"
    );
}

/// A limit of alice is in force. Each further change here applies there.
async fn the_apis_of_both_regions_apply_it(here: &Weir, there: &Weir) {
    for (place, weir) in [here, there].into_iter().enumerate() {
        let answer = limit(weir, &format!("bob{place}")).await;
        assert_eq!((&answer["allowed"], &answer["limit"]), (&json!(true), &json!(2)));
        assert_eq!(limit(weir, "alice").await["limit"], 3);
    }
    let credit = json!({"namespace": "*", "identifier": "alice", "credit": 10, "expires_in": "1h"});
    until_read_back(there, &put(here, credit).await).await;
    assert_eq!(limit(there, "alice").await["limit"], 13);
    let ban =
        json!({"namespace": "n", "identifier": "ma*", "ban": true, "reason": "spam", "expires_in": "1h"});
    until_read_back(there, &put(here, ban).await).await;
    for weir in [here, there] {
        let answer = limit(weir, "mallory").await;
        assert_eq!((&answer["allowed"], &answer["decided"]), (&json!(false), &json!(true)), "{answer}");
        assert!(answer["retry_after_ms"].as_u64().is_some_and(|ms| ms > 3_000_000), "{answer}");
    }
    explained(there, "alice", |explanation| {
        (explanation.control.limit, explanation.control.credit) == (Some(3), 10)
    })
    .await;
    explained(there, "mallory", |explanation| {
        explanation.control.banned_until_unix_ms.is_some() && explanation.windows.is_empty()
    })
    .await;
    for expected in [true, true, false] {
        assert_eq!(limit(there, "carol").await["allowed"], expected);
    }
    until_read_back(there, &put(here, json!({"namespace": "n", "identifier": "carol", "reset": true})).await)
        .await;
    for expected in [true, true, false] {
        assert_eq!(limit(there, "carol").await["allowed"], expected, "the reset starts a new count");
    }
    until_read_back(
        there,
        &put(here, json!({"namespace": "n", "identifier": "carol", "exempt": true})).await,
    )
    .await;
    for _ in 0..3 {
        assert_eq!(limit(there, "carol").await["allowed"], true);
    }
    let two_epochs = |explanation: &Explanation| {
        let verdicts: Vec<_> =
            explanation.windows.iter().map(|window| (window.outdated, window.passes)).collect();
        verdicts == [(true, None), (false, Some(true))] || verdicts == [(false, Some(true)), (true, None)]
    };
    explained(there, "carol", two_epochs).await;
}

/// Two regions, and a filter that has what one of them has set.
async fn is_missed(store: &Store, lose: &[&str], left: &[&str]) {
    let scene = store.fresh().await;
    let start = async |region| start_with(of(region, &scene.url, Schedule::for_tests())).await;
    let (here, there) = (start("here").await, start("there").await);
    let mut filter = subscriber(&there, ControlsKnown::default()).await;
    for identifier in ["alice", "bob"] {
        put(&here, json!({"namespace": "n", "identifier": identifier, "limit": 3})).await;
        control_of(&mut filter, identifier).await;
    }
    for statement in lose {
        scene.run(statement).await;
    }
    let replaced = filter.next_with(|frame| frame.controls.filter(|controls| controls.from_scratch)).await;
    let names: Vec<&str> = replaced.entries.iter().map(|entry| entry.identifier.as_str()).collect();
    assert_eq!(names, left);
}

/// The filter keeps its connection, and obeys what the database still has.
async fn lost_rows_reach_filters(store: &Store) {
    is_missed(store, &["DELETE FROM weir_controls"], &[]).await;
    let of_bob = "DELETE FROM weir_controls WHERE SUBSTR(CAST(identifier AS CHAR), 1, 3) = 'bob'";
    is_missed(store, &[of_bob], &["alice"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_sqlite_has_lost_reach_filters() {
    lost_rows_reach_filters(&Store::sqlite()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_mariadb_has_lost_reach_filters() {
    lost_rows_reach_filters(&Store::mariadb().await).await;
}

/// The tables of live control alone are restored from a dump, which has one ban, after another one was set.
async fn a_restored_dump_is_counted(store: &Store) {
    const TABLES: [&str; 3] = ["weir_controls", "weir_control_edition", "weir_control_audit"];
    let all = |sql: &str| TABLES.map(|table| sql.replace("{T}", table)).concat();
    let scene = store.fresh().await;
    let weir = start_with(of("here", &scene.url, Schedule::for_tests())).await;
    let ban = |who: &str| json!({"namespace": "n", "identifier": who, "ban": true, "reason": "test"});
    put(&weir, ban("alice")).await;
    scene.run(&all("CREATE TABLE saved_{T} AS SELECT * FROM {T};")).await;
    put(&weir, ban("eve")).await;
    let services = weir.server.services();
    let in_force = || services.control.book().in_force(services.now());
    crate::support::server::until("both are in force", || in_force() == 2).await;
    let wipes = |store: &str| weir.metric(&format!("weir_aggregator_store_wipes_total{{store=\"{store}\"}}"));
    assert_eq!(wipes("control"), 0.0);
    let restore = all("DELETE FROM {T}; INSERT INTO {T} SELECT * FROM saved_{T};");
    scene.run(&format!("BEGIN; {restore} COMMIT;")).await;
    crate::support::server::until("it is read", || in_force() == 1 && wipes("control") >= 1.0).await;
    assert_eq!((wipes("control"), wipes("global")), (1.0, 0.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dump_that_is_restored_in_sqlite_is_counted() {
    a_restored_dump_is_counted(&Store::sqlite()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dump_that_is_restored_in_mariadb_is_counted() {
    a_restored_dump_is_counted(&Store::mariadb().await).await;
}

/// A server that has read live control from the database within a second. Otherwise it would wait for the next reading.
async fn start_informed(settings: impl Fn() -> Settings) -> Weir {
    for _ in 0..10 {
        let weir = start_with(settings()).await;
        if weir.server.services().control.book().edition().is_some() {
            return weir;
        }
        weir.server.stop().await;
    }
    panic!("the database repeatedly takes longer than a second");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_of_a_region_receive_live_control_at_once() {
    let (folder, redis) =
        (tempfile::tempdir().unwrap(), Redis::start(RedisOptions::default()).await.unwrap());
    // Within the test, a change arrives only by reading it back or by a peer's message.
    let schedule = Schedule { controls_ms: 3_600_000, ..Schedule::default() };
    let store = StoreOptions::parse(&redis.url(), "here").unwrap();
    let settings = || Settings { store: Some(store.clone()), ..of("here", &sqlite(folder.path()), schedule) };
    let (one, other) = (start_informed(settings).await, start_informed(settings).await);
    let subscribed = |weir: &Weir| weir.server.services().state(|state, _| state.receives_broadcasts());
    crate::support::server::until("the peers are subscribed", || subscribed(&one) && subscribed(&other))
        .await;
    let mut far = subscriber(&other, ControlsKnown::default()).await;
    next_controls(&mut far).await;
    let began = Instant::now();
    put(&one, json!({"rule": "per-key", "shadow": true})).await;
    let frame = next_controls(&mut far).await;
    eprintln!("a filter of the peer received the control after {:?}", began.elapsed());
    assert_eq!((frame.entries[0].scope.as_str(), frame.entries[0].kind), ("per-key", 6));
}

/// With the schedule that operators have, a change takes 1.2 s at most; at the interval of imports it took 12 s. The bound leaves
/// room for a busy machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_is_soon_in_force_in_other_regions() {
    let store = Store::mariadb().await;
    let scene = store.fresh().await;
    let start = async |region| start_with(of(region, &scene.url, Schedule::default())).await;
    let (here, there) = (start("here").await, start("there").await);
    let mut far = subscriber(&there, ControlsKnown::default()).await;
    next_controls(&mut far).await;
    let mut longest = Duration::ZERO;
    for number in 0..6 {
        let began = Instant::now();
        let client = format!("client{number}");
        put(&here, json!({"namespace": "n", "identifier": client, "limit": 3})).await;
        control_of(&mut far, &client).await;
        longest = longest.max(began.elapsed());
    }
    eprintln!("a filter of another region received a control after {longest:?} at the latest");
    assert!(longest < 4 * Duration::from_millis(Schedule::default().controls_ms), "{longest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bans_by_rules_reach_other_regions_and_yield_to_operators() {
    let folder = tempfile::tempdir().unwrap();
    let here = start_with(of("here", &sqlite(folder.path()), Schedule::for_tests())).await;
    let there = start_with(of("there", &sqlite(folder.path()), Schedule::for_tests())).await;
    let (near, mut far) = (
        subscriber(&here, ControlsKnown::default()).await,
        subscriber(&there, ControlsKnown::default()).await,
    );
    let until_ms = here.server.services().now().0 + 600_000;
    let ban = |identifier: &str, until_ms| Ban {
        workspace: "default".into(),
        namespace: "n".into(),
        identifier: identifier.into(),
        until_ms,
        level: 1,
        rule: "per-key".into(),
        since_ms: 0,
    };
    let proposals = |bans| FilterFrame { bans, ..FilterFrame::default() };
    near.send(proposals(vec![ban("a*", until_ms), ban("a*", until_ms - 9), ban("", until_ms)])).await;
    let control = control_of(&mut far, r"a\*").await;
    assert_eq!((control.kind, control.expires_ms), (3, until_ms));
    near.send(proposals(vec![ban("a*", until_ms + 9)])).await;
    assert_eq!(control_of(&mut far, r"a\*").await.expires_ms, until_ms + 9, "the later end wins");
    let listed = Client::connect(&there).await.send("GET", OVERRIDES, &[], b"").await.body;
    let entry = &listed["overrides"][0];
    assert_eq!((&entry["author"], &entry["automatic"]), (&json!("rule per-key"), &json!(true)), "{listed}");

    put(&here, json!({"namespace": "n", "identifier": r"a\*", "exempt": true})).await;
    near.send(proposals(vec![ban("a*", until_ms + 99), ban("b", until_ms)])).await;
    assert_eq!(control_of(&mut far, "b").await.kind, 3);
    let listed =
        Client::connect(&there).await.send("GET", "/v1/overrides?identifier=a%5C*", &[], b"").await.body;
    assert_eq!(listed["overrides"][0]["exempt"], true, "{listed}");

    // A lifted ban is not restored by a decision that an Envoy made before.
    let since_ms = here.server.services().now().0 - 1;
    near.send(proposals(vec![Ban { since_ms, ..ban("d", until_ms) }])).await;
    assert!(!control_of(&mut far, "d").await.deleted);
    let lift = "/v1/overrides?namespace=n&identifier=d";
    assert_eq!(Client::connect(&here).await.send("DELETE", lift, &[], b"").await.status, 200);
    assert!(control_of(&mut far, "d").await.deleted);
    near.send(proposals(vec![Ban { since_ms, ..ban("d", until_ms + 9) }, ban("e", until_ms)])).await;
    assert_eq!(control_of(&mut far, "e").await.kind, 3);
    let listed = Client::connect(&here).await.send("GET", "/v1/overrides?identifier=d", &[], b"").await.body;
    assert_eq!(listed["overrides"], json!([]), "{listed}");
    near.send(proposals(vec![ban("d", until_ms)])).await;
    assert!(!control_of(&mut far, "d").await.deleted, "a new decision must ban again");

    let mut bad = Peer::open(here.connect().await).await;
    bad.send(hello_frame(2, false)).await;
    bad.send(proposals(vec![ban("c", until_ms); 129])).await;
    assert!(bad.refused().await.0.contains("129 bans"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_changes_what_its_entry_allows() {
    let folder = tempfile::tempdir().unwrap();
    let (reader, plain) = token("reader", "default", "[]");
    let (operator, entry) = token("operator", "shop", "[]");
    let tokens = write(folder.path(), "tokens.yaml", &format!("{plain}{entry}  control: true\n"));
    let api = ApiSettings { tokens_file: Some(tokens), ..ApiSettings::default() };
    let weir = start_with(Settings { api, ..of("here", &sqlite(folder.path()), Schedule::default()) }).await;
    let mut client = Client::connect(&weir).await;
    let body = json!({"namespace": "n", "identifier": "a", "ban": true, "reason": "x"}).to_string();
    for (token, expected) in [(&reader, 403), (&operator, 200)] {
        let bearer = format!("Bearer {token}");
        let headers = [JSON, ("authorization", bearer.as_str())];
        let answer = client.send("PUT", OVERRIDES, &headers, body.as_bytes()).await;
        assert_eq!(answer.status, expected, "{answer:?}");
        for path in [OVERRIDES, "/v1/overrides/audit"] {
            assert_eq!(client.send("GET", path, &headers, b"").await.status, expected, "{path}");
        }
        let problem = if expected == 403 { json!("control_not_allowed") } else { Value::Null };
        assert_eq!(answer.body["error"]["code"], problem);
        if expected == 200 {
            let stored = &answer.body["override"];
            assert_eq!((&stored["workspace"], &stored["author"]), (&json!("shop"), &json!("operator")));
            let reserved = body.replace("\"n\"", "\"~n\"");
            let answer = client.send("PUT", OVERRIDES, &headers, reserved.as_bytes()).await;
            assert_eq!(answer.status, 400, "{answer:?}");
            assert_eq!(answer.body["error"]["field"], "namespace", "{answer:?}");
        }
    }
}

/// A server that answers with JSON is not taken for an aggregator.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_are_no_aggregators_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let weir = start_with(of("here", &sqlite(folder.path()), Schedule::default())).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    let answering = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = [0; 4_096];
            let _ = stream.read(&mut head).await.unwrap();
            let answer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-type: application/json\r\n\r\n{}";
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    let alice = ["--namespace", "n", "--identifier", "alice"];
    for arguments in [vec!["list"], vec!["audit"], [&["set", "--limit", "5"][..], &alice].concat()] {
        let output = run(&weir, &[&arguments[..], &["--api-url", &server]].concat()).await;
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {error}");
        assert!(error.contains("is not an aggregator's HTTP API"), "{arguments:?}: {error}");
    }
    answering.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_no_filter_reported_causes_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let weir = start_with(of("here", &sqlite(folder.path()), Schedule::default())).await;
    let slip = json!({"namespace": "slip", "identifier": "a", "limit": 1});
    let stored = put(&weir, slip.clone()).await;
    assert_eq!(stored["warning"], Value::Null, "no filter has reported rules: {stored}");
    let filter = subscriber(&weir, ControlsKnown::default()).await;
    let rule = RuleCounters {
        name: "keys".into(),
        namespace: "n".into(),
        algorithm: "sliding_window".into(),
        limit: 5,
        window_ms: 60_000,
        identifier_parts: 1,
        allowed: 1,
        ..RuleCounters::default()
    };
    let counters = Counters { rules: vec![rule], workspace: "demo".into() };
    filter.send(FilterFrame { counters: Some(counters), ..FilterFrame::default() }).await;
    let reported = || {
        !weir.server.services().status.counters.lock().rules(weir.server.services().moment().mono).is_empty()
    };
    crate::support::server::until("the filter's rule is reported", reported).await;
    for (body, part) in [
        (slip, Some("namespace \"slip\" in workspace \"default\"; there is demo/n")),
        (
            json!({"rule": "slip", "shadow": true}),
            Some("a rule \"slip\" in workspace \"default\"; there is demo/keys"),
        ),
        (json!({"workspace": "demo", "namespace": "n", "identifier": "a", "limit": 1}), None),
        (
            json!({"workspace": "demo", "namespace": "n", "identifier": "a", "limit": 1, "window": "1h"}),
            Some("with a window of 1h; there is 1m"),
        ),
        (json!({"workspace": "demo", "namespace": "n", "identifier": "a", "limit": 1, "window": "1m"}), None),
        (
            json!({"workspace": "demo", "namespace": "n", "identifier": "a|b", "limit": 1}),
            Some("rules there count identifiers of 1 part, and \"a|b\" matches none of them"),
        ),
    ] {
        let warning = put(&weir, body.clone()).await["warning"].clone();
        let message = warning.as_str();
        assert!(
            message.is_some() == part.is_some() && part.is_none_or(|part| message.unwrap().contains(part)),
            "{body}: {warning}"
        );
    }
    succeeds_with(
        &weir,
        &["set", "--rule", "slip", "--shadow", "off"],
        "\nwarning: no filter of this region",
    )
    .await;
}

async fn run(weir: &Weir, arguments: &[&str]) -> Output {
    let variables = std::env::vars_os().filter(|(name, _)| !name.to_string_lossy().starts_with("WEIR_"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir-aggregator"));
    command.arg("overrides").args(arguments).env_clear().envs(variables).env("USER", "ann");
    command.env("WEIR_API_URL", format!("http://{}", weir.server.http_address().unwrap()));
    command.kill_on_drop(true).output().await.unwrap()
}

async fn succeeds_with(weir: &Weir, arguments: &[&str], part: &str) -> String {
    let output = run(weir, arguments).await;
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && stdout.contains(part), "{arguments:?}: {stdout}{stderr}");
    stdout.into_owned()
}

/// A command about all identifiers that begin with `alice|`.
fn with(first: &[&'static str], more: &[&'static str]) -> Vec<&'static str> {
    [first, &["--namespace", "per-key", "--identifier", "alice|*"], more].concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_commands_print_what_the_api_returns() {
    let folder = tempfile::tempdir().unwrap();
    let weir = start_with(of("here", &sqlite(folder.path()), Schedule::default())).await;
    succeeds_with(&weir, &["list"], "NAMESPACE").await;
    succeeds_with(&weir, &with(&["set"], &["--limit", "5", "--window", "1m"]), "limit 5 in 1m for alice|*")
        .await;
    let expires = ["--ban", "--reason", "spam", "--expires-at", "2199-01-01T00:00:00Z"];
    succeeds_with(
        &weir,
        &with(&["set"], &expires),
        "ban for alice|* in per-key of default until 2199-01-01T00:00:00Z",
    )
    .await;
    succeeds_with(&weir, &with(&["credit", "7"], &["--expires-in", "1h"]), "credit 7").await;
    succeeds_with(&weir, &with(&["reset"], &["--reason", "support"]), "reset for").await;
    succeeds_with(&weir, &["set", "--rule", "per-key", "--shadow", "on"], "shadow on for rule per-key").await;
    succeeds_with(
        &weir,
        &["set", "--namespace", "*", "--network", "10.1.2.3/8", "--exempt"],
        "exempt for 10.0.0.0/8",
    )
    .await;
    assert_eq!(succeeds_with(&weir, &["list"], "shadow on").await.lines().count(), 7);
    kinds_are_listed_newest_first(&weir).await;
    let listed = succeeds_with(&weir, &["list", "--kind", "credit", "--json"], "[").await;
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["credit"]), (1, &json!(7)));
    succeeds_with(&weir, &with(&["delete"], &["--window", "1m"]), "deleted: limit 5 in 1m").await;
    succeeds_with(&weir, &["delete", "--rule", "per-key"], "deleted: shadow on").await;
    let audit = succeeds_with(&weir, &["audit", "--identifier", "alice|*"], "deleted").await;
    assert_eq!(audit.lines().count(), 6, "{audit}");
    assert!(audit.contains("  ann (unverified)  here"), "{audit}");

    // `--matching` finds the controls of patterns, networks and other namespaces that match an identifier.
    for (identifier, count) in [("alice|x", 3), ("10.9.9.9", 1), ("bob", 0)] {
        let listed = succeeds_with(
            &weir,
            &["list", "--matching", identifier, "--namespace", "per-key", "--json"],
            "[",
        )
        .await;
        let listed: Value = serde_json::from_str(&listed).unwrap();
        assert_eq!(listed.as_array().unwrap().len(), count, "{identifier}: {listed}");
    }
    succeeds_with(&weir, &["list", "--matching", "alice|x", "--namespace", "other"], "(none)").await;
    // All remaining controls are deleted at once.
    let deleted =
        succeeds_with(&weir, &with(&["delete"], &["--all-kinds", "--author", ""]), "deleted: credit 7").await;
    assert!(deleted.contains("deleted: ban for") && deleted.contains("deleted: reset for"), "{deleted}");
    succeeds_with(&weir, &["list", "--matching", "alice|x"], "(none)").await;
    succeeds_with(&weir, &["audit"], "  anybody  ").await;
    let odd = ["--namespace", "per-key", "--identifier", r"we\|ird"];
    let with_odd = |first: &[&'static str]| [first, &odd].concat();
    succeeds_with(
        &weir,
        &with_odd(&["set", "--limit", "5", "--expires-in", "7d"]),
        r"limit 5 for we\|ird in",
    )
    .await;
    succeeds_with(
        &weir,
        &with_odd(&["set", "--limit", "5", "--expires-in", "14d"]),
        "; before: limit 5 until 2",
    )
    .await;
    succeeds_with(&weir, &["reset", "--namespace", "*", "--identifier", "*", "--yes"], "reset for *").await;

    wrong_commands_fail(&weir).await;
}

async fn kinds_are_listed_newest_first(weir: &Weir) {
    for (kind, count) in [("limit", 1), ("exempt", 1), ("ban", 1), ("override", 3), ("shadow", 1)] {
        let listed = succeeds_with(weir, &["list", "--kind", kind, "--json"], "[").await;
        let listed: Value = serde_json::from_str(&listed).unwrap();
        let revisions: Vec<_> =
            listed.as_array().unwrap().iter().map(|one| one["revision"].as_u64().unwrap()).collect();
        assert!(
            revisions.len() == count && revisions.is_sorted_by(|one, next| one > next),
            "{kind}: {listed}"
        );
    }
}

/// What is wrong ends with an exit code, and states the reason.
async fn wrong_commands_fail(weir: &Weir) {
    for (arguments, code, part) in [
        (with(&["delete"], &["--window", "1m"]), 1, "see weir-aggregator overrides list"),
        (with(&["delete"], &["--all-kinds"]), 1, "there is no control for the target"),
        (vec!["reset", "--namespace", "*", "--identifier", "*"], 2, "--yes"),
        (
            vec!["set", "--ban", "--namespace", "*", "--identifier", "*"],
            2,
            "deny the requests of all clients; add --yes",
        ),
        (
            vec!["set", "--exempt", "--namespace", "api", "--network", "0.0.0.0/0"],
            2,
            "exempt all clients in the namespace \"api\" from limits; add",
        ),
        (
            vec!["set", "--ban", "--namespace", "per-key", "--identifier", "**", "--reason", "x"],
            2,
            "deny the requests of all clients in the namespace \"per-key\"; add --yes",
        ),
        (
            vec!["set", "--limit", "0", "--namespace", "*", "--identifier", "*"],
            2,
            "a limit of 0 for all clients; add --yes",
        ),
        (with(&["remove"], &["--all-kinds"]), 1, "there is no control for the target"),
        (
            with(&["credit", "7"], &["--expires-in", "1"]),
            2,
            "it has no unit; expected a number with ms, s, m, h or d between 1s and 3650d",
        ),
        (with(&["set"], &["--limit", "1", "--expires-at", "2001-01-01T00:00:00Z"]), 1, "--expires-at is not"),
        (
            with(&["set"], &["--limit", "1", "--window", "5x"]),
            1,
            "--window: \"5x\" is not a duration; expected",
        ),
        (with(&["set"], &["--ban"]), 1, "a ban needs one"),
        (with(&["set"], &["--limit", "10/m"]), 2, "expected a whole number, such as 1000"),
        (with(&["set"], &["--limit", "-5"]), 2, "expected a whole number, such as 1000"),
        (with(&["credit", "many"], &["--expires-in", "1h"]), 2, "expected a whole number, such as 1000"),
        (
            with(&["set"], &["--ban", "--expires-at", "tomorrow"]),
            2,
            "expected a moment in UTC, with Z at its end, such as 2030-01-31T12",
        ),
        (with(&["credit", "7"], &[]), 1, "a credit adds to the limit until it expires"),
        (with(&["set"], &[]), 2, "--limit"),
        (vec!["set", "--limit", "1"], 2, "--identifier"),
        (vec!["list", "--api-url", "nowhere"], 1, "is not a server's URL"),
        (vec!["list", "--api-url", "http://127.0.0.1:1"], 1, "cannot connect to http://127.0.0.1:1"),
    ] {
        let output = run(weir, &arguments).await;
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        assert!(error.contains(part), "{arguments:?}: {error}");
    }
}
