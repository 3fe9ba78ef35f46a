//! The logs of many keys, bounded in keys and in entries, dropped when no entry counts any more.
//!
//! Workspaces, and the namespaces of one workspace, [share the room](crate::model::room): whatever one has filled, another finds some.
//!
//! If a namespace has no room, its oldest log is evicted that holds a single use of at most half its limit. A flood of
//! identifiers that are used once therefore evicts itself. A namespace without such a log that has at most half of what its workspace
//! has evicts the oldest of the workspace, which may have been filled by many invented namespaces. Logs of several uses, and those
//! that are used up, are never evicted. If there is still no room, the use is not charged, and the caller must report that no
//! decision was made.

use super::{EntryId, Log, LogCharge, LogDecision, Micros, Outcome};
use crate::model::key::Key;
use crate::model::room::{ByNamespace, RoomUse};
use alloc::boxed::Box;
use alloc::collections::btree_map::Entry;
use alloc::collections::{BTreeMap, BTreeSet};

/// Keys checked for ended entries in each decision: twice as many as it can add.
const KEYS_A_DECISION: usize = 2;
/// Keys checked by one [`Logs::tick`].
const KEYS_A_TICK: usize = 256;

/// The most that [`Logs`] hold in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogsLimits {
    /// Keys with entries that count, or did until recently.
    pub max_keys: usize,
    /// Entries of all keys. Each takes about 100 bytes.
    pub max_entries: usize,
}

/// There is no room for another entry. Nothing was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the exact log has no room for another entry")]
pub struct Full;

/// The logs of many keys.
#[derive(Debug)]
pub struct Logs {
    limits: LogsLimits,
    logs: BTreeMap<Key, Kept>,
    keys: ByNamespace,
    entries: ByNamespace,
    /// The logs that may be evicted, in the order in which they became so.
    singles: BTreeMap<Group, BTreeMap<u64, Key>>,
    last_single: u64,
    /// Each key once, with a moment that is not later than the one at which its oldest entry ends.
    pub(super) leaving: BTreeSet<(Micros, Key)>,
}

/// A workspace, or one of its namespaces.
type Group = (Box<[u8]>, Option<Box<[u8]>>);

#[derive(Debug)]
struct Kept {
    log: Log,
    /// The limit of the last decision.
    most: u64,
    /// Its time in `leaving`.
    leaves: Micros,
    /// Its number in `singles`.
    single: Option<u64>,
}

impl Default for LogsLimits {
    fn default() -> Self {
        LogsLimits { max_keys: 250_000, max_entries: 1_000_000 }
    }
}

impl Logs {
    /// No logs yet.
    pub fn new(limits: LogsLimits) -> Logs {
        Logs {
            limits,
            logs: BTreeMap::new(),
            keys: ByNamespace::default(),
            entries: ByNamespace::default(),
            singles: BTreeMap::new(),
            last_single: 0,
            leaving: BTreeSet::new(),
        }
    }

    /// [`Log::decide`] on the key's log. A denial needs no room.
    pub fn decide(&mut self, now: Micros, charge: &LogCharge) -> Result<LogDecision, Full> {
        let LogCharge { key, id, cost, most } = charge;
        self.forget(now, KEYS_A_DECISION);
        if self.is_full(key) {
            self.forget(now, KEYS_A_TICK);
        }
        if self.is_full(key) {
            let decided = self.decide_without_room(now, charge);
            if decided.is_ok() || !self.evict_for(key) {
                return decided;
            }
        }
        if let Some(kept) = self.logs.get_mut(key) {
            let before = kept.log.len();
            let decided = kept.log.decide(now, *id, *cost, *most);
            kept.most = *most;
            let after = kept.log.len();
            self.count(key, before, after);
            self.note_single(key);
            return Ok(decided);
        }
        let mut log = Log::new(window_us(key));
        let decided = log.decide(now, *id, *cost, *most);
        if !log.is_empty() {
            self.keys.add(key.parts().whole_namespace(), 1);
            self.count(key, 0, log.len());
            let leaves = Micros(now.0.saturating_add(decided.reset_us));
            self.leaving.insert((leaves, key.clone()));
            self.logs.insert(key.clone(), Kept { log, most: *most, leaves, single: None });
            self.note_single(key);
        }
        Ok(decided)
    }

    /// [`Log::refund`] on the key's log.
    pub fn refund(&mut self, key: &Key, id: EntryId) -> bool {
        let refunded = self.logs.get_mut(key).is_some_and(|kept| kept.log.refund(id));
        self.count(key, usize::from(refunded), 0);
        self.note_single(key);
        refunded
    }

    /// Drops a part of the entries that no longer count. Returns true if there may be more.
    pub fn tick(&mut self, now: Micros) -> bool {
        self.forget(now, KEYS_A_TICK)
    }

    /// Keys with a log.
    pub fn len(&self) -> usize {
        self.logs.len()
    }

    /// Whether no key has a log.
    pub fn is_empty(&self) -> bool {
        self.logs.is_empty()
    }

    /// Entries of all keys.
    pub fn entries(&self) -> usize {
        self.entries.taken()
    }

    /// Whether a key has a log.
    #[cfg(test)]
    pub(super) fn contains(&self, key: &Key) -> bool {
        self.logs.contains_key(key)
    }

    /// Number of logs that may be evicted.
    #[cfg(test)]
    pub(super) fn singles(&self) -> usize {
        self.singles
            .iter()
            .filter(|((_, namespace), _)| namespace.is_none())
            .map(|(_, keys)| keys.len())
            .sum()
    }

    /// What is held around the namespace of a key: keys, and entries.
    fn held(&self, key: &Key) -> [RoomUse; 2] {
        [&self.keys, &self.entries].map(|room| room.held(key.parts().whole_namespace()))
    }

    /// Whether the namespace of a key has no room for another entry of it.
    fn is_full(&self, key: &Key) -> bool {
        let [keys, entries] = self.held(key);
        !entries.has_place(self.limits.max_entries)
            || !keys.has_place(self.limits.max_keys) && !self.logs.contains_key(key)
    }

    /// The log of a key has another number of entries.
    fn count(&mut self, key: &Key, before: usize, after: usize) {
        let namespace = key.parts().whole_namespace();
        self.entries.remove(namespace, before.saturating_sub(after));
        self.entries.add(namespace, after.saturating_sub(before));
    }

    /// A log was removed that had these entries, and this number among those that may be evicted.
    fn removed(&mut self, key: &Key, entries: usize, single: Option<u64>) {
        self.count(key, entries, 0);
        self.keys.remove(key.parts().whole_namespace(), 1);
        if let Some(place) = single {
            self.set_single(key, place, false);
        }
    }

    /// A log may be evicted from now on, or no longer.
    fn set_single(&mut self, key: &Key, place: u64, is_single: bool) {
        for group in groups(key) {
            if is_single {
                self.singles.entry(group).or_default().insert(place, key.clone());
            } else if let Entry::Occupied(mut singles) = self.singles.entry(group) {
                singles.get_mut().remove(&place);
                if singles.get().is_empty() {
                    singles.remove();
                }
            }
        }
    }

    /// A decision that adds no entry is made even without room.
    fn decide_without_room(&mut self, now: Micros, charge: &LogCharge) -> Result<LogDecision, Full> {
        let LogCharge { key, id, cost, most } = charge;
        let mut none = Log::new(window_us(key));
        let log = self.logs.get_mut(key).map_or(&mut none, |kept| &mut kept.log);
        let before = log.len();
        let decided = log.peek(now, *id, *cost, *most);
        let needs_room = decided.outcome == Outcome::Allowed && *cost > 0 && !log.holds(*id);
        let after = log.len();
        self.count(key, before, after);
        self.note_single(key);
        if needs_room { Err(Full) } else { Ok(decided) }
    }

    /// Makes room for an entry of `key` by evicting the oldest single use of another key of its namespace, or else of its workspace.
    /// Returns false if there is none that it may evict.
    fn evict_for(&mut self, key: &Key) -> bool {
        let is_small = self.held(key).iter().all(|held| held.of_namespace <= held.of_workspace / 2);
        let [workspace, namespace] = groups(key);
        let oldest =
            |group| self.singles.get(group).and_then(|keys| keys.values().find(|single| *single != key));
        let single = oldest(&namespace).or_else(|| oldest(&workspace).filter(|_| is_small));
        let Some(evicted) = single.cloned() else { return false };
        if let Some(kept) = self.logs.remove(&evicted) {
            self.removed(&evicted, kept.log.len(), kept.single);
            self.leaving.remove(&(kept.leaves, evicted));
        }
        true
    }

    /// Updates whether the key's log is in `singles`.
    fn note_single(&mut self, key: &Key) {
        let Some(kept) = self.logs.get_mut(key) else { return };
        let is_single = kept.log.len() == 1 && kept.log.used() <= kept.most / 2;
        match kept.single {
            None if is_single => {
                self.last_single = self.last_single.saturating_add(1);
                kept.single = Some(self.last_single);
                self.set_single(key, self.last_single, true);
            }
            Some(place) if !is_single => {
                kept.single = None;
                self.set_single(key, place, false);
            }
            _ => {}
        }
    }

    fn forget(&mut self, now: Micros, most_keys: usize) -> bool {
        for _ in 0..most_keys {
            if self.leaving.first().is_none_or(|(when, _)| *when > now) {
                return false;
            }
            let Some((_, key)) = self.leaving.pop_first() else { return false };
            let Some(kept) = self.logs.get_mut(&key) else { continue };
            let before = kept.log.len();
            let next = kept.log.tick(now);
            let (after, single) = (kept.log.len(), kept.single);
            match next {
                Some(wait) => {
                    kept.leaves = Micros(now.0.saturating_add(wait.max(1)));
                    self.leaving.insert((kept.leaves, key.clone()));
                    self.count(&key, before, after);
                    self.note_single(&key);
                }
                None => {
                    self.logs.remove(&key);
                    self.removed(&key, before, single);
                }
            }
        }
        true
    }
}

/// The workspace and the namespace of a key.
fn groups(key: &Key) -> [Group; 2] {
    let parts = key.parts();
    [(parts.workspace.into(), None), (parts.workspace.into(), Some(parts.namespace.into()))]
}

fn window_us(key: &Key) -> u64 {
    key.parts().duration_ms.saturating_mul(1_000)
}
