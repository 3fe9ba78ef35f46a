//! What the region's aggregators say of themselves, through its store: each every two seconds, to all who look.
//!
//! Leaves to others: the call (`store`), what is shown of it (`admin`).

use super::Status;
use super::counters::Rule;
use crate::region::hub::Hub;
use crate::region::regional::Regional;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::sleep;
use tracing::debug;

/// Between two words.
const INTERVAL: Duration = Duration::from_secs(2);
/// What an aggregator said longer ago is shown, but no longer added to rates.
pub const FRESH_MS: u64 = 10_000;
/// Most rules that an aggregator tells the others, the busiest first.
const MAX_RULES_SENT: usize = 256;
/// Longest word that is listened to.
const MAX_WORD_BYTES: usize = 512 * 1024;

/// An aggregator, in its own words.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerStatus {
    /// Its version.
    pub version: String,
    /// How long it has been running.
    pub uptime_ms: u64,
    /// It is shutting down.
    pub draining: bool,
    /// Streams that are open.
    pub streams: u64,
    /// Envoys connected to it.
    pub envoys: u64,
    /// Keys that it holds.
    pub keys: u64,
    /// What its filters' rules decided.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
}

/// What the others said last.
#[derive(Default)]
pub struct Peers {
    heard: Mutex<Vec<Peer>>,
    /// This one has said goodbye; held while the others are spoken to, so that nothing is said after that.
    gone: tokio::sync::Mutex<bool>,
}

/// Another aggregator of the region.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its name, for as long as it runs.
    pub id: String,
    /// What it said.
    pub status: PeerStatus,
    /// How old that was when it was read.
    age_ms: u64,
    read: Instant,
}

impl Peer {
    /// How long ago it said that.
    pub fn age_ms(&self) -> u64 {
        let since = u64::try_from(self.read.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.age_ms.saturating_add(since)
    }
}

impl Peers {
    /// All that were heard of lately.
    pub fn all(&self) -> Vec<Peer> {
        self.heard.lock().clone()
    }
}

/// This aggregator's own, with what rules decided.
fn word(hub: &Hub, status: &Status) -> PeerStatus {
    let mut rules = status.counters.lock().rules(hub.moment().mono);
    if rules.len() > MAX_RULES_SENT {
        let busy = |rule: &Rule| rule.decided.allowed.saturating_add(rule.decided.denied);
        rules.sort_by_key(|rule| std::cmp::Reverse(busy(rule)));
        rules.truncate(MAX_RULES_SENT);
    }
    PeerStatus { rules, ..own(hub, status) }
}

/// This aggregator's own, but for its rules.
pub fn own(hub: &Hub, status: &Status) -> PeerStatus {
    let now = hub.moment().mono;
    PeerStatus {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        uptime_ms: now.0,
        draining: hub.draining.borrow().is_some(),
        streams: u64::try_from(hub.metrics.streams.get()).unwrap_or(0),
        envoys: status.streams.connected() as u64,
        keys: hub.stats().keys as u64,
        rules: Vec::new(),
    }
}

/// Tells the others and hears them, for as long as the program runs.
pub async fn exchange(hub: Arc<Hub>, status: Arc<Status>, regional: Arc<Regional>) {
    loop {
        let gone = status.peers.gone.lock().await;
        if *gone {
            return;
        }
        if hub.store_is_usable() {
            let word = serde_json::to_vec(&word(&hub, &status)).unwrap_or_default();
            match regional.exchange_status(&word).await {
                Ok(words) => *status.peers.heard.lock() = words.into_iter().filter_map(peer).collect(),
                Err(error) => debug!(%error, "the other aggregators could not be told how this one is"),
            }
        }
        drop(gone);
        sleep(INTERVAL).await;
    }
}

/// Tells the others that this one ends, so that they do not take it for a silent one.
pub async fn say_goodbye(hub: &Hub, status: &Status, regional: &Regional) {
    *status.peers.gone.lock().await = true;
    if !hub.store_is_usable() {
        return;
    }
    if let Err(error) = regional.forget_status().await {
        debug!(%error, "the other aggregators could not be told that this one ends");
    }
}

fn peer((id, age_ms, word): ([u8; 16], u64, Vec<u8>)) -> Option<Peer> {
    if word.len() > MAX_WORD_BYTES {
        return None;
    }
    let mut status: PeerStatus = serde_json::from_slice(&word).ok()?;
    status.rules.truncate(MAX_RULES_SENT);
    Some(Peer { id: format!("{:032x}", u128::from_be_bytes(id)), status, age_ms, read: Instant::now() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_are_none_are_not_heard() {
        let word = |bytes: &[u8]| peer(([7; 16], 5, bytes.to_vec()));
        for bad in [b"".as_slice(), b"7", b"{\"keys\":-1}", b"{\"rules\":[{\"limit\":\"x\"}]}"] {
            assert!(word(bad).is_none());
        }
        assert!(word(&vec![b' '; MAX_WORD_BYTES + 1]).is_none());
        let many = PeerStatus { rules: vec![Rule::default(); MAX_RULES_SENT + 1], ..PeerStatus::default() };
        let heard = peer(([7; 16], 5, serde_json::to_vec(&many).unwrap())).unwrap();
        assert_eq!((heard.id.as_str(), heard.status.rules.len()), ("07".repeat(16).as_str(), MAX_RULES_SENT));
        assert!(heard.age_ms() >= 5);
        assert_eq!(
            word(b"{\"newer\":1,\"keys\":3}").unwrap().status.keys,
            3,
            "what a newer one adds is skipped"
        );
    }
}
