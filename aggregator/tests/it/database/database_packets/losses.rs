//! A table that lost its rows, or was set back: between packets, and at each moment of a packet.

use super::locks::begin;
use super::pair;
use crate::support::database::packets::*;
use crate::support::database::*;
use sqlx::Executor;
use weir_aggregator::database::PacketResult;
use weir_core::replication::global::packet::{OwnMarker, Packet};
use weir_envoy::wait;

pub async fn a_truncated_table(store: &Store) {
    let scene = store.fresh().await;
    let (mut a, mut b) = pair(&scene).await;
    let (own_a, own_b) = ([row("x", 5), row("y", 6)], [row("x", 8)]);
    a.send(&own_a).await;
    b.send(&own_b).await;
    a.catch_up().await;
    b.catch_up().await;
    scene.wipe().await;
    // Each finds the loss with its next packet, and sends everything again with a version that it never used.
    assert!(a.read().await.lost && b.send(&[]).await.lost);
    for (node, own) in [(&mut a, &own_a[..]), (&mut b, &own_b)] {
        assert!(node.cursors.values().all(|version| *version == 0));
        node.held.clear();
        assert!(!node.send(own).await.lost);
    }
    let mut fresh = Node::new(scene.open("c"), 9);
    assert_eq!(fresh.catch_up().await, fed(&[("x", 5), ("x", 8), ("y", 6)]));
    for node in [&mut a, &mut b] {
        node.catch_up().await;
    }
    assert_eq!((a.count("b", "x"), b.count("a", "x"), b.count("a", "y")), (8, 5, 6));
}

/// A restored dump has markers and versions of before.
pub async fn a_table_set_back(store: &Store) {
    let scene = store.fresh().await;
    let (mut a, mut b) = pair(&scene).await;
    a.send(&[row("x", 5)]).await;
    a.catch_up().await;
    b.catch_up().await;
    scene.run("CREATE TABLE dump AS SELECT * FROM ratelimit_window_counts").await;
    a.send(&[row("x", 6), row("y", 7)]).await;
    b.send(&[row("z", 8)]).await;
    a.catch_up().await;
    b.catch_up().await;
    scene.wipe().await;
    scene.run("INSERT INTO ratelimit_window_counts SELECT * FROM dump").await;
    assert_eq!(a.exchange(&a.reading()).await.unwrap().feed.own.version, 2);
    // The first packet after the restore records in its marker that it found an older one.
    assert!(a.send(&[row("x", 9)]).await.lost && b.read().await.lost);
    for (node, own) in [(&mut a, &[row("x", 9), row("y", 7)][..]), (&mut b, &[row("z", 8)])] {
        assert!(node.cursors.values().all(|version| *version == 0));
        node.held.clear();
        node.send(own).await;
        assert!(!node.read().await.lost);
    }
    let mut fresh = Node::new(scene.open("c"), 9);
    assert_eq!(fresh.catch_up().await, fed(&[("x", 9), ("y", 7), ("z", 8)]));
    for node in [&mut a, &mut b] {
        node.catch_up().await;
    }
    assert_eq!((a.count("b", "z"), b.count("a", "x"), b.count("a", "y")), (8, 9, 7));
}

/// What happens to the table.
#[derive(Clone, Copy, Debug)]
enum Loss {
    /// It is emptied.
    Wipe,
    /// It is set back to the table `dump`.
    Restore,
}

const LOSSES: [Loss; 2] = [Loss::Wipe, Loss::Restore];

impl Loss {
    fn statements(self) -> &'static str {
        match self {
            Loss::Wipe => "DELETE FROM ratelimit_window_counts;",
            Loss::Restore => {
                "DELETE FROM ratelimit_window_counts; INSERT INTO ratelimit_window_counts SELECT * FROM dump;"
            }
        }
    }

    /// The same as one statement that waits until all transactions on the table have ended.
    fn definition(self) -> &'static str {
        match self {
            Loss::Wipe => "TRUNCATE TABLE ratelimit_window_counts",
            Loss::Restore => "RENAME TABLE ratelimit_window_counts TO gone, dump TO ratelimit_window_counts",
        }
    }
}

/// A node of writer 1 with rows in the table, of which a dump has the first.
async fn published(store: &Store) -> (Scene, Node) {
    let scene = store.fresh().await;
    let (mut a, mut b) = pair(&scene).await;
    a.send(&[row("x", 5)]).await;
    if scene.is_mysql() {
        scene.run("CREATE TABLE dump LIKE ratelimit_window_counts").await;
        scene.run("INSERT INTO dump SELECT * FROM ratelimit_window_counts").await;
    } else {
        scene.run("CREATE TABLE dump AS SELECT * FROM ratelimit_window_counts").await;
    }
    a.send(&[row("x", 6), row("y", 7)]).await;
    b.send(&[row("z", 8)]).await;
    a.catch_up().await;
    (scene, a)
}

fn exchanging(a: &Node, packet: &Packet) -> tokio::task::JoinHandle<PacketResult> {
    let (database, packet) = (a.database.clone(), packet.clone());
    tokio::spawn(async move { database.exchange(&packet, NOW, WITHIN).await.unwrap() })
}

/// The packet's answer shows the loss, once. Then the node writes everything again.
async fn is_found(scene: &Scene, a: &mut Node, packet: &Packet, exchanged: PacketResult) {
    assert!(a.apply(packet, exchanged).lost, "{:?}", a.acknowledged);
    assert!(a.cursors.values().all(|version| *version == 0));
    assert!(!a.read().await.lost);
    assert!(!a.send(&[row("new", 1), row("x", 6), row("y", 7)]).await.lost);
    assert!(!a.read().await.lost);
    assert_eq!(a.acknowledged.version, a.version);
    let mut fresh = Node::new(scene.open("c"), 9);
    fresh.catch_up().await;
    assert_eq!((fresh.count("a", "new"), fresh.count("a", "x"), fresh.count("a", "y")), (1, 6, 7));
}

/// A server's table is lost after a packet was sent, and before it is written: the packet waits for the transaction that deletes.
pub async fn a_table_lost_before_a_packet_is_written(store: &Store) {
    for loss in LOSSES {
        let (scene, mut a) = published(store).await;
        let mut other = begin(&scene).await;
        other.execute(sqlx::raw_sql(loss.statements())).await.unwrap();
        let packet = a.writing(&[row("new", 1)]);
        let exchanged = exchanging(&a, &packet);
        scene.until_a_transaction_waits().await;
        other.execute(sqlx::raw_sql("COMMIT")).await.unwrap();
        let exchanged = exchanged.await.unwrap();
        // The packet itself is stored, and its marker shows that it is the first.
        assert_eq!(
            exchanged.feed.own,
            OwnMarker { version: packet.version.unwrap(), since: packet.version.unwrap() }
        );
        is_found(&scene, &mut a, &packet, exchanged).await;
    }
}

/// A server's table is lost after a packet was written, and before it reads: a statement that replaces the table waits for the packet's
/// first statement, and the packet's second one waits for it.
pub async fn a_table_lost_before_a_packet_reads(store: &Store) {
    for loss in LOSSES {
        let (scene, mut a) = published(store).await;
        let mut other = begin(&scene).await;
        let lock = "SELECT pk FROM ratelimit_window_counts WHERE duration_ms = 0 AND sequence = 1 FOR UPDATE";
        other.execute(sqlx::raw_sql(lock)).await.unwrap();
        let packet = a.writing(&[row("new", 1)]);
        let exchanged = exchanging(&a, &packet);
        scene.until_a_transaction_waits().await;
        let url = scene.url.clone();
        let replacing = tokio::spawn(async move { Scene { url }.run(loss.definition()).await });
        let waiting = "SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'Waiting for table metadata lock'";
        let waits = async || scene.number(waiting).await > 0;
        wait::until("a statement waits for the table", WITHIN, waits).await.unwrap();
        other.execute(sqlx::raw_sql("COMMIT")).await.unwrap();
        let exchanged = exchanged.await.unwrap();
        replacing.await.unwrap();
        assert!(exchanged.feed.own.version < packet.version.unwrap(), "{loss:?}: {:?}", exchanged.feed.own);
        is_found(&scene, &mut a, &packet, exchanged).await;
    }
}

/// The same for SQLite: triggers lose the table before the marker is inserted, and after the last row.
pub async fn a_file_that_loses_its_rows_within_a_packet(store: &Store) {
    for loss in LOSSES {
        for when in [
            "BEFORE INSERT ON ratelimit_window_counts WHEN NEW.duration_ms = 0",
            "AFTER INSERT ON ratelimit_window_counts WHEN NEW.identifier = x'6e6577'",
        ] {
            let (scene, mut a) = published(store).await;
            scene.run(&format!("CREATE TRIGGER lose {when} BEGIN {} END", loss.statements())).await;
            let packet = a.writing(&[row("new", 1)]);
            let exchanged = a.exchange(&packet).await.unwrap();
            scene.run("DROP TRIGGER lose").await;
            is_found(&scene, &mut a, &packet, exchanged).await;
        }
    }
}

/// The answer of the packet that found the loss is itself lost. Later packets keep what it recorded.
pub async fn a_loss_is_recorded_until_it_is_read(store: &Store) {
    for loss in LOSSES {
        let (scene, mut a) = published(store).await;
        for statement in loss.statements().split_terminator(';') {
            scene.run(statement).await;
        }
        let unread = a.writing(&[row("new", 1)]);
        a.exchange(&unread).await.unwrap();
        let packet = a.writing(&[]);
        let exchanged = a.exchange(&packet).await.unwrap();
        assert_eq!(exchanged.feed.own, OwnMarker { version: 5, since: 4 });
        is_found(&scene, &mut a, &packet, exchanged).await;
    }
}
