//! What everybody believes of one key at a moment, beside the truth: for plots.
//!
//! Leaves to others: looking at the right moments (`series`), and what must hold (`check`).

use super::{entry_of, used_in};
use crate::check::CellId;
use crate::plan::keys::{WORKSPACE, decimal};
use crate::world::World;
use serde::Serialize;
use weir_core::model::time::UnixMs;
use weir_core::model::window::Position;

/// A key at a moment. All counts are what counts against the limit then, by the rule's own law and the true time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Standing {
    /// Of what all Envoys of all regions have let pass.
    pub truth: u64,
    /// Each region's, in order.
    pub snapshots: Vec<Snapshot>,
}

/// What a region believes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Snapshot {
    /// The aggregator that knows most of it; `None` while there is none.
    pub region: Option<u64>,
    /// The Envoy that knows least, and the one that knows most; `None` while there is none.
    pub envoys: Option<(u64, u64)>,
}

impl World<'_> {
    /// What everybody believes of an identifier under a rule; `None` if there is no such rule.
    pub fn standing(&self, identifier: u64, rule: usize) -> Option<Standing> {
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
        Some(Standing { truth: count(&passed), snapshots })
    }
}
