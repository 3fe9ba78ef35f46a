//! Sentinels: keys that tell when the store's memory began, and whether it went back in time.
//!
//! A wipe does not break a connection, so it has to be looked for. Each sentinel is a hash with a random id, made when it was
//! found missing, and a count of the looks of each store client. Another aggregator may make it again first, so what counts is
//! whether the id is still the same. The counts are apart for each client: looks of others cannot hide that older data took the
//! server's place.
//!
//! Leaves to others: comparing, and writing again what was lost.

use super::Store;
use super::cluster::nodes::Command;
use super::error::StoreError;
use super::script::{self, SCRIPTS};
use super::slots::slot_of;
use redis::Value;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;
use weir_core::model::time::UnixMs;
pub use weir_core::replication::regional::watch::{Life, Lives};

impl Store {
    /// Reads all sentinels, and makes those that are missing. An error if none could be read.
    pub async fn lives(&self, within: Duration) -> Result<Lives, StoreError> {
        self.renew(&BTreeMap::new(), within).await
    }

    /// The same, and gives a new id to the sentinels at the places in `renewals`, where they still have the id named there.
    pub async fn renew(&self, renewals: &BTreeMap<u16, u128>, within: Duration) -> Result<Lives, StoreError> {
        let commands = (0..).zip(&self.inner.sentinels).map(|(place, name)| {
            let mut what = script::call(&SCRIPTS.life, &[name]);
            what.arg(format!("{:032x}", rand::random::<u128>()));
            what.arg(format!("{:032x}", self.inner.reader));
            what.arg(renewals.get(&place).map(|id| format!("{id:032x}")).unwrap_or_default());
            Command { slot: slot_of(name.as_bytes()), what }
        });
        let sent = Instant::now();
        let answers = self.run(commands.collect(), within).await;
        let heard = Instant::now();
        let mut lives = Lives::default();
        let mut problem = StoreError::Away;
        for (place, answer) in (0..).zip(answers) {
            match answer.and_then(|answer| parse(place, &answer)) {
                Ok((life, now)) => {
                    self.note_clock(place, now, sent, heard);
                    lives.seen.push(life);
                }
                Err(error) => {
                    problem = error;
                    lives.unseen += 1;
                }
            }
        }
        if lives.seen.is_empty() { Err(problem) } else { Ok(lives) }
    }

    /// A look at a sentinel is also one at its server's clock; that is read in whole milliseconds.
    fn note_clock(&self, place: u16, now: UnixMs, sent: Instant, heard: Instant) {
        let name = self.inner.sentinels.get(usize::from(place));
        let node = name.and_then(|name| self.inner.nodes.owner(slot_of(name.as_bytes())));
        if let Some(node) = node {
            node.showed(now.0.saturating_mul(1_000), 999, sent, heard);
        }
    }
}

/// A life, and the server's time.
fn parse(place: u16, answer: &Value) -> Result<(Life, UnixMs), StoreError> {
    let Value::Array(fields) = answer else { return Err(StoreError::Protocol) };
    let [Value::BulkString(text), looks, now] = fields.as_slice() else { return Err(StoreError::Protocol) };
    let (looks, now) = (script::decimal(looks)?, script::decimal(now)?);
    let text = std::str::from_utf8(text).map_err(|_| StoreError::Protocol)?;
    let (id, since) = text.split_once(':').ok_or(StoreError::Protocol)?;
    let id = u128::from_str_radix(id, 16).map_err(|_| StoreError::Protocol)?;
    let since = since.parse().map_err(|_| StoreError::Protocol)?;
    let life = Life { place, id, looks, since: UnixMs(since), age_ms: now.saturating_sub(since) };
    Ok((life, UnixMs(now)))
}
