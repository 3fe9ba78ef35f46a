//! The statements of both kinds of database, and those that are the same for both.

/// The statements of one kind of database. Both kinds take the same parameters in the same order; they follow the colon
/// below.
#[derive(Debug)]
pub struct Statements {
    /// The name of this kind of database in OpenTelemetry's semantic conventions.
    pub system: &'static str,
    /// Fails if a table or a column is missing.
    pub check_schema: &'static [&'static str],
    /// Start of a packet's upsert; the marker and rows follow.
    pub packet_begin: &'static str,
    /// End of a packet's upsert: the version that the own marker has at least, unless rows were lost.
    pub packet_end: &'static str,
    /// Start of the feed, the writer's own marker and the others: writer, region, writer, now, most other markers. The newest of the others are
    /// read.
    pub packet_markers: &'static str,
    /// Part of the feed, the rows of a writer: writer, version (exclusive), now, most rows.
    pub packet_page: &'static str,
    /// The most bytes of a text that the server accepts. `None` for SQLite, whose limit is a thousand times the largest packet.
    pub packet_limit: Option<&'static str>,
    /// A page of all rows, in the order of their expiry and their number: expiry twice and number of the row before, most rows.
    pub page: &'static str,
    /// Takes or renews a lease unless another holder has it: region, holder, milliseconds.
    pub lease_take: &'static str,
    /// The lease's holder and remaining time: region.
    pub lease_read: &'static str,
    /// Releases a lease: region, holder.
    pub lease_release: &'static str,
    /// The markers of writers: region, writer, and when it was written by the region's time, those written last first: most of them.
    pub writer_times: &'static str,
    /// Deletes a batch of rows that expired before a time: time, most rows.
    pub cleanup: &'static str,
    /// Refunds an attempt that was allowed: transaction, zone, bucket.
    pub refund: &'static str,
    /// Reads an attempt: transaction.
    pub transaction: &'static str,
    /// A bucket's attempts before a transaction, newest first: zone, bucket, transaction (exclusive), most rows.
    pub transactions: &'static str,
    /// What counts of a bucket now, and the age of the oldest attempt that counts, in microseconds: zone, bucket, window in
    /// seconds, most attempts.
    pub bucket_use: &'static str,
    /// All zones.
    pub zones: &'static str,
    /// A zone: zone.
    pub zone: &'static str,
    /// Creates or changes a zone: zone, description, rate, window, whether to change the description (1 or 0).
    pub zone_set: &'static str,
    /// The window of a zone in seconds: zone.
    pub zone_window: &'static str,
    /// Deletes a zone: zone.
    pub zone_delete: &'static str,
    /// Number of recorded attempts in a zone: zone, maximum to count to.
    pub zone_attempts: &'static str,
    /// The next zone with recorded attempts: lowest zone (inclusive).
    pub recorded_zone: &'static str,
    /// Deletes a batch of a zone's oldest attempts: zone, minimum age in seconds, most rows.
    pub cleanup_attempts: &'static str,
    /// Deletes a batch of bucket locks that were not used lately: days, most rows. `None` for SQLite, which has no
    /// bucket locks.
    pub cleanup_locks: Option<&'static str>,
    /// Reads the edition of live control and locks it until the transaction ends.
    pub control_edition_lock: &'static str,
    /// Inserts the edition if there is none: incarnation, lowest revision, stamp.
    pub control_edition_make: &'static str,
    /// Deletes a batch of the oldest audit entries of live control: time before which they were made, most rows.
    pub control_audit_cleanup: &'static str,
}

impl Statements {
    pub const CHECK_SCHEMA: &'static [&'static str] = &[
        "SELECT pk, workspace_id, namespace, identifier, duration_ms, sequence, region, count, expires_at, updated_at,
                lowest_limit, writer, version FROM ratelimit_window_counts LIMIT 0",
        "SELECT region, holder, expires_at FROM weir_region_leases LIMIT 0",
        "SELECT id, description, rate, `window` FROM zone_master LIMIT 0",
        "SELECT id, zone_id, bucket_key, blocked, created_at, cost, region FROM zone_txn LIMIT 0",
        "SELECT workspace, scope, identifier, network, window_ms, slot, kind, amount, expires_at, reason, author, automatic,
                deleted, revision, created_at, updated_at, stamp FROM weir_controls LIMIT 0",
        "SELECT id, incarnation, revision, stamp, floor, dropped_before, controls, stamps FROM weir_control_edition LIMIT 0",
        "SELECT id, created_at, author, automatic, region, action, was, is_now FROM weir_control_audit LIMIT 0",
    ];
    /// [`Statements::packet_begin`], the same for both.
    pub const PACKET_BEGIN: &'static str = "
INSERT INTO ratelimit_window_counts
    (workspace_id, namespace, identifier, duration_ms, sequence, region, count, expires_at, updated_at, lowest_limit,
     writer, version)
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
