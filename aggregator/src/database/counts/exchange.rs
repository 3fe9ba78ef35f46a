//! Exchanges a packet with the primary: writes this process' rows, and reads the rows that other writers have raised.
//!
//! MySQL and MariaDB receive one text of two statements, so a packet takes one round trip. The rows and the marker are one
//! INSERT and so become visible together. The feed is one SELECT, so markers and rows are of one moment. What is lost before, between
//! or after the two shows in the own marker ([`OwnMarker`]).
//!
//! A packet is tried once. The caller sends the rows again in a packet with another version, so a late commit does no harm.

use super::rows::{self, Cells, Stamp};
use crate::database::connection::retry::{self, Number, Work};
use crate::database::connection::{Arg, Connection, Row};
use crate::database::dialect::{Statements, push_statement};
use crate::database::{COUNTS, Database, DatabaseError, Reason};
use crate::telemetry::spans;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;
use weir_core::model::time::UnixMs;
use weir_core::model::window::MAX_COUNT;
use weir_core::region::exchange::Publication;
use weir_core::replication::global::packet::{
    Feed, MAX_FEED_ROWS, MAX_PACKET_ROWS, MAX_WRITERS, Marker, OwnMarker, Packet, Page, Writer,
};

/// Milliseconds after which the marker of a writer that has stopped is neither read nor kept.
const MARKER_TTL_MS: u64 = 3_600_000;
/// A text as short is below any usual limit of a server.
const SHORT_BYTES: usize = 64_000;
/// First guess of the bytes of a row and of a page as text.
const ROW_BYTES: usize = 230;
const PAGE_BYTES: usize = 330;

/// The result of a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PacketResult {
    /// What the packet has read.
    pub feed: Feed,
    /// Number of rows that no database could store. All other rows of the packet are stored.
    pub skipped: u64,
    /// A description of one of them.
    pub skipped_example: Option<String>,
    /// Number of rows in the feed that were skipped because Weir does not write such rows.
    pub bad: u64,
    /// A description of one of them.
    pub bad_example: Option<String>,
}

impl Database {
    /// Exchanges a packet. After an error it is unknown whether its rows are stored, or will be.
    ///
    /// The call does not repeat the packet. It closes the connection after any error and at its deadline, so that no other call
    /// reads a late answer.
    pub async fn exchange(
        &self,
        packet: &Packet,
        now: UnixMs,
        within: Duration,
    ) -> Result<PacketResult, DatabaseError> {
        check(packet)?;
        let deadline = Instant::now() + within;
        let statements = self.primary().statements();
        let mut exchanged = PacketResult::default();
        let mut insert = None;
        if let Some(version) = packet.version {
            let storable = rows::storable(&packet.rows);
            insert = Some(insert_text(
                statements,
                &Stamp { writer: packet.writer, version },
                packet.acknowledged,
                &storable.rows,
                self.region_bytes(),
                now,
            ));
            (exchanged.skipped, exchanged.skipped_example) = (storable.skipped, storable.example);
        }
        let (operation, size) = match &insert {
            Some(_) => ("INSERT", packet.rows.len()),
            None => ("SELECT", 1),
        };
        let feed = feed_text(statements, packet, self.region_bytes(), now);
        let exchange = Exchange { writer: packet.writer, texts: insert.into_iter().chain([feed]).collect() };
        let bytes: usize = exchange.texts.iter().map(String::len).sum();
        let call = spans::statement(statements.system, operation, COUNTS, size);
        let result = retry::once(deadline, self.primary(), exchange).await;
        spans::failed(call, result.as_ref().err().map(DatabaseError::reason));
        let reader = match result {
            Ok(reader) => reader,
            Err(error) => return Err(self.explain(error, bytes, deadline).await),
        };
        (exchanged.bad, exchanged.bad_example) = (reader.cells.bad, reader.cells.bad_example);
        exchanged.feed = Feed {
            own: reader.own,
            markers: reader.markers,
            pages: reader.pages.into_values().collect(),
            regions: rows::by_region(reader.cells.regions),
        };
        Ok(exchanged)
    }

    /// A server closes the connection if a text is too long, and its reason may be lost with the connection.
    async fn explain(&self, error: DatabaseError, bytes: usize, deadline: Instant) -> DatabaseError {
        let pool = self.primary();
        let is_lost = matches!(error.kind(), Reason::Unavailable | Reason::Other);
        let Some(statement) = pool.statements().packet_limit.filter(|_| is_lost && bytes > SHORT_BYTES)
        else {
            return error;
        };
        match retry::once(deadline, pool, Number(statement, &[])).await {
            Ok(Some(limit)) if limit < bytes as u64 => DatabaseError::new(
                Reason::Other,
                format!(
                    "a packet has {bytes} bytes, and the server accepts {limit}: raise max_allowed_packet"
                ),
            ),
            _ => error,
        }
    }
}

/// A packet beyond its bounds would hold locks for long, or be refused by SQLite.
fn check(packet: &Packet) -> Result<(), DatabaseError> {
    let bounds =
        [("rows", packet.rows.len(), MAX_PACKET_ROWS), ("cursors", packet.cursors.len(), MAX_WRITERS)];
    for (what, found, most) in bounds {
        if found > most {
            let text = format!("a packet has {found} {what}; expected {most} at most");
            return Err(DatabaseError::new(Reason::Other, text));
        }
    }
    match packet.version {
        Some(version) if !(1..=MAX_COUNT).contains(&version) => {
            let text = format!("a packet has the version {version}; expected 1 to 2^53");
            Err(DatabaseError::new(Reason::Other, text))
        }
        _ => Ok(()),
    }
}

/// The upsert of the marker and of rows in the order of the unique key. The marker is the first of that order, so packets of one
/// writer wait for each other.
fn insert_text(
    statements: &Statements,
    stamp: &Stamp,
    acknowledged: u64,
    rows: &[Publication],
    region: &[u8],
    now: UnixMs,
) -> String {
    let mut sql = String::with_capacity((rows.len() + 6) * ROW_BYTES);
    sql.push_str(statements.packet_begin);
    rows::push_marker(stamp, region, now.0.saturating_add(MARKER_TTL_MS), now.0, &mut sql);
    for row in rows {
        sql.push(',');
        rows::push_row(row, region, now.0, stamp, &mut sql);
    }
    push_statement(statements.packet_end, &[Arg::Int(acknowledged)], &mut sql);
    sql
}

/// The markers, and a page of each writer, as one statement.
fn feed_text(statements: &Statements, packet: &Packet, region: &[u8], now: UnixMs) -> String {
    let mut sql = String::with_capacity((packet.cursors.len() + 2) * PAGE_BYTES);
    let own = Arg::Int(packet.writer.number().into());
    let markers = [own, Arg::Bytes(region), own, Arg::Int(now.0), Arg::Int(MAX_WRITERS as u64)];
    push_statement(statements.packet_markers, &markers, &mut sql);
    for cursor in &packet.cursors {
        let writer = u64::from(cursor.writer.number());
        let page =
            [Arg::Int(writer), Arg::Int(cursor.version), Arg::Int(now.0), Arg::Int(MAX_FEED_ROWS as u64)];
        push_statement(statements.packet_page, &page, &mut sql);
    }
    sql
}

/// The statements of a packet in their order.
struct Exchange {
    writer: Writer,
    texts: Vec<String>,
}

impl Work for Exchange {
    type Output = Reader;

    async fn run(&mut self, connection: &mut Connection) -> Result<Reader, DatabaseError> {
        let mut reader = Reader::new(self.writer);
        if connection.statements().packet_is_one_text {
            connection.each_text(self.texts.join(";"), &mut |row| reader.take(row)).await?;
        } else {
            for text in &self.texts {
                connection.each_text(text.clone(), &mut |row| reader.take(row)).await?;
            }
        }
        Ok(reader)
    }
}

/// What was read so far.
struct Reader {
    /// The writer of the own marker.
    writer: Writer,
    own: OwnMarker,
    markers: Vec<Marker>,
    pages: BTreeMap<Writer, Page>,
    cells: Cells,
}

impl Reader {
    fn new(writer: Writer) -> Reader {
        Reader {
            writer,
            own: OwnMarker::default(),
            markers: Vec::new(),
            pages: BTreeMap::new(),
            cells: Cells::default(),
        }
    }

    fn take(&mut self, row: &Row<'_>) {
        if row.number(rows::DURATION) == Some(0) {
            // The statement selects one marker of the own number, the own.
            let is_own = row.number(rows::SEQUENCE) == Some(self.writer.number().into());
            match marker(row) {
                _ if is_own => self.own = own_marker(row),
                Some(marker) => self.markers.push(marker),
                None => self.cells.skip(row, "it is no marker of a writer"),
            }
            return;
        }
        // The statement selects rows by their writer and above a version, so both are numbers.
        if let (Some(writer), Some(version)) = (writer(row.number(rows::WRITER)), row.number(rows::VERSION)) {
            let page = self.pages.entry(writer).or_insert(Page { writer, rows: 0, last_version: version });
            page.rows += 1;
            page.last_version = page.last_version.max(version);
        }
        self.cells.take(row);
    }
}

/// The own marker. One that cannot be has a version that no writer has used.
fn own_marker(row: &Row<'_>) -> OwnMarker {
    let number = |column| row.number(column).unwrap_or(u64::MAX);
    OwnMarker { version: number(rows::COUNT), since: number(rows::VERSION) }
}

fn marker(row: &Row<'_>) -> Option<Marker> {
    let writer = writer(row.number(rows::SEQUENCE))?;
    Some(Marker {
        writer,
        region: row.bytes(rows::REGION)?.to_vec(),
        version: row.number(rows::COUNT).filter(|version| *version <= MAX_COUNT)?,
    })
}

/// The writer of a number; `None` if no writer has it.
fn writer(number: Option<u64>) -> Option<Writer> {
    let number = u32::try_from(number?).ok()?;
    Some(Writer::new(number)).filter(|writer| writer.number() == number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::dialect::{mysql, sqlite};
    use weir_core::model::key::{Key, KeyParts, MAX_DURATION_MS, MAX_RESOLUTION, MAX_TEXT_BYTES};
    use weir_core::replication::global::packet::Cursor;

    const REGION: [u8; crate::database::MAX_REGION_BYTES] = [0xff; crate::database::MAX_REGION_BYTES];
    /// The least that a server may be configured to accept: MariaDB's and MySQL's defaults are 16 MB and 64 MB.
    const MAX_ALLOWED_PACKET: usize = 16 << 20;

    fn largest_row() -> Publication {
        let text = [0xff; MAX_TEXT_BYTES];
        let key = Key::new(&KeyParts {
            workspace: &text,
            namespace: &text,
            identifier: &text,
            duration_ms: MAX_DURATION_MS,
            epoch: u32::MAX,
            resolution: MAX_RESOLUTION,
        });
        Publication {
            key: key.unwrap(),
            sequence: i64::MAX as u64,
            count: MAX_COUNT,
            limit: u64::MAX,
            expires: UnixMs(i64::MAX as u64),
        }
    }

    fn largest_packet() -> Packet {
        let writer = Writer::new(u32::MAX);
        Packet {
            writer,
            version: Some(MAX_COUNT),
            acknowledged: MAX_COUNT,
            rows: vec![largest_row(); MAX_PACKET_ROWS],
            cursors: vec![Cursor { writer, version: u64::MAX }; MAX_WRITERS],
        }
    }

    #[test]
    fn the_largest_packet_fits_a_servers_default_limit() {
        let packet = largest_packet();
        let stamp = Stamp { writer: packet.writer, version: MAX_COUNT };
        let now = UnixMs(i64::MAX as u64);
        for statements in [mysql::STATEMENTS, sqlite::STATEMENTS] {
            let texts = [
                insert_text(&statements, &stamp, packet.acknowledged, &packet.rows, &REGION, now),
                feed_text(&statements, &packet, &REGION, now),
            ];
            let bytes: usize = texts.iter().map(String::len).sum();
            assert!(bytes < MAX_ALLOWED_PACKET / 16, "{bytes} bytes");
            assert!(texts.iter().all(|text| !text.contains('?')), "a parameter has no value");
        }
    }

    #[test]
    fn a_packet_beyond_its_bounds_is_refused() {
        let full = largest_packet();
        assert_eq!(check(&full), Ok(()));
        assert_eq!(check(&Packet { version: None, ..full.clone() }), Ok(()));
        let mut rows = full.clone();
        rows.rows.push(largest_row());
        let mut cursors = full.clone();
        cursors.cursors.push(full.cursors[0]);
        let version = |version| Packet { version: Some(version), ..full.clone() };
        for (packet, part) in [
            (rows, "1001 rows; expected 1000"),
            (cursors, "257 cursors; expected 256"),
            (version(0), "version 0"),
            (version(MAX_COUNT + 1), "expected 1 to 2^53"),
        ] {
            let error = check(&packet).unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn numbers_of_writers() {
        assert_eq!(writer(Some(7)), Some(Writer::new(7)));
        assert_eq!(writer(Some(u64::from(u32::MAX >> 1))), Some(Writer::new(u32::MAX)));
        for none in [None, Some(0), Some(1 << 31), Some(u64::from(u32::MAX)), Some(1 << 32 | 7)] {
            assert_eq!(writer(none), None, "{none:?}");
        }
    }
}
