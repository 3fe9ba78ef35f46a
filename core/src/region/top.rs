//! The keys nearest their limits, for status pages. They are found in steps, so that no stream waits for a walk over a
//! million keys.
//!
//! The use of a key is computed as for decisions: what counts of its cells, against the limit that was applied last. If
//! the caller passes the limit that applies from now on, that limit is used instead.

use super::cell::CellState;
use super::{KeyCells, Region};
use crate::model::key::{Key, KeyParts, is_reserved};
use crate::model::time::UnixMs;
use crate::model::window::{Position, Used};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cmp::Ordering;

/// Most keys of a [`Top`].
pub const MAX_TOP: usize = 100;
/// Most scopes of a [`Top`].
pub const MAX_SCOPES: usize = 4_096;
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

impl KeyCells {
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

/// How a key matches the text that is searched, the best first. Without a text all are alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Match {
    /// The text is the identifier.
    #[default]
    Whole,
    /// The same, but for the case of ASCII letters.
    WholeInOtherCase,
    /// The identifier begins with the text, without regard to case, as in the following.
    Beginning,
    /// The identifier contains the text.
    Part,
    /// The namespace contains the text.
    Namespace,
}

impl Match {
    /// How a key matches `text`, if it does.
    pub fn of(text: &[u8], identifier: &[u8], namespace: &[u8]) -> Option<Match> {
        let is_in = |whole: &[u8]| whole.windows(text.len()).any(|part| part.eq_ignore_ascii_case(text));
        if text.is_empty() || text == identifier {
            return Some(Match::Whole);
        }
        if text.eq_ignore_ascii_case(identifier) {
            return Some(Match::WholeInOtherCase);
        }
        if identifier.get(..text.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(text)) {
            return Some(Match::Beginning);
        }
        is_in(identifier).then_some(Match::Part).or_else(|| is_in(namespace).then_some(Match::Namespace))
    }
}

/// A key and its use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranked {
    /// The key.
    pub key: Key,
    /// Its use.
    pub usage: KeyUsage,
    /// How it matches the text that is searched.
    pub matches: Match,
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
    fn order(&self, parts: &KeyParts<'_>) -> Ordering {
        let own = (self.workspace.as_slice(), self.namespace.as_slice(), self.window_ms);
        own.cmp(&(parts.workspace, parts.namespace, parts.duration_ms))
    }
}

/// The keys of a scope that are over their limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Over {
    /// The scope.
    pub scope: Scope,
    /// Whether a rule counts them that may deny. If not, they are no denials.
    pub is_enforced: bool,
    /// The number of such keys.
    pub keys: u64,
    /// The keys farthest over their limits, the farthest first; at most [`MAX_SCOPE_KEYS`].
    pub furthest: Vec<Ranked>,
}

/// What a walk over all keys has found so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Top {
    /// The keys nearest their limits, the nearest first; at most [`MAX_TOP`]. Of a search, the best matches come first. Otherwise keys that
    /// no rule may deny are left out.
    pub nearest: Vec<Ranked>,
    /// Keys with a known limit.
    pub limited: u64,
    /// Keys past half a limit by which they may be denied.
    pub past_half: u64,
    /// Keys over a limit by which they may be denied.
    pub over: u64,
    /// In ascending order.
    pub scopes: Vec<Over>,
    /// Only keys that match it are considered.
    text: Vec<u8>,
    from: usize,
}

impl Top {
    /// Begins a walk. It finds the keys over their limits of the first [`MAX_SCOPES`] of `scopes` as well, each with whether a rule counts
    /// them that may deny.
    pub fn new(scopes: impl IntoIterator<Item = (Scope, bool)>) -> Top {
        let mut sorted: BTreeMap<Scope, bool> = BTreeMap::new();
        for (scope, is_enforced) in scopes {
            *sorted.entry(scope).or_default() |= is_enforced;
        }
        let empty = |(scope, is_enforced)| Over { scope, is_enforced, keys: 0, furthest: Vec::new() };
        Top { scopes: sorted.into_iter().take(MAX_SCOPES).map(empty).collect(), ..Top::default() }
    }

    /// Restricts the walk to the keys that match `text`.
    pub fn matching(self, text: &[u8]) -> Top {
        Top { text: text.to_vec(), ..self }
    }

    fn take(&mut self, key: &Key, usage: KeyUsage) {
        // Violations that lead to a ban are counted on separate keys, which limit no request.
        let parts = key.parts();
        if usage.limit.is_none() || is_reserved(parts.namespace) {
            return;
        }
        let Some(matches) = Match::of(&self.text, parts.identifier, parts.namespace) else { return };
        let over = usage.is_over();
        let scope = self.scopes.binary_search_by(|one| one.scope.order(&parts)).ok();
        let mut scope = scope.and_then(|at| self.scopes.get_mut(at));
        let may_deny = scope.as_ref().is_none_or(|scope| scope.is_enforced);
        self.limited = self.limited.saturating_add(1);
        self.past_half = self.past_half.saturating_add(u64::from(may_deny && usage.is_past_half()));
        self.over = self.over.saturating_add(u64::from(may_deny && over));
        if usage.used > 0 && (may_deny || !self.text.is_empty()) {
            rank(&mut self.nearest, MAX_TOP, key, (matches, usage));
        }
        if let Some(scope) = scope.as_mut().filter(|_| over) {
            scope.keys = scope.keys.saturating_add(1);
            rank(&mut scope.furthest, MAX_SCOPE_KEYS, key, (Match::Whole, usage));
        }
    }
}

/// Inserts a key at its place among the first `most`.
fn rank(ranked: &mut Vec<Ranked>, most: usize, key: &Key, (matches, usage): (Match, KeyUsage)) {
    let before = |other: &Ranked| {
        let order = other.matches.cmp(&matches).then_with(|| usage.cmp_share(&other.usage));
        order.then_with(|| other.key.cmp(key)) == Ordering::Less
    };
    if ranked.len() >= most && ranked.last().is_some_and(before) {
        return;
    }
    let place = ranked.partition_point(before);
    ranked.insert(place, Ranked { key: key.clone(), usage, matches });
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
