//! The aggregators of a region, as its store lists them.

use crate::model::time::MonoMs;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

/// An aggregator in the store's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// Its id.
    pub id: [u8; 16],
    /// Whether it has still to write again what the store has lost.
    pub owes: bool,
}

impl Member {
    /// As the list has it. After a change of what it owes, the list has the aggregator in both forms for some seconds.
    pub fn to_bytes(self) -> Vec<u8> {
        let mut bytes = self.id.to_vec();
        bytes.extend(self.owes.then_some(1));
        bytes
    }

    /// `None` for bytes that are no aggregator.
    pub fn parse(bytes: &[u8]) -> Option<Member> {
        let (id, rest) = bytes.split_first_chunk::<16>()?;
        match rest {
            [] => Some(Member { id: *id, owes: false }),
            [1] => Some(Member { id: *id, owes: true }),
            _ => None,
        }
    }
}

/// Those that the region's store listed as alive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    aggregators: BTreeSet<[u8; 16]>,
    /// When the store listed them.
    read: Option<MonoMs>,
    /// When it last listed another one that owed counts.
    owed: Option<MonoMs>,
}

impl Members {
    /// The store lists these aggregators to the one with the id `own`.
    pub(super) fn listed(&mut self, members: &[Member], own: &[u8; 16], now: MonoMs) {
        self.aggregators = members.iter().map(|member| member.id).collect();
        self.read = Some(now);
        if members.iter().any(|member| member.owes && member.id != *own) {
            self.owed = Some(now);
        }
    }

    /// Their ids; `None` if the store has not listed them within `recent_ms`.
    pub(super) fn recent(&self, recent_ms: u64, now: MonoMs) -> Option<&BTreeSet<[u8; 16]>> {
        self.read.is_some_and(|read| now.since(read) < recent_ms).then_some(&self.aggregators)
    }

    /// Whether another aggregator owed counts within `recent_ms`. The list itself may have been lost: one that owes is in it again with its
    /// next heartbeat.
    pub(super) fn owe(&self, recent_ms: u64, now: MonoMs) -> bool {
        self.owed.is_some_and(|owed| now.since(owed) < recent_ms)
    }
}
