//! Pushes the counts of other nodes to subscribers: soon, and many changes in one frame.
//!
//! One task waits for changes and wakes the subscribers that have something to receive. Each subscriber's own task sends.
//! While its stream is full the task waits, and changes in the meantime are stored only as a set of keys.

use crate::auth::Scope;
use crate::region::hub::Hub;
use crate::region::send_queue::SendQueue;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::sleep;
use weir_core::model::key::NodeId;
use weir_core::model::wire::RegionFrame;
use weir_core::replication::push::{COALESCE_MS, Pusher, Step};
use weir_core::replication::{Event, StreamId};

/// Wakes subscribers until the program ends.
pub async fn watch(hub: Arc<Hub>) {
    loop {
        hub.notified(Event::Push.into()).await;
        hub.wake_subscribers();
        sleep(Duration::from_millis(COALESCE_MS)).await;
    }
}

/// Sends pushes on one stream, within the `scope` of its credential, until the stream ends or another one replaces it.
pub async fn follow(
    hub: Arc<Hub>,
    (node, id): (NodeId, StreamId),
    turn: Arc<Notify>,
    send_queue: SendQueue,
    scope: Arc<Scope>,
) {
    let mut pusher = Pusher::new(node, id);
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
