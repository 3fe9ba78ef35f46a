//! The markers of writers, which are rows of the same table.

use super::feed::insert_by_hand;
use super::pair;
use crate::support::database::packets::*;
use crate::support::database::*;
use std::time::Duration;
use weir_core::model::time::UnixMs;
use weir_core::region::exchange::Publication;
use weir_core::replication::global::packet::MAX_WRITERS;

pub async fn markers_are_no_cells(store: &Store) {
    let scene = store.fresh().await;
    let (a, mut b) = pair(&scene).await;
    // A marker has a sequence.
    insert_by_hand(&scene, &[(String::new(), 0, 0, 77, 0, 0, 0)]).await;
    b.send(&[row("x", 1)]).await;
    let exchanged = a.exchange(&a.reading()).await.unwrap();
    let writers: Vec<_> = exchanged.feed.markers.iter().map(|marker| marker.writer).collect();
    assert_eq!((writers, exchanged.bad), (vec![b.writer], 0), "{:?}", exchanged.bad_example);
    assert_eq!(import(&a.database).await, cells(&[row("x", 1)]));
    let own = b.database.own(&whole(WITHIN)).await.unwrap();
    assert_eq!((own.bad, sums(own)), (0, cells(&[row("x", 1)])));
}

pub async fn markers_end(store: &Store) {
    let scene = store.fresh().await;
    let (mut a, mut b) = pair(&scene).await;
    let short = Publication { expires: UnixMs(NOW.0 + 10), ..row("short", 1) };
    a.send(&[short, row("long", 1)]).await;
    // What has expired is not fed.
    b.now = UnixMs(NOW.0 + 10);
    assert_eq!(b.read().await.cells, fed(&[("long", 1)]));
    // A marker lives an hour after its last packet.
    let seen = async |b: &Node, now: u64| {
        let exchanged = b.database.exchange(&b.reading(), UnixMs(now), WITHIN).await.unwrap();
        exchanged.feed.markers.iter().any(|marker| marker.writer == a.writer)
    };
    assert!(seen(&b, NOW.0 + HOUR_MS - 1).await && !seen(&b, NOW.0 + HOUR_MS).await);
    // The own marker is read until the cleanup has deleted it: a clock that steps ahead loses no row.
    a.now = UnixMs(NOW.0 + HOUR_MS + 60_000);
    assert_eq!(a.exchange(&a.reading()).await.unwrap().feed.own.version, 2);
    let cleaned = b.database.cleanup(Duration::ZERO, 10, a.now, Duration::ZERO, |_| {}).await.unwrap();
    assert_eq!((cleaned, scene.rows().await), (3, 1), "two markers and the short row");
    assert!(a.read().await.lost);
}

pub async fn more_markers_than_writers(store: &Store) {
    let scene = store.fresh().await;
    let mut b = Node::new(scene.open("b"), 1_000);
    let markers: Vec<_> = (1..=300_u64)
        .map(|number| (String::new(), 0, number.cast_signed(), 1, NOW.0 + HOUR_MS - number, number, 1))
        .collect();
    insert_by_hand(&scene, &markers).await;
    // Its marker is the first to expire of all, and is read nevertheless.
    b.now = UnixMs(NOW.0 - 1_000);
    let packet = b.writing(&[]);
    let feed = b.exchange(&packet).await.unwrap().feed;
    assert_eq!((feed.markers.len(), feed.own.version), (MAX_WRITERS, 1));
    let numbers: Vec<_> = feed.markers.iter().map(|marker| marker.writer.number()).collect();
    assert!(numbers.contains(&256) && !numbers.contains(&257), "{numbers:?}");
}

/// The table may contain anything.
pub async fn an_own_marker_that_cannot_be(store: &Store) {
    let scene = store.fresh().await;
    let (mut a, _) = pair(&scene).await;
    for count in ["9007199254740993", "4000000000000000000"] {
        scene.run(&format!("UPDATE ratelimit_window_counts SET count = {count} WHERE sequence = 1")).await;
        a.send(&[row("x", 1)]).await;
        assert_eq!(a.acknowledged.version.to_string(), count, "no writer has used that");
    }
}
