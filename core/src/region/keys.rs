//! The keys of a region: found by key or by identifier, bounded in number, forgotten when no window touches them.
//!
//! They stand in numbered slots, so that a walk over all of them can pause and go on: a region is asked all the time,
//! and nobody may hold it for as long as a million keys take.
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
/// Most keys looked at in one [`Keys::expire`] or [`Keys::scan`]: well below a millisecond.
const MAX_KEYS_A_STEP: usize = 4_096;

#[derive(Debug)]
pub(super) struct Keys {
    max: usize,
    slots: Vec<Option<(Key, KeyState)>>,
    vacant: Vec<usize>,
    index: HashMap<Key, usize, KeyHasher>,
    /// When to look at a key again, in seconds since the epoch; each key stands here once.
    expiry: BTreeMap<u64, Vec<Key>>,
    shapes: BTreeSet<Shape>,
    forgotten: u64,
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
            slots: Vec::new(),
            vacant: Vec::new(),
            index: HashMap::with_hasher(KeyHasher(secret.0, secret.1)),
            expiry: BTreeMap::new(),
            shapes: BTreeSet::new(),
            forgotten: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// Some keys from slot `from` on, and the slot to go on from; `None` after the last.
    pub(super) fn scan(&self, from: usize) -> (impl Iterator<Item = (&Key, &KeyState)>, Option<usize>) {
        let (slots, next) = self.step(from);
        let some = self.slots.get(slots).unwrap_or_default();
        (some.iter().flatten().map(|(key, state)| (key, state)), next)
    }

    pub(super) fn get(&self, key: &Key) -> Option<&KeyState> {
        let slot = self.slots.get(*self.index.get(key)?)?;
        slot.as_ref().map(|(_, state)| state)
    }

    /// The slot in which a key stands.
    pub(super) fn find(&self, key: &Key) -> Option<usize> {
        self.index.get(key).copied()
    }

    /// What stands in a slot.
    pub(super) fn at(&self, slot: usize) -> Option<(&Key, &KeyState)> {
        self.slots.get(slot)?.as_ref().map(|(key, state)| (key, state))
    }

    /// What stands in a slot, to be changed.
    pub(super) fn at_mut(&mut self, slot: usize) -> Option<(&Key, &mut KeyState)> {
        self.slots.get_mut(slot)?.as_mut().map(|(key, state)| (&*key, state))
    }

    /// Where the key stands, and its state, made if there is room.
    pub(super) fn entry(
        &mut self,
        key: &Key,
        sequence: u64,
        now: UnixMs,
    ) -> Result<(usize, &mut KeyState), Refused> {
        let at = match self.index.get(key) {
            Some(at) => *at,
            None => self.insert(key, sequence, now)?,
        };
        let slot = self.slots.get_mut(at).and_then(Option::as_mut);
        slot.map(|(_, state)| (at, state)).ok_or(Refused::Full)
    }

    /// Cells forgotten so far.
    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// The slots that [`Keys::scan`] and walks like it look at next, from slot `from` on; `None` after the last.
    pub(super) fn step(&self, from: usize) -> (core::ops::Range<usize>, Option<usize>) {
        let to = from.saturating_add(MAX_KEYS_A_STEP).min(self.slots.len());
        (from..to, (to < self.slots.len()).then_some(to))
    }

    /// Forgets cells that no window touches any more, and keys without cells and followers. True if some are left
    /// for another call.
    pub(super) fn expire(&mut self, now: UnixMs) -> bool {
        let mut looked = 0;
        while let Some(mut due) = self.expiry.first_entry().filter(|entry| *entry.key() <= now.0 / 1_000) {
            let keys = due.get_mut();
            let some = keys.split_off(keys.len().saturating_sub(MAX_KEYS_A_STEP - looked));
            if keys.is_empty() {
                due.remove();
            }
            looked += some.len();
            for key in some {
                self.expire_key(key, now);
            }
            if looked >= MAX_KEYS_A_STEP {
                return true;
            }
        }
        false
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
            self.get(&key).map(|state| (key, state))
        })
    }

    fn insert(&mut self, key: &Key, sequence: u64, now: UnixMs) -> Result<usize, Refused> {
        if self.index.len() >= self.max {
            return Err(Refused::Full);
        }
        let state = KeyState::new(&key.parts());
        self.expiry.entry(state.expires_s(sequence, now)).or_default().push(key.clone());
        self.note_shape(key);
        let at = self.vacant.pop().unwrap_or(self.slots.len());
        let new = Some((key.clone(), state));
        match self.slots.get_mut(at) {
            Some(slot) => *slot = new,
            None => self.slots.push(new),
        }
        self.index.insert(key.clone(), at);
        Ok(at)
    }

    fn expire_key(&mut self, key: Key, now: UnixMs) {
        let Some(at) = self.index.get(&key).copied() else { return };
        let Some(slot) = self.slots.get_mut(at) else { return };
        let Some((_, state)) = slot else { return };
        let (last, forgotten) = state.drop_old(now);
        self.forgotten = self.forgotten.saturating_add(forgotten as u64);
        match last.map(|last| state.expires_s(last, now)) {
            Some(due) => self.expiry.entry(due).or_default().push(key),
            None => {
                *slot = None;
                self.vacant.push(at);
                self.index.remove(&key);
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
