//! The hot index: the cells of the region that an aggregator must read in full after it missed messages.

use super::command::Command;
use super::error::StoreError;
use super::names::{HOT_SHARDS, hot_shard, member, parse_member};
use super::script::{self, SCRIPTS};
use super::{Store, deadline};
use redis::Value;
use std::collections::BTreeMap;
use std::time::Duration;
use weir_core::model::key::Key;
use weir_core::model::time::UnixMs;

/// Most cells in one shard; those that expire first are removed.
const MAX_HOT_PER_SHARD: usize = 65_536;
/// Cells written by one command, because a script receives all of its arguments at once.
const CELLS_A_COMMAND: usize = 500;

impl Store {
    /// Adds cells, each with its sequence and the time at which it expires from the index; `now` is the region's time. May be
    /// repeated. Returns the first error; other cells may have been added.
    pub async fn note_hot(
        &self,
        cells: &[(Key, u64, UnixMs)],
        now: UnixMs,
        within: Duration,
    ) -> Result<(), StoreError> {
        let mut shards: BTreeMap<usize, Vec<&(Key, u64, UnixMs)>> = BTreeMap::new();
        for cell in cells {
            shards.entry(hot_shard(&cell.0)).or_default().push(cell);
        }
        let commands = shards
            .iter()
            .flat_map(|(&shard, cells)| cells.chunks(CELLS_A_COMMAND).map(move |cells| (shard, cells)))
            .map(|(shard, cells)| self.note(shard, cells, now));
        let answers = self.inner.nodes.write(commands.collect(), deadline(within)).await;
        answers.into_iter().try_for_each(|answer| answer.map(|_| ()))
    }

    /// Reads one of [`HOT_SHARDS`] shards: up to `at_most` cells that have not expired by `now`, those that expire
    /// last. Expired cells are removed. Returns nothing for a shard beyond the last.
    pub async fn hot(
        &self,
        shard: usize,
        now: UnixMs,
        at_most: usize,
        within: Duration,
    ) -> Result<Vec<(Key, u64)>, StoreError> {
        if shard >= HOT_SHARDS || at_most == 0 {
            return Ok(Vec::new());
        }
        let name = self.inner.names.hot(shard);
        let mut remove = redis::cmd("ZREMRANGEBYSCORE");
        remove.arg(&name).arg("-inf").arg(now.0);
        let mut read = redis::cmd("ZREVRANGE");
        read.arg(&name).arg(0).arg(at_most - 1);
        let commands = vec![Command::on(&name, remove), Command::on_several(&name, at_most, read)];
        let mut answers = self.run(commands, within).await;
        let members = script::array(answers.pop().unwrap_or(Err(StoreError::Protocol))?)?;
        answers.into_iter().try_for_each(|answer| answer.map(|_| ()))?;
        let cell = |member: Value| match member {
            Value::BulkString(member) => parse_member(&member),
            _ => None,
        };
        Ok(members.into_iter().filter_map(cell).collect())
    }

    fn note(&self, shard: usize, cells: &[&(Key, u64, UnixMs)], now: UnixMs) -> Command {
        let name = self.inner.names.hot(shard);
        let last = cells.iter().map(|(_, _, expires)| expires.0).max().unwrap_or(0);
        let mut what = script::call(&SCRIPTS.hot, &[&name]);
        what.arg(last.saturating_sub(now.0)).arg(MAX_HOT_PER_SHARD);
        for (key, sequence, expires) in cells {
            what.arg(expires.0).arg(member(key, *sequence));
        }
        Command::on_several(&name, cells.len(), what)
    }
}
