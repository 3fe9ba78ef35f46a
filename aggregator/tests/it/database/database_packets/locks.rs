//! Packets that wait for locks, of other transactions and of each other.

use super::{SHORT, pair};
use crate::support::database::packets::*;
use crate::support::database::*;
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, SqliteConnection};
use std::time::{Duration, Instant};
use weir_core::region::exchange::Publication;
use weir_core::replication::global::packet::MAX_PACKET_ROWS;
use weir_envoy::wait;

/// Tolerance for the end of a call after `SHORT` on a busy machine.
const SLACK: Duration = Duration::from_secs(4);

/// Both writers of one region raise the same rows.
pub async fn opposite_orders_do_not_deadlock(store: &Store) {
    const ROUNDS: u64 = 8;
    let scene = store.fresh().await;
    let mut writers = tokio::task::JoinSet::new();
    for number in 1..=2_u64 {
        let database = scene.open("a");
        writers.spawn(async move {
            let mut node = Node::new(database, number.try_into().unwrap());
            for round in 0..ROUNDS {
                let mut all = rows("k", MAX_PACKET_ROWS, round * 2 + number);
                for row in all.iter_mut().skip(number as usize).step_by(3) {
                    row.count += 100;
                }
                if number == 2 {
                    all.reverse();
                }
                node.send(&all).await;
            }
        });
    }
    writers.join_all().await;
    let last = 2 * (ROUNDS - 1);
    let expected: Vec<_> = rows("k", MAX_PACKET_ROWS, 0)
        .into_iter()
        .enumerate()
        .map(|(place, row)| {
            let of = |number: u64| {
                let is_higher = place >= number as usize && (place - number as usize).is_multiple_of(3);
                last + number + if is_higher { 100 } else { 0 }
            };
            Publication { count: of(1).max(of(2)), ..row }
        })
        .collect();
    assert_eq!(import(&scene.open("b")).await, cells(&expected));
    let mut reader = Node::new(scene.open("b"), 3);
    reader.catch_up().await;
    assert!(expected.iter().all(|row| reader.held.contains_key(&(
        b"a".to_vec(),
        row.key.clone(),
        row.sequence
    ))));
    let held: Vec<_> = reader.held.values().map(|(count, _)| *count).collect();
    assert_eq!(held, expected.iter().map(|row| row.count).collect::<Vec<_>>());
}

/// Locks a row of region a until the transaction ends.
async fn lock_row(transaction: &mut MySqlConnection, identifier: &str) {
    let sql = format!(
        "SELECT count FROM ratelimit_window_counts WHERE workspace_id = 'w' AND namespace = 'n'
         AND identifier = '{identifier}' AND duration_ms = {HOUR_MS} AND sequence = {} AND region = 'a' FOR UPDATE",
        sequence()
    );
    transaction.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await.unwrap();
}

/// A transaction of another client.
pub async fn begin(scene: &Scene) -> MySqlConnection {
    let mut other = scene.mysql().await;
    other.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await.unwrap();
    other.execute(sqlx::raw_sql("BEGIN")).await.unwrap();
    other
}

/// The packet's time is over while it waits for a lock. Meanwhile a reader reads on, past all other packets. The server commits
/// the packet after that.
pub async fn a_row_behind_a_lock_is_fed_after_a_late_commit(store: &Store) {
    let scene = store.fresh().await;
    let (mut a, mut b) = pair(&scene).await;
    let mut c = Node::new(scene.open("c"), 3);
    a.send(&[row("locked", 1)]).await;
    c.send(&[row("c", 1)]).await;
    assert_eq!(b.catch_up().await, fed(&[("c", 1), ("locked", 1)]));
    let mut other = begin(&scene).await;
    lock_row(&mut other, "locked").await;
    let late = a.writing(&[row("before", 2), row("locked", 2)]);
    let began = Instant::now();
    let error = a.database.exchange(&late, NOW, SHORT).await.unwrap_err();
    assert_eq!(error.reason(), "timeout", "{error}");
    assert!((SHORT..SHORT + SLACK).contains(&began.elapsed()), "{:?}", began.elapsed());
    // Reads, and the rows of another writer, do not wait for the lock.
    assert_eq!(import(&b.database).await, cells(&[row("c", 1), row("locked", 1)]));
    c.send(&[row("c", 2)]).await;
    assert_eq!(b.catch_up().await, fed(&[("c", 2)]), "no row of the packet is visible before all of it");
    // No connection that is reused returns an answer to the packet before.
    assert_eq!(a.exchange(&a.reading()).await.unwrap().feed.own.version, 2);
    let updated_at = b.now;
    other.execute(sqlx::raw_sql("COMMIT")).await.unwrap();
    marker_becomes(&a, 3).await;
    assert_eq!(b.catch_up().await, fed(&[("before", 2), ("locked", 2)]));
    assert_eq!(lines(&scene).await[0].updated_at, updated_at.0.cast_signed(), "its time is the packet's");
    // The rows wait for an answer and are sent again.
    a.send(&[row("before", 2), row("locked", 3)]).await;
    assert_eq!(b.catch_up().await, fed(&[("before", 2), ("locked", 3)]));
    assert_eq!(import(&b.database).await, cells(&[row("before", 2), row("c", 2), row("locked", 3)]));
}

/// The marker is the first row of each packet, so the lock on it keeps packets of one writer in their order.
pub async fn packets_of_one_writer_wait_for_each_other(store: &Store) {
    let scene = store.fresh().await;
    let (mut a, mut b) = pair(&scene).await;
    a.send(&[row("locked", 1)]).await;
    b.catch_up().await;
    let mut other = begin(&scene).await;
    lock_row(&mut other, "locked").await;
    let (first, second) = (a.writing(&[row("locked", 2)]), a.writing(&[row("free", 1)]));
    let short = SHORT / 2;
    for packet in [&first, &second] {
        let error = a.database.exchange(packet, NOW, short).await.unwrap_err();
        assert_eq!(error.reason(), "timeout", "{error}");
    }
    assert_eq!(b.catch_up().await, [], "the second packet waits for the first");
    other.execute(sqlx::raw_sql("COMMIT")).await.unwrap();
    marker_becomes(&a, 4).await;
    assert_eq!(b.catch_up().await, fed(&[("free", 1), ("locked", 2)]));
}

/// The other transaction has done more work, so the server ends the packet.
pub async fn a_packet_that_is_the_victim_of_a_deadlock(store: &Store) {
    let scene = store.fresh().await;
    let (mut a, mut b) = pair(&scene).await;
    a.send(&rows("ballast", 500, 1)).await;
    a.send(&[row("first", 1), row("second", 1)]).await;
    b.catch_up().await;
    let mut other = begin(&scene).await;
    let ballast = "UPDATE ratelimit_window_counts SET updated_at = 7 WHERE identifier LIKE 'ballast%'";
    other.execute(ballast).await.unwrap();
    lock_row(&mut other, "second").await;
    let again = [row("first", 5), row("second", 5)];
    let packet = a.writing(&again);
    let exchanging = {
        let (database, packet) = (a.database.clone(), packet.clone());
        tokio::spawn(async move { database.exchange(&packet, NOW, WITHIN).await })
    };
    scene.until_a_transaction_waits().await;
    lock_row(&mut other, "first").await;
    let error = exchanging.await.unwrap().unwrap_err();
    assert_eq!(error.reason(), "deadlock", "{error}");
    other.execute(sqlx::raw_sql("COMMIT")).await.unwrap();
    assert_eq!(b.catch_up().await, [], "a packet is stored entirely or not at all");
    assert_eq!(a.exchange(&a.reading()).await.unwrap().feed.own.version, 3);
    a.send(&again).await;
    assert_eq!(b.catch_up().await, fed(&[("first", 5), ("second", 5)]));
}

/// The packet's time is over while it waits for the file. Reads do not wait. A late commit does no harm.
pub async fn a_file_that_another_process_locks(store: &Store) {
    let scene = store.fresh().await;
    let (mut a, mut b) = pair(&scene).await;
    b.send(&[row("x", 1)]).await;
    let mut other = SqliteConnection::connect(&scene.url).await.unwrap();
    other.execute("BEGIN IMMEDIATE").await.unwrap();
    let late = a.writing(&[row("y", 2)]);
    let error = a.database.exchange(&late, NOW, SHORT).await.unwrap_err();
    assert_eq!(error.reason(), "timeout", "{error}");
    assert_eq!(a.catch_up().await, fed(&[("x", 1)]));
    other.execute("COMMIT").await.unwrap();
    a.send(&[row("y", 2), row("z", 3)]).await;
    b.catch_up().await;
    assert_eq!((b.count("a", "y"), b.count("a", "z")), (2, 3));
    marker_becomes(&a, 3).await;
}

/// Waits until the marker of a node has a version.
async fn marker_becomes(node: &Node, version: u64) {
    let committed = async || node.exchange(&node.reading()).await.unwrap().feed.own.version == version;
    wait::until("a late packet is committed", WITHIN, committed).await.unwrap();
}
