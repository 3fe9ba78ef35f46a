//! The markers of writers, which are rows of the same table.

use super::feed::insert_by_hand;
use super::pair;
use crate::database_support::packets::*;
use crate::database_support::*;
use std::time::Duration;
use weir_core::model::time::UnixMs;
use weir_core::region::exchange::Publication;
use weir_core::replication::globe::packet::MAX_WRITERS;

pub async fn markers_are_no_cells(store: &Store) {
    let scene = store.fresh().await;
    let (a, mut b) = pair(&scene).await;
    // A marker of an earlier version stays, and is not read.
    insert_by_hand(&scene, &[(String::new(), 0, 0, 77, 0, 0, 0)]).await;
    b.send(&[row("x", 1)]).await;
    let exchanged = a.exchange(&a.reading()).await.unwrap();
    let mut writers: Vec<_> = exchanged.feed.markers.iter().map(|marker| marker.writer).collect();
    writers.sort();
    assert_eq!((writers, exchanged.bad), (vec![a.writer, b.writer], 0), "{:?}", exchanged.bad_example);
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
    // The own marker is read until the cleanup has deleted it.
    a.now = UnixMs(NOW.0 + HOUR_MS + 60_000);
    assert_eq!(a.exchange(&a.reading()).await.unwrap().feed.own, Some(2));
    let cleaned = b.database.cleanup(Duration::ZERO, 10, a.now, |_| {}).await.unwrap();
    assert_eq!((cleaned, scene.rows().await), (3, 1), "two markers and the short row");
    assert_eq!(a.exchange(&a.reading()).await.unwrap().feed.own, None);
}

pub async fn more_markers_than_writers(store: &Store) {
    let scene = store.fresh().await;
    let mut b = Node::new(scene.open("b"), 1_000);
    let markers: Vec<_> = (1..=300_u64)
        .map(|number| (String::new(), 0, number.cast_signed(), 1, NOW.0 + HOUR_MS - number, number, 1))
        .collect();
    insert_by_hand(&scene, &markers).await;
    let packet = b.writing(&[]);
    let feed = b.exchange(&packet).await.unwrap().feed;
    assert_eq!(feed.markers.len(), MAX_WRITERS);
    let numbers: Vec<_> = feed.markers.iter().map(|marker| marker.writer.number()).collect();
    assert!(numbers.contains(&1_000) && numbers.contains(&255) && !numbers.contains(&256), "{numbers:?}");
}
