//! Tests of the global store; the same for MariaDB, MySQL and SQLite.

use crate::support::database::packets::{Node, lines, look};
use crate::support::database::*;
use std::collections::BTreeMap;
use std::time::Duration;
use weir_aggregator::database::{Database, Lease};
use weir_core::model::time::UnixMs;
use weir_core::region::exchange::Publication;
use weir_core::replication::global::paging::ReadPage;

on_servers!(|store| scenarios(&store));

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite() {
    scenarios(&Store::sqlite()).await;
}

async fn scenarios(store: &Store) {
    run!(
        store,
        regions_import_from_each_other_and_not_from_themselves,
        counts_only_rise,
        identifiers_are_bytes,
        epochs_and_resolutions_come_back,
        unreadable_rows_are_left_out,
        pages_hold_all_rows_while_some_are_added_and_raised,
        a_lease_has_one_holder,
        cleanup_deletes_what_is_over,
        cleanup_goes_by_the_time_of_a_region_that_is_behind,
        cleanup_runs_beside_writers,
        thirty_writers_of_the_same_rows,
        errors_about_missing_tables_name_the_command,
        two_migrations_at_once,
    );
}

async fn regions_import_from_each_other_and_not_from_themselves(store: &Store) {
    let scene = store.fresh().await;
    let (a, b, c) = (scene.open("a"), scene.open("b"), scene.open("c"));
    let over = Publication { expires: NOW, ..row("over", 1) };
    let previous = Publication { sequence: sequence() - 1, expires: UnixMs(NOW.0 + 1), ..row("x", 100) };
    publish(&a, &[row("x", 1), row("a", 5), over.clone(), previous.clone()]).await;
    publish(&b, &[row("x", 10), row("b", 6), over]).await;
    publish(&c, &[row("x", 1_000)]).await;
    assert_eq!(import(&a).await, cells(&[row("x", 1_010), row("b", 6)]));
    let names = a.import(&whole(WITHIN)).await.unwrap().page.regions.into_iter().map(|region| region.region);
    assert_eq!(names.collect::<Vec<_>>(), [b"b", b"c"]);
    assert_eq!(import(&b).await, cells(&[row("x", 1_001), row("a", 5), previous.clone()]));
    let own = sums(a.own(&whole(WITHIN)).await.unwrap());
    assert_eq!(own, cells(&[row("x", 1), row("a", 5), previous]));
}

async fn counts_only_rise(store: &Store) {
    let scene = store.fresh().await;
    let (mut a, b) = (Node::new(scene.open("a"), 1), scene.open("b"));
    let steps = [(100, 5, 5, 100), (101, 5, 5, 100), (102, 4, 5, 100), (103, 9, 9, 103), (99, 10, 10, 99)];
    for (now, count, expected, changed) in steps {
        a.now = UnixMs(now);
        a.send(&[row("x", count)]).await;
        assert_eq!(import(&b).await, cells(&[row("x", expected)]));
        assert_eq!(lines(&scene).await[0].updated_at, changed);
    }
    // The same cell several times in one packet.
    a.send(&[row("x", 12), row("x", 20), row("x", 11)]).await;
    assert_eq!(import(&b).await, cells(&[row("x", 20)]));
}

async fn identifiers_are_bytes(store: &Store) {
    let scene = store.fresh().await;
    let every_byte: Vec<u8> = (0..=255).collect();
    let mut traps: Vec<&[u8]> = every_byte.chunks(64).collect();
    traps.extend([
        b"".as_slice(),
        b" ",
        b"\0",
        b"\\",
        b"\\~",
        b"\\-",
        b"\\@",
        b"\\@1.1:x",
        b"|",
        b"'",
        b"\"",
        b"%",
    ]);
    traps.extend([
        b"alice".as_slice(),
        b"Alice",
        b"ALICE",
        b"alice ",
        b"alice\0",
        b" alice",
        "alic\u{e9}".as_bytes(),
    ]);
    traps.extend(["alice\u{301}".as_bytes(), b"alic\xe9", b"';--", b"0x00", b"NULL", "\u{1f600}".as_bytes()]);
    traps.extend([[b'x'; 64].as_slice(), &[0xff; 64], &[b' '; 64]]);
    let rows: Vec<_> = traps.iter().zip(1..).map(|(trap, count)| row_of(key(trap), count)).collect();
    publish(&scene.open("a"), &rows).await;
    publish(&scene.open("A"), &rows).await;
    let doubled: Vec<_> =
        rows.iter().map(|row| Publication { count: row.count * 2, ..row.clone() }).collect();
    assert_eq!(import(&scene.open("b")).await, cells(&doubled));
    assert_eq!(import(&scene.open("a")).await, cells(&rows));
}

async fn epochs_and_resolutions_come_back(store: &Store) {
    let scene = store.fresh().await;
    let keys = [(0, 1), (1, 1), (0, 2), (u32::MAX, 10)];
    let rows: Vec<_> = keys
        .iter()
        .flat_map(|(epoch, resolution)| {
            [b"x".as_slice(), b"\\@0.2:x"].map(|identifier| key_of(identifier, *epoch, *resolution))
        })
        .zip(1..)
        .map(|(key, count)| row_of(key, count))
        .collect();
    publish(&scene.open("a"), &rows).await;
    assert_eq!(lines(&scene).await.len(), 8);
    assert_eq!(import(&scene.open("b")).await, cells(&rows));
}

async fn unreadable_rows_are_left_out(store: &Store) {
    let scene = store.fresh().await;
    let (a, b) = (scene.open("a"), scene.open("b"));
    publish(&a, &[row("good", 3), row("shared", 4)]).await;
    let foreign = |identifier: &str, duration_ms: &str, sequence: &str, count: &str| {
        let hex: String = identifier.bytes().map(|byte| format!("{byte:02x}")).collect();
        format!("(x'77', x'6e', x'{hex}', {duration_ms}, {sequence}, x'7a', {count}, {}, 0)", NOW.0 + HOUR_MS)
    };
    let hour = HOUR_MS.to_string();
    let huge = if scene.is_mysql() { u64::MAX.to_string() } else { i64::MAX.to_string() };
    let now = sequence().to_string();
    let bad = [
        foreign(&"x".repeat(65), &hour, &now, "1"),
        foreign("short window", "999", &now, "1"),
        foreign("no window", "1", &now, "1"),
        foreign("endless window", &huge, &now, "1"),
        foreign("before time", &hour, "-1", "1"),
        foreign("huge", &hour, &now, &huge),
        foreign("shared", &hour, &now, "9007199254740993"),
        foreign("\\@x", &hour, &now, "1"),
        foreign("\\@0.1:x", &hour, &now, "1"),
        foreign("\\@0.7:x", "3600001", &now, "1"),
    ];
    scene
        .run(&format!(
            "INSERT INTO ratelimit_window_counts (workspace_id, namespace, identifier, duration_ms, sequence, region,
             count, expires_at, updated_at) VALUES {}",
            bad.join(",")
        ))
        .await;
    let imported = b.import(&whole(WITHIN)).await.unwrap();
    assert_eq!(imported.bad, bad.len() as u64);
    assert!(imported.bad_example.is_some());
    assert_eq!(sums(imported), cells(&[row("good", 3), row("shared", 4)]));
    let own = scene.open("z").own(&whole(WITHIN)).await.unwrap();
    assert_eq!((own.cells(), own.bad), (0, bad.len() as u64));
}

/// Each page begins where the one before ended, so no row is missed: neither among those that expire together, nor those that are raised,
/// expire later, or are added after the place.
async fn pages_hold_all_rows_while_some_are_added_and_raised(store: &Store) {
    let scene = store.fresh().await;
    let (a, b) = (scene.open("a"), scene.open("b"));
    let mut all = rows("k", 250, 3);
    for (number, row) in all.iter_mut().enumerate() {
        row.expires = UnixMs(row.expires.0 + number as u64 / 100);
    }
    publish(&a, &all).await;
    publish(&b, &rows("other", 130, 1)).await;
    let mut page = ReadPage { rows: 64, ..whole(WITHIN) };
    let (mut read, mut pages) = (Vec::new(), 0);
    loop {
        let own = a.own(&page).await.unwrap();
        assert!(own.cells() <= 64);
        read.extend(own.page.regions.into_iter().flat_map(|region| region.cells));
        pages += 1;
        if pages == 2 {
            let moved = UnixMs(all[0].expires.0 + HOUR_MS);
            all[0] = Publication { count: 9, expires: moved, ..all[0].clone() };
            let added = Publication { expires: UnixMs(moved.0 + 1), ..row("added", 5) };
            publish(&a, &[all[0].clone(), added.clone()]).await;
            all.push(added);
        }
        let Some(end) = own.page.end else { break };
        assert!(end > page.after);
        page.after = end;
    }
    assert!(pages >= 6, "{pages}");
    let newest: BTreeMap<_, _> = read.into_iter().map(|cell| (cell.key, cell.count)).collect();
    assert_eq!(newest, all.into_iter().map(|row| (row.key, row.count)).collect());
}

async fn a_lease_has_one_holder(store: &Store) {
    let scene = store.fresh().await;
    let (a, peer, b) = (scene.open("a"), scene.open("a"), scene.open("b"));
    let (one, two) = ([1; 16], [2; 16]);
    let long = Duration::from_secs(600);
    let short = Duration::from_millis(50);
    assert_eq!(a.lease(&one, long, None, WITHIN).await, Ok(Lease::Mine));
    let Lease::HeldBy { holder, for_ms, expires_at } = peer.lease(&two, long, None, WITHIN).await.unwrap()
    else {
        panic!("two holders");
    };
    let before = Some(expires_at - 1);
    assert!(
        matches!(peer.lease(&two, long, before, WITHIN).await, Ok(Lease::HeldBy { .. })),
        "renewed since"
    );
    assert_eq!(peer.lease(&two, long, Some(expires_at), WITHIN).await, Ok(Lease::Mine), "abandoned");
    assert!(
        matches!(a.lease(&one, long, None, WITHIN).await, Ok(Lease::HeldBy { holder, .. }) if holder == two)
    );
    peer.release(&two, WITHIN).await.unwrap();
    assert_eq!(a.lease(&one, long, None, WITHIN).await, Ok(Lease::Mine));
    assert!(holder == one && (500_000..=600_000).contains(&for_ms), "{for_ms}");
    assert_eq!(b.lease(&two, long, None, WITHIN).await, Ok(Lease::Mine));
    peer.release(&two, WITHIN).await.unwrap();
    assert!(matches!(peer.lease(&two, long, None, WITHIN).await, Ok(Lease::HeldBy { .. })));
    // A renewal may be shorter; the lease then expires earlier.
    assert_eq!(a.lease(&one, short, None, WITHIN).await, Ok(Lease::Mine));
    let taken = async || peer.lease(&two, long, None, WITHIN).await == Ok(Lease::Mine);
    weir_envoy::wait::until("the lease ends", WITHIN, taken).await.unwrap();
    assert!(
        matches!(a.lease(&one, short, None, WITHIN).await, Ok(Lease::HeldBy { holder, .. }) if holder == two)
    );
    peer.release(&two, WITHIN).await.unwrap();
    assert_eq!(a.lease(&one, short, None, WITHIN).await, Ok(Lease::Mine));
    // Of many concurrent requests, one gets the lease.
    let c = scene.open("c");
    let mut attempts = tokio::task::JoinSet::new();
    for holder in 0..8 {
        let c = c.clone();
        attempts.spawn(async move { c.lease(&[holder; 16], long, None, WITHIN).await.unwrap() });
    }
    let mine = attempts.join_all().await.into_iter().filter(|lease| *lease == Lease::Mine).count();
    assert_eq!(mine, 1);
}

async fn cleanup_deletes_what_is_over(store: &Store) {
    let scene = store.fresh().await;
    let mut node = Node::new(scene.open("a"), 1);
    node.write(&rows("live", 10, 1)).await;
    node.write(&expired("old", 25, HOUR_MS + 1)).await;
    publish(&scene.open("b"), &expired("old", 5, HOUR_MS + 1)).await;
    node.write(&expired("recent", 7, HOUR_MS - 1)).await;
    let a = &node.database;
    let mut batches = Vec::new();
    let deleted =
        a.cleanup(Duration::from_millis(HOUR_MS), 10, NOW, Duration::ZERO, |rows| batches.push(rows)).await;
    assert_eq!((deleted, batches), (Ok(30), vec![10, 10, 10, 0]));
    assert_eq!(scene.rows().await, 17 + 2, "the markers of both aggregators live for an hour");
    assert_eq!(a.cleanup(Duration::ZERO, 10, NOW, Duration::ZERO, |_| {}).await, Ok(7));
    assert_eq!(a.cleanup(Duration::MAX, 10, NOW, Duration::ZERO, |_| {}).await, Ok(0));
}

async fn cleanup_goes_by_the_time_of_a_region_that_is_behind(store: &Store) {
    const MINUTE_MS: u64 = 60_000;
    let scene = store.fresh().await;
    // A writer of the first region that has ended wrote by a later time.
    Node::new(scene.open("a"), 3).send(&[]).await;
    let mut behind = Node::new(scene.open("a"), 1);
    behind.now = UnixMs(NOW.0 - 30 * MINUTE_MS);
    let mut right = Node::new(scene.open("b"), 2);
    // Of the first region one row counts for ten minutes more, and of the other it is over.
    for node in [&mut behind, &mut right] {
        node.write(&expired("counts", 1, 20 * MINUTE_MS)).await;
        node.write(&expired("over", 1, 50 * MINUTE_MS)).await;
    }
    let older_than = Duration::from_millis(5 * MINUTE_MS);
    let clean = async |alive_within| {
        scene.open("c").cleanup(older_than, 10, NOW, alive_within, |_| {}).await.unwrap()
    };
    let writes = async {
        // It writes until the cleanup has seen that it is alive.
        loop {
            behind.now.0 += 1;
            behind.send(&[]).await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let cleaned = tokio::select! {
        cleaned = clean(Duration::from_secs(60)) => cleaned,
        () = writes => unreachable!("it writes for ever"),
    };
    assert_eq!((cleaned, scene.rows().await), (2, 2 + 3), "those that are over in both, beside the markers");
    // A region that has ended is judged by this machine's clock.
    assert_eq!(clean(Duration::from_millis(1)).await, 2);
}

async fn cleanup_runs_beside_writers(store: &Store) {
    let scene = store.fresh().await;
    publish(&scene.open("a"), &expired("old", 10_000, 2 * HOUR_MS)).await;
    let mut writers = tokio::task::JoinSet::new();
    for region in 0..5 {
        let database = scene.open(&format!("r{region}"));
        writers.spawn(async move {
            for round in 1..=6 {
                publish(&database, &rows("live", 500, round)).await;
            }
        });
    }
    let cleaned = scene.open("a").cleanup(Duration::ZERO, 1_000, NOW, Duration::ZERO, |_| {}).await;
    writers.join_all().await;
    assert_eq!(cleaned, Ok(10_000));
    assert_eq!(import(&scene.open("a")).await, cells(&rows("live", 500, 30)));
}

async fn thirty_writers_of_the_same_rows(store: &Store) {
    let scene = store.fresh().await;
    let mut writers = tokio::task::JoinSet::new();
    for writer in 1..=30 {
        let database = scene.open("a");
        writers.spawn(async move {
            let mut rows = rows("k", 2_000, writer);
            // Each writer has another order, and the highest count for some rows.
            rows.rotate_left(usize::try_from(writer * 61).unwrap());
            for row in rows.iter_mut().skip(usize::try_from(writer).unwrap()).step_by(30) {
                row.count = 100 + writer;
            }
            let highest = rows.clone();
            publish(&database, &rows).await;
            highest
        });
    }
    let mut expected = std::collections::BTreeMap::new();
    for row in writers.join_all().await.into_iter().flatten() {
        let highest = expected.entry(row.key.clone()).or_insert(row.clone());
        if highest.count < row.count {
            *highest = row;
        }
    }
    let expected: Vec<_> = expected.into_values().collect();
    assert_eq!(import(&scene.open("b")).await, cells(&expected));
}

async fn errors_about_missing_tables_name_the_command(store: &Store) {
    let scene = store.empty().await;
    let database = scene.open("a");
    let mut node = Node::new(database.clone(), 1);
    let packet = node.writing(&[row("x", 1)]);
    let errors = [
        database.check_schema(WITHIN).await.unwrap_err(),
        database.import(&whole(WITHIN)).await.unwrap_err(),
        database.own(&whole(WITHIN)).await.unwrap_err(),
        look(&database, WITHIN).await.unwrap_err(),
        node.exchange(&packet).await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.reason(), "schema", "{error}");
        assert!(error.to_string().contains("weir-aggregator migrate"), "{error}");
    }
    let all = migrations(&scene);
    let migrated = database.migrate().await.unwrap();
    assert_eq!((migrated.applied.len(), migrated.present), (all, 0));
    assert_eq!(migrated.applied[0], "0001 window counts");
    let again = database.migrate().await.unwrap();
    assert_eq!((again.applied.len(), again.present), (0, all));
    database.check_schema(WITHIN).await.unwrap();
}

async fn two_migrations_at_once(store: &Store) {
    let scene = store.empty().await;
    let mut migrating = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let database: Database = scene.open("a");
        migrating.spawn(async move { database.migrate().await.unwrap().applied.len() });
    }
    let mut applied = migrating.join_all().await;
    applied.sort_unstable();
    assert_eq!(applied, [0, 0, 0, migrations(&scene)]);
}
