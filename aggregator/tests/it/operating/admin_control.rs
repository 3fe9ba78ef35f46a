//! Tests of what the admin listener shows of live control, of its search, and of logs and ledgers.

use crate::support::http::{Client, put};
use crate::support::server::{HOUR_MS, Weir, settings, start, start_with, until};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use tokio::net::TcpStream;
use weir_aggregator::admin::Links;
use weir_aggregator::cli::terminal::{Snapshot, explained, tables};
use weir_aggregator::database::{DatabaseOptions, ZoneChange};
use weir_aggregator::server::Settings;
use weir_core::model::schedule::Schedule;
use weir_core::model::wire::{Counters, FilterFrame, RuleCounters};

async fn get(weir: &Weir, path: &str) -> (u16, Value) {
    let connection = TcpStream::connect(weir.server.admin_address()).await.unwrap();
    let answer = Client::over(connection).await.send("GET", path, &[], b"").await;
    (answer.status, answer.body)
}

async fn shown(weir: &Weir, path: &str) -> Value {
    let (status, body) = get(weir, path).await;
    assert_eq!(status, 200, "{path}: {body}");
    body
}

/// A region with a database in `folder`.
async fn with_database(folder: &Path) -> Weir {
    let url = format!("sqlite://{}/weir.db", folder.display());
    let database = Some(DatabaseOptions { url, read_url: None, region: "test-region".into() });
    let schedule = Schedule::for_tests();
    start_with(Settings { database, migrate: true, schedule, ..settings() }).await
}

fn revisions(body: &Value) -> Vec<u64> {
    let of = |one: &Value| one["revision"].as_u64().unwrap();
    body["overrides"].as_array().unwrap().iter().map(of).collect()
}

#[tokio::test]
async fn live_control_is_shown_with_its_authors_reasons_and_history() {
    const HOSTILE: &str = "<img src=x onerror=alert(1)>";
    let folder = tempfile::tempdir().unwrap();
    let weir = with_database(folder.path()).await;
    until("the database was read", || weir.server.services().control.book().edition().is_some()).await;
    let empty = shown(&weir, "/v1/overrides").await;
    assert_eq!((&empty["in_force"], &empty["database"]), (&0.into(), &"read".into()), "{empty}");

    let ban = json!({"namespace": "api", "identifier": HOSTILE, "ban": true, "reason": "Fraud", "author": "ann", "expires_in": "1h"});
    put(&weir, ban).await;
    put(&weir, json!({"namespace": "*", "network": "203.0.113.0/24", "exempt": true, "author": "bob"})).await;
    put(&weir, json!({"namespace": "api", "identifier": "alice", "limit": 5})).await;
    put(&weir, json!({"namespace": "api", "identifier": "alice", "limit": 7, "reason": "launch"})).await;
    put(&weir, json!({"rule": "keys", "shadow": true, "workspace": "default"})).await;
    let all = shown(&weir, "/v1/overrides").await;
    assert_eq!(
        (&all["in_force"], &all["bans"], &all["matching"]),
        (&4.into(), &1.into(), &4.into()),
        "{all}"
    );
    let found = revisions(&all);
    assert!(found.is_sorted_by(|one, next| one > next) && found.len() == 4, "the newest first: {found:?}");
    assert_eq!((&all["overrides"][0]["rule"], &all["overrides"][1]["limit"]), (&"keys".into(), &7.into()));
    let ban = &all["overrides"][3];
    assert_eq!((&ban["identifier"], &ban["reason"]), (&HOSTILE.into(), &"Fraud".into()));
    assert_eq!((&ban["author"], &ban["automatic"]), (&"ann (unverified)".into(), &false.into()));
    // The end counts from the call, and the database has it some milliseconds later.
    let lasts_ms = ban["expires_at"].as_u64().unwrap() - ban["created_at"].as_u64().unwrap();
    assert!((HOUR_MS - 60_000..=HOUR_MS).contains(&lasts_ms), "{ban}");

    lists_have_pages_and_filters(&weir, &found).await;

    // A deleted control is not in force; the audit has it.
    let mut client = Client::connect(&weir).await;
    let path = "/v1/overrides?namespace=api&identifier=alice&reason=over";
    let deleted = client.send("DELETE", path, &[], b"").await;
    crate::support::http::until_read_back(&weir, &deleted.body).await;
    assert_eq!(shown(&weir, "/v1/overrides").await["in_force"], 3);
    let audit = shown(&weir, "/v1/overrides/audit?limit=2").await;
    let change = &audit["changes"][0];
    assert_eq!((&change["action"], &change["reason"]), (&"deleted".into(), &"over".into()), "{change}");
    assert_eq!((&change["before"]["limit"], &change["region"]), (&7.into(), &"test-region".into()));
    let older = shown(&weir, &format!("/v1/overrides/audit?before={}", audit["next"])).await;
    assert_eq!((older["changes"].as_array().unwrap().len(), &older["next"]), (4, &Value::Null), "{older}");
    let of_alice = shown(&weir, "/v1/overrides/audit?namespace=api&identifier=alice").await;
    assert_eq!(of_alice["changes"].as_array().unwrap().len(), 3);

    // A key's explanation names who banned it and why.
    let body = shown(&weir, "/v1/keys?namespace=api&identifier=%3Cimg%20src=x%20onerror=alert(1)%3E").await;
    let entry = &body["control"]["entries"][0];
    assert_eq!((&entry["author"], &entry["reason"]), (&"ann (unverified)".into(), &"Fraud".into()), "{body}");
    assert_eq!(body["named"], HOSTILE);
    let lines = explained::lines(&serde_json::from_value(body).unwrap()).join("\n");
    assert!(lines.contains(", by ann (unverified): Fraud)"), "{lines}");

    for (method, path) in [("PUT", "/v1/overrides"), ("DELETE", "/v1/overrides?namespace=api&identifier=x")] {
        let connection = TcpStream::connect(weir.server.admin_address()).await.unwrap();
        let answer = Client::over(connection).await.send(method, path, &[], b"{}").await;
        assert_eq!(answer.status, 405, "nothing can be changed on the admin listener");
    }
}

/// The list of live control has pages, and is filtered by kind and text. `found` are all revisions, the newest first.
async fn lists_have_pages_and_filters(weir: &Weir, found: &[u64]) {
    let first = shown(weir, "/v1/overrides?limit=3").await;
    let rest = shown(weir, &format!("/v1/overrides?limit=3&before={}", first["next"])).await;
    assert_eq!([revisions(&first), revisions(&rest)].concat(), found);
    assert_eq!((&rest["next"], &rest["matching"]), (&Value::Null, &4.into()));
    for (query, expected) in [
        ("kind=ban", 1),
        ("kind=limit", 1),
        ("kind=credit", 0),
        ("text=FRAUD", 1),
        ("text=ann", 1),
        ("text=203.0", 1),
        ("text=ali", 1),
        ("text=keys", 1),
        ("text=default", 4),
        ("kind=ban&text=alice", 0),
    ] {
        let body = shown(weir, &format!("/v1/overrides?{query}")).await;
        assert_eq!(
            (&body["matching"], revisions(&body).len() as u64),
            (&expected.into(), expected),
            "{query}"
        );
    }
}

#[tokio::test]
async fn live_control_is_shown_without_its_database() {
    let folder = tempfile::tempdir().unwrap();
    let weir = with_database(folder.path()).await;
    put(&weir, json!({"namespace": "api", "identifier": "alice", "ban": true, "reason": "r"})).await;
    shown(&weir, "/v1/overrides").await;
    put(&weir, json!({"namespace": "api", "identifier": "bob", "ban": true, "reason": "r"})).await;
    let file = folder.path().join("weir.db");
    let mut connection = sqlite(&file).await;
    sqlx::raw_sql(
        "ALTER TABLE weir_controls RENAME TO elsewhere; ALTER TABLE weir_control_audit RENAME TO nowhere",
    )
    .execute(&mut connection)
    .await
    .unwrap();
    let body = shown(&weir, "/v1/overrides").await;
    assert_eq!((&body["bans"], &body["database"]), (&2.into(), &"unavailable".into()), "{body}");
    let [bob, alice] = &body["overrides"].as_array().unwrap()[..] else { panic!("{body}") };
    assert_eq!((&bob["identifier"], &bob["author"]), (&"bob".into(), &Value::Null));
    assert_eq!(
        (&alice["identifier"], &alice["author"]),
        (&"alice".into(), &"anybody".into()),
        "as read before"
    );
    let (status, body) = get(&weir, "/v1/overrides/audit").await;
    assert_eq!(status, 503, "{body}");
    assert!(!body.to_string().contains("weir_control_audit"), "no detail of the database is shown: {body}");

    let alone = start(None).await;
    assert_eq!(shown(&alone, "/v1/overrides").await["database"], "none");
    let (status, body) = get(&alone, "/v1/overrides/audit").await;
    assert!(status == 503 && body["error"].as_str().unwrap().contains("--database-url"), "{body}");
}

async fn sqlite(file: &Path) -> sqlx::SqliteConnection {
    use sqlx::{Connection, SqliteConnection, sqlite::SqliteConnectOptions};
    SqliteConnection::connect_with(&SqliteConnectOptions::new().filename(file)).await.unwrap()
}

#[tokio::test]
async fn the_search_finds_keys_that_are_far_from_their_limits() {
    let weir = start(None).await;
    let mut peer = weir.join(1, false).await;
    for id in 0..150 {
        peer.send(weir.report(id + 1, &format!("busy-{id}"), 900)).await;
        peer.next_with(|frame| frame.ack).await;
    }
    peer.send(weir.report(151, "needle in Hay", 1)).await;
    peer.next_with(|frame| frame.ack).await;
    let top = shown(&weir, "/v1/top").await;
    assert!(!top.to_string().contains("needle"), "it is not among the first hundred");
    let found = shown(&weir, "/v1/top?text=LE%20in%20hay&limit=20").await;
    let names: Vec<_> = found["keys"].as_array().unwrap().iter().map(|key| &key["identifier"]).collect();
    assert_eq!((names, &found["keys_limited"]), (vec![&json!("needle in Hay")], &1.into()), "{found}");
    assert_eq!(shown(&weir, "/v1/top?text=nobody").await["keys"], json!([]));
    assert_eq!(shown(&weir, "/v1/top?text=busy&limit=20").await["keys"].as_array().unwrap().len(), 20);
}

#[tokio::test]
async fn the_page_has_the_documentation_of_its_version_and_a_link_to_grafana() {
    let alone = start(None).await;
    assert_eq!(shown(&alone, "/v1/links").await, json!({"grafana": null}));
    let admin_links = Links::parse("https://grafana.example.com/d/weir").unwrap();
    let weir = start_with(Settings { admin_links, ..settings() }).await;
    assert_eq!(shown(&weir, "/v1/links").await, json!({"grafana": "https://grafana.example.com/d/weir"}));
    let connection = TcpStream::connect(weir.server.admin_address()).await.unwrap();
    let page = Client::over(connection).await.send("GET", "/docs/aggregator/OVERRIDES.md", &[], b"").await;
    assert_eq!(
        (page.status, &page.headers["content-type"]),
        (200, &"text/html; charset=utf-8".parse().unwrap())
    );
    assert!(page.headers["content-security-policy"].to_str().unwrap().starts_with("default-src 'none'"));
    let (status, body) = get(&weir, "/docs/../Cargo.toml").await;
    assert!(status == 404 && body["error"].as_str().unwrap().contains("aggregator/OVERRIDES.md"), "{body}");
}

/// A filter's rules with exact limits.
fn exact_rules() -> FilterFrame {
    let rule = |name: &str, algorithm: &str, limit, zone| RuleCounters {
        identifier_parts: 1,
        name: name.into(),
        namespace: name.into(),
        algorithm: algorithm.into(),
        limit,
        window_ms: if zone == 0 { HOUR_MS } else { 0 },
        zone,
        ..RuleCounters::default()
    };
    let rules = vec![rule("logins", "sliding_log", 3, 0), rule("transfers", "ledger", 0, 7)];
    let counters = Counters { rules, workspace: "default".into() };
    FilterFrame { counters: Some(counters), ..FilterFrame::default() }
}

#[tokio::test]
async fn a_banned_key_is_listed_as_one_that_waits() {
    let folder = tempfile::tempdir().unwrap();
    let weir = with_database(folder.path()).await;
    until("the database was read", || weir.server.services().control.book().edition().is_some()).await;
    let mut client = Client::connect(&weir).await;
    let check = json!({"namespace": "api", "identifier": "alice", "limit": 10, "duration": "1h"});
    assert_eq!(client.post("/v1/check", &check).await.body["allowed"], true);
    let wait_ms =
        async || shown(&weir, "/v1/top?text=alice").await["keys"][0]["wait_ms"].as_u64().unwrap_or(u64::MAX);
    assert_eq!(wait_ms().await, 0);
    let control = |control: Value| {
        let mut body = json!({"namespace": "api", "identifier": "alice", "author": "ann", "reason": "spam"});
        body.as_object_mut().unwrap().extend(control.as_object().unwrap().clone());
        body
    };
    put(&weir, control(json!({"ban": true, "expires_in": "2h"}))).await;
    assert!((HOUR_MS + 1..=2 * HOUR_MS).contains(&wait_ms().await));
    put(&weir, control(json!({"ban": true}))).await;
    assert_eq!(wait_ms().await, u64::MAX, "it has no end");
    put(&weir, control(json!({"exempt": true}))).await;
    assert_eq!(wait_ms().await, 0);
}

#[tokio::test]
async fn logs_and_ledgers_are_listed_explained_and_never_charged_by_looking() {
    let folder = tempfile::tempdir().unwrap();
    let weir = with_database(folder.path()).await;
    let peer = weir.join(1, true).await;
    peer.send(exact_rules()).await;
    let services = weir.server.services();
    until("the rules are reported", || {
        !services.status.counters.lock().rules(services.moment().mono).is_empty()
    })
    .await;
    let zone = ZoneChange::new(7, 4, Duration::from_secs(3_600), None).unwrap();
    let database = &services.global.as_ref().unwrap().database;
    database.set_zone(&zone, Duration::from_secs(5)).await.unwrap();

    let mut client = Client::connect(&weir).await;
    let log = json!({"namespace": "logins", "identifier": "a|b", "algorithm": "sliding_log", "limit": 3, "duration": "1h"});
    let ledger = json!({"identifier": "alice", "algorithm": "ledger", "zone": 7});
    for allowed in [true, true, true, false, false] {
        assert_eq!(client.post("/v1/check", &log).await.body["allowed"], allowed);
    }
    for _ in 0..2 {
        assert_eq!(client.post("/v1/check", &ledger).await.body["allowed"], true);
    }
    for _ in 0..3 {
        a_log_and_a_ledger_are_shown(&weir).await;
    }
    // Nobody has used these yet, and they are explained nevertheless.
    let body = shown(&weir, "/v1/keys?namespace=logins&identifier=nobody").await;
    assert_eq!((&body["exact"][0]["used"], &body["unknown"]), (&0.into(), &Value::Null), "{body}");
    let body = shown(&weir, "/v1/keys?zone=9&identifier=alice").await;
    assert_eq!(body["exact"][0]["trouble"], "the zone does not exist", "{body}");

    live_control_applies_to_logs_and_ledgers(&weir).await;

    let snapshot = Snapshot {
        top: serde_json::from_value(shown(&weir, "/v1/top").await).unwrap(),
        ..Snapshot::default()
    };
    let table = tables::keys(&snapshot.top, 120);
    assert!(table[0].contains("KIND") && table[0].contains("DENIED"), "{table:#?}");
    let line = table.iter().find(|line| line.contains("logins")).unwrap();
    assert!(line.contains(" log ") && line.contains("100%"), "{table:#?}");
    assert!(table.iter().any(|line| line.contains("ledger")), "{table:#?}");

    // A ledger whose database fails is explained as such, and soon.
    let mut connection = sqlite(&folder.path().join("weir.db")).await;
    sqlx::raw_sql("ALTER TABLE zone_txn RENAME TO elsewhere").execute(&mut connection).await.unwrap();
    let body = shown(&weir, "/v1/keys?zone=7&identifier=dora").await;
    assert_eq!(body["exact"][0]["trouble"], "the database does not answer", "{body}");
}

async fn live_control_applies_to_logs_and_ledgers(weir: &Weir) {
    put(weir, json!({"namespace": "logins", "identifier": r"a\|b", "limit": 9})).await;
    put(weir, json!({"namespace": "*", "identifier": "alice", "ban": true, "reason": "spam"})).await;
    let body = shown(weir, r"/v1/keys?namespace=logins&identifier=a%5C|b").await;
    assert_eq!(
        (&body["exact"][0]["limit"], &body["exact"][0]["passes"]),
        (&9.into(), &true.into()),
        "{body}"
    );
    let body = shown(weir, "/v1/keys?zone=7&identifier=alice").await;
    assert_eq!(
        (&body["exact"][0]["used"], &body["exact"][0]["passes"]),
        (&2.into(), &false.into()),
        "{body}"
    );
    put(weir, json!({"namespace": "*", "identifier": "alice", "reset": true})).await;
    let body = shown(weir, "/v1/keys?zone=7&identifier=alice").await;
    assert_eq!(body["exact"][0]["used"], 0, "a reset begins another bucket: {body}");
}

/// The log has denied twice, and the ledger has room.
async fn a_log_and_a_ledger_are_shown(weir: &Weir) {
    let top = shown(weir, "/v1/top").await;
    let [first, second] = &top["keys"].as_array().unwrap()[..] else { panic!("{top}") };
    let facts = |key: &Value| {
        ["algorithm", "namespace", "identifier", "used", "limit", "denied", "zone"]
            .map(|name| key[name].clone())
    };
    assert_eq!(json!(facts(first)), json!(["sliding_log", "logins", r"a\|b", 3, 3, 2, null]));
    assert_eq!(json!(facts(second)), json!(["ledger", "transfers", "alice", 2, 4, 0, 7]));
    assert_eq!((&top["keys_over"], &top["keys_past_half"]), (&1.into(), &1.into()));
    assert!(first["wait_ms"].as_u64().unwrap() > HOUR_MS / 2 && second["wait_ms"] == 0, "{top}");

    let counted = first["counted"].as_str().unwrap();
    let body = shown(weir, &format!("/v1/keys?namespace=logins&counted={counted}")).await;
    let exact = &body["exact"][0];
    let facts = ["name", "algorithm", "used", "limit", "remaining", "passes", "denied"];
    assert_eq!(json!(facts.map(|name| &exact[name])), json!(["logins", "sliding_log", 3, 3, 0, false, 2]));
    let lines = explained::lines(&serde_json::from_value(body).unwrap()).join("\n");
    for part in [
        "exact log of 1h, rule logins",
        "would be denied, and would pass again in",
        "3 of 3 (100%)",
        "2 denied",
    ] {
        assert!(lines.contains(part), "no {part:?} in {lines}");
    }
    for place in ["namespace=transfers", "zone=7"] {
        let body = shown(weir, &format!("/v1/keys?{place}&identifier=alice")).await;
        let exact = &body["exact"][0];
        let facts = ["zone", "used", "limit", "remaining", "passes", "window_ms"];
        assert_eq!(json!(facts.map(|name| &exact[name])), json!([7, 2, 4, 2, true, HOUR_MS]), "{body}");
    }
}
