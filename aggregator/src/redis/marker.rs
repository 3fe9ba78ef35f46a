//! Markers: keys that show when a server was emptied, was replaced by another one, or was set back to older data.
//!
//! A loss does not always break a connection, so it must be detected by reading. Each marker is a hash with a random
//! id, the server that holds it, and one read counter for each store client. `incarnation.lua` compares and replaces
//! it in one step, so that all clients find a changed id, whichever of them reads first after the loss.

use super::Store;
use super::command::Command;
use super::error::StoreError;
use super::script::{self, SCRIPTS, hex};
use redis::Value;
use std::time::Duration;
use tokio::time::Instant;
use weir_core::model::time::UnixMs;
use weir_core::replication::Failure;
pub use weir_core::replication::regional::marker::{Incarnation, Incarnations, LastRead};
use weir_core::replication::regional::marker::{READERS_MS, Server};

impl Store {
    /// Reads all markers and creates missing ones. `last` is what the last answers stated. Fails if none could be read.
    pub async fn incarnations(&self, last: &LastRead, within: Duration) -> Result<Incarnations, StoreError> {
        let servers: Vec<String> = last.servers().into_iter().map(text_of).collect();
        let servers = servers.join(",");
        let markers = &self.inner.markers;
        let commands = (0..).zip(markers.names()).map(|(place, name)| {
            let (id, mut looks, mut read_at) = last
                .at(place)
                .map_or((String::new(), 0, 0), |last| (hex(last.id), last.looks, last.read_at().0));
            let stated = markers.stated(place, last);
            if stated.is_none() {
                (looks, read_at) = (u64::MAX, u64::MAX);
            }
            let mut what = script::call(&SCRIPTS.incarnation, &[name]);
            what.arg(hex(rand::random())).arg(markers.reader()).arg(id).arg(looks).arg(&servers);
            what.arg(read_at).arg(READERS_MS);
            for (lane, number) in stated.unwrap_or_default() {
                what.arg(lane).arg(number);
            }
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
                    markers.read(&incarnation);
                    incarnations.seen.push(incarnation);
                }
                Err(error) => {
                    incarnations.is_loading |= error.failure() == Failure::Loading;
                    problem = error;
                    incarnations.unseen += 1;
                }
            }
        }
        if incarnations.seen.is_empty() { Err(problem) } else { Ok(incarnations) }
    }

    /// A read of a marker also observes its server's clock, in whole milliseconds.
    fn note_clock(&self, place: u16, now: UnixMs, sent: Instant, received: Instant) {
        let name = self.inner.markers.names().get(usize::from(place));
        let node = name.and_then(|name| self.inner.nodes.owner(name));
        if let Some(node) = node {
            node.showed(now.0.saturating_mul(1_000), 999, sent, received);
        }
    }
}

fn text_of(server: Server) -> String {
    hex(server.process) + &hex(server.promotion)
}

/// Parses the incarnation and the server's time.
fn parse(place: u16, answer: &Value) -> Result<(Incarnation, UnixMs), StoreError> {
    let Value::Array(fields) = answer else { return Err(StoreError::Protocol) };
    let [Value::BulkString(text), looks, now, Value::BulkString(server)] = fields.as_slice() else {
        return Err(StoreError::Protocol);
    };
    let (looks, now) = (script::decimal(looks)?, script::decimal(now)?);
    let text = std::str::from_utf8(text).map_err(|_| StoreError::Protocol)?;
    let (id, since) = text.split_once(':').ok_or(StoreError::Protocol)?;
    let (id, since) = (id_of(id)?, since.parse().map_err(|_| StoreError::Protocol)?);
    let age_ms = now.saturating_sub(since);
    let server = server_of(server)?;
    Ok((Incarnation { place, id, looks, server, since: UnixMs(since), age_ms }, UnixMs(now)))
}

fn server_of(text: &[u8]) -> Result<Option<Server>, StoreError> {
    if text.is_empty() {
        return Ok(None);
    }
    let text = std::str::from_utf8(text).map_err(|_| StoreError::Protocol)?;
    let (process, promotion) = text.split_at_checked(32).ok_or(StoreError::Protocol)?;
    Ok(Some(Server { process: id_of(process)?, promotion: id_of(promotion)? }))
}

fn id_of(text: &str) -> Result<u128, StoreError> {
    u128::from_str_radix(text, 16).map_err(|_| StoreError::Protocol)
}
