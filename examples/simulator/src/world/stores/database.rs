//! The database: one row for each region and cell, which keeps the maximum of the written counts, and a marker for each writer.

use crate::world::request::{Reply, Request};
use std::collections::BTreeMap;
use weir_core::model::key::Key;
use weir_core::model::time::UnixMs;
use weir_core::region::exchange::{Page as TablePage, PageEnd, Stored, StoredRegion};
use weir_core::replication::global::lease::{Holder, TTL_MS};
use weir_core::replication::global::packet::{
    Cursor, Feed, MAX_FEED_ROWS, Marker, OwnMarker, Packet, Page, Writer,
};
use weir_core::replication::global::paging::ReadPage;

/// Interval of the cleanup, in milliseconds.
const SWEEP_MS: u64 = 10_000;
/// How long a marker is valid, in milliseconds.
const MARKER_MS: u64 = 3_600_000;

/// A region's row of a cell.
#[derive(Clone, Copy, Debug)]
struct Row {
    /// Its number, in the order in which rows were inserted.
    number: u64,
    count: u64,
    limit: u64,
    /// The Unix time at which it expires, in milliseconds.
    expires_ms: u64,
    /// The writer that last raised it, and the number of that writer's packet.
    writer: Writer,
    version: u64,
}

/// A writer's marker.
#[derive(Clone, Copy, Debug)]
struct Written {
    region: usize,
    /// The number of its last packet.
    version: u64,
    /// The number of the packet since which no packet was lost.
    since: u64,
    expires_ms: u64,
}

/// The database server.
#[derive(Clone, Debug, Default)]
pub struct Database {
    /// By cell and region.
    rows: BTreeMap<(Key, u64), BTreeMap<usize, Row>>,
    markers: BTreeMap<Writer, Written>,
    leases: BTreeMap<usize, ([u8; 16], u64)>,
    /// The number of the next row.
    next_number: u64,
    swept_ms: u64,
}

impl Database {
    /// Executes a request of a region at the server's time.
    pub fn execute(&mut self, region: usize, request: Request, now_ms: u64) -> Reply {
        self.sweep(now_ms);
        match request {
            Request::Feed(packet) => Reply::Fed(Ok(self.feed(packet, now_ms))),
            Request::Import(page) => Reply::Page(Ok(self.page(&page, |by| by != region, now_ms))),
            Request::Own(page) => Reply::Page(Ok(self.page(&page, |by| by == region, now_ms))),
            Request::Lease(id, abandoned) => {
                let is_valid = |until: u64| until > now_ms && Some(until) != abandoned;
                let held = self.leases.get(&region).filter(|(by, until)| *by != id && is_valid(*until));
                let holder = held.map_or(Holder::Mine, |(_, until)| Holder::Another { expires_at: *until });
                if holder == Holder::Mine {
                    self.leases.insert(region, (id, now_ms + TTL_MS));
                }
                Reply::Holder(Ok(holder))
            }
            Request::Release(id) => {
                if self.leases.get(&region).is_some_and(|(by, _)| *by == id) {
                    self.leases.remove(&region);
                }
                Reply::Done(Ok(()))
            }
            // Other requests are for Redis.
            _ => Reply::Done(Ok(())),
        }
    }

    /// Loses all data.
    pub fn wipe(&mut self) {
        *self = Database { swept_ms: self.swept_ms, ..Database::default() };
    }

    /// Replaces rows and markers by those of a dump. Leases stay: they name processes that run.
    pub fn restore(&mut self, dump: Database) {
        (self.rows, self.markers) = (dump.rows, dump.markers);
    }

    /// The count in the row of a region; 0 if there is none.
    pub fn count(&self, region: usize, key: &Key, sequence: u64) -> u64 {
        let row = self.rows.get(&(key.clone(), sequence)).and_then(|regions| regions.get(&region));
        row.map_or(0, |row| row.count)
    }

    /// Raises a packet's marker and rows, in one transaction.
    pub fn write(&mut self, region: usize, packet: &Packet, now_ms: u64) {
        let Some(version) = packet.version else { return };
        let expires_ms = now_ms + MARKER_MS;
        let new = Written { region, version, since: version, expires_ms };
        let marker = self.markers.entry(packet.writer).or_insert(new);
        if marker.version < packet.acknowledged {
            marker.since = version;
        }
        marker.version = marker.version.max(version);
        marker.expires_ms = expires_ms;
        for row in &packet.rows {
            self.next_number += 1;
            let new = Row {
                number: self.next_number,
                count: row.count,
                limit: row.limit,
                expires_ms: row.expires.0,
                writer: packet.writer,
                version,
            };
            let held =
                self.rows.entry((row.key.clone(), row.sequence)).or_default().entry(region).or_insert(new);
            let grows = new.count > held.count || new.limit < held.limit;
            let repeats = new.count == held.count && new.writer == held.writer && new.version > held.version;
            if grows || repeats {
                (held.writer, held.version) = (new.writer, new.version);
            }
            held.count = held.count.max(new.count);
            held.limit = held.limit.min(new.limit);
            held.expires_ms = held.expires_ms.max(new.expires_ms);
        }
    }

    /// The feed of a packet, of one moment.
    fn feed(&self, packet: Packet, now_ms: u64) -> Feed {
        let own = self.markers.get(&packet.writer);
        let own = own.map(|written| OwnMarker { version: written.version, since: written.since });
        let mut feed = Feed { own: own.unwrap_or_default(), ..Feed::default() };
        let others = self.markers.iter().filter(|(writer, _)| **writer != packet.writer);
        let live = others.filter(|(_, written)| written.expires_ms > now_ms);
        feed.markers = live
            .map(|(writer, written)| Marker {
                writer: *writer,
                region: name(written.region),
                version: written.version,
            })
            .collect();
        let mut regions: BTreeMap<usize, Vec<Stored>> = BTreeMap::new();
        for Cursor { writer, version } in packet.cursors {
            let new = self.live(now_ms).filter(|(_, _, row)| row.writer == writer && row.version > version);
            let mut new: Vec<(u64, usize, Stored)> =
                new.map(|(by, stored, row)| (row.version, by, stored)).collect();
            new.sort_by_key(|(version, _, _)| *version);
            new.truncate(MAX_FEED_ROWS);
            let Some((last_version, _, _)) = new.last() else { continue };
            feed.pages.push(Page { writer, rows: new.len(), last_version: *last_version });
            new.into_iter().for_each(|(_, by, stored)| regions.entry(by).or_default().push(stored));
        }
        let named = |(by, cells): (usize, _)| StoredRegion { region: name(by), cells };
        feed.regions = regions.into_iter().map(named).collect();
        feed
    }

    /// A part of all rows, in the order of their places; those of the regions that are not wanted are left out.
    fn page(&self, page: &ReadPage, wants: impl Fn(usize) -> bool, now_ms: u64) -> TablePage {
        let place = |row: &Row| PageEnd { expires: UnixMs(row.expires_ms), row: row.number };
        let after = self.live(now_ms).map(|(by, stored, row)| (place(row), by, stored));
        let mut rows: Vec<_> = after.filter(|(place, _, _)| *place > page.after).collect();
        rows.sort_by_key(|(place, _, _)| *place);
        rows.truncate(page.rows);
        let end = rows.last().map(|(place, _, _)| *place).filter(|_| rows.len() == page.rows);
        let mut regions: BTreeMap<usize, Vec<Stored>> = BTreeMap::new();
        for (_, by, stored) in rows.into_iter().filter(|(_, by, _)| wants(*by)) {
            regions.entry(by).or_default().push(stored);
        }
        let named = |(by, cells): (usize, _)| StoredRegion { region: name(by), cells };
        TablePage { regions: regions.into_iter().map(named).collect(), end }
    }

    /// The rows that have not expired, each with its region.
    fn live(&self, now_ms: u64) -> impl Iterator<Item = (usize, Stored, &Row)> {
        self.rows.iter().flat_map(move |((key, sequence), regions)| {
            let live = regions.iter().filter(move |(_, row)| row.expires_ms > now_ms);
            live.map(|(by, row)| {
                let (key, sequence) = (key.clone(), *sequence);
                (*by, Stored { key, sequence, count: row.count, limit: row.limit }, row)
            })
        })
    }

    fn sweep(&mut self, now_ms: u64) {
        if now_ms.saturating_sub(self.swept_ms) < SWEEP_MS {
            return;
        }
        self.swept_ms = now_ms;
        self.rows.retain(|_, regions| regions.values().any(|row| row.expires_ms > now_ms));
        self.markers.retain(|_, written| written.expires_ms > now_ms);
    }
}

/// The name of a region.
pub fn name(region: usize) -> Vec<u8> {
    region.to_string().into_bytes()
}
