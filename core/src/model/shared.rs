//! The interface of a process' shared data: byte strings that all its workers read and replace.

use alloc::vec::Vec;

/// A place in the shared data of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Node, hash key and geometry; written once.
    Meta,
    /// The worker registry.
    WorkerRegistry,
    /// The overflow cells, for keys whose bucket is full of unreported counts.
    Overflow,
    /// Serials that change with the two below; see [`crate::control::Keeper`].
    Controls,
    /// Live controls.
    ControlSet,
    /// Bans that rules of this process made.
    Bans,
    /// Part of the table.
    Bucket(u32),
}

/// The version of a place's bytes, for compare-and-set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version(pub u32);

/// Byte strings that all workers of a process share.
pub trait Shared {
    /// Replaces `into` by the bytes at `place`; `None` (and an empty `into`) if none were stored yet.
    fn load(&mut self, place: Place, into: &mut Vec<u8>) -> Option<Version>;

    /// Stores `bytes` if `place` still has `version`; with `None`, if it does not exist yet, which some implementations cannot check. False
    /// if another worker has changed it.
    fn store(&mut self, place: Place, bytes: &[u8], version: Option<Version>) -> bool;
}

/// In-memory [`Shared`], for simulations, benchmarks and tests.
#[derive(Clone, Debug, Default)]
pub struct MemoryShared {
    places: alloc::collections::BTreeMap<Place, (Vec<u8>, u32)>,
}

impl Shared for MemoryShared {
    fn load(&mut self, place: Place, into: &mut Vec<u8>) -> Option<Version> {
        into.clear();
        let (bytes, version) = self.places.get(&place)?;
        into.extend_from_slice(bytes);
        Some(Version(*version))
    }

    fn store(&mut self, place: Place, bytes: &[u8], version: Option<Version>) -> bool {
        match (self.places.get_mut(&place), version) {
            (None, _) => {
                self.places.insert(place, (bytes.to_vec(), 1));
                true
            }
            (Some((held, current)), Some(Version(expected))) if *current == expected => {
                held.clear();
                held.extend_from_slice(bytes);
                *current = current.wrapping_add(1);
                true
            }
            _ => false,
        }
    }
}
