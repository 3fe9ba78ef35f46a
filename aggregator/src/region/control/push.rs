//! Sends one filter the live controls that it lacks, soon after they changed.

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

/// Least time between two rounds; changes in between are sent together.
const COALESCE: Duration = Duration::from_millis(20);
/// The same for a filter whose revision shows that it lost controls.
const AGAIN: Duration = Duration::from_millis(200);
/// Most frames sent without a pause, so that ten thousand controls leave room for replies.
const FRAMES_AT_A_STRETCH: usize = 16;

/// The task that sends live controls on one stream; dropping this ends it.
#[derive(Debug)]
pub struct ControlStream {
    known: watch::Sender<ControlsKnown>,
    task: JoinHandle<()>,
}

impl ControlStream {
    /// Starts the task, within the `scope` of the filter's credential. The filter already has the controls up to `known`.
    pub fn begin(
        live: Arc<Live>,
        send_queue: SendQueue,
        scope: Arc<Scope>,
        known: ControlsKnown,
    ) -> ControlStream {
        let (known, acknowledged) = watch::channel(known);
        ControlStream { known, task: tokio::spawn(run(live, send_queue, scope, acknowledged)) }
    }

    /// Takes the filter's current revision.
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
