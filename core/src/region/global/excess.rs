//! The largest excess over a limit that all regions together were found to have used, for each scope.
//!
//! An excess is found when another region's count arrives: by then both have published. The region that used more may have applied a
//! change of live control that has not arrived here, so the limit is looked up some seconds later. What had been used before does not
//! count: the limit may have fallen since. An excess is kept for five to ten minutes, so that a monitoring system which reads it once a
//! minute misses none.

use crate::model::key::Key;
use crate::model::time::UnixMs;
use crate::region::top::Scope;
use alloc::collections::BTreeMap;

/// Most scopes; an excess of a further one is not recorded.
const MAX_EXCESS_SCOPES: usize = 256;
/// Most keys that wait; a further one is not examined.
const MAX_SUSPECTS: usize = 1_024;
/// How long an excess is the newest period's, in milliseconds.
const PERIOD_MS: u64 = 300_000;
/// After this time a change of live control has arrived in all regions, in milliseconds.
const SETTLE_MS: u64 = 5_000;

/// By scope.
#[derive(Debug, Default)]
pub(in crate::region) struct Excesses {
    scopes: BTreeMap<Scope, Excess>,
    suspects: BTreeMap<Key, Suspect>,
}

/// The use of a key that exceeded the limit known then.
#[derive(Clone, Copy, Debug)]
struct Suspect {
    /// What was used before the first count that exceeded it.
    before: u64,
    /// What is used, until it is judged.
    used: Option<u64>,
    /// When it is judged; then, how long further counts have the same `before`.
    due: UnixMs,
}

#[derive(Clone, Copy, Debug, Default)]
struct Excess {
    period: u64,
    /// The largest of this period and of the one before, in thousandths of the limit.
    largest: u64,
    before: u64,
}

impl Excess {
    fn at(&self, period: u64) -> Excess {
        match period.saturating_sub(self.period) {
            0 => *self,
            1 => Excess { period, largest: 0, before: self.largest },
            _ => Excess { period, ..Excess::default() },
        }
    }
}

impl Excesses {
    /// A key was used beyond the limit known here; `before` is what was used before the last count arrived.
    pub(in crate::region) fn suspect(&mut self, key: &Key, before: u64, used: u64, now: UnixMs) {
        let due = UnixMs(now.0.saturating_add(SETTLE_MS));
        if let Some(suspect) = self.suspects.get_mut(key) {
            if suspect.used.is_none() {
                suspect.due = due;
            }
            suspect.used = suspect.used.max(Some(used));
            return;
        }
        if self.suspects.len() >= MAX_SUSPECTS {
            self.suspects.retain(|_, suspect| suspect.used.is_some());
        }
        if self.suspects.len() < MAX_SUSPECTS {
            self.suspects.insert(key.clone(), Suspect { before, used: Some(used), due });
        }
    }

    /// Records the excesses of keys that were suspected some seconds ago. `limit` is a key's limit now.
    pub(in crate::region) fn judge(&mut self, limit: impl Fn(&Key) -> Option<u64>, now: UnixMs) {
        let Excesses { scopes, suspects } = self;
        suspects.retain(|key, suspect| {
            // A clock that was set back delays none for longer.
            let most_ms = if suspect.used.is_some() { SETTLE_MS } else { PERIOD_MS };
            if suspect.due > now && suspect.due.0 <= now.0.saturating_add(most_ms) {
                return true;
            }
            let Some(used) = suspect.used.take() else { return false };
            if let Some(limit) = limit(key) {
                note(scopes, key, used.saturating_sub(limit.max(suspect.before)), limit, now);
            }
            suspect.due = UnixMs(now.0.saturating_add(PERIOD_MS));
            true
        });
    }

    /// The largest excess of the last minutes by scope, in thousandths of the limit.
    pub(in crate::region) fn all(&self, now: UnixMs) -> impl Iterator<Item = (&Scope, u64)> {
        self.scopes.iter().map(move |(scope, excess)| {
            let excess = excess.at(now.0 / PERIOD_MS);
            (scope, excess.largest.max(excess.before))
        })
    }
}

fn note(scopes: &mut BTreeMap<Scope, Excess>, key: &Key, beyond: u64, limit: u64, now: UnixMs) {
    if beyond == 0 {
        return;
    }
    let thousandths = u128::from(beyond).saturating_mul(1_000).div_ceil(u128::from(limit.max(1)));
    let parts = key.parts();
    let scope = Scope {
        workspace: parts.workspace.to_vec(),
        namespace: parts.namespace.to_vec(),
        window_ms: parts.duration_ms,
    };
    if scopes.len() >= MAX_EXCESS_SCOPES && !scopes.contains_key(&scope) {
        return;
    }
    let excess = scopes.entry(scope).or_default();
    *excess = excess.at(now.0 / PERIOD_MS);
    excess.largest = excess.largest.max(u64::try_from(thousandths).unwrap_or(u64::MAX));
}
