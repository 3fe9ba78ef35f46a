//! The keys nearest their limits, for status pages. They are found in steps, so that no stream waits for a walk over a
//! million keys.
//!
//! The use of a key is computed as for decisions: what counts of its cells, against the limit that was applied last. If
//! the caller passes the limit that applies from now on, that limit is used instead.

use super::cell::CellState;
use super::{Explained, Region};
use crate::model::key::{Key, KeyParts, is_reserved};
use crate::model::time::UnixMs;
use crate::model::window::{Position, Used};
use alloc::vec::Vec;
use core::cmp::Ordering;

/// Most keys of a [`Top`].
pub const MAX_TOP: usize = 100;
/// Most scopes of a [`Top`].
pub const MAX_SCOPES: usize = 64;
/// Most keys of one scope.
pub const MAX_SCOPE_KEYS: usize = 10;

/// The use of a key at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyUsage {
    /// What counts against the limit now, without any cost.
    pub used: u64,
    /// What other regions used of that.
    pub global_others: u64,
    /// The limit given by the caller, or the one that was applied last, or else the lowest of the newest cell that has
    /// one; `None` if none is known.
    pub limit: Option<u64>,
    /// Milliseconds until a cost of 1 would be admitted if nothing more is used; 0 if it would be now. `None` if it
    /// never would be, or if no limit is known.
    pub wait_ms: Option<u64>,
    /// The number of the current cell.
    pub sequence: u64,
    /// What was used in it in all regions. It grows until the cell ends.
    pub current: u64,
}

impl KeyUsage {
    pub(super) fn of(
        cells: &[CellState],
        (cell_ms, resolution): (u64, u16),
        under: Option<u64>,
        now: UnixMs,
    ) -> KeyUsage {
        let at = Position::at(now, cell_ms);
        let cell = |back: u64| {
            let sequence = at.sequence.checked_sub(back)?;
            cells.iter().find(|cell| cell.sequence == sequence)
        };
        let touched = || (0..=u64::from(resolution.max(1))).map(cell);
        let used = Used::of(resolution, touched().map(|cell| cell.map_or(0, CellState::total)));
        let others = Used::of(resolution, touched().map(|cell| cell.map_or(0, |cell| cell.global_others)));
        let applied = || touched().flatten().map(|cell| cell.limit).find(|limit| *limit != u64::MAX);
        let limit = under.or_else(applied);
        KeyUsage {
            used: used.effective(&at),
            global_others: others.effective(&at),
            limit,
            wait_ms: limit.and_then(|limit| used.wait_ms(&at, 1, limit)),
            sequence: at.sequence,
            current: cell(0).map_or(0, CellState::total),
        }
    }

    /// Whether a cost of 1 would be denied.
    pub fn is_over(&self) -> bool {
        self.limit.is_some_and(|limit| self.used >= limit)
    }

    fn is_past_half(&self) -> bool {
        self.limit.is_some_and(|limit| self.used > limit / 2)
    }

    /// Orders by the used share of the limit, then by the use.
    pub fn cmp_share(&self, other: &KeyUsage) -> Ordering {
        let limit = |usage: &KeyUsage| u128::from(usage.limit.unwrap_or(u64::MAX).max(1));
        let share = |one: &KeyUsage, two: &KeyUsage| u128::from(one.used).saturating_mul(limit(two));
        share(self, other).cmp(&share(other, self)).then(self.used.cmp(&other.used))
    }
}

impl Explained {
    /// The use of the key.
    pub fn usage(&self, now: UnixMs) -> KeyUsage {
        self.usage_under(None, now)
    }

    /// The same with another limit than the one that was applied last, if one is given.
    pub fn usage_under(&self, limit: Option<u64>, now: UnixMs) -> KeyUsage {
        let parts = self.key.parts();
        let limit = limit.or(self.newest_limit);
        KeyUsage::of(&self.cells, (parts.cell_ms(), parts.resolution), limit, now)
    }
}

/// A key and its use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranked {
    /// The key.
    pub key: Key,
    /// Its use.
    pub usage: KeyUsage,
}

/// The keys that a rule counts, for all identifiers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Scope {
    /// The workspace.
    pub workspace: Vec<u8>,
    /// The namespace.
    pub namespace: Vec<u8>,
    /// The window in milliseconds.
    pub window_ms: u64,
}

impl Scope {
    fn holds(&self, parts: &KeyParts<'_>) -> bool {
        self.window_ms == parts.duration_ms
            && self.namespace == parts.namespace
            && self.workspace == parts.workspace
    }
}

/// The keys of a scope that are over their limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Over {
    /// The scope.
    pub scope: Scope,
    /// The number of such keys.
    pub keys: u64,
    /// The keys farthest over their limits, the farthest first; at most [`MAX_SCOPE_KEYS`].
    pub furthest: Vec<Ranked>,
}

/// What a walk over all keys has found so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Top {
    /// The keys nearest their limits, the nearest first; at most [`MAX_TOP`].
    pub nearest: Vec<Ranked>,
    /// Keys with a known limit.
    pub limited: u64,
    /// Keys past half their limit.
    pub past_half: u64,
    /// Keys over their limit.
    pub over: u64,
    /// By scope, in the order given.
    pub scopes: Vec<Over>,
    /// Only keys whose identifier contains it are considered.
    needle: Vec<u8>,
    from: usize,
}

impl Top {
    /// Begins a walk. It considers the first [`MAX_SCOPES`] of `scopes` as well.
    pub fn new(scopes: impl IntoIterator<Item = Scope>) -> Top {
        let empty = |scope| Over { scope, keys: 0, furthest: Vec::new() };
        Top { scopes: scopes.into_iter().take(MAX_SCOPES).map(empty).collect(), ..Top::default() }
    }

    /// Begins a walk over the keys whose identifier contains `needle`, without regard to the case of ASCII letters.
    pub fn containing(needle: &[u8]) -> Top {
        Top { needle: needle.to_ascii_lowercase(), ..Top::default() }
    }

    /// Whether an identifier contains the text that the walk looks for.
    pub fn wants(&self, identifier: &[u8]) -> bool {
        let at = |part: &[u8]| part.eq_ignore_ascii_case(&self.needle);
        self.needle.is_empty() || identifier.windows(self.needle.len()).any(at)
    }

    fn take(&mut self, key: &Key, usage: KeyUsage) {
        // Violations that lead to a ban are counted on separate keys, which limit no request.
        let parts = key.parts();
        if usage.limit.is_none() || is_reserved(parts.namespace) || !self.wants(parts.identifier) {
            return;
        }
        let (half, over) = (usage.is_past_half(), usage.is_over());
        self.limited = self.limited.saturating_add(1);
        self.past_half = self.past_half.saturating_add(u64::from(half));
        self.over = self.over.saturating_add(u64::from(over));
        if usage.used > 0 {
            rank(&mut self.nearest, MAX_TOP, key, usage);
        }
        if over {
            let parts = key.parts();
            for scope in self.scopes.iter_mut().filter(|over| over.scope.holds(&parts)) {
                scope.keys = scope.keys.saturating_add(1);
                rank(&mut scope.furthest, MAX_SCOPE_KEYS, key, usage);
            }
        }
    }
}

/// Inserts a key at its place among the first `most`.
fn rank(ranked: &mut Vec<Ranked>, most: usize, key: &Key, usage: KeyUsage) {
    let before = |other: &Ranked| {
        other.usage.cmp_share(&usage).reverse().then_with(|| other.key.cmp(key)) == Ordering::Less
    };
    if ranked.len() >= most && ranked.last().is_some_and(before) {
        return;
    }
    let place = ranked.partition_point(before);
    ranked.insert(place, Ranked { key: key.clone(), usage });
    ranked.truncate(most);
}

impl Region {
    /// Visits the keys of one step. Returns true if there are more. Changes during the walk may be missed.
    pub fn rank(&self, top: &mut Top, now: UnixMs) -> bool {
        let (some, next) = self.keys.scan(top.from);
        for (slot, state) in some {
            let resolution = u16::try_from(state.resolution()).unwrap_or(u16::MAX);
            let limit = state.newest_limit.limit();
            let usage = KeyUsage::of(state.cells(), (state.cell_ms(), resolution), limit, now);
            if let Some((key, _)) = self.keys.at(slot) {
                top.take(key, usage);
            }
        }
        top.from = next.unwrap_or(0);
        next.is_some()
    }
}
