//! A packet: one exchange with the database that regions share. It writes the rows that are due, and reads what other writers have
//! written since the last packet.
//!
//! Each aggregator process is a *writer*. It numbers its packets; rows carry the writer that last raised them and the number of its packet,
//! the *version*. One row for each writer, its *marker*, carries the number of its last packet. A reader stores for each writer a *cursor*,
//! the version up to which it has read, and reads on from there. No clock, lock or election is involved: a packet is one atomic statement,
//! a writer never has two packets in flight, and never uses a version twice.

use crate::region::exchange::{Publication, StoredRegion};
use alloc::vec::Vec;

/// Most rows that a packet writes. The server holds locks on them until it has written all.
pub const MAX_PACKET_ROWS: usize = 1_000;
/// Most rows that a packet reads of one writer. More than [`MAX_PACKET_ROWS`], so that the rows of one version fit.
pub const MAX_FEED_ROWS: usize = 2_000;
/// Most writers whose rows are read.
pub const MAX_WRITERS: usize = 256;

/// Identifies an aggregator process in the database: random, 1 to 2³¹ − 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Writer(u32);

impl Writer {
    /// The writer of this number; 0 and the highest bit are changed.
    pub const fn new(number: u32) -> Writer {
        let number = number & (u32::MAX >> 1);
        Writer(if number == 0 { 1 } else { number })
    }

    /// Its number.
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// How far a writer's rows were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The writer.
    pub writer: Writer,
    /// Rows of this and lower versions were read; 0: none.
    pub version: u64,
}

/// What a packet writes and reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// This process.
    pub writer: Writer,
    /// The number of the packet, which is written to the marker and the rows. `None`: nothing is written.
    pub version: Option<u64>,
    /// The rows to raise, at most [`MAX_PACKET_ROWS`].
    pub rows: Vec<Publication>,
    /// The other writers whose rows are read, at most [`MAX_WRITERS`].
    pub cursors: Vec<Cursor>,
}

/// A writer's marker row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    /// The writer.
    pub writer: Writer,
    /// Its region's name.
    pub region: Vec<u8>,
    /// The number of its last packet.
    pub version: u64,
}

/// What was read of one writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// The writer.
    pub writer: Writer,
    /// Number of rows, also of those that are no valid cells; at most [`MAX_FEED_ROWS`].
    pub rows: usize,
    /// The highest version of these rows.
    pub last_version: u64,
}

/// What a packet has read. Markers, pages and cells are of one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Feed {
    /// The version of this process' own marker before the packet; `None` if there was no such row.
    pub own: Option<u64>,
    /// The markers of all writers that have not expired, after the packet was written; at most [`MAX_WRITERS`].
    pub markers: Vec<Marker>,
    /// One for each writer with new rows.
    pub pages: Vec<Page>,
    /// The cells of all pages, by region.
    pub regions: Vec<StoredRegion>,
}
