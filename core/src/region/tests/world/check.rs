//! The invariants: at any time no count exceeds what was spent; after a quiet time every count reaches it.

use super::*;

impl World {
    /// Holds at any time: no count of a node exceeds what it has spent or was granted.
    pub(super) fn check_bounds(&self) {
        for region in 0..REGIONS {
            for envoy in &self.envoys {
                for (at, cell) in &self.stores[region].cells {
                    let held = cell.get(&envoy.id).copied().unwrap_or(0);
                    let most = if envoy.region == region { envoy.most(at) } else { 0 };
                    assert!(held <= most, "store {region} has {held} of {most}: {:?} {at:?}", envoy.id);
                }
            }
        }
        for ((region, at), count) in &self.table {
            assert!(*count <= self.bound(*region, at), "region {region} published {count}: {at:?}");
        }
        for (region, one, at, cell) in self.all_cells() {
            let bound = self.bound(region, &at);
            assert!(cell.regional_total() <= bound, "{one}: {} of {bound}: {at:?}", cell.regional_total());
            assert!(
                self.queries || cell.component(BASELINE) == 0,
                "no node has ended, so no baseline is needed"
            );
        }
    }

    pub(super) fn all_cells(&self) -> Vec<(usize, usize, At, CellState)> {
        let mut all = vec![];
        for region in 0..REGIONS {
            for one in 0..AGGREGATORS {
                for key in &self.keys {
                    let held = &self.aggregators[region][one].region;
                    for explained in held.explain(b"w", b"n", key.parts().identifier) {
                        for cell in explained.cells {
                            all.push((region, one, (explained.key.clone(), cell.sequence), cell));
                        }
                    }
                }
            }
        }
        all
    }

    /// All members of a region send what waits and receive what is in flight.
    pub(super) fn settle_region(&mut self, region: usize) {
        self.stores[region].unavailable = false;
        for _ in 0..3 {
            for n in (0..self.envoys.len()).filter(|n| n / ENVOYS == region) {
                for _ in 0..8 {
                    self.report(n);
                }
            }
            for one in 0..AGGREGATORS {
                self.read_marker(region, one);
                for _ in 0..24 {
                    self.replay(region, one);
                    self.deliver(region, one);
                    self.deliver(region, one);
                }
                while !self.aggregators[region][one].calls.is_empty() {
                    self.deliver(region, one);
                }
            }
        }
    }

    pub(super) fn quiet(&mut self) {
        self.loses = false;
        for _ in 0..4 {
            for region in 0..REGIONS {
                self.settle_region(region);
                for one in 0..AGGREGATORS {
                    self.end_grace_period(region, one);
                }
                for one in 0..AGGREGATORS {
                    self.share(region, one);
                    self.share(region, (one + 1) % AGGREGATORS);
                    self.read_hot(region, one);
                    for _ in 0..20 {
                        self.publish(region, one);
                    }
                    self.import(region, one);
                }
                self.settle_region(region);
            }
        }
        for n in 0..self.envoys.len() {
            self.take_pushes(n);
        }
        self.check_bounds();
    }

    pub(super) fn is_live(&self, at: &At) -> bool {
        at.1 + u64::from(at.0.parts().resolution) >= self.sequence(&at.0)
    }

    /// Must hold after a time without faults.
    pub(super) fn check_quiet(&self, always_shared: bool) {
        let cells: BTreeSet<At> = self
            .envoys
            .iter()
            .flat_map(|envoy| envoy.own.keys())
            .filter(|at| self.is_live(at))
            .cloned()
            .collect();
        for region in 0..REGIONS {
            for at in &cells {
                self.check_cell(region, at, always_shared);
            }
            for one in &self.aggregators[region] {
                assert!(!one.region.has_merges(), "counts still wait for the store");
                let stats = one.region.stats(MonoMs(self.now.0));
                assert_eq!((stats.pending_replays, stats.pending_publications), (0, 0));
            }
        }
        for (region, one, at, cell) in self.all_cells().into_iter().filter(|(_, _, at, _)| self.is_live(at)) {
            let others = self.table.iter().filter(|((by, of), _)| *by != region && *of == at);
            let imported: u64 = others.map(|(_, count)| count).sum();
            // A wiped table may hold less for a while, then holds the same again.
            assert_eq!(cell.global_others, imported, "imports of {region}/{one}: {at:?}");
        }
        for one in self.aggregators.iter().flatten() {
            let counted = one.region.stats(MonoMs(self.now.0)).windows;
            let keys = self.keys.iter();
            let held: usize = keys
                .flat_map(|key| one.region.explain(b"w", b"n", key.parts().identifier))
                .map(|explained| explained.cells.len())
                .sum();
            assert_eq!(counted, held as u64, "the reported number of windows");
        }
    }

    pub(super) fn check_cell(&self, region: usize, at: &At, always_shared: bool) {
        let truth = self.truth(region, at);
        let store = self.stores[region].cells.get(at).cloned().unwrap_or_default();
        for envoy in self.envoys.iter().filter(|envoy| envoy.region == region) {
            let own = envoy.own.get(at).copied().unwrap_or(0);
            let stored = store.get(&envoy.id).copied().unwrap_or(0);
            assert!(stored >= own, "the store has {stored} of {own}: {:?} {at:?}", envoy.id);
        }
        let sum: u64 = store.values().sum();
        assert!(self.queries || sum == truth, "the store has {sum} of {truth}: {at:?}");
        let others: u64 =
            (0..REGIONS).filter(|other| *other != region).map(|other| self.truth(other, at)).sum();
        let is_long = at.0.parts().duration_ms >= SHORTEST_PUBLISHED_MS;
        let published = self.table.get(&(region, at.clone())).copied().unwrap_or(0);
        // A cell that counts in full, and alone exceeds the limit by the use of all regions.
        let is_full = at.0.parts().resolution > 1 || at.1 >= self.sequence(&at.0);
        if is_long && is_full && sum + others > LIMIT {
            assert_eq!(published, sum, "region {region} has published {at:?}");
        }
        for (one, aggregator) in self.aggregators[region].iter().enumerate() {
            let mut here = self.envoys.iter().filter(|envoy| envoy.region == region && envoy.home == one);
            let follows = here.any(|envoy| envoy.own.contains_key(at));
            // A node may report what it alone uses to another aggregator than the one where it is subscribed.
            let is_shared = always_shared && follows && store.len() > 1;
            if sum > LIMIT / 2 || is_shared {
                let identifier = at.0.parts().identifier.to_vec();
                let held: Vec<Part> = aggregator
                    .region
                    .explain(b"w", b"n", &identifier)
                    .iter()
                    .flat_map(|explained| &explained.cells)
                    .filter(|cell| cell.sequence == at.1)
                    .flat_map(parts)
                    .filter(|(_, own)| *own > 0)
                    .collect();
                let stored: Vec<Part> =
                    store.iter().filter(|(_, own)| **own > 0).map(|(by, own)| (*by, *own)).collect();
                assert_eq!(held, stored, "{region}/{one} holds all of {at:?}");
            }
        }
        let receives = |envoy: &&Envoy| sum > LIMIT / 2 || (always_shared && envoy.own.contains_key(at));
        for envoy in self.envoys.iter().filter(|envoy| envoy.region == region).filter(receives) {
            let own = store.get(&envoy.id).copied().unwrap_or(0);
            let received = envoy.snapshot.get(at).copied().unwrap_or(0);
            assert!(received >= sum - own, "{:?} received {received} of {}: {at:?}", envoy.id, sum - own);
        }
    }
}
