//! Tests with database servers that freeze, crash, restart, block or refuse.

use crate::support::database::packets::{Node, look};
use crate::support::database::*;
use std::time::{Duration, Instant};
use weir_aggregator::database::{Database, DatabaseOptions, PacketResult};
use weir_envoy::{DatabaseServer, ports};

/// Less than any lock wait.
const SHORT: Duration = Duration::from_millis(700);
/// Tolerance for the end of a call after `SHORT` on a busy machine.
const SLACK: Duration = Duration::from_secs(4);

on_servers!(|store| scenarios(store));

async fn scenarios(mut store: Store) {
    passwords_and_rights(&store).await;
    a_migration_that_failed_is_repeated(&store).await;
    an_interrupted_migration_is_completed(&store).await;
    imports_read_from_the_replica(&store).await;
    sessions_do_not_depend_on_the_server(&store).await;
    a_frozen_server(&mut store).await;
    a_killed_server(&mut store).await;
}

async fn passwords_and_rights(store: &Store) {
    let scene = store.fresh().await;
    let database = scene.url.rsplit_once('/').unwrap().1;
    scene
        .run(&format!(
            "CREATE USER 'reader'@'%' IDENTIFIED BY 'hidden'; GRANT SELECT ON {database}.* TO 'reader'@'%'"
        ))
        .await;
    let reader = scene.url.replace("weir:geheim", "reader:hidden");
    let reader = open(&reader, "a");
    reader.check_schema(WITHIN).await.unwrap();
    let other = open(&scene.url.replace(database, "nowhere"), "a");
    let wrong = open(&scene.url.replace("geheim", "falsch"), "a");
    let without_rights = open(&scene.url.replace("weir:geheim", "niemand:falsch"), "a");
    // A packet that writes nothing needs no right to write.
    assert_eq!(look(&reader, WITHIN).await, Ok(PacketResult::default()));
    let mut node = Node::new(reader.clone(), 1);
    let packet = node.writing(&[row("x", 1)]);
    let cases = [
        (reader.migrate().await.err(), "refused", "CREATE command denied"),
        (node.exchange(&packet).await.err(), "refused", "INSERT"),
        (other.migrate().await.err(), "schema", "nowhere"),
        (look(&wrong, WITHIN).await.err(), "refused", "Access denied"),
        (without_rights.migrate().await.err(), "refused", "Access denied"),
    ];
    for (error, reason, part) in cases {
        let error = error.expect(part);
        assert_eq!(error.reason(), reason, "{error}");
        assert!(error.to_string().contains(part), "{error}");
        assert!(!format!("{error} {error:?} {wrong:?}").contains("falsch"), "{error:?}");
    }
}

/// The account lacks a right at first, as in a deployment whose grants were forgotten.
async fn a_migration_that_failed_is_repeated(store: &Store) {
    let scene = store.empty().await;
    let name = scene.url.rsplit_once('/').unwrap().1;
    let grant = |rights: &str| format!("GRANT {rights} ON {name}.* TO 'migrator'@'%'");
    let rights = grant("SELECT, INSERT, UPDATE, DELETE");
    scene.run(&format!("CREATE USER 'migrator'@'%' IDENTIFIED BY 'hidden'; {rights}")).await;
    let migrator = open(&scene.url.replace("weir:geheim", "migrator:hidden"), "a");
    for (missing, version) in [("CREATE, INDEX", ""), ("CREATE ROUTINE", "migration 0006: ")] {
        for _ in 0..2 {
            let error = migrator.migrate().await.unwrap_err();
            assert!(error.to_string().contains(version) && error.reason() == "refused", "{error}");
        }
        scene.run(&grant(missing)).await;
    }
    let migrated = migrator.migrate().await.unwrap();
    assert_eq!(
        migrated.applied,
        [
            "0006 check velocity cost",
            "0007 check velocity",
            "0008 controls",
            "0009 control edition",
            "0010 control audit"
        ]
    );
    migrator.check_schema(WITHIN).await.unwrap();
    publish(&scene.open("a"), &[row("x", 1)]).await;
}

/// A migration whose process ended before it could note the result, with and without its change.
async fn an_interrupted_migration_is_completed(store: &Store) {
    for (version, undo) in [
        (1, ""),
        (1, "DROP TABLE ratelimit_window_counts"),
        (6, ""),
        (6, "DROP PROCEDURE check_velocity_cost"),
    ] {
        let scene = store.fresh().await;
        scene.run(&format!("UPDATE weir_migrations SET success = FALSE WHERE version = {version}")).await;
        if !undo.is_empty() {
            scene.run(undo).await;
        }
        let database = scene.open("a");
        let migrated = database.migrate().await.unwrap();
        assert!(migrated.present >= migrations(&scene) - 1, "{version} {undo}: {migrated:?}");
        assert_eq!(database.migrate().await.unwrap().present, migrations(&scene), "{version} {undo}");
        publish(&database, &[row("x", 1)]).await;
    }
}

async fn imports_read_from_the_replica(store: &Store) {
    let (primary, replica) = (store.fresh().await, store.fresh().await);
    publish(&replica.open("b"), &[row("x", 7)]).await;
    let options = DatabaseOptions {
        url: primary.url.clone(),
        read_url: Some(replica.url.clone()),
        region: "a".to_owned(),
    };
    let database = Database::open(&options).unwrap();
    publish(&database, &[row("y", 1)]).await;
    assert_eq!(import(&database).await, cells(&[row("x", 7)]));
    assert_eq!(sums(database.own(&whole(WITHIN)).await.unwrap()), cells(&[row("y", 1)]));
    replica.run("DROP TABLE ratelimit_window_counts").await;
    assert_eq!(database.check_schema(WITHIN).await.unwrap_err().reason(), "schema");
}

/// Whatever the server's administrator has configured.
async fn sessions_do_not_depend_on_the_server(store: &Store) {
    let scene = store.fresh().await;
    let settings = |mode: &str, autocommit: u8, isolation: &str| {
        format!(
            "SET GLOBAL sql_mode = '{mode}'; SET GLOBAL autocommit = {autocommit};
             SET GLOBAL TRANSACTION ISOLATION LEVEL {isolation}"
        )
    };
    scene.run(&settings("ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH", 0, "SERIALIZABLE")).await;
    let rows = [row("\\", 1), row("'\"", 2), row(" ", 3)];
    publish(&scene.open("a"), &rows).await;
    assert_eq!(import(&scene.open("b")).await, cells(&rows));
    scene.run(&settings("STRICT_TRANS_TABLES", 1, "REPEATABLE READ")).await;
}

async fn a_frozen_server(store: &mut Store) {
    let scene = store.fresh().await;
    let (mut node, fresh) = (Node::new(scene.open("a"), 1), scene.open("a"));
    let a = node.database.clone();
    node.write(&rows("k", 2_000, 1)).await;
    store.server.as_mut().unwrap().process().pause().await.unwrap();
    let began = Instant::now();
    // More callers than connections, on idle and on new connections.
    let mut calls = tokio::task::JoinSet::new();
    for database in [&a, &fresh].into_iter().cycle().take(20) {
        let database = database.clone();
        calls.spawn(async move { look(&database, SHORT).await.unwrap_err().reason() });
    }
    assert!(calls.join_all().await.into_iter().all(|reason| reason == "timeout"));
    let packet = node.writing(&rows("k", 1_000, 2));
    assert_eq!(a.exchange(&packet, NOW, SHORT).await.unwrap_err().reason(), "timeout");
    assert_eq!(a.import(&whole(SHORT)).await.unwrap_err().reason(), "timeout");
    assert!(began.elapsed() < 3 * SHORT + SLACK, "{:?}", began.elapsed());
    store.server.as_mut().unwrap().process().resume().unwrap();
    assert!(!node.read().await.lost);
    node.write(&rows("k", 2_000, 3)).await;
    assert_eq!(import(&scene.open("b")).await, cells(&rows("k", 2_000, 3)));
}

async fn a_killed_server(store: &mut Store) {
    let scene = store.fresh().await;
    let (mut a, b) = (Node::new(scene.open("a"), 1), scene.open("b"));
    a.send(&[row("x", 1)]).await;
    store.server.as_mut().unwrap().process().kill().unwrap();
    // On the lost connection, and on new ones.
    for packet in [a.reading(), a.reading(), a.writing(&rows("k", 1_000, 1))] {
        let error = a.exchange(&packet).await.unwrap_err();
        assert_eq!(error.reason(), "unavailable", "{error}");
    }
    store.server.as_mut().unwrap().restart().await.unwrap();
    assert!(!a.read().await.lost);
    a.send(&[row("y", 2)]).await;
    assert_eq!(import(&b).await, cells(&[row("x", 1), row("y", 2)]));
    // Connections lost between two calls: the retries of one import suffice. Of packets, one may fail.
    store.server.as_mut().unwrap().restart().await.unwrap();
    assert_eq!(import(&b).await, cells(&[row("x", 1), row("y", 2)]));
    let packet = a.writing(&[row("x", 3)]);
    if let Err(error) = a.exchange(&packet).await {
        assert_eq!(error.reason(), "unavailable", "{error}");
    }
    assert!(!a.send(&[row("x", 3)]).await.lost);
    assert_eq!(import(&b).await, cells(&[row("x", 3), row("y", 2)]));
}

#[tokio::test]
async fn a_server_that_is_not_there() {
    let url = format!("mysql://weir:geheim@127.0.0.1:{}/weir", ports::free().unwrap());
    let database = open(&url, "a");
    for error in [look(&database, WITHIN).await.unwrap_err(), database.migrate().await.unwrap_err()] {
        assert_eq!(error.reason(), "unavailable");
        assert!(error.to_string().contains("refused"), "{error}");
    }
}

/// MySQL's default authentication needs an encrypted connection, for which the server generates a key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql_without_encryption_is_logged() {
    let Some(server) = DatabaseServer::mysql(&["--tls-version="]).await.unwrap() else {
        eprintln!("SKIPPED: no MySQL here; envoy/tools/install/databases.sh mysql --build unpacks one");
        return;
    };
    let error = look(&open(&server.url("mysql"), "a"), WITHIN).await.unwrap_err();
    assert_eq!(error.reason(), "refused", "{error}");
    assert!(error.to_string().contains("TLS"), "{error}");
}
