//! Tests of packets: what writers write in one round trip, and what readers read with their cursors. The same for MariaDB, MySQL and
//! SQLite.

mod database_support;

use database_support::far::Far;
use database_support::packets::*;
use database_support::*;
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, Row, SqliteConnection};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use weir_aggregator::database::connection::{mysql, sqlite};
use weir_aggregator::database::{Database, DatabaseOptions};
use weir_core::model::key::{Key, KeyParts};
use weir_core::model::time::UnixMs;
use weir_core::model::window::MAX_COUNT;
use weir_core::region::exchange::Publication;
use weir_core::replication::globe::packet::{
    Cursor, MAX_FEED_ROWS, MAX_PACKET_ROWS, MAX_WRITERS, Marker, Packet, Writer,
};
use weir_envoy::{ports, wait};

on_servers!(|store| scenarios_of_servers(&store));

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite() {
    let store = Store::sqlite();
    scenarios(&store).await;
    run!(
        &store,
        a_file_that_is_read_only_is_read,
        a_file_that_another_process_locks,
        sqlite_reads_what_is_new,
    );
}

async fn scenarios_of_servers(store: &Store) {
    scenarios(store).await;
    run!(
        store,
        a_row_behind_a_lock_is_fed_after_a_late_commit,
        packets_of_one_writer_wait_for_each_other,
        a_packet_that_is_the_victim_of_a_deadlock,
        a_server_that_is_read_only_is_read,
        a_packet_above_the_servers_limit,
        a_packet_takes_one_round_trip,
        a_feed_reads_what_is_new,
    );
}

async fn scenarios(store: &Store) {
    run!(
        store,
        two_writers_read_each_others_rows_once,
        a_packet_that_raises_nothing_changes_no_column,
        the_writer_that_repeats_a_row_moves_its_version,
        a_lower_limit_moves_the_row,
        two_writers_of_one_region,
        a_writer_that_restarts,
        a_packet_that_arrives_after_its_successor,
        pages_never_split_a_version,
        bad_rows_fill_pages_and_are_skipped,
        a_truncated_table,
        a_table_set_back,
        markers_are_no_cells,
        markers_end,
        more_markers_than_writers,
        bytes_stay_bytes,
        rows_that_cannot_be_stored_are_left_out,
        a_packet_that_the_database_refuses,
        an_earlier_version_beside_this_one,
        the_feed_is_of_one_moment,
        opposite_orders_do_not_deadlock,
        a_lagging_replica_returns_lower_counts,
        as_many_cursors_as_writers,
    );
}

fn limited(identifier: &str, count: u64, limit: u64) -> Publication {
    Publication { limit, ..row(identifier, count) }
}

/// Less than a statement waits for a lock.
const SHORT: Duration = Duration::from_millis(700);
/// Tolerance for the end of a call after `SHORT` on a busy machine.
const SLACK: Duration = Duration::from_secs(4);

/// Two nodes in regions a and b that have read each other's markers.
async fn pair(scene: &Scene) -> (Node, Node) {
    let mut nodes = (Node::new(scene.open("a"), 1), Node::new(scene.open("b"), 2));
    nodes.0.send(&[]).await;
    nodes.1.send(&[]).await;
    assert_eq!(nodes.0.read().await.new_writers, 1);
    nodes
}

async fn two_writers_read_each_others_rows_once(store: &Store) {
    let scene = store.fresh().await;
    let (mut a, mut b) = (Node::new(scene.open("a"), 7), Node::new(scene.open("b"), u32::MAX));
    let packet = a.writing(&[limited("x", 5, 100), row("y", 6)]);
    let first = a.exchange(&packet).await.unwrap();
    let of = |writer, region: &str, version| Marker { writer, region: region.into(), version };
    assert_eq!((first.feed.own, &first.feed.pages[..], &first.feed.regions[..]), (None, &[][..], &[][..]));
    assert_eq!(first.feed.markers, [of(a.writer, "a", 1)], "the own marker is read after the write");
    a.apply(&packet, first);

    // A writer that is new is read from version 0 on.
    assert_eq!(b.send(&[limited("x", 50, 90)]).await.new_writers, 1);
    let packet = b.reading();
    let exchanged = b.exchange(&packet).await.unwrap();
    assert_eq!(exchanged.feed.own, Some(1));
    let mut markers = exchanged.feed.markers.clone();
    markers.sort_by_key(|marker| marker.writer);
    assert_eq!(markers, [of(a.writer, "a", 1), of(b.writer, "b", 1)]);
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

async fn a_packet_that_raises_nothing_changes_no_column(store: &Store) {
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

async fn the_writer_that_repeats_a_row_moves_its_version(store: &Store) {
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
    assert_eq!(exchanged.feed.own, Some(3));
    assert!(exchanged.feed.markers.iter().any(|marker| marker.writer == a.writer && marker.version == 3));
    assert_eq!(lines(&scene).await[0].version, 3);
    // Another writer of the region, with the same count, moves nothing.
    Node::new(scene.open("a"), 3).send(&[row("x", 5)]).await;
    assert_eq!((lines(&scene).await[0].writer, lines(&scene).await[0].version), (1, 3));
    assert_eq!(b.catch_up().await, []);
}

async fn a_lower_limit_moves_the_row(store: &Store) {
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
    let imported = b.database.import(NOW, WITHIN).await.unwrap();
    let [region] = &imported.regions[..] else { panic!("{imported:?}") };
    let read: Vec<_> = sorted(region.cells.clone()).iter().map(|cell| cell.limit).collect();
    assert_eq!(read, limits);
    let own = a.database.own(NOW, WITHIN).await.unwrap();
    assert_eq!(own.regions, imported.regions);
}

async fn two_writers_of_one_region(store: &Store) {
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

async fn a_writer_that_restarts(store: &Store) {
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
async fn a_packet_that_arrives_after_its_successor(store: &Store) {
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

async fn pages_never_split_a_version(store: &Store) {
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

/// Inserts rows of region z by hand: identifier, duration, sequence, count, expiry, writer, version.
async fn insert_by_hand(scene: &Scene, rows: &[(String, u64, i64, u64, u64, u64, u64)]) {
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

async fn bad_rows_fill_pages_and_are_skipped(store: &Store) {
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

async fn a_truncated_table(store: &Store) {
    let scene = store.fresh().await;
    let (mut a, mut b) = pair(&scene).await;
    let (own_a, own_b) = ([row("x", 5), row("y", 6)], [row("x", 8)]);
    a.send(&own_a).await;
    b.send(&own_b).await;
    a.catch_up().await;
    b.catch_up().await;
    scene.wipe().await;
    let packet = a.reading();
    assert_eq!(a.exchange(&packet).await.unwrap().feed.own, None);
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
async fn a_table_set_back(store: &Store) {
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
    assert_eq!(a.exchange(&a.reading()).await.unwrap().feed.own, Some(2));
    // The first packet after the restore writes a new marker, and its answer shows the old one.
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

async fn markers_are_no_cells(store: &Store) {
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
    let own = b.database.own(NOW, WITHIN).await.unwrap();
    assert_eq!((own.bad, sums(own)), (0, cells(&[row("x", 1)])));
}

async fn markers_end(store: &Store) {
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

async fn more_markers_than_writers(store: &Store) {
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

async fn bytes_stay_bytes(store: &Store) {
    let scene = store.fresh().await;
    let region = "a'; DROP TABLE x; -- \\\u{1f600}";
    let (mut a, mut b) = (Node::new(scene.open(region), 1), Node::new(scene.open("b"), 2));
    let every_byte: Vec<u8> = (0..=255).collect();
    let mut traps: Vec<&[u8]> = every_byte.chunks(64).collect();
    traps.extend([
        b"".as_slice(),
        b" ",
        b"\0",
        b"'",
        b"';--",
        b"?",
        b"\\@1.1:x",
        b"alice",
        b"Alice",
        b"alice ",
        &[0xff; 64],
    ]);
    let text = |workspace, identifier| {
        let parts = KeyParts {
            workspace,
            namespace: workspace,
            identifier,
            duration_ms: HOUR_MS,
            epoch: 3,
            resolution: 10,
        };
        row_of(Key::new(&parts).unwrap(), 9)
    };
    let mut all: Vec<_> = traps.iter().zip(1..).map(|(trap, count)| row_of(key(trap), count)).collect();
    all.extend(traps.iter().map(|trap| text(b"", trap)));
    all.extend(traps.iter().map(|trap| text(trap, b"")).skip(5));
    a.send(&all).await;
    b.read().await;
    let packet = b.reading();
    let exchanged = b.exchange(&packet).await.unwrap();
    let [read] = &exchanged.feed.regions[..] else { panic!("{exchanged:?}") };
    assert_eq!(read.region, region.as_bytes());
    assert_eq!(sorted(read.cells.clone()), cells(&all));
}

async fn rows_that_cannot_be_stored_are_left_out(store: &Store) {
    let scene = store.fresh().await;
    let (mut a, mut b) = pair(&scene).await;
    let bad = [
        Publication { sequence: i64::MAX as u64 + 1, ..row("x", 1) },
        Publication { count: MAX_COUNT + 1, ..row("y", 1) },
        Publication { expires: UnixMs(0), ..row("z", 1) },
        Publication { expires: UnixMs(u64::MAX), ..row("z", 1) },
    ];
    let good = [row("a", MAX_COUNT), Publication { sequence: i64::MAX as u64, ..row("b", 1) }];
    let packet = a.writing(&[&bad[..], &good].concat());
    let exchanged = a.exchange(&packet).await.unwrap();
    assert_eq!(exchanged.skipped, 4);
    assert!(exchanged.skipped_example.unwrap().contains("sequence is too large"));
    assert_eq!(b.read().await.cells, fed(&[("a", MAX_COUNT), ("b", 1)]));
    let packet = a.writing(&bad);
    assert_eq!(a.exchange(&packet).await.unwrap().skipped, 4);
    assert_eq!(b.read().await.cells, []);
    // A packet that writes nothing writes no row, whatever it has.
    let packet = Packet { version: None, ..a.writing(&[row("c", 1)]) };
    assert_eq!(a.exchange(&packet).await.unwrap().skipped, 0);
    assert_eq!(b.catch_up().await, []);
    let too_many = a.writing(&rows("many", MAX_PACKET_ROWS + 1, 1));
    let error = a.exchange(&too_many).await.unwrap_err();
    assert_eq!((error.reason(), lines(&scene).await.len()), ("other", 2), "{error}");
}

/// A packet is stored entirely or not at all.
async fn a_packet_that_the_database_refuses(store: &Store) {
    let scene = store.fresh().await;
    let (mut a, mut b) = pair(&scene).await;
    let refuse = if scene.is_mysql() {
        "CREATE TRIGGER refuse BEFORE INSERT ON ratelimit_window_counts FOR EACH ROW
         IF NEW.identifier = 'k00500' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not this row'; END IF"
    } else {
        "CREATE TRIGGER refuse BEFORE INSERT ON ratelimit_window_counts WHEN NEW.identifier = x'6b3030353030'
         BEGIN SELECT RAISE(ABORT, 'not this row'); END"
    };
    scene.run(refuse).await;
    let mut all = rows("k", MAX_PACKET_ROWS, 3);
    let packet = a.writing(&all);
    let error = a.exchange(&packet).await.unwrap_err();
    assert_eq!(error.reason(), "other", "{error}");
    assert!(error.to_string().contains("not this row"), "{error}");
    assert_eq!(a.exchange(&a.reading()).await.unwrap().feed.own, Some(1));
    assert_eq!((lines(&scene).await, b.catch_up().await), (vec![], vec![]));
    all.remove(500);
    a.send(&all).await;
    b.catch_up().await;
    assert_eq!((b.held.len(), import(&b.database).await), (all.len(), cells(&all)));
}

/// The upsert and the import of the version before packets, as it sent them.
const OLD_BEGIN: &str = "
INSERT INTO ratelimit_window_counts
    (workspace_id, namespace, identifier, duration_ms, sequence, region, count, expires_at, updated_at)
VALUES ";
const OLD_END_MYSQL: &str = "
ON DUPLICATE KEY UPDATE
    updated_at = IF(VALUES(count) > count, VALUES(updated_at), updated_at),
    count      = GREATEST(count, VALUES(count))";
const OLD_END_SQLITE: &str = "
ON CONFLICT (workspace_id, namespace, identifier, duration_ms, sequence, region) DO UPDATE
SET count = excluded.count, updated_at = excluded.updated_at
WHERE excluded.count > count";
const OLD_IMPORT_MYSQL: &str = "
SELECT workspace_id, namespace, identifier, duration_ms, sequence,
       CAST(SUM(IF(count > 9007199254740992, 0, count)) AS UNSIGNED) AS imported,
       CAST(SUM(count > 9007199254740992) AS UNSIGNED) AS implausible
FROM ratelimit_window_counts FORCE INDEX (expires_at_idx)
WHERE expires_at > ? AND region <> ?
GROUP BY workspace_id, namespace, identifier, duration_ms, sequence
ORDER BY NULL
LIMIT ?";
const OLD_IMPORT_SQLITE: &str = "
SELECT workspace_id, namespace, identifier, duration_ms, sequence,
       SUM(IIF(count > 9007199254740992, 0, count)) AS imported,
       SUM(count > 9007199254740992) AS implausible
FROM ratelimit_window_counts INDEXED BY expires_at_idx
WHERE expires_at > ? AND region <> ?
GROUP BY workspace_id, namespace, identifier, duration_ms, sequence
LIMIT ?";

async fn old_publish(scene: &Scene, region: &str, rows: &[Publication]) {
    let value = |Publication { key, sequence, count, expires, .. }: &Publication| {
        let (identifier, region) = (hex(key.parts().identifier), hex(region.as_bytes()));
        format!("(x'77',x'6e',x'{identifier}',{HOUR_MS},{sequence},x'{region}',{count},{},1)", expires.0)
    };
    let values: Vec<_> = rows.iter().map(value).collect();
    let end = if scene.is_mysql() { OLD_END_MYSQL } else { OLD_END_SQLITE };
    scene.run(&[OLD_BEGIN, &values.join(","), end].concat()).await;
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Identifier and sum of each cell, as the version before imports them: it skips rows of a window of 0 ms.
async fn old_import(scene: &Scene, region: &str) -> Vec<(String, u64)> {
    /// Identifier, duration, sum, number of implausible counts.
    type Columns = (Vec<u8>, i64, i64, i64);
    let (now, region) = (NOW.0.cast_signed(), region.as_bytes());
    let rows: Vec<Columns> = if scene.is_mysql() {
        let import = sqlx::query(OLD_IMPORT_MYSQL).bind(now).bind(region).bind(100);
        let rows = import.fetch_all(&mut scene.mysql().await).await.unwrap();
        let number = |row: &MySqlRow, column: usize| row.try_get_unchecked(column).unwrap();
        rows.iter().map(|row| (row.get(2), number(row, 3), number(row, 5), number(row, 6))).collect()
    } else {
        let mut connection = SqliteConnection::connect(&scene.url).await.unwrap();
        let import = sqlx::query(OLD_IMPORT_SQLITE).bind(now).bind(region).bind(100);
        let rows = import.fetch_all(&mut connection).await.unwrap();
        rows.iter().map(|row| (row.get(2), row.get(3), row.get(5), row.get(6))).collect()
    };
    let cells = rows.into_iter().filter(|(_, duration_ms, ..)| *duration_ms > 0);
    let mut sums: Vec<_> = cells
        .map(|(identifier, _, sum, implausible)| {
            assert_eq!(implausible, 0);
            (String::from_utf8(identifier).unwrap(), sum.cast_unsigned())
        })
        .collect();
    sums.sort();
    sums
}

async fn an_earlier_version_beside_this_one(store: &Store) {
    let scene = store.fresh().await;
    let (mut a, mut b) = pair(&scene).await;
    old_publish(&scene, "a", &[row("x", 5)]).await;
    old_publish(&scene, "c", &[row("x", 50)]).await;
    a.send(&[limited("y", 3, 10)]).await;
    assert_eq!(old_import(&scene, "b").await, fed(&[("x", 55), ("y", 3)]));
    // Rows of before are in the full import, and not in the feed.
    assert_eq!(b.catch_up().await, fed(&[("y", 3)]));
    assert_eq!(import(&b.database).await, cells(&[row("x", 55), row("y", 3)]));
    // A packet that raises a row of before feeds it. One that does not leaves it.
    a.send(&[limited("x", 5, u64::MAX)]).await;
    assert_eq!(b.catch_up().await, []);
    a.send(&[limited("x", 6, 10)]).await;
    assert_eq!(b.catch_up().await, fed(&[("x", 6)]));
    assert_eq!(old_import(&scene, "b").await, fed(&[("x", 56), ("y", 3)]));
    // A writer of before that raises a row of a packet is in the full import.
    old_publish(&scene, "a", &[row("y", 4)]).await;
    old_publish(&scene, "a", &[row("x", 2)]).await;
    assert_eq!(b.catch_up().await, []);
    let imported = b.database.import(NOW, WITHIN).await.unwrap();
    b.merge(imported.regions);
    assert_eq!((b.count("a", "x"), b.count("a", "y"), b.count("c", "x")), (6, 4, 50));
    let own = a.database.own(NOW, WITHIN).await.unwrap();
    assert_eq!(sums(own), cells(&[row("x", 6), row("y", 4)]));
    // The next packet feeds what is above.
    a.send(&[limited("y", 5, 10)]).await;
    assert_eq!(b.catch_up().await, fed(&[("y", 5)]));
    assert_eq!(old_import(&scene, "b").await, fed(&[("x", 56), ("y", 5)]));
}

/// A packet's rows become visible together with its marker.
async fn the_feed_is_of_one_moment(store: &Store) {
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

/// Both writers of one region raise the same rows.
async fn opposite_orders_do_not_deadlock(store: &Store) {
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

async fn a_lagging_replica_returns_lower_counts(store: &Store) {
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
    let imported = a.database.import(NOW, WITHIN).await.unwrap();
    a.merge(imported.regions);
    assert_eq!((a.count("b", "x"), a.count("b", "y")), (9, 1));
}

async fn as_many_cursors_as_writers(store: &Store) {
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
    assert_eq!((exchanged.feed.pages.len(), exchanged.feed.markers.len()), (3, 4));
    let began = Instant::now();
    a.exchange(&Packet { version: None, ..packet.clone() }).await.unwrap();
    eprintln!("{MAX_WRITERS} cursors: {:?}", began.elapsed());
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

async fn begin(scene: &Scene) -> MySqlConnection {
    let mut other = scene.mysql().await;
    other.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await.unwrap();
    other.execute(sqlx::raw_sql("BEGIN")).await.unwrap();
    other
}

/// Waits until the marker of a node has a version.
async fn marker_becomes(node: &Node, version: u64) {
    let committed = async || node.exchange(&node.reading()).await.unwrap().feed.own == Some(version);
    wait::until("a late packet is committed", WITHIN, committed).await.unwrap();
}

/// The packet's time is over while it waits for a lock. Meanwhile a reader reads on, past all other packets. The server commits
/// the packet after that.
async fn a_row_behind_a_lock_is_fed_after_a_late_commit(store: &Store) {
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
    assert_eq!(a.exchange(&a.reading()).await.unwrap().feed.own, Some(2));
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
async fn packets_of_one_writer_wait_for_each_other(store: &Store) {
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
async fn a_packet_that_is_the_victim_of_a_deadlock(store: &Store) {
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
    assert_eq!(a.exchange(&a.reading()).await.unwrap().feed.own, Some(3));
    a.send(&again).await;
    assert_eq!(b.catch_up().await, fed(&[("first", 5), ("second", 5)]));
}

/// After a failover, the address may lead to a server that accepts no writes.
async fn a_server_that_is_read_only_is_read(store: &Store) {
    let scene = store.fresh().await;
    let (mut a, mut b) = pair(&scene).await;
    b.send(&[row("x", 1)]).await;
    let (server, database) = scene.url.rsplit_once('/').unwrap();
    scene
        .run(&format!(
            "CREATE USER IF NOT EXISTS 'app'@'%' IDENTIFIED BY 'geheim'; GRANT SELECT, INSERT, UPDATE ON {database}.* TO 'app'@'%'"
        ))
        .await;
    a.database = open(&format!("{}/{database}", server.replace("weir:", "app:")), "a");
    a.send(&[row("y", 1)]).await;
    let kinds: &[&str] =
        if is_mariadb(&scene).await { &["read_only"] } else { &["read_only", "super_read_only"] };
    for kind in kinds {
        scene.run(&format!("SET GLOBAL {kind} = 1")).await;
        let packet = a.writing(&[row("y", 2)]);
        let error = a.exchange(&packet).await.unwrap_err();
        assert_eq!(error.reason(), "refused", "{error}");
        assert!(
            error.to_string().contains("read-only") || error.to_string().contains("read_only"),
            "{error}"
        );
        assert_eq!(a.exchange(&a.reading()).await.unwrap().feed.own, Some(a.acknowledged));
        assert_eq!(a.count("b", "x"), 1);
        scene.run("SET GLOBAL read_only = 0").await;
        a.send(&[row("y", 2)]).await;
    }
    b.catch_up().await;
    assert_eq!(b.count("a", "y"), 2);
}

async fn is_mariadb(scene: &Scene) -> bool {
    scene.number("@@version LIKE '%MariaDB%'").await == 1
}

async fn a_packet_above_the_servers_limit(store: &Store) {
    let scene = store.fresh().await;
    let (mut a, mut b) = pair(&scene).await;
    let before = scene.number("@@global.max_allowed_packet").await;
    scene.run("SET GLOBAL max_allowed_packet = 65536").await;
    // The limit is that of a new session.
    a.database = scene.open("a");
    let all = rows("k", MAX_PACKET_ROWS, 1);
    let packet = a.writing(&all);
    let error = a.exchange(&packet).await.unwrap_err();
    assert!(error.to_string().ends_with("the server accepts 65536: raise max_allowed_packet"), "{error}");
    assert_eq!(a.exchange(&a.reading()).await.unwrap().feed.own, Some(1));
    a.send(&all[..100]).await;
    scene.run(&format!("SET GLOBAL max_allowed_packet = {before}")).await;
    a.database = scene.open("a");
    a.send(&all[100..]).await;
    b.catch_up().await;
    assert_eq!(b.held.len(), all.len());
}

async fn a_packet_takes_one_round_trip(store: &Store) {
    const ROUND_TRIP: Duration = Duration::from_millis(60);
    let scene = store.fresh().await;
    let port = store.server.as_ref().unwrap().port();
    let far = Far::start(ports::local(port), ROUND_TRIP).await;
    let mut b = Node::new(scene.open("b"), 2);
    b.send(&rows("b", 500, 1)).await;
    let mut a =
        Node::new(open(&scene.url.replace(&format!(":{port}/"), &format!(":{}/", far.port())), "a"), 1);
    // Connects.
    a.send(&[]).await;
    for count in 1..=3 {
        let (trips, began) = (far.round_trips(), Instant::now());
        a.send(&rows("a", MAX_PACKET_ROWS, count)).await;
        eprintln!("{MAX_PACKET_ROWS} rows over {ROUND_TRIP:?}: {:?}", began.elapsed());
        assert_eq!(far.round_trips() - trips, 1);
    }
    assert_eq!(a.held.len(), 500);
}

/// The plan of the feed, and the index entries and rows that the server reads for it.
async fn a_feed_reads_what_is_new(store: &Store) {
    const WRITERS: u64 = 255;
    const NEW: usize = 40;
    let scene = store.fresh().await;
    let mut nodes: Vec<_> =
        (1..=4).map(|number| Node::new(scene.open(&format!("r{number}")), number)).collect();
    for node in &mut nodes {
        for packet in 0..3 {
            node.send(&rows(&format!("k{packet}"), MAX_PACKET_ROWS, 1)).await;
        }
    }
    // Rows of an earlier version, and expired ones.
    old_publish(&scene, "old", &rows("old", 4_000, 1)).await;
    nodes[0].send(&expired("over", 500, HOUR_MS)).await;
    nodes[0].send(&rows("k0", NEW, 2)).await;
    let mut connection = scene.mysql().await;
    for analyzed in [false, true] {
        if analyzed {
            connection.execute("ANALYZE TABLE ratelimit_window_counts").await.unwrap();
        }
        // All writers but the last were read to their end. Of the first, a packet is new.
        let cursors: Vec<_> = (1..=WRITERS).map(|number| (number, if number == 1 { 4 } else { 3 })).collect();
        let sql = mysql_feed(&cursors);
        let plans = plans(&mut connection, &sql).await;
        assert_eq!(plans.len(), 1 + cursors.len());
        assert!(plans[0].starts_with("range unique_window_region"), "{}", plans[0]);
        for plan in &plans[1..] {
            assert!(plan.starts_with("range feed_idx") && !plan.contains("filesort"), "{plan}");
        }
        let reads = handler_reads(&mut connection, &sql).await;
        eprintln!("{WRITERS} cursors, {NEW} rows are new: {reads:?}");
        // The markers and the entry after the last; the packet's rows and its marker.
        let next = reads["Handler_read_next"];
        assert!((4 + NEW as u64..=4 + 1 + NEW as u64 + 1).contains(&next), "{reads:?}");
        assert!(reads["Handler_read_key"] <= WRITERS + 1, "{reads:?}");
        // The markers are sorted.
        assert!(reads["Handler_read_rnd"] <= 4 && reads["Handler_read_rnd_next"] <= 5, "{reads:?}");
        assert_eq!((reads["Handler_read_first"], reads["Handler_read_prev"]), (0, 0));
        // Nothing is new.
        let idle = mysql_feed(&cursors.iter().map(|(number, _)| (*number, 5)).collect::<Vec<_>>());
        let reads = handler_reads(&mut connection, &idle).await;
        assert!(reads["Handler_read_next"] <= 5, "{reads:?}");
        // A full page reads as many rows as it returns.
        let full = mysql_feed(&[(2, 0)]);
        let reads = handler_reads(&mut connection, &full).await;
        eprintln!("a full page: {reads:?}");
        assert!(reads["Handler_read_next"] <= 5 + MAX_FEED_ROWS as u64, "{reads:?}");
    }
    let own = filled_in(mysql::STATEMENTS.packet_own, &["1", "'r1'"]);
    assert_eq!(plans(&mut connection, &own).await, ["const unique_window_region "]);
}

fn mysql_feed(cursors: &[(u64, u64)]) -> String {
    feed(mysql::STATEMENTS.packet_markers, mysql::STATEMENTS.packet_page, cursors)
}

/// The text of a feed with these cursors.
fn feed(markers: &str, page: &str, cursors: &[(u64, u64)]) -> String {
    let now = NOW.0.to_string();
    let markers = filled_in(markers, &[&now, &MAX_WRITERS.to_string()]);
    let of = |(writer, version): &(u64, u64)| {
        let args = [&writer.to_string(), &version.to_string(), &now, &MAX_FEED_ROWS.to_string()];
        filled_in(page, &args.map(String::as_str))
    };
    markers + &cursors.iter().map(of).collect::<String>()
}

/// A statement with its parameters filled in.
fn filled_in(statement: &str, args: &[&str]) -> String {
    let mut parts = statement.split('?');
    let first = parts.next().unwrap().to_owned();
    parts.zip(args).fold(first, |sql, (part, arg)| sql + arg + part)
}

/// Access type, index and remarks of each table that a statement reads.
async fn plans(connection: &mut MySqlConnection, sql: &str) -> Vec<String> {
    let sql = AssertSqlSafe(format!("EXPLAIN FORMAT=TRADITIONAL {sql}"));
    let rows = connection.fetch_all(sqlx::raw_sql(sql)).await.unwrap();
    let line = |row: &MySqlRow| {
        let text = |name: &str| {
            let bytes: Option<Vec<u8>> = row.try_get_unchecked(name).unwrap();
            String::from_utf8(bytes.unwrap_or_default()).unwrap()
        };
        (text("table") == "ratelimit_window_counts")
            .then(|| format!("{} {} {}", text("type"), text("key"), text("Extra")))
    };
    rows.iter().filter_map(line).collect()
}

/// The session's counters of reads for a statement.
async fn handler_reads(connection: &mut MySqlConnection, sql: &str) -> BTreeMap<String, u64> {
    let mut query =
        async |sql: &str| connection.fetch_all(sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))).await.unwrap();
    query("FLUSH STATUS").await;
    query(sql).await;
    let text = |row: &MySqlRow, column: usize| {
        String::from_utf8(row.try_get_unchecked::<Vec<u8>, _>(column).unwrap()).unwrap()
    };
    let rows = query("SHOW SESSION STATUS LIKE 'Handler_read%'").await;
    rows.iter().map(|row| (text(row, 0), text(row, 1).parse().unwrap())).collect()
}

async fn a_file_that_is_read_only_is_read(store: &Store) {
    let scene = store.fresh().await;
    let (mut a, mut b) = pair(&scene).await;
    b.send(&[row("x", 1)]).await;
    a.database = open(&format!("{}?mode=ro", scene.url), "a");
    let packet = a.writing(&[row("y", 2)]);
    let error = a.exchange(&packet).await.unwrap_err();
    assert_eq!(error.reason(), "refused", "{error}");
    assert!(error.to_string().contains("readonly"), "{error}");
    assert_eq!(a.catch_up().await, fed(&[("x", 1)]));
    a.database = scene.open("a");
    a.send(&[row("y", 2)]).await;
    assert_eq!(b.catch_up().await, fed(&[("y", 2)]));
}

/// The packet's time is over while it waits for the file. Reads do not wait. A late commit does no harm.
async fn a_file_that_another_process_locks(store: &Store) {
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

async fn sqlite_reads_what_is_new(store: &Store) {
    let scene = store.fresh().await;
    Node::new(scene.open("a"), 1).send(&rows("k", MAX_PACKET_ROWS, 1)).await;
    let mut connection = SqliteConnection::connect(&scene.url).await.unwrap();
    let cursors: Vec<_> = (1..=256).map(|number| (number, 3)).collect();
    let statements = sqlite::STATEMENTS;
    let sql = feed(statements.packet_markers, statements.packet_page, &cursors);
    for statement in ["", "ANALYZE"] {
        connection.execute(sqlx::raw_sql(statement)).await.unwrap();
        for (sql, expected) in [
            (sql.clone(), "feed_idx (writer=? AND version>?)"),
            (
                filled_in(statements.packet_own, &["1", "x'61'"]),
                "sqlite_autoindex_ratelimit_window_counts_1 (workspace_id=? AND namespace=? AND identifier=? AND duration_ms=? \
                 AND sequence=? AND region=?)",
            ),
        ] {
            let sql = AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}"));
            let plan: Vec<String> = sqlx::query(sql)
                .fetch_all(&mut connection)
                .await
                .unwrap()
                .iter()
                .map(|row| row.get(3))
                .collect();
            let found: Vec<_> = plan.iter().filter(|line| line.starts_with("SEARCH")).collect();
            let markers = "sqlite_autoindex_ratelimit_window_counts_1 (workspace_id=? AND namespace=? AND identifier=? AND duration_ms=?";
            assert!(
                !found.is_empty()
                    && found.iter().all(|line| line.contains(expected) || line.contains(markers)),
                "{plan:#?}"
            );
            assert!(!plan.iter().any(|line| line.contains("SCAN ratelimit")), "{plan:#?}");
            // Markers alone are sorted.
            assert!(plan.iter().filter(|line| line.contains("TEMP B-TREE")).count() <= 1, "{plan:#?}");
        }
    }
}
