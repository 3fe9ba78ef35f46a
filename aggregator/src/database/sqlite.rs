//! Statements and sessions for SQLite, with the same meaning as those for MySQL.
//!
//! Leaves to others: when each is run.

use super::connection::Statements;
use sqlx::ConnectOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use std::time::Duration;

/// How long a statement waits while another process writes.
const BUSY_TIMEOUT: Duration = Duration::from_secs(3);
/// Rows in one statement; at the longest texts that stays below SQLite's million bytes.
const UPSERT_ROWS: usize = 1_000;

/// The statements.
pub const STATEMENTS: Statements = Statements {
    check_schema: &[
        "SELECT pk, workspace_id, namespace, identifier, duration_ms, sequence, region, count, expires_at, updated_at
         FROM ratelimit_window_counts LIMIT 0",
        "SELECT region, holder, expires_at FROM weir_region_leases LIMIT 0",
    ],
    upsert_begin: "
INSERT INTO ratelimit_window_counts
    (workspace_id, namespace, identifier, duration_ms, sequence, region, count, expires_at, updated_at)
VALUES ",
    upsert_end: "
ON CONFLICT (workspace_id, namespace, identifier, duration_ms, sequence, region) DO UPDATE
SET count = excluded.count, updated_at = excluded.updated_at
WHERE excluded.count > count",
    upsert_rows: UPSERT_ROWS,
    // TOTAL, unlike SUM, does not fail on an overflow; up to 2^53 it is exact.
    import: "
SELECT workspace_id, namespace, identifier, duration_ms, sequence,
       CAST(TOTAL(IIF(count > 9007199254740992, 0, count)) AS INTEGER) AS imported,
       SUM(count > 9007199254740992) AS implausible
FROM ratelimit_window_counts INDEXED BY expires_at_idx
WHERE expires_at > ? AND region <> ?
GROUP BY workspace_id, namespace, identifier, duration_ms, sequence
LIMIT ?",
    own: "
SELECT workspace_id, namespace, identifier, duration_ms, sequence,
       IIF(count > 9007199254740992, 0, count) AS own,
       count > 9007199254740992 AS implausible
FROM ratelimit_window_counts INDEXED BY expires_at_idx
WHERE expires_at > ? AND region = ?
LIMIT ?",
    sentinel_read: "
SELECT count FROM ratelimit_window_counts
WHERE workspace_id = x'' AND namespace = x'' AND identifier = x'' AND duration_ms = 0 AND sequence = 0 AND region = ?",
    sentinel_make: "
INSERT INTO ratelimit_window_counts
    (workspace_id, namespace, identifier, duration_ms, sequence, region, count, expires_at, updated_at)
VALUES (x'', x'', x'', 0, 0, ?, ?, 0, CAST(unixepoch('subsec') * 1000 AS INTEGER))
ON CONFLICT DO NOTHING",
    lease_take: "
INSERT INTO weir_region_leases (region, holder, expires_at)
VALUES (?, ?, CAST(unixepoch('subsec') * 1000 AS INTEGER) + ?)
ON CONFLICT (region) DO UPDATE
SET holder = excluded.holder, expires_at = excluded.expires_at
WHERE holder = excluded.holder OR expires_at <= CAST(unixepoch('subsec') * 1000 AS INTEGER)",
    lease_read: "
SELECT holder, MAX(expires_at - CAST(unixepoch('subsec') * 1000 AS INTEGER), 0)
FROM weir_region_leases WHERE region = ?",
    lease_release: "DELETE FROM weir_region_leases WHERE region = ? AND holder = ?",
    cleanup: "
DELETE FROM ratelimit_window_counts
WHERE pk IN (
    SELECT pk FROM ratelimit_window_counts INDEXED BY expires_at_idx
    WHERE expires_at > 0 AND expires_at < ?
    ORDER BY expires_at
    LIMIT ?
)",
};

/// Readers do not wait for writers (WAL). A crash of the machine may lose the last moments, which are published again.
pub(super) fn session(options: SqliteConnectOptions) -> SqliteConnectOptions {
    options
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Normal)
        .busy_timeout(BUSY_TIMEOUT)
        .disable_statement_logging()
}
