//! How the region's aggregators are: each says so, and hears the others, by the server's own clock.
//!
//! Leaves to others: what is said (`window`).

use super::Store;
use super::cluster::nodes::Command;
use super::error::StoreError;
use super::script::{self, SCRIPTS};
use super::slots::slot_of;
use redis::Value;
use std::time::Duration;

/// A word that is older is forgotten.
const SILENT_AFTER_MS: u64 = 60_000;

/// Whose word, how old it is in milliseconds, and the word.
pub type PeerStatus = ([u8; 16], u64, Vec<u8>);

impl Store {
    /// Says `word` for `aggregator`, and returns what the others said within the last minute.
    pub async fn status(
        &self,
        aggregator: &[u8; 16],
        word: &[u8],
        within: Duration,
    ) -> Result<Vec<PeerStatus>, StoreError> {
        let name = self.inner.names.status();
        let mut what = script::call(&SCRIPTS.status, &[&name]);
        what.arg(SILENT_AFTER_MS).arg(aggregator).arg(word);
        let answer = self.run_one(Command { slot: slot_of(name.as_bytes()), what }, within).await?;
        Ok(script::array(answer)?.into_iter().filter_map(parse).collect())
    }

    /// Lets the others forget what `aggregator` said.
    pub async fn forget_status(&self, aggregator: &[u8; 16], within: Duration) -> Result<(), StoreError> {
        let name = self.inner.names.status();
        let mut what = redis::cmd("HDEL");
        what.arg(&name).arg(aggregator);
        self.run_one(Command { slot: slot_of(name.as_bytes()), what }, within).await.map(drop)
    }
}

/// Nothing of what was written by somebody's hand.
fn parse(value: Value) -> Option<PeerStatus> {
    let [id, age_ms, word] = script::array(value).ok()?.try_into().ok()?;
    let (Value::BulkString(id), Value::BulkString(word)) = (id, word) else { return None };
    Some((id.try_into().ok()?, script::decimal(&age_ms).ok()?, word))
}
