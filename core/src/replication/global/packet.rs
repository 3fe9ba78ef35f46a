//! A packet: one exchange with the database that regions share. It writes the rows that are due, and reads what other writers have
//! written since the last packet.
//!
//! Each aggregator process is a *writer*. It numbers its packets; rows carry the writer that last raised them and the number of its packet,
//! the *version*. One row for each writer, its *marker*, carries the number of its last packet. A reader stores for each writer a *cursor*,
//! the version up to which it has read, and reads on from there. No clock, lock or election is involved: a packet is one atomic statement,
//! a writer never has two packets in flight, and never uses a version twice.
//!
//! The marker also shows whether the table still holds what its writer has written. It is written in the statement that writes the rows, and
//! records there the first packet after a loss ([`OwnMarker::since`]): a statement of its own before the rows would miss what is lost in
//! between. It is read in the statement that reads the rows.

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
    /// The version that the own marker has at least, unless rows were lost.
    pub acknowledged: u64,
    /// The rows to raise, at most [`MAX_PACKET_ROWS`].
    pub rows: Vec<Publication>,
    /// The other writers whose rows are read, at most [`MAX_WRITERS`].
    pub cursors: Vec<Cursor>,
}

/// The marker of the process that reads it. By default there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnMarker {
    /// The number of the last packet that the table holds; 0 if there is no marker.
    pub version: u64,
    /// The number of the packet since which the table holds every packet. A packet that inserts the marker sets it to its own number, and so
    /// does one that finds a lower version than [`Packet::acknowledged`].
    pub since: u64,
}

impl OwnMarker {
    /// Whether the table holds all packets up to this marker, which was read last, and the packet `written` since. `found` is the marker that
    /// was read with the rows, after the packet was written.
    pub fn is_kept_by(self, found: OwnMarker, written: Option<u64>) -> bool {
        // Without an acknowledged packet there is nothing to lose: the first packet, or one that arrives late, may be any.
        let is_unbroken = self.version == 0 || self.since == found.since;
        is_unbroken && found.version >= written.unwrap_or(self.version)
    }
}

/// The marker of another writer.
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
    /// This process' own marker, after the packet was written.
    pub own: OwnMarker,
    /// The markers of all other writers that have not expired; at most [`MAX_WRITERS`].
    pub markers: Vec<Marker>,
    /// One for each writer with new rows.
    pub pages: Vec<Page>,
    /// The cells of all pages, by region.
    pub regions: Vec<StoredRegion>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: OwnMarker = OwnMarker { version: 9, since: 4 };

    #[test]
    fn a_marker_shows_what_the_table_has_lost() {
        let found = |version, since| OwnMarker { version, since };
        for (found, written, is_kept) in [
            (KEPT, None, true),
            (found(10, 4), Some(10), true),
            (found(12, 4), Some(12), true),   // packets 10 and 11 failed
            (found(11, 4), None, true),       // one of them was committed late
            (found(0, 0), None, false),       // wiped
            (found(0, 0), Some(10), false),   // wiped after the packet was written
            (found(10, 10), Some(10), false), // wiped before it was written
            (found(12, 11), Some(12), false), // wiped before packet 11 was, whose answer was lost
            (found(8, 4), None, false),       // set back
            (found(8, 4), Some(10), false),   // set back after the packet was written
            (KEPT, Some(10), false),
            (found(11, 4), Some(12), false), // set back, then packet 11 was committed late
        ] {
            assert_eq!(KEPT.is_kept_by(found, written), is_kept, "{found:?} {written:?}");
        }
    }

    #[test]
    fn what_was_not_acknowledged_cannot_be_lost() {
        let nothing = OwnMarker::default();
        assert!(nothing.is_kept_by(nothing, None));
        assert!(nothing.is_kept_by(OwnMarker { version: 3, since: 2 }, None), "committed late");
        assert!(nothing.is_kept_by(OwnMarker { version: 4, since: 2 }, Some(4)));
        assert!(!nothing.is_kept_by(nothing, Some(4)));
        assert!(!nothing.is_kept_by(OwnMarker { version: 3, since: 2 }, Some(4)));
    }
}
