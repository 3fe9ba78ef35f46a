//! Telling one filter what it does not know of live control, soon after it changed.
//!
//! Leaves to others: what that is (`weir_core::control::book`), peers that do not read (`send_queue`).

use super::Live;
use crate::auth::Scope;
use crate::region::send_queue::SendQueue;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use weir_core::control::book::ControlPush;
use weir_core::model::wire::{ControlsKnown, RegionFrame};

/// Least time between two tellings: many changes are told at once.
const COALESCE: Duration = Duration::from_millis(20);
/// The same for who says that something was lost.
const AGAIN: Duration = Duration::from_millis(200);
/// Most frames at a stretch, so that ten thousand controls leave room for answers.
const FRAMES_AT_A_STRETCH: usize = 16;

/// A stream on which live control is told, until it is dropped.
#[derive(Debug)]
pub struct ControlStream {
    known: watch::Sender<ControlsKnown>,
    task: JoinHandle<()>,
}

impl ControlStream {
    /// Begins, within the `scope` of a filter that already has what is `known`.
    pub fn begin(
        live: Arc<Live>,
        send_queue: SendQueue,
        scope: Arc<Scope>,
        known: ControlsKnown,
    ) -> ControlStream {
        let (known, acknowledged) = watch::channel(known);
        ControlStream { known, task: tokio::spawn(run(live, send_queue, scope, acknowledged)) }
    }

    /// The filter says it again.
    pub fn acknowledged(&self, known: ControlsKnown) {
        self.known.send_replace(known);
    }
}

impl Drop for ControlStream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(
    live: Arc<Live>,
    send_queue: SendQueue,
    scope: Arc<Scope>,
    mut known: watch::Receiver<ControlsKnown>,
) {
    let mut versions = live.versions();
    let mut push = ControlPush::new(*known.borrow_and_update());
    loop {
        versions.mark_unchanged();
        let book = live.book();
        for (place, mut controls) in push.next(&book, live.hub.now()).into_iter().enumerate() {
            if place > 0 && place % FRAMES_AT_A_STRETCH == 0 {
                sleep(COALESCE).await;
            }
            scope.confine_controls(&mut controls);
            let frame = RegionFrame { controls: Some(controls), ..RegionFrame::default() };
            if send_queue.send(frame).await.is_err() {
                return;
            }
        }
        drop(book);
        sleep(COALESCE).await;
        tokio::select! {
            () = send_queue.closed() => return,
            changed = versions.changed() => if changed.is_err() { return },
            acknowledged = known.changed() => {
                if acknowledged.is_err() {
                    return;
                }
                if push.acknowledged(*known.borrow_and_update()) {
                    sleep(AGAIN).await;
                }
            }
        }
    }
}
