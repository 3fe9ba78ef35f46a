//! The simplest implementation of what a region's store guarantees.

use super::*;

/// Does what the scripts of the regional store do.
#[derive(Default)]
pub(super) struct Store {
    pub(super) incarnation: u64,
    pub(super) unavailable: bool,
    pub(super) cells: BTreeMap<At, BTreeMap<OriginId, u64>>,
    pub(super) limits: BTreeMap<At, u64>,
    pub(super) hot: BTreeSet<At>,
}

impl Store {
    pub(super) fn cell(&self, at: &At) -> Merged {
        let parts = self.cells.get(at).map(|cell| cell.iter().map(|(o, n)| (*o, *n)).collect());
        Merged {
            granted: None,
            current: parts.unwrap_or_default(),
            previous: vec![],
            limit: self.limits.get(at).copied().unwrap_or(u64::MAX),
        }
    }

    pub(super) fn merge(&mut self, merge: &Merge) -> Merged {
        let at = (merge.key.clone(), merge.sequence);
        let resolution = u64::from(merge.key.parts().resolution);
        let cell_before = |back| self.cell(&(merge.key.clone(), merge.sequence - back)).current;
        let before: Vec<Vec<Part>> = (1..=resolution).map(cell_before).collect();
        let components = self.cells.entry(at.clone()).or_default();
        for (origin, own) in &merge.parts {
            let held = components.entry(*origin).or_default();
            *held = (*own).max(*held);
        }
        let mut granted = None;
        if let Some(proposal) = &merge.proposal {
            let sum = |parts: &mut dyn Iterator<Item = u64>| parts.sum::<u64>();
            let mut with = components.clone();
            let own = with.entry(proposal.origin).or_default();
            *own = proposal.own.max(*own);
            let previous = sum(&mut before.iter().flatten().map(|(_, own)| *own)) + proposal.global_previous;
            let used = sum(&mut with.values().copied()) + proposal.global_current;
            let fits = used + previous * proposal.covered_ms / proposal.cell_ms <= proposal.limit;
            if fits {
                *components = with;
            }
            granted = Some(fits);
        }
        let limit = self.limits.entry(at.clone()).or_insert(u64::MAX);
        *limit = merge.limit.min(*limit);
        let previous = if merge.wants_previous { before } else { vec![] };
        Merged { granted, previous, ..self.cell(&at) }
    }

    pub(super) fn raise_to(&mut self, lower_bound: &exchange::LowerBound) -> Merged {
        let at = (lower_bound.key.clone(), lower_bound.sequence);
        let cell = self.cells.entry(at.clone()).or_default();
        let missing = lower_bound.total.saturating_sub(cell.values().sum());
        if missing > 0 {
            *cell.entry(BASELINE).or_default() += missing;
        }
        self.cell(&at)
    }

    pub(super) fn wipe(&mut self) {
        *self =
            Store { incarnation: self.incarnation + 1, unavailable: self.unavailable, ..Store::default() };
    }
}
