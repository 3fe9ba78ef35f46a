//! Writes reported counts to the store, and hot cells to its index.

use super::calls::{Regional, counted, counted_parts};
use crate::redis::StoreError;
use crate::region::hub::Hub;
use crate::telemetry::metrics::Operation;
use crate::telemetry::spans::{self, Round};
use std::sync::Arc;
use std::time::Instant;
use weir_core::region::HotCell;
use weir_core::region::exchange::Merge;
use weir_core::replication::Next;
use weir_core::replication::failure::first_failure;
use weir_core::replication::regional::replay::{Call, Replay};

/// Replays until the program ends.
pub async fn run(hub: Arc<Hub>, regional: Arc<Regional>) {
    let mut replay = Replay::new(regional.schedule);
    let mut round = Round::new("replay");
    loop {
        match replay.next(&mut &*hub) {
            Next::Call(Call::Merge(merges)) => merge(&hub, &regional, &mut replay, merges, &mut round).await,
            Next::Call(Call::NameHot(hot)) => {
                let started = Instant::now();
                drop(round.call(&hub.telemetry));
                let result = name(&hub, &regional, &hot).await;
                let result = counted(&hub.metrics, Operation::NameHot, started, result);
                round.called(0, result.as_ref().err().map(|failure| failure.as_str()));
                replay.named(&mut &*hub, &hot, result);
            }
            idle => {
                if idle != Next::Yield {
                    round.end();
                }
                hub.idle(idle).await;
            }
        }
    }
}

async fn merge(hub: &Hub, regional: &Regional, replay: &mut Replay, merges: Vec<Merge>, round: &mut Round) {
    let (started, span) = (Instant::now(), round.call(&hub.telemetry));
    let scripts = span.and_then(|span| span.scripts(merges.len()));
    let results = regional.store.merge(&merges, hub.now(), regional.within()).await;
    if let Some(error) = results.iter().find_map(|result| result.as_ref().err()) {
        hub.warn(&format!("could not write all reported counts to the regional store: {error}"), None);
    }
    let results = counted_parts(&hub.metrics, Operation::Replay, started, results);
    let failure = first_failure(&results).map(|failure| failure.as_str());
    spans::failed(scripts, failure);
    round.called(merges.len() as u64, failure);
    replay.merged(&mut &*hub, merges, &results);
}

async fn name(hub: &Hub, regional: &Regional, hot: &[HotCell]) -> Result<(), StoreError> {
    let named: Vec<_> = hot.iter().map(|hot| (hot.key.clone(), hot.sequence, hot.expires)).collect();
    regional.store.note_hot(&named, hub.now(), regional.within()).await
}
