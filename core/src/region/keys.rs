//! The keys of a region: found by key or by identifier, bounded in number, forgotten when no window touches them.
//!
//! They stand in numbered slots, so that a walk over all of them can pause and go on: a region is asked all the time,
//! and nobody may hold it for as long as a million keys take.
//!
//! Leaves to others: what is in a key (`cells`), who is told (`subscribers`).

use super::Refused;
use super::cells::KeyState;
use crate::key::{HashKey, Key, KeyParts, fingerprint};
use crate::time::UnixMs;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use hashbrown::HashTable;

/// How many (workspace, namespace, window) are remembered, so that an identifier can be found without its window.
/// A configuration has a few; a hostile peer could invent more.
const MAX_SHAPES: usize = 4_096;
/// Most keys looked at in one [`Keys::expire`] or [`Keys::scan`]: well below a millisecond.
const MAX_KEYS_A_STEP: usize = 4_096;

#[derive(Debug)]
pub(super) struct Keys {
    max: usize,
    slots: Vec<Option<(Key, KeyState)>>,
    vacant: Vec<u32>,
    index: HashTable<Entry>,
    /// Places keys by a secret, so that nobody outside can choose colliding ones.
    secret: HashKey,
    /// When to look at a slot again, in seconds since the epoch; each key's slot stands here once.
    expiry: BTreeMap<u64, Vec<u32>>,
    shapes: BTreeSet<Shape>,
    forgotten: u64,
}

/// Where a key stands. The hash is kept with it: a growing index is moved without looking at a single key, as a million
/// looks would take a tenth of a second.
#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u32,
    slot: u32,
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

impl Keys {
    pub(super) fn new(max: usize, secret: (u64, u64)) -> Keys {
        Keys {
            // A slot has a number of 32 bits.
            max: max.min(u32::MAX as usize),
            slots: Vec::new(),
            vacant: Vec::new(),
            index: HashTable::new(),
            secret: HashKey(secret.0, secret.1),
            expiry: BTreeMap::new(),
            shapes: BTreeSet::new(),
            forgotten: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// Some keys from slot `from` on, by their slots, and the slot to go on from; `None` after the last.
    pub(super) fn scan(&self, from: usize) -> (impl Iterator<Item = (usize, &KeyState)>, Option<usize>) {
        let (slots, next) = self.step(from);
        (slots.filter_map(|slot| self.at(slot).map(|(_, state)| (slot, state))), next)
    }

    pub(super) fn get(&self, key: &Key) -> Option<&KeyState> {
        self.at(self.find(key)?).map(|(_, state)| state)
    }

    /// The slot in which a key stands.
    pub(super) fn find(&self, key: &Key) -> Option<usize> {
        self.find_bytes(key.as_bytes(), self.hash(key.as_bytes()))
    }

    fn find_bytes(&self, key: &[u8], hash: u32) -> Option<usize> {
        let is_it = |entry: &Entry| {
            entry.hash == hash
                && self.at(entry.slot as usize).is_some_and(|(known, _)| known.as_bytes() == key)
        };
        self.index.find(spread(hash), is_it).map(|entry| entry.slot as usize)
    }

    fn hash(&self, key: &[u8]) -> u32 {
        // The upper half is as good as the lower.
        fingerprint(key, self.secret) as u32
    }

    /// What stands in a slot.
    pub(super) fn at(&self, slot: usize) -> Option<(&Key, &KeyState)> {
        self.slots.get(slot)?.as_ref().map(|(key, state)| (key, state))
    }

    /// What stands in a slot, to be changed.
    pub(super) fn at_mut(&mut self, slot: usize) -> Option<(&Key, &mut KeyState)> {
        self.slots.get_mut(slot)?.as_mut().map(|(key, state)| (&*key, state))
    }

    /// Where the key of these bytes stands, and its state, made if there is room.
    pub(super) fn entry(
        &mut self,
        key: &[u8],
        sequence: u64,
        now: UnixMs,
    ) -> Result<(usize, &mut KeyState), Refused> {
        let hash = self.hash(key);
        let at = match self.find_bytes(key, hash) {
            Some(at) => at,
            None => self.insert(key, hash, sequence, now)?,
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
            let slots = due.get_mut();
            let some = slots.split_off(slots.len().saturating_sub(MAX_KEYS_A_STEP - looked));
            if slots.is_empty() {
                due.remove();
            }
            looked += some.len();
            for slot in some {
                self.expire_slot(slot, now);
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

    /// Whether a key may be made that no filter here has asked for: the last quarter of the room is for those.
    pub(super) fn has_room_for(&self, key: &[u8]) -> bool {
        self.index.len() < self.max - self.max / 4 || self.find_bytes(key, self.hash(key)).is_some()
    }

    fn insert(&mut self, key: &[u8], hash: u32, sequence: u64, now: UnixMs) -> Result<usize, Refused> {
        if self.index.len() >= self.max {
            return Err(Refused::Full);
        }
        let key = Key::parse(key).map_err(|_| Refused::Key)?;
        let state = KeyState::new(&key.parts());
        self.note_shape(&key);
        let next = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        let at = self.vacant.pop().unwrap_or(next);
        self.expiry.entry(state.expires_s(sequence, now)).or_default().push(at);
        let new = Some((key, state));
        match self.slots.get_mut(at as usize) {
            Some(slot) => *slot = new,
            None => self.slots.push(new),
        }
        self.index.insert_unique(spread(hash), Entry { hash, slot: at }, |entry| spread(entry.hash));
        Ok(at as usize)
    }

    fn expire_slot(&mut self, at: u32, now: UnixMs) {
        let Some(slot) = self.slots.get_mut(at as usize) else { return };
        let Some((_, state)) = slot else { return };
        let (last, forgotten) = state.drop_old(now);
        self.forgotten = self.forgotten.saturating_add(forgotten as u64);
        if let Some(due) = last.map(|last| state.expires_s(last, now)) {
            self.expiry.entry(due).or_default().push(at);
            return;
        }
        if let Some((key, _)) = slot.take() {
            let hash = spread(self.hash(key.as_bytes()));
            if let Ok(entry) = self.index.find_entry(hash, |entry| entry.slot == at) {
                entry.remove();
            }
            self.vacant.push(at);
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

/// What the index wants: 64 bits, of which it uses the lowest and the highest.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
