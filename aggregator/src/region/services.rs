//! Owns the parts of a region: its hub, its stores, exact limits, live control, and the status for operators.

use crate::region::control::Live;
use crate::region::exact::Exact;
use crate::region::global::Global;
use crate::region::hub::Hub;
use crate::region::regional::Regional;
use crate::region::status::Status;
use crate::telemetry::clock::Clock;
use crate::telemetry::metrics::{GlobalFigures, Metrics};
use crate::telemetry::spans::Telemetry;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use strum::IntoStaticStr;
use weir_core::model::breaker::State as Breaker;
use weir_core::model::key::HashKey;
use weir_core::model::time::MonoMs;
use weir_core::region::RegionLimits;
use weir_core::replication::RegionState;

/// What an aggregator waits for before it is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(const_into_str)]
pub enum WaitsFor {
    /// The region's time and markers.
    #[strum(serialize = "Redis")]
    Redis,
    /// The tables, which `migrate` makes.
    #[strum(serialize = "the database's tables")]
    Tables,
    /// What was published, by its region and by others.
    #[strum(serialize = "counts in the database")]
    Counts,
    /// Live control, without which calls of the APIs are undecided. Filters are served.
    #[strum(serialize = "live control")]
    Control,
}

/// A running region, as its listeners use it.
pub struct Services {
    /// The region's state, events and clock.
    pub hub: Arc<Hub>,
    /// The region's store, if it has one.
    pub regional: Option<Arc<Regional>>,
    /// The database that regions share, if there is one.
    pub global: Option<Arc<Global>>,
    /// Decides exact requests.
    pub exact: Exact,
    /// Live control.
    pub control: Arc<Live>,
    /// The status of streams and peers that the admin listener shows.
    pub status: Arc<Status>,
    /// Whether filters and applications are served.
    pub serves: AtomicBool,
    /// Whether the database has not all tables yet.
    pub lacks_tables: AtomicBool,
}

impl Deref for Services {
    type Target = Hub;

    fn deref(&self) -> &Hub {
        &self.hub
    }
}

impl Services {
    /// An empty region called `region_name`.
    pub fn new(
        region_name: String,
        limits: RegionLimits,
        clock: Arc<dyn Clock>,
        regional: Option<Arc<Regional>>,
        global: Option<Arc<Global>>,
        exact: Exact,
        telemetry: Telemetry,
    ) -> Services {
        let mut state = RegionState::new(limits, HashKey(rand::random(), rand::random()));
        if let Some(regional) = &regional {
            state = state.with_store(regional.schedule.store_breaker);
        }
        if let Some(global) = &global {
            state = state.with_database(global.schedule.global_breaker, global.database.has_replica());
        }
        let metrics = Arc::new(Metrics::new(exact.figures(), telemetry.figures()));
        let hub = Arc::new(Hub::new(region_name, state, clock, metrics, telemetry));
        let control = Arc::new(Live::new(hub.clone(), regional.clone(), global.is_some()));
        Services {
            hub,
            regional,
            global,
            exact,
            control,
            status: Arc::default(),
            serves: AtomicBool::new(false),
            lacks_tables: AtomicBool::new(false),
        }
    }

    /// What it waits for; `None` if it is ready, unless it shuts down.
    pub fn waits_for(&self) -> Option<WaitsFor> {
        if self.serves.load(Relaxed) {
            return (!self.control.is_read()).then_some(WaitsFor::Control);
        }
        // In the order of the start.
        if self.lacks_tables.load(Relaxed) {
            return Some(WaitsFor::Tables);
        }
        let has_no_redis = self.state(|state, _| state.store().is_some_and(|store| !store.is_found()));
        Some(if has_no_redis { WaitsFor::Redis } else { WaitsFor::Counts })
    }

    /// All metrics, as OpenMetrics.
    pub fn metrics_text(&self) -> String {
        let (now, figures, stats, mut breakers, global) = self.state(|state, now| {
            let breakers = breakers(state, now.mono);
            let stats = state.region.stats(now.mono);
            (now, state.figures.clone(), stats, breakers, GlobalFigures::of(state, now))
        });
        self.metrics.program.recovering.set(i64::from(self.state(|state, _| state.is_recovering())));
        self.metrics.program.controls_read.set(i64::from(self.control.is_read()));
        self.read_clocks();
        for (clock, ahead_ms) in self.clocks_ahead() {
            self.metrics
                .program
                .clock_ahead_seconds
                .get_or_create(&[("clock", clock)])
                .set(ahead_ms as f64 / 1e3);
        }
        breakers.extend(self.exact.breaker_states());
        self.metrics.text(&figures, now.mono, stats, &breakers, &global)
    }
}

fn breakers(state: &mut RegionState, now: MonoMs) -> Vec<(&'static str, Breaker)> {
    let regional = state.store().map(|breaker| ("regional", breaker.state(now)));
    let global = state.database().map(|breakers| breakers.states(now));
    let replica = global.and_then(|(_, replica)| replica).map(|state| ("global_replica", state));
    regional.into_iter().chain(global.map(|(state, _)| ("global", state))).chain(replica).collect()
}
