//! Liveness in a region: each aggregator reports its live Envoys and reads all live ones, by the server's clock. The same
//! call agrees on the region's time.

use super::Store;
use super::command::Command;
use super::error::StoreError;
use super::script::{self, SCRIPTS};
use redis::Value;
use std::time::Duration;
use weir_core::model::key::NodeId;
use weir_core::model::time::UnixMs;
use weir_core::replication::members::Member;
use weir_core::replication::regional::clock::TimeProposal;

/// Nodes and aggregators that were not reported for this long are not alive.
pub const SILENT_AFTER_MS: u64 = 3_000;
/// Most nodes, and most aggregators, stored for a region; those reported longest ago are removed.
const MAX_ALIVE: usize = 4_096;

/// Nodes and aggregators that were reported within the last [`SILENT_AFTER_MS`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Alive {
    /// Nodes (Envoys) of the whole region, ordered by id.
    pub nodes: Vec<NodeId>,
    /// The aggregators, including the caller, in order.
    pub aggregators: Vec<Member>,
    /// The server's clock.
    pub now: UnixMs,
    /// The region's time at that moment, in microseconds since the Unix epoch.
    pub region_us: u64,
}

impl Store {
    /// Reports that `aggregator` and its Envoys `mine` are alive, and returns all that are alive. Of `mine`, at most
    /// [`MAX_ALIVE`] are reported. Proposes its time, and returns the region's. Must be repeated well within
    /// [`SILENT_AFTER_MS`].
    pub async fn nodes(
        &self,
        mine: &[NodeId],
        aggregator: Member,
        proposal: &TimeProposal,
        within: Duration,
    ) -> Result<Alive, StoreError> {
        let [nodes, aggregators, time] = self.inner.names.nodes();
        let mut what = script::call(&SCRIPTS.nodes, &[&nodes, &aggregators, &time]);
        what.arg(SILENT_AFTER_MS).arg(MAX_ALIVE);
        what.arg(proposal.time_us).arg(proposal.machine_us).arg(u8::from(proposal.is_shared));
        what.arg(aggregator.to_bytes());
        for node in mine.iter().take(MAX_ALIVE) {
            what.arg(&node.0);
        }
        let answer = self.run_one(Command::on(&nodes, what), within).await?;
        let [now, region, nodes, aggregators] =
            script::array(answer)?.try_into().map_err(|_| StoreError::Protocol)?;
        let (now_us, region_us) = (script::decimal(&now)?, script::decimal(&region)?);
        let nodes = members(nodes, NodeId::parse)?;
        let aggregators = members(aggregators, Member::parse)?;
        Ok(Alive { nodes, aggregators, now: UnixMs(now_us / 1_000), region_us })
    }
}

/// Parses the members of a set, in order; those that do not parse were not written by Weir and are skipped.
fn members<T: Ord>(set: Value, parse: impl Fn(&[u8]) -> Option<T>) -> Result<Vec<T>, StoreError> {
    let member = |member: Value| match member {
        Value::BulkString(bytes) => parse(&bytes),
        _ => None,
    };
    let mut members: Vec<_> = script::array(set)?.into_iter().filter_map(member).collect();
    members.sort_unstable();
    Ok(members)
}
