//! The logs of many keys, bounded in keys and in entries, dropped when no entry counts any more.
//!
//! Workspaces share the room: none may have more than [three times what is free](most_of_part). So one alone has three quarters of
//! it, and another finds a quarter free, whatever the first has filled.
//!
//! If a workspace has no room, its oldest log is evicted that holds a single use of at most half its limit. A flood of
//! identifiers that are used once therefore evicts itself. Logs of several uses, and those that are used up, are never
//! evicted. If there is still no room, the use is not charged, and the caller must report that no decision was made.

use super::{Decided, EntryId, Log, LogCharge, Micros, Outcome};
use crate::model::key::Key;
use crate::model::room::most_of_part;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};

/// Keys checked for ended entries in each decision: twice as many as it can add.
const KEYS_A_DECISION: usize = 2;
/// Keys checked by one [`Logs::tick`].
const KEYS_A_TICK: usize = 256;

/// Bounds of [`Logs`].
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
    entries: usize,
    /// Those that have logs.
    workspaces: BTreeMap<Box<[u8]>, Workspace>,
    last_single: u64,
    /// Each key once, with a moment that is not later than the one at which its oldest entry ends.
    pub(super) leaving: BTreeSet<(Micros, Key)>,
}

/// What a workspace has.
#[derive(Debug, Default)]
struct Workspace {
    keys: usize,
    entries: usize,
    /// The logs that may be evicted, in the order in which they became so.
    singles: BTreeMap<u64, Key>,
}

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
            entries: 0,
            workspaces: BTreeMap::new(),
            last_single: 0,
            leaving: BTreeSet::new(),
        }
    }

    /// [`Log::decide`] on the key's log. A denial needs no room.
    pub fn decide(&mut self, now: Micros, charge: &LogCharge) -> Result<Decided, Full> {
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
            let workspace = self.workspaces.entry(key.parts().workspace.into()).or_default();
            workspace.keys = workspace.keys.saturating_add(1);
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
        self.entries
    }

    /// Number of logs that may be evicted.
    #[cfg(test)]
    pub(super) fn singles(&self) -> usize {
        self.workspaces.values().map(|workspace| workspace.singles.len()).sum()
    }

    /// Whether the workspace of a key has no room for another entry of it.
    fn is_full(&self, key: &Key) -> bool {
        let free_entries = self.limits.max_entries.saturating_sub(self.entries);
        let free_keys = self.limits.max_keys.saturating_sub(self.logs.len());
        let workspace = self.workspaces.get(key.parts().workspace);
        let (keys, entries) = workspace.map_or((0, 0), |held| (held.keys, held.entries));
        entries >= most_of_part(free_entries)
            || keys >= most_of_part(free_keys) && !self.logs.contains_key(key)
    }

    /// The log of a key has another number of entries.
    fn count(&mut self, key: &Key, before: usize, after: usize) {
        self.entries = self.entries.saturating_sub(before).saturating_add(after);
        if let Some(workspace) = self.workspaces.get_mut(key.parts().workspace) {
            workspace.entries = workspace.entries.saturating_sub(before).saturating_add(after);
        }
    }

    /// A log was removed that had these entries, and this number among those that may be evicted.
    fn removed(&mut self, key: &Key, entries: usize, single: Option<u64>) {
        self.count(key, entries, 0);
        let Some(workspace) = self.workspaces.get_mut(key.parts().workspace) else { return };
        single.and_then(|place| workspace.singles.remove(&place));
        workspace.keys = workspace.keys.saturating_sub(1);
        if workspace.keys == 0 {
            self.workspaces.remove(key.parts().workspace);
        }
    }

    /// A decision that adds no entry is made even without room.
    fn decide_without_room(&mut self, now: Micros, charge: &LogCharge) -> Result<Decided, Full> {
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

    /// Makes room for an entry of `key` by evicting the oldest single use of another key of its workspace. Returns false if
    /// there is none.
    fn evict_for(&mut self, key: &Key) -> bool {
        let workspace = self.workspaces.get(key.parts().workspace);
        let single = workspace.and_then(|held| held.singles.values().find(|single| *single != key));
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
        let Some(workspace) = self.workspaces.get_mut(key.parts().workspace) else { return };
        let is_single = kept.log.len() == 1 && kept.log.used() <= kept.most / 2;
        match kept.single {
            None if is_single => {
                self.last_single = self.last_single.saturating_add(1);
                kept.single = Some(self.last_single);
                workspace.singles.insert(self.last_single, key.clone());
            }
            Some(place) if !is_single => {
                kept.single = None;
                workspace.singles.remove(&place);
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

fn window_us(key: &Key) -> u64 {
    key.parts().duration_ms.saturating_mul(1_000)
}
