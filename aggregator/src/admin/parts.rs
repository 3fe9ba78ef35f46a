//! `/v1/parts`: the state of this aggregator, its Envoys, its peers, the stores and the other regions.

use crate::region::services::Services;
use crate::region::status::limits::LimitsStatus;
use crate::region::status::peers::{self, FRESH_MS, PeerStatus};
use crate::region::status::streams::Envoy;
use crate::telemetry::metrics::recent::{RecentCalls, RefusedStream};
use crate::telemetry::metrics::{Api, Operation};
use crate::telemetry::text::text;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use weir_core::model::breaker::State;
use weir_core::model::time::MonoMs;
use weir_core::region::OtherRegion;

/// Tolerance for work on an interval, which may be a little late.
const SLACK_MS: u64 = 2_000;

/// The state of every part.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Parts {
    /// The region.
    pub region: String,
    /// By the region's time.
    pub now_unix_ms: u64,
    /// This aggregator.
    pub aggregator: Aggregator,
    /// Envoys connected to this aggregator, the first 256.
    pub envoys: Vec<Envoy>,
    /// Number of Envoys connected to this aggregator.
    pub envoys_connected: u64,
    /// Number of Envoys alive in the region.
    pub envoys_alive: u64,
    /// Why streams were refused within the last minute, newest first. Refused clients are not among the Envoys.
    pub refused: Vec<RefusedStream>,
    /// The peers: the other aggregators of the region.
    pub peers: Vec<Peer>,
    /// The region's Redis, if there is one.
    pub redis: Option<Redis>,
    /// The database that the regions share, if there is one.
    pub database: Option<Database>,
    /// The regions that share the database: this one, and those seen to write to it.
    pub regions: Vec<Region>,
    /// The rate-limit service's limits.
    pub rate_limits: LimitsStatus,
    /// Files whose former contents are in force, as the changed ones cannot be used: `tls`, `client_authorities`, `tokens`,
    /// `rate_limits`. The log has the reasons.
    pub stale_files: Vec<String>,
}

/// This aggregator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Aggregator {
    /// The status that its peers receive.
    #[serde(flatten)]
    pub status: PeerStatus,
    /// Its id among the peers; absent without peers.
    pub id: Option<String>,
    /// Number of cells in memory.
    pub cells: u64,
    /// Number of queued cells, by queue: `replay`, `share`, `publish`, `push`.
    pub queues: BTreeMap<String, u64>,
    /// Number of reports received from filters.
    pub reports: u64,
    /// Number of queries received from filters, by answer.
    pub queries: BTreeMap<String, u64>,
    /// Number of API calls, by API and result.
    pub api: BTreeMap<String, BTreeMap<String, u64>>,
}

/// A peer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Peer {
    /// Its id.
    pub id: String,
    /// Milliseconds since its last status record.
    pub age_ms: u64,
    /// Whether its last status record is too old.
    pub silent: bool,
    /// Its last status record.
    #[serde(flatten)]
    pub status: PeerStatus,
}

/// The region's Redis.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Redis {
    /// Whether calls are sent to it.
    pub usable: bool,
    /// The state of the circuit breaker: `closed` (calls are sent), `half_open` (one call probes it) or `open`
    /// (unavailable).
    pub breaker: String,
    /// What is wrong although calls are sent to it: it evicts keys.
    pub trouble: Option<String>,
    /// How often it lost its data.
    pub wipes: u64,
    /// Milliseconds since all hot cells were read.
    pub read_age_ms: Option<u64>,
    /// The last calls.
    pub calls: Vec<RecentCalls>,
}

/// The database.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Database {
    /// The state of the circuit breaker: `closed`, `half_open` or `open`.
    pub breaker: String,
    /// The circuit breaker of the read replica, if there is one.
    pub replica_breaker: Option<String>,
    /// What is wrong although calls are sent to it: the region is split, the last call failed, or none succeeded for long.
    pub trouble: Option<String>,
    /// How often it lost its data.
    pub wipes: u64,
    /// Milliseconds since nothing was left to publish.
    pub published_age_ms: Option<u64>,
    /// Milliseconds since the other regions' counts were read.
    pub imported_age_ms: Option<u64>,
    /// The last calls.
    pub calls: Vec<RecentCalls>,
}

/// A region, this one included.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Region {
    /// Its name.
    pub name: String,
    /// Whether it is this region.
    pub own: bool,
    /// Milliseconds since it was last seen to write to the database. A region writes at least every ten seconds. Absent if this region has
    /// not written yet.
    pub seen_age_ms: Option<u64>,
}

/// The state of all parts.
pub fn parts(services: &Services) -> Parts {
    let now = services.moment();
    let (envoys, connected) = services.status.streams.envoys(now.mono);
    let stats = services.stats();
    Parts {
        region: services.region_name.clone(),
        now_unix_ms: now.unix.0,
        aggregator: aggregator(services),
        envoys,
        envoys_connected: connected as u64,
        envoys_alive: stats.live_nodes as u64,
        refused: services.metrics.refusals.lately(),
        peers: services.status.peers.all().iter().map(peer).collect(),
        redis: redis(services),
        database: database(services),
        regions: regions(services),
        rate_limits: services.status.limits.lock().clone(),
        stale_files: services.metrics.api.stale_files().into_iter().map(str::to_owned).collect(),
    }
}

fn regions(services: &Services) -> Vec<Region> {
    if services.global.is_none() {
        return Vec::new();
    }
    services.state(|state, now| {
        let own = Region {
            name: services.region_name.clone(),
            own: true,
            seen_age_ms: age(now.mono, state.figures.published_at),
        };
        let other = |(other, at): (OtherRegion, MonoMs)| Region {
            name: text(state.region.name_of_other(other)),
            own: false,
            seen_age_ms: Some(now.mono.since(at)),
        };
        let mut regions: Vec<Region> = state.others().map(other).chain([own]).collect();
        regions.sort_by(|one, two| one.name.cmp(&two.name));
        regions
    })
}

fn aggregator(services: &Services) -> Aggregator {
    let stats = services.stats();
    let figures = services.state(|state, _| state.figures.clone());
    let named = |pairs: &[(&'static str, u64)]| {
        pairs.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect::<BTreeMap<_, _>>()
    };
    let id =
        services.regional.as_ref().map(|regional| format!("{:032x}", u128::from_be_bytes(*regional.id())));
    Aggregator {
        status: peers::own(&services.hub, &services.status, services.waits_for().map(|what| what.into_str())),
        id,
        cells: stats.windows,
        queues: named(&[
            ("replay", stats.pending_replays as u64),
            ("share", stats.pending_shares as u64),
            ("publish", stats.pending_publications as u64),
            ("push", stats.pending_pushes as u64),
        ]),
        reports: figures.reports,
        queries: named(&[
            ("granted", figures.granted),
            ("refused", figures.denied),
            ("unjudged", figures.unjudged),
        ]),
        api: [("http", Api::Http), ("rls", Api::Rls), ("rlqs", Api::Rlqs)]
            .map(|(name, api)| (name.to_owned(), named(&services.metrics.api_results(api))))
            .into(),
    }
}

fn peer(received: &peers::Peer) -> Peer {
    let age_ms = received.age_ms();
    Peer {
        id: received.id.clone(),
        age_ms,
        silent: age_ms > FRESH_MS,
        status: received.status.without_rules(),
    }
}

fn redis(services: &Services) -> Option<Redis> {
    let (breaker, usable, wipes, read_age_ms) = services.state(|state, now| {
        let breaker = state.store().map(|breaker| breaker.state(now.mono));
        let read = age(now.mono, state.figures.complete_at);
        (breaker, state.is_usable(now.mono), state.figures.store_wipes, read)
    });
    let calls = services.metrics.recent.went(&Operation::REGIONAL);
    let policies =
        services.regional.as_ref().map(|regional| regional.eviction_policies()).unwrap_or_default();
    let named = || policies.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    let trouble = (!policies.is_empty()).then(|| format!("evicts keys ({})", named()));
    breaker.map(|breaker| Redis { usable, breaker: word(breaker), trouble, wipes, read_age_ms, calls })
}

fn database(services: &Services) -> Option<Database> {
    let (states, figures, foreign, now) = services.state(|state, now| {
        let states = state.database().map(|breakers| breakers.states(now.mono));
        (states, state.figures.clone(), state.foreign_writers(), now.mono)
    });
    let (state, replica) = states?;
    let calls = services.metrics.recent.went(&Operation::GLOBAL);
    let (published_age_ms, imported_age_ms) = (age(now, figures.published_at), age(now, figures.imported_at));
    let schedule = services.global.as_ref().map(|global| global.schedule)?;
    let late = [
        ("published", published_age_ms, schedule.publish_ms),
        ("read", imported_age_ms, schedule.exchange_ms),
    ];
    Some(Database {
        trouble: split(foreign).or_else(|| trouble(&calls, late)),
        breaker: word(state),
        replica_breaker: replica.map(word),
        wipes: figures.database_wipes,
        published_age_ms,
        imported_age_ms,
        calls,
    })
}

/// That aggregators with another Redis write under the region's name.
fn split(foreign_writers: usize) -> Option<String> {
    (foreign_writers > 0)
        .then(|| format!("region split: {foreign_writers} of another Redis write as this region"))
}

/// What is wrong with a database to which calls are sent. `late` has the name, the age and the interval of each
/// periodic task.
fn trouble(calls: &[RecentCalls], late: [(&str, Option<u64>, u64); 2]) -> Option<String> {
    if let Some(call) = calls.iter().find(|call| call.fails()) {
        let reason = call.failure.as_deref().unwrap_or_default();
        return Some(format!("{} failed: {reason}", call.operation.replace('_', " ")));
    }
    // A call that hangs ends after at most one interval, so the next one is due then.
    let is_late =
        |(_, age, every): &(&str, Option<u64>, u64)| age.is_some_and(|age| age > 2 * every + SLACK_MS);
    let (what, age, _) = late.into_iter().find(is_late)?;
    Some(format!("nothing was {what} for {} s", age.unwrap_or_default() / 1_000))
}

fn age(now: MonoMs, at: Option<MonoMs>) -> Option<u64> {
    at.map(|at| now.since(at))
}

fn word(state: State) -> String {
    match state {
        State::Closed => "closed",
        State::HalfOpen => "half_open",
        State::Open => "open",
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_that_does_not_answer_is_in_trouble() {
        let call = |age_ms, failure_age_ms| RecentCalls {
            operation: "exchange".into(),
            calls: 7,
            failures: 1,
            age_ms,
            took_ms: 1.0,
            failure_age_ms,
            failure: Some("timeout".into()),
        };
        let late = |published, imported| [("published", published, 10_000), ("read", imported, 10_000)];
        let fresh = || late(Some(9_000), Some(11_000));
        let failed = Some("exchange failed: timeout".to_owned());
        for (calls, late, expected) in [
            (vec![], late(None, None), None),
            (vec![call(5_000, None)], fresh(), None),
            (vec![call(5_000, Some(15_000))], fresh(), None),
            (vec![call(5_000, Some(5_000))], fresh(), failed),
            (vec![call(90_000, Some(90_000))], fresh(), None),
            (vec![], late(Some(9_000), Some(25_000)), Some("nothing was read for 25 s".to_owned())),
        ] {
            assert_eq!(trouble(&calls, late), expected, "{calls:?}");
        }
    }
}
