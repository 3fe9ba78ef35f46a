//! The statements of a kind of database, and how they are completed with values.

use super::arg::Arg;

/// The statements of one kind of database. All kinds take the same parameters in the same order; they follow the colon
/// below.
#[derive(Debug)]
pub struct Statements {
    /// The name of this kind of database in OpenTelemetry's semantic conventions.
    pub system: &'static str,
    /// Fails if a table or a column is missing.
    pub check_schema: &'static str,
    /// Start of a packet's upsert; the marker and rows follow.
    pub packet_begin: &'static str,
    /// End of a packet's upsert: the version that the own marker has at least, unless rows were lost.
    pub packet_end: &'static str,
    /// Start of the feed, the writer's own marker and the others: writer, region, writer, now, most other markers. The newest of the others are
    /// read.
    pub packet_markers: &'static str,
    /// Part of the feed, the rows of a writer: writer, version (exclusive), now, most rows.
    pub packet_page: &'static str,
    /// Whether the texts of a packet are sent as one, with `;` between them, so that they take one round trip.
    pub packet_is_one_text: bool,
    /// The most bytes of a text that the server accepts. `None` for SQLite, whose limit is a thousand times the largest packet.
    pub packet_limit: Option<&'static str>,
    /// A page of all rows, in the order of their expiry and their number: expiry twice and number of the row before, most rows.
    pub page: &'static str,
    /// Takes or renews a lease unless another holder has it: region, holder, milliseconds, the expiry of a lease that counts as expired.
    pub lease_take: &'static str,
    /// The lease's holder, remaining time and expiry: region.
    pub lease_read: &'static str,
    /// Releases a lease: region, holder.
    pub lease_release: &'static str,
    /// The markers of writers: region, writer, and when it was written by the region's time, those written last first: most of them.
    pub writer_times: &'static str,
    /// Deletes a batch of rows that expired before a time: time, most rows.
    pub cleanup: &'static str,
    /// Refunds an attempt that was allowed: transaction, zone, bucket, how many microseconds ago it was made at least.
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
    /// All other statements of live control.
    pub controls: &'static ControlStatements,
    /// Begins a transaction that writes.
    pub begin_write: &'static str,
    /// Begins a read transaction with one consistent snapshot.
    pub begin_snapshot: &'static str,
    /// Commits a transaction.
    pub commit: &'static str,
    /// Rolls a transaction back.
    pub rollback: &'static str,
}

/// The statements of live control that all kinds of database can have in common.
#[derive(Debug)]
pub struct ControlStatements {
    /// Reads the edition, without a lock.
    pub edition: &'static str,
    /// The edition's digest, that of all rows, and that of those that are kept.
    pub contents: &'static str,
    /// Updates the edition of a database that has lost controls, and takes the rows as they are: incarnation, revision, stamp.
    pub renew: &'static str,
    /// Newer controls: revision, most rows.
    pub newer: &'static str,
    /// Controls in force: place, slot twice, revision, now, most rows.
    pub list: &'static str,
    /// Audit entries: place, author twice, number, most rows.
    pub audit: &'static str,
    /// For each workspace: all stored controls, those in force, and those of them that rules set: now, now.
    pub count: &'static str,
    /// Start of a query for controls; places follow.
    pub find: &'static str,
    /// Start of a deletion of controls; a condition follows.
    pub delete: &'static str,
    /// Inserts controls, after another statement; rows follow.
    pub insert: &'static str,
    /// Inserts audit entries, after another statement; rows follow.
    pub record: &'static str,
    /// Advances the edition, after another statement: revision, stamp, number of rows and sum of their stamps.
    pub advance: &'static str,
    /// The highest revision of the batch to drop: time, time, most rows.
    pub last_over: &'static str,
    /// Raises the floor and the time up to which controls were dropped: each twice.
    pub raise_floor: &'static str,
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

/// Appends parameters as SQL text, for statements that contain their values as literals.
pub(in crate::database) fn push_args(args: &[Arg<'_>], sql: &mut String) {
    for (place, arg) in args.iter().enumerate() {
        if place > 0 {
            sql.push(',');
        }
        match arg {
            Arg::Bytes(bytes) => push_hex(bytes, sql),
            Arg::Int(number) => sql.push_str(&number.to_string()),
        }
    }
}

/// Appends a statement with its parameters as literals.
pub(in crate::database) fn push_statement(statement: &str, args: &[Arg<'_>], sql: &mut String) {
    let mut args = args.iter();
    for (place, part) in statement.split('?').enumerate() {
        if place > 0 {
            push_args(args.next().map(std::slice::from_ref).unwrap_or_default(), sql);
        }
        sql.push_str(part);
    }
}
