//! Statements and sessions for MySQL (8.0 and later) and MariaDB (10.6 and later).
//!
//! `VALUES()` in `ON DUPLICATE KEY UPDATE` is what both understand. Assignments there are done from left to right, so a
//! column that decides about another comes before or after it as written.
//!
//! Leaves to others: when each is run.

use super::purpose::Purpose;
use super::statements::{CHUNK_ROWS, Statements};
use crate::database::{DatabaseError, Reason};
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Executor};

/// Seconds after which the server itself ends a statement whose caller has long given up.
const STATEMENT_SECONDS: u32 = 20;
/// Seconds after which the server ends a session that says nothing: longer than a pool keeps one (`purpose::MAX_IDLE`), and
/// not the 8 hours that are usual, for which an aggregator that was cut off would keep all of its connections. A statement
/// that runs is not silent, and one by itself, as publishing's and the ledger's are, leaves nothing locked behind.
const IDLE_SECONDS: u64 = 70;
/// The same within a transaction, which may hold a lock that others wait for: less than they do (`Purpose`).
const SILENT_SECONDS: u32 = 2;

const _: () = assert!(IDLE_SECONDS > super::purpose::MAX_IDLE.as_secs());

/// The statements.
pub const STATEMENTS: Statements = Statements {
    system: "mysql",
    check_schema: Statements::CHECK_SCHEMA,
    upsert_begin: Statements::UPSERT_BEGIN,
    // A row that does not grow stays as it is: nothing is written, logged or replicated for it.
    upsert_end: "
ON DUPLICATE KEY UPDATE
    updated_at = IF(VALUES(count) > count, VALUES(updated_at), updated_at),
    count      = GREATEST(count, VALUES(count))",
    upsert_rows: CHUNK_ROWS,
    // Left alone, the optimizer reads the whole table where most of it is alive, and what has expired with it.
    import: "
SELECT workspace_id, namespace, identifier, duration_ms, sequence,
       CAST(SUM(IF(count > 9007199254740992, 0, count)) AS UNSIGNED) AS imported,
       CAST(SUM(count > 9007199254740992) AS UNSIGNED) AS implausible
FROM ratelimit_window_counts FORCE INDEX (expires_at_idx)
WHERE expires_at > ? AND region <> ?
GROUP BY workspace_id, namespace, identifier, duration_ms, sequence
ORDER BY NULL
LIMIT ?",
    own: "
SELECT workspace_id, namespace, identifier, duration_ms, sequence,
       CAST(IF(count > 9007199254740992, 0, count) AS UNSIGNED) AS own,
       CAST(count > 9007199254740992 AS UNSIGNED) AS implausible
FROM ratelimit_window_counts FORCE INDEX (expires_at_idx)
WHERE expires_at > ? AND region = ?
LIMIT ?",
    shares: Statements::SHARES,
    regions: "
SELECT region, CAST(MAX(updated_at) AS UNSIGNED) AS wrote, CAST(SUM(counts) AS UNSIGNED) AS found
FROM (
    SELECT region, 0 AS updated_at, 0 AS counts FROM ratelimit_window_counts
    WHERE workspace_id = '' AND namespace = '' AND identifier = '' AND duration_ms = 0 AND sequence = 0
    UNION ALL
    SELECT * FROM (
        SELECT region, updated_at, 1 AS counts FROM ratelimit_window_counts FORCE INDEX (expires_at_idx)
        WHERE expires_at > ? ORDER BY expires_at DESC LIMIT ?
    ) AS newest
) AS written
GROUP BY region
ORDER BY region
LIMIT 256",
    marker_read: "
SELECT count FROM ratelimit_window_counts
WHERE workspace_id = '' AND namespace = '' AND identifier = '' AND duration_ms = 0 AND sequence = 0 AND region = ?",
    marker_make: "
INSERT INTO ratelimit_window_counts
    (workspace_id, namespace, identifier, duration_ms, sequence, region, count, expires_at, updated_at)
VALUES ('', '', '', 0, 0, ?, ?, 0, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000)
ON DUPLICATE KEY UPDATE count = count",
    lease_take: "
INSERT INTO weir_region_leases (region, holder, expires_at)
VALUES (?, ?, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000 + ?)
ON DUPLICATE KEY UPDATE
    holder     = IF(expires_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000,
                    VALUES(holder), holder),
    expires_at = IF(holder = VALUES(holder), VALUES(expires_at), expires_at)",
    lease_read: "
SELECT holder,
       GREATEST(CAST(expires_at AS SIGNED) - TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000, 0)
FROM weir_region_leases WHERE region = ?",
    lease_release: "DELETE FROM weir_region_leases WHERE region = ? AND holder = ?",
    cleanup: "
DELETE FROM ratelimit_window_counts
WHERE expires_at > 0 AND expires_at < ?
ORDER BY expires_at
LIMIT ?",
    refund: "UPDATE zone_txn SET blocked = 2 WHERE id = ? AND zone_id = ? AND bucket_key = ? AND blocked = 0",
    transaction: "
SELECT id, zone_id, bucket_key, blocked, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', created_at), cost, region
FROM zone_txn WHERE id = ?",
    transactions: "
SELECT id, zone_id, bucket_key, blocked, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', created_at), cost, region
FROM zone_txn FORCE INDEX (history_idx)
WHERE zone_id = ? AND bucket_key = ? AND id < ?
ORDER BY id DESC
LIMIT ?",
    zones: "SELECT id, CAST(description AS BINARY), rate, `window` FROM zone_master ORDER BY id",
    zone: "SELECT id, CAST(description AS BINARY), rate, `window` FROM zone_master WHERE id = ?",
    zone_set: "
INSERT INTO zone_master (id, description, rate, `window`)
VALUES (?, ?, ?, ?)
ON DUPLICATE KEY UPDATE
    description = IF(? = 1, VALUES(description), description),
    rate        = VALUES(rate),
    `window`    = VALUES(`window`)",
    zone_window: "SELECT `window` FROM zone_master WHERE id = ?",
    zone_delete: "DELETE FROM zone_master WHERE id = ?",
    zone_attempts: "SELECT COUNT(*) FROM (SELECT 1 FROM zone_txn WHERE zone_id = ? LIMIT ?) AS some",
    recorded_zone: "SELECT MIN(zone_id) FROM zone_txn WHERE zone_id >= ?",
    cleanup_attempts: "
DELETE FROM zone_txn
WHERE zone_id = ? AND created_at < UTC_TIMESTAMP(6) - INTERVAL ? SECOND
ORDER BY created_at
LIMIT ?",
    cleanup_locks: Some(
        "
DELETE FROM zone_bucket_lock
WHERE used_on < UTC_DATE() - INTERVAL ? DAY
ORDER BY used_on
LIMIT ?",
    ),
    control_edition_lock: "SELECT incarnation, revision, floor FROM weir_control_edition WHERE id = 1 FOR UPDATE",
    // What may be left of another incarnation is above none of the new one.
    control_edition_make: "
INSERT INTO weir_control_edition (id, incarnation, revision, floor)
SELECT 1, ?, GREATEST(?, COALESCE(MAX(revision), 0)), 0 FROM weir_controls
ON DUPLICATE KEY UPDATE id = 1",
    control_audit_cleanup: "DELETE FROM weir_control_audit WHERE created_at < ? ORDER BY created_at LIMIT ?",
};

/// Decides and records an attempt: zone, bucket, cost, region. Its row holds what [`ANSWER`] says.
pub const CHECK_VELOCITY: &str = "CALL check_velocity_cost(?, ?, ?, ?)";

/// Where the columns of [`CHECK_VELOCITY`]'s row are: blocked, transaction, rate, window, used, reset, retry after.
pub(in crate::database) const ANSWER: [usize; 7] = [0, 1, 4, 5, 6, 7, 8];

/// What the URL says, and what the statements rely on whatever it says.
pub(in crate::database) fn session(options: MySqlConnectOptions) -> MySqlConnectOptions {
    options
        .pipes_as_concat(false)
        .no_engine_substitution(false)
        .charset("utf8mb4")
        .timezone(Some("+00:00".to_owned()))
        .disable_statement_logging()
}

/// Connects, and makes the session independent of how the server is configured. READ COMMITTED locks only rows that
/// are changed; the default also locks the gaps between them, in which others insert.
pub(in crate::database) async fn connect(
    options: &MySqlConnectOptions,
    purpose: Purpose,
) -> Result<MySqlConnection, DatabaseError> {
    let lock_wait_seconds = purpose.lock_wait_seconds();
    let mut connection = options.connect().await.map_err(explain)?;
    let settings = format!(
        "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION',
             SESSION autocommit = 1,
             SESSION wait_timeout = {IDLE_SECONDS},
             SESSION innodb_lock_wait_timeout = {lock_wait_seconds},
             SESSION lock_wait_timeout = {lock_wait_seconds}
             /*M!100101 , SESSION max_statement_time = {STATEMENT_SECONDS} */
             /*!80000 , SESSION max_execution_time = {STATEMENT_SECONDS}000 */"
    );
    connection.execute(sqlx::raw_sql(AssertSqlSafe(settings))).await?;
    connection.execute(sqlx::raw_sql("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")).await?;
    Ok(connection)
}

/// Begins a transaction, in one round trip. If its caller is not heard of any more, it ends soon.
pub(in crate::database) fn begin(statements: &str) -> String {
    format!("SET SESSION wait_timeout = {SILENT_SECONDS}; {statements}")
}

/// Ends one with this word.
pub(in crate::database) fn end(word: &str) -> String {
    format!("{word}; SET SESSION wait_timeout = {IDLE_SECONDS}")
}

/// For a migration: no statement is ended by the server, and locks are waited for.
pub(in crate::database) async fn be_patient(
    connection: &mut MySqlConnection,
    seconds: u32,
) -> Result<(), DatabaseError> {
    let settings = format!(
        "SET SESSION lock_wait_timeout = {seconds}, SESSION innodb_lock_wait_timeout = {seconds}
             /*M!100101 , SESSION max_statement_time = 0 */
             /*!80000 , SESSION max_execution_time = 0 */"
    );
    connection.execute(sqlx::raw_sql(AssertSqlSafe(settings))).await?;
    Ok(())
}

/// An unencrypted connection cannot carry a password that the server wants to see whole.
fn explain(error: sqlx::Error) -> DatabaseError {
    // The driver's words for it; it has no kind of its own.
    if error.to_string().contains("RSA auth backend") {
        let text = "the server wants the password over an encrypted connection and offers none";
        return DatabaseError::new(Reason::Refused, format!("{text}: enable TLS on the server"));
    }
    error.into()
}
