//! What the region's aggregators tell each other: changed cells, soon; and the hot index, in case that was missed.
//!
//! Messages go by the store's publish and subscribe, which may lose them. So the hot index is read over and over, a
//! shard at a time, and all at once after a connection was lost. Only after the first full read is a subscriber told
//! that it knows everything.
//!
//! Leaves to others: what is worth telling (`weir_core::region`), connections (`store`).

use super::{Regional, ms};
use crate::metrics::Operation;
use crate::shared::Shared;
use crate::store::{HOT_SHARDS, Heard, StoreError};
use prost::Message;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokio::time::{sleep, timeout};
use tracing::debug;
use weir_core::key::{Key, OriginId};
use weir_core::region::exchange::{BASE, Part};
use weir_core::wire::{Change, Changes, MAX_FRAME_CELLS};

/// Most cells of the hot index that are read in one call.
const READ_CELLS: usize = 512;
/// Most cells that one shard of the hot index is believed to hold.
const SHARD_CELLS: usize = 100_000;

/// Tells the others what changed here, for as long as the program runs.
pub async fn tell(shared: Arc<Shared>, regional: Arc<Regional>) {
    loop {
        regional.changed.notified().await;
        while regional.is_usable() {
            let cells = shared.region(|region, _| region.next_changes(MAX_FRAME_CELLS));
            if cells.is_empty() {
                break;
            }
            send(&shared, &regional, Changes { cells, ..Changes::default() }).await;
        }
        sleep(ms(regional.cadence.share_ms)).await;
    }
}

/// Sends a message to the others. One that is lost is made up for by the hot index.
pub(super) async fn send(shared: &Shared, regional: &Regional, changes: Changes) {
    let message = Changes { sender: regional.id.to_vec(), ..changes }.encode_to_vec();
    let started = Instant::now();
    let result = regional.store.publish(&message, ms(regional.cadence.replay_timeout_ms)).await;
    regional.note(&shared.metrics, Operation::Tell, started, &result);
}

/// Takes what the others say, for as long as the program runs.
pub async fn listen(shared: Arc<Shared>, regional: Arc<Regional>) {
    let mut heard = regional.store.subscribe();
    while let Some(heard) = heard.recv().await {
        match heard {
            Heard::Connected => {
                regional.listens.store(true, Ordering::Release);
                regional.missed.notify_one();
            }
            Heard::Message(message) => take(&shared, &regional, &message),
        }
    }
}

fn take(shared: &Shared, regional: &Regional, message: &[u8]) {
    let changes = match Changes::decode(message) {
        Ok(changes) if changes.cells.len() <= MAX_FRAME_CELLS => changes,
        _ => return shared.warn("an aggregator of this region sent what is no message", None),
    };
    if changes.sender == regional.id {
        return;
    }
    if changes.origins_changed {
        regional.sisters_origins.notify_one();
    }
    shared.metrics.changes_heard.inc_by(changes.cells.len() as u64);
    shared.region(|region, now| {
        for change in &changes.cells {
            let Ok(key) = Key::parse(&change.key) else { continue };
            // A cell that there is no room for stays in the store.
            let _ = region.learn(&key, change.sequence, change.limit, &parts(change), now);
        }
    });
    shared.changed.notify_one();
}

fn parts(change: &Change) -> Vec<Part> {
    let part = |part: &weir_core::wire::Part| {
        let origin: [u8; 16] = part.origin.as_slice().try_into().ok()?;
        let origin = OriginId::parse(&origin).unwrap_or(BASE);
        Some((origin, part.own))
    };
    change.parts.iter().filter_map(part).collect()
}

/// Reads the hot index over and over, for as long as the program runs.
pub async fn read_hot(shared: Arc<Shared>, regional: Arc<Regional>) {
    let pause = ms(regional.cadence.hot_read_ms) / u32::try_from(HOT_SHARDS).unwrap_or(1);
    let (mut shard, mut to_whole) = (0, HOT_SHARDS);
    loop {
        if timeout(pause, regional.missed.notified()).await.is_ok() {
            to_whole = HOT_SHARDS;
            shared.region(|region, _| region.set_whole(false));
        }
        if !regional.listens.load(Ordering::Acquire) {
            // What became hot behind the reader would be missed.
            continue;
        }
        while regional.is_usable() {
            match read_shard(&shared, &regional, shard).await {
                Ok(()) => to_whole = to_whole.saturating_sub(1),
                Err(error) => {
                    debug!(%error, "the hot index could not be read");
                    to_whole = HOT_SHARDS;
                    // The others need not wait for this one.
                    shard = (shard + 1) % HOT_SHARDS;
                    break;
                }
            }
            shard = (shard + 1) % HOT_SHARDS;
            if to_whole == 0 {
                became_whole(&shared);
                break;
            }
        }
    }
}

fn became_whole(shared: &Shared) {
    shared.metrics.hot_read.touch();
    shared.region(|region, _| region.set_whole(true));
    shared.changed.notify_one();
}

async fn read_shard(shared: &Shared, regional: &Regional, shard: usize) -> Result<(), StoreError> {
    let started = Instant::now();
    let result = read_cells(shared, regional, shard).await;
    regional.note(&shared.metrics, Operation::ReadHot, started, &result);
    result
}

async fn read_cells(shared: &Shared, regional: &Regional, shard: usize) -> Result<(), StoreError> {
    let within = ms(regional.cadence.replay_timeout_ms);
    let life = shared.region(|region, _| region.store_life());
    let hot = regional.store.hot(shard, shared.now(), SHARD_CELLS, within).await?;
    for cells in hot.chunks(READ_CELLS) {
        let read = regional.store.read(cells, within).await;
        shared.region(|region, now| {
            // If the store was found wiped meanwhile, this may be what it held before. The index is read anew then.
            let still = region.store_life() == life;
            for ((key, sequence), merged) in cells.iter().zip(&read).filter(|_| still) {
                if let Ok(merged) = merged {
                    // As above: a cell that there is no room for stays in the store.
                    let _ = region.learn(key, *sequence, merged.limit, &merged.current, now);
                }
            }
        });
        // A cell that the store refuses is not what an aggregator made of it, and keeps nobody from the others.
        let bad = |result: &Result<_, StoreError>| matches!(result, Err(StoreError::Refused { .. }));
        let nothing = read.iter().all(Result::is_err);
        if let Some(error) = read.into_iter().filter(|result| nothing || !bad(result)).find_map(Result::err) {
            return Err(error);
        }
    }
    if !hot.is_empty() {
        shared.changed.notify_one();
        regional.unstored.notify_one();
    }
    Ok(())
}
