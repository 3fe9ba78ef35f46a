//! The aggregators of a region, as its store lists them.

use crate::model::time::MonoMs;
use alloc::collections::BTreeSet;

/// Those that the region's store listed as alive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    aggregators: BTreeSet<[u8; 16]>,
    /// When the store listed them.
    read: Option<MonoMs>,
}

impl Members {
    /// The store lists the aggregators with these ids.
    pub(super) fn listed(&mut self, aggregators: &[[u8; 16]], now: MonoMs) {
        self.aggregators = aggregators.iter().copied().collect();
        self.read = Some(now);
    }

    /// Their ids; `None` if the store has not listed them within `recent_ms`.
    pub(super) fn recent(&self, recent_ms: u64, now: MonoMs) -> Option<&BTreeSet<[u8; 16]>> {
        self.read.is_some_and(|read| now.since(read) < recent_ms).then_some(&self.aggregators)
    }
}
