//! Telling subscribers what the others used: soon, but many changes at once.
//!
//! One task watches for all and wakes those that have something to be told. Each subscriber's own task sends; while its
//! stream is full it waits, and what changes meanwhile is only remembered as a set of keys.
//!
//! Leaves to others: who is to be told what, and how often (`weir_core::replication`), peers that do not read (`send_queue`).

use crate::auth::Scope;
use crate::region::hub::Hub;
use crate::region::send_queue::SendQueue;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::sleep;
use weir_core::model::key::OriginId;
use weir_core::model::wire::RegionFrame;
use weir_core::replication::push::{COALESCE_MS, Pusher, Step};
use weir_core::replication::{Event, StreamId};

/// Wakes subscribers for as long as the program runs.
pub async fn watch(hub: Arc<Hub>) {
    loop {
        hub.notified(Event::Push.into()).await;
        hub.wake_subscribers();
        sleep(Duration::from_millis(COALESCE_MS)).await;
    }
}

/// Sends pushes on one stream, within its peer's `scope`, until it ends or another one takes over.
pub async fn follow(
    hub: Arc<Hub>,
    (origin, id): (OriginId, StreamId),
    turn: Arc<Notify>,
    send_queue: SendQueue,
    scope: Arc<Scope>,
) {
    let mut pusher = Pusher::new(origin, id);
    loop {
        match pusher.next(&mut &*hub) {
            Step::Over => return,
            Step::Wait => turn.notified().await,
            Step::Sleep(ms) => sleep(Duration::from_millis(ms)).await,
            Step::Send(mut push) => {
                scope.confine_push(&mut push);
                let frame = RegionFrame { push: Some(push), ..RegionFrame::default() };
                if send_queue.send(frame).await.is_err() {
                    return;
                }
            }
        }
    }
}
