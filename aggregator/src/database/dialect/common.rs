//! Statements that several kinds of database have in common. A kind that spells one differently has its own instead.

use super::statements::ControlStatements;

pub(super) const CHECK_SCHEMA: &str = "
SELECT 1 FROM
    (SELECT pk, workspace_id, namespace, identifier, duration_ms, sequence, region, count, expires_at, updated_at,
            lowest_limit, writer, version FROM ratelimit_window_counts LIMIT 0) AS counts,
    (SELECT region, holder, expires_at FROM weir_region_leases LIMIT 0) AS leases,
    (SELECT id, description, rate, `window` FROM zone_master LIMIT 0) AS zones,
    (SELECT id, zone_id, bucket_key, blocked, created_at, cost, region FROM zone_txn LIMIT 0) AS attempts,
    (SELECT workspace, scope, identifier, network, window_ms, slot, kind, amount, expires_at, reason, author, automatic,
            deleted, revision, created_at, updated_at, stamp FROM weir_controls LIMIT 0) AS controls,
    (SELECT id, incarnation, revision, stamp, floor, dropped_before, controls, stamps
     FROM weir_control_edition LIMIT 0) AS edition,
    (SELECT id, created_at, author, automatic, region, action, was, is_now FROM weir_control_audit LIMIT 0) AS audit";

pub(super) const PACKET_BEGIN: &str = "
INSERT INTO ratelimit_window_counts
    (workspace_id, namespace, identifier, duration_ms, sequence, region, count, expires_at, updated_at, lowest_limit,
     writer, version)
VALUES ";

/// Selects controls with the columns in the order that `controls::read_row` expects.
macro_rules! select {
    () => {
        "SELECT workspace, scope, identifier, network, window_ms, kind, amount, expires_at, deleted, revision,
                    reason, author, automatic, created_at, updated_at, stamp FROM weir_controls "
    };
}

/// The condition of a `PlaceFilter`: each of its texts twice.
macro_rules! in_place {
    () => {
        "WHERE (LENGTH(?) = 0 OR workspace = ?) AND (LENGTH(?) = 0 OR scope = ?)
           AND (LENGTH(?) = 0 OR identifier = ?) AND (LENGTH(?) = 0 OR network = ?) "
    };
}

/// The condition under which no cleanup has dropped a row: `Edition::keeps`.
macro_rules! kept {
    () => {
        "held.revision <= edition.revision
         AND (held.revision > edition.floor
              OR (held.deleted = 0 AND (held.expires_at = 0 OR held.expires_at > edition.dropped_before)))"
    };
}

pub(super) const CONTROLS: ControlStatements = ControlStatements {
    edition: "SELECT incarnation, revision, stamp, floor, dropped_before FROM weir_control_edition WHERE id = 1",
    // MySQL sums as decimals.
    contents: concat!(
        "SELECT MAX(edition.controls), MAX(edition.stamps),
            COUNT(held.revision), CAST(COALESCE(SUM(held.stamp), 0) AS UNSIGNED),
            COUNT(CASE WHEN ",
        kept!(),
        " THEN 1 END), CAST(COALESCE(SUM(CASE WHEN ",
        kept!(),
        " THEN held.stamp END), 0) AS UNSIGNED)
     FROM weir_control_edition AS edition LEFT JOIN weir_controls AS held ON 1 = 1
     WHERE edition.id = 1"
    ),
    renew: "
UPDATE weir_control_edition
SET incarnation = ?, revision = ?, stamp = ?,
    controls = (SELECT COUNT(*) FROM weir_controls), stamps = (SELECT COALESCE(SUM(stamp), 0) FROM weir_controls)
WHERE id = 1",
    newer: concat!(select!(), "WHERE revision > ? ORDER BY revision LIMIT ?"),
    list: concat!(
        select!(),
        in_place!(),
        "AND (? = 0 OR slot = ?) AND revision > ? AND deleted = 0 AND (expires_at = 0 OR expires_at > ?)
     ORDER BY revision LIMIT ?"
    ),
    audit: concat!(
        "SELECT id, created_at, author, automatic, region, action, workspace, scope, identifier, network, window_ms, slot,
            revision, was, is_now, reason
     FROM weir_control_audit ",
        in_place!(),
        "AND (LENGTH(?) = 0 OR author = ?) AND id < ? ORDER BY id DESC LIMIT ?"
    ),
    count: "
SELECT workspace,
       COUNT(*),
       COUNT(CASE WHEN deleted = 0 AND (expires_at = 0 OR expires_at > ?) THEN 1 END),
       COUNT(CASE WHEN deleted = 0 AND (expires_at = 0 OR expires_at > ?) AND automatic = 1 THEN 1 END)
FROM weir_controls
GROUP BY workspace",
    find: concat!(select!(), " WHERE "),
    delete: "DELETE FROM weir_controls WHERE ",
    insert: ";
INSERT INTO weir_controls
    (workspace, scope, identifier, network, window_ms, slot, kind, amount, expires_at, reason, author, automatic,
     deleted, revision, created_at, updated_at, stamp)
VALUES ",
    record: ";
INSERT INTO weir_control_audit
    (created_at, author, automatic, region, action, workspace, scope, identifier, network, window_ms, slot, revision,
     was, is_now, reason)
VALUES ",
    advance: ";
UPDATE weir_control_edition SET revision = ?, stamp = ?, controls = controls + ?, stamps = stamps + ? WHERE id = 1",
    last_over: "
SELECT MAX(revision)
FROM (
    SELECT revision FROM weir_controls
    WHERE (deleted = 1 AND updated_at <= ?) OR (deleted = 0 AND expires_at > 0 AND expires_at <= ?)
    ORDER BY revision
    LIMIT ?
) AS over_before",
    raise_floor: "
UPDATE weir_control_edition
SET floor = CASE WHEN floor < ? THEN ? ELSE floor END,
    dropped_before = CASE WHEN dropped_before < ? THEN ? ELSE dropped_before END
WHERE id = 1",
};
