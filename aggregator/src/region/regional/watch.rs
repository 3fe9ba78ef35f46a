//! Watches whether the store is available and whether it has lost data, and exchanges which Envoys of the region are alive.

use super::broadcast;
use super::calls::{Regional, counted, counted_parts};
use crate::redis::Alive;
use crate::region::hub::Hub;
use crate::region::machine::Machine;
use crate::telemetry::metrics::Operation;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::sleep;
use tracing::{error, info, warn};
use weir_core::model::key::NodeId;
use weir_core::region::exchange::LowerBound;
use weir_core::replication::failure::Failure;
use weir_core::replication::grace_period::GracePeriod;
use weir_core::replication::members::Member;
use weir_core::replication::regional::heartbeat::{self, Call, Heartbeat};
use weir_core::replication::regional::joining::{Join, Joining};
use weir_core::replication::regional::watch::{MarkersRead, Watch};
use weir_core::replication::{Event, Next};

/// Time between two reads of the servers' eviction policies.
const EVICTION_READS: Duration = Duration::from_secs(10);
/// The same until a server has answered.
const EVICTION_RETRY: Duration = Duration::from_secs(1);

/// Watches whether the store is available and whether it has lost data.
pub(super) struct WatchTask {
    pub(super) regional: Arc<Regional>,
    pub(super) watch: Watch,
}

/// Before the program serves: takes the region's time and reads the markers, within a bound.
pub async fn before_serving(hub: &Arc<Hub>, regional: &Arc<Regional>) -> Watch {
    let has_answered = join(hub, regional).await;
    let watch = Watch::before_serving(regional.schedule, has_answered, hub.moment().mono);
    let mut watching = WatchTask { regional: regional.clone(), watch };
    hub.drive_until(&mut watching, |watching, hub| watching.watch.may_serve(hub.moment().mono)).await;
    watching.watch
}

impl Machine for WatchTask {
    type Call = ();

    fn next(&mut self, mut hub: &Hub) -> Next<()> {
        self.watch.next(&mut hub)
    }

    async fn call(&mut self, hub: &Arc<Hub>, (): ()) {
        read_markers(hub, &self.regional, &mut self.watch).await;
    }
}

async fn read_markers(hub: &Arc<Hub>, regional: &Arc<Regional>, watch: &mut Watch) {
    let started = Instant::now();
    let within = Duration::from_millis(regional.schedule.marker_timeout_ms);
    let incarnations = regional.store.incarnations(watch.last_read(), within).await;
    let error = incarnations.as_ref().err().map(ToString::to_string);
    let incarnations = counted(&hub.metrics, Operation::ReadMarkers, started, incarnations);
    let read = watch.looked(&mut &**hub, incarnations.as_ref().map_err(|failure| *failure));
    log_changes(&read, &error.unwrap_or_default());
    if let Some(grace) = read.grace {
        let (hub, mut making_up) = (hub.clone(), GracePeriodTask { regional: regional.clone(), grace });
        tokio::spawn(async move { hub.drive(&mut making_up).await });
    }
}

fn log_changes(read: &MarkersRead, error: &str) {
    if read.is_found {
        info!("regional store available");
    }
    if read.is_nameless {
        warn!(
            "the regional store does not state which server it is (INFO): a failover that loses the last counts \
             is not detected"
        );
    }
    if let Some(waits_ms) = read.waits_ms {
        warn!(
            waits_ms,
            "the regional store has lost data again and again; it is written again after a pause. A Redis that is full must not evict keys: \
             set maxmemory-policy noeviction, and more memory"
        );
    }
    if read.is_wiped && read.grace.is_some() {
        warn!("the regional store has lost data, or another server took over; writing all counts again");
    }
    if read.is_back {
        info!("regional store available again");
    }
    if read.became_unavailable {
        warn!(%error, "regional store unavailable, deciding from memory");
    }
}

/// Reads whether the servers evict keys, until the program ends.
pub async fn eviction(hub: Arc<Hub>, regional: Arc<Regional>) {
    loop {
        let answers = regional.store.eviction_policies(regional.within()).await;
        if answers.is_empty() {
            sleep(EVICTION_RETRY).await;
            continue;
        }
        let before = regional.eviction_policies();
        regional.evicts.lock().extend(answers);
        let policies = regional.eviction_policies();
        hub.metrics.program.store_evicts.set(i64::from(!policies.is_empty()));
        if !policies.is_empty() && policies != before {
            let policies = policies.into_iter().collect::<Vec<_>>().join(", ");
            error!(
                policies,
                "the regional store evicts keys when it is full, and then limits do not hold; set maxmemory-policy noeviction"
            );
        }
        sleep(EVICTION_READS).await;
    }
}

/// After each recovery grace period, writes to the store the use that no node accounts for.
struct GracePeriodTask {
    regional: Arc<Regional>,
    grace: GracePeriod,
}

impl Machine for GracePeriodTask {
    type Call = Vec<LowerBound>;

    fn next(&mut self, mut hub: &Hub) -> Next<Vec<LowerBound>> {
        self.grace.next(&mut hub)
    }

    async fn call(&mut self, hub: &Arc<Hub>, lower_bounds: Vec<LowerBound>) {
        let GracePeriodTask { regional, grace } = self;
        let started = Instant::now();
        let results = regional.store.raise_to(&lower_bounds, hub.now(), regional.within()).await;
        let results = counted_parts(&hub.metrics, Operation::Replay, started, results);
        grace.raised(&mut &**hub, &lower_bounds, &results);
    }

    fn idle(&mut self, _hub: &Hub, _next: &Next<Vec<LowerBound>>) {
        let cells = self.grace.take_settled();
        if cells > 0 {
            info!(
                cells,
                "recovery grace period over: use that no node accounts for counts as the region's baseline"
            );
        }
    }
}

/// Takes the region's time before the program serves.
struct JoinTask<'a> {
    regional: &'a Regional,
    joining: Joining,
    was_loading: bool,
}

impl Machine for JoinTask<'_> {
    type Call = Join;

    fn next(&mut self, hub: &Hub) -> Next<Join> {
        self.joining.next(hub.moment().mono)
    }

    async fn call(&mut self, hub: &Arc<Hub>, Join { within_ms }: Join) {
        let me = Member { id: self.regional.id, owes: false };
        let result = report_alive(hub, self.regional, (&[], me), Duration::from_millis(within_ms)).await;
        self.joining.answered(result.map(|_| ()), hub.moment().mono);
        if self.joining.is_loading() && !std::mem::replace(&mut self.was_loading, true) {
            warn!(
                "the regional store loads its data, or its cluster is down; not serving before it has the region's counts \
                 again"
            );
        }
    }
}

/// Takes the region's time. False if the store did not give it in time.
async fn join(hub: &Arc<Hub>, regional: &Regional) -> bool {
    let joining = Joining::new(regional.schedule, hub.moment().mono);
    let mut taking = JoinTask { regional, joining, was_loading: false };
    hub.drive(&mut taking).await;
    let joining = taking.joining;
    if !joining.has_joined() {
        let state = if joining.is_loading() {
            "still loads its data, or its cluster is down"
        } else {
            "is unavailable"
        };
        warn!(
            "the regional store {state}: serving from memory, without the counts that it has, until it is available; the \
             region's time begins with the machine's clock"
        );
    }
    joining.has_joined()
}

async fn report_alive(
    hub: &Hub,
    regional: &Regional,
    (mine, me): (&[NodeId], Member),
    within: Duration,
) -> Result<Alive, Failure> {
    let started = Instant::now();
    let (proposal, sent) = (hub.propose_time(), hub.moment().mono);
    let result = regional.store.nodes(mine, me, &proposal, within).await;
    let alive = counted(&hub.metrics, Operation::Heartbeat, started, result);
    if let Ok(alive) = &alive {
        hub.follow_time(alive.region_us, alive.now, sent);
    }
    alive
}

/// Publishes which Envoys are alive here, and reads which are alive elsewhere.
pub(super) struct HeartbeatTask {
    pub(super) regional: Arc<Regional>,
    pub(super) heartbeat: Heartbeat,
}

impl Machine for HeartbeatTask {
    type Call = Call;

    fn next(&mut self, mut hub: &Hub) -> Next<Call> {
        self.heartbeat.next(&mut hub)
    }

    async fn call(&mut self, hub: &Arc<Hub>, call: Call) {
        let HeartbeatTask { regional, heartbeat } = self;
        match call {
            Call::Nodes(mine, me) => {
                let alive = report_alive(hub, regional, (&mine, me), regional.within()).await;
                let alive = alive
                    .as_ref()
                    .map(|alive| heartbeat::Alive { nodes: &alive.nodes, aggregators: &alive.aggregators });
                heartbeat.received(&mut &**hub, alive.map_err(|failure| *failure));
            }
            Call::Broadcast(changes) => {
                let result = broadcast::send(hub, regional, &changes).await;
                heartbeat.sent(&mut &**hub, result);
            }
        }
    }

    fn notified(&mut self, _hub: &Hub, event: Event) {
        self.heartbeat.notified(event);
    }
}
