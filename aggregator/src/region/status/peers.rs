//! The status that the region's aggregators exchange through its store, each every two seconds, for the admin listener.

use super::Status;
use super::counters::Rule;
use crate::region::hub::Hub;
use crate::region::regional::Regional;
use crate::telemetry::build::VERSION;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::sleep;
use tracing::debug;
use weir_core::model::room::Places;

/// Time between two exchanges.
const INTERVAL: Duration = Duration::from_secs(2);
/// A status older than this is shown, but no longer added to rates.
pub const FRESH_MS: u64 = 10_000;
/// Most rules in an aggregator's status. Workspaces share them, the busiest rules of each first.
const MAX_RULES_SENT: usize = 256;
/// Longest status of a peer that is parsed.
const MAX_STATUS_BYTES: usize = 512 * 1024;

/// The status of an aggregator, as it sends it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerStatus {
    /// Its version.
    pub version: String,
    /// How long it has been running.
    pub uptime_ms: u64,
    /// Whether it is shutting down.
    pub draining: bool,
    /// What it waits for before it is ready.
    pub waits_for: Option<String>,
    /// Open streams.
    pub streams: u64,
    /// Envoys connected to it.
    pub envoys: u64,
    /// Keys in its memory.
    pub keys: u64,
    /// Open streams of the rate-limit quota service.
    pub quota_streams: u64,
    /// What the rules of its filters decided.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
    /// Its filters report more rules than these.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub rules_left_out: bool,
}

/// The last status of each peer.
#[derive(Default)]
pub struct Peers {
    received: Mutex<Arc<Vec<Peer>>>,
    /// Whether this aggregator has removed its status. The lock is held during an exchange, so that none follows the removal.
    removed: tokio::sync::Mutex<bool>,
}

/// Another aggregator of the region.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its id, which changes with each start.
    pub id: String,
    /// The status that it sent.
    pub status: PeerStatus,
    /// The age of the status when it was read.
    age_ms: u64,
    read: Instant,
}

impl PeerStatus {
    /// The same without the rules.
    pub fn without_rules(&self) -> PeerStatus {
        let (version, waits_for) = (self.version.clone(), self.waits_for.clone());
        PeerStatus { version, waits_for, rules: Vec::new(), rules_left_out: false, ..*self }
    }
}

impl Peer {
    /// The age of the status, in milliseconds.
    pub fn age_ms(&self) -> u64 {
        let since = u64::try_from(self.read.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.age_ms.saturating_add(since)
    }
}

impl Peers {
    /// All peers whose status was read at the last exchange.
    pub fn all(&self) -> Arc<Vec<Peer>> {
        self.received.lock().clone()
    }
}

/// This aggregator's status, with its rules.
fn own_with_rules(hub: &Hub, status: &Status, waits_for: Option<&str>) -> PeerStatus {
    let now = hub.moment().mono;
    let (mut rules, are_complete) = {
        let counters = status.counters.lock();
        (counters.rules(now), counters.are_complete(now))
    };
    let rules_left_out = !are_complete || rules.len() > MAX_RULES_SENT;
    if rules_left_out {
        rules = sent_of(rules);
    }
    PeerStatus { rules, rules_left_out, ..own(hub, status, waits_for) }
}

/// The rules that are sent: the busiest, of which one workspace has no more than its part, and what is left of the room after that.
fn sent_of(mut rules: Vec<Rule>) -> Vec<Rule> {
    let busy = |rule: &Rule| rule.decided.allowed.saturating_add(rule.decided.denied);
    rules.sort_by_key(|rule| Reverse(busy(rule)));
    let mut room = Places::new(MAX_RULES_SENT);
    let (mut sent, others): (Vec<Rule>, Vec<Rule>) =
        rules.into_iter().partition(|rule| room.take(rule.workspace.clone()));
    let left = MAX_RULES_SENT.saturating_sub(sent.len());
    sent.extend(others.into_iter().take(left));
    sent
}

/// This aggregator's status, without its rules; `waits_for` is what it waits for before it is ready.
pub fn own(hub: &Hub, status: &Status, waits_for: Option<&str>) -> PeerStatus {
    let now = hub.moment().mono;
    PeerStatus {
        version: VERSION.to_owned(),
        uptime_ms: now.0,
        draining: hub.draining.borrow().is_some(),
        waits_for: waits_for.map(str::to_owned),
        streams: u64::try_from(hub.metrics.program.streams.get()).unwrap_or(0),
        envoys: status.streams.connected() as u64,
        keys: hub.stats().keys as u64,
        quota_streams: u64::try_from(hub.metrics.quota.quota_streams.get()).unwrap_or(0),
        rules: Vec::new(),
        rules_left_out: false,
    }
}

/// Exchanges the status with the peers, until the program ends; `waits_for` is what this aggregator waits for.
pub async fn exchange(
    hub: Arc<Hub>,
    status: Arc<Status>,
    regional: Arc<Regional>,
    waits_for: impl Fn() -> Option<&'static str> + Send + 'static,
) {
    loop {
        let removed = status.peers.removed.lock().await;
        if *removed {
            return;
        }
        if hub.store_is_usable() {
            let record = serde_json::to_vec(&own_with_rules(&hub, &status, waits_for())).unwrap_or_default();
            match regional.exchange_status(&record).await {
                Ok(statuses) => {
                    let peers: Vec<Peer> = statuses.into_iter().filter_map(peer).collect();
                    *status.peers.received.lock() = Arc::new(peers);
                }
                Err(error) => debug!(%error, "could not exchange the status with the other aggregators"),
            }
        }
        drop(removed);
        sleep(INTERVAL).await;
    }
}

/// Removes this aggregator's status, so that the peers do not list it as silent.
pub async fn remove_status(hub: &Hub, status: &Status, regional: &Regional) {
    *status.peers.removed.lock().await = true;
    if !hub.store_is_usable() {
        return;
    }
    if let Err(error) = regional.delete_status().await {
        debug!(%error, "could not remove this aggregator's status from the store");
    }
}

fn peer((id, age_ms, record): ([u8; 16], u64, Vec<u8>)) -> Option<Peer> {
    if record.len() > MAX_STATUS_BYTES {
        return None;
    }
    let mut status: PeerStatus = serde_json::from_slice(&record).ok()?;
    status.rules_left_out |= status.rules.len() > MAX_RULES_SENT;
    status.rules.truncate(MAX_RULES_SENT);
    Some(Peer { id: format!("{:032x}", u128::from_be_bytes(id)), status, age_ms, read: Instant::now() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::model::outcome::Outcomes;

    #[test]
    fn busy_rules_of_one_workspace_keep_none_of_another_out() {
        let rule = |workspace: &str, number: usize, allowed: u64| Rule {
            workspace: workspace.to_owned(),
            name: number.to_string(),
            decided: Outcomes { allowed, ..Outcomes::default() },
            ..Rule::default()
        };
        let busy = |number| rule("busy", number, 1_000_000 - number as u64);
        let mut rules: Vec<Rule> = (0..1_000).map(busy).collect();
        assert_eq!(sent_of(rules.clone()), rules[..MAX_RULES_SENT], "one alone has all of the room");
        rules.extend((0..10).map(|number| rule("quiet", number, 1)));
        let sent = sent_of(rules.clone());
        let of = |workspace: &str| sent.iter().filter(|rule| rule.workspace == workspace).count();
        assert_eq!((of("quiet"), of("busy"), sent.len()), (10, MAX_RULES_SENT - 10, MAX_RULES_SENT));
        assert!(sent.contains(&rules[MAX_RULES_SENT - 11]), "the busiest are sent");
    }

    #[test]
    fn an_invalid_status_is_ignored() {
        let record = |bytes: &[u8]| peer(([7; 16], 5, bytes.to_vec()));
        for bad in [b"".as_slice(), b"7", b"{\"keys\":-1}", b"{\"rules\":[{\"limit\":\"x\"}]}"] {
            assert!(record(bad).is_none());
        }
        assert!(record(&vec![b' '; MAX_STATUS_BYTES + 1]).is_none());
        let many = PeerStatus { rules: vec![Rule::default(); MAX_RULES_SENT + 1], ..PeerStatus::default() };
        let received = peer(([7; 16], 5, serde_json::to_vec(&many).unwrap())).unwrap();
        assert_eq!(
            (received.id.as_str(), received.status.rules.len()),
            ("07".repeat(16).as_str(), MAX_RULES_SENT)
        );
        assert!(received.status.rules_left_out);
        assert!(received.age_ms() >= 5);
        assert_eq!(
            record(b"{\"newer\":1,\"keys\":3}").unwrap().status.keys,
            3,
            "fields of newer versions are ignored"
        );
    }
}
