//! The keys of a region: found by key or by identifier, bounded in number, forgotten when no window touches them.
//!
//! Leaves to others: what is in a key (`cells`), who is told (`subscribers`).

use super::Refused;
use super::cells::KeyState;
use crate::key::{Key, KeyParts};
use crate::time::UnixMs;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::hash::BuildHasher;
use hashbrown::HashMap;
use siphasher::sip::SipHasher13;

/// How many (workspace, namespace, window) are remembered, so that an identifier can be found without its window.
/// A configuration has a few; a hostile peer could invent more.
const MAX_SHAPES: usize = 4_096;

#[derive(Debug)]
pub(super) struct Keys {
    max: usize,
    states: HashMap<Key, KeyState, KeyHasher>,
    /// When to look at a key again, in seconds since the epoch; each key stands here once.
    expiry: BTreeMap<u64, Vec<Key>>,
    shapes: BTreeSet<Shape>,
}

/// How a (workspace, namespace) cuts time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Shape {
    workspace: Vec<u8>,
    namespace: Vec<u8>,
    duration_ms: u64,
    epoch: u32,
    resolution: u16,
}

/// Hashes keys with a secret, so that nobody outside can choose colliding ones.
#[derive(Clone, Copy, Debug)]
struct KeyHasher(u64, u64);

impl BuildHasher for KeyHasher {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.0, self.1)
    }
}

impl Keys {
    pub(super) fn new(max: usize, secret: (u64, u64)) -> Keys {
        Keys {
            max,
            states: HashMap::with_hasher(KeyHasher(secret.0, secret.1)),
            expiry: BTreeMap::new(),
            shapes: BTreeSet::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.states.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &KeyState)> {
        self.states.iter()
    }

    pub(super) fn get(&self, key: &Key) -> Option<&KeyState> {
        self.states.get(key)
    }

    /// The key's state, made if there is room.
    pub(super) fn entry(&mut self, key: &Key, sequence: u64, now: UnixMs) -> Result<&mut KeyState, Refused> {
        if !self.states.contains_key(key) {
            if self.states.len() >= self.max {
                return Err(Refused::Full);
            }
            let state = KeyState::new(key.parts().cell_ms());
            self.expiry.entry(state.expires_s(sequence, now)).or_default().push(key.clone());
            self.note_shape(key);
            self.states.insert(key.clone(), state);
        }
        self.states.get_mut(key).ok_or(Refused::Full)
    }

    /// Forgets cells that no window touches any more, and keys without cells and followers.
    pub(super) fn expire(&mut self, now: UnixMs) {
        while let Some(due) = self.expiry.first_entry().filter(|entry| *entry.key() <= now.0 / 1_000) {
            for key in due.remove() {
                self.expire_key(key, now);
            }
        }
    }

    /// The identifier's keys, whatever their windows.
    pub(super) fn of_identifier(
        &self,
        workspace: &[u8],
        namespace: &[u8],
        identifier: &[u8],
    ) -> impl Iterator<Item = (Key, &KeyState)> {
        let matching = move |shape: &&Shape| shape.workspace == workspace && shape.namespace == namespace;
        self.shapes.iter().filter(matching).filter_map(move |shape| {
            let Shape { duration_ms, epoch, resolution, .. } = *shape;
            let parts = KeyParts { workspace, namespace, identifier, duration_ms, epoch, resolution };
            let key = Key::new(&parts).ok()?;
            self.states.get(&key).map(|state| (key, state))
        })
    }

    fn expire_key(&mut self, key: Key, now: UnixMs) {
        let Some(state) = self.states.get_mut(&key) else { return };
        match state.drop_old(now) {
            Some(last) => {
                let due = state.expires_s(last, now);
                self.expiry.entry(due).or_default().push(key);
            }
            None => {
                self.states.remove(&key);
            }
        }
    }

    fn note_shape(&mut self, key: &Key) {
        if self.shapes.len() >= MAX_SHAPES {
            return;
        }
        let KeyParts { workspace, namespace, duration_ms, epoch, resolution, .. } = key.parts();
        let (workspace, namespace) = (workspace.to_vec(), namespace.to_vec());
        self.shapes.insert(Shape { workspace, namespace, duration_ms, epoch, resolution });
    }
}
