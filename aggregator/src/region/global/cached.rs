//! Operators' queries to the database: one at a time, and each result is cached for a while. The load on the database
//! therefore does not depend on the number of operators.

use super::Global;
use crate::database::{DatabaseError, Share, Wrote};
use crate::region::hub::Hub;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use tokio::time::timeout;
use weir_core::model::breaker::State;
use weir_core::model::key::Key;

/// Timeout of a query, including its wait for other queries.
const WITHIN: Duration = Duration::from_millis(1_000);
/// How long the result for a key is cached; regions publish every ten seconds.
const KEPT: Duration = Duration::from_secs(2);
/// How long the list of regions is cached.
const REGIONS_KEPT: Duration = Duration::from_secs(10);
/// Most keys whose results are cached.
const MAX_KEPT: usize = 64;

/// The cached results.
#[derive(Default)]
pub struct CachedReads {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    shares: HashMap<Key, (Instant, Answer<Share>)>,
    regions: Option<(Instant, Answer<Wrote>)>,
}

/// What was found, or the error as text.
type Answer<T> = Result<Arc<[T]>, String>;

impl CachedReads {
    /// Each region's share of a key's cells from the cell number `oldest` on.
    pub async fn shares(&self, hub: &Hub, global: &Global, key: &Key, oldest: u64) -> Answer<Share> {
        let query = async {
            let mut kept = self.kept.lock().await;
            kept.shares.retain(|_, (at, _)| at.elapsed() < KEPT);
            if let Some((_, answer)) = kept.shares.get(key) {
                return answer.clone();
            }
            require_available(hub)?;
            let answer = to_answer(global.database.shares(&key.parts(), oldest, WITHIN).await);
            if kept.shares.len() < MAX_KEPT {
                kept.shares.insert(key.clone(), (Instant::now(), answer.clone()));
            }
            answer
        };
        timeout(WITHIN, query).await.unwrap_or_else(|_| Err(late()))
    }

    /// Every region that has published.
    pub async fn regions(&self, hub: &Hub, global: &Global) -> Answer<Wrote> {
        let query = async {
            let mut kept = self.kept.lock().await;
            if let Some((_, answer)) = kept.regions.as_ref().filter(|(at, _)| at.elapsed() < REGIONS_KEPT) {
                return answer.clone();
            }
            require_available(hub)?;
            let answer = to_answer(global.database.regions(hub.now(), WITHIN).await);
            kept.regions = Some((Instant::now(), answer.clone()));
            answer
        };
        timeout(WITHIN, query).await.unwrap_or_else(|_| Err(late()))
    }
}

/// An error unless the circuit breaker is closed: an operator's query never probes an unavailable database.
fn require_available(hub: &Hub) -> Result<(), String> {
    let states = hub.state(|state, now| state.database().map(|breakers| breakers.states(now.mono)));
    match states.map(|(primary, replica)| replica.unwrap_or(primary)) {
        Some(State::Closed) => Ok(()),
        _ => Err("the database is unavailable".to_owned()),
    }
}

fn to_answer<T>(result: Result<Vec<T>, DatabaseError>) -> Answer<T> {
    // The whole error may name hosts and users, and more people can read the page than the log.
    result.map(Arc::from).map_err(|error| format!("the query to the database failed: {}", error.reason()))
}

fn late() -> String {
    "the database did not answer in time".to_owned()
}
