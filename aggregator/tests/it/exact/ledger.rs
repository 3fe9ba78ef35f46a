//! Tests of the ledger; the same for MariaDB, MySQL and SQLite.

use super::refund;
use crate::support::database::ledger::*;
use crate::support::database::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use weir_aggregator::database::{BucketUse, Database, DeletedRows, Outcome, Velocity, ZoneChange};
use weir_aggregator::region::exact::Exact;
use weir_core::model::exact::{Charge, ChargeResult, ExactKey, ExactRequestId, Verdict};
use weir_core::model::window::MAX_COUNT;
use weir_core::model::wire;
use weir_core::replication::exact::plan::Transaction;

on_servers!(|store| scenarios(&store));

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite() {
    scenarios(&Store::sqlite()).await;
}

async fn scenarios(store: &Store) {
    run!(
        store,
        an_attempt_returns_what_counts,
        looking_at_a_bucket_records_nothing,
        extremes_of_rates_and_costs,
        buckets_are_bytes,
        zones_are_in_force_at_once,
        attempts_in_unknown_zones_are_not_recorded,
        two_hundred_at_once,
        every_window_of_a_trace,
        refunded_attempts_do_not_count,
        history_is_read_page_by_page,
        a_clock_that_steps_back_allows_nothing_more,
        cleanup_deletes_attempts_that_no_zone_counts,
        cleanup_runs_beside_attempts,
        results_are_those_of_the_ledger,
        a_filter_refunds_only_attempts_of_its_own_requests,
        tables_of_the_previous_version_are_migrated,
    );
}

async fn ledger(store: &Store, rate: u64, window_seconds: u64) -> (Scene, Database) {
    let scene = store.fresh().await;
    let database = scene.open("here");
    set_zone(&database, ZONE, rate, window_seconds).await;
    (scene, database)
}

/// Moves all recorded attempts in time, as if the clock had stepped in the other direction.
async fn shift(scene: &Scene, seconds: i64) {
    let sql = if scene.is_mysql() {
        format!("UPDATE zone_txn SET created_at = created_at + INTERVAL {seconds} SECOND")
    } else {
        format!("UPDATE zone_txn SET created_at = created_at + {seconds} * 1000000")
    };
    scene.run(&sql).await;
}

async fn an_attempt_returns_what_counts(store: &Store) {
    let (scene, database) = ledger(store, 5, 60).await;
    let velocity = |transaction, blocked, used| Velocity {
        transaction,
        blocked,
        rate: 5,
        window_ms: 60_000,
        used,
        reset_ms: 60_000,
        retry_after_ms: None,
    };
    let question = check(&database, "x", 0).await;
    assert_eq!(question, Velocity { reset_ms: 0, ..velocity(question.transaction, false, 0) });
    let first = check(&database, "x", 2).await;
    assert_eq!(first, velocity(first.transaction, false, 2));
    // From here on, reported times are less than the whole window.
    shift(&scene, -20).await;
    let second = check(&database, "x", 2).await;
    assert!(second.transaction > first.transaction && first.transaction > question.transaction);
    let about = |ms: u64, expected: u64| (expected - 15_000..=expected).contains(&ms);
    assert!(!second.blocked && second.used == 4 && about(second.reset_ms, 40_000), "{second:?}");
    for (cost, retry_after_ms) in [(2, Some(40_000)), (4, Some(60_000)), (5, Some(60_000)), (6, None)] {
        let blocked = check(&database, "x", cost).await;
        assert!(blocked.blocked && blocked.used == 4 && about(blocked.reset_ms, 40_000), "{blocked:?}");
        match (blocked.retry_after_ms, retry_after_ms) {
            (Some(ms), Some(expected)) => assert!(about(ms, expected), "{cost}: {blocked:?}"),
            (ms, expected) => assert_eq!(ms, expected, "{cost}"),
        }
    }
    assert!(!check(&database, "x", 1).await.blocked);
    let full = check(&database, "x", 0).await;
    assert!(!full.blocked && full.used == 5, "a cost of 0 must pass at exactly the rate");
    // Expired attempts no longer count, and blocked ones never did.
    shift(&scene, -60).await;
    assert_eq!(check(&database, "x", 5).await.used, 5);
    assert_eq!(recorded(&scene).await.len(), 10);
}

async fn looking_at_a_bucket_records_nothing(store: &Store) {
    let (scene, database) = ledger(store, 5, 60).await;
    let look = async |bucket: &[u8]| database.bucket_use(ZONE, bucket, WITHIN).await.unwrap().unwrap();
    let unused = BucketUse { rate: 5, window_ms: 60_000, used: 0, reset_ms: 0 };
    assert_eq!(look(b"x").await, unused);
    for (bucket, cost) in [("x", 2), ("x", 2), ("x", 9), ("y", 1)] {
        check(&database, bucket, cost).await;
    }
    shift(&scene, -20).await;
    let found = look(b"x").await;
    assert_eq!(BucketUse { reset_ms: 0, ..found }, BucketUse { used: 4, ..unused });
    assert!((25_000..=40_000).contains(&found.reset_ms), "{found:?}");
    shift(&scene, -60).await;
    assert_eq!(look(b"x").await, unused);
    assert_eq!(recorded(&scene).await.len(), 4);
    assert_eq!(database.bucket_use(8, b"x", WITHIN).await, Ok(None), "there is no such zone");
}

async fn extremes_of_rates_and_costs(store: &Store) {
    let (scene, database) = ledger(store, MAX_COUNT, 366 * 24 * 3_600).await;
    // More is not recorded, so it is not decided either.
    let more = ledger_charge(ZONE, b"x", MAX_COUNT + 1);
    let error = database.check_velocity(&more, WITHIN).await.unwrap_err();
    assert!(error.to_string().contains("9007199254740993"), "{error}");
    assert!(recorded(&scene).await.is_empty());
    let all = check(&database, "x", MAX_COUNT).await;
    assert!(!all.blocked && all.used == MAX_COUNT, "{all:?}");
    let more = check(&database, "x", MAX_COUNT).await;
    assert!(more.blocked && more.used == MAX_COUNT && more.retry_after_ms.is_some(), "{more:?}");
    set_zone(&database, ZONE, 0, 1).await;
    assert!(!check(&database, "y", 0).await.blocked);
    let none = check(&database, "y", 1).await;
    assert!(
        none.blocked && none.used == 0 && none.reset_ms == 0 && none.retry_after_ms.is_none(),
        "{none:?}"
    );
}

async fn buckets_are_bytes(store: &Store) {
    let (scene, database) = ledger(store, 1, 60).await;
    let every_byte: Vec<u8> = (0..=254).collect();
    let traps: [&[u8]; 14] = [
        b"",
        b" ",
        b"\0",
        b"alice",
        b"Alice",
        b"alice ",
        b"alice\0",
        "alic\u{e9}".as_bytes(),
        "alice\u{301}".as_bytes(),
        b"alic\xe9",
        b"'; --",
        b"\\",
        &every_byte,
        &[0xff; 255],
    ];
    for _ in 0..2 {
        for bucket in traps {
            let attempt = ledger_charge(ZONE, bucket, 1);
            database.check_velocity(&attempt, WITHIN).await.unwrap().unwrap();
        }
    }
    let rows = recorded(&scene).await;
    let outcomes: Vec<_> = rows.iter().map(|row| (row.bucket.as_slice(), row.blocked)).collect();
    let expected: Vec<_> =
        [0, 1].into_iter().flat_map(|blocked| traps.map(|bucket| (bucket, blocked))).collect();
    assert_eq!(outcomes, expected);
    let long = ledger_charge(ZONE, &[b'x'; 256], 1);
    let error = database.check_velocity(&long, WITHIN).await.unwrap_err();
    assert!(error.to_string().contains("256 bytes"), "{error}");
}

async fn zones_are_in_force_at_once(store: &Store) {
    let (_scene, database) = ledger(store, 1, 60).await;
    assert!(!check(&database, "x", 1).await.blocked && check(&database, "x", 1).await.blocked);
    set_zone(&database, ZONE, 2, 60).await;
    assert!(!check(&database, "x", 1).await.blocked);
    set_zone(&database, ZONE, 1, 60).await;
    let lower = check(&database, "x", 1).await;
    assert_eq!((lower.blocked, lower.used, lower.rate), (true, 2, 1));
    // A description stays until it is changed.
    let minute = Duration::from_secs(60);
    let undescribed = ZoneChange::new(ZONE, 3, minute, None).unwrap();
    database.set_zone(&undescribed, WITHIN).await.unwrap();
    let text = "log-ins: 'é' \\ \u{1f600}";
    let other = ZoneChange::new(u32::MAX, MAX_COUNT, minute, Some(text.to_owned())).unwrap();
    database.set_zone(&other, WITHIN).await.unwrap();
    let zones = database.zones(WITHIN).await.unwrap();
    let shown: Vec<_> = zones.iter().map(|zone| (zone.id, &*zone.description, zone.rate)).collect();
    assert_eq!(shown, [(ZONE, "for a test", 3), (u32::MAX, text, MAX_COUNT)]);
    let remains = database.delete_zone(ZONE, WITHIN).await.unwrap().unwrap();
    assert_eq!((remains.transactions, remains.and_more), (4, false));
    assert_eq!(database.delete_zone(ZONE, WITHIN).await, Ok(None));
    let attempt = ledger_charge(ZONE, b"x", 1);
    assert_eq!(database.check_velocity(&attempt, WITHIN).await, Ok(None));
    // A zone that is created again continues with its recorded attempts.
    set_zone(&database, ZONE, 2, 60).await;
    assert!(check(&database, "x", 1).await.blocked);
}

async fn attempts_in_unknown_zones_are_not_recorded(store: &Store) {
    let (scene, database) = ledger(store, 1, 60).await;
    let mut attempts = JoinSet::new();
    for _ in 0..40 {
        let database = database.clone();
        attempts.spawn(async move { database.check_velocity(&ledger_charge(8, b"x", 1), WITHIN).await });
    }
    assert!(attempts.join_all().await.iter().all(|result| *result == Ok(None)));
    assert_eq!(scene.number("SELECT COUNT(*) FROM zone_txn").await, 0);
    if scene.is_mysql() {
        assert_eq!(scene.number("SELECT COUNT(*) FROM zone_bucket_lock").await, 0);
    }
    let charge =
        Charge { key: ExactKey::Ledger { zone: 8, bucket: b"x".as_slice().into() }, most: 0, cost: 1 };
    let unknown = Exact::new(None, Some(database)).decide(ExactRequestId::of(1, 1), &[charge], WITHIN).await;
    assert_eq!(unknown, [ChargeResult::UNDECIDED]);
    let empty = store.empty().await.open("here");
    let error = empty.check_velocity(&ledger_charge(8, b"x", 1), WITHIN).await.unwrap_err();
    assert_eq!(error.reason(), "schema", "{error}");
    assert!(error.to_string().contains("weir-aggregator migrate"), "{error}");
}

async fn two_hundred_at_once(store: &Store) {
    let (scene, database) = ledger(store, 5, 3_600).await;
    let aggregators = [database, scene.open("there"), scene.open("elsewhere")];
    let mut attempts = JoinSet::new();
    for database in aggregators.iter().cycle().take(200) {
        let database = database.clone();
        attempts.spawn(async move { check_despite_busy_connections(&database, "x", 1).await });
    }
    let velocities = attempts.join_all().await;
    assert_eq!(velocities.iter().filter(|velocity| !velocity.blocked).count(), 5);
    let mut used: Vec<_> = velocities.iter().filter(|it| !it.blocked).map(|it| it.used).collect();
    used.sort_unstable();
    assert_eq!(used, [1, 2, 3, 4, 5]);
    let rows = recorded(&scene).await;
    assert_eq!(rows.len(), 200);
    decisions_are_right(&rows, 5, 3_600);
}

/// Retries if a busy machine has no free connection for 2 s; no attempt was made then.
async fn check_despite_busy_connections(database: &Database, bucket: &str, cost: u64) -> Velocity {
    let attempt = ledger_charge(ZONE, bucket.as_bytes(), cost);
    for _ in 0..20 {
        match database.check_velocity(&attempt, WITHIN).await {
            Err(error) if error.to_string().contains("all connections to the database are busy") => {}
            answered => return answered.unwrap().expect("the zone exists"),
        }
    }
    panic!("no connection became free");
}

/// Clients of three aggregators, during several windows.
async fn every_window_of_a_trace(store: &Store) {
    const RATE: u64 = 20;
    let (scene, database) = ledger(store, RATE, 1).await;
    let (began, spent) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    let mut clients = JoinSet::new();
    for (client, region) in (0_u64..9).zip(["a", "b", "c"].into_iter().cycle()) {
        let database = if client < 3 { database.clone() } else { scene.open(region) };
        let spent = spent.clone();
        clients.spawn(async move {
            let mut allowed = 0;
            for cost in (0..4).cycle().skip(usize::try_from(client).unwrap()) {
                // A busy machine needs longer to use as much.
                let least = if spent.load(Relaxed) > 3 * RATE { 3_500 } else { 30_000 };
                if began.elapsed() >= Duration::from_millis(least) {
                    break;
                }
                let bucket = format!("bucket {}", client % 2);
                let velocity = check_despite_busy_connections(&database, &bucket, cost).await;
                assert!(velocity.used <= RATE && velocity.reset_ms <= 1_000, "{velocity:?}");
                if !velocity.blocked {
                    allowed += 1;
                    spent.fetch_add(cost, Relaxed);
                }
            }
            allowed
        });
    }
    let allowed: u64 = clients.join_all().await.into_iter().sum();
    let rows = recorded(&scene).await;
    assert_eq!(rows.iter().filter(|row| row.blocked == 0).count() as u64, allowed);
    assert!(rows.iter().any(|row| row.blocked == 1), "nothing was blocked");
    assert!(rows.iter().filter(|row| row.blocked == 0).map(|row| row.cost).sum::<u64>() > 3 * RATE);
    no_window_holds_more(&rows, RATE, 1);
    decisions_are_right(&rows, RATE, 1);
}

async fn refunded_attempts_do_not_count(store: &Store) {
    let (scene, database) = ledger(store, 2, 3_600).await;
    let (first, second) = (check(&database, "x", 1).await, check(&database, "x", 1).await);
    let blocked = check(&database, "x", 1).await;
    assert!(blocked.blocked);
    let of = |id| Transaction { id, zone: ZONE, bucket: Box::from(*b"x"), age_us: 0 };
    let refund = async |transaction| database.refund(&of(transaction), WITHIN).await.unwrap();
    for (zone, bucket) in [(ZONE, b"y"), (ZONE + 1, b"x")] {
        let other = Transaction { zone, bucket: Box::from(*bucket), ..of(first.transaction) };
        let refunded = database.refund(&other, WITHIN).await;
        assert_eq!(refunded, Ok(false), "the attempt belongs to another bucket");
    }
    // One that was made a minute ago had this number, and the database was set back since.
    let older = Transaction { age_us: 60_000_000, ..of(first.transaction) };
    assert_eq!(database.refund(&older, WITHIN).await, Ok(false));
    for transaction in [blocked.transaction, second.transaction + 1_000, 0, u64::MAX] {
        assert!(!refund(transaction).await);
    }
    assert!(refund(first.transaction).await);
    assert!(!refund(first.transaction).await, "once");
    let again = check(&database, "x", 1).await;
    assert_eq!((again.blocked, again.used), (false, 2));
    let outcomes: Vec<_> = recorded(&scene).await.iter().map(|row| row.blocked).collect();
    assert_eq!(outcomes, [2, 0, 1, 0]);
}

async fn history_is_read_page_by_page(store: &Store) {
    let (scene, database) = ledger(store, 3, 3_600).await;
    let (mut ids, other) = (Vec::new(), scene.open("there"));
    for cost in [1, 0, 1, 1, 1] {
        ids.push(check(&database, "x", cost).await.transaction);
        check(&other, "y", 1).await;
    }
    let third = Transaction { id: ids[2], zone: ZONE, bucket: Box::from(*b"x"), age_us: 0 };
    database.refund(&third, WITHIN).await.unwrap();
    let page = async |before, limit| database.transactions(ZONE, b"x", before, limit, WITHIN).await.unwrap();
    let all = page(None, 100).await;
    ids.reverse();
    assert_eq!(all.iter().map(|transaction| transaction.id).collect::<Vec<_>>(), ids);
    use Outcome::{Allowed, Blocked, Refunded};
    let outcomes = [Blocked, Allowed, Refunded, Allowed, Allowed];
    assert_eq!(all.iter().map(|transaction| transaction.outcome).collect::<Vec<_>>(), outcomes);
    assert_eq!(all.iter().map(|transaction| transaction.cost).collect::<Vec<_>>(), [1, 1, 1, 0, 1]);
    assert!(all.iter().all(|transaction| transaction.bucket == b"x" && transaction.zone == ZONE));
    assert!(all.iter().all(|transaction| transaction.region == b"here"));
    assert!(all.is_sorted_by_key(|transaction| std::cmp::Reverse(transaction.created_at_us)));
    let now_us =
        weir_aggregator::telemetry::clock::Clock::now(&weir_aggregator::telemetry::clock::SystemClock).0
            * 1_000;
    assert!(all.iter().all(|it| it.created_at_us.abs_diff(now_us) < 60_000_000), "{all:?}");
    // Each page continues where the previous one ended.
    let mut pages = page(None, 2).await;
    while let [.., last] = pages.as_slice()
        && let next = page(Some(last.id), 2).await
        && !next.is_empty()
    {
        assert!(next.len() <= 2);
        pages.extend(next);
    }
    assert_eq!(pages, all);
    assert_eq!(page(Some(0), 2).await, []);
    assert_eq!(page(Some(u64::MAX), 1).await, all[..1]);
    assert_eq!(database.transaction(ids[0], WITHIN).await.unwrap().as_ref(), all.first());
    for unknown in [0, u64::MAX, i64::MAX.unsigned_abs()] {
        assert_eq!(database.transaction(unknown, WITHIN).await, Ok(None));
    }
}

/// Moving the recorded attempts into the future is equivalent to setting the clock back.
async fn a_clock_that_steps_back_allows_nothing_more(store: &Store) {
    let (scene, database) = ledger(store, 3, 60).await;
    check(&database, "x", 2).await;
    shift(&scene, 600).await;
    assert!(!check(&database, "x", 1).await.blocked);
    let blocked = check(&database, "x", 1).await;
    // The remaining attempt expires first.
    assert!(blocked.blocked && blocked.used == 3, "{blocked:?}");
    assert!(blocked.retry_after_ms.is_some_and(|ms| ms <= 60_000), "{blocked:?}");
    let more = check(&database, "x", 2).await;
    assert!(more.retry_after_ms.is_some_and(|ms| (600_000..=660_000).contains(&ms)), "{more:?}");
    no_window_holds_more(&recorded(&scene).await, 3, 60);
}

async fn clean(database: &Database, retention: Duration, batch: u32) -> (Vec<u64>, u64) {
    let (mut transactions, mut locks) = (Vec::new(), 0);
    let on_batch = |deleted| match deleted {
        DeletedRows::Transactions(rows) => transactions.push(rows),
        DeletedRows::Locks(rows) => locks += rows,
    };
    database.cleanup_ledger(retention, batch, on_batch).await.unwrap();
    (transactions, locks)
}

async fn cleanup_deletes_attempts_that_no_zone_counts(store: &Store) {
    const DAY: u64 = 24 * 3_600;
    let (scene, database) = ledger(store, 100, 60).await;
    let (long, deleted) = (9, u32::MAX);
    for (zone, window_seconds) in [(long, 100 * DAY), (deleted, 60)] {
        set_zone(&database, zone, 100, window_seconds).await;
    }
    let fill = async |zone, rows: u32| {
        for place in 0..rows {
            let bucket = format!("{place}");
            let attempt = ledger_charge(zone, bucket.as_bytes(), 1);
            database.check_velocity(&attempt, WITHIN).await.unwrap().unwrap();
        }
    };
    for zone in [ZONE, long, deleted] {
        fill(zone, 5).await;
    }
    database.delete_zone(deleted, WITHIN).await.unwrap();
    let days = |days: u64| Duration::from_secs(days * DAY);
    // Attempts of a deleted zone are not needed; attempts that other zones count stay.
    assert_eq!(clean(&database, Duration::ZERO, 2).await, (vec![0, 0, 2, 2, 1], 0));
    shift(&scene, -91 * i64::try_from(DAY).unwrap()).await;
    fill(ZONE, 2).await;
    assert_eq!(clean(&database, days(92), 2).await.0, [0, 0]);
    // The zone with the longer window keeps its attempts, whatever the retention.
    assert_eq!(clean(&database, days(90), 2).await.0, [2, 2, 1, 0]);
    assert_eq!(scene.number("SELECT COUNT(*) FROM zone_txn").await, 7);
    shift(&scene, -10 * i64::try_from(DAY).unwrap()).await;
    assert_eq!(clean(&database, days(90), 100).await.0, [0, 5]);
    assert_eq!(clean(&database, Duration::MAX, 100).await.0, [0]);
    assert_eq!(clean(&database, Duration::ZERO, 100).await.0, [2]);
    assert_eq!(clean(&database, Duration::ZERO, 100).await.0, [0_u64; 0]);
    if scene.is_mysql() {
        scene
            .run("UPDATE zone_bucket_lock SET used_at = used_at - INTERVAL 2 DAY WHERE bucket_key < '3'")
            .await;
        assert_eq!(clean(&database, days(3), 2).await.1, 0);
        assert_eq!(clean(&database, Duration::ZERO, 2).await.1, 9);
        assert_eq!(scene.number("SELECT COUNT(*) FROM zone_bucket_lock").await, 6);
    }
}

/// Deletes the locks of all buckets repeatedly, including locks in use, which no cleanup does.
async fn cleanup_runs_beside_attempts(store: &Store) {
    const RATE: u64 = 6;
    const ROUNDS: u64 = 4;
    let (scene, database) = ledger(store, RATE, 1).await;
    let (done, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let cleaner = {
        let (database, url) = (database.clone(), scene.url.clone());
        let (done, rounds) = (done.clone(), rounds.clone());
        tokio::spawn(async move {
            let scene = Scene { url };
            while !done.load(Relaxed) {
                clean(&database, Duration::ZERO, 3).await;
                if scene.is_mysql() {
                    scene.run("SET autocommit = 1; DELETE FROM zone_bucket_lock").await;
                }
                rounds.fetch_add(1, Relaxed);
            }
        })
    };
    let start = Instant::now();
    let mut clients = JoinSet::new();
    for client in 0..24 {
        let (database, rounds) = (database.clone(), rounds.clone());
        clients.spawn(async move {
            let goes_on = || match start.elapsed() {
                elapsed if elapsed < Duration::from_millis(2_500) => true,
                elapsed => rounds.load(Relaxed) < ROUNDS && elapsed < Duration::from_secs(60),
            };
            while goes_on() {
                check(&database, &format!("bucket {}", client % 3), 1).await;
            }
        });
    }
    clients.join_all().await;
    done.store(true, Relaxed);
    cleaner.await.unwrap();
    assert!(rounds.load(Relaxed) >= ROUNDS);
    let rows = recorded(&scene).await;
    no_window_holds_more(&rows, RATE, 1);
    decisions_are_right(&rows, RATE, 1);
}

async fn results_are_those_of_the_ledger(store: &Store) {
    let (scene, database) = ledger(store, 2, 60).await;
    let exact = Exact::new(None, Some(database));
    let charge =
        |cost| Charge { key: ExactKey::Ledger { zone: ZONE, bucket: b"x".as_slice().into() }, most: 0, cost };
    let decide = async |cost| exact.decide(ExactRequestId::of(1, 1), &[charge(cost)], WITHIN).await[0];
    let allowed = decide(2).await;
    assert_eq!((allowed.verdict, allowed.limit, allowed.remaining), (Verdict::Allowed, 2, 0));
    assert_eq!((allowed.window_ms, allowed.reset_ms), (60_000, 60_000));
    let denied = decide(1).await;
    assert!(matches!(denied.verdict, Verdict::Denied { retry_after_ms: Some(1..=60_000) }), "{denied:?}");
    assert_eq!(decide(3).await.verdict, Verdict::Denied { retry_after_ms: None });
    for (result, refunds) in [(denied, 0), (allowed, 1), (allowed, 1)] {
        refund(&exact, ExactRequestId::of(1, 1), &[charge(2)], &[result], refunds).await;
    }
    assert!(decide(2).await.is_allowed());
    let outcomes: Vec<_> = recorded(&scene).await.iter().map(|row| row.blocked).collect();
    assert_eq!(outcomes, [2, 1, 1, 0]);
}

async fn a_filter_refunds_only_attempts_of_its_own_requests(store: &Store) {
    let (_scene, database) = ledger(store, 1, 3_600).await;
    let exact = Exact::new(None, Some(database.clone()));
    let limit = wire::LedgerLimit { zone: ZONE, bucket: b"x".to_vec() };
    let charges = vec![wire::Charge { log: None, ledger: Some(limit), cost: 1 }];
    let request = wire::ExactRequest { id: 1, charges, timeout_ms: 10_000, trace: None };
    let (owner, other) = (7, 8);
    let response = exact.answer(owner, &request).await;
    assert_eq!(response.results[0].verdict, 2);
    let refund = |transaction| {
        let result = wire::ChargeResult { transaction, ..response.results[0] };
        wire::Refund { request: Some(request.clone()), results: vec![result] }
    };
    let of = response.results[0].transaction;
    for transaction in [of, of + 1, of + 2] {
        exact.undo(other, &refund(transaction));
    }
    let figures = exact.figures();
    assert_eq!(figures.refunds("foreign"), 3);
    assert!(check(&database, "x", 1).await.blocked, "another filter must not refund the attempt");
    exact.undo(owner, &refund(of));
    let began = Instant::now();
    while figures.refunds("done") == 0 {
        assert!(
            began.elapsed() < Duration::from_secs(10),
            "the filter must be able to refund its own attempt"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(!check(&database, "x", 1).await.blocked);
}

async fn tables_of_the_previous_version_are_migrated(store: &Store) {
    let scene = store.fresh().await;
    publish(&scene.open("a"), &[row("kept", 3)]).await;
    let tables = if scene.is_mysql() { "zone_master, zone_txn, zone_bucket_lock" } else { "zone_master" };
    scene.run(&format!("DROP TABLE {tables}")).await;
    scene.run("DELETE FROM weir_migrations WHERE version > 2").await;
    if scene.is_mysql() {
        scene.run("DROP PROCEDURE check_velocity; DROP PROCEDURE check_velocity_cost").await;
    } else {
        scene.run("DROP TABLE zone_txn").await;
    }
    scene.run("DROP TABLE weir_controls; DROP TABLE weir_control_edition").await;
    let database = scene.open("b");
    let error = database.check_schema(WITHIN).await.unwrap_err();
    assert!(error.reason() == "schema" && error.to_string().contains("migrate"), "{error}");
    let migrated = database.migrate().await.unwrap();
    assert_eq!((migrated.applied[0].as_str(), migrated.present), ("0003 zone master", 2));
    database.check_schema(WITHIN).await.unwrap();
    assert_eq!(import(&database).await, cells(&[row("kept", 3)]));
    set_zone(&database, ZONE, 1, 60).await;
    assert!(!check(&database, "x", 1).await.blocked && check(&database, "x", 1).await.blocked);
}
