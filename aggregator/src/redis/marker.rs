//! Markers: keys that show when the store was emptied, and whether it was set back to older data.
//!
//! A wipe does not break a connection, so it must be detected by reading. Each marker is a hash with a random id,
//! created when it was found missing, and one read counter for each store client. Another aggregator may recreate the
//! marker first, so a wipe is detected by a changed id. Each client has its own counter, so that the reads of others
//! cannot hide that the server was set back.

use super::Store;
use super::command::Command;
use super::error::StoreError;
use super::script::{self, SCRIPTS};
use redis::Value;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;
use weir_core::model::time::UnixMs;
pub use weir_core::replication::regional::watch::{Incarnation, Incarnations};

impl Store {
    /// Reads all markers and creates missing ones. Fails if none could be read.
    pub async fn incarnations(&self, within: Duration) -> Result<Incarnations, StoreError> {
        self.renew(&BTreeMap::new(), within).await
    }

    /// Like [`Store::incarnations`], and gives a new id to the markers at the positions in `renewals`, if they still
    /// have the id given there.
    pub async fn renew(
        &self,
        renewals: &BTreeMap<u16, u128>,
        within: Duration,
    ) -> Result<Incarnations, StoreError> {
        let commands = (0..).zip(&self.inner.markers).map(|(place, name)| {
            let mut what = script::call(&SCRIPTS.incarnation, &[name]);
            what.arg(format!("{:032x}", rand::random::<u128>()));
            what.arg(format!("{:032x}", self.inner.reader));
            what.arg(renewals.get(&place).map(|id| format!("{id:032x}")).unwrap_or_default());
            Command::on(name, what)
        });
        let sent = Instant::now();
        let answers = self.run(commands.collect(), within).await;
        let received = Instant::now();
        let mut incarnations = Incarnations::default();
        let mut problem = StoreError::Unavailable;
        for (place, answer) in (0..).zip(answers) {
            match answer.and_then(|answer| parse(place, &answer)) {
                Ok((incarnation, now)) => {
                    self.note_clock(place, now, sent, received);
                    incarnations.seen.push(incarnation);
                }
                Err(error) => {
                    problem = error;
                    incarnations.unseen += 1;
                }
            }
        }
        if incarnations.seen.is_empty() { Err(problem) } else { Ok(incarnations) }
    }

    /// A read of a marker also observes its server's clock, in whole milliseconds.
    fn note_clock(&self, place: u16, now: UnixMs, sent: Instant, received: Instant) {
        let name = self.inner.markers.get(usize::from(place));
        let node = name.and_then(|name| self.inner.nodes.owner(name));
        if let Some(node) = node {
            node.showed(now.0.saturating_mul(1_000), 999, sent, received);
        }
    }
}

/// Parses the incarnation and the server's time.
fn parse(place: u16, answer: &Value) -> Result<(Incarnation, UnixMs), StoreError> {
    let Value::Array(fields) = answer else { return Err(StoreError::Protocol) };
    let [Value::BulkString(text), looks, now] = fields.as_slice() else { return Err(StoreError::Protocol) };
    let (looks, now) = (script::decimal(looks)?, script::decimal(now)?);
    let text = std::str::from_utf8(text).map_err(|_| StoreError::Protocol)?;
    let (id, since) = text.split_once(':').ok_or(StoreError::Protocol)?;
    let id = u128::from_str_radix(id, 16).map_err(|_| StoreError::Protocol)?;
    let since = since.parse().map_err(|_| StoreError::Protocol)?;
    let incarnation =
        Incarnation { place, id, looks, since: UnixMs(since), age_ms: now.saturating_sub(since) };
    Ok((incarnation, UnixMs(now)))
}
