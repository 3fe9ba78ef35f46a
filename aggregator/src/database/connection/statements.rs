//! What the statements of both kinds of database have in common.

/// Most rows in one statement. At the longest texts that is 2.5 MB, below what servers take by default (16 MB and
/// more).
pub const CHUNK_ROWS: usize = 5_000;

/// The statements of one kind of database; the same parameters in the same order for both.
#[derive(Debug)]
pub struct Statements {
    /// What the semantic conventions of OpenTelemetry call this kind of database.
    pub system: &'static str,
    /// Fails where a table or a column is missing.
    pub check_schema: &'static [&'static str],
    /// Begin of the bulk upsert; rows follow.
    pub upsert_begin: &'static str,
    /// End of the bulk upsert.
    pub upsert_end: &'static str,
    /// Most rows in one upsert.
    pub upsert_rows: usize,
    /// What other regions used: now, region, most cells.
    pub import: &'static str,
    /// What this region had published: now, region, most cells.
    pub own: &'static str,
    /// Every region's share of a key: workspace, namespace, identifier, window, oldest cell, most rows.
    pub shares: &'static str,
    /// Every region that has written, when it did last and how many rows it has among those that live longest: now, how
    /// many of these.
    pub regions: &'static str,
    /// The marker's number: region.
    pub marker_read: &'static str,
    /// Leaves a marker where there is none: region, number.
    pub marker_make: &'static str,
    /// Takes or renews a lease if nobody else has it: region, holder, milliseconds.
    pub lease_take: &'static str,
    /// Who has the lease and for how long: region.
    pub lease_read: &'static str,
    /// Gives a lease back: region, holder.
    pub lease_release: &'static str,
    /// Deletes some of what expired before: cutoff, most rows.
    pub cleanup: &'static str,
    /// Refunds an attempt that was allowed: transaction, zone, bucket.
    pub refund: &'static str,
    /// An attempt: transaction.
    pub transaction: &'static str,
    /// A bucket's attempts, the newest first: zone, bucket, transaction that all are before, most rows.
    pub transactions: &'static str,
    /// All zones.
    pub zones: &'static str,
    /// A zone: zone.
    pub zone: &'static str,
    /// Makes a zone or changes it: zone, description, rate, window, whether to change the description (1) or not (0).
    pub zone_set: &'static str,
    /// The window of a zone in seconds: zone.
    pub zone_window: &'static str,
    /// Deletes a zone: zone.
    pub zone_delete: &'static str,
    /// How many attempts in a zone are recorded: zone, number to count to.
    pub zone_attempts: &'static str,
    /// The next zone in which attempts are recorded: the lowest number that it may have.
    pub recorded_zone: &'static str,
    /// Deletes some of a zone's oldest attempts: zone, seconds that they are older than, most rows.
    pub cleanup_attempts: &'static str,
    /// Deletes some of the bucket locks that were not used lately, where there are any: days, most rows.
    pub cleanup_locks: Option<&'static str>,
    /// The edition of live control, locked until the transaction ends.
    pub control_edition_lock: &'static str,
    /// Makes one where there is none: incarnation, lowest revision.
    pub control_edition_make: &'static str,
    /// Deletes some of the oldest changes of live control: moment before which they were made, most rows.
    pub control_audit_cleanup: &'static str,
}

impl Statements {
    /// [`Statements::check_schema`], the same for both.
    pub const CHECK_SCHEMA: &'static [&'static str] = &[
        "SELECT pk, workspace_id, namespace, identifier, duration_ms, sequence, region, count, expires_at, updated_at
         FROM ratelimit_window_counts LIMIT 0",
        "SELECT region, holder, expires_at FROM weir_region_leases LIMIT 0",
        "SELECT id, description, rate, `window` FROM zone_master LIMIT 0",
        "SELECT id, zone_id, bucket_key, blocked, created_at, cost, region FROM zone_txn LIMIT 0",
        "SELECT workspace, scope, identifier, network, window_ms, slot, kind, amount, expires_at, reason, author, automatic,
                deleted, revision, created_at, updated_at FROM weir_controls LIMIT 0",
        "SELECT id, incarnation, revision, floor FROM weir_control_edition LIMIT 0",
        "SELECT id, created_at, author, automatic, region, action, was, is_now FROM weir_control_audit LIMIT 0",
    ];
    /// [`Statements::shares`], the same for both.
    pub const SHARES: &'static str = "
SELECT region, sequence, count, updated_at FROM ratelimit_window_counts
WHERE workspace_id = ? AND namespace = ? AND identifier = ? AND duration_ms = ? AND sequence >= ?
ORDER BY sequence, region
LIMIT ?";
    /// [`Statements::upsert_begin`], the same for both.
    pub const UPSERT_BEGIN: &'static str = "
INSERT INTO ratelimit_window_counts
    (workspace_id, namespace, identifier, duration_ms, sequence, region, count, expires_at, updated_at)
VALUES ";
}

/// Appends bytes as a hexadecimal literal.
pub(in crate::database) fn push_hex(bytes: &[u8], sql: &mut String) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    sql.push_str("x'");
    for byte in bytes {
        sql.push(char::from(DIGITS[usize::from(byte >> 4)]));
        sql.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    sql.push('\'');
}
