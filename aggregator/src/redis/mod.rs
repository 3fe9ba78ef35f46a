//! The regional store on Redis, which holds the counts and state that the aggregators of a region share.
//!
//! In reading order:
//!
//! 1. [`options`]: the address, parsed and checked; `sentinel`: that of a primary which Sentinels name. [`error`]: errors in a few kinds.
//! 2. [`names`]: keys in Redis, unambiguous and readable; `slots`: their slots in a cluster.
//! 3. `script`: the Lua scripts (`*.lua`), their arguments and answers.
//! 4. `connection`: one connection that reconnects, to its `target`; `servers`: all servers and the slot map (`topology`); `nodes`: routing of
//!    commands.
//! 5. This file: merging cells. [`marker`], `receipts`, [`hot`], [`nodes`], [`changes`], `status`: other shared state; `eviction`: what
//!    makes a server lose some of it.
//! 6. `log`: exact limits, by the server's clock (`server_clock`).
//!
//! All counts are absolute and merge by maximum, so every call may be repeated, including a call that timed out. The
//! store never waits for a server that is unavailable: calls fail, and connections are made again in the background.

pub mod changes;
mod cluster;
mod command;
mod connection;
pub mod error;
mod eviction;
pub mod hot;
pub mod log;
pub mod marker;
pub mod names;
pub mod nodes;
pub mod options;
mod receipts;
mod script;
mod sentinel;
mod slots;
mod status;
mod target;

pub use changes::Received;
pub use error::StoreError;
pub use marker::{Incarnation, Incarnations, LastRead};
pub use names::HOT_SHARDS;
pub use nodes::Alive;
pub use options::{OptionsError, StoreOptions};
pub use status::PeerStatus;

use cluster::nodes::Nodes;
use command::Command;
use names::Names;
use receipts::Markers;
use redis::Value;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use weir_core::model::key::Key;
use weir_core::model::time::UnixMs;
use weir_core::region::exchange::{LowerBound, Merge, Merged};

/// Most cells merged by one script call, which blocks the server meanwhile.
const CELLS_A_CALL: usize = 64;
/// Longest time that a call may be given.
const MAX_WITHIN: Duration = Duration::from_secs(3_600);

/// The store of one region. Clones share their connections, which close with the last clone.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    names: Names,
    markers: Arc<Markers>,
    nodes: Arc<Nodes>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("names", &self.inner.names).finish_non_exhaustive()
    }
}

impl Store {
    /// Starts connecting in the background; an unavailable server is not an error. Must be called within a tokio
    /// runtime.
    pub fn open(options: &StoreOptions) -> Result<Store, OptionsError> {
        let checked = options.check()?;
        let names = Names::new(&options.prefix, &options.region);
        let markers = names::marker_tags(checked.cluster).iter().map(|tag| names.marker(tag)).collect();
        let markers = Arc::new(Markers::new(markers));
        let nodes = Arc::new(Nodes::open(checked, Arc::clone(&markers)).map_err(|_| OptionsError::Url(1))?);
        Ok(Store { inner: Arc::new(Inner { names, markers, nodes }) })
    }

    /// Raises components, decides queries and reads cells. Each cell is one atomic step, which succeeds or fails alone;
    /// results are in the order of `cells`. After `within`, cells without an answer fail with [`StoreError::Timeout`];
    /// they may have been merged nevertheless. Counts above `MAX_COUNT` are taken as `MAX_COUNT`. `now` is the region's time,
    /// by which cells expire.
    pub async fn merge(
        &self,
        cells: &[Merge],
        now: UnixMs,
        within: Duration,
    ) -> Vec<Result<Merged, StoreError>> {
        // A cluster takes only keys of one slot in a call. Cells that are merged together rarely share one.
        let most = if self.inner.nodes.is_cluster() { 1 } else { CELLS_A_CALL };
        let deadline = deadline(within);
        let mut results = Vec::with_capacity(cells.len());
        results.resize_with(cells.len(), || Err(StoreError::Unavailable));
        let mut left: Vec<usize> = (0..cells.len()).collect();
        while !left.is_empty() {
            let of =
                |places: &[usize]| places.iter().filter_map(|&place| cells.get(place)).collect::<Vec<_>>();
            let calls: Vec<&[usize]> = left.chunks(most).collect();
            let call = |places: &&[usize]| script::merge(&of(places), &self.inner.names, now);
            let commands = calls.iter().map(call).collect();
            let answers = self.inner.nodes.write(commands, deadline).await;
            let mut unmerged = Vec::new();
            for (places, answer) in calls.into_iter().zip(answers) {
                let merged = script::merged(answer, &of(places));
                unmerged.extend(places.iter().skip(merged.len()));
                for (&place, merged) in places.iter().zip(merged) {
                    if let Some(result) = results.get_mut(place) {
                        *result = merged;
                    }
                }
            }
            left = unmerged;
        }
        results
    }

    /// If the sum of a cell's components is below a lower bound and the cell has no `BASELINE` yet, sets `BASELINE` to
    /// the difference, in one atomic step. Otherwise only reads the cell.
    pub async fn raise_to(
        &self,
        lower_bounds: &[LowerBound],
        now: UnixMs,
        within: Duration,
    ) -> Vec<Result<Merged, StoreError>> {
        let commands = lower_bounds.iter().map(|lower_bound| {
            let current = self.inner.names.cell(&lower_bound.key, lower_bound.sequence);
            Command::on(&current, script::lower_bound(lower_bound, &current, now))
        });
        let answers = self.inner.nodes.write(commands.collect(), deadline(within)).await;
        answers.into_iter().map(|answer| answer.and_then(script::stored)).collect()
    }

    /// Reads cells without changing them; a missing cell is empty.
    pub async fn read(&self, cells: &[(Key, u64)], within: Duration) -> Vec<Result<Merged, StoreError>> {
        let commands = cells.iter().map(|(key, sequence)| {
            let name = self.inner.names.cell(key, *sequence);
            let mut read = redis::cmd("HGETALL");
            read.arg(&name);
            Command::on(&name, read)
        });
        let answers = self.run(commands.collect(), within).await;
        answers.into_iter().map(|answer| answer.and_then(script::stored)).collect()
    }

    async fn run(&self, commands: Vec<Command>, within: Duration) -> Vec<Result<Value, StoreError>> {
        self.inner.nodes.run(commands, deadline(within)).await
    }

    async fn run_one(&self, command: Command, within: Duration) -> Result<Value, StoreError> {
        self.inner.nodes.run_one(command, deadline(within)).await
    }
}

fn deadline(within: Duration) -> Instant {
    Instant::now() + within.min(MAX_WITHIN)
}
