//! Statements for MySQL and MariaDB.
//!
//! Both support `VALUES()` in `ON DUPLICATE KEY UPDATE`. Both evaluate its assignments from left to right, so the order
//! of columns matters where one column's new value depends on another column.

use crate::database::dialect::common;
use crate::database::dialect::statements::Statements;

/// Seconds after which the server closes an idle session. Longer than a pool keeps a connection (`purpose::MAX_IDLE`),
/// and shorter than the default of 8 hours, during which a disconnected aggregator would occupy all of its connections.
/// A session that runs a statement is not idle. Statements outside a transaction, such as those of packets and the
/// ledger, hold no locks afterwards.
macro_rules! idle_seconds {
    () => {
        70
    };
}
pub(super) use idle_seconds;

/// Idle timeout inside a transaction, which may hold locks. Shorter than the time that others wait for a lock
/// (`Purpose`). If the client vanishes, the server ends the transaction after it.
macro_rules! silent_seconds {
    () => {
        2
    };
}

pub const STATEMENTS: Statements = Statements {
    system: "mysql",
    check_schema: common::CHECK_SCHEMA,
    packet_begin: common::PACKET_BEGIN,
    // An upsert that raises nothing changes no column, so that a restart feeds no row again. The exception is a row that its
    // writer sends again because the packet was not acknowledged: another version may have hidden it from readers. The version of a
    // marker (its duration is 0) is that of the first packet after a loss. Each assignment reads the columns that are assigned after
    // it as they were.
    packet_end: "
ON DUPLICATE KEY UPDATE
    version      = IF(IF(duration_ms = 0, count < ?,
                         VALUES(count) > count OR VALUES(lowest_limit) < lowest_limit
                         OR (VALUES(count) = count AND VALUES(writer) = writer AND VALUES(version) > version)),
                      VALUES(version), version),
    writer       = IF(VALUES(count) > count OR VALUES(lowest_limit) < lowest_limit, VALUES(writer), writer),
    updated_at   = IF(VALUES(count) > count, VALUES(updated_at), updated_at),
    lowest_limit = LEAST(lowest_limit, VALUES(lowest_limit)),
    expires_at   = GREATEST(expires_at, VALUES(expires_at)),
    count        = GREATEST(count, VALUES(count))",
    packet_markers: "
(SELECT workspace_id, namespace, identifier, duration_ms, sequence, count, region, lowest_limit, writer, version
 FROM ratelimit_window_counts FORCE INDEX (unique_window_region)
 WHERE workspace_id = '' AND namespace = '' AND identifier = '' AND duration_ms = 0 AND sequence = ? AND region = ?)
UNION ALL
(SELECT workspace_id, namespace, identifier, duration_ms, sequence, count, region, lowest_limit, writer, version
 FROM ratelimit_window_counts FORCE INDEX (unique_window_region)
 WHERE workspace_id = '' AND namespace = '' AND identifier = '' AND duration_ms = 0 AND sequence > 0 AND sequence <> ?
   AND expires_at > ?
 ORDER BY expires_at DESC LIMIT ?)",
    packet_page: "
UNION ALL
(SELECT workspace_id, namespace, identifier, duration_ms, sequence, count, region, lowest_limit, writer, version
 FROM ratelimit_window_counts FORCE INDEX (feed_idx)
 WHERE writer = ? AND version > ? AND duration_ms > 0 AND expires_at > ?
 ORDER BY version LIMIT ?)",
    packet_is_one_text: true,
    packet_limit: Some("SELECT @@max_allowed_packet"),
    // Without the index hint, the optimizer reads the whole table, expired rows included, if most rows are alive. The index contains the
    // primary key, so the range begins at the row before.
    page: "
SELECT workspace_id, namespace, identifier, duration_ms, sequence, count, region, lowest_limit, expires_at, pk
FROM ratelimit_window_counts FORCE INDEX (expires_at_idx)
WHERE expires_at > ? OR (expires_at = ? AND pk > ?)
ORDER BY expires_at, pk
LIMIT ?",
    lease_take: "
INSERT INTO weir_region_leases (region, holder, expires_at)
VALUES (?, ?, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000 + ?)
ON DUPLICATE KEY UPDATE
    holder     = IF(expires_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000 OR expires_at = ?,
                    VALUES(holder), holder),
    expires_at = IF(holder = VALUES(holder), VALUES(expires_at), expires_at)",
    lease_read: "
SELECT holder,
       GREATEST(CAST(expires_at AS SIGNED) - TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000, 0),
       expires_at
FROM weir_region_leases WHERE region = ?",
    lease_release: "DELETE FROM weir_region_leases WHERE region = ? AND holder = ?",
    writer_times: "
SELECT region, sequence, updated_at FROM ratelimit_window_counts FORCE INDEX (unique_window_region)
WHERE workspace_id = '' AND namespace = '' AND identifier = '' AND duration_ms = 0 AND sequence > 0
ORDER BY updated_at DESC LIMIT ?",
    cleanup: "
DELETE FROM ratelimit_window_counts
WHERE expires_at > 0 AND expires_at < ?
ORDER BY expires_at
LIMIT ?",
    refund: "
UPDATE zone_txn SET blocked = 2
WHERE id = ? AND zone_id = ? AND bucket_key = ? AND blocked = 0
  AND created_at <= UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND",
    transaction: "
SELECT id, zone_id, bucket_key, blocked, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', created_at), cost, region
FROM zone_txn WHERE id = ?",
    transactions: "
SELECT id, zone_id, bucket_key, blocked, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', created_at), cost, region
FROM zone_txn FORCE INDEX (history_idx)
WHERE zone_id = ? AND bucket_key = ? AND id < ?
ORDER BY id DESC
LIMIT ?",
    bucket_use: "
SELECT CAST(COALESCE(SUM(cost), 0) AS UNSIGNED), GREATEST(TIMESTAMPDIFF(MICROSECOND, MIN(created_at), UTC_TIMESTAMP(6)), 0)
FROM (
    SELECT cost, created_at FROM zone_txn FORCE INDEX (counted_idx)
    WHERE zone_id = ? AND bucket_key = ? AND counted = 1 AND created_at > UTC_TIMESTAMP(6) - INTERVAL ? SECOND
    ORDER BY created_at
    LIMIT ?
) AS counted_attempts",
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
    control_edition_lock: "
SELECT incarnation, revision, stamp, floor, dropped_before FROM weir_control_edition WHERE id = 1 FOR UPDATE",
    // Rows left over from another incarnation have no revision above the floor of the new one.
    control_edition_make: "
INSERT INTO weir_control_edition (id, incarnation, revision, stamp, floor, controls, stamps)
SELECT 1, ?, GREATEST(?, COALESCE(MAX(revision), 0)), ?, 0, COUNT(*), COALESCE(SUM(stamp), 0) FROM weir_controls
ON DUPLICATE KEY UPDATE id = 1",
    control_audit_cleanup: "DELETE FROM weir_control_audit WHERE created_at < ? ORDER BY created_at LIMIT ?",
    controls: &common::CONTROLS,
    begin_write: concat!("SET SESSION wait_timeout = ", silent_seconds!(), "; START TRANSACTION"),
    begin_snapshot: concat!(
        "SET SESSION wait_timeout = ",
        silent_seconds!(),
        "; SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; START TRANSACTION READ ONLY"
    ),
    commit: concat!("COMMIT; SET SESSION wait_timeout = ", idle_seconds!()),
    rollback: concat!("ROLLBACK; SET SESSION wait_timeout = ", idle_seconds!()),
};

/// Decides and records an attempt. Parameters: zone, bucket, cost, region. [`ANSWER`] describes the columns of the
/// result.
pub const CHECK_VELOCITY: &str = "CALL check_velocity_cost(?, ?, ?, ?)";

/// Columns of the result of [`CHECK_VELOCITY`]: blocked, transaction, rate, window, used, reset, retry after.
pub(super) const ANSWER: [usize; 7] = [0, 1, 4, 5, 6, 7, 8];
