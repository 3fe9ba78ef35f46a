//! A reader and writer of packets that applies the rules of cursors, and the table's rows with all of their columns.

use super::{NOW, Scene, WITHIN};
use sqlx::{AssertSqlSafe, Connection, SqliteConnection};
use std::collections::BTreeMap;
use std::time::Duration;
use weir_aggregator::database::{Database, DatabaseError, PacketResult};
use weir_core::model::key::Key;
use weir_core::model::time::UnixMs;
use weir_core::region::exchange::{Publication, StoredRegion};
use weir_core::replication::global::packet::{
    Cursor, MAX_FEED_ROWS, MAX_PACKET_ROWS, OwnMarker, Packet, Writer,
};

/// An aggregator that exchanges packets.
pub struct Node {
    pub database: Database,
    pub writer: Writer,
    /// The version of its last packet that wrote.
    pub version: u64,
    /// Its marker as it was read last.
    pub acknowledged: OwnMarker,
    pub cursors: BTreeMap<Writer, u64>,
    /// The components of all regions: count and limit, merged.
    pub held: BTreeMap<(Vec<u8>, Key, u64), (u64, u64)>,
    pub now: UnixMs,
}

/// What one packet brought.
#[derive(Debug, Default)]
pub struct Fed {
    /// The table was lost: all rows must be published again.
    pub lost: bool,
    /// Number of writers that the packet showed for the first time.
    pub new_writers: usize,
    /// Identifier and count of each cell, sorted.
    pub cells: Vec<(String, u64)>,
}

impl Node {
    pub fn new(database: Database, number: u32) -> Node {
        Node {
            database,
            writer: Writer::new(number),
            version: 0,
            acknowledged: OwnMarker::default(),
            cursors: BTreeMap::new(),
            held: BTreeMap::new(),
            now: NOW,
        }
    }

    /// A packet that writes nothing.
    pub fn reading(&self) -> Packet {
        let cursors =
            self.cursors.iter().map(|(writer, version)| Cursor { writer: *writer, version: *version });
        Packet {
            writer: self.writer,
            version: None,
            acknowledged: self.acknowledged.version,
            rows: Vec::new(),
            cursors: cursors.collect(),
        }
    }

    /// The next packet, with a version of its own.
    pub fn writing(&mut self, rows: &[Publication]) -> Packet {
        self.version += 1;
        Packet { version: Some(self.version), rows: rows.to_vec(), ..self.reading() }
    }

    pub async fn exchange(&self, packet: &Packet) -> Result<PacketResult, DatabaseError> {
        self.database.exchange(packet, self.now, WITHIN).await
    }

    /// Writes rows, and reads.
    pub async fn send(&mut self, rows: &[Publication]) -> Fed {
        let packet = self.writing(rows);
        let exchanged = self.exchange(&packet).await.unwrap();
        assert_eq!(exchanged.skipped, 0, "{:?}", exchanged.skipped_example);
        self.apply(&packet, exchanged)
    }

    /// Writes rows in as many packets as they need, and reads none. A packet that failed at the locks of others is sent again with
    /// another version.
    pub async fn write(&mut self, rows: &[Publication]) {
        const TRIES: usize = 10;
        for rows in rows.chunks(MAX_PACKET_ROWS) {
            let mut failures = Vec::new();
            loop {
                let packet = Packet { cursors: Vec::new(), ..self.writing(rows) };
                match self.exchange(&packet).await {
                    Ok(exchanged) => {
                        assert_eq!(exchanged.skipped, 0, "{:?}", exchanged.skipped_example);
                        break self.acknowledged = exchanged.feed.own;
                    }
                    Err(error) => failures.push(error),
                }
                let is_locked = |error: &DatabaseError| ["deadlock", "lock_wait"].contains(&error.reason());
                assert!(failures.len() < TRIES && failures.iter().all(is_locked), "{failures:?}");
            }
        }
    }

    pub async fn read(&mut self) -> Fed {
        let packet = self.reading();
        let exchanged = self.exchange(&packet).await.unwrap();
        self.apply(&packet, exchanged)
    }

    /// Reads until no writer and no row is new. Returns the cells of all packets.
    pub async fn catch_up(&mut self) -> Vec<(String, u64)> {
        let mut cells = Vec::new();
        for _ in 0..100 {
            let fed = self.read().await;
            if fed.new_writers == 0 && fed.cells.is_empty() {
                cells.sort();
                return cells;
            }
            cells.extend(fed.cells);
        }
        panic!("the feed does not end: {cells:?}");
    }

    /// Merges an answer and moves the cursors.
    pub fn apply(&mut self, packet: &Packet, exchanged: PacketResult) -> Fed {
        let PacketResult { feed, .. } = exchanged;
        let mut fed = Fed::default();
        for page in &feed.pages {
            assert!(page.writer != self.writer && (1..=MAX_FEED_ROWS).contains(&page.rows), "{page:?}");
            let marker = feed.markers.iter().find(|marker| marker.writer == page.writer);
            assert!(marker.is_none_or(|marker| page.last_version <= marker.version), "{page:?} {marker:?}");
        }
        if !self.acknowledged.is_kept_by(feed.own, packet.version) {
            fed.lost = true;
            self.cursors.values_mut().for_each(|version| *version = 0);
        }
        self.acknowledged = feed.own;
        for marker in &feed.markers {
            assert!(marker.writer != self.writer, "{marker:?}");
            let asked = packet.cursors.iter().any(|cursor| cursor.writer == marker.writer);
            fed.new_writers += usize::from(!self.cursors.contains_key(&marker.writer));
            let cursor = self.cursors.entry(marker.writer).or_default();
            let page = feed.pages.iter().find(|page| page.writer == marker.writer);
            match page {
                _ if fed.lost || !asked => {}
                Some(page) if page.rows == MAX_FEED_ROWS => *cursor = page.last_version - 1,
                _ => *cursor = marker.version,
            }
        }
        fed.cells = self.merge(feed.regions);
        fed
    }

    /// Merges components by maximum. Returns identifier and count of each, sorted.
    pub fn merge(&mut self, regions: Vec<StoredRegion>) -> Vec<(String, u64)> {
        let mut cells = Vec::new();
        for StoredRegion { region, cells: stored } in regions {
            for cell in stored {
                let identifier = cell.key.parts().identifier.escape_ascii().to_string();
                cells.push((identifier, cell.count));
                let place = (region.clone(), cell.key, cell.sequence);
                let held = self.held.entry(place).or_insert((0, u64::MAX));
                *held = (held.0.max(cell.count), held.1.min(cell.limit));
            }
        }
        cells.sort();
        cells
    }

    /// The count that this node has read of a cell of a region.
    pub fn count(&self, region: &str, identifier: &str) -> u64 {
        let of = |((of, key, _), (count, _)): (&(Vec<u8>, Key, u64), &(u64, u64))| {
            (of == region.as_bytes() && key.parts().identifier == identifier.as_bytes()).then_some(*count)
        };
        self.held.iter().find_map(of).unwrap_or(0)
    }
}

/// Some call to the primary: a packet that writes nothing and reads the markers.
pub async fn look(database: &Database, within: Duration) -> Result<PacketResult, DatabaseError> {
    let packet = Node::new(database.clone(), 1).reading();
    database.exchange(&packet, NOW, within).await
}

/// Identifiers and counts as [`Fed::cells`] has them.
pub fn fed(cells: &[(&str, u64)]) -> Vec<(String, u64)> {
    cells.iter().map(|(identifier, count)| ((*identifier).to_owned(), *count)).collect()
}

/// A row of the table that is no marker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub identifier: String,
    pub count: i64,
    pub expires_at: i64,
    pub updated_at: i64,
    pub lowest_limit: i64,
    pub writer: i64,
    pub version: i64,
}

/// All rows that are no markers, by identifier and region.
pub async fn lines(scene: &Scene) -> Vec<Line> {
    type Columns = (Vec<u8>, i64, i64, i64, i64, i64, i64);
    let kind = if scene.is_mysql() { "SIGNED" } else { "INTEGER" };
    let numbers = ["count", "expires_at", "updated_at", "lowest_limit", "writer", "version"];
    let numbers = numbers.map(|name| format!("CAST({name} AS {kind})")).join(", ");
    let sql = AssertSqlSafe(format!(
        "SELECT identifier, {numbers} FROM ratelimit_window_counts WHERE duration_ms > 0 ORDER BY identifier, region"
    ));
    let rows: Vec<Columns> = if scene.is_mysql() {
        sqlx::query_as(sql).fetch_all(&mut scene.mysql().await).await.unwrap()
    } else {
        let mut connection = SqliteConnection::connect(&scene.url).await.unwrap();
        sqlx::query_as(sql).fetch_all(&mut connection).await.unwrap()
    };
    let line = |(identifier, count, expires_at, updated_at, lowest_limit, writer, version): Columns| Line {
        identifier: identifier.escape_ascii().to_string(),
        count,
        expires_at,
        updated_at,
        lowest_limit,
        writer,
        version,
    };
    rows.into_iter().map(line).collect()
}
