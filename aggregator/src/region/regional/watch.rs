//! Whether the store is there, whether it has lost anything, and which Envoys are alive in the region.
//!
//! Leaves to others: sentinels (`store`), what follows from them (`weir_core::replication`).

use super::{Regional, counted, counted_parts, sisters};
use crate::region::shared::Shared;
use crate::telemetry::metrics::Operation;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{info, warn};
use weir_core::replication::Next;
use weir_core::replication::grace::Grace;
use weir_core::replication::regional::announce::{Announcer, Call};
use weir_core::replication::regional::watch::{Looked, Watch};

/// Watches for as long as the program runs.
pub async fn run(shared: Arc<Shared>, regional: Arc<Regional>) {
    let mut watch = Watch::new(regional.cadence);
    loop {
        match watch.next(&mut &*shared) {
            Next::Call(()) => look(&shared, &regional, &mut watch).await,
            idle => drop(shared.idle(idle).await),
        }
    }
}

async fn look(shared: &Arc<Shared>, regional: &Arc<Regional>, watch: &mut Watch) {
    let started = Instant::now();
    let within = Duration::from_millis(regional.cadence.sentinel_timeout_ms);
    let lives = regional.store.renew(watch.renewals(), within).await;
    let error = lives.as_ref().err().map(ToString::to_string);
    let lives = counted(&shared.metrics, Operation::Look, started, lives);
    let looked = watch.looked(&mut &**shared, lives.as_ref().map_err(|failure| *failure));
    say(&looked, &error.unwrap_or_default());
    if let Some(grace) = looked.grace {
        tokio::spawn(make_up(shared.clone(), regional.clone(), grace));
    }
}

fn say(looked: &Looked, error: &str) {
    if looked.is_found {
        info!("the regional store is found");
    }
    if looked.is_wiped {
        warn!("the regional store has lost what it held; all that is known here is written again");
    }
    if looked.is_back {
        info!("the regional store is back");
    }
    if looked.went_away {
        warn!(%error, "the regional store is away; this aggregator goes on from memory");
    }
}

/// Has the store make up for what nobody could account for, after each time of grace.
async fn make_up(shared: Arc<Shared>, regional: Arc<Regional>, mut grace: Grace) {
    loop {
        match grace.next(&mut &*shared) {
            Next::Call(floors) => {
                let started = Instant::now();
                let results = regional.store.raise_to(&floors, regional.within()).await;
                let results = counted_parts(&shared.metrics, Operation::Replay, started, results);
                grace.raised(&mut &*shared, &floors, &results);
            }
            idle => {
                let cells = grace.take_settled();
                if cells > 0 {
                    info!(cells, "what nobody could account for after the loss counts as the region's base");
                }
                if idle == Next::Over {
                    return;
                }
                shared.idle(idle).await;
            }
        }
    }
}

/// Says which Envoys are alive here, and hears which are elsewhere, for as long as the program runs.
pub async fn announce(shared: Arc<Shared>, regional: Arc<Regional>) {
    let mut announcer = Announcer::new(regional.id, regional.cadence);
    loop {
        match announcer.next(&mut &*shared) {
            Next::Call(Call::Origins(mine)) => {
                let started = Instant::now();
                let result = regional.store.origins(&mine, &regional.id, regional.within()).await;
                let alive = counted(&shared.metrics, Operation::Announce, started, result);
                let alive = alive.as_ref().map(|alive| alive.origins.as_slice());
                announcer.heard(&mut &*shared, alive.map_err(|failure| *failure));
            }
            Next::Call(Call::Tell(changes)) => {
                let result = sisters::send(&shared, &regional, &changes).await;
                announcer.sent(&mut &*shared, result);
            }
            idle => {
                if let Some(bell) = shared.idle(idle).await {
                    announcer.rang(bell);
                }
            }
        }
    }
}
