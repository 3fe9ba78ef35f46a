//! The regional store on Redis: where the aggregators of a region keep what they know together.
//!
//! In reading order:
//!
//! 1. [`options`]: where it is, parsed and checked. [`error`]: why a call failed, in few kinds.
//! 2. [`names`]: keys in Redis, unambiguous and readable; `slots`: where a cluster puts them.
//! 3. `script`: the Lua scripts (`*.lua`), what they get and answer.
//! 4. `wire`: one connection that heals; `servers`: all of them, and who holds what (`topology`);
//!    `nodes`: who gets which command.
//! 5. This file: merging cells. [`marker`], [`hot`], [`origins`], [`changes`], `status`: the rest that is shared.
//! 6. `log`: limits that are held exactly, by the clock of the server (`server_clock`).
//!
//! All counts are absolute and merge by max, so every call may be repeated, also one that timed out and whose effect
//! is unknown. The store never waits for a server that is away: calls fail, and connections are made again in the
//! background.
//!
//! Leaves to others: when anything is said (`weir_core::region`), and what to do while the store is away.

pub mod changes;
mod cluster;
pub mod error;
pub mod hot;
pub mod log;
pub mod marker;
pub mod names;
pub mod options;
pub mod origins;
mod script;
mod slots;
mod status;
mod wire;

pub use changes::Received;
pub use error::StoreError;
pub use marker::{Incarnation, Incarnations};
pub use names::HOT_SHARDS;
pub use options::{OptionsError, StoreOptions};
pub use origins::Alive;
pub use status::PeerStatus;

use cluster::nodes::{Command, Nodes};
use names::Names;
use redis::Value;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use weir_core::model::key::Key;
use weir_core::region::exchange::{LowerBound, Merge, Merged};

/// Longest time that a call may be given.
const MAX_WITHIN: Duration = Duration::from_secs(3_600);

/// The store of one region. Clones share their connections, which end with the last of them.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    names: Names,
    markers: Vec<String>,
    /// Under which this client's looks at markers are counted: random.
    reader: u128,
    nodes: Arc<Nodes>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("names", &self.inner.names).finish_non_exhaustive()
    }
}

impl Store {
    /// Starts connecting in the background; a server that is away is no error. Must be called within a tokio runtime.
    pub fn open(options: &StoreOptions) -> Result<Store, OptionsError> {
        let checked = options.check()?;
        let names = Names::new(&options.prefix, &options.region);
        let markers = names::marker_tags(checked.cluster).iter().map(|tag| names.marker(tag)).collect();
        let nodes = Arc::new(Nodes::open(checked).map_err(|_| OptionsError::Url(1))?);
        Ok(Store { inner: Arc::new(Inner { names, markers, reader: rand::random(), nodes }) })
    }

    /// Raises components, judges proposals and reads what is there: each cell in one step of its own, which succeeds or
    /// fails alone. The results stand in the order of `cells`. After `within`, what has no answer has
    /// [`StoreError::Timeout`]; it may have been done all the same. Counts beyond `MAX_COUNT` are taken as that.
    pub async fn merge(&self, cells: &[Merge], within: Duration) -> Vec<Result<Merged, StoreError>> {
        let commands = cells.iter().map(|cell| {
            let current = self.inner.names.cell(&cell.key, cell.sequence);
            let previous = match script::needs_previous(cell) {
                true => self.inner.names.cells_before(&cell.key, cell.sequence),
                false => Vec::new(),
            };
            command(&current, script::merge(cell, &current, &previous))
        });
        let answers = self.run(commands.collect(), within).await;
        answers.into_iter().map(|answer| answer.and_then(script::merged)).collect()
    }

    /// Where the components of a cell do not reach a floor and the cell has no `BASELINE` yet, sets `BASELINE` to the
    /// difference, in one step. Otherwise only reads.
    pub async fn raise_to(
        &self,
        lower_bounds: &[LowerBound],
        within: Duration,
    ) -> Vec<Result<Merged, StoreError>> {
        let commands = lower_bounds.iter().map(|lower_bound| {
            let current = self.inner.names.cell(&lower_bound.key, lower_bound.sequence);
            command(&current, script::lower_bound(lower_bound, &current))
        });
        let answers = self.run(commands.collect(), within).await;
        answers.into_iter().map(|answer| answer.and_then(script::merged)).collect()
    }

    /// Reads cells without touching them; one that is not there is empty.
    pub async fn read(&self, cells: &[(Key, u64)], within: Duration) -> Vec<Result<Merged, StoreError>> {
        let commands = cells.iter().map(|(key, sequence)| {
            let name = self.inner.names.cell(key, *sequence);
            let mut read = redis::cmd("HGETALL");
            read.arg(&name);
            command(&name, read)
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

fn command(key: &str, what: redis::Cmd) -> Command {
    Command { slot: slots::slot_of(key.as_bytes()), what }
}

fn deadline(within: Duration) -> Instant {
    Instant::now() + within.min(MAX_WITHIN)
}
