//! What people who look ask of the database: one question at a time, each answer kept for a while, so that the database
//! does the same work however many look.
//!
//! Leaves to others: the queries (`database`), what is shown (`admin`).

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

/// How long a question may take, with its wait for others.
const WITHIN: Duration = Duration::from_millis(1_000);
/// How long an answer about a key is kept: regions write every ten seconds.
const KEPT: Duration = Duration::from_secs(2);
/// How long the regions are kept.
const REGIONS_KEPT: Duration = Duration::from_secs(10);
/// Most keys whose answers are kept.
const MAX_KEPT: usize = 64;

/// What was asked lately.
#[derive(Default)]
pub struct CachedReads {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    shares: HashMap<Key, (Instant, Answer<Share>)>,
    regions: Option<(Instant, Answer<Wrote>)>,
}

/// What was found, or why nothing was.
type Answer<T> = Result<Arc<[T]>, String>;

impl CachedReads {
    /// Each region's share of a key's cells from `oldest` on.
    pub async fn shares(&self, hub: &Hub, global: &Global, key: &Key, oldest: u64) -> Answer<Share> {
        let asked = async {
            let mut kept = self.kept.lock().await;
            kept.shares.retain(|_, (at, _)| at.elapsed() < KEPT);
            if let Some((_, answer)) = kept.shares.get(key) {
                return answer.clone();
            }
            is_there(hub)?;
            let answer = told(global.database.shares(&key.parts(), oldest, WITHIN).await);
            if kept.shares.len() < MAX_KEPT {
                kept.shares.insert(key.clone(), (Instant::now(), answer.clone()));
            }
            answer
        };
        timeout(WITHIN, asked).await.unwrap_or_else(|_| Err(late()))
    }

    /// Every region that has written.
    pub async fn regions(&self, hub: &Hub, global: &Global) -> Answer<Wrote> {
        let asked = async {
            let mut kept = self.kept.lock().await;
            if let Some((_, answer)) = kept.regions.as_ref().filter(|(at, _)| at.elapsed() < REGIONS_KEPT) {
                return answer.clone();
            }
            is_there(hub)?;
            let answer = told(global.database.regions(hub.now(), WITHIN).await);
            kept.regions = Some((Instant::now(), answer.clone()));
            answer
        };
        timeout(WITHIN, asked).await.unwrap_or_else(|_| Err(late()))
    }
}

/// Nobody who looks finds out whether the database is back.
fn is_there(hub: &Hub) -> Result<(), String> {
    let states = hub.state(|state, now| state.database().map(|breakers| breakers.states(now.mono)));
    match states.map(|(primary, replica)| replica.unwrap_or(primary)) {
        Some(State::Closed) => Ok(()),
        _ => Err("the database is away".to_owned()),
    }
}

fn told<T>(result: Result<Vec<T>, DatabaseError>) -> Answer<T> {
    // The whole error may name hosts and users; the page is for more eyes than the log.
    result.map(Arc::from).map_err(|error| format!("the database could not be asked: {}", error.reason()))
}

fn late() -> String {
    "the database took too long".to_owned()
}
