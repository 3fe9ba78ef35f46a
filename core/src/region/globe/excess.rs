//! The largest excess over a limit that all regions together were found to have used, for each scope.
//!
//! An excess is found when another region's count arrives: by then both have published. It is kept for five to ten minutes, so that a
//! monitoring system which reads it once a minute misses none.

use crate::model::key::KeyParts;
use crate::model::time::UnixMs;
use crate::region::top::{KeyUsage, Scope};
use alloc::collections::BTreeMap;

/// Most scopes; an excess of a further one is not recorded.
const MAX_EXCESS_SCOPES: usize = 256;
/// How long an excess is the newest period's, in milliseconds.
const PERIOD_MS: u64 = 300_000;

/// By scope.
#[derive(Debug, Default)]
pub(in crate::region) struct Excesses(BTreeMap<Scope, Excess>);

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
    /// Records the use of a key that several regions have used.
    pub(in crate::region) fn note(&mut self, parts: &KeyParts<'_>, usage: &KeyUsage, now: UnixMs) {
        let Some(limit) = usage.limit.filter(|limit| usage.used > *limit) else { return };
        let beyond = u128::from(usage.used.saturating_sub(limit)).saturating_mul(1_000);
        let thousandths = u64::try_from(beyond.div_ceil(u128::from(limit.max(1)))).unwrap_or(u64::MAX);
        let scope = Scope {
            workspace: parts.workspace.to_vec(),
            namespace: parts.namespace.to_vec(),
            window_ms: parts.duration_ms,
        };
        if self.0.len() >= MAX_EXCESS_SCOPES && !self.0.contains_key(&scope) {
            return;
        }
        let excess = self.0.entry(scope).or_default();
        *excess = excess.at(now.0 / PERIOD_MS);
        excess.largest = excess.largest.max(thousandths);
    }

    /// The largest excess of the last minutes by scope, in thousandths of the limit.
    pub(in crate::region) fn all(&self, now: UnixMs) -> impl Iterator<Item = (&Scope, u64)> {
        self.0.iter().map(move |(scope, excess)| {
            let excess = excess.at(now.0 / PERIOD_MS);
            (scope, excess.largest.max(excess.before))
        })
    }
}
