//! Tests with an SQLite file that is lost or replaced while an aggregator has it open, and with one that was never there.

use crate::support::database::packets::look;
use crate::support::database::*;
use crate::support::http::{Client, JSON, OVERRIDES, put};
use crate::support::server::{Weir, settings, start_with, until};
use serde_json::json;
use std::fs;
use std::path::PathBuf;
use weir_aggregator::database::{Database, DatabaseOptions, PacketResult};
use weir_aggregator::server::Settings;
use weir_core::model::schedule::Schedule;

impl Scene {
    fn path(&self) -> PathBuf {
        self.url.strip_prefix("sqlite://").unwrap().into()
    }

    /// Removes the file with its log, as a lost disk does.
    fn lose(&self) {
        fs::remove_file(self.path()).unwrap();
        for end in ["-wal", "-shm"] {
            let _ = fs::remove_file(format!("{}{end}", self.path().display()));
        }
    }
}

/// The error of a call that needs tables names the file, and makes none.
async fn is_missing(scene: &Scene, database: &Database) {
    let error = look(database, WITHIN).await.unwrap_err();
    assert_eq!(error.reason(), "schema", "{error}");
    let place = format!("{} (--database-url): there is no such file", scene.url);
    assert!(error.to_string().starts_with(&place), "{error}");
    assert!(!scene.path().exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_lost_is_missed_at_once() {
    let store = Store::sqlite();
    let scene = store.fresh().await;
    let (here, there) = (scene.open("here"), scene.open("there"));
    publish(&there, &rows("x", 3, 1)).await;
    assert_eq!(import(&here).await.len(), 3);
    scene.lose();
    is_missing(&scene, &here).await;
    is_missing(&scene, &here).await;
    scene.open("other").migrate().await.unwrap();
    assert_eq!(look(&here, WITHIN).await, Ok(PacketResult::default()));
    assert_eq!(import(&here).await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_replaced_is_read_at_once() {
    let store = Store::sqlite();
    let (scene, backup) = (store.fresh().await, store.fresh().await);
    publish(&scene.open("there"), &rows("x", 3, 1)).await;
    publish(&backup.open("there"), &rows("x", 2, 1)).await;
    let here = scene.open("here");
    assert_eq!(import(&here).await.len(), 3);
    scene.lose();
    fs::rename(backup.path(), scene.path()).unwrap();
    assert_eq!(import(&here).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_migration_makes_a_file() {
    // Its folder goes with the store.
    let gone = Store::sqlite();
    let scene = gone.empty().await;
    drop(gone);
    let error = scene.open("here").migrate().await.unwrap_err();
    assert!(error.to_string().contains("unable to open the database file"), "{error}");
    let store = Store::sqlite();
    let scene = store.empty().await;
    is_missing(&scene, &scene.open("here")).await;
    fs::write(scene.path(), "").unwrap();
    let error = scene.open("here").check_schema(WITHIN).await.unwrap_err();
    let expected = format!("{} (--database-url): no such table: ", scene.url);
    assert!(error.reason() == "schema" && error.to_string().starts_with(&expected), "{error}");
    assert!(error.to_string().ends_with("run weir-aggregator migrate"), "{error}");
    scene.open("here").migrate().await.unwrap();
    scene.open("here").check_schema(WITHIN).await.unwrap();
}

async fn start(scene: &Scene) -> Weir {
    let database =
        DatabaseOptions { url: scene.url.clone(), read_url: None, region: "test-region".to_owned() };
    start_with(Settings {
        database: Some(database),
        migrate: true,
        schedule: Schedule::for_tests(),
        ..settings()
    })
    .await
}

/// As of a lost disk: nothing can be set, what was set stays in force until there are tables again, and the loss is counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn live_control_of_a_lost_file_stays_until_there_are_tables() {
    let store = Store::sqlite();
    let scene = store.empty().await;
    let weir = start(&scene).await;
    let ban = |who: &str| json!({"namespace": "n", "identifier": who, "ban": true, "reason": "test"});
    put(&weir, ban("alice")).await;
    let in_force = || {
        let services = weir.server.services();
        services.control.book().in_force(services.now())
    };
    until("it is in force", || in_force() == 1).await;
    scene.lose();
    let body = ban("bob").to_string();
    let answer = Client::connect(&weir).await.send("PUT", OVERRIDES, &[JSON], body.as_bytes()).await;
    assert_eq!(answer.status, 503, "{answer:?}");
    let errors = r#"weir_ratelimit_global_sync_errors_total{reason="schema"}"#;
    let failed = weir.metric(errors);
    until("an exchange has failed", || weir.metric(errors) > failed).await;
    assert_eq!(in_force(), 1);
    scene.open("other").migrate().await.unwrap();
    let wipes = r#"weir_aggregator_store_wipes_total{store="global"}"#;
    until("the loss is counted", || weir.metric(wipes) >= 1.0 && in_force() == 0).await;
    put(&weir, ban("carol")).await;
    assert_eq!(scene.number("SELECT COUNT(*) FROM weir_controls").await, 1);
}
