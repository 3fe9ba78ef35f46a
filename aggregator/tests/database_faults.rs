//! Tests with database servers that freeze, crash, restart, block or refuse.

mod database_support;

use database_support::*;
use sqlx::{AssertSqlSafe, Connection, Executor};
use std::time::{Duration, Instant};
use weir_aggregator::database::{Database, DatabaseOptions};
use weir_envoy::{DatabaseServer, ports};

/// Less than any lock wait.
const SHORT: Duration = Duration::from_millis(700);
/// Tolerance for the end of a call after `SHORT` on a busy machine.
const SLACK: Duration = Duration::from_secs(4);

on_servers!(|store| scenarios(store));

async fn scenarios(mut store: Store) {
    passwords_and_rights(&store).await;
    a_deadlock_is_tried_again(&store).await;
    a_locked_row_costs_its_time_only(&store).await;
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
    let published = reader.publish(&[row("x", 1)], NOW, WITHIN, |_| {}).await;
    let cases = [
        (reader.migrate().await.err(), "refused", "CREATE command denied"),
        (published.last_error, "refused", "INSERT"),
        (other.migrate().await.err(), "schema", "nowhere"),
        (wrong.incarnation(WITHIN).await.err(), "refused", "Access denied"),
        (without_rights.migrate().await.err(), "refused", "Access denied"),
    ];
    for (error, reason, part) in cases {
        let error = error.expect(part);
        assert_eq!(error.reason(), reason, "{error}");
        assert!(error.to_string().contains(part), "{error}");
        assert!(!format!("{error} {error:?} {wrong:?}").contains("falsch"), "{error:?}");
    }
}

/// The other transaction has done more work, so the server ends the publication.
async fn a_deadlock_is_tried_again(store: &Store) {
    let scene = store.fresh().await;
    let a = scene.open("a");
    publish(&a, &rows("ballast", 500, 1)).await;
    publish(&a, &[row("first", 1), row("second", 1)]).await;
    let deadlocks = if scene.number("@@version LIKE '%MariaDB%'").await == 1 {
        "SELECT VARIABLE_VALUE FROM information_schema.global_status WHERE VARIABLE_NAME = 'INNODB_DEADLOCKS'"
    } else {
        "SELECT COUNT FROM information_schema.innodb_metrics WHERE NAME = 'lock_deadlocks'"
    };
    let before = scene.number(deadlocks).await;
    let mut other = scene.mysql().await;
    let ballast = "UPDATE ratelimit_window_counts SET count = count + 10 WHERE identifier LIKE 'ballast%'";
    other.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await.unwrap();
    let mut transaction = other.begin().await.unwrap();
    transaction.execute(ballast).await.unwrap();
    transaction.execute(sqlx::raw_sql(lock("second"))).await.unwrap();
    let publishing = {
        let a = a.clone();
        tokio::spawn(async move { publish(&a, &[row("first", 5), row("second", 5)]).await })
    };
    scene.until_a_transaction_waits().await;
    transaction.execute(sqlx::raw_sql(lock("first"))).await.unwrap();
    transaction.commit().await.unwrap();
    publishing.await.unwrap();
    assert!(scene.number(deadlocks).await > before, "there was no deadlock");
    let mut expected = rows("ballast", 500, 11);
    expected.extend([row("first", 5), row("second", 5)]);
    assert_eq!(import(&scene.open("b")).await, cells(&expected));
}

/// Locks one row through the unique key.
fn lock(identifier: &str) -> AssertSqlSafe<String> {
    let sequence = sequence();
    AssertSqlSafe(format!(
        "SELECT count FROM ratelimit_window_counts WHERE workspace_id = 'w' AND namespace = 'n'
         AND identifier = '{identifier}' AND duration_ms = {HOUR_MS} AND sequence = {sequence} AND region = 'a'
         FOR UPDATE"
    ))
}

async fn a_locked_row_costs_its_time_only(store: &Store) {
    let scene = store.fresh().await;
    let a = scene.open("a");
    publish(&a, &[row("locked", 1)]).await;
    let mut other = scene.mysql().await;
    other.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await.unwrap();
    let mut transaction = other.begin().await.unwrap();
    transaction.execute(sqlx::raw_sql(lock("locked"))).await.unwrap();
    let began = Instant::now();
    let published = a.publish(&[row("locked", 9)], NOW, SHORT, |_| panic!("stored")).await;
    assert!(began.elapsed() < SHORT + SLACK);
    assert_eq!((published.rows, published.chunks_failed), (0, 1));
    assert_eq!(published.errors.keys().collect::<Vec<_>>(), [&"timeout"]);
    // Reads, and writes of other rows, do not wait for the lock.
    assert_eq!(import(&scene.open("b")).await, cells(&[row("locked", 1)]));
    publish(&a, &[row("beside", 2)]).await;
    transaction.rollback().await.unwrap();
    publish(&a, &[row("locked", 9)]).await;
    assert_eq!(import(&scene.open("b")).await, cells(&[row("beside", 2), row("locked", 9)]));
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
    assert_eq!(sums(database.own(NOW, WITHIN).await.unwrap()), cells(&[row("y", 1)]));
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
    let (a, fresh) = (scene.open("a"), scene.open("a"));
    let incarnation = a.incarnation(WITHIN).await.unwrap();
    store.server.as_mut().unwrap().process().pause().await.unwrap();
    let began = Instant::now();
    // More callers than connections, on idle and on new connections.
    let mut calls = tokio::task::JoinSet::new();
    for database in [&a, &fresh].into_iter().cycle().take(20) {
        let database = database.clone();
        calls.spawn(async move { database.incarnation(SHORT).await.unwrap_err().reason() });
    }
    assert!(calls.join_all().await.into_iter().all(|reason| reason == "timeout"));
    let published = a.publish(&rows("k", 12_000, 1), NOW, SHORT, |_| panic!("stored")).await;
    assert_eq!(published.chunks_failed, 3);
    assert_eq!(a.import(NOW, SHORT).await.unwrap_err().reason(), "timeout");
    assert!(began.elapsed() < 3 * SHORT + SLACK, "{:?}", began.elapsed());
    store.server.as_mut().unwrap().process().resume().unwrap();
    assert_eq!(a.incarnation(WITHIN).await, Ok(incarnation));
    publish(&a, &rows("k", 12_000, 2)).await;
}

async fn a_killed_server(store: &mut Store) {
    let scene = store.fresh().await;
    let a = scene.open("a");
    let incarnation = a.incarnation(WITHIN).await.unwrap();
    publish(&a, &[row("x", 1)]).await;
    store.server.as_mut().unwrap().process().kill().unwrap();
    let error = a.incarnation(WITHIN).await.unwrap_err();
    assert_eq!(error.reason(), "unavailable", "{error}");
    let published = a.publish(&rows("k", 12_000, 1), NOW, WITHIN, |_| panic!("stored")).await;
    assert_eq!(published.errors.into_iter().collect::<Vec<_>>(), [("unavailable", 3)]);
    store.server.as_mut().unwrap().restart().await.unwrap();
    assert_eq!(a.incarnation(WITHIN).await, Ok(incarnation));
    publish(&a, &[row("y", 2)]).await;
    // A connection lost between two calls: the retries of one call suffice.
    store.server.as_mut().unwrap().restart().await.unwrap();
    assert_eq!(import(&scene.open("b")).await, cells(&[row("x", 1), row("y", 2)]));
    publish(&a, &[row("x", 3)]).await;
    assert_eq!(import(&scene.open("b")).await, cells(&[row("x", 3), row("y", 2)]));
}

#[tokio::test]
async fn a_server_that_is_not_there() {
    let url = format!("mysql://weir:geheim@127.0.0.1:{}/weir", ports::free().unwrap());
    let database = open(&url, "a");
    for error in [database.incarnation(WITHIN).await.unwrap_err(), database.migrate().await.unwrap_err()] {
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
    let error = open(&server.url("mysql"), "a").incarnation(WITHIN).await.unwrap_err();
    assert_eq!(error.reason(), "refused", "{error}");
    assert!(error.to_string().contains("TLS"), "{error}");
}
