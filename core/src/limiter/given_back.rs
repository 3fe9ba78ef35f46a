//! Use that clients give back.
//!
//! A count never falls, since others may have merged it. So what is given back is kept beside it, as an amount that the next costs of
//! the same key use up before they are charged: the count then stays where it is, and is again what was used.
//!
//! An amount belongs to the cell in which it was given back, is at most what counts in that cell, and ends with it. Use of the cell before
//! fades by itself as its weight falls: an amount of it would pass the use that takes its place uncounted. An epoch is part of the key, so
//! a reset leaves amounts behind. What is not kept makes less pass, never more.
//!
//! Workspaces, and the namespaces of one workspace, [share the room](crate::model::room).

use crate::model::key::{KeyParts, Namespace};
use crate::model::room::ByNamespace;
use crate::model::time::MonoMs;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Most keys with an amount. Those of a namespace that has its part get none until cells end.
pub const MAX_GIVEN_BACK: usize = 65_536;
/// Least time between two searches for ended amounts.
const BETWEEN_CLEANINGS_MS: u64 = 1_000;

/// What counts in a cell of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellCount {
    /// The cell's number.
    pub sequence: u64,
    /// What counts in it.
    pub counted: u64,
}

/// The amounts of all keys.
#[derive(Debug, Default)]
pub struct GivenBack {
    amounts: BTreeMap<Vec<u8>, Amount>,
    held: ByNamespace,
    cleaned: MonoMs,
}

#[derive(Clone, Copy, Debug)]
struct Amount {
    hits: u64,
    /// Its cell.
    sequence: u64,
    /// When the cell has ended.
    until: MonoMs,
}

impl GivenBack {
    /// Whether a key has an amount, perhaps of a cell that has ended.
    pub fn has(&self, key: &[u8]) -> bool {
        self.amounts.contains_key(key)
    }

    /// Gives `hits` of a key back in a cell that ends at `until`; no more is kept than counts in it.
    pub fn give(&mut self, key: &[u8], hits: u64, cell: CellCount, until: MonoMs, now: MonoMs) {
        let CellCount { sequence, counted } = cell;
        if let Some(amount) = self.amounts.get_mut(key) {
            let before = if amount.sequence == sequence { amount.hits } else { 0 };
            *amount = Amount { hits: before.saturating_add(hits).min(counted), sequence, until };
            return;
        }
        let (hits, namespace) = (hits.min(counted), namespace_of(key));
        let has_place = |held: &ByNamespace| held.held(namespace).has_place(MAX_GIVEN_BACK);
        if !has_place(&self.held) && now.since(self.cleaned) >= BETWEEN_CLEANINGS_MS {
            self.cleaned = now;
            self.drop_ended(now);
        }
        if hits > 0 && has_place(&self.held) {
            self.held.add(namespace, 1);
            self.amounts.insert(key.to_vec(), Amount { hits, sequence, until });
        }
    }

    fn drop_ended(&mut self, now: MonoMs) {
        let held = &mut self.held;
        self.amounts.retain(|key, amount| {
            let stays = amount.until > now;
            if !stays {
                held.remove(namespace_of(key), 1);
            }
            stays
        });
    }

    /// What is left for a key in the cell `sequence`.
    pub fn left(&self, key: &[u8], sequence: u64) -> u64 {
        self.amounts.get(key).filter(|amount| amount.sequence == sequence).map_or(0, |amount| amount.hits)
    }

    /// Takes what is left for a key in the cell `sequence`, at most `cost`.
    pub fn take(&mut self, key: &[u8], cost: u64, sequence: u64) -> u64 {
        let taken = self.left(key, sequence).min(cost);
        match self.amounts.get_mut(key) {
            Some(amount) if amount.sequence == sequence && amount.hits > taken => {
                amount.hits = amount.hits.saturating_sub(taken);
            }
            Some(_) => {
                self.amounts.remove(key);
                self.held.remove(namespace_of(key), 1);
            }
            None => {}
        }
        taken
    }
}

fn namespace_of(key: &[u8]) -> Namespace<&[u8]> {
    KeyParts::decode(key).map_or(Namespace::default(), |parts| parts.whole_namespace())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    const NOW: MonoMs = MonoMs(60_000);
    const END: MonoMs = MonoMs(61_000);

    fn cell(sequence: u64, counted: u64) -> CellCount {
        CellCount { sequence, counted }
    }

    fn given(hits: u64, cell: CellCount) -> GivenBack {
        let mut given_back = GivenBack::default();
        given_back.give(b"a", hits, cell, END, NOW);
        given_back
    }

    #[test]
    fn an_amount_is_used_once_by_its_own_key() {
        let mut given_back = given(5, cell(7, 8));
        assert_eq!(given_back.take(b"b", 9, 7), 0, "another key");
        assert_eq!([2, 9, 9].map(|cost| given_back.take(b"a", cost, 7)), [2, 3, 0]);
        assert!(!given_back.has(b"a"));
    }

    #[test]
    fn no_more_is_kept_than_counts_in_the_cell() {
        let mut given_back = given(u64::MAX, cell(7, 8));
        given_back.give(b"a", u64::MAX, cell(7, 9), END, NOW);
        assert_eq!(given_back.left(b"a", 7), 9);
        given_back.give(b"b", 5, cell(7, 0), END, NOW);
        assert!(!given_back.has(b"b"), "nothing counts");
    }

    #[test]
    fn an_amount_ends_with_its_cell() {
        let mut given_back = given(5, cell(7, 8));
        assert_eq!(given_back.left(b"a", 8), 0);
        given_back.give(b"a", 3, cell(8, 1), END, NOW);
        assert_eq!((given_back.left(b"a", 8), given_back.left(b"a", 7)), (1, 0));
        assert_eq!(given_back.take(b"a", 3, 9), 0);
        assert!(!given_back.has(b"a"), "and takes no room");
    }

    fn key(workspace: &[u8], namespace: &[u8], number: usize) -> Vec<u8> {
        let identifier = format!("{number}");
        let parts = KeyParts {
            workspace,
            namespace,
            identifier: identifier.as_bytes(),
            duration_ms: 1_000,
            epoch: 0,
            resolution: 1,
        };
        let mut key = Vec::new();
        parts.encode(&mut key).unwrap();
        key
    }

    #[test]
    fn amounts_that_have_ended_make_room() {
        let mut given_back = GivenBack::default();
        for number in 0..MAX_GIVEN_BACK {
            given_back.give(&key(b"w", b"n", number), 1, cell(7, 1), END, NOW);
        }
        assert_eq!(given_back.amounts.len(), given_back.held.taken());
        let new = key(b"w", b"n", MAX_GIVEN_BACK);
        given_back.give(&new, 1, cell(8, 1), MonoMs(62_000), END.after(BETWEEN_CLEANINGS_MS));
        assert_eq!((given_back.amounts.len(), given_back.held.taken()), (1, 1));
        given_back.take(&new, 1, 8);
        assert!(given_back.held.is_empty());
    }
}
