//! The simplest implementation of what a region's store guarantees.

use super::*;

/// Does what the scripts of the regional store do.
#[derive(Default)]
pub(super) struct Store {
    pub(super) incarnation: u64,
    pub(super) unavailable: bool,
    pub(super) cells: BTreeMap<At, BTreeMap<NodeId, u64>>,
    pub(super) limits: BTreeMap<At, u64>,
    pub(super) lower_bounds: BTreeMap<At, u64>,
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
            lower_bound: self.lower_bounds.get(at).copied().unwrap_or(0),
        }
    }

    pub(super) fn merge(&mut self, merge: &Merge) -> Merged {
        let at = (merge.key.clone(), merge.sequence);
        let resolution = u64::from(merge.key.parts().resolution);
        let cell_before = |back| self.cell(&(merge.key.clone(), merge.sequence - back));
        let cells_before = (1..=resolution).map(cell_before).map(|cell| (cell.current, cell.lower_bound));
        let before: Vec<(Vec<Part>, u64)> = cells_before.collect();
        let components = self.cells.entry(at.clone()).or_default();
        let lower_bound = self.lower_bounds.entry(at.clone()).or_default();
        let had = components.values().sum::<u64>();
        for (node, own) in &merge.parts {
            if let Some(held) =
                components.get(node).filter(|_| merge.above.contains(node) && *lower_bound > had)
            {
                *lower_bound += own.saturating_sub(*held);
            }
            let held = components.entry(*node).or_default();
            *held = (*own).max(*held);
        }
        *lower_bound = merge.lower_bound.max(*lower_bound);
        let mut granted = None;
        if let Some(proposal) = &merge.proposal {
            let sum = |parts: &mut dyn Iterator<Item = u64>| parts.sum::<u64>();
            let mut with = components.clone();
            let own = with.entry(proposal.node).or_default();
            let spends = proposal.own.saturating_sub(*own);
            *own = proposal.own.max(*own);
            let previous =
                before.iter().map(|(parts, bound)| (*bound).max(parts.iter().map(|(_, own)| *own).sum()));
            let previous = previous.sum::<u64>() + proposal.global_previous;
            let held = sum(&mut components.values().copied());
            let used = held.max(*lower_bound) + spends + proposal.global_current;
            let fits = used + previous * proposal.covered_ms / proposal.cell_ms <= proposal.limit;
            if fits {
                *components = with;
                *lower_bound += if *lower_bound > held { spends } else { 0 };
            }
            granted = Some(fits);
        }
        let limit = self.limits.entry(at.clone()).or_insert(u64::MAX);
        *limit = merge.limit.min(*limit);
        let parts = before.into_iter().map(|(parts, _)| parts);
        let previous = if merge.wants_previous { parts.collect() } else { vec![] };
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
