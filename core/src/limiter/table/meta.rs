//! The table's birth: made once for each shared data, before workers serve.
//!
//! The origin id is that of the table, not of a worker or a VM: as long as the table lives its counts go on, and when
//! Envoy erases it (the last VM has gone) what comes after is a new origin.

use super::{Bucket, Geometry, MAX_KEYS_PER_BUCKET};
use crate::model::key::{HashKey, OriginId};
use crate::model::shared::{Place, Shared};
use alloc::vec::Vec;

const LAYOUT: u8 = 1;
const LENGTH: usize = 1 + 16 + 16 + 4 + 1;

/// What a table is made with; later configurations take what they find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Who reports what is in the table.
    pub origin: OriginId,
    /// Places keys in buckets.
    pub secret: HashKey,
    /// How it is cut.
    pub geometry: Geometry,
}

impl Meta {
    /// The table's meta data; makes the table after `proposal` if there is none. Call it where no other worker runs
    /// yet: two creators at once could lose each other's writes.
    pub fn establish(shared: &mut impl Shared, proposal: Meta) -> Meta {
        let mut bytes = Vec::new();
        establish_controls(shared, &mut bytes);
        let version = shared.load(Place::Meta, &mut bytes);
        if let Some(meta) = Meta::decode(&bytes) {
            return meta;
        }
        let mut empty = Bucket::default();
        empty.check();
        let places = (0..proposal.geometry.buckets).map(Place::Bucket).chain([Place::Overflow]);
        for place in places {
            let version = shared.load(place, &mut bytes);
            shared.store(place, empty.bytes(), version);
        }
        let version_of_registry = shared.load(Place::WorkerRegistry, &mut bytes);
        shared.store(Place::WorkerRegistry, &[], version_of_registry);
        shared.store(Place::Meta, &proposal.encode(), version);
        proposal
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(LENGTH);
        bytes.push(LAYOUT);
        bytes.extend_from_slice(&self.origin.0);
        bytes.extend_from_slice(&self.secret.0.to_le_bytes());
        bytes.extend_from_slice(&self.secret.1.to_le_bytes());
        bytes.extend_from_slice(&self.geometry.buckets.to_le_bytes());
        bytes.push(self.geometry.keys_per_bucket);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Meta> {
        let (&LAYOUT, rest) = bytes.split_first()? else { return None };
        let (origin, rest) = rest.split_first_chunk::<16>()?;
        let (first, rest) = rest.split_first_chunk::<8>()?;
        let (second, rest) = rest.split_first_chunk::<8>()?;
        let (buckets, rest) = rest.split_first_chunk::<4>()?;
        let (&keys_per_bucket, []) = rest.split_first()? else { return None };
        let buckets = u32::from_le_bytes(*buckets);
        let sound = buckets > 0 && (1..=MAX_KEYS_PER_BUCKET).contains(&keys_per_bucket);
        sound.then_some(Meta {
            origin: OriginId(*origin),
            secret: HashKey(u64::from_le_bytes(*first), u64::from_le_bytes(*second)),
            geometry: Geometry { buckets, keys_per_bucket },
        })
    }
}

/// The places of live control, which a table may lack that an earlier version made.
fn establish_controls(shared: &mut impl Shared, bytes: &mut Vec<u8>) {
    for place in [Place::Controls, Place::ControlSet, Place::Bans] {
        if shared.load(place, bytes).is_none() {
            shared.store(place, &[], None);
        }
    }
}
