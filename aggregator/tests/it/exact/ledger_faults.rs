//! Tests of the ledger while its server crashes, freezes or blocks: every call ends in time, and never more than the
//! rate passes.

use crate::support::database::ledger::*;
use crate::support::database::packets::Node;
use crate::support::database::*;
use sqlx::{AssertSqlSafe, Connection, Executor, Row};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::timeout;
use weir_aggregator::database::{Database, DatabaseError, Velocity};
use weir_core::model::breaker::State;
use weir_envoy::{ports, wait};

/// The deadline of calls here.
const SHORT: Duration = Duration::from_millis(700);
/// How much later a call may end on a busy machine.
const SLACK: Duration = Duration::from_secs(4);

on_servers!(|store| scenarios(store));

async fn scenarios(mut store: Store) {
    a_deadlock_is_tried_again_inside(&store).await;
    a_held_lock_costs_its_time_only(&store).await;
    an_attempt_that_waits_is_decided_by_the_newest_rate(&store).await;
    a_zone_whose_calls_hang_leaves_connections_to_others(&store).await;
    counts_and_attempts_do_not_starve_each_other(&store).await;
    a_frozen_server_is_left_alone(&mut store).await;
    a_server_that_is_killed_over_and_over(&mut store).await;
}

async fn attempt(database: &Database, bucket: &str, within: Duration) -> Result<Velocity, DatabaseError> {
    let attempt = ledger_charge(ZONE, bucket.as_bytes(), 1);
    let began = Instant::now();
    let result = database.check_velocity(&attempt, within).await;
    assert!(began.elapsed() < within + SLACK, "{:?}", began.elapsed());
    result.map(|velocity| velocity.expect("the zone exists"))
}

async fn ledger(store: &Store, rate: u64, window_seconds: u64) -> (Scene, Database) {
    let scene = store.fresh().await;
    let database = scene.open("here");
    set_zone(&database, ZONE, rate, window_seconds).await;
    (scene, database)
}

/// A session that locks rows and gaps by hand has done more work, so the server ends the call.
async fn a_deadlock_is_tried_again_inside(store: &Store) {
    let (scene, database) = ledger(store, 3, 3_600).await;
    check(&database, "x", 1).await;
    let values = vec!["(1, 'ballast', 1, '2020-01-01', 1, '')"; 300].join(",");
    let columns = "zone_id, bucket_key, blocked, created_at, cost, region";
    scene.run(&format!("INSERT INTO zone_txn ({columns}) VALUES {values}")).await;
    let mut other = scene.mysql().await;
    other.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ").await.unwrap();
    let mut transaction = other.begin().await.unwrap();
    transaction.execute("UPDATE zone_txn SET blocked = 2 WHERE zone_id = 1").await.unwrap();
    transaction.execute("SELECT * FROM zone_txn WHERE zone_id = 7 FOR UPDATE").await.unwrap();
    let mut person = scene.mysql().await;
    let call = tokio::spawn(async move { by_hand(&mut person, "CALL check_velocity(7, 'x')").await });
    scene.until_a_transaction_waits().await;
    let deadlocks = if scene.number("@@version LIKE '%MariaDB%'").await == 1 {
        "SELECT VARIABLE_VALUE FROM information_schema.global_status WHERE VARIABLE_NAME = 'INNODB_DEADLOCKS'"
    } else {
        "SELECT COUNT FROM information_schema.innodb_metrics WHERE NAME = 'lock_deadlocks'"
    };
    let before = scene.number(deadlocks).await;
    transaction
        .execute("SELECT * FROM zone_bucket_lock WHERE zone_id = 7 AND bucket_key = 'x' FOR UPDATE")
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    let answer = call.await.unwrap().unwrap();
    assert_eq!((answer.velocity.blocked, answer.velocity.used), (false, 2));
    assert!(scene.number(deadlocks).await > before, "there was no deadlock");
    assert_eq!(recorded(&scene).await.len(), 2);
}

async fn a_held_lock_costs_its_time_only(store: &Store) {
    let (scene, database) = ledger(store, 3, 3_600).await;
    check(&database, "x", 1).await;
    let mut other = scene.mysql().await;
    let mut transaction = other.begin().await.unwrap();
    transaction
        .execute("SELECT * FROM zone_bucket_lock WHERE zone_id = 7 AND bucket_key = 'x' FOR UPDATE")
        .await
        .unwrap();
    // The server itself may have ended the wait first, after one second.
    let error = attempt(&database, "x", SHORT).await.unwrap_err();
    assert!(["timeout", "lock_wait"].contains(&error.reason()), "{error}");
    assert!(!attempt(&database, "y", WITHIN).await.unwrap().blocked, "another bucket does not wait");
    // With a deadline beyond the server's lock wait, the ended attempt is retried and recorded once.
    let before = lock_waits(&scene).await;
    let patient = {
        let database = database.clone();
        tokio::spawn(async move { attempt(&database, "x", WITHIN).await })
    };
    let waits_again = async || lock_waits(&scene).await >= before + 2;
    wait::until("the attempt waits for the second time", WITHIN, waits_again).await.unwrap();
    transaction.rollback().await.unwrap();
    let velocity = patient.await.unwrap().unwrap();
    let settled = async || {
        // As above: the server returns the previous information if it is queried again within 100 ms.
        tokio::time::sleep(Duration::from_millis(150)).await;
        scene.number("SELECT COUNT(*) FROM information_schema.innodb_trx").await == 0
    };
    wait::until("no transaction is open", WITHIN, settled).await.unwrap();
    let rows = recorded(&scene).await;
    let of_x = rows.iter().filter(|row| row.bucket == b"x").count() as u64;
    // The attempt whose caller timed out may have been recorded after the lock was released.
    assert!(of_x == 2 || of_x == 3, "{rows:?}");
    assert!(velocity.used <= of_x);
}

async fn an_attempt_that_waits_is_decided_by_the_newest_rate(store: &Store) {
    let (scene, database) = ledger(store, 50, 3_600).await;
    check(&database, "x", 1).await;
    let mut other = scene.mysql().await;
    let mut transaction = other.begin().await.unwrap();
    let lock = "SELECT * FROM zone_bucket_lock WHERE zone_id = 7 AND bucket_key = 'x' FOR UPDATE";
    transaction.execute(lock).await.unwrap();
    let mut person = scene.mysql().await;
    let waiting = tokio::spawn(async move { by_hand(&mut person, "CALL check_velocity(7, 'x')").await });
    scene.until_a_transaction_waits().await;
    set_zone(&database, ZONE, 0, 3_600).await;
    transaction.rollback().await.unwrap();
    let Velocity { blocked, rate, .. } = waiting.await.unwrap().unwrap().velocity;
    assert_eq!((blocked, rate), (true, 0));
}

/// How often the server's transactions have waited for a lock of a row.
async fn lock_waits(scene: &Scene) -> u64 {
    let status =
        scene.mysql().await.fetch_one("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_waits'").await.unwrap();
    String::from_utf8(status.try_get_unchecked(1).unwrap()).unwrap().parse().unwrap()
}

/// Sixty calls wait for one bucket of a zone, which are more than there are connections.
async fn a_zone_whose_calls_hang_leaves_connections_to_others(store: &Store) {
    let (scene, database) = ledger(store, 1_000, 3_600).await;
    set_zone(&database, ZONE + 1, 1_000, 3_600).await;
    check(&database, "x", 1).await;
    let mut other = scene.mysql().await;
    let mut transaction = other.begin().await.unwrap();
    transaction
        .execute("SELECT * FROM zone_bucket_lock WHERE zone_id = 7 AND bucket_key = 'x' FOR UPDATE")
        .await
        .unwrap();
    let mut waiting = JoinSet::new();
    for _ in 0..60 {
        let database = database.clone();
        waiting.spawn(async move { attempt(&database, "x", WITHIN).await });
    }
    // The twelve that have a connection; it waits so long that a call would have ended in vain.
    scene.until_transactions_wait(12).await;
    let elsewhere = ledger_charge(ZONE + 1, b"x", 1);
    for _ in 0..5 {
        let answer = database.check_velocity(&elsewhere, WITHIN).await;
        assert!(matches!(answer, Ok(Some(Velocity { blocked: false, .. }))), "{answer:?}");
    }
    transaction.rollback().await.unwrap();
    waiting.join_all().await;
}

async fn counts_and_attempts_do_not_starve_each_other(store: &Store) {
    let (scene, database) = ledger(store, 3, 3_600).await;
    check(&database, "x", 1).await;
    publish(&database, &[row("locked", 1)]).await;
    // All of the ledger's connections wait for one bucket.
    let mut other = scene.mysql().await;
    let mut transaction = other.begin().await.unwrap();
    transaction
        .execute("SELECT * FROM zone_bucket_lock WHERE zone_id = 7 AND bucket_key = 'x' FOR UPDATE")
        .await
        .unwrap();
    let mut waiting = JoinSet::new();
    for _ in 0..60 {
        let database = database.clone();
        waiting.spawn(async move { attempt(&database, "x", Duration::from_secs(2)).await });
    }
    scene.until_a_transaction_waits().await;
    publish(&database, &[row("beside", 1)]).await;
    transaction.rollback().await.unwrap();
    waiting.join_all().await;
    // All of the other connections wait for one row.
    let mut transaction = other.begin().await.unwrap();
    let lock = "SELECT * FROM ratelimit_window_counts WHERE identifier = 'locked' FOR UPDATE";
    transaction.execute(lock).await.unwrap();
    let mut publishing = JoinSet::new();
    for number in 1..=8 {
        let mut node = Node::new(database.clone(), number);
        let packet = node.writing(&[row("locked", 9)]);
        publishing.spawn(async move { node.exchange(&packet).await });
    }
    scene.until_a_transaction_waits().await;
    let answered = async || attempt(&database, "z", WITHIN).await.is_ok();
    wait::until("the ledger answers", WITHIN, answered).await.unwrap();
    assert!(!publishing.is_empty() && publishing.try_join_next().is_none());
    transaction.rollback().await.unwrap();
    publishing.join_all().await;
}

async fn a_frozen_server_is_left_alone(store: &mut Store) {
    let (_scene, database) = ledger(store, 1_000, 3_600).await;
    check(&database, "x", 1).await;
    store.server.as_mut().unwrap().process().pause().await.unwrap();
    let mut calls = JoinSet::new();
    for _ in 0..100 {
        let database = database.clone();
        calls.spawn(async move { attempt(&database, "x", SHORT).await.unwrap_err().reason() });
    }
    assert!(calls.join_all().await.into_iter().all(|reason| ["timeout", "unavailable"].contains(&reason)));
    assert_ne!(database.ledger_state(), State::Closed);
    // The breaker is open and admits only one probing call. If that call is cancelled, others are not blocked.
    let began = Instant::now();
    for _ in 0..200 {
        let call = tokio::time::timeout(Duration::from_millis(5), attempt(&database, "x", SHORT));
        assert!(!matches!(call.await, Ok(Ok(_))));
    }
    assert!(began.elapsed() < Duration::from_millis(200 * 5) + SLACK, "{:?}", began.elapsed());
    store.server.as_mut().unwrap().process().resume().unwrap();
    let answers = async || attempt(&database, "x", WITHIN).await.is_ok();
    wait::until("the ledger answers", WITHIN, answers).await.unwrap();
    assert_eq!(database.ledger_state(), State::Closed);
}

async fn a_server_that_is_killed_over_and_over(store: &mut Store) {
    const RATE: u64 = 10;
    let (scene, database) = ledger(store, RATE, 1).await;
    let databases = [database, scene.open("there")];
    let done = Arc::new(AtomicBool::new(false));
    let answered = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for client in 0..16 {
        let database = databases[client % 2].clone();
        let (done, answered) = (done.clone(), answered.clone());
        clients.spawn(async move {
            let (mut attempts, mut failed) = (Vec::new(), 0);
            while !done.load(Relaxed) {
                match attempt(&database, &format!("bucket {}", client % 3), SHORT).await {
                    Ok(velocity) => {
                        attempts.push((velocity.transaction, velocity.blocked));
                        answered.fetch_add(1, Relaxed);
                    }
                    Err(_) => {
                        failed += 1;
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                }
            }
            (attempts, failed)
        });
    }
    let more_are_answered = async || {
        let before = answered.load(Relaxed);
        let more = async || answered.load(Relaxed) > before + 100;
        wait::until("attempts are answered", WITHIN, more).await.unwrap();
    };
    for _ in 0..3 {
        more_are_answered().await;
        store.server.as_mut().unwrap().process().kill().unwrap();
        store.server.as_mut().unwrap().restart().await.unwrap();
    }
    more_are_answered().await;
    done.store(true, Relaxed);
    let (mut velocities, mut failed) = (Vec::new(), 0);
    for (of_one, failures) in clients.join_all().await {
        velocities.extend(of_one);
        failed += failures;
    }
    assert!(failed > 0, "no call failed");
    let rows = recorded(&scene).await;
    no_window_holds_more(&rows, RATE, 1);
    decisions_are_right(&rows, RATE, 1);
    // Every answered attempt is recorded as it was answered.
    let allowed = velocities.iter().filter(|(_, blocked)| !blocked).count();
    let ids = velocities.iter().map(|(id, _)| id.to_string()).collect::<Vec<_>>().join(",");
    let count =
        |blocked: u8| format!("SELECT COUNT(*) FROM zone_txn WHERE blocked = {blocked} AND id IN ({ids})");
    assert_eq!(scene.number(&count(0)).await, i64::try_from(allowed).unwrap());
    assert_eq!(scene.number(&count(1)).await, i64::try_from(velocities.len() - allowed).unwrap());
    velocities.sort_unstable();
    velocities.dedup_by_key(|(id, _)| *id);
    assert_eq!(velocities.len(), answered.load(Relaxed), "two attempts have the same number");
}

#[tokio::test]
async fn a_server_that_is_not_there() {
    let database = open(&format!("mysql://weir:geheim@127.0.0.1:{}/weir", ports::free().unwrap()), "here");
    for _ in 0..5 {
        let error = attempt(&database, "x", SHORT).await.unwrap_err();
        assert_eq!(error.reason(), "unavailable", "{error}");
    }
    assert_ne!(database.ledger_state(), State::Closed);
    let began = Instant::now();
    let error = attempt(&database, "x", WITHIN).await.unwrap_err();
    assert!(error.reason() == "unavailable" && began.elapsed() < SLACK, "{error}");
}

/// Another process that writes delays an attempt, but not beyond its deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_that_another_writes() {
    let store = Store::sqlite();
    let (scene, database) = ledger(&store, 3, 3_600).await;
    let mut other = sqlx::SqliteConnection::connect(&scene.url).await.unwrap();
    other.execute(sqlx::raw_sql(AssertSqlSafe("BEGIN IMMEDIATE".to_owned()))).await.unwrap();
    let error = attempt(&database, "x", SHORT).await.unwrap_err();
    assert!(["timeout", "lock_wait"].contains(&error.reason()), "{error}");
    let mut patient = pin!(attempt(&database, "x", WITHIN));
    assert!(timeout(SHORT, &mut patient).await.is_err(), "the file is locked");
    other.execute(sqlx::raw_sql(AssertSqlSafe("COMMIT".to_owned()))).await.unwrap();
    assert!(!patient.await.unwrap().blocked);
    decisions_are_right(&recorded(&scene).await, 3, 3_600);
}

/// How long a caller waits is its own choice, so what a short wait misses shows nothing about the database.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_wait_for_a_moment_keep_no_other_from_the_ledger() {
    let store = Store::sqlite();
    let (scene, database) = ledger(&store, 3, 3_600).await;
    let mut other = sqlx::SqliteConnection::connect(&scene.url).await.unwrap();
    other.execute(sqlx::raw_sql(AssertSqlSafe("BEGIN IMMEDIATE".to_owned()))).await.unwrap();
    for _ in 0..40 {
        attempt(&database, "x", Duration::from_millis(1)).await.unwrap_err();
    }
    assert_eq!(database.ledger_state(), State::Closed);
    other.execute(sqlx::raw_sql(AssertSqlSafe("COMMIT".to_owned()))).await.unwrap();
    assert!(!attempt(&database, "y", WITHIN).await.unwrap().blocked);
}
