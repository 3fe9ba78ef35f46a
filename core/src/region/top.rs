//! The keys nearest their limits, for people who look: found in steps, so that nobody waits for a million keys.
//!
//! How a key stands follows the law of decisions: what counts of its cells, against the limit that was applied last. Where
//! somebody knows better what limit applies from now on, it stands under that.
//!
//! Leaves to others: how often somebody may look, and showing it (`aggregator`).

use super::cell::CellState;
use super::{Explained, Region};
use crate::limiter::counts_denials;
use crate::model::key::{Key, KeyParts};
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

/// How a key stands at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyUsage {
    /// What counts against the limit now, without any cost.
    pub used: u64,
    /// What of that other regions used.
    pub global_others: u64,
    /// The lowest limit applied in the newest cell that anybody applied one to, or the one that it is asked about under;
    /// `None` if nobody applied any.
    pub limit: Option<u64>,
    /// Milliseconds until a cost of 1 passes if nothing more is used; 0 if it passes now. `None` if it never does, or if
    /// no limit is known.
    pub wait_ms: Option<u64>,
    /// The current cell.
    pub sequence: u64,
    /// What was used in it, everywhere; grows until the cell is over.
    pub current: u64,
}

impl KeyUsage {
    fn of(
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

    /// A cost of 1 would be denied.
    pub fn is_over(&self) -> bool {
        self.limit.is_some_and(|limit| self.used >= limit)
    }

    fn is_past_half(&self) -> bool {
        self.limit.is_some_and(|limit| self.used > limit / 2)
    }

    /// By the share of the limit that is used, then by how much that is.
    pub fn cmp_share(&self, other: &KeyUsage) -> Ordering {
        let limit = |usage: &KeyUsage| u128::from(usage.limit.unwrap_or(u64::MAX).max(1));
        let share = |one: &KeyUsage, two: &KeyUsage| u128::from(one.used).saturating_mul(limit(two));
        share(self, other).cmp(&share(other, self)).then(self.used.cmp(&other.used))
    }
}

impl Explained {
    /// How the key stands.
    pub fn usage(&self, now: UnixMs) -> KeyUsage {
        self.usage_under(None, now)
    }

    /// The same under another limit than the one that was applied last, if there is another.
    pub fn usage_under(&self, limit: Option<u64>, now: UnixMs) -> KeyUsage {
        let parts = self.key.parts();
        KeyUsage::of(&self.cells, (parts.cell_ms(), parts.resolution), limit, now)
    }
}

/// A key, and how it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranked {
    /// The key.
    pub key: Key,
    /// How it stands.
    pub usage: KeyUsage,
}

/// The keys that a rule counts, whoever they belong to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Scope {
    /// Whose limits.
    pub workspace: Vec<u8>,
    /// Which family of them.
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

/// Those of a scope that are over their limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Over {
    /// The scope.
    pub scope: Scope,
    /// How many keys.
    pub keys: u64,
    /// The furthest, first; at most [`MAX_SCOPE_KEYS`].
    pub furthest: Vec<Ranked>,
}

/// What a walk over all keys has found so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Top {
    /// The nearest to their limits, first; at most [`MAX_TOP`].
    pub nearest: Vec<Ranked>,
    /// Keys of which a limit is known.
    pub limited: u64,
    /// Keys past half their limit.
    pub past_half: u64,
    /// Keys over their limit.
    pub over: u64,
    /// By scope, in the order in which they were given.
    pub scopes: Vec<Over>,
    from: usize,
}

impl Top {
    /// Nothing yet; looks at `scopes` too, of which [`MAX_SCOPES`] count.
    pub fn new(scopes: impl IntoIterator<Item = Scope>) -> Top {
        let empty = |scope| Over { scope, keys: 0, furthest: Vec::new() };
        Top { scopes: scopes.into_iter().take(MAX_SCOPES).map(empty).collect(), ..Top::default() }
    }

    fn take(&mut self, key: &Key, usage: KeyUsage) {
        // Denials that lead to a ban are counted on keys beside; nobody is limited by them.
        if usage.limit.is_none() || counts_denials(key.parts().namespace) {
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

/// Puts a key in its place among the first `most`.
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
    /// Looks at some more keys; true if there are others. What changes during the walk may be missed.
    pub fn rank(&self, top: &mut Top, now: UnixMs) -> bool {
        let (some, next) = self.keys.scan(top.from);
        for (slot, state) in some {
            let resolution = u16::try_from(state.resolution()).unwrap_or(u16::MAX);
            let usage = KeyUsage::of(state.cells(), (state.cell_ms(), resolution), None, now);
            if let Some((key, _)) = self.keys.at(slot) {
                top.take(key, usage);
            }
        }
        top.from = next.unwrap_or(0);
        next.is_some()
    }
}
