//! Whether the store is there, whether it has lost anything, and which Envoys are alive in the region.
//!
//! A wipe does not break a connection, so the sentinels are looked at over and over. The same look finds a store that
//! has come back. After a wipe everything that is known here is told again at once; and when the living have had their
//! time of grace, what nobody could account for is given to a component of its own.
//!
//! Leaves to others: sentinels (`store`), telling again (`replay`), evidence (`weir_core::region`, `global`).

use super::{GRACES, Regional, ms, sisters};
use crate::metrics::Operation;
use crate::shared::Shared;
use crate::store::Lives;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::time::sleep;
use tracing::{info, warn};
use weir_core::breaker::State;
use weir_core::region::exchange::Floor;
use weir_core::time::UnixMs;
use weir_core::wire::Changes;

/// A store whose life began less than this before it was found has been emptied just now, by whatever has happened.
const YOUNG_MS: u64 = 10_000;
/// Between two looks before the store is found, which has to be connected to.
const FIRST_LOOKS: Duration = Duration::from_millis(25);
/// Most cells made up for in one call.
const STEP_CELLS: usize = 1_024;

/// Watches for as long as the program runs.
pub async fn run(shared: Arc<Shared>, regional: Arc<Regional>) {
    let mut watch = Watch { shared, regional, known: BTreeMap::new(), away: false };
    loop {
        let allowed = watch.regional.breaker.lock().allows(watch.regional.now());
        if allowed {
            watch.look().await;
        }
        let found = watch.regional.found.load(Ordering::Acquire);
        sleep(if found { ms(watch.regional.cadence.sentinel_ms) } else { FIRST_LOOKS }).await;
    }
}

struct Watch {
    shared: Arc<Shared>,
    regional: Arc<Regional>,
    /// The life that each sentinel told of last, and how often it had been looked at.
    known: BTreeMap<u16, (u128, u64)>,
    away: bool,
}

impl Watch {
    async fn look(&mut self) {
        let started = Instant::now();
        let result = self.regional.store.lives(ms(self.regional.cadence.sentinel_timeout_ms)).await;
        // Before the breaker may close, the region must know whether the store has lost anything.
        if let Ok(lives) = &result {
            self.compare(lives);
        }
        self.regional.note(&self.shared.metrics, Operation::Look, started, &result);
        match result {
            Ok(_) if std::mem::take(&mut self.away) => {
                info!("the regional store is back");
                self.regional.missed.notify_one();
                self.regional.origins.notify_one();
                self.regional.unstored.notify_one();
            }
            Ok(_) => {}
            Err(error) => {
                if self.regional.breaker_state() != State::Closed && !std::mem::replace(&mut self.away, true)
                {
                    warn!(%error, "the regional store is away; this aggregator goes on from memory");
                }
            }
        }
        // What nobody else wakes for: cells that wait again after a failure.
        self.regional.unstored.notify_one();
    }

    /// Acts on what the sentinels say.
    fn compare(&mut self, lives: &Lives) {
        let first = self.known.is_empty();
        let (mut changed, mut young) = (false, false);
        for life in &lives.seen {
            match self.known.insert(life.place, (life.id, life.looks)) {
                Some((id, looks)) => changed |= id != life.id || looks > life.looks,
                None => young |= life.age_ms < YOUNG_MS,
            }
        }
        if first {
            info!("the regional store is found");
            self.regional.found.store(true, Ordering::Release);
            self.regional.missed.notify_one();
            self.regional.origins.notify_one();
        }
        if changed {
            warn!("the regional store has lost what it held; all that is known here is written again");
            self.shared.metrics.wiped("regional");
            self.shared.region(|region, _| region.store_wiped());
            self.regional.missed.notify_one();
        }
        if changed || young {
            self.lost();
        }
        self.regional.unstored.notify_one();
    }

    /// Begins the time of grace, in place of one that may be under way.
    fn lost(&self) {
        let number = self.regional.losses.fetch_add(1, Ordering::Relaxed) + 1;
        let since = self.shared.now();
        self.shared.lost.notify_one();
        tokio::spawn(end_grace(self.shared.clone(), self.regional.clone(), number, since));
    }
}

/// Gives the living their time, and what they could not account for to the base; then once more, for those that take
/// longer to come back and for what the store could not be told.
async fn end_grace(shared: Arc<Shared>, regional: Arc<Regional>, number: u64, since: UnixMs) {
    for _ in 0..GRACES {
        sleep(ms(regional.cadence.grace_ms)).await;
        if regional.losses.load(Ordering::Relaxed) != number {
            return;
        }
        if regional.is_usable() {
            settle(&shared, &regional, since).await;
        }
    }
}

async fn settle(shared: &Shared, regional: &Regional, since: UnixMs) {
    let (floors, life) = shared.region(|region, _| (region.end_grace(since), region.store_life()));
    let mut settled = 0;
    for floors in floors.chunks(STEP_CELLS) {
        settled += raise(shared, regional, floors, life).await;
    }
    regional.changed.notify_one();
    shared.changed.notify_one();
    if settled > 0 {
        info!(cells = settled, "what nobody could account for after the loss counts as the region's base");
    }
}

/// Has the store make up for some; how many it did. The others wait for the end of another time of grace.
async fn raise(shared: &Shared, regional: &Regional, floors: &[Floor], life: u32) -> usize {
    let started = Instant::now();
    let results = regional.store.raise_to(floors, ms(regional.cadence.replay_timeout_ms)).await;
    regional.note_parts(&shared.metrics, Operation::Replay, started, &results);
    shared.region(|region, now| {
        for (floor, result) in floors.iter().zip(&results) {
            match result {
                Ok(merged) => region.floored(floor, merged, life, now),
                Err(_) => region.floors_failed(std::slice::from_ref(floor)),
            }
        }
    });
    results.iter().filter(|result| result.is_ok()).count()
}

/// Says which Envoys are alive here, and hears which are elsewhere, for as long as the program runs.
pub async fn announce(shared: Arc<Shared>, regional: Arc<Regional>) {
    loop {
        let changed = tokio::select! {
            () = regional.origins.notified() => true,
            () = regional.sisters_origins.notified() => false,
            () = sleep(ms(regional.cadence.heartbeat_ms)) => false,
        };
        if !regional.is_usable() {
            continue;
        }
        let mine: Vec<_> = shared.region(|region, now| region.origins_here(now).collect());
        let started = Instant::now();
        let result =
            regional.store.origins(&mine, &regional.id, ms(regional.cadence.replay_timeout_ms)).await;
        regional.note(&shared.metrics, Operation::Announce, started, &result);
        if let Ok(alive) = result {
            shared.region(|region, _| region.set_origins_elsewhere(&alive.origins));
        }
        if changed {
            let message = Changes { origins_changed: true, ..Changes::default() };
            sisters::send(&shared, &regional, message).await;
        }
    }
}
