//! The regional store in use: how several aggregators of one region converge through Redis.
//!
//! In reading order: `replay` (reported counts are written to the store), `query` (a filter's query is decided with the
//! store), `broadcast` (messages of the other aggregators, and the hot index behind them), `watch` (whether the store is
//! available, has lost data, and which Envoys are alive). Each drives a state machine of `weir_core::replication`: it makes
//! the calls and hands back their results.
//!
//! While the store is unavailable or its circuit breaker is open, everything is decided from memory. Counts that could not
//! be written wait, one entry for each cell.

mod broadcast;
mod calls;
mod query;
mod replay;
mod watch;

use crate::region::hub::Hub;
use broadcast::{HotIndexTask, PublishTask};
use replay::ReplayTask;
use std::sync::Arc;
use tokio::task::JoinSet;
use watch::{HeartbeatTask, WatchTask};
use weir_core::model::wire::Changes;
use weir_core::replication::regional::broadcast::Broadcaster;
use weir_core::replication::regional::heartbeat::Heartbeat;
use weir_core::replication::regional::watch::Watch;

pub use calls::Regional;
pub use query::answer;
pub use watch::before_serving;

/// Starts the tasks that replay, watch, announce, and exchange messages with peers.
pub fn start(hub: &Arc<Hub>, regional: &Arc<Regional>, watch: Watch, tasks: &mut JoinSet<()>) {
    let (schedule, id) = (regional.schedule, regional.id);
    let regional = || regional.clone();
    hub.start(ReplayTask::new(regional()), tasks);
    hub.start(WatchTask { regional: regional(), watch }, tasks);
    hub.start(HeartbeatTask { regional: regional(), heartbeat: Heartbeat::new(id, schedule) }, tasks);
    tasks.spawn(watch::eviction(hub.clone(), regional()));
    hub.start(PublishTask { regional: regional(), broadcaster: Broadcaster::new(id, schedule) }, tasks);
    tasks.spawn(broadcast::listen(hub.clone(), regional()));
    hub.start(HotIndexTask::new(regional()), tasks);
}

/// Notifies the region's other aggregators that live controls changed. If the message is lost, they read the change at their
/// next interval.
pub async fn broadcast_controls(hub: &Hub, regional: &Regional) {
    let changes = Changes { sender: regional.id.to_vec(), controls_changed: true, ..Changes::default() };
    // `send` counts a failure.
    let _ = broadcast::send(hub, regional, &changes).await;
}
