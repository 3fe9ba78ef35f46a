//! What token budgets promise, in plans without faults: at each admission what an Envoy has charged and reserved is within the limit, so
//! that nothing is used beyond it but by how much answers exceeded their reserve. An answer whose use is known is charged that, and one
//! whose client has left as many tokens as its bytes are at least, and at most, by what was learned.

use super::Check;
use super::truth::CellId;
use crate::plan::keys::Shape;
use std::collections::BTreeMap;
use weir_core::model::window::Position;

/// The share of a limit that several Envoys of a region may together spend before they have received each other's use.
const SLACK_PART: u64 = 4;
/// Most bytes of a token, by the seed of what is learned.
const SEED_BYTES: u64 = 190;

/// What open requests have reserved, and what others have used beyond their reserve.
#[derive(Debug, Default)]
pub(super) struct Budgets {
    /// By rule, identifier and node.
    open: BTreeMap<(usize, u64, u32), u64>,
    beyond: BTreeMap<CellId, u64>,
    /// The largest reserve of a request.
    largest: u64,
}

impl Check {
    /// A request is admitted. Returns what others of its Envoy have reserved.
    pub(super) fn reserves(&mut self, shape: &Shape, id: CellId, node: u32) -> u64 {
        if shape.rule.answers.is_none() || self.faults > 0 {
            return 0;
        }
        let reserve = shape.rule.reserve;
        self.budgets.largest = self.budgets.largest.max(reserve);
        let open = self.budgets.open.entry((id.rule, id.identifier, node)).or_default();
        *open += reserve;
        *open - reserve
    }

    /// A response has ended, whose cost was charged in a cell.
    pub(super) fn returns(
        &mut self,
        shape: &Shape,
        id: CellId,
        node: u32,
        (at, cost): (&Position, u64),
        now_us: u64,
    ) {
        if shape.rule.answers.is_none() || self.faults > 0 {
            return;
        }
        let reserve = shape.rule.reserve;
        if let Some(open) = self.budgets.open.get_mut(&(id.rule, id.identifier, node)) {
            *open = open.saturating_sub(reserve);
        }
        *self.budgets.beyond.entry(id).or_default() += cost.saturating_sub(reserve);
        let beyond: u64 = self.truth.cells_of_window(id).filter_map(|id| self.budgets.beyond.get(&id)).sum();
        let nodes = self.truth.running();
        let unseen = if nodes > 1 { shape.rule.limit / SLACK_PART + nodes * self.budgets.largest } else { 0 };
        let used = self
            .truth
            .used(id, |id| self.truth.sum(id, |_| true, |share| share.admitted.saturating_sub(share.border)));
        let bound = shape.rule.limit.saturating_add(beyond).saturating_add(unseen);
        if !used.admits(at, 0, bound) {
            self.violated("budget", now_us, || {
                format!(
                    "{used:?} of {id:?} were used, limit {}, {beyond} beyond reserves, {unseen} unseen",
                    shape.rule.limit
                )
            });
        }
    }

    /// An answer has been charged `cost`; `left_after`: the bytes after which its client left. No answer has fewer than `least` bytes for
    /// each token.
    pub(crate) fn answered(
        &mut self,
        arrival: &crate::plan::traffic::Arrival,
        (left_after, cost): (Option<u64>, u64),
        least: u64,
        now_us: u64,
    ) {
        let expected = match left_after {
            None => arrival.cost..=arrival.cost,
            Some(bytes) => {
                bytes.div_ceil(SEED_BYTES)..=bytes.div_ceil(least.clamp(1, SEED_BYTES)).saturating_add(1)
            }
        };
        if !expected.contains(&cost) {
            self.violated("answers", now_us, || {
                format!("{cost} were charged for {arrival:?}, left after {left_after:?} bytes, instead of {expected:?}")
            });
        }
    }
}
