//! Status records of the region's aggregators: each writes its own and reads the others', by the server's clock.

use super::Store;
use super::command::Command;
use super::error::StoreError;
use super::script::{self, SCRIPTS};
use redis::Value;
use std::time::Duration;

/// Records older than this are dropped.
const SILENT_AFTER_MS: u64 = 60_000;

/// The aggregator, the age of its record in milliseconds, and the record.
pub type PeerStatus = ([u8; 16], u64, Vec<u8>);

impl Store {
    /// Writes the record `record` of `aggregator`, and returns the others' records of the last minute.
    pub async fn status(
        &self,
        aggregator: &[u8; 16],
        record: &[u8],
        within: Duration,
    ) -> Result<Vec<PeerStatus>, StoreError> {
        let name = self.inner.names.status();
        let mut what = script::call(&SCRIPTS.status, &[&name]);
        what.arg(SILENT_AFTER_MS).arg(aggregator).arg(record);
        let answer = self.run_one(Command::on(&name, what), within).await?;
        Ok(script::array(answer)?.into_iter().filter_map(parse).collect())
    }

    /// Deletes the record of `aggregator`.
    pub async fn delete_status(&self, aggregator: &[u8; 16], within: Duration) -> Result<(), StoreError> {
        let name = self.inner.names.status();
        let mut what = redis::cmd("HDEL");
        what.arg(&name).arg(aggregator);
        self.run_one(Command::on(&name, what), within).await.map(drop)
    }
}

/// `None` if the record was not written by Weir.
fn parse(value: Value) -> Option<PeerStatus> {
    let [id, age_ms, record] = script::array(value).ok()?.try_into().ok()?;
    let (Value::BulkString(id), Value::BulkString(record)) = (id, record) else { return None };
    Some((id.try_into().ok()?, script::decimal(&age_ms).ok()?, record))
}
