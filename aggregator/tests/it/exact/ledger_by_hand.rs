//! Tests of `CALL check_velocity`: the same answers for every caller, session and privilege.

use crate::support::database::ledger::*;
use crate::support::database::*;
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, Row};
use std::sync::Arc;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use weir_aggregator::database::Velocity;

const NO_ZONE: u16 = 31_001;
const WRONG_ARGUMENT: u16 = 31_002;

on_servers!(|store| scenarios(&store));

async fn scenarios(store: &Store) {
    manual_and_automatic_calls_share_a_bucket(store).await;
    no_setting_of_a_session_matters(store).await;
    an_old_snapshot_does_not_hide_what_is_new(store).await;
    invalid_calls_return_errors(store).await;
    to_the_microsecond(store).await;
    a_user_with_rights_to_call_it_alone(store).await;
    two_hundred_sessions_at_once(store).await;
    first_attempts_of_many_at_once(store).await;
}

async fn zone(store: &Store, rate: u64, window_seconds: u64) -> Scene {
    let scene = store.fresh().await;
    set_zone(&scene.open("here"), ZONE, rate, window_seconds).await;
    scene
}

async fn run(connection: &mut MySqlConnection, sql: &str) {
    connection.execute(sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))).await.unwrap();
}

async fn manual_and_automatic_calls_share_a_bucket(store: &Store) {
    let scene = zone(store, 4, 3_600).await;
    let (database, mut person) = (scene.open("here"), scene.mysql().await);
    for (turn, blocked) in (0..8).zip([false, false, false, false, true, true, true, true]) {
        let velocity = if turn % 2 == 0 {
            check(&database, "alice", 1).await
        } else {
            let answer = by_hand(&mut person, "CALL check_velocity(7, 'alice')").await.unwrap();
            assert_eq!((answer.zone, &*answer.bucket), (7, b"alice".as_slice()));
            answer.velocity
        };
        assert_eq!((velocity.blocked, velocity.used), (blocked, (turn + 1).min(4)), "{velocity:?}");
        assert_eq!((velocity.rate, velocity.window_ms), (4, 3_600_000));
        assert!(
            velocity.reset_ms > 3_500_000 && velocity.retry_after_ms.is_some() == blocked,
            "{velocity:?}"
        );
    }
    let costly = by_hand(&mut person, "CALL check_velocity_cost(7, 'bob', 3, 'office')").await.unwrap();
    assert_eq!((costly.velocity.blocked, costly.velocity.used), (false, 3));
    let found = database.transaction(costly.velocity.transaction, WITHIN).await.unwrap().unwrap();
    assert_eq!((found.cost, &*found.region, &*found.bucket), (3, b"office".as_slice(), b"bob".as_slice()));
}

async fn no_setting_of_a_session_matters(store: &Store) {
    let scene = zone(store, 1, 3_600).await;
    let settings = [
        "SET time_zone = '-11:00'",
        "SET autocommit = 0",
        "SET completion_type = 1",
        "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED",
        "SET SESSION TRANSACTION READ ONLY",
        "SET sql_mode = ''",
        "SET sql_mode = 'ANSI,NO_UNSIGNED_SUBTRACTION,PAD_CHAR_TO_FULL_LENGTH,ONLY_FULL_GROUP_BY,NO_BACKSLASH_ESCAPES'",
        "SET sql_safe_updates = 1",
        "SET sql_select_limit = 1",
        "SET unique_checks = 0",
        "SET timestamp = 1000000000",
        "SET timestamp = 2000000000",
        "SET NAMES latin1",
        "START TRANSACTION READ ONLY",
        "START TRANSACTION WITH CONSISTENT SNAPSHOT",
    ];
    let mut together = scene.mysql().await;
    for (place, setting) in settings.into_iter().enumerate() {
        let mut alone = scene.mysql().await;
        for (name, connection) in [("alone", &mut alone), ("together", &mut together)] {
            run(connection, setting).await;
            for blocked in [false, true] {
                let call = format!("CALL check_velocity(7, '{name} {place}')");
                let answer = by_hand(connection, &call).await.unwrap();
                assert_eq!(answer.velocity.blocked, blocked, "{setting}: {answer:?}");
                assert!((3_500_000..=3_600_000).contains(&answer.velocity.reset_ms), "{setting}: {answer:?}");
            }
        }
    }
    // Answered attempts are committed, although no caller committed them.
    let rows = recorded(&scene).await;
    assert_eq!(rows.len(), 4 * settings.len());
    let first = rows[0].at_us;
    assert!(
        rows.iter().all(|row| row.at_us.abs_diff(first) < 60_000_000),
        "all times must be by the server's clock, in UTC"
    );
}

async fn an_old_snapshot_does_not_hide_what_is_new(store: &Store) {
    let scene = zone(store, 1, 3_600).await;
    let (mut old, mut other) = (scene.mysql().await, scene.mysql().await);
    run(&mut old, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ").await;
    run(&mut old, "START TRANSACTION WITH CONSISTENT SNAPSHOT").await;
    run(&mut old, "SELECT * FROM zone_txn; SELECT * FROM zone_bucket_lock").await;
    let call = "CALL check_velocity(7, 'x')";
    assert!(!by_hand(&mut other, call).await.unwrap().velocity.blocked);
    assert!(by_hand(&mut old, call).await.unwrap().velocity.blocked);
    // The procedure reads the clock and the count when it has the lock, not when the call begins.
    let mut holder = scene.mysql().await;
    let mut transaction = holder.begin().await.unwrap();
    transaction
        .execute("SELECT * FROM zone_bucket_lock WHERE zone_id = 7 AND bucket_key = 'x' FOR UPDATE")
        .await
        .unwrap();
    let waiting =
        tokio::spawn(async move { by_hand(&mut old, "CALL check_velocity_cost(7, 'x', 0, '')").await });
    let waits = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'";
    weir_envoy::wait::until("the call waits", WITHIN, async || {
        tokio::time::sleep(std::time::Duration::from_millis(150)).await;
        scene.number(waits).await > 0
    })
    .await
    .unwrap();
    transaction.execute("UPDATE zone_txn SET blocked = 2").await.unwrap();
    let micros = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";
    let freed = u64::try_from(scene.number(micros).await).unwrap();
    transaction.commit().await.unwrap();
    let answer = waiting.await.unwrap().unwrap();
    assert_eq!((answer.velocity.blocked, answer.velocity.used), (false, 0));
    assert!(recorded(&scene).await.last().unwrap().at_us >= freed);
}

async fn invalid_calls_return_errors(store: &Store) {
    let scene = zone(store, 1, 3_600).await;
    let mut person = scene.mysql().await;
    for mode in ["STRICT_ALL_TABLES", ""] {
        run(&mut person, &format!("SET sql_mode = '{mode}'")).await;
        let cases = [
            ("CALL check_velocity(8, 'x')", NO_ZONE),
            ("CALL check_velocity(4294967303, 'x')", NO_ZONE),
            ("CALL check_velocity(-1, 'x')", NO_ZONE),
            ("CALL check_velocity(NULL, 'x')", WRONG_ARGUMENT),
            ("CALL check_velocity(7, NULL)", WRONG_ARGUMENT),
            ("CALL check_velocity(7, REPEAT('x', 256))", WRONG_ARGUMENT),
            ("CALL check_velocity_cost(7, 'x', -1, '')", WRONG_ARGUMENT),
            ("CALL check_velocity_cost(7, 'x', 9007199254740993, '')", WRONG_ARGUMENT),
            ("CALL check_velocity_cost(7, 'x', NULL, '')", WRONG_ARGUMENT),
            ("CALL check_velocity_cost(7, 'x', 1, REPEAT('x', 49))", WRONG_ARGUMENT),
        ];
        for (call, number) in cases {
            assert_eq!(error_number(by_hand(&mut person, call).await), number, "{call} with mode '{mode}'");
        }
    }
    // An error inside the procedure is raised unchanged, and leaves neither a row nor an open transaction.
    scene
        .run(
            "CREATE TRIGGER poison BEFORE INSERT ON zone_txn FOR EACH ROW
             IF NEW.bucket_key = 'poison' THEN SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 5000; END IF",
        )
        .await;
    assert_eq!(error_number(by_hand(&mut person, "CALL check_velocity(7, 'poison')").await), 5_000);
    assert!(
        !by_hand(&mut scene.mysql().await, "CALL check_velocity(7, 'x')").await.unwrap().velocity.blocked
    );
    assert_eq!(scene.number("SELECT COUNT(*) FROM zone_bucket_lock").await, 1);
    let open = "SELECT COUNT(*) FROM information_schema.innodb_trx";
    weir_envoy::wait::until("no transaction is open", WITHIN, async || {
        // MariaDB refreshes this information only if it was not queried for a moment.
        tokio::time::sleep(std::time::Duration::from_millis(150)).await;
        scene.number(open).await == 0
    })
    .await
    .unwrap();
    let error = by_hand(&mut person, "CALL check_velocity(8, 'x')").await.unwrap_err().to_string();
    assert!(error.contains("no zone 8") && error.contains("weir-aggregator zones"), "{error}");
}

/// Compares the procedure, with a clock that the test sets, with a model. Attempts are often exactly one window apart.
async fn to_the_microsecond(store: &Store) {
    const RATE: u64 = 6;
    const WINDOW_US: u64 = 3_000_000;
    let scene = zone(store, RATE, WINDOW_US / 1_000_000).await;
    let mut person = scene.mysql().await;
    with_a_clock_of_ours(&mut person).await;
    let mut past: Vec<(u64, u64)> = Vec::new();
    let mut now = 1_800_000_000_000_000_u64;
    let mut random = 88_172_645_463_325_252_u64;
    let mut blocked_ones = 0;
    for _ in 0..600 {
        // Xorshift: the same numbers in every run.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let steps = [0, 1, 500_000, 499_999, 1_000_000, 1_500_001, WINDOW_US, WINDOW_US - 1];
        now += steps[usize::try_from(random % 8).unwrap()];
        // The clock sometimes steps back.
        now -= [0, 0, 0, 0, 0, 0, 0, 2_000_000][usize::try_from(random / 8 % 8).unwrap()];
        let cost = [0, 1, 1, 2, 3, 6, 7, 1][usize::try_from(random / 64 % 8).unwrap()];
        let expected = model(&past, now, cost, RATE, WINDOW_US);
        let call = format!(
            "SET @weir_now = TIMESTAMPADD(MICROSECOND, {now}, '1970-01-01'); CALL check_velocity_at(7, 'x', {cost}, '')"
        );
        let velocity = by_hand(&mut person, &call).await.unwrap().velocity;
        assert_eq!(Velocity { transaction: 0, ..velocity }, expected, "cost {cost} at {now} after {past:?}");
        blocked_ones += u64::from(velocity.blocked);
        if !velocity.blocked && cost > 0 {
            past.push((now, cost));
        }
    }
    assert!((100..500).contains(&blocked_ones), "{blocked_ones} of 600 were blocked");
    no_window_holds_more(&recorded(&scene).await, RATE, WINDOW_US / 1_000_000);
}

/// The expected answer to an attempt, given the allowed attempts before it.
fn model(past: &[(u64, u64)], now: u64, cost: u64, rate: u64, window_us: u64) -> Velocity {
    let mut counted: Vec<_> = past.iter().copied().filter(|(at, _)| at + window_us > now).collect();
    counted.sort_by_key(|(at, _)| *at);
    let used: u64 = counted.iter().map(|(_, cost)| cost).sum();
    let blocked = used + cost > rate;
    let until_ms = |at: u64| (at + window_us - now).div_ceil(1_000);
    let mut left = used;
    let enough = counted.iter().find(|(_, of_entry)| {
        left -= of_entry;
        left + cost <= rate
    });
    let oldest = counted.first().map(|(at, _)| *at).or((!blocked && cost > 0).then_some(now));
    Velocity {
        transaction: 0,
        blocked,
        rate,
        window_ms: window_us / 1_000,
        used: if blocked { used } else { used + cost },
        reset_ms: oldest.map_or(0, until_ms),
        retry_after_ms: enough.filter(|_| blocked).map(|(at, _)| until_ms(*at)),
    }
}

/// Creates `check_velocity_at`: the same body, with a variable instead of the clock.
async fn with_a_clock_of_ours(connection: &mut MySqlConnection) {
    run(connection, "SET sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'").await;
    let shown = connection.fetch_one("SHOW CREATE PROCEDURE check_velocity_cost").await.unwrap();
    let text: String = shown.try_get_unchecked("Create Procedure").unwrap();
    assert_eq!(text.matches("SET v_now = UTC_TIMESTAMP(6)").count(), 1);
    let text =
        text.replace("check_velocity_cost", "check_velocity_at").replace("UTC_TIMESTAMP(6)", "@weir_now");
    run(connection, &text).await;
}

async fn a_user_with_rights_to_call_it_alone(store: &Store) {
    let scene = zone(store, 1, 3_600).await;
    let name = scene.url.rsplit_once('/').unwrap().1.to_owned();
    let user = format!("caller_{name}");
    scene
        .run(&format!(
            "CREATE USER '{user}'@'%' IDENTIFIED BY 'hidden'; GRANT EXECUTE ON PROCEDURE {name}.check_velocity TO '{user}'@'%'"
        ))
        .await;
    let url = scene.url.replace("weir:geheim", &format!("{user}:hidden"));
    let mut caller = MySqlConnection::connect(&url).await.unwrap();
    for blocked in [false, true] {
        let answer = by_hand(&mut caller, "CALL check_velocity(7, 'x')").await.unwrap();
        assert_eq!(answer.velocity.blocked, blocked);
    }
    assert_eq!(error_number(caller.fetch_all("SELECT * FROM zone_txn").await), 1_142);
    // If the account that created the procedure is dropped, every caller gets an error, the program included.
    let founder = format!("founder_{name}");
    scene
        .run(&format!(
            "CREATE USER '{founder}'@'%' IDENTIFIED BY 'hidden'; GRANT ALL ON *.* TO '{founder}'@'%'"
        ))
        .await;
    let founded = scene.url.replace("weir:geheim", &format!("{founder}:hidden"));
    scene.run("DROP PROCEDURE check_velocity; DROP PROCEDURE check_velocity_cost").await;
    scene.run("DELETE FROM weir_migrations WHERE version IN (6, 7)").await;
    open(&founded, "a").migrate().await.unwrap();
    check(&scene.open("a"), "y", 1).await;
    scene.run(&format!("DROP USER '{founder}'@'%'")).await;
    let attempt = ledger_charge(ZONE, b"y", 1);
    let error = scene.open("a").check_velocity(&attempt, WITHIN).await.unwrap_err();
    assert_eq!(error.reason(), "refused", "{error}");
    // As `migrations/README.md` describes.
    scene.run("DROP PROCEDURE check_velocity; DROP PROCEDURE check_velocity_cost").await;
    scene.run("DELETE FROM weir_migrations WHERE version IN (6, 7)").await;
    scene.open("a").migrate().await.unwrap();
    assert!(check(&scene.open("a"), "y", 1).await.blocked);
}

/// Sessions of `many` users.
async fn sessions(scene: &Scene, many: usize) -> Vec<MySqlConnection> {
    scene.run("SET GLOBAL max_connections = 400").await;
    let mut sessions = Vec::new();
    for _ in 0..many {
        sessions.push(scene.mysql().await);
    }
    sessions
}

async fn two_hundred_sessions_at_once(store: &Store) {
    let scene = zone(store, 5, 3_600).await;
    let (begin, mut calls) = (Arc::new(Barrier::new(200)), JoinSet::new());
    for mut person in sessions(&scene, 200).await {
        let begin = begin.clone();
        calls.spawn(async move {
            begin.wait().await;
            by_hand(&mut person, "CALL check_velocity(7, 'x')").await.unwrap().velocity.blocked
        });
    }
    let blocked = calls.join_all().await;
    assert_eq!(blocked.iter().filter(|blocked| !**blocked).count(), 5);
    decisions_are_right(&recorded(&scene).await, 5, 3_600);
}

/// New buckets, each with fifty concurrent sessions. The test does not retry, so any error of the procedure fails it.
async fn first_attempts_of_many_at_once(store: &Store) {
    const SESSIONS: usize = 50;
    const BUCKETS: usize = 60;
    let scene = zone(store, 3, 3_600).await;
    let (begin, mut calls) = (Arc::new(Barrier::new(SESSIONS)), JoinSet::new());
    for mut person in sessions(&scene, SESSIONS).await {
        let begin = begin.clone();
        calls.spawn(async move {
            for bucket in 0..BUCKETS {
                begin.wait().await;
                let call = format!("CALL check_velocity(7, 'bucket {bucket}')");
                by_hand(&mut person, &call).await.unwrap();
            }
        });
    }
    calls.join_all().await;
    let rows = recorded(&scene).await;
    assert_eq!(rows.len(), SESSIONS * BUCKETS);
    assert_eq!(rows.iter().filter(|row| row.blocked == 0).count(), 3 * BUCKETS);
    decisions_are_right(&rows, 3, 3_600);
}
