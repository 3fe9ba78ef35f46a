//! The logs of many keys, bounded in keys and in entries, forgotten when nothing counts any more.
//!
//! What finds no room is not charged, and nobody else's entries make room for it: it is for the caller to say that
//! nothing was decided.
//!
//! Leaves to others: one log (`super`).

use super::{Decided, EntryId, Log, LogCharge, Micros, Outcome};
use crate::key::Key;
use alloc::collections::{BTreeMap, BinaryHeap};
use core::cmp::Reverse;

/// Keys that each decision looks at in passing: twice as many as it can add.
const KEYS_A_DECISION: usize = 2;
/// Keys that one [`Logs::tick`] looks at.
const KEYS_A_TICK: usize = 256;

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogsLimits {
    /// Keys with entries that count, or did until a moment ago.
    pub max_keys: usize,
    /// Entries of all keys; each takes about 100 bytes.
    pub max_entries: usize,
}

/// There is no room for another entry. Nothing was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there are as many log entries as are kept")]
pub struct Full;

/// Many logs.
#[derive(Debug)]
pub struct Logs {
    limits: LogsLimits,
    logs: BTreeMap<Key, Log>,
    entries: usize,
    /// Each key once, with a moment not after the one at which its oldest entry leaves.
    leaving: BinaryHeap<Reverse<(Micros, Key)>>,
}

impl Default for LogsLimits {
    fn default() -> Self {
        LogsLimits { max_keys: 250_000, max_entries: 1_000_000 }
    }
}

impl Logs {
    /// None yet.
    pub fn new(limits: LogsLimits) -> Logs {
        Logs { limits, logs: BTreeMap::new(), entries: 0, leaving: BinaryHeap::new() }
    }

    /// [`Log::decide`] on the key's log. A denial needs no room.
    pub fn decide(&mut self, now: Micros, charge: &LogCharge) -> Result<Decided, Full> {
        let LogCharge { key, id, cost, most } = charge;
        self.forget(now, KEYS_A_DECISION);
        if self.is_full(key) {
            self.forget(now, KEYS_A_TICK);
        }
        if self.is_full(key) {
            return self.decide_without_room(now, charge);
        }
        if let Some(log) = self.logs.get_mut(key) {
            let before = log.len();
            let decided = log.decide(now, *id, *cost, *most);
            let after = log.len();
            self.entries = self.entries.saturating_sub(before).saturating_add(after);
            return Ok(decided);
        }
        let mut log = Log::new(window_us(key));
        let decided = log.decide(now, *id, *cost, *most);
        if !log.is_empty() {
            self.entries = self.entries.saturating_add(log.len());
            self.leaving.push(Reverse((Micros(now.0.saturating_add(decided.reset_us)), key.clone())));
            self.logs.insert(key.clone(), log);
        }
        Ok(decided)
    }

    /// [`Log::withdraw`] from the key's log.
    pub fn withdraw(&mut self, key: &Key, id: EntryId) -> bool {
        let withdrawn = self.logs.get_mut(key).is_some_and(|log| log.withdraw(id));
        self.entries = self.entries.saturating_sub(usize::from(withdrawn));
        withdrawn
    }

    /// Forgets some of what no longer counts; true if there may be more.
    pub fn tick(&mut self, now: Micros) -> bool {
        self.forget(now, KEYS_A_TICK)
    }

    /// Keys that are kept.
    pub fn len(&self) -> usize {
        self.logs.len()
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.logs.is_empty()
    }

    /// Entries that are kept, of all keys.
    pub fn entries(&self) -> usize {
        self.entries
    }

    fn is_full(&self, key: &Key) -> bool {
        self.entries >= self.limits.max_entries
            || self.logs.len() >= self.limits.max_keys && !self.logs.contains_key(key)
    }

    /// What needs no entry is decided all the same.
    fn decide_without_room(&mut self, now: Micros, charge: &LogCharge) -> Result<Decided, Full> {
        let LogCharge { key, id, cost, most } = charge;
        let mut none = Log::new(window_us(key));
        let log = self.logs.get_mut(key).unwrap_or(&mut none);
        let before = log.len();
        let decided = log.look(now, *id, *cost, *most);
        let needs_room = decided.outcome == Outcome::Allowed && *cost > 0 && !log.holds(*id);
        self.entries = self.entries.saturating_sub(before).saturating_add(log.len());
        if needs_room { Err(Full) } else { Ok(decided) }
    }

    fn forget(&mut self, now: Micros, most_keys: usize) -> bool {
        for _ in 0..most_keys {
            match self.leaving.peek() {
                Some(Reverse((when, _))) if *when <= now => {}
                _ => return false,
            }
            let Some(Reverse((_, key))) = self.leaving.pop() else { return false };
            let Some(log) = self.logs.get_mut(&key) else { continue };
            let before = log.len();
            let next = log.tick(now);
            let gone = before.saturating_sub(log.len());
            self.entries = self.entries.saturating_sub(gone);
            match next {
                Some(wait) => {
                    self.leaving.push(Reverse((Micros(now.0.saturating_add(wait.max(1))), key)));
                }
                None => drop(self.logs.remove(&key)),
            }
        }
        true
    }
}

fn window_us(key: &Key) -> u64 {
    key.parts().duration_ms.saturating_mul(1_000)
}
