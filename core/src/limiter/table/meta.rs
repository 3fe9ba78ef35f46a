//! The table's meta data, made once for each shared data, before workers serve.
//!
//! The node id belongs to the table, not to a worker or VM. The table's counts continue as long as it exists. After Envoy has erased
//! it with the last VM, a new table is a new node.

use super::{Bucket, Geometry, MAX_KEYS_PER_BUCKET};
use crate::model::key::{HashKey, NodeId};
use crate::model::shared::{Place, Shared};
use alloc::vec::Vec;

const LAYOUT: u8 = 1;
const LENGTH: usize = 1 + 16 + 16 + 4 + 1;

/// Parameters of a table; later configurations use those of the existing table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// The node that reports the table's counts.
    pub node: NodeId,
    /// Key of the hash that places keys in buckets.
    pub secret: HashKey,
    /// Its size.
    pub geometry: Geometry,
}

impl Meta {
    /// Returns the table's meta data; makes the table by `proposal` if there is none. Call it while no other worker runs, as two concurrent
    /// creators could overwrite each other.
    pub fn establish(shared: &mut impl Shared, proposal: Meta) -> Meta {
        let mut bytes = Vec::new();
        let version = shared.load(Place::Meta, &mut bytes);
        if let Some(meta) = Meta::decode(&bytes) {
            return meta;
        }
        establish_controls(shared, &mut bytes);
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
        bytes.extend_from_slice(&self.node.0);
        bytes.extend_from_slice(&self.secret.0.to_le_bytes());
        bytes.extend_from_slice(&self.secret.1.to_le_bytes());
        bytes.extend_from_slice(&self.geometry.buckets.to_le_bytes());
        bytes.push(self.geometry.keys_per_bucket);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Meta> {
        let (&LAYOUT, rest) = bytes.split_first()? else { return None };
        let (node, rest) = rest.split_first_chunk::<16>()?;
        let (first, rest) = rest.split_first_chunk::<8>()?;
        let (second, rest) = rest.split_first_chunk::<8>()?;
        let (buckets, rest) = rest.split_first_chunk::<4>()?;
        let (&keys_per_bucket, []) = rest.split_first()? else { return None };
        let buckets = u32::from_le_bytes(*buckets);
        let sound = buckets > 0 && (1..=MAX_KEYS_PER_BUCKET).contains(&keys_per_bucket);
        sound.then_some(Meta {
            node: NodeId(*node),
            secret: HashKey(u64::from_le_bytes(*first), u64::from_le_bytes(*second)),
            geometry: Geometry { buckets, keys_per_bucket },
        })
    }
}

/// Makes the places of live control, unless a table of another layout has them.
fn establish_controls(shared: &mut impl Shared, bytes: &mut Vec<u8>) {
    for place in [Place::Controls, Place::ControlSet, Place::Bans] {
        if shared.load(place, bytes).is_none() {
            shared.store(place, &[], None);
        }
    }
}
