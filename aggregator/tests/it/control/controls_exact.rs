//! Tests of live control for exact limits through the HTTP API: sliding logs in a real Redis and in memory, ledgers in
//! real databases.

use crate::support::database::ledger::{ZONE, set_zone};
use crate::support::database::{Scene, Store, run};
use crate::support::http::{Client, OVERRIDES, put, until_read_back};
use crate::support::server::{Weir, settings, start_with, until};
use redis::Commands;
use serde_json::{Value, json};
use weir_aggregator::database::DatabaseOptions;
use weir_aggregator::redis::StoreOptions;
use weir_aggregator::server::Settings;
use weir_core::model::exact::MAX_LOG_LIMIT;
use weir_core::model::schedule::Schedule;
use weir_envoy::{Redis, RedisOptions};

/// The limit of the logs' checks, and the rate of the ledger's zone.
const RATE: u64 = 2;

/// An aggregator of a region, with live control in the shared database.
async fn start(region: &str, scene: &Scene, redis: Option<&Redis>) -> Weir {
    let database = DatabaseOptions { url: scene.url.clone(), read_url: None, region: region.to_owned() };
    let store = redis.map(|redis| StoreOptions::parse(&redis.url(), region).unwrap());
    let schedule = Schedule::for_tests();
    let settings =
        Settings { region: region.into(), database: Some(database), store, schedule, ..settings() };
    let weir = start_with(settings).await;
    let services = weir.server.services();
    until("Redis is found", || redis.is_none() || services.store_is_usable()).await;
    until("live control has been read", || services.control.book().edition().is_some()).await;
    weir
}

/// How an algorithm is requested, and under which name operators set its controls.
struct Algorithm {
    fields: Value,
    namespace: &'static str,
}

impl Algorithm {
    fn log() -> Algorithm {
        let fields = json!({"algorithm": "sliding_log", "namespace": "n", "limit": RATE, "duration": "1h"});
        Algorithm { fields, namespace: "n" }
    }

    /// Over HTTP a ledger has no namespace, so only controls for all namespaces apply to it.
    fn ledger() -> Algorithm {
        Algorithm { fields: json!({"algorithm": "ledger", "zone": ZONE}), namespace: "*" }
    }

    fn check(&self, identifier: &str) -> Value {
        let mut check = self.fields.clone();
        check["identifier"] = identifier.into();
        check
    }

    async fn decide(&self, weir: &Weir, identifier: &str) -> Value {
        let mut check = self.check(identifier);
        check["timeout"] = "5s".into();
        let answer = Client::connect(weir).await.post("/v1/check", &check).await;
        assert_eq!((answer.status, &answer.body["decided"]), (200, &json!(true)), "{answer:?}");
        answer.body
    }

    /// Sends several requests and returns the last answer.
    async fn decides(&self, weir: &Weir, identifier: &str, passes: &[bool]) -> Value {
        let mut last = Value::Null;
        for (at, passes) in passes.iter().enumerate() {
            last = self.decide(weir, identifier).await;
            assert_eq!(last["allowed"], *passes, "{identifier}, answer {at}: {last}");
        }
        last
    }

    async fn set(&self, weir: &Weir, identifier: &str, what: Value) -> Value {
        let mut body = json!({"namespace": self.namespace, "identifier": identifier});
        body.as_object_mut().unwrap().extend(what.as_object().unwrap().clone());
        put(weir, body).await
    }

    async fn take_back(&self, weir: &Weir, identifier: &str, kind: &str) {
        let namespace = self.namespace.replace('*', "%2A");
        let path = format!("{OVERRIDES}?namespace={namespace}&identifier={identifier}&kind={kind}");
        let answer = Client::connect(weir).await.send("DELETE", &path, &[], b"").await;
        assert_eq!(answer.status, 200, "{answer:?}");
        until_read_back(weir, &answer.body).await;
    }
}

async fn a_ban_denies_and_counts_nothing(algorithm: &Algorithm, weir: &Weir) {
    algorithm.decides(weir, "mallory", &[true]).await;
    algorithm.set(weir, "mallory", json!({"ban": true, "reason": "spam", "expires_in": "1h"})).await;
    let denied = algorithm.decides(weir, "mallory", &[false, false, false]).await;
    let wait = denied["retry_after_ms"].as_u64().unwrap();
    assert!((3_500_000..=3_600_000).contains(&wait), "until the ban ends: {denied}");
    assert!(denied["transaction"].is_null(), "nothing is recorded: {denied}");
    algorithm.take_back(weir, "mallory", "override").await;
    algorithm.decides(weir, "mallory", &[true, false]).await;

    algorithm.set(weir, "eve*", json!({"ban": true, "reason": "spam"})).await;
    let denied = algorithm.decides(weir, "eve-1", &[false]).await;
    assert!(denied["retry_after_ms"].is_null(), "a permanent ban has no end: {denied}");
}

async fn the_exempt_pass_uncounted(algorithm: &Algorithm, weir: &Weir) {
    algorithm.decides(weir, "ann", &[true, true, false]).await;
    algorithm.decides(weir, "dan", &[true]).await;
    for name in ["ann", "dan"] {
        algorithm.set(weir, name, json!({"exempt": true})).await;
        let passed = algorithm.decides(weir, name, &[true, true, true, true]).await;
        assert!(passed["transaction"].is_null(), "nothing is recorded: {passed}");
        algorithm.take_back(weir, name, "override").await;
    }
    algorithm.decides(weir, "ann", &[false]).await;
    algorithm.decides(weir, "dan", &[true, false]).await;
}

async fn a_reset_counts_anew_until_it_is_taken_back(algorithm: &Algorithm, weir: &Weir) {
    algorithm.decides(weir, "carol", &[true, true, false]).await;
    for _ in 0..2 {
        algorithm.set(weir, "carol", json!({"reset": true})).await;
        let denied = algorithm.decides(weir, "carol", &[true, true, false]).await;
        assert_eq!((&denied["limit"], &denied["remaining"]), (&json!(RATE), &json!(0)), "{denied}");
    }
    algorithm.take_back(weir, "carol", "reset").await;
    algorithm.decides(weir, "carol", &[false]).await;
}

/// The other aggregator receives the control by itself, and both count in one place.
async fn both_apply_controls(algorithm: &Algorithm, one: &Weir, other: &Weir) {
    algorithm.decides(one, "grace", &[true]).await;
    algorithm.decides(other, "grace", &[true, false]).await;
    until_read_back(other, &algorithm.set(one, "grace", json!({"reset": true})).await).await;
    algorithm.decides(other, "grace", &[true]).await;
    algorithm.decides(one, "grace", &[true, false]).await;
    algorithm.decides(other, "grace", &[false]).await;
    until_read_back(other, &algorithm.set(one, "grace", json!({"exempt": true})).await).await;
    algorithm.decides(other, "grace", &[true]).await;
    until_read_back(other, &algorithm.set(one, "grace", json!({"ban": true, "reason": "spam"})).await).await;
    algorithm.decides(other, "grace", &[false]).await;
}

/// The behaviour of both algorithms.
async fn applies_controls(algorithm: &Algorithm, one: &Weir, other: &Weir) {
    a_ban_denies_and_counts_nothing(algorithm, one).await;
    the_exempt_pass_uncounted(algorithm, one).await;
    a_reset_counts_anew_until_it_is_taken_back(algorithm, one).await;
    both_apply_controls(algorithm, one, other).await;
}

async fn a_log_applies_limits_and_credits(weir: &Weir) {
    let log = Algorithm::log();
    log.decides(weir, "bob", &[true, true, false]).await;
    log.set(weir, "bob", json!({"limit": 4})).await;
    let denied = log.decides(weir, "bob", &[true, true, false]).await;
    assert_eq!(denied["limit"], 4, "{denied}");
    log.set(weir, "bob", json!({"limit": 3})).await;
    let denied = log.decides(weir, "bob", &[false]).await;
    assert_eq!((&denied["limit"], &denied["remaining"]), (&json!(3), &json!(0)), "{denied}");
    log.set(weir, "bob", json!({"limit": 100, "window": "1m"})).await;
    log.decides(weir, "bob", &[false]).await;
    log.set(weir, "bob", json!({"limit": 5, "window": "1h"})).await;
    log.decides(weir, "bob", &[true, false]).await;

    log.decides(weir, "kate", &[true, true, false]).await;
    log.set(weir, "kate", json!({"credit": 1, "expires_in": "1h"})).await;
    let denied = log.decides(weir, "kate", &[true, false]).await;
    assert_eq!(denied["limit"], RATE + 1, "{denied}");
    log.set(weir, "kate", json!({"limit": MAX_LOG_LIMIT + 9})).await;
    let passed = log.decides(weir, "kate", &[true]).await;
    assert_eq!(passed["limit"], MAX_LOG_LIMIT, "the limit must be that of a log: {passed}");
}

/// The identifiers of the logs in Redis, with their epochs.
fn logs(redis: &Redis, identifier: &str) -> Vec<String> {
    let mut hand = redis::Client::open(redis.url()).unwrap().get_connection().unwrap();
    let mut names: Vec<String> = hand.keys(format!("*/{identifier}/*:log")).unwrap();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_in_redis() {
    let (store, redis) = (Store::sqlite(), Redis::start(RedisOptions::default()).await.unwrap());
    let scene = store.fresh().await;
    let (one, other) = (start("here", &scene, Some(&redis)).await, start("here", &scene, Some(&redis)).await);
    applies_controls(&Algorithm::log(), &one, &other).await;
    a_log_applies_limits_and_credits(&one).await;
    assert_eq!(logs(&redis, "eve-1").len(), 0, "a banned identifier must have no log");
    assert_eq!(logs(&redis, "carol").len(), 3, "one of each epoch: {:?}", logs(&redis, "carol"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_in_memory() {
    let store = Store::sqlite();
    let weir = start("here", &store.fresh().await, None).await;
    let log = Algorithm::log();
    a_ban_denies_and_counts_nothing(&log, &weir).await;
    the_exempt_pass_uncounted(&log, &weir).await;
    a_reset_counts_anew_until_it_is_taken_back(&log, &weir).await;
    a_log_applies_limits_and_credits(&weir).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_in_mariadb() {
    let store = Store::mariadb().await;
    run!(&store, a_ledger);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_in_mysql() {
    if let Some(store) = Store::mysql().await {
        run!(&store, a_ledger);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_in_sqlite() {
    run!(&Store::sqlite(), a_ledger);
}

async fn a_ledger(store: &Store) {
    let scene = store.fresh().await;
    set_zone(&scene.open("here"), ZONE, RATE, 3_600).await;
    let (here, there) = (start("here", &scene, None).await, start("there", &scene, None).await);
    applies_controls(&Algorithm::ledger(), &here, &there).await;
    a_ledger_has_its_own_rate_and_no_namespace(&here).await;
    // A banned or exempt identifier, or a check after a denial of another check, causes no attempt.
    let attempts = async |bucket: &str| {
        let hex: String = bucket.bytes().map(|byte| format!("{byte:02x}")).collect();
        scene.number(&format!("SELECT COUNT(*) FROM zone_txn WHERE bucket_key = X'{hex}'")).await
    };
    assert_eq!((attempts("mallory").await, attempts("eve-1").await, attempts("ann").await), (3, 0, 4));
    all_checks_of_a_request_pass_or_none(&here).await;
    assert_eq!((attempts("heidi").await, attempts("ivan").await), (0, 0));
}

async fn a_ledger_has_its_own_rate_and_no_namespace(weir: &Weir) {
    let ledger = Algorithm::ledger();
    ledger.set(weir, "bob", json!({"limit": 9})).await;
    ledger.set(weir, "bob", json!({"credit": 9, "expires_in": "1h"})).await;
    put(weir, json!({"namespace": "n", "identifier": "bob", "ban": true, "reason": "elsewhere"})).await;
    let denied = ledger.decides(weir, "bob", &[true, true, false]).await;
    assert_eq!(denied["limit"], RATE, "{denied}");
}

/// A control of one of several checks decides the whole request.
async fn all_checks_of_a_request_pass_or_none(weir: &Weir) {
    let (log, ledger) = (Algorithm::log(), Algorithm::ledger());
    let both = json!({"checks": [log.check("heidi"), ledger.check("ivan")], "timeout": "5s"});
    let all = async |success: bool| {
        let answer = Client::connect(weir).await.post("/v1/check/batch", &both).await.body;
        assert_eq!((&answer["allowed"], &answer["decided"]), (&json!(success), &json!(true)), "{answer}");
        answer["checks"].clone()
    };
    ledger.set(weir, "ivan", json!({"ban": true, "reason": "spam"})).await;
    let checks = all(false).await;
    assert_eq!((&checks[0]["decided"], &checks[1]["decided"]), (&json!(false), &json!(true)), "{checks}");
    ledger.set(weir, "ivan", json!({"exempt": true})).await;
    for remaining in [RATE - 1, RATE - 2] {
        assert_eq!(all(true).await[0]["remaining"], remaining, "the ban must not charge the other check");
    }
    all(false).await;
    log.set(weir, "heidi", json!({"reset": true})).await;
    assert_eq!(all(true).await[0]["remaining"], RATE - 1);
}
