//! What filters reported goes to the store, one entry for each cell that changed, many cells at once.
//!
//! A round takes what waits as it begins. When it is over, all reports that were merged before it are acknowledged:
//! their counts are in the store, or the store is known to be away, it or the server that should have them, and memory
//! is all there is.
//!
//! Leaves to others: which cells wait (`weir_core::region`), acknowledging (`stream`).

use super::{Regional, did_nothing, first_error, ms};
use crate::metrics::Operation;
use crate::shared::Shared;
use crate::store::StoreError;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::sleep;
use weir_core::region::exchange::{Merge, Merged};
use weir_core::region::{HotCell, most_used};

/// So many cells take a second or more to tell.
const BACKLOG_CELLS: usize = 65_536;
/// Most cells in one call.
const CALL_CELLS: usize = 1_024;
/// Most cells handed to the region while streams wait for it.
const STEP_CELLS: usize = 128;
/// How long a cell that the store would not take is not offered again, and how many are remembered.
const REFUSED_PAUSE: Duration = Duration::from_secs(5);
const MAX_REFUSED: usize = 4_096;

/// How a round went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// The store has all that waited, or all that it would take.
    Told,
    /// One of its servers is away, perhaps.
    Partly,
    /// It took nothing at all of some call: it is away, perhaps.
    Failed,
}

/// Replays for as long as the program runs.
pub async fn run(shared: Arc<Shared>, regional: Arc<Regional>) {
    let mut refused = Refused::default();
    loop {
        regional.unstored.notified().await;
        let round = shared.begin_replay();
        if round.waiting > BACKLOG_CELLS {
            // The store was away and catches up: until it has, memory is all there is. Filters would not wait so long.
            shared.replayed(round);
        }
        let outcome = match regional.is_usable() {
            true => replay(&shared, &regional, round.waiting, &mut refused).await,
            false => Outcome::Failed,
        };
        // While it is not sure that the store is away, what it has not taken is not acknowledged: the next round tells.
        if outcome != Outcome::Failed || !regional.is_usable() {
            shared.replayed(round);
        }
        if regional.is_usable() {
            name_hot(&shared, &regional).await;
        }
        shared.region(|region, _| region.merge_failed(&refused.due()));
        let again = regional.is_usable() && shared.region(|region, _| region.has_merges());
        if again {
            regional.unstored.notify_one();
        }
        // What one of several servers did not take is not offered to it without pause.
        let cadence = &regional.cadence;
        let pause = if outcome == Outcome::Told { cadence.replay_ms } else { cadence.sentinel_ms };
        sleep(ms(pause)).await;
    }
}

/// Tells the store of up to `waiting` cells, until it takes none of a call.
async fn replay(shared: &Shared, regional: &Regional, waiting: usize, refused: &mut Refused) -> Outcome {
    let (mut told, mut away) = (0, Vec::new());
    let mut outcome = Outcome::Told;
    while told < waiting && outcome == Outcome::Told {
        let merges = shared.region(|region, _| region.next_merges(CALL_CELLS));
        if merges.is_empty() {
            break;
        }
        told += merges.len();
        let started = Instant::now();
        let results = regional.store.merge(&merges, ms(regional.cadence.replay_timeout_ms)).await;
        take(shared, &merges, &results);
        regional.note_parts(&shared.metrics, Operation::Replay, started, &results);
        regional.changed.notify_one();
        shared.changed.notify_one();
        if let Some(error) = first_error(&results) {
            shared.warn(&format!("the regional store did not take all of a replay: {error}"), None);
        }
        if did_nothing(&results) {
            outcome = Outcome::Failed;
        }
        for (merge, result) in merges.into_iter().zip(results) {
            match result {
                Ok(_) => {}
                Err(error) if error.is_of_the_cell() => refused.set_aside(merge),
                Err(_) => away.push(merge),
            }
        }
    }
    if outcome == Outcome::Told && !away.is_empty() {
        outcome = Outcome::Partly;
    }
    shared.region(|region, _| region.merge_failed(&away));
    outcome
}

/// Hands the store's words to the region, in steps, so that no stream waits for long.
fn take(shared: &Shared, merges: &[Merge], results: &[Result<Merged, StoreError>]) {
    for (merges, results) in merges.chunks(STEP_CELLS).zip(results.chunks(STEP_CELLS)) {
        shared.region(|region, now| {
            for (merge, result) in merges.iter().zip(results) {
                if let Ok(merged) = result {
                    region.merged(merge, merged, now);
                }
            }
        });
    }
}

/// Cells that the store will not take although it takes others: somebody may have put something else in their place.
/// They are offered again after a while, and known from memory until then.
#[derive(Debug, Default)]
struct Refused {
    cells: Vec<Merge>,
    since: Option<Instant>,
}

impl Refused {
    fn set_aside(&mut self, merge: Merge) {
        self.since.get_or_insert_with(Instant::now);
        if self.cells.len() < MAX_REFUSED {
            self.cells.push(merge);
        }
    }

    /// Those that have waited for long enough.
    fn due(&mut self) -> Vec<Merge> {
        if self.since.is_none_or(|since| since.elapsed() < REFUSED_PAUSE) {
            return Vec::new();
        }
        self.since = None;
        std::mem::take(&mut self.cells)
    }
}

/// Names cells that became hot in the index, from which aggregators learn what messages have missed.
async fn name_hot(shared: &Shared, regional: &Regional) {
    let found = shared.region(|region, _| region.next_hot(2 * regional.cadence.namespace_cap));
    if found.is_empty() {
        return;
    }
    let choice = most_used(found, regional.cadence.namespace_cap, |hot| (&hot.key, hot.utilisation));
    shared.metrics.hot_left.inc_by(choice.left.len() as u64);
    let failed = note_hot(shared, regional, &choice.chosen).await.is_err();
    shared.region(|region, _| {
        region.hot_failed(&choice.left);
        if failed {
            region.hot_failed(&choice.chosen);
        }
    });
}

async fn note_hot(shared: &Shared, regional: &Regional, hot: &[HotCell]) -> Result<(), StoreError> {
    let named: Vec<_> = hot.iter().map(|hot| (hot.key.clone(), hot.sequence, hot.expires)).collect();
    let started = Instant::now();
    let result = regional.store.note_hot(&named, ms(regional.cadence.replay_timeout_ms)).await;
    regional.note(&shared.metrics, Operation::NameHot, started, &result);
    result
}
