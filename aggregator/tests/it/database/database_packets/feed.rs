//! What a reader gets with its cursors: pages, moments, and rows that cannot be used.

use super::{hex, pair};
use crate::support::database::packets::*;
use crate::support::database::*;
use std::time::Instant;
use weir_aggregator::database::{Database, DatabaseOptions};
use weir_core::replication::global::packet::{
    Cursor, MAX_FEED_ROWS, MAX_PACKET_ROWS, MAX_WRITERS, Packet, Writer,
};

/// Inserts rows of region z by hand: identifier, duration, sequence, count, expiry, writer, version.
pub async fn insert_by_hand(scene: &Scene, rows: &[(String, u64, i64, u64, u64, u64, u64)]) {
    let values: Vec<_> = rows
        .iter()
        .map(|(identifier, duration_ms, sequence, count, expires_at, writer, version)| {
            let hex = hex(identifier.as_bytes());
            let texts = if *duration_ms == 0 { "x'', x''" } else { "x'77', x'6e'" };
            format!("({texts}, x'{hex}', {duration_ms}, {sequence}, x'7a', {count}, {expires_at}, 1, {writer}, {version})")
        })
        .collect();
    let columns = "workspace_id, namespace, identifier, duration_ms, sequence, region, count, expires_at, updated_at, writer, version";
    scene.run(&format!("INSERT INTO ratelimit_window_counts ({columns}) VALUES {}", values.join(","))).await;
}

pub async fn pages_never_split_a_version(store: &Store) {
    const PACKETS: usize = 7;
    const ROWS: usize = 700;
    let scene = store.fresh().await;
    let (mut a, mut b) = (Node::new(scene.open("a"), 1), Node::new(scene.open("b"), 2));
    let mut first = Node::new(scene.open("a"), 9);
    for packet in 0..PACKETS {
        first.send(&rows(&format!("p{packet}-"), ROWS, 1)).await;
    }
    // The rows of the highest version are the oldest of the table.
    for packet in (0..PACKETS).rev() {
        a.send(&rows(&format!("p{packet}-"), ROWS, 2)).await;
    }
    // Another writer's rows come beside.
    Node::new(scene.open("c"), 3).send(&[row("c", 1)]).await;
    assert_eq!(b.read().await.new_writers, 3);
    // A page has two versions and 600 rows of a third, which the next page begins with.
    for cursor in [2, 4] {
        let packet = b.reading();
        let exchanged = b.exchange(&packet).await.unwrap();
        let page = exchanged.feed.pages.iter().find(|page| page.writer == a.writer).unwrap();
        assert_eq!((page.rows, page.last_version), (MAX_FEED_ROWS, cursor + 1));
        let fed = b.apply(&packet, exchanged);
        assert_eq!(fed.cells.iter().any(|(identifier, _)| identifier == "c"), cursor == 2);
        assert_eq!(b.cursors[&a.writer], cursor);
    }
    b.catch_up().await;
    assert_eq!((b.held.len(), b.cursors[&a.writer]), (PACKETS * ROWS + 1, PACKETS as u64));
    // Versions as large as a packet allows.
    let mut a = Node::new(scene.open("a"), 4);
    for packet in 0..4 {
        a.send(&rows(&format!("q{packet}-"), MAX_PACKET_ROWS, 1)).await;
    }
    b.catch_up().await;
    assert_eq!(b.held.len(), PACKETS * ROWS + 1 + 4 * MAX_PACKET_ROWS);
    assert_eq!(b.cursors[&a.writer], 4);
}

pub async fn bad_rows_fill_pages_and_are_skipped(store: &Store) {
    let scene = store.fresh().await;
    let mut b = Node::new(scene.open("b"), 2);
    let (writer, expires_at) = (9, NOW.0 + HOUR_MS);
    let bad = |version: u64| {
        // No window is as short.
        (0..MAX_PACKET_ROWS)
            .map(move |i| (format!("bad{version}-{i}"), 999, 1, 1, expires_at, writer, version))
    };
    let mut all: Vec<_> = bad(1).chain(bad(2)).collect();
    all.push(("good".to_owned(), HOUR_MS, sequence().cast_signed(), 7, expires_at, writer, 3));
    all.push((String::new(), 0, 9, 3, expires_at, writer, 3));
    // A marker of a writer that cannot be.
    all.push((String::new(), 0, 1 << 31, 3, expires_at, 0, 0));
    insert_by_hand(&scene, &all).await;
    let read = async |b: &mut Node| {
        let packet = b.reading();
        let exchanged = b.exchange(&packet).await.unwrap();
        let (bad, example) = (exchanged.bad, exchanged.bad_example.clone());
        let rows = exchanged.feed.pages.first().map(|page| (page.rows, page.last_version));
        let fed = b.apply(&packet, exchanged);
        (bad, example, rows, fed.cells)
    };
    let (bad, example, ..) = read(&mut b).await;
    assert!(bad == 1 && example.unwrap().contains("no marker"));
    let (bad, example, page, cells) = read(&mut b).await;
    assert_eq!((bad, page, cells), (1 + MAX_FEED_ROWS as u64, Some((MAX_FEED_ROWS, 2)), vec![]));
    assert!(example.unwrap().contains("no marker"));
    let (bad, _, page, cells) = read(&mut b).await;
    assert_eq!(
        (bad, page, cells),
        (1 + MAX_PACKET_ROWS as u64, Some((MAX_PACKET_ROWS + 1, 3)), fed(&[("good", 7)]))
    );
    assert_eq!(read(&mut b).await.3, []);
}

/// A packet's rows become visible together with its marker.
pub async fn the_feed_is_of_one_moment(store: &Store) {
    const ROWS: usize = 150;
    const PACKETS: u64 = 60;
    let scene = store.fresh().await;
    let (mut a, mut b) = pair(&scene).await;
    b.catch_up().await;
    let writing = tokio::spawn(async move {
        for count in 1..=PACKETS {
            a.send(&rows("k", ROWS, count)).await;
        }
        a
    });
    let (mut reads, mut changes) = (0, 0);
    while !writing.is_finished() || reads == 0 {
        let packet = b.reading();
        let before = b.cursors[&Writer::new(1)];
        let exchanged = b.exchange(&packet).await.unwrap();
        let marker = exchanged.feed.markers.iter().find(|marker| marker.writer == Writer::new(1)).unwrap();
        reads += 1;
        if let [page] = exchanged.feed.pages[..] {
            changes += 1;
            assert_eq!((page.rows, page.last_version), (ROWS, marker.version));
            // Version 1 was the empty packet.
            let count = marker.version - 1;
            assert!(exchanged.feed.regions[0].cells.iter().all(|cell| cell.count == count));
        } else {
            assert_eq!(marker.version, before, "a marker without its rows");
        }
        b.apply(&packet, exchanged);
    }
    writing.await.unwrap();
    b.catch_up().await;
    assert!(b.held.len() == ROWS && b.held.values().all(|(count, _)| *count == PACKETS));
    eprintln!("{reads} reads, {changes} with rows");
}

pub async fn a_lagging_replica_returns_lower_counts(store: &Store) {
    let (primary, replica) = (store.fresh().await, store.fresh().await);
    for (scene, rows) in [(&primary, [row("x", 9), row("y", 1)].as_slice()), (&replica, &[row("x", 5)])] {
        Node::new(scene.open("b"), 2).send(rows).await;
    }
    let options = DatabaseOptions {
        url: primary.url.clone(),
        read_url: Some(replica.url.clone()),
        region: "a".to_owned(),
    };
    let mut a = Node::new(Database::open(&options).unwrap(), 1);
    a.send(&[row("own", 1)]).await;
    assert_eq!(a.catch_up().await, fed(&[("x", 9), ("y", 1)]), "packets are exchanged with the primary");
    assert_eq!((primary.rows().await, replica.rows().await), (3 + 2, 1 + 1));
    assert_eq!(import(&a.database).await, cells(&[row("x", 5)]));
    let imported = a.database.import(&whole(WITHIN)).await.unwrap();
    a.merge(imported.page.regions);
    assert_eq!((a.count("b", "x"), a.count("b", "y")), (9, 1));
}

pub async fn as_many_cursors_as_writers(store: &Store) {
    let scene = store.fresh().await;
    let mut a = Node::new(scene.open("a"), 1);
    for number in [2, 100, 256] {
        Node::new(scene.open("b"), number).send(&[row(&format!("x{number}"), 1)]).await;
    }
    let cursors =
        (1..=MAX_WRITERS as u32).map(|number| Cursor { writer: Writer::new(number + 1), version: 0 });
    let packet = Packet { cursors: cursors.collect(), ..a.writing(&rows("k", MAX_PACKET_ROWS, 1)) };
    let began = Instant::now();
    let exchanged = a.exchange(&packet).await.unwrap();
    eprintln!("{MAX_PACKET_ROWS} rows and {MAX_WRITERS} cursors: {:?}", began.elapsed());
    assert_eq!((exchanged.feed.pages.len(), exchanged.feed.markers.len()), (3, 3));
    let began = Instant::now();
    a.exchange(&Packet { version: None, ..packet.clone() }).await.unwrap();
    eprintln!("{MAX_WRITERS} cursors: {:?}", began.elapsed());
}
