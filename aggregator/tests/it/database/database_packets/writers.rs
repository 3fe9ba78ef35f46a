//! What several writers write, and what each reads of the others.

use super::{limited, pair};
use crate::support::database::packets::*;
use crate::support::database::*;
use std::collections::BTreeMap;
use weir_core::model::time::UnixMs;
use weir_core::model::window::MAX_COUNT;
use weir_core::region::exchange::Publication;
use weir_core::replication::global::packet::{Marker, OwnMarker, Packet};

pub async fn two_writers_read_each_others_rows_once(store: &Store) {
    let scene = store.fresh().await;
    let (mut a, mut b) = (Node::new(scene.open("a"), 7), Node::new(scene.open("b"), u32::MAX));
    let packet = a.writing(&[limited("x", 5, 100), row("y", 6)]);
    let first = a.exchange(&packet).await.unwrap();
    let of = |writer, region: &str, version| Marker { writer, region: region.into(), version };
    assert_eq!((&first.feed.pages[..], &first.feed.regions[..]), (&[][..], &[][..]));
    assert_eq!(first.feed.own, OwnMarker { version: 1, since: 1 }, "the own marker is read after the write");
    assert_eq!(first.feed.markers, []);
    a.apply(&packet, first);

    // A writer that is new is read from version 0 on.
    assert_eq!(b.send(&[limited("x", 50, 90)]).await.new_writers, 1);
    let packet = b.reading();
    let exchanged = b.exchange(&packet).await.unwrap();
    assert_eq!(exchanged.feed.own, OwnMarker { version: 1, since: 1 });
    assert_eq!(exchanged.feed.markers, [of(a.writer, "a", 1)]);
    let [page] = exchanged.feed.pages[..] else { panic!("{exchanged:?}") };
    assert_eq!((page.writer, page.rows, page.last_version), (a.writer, 2, 1));
    let [region] = &exchanged.feed.regions[..] else { panic!("{exchanged:?}") };
    assert_eq!(region.region, b"a");
    let limits: BTreeMap<_, _> =
        region.cells.iter().map(|cell| (cell.key.parts().identifier, cell.limit)).collect();
    assert_eq!(limits, BTreeMap::from([(&b"x"[..], 100), (b"y", u64::MAX)]));
    assert_eq!(b.apply(&packet, exchanged).cells, fed(&[("x", 5), ("y", 6)]));
    assert!(b.read().await.cells.is_empty(), "rows are read once");

    assert_eq!(a.read().await.new_writers, 1);
    assert_eq!(a.read().await.cells, fed(&[("x", 50)]));
    // Only what grows is fed.
    a.send(&[limited("x", 7, 100)]).await;
    assert_eq!(b.read().await.cells, fed(&[("x", 7)]));
    // Writing reads too.
    a.send(&[row("z", 1)]).await;
    assert_eq!(b.send(&[]).await.cells, fed(&[("z", 1)]));
    assert!(a.read().await.cells.is_empty() && b.read().await.cells.is_empty());
    assert_eq!(scene.rows().await, 4 + 2);
}

pub async fn a_packet_that_raises_nothing_changes_no_column(store: &Store) {
    let scene = store.fresh().await;
    let (mut a, mut b) = pair(&scene).await;
    let all = [limited("x", 5, 100), row("y", 6)];
    a.send(&all).await;
    assert_eq!(b.catch_up().await.len(), 2);
    let before = lines(&scene).await;
    assert_eq!((before[0].count, before[0].lowest_limit, before[1].lowest_limit), (5, 100, 1 << 53));
    assert_eq!((before[0].writer, before[0].version, before[0].updated_at), (1, 2, NOW.0.cast_signed()));

    let mut restarted = Node { now: UnixMs(NOW.0 + 1), ..Node::new(scene.open("a"), 3) };
    let lower = [limited("x", 4, 100), limited("x", 5, 101), limited("y", 5, u64::MAX)];
    for rows in [&all[..], &lower] {
        restarted.send(rows).await;
        assert_eq!(lines(&scene).await, before);
    }
    assert_eq!((b.catch_up().await, b.cursors[&restarted.writer]), (vec![], 2));
    // A row that expires later, or an equal count of another time, is no news either.
    let later = Publication { expires: UnixMs(NOW.0 + 9 * HOUR_MS), ..all[0].clone() };
    restarted.send(std::slice::from_ref(&later)).await;
    let expected = Line { expires_at: later.expires.0.cast_signed(), ..before[0].clone() };
    assert_eq!(lines(&scene).await, [expected, before[1].clone()]);
    assert_eq!(b.catch_up().await, []);
}

pub async fn the_writer_that_repeats_a_row_moves_its_version(store: &Store) {
    let scene = store.fresh().await;
    let (mut a, mut b) = pair(&scene).await;
    a.send(&[row("x", 5)]).await;
    assert_eq!(b.read().await.cells, fed(&[("x", 5)]));
    let before = lines(&scene).await;
    // The packet was stored, but its answer was lost.
    a.now = UnixMs(NOW.0 + 1);
    a.send(&[row("x", 5)]).await;
    assert_eq!(lines(&scene).await, [Line { version: 3, ..before[0].clone() }]);
    assert_eq!(b.read().await.cells, fed(&[("x", 5)]));
    // A late copy of the first packet moves nothing back.
    let late = Packet { version: Some(2), rows: vec![row("x", 5)], ..a.reading() };
    let exchanged = a.exchange(&late).await.unwrap();
    assert_eq!(exchanged.feed.own, OwnMarker { version: 3, since: 1 });
    assert_eq!(lines(&scene).await[0].version, 3);
    // Another writer of the region, with the same count, moves nothing.
    Node::new(scene.open("a"), 3).send(&[row("x", 5)]).await;
    assert_eq!((lines(&scene).await[0].writer, lines(&scene).await[0].version), (1, 3));
    assert_eq!(b.catch_up().await, []);
}

pub async fn a_lower_limit_moves_the_row(store: &Store) {
    let scene = store.fresh().await;
    let (mut a, mut b) = pair(&scene).await;
    a.send(&[limited("x", 5, 100)]).await;
    b.catch_up().await;
    let mut other = Node { now: UnixMs(NOW.0 + 1), ..Node::new(scene.open("a"), 3) };
    let before = lines(&scene).await;
    // A lower count with a lower limit keeps the count.
    other.send(&[limited("x", 2, 20)]).await;
    let expected = Line { lowest_limit: 20, writer: 3, version: 1, ..before[0].clone() };
    assert_eq!(lines(&scene).await, [expected]);
    assert_eq!(b.catch_up().await, fed(&[("x", 5)]));
    assert_eq!(b.held.values().next(), Some(&(5, 20)));
    // Any limit that no count reaches is unknown.
    other.send(&[limited("y", 1, MAX_COUNT - 1), limited("z", 1, MAX_COUNT), limited("zero", 1, 0)]).await;
    b.catch_up().await;
    let limits: Vec<_> = b.held.values().map(|(_, limit)| *limit).collect();
    assert_eq!(limits, [20, MAX_COUNT - 1, u64::MAX, 0]);
    let imported = b.database.import(&whole(WITHIN)).await.unwrap();
    let [region] = &imported.page.regions[..] else { panic!("{imported:?}") };
    let read: Vec<_> = sorted(region.cells.clone()).iter().map(|cell| cell.limit).collect();
    assert_eq!(read, limits);
    let own = a.database.own(&whole(WITHIN)).await.unwrap();
    assert_eq!(own.page.regions, imported.page.regions);
}

pub async fn two_writers_of_one_region(store: &Store) {
    let scene = store.fresh().await;
    let (mut one, mut two) = (Node::new(scene.open("a"), 1), Node::new(scene.open("a"), 2));
    let mut b = Node::new(scene.open("b"), 3);
    one.send(&[row("x", 5), row("one", 1)]).await;
    two.send(&[row("x", 7), row("two", 1)]).await;
    one.send(&[row("x", 6)]).await;
    assert_eq!(b.catch_up().await, fed(&[("one", 1), ("two", 1), ("x", 7)]));
    // Each reads what the other has raised last.
    assert_eq!(one.catch_up().await, fed(&[("two", 1), ("x", 7)]));
    assert_eq!(two.catch_up().await, fed(&[("one", 1)]));
    one.send(&[row("x", 8)]).await;
    assert_eq!(two.send(&[row("x", 8)]).await.cells, fed(&[("x", 8)]));
    assert_eq!(b.catch_up().await, fed(&[("x", 8)]), "an equal count is fed once");
    assert_eq!(scene.rows().await, 3 + 2, "one marker for each writer; reading writes none");
}

pub async fn a_writer_that_restarts(store: &Store) {
    let scene = store.fresh().await;
    let (mut a, mut b) = pair(&scene).await;
    a.send(&[row("x", 5), row("y", 6)]).await;
    b.send(&[row("z", 7)]).await;
    b.catch_up().await;
    let mut again = Node::new(scene.open("a"), 4);
    assert_eq!(again.catch_up().await, fed(&[("x", 5), ("y", 6), ("z", 7)]));
    // It has the region's counts, and sends them and more.
    again.send(&[row("x", 5), row("y", 9)]).await;
    assert_eq!(b.catch_up().await, fed(&[("y", 9)]));
    assert_eq!((b.count("a", "x"), b.count("a", "y")), (5, 9));
    // The process before may have a packet in flight, which neither lowers nor hides anything.
    a.send(&[row("y", 8), row("x", 6)]).await;
    assert_eq!(b.catch_up().await, fed(&[("x", 6)]));
}

/// The network, or a lock, may delay a packet beyond the next one.
pub async fn a_packet_that_arrives_after_its_successor(store: &Store) {
    let scene = store.fresh().await;
    let (mut a, mut b) = pair(&scene).await;
    let late = a.writing(&[row("late", 5)]);
    a.send(&[row("next", 1)]).await;
    assert_eq!(b.read().await.cells, fed(&[("next", 1)]));
    a.exchange(&late).await.unwrap();
    assert_eq!(b.read().await.cells, [], "the cursor is beyond its version");
    // The row waits until a packet with it is answered.
    a.send(&[row("late", 5)]).await;
    assert_eq!(b.read().await.cells, fed(&[("late", 5)]));
}
