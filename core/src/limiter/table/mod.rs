//! What one Envoy process knows of its keys, as bytes that all its workers share.
//!
//! Envoy gives the workers of a process one thing in common: shared data, a map of byte strings with compare-and-set
//! in which a key can never be deleted and a creation can be lost. So the table has a fixed number of buckets, made
//! once, each holding a few keys with the cells that their windows touch. Whoever wants to change an entry loads its
//! bucket, changes the bytes and stores them if nobody else has in between: exact however many workers there are.
//!
//! An entry keeps apart what is *spent* (`own`, only ever grows, the only value that is reported) and what is
//! *reserved* (leases of workers, requests over several cells in the midst of their decision, consults under way).
//! Reservations carry their owner and an expiry; one whose owner died counts as spent.
//!
//! Leaves to others: what is decided on an entry (`limiter`), and where the bytes live ([`Shared`](crate::model::shared::Shared)).

mod array;
mod bucket;
mod entry;
mod meta;

use crate::model::shared::Place;

pub use array::ArrayShared;
pub use bucket::{Bucket, Found, Left, NoRoom};
pub use entry::{Cell, Entry, Reservation, ReservationKind, Tag, tolerated_ms};
pub use meta::Meta;

/// Most keys that one bucket may be configured to hold.
pub const MAX_KEYS_PER_BUCKET: u8 = 32;

/// How a table is cut.
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
    /// The table that holds `keys`, 8 in a bucket; rounded up to a whole bucket.
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
