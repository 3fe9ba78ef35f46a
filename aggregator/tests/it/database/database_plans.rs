//! Tests of the rows that statements read: by the optimizer's plan, and by the server's counters of rows read.

use crate::support::database::ledger::*;
use crate::support::database::packets::Node;
use crate::support::database::*;
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, Executor, MySqlConnection, Row};
use weir_aggregator::database::dialect::{mysql, sqlite};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb() {
    scenarios(&Store::mariadb().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql_too() {
    if let Some(store) = Store::mysql().await {
        scenarios(&store).await;
    }
}

async fn scenarios(store: &Store) {
    for (live, expired) in [(1_000, 9_000), (9_500, 500), (5_000, 0)] {
        let scene = filled(store, live, expired).await;
        let mut connection = scene.mysql().await;
        connection.execute("ANALYZE TABLE ratelimit_window_counts").await.unwrap();
        a_page_examines_neither_expired_rows_nor_those_of_other_pages(&mut connection, live).await;
        cleanup_goes_by_the_index(&mut connection, expired).await;
        an_upsert_reads_each_row_once(&mut connection, live).await;
    }
    the_table_is_as_specified(&filled(store, 1, 1).await).await;
    the_ledger_reads_what_counts(store).await;
}

/// Half of the live rows, and a marker, in each of two regions.
async fn filled(store: &Store, live: usize, expired_rows: usize) -> Scene {
    let scene = store.fresh().await;
    for region in ["a", "b"] {
        let mut node = Node::new(scene.open(region), rand::random());
        node.write(&rows("live", live / 2, 3)).await;
        node.write(&expired("old", expired_rows / 2, HOUR_MS)).await;
    }
    scene
}

/// A statement with its parameters filled in.
fn filled_in(statement: &str, args: &[&str]) -> String {
    let mut parts = statement.split('?');
    let first = parts.next().unwrap().to_owned();
    parts.zip(args).fold(first, |sql, (part, arg)| sql + arg + part)
}

async fn query(connection: &mut MySqlConnection, sql: String) -> Vec<MySqlRow> {
    connection.fetch_all(sqlx::raw_sql(AssertSqlSafe(sql))).await.unwrap()
}

/// Access type and index of the plan's first line.
async fn plan(connection: &mut MySqlConnection, sql: &str) -> (String, String) {
    let rows = query(connection, format!("EXPLAIN FORMAT=TRADITIONAL {sql}")).await;
    let text = |name: &str| {
        let bytes: Option<Vec<u8>> = rows[0].try_get_unchecked(name).unwrap();
        String::from_utf8(bytes.unwrap_or_default()).unwrap()
    };
    (text("type"), text("key"))
}

/// Number of index entries and rows that the server read for a statement, including temporary tables.
async fn reads(connection: &mut MySqlConnection, sql: &str) -> (u64, u64) {
    query(connection, "FLUSH STATUS".to_owned()).await;
    query(connection, sql.to_owned()).await;
    let (mut by_index, mut by_scan) = (0, 0);
    for row in query(connection, "SHOW SESSION STATUS LIKE 'Handler_read_%'".to_owned()).await {
        let text =
            |column: usize| String::from_utf8(row.try_get_unchecked::<Vec<u8>, _>(column).unwrap()).unwrap();
        let value: u64 = text(1).parse().unwrap();
        match text(0).as_str() {
            "Handler_read_next" | "Handler_read_prev" => by_index += value,
            "Handler_read_rnd_next" => by_scan += value,
            _ => {}
        }
    }
    (by_index, by_scan)
}

/// Each page reads its own rows and no others, also where many rows expire at once.
async fn a_page_examines_neither_expired_rows_nor_those_of_other_pages(
    connection: &mut MySqlConnection,
    live: usize,
) {
    let now = NOW.0.to_string();
    let highest = i64::MAX.to_string();
    let all = filled_in(mysql::STATEMENTS.page, &[&now, &now, &highest, "1000000"]);
    assert_eq!(plan(connection, &all).await, ("range".to_owned(), "expires_at_idx".to_owned()));
    assert_eq!(reads(connection, &all).await, (live as u64 + 2, 0), "the live rows and the markers");
    let rows = query(connection, all).await;
    for before in [live / 3, live / 2 + 1] {
        let number = |name| rows[before].get_unchecked::<u64, _>(name).to_string();
        let (expires, pk) = (number("expires_at"), number("pk"));
        let page = filled_in(mysql::STATEMENTS.page, &[&expires, &expires, &pk, "100"]);
        assert_eq!(plan(connection, &page).await, ("range".to_owned(), "expires_at_idx".to_owned()));
        let (by_index, by_scan) = reads(connection, &page).await;
        assert!(by_index <= 100 && by_scan == 0, "{by_index} and {by_scan} were read");
        let first: u64 = query(connection, page).await[0].get_unchecked("pk");
        assert_eq!(first, rows[before + 1].get_unchecked::<u64, _>("pk"));
    }
}

async fn cleanup_goes_by_the_index(connection: &mut MySqlConnection, expired: usize) {
    let sql = filled_in(mysql::STATEMENTS.cleanup, &[&NOW.0.to_string(), "200"]);
    assert_eq!(plan(connection, &sql).await, ("range".to_owned(), "expires_at_idx".to_owned()));
    let (by_index, by_scan) = reads(connection, &sql).await;
    assert!(by_index <= 200.min(expired as u64) + 1, "{by_index} entries were read");
    assert_eq!(by_scan, 0);
}

/// The upsert of a packet uses the unique key and scans neither an index nor the table.
async fn an_upsert_reads_each_row_once(connection: &mut MySqlConnection, live: usize) {
    let expires = (sequence() + 2) * HOUR_MS;
    let values: Vec<_> = (0..live / 2)
        .map(|place| format!("('w','n','live{place:05}',{HOUR_MS},{},'a',4,{expires},0,9,7,3)", sequence()))
        .collect();
    let end = filled_in(mysql::STATEMENTS.packet_end, &["0"; 2]);
    let sql = [mysql::STATEMENTS.packet_begin, &values.join(","), &end].concat();
    assert_eq!(reads(connection, &sql).await, (0, 0));
}

async fn the_table_is_as_specified(scene: &Scene) {
    let columns = "SELECT GROUP_CONCAT(column_name, ' ', LOWER(REGEXP_REPLACE(column_type, '(int)[(][0-9]+[)]', '\\\\1')) ORDER BY ordinal_position)
        FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'ratelimit_window_counts'";
    let indexes = "SELECT GROUP_CONCAT(index_name, ' ', column_name ORDER BY index_name, seq_in_index)
        FROM information_schema.statistics WHERE table_schema = DATABASE() AND table_name = 'ratelimit_window_counts'";
    let mut connection = scene.mysql().await;
    let mut text = async |sql: &str| {
        let rows = query(&mut connection, sql.to_owned()).await;
        String::from_utf8(rows[0].try_get_unchecked(0).unwrap()).unwrap()
    };
    let columns = text(columns).await.replace("bigint(20)", "bigint").replace("int(10)", "int");
    assert_eq!(
        columns,
        "pk bigint unsigned,workspace_id varbinary(191),namespace varbinary(255),identifier varbinary(255),\
         duration_ms bigint unsigned,sequence bigint,region varbinary(48),count bigint unsigned,\
         expires_at bigint unsigned,updated_at bigint unsigned,lowest_limit bigint unsigned,writer int unsigned,\
         version bigint unsigned"
    );
    assert_eq!(
        text(indexes).await,
        "expires_at_idx expires_at,feed_idx writer,feed_idx version,PRIMARY pk,unique_window_region workspace_id,\
         unique_window_region namespace,unique_window_region identifier,unique_window_region duration_ms,\
         unique_window_region sequence,unique_window_region region"
    );
}

/// Attempts of other buckets, expired attempts of the same bucket, and blocked attempts are not read.
async fn the_ledger_reads_what_counts(store: &Store) {
    const COUNTED: u64 = 40;
    let scene = store.fresh().await;
    set_zone(&scene.open("a"), ZONE, COUNTED + 1, 3_600).await;
    let fill = async |rows: u64, bucket: &str, blocked: u8, age_seconds: u64| {
        let values: Vec<_> = (0..rows)
            .map(|place| {
                let bucket = bucket.replace('#', &(place % 1_000).to_string());
                format!("(7, '{bucket}', {blocked}, UTC_TIMESTAMP(6) - INTERVAL {age_seconds} SECOND, 1, '')")
            })
            .collect();
        let columns = "zone_id, bucket_key, blocked, created_at, cost, region";
        scene.run(&format!("INSERT INTO zone_txn ({columns}) VALUES {}", values.join(","))).await;
    };
    fill(30_000, "other #", 0, 10).await;
    fill(5_000, "x", 0, 4_000).await;
    fill(5_000, "x", 1, 10).await;
    fill(5_000, "x", 2, 10).await;
    fill(COUNTED, "x", 0, 10).await;
    let mut connection = scene.mysql().await;
    connection.execute("ANALYZE TABLE zone_txn").await.unwrap();

    let count = counting_statement();
    assert_eq!(plan(&mut connection, &count).await, ("range".to_owned(), "counted_idx".to_owned()));
    let rows = query(&mut connection, format!("EXPLAIN FORMAT=TRADITIONAL {count}")).await;
    let extra: Vec<u8> = rows[0].try_get_unchecked("Extra").unwrap();
    assert!(String::from_utf8(extra).unwrap().contains("Using index"), "it reads the table too");
    // MySQL reads its own tables when a session calls a procedure for the first time.
    query(&mut connection, "CALL check_velocity_cost(7, 'y', 0, '')".to_owned()).await;
    // One attempt is allowed. The next is blocked and computes when enough cost will have expired.
    for (cost, blocked) in [(1, false), (1, true), (2, true)] {
        let call = format!("CALL check_velocity_cost(7, 'x', {cost}, '')");
        let (by_index, by_scan) = reads(&mut connection, &call).await;
        let most = if blocked { 2 * (COUNTED + 1) } else { COUNTED };
        assert!((COUNTED..=most + 4).contains(&by_index), "{by_index} entries were read for {call}");
        // The window function's own temporary table.
        assert!(by_scan <= if blocked { 4 * COUNTED } else { 0 }, "{by_scan} rows were scanned for {call}");
    }

    let statements = mysql::STATEMENTS;
    for (statement, args, key, most) in [
        (statements.transactions, ["7", "'x'", "1000000", "20"].as_slice(), "history_idx", 20),
        (statements.cleanup_attempts, &["7", "3900", "50"], "created_at_idx", 51),
        (statements.cleanup_locks.unwrap(), &["1", "50"], "used_on_idx", 1),
        (statements.transaction, &["5"], "PRIMARY", 0),
        (statements.refund, &["5", "7", "'x'", "1000"], "PRIMARY", 1),
    ] {
        let sql = filled_in(statement, args);
        assert_eq!(plan(&mut connection, &sql).await.1, key, "{sql}");
        let (by_index, by_scan) = reads(&mut connection, &sql).await;
        assert!(by_index <= most && by_scan == 0, "{by_index} and {by_scan} were read for {sql}");
    }
    let next = filled_in(statements.recorded_zone, &["1"]);
    assert!(reads(&mut connection, &next).await.0 <= 1);
}

/// The statement in the procedure, with values for its variables.
fn counting_statement() -> String {
    let body = include_str!("../../../../migrations/mysql/0006_check_velocity_cost.sql");
    let begin = body.find("SELECT COALESCE(SUM(cost)").unwrap();
    let statement = body[begin..].split_once(';').unwrap().0;
    [
        (" INTO v_used, v_oldest", ""),
        ("p_zone_id", "7"),
        ("p_bucket_key", "'x'"),
        ("v_since", "UTC_TIMESTAMP(6) - INTERVAL 3600 SECOND"),
    ]
    .into_iter()
    .fold(statement.to_owned(), |sql, (variable, value)| {
        assert!(sql.contains(variable), "{sql}");
        sql.replace(variable, value)
    })
}

/// SQLite describes its plan in words.
#[tokio::test]
async fn sqlite_uses_its_indexes() {
    let store = Store::sqlite();
    let scene = store.fresh().await;
    let options: sqlx::sqlite::SqliteConnectOptions = scene.url.parse().unwrap();
    let mut connection = sqlx::ConnectOptions::connect(&options).await.unwrap();
    let statements = sqlite::STATEMENTS;
    for (statement, args, expected) in [
        (statements.page, ["1", "1", "5", "10"].as_slice(), "USING INDEX expires_at_idx (expires_at>?)"),
        (statements.page, &["1", "1", "5", "10"], "USING INDEX expires_at_idx (expires_at=? AND rowid>?)"),
        // The two ranges are merged as they are read, and not sorted.
        (statements.page, &["1", "1", "5", "10"], "MERGE (UNION ALL)"),
        (
            statements.cleanup,
            &["9", "10"],
            "USING COVERING INDEX expires_at_idx (expires_at>? AND expires_at<?)",
        ),
        (
            sqlite::COUNT,
            &["1", "x'61'", "5"],
            "USING COVERING INDEX counted_idx (zone_id=? AND bucket_key=? AND created_at>?)",
        ),
        (
            statements.transactions,
            &["1", "x'61'", "5", "9"],
            "USING INDEX history_idx (zone_id=? AND bucket_key=? AND rowid<?)",
        ),
        (
            statements.cleanup_attempts,
            &["1", "5", "9"],
            "USING COVERING INDEX created_at_idx (zone_id=? AND created_at<?)",
        ),
    ] {
        let sql = format!("EXPLAIN QUERY PLAN {}", filled_in(statement, args));
        let plan: Vec<String> = sqlx::query(AssertSqlSafe(sql))
            .fetch_all(&mut connection)
            .await
            .unwrap()
            .iter()
            .map(|row| row.get(3))
            .collect();
        let plan = plan.join("\n");
        assert!(plan.contains(expected) && !plan.contains("SCAN") && !plan.contains("B-TREE"), "{plan}");
    }
}
