//! Telling subscribers what the others used: soon, but many changes at once.
//!
//! One task watches the region for all. It wakes the subscribers that have something to be told and then rests for
//! [`COALESCE`], so that a key which changes a thousand times in that time is sent once. Each subscriber's own task
//! sends what the region holds at the moment of sending. While its stream is full it waits, and what changes
//! meanwhile is only remembered as a set of keys.
//!
//! Leaves to others: who is to be told what (`weir_core::region`), and peers that do not read (`outgoing`).

use crate::outgoing::Outgoing;
use crate::shared::{Shared, StreamId, Turn};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use weir_core::key::OriginId;
use weir_core::wire::RegionFrame;

/// Least time between two rounds of pushes; a push may be late by this much.
pub const COALESCE: Duration = Duration::from_millis(10);
/// Most frames sent to one subscriber in a round, so that a large snapshot leaves room for answers.
const FRAMES_PER_ROUND: usize = 16;

/// Wakes subscribers for as long as the program runs.
pub async fn watch(shared: Arc<Shared>) {
    loop {
        shared.changed.notified().await;
        shared.wake_subscribers();
        tokio::time::sleep(COALESCE).await;
    }
}

/// Sends pushes on one stream until it ends or another one takes over.
pub async fn follow(
    shared: Arc<Shared>,
    origin: OriginId,
    id: StreamId,
    wake: Arc<Notify>,
    outgoing: Outgoing,
) {
    loop {
        for sent in 0.. {
            if sent > 0 && sent % FRAMES_PER_ROUND == 0 {
                tokio::time::sleep(COALESCE).await;
            }
            match shared.next_push(origin, id) {
                Turn::Superseded => return,
                Turn::Idle => break,
                Turn::Push(push) if push.views.is_empty() && !push.complete => {}
                Turn::Push(push) => {
                    shared.metrics.pushes.inc();
                    shared.metrics.pushed_cells.inc_by(push.views.len() as u64);
                    if outgoing
                        .send(RegionFrame { push: Some(push), ..RegionFrame::default() })
                        .await
                        .is_err()
                    {
                        return;
                    }
                }
            }
        }
        wake.notified().await;
    }
}
