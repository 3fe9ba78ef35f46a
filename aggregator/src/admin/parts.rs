//! What `/v1/parts` says: this aggregator, its Envoys, its sisters, the stores behind it and the other regions, and how
//! each of them is.
//!
//! Leaves to others: what is known of each (`window`, `weir_core::replication`).

use super::text::text;
use crate::region::shared::Shared;
use crate::region::status::peers::Envoy;
use crate::region::status::sisters::{self, FRESH_MS, Status};
use crate::telemetry::metrics::recent::{Refused, Went};
use crate::telemetry::metrics::{Door, Operation};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use weir_core::model::breaker::State;
use weir_core::model::time::MonoMs;

/// Beats come a little late.
const SLACK_MS: u64 = 2_000;

/// Every part, and how it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Parts {
    /// The region.
    pub region: String,
    /// By the aggregator's clock.
    pub now_unix_ms: u64,
    /// This aggregator.
    pub aggregator: Aggregator,
    /// Envoys connected here, the first 256.
    pub envoys: Vec<Envoy>,
    /// How many there are.
    pub envoys_connected: u64,
    /// Envoys alive in the region.
    pub envoys_alive: u64,
    /// Why streams were refused within the last minute, the last first; nobody who was refused is among the Envoys.
    pub refused: Vec<Refused>,
    /// The region's other aggregators.
    pub sisters: Vec<Sister>,
    /// The region's store, if there is one.
    pub redis: Option<Redis>,
    /// The database that regions share, if there is one.
    pub database: Option<Database>,
    /// The other regions, as far as they have written.
    pub regions: Vec<Region>,
    /// Why they are not known.
    pub regions_unknown: Option<String>,
}

/// This aggregator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Aggregator {
    /// As its sisters see it.
    #[serde(flatten)]
    pub status: Status,
    /// Its name among them; absent where there are none.
    pub id: Option<String>,
    /// Cells that it holds.
    pub cells: u64,
    /// Cells that wait, by what for: `replay`, `share`, `publish`, `push`.
    pub queues: BTreeMap<String, u64>,
    /// Reports of filters so far.
    pub reports: u64,
    /// Questions of filters so far, by answer.
    pub consults: BTreeMap<String, u64>,
    /// Calls of the doors so far, by door and result.
    pub doors: BTreeMap<String, BTreeMap<String, u64>>,
}

/// Another aggregator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sister {
    /// Its name.
    pub id: String,
    /// Since it said how it is.
    pub age_ms: u64,
    /// It has been silent for too long.
    pub silent: bool,
    /// What it said.
    #[serde(flatten)]
    pub status: Status,
}

/// The region's store.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Redis {
    /// It is asked.
    pub usable: bool,
    /// `closed` (it is asked), `half_open` (somebody looks whether it is back) or `open` (it is away).
    pub breaker: String,
    /// Times that it had lost what it held.
    pub wipes: u64,
    /// Since everything hot was read.
    pub read_age_ms: Option<u64>,
    /// How calls went last.
    pub calls: Vec<Went>,
}

/// The database.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Database {
    /// `closed`, `half_open` or `open`.
    pub breaker: String,
    /// That of the read replica, if there is one.
    pub replica_breaker: Option<String>,
    /// Why it cannot be counted on, although it is asked: its last call failed, or it is long since one was answered.
    pub trouble: Option<String>,
    /// Times that it had lost what it held.
    pub wipes: u64,
    /// Since everything due was published.
    pub published_age_ms: Option<u64>,
    /// Since the other regions' use was imported.
    pub imported_age_ms: Option<u64>,
    /// How calls went last.
    pub calls: Vec<Went>,
}

/// Another region, or this one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Region {
    /// Its name.
    pub name: String,
    /// It is this one.
    pub own: bool,
    /// Since it wrote last, by its clock and ours; absent if nothing it wrote is alive. A region writes only of keys past
    /// half their limits.
    pub wrote_age_ms: Option<u64>,
    /// Its rows among the 5 000 that live longest.
    pub rows: u64,
}

/// All parts.
pub async fn parts(shared: &Shared) -> Parts {
    let now = shared.moment();
    let (envoys, connected) = shared.window.peers.envoys(now.mono);
    let stats = shared.stats();
    let (regions, regions_unknown) = match &shared.global {
        Some(global) => match global.looks.regions(shared, global).await {
            Ok(regions) => (regions.to_vec(), None),
            Err(reason) => (Vec::new(), Some(reason)),
        },
        None => (Vec::new(), None),
    };
    let own = shared.region_name.as_bytes();
    let regions = regions.iter().map(|wrote| Region {
        name: text(&wrote.region),
        own: wrote.region == own,
        wrote_age_ms: wrote.updated.map(|updated| now.unix.0.saturating_sub(updated.0)),
        rows: wrote.rows,
    });
    Parts {
        region: shared.region_name.clone(),
        now_unix_ms: now.unix.0,
        aggregator: aggregator(shared),
        envoys,
        envoys_connected: connected as u64,
        envoys_alive: stats.live_origins as u64,
        refused: shared.metrics.refusals.lately(),
        sisters: shared.window.sisters.all().into_iter().map(sister).collect(),
        redis: redis(shared),
        database: database(shared),
        regions: regions.collect(),
        regions_unknown,
    }
}

fn aggregator(shared: &Shared) -> Aggregator {
    let stats = shared.stats();
    let figures = shared.desk(|desk, _| desk.figures.clone());
    let named = |pairs: &[(&'static str, u64)]| {
        pairs.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect::<BTreeMap<_, _>>()
    };
    let id = shared.regional.as_ref().map(|regional| format!("{:032x}", u128::from_be_bytes(*regional.id())));
    Aggregator {
        status: sisters::own(shared),
        id,
        cells: stats.windows,
        queues: named(&[
            ("replay", stats.pending_replays as u64),
            ("share", stats.pending_shares as u64),
            ("publish", stats.pending_publications as u64),
            ("push", stats.pending_pushes as u64),
        ]),
        reports: figures.reports,
        consults: named(&[
            ("granted", figures.granted),
            ("refused", figures.denied),
            ("unjudged", figures.unjudged),
        ]),
        doors: [("http", Door::Http), ("rls", Door::Rls)]
            .map(|(name, door)| (name.to_owned(), named(&shared.metrics.door_results(door))))
            .into(),
    }
}

fn sister(heard: sisters::Sister) -> Sister {
    let age_ms = heard.age_ms();
    let mut status = heard.status;
    status.rules.clear();
    Sister { id: heard.id, age_ms, silent: age_ms > FRESH_MS, status }
}

fn redis(shared: &Shared) -> Option<Redis> {
    let (state, usable, wipes, read_age_ms) = shared.desk(|desk, now| {
        let state = desk.store().map(|guard| guard.state(now.mono));
        let read = age(now.mono, desk.figures.whole_at);
        (state, desk.is_usable(now.mono), desk.figures.store_wipes, read)
    });
    let calls = shared.metrics.recent.went(&Operation::REGIONAL);
    state.map(|state| Redis { usable, breaker: word(state), wipes, read_age_ms, calls })
}

fn database(shared: &Shared) -> Option<Database> {
    let (states, figures, now) = shared.desk(|desk, now| {
        let states = desk.database().map(|gates| gates.states(now.mono));
        (states, desk.figures.clone(), now.mono)
    });
    let (state, replica) = states?;
    let calls = shared.metrics.recent.went(&Operation::GLOBAL);
    let (published_age_ms, imported_age_ms) = (age(now, figures.published_at), age(now, figures.imported_at));
    let cadence = shared.global.as_ref().map(|global| global.cadence)?;
    let late = [
        ("published", published_age_ms, cadence.publish_ms),
        ("imported", imported_age_ms, cadence.import_ms),
    ];
    Some(Database {
        trouble: trouble(&calls, late),
        breaker: word(state),
        replica_breaker: replica.map(word),
        wipes: figures.database_wipes,
        published_age_ms,
        imported_age_ms,
        calls,
    })
}

/// What speaks against a database that is asked; of what is done again and again, how old it is and how often it is due.
fn trouble(calls: &[Went], late: [(&str, Option<u64>, u64); 2]) -> Option<String> {
    if let Some(call) = calls.iter().find(|call| call.fails()) {
        let reason = call.failure.as_deref().unwrap_or_default();
        return Some(format!("{} failed: {reason}", call.operation.replace('_', " ")));
    }
    // A call that hangs is due again when it is given up, which takes as long as the time between two.
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
        let call = |age_ms, failure_age_ms| Went {
            operation: "look_global".into(),
            calls: 7,
            failures: 1,
            age_ms,
            took_ms: 1.0,
            failure_age_ms,
            failure: Some("timeout".into()),
        };
        let late = |published, imported| [("published", published, 10_000), ("imported", imported, 10_000)];
        let fresh = || late(Some(9_000), Some(11_000));
        let failed = Some("look global failed: timeout".to_owned());
        for (calls, late, expected) in [
            (vec![], late(None, None), None),
            (vec![call(5_000, None)], fresh(), None),
            (vec![call(5_000, Some(15_000))], fresh(), None),
            (vec![call(5_000, Some(5_000))], fresh(), failed),
            (vec![call(90_000, Some(90_000))], fresh(), None),
            (vec![], late(Some(9_000), Some(25_000)), Some("nothing was imported for 25 s".to_owned())),
        ] {
            assert_eq!(trouble(&calls, late), expected, "{calls:?}");
        }
    }
}
