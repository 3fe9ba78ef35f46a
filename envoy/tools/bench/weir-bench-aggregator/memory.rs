//! What a key takes of an aggregator's memory: how much its process has grown after so many keys.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;
use tokio::time::sleep;
use weir_core::model::wire::{Count, MAX_FRAME_CELLS};
use weir_envoy::http::{Connection, Request};
use weir_envoy::{Aggregator, AggregatorOptions};

use crate::peer::{HOUR_MS, PATIENCE, Peer, key, sequence};
use crate::stats::metric;

const KEYS: usize = 60_000;
const QUICK_KEYS: usize = 2_000;
/// Envoys that use every key, if not the aggregator itself decides.
const ENVOYS: usize = 10;
/// Most checks of one call.
const BATCH: usize = 100;
/// So many keys are decided before the region has their counts. With more at once, some would find a full bucket and share one count.
const UNREPORTED: usize = 5_000;
const LIMIT: u64 = 1_000_000;

pub const COLUMNS: [&str; 3] = ["keys", "bytes a key", "bytes for each further Envoy"];

/// Who uses the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Users {
    /// Envoys with the filter.
    Envoys,
    /// An application, by the HTTP API.
    Application,
}

pub async fn measure(users: Users, quick: bool) -> Result<Vec<f64>> {
    let keys = if quick { QUICK_KEYS } else { KEYS };
    let mut aggregator = Aggregator::start(AggregatorOptions::default()).await?;
    let before = aggregator.process().resident_bytes()?;
    let per_key = |grown: u64| grown as f64 / keys as f64;
    if users == Users::Application {
        decide(&aggregator, keys).await?;
        wait_for(&aggregator, keys).await?;
        let after = aggregator.process().resident_bytes()?;
        return Ok(vec![keys as f64, per_key(after.saturating_sub(before)), f64::NAN]);
    }
    let mut peers = vec![report(&aggregator, keys).await?];
    wait_for(&aggregator, keys).await?;
    let of_one = aggregator.process().resident_bytes()?;
    for _ in 1..ENVOYS {
        peers.push(report(&aggregator, keys).await?);
    }
    let of_all = aggregator.process().resident_bytes()?;
    let further = per_key(of_all.saturating_sub(of_one)) / (ENVOYS - 1) as f64;
    Ok(vec![keys as f64, per_key(of_one.saturating_sub(before)), further])
}

/// An Envoy that uses every key once.
async fn report(aggregator: &Aggregator, keys: usize) -> Result<Peer> {
    let mut peer = Peer::join(aggregator.grpc_port(), false).await?;
    let numbers: Vec<_> = (0..keys).collect();
    for (id, frame) in numbers.chunks(MAX_FRAME_CELLS).enumerate() {
        let count = |number: &usize| Count {
            key: key("held", *number),
            sequence: sequence(),
            own: 1,
            limit: LIMIT,
            ..Count::default()
        };
        peer.report(id as u64, frame.iter().map(count).collect()).await?;
        peer.next_with(|frame| frame.ack).await?;
    }
    Ok(peer)
}

/// An application that uses every key once. Identifiers have 20 bytes, as those of the Envoys have.
async fn decide(aggregator: &Aggregator, keys: usize) -> Result<()> {
    let mut connection = Connection::open(aggregator.http_address()).await?;
    let numbers: Vec<_> = (0..keys).collect();
    for (place, batch) in numbers.chunks(BATCH).enumerate() {
        if (place * BATCH).is_multiple_of(UNREPORTED) {
            wait_for(aggregator, place * BATCH).await?;
        }
        let check = |number: &usize| {
            let identifier = format!("held-api-key-{number:07}");
            json!({ "namespace": "per-key", "identifier": identifier, "limit": LIMIT, "duration": HOUR_MS })
        };
        let body = json!({ "checks": batch.iter().map(check).collect::<Vec<_>>(), "timeout": "5s" });
        let request =
            Request::post("/v1/check/batch", body.to_string()).header("content-type", "application/json");
        let response = connection.send(request).await?;
        ensure!(response.status == 200, "HTTP {}: {}", response.status, response.text());
    }
    Ok(())
}

/// Waits until the aggregator holds all keys.
async fn wait_for(aggregator: &Aggregator, keys: usize) -> Result<()> {
    let began = std::time::Instant::now();
    loop {
        let text = aggregator.admin_get("/metrics").await?.text();
        let held = metric(&text, "weir_aggregator_keys", "");
        if held >= keys as f64 {
            return Ok(());
        }
        ensure!(began.elapsed() < PATIENCE, "the aggregator holds {held} of {keys} keys");
        sleep(Duration::from_millis(50)).await;
    }
}
