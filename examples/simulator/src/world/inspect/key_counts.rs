//! The counts of one key in all parts at a moment, beside the true use, for plots.

use super::{entry_of, used_in};
use crate::check::CellId;
use crate::plan::keys::{WORKSPACE, decimal};
use crate::world::World;
use serde::Serialize;
use weir_core::model::time::UnixMs;
use weir_core::model::window::Position;

/// A key at a moment. All values are what counts against the limit then, by the rule's formula and the true time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeyCounts {
    /// What all Envoys of all regions have admitted.
    pub truth: u64,
    /// The counts in each region, in order.
    pub snapshots: Vec<Snapshot>,
}

/// The counts in a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Snapshot {
    /// The highest count among its aggregators; `None` if no aggregator is running.
    pub region: Option<u64>,
    /// The lowest and the highest count among its Envoys; `None` if no Envoy is running.
    pub envoys: Option<(u64, u64)>,
}

impl World<'_> {
    /// The counts of an identifier under a rule; `None` if there is no such rule.
    pub fn key_counts(&self, identifier: u64, rule: usize) -> Option<KeyCounts> {
        let shape = self.shapes.get(rule)?;
        let at = Position::at(UnixMs(self.unix_ms()), shape.cell_ms);
        let id = CellId { rule, sequence: at.sequence, identifier };
        let truth = &self.check.truth;
        let count = |of: &dyn Fn(u64) -> u64| truth.used(id, |id| of(id.sequence)).effective(&at);
        let passed = |sequence| truth.sum(CellId { sequence, ..id }, |_| true, |share| share.admitted);
        let key = shape.key(identifier);
        let mut snapshots = vec![Snapshot::default(); self.plan.topology.regions];
        for (number, envoy) in self.envoys.iter().enumerate() {
            let (Some(process), Some(snapshot)) = (&envoy.process, snapshots.get_mut(self.place(number).0))
            else {
                continue;
            };
            let entry = entry_of(process, &key);
            let used = count(&|sequence| entry.as_ref().map_or(0, |entry| used_in(entry, sequence)));
            let (least, most) = snapshot.envoys.unwrap_or((used, used));
            snapshot.envoys = Some((least.min(used), most.max(used)));
        }
        let mut text = [0; 20];
        let name = decimal(identifier, &mut text);
        for host in &self.aggregators {
            let (Some(process), Some(snapshot)) = (&host.process, snapshots.get_mut(host.region)) else {
                continue;
            };
            let explained = process.state.region.explain(WORKSPACE, &shape.namespace, name);
            let cells = explained.iter().filter(|one| one.key.as_bytes() == key).flat_map(|one| &one.cells);
            let cells: Vec<_> = cells.collect();
            let used = count(&|sequence| {
                let cell = cells.iter().find(|cell| cell.sequence == sequence);
                cell.map_or(0, |cell| cell.regional_total().saturating_add(cell.global_others))
            });
            snapshot.region = snapshot.region.max(Some(used));
        }
        Some(KeyCounts { truth: count(&passed), snapshots })
    }
}
