//! What nodes hold of a key for requests whose cost is not known yet. It is shown to operators and decides nothing: it falls again, and
//! only the aggregator that a node reports to has it.

use crate::model::key::NodeId;
use crate::model::time::UnixMs;
use crate::model::window::MAX_COUNT;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Most nodes of a key whose amount is held.
const MAX_NODES: usize = 256;
/// No cost is awaited for longer than an hour, and a minute for the settlement.
const LONGEST_MS: u64 = 3_660_000;

/// What a node has reserved of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// The node.
    pub node: NodeId,
    /// The amount.
    pub amount: u64,
    /// When it was read.
    pub read: UnixMs,
}

/// What all nodes have reserved of a key. Few keys have anything.
#[derive(Clone, Debug, Default)]
#[expect(clippy::box_collection, reason = "a key without any has a pointer alone")]
pub(super) struct ReservedAmounts(Option<Box<Vec<Reserved>>>);

impl ReservedAmounts {
    /// Notes what a node has reserved: of a node's workers the one that read last is right. An amount of 0 is held too, as an older one may
    /// arrive after it.
    pub(super) fn note(&mut self, reserved: Reserved, now: UnixMs) {
        let Reserved { node, amount, read } = reserved;
        let reserved = Reserved { node, amount: amount.min(MAX_COUNT), read: read.min(now) };
        let held = self.0.get_or_insert_default();
        held.retain(|one| one.may_last(now));
        if let Some(own) = held.iter_mut().find(|one| one.node == reserved.node) {
            // Of what two workers read within a millisecond the higher amount is held: it is corrected as that changes.
            if (own.read, own.amount) <= (reserved.read, reserved.amount) {
                *own = reserved;
            }
            return;
        }
        if held.len() >= MAX_NODES {
            // One without an amount makes room first, then the one that was read first.
            let first = held.iter().enumerate().min_by_key(|(_, one)| (one.amount > 0, one.read));
            if let Some((at, _)) = first {
                held.swap_remove(at);
            }
        }
        held.push(reserved);
    }

    /// Each node that had reserved something.
    pub(super) fn held(&self) -> impl Iterator<Item = Reserved> + '_ {
        self.0.iter().flat_map(|held| held.iter().copied()).filter(|one| one.amount > 0)
    }
}

impl Reserved {
    /// Whether the node may have reserved it still.
    pub fn may_last(&self, now: UnixMs) -> bool {
        now.0.saturating_sub(self.read.0) < LONGEST_MS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixMs = UnixMs(10_000_000);

    fn of(node: u16, amount: u64, ago_ms: u64) -> Reserved {
        let mut id = [0; 16];
        id[..2].copy_from_slice(&node.to_be_bytes());
        Reserved { node: NodeId(id), amount, read: UnixMs(NOW.0 - ago_ms) }
    }

    fn held(amounts: &ReservedAmounts) -> Vec<(u64, u64)> {
        amounts.held().map(|one| (one.amount, NOW.0 - one.read.0)).collect()
    }

    #[test]
    fn the_amount_that_a_node_read_last_is_held() {
        let mut amounts = ReservedAmounts::default();
        for reserved in [of(1, 70, 9), of(2, 5, 8), of(1, 0, 3), of(1, 70, 6)] {
            amounts.note(reserved, NOW);
        }
        assert_eq!(held(&amounts), [(5, 8)], "what one worker read before does not return");
        amounts.note(of(2, 4, 8), NOW);
        amounts.note(of(2, 6, 8), NOW);
        assert_eq!(held(&amounts), [(6, 8)], "of one time the higher amount");
        amounts.note(Reserved { read: UnixMs(NOW.0 + 99), ..of(1, 9, 0) }, NOW);
        assert_eq!(held(&amounts), [(9, 0), (6, 8)], "no time is later than now");
        let later = UnixMs(NOW.0 + LONGEST_MS);
        assert!(amounts.held().all(|one| !one.may_last(later)));
        amounts.note(Reserved { read: later, ..of(3, 1, 0) }, later);
        assert_eq!(amounts.0.unwrap().len(), 1);
    }

    #[test]
    fn nodes_without_an_amount_make_room_first() {
        let mut amounts = ReservedAmounts::default();
        for node in 0..256 {
            amounts.note(of(node, u64::from(node != 200), 1_000 - u64::from(node)), NOW);
        }
        amounts.note(of(300, 1, 0), NOW);
        amounts.note(of(301, 1, 0), NOW);
        let held: Vec<Reserved> = amounts.held().collect();
        assert_eq!(held.len(), MAX_NODES);
        let has = |node| held.iter().any(|one| one.node == of(node, 0, 0).node);
        assert!(!has(200) && !has(0) && has(1) && has(300) && has(301));
    }
}
