//! The keys of a region: found by key or by identifier, bounded in number, dropped when no window touches them.
//!
//! If there is no room for a new key, a key of low use is evicted. A key past half its limit stays, unless its part of the
//! room holds more keys than the new key's part ([`super::shares`]). A key with cells that wait to be sent is never evicted.
//!
//! Keys are kept in numbered slots, so that a walk over all of them can pause and continue. Streams need the region all
//! the time, and it must not be locked for as long as a million keys take.

use super::key_state::{KeyState, Weight};
use super::plausibility::Refused;
use super::shares::{Lineage, Shares, Standing};
use crate::model::key::{HashKey, Key, KeyParts, MIN_DURATION_MS, NodeId, fingerprint};
use crate::model::room::most_of_part;
use crate::model::time::UnixMs;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use hashbrown::HashTable;

/// Most keys of one identifier: its windows, each in several epochs. They collide in the index. This bound limits the
/// length of a search if a peer invents windows. Nodes share it, so that a node that invents windows leaves some to the others.
const MAX_KEYS_OF_IDENTIFIER: usize = 1_024;
/// Length of the part of a key's bytes after the identifier: window, epoch and resolution.
const CUT_BYTES: usize = 8 + 4 + 2;
/// Most keys visited in one [`Keys::expire`] or [`Keys::scan`]; this takes well below a millisecond.
const MAX_KEYS_A_STEP: usize = 4_096;
/// Slots examined to find a key to evict.
const EVICTION_LOOKS: usize = 32;

#[derive(Debug)]
pub(super) struct Keys {
    max: usize,
    slots: Vec<Option<(Key, KeyState)>>,
    vacant: Vec<u32>,
    /// By a hash of workspace, namespace and identifier, so that an identifier's keys are found for all its windows.
    index: HashTable<Entry>,
    /// Keys are hashed with a secret, so that clients cannot choose colliding ones.
    secret: HashKey,
    /// When to check a slot again, in seconds since the epoch. Each key's slot is in it once.
    expiry: BTreeSet<(u64, u32)>,
    /// For each slot, the time with which it is in [`Keys::expiry`].
    checks: Vec<u64>,
    pub(super) shares: Shares,
    /// The slot at which the next search for a key to evict begins.
    hand: usize,
    forgotten: u64,
    evicted: u64,
}

/// The slot of a key. The hash is stored with it, so that a growing index is moved without reading any key; reading a
/// million keys would take a tenth of a second.
#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u32,
    slot: u32,
}

impl Keys {
    pub(super) fn new(max: usize, secret: HashKey) -> Keys {
        Keys {
            // Slot numbers have 32 bits.
            max: max.min(u32::MAX as usize),
            slots: Vec::new(),
            vacant: Vec::new(),
            index: HashTable::new(),
            secret,
            expiry: BTreeSet::new(),
            checks: Vec::new(),
            shares: Shares::default(),
            hand: 0,
            forgotten: 0,
            evicted: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// Keys with their slots from slot `from` on, as many as fit one step, and the slot to continue from; `None` after
    /// the last.
    pub(super) fn scan(&self, from: usize) -> (impl Iterator<Item = (usize, &KeyState)>, Option<usize>) {
        let (slots, next) = self.step(from);
        (slots.filter_map(|slot| self.at(slot).map(|(_, state)| (slot, state))), next)
    }

    pub(super) fn get(&self, key: &Key) -> Option<&KeyState> {
        self.at(self.find(key)?).map(|(_, state)| state)
    }

    /// The slot of a key.
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
        // All bits of the fingerprint are of equal quality.
        fingerprint(identity(key), self.secret) as u32
    }

    /// The key and state in a slot.
    pub(super) fn at(&self, slot: usize) -> Option<(&Key, &KeyState)> {
        self.slots.get(slot)?.as_ref().map(|(key, state)| (key, state))
    }

    /// The key and state in a slot, for changes.
    pub(super) fn at_mut(&mut self, slot: usize) -> Option<(&Key, &mut KeyState)> {
        self.slots.get_mut(slot)?.as_mut().map(|(key, state)| (&*key, state))
    }

    /// The slot and state of the key with these bytes. They are created if there is room.
    pub(super) fn entry(
        &mut self,
        key: &[u8],
        sequence: u64,
        now: UnixMs,
    ) -> Result<(usize, &mut KeyState), Refused> {
        self.entry_of(None, key, sequence, now)
    }

    /// The same for a key that a node here uses.
    pub(super) fn entry_of(
        &mut self,
        node: Option<NodeId>,
        key: &[u8],
        sequence: u64,
        now: UnixMs,
    ) -> Result<(usize, &mut KeyState), Refused> {
        let hash = self.hash(key);
        let at = match self.find_bytes(key, hash) {
            Some(at) => at,
            None if !self.has_windows_left(key, node) => return Err(Refused::Full),
            None => self.insert(key, hash, sequence, now)?,
        };
        let slot = self.slots.get_mut(at).and_then(Option::as_mut);
        slot.map(|(_, state)| (at, state)).ok_or(Refused::Full)
    }

    /// Whether a node may create another key of the same identifier. Those that no node here uses are one part.
    fn has_windows_left(&self, key: &[u8], node: Option<NodeId>) -> bool {
        let (mut all, mut of_node) = (0, 0);
        for (_, state) in self.alike(key) {
            let is_of_node = node.map_or_else(|| state.has_no_follower(), |node| state.follows(node));
            all += 1;
            of_node += usize::from(is_of_node);
        }
        of_node < most_of_part(MAX_KEYS_OF_IDENTIFIER.saturating_sub(all))
    }

    /// Cells dropped so far.
    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Keys evicted so far.
    pub(super) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// The slots of the next step of a walk, from slot `from` on, and where to continue; `None` after the last.
    pub(super) fn step(&self, from: usize) -> (core::ops::Range<usize>, Option<usize>) {
        let to = from.saturating_add(MAX_KEYS_A_STEP).min(self.slots.len());
        (from..to, (to < self.slots.len()).then_some(to))
    }

    /// The same for a walk that looks at keys for longer.
    pub(super) fn short_step(&self, from: usize) -> (core::ops::Range<usize>, Option<usize>) {
        let to = from.saturating_add(MAX_KEYS_A_STEP / 8).min(self.slots.len());
        (from..to, (to < self.slots.len()).then_some(to))
    }

    /// Drops cells that no window touches any more, and keys without cells and followers. Returns true if some are left
    /// for another call.
    pub(super) fn expire(&mut self, now: UnixMs) -> bool {
        for _ in 0..MAX_KEYS_A_STEP {
            let Some((due, slot)) = self.expiry.first().copied().filter(|(due, _)| *due <= now.0 / 1_000)
            else {
                return false;
            };
            self.expiry.remove(&(due, slot));
            self.expire_slot(slot, now);
        }
        true
    }

    /// The identifier's keys, for all its windows, in the order of these.
    pub(super) fn of_identifier(
        &self,
        workspace: &[u8],
        namespace: &[u8],
        identifier: &[u8],
    ) -> Vec<(&Key, &KeyState)> {
        let any = KeyParts {
            workspace,
            namespace,
            identifier,
            duration_ms: MIN_DURATION_MS,
            epoch: 0,
            resolution: 1,
        };
        let Ok(any) = Key::new(&any) else { return Vec::new() };
        let mut found: Vec<_> = self.alike(any.as_bytes()).collect();
        found.sort_unstable_by_key(|(key, _)| key.parts());
        found
    }

    /// The keys with the same workspace, namespace and identifier as `key`.
    fn alike(&self, key: &[u8]) -> impl Iterator<Item = (&Key, &KeyState)> {
        let hash = self.hash(key);
        let stored = self.index.iter_hash(spread(hash)).filter(move |entry| entry.hash == hash);
        stored
            .filter_map(|entry| self.at(entry.slot as usize))
            .filter(move |(known, _)| identity(known.as_bytes()) == identity(key))
    }

    /// Whether a key may be created that no filter here has queried or reported. The last quarter of the room is reserved for those that one
    /// has. In the rest such a key takes the place of another one that none has, of a part that has more.
    ///
    /// A key that `is_hot`, past half its limit, denies here what was used elsewhere. So it also takes the place of one that is not, and a
    /// quarter of the room is for such keys as for those of filters.
    pub(super) fn makes_room_for(&mut self, key: &[u8], is_hot: bool) -> bool {
        if self.index.len() < self.max - self.max / 4 || self.find_bytes(key, self.hash(key)).is_some() {
            return true;
        }
        let Ok(key) = Key::parse(key) else { return false };
        let parts = key.parts();
        let lineage = self.shares.lineage(parts.workspace, parts.namespace, self.secret);
        let has_part = is_hot && self.unfollowed_are_few();
        let gives_way =
            |weight: &Weight, standing| standing == Standing::Richer || (is_hot && !weight.is_hot);
        self.evict_for(lineage, |weight, standing| !weight.is_followed && gives_way(weight, standing))
            || (has_part && (self.index.len() < self.max || self.evict_for(lineage, gives_way)))
    }

    /// Whether less than a quarter of the keys are such that no filter here uses, by those that an eviction would examine.
    fn unfollowed_are_few(&self) -> bool {
        let slots = self.slots.len();
        let examined = (0..EVICTION_LOOKS.min(slots)).map(|step| (self.hand + step) % slots.max(1));
        let (mut all, mut unfollowed) = (0_usize, 0_usize);
        for (_, state) in examined.filter_map(|at| self.at(at)) {
            all = all.saturating_add(1);
            unfollowed = unfollowed.saturating_add(usize::from(!state.is_followed()));
        }
        unfollowed.saturating_mul(4) < all
    }

    fn insert(&mut self, key: &[u8], hash: u32, sequence: u64, now: UnixMs) -> Result<usize, Refused> {
        let key = Key::parse(key).map_err(|_| Refused::Key)?;
        let parts = key.parts();
        let lineage = self.shares.lineage(parts.workspace, parts.namespace, self.secret);
        let may_leave = |weight: &Weight, standing| !weight.is_hot || standing == Standing::Richer;
        if self.index.len() >= self.max && !self.evict_for(lineage, may_leave) {
            return Err(Refused::Full);
        }
        let state = KeyState::new(&parts, lineage);
        let next = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        let at = self.vacant.pop().unwrap_or(next);
        let check = state.expires_s(sequence, now);
        self.expiry.insert((check, at));
        self.shares.add(lineage);
        let new = Some((key, state));
        match (self.slots.get_mut(at as usize), self.checks.get_mut(at as usize)) {
            (Some(slot), Some(known)) => (*slot, *known) = (new, check),
            _ => {
                self.slots.push(new);
                self.checks.push(check);
            }
        }
        self.index.insert_unique(spread(hash), Entry { hash, slot: at }, |entry| spread(entry.hash));
        Ok(at as usize)
    }

    /// Evicts a key that `may_leave` to make room for one of this lineage. Returns false if none of the examined keys may. The next search
    /// continues after them.
    fn evict_for(&mut self, new: Lineage, may_leave: impl Fn(&Weight, Standing) -> bool) -> bool {
        let slots = self.slots.len();
        let visited = (0..EVICTION_LOOKS.min(slots)).map(|step| (self.hand + step) % slots.max(1));
        let victim = visited
            .filter_map(|at| {
                let (_, state) = self.at(at)?;
                let weight = state.weight()?;
                let standing = self.shares.standing(state.sharing.lineage, new);
                let several = weight.nodes > 1;
                let rank = (weight.is_hot, standing, several, weight.utilisation, weight.touched);
                may_leave(&weight, standing).then_some((rank, at))
            })
            .min();
        self.hand = (self.hand + EVICTION_LOOKS) % slots.max(1);
        let Some((_, at)) = victim else { return false };
        let Ok(at) = u32::try_from(at) else { return false };
        if let Some(check) = self.checks.get(at as usize) {
            self.expiry.remove(&(*check, at));
        }
        let counted =
            self.slots.get(at as usize).and_then(Option::as_ref).map_or(0, |(_, state)| state.counted());
        self.forgotten = self.forgotten.saturating_add(counted as u64);
        self.evicted = self.evicted.saturating_add(1);
        self.vacate(at);
        true
    }

    fn expire_slot(&mut self, at: u32, now: UnixMs) {
        let Some(slot) = self.slots.get_mut(at as usize) else { return };
        let Some((_, state)) = slot else { return };
        let (last, forgotten) = state.drop_old(now);
        self.forgotten = self.forgotten.saturating_add(forgotten as u64);
        if let Some(due) = last.map(|last| state.expires_s(last, now)) {
            self.expiry.insert((due, at));
            if let Some(check) = self.checks.get_mut(at as usize) {
                *check = due;
            }
            return;
        }
        self.vacate(at);
    }

    /// Removes the key from a slot that is not in [`Keys::expiry`].
    fn vacate(&mut self, at: u32) {
        let Some((key, state)) = self.slots.get_mut(at as usize).and_then(Option::take) else { return };
        let hash = spread(self.hash(key.as_bytes()));
        if let Ok(entry) = self.index.find_entry(hash, |entry| entry.slot == at) {
            entry.remove();
        }
        self.shares.remove(state.sharing.lineage);
        self.vacant.push(at);
    }
}

/// The part of a key's bytes that contains its workspace, namespace and identifier.
fn identity(key: &[u8]) -> &[u8] {
    key.get(..key.len().saturating_sub(CUT_BYTES)).unwrap_or_default()
}

/// Expands a hash to the 64 bits that the index needs; it uses the lowest and the highest of them.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    fn key(namespace: &str, identifier: &str, epoch: u32) -> Key {
        let (namespace, identifier) = (namespace.as_bytes(), identifier.as_bytes());
        let parts =
            KeyParts { workspace: b"w", namespace, identifier, duration_ms: 60_000, epoch, resolution: 1 };
        Key::new(&parts).unwrap()
    }

    fn insert(keys: &mut Keys, key: &Key) -> Result<(), Refused> {
        keys.entry(key.as_bytes(), 1, UnixMs(60_000)).map(drop)
    }

    #[test]
    fn an_identifier_is_found_after_any_number_of_epochs() {
        let mut keys = Keys::new(20_000, HashKey(1, 2));
        for epoch in 0..10_000 {
            insert(&mut keys, &key("login", &format!("reset-{epoch}"), epoch)).unwrap();
        }
        for epoch in [9, 3] {
            insert(&mut keys, &key("later", "alice", epoch)).unwrap();
        }
        insert(&mut keys, &key("later", "bob", 1)).unwrap();
        let found = keys.of_identifier(b"w", b"later", b"alice");
        let epochs: Vec<u32> = found.iter().map(|(key, _)| key.parts().epoch).collect();
        assert_eq!(epochs, [3, 9]);
        assert_eq!(keys.of_identifier(b"w", b"login", b"reset-9999").len(), 1);
        assert!(keys.of_identifier(b"w", b"later", b"carol").is_empty());
        assert_eq!(keys.shares.held(), keys.len());
        // The keys are dropped together with their cells.
        while keys.expire(UnixMs(400_000)) {}
        assert!(keys.of_identifier(b"w", b"later", b"alice").is_empty());
    }

    #[test]
    fn windows_of_one_identifier_are_bounded() {
        let mut keys = Keys::new(20_000, HashKey(1, 2));
        let most = u32::try_from(MAX_KEYS_OF_IDENTIFIER / 4 * 3).unwrap();
        for epoch in 0..most {
            insert(&mut keys, &key("n", "alice", epoch)).unwrap();
        }
        assert_eq!(insert(&mut keys, &key("n", "alice", most)), Err(Refused::Full));
        let all = (0..2_000_u16).filter(|node| {
            let node = NodeId([&node.to_be_bytes()[..], &[0; 14]].concat().try_into().unwrap());
            let key = key("n", "alice", 10_000 + u32::from(node.0[0]) * 256 + u32::from(node.0[1]));
            keys.entry_of(Some(node), key.as_bytes(), 1, UnixMs(60_000)).is_ok()
        });
        assert_eq!(all.count() + most as usize, MAX_KEYS_OF_IDENTIFIER, "of any number of nodes");
        assert_eq!(insert(&mut keys, &key("n", "alice", 7)), Ok(()), "a key that is stored already");
        assert_eq!(insert(&mut keys, &key("n", "bob", most)), Ok(()), "another identifier");
    }

    #[test]
    fn a_node_that_invents_windows_leaves_some_to_the_others() {
        let mut keys = Keys::new(20_000, HashKey(1, 2));
        let [inventor, other] = [1, 2].map(|id| NodeId([id; 16]));
        let mut touch = |node: NodeId, epoch: u32| {
            let key = key("cart", "alice", epoch);
            let (_, state) = keys.entry_of(Some(node), key.as_bytes(), 1, UnixMs(60_000))?;
            state.follow(node, 1);
            Ok(())
        };
        let invented = (0..2_000).filter(|epoch| touch(inventor, *epoch).is_ok()).count();
        assert_eq!(invented, MAX_KEYS_OF_IDENTIFIER / 4 * 3);
        for epoch in 0..10 {
            touch(other, 5_000 + epoch).unwrap();
        }
        assert_eq!(touch(inventor, 6_000), Err(Refused::Full));
    }
}
