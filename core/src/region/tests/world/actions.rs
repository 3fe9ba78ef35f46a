//! The actions that may happen at any step: traffic, reports, queries, messages and intervals of aggregators, and
//! faults.

use super::*;

impl World {
    pub(super) fn spend(&mut self, n: usize) {
        let key = self.any_key();
        let at = (key.clone(), self.sequence(&key));
        let cost = 1 + self.random.below(3) as u64;
        let envoy = &mut self.envoys[n];
        *envoy.own.entry(at.clone()).or_default() += cost;
        envoy.unacknowledged.insert(at);
    }

    /// Sends what is not acknowledged, now and then to another aggregator, since each worker has its own stream.
    pub(super) fn report(&mut self, n: usize) {
        let (region, home) = (self.envoys[n].region, self.envoys[n].home);
        let to = if self.random.percent(30) { self.random.below(AGGREGATORS) } else { home };
        if self.random.percent(15) {
            return; // the report is lost
        }
        let (lags, repeats) = (self.random.percent(20), self.random.percent(20));
        let oldest = |key: &Key| self.now.0 / key.parts().cell_ms() - u64::from(key.parts().resolution);
        let envoy = &self.envoys[n];
        let counts: Vec<_> = envoy
            .unacknowledged
            .iter()
            .filter(|(key, sequence)| *sequence >= oldest(key))
            .map(|at| wire::Count {
                key: at.0.as_bytes().to_vec(),
                sequence: at.1,
                own: envoy.own.get(at).map_or(0, |own| own - u64::from(lags)),
                limit: LIMIT,
                region_others: envoy.snapshot.get(at).copied().unwrap_or(0),
                ..wire::Count::default()
            })
            .collect();
        let id = envoy.id;
        let aggregator = &mut self.aggregators[region][to];
        aggregator.region.nodes.received_from(id, MonoMs(self.now.0));
        for _ in 0..1 + usize::from(repeats) {
            assert_eq!(aggregator.region.report(id, &counts, self.now).refused, vec![]);
        }
        if !lags {
            self.envoys[n].unacknowledged.clear();
        }
    }

    pub(super) fn query(&mut self, n: usize) {
        let key = self.any_key();
        let at = (key.clone(), self.sequence(&key));
        let (cost, is_lost) = (self.random.below(4) as u64, self.random.percent(10));
        let envoy = &mut self.envoys[n];
        let own = envoy.own.get(&at).copied().unwrap_or(0);
        let granted = envoy.granted.entry(at.clone()).or_default();
        *granted = (own + cost).max(*granted);
        let query = wire::Query {
            id: 1,
            key: key.as_bytes().to_vec(),
            sequence: at.1,
            own,
            cost,
            limit: LIMIT,
            ..Default::default()
        };
        let (store, id) = (&mut self.stores[envoy.region], envoy.id);
        let aggregator = &mut self.aggregators[envoy.region][envoy.home];
        let Ok(Proposed::Query(merge)) = aggregator.region.propose(id, &query, self.now) else { return };
        let answer = (!store.unavailable).then(|| store.merge(&merge));
        let call = Call::Query(n, query, merge, answer.filter(|_| !is_lost));
        aggregator.calls.push(call);
    }

    pub(super) fn replay(&mut self, region: usize, one: usize) {
        let most = 1 + self.random.below(4);
        let store = &mut self.stores[region];
        let aggregator = &mut self.aggregators[region][one];
        for merge in aggregator.region.next_merges(most) {
            let answer = (!store.unavailable).then(|| store.merge(&merge));
            // Some calls time out although the store has executed them.
            let answer = answer.filter(|_| !self.random.percent(10));
            aggregator.calls.push(Call::Write(merge, answer));
        }
        let hot = aggregator.region.next_hot(most);
        if store.unavailable {
            aggregator.region.hot_failed(&hot);
        } else {
            store.hot.extend(hot.into_iter().map(|hot| (hot.key, hot.sequence)));
        }
    }

    /// Any one of the pending answers arrives; it may belong to an ended incarnation.
    pub(super) fn deliver(&mut self, region: usize, one: usize) {
        let aggregator = &mut self.aggregators[region][one];
        if aggregator.calls.is_empty() {
            return;
        }
        let call = aggregator.calls.swap_remove(self.random.below(aggregator.calls.len()));
        match call {
            Call::Write(merge, Some(answer)) => aggregator.region.merged(&merge, &answer, self.now),
            Call::Write(merge, _) => aggregator.region.merge_failed(&[merge]),
            Call::Query(n, query, merge, answer) => {
                let id = self.envoys[n].id;
                let result = match answer {
                    Some(answer) => aggregator.region.concluded(id, &query, &merge, &answer, self.now),
                    None => aggregator.region.query(id, &query, self.now),
                };
                // Some answers arrive too late or not at all; then the Envoy uses nothing of them.
                let Some(result) = result.ok().filter(|_| !self.random.percent(20)) else { return };
                if result.granted && query.cost > 0 {
                    let own = self.envoys[n].own.entry((merge.key.clone(), merge.sequence)).or_default();
                    *own = (query.own + query.cost).max(*own);
                    self.envoys[n].unacknowledged.insert((merge.key.clone(), merge.sequence));
                }
                for snapshot in result.current.into_iter().chain(result.previous).chain(result.older) {
                    self.see(n, (merge.key.clone(), snapshot.sequence), &snapshot);
                }
            }
        }
    }

    pub(super) fn share(&mut self, region: usize, one: usize) {
        let store_ids = self.aggregators[region][one].region.store_ids().clone();
        for change in self.aggregators[region][one].region.next_changes(8) {
            for other in (0..AGGREGATORS).filter(|other| *other != one) {
                if !self.loses || !self.random.percent(20) {
                    self.aggregators[region][other].inbox.push((store_ids.clone(), change.clone()));
                }
            }
        }
        let aggregator = &mut self.aggregators[region][one];
        while !aggregator.inbox.is_empty() {
            let (store_ids, change) = aggregator.inbox.swap_remove(self.random.below(aggregator.inbox.len()));
            let parts: Vec<Part> = change
                .parts
                .iter()
                .map(|part| (NodeId(part.node.as_slice().try_into().unwrap()), part.own))
                .collect();
            let key = Key::parse(&change.key).unwrap();
            // A cell that has ended by now is refused.
            let (sequence, limit) = (change.sequence, change.limit);
            let _ = aggregator.region.learn_from_peer(&key, sequence, limit, &parts, &store_ids, self.now);
        }
    }

    /// Reads the marker.
    pub(super) fn read_marker(&mut self, region: usize, one: usize) {
        let own: Vec<(At, u64)> =
            self.live_rows(|by| by == region).map(|(_, at, count)| (at, count)).collect();
        let store = &self.stores[region];
        let aggregator = &mut self.aggregators[region][one];
        if store.unavailable || aggregator.incarnation == Some(store.incarnation) {
            return;
        }
        // Even the first read may find another incarnation than the one that something was written to.
        aggregator.region.store_wiped();
        aggregator.region.set_store_ids(exchange::StoreIds(vec![store.incarnation + 1]));
        if aggregator.incarnation.replace(store.incarnation).is_some() {
            aggregator.lost = Some(self.now);
            for (at, total) in own {
                let _ = aggregator.region.witness(at.0.as_bytes(), at.1, total, self.now);
            }
        }
    }

    /// The rows of these regions that the table returns, which are those that have not expired.
    fn live_rows(&self, of: impl Fn(usize) -> bool) -> impl Iterator<Item = (usize, At, u64)> {
        let rows = self.table.iter().filter(move |((by, at), _)| of(*by) && self.is_live(at));
        rows.map(|((by, at), count)| (*by, at.clone(), *count))
    }

    pub(super) fn read_hot(&mut self, region: usize, one: usize) {
        let store = &self.stores[region];
        if store.unavailable {
            return;
        }
        for at in &store.hot {
            let cell = store.cell(at);
            let aggregator = &mut self.aggregators[region][one].region;
            let _ = aggregator.learn(&at.0, at.1, cell.limit, &cell.current, self.now);
        }
    }

    pub(super) fn publish(&mut self, region: usize, one: usize) {
        let aggregator = &mut self.aggregators[region][one];
        if core::mem::replace(&mut aggregator.table_incarnation, self.table_incarnation)
            != self.table_incarnation
        {
            aggregator.region.forget_published();
        }
        let mut due = vec![];
        while aggregator.region.has_rows(Due::AtInterval) {
            due.extend(aggregator.region.next_rows(Due::AtInterval, 2, self.now));
        }
        let done = if self.random.percent(25) { self.random.below(due.len() + 1) } else { due.len() };
        for row in &due[..done] {
            assert!(row.key.parts().duration_ms >= SHORTEST_PUBLISHED_MS, "short windows are not published");
            let held = self.table.entry((region, (row.key.clone(), row.sequence))).or_default();
            *held = row.count.max(*held);
        }
        aggregator.region.published(&due[..done], self.now);
        aggregator.region.publish_failed(&due, self.now);
    }

    pub(super) fn import(&mut self, region: usize, one: usize) {
        let others: Vec<_> = self.live_rows(|by| by != region).collect();
        let importing = &mut self.aggregators[region][one].region;
        for (by, at, count) in others {
            let other = importing.other_region(&by.to_le_bytes()).unwrap();
            let row = exchange::Stored { key: at.0.clone(), sequence: at.1, count, limit: LIMIT };
            let _ = importing.import(other, &row, self.now);
        }
    }

    pub(super) fn take_pushes(&mut self, n: usize) {
        let (region, home) = (self.envoys[n].region, self.envoys[n].home);
        let id = self.envoys[n].id;
        while let Some(push) = self.aggregators[region][home].region.next_push(id, self.now) {
            for snapshot in push.snapshots {
                self.see(n, (Key::parse(&snapshot.key).unwrap(), snapshot.sequence), &snapshot);
            }
        }
    }

    pub(super) fn see(&mut self, n: usize, at: At, snapshot: &wire::Snapshot) {
        let region = self.envoys[n].region;
        let own = self.envoys[n].own.get(&at).copied().unwrap_or(0);
        let others = self.bound(region, &at) - if self.queries { 0 } else { own };
        assert!(snapshot.region_others <= others, "received {} of {others}: {at:?}", snapshot.region_others);
        let elsewhere = (0..REGIONS).filter(|other| *other != region);
        let elsewhere: u64 = elsewhere.map(|other| self.bound(other, &at)).sum();
        assert!(snapshot.global_others <= elsewhere, "no region imports its own use: {at:?}");
        let known = self.envoys[n].snapshot.entry(at).or_default();
        *known = snapshot.region_others.max(*known);
    }

    /// Ends a recovery grace period after all running nodes have reported again.
    pub(super) fn end_grace_period(&mut self, region: usize, one: usize) {
        if self.aggregators[region][one].lost.is_none() {
            return;
        }
        self.settle_region(region);
        let Some(lost) = self.aggregators[region][one].lost.take() else { return };
        let lower_bounds = self.aggregators[region][one].region.end_grace_period(lost);
        for lower_bound in lower_bounds {
            let answer = self.stores[region].raise_to(&lower_bound);
            assert!(
                self.queries || !answer.current.iter().any(|(by, _)| *by == BASELINE),
                "no node has ended, so no baseline is needed"
            );
            let aggregator = &mut self.aggregators[region][one];
            let incarnation = aggregator.region.store_incarnation();
            aggregator.region.floored(&lower_bound, &answer, incarnation, self.now);
        }
    }

    pub(super) fn pass_time(&mut self) {
        self.now.0 += 1 + self.random.below(8_000) as u64;
        for aggregator in self.aggregators.iter_mut().flatten() {
            while aggregator.region.tick(self.now) {}
        }
    }

    pub(super) fn break_something(&mut self, region: usize, one: usize) {
        match self.random.below(5) {
            0 => self.stores[region].wipe(),
            1 => {
                self.table.clear();
                self.table_incarnation += 1;
            }
            2 => {
                self.crashes += 1;
                self.aggregators[region][one] = Aggregator::new(100 + self.crashes);
                // Streams end. The remaining aggregators receive again what each Envoy owns, and the others' counts
                // that it had received.
                for n in 0..self.envoys.len() {
                    if self.envoys[n].region == region {
                        let envoy = &mut self.envoys[n];
                        envoy.unacknowledged.extend(envoy.own.keys().cloned());
                        self.connect(n);
                    }
                }
            }
            _ => self.move_subscriber(region),
        }
    }

    /// An Envoy's subscriber stream ends, with the pushes on their way, and another aggregator gets the next one. The
    /// old aggregator may not notice it.
    fn move_subscriber(&mut self, region: usize) {
        let n = region * ENVOYS + self.random.below(ENVOYS);
        let (old, is_noticed) = (self.envoys[n].home, self.random.percent(50));
        let envoy = &mut self.envoys[n];
        envoy.home = (old + 1) % AGGREGATORS;
        envoy.unacknowledged.extend(envoy.own.keys().cloned());
        let left = &mut self.aggregators[region][old].region;
        while left.next_push(envoy.id, self.now).is_some() {}
        if is_noticed {
            left.gone(envoy.id);
        }
        self.connect(n);
    }
}
