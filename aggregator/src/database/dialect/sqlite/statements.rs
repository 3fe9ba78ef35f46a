//! Statements for SQLite, with the same meaning as those for MySQL.

use crate::database::dialect::common;
use crate::database::dialect::statements::Statements;

pub const STATEMENTS: Statements = Statements {
    system: "sqlite",
    check_schema: common::CHECK_SCHEMA,
    packet_begin: common::PACKET_BEGIN,
    packet_end: "
ON CONFLICT (workspace_id, namespace, identifier, duration_ms, sequence, region) DO UPDATE
SET version      = IIF(IIF(duration_ms = 0, count < ?,
                           excluded.count > count OR excluded.lowest_limit < lowest_limit
                           OR (excluded.count = count AND excluded.writer = writer AND excluded.version > version)),
                       excluded.version, version),
    writer       = IIF(excluded.count > count OR excluded.lowest_limit < lowest_limit, excluded.writer, writer),
    updated_at   = IIF(excluded.count > count, excluded.updated_at, updated_at),
    lowest_limit = MIN(lowest_limit, excluded.lowest_limit),
    expires_at   = MAX(expires_at, excluded.expires_at),
    count        = MAX(count, excluded.count)
WHERE excluded.count > count OR excluded.lowest_limit < lowest_limit OR excluded.expires_at > expires_at
      OR (excluded.count = count AND excluded.writer = writer AND excluded.version > version)",
    packet_markers: "
SELECT workspace_id, namespace, identifier, duration_ms, sequence, count, region, lowest_limit, writer, version
FROM ratelimit_window_counts
WHERE workspace_id = x'' AND namespace = x'' AND identifier = x'' AND duration_ms = 0 AND sequence = ? AND region = ?
UNION ALL
SELECT * FROM (
    SELECT workspace_id, namespace, identifier, duration_ms, sequence, count, region, lowest_limit, writer, version
    FROM ratelimit_window_counts
    WHERE workspace_id = x'' AND namespace = x'' AND identifier = x'' AND duration_ms = 0 AND sequence > 0 AND sequence <> ?
      AND expires_at > ?
    ORDER BY +expires_at DESC LIMIT ?
)",
    packet_page: "
UNION ALL
SELECT * FROM (
    SELECT workspace_id, namespace, identifier, duration_ms, sequence, count, region, lowest_limit, writer, version
    FROM ratelimit_window_counts INDEXED BY feed_idx
    WHERE writer = ? AND version > ? AND duration_ms > 0 AND expires_at > ?
    ORDER BY version LIMIT ?
)",
    packet_is_one_text: false,
    packet_limit: None,
    // Two ranges of the index, merged as they are read. One condition with OR would begin at the first row with the same expiry.
    page: "
SELECT workspace_id, namespace, identifier, duration_ms, sequence, count, region, lowest_limit, expires_at, pk
FROM ratelimit_window_counts INDEXED BY expires_at_idx
WHERE expires_at > ?
UNION ALL
SELECT workspace_id, namespace, identifier, duration_ms, sequence, count, region, lowest_limit, expires_at, pk
FROM ratelimit_window_counts INDEXED BY expires_at_idx
WHERE expires_at = ? AND pk > ?
ORDER BY expires_at, pk
LIMIT ?",
    lease_take: "
INSERT INTO weir_region_leases (region, holder, expires_at)
VALUES (?, ?, CAST(unixepoch('subsec') * 1000 AS INTEGER) + ?)
ON CONFLICT (region) DO UPDATE
SET holder = excluded.holder, expires_at = excluded.expires_at
WHERE holder = excluded.holder OR expires_at <= CAST(unixepoch('subsec') * 1000 AS INTEGER) OR expires_at = ?",
    lease_read: "
SELECT holder, MAX(expires_at - CAST(unixepoch('subsec') * 1000 AS INTEGER), 0), expires_at
FROM weir_region_leases WHERE region = ?",
    lease_release: "DELETE FROM weir_region_leases WHERE region = ? AND holder = ?",
    writer_times: "
SELECT region, sequence, updated_at FROM ratelimit_window_counts
WHERE workspace_id = x'' AND namespace = x'' AND identifier = x'' AND duration_ms = 0 AND sequence > 0
ORDER BY updated_at DESC LIMIT ?",
    cleanup: "
DELETE FROM ratelimit_window_counts
WHERE pk IN (
    SELECT pk FROM ratelimit_window_counts INDEXED BY expires_at_idx
    WHERE expires_at > 0 AND expires_at < ?
    ORDER BY expires_at
    LIMIT ?
)",
    refund: "
UPDATE zone_txn SET blocked = 2
WHERE id = ? AND zone_id = ? AND bucket_key = ? AND blocked = 0
  AND created_at <= CAST(unixepoch('subsec') * 1000 AS INTEGER) * 1000 - ?",
    transaction: "
SELECT id, zone_id, bucket_key, blocked, created_at, cost, region FROM zone_txn WHERE id = ?",
    transactions: "
SELECT id, zone_id, bucket_key, blocked, created_at, cost, region
FROM zone_txn INDEXED BY history_idx
WHERE zone_id = ? AND bucket_key = ? AND id < ?
ORDER BY id DESC
LIMIT ?",
    bucket_use: "
SELECT COALESCE(SUM(cost), 0), MAX(CAST(unixepoch('subsec') * 1000 AS INTEGER) * 1000 - MIN(created_at), 0)
FROM (
    SELECT cost, created_at FROM zone_txn INDEXED BY counted_idx
    WHERE zone_id = ? AND bucket_key = ? AND blocked = 0 AND cost > 0
      AND created_at > CAST(unixepoch('subsec') * 1000 AS INTEGER) * 1000 - ? * 1000000
    ORDER BY created_at
    LIMIT ?
)",
    zones: "SELECT id, CAST(description AS BLOB), rate, `window` FROM zone_master ORDER BY id",
    zone: "SELECT id, CAST(description AS BLOB), rate, `window` FROM zone_master WHERE id = ?",
    zone_set: "
INSERT INTO zone_master (id, description, rate, `window`)
VALUES (?1, CAST(?2 AS TEXT), ?3, ?4)
ON CONFLICT (id) DO UPDATE
SET description = IIF(?5 = 1, excluded.description, description), rate = excluded.rate, `window` = excluded.`window`",
    zone_window: "SELECT `window` FROM zone_master WHERE id = ?",
    zone_delete: "DELETE FROM zone_master WHERE id = ?",
    zone_attempts: "SELECT COUNT(*) FROM (SELECT 1 FROM zone_txn WHERE zone_id = ? LIMIT ?)",
    recorded_zone: "SELECT MIN(zone_id) FROM zone_txn WHERE zone_id >= ?",
    cleanup_attempts: "
DELETE FROM zone_txn
WHERE id IN (
    SELECT id FROM zone_txn INDEXED BY created_at_idx
    WHERE zone_id = ? AND created_at < CAST(unixepoch('subsec') * 1000 AS INTEGER) * 1000 - ? * 1000000
    ORDER BY created_at
    LIMIT ?
)",
    cleanup_locks: None,
    control_edition_lock: "SELECT incarnation, revision, stamp, floor, dropped_before FROM weir_control_edition WHERE id = 1",
    control_edition_make: "
INSERT INTO weir_control_edition (id, incarnation, revision, stamp, floor, controls, stamps)
SELECT 1, ?, MAX(?, COALESCE(MAX(revision), 0)), ?, 0, COUNT(*), COALESCE(SUM(stamp), 0) FROM weir_controls WHERE 1
ON CONFLICT DO NOTHING",
    control_audit_cleanup: "
DELETE FROM weir_control_audit
WHERE id IN (SELECT id FROM weir_control_audit WHERE created_at < ? ORDER BY created_at LIMIT ?)",
    controls: &common::CONTROLS,
    begin_write: "BEGIN IMMEDIATE",
    begin_snapshot: "BEGIN",
    commit: "COMMIT",
    rollback: "ROLLBACK",
};

/// Microseconds since the Unix epoch.
pub(super) const CLOCK: &str = "SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER) * 1000";
/// The used total of a bucket and its oldest attempt. Parameters: zone, bucket, start of the window (exclusive).
pub const COUNT: &str = "
SELECT COALESCE(SUM(cost), 0), MIN(created_at)
FROM zone_txn INDEXED BY counted_idx
WHERE zone_id = ? AND bucket_key = ? AND blocked = 0 AND cost > 0 AND created_at > ?";
/// The time of the attempt at whose expiry the given amount has left the window. Parameters: zone, bucket, start of the
/// window as for [`COUNT`], amount.
pub const ENOUGH: &str = "
SELECT created_at
FROM (
    SELECT created_at, SUM(cost) OVER (ORDER BY created_at, id) AS gone
    FROM zone_txn INDEXED BY counted_idx
    WHERE zone_id = ? AND bucket_key = ? AND blocked = 0 AND cost > 0 AND created_at > ?
)
WHERE gone >= ?
ORDER BY created_at
LIMIT 1";
/// Records an attempt and returns its number. Parameters: zone, bucket, blocked, time, cost, region.
pub(super) const RECORD: &str = "
INSERT INTO zone_txn (zone_id, bucket_key, blocked, created_at, cost, region)
VALUES (?, ?, ?, ?, ?, ?)
RETURNING id";
