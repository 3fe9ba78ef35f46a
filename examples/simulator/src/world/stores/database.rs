//! The database: one row for each region and cell, which keeps the maximum of the written counts.

use crate::world::request::{Reply, Request};
use std::collections::BTreeMap;
use weir_core::model::key::Key;
use weir_core::region::exchange::{Stored, StoredRegion};
use weir_core::replication::globe::lease::{Holder, TTL_MS};

/// Interval of the cleanup, in milliseconds.
const SWEEP_MS: u64 = 10_000;

/// For each region: its count, and the Unix time at which the count expires, in milliseconds.
type Counts = BTreeMap<usize, (u64, u64)>;

/// The database server.
#[derive(Clone, Debug)]
pub struct Database {
    /// The counts of each cell.
    pub rows: BTreeMap<(Key, u64), Counts>,
    leases: BTreeMap<usize, ([u8; 16], u64)>,
    incarnation: u64,
    swept_ms: u64,
}

impl Database {
    /// An empty table with this incarnation.
    pub fn new(incarnation: u64) -> Database {
        Database { rows: BTreeMap::new(), leases: BTreeMap::new(), incarnation, swept_ms: 0 }
    }

    /// Executes a request of a region at the server's time.
    pub fn execute(&mut self, region: usize, request: Request, now_ms: u64) -> Reply {
        self.sweep(now_ms);
        match request {
            Request::TableIncarnation => Reply::TableIncarnation(Ok(self.incarnation)),
            Request::Write(rows) => {
                for row in rows {
                    let cell = self.rows.entry((row.key, row.sequence)).or_default();
                    let (count, expires_ms) = cell.entry(region).or_default();
                    *count = row.count.max(*count);
                    *expires_ms = row.expires.0.max(*expires_ms);
                }
                Reply::Done(Ok(()))
            }
            Request::Import => Reply::Imported(Ok(self.others(region, now_ms))),
            Request::Own => Reply::Own(Ok(self
                .live(now_ms)
                .filter(|(by, _)| *by == region)
                .map(|(_, row)| row)
                .collect())),
            Request::Lease(id) => {
                let held = self.leases.get(&region).filter(|(by, until)| *by != id && *until > now_ms);
                let holder = if held.is_some() { Holder::Another } else { Holder::Mine };
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

    /// Loses all data; the table gets another incarnation.
    pub fn wipe(&mut self, incarnation: u64) {
        *self = Database { swept_ms: self.swept_ms, ..Database::new(incarnation) };
    }

    /// The rows of all regions but one.
    fn others(&self, region: usize, now_ms: u64) -> Vec<StoredRegion> {
        let mut regions: BTreeMap<usize, Vec<Stored>> = BTreeMap::new();
        for (by, row) in self.live(now_ms).filter(|(by, _)| *by != region) {
            regions.entry(by).or_default().push(row);
        }
        let named = |(by, cells): (usize, _)| StoredRegion { region: by.to_string().into_bytes(), cells };
        regions.into_iter().map(named).collect()
    }

    /// The rows that have not expired, each with its region.
    fn live(&self, now_ms: u64) -> impl Iterator<Item = (usize, Stored)> {
        self.rows.iter().flat_map(move |((key, sequence), regions)| {
            let live = regions.iter().filter(move |(_, (_, expires_ms))| *expires_ms > now_ms);
            live.map(|(by, (count, _))| {
                (*by, Stored { key: key.clone(), sequence: *sequence, count: *count, limit: u64::MAX })
            })
        })
    }

    fn sweep(&mut self, now_ms: u64) {
        if now_ms.saturating_sub(self.swept_ms) < SWEEP_MS {
            return;
        }
        self.swept_ms = now_ms;
        self.rows.retain(|_, regions| regions.values().any(|(_, expires_ms)| *expires_ms > now_ms));
    }
}
