//! The table of one process: the counts of its keys, as bytes that all its workers share.
//!
//! The workers of an Envoy share one thing: shared data, a map of byte strings with compare-and-set, in which a key cannot be deleted and
//! a creation can be lost. So the table has a fixed number of buckets, made once, each with a few keys and the cells of their windows. To
//! change an entry, a worker loads its bucket, changes the bytes and stores them if no other worker has changed them in between. This is
//! exact for any number of workers.
//!
//! An entry separates what is *spent* (`own`: it only grows, and only it is reported) from what is *reserved* (leases, requests over
//! several cells that are being decided, queries under way, deferred costs). A reservation has an owner and an expiry; if the owner
//! dies, it counts as spent.

mod array;
mod bucket;
mod diverted;
mod entry;
mod meta;

use crate::model::shared::Place;

pub use array::ArrayShared;
pub use bucket::{Bucket, Found, NoRoom, Removals};
pub use diverted::{Change, Diverted, DivertedKeys, MAX_DIVERTED};
pub use entry::{Cell, Entry, Reservation, ReservationKind, Tag, tolerated_ms};
pub use meta::Meta;

/// Most keys that one bucket may be configured to hold.
pub const MAX_KEYS_PER_BUCKET: u8 = 32;

/// The size of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Number of buckets; at least 1.
    pub buckets: u32,
    /// Keys that one bucket holds at most; 1 to [`MAX_KEYS_PER_BUCKET`].
    pub keys_per_bucket: u8,
}

impl Default for Geometry {
    fn default() -> Self {
        Geometry { buckets: 32_768, keys_per_bucket: 8 }
    }
}

impl Geometry {
    /// The size for `keys`, 8 in a bucket; rounded up to a whole bucket.
    pub fn of_keys(keys: u32) -> Geometry {
        let Geometry { keys_per_bucket, .. } = Geometry::default();
        Geometry { buckets: keys.div_ceil(keys_per_bucket.into()).max(1), keys_per_bucket }
    }

    /// The bucket of a fingerprint: its upper bits scaled to the number of buckets.
    pub fn place(&self, fingerprint: u64) -> Place {
        let scaled = u128::from(fingerprint).wrapping_mul(u128::from(self.buckets)) >> 64;
        Place::Bucket(u32::try_from(scaled).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests;
