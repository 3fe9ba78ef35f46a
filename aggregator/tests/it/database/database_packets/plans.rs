//! What a server reads for a feed.

use crate::support::database::packets::*;
use crate::support::database::*;
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, Row, SqliteConnection};
use std::collections::BTreeMap;
use weir_aggregator::database::dialect::{mysql, sqlite};
use weir_core::replication::global::packet::{MAX_FEED_ROWS, MAX_PACKET_ROWS, MAX_WRITERS};

/// The plan of the feed, and the index entries and rows that the server reads for it.
pub async fn a_feed_reads_what_is_new(store: &Store) {
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
    // Expired ones too.
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
        // A server reads a row that must be one before it plans, and does not if there is none.
        let (own, plans) = plans.split_at(plans.len() - cursors.len() - 1);
        assert!(own.iter().all(|own| own.starts_with("const unique_window_region")), "{own:?}");
        assert!(plans[0].starts_with("range unique_window_region"), "{}", plans[0]);
        for plan in &plans[1..] {
            assert!(plan.starts_with("range feed_idx") && !plan.contains("filesort"), "{plan}");
        }
        let reads = handler_reads(&mut connection, &sql).await;
        eprintln!("{WRITERS} cursors, {NEW} rows are new: {reads:?}");
        // The markers and the entry after the last, and the packet's rows.
        let next = reads["Handler_read_next"];
        assert!((4 + NEW as u64..=4 + 1 + NEW as u64 + 1).contains(&next), "{reads:?}");
        // One for each writer, one for the own marker, and two for the markers before and after it.
        assert!(reads["Handler_read_key"] <= WRITERS + 3, "{reads:?}");
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
}

fn mysql_feed(cursors: &[(u64, u64)]) -> String {
    feed(mysql::STATEMENTS.packet_markers, mysql::STATEMENTS.packet_page, cursors)
}

/// The text of a feed with these cursors.
fn feed(markers: &str, page: &str, cursors: &[(u64, u64)]) -> String {
    let now = NOW.0.to_string();
    let own = ["9", "x'61'", "9", &now, &MAX_WRITERS.to_string()];
    let markers = filled_in(markers, &own);
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

pub async fn sqlite_reads_what_is_new(store: &Store) {
    let scene = store.fresh().await;
    Node::new(scene.open("a"), 1).send(&rows("k", MAX_PACKET_ROWS, 1)).await;
    let mut connection = SqliteConnection::connect(&scene.url).await.unwrap();
    let cursors: Vec<_> = (1..=256).map(|number| (number, 3)).collect();
    let sql = feed(sqlite::STATEMENTS.packet_markers, sqlite::STATEMENTS.packet_page, &cursors);
    for statement in ["", "ANALYZE"] {
        connection.execute(sqlx::raw_sql(statement)).await.unwrap();
        let sql = AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}"));
        let plan: Vec<String> =
            sqlx::query(sql).fetch_all(&mut connection).await.unwrap().iter().map(|row| row.get(3)).collect();
        let found: Vec<_> = plan.iter().filter(|line| line.starts_with("SEARCH")).collect();
        let page = "feed_idx (writer=? AND version>?)";
        let markers = "sqlite_autoindex_ratelimit_window_counts_1 (workspace_id=? AND namespace=? AND identifier=? AND duration_ms=?";
        assert!(
            found.len() == 2 + cursors.len()
                && found.iter().all(|line| line.contains(page) || line.contains(markers)),
            "{plan:#?}"
        );
        assert!(found[0].ends_with("AND sequence=? AND region=?)"), "{plan:#?}");
        assert!(!plan.iter().any(|line| line.contains("SCAN ratelimit")), "{plan:#?}");
        // Markers alone are sorted.
        assert!(plan.iter().filter(|line| line.contains("TEMP B-TREE")).count() <= 1, "{plan:#?}");
    }
}
