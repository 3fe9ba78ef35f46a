//! Exchanges packets with the database: writes this region's counts that are due, and reads what other regions have written.

use super::calls::{Global, count, failure};
use crate::database::{DatabaseError, PacketResult};
use crate::region::hub::Hub;
use crate::region::machine::Machine;
use crate::telemetry::metrics::Operation;
use crate::telemetry::spans::{Round, around};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{debug, error, info, warn};
use weir_core::replication::Next;
use weir_core::replication::global::sync::{Call, GlobalSync};

/// Exchanges packets.
pub(super) struct SyncTask {
    global: Arc<Global>,
    sync: GlobalSync,
    round: Round,
    /// How many were found when that was logged last.
    foreign_writers: usize,
}

impl SyncTask {
    /// A new writer.
    pub(super) fn new(hub: &Hub, global: &Arc<Global>) -> SyncTask {
        let region = global.database.region().as_bytes();
        let sync = GlobalSync::new(global.schedule, global.id, region, hub.moment().mono, rand::random());
        SyncTask { global: global.clone(), sync, round: Round::new("exchange"), foreign_writers: 0 }
    }

    /// Exchanges the first packet, which is due at once, once.
    pub(super) async fn exchange_first(&mut self, hub: &Arc<Hub>) {
        if let Next::Call(call) = self.next(hub) {
            self.call(hub, call).await;
        }
    }
}

impl Machine for SyncTask {
    type Call = Call;

    fn next(&mut self, mut hub: &Hub) -> Next<Call> {
        self.sync.next(&mut hub, rand::random())
    }

    async fn call(&mut self, hub: &Arc<Hub>, call: Call) {
        exchange(hub, &self.global, &mut self.sync, call, &mut self.round).await;
        self.global.exchanged.notify_one();
        self.log_split(hub);
    }

    fn idle(&mut self, _hub: &Hub, next: &Next<Call>) {
        if *next != Next::Yield {
            self.round.end();
        }
    }
}

impl SyncTask {
    fn log_split(&mut self, hub: &Hub) {
        let found = hub.state(|state, _| state.foreign_writers());
        let region = self.global.database.region();
        match (self.foreign_writers, found) {
            (0, 1..) => error!(
                region,
                aggregators = found,
                "the region is split: aggregators that are not in this region's Redis write to the database under its name, so each limit \
                 holds twice; give each region a name of its own (--region or WEIR_REGION), and all its aggregators the same Redis and --redis-prefix"
            ),
            (1.., 0) => info!(region, "the region is not split any more"),
            _ => {}
        }
        self.foreign_writers = found;
    }
}

async fn exchange(hub: &Hub, global: &Global, sync: &mut GlobalSync, call: Call, round: &mut Round) {
    let (started, span) = (Instant::now(), round.call(&hub.telemetry));
    let Call { packet, within_ms } = call;
    let exchanging = global.database.exchange(&packet, hub.now(), Duration::from_millis(within_ms));
    let result = around(span.as_ref(), exchanging).await;
    hub.metrics.exchange_seconds.observe(started.elapsed().as_secs_f64());
    round.called(packet.rows.len() as u64, result.as_ref().err().map(DatabaseError::reason));
    count(hub, global, Operation::Exchange, started, &result);
    match &result {
        Ok(exchanged) => note(hub, exchanged, packet.rows.len()),
        Err(error) => {
            hub.metrics.global_write_failed(error.reason());
            let rows = packet.rows.len();
            hub.warn(
                &format!(
                    "could not exchange a packet with the database: {error}; its {rows} rows are sent again"
                ),
                None,
            );
        }
    }
    let feed = result.map(|exchanged| exchanged.feed).map_err(|error| failure(&error));
    if sync.exchanged(&mut &*hub, feed) {
        warn!("the database has lost published counts; publishing all again");
    }
}

fn note(hub: &Hub, exchanged: &PacketResult, rows: usize) {
    let PacketResult { feed, skipped, skipped_example, bad, bad_example } = exchanged;
    let read: usize = feed.pages.iter().map(|page| page.rows).sum();
    hub.metrics.convergence.global_writes.inc_by((rows as u64).saturating_sub(*skipped));
    hub.metrics.convergence.global_rows_read.inc_by(read as u64);
    hub.metrics.program.bad_rows.inc_by(skipped + bad);
    if *skipped > 0 {
        hub.warn(
            &format!("cells that do not fit in a row are not published, such as {skipped_example:?}"),
            None,
        );
    }
    if *bad > 0 {
        let example = bad_example.as_deref().unwrap_or_default();
        hub.warn(&format!("skipped {bad} invalid rows of the database: {example}"), None);
    }
    debug!(rows, read, "exchanged a packet");
}
