//! The limiter's shared storage in Envoy's shared data.
//!
//! Shared data belongs to a `vm_id`, outlives a VM and its configuration, and is deleted with the last VM. Its compare-and-set is exact
//! for keys that exist, so all keys are made before workers serve (`Meta::establish`).

use super::calls;
use weir_core::model::shared::{Place, Shared, Version};

/// Envoy's shared data.
#[derive(Clone, Copy, Debug, Default)]
pub struct EnvoyShared;

impl Shared for EnvoyShared {
    fn load(&mut self, place: Place, into: &mut Vec<u8>) -> Option<Version> {
        let (key, length) = key(place);
        calls::shared_get(key.get(..length).unwrap_or_default(), into).map(Version)
    }

    fn store(&mut self, place: Place, bytes: &[u8], version: Option<Version>) -> bool {
        let (key, length) = key(place);
        calls::shared_set(
            key.get(..length).unwrap_or_default(),
            bytes,
            version.map_or(0, |version| version.0),
        )
    }
}

/// The key of a place; it is short, as it is hashed at each access.
fn key(place: Place) -> ([u8; 8], usize) {
    match place {
        Place::Meta => (*b"weir.met", 8),
        Place::WorkerRegistry => (*b"weir.reg", 8),
        Place::Overflow => (*b"weir.ovf", 8),
        Place::Controls => (*b"weir.ctl", 8),
        Place::ControlSet => (*b"weir.set", 8),
        Place::Bans => (*b"weir.ban", 8),
        Place::Bucket(index) => {
            let [a, b, c, d] = index.to_le_bytes();
            ([b'w', b'b', a, b, c, d, 0, 0], 6)
        }
    }
}
