//! A table in plain memory, for a limiter outside of Envoy.
//!
//! It is an array of buckets, so that a load is an index and a copy. It is bounded as in Envoy, by its [`Geometry`] and the bounds of an
//! entry. To share it among threads, put it behind a lock.

use super::Geometry;
use crate::model::shared::{Place, Shared, Version};
use alloc::vec::Vec;

/// [`Shared`] as an array.
#[derive(Clone, Debug)]
pub struct ArrayShared {
    meta: Bucket,
    registry: Bucket,
    overflow: Bucket,
    controls: Bucket,
    control_set: Bucket,
    bans: Bucket,
    buckets: Vec<Bucket>,
}

/// The bytes at one place; version 0: none were stored yet.
#[derive(Clone, Debug, Default)]
struct Bucket {
    bytes: Vec<u8>,
    version: u32,
}

impl ArrayShared {
    /// Storage for a table of `geometry`; [`super::Meta::establish`] makes the table in it.
    pub fn new(geometry: Geometry) -> ArrayShared {
        let buckets = usize::try_from(geometry.buckets).unwrap_or(usize::MAX);
        ArrayShared {
            meta: Bucket::default(),
            registry: Bucket::default(),
            overflow: Bucket::default(),
            controls: Bucket::default(),
            control_set: Bucket::default(),
            bans: Bucket::default(),
            buckets: alloc::vec![Bucket::default(); buckets],
        }
    }

    /// Bytes that the table uses now.
    pub fn held_bytes(&self) -> usize {
        let table = [&self.meta, &self.registry, &self.overflow].into_iter();
        let controls = [&self.controls, &self.control_set, &self.bans];
        table.chain(controls).chain(&self.buckets).map(|held| held.bytes.capacity()).sum()
    }

    /// The bytes at a place, without the right to change them; empty if none were stored.
    pub fn bytes(&self, place: Place) -> &[u8] {
        let held = match place {
            Place::Meta => Some(&self.meta),
            Place::WorkerRegistry => Some(&self.registry),
            Place::Overflow => Some(&self.overflow),
            Place::Controls => Some(&self.controls),
            Place::ControlSet => Some(&self.control_set),
            Place::Bans => Some(&self.bans),
            Place::Bucket(number) => usize::try_from(number).ok().and_then(|number| self.buckets.get(number)),
        };
        held.map_or(&[], |held| &held.bytes)
    }

    fn place(&mut self, place: Place) -> Option<&mut Bucket> {
        match place {
            Place::Meta => Some(&mut self.meta),
            Place::WorkerRegistry => Some(&mut self.registry),
            Place::Overflow => Some(&mut self.overflow),
            Place::Controls => Some(&mut self.controls),
            Place::ControlSet => Some(&mut self.control_set),
            Place::Bans => Some(&mut self.bans),
            Place::Bucket(number) => self.buckets.get_mut(usize::try_from(number).ok()?),
        }
    }
}

impl Shared for ArrayShared {
    fn load(&mut self, place: Place, into: &mut Vec<u8>) -> Option<Version> {
        into.clear();
        let held = self.place(place).filter(|held| held.version > 0)?;
        into.extend_from_slice(&held.bytes);
        Some(Version(held.version))
    }

    fn store(&mut self, place: Place, bytes: &[u8], version: Option<Version>) -> bool {
        let expected = version.map_or(0, |version| version.0);
        let Some(held) = self.place(place).filter(|held| held.version == expected) else { return false };
        held.bytes.clear();
        held.bytes.extend_from_slice(bytes);
        held.version = held.version.wrapping_add(1).max(1);
        true
    }
}
