//! What a packet may contain, and packets that are refused.

use super::pair;
use crate::support::database::packets::*;
use crate::support::database::*;
use weir_core::model::key::{Key, KeyParts};
use weir_core::model::time::UnixMs;
use weir_core::model::window::MAX_COUNT;
use weir_core::region::exchange::Publication;
use weir_core::replication::global::packet::{MAX_PACKET_ROWS, Packet};

pub async fn bytes_stay_bytes(store: &Store) {
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

pub async fn rows_that_cannot_be_stored_are_left_out(store: &Store) {
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
pub async fn a_packet_that_the_database_refuses(store: &Store) {
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
    assert_eq!(a.exchange(&a.reading()).await.unwrap().feed.own.version, 1);
    assert_eq!((lines(&scene).await, b.catch_up().await), (vec![], vec![]));
    all.remove(500);
    a.send(&all).await;
    b.catch_up().await;
    assert_eq!((b.held.len(), import(&b.database).await), (all.len(), cells(&all)));
}
