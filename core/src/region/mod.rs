//! An aggregator's view of its region: every origin's component of every live cell, and who wants to hear of it.
//!
//! Each origin owns one component of a cell and only ever raises it; merging is `max`. What a filter is told
//! (`region_others`) is summed from components after the merge, so it never falls. A consult is granted or not
//! against the sum at this moment, and a grant raises the asker's component at once: two origins cannot be granted
//! the same remainder.
//!
//! Pushes go to the origins that touched a key in this or the last window, and to all where a key is past half its
//! limit. They are collected as a set of keys, so a slow subscriber costs memory by keys, not by requests, and the
//! newest state is what it gets.
//!
//! What peers may make it hold is bounded; the bounds multiply, as a key costs what its origins cost:
//!
//! - keys by [`RegionLimits::max_keys`], and by time: one that no window touches any more is forgotten;
//! - cells of a key by the plausible sequences, now ± [`MAX_SEQUENCE_SKEW`];
//! - components of a cell and followers of a key by `MAX_ORIGINS_A_KEY` each, however many origins come and go:
//!   a further origin's counts and consults are refused, and it hears of the key only while that is hot;
//! - origins that are there at the same time, and with them subscribers, by [`RegionLimits::max_origins`];
//! - what a subscriber is still to be told by the keys that changed since it last took something;
//! - the work of one step of a snapshot or of forgetting by `MAX_KEYS_A_STEP`.
//!
//! Leaves to others: streams, clocks and stores (`aggregator`); what a filter does with it (`limiter`).

mod cells;
pub mod exchange;
mod keys;
mod subscribers;

use crate::key::{Key, OriginId};
use crate::time::UnixMs;
use crate::window::{MAX_COUNT, Position};
use crate::wire;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use cells::KeyState;
use keys::Keys;
use subscribers::Subscribers;

pub use cells::{CellState, Component};

/// An origin counts as alive for this long after its last frame.
pub const ORIGIN_ALIVE_MS: u64 = 2_000;
/// An origin is forgotten after this long without a frame.
const SILENT_MS: u64 = 3_600_000;
/// How far a sequence may lie from the aggregator's own; more means that a clock is wrong.
pub const MAX_SEQUENCE_SKEW: u64 = 2;

/// Bounds of a [`Region`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionLimits {
    /// Most keys held; further ones are refused and counted.
    pub max_keys: usize,
    /// Most origins at the same time; frames of further ones are refused. An origin is forgotten with its last stream,
    /// or after an hour without a frame: how many come and go, one after the other, is not bounded by this.
    pub max_origins: usize,
}

impl Default for RegionLimits {
    fn default() -> Self {
        RegionLimits { max_keys: 2_000_000, max_origins: 4_096 }
    }
}

/// Why a count was not merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The key's bytes are not a key.
    #[error("malformed key")]
    Key,
    /// More than two cells away from now.
    #[error("sequence is more than two cells away from now")]
    Sequence,
    /// A component beyond [`MAX_COUNT`].
    #[error("implausible component")]
    Component,
    /// [`RegionLimits`] are reached, or as many origins as a key has room for have touched it.
    #[error("the region is full")]
    Full,
}

/// What became of a report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reported {
    /// What the region holds of each count that came without a base.
    pub bases: Vec<wire::View>,
    /// Counts that are not stored: the place in the report, and the reason.
    pub refused: Vec<(u32, Refused)>,
}

/// One key, explained: its cells in order of sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Explained {
    /// The key.
    pub key: Key,
    /// Its live cells.
    pub cells: Vec<CellState>,
}

/// Figures for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionStats {
    /// Keys held.
    pub keys: usize,
    /// Origins alive.
    pub live_origins: usize,
    /// Keys waiting to be pushed, summed over subscribers.
    pub pending_pushes: usize,
}

/// The state machine. Drive it with frames and with [`Region::tick`]; it never looks at a clock.
#[derive(Debug)]
pub struct Region {
    max_origins: usize,
    keys: Keys,
    /// When each origin was last heard.
    origins: BTreeMap<OriginId, UnixMs>,
    subscribers: Subscribers,
}

impl Region {
    /// An empty region; `secret` is random and unknown to clients.
    pub fn new(limits: RegionLimits, secret: (u64, u64)) -> Region {
        Region {
            max_origins: limits.max_origins,
            keys: Keys::new(limits.max_keys, secret),
            origins: BTreeMap::new(),
            subscribers: Subscribers::default(),
        }
    }

    /// Notes that `origin` is alive. False if there are too many origins already.
    pub fn heard(&mut self, origin: OriginId, now: UnixMs) -> bool {
        if !self.origins.contains_key(&origin) && self.origins.len() >= self.max_origins {
            return false;
        }
        let last = self.origins.entry(origin).or_default();
        *last = now.max(*last);
        true
    }

    /// Notes that the last stream of `origin` ended, so that it no longer counts as alive.
    pub fn gone(&mut self, origin: OriginId) {
        self.origins.remove(&origin);
        self.subscribers.remove(origin);
    }

    /// Origins heard of within [`ORIGIN_ALIVE_MS`].
    pub fn live_origins(&self, now: UnixMs) -> usize {
        self.origins.values().filter(|last| now.0.saturating_sub(last.0) <= ORIGIN_ALIVE_MS).count()
    }

    /// Merges what `origin` has spent.
    pub fn report(&mut self, origin: OriginId, counts: &[wire::Count], now: UnixMs) -> Reported {
        let mut reported = Reported::default();
        for (place, count) in (0..).zip(counts) {
            match self.merge_count(origin, count, now) {
                Ok(None) => {}
                Ok(Some(base)) => reported.bases.push(base),
                Err(refused) => reported.refused.push((place, refused)),
            }
        }
        reported
    }

    /// Grants `own + cost` or not, and tells all that is known of the cell and the one before. An error means that the
    /// region cannot judge it.
    pub fn consult(
        &mut self,
        origin: OriginId,
        ask: &wire::Consult,
        now: UnixMs,
    ) -> Result<wire::Answer, Refused> {
        let (key, at) = checked(&ask.key, ask.sequence, ask.own, now)?;
        let at = at.seen_from(ask.sequence);
        let state = touch(&mut self.keys, &mut self.subscribers, &key, origin, ask.sequence, now)?;
        let mut changed = state.raise(ask.sequence, origin, ask.own, now)?;
        let proposed = ask.own.saturating_add(ask.cost);
        let limit = ask.limit.min(MAX_COUNT);
        let used = state.used_with(ask.sequence, origin, proposed);
        let granted = proposed <= MAX_COUNT && used.admits(&at, 0, limit) && ask.cost <= limit;
        if granted && ask.cost > 0 {
            changed |= state.raise(ask.sequence, origin, proposed, now)?;
        }
        state.note_limit(ask.sequence, limit);
        let answer = wire::Answer {
            id: ask.id,
            granted,
            current: Some(state.view(ask.sequence, origin)),
            previous: ask.sequence.checked_sub(1).map(|sequence| state.view(sequence, origin)),
        };
        if changed {
            self.subscribers.changed(&key, state, origin);
        }
        Ok(answer)
    }

    /// Takes what the other regions used in a cell: a sum that only grows.
    pub fn import(
        &mut self,
        key: &Key,
        sequence: u64,
        global_others: u64,
        now: UnixMs,
    ) -> Result<(), Refused> {
        let (key, _) = checked(key.as_bytes(), sequence, global_others, now)?;
        let state = self.keys.entry(&key, sequence, now)?;
        if state.raise_global(sequence, global_others, now)? {
            self.subscribers.changed_outside(&key, state);
        }
        Ok(())
    }

    /// Starts (or restarts) pushes to `origin` with everything that matters to it.
    pub fn subscribe(&mut self, origin: OriginId) {
        self.subscribers.start(origin);
    }

    /// Ends the pushes to `origin`, which stays alive.
    pub fn unsubscribe(&mut self, origin: OriginId) {
        self.subscribers.remove(origin);
    }

    /// The next push for `origin`, or nothing. Call until it returns `None`. Some are empty: a step of a snapshot over
    /// many keys that found none; they need not be sent.
    pub fn next_push(&mut self, origin: OriginId, now: UnixMs) -> Option<wire::Push> {
        if !self.subscribers.has_work(origin) {
            return None;
        }
        self.subscribers.go_on(origin, &self.keys);
        let (keys, complete) = self.subscribers.take(origin, wire::MAX_FRAME_CELLS / 2);
        let views = keys
            .iter()
            .filter_map(|key| self.keys.get(key).map(|state| (key, state)))
            .flat_map(|(key, state)| state.views(key, origin, now))
            .collect();
        Some(wire::Push { views, complete })
    }

    /// Whether [`Region::next_push`] has something for `origin`.
    pub fn has_push(&self, origin: OriginId) -> bool {
        self.subscribers.has_work(origin)
    }

    /// Forgets cells that no window touches any more, and origins silent for an hour. True if it should be called
    /// again soon, as there is more to forget than it takes on at once.
    pub fn tick(&mut self, now: UnixMs) -> bool {
        self.origins.retain(|_, last| now.0.saturating_sub(last.0) < SILENT_MS);
        self.keys.expire(now)
    }

    /// Every live cell of the identifier, whatever its window.
    pub fn explain(&self, workspace: &[u8], namespace: &[u8], identifier: &[u8]) -> Vec<Explained> {
        self.keys
            .of_identifier(workspace, namespace, identifier)
            .map(|(key, state)| Explained { key, cells: state.cells().to_vec() })
            .collect()
    }

    /// Figures for metrics.
    pub fn stats(&self, now: UnixMs) -> RegionStats {
        RegionStats {
            keys: self.keys.len(),
            live_origins: self.live_origins(now),
            pending_pushes: self.subscribers.pending(),
        }
    }

    fn merge_count(
        &mut self,
        origin: OriginId,
        count: &wire::Count,
        now: UnixMs,
    ) -> Result<Option<wire::View>, Refused> {
        let (key, _) = checked(&count.key, count.sequence, count.own, now)?;
        let state = touch(&mut self.keys, &mut self.subscribers, &key, origin, count.sequence, now)?;
        state.note_limit(count.sequence, count.limit);
        if count.unbased {
            return Ok(Some(wire::View { key: count.key.clone(), ..state.view(count.sequence, origin) }));
        }
        if state.raise(count.sequence, origin, count.own, now)? {
            self.subscribers.changed(&key, state, origin);
        }
        Ok(None)
    }
}

/// The key's state, with `origin` among its followers; one that is new to a key known to others gets a push.
fn touch<'a>(
    keys: &'a mut Keys,
    subscribers: &mut Subscribers,
    key: &Key,
    origin: OriginId,
    sequence: u64,
    now: UnixMs,
) -> Result<&'a mut KeyState, Refused> {
    let state = keys.entry(key, sequence, now)?;
    if state.follow(origin, sequence) && state.has_others(origin) {
        subscribers.enqueue(origin, key);
    }
    Ok(state)
}

fn checked(key: &[u8], sequence: u64, component: u64, now: UnixMs) -> Result<(Key, Position), Refused> {
    let key = Key::parse(key).map_err(|_| Refused::Key)?;
    let at = Position::at(now, key.parts().cell_ms());
    if sequence.abs_diff(at.sequence) > MAX_SEQUENCE_SKEW {
        return Err(Refused::Sequence);
    }
    if component > MAX_COUNT {
        return Err(Refused::Component);
    }
    Ok((key, at))
}

#[cfg(test)]
mod tests;
