//! Whether the store is there, whether it has lost anything, and which Envoys are alive in the region.
//!
//! Leaves to others: markers (`store`), what follows from them (`weir_core::replication`).

use super::{Regional, broadcast, counted, counted_parts};
use crate::region::hub::Hub;
use crate::telemetry::metrics::Operation;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{info, warn};
use weir_core::replication::Next;
use weir_core::replication::grace_period::GracePeriod;
use weir_core::replication::regional::heartbeat::{Call, Heartbeat};
use weir_core::replication::regional::watch::{MarkersRead, Watch};

/// Watches for as long as the program runs.
pub async fn run(hub: Arc<Hub>, regional: Arc<Regional>) {
    let mut watch = Watch::new(regional.schedule);
    loop {
        match watch.next(&mut &*hub) {
            Next::Call(()) => look(&hub, &regional, &mut watch).await,
            idle => drop(hub.idle(idle).await),
        }
    }
}

async fn look(hub: &Arc<Hub>, regional: &Arc<Regional>, watch: &mut Watch) {
    let started = Instant::now();
    let within = Duration::from_millis(regional.schedule.marker_timeout_ms);
    let incarnations = regional.store.renew(watch.renewals(), within).await;
    let error = incarnations.as_ref().err().map(ToString::to_string);
    let incarnations = counted(&hub.metrics, Operation::ReadMarkers, started, incarnations);
    let looked = watch.looked(&mut &**hub, incarnations.as_ref().map_err(|failure| *failure));
    say(&looked, &error.unwrap_or_default());
    if let Some(grace) = looked.grace {
        tokio::spawn(make_up(hub.clone(), regional.clone(), grace));
    }
}

fn say(looked: &MarkersRead, error: &str) {
    if looked.is_found {
        info!("the regional store is found");
    }
    if looked.is_wiped {
        warn!("the regional store has lost what it held; all that is known here is written again");
    }
    if looked.is_back {
        info!("the regional store is back");
    }
    if looked.became_unavailable {
        warn!(%error, "the regional store is away; this aggregator goes on from memory");
    }
}

/// Has the store make up for what nobody could account for, after each recovery grace period.
async fn make_up(hub: Arc<Hub>, regional: Arc<Regional>, mut grace: GracePeriod) {
    loop {
        match grace.next(&mut &*hub) {
            Next::Call(lower_bounds) => {
                let started = Instant::now();
                let results = regional.store.raise_to(&lower_bounds, regional.within()).await;
                let results = counted_parts(&hub.metrics, Operation::Replay, started, results);
                grace.raised(&mut &*hub, &lower_bounds, &results);
            }
            idle => {
                let cells = grace.take_settled();
                if cells > 0 {
                    info!(
                        cells,
                        "what nobody could account for after the loss counts as the region's baseline"
                    );
                }
                if idle == Next::Over {
                    return;
                }
                hub.idle(idle).await;
            }
        }
    }
}

/// Says which Envoys are alive here, and hears which are elsewhere, for as long as the program runs.
pub async fn heartbeat(hub: Arc<Hub>, regional: Arc<Regional>) {
    let mut heartbeat = Heartbeat::new(regional.id, regional.schedule);
    loop {
        match heartbeat.next(&mut &*hub) {
            Next::Call(Call::Origins(mine)) => {
                let started = Instant::now();
                let result = regional.store.origins(&mine, &regional.id, regional.within()).await;
                let alive = counted(&hub.metrics, Operation::Heartbeat, started, result);
                let alive = alive.as_ref().map(|alive| alive.origins.as_slice());
                heartbeat.heard(&mut &*hub, alive.map_err(|failure| *failure));
            }
            Next::Call(Call::Broadcast(changes)) => {
                let result = broadcast::send(&hub, &regional, &changes).await;
                heartbeat.sent(&mut &*hub, result);
            }
            idle => {
                if let Some(event) = hub.idle(idle).await {
                    heartbeat.notified(event);
                }
            }
        }
    }
}
