//! Operators' query to the database: one at a time, and its result is cached for a while. The load on the database therefore
//! does not depend on the number of operators.

use super::Global;
use crate::database::{DatabaseError, Wrote};
use crate::region::hub::Hub;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use tokio::time::timeout;
use weir_core::model::breaker::State;

/// Timeout of a query, including its wait for other queries.
const WITHIN: Duration = Duration::from_millis(1_000);
/// How long the list of regions is cached.
const REGIONS_KEPT: Duration = Duration::from_secs(10);

/// The cached list of regions.
#[derive(Default)]
pub struct CachedRegions {
    kept: Mutex<Option<(Instant, Answer)>>,
}

/// What was found, or the error as text.
type Answer = Result<Arc<[Wrote]>, String>;

impl CachedRegions {
    /// Every region that has published.
    pub async fn regions(&self, hub: &Hub, global: &Global) -> Answer {
        let query = async {
            let mut kept = self.kept.lock().await;
            if let Some((_, answer)) = kept.as_ref().filter(|(at, _)| at.elapsed() < REGIONS_KEPT) {
                return answer.clone();
            }
            require_available(hub)?;
            let answer = to_answer(global.database.regions(hub.now(), WITHIN).await);
            *kept = Some((Instant::now(), answer.clone()));
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

fn to_answer(result: Result<Vec<Wrote>, DatabaseError>) -> Answer {
    // The whole error may name hosts and users, and more people can read the page than the log.
    result.map(Arc::from).map_err(|error| format!("the query to the database failed: {}", error.reason()))
}

fn late() -> String {
    "the database did not answer in time".to_owned()
}
