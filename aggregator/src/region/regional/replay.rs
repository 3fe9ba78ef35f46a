//! Writes reported counts to the store, and hot cells to its index.

use super::calls::{Regional, counted, counted_parts};
use crate::redis::StoreError;
use crate::region::hub::Hub;
use crate::region::machine::Machine;
use crate::telemetry::metrics::Operation;
use crate::telemetry::spans::{self, Round};
use std::sync::Arc;
use std::time::Instant;
use weir_core::region::HotCell;
use weir_core::region::exchange::Merge;
use weir_core::replication::Next;
use weir_core::replication::failure::first_failure;
use weir_core::replication::regional::replay::{Call, Replay};

/// Writes what waits to the store.
pub(super) struct ReplayTask {
    regional: Arc<Regional>,
    replay: Replay,
    round: Round,
}

impl ReplayTask {
    pub(super) fn new(regional: Arc<Regional>) -> ReplayTask {
        let replay = Replay::new(regional.schedule);
        ReplayTask { regional, replay, round: Round::new("replay") }
    }

    async fn merge(&mut self, hub: &Hub, merges: Vec<Merge>) {
        let ReplayTask { regional, replay, round } = self;
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

    async fn name_hot(&mut self, hub: &Hub, hot: Vec<HotCell>) {
        let started = Instant::now();
        drop(self.round.call(&hub.telemetry));
        let result = name(hub, &self.regional, &hot).await;
        let result = counted(&hub.metrics, Operation::NameHot, started, result);
        self.round.called(0, result.as_ref().err().map(|failure| failure.as_str()));
        self.replay.named(&mut &*hub, &hot, result);
    }
}

impl Machine for ReplayTask {
    type Call = Call;

    fn next(&mut self, mut hub: &Hub) -> Next<Call> {
        self.replay.next(&mut hub)
    }

    async fn call(&mut self, hub: &Arc<Hub>, call: Call) {
        match call {
            Call::Merge(merges) => self.merge(hub, merges).await,
            Call::NameHot(hot) => self.name_hot(hub, hot).await,
        }
    }

    fn idle(&mut self, _hub: &Hub, next: &Next<Call>) {
        if *next != Next::Yield {
            self.round.end();
        }
    }
}

async fn name(hub: &Hub, regional: &Regional, hot: &[HotCell]) -> Result<(), StoreError> {
    let named: Vec<_> = hot.iter().map(|hot| (hot.key.clone(), hot.sequence, hot.expires)).collect();
    regional.store.note_hot(&named, hub.now(), regional.within()).await
}
