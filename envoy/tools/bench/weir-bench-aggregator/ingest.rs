//! Reports: how many counts an aggregator takes, and what each costs it.
//!
//! Streams send full frames and keep as many unacknowledged as a filter does, so the aggregator is never idle. The sender
//! shares the processors with it: what counts is processor time, not counts for each second of the clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::task::JoinSet;
use weir_core::model::wire::{Count, MAX_FRAME_CELLS};

use crate::peer::{MAX_IN_FLIGHT, Peer, key, sequence};
use crate::stage::{Stage, Store};

const STREAMS: usize = 4;
/// Frames after which a stream begins anew with its first keys.
const FRAMES: usize = 100;
const WARM_UP: Duration = Duration::from_secs(1);

/// Whose keys the streams report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Keys {
    /// Each its own.
    Own,
    /// All the same. Each stream is a subscriber, so each receives the counts of the others.
    Shared,
}

pub const COLUMNS: [&str; 5] = [
    "counts/s here",
    "aggregator µs/count",
    "counts/s and core",
    "Redis µs/count",
    "counts/s and core, Redis included",
];

pub async fn measure(store: Store, keys: Keys, time: Duration) -> Result<Vec<f64>> {
    let mut stage = Stage::start(store, 1).await?;
    let (acknowledged, ends) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let mut streams = JoinSet::new();
    for stream in 0..STREAMS {
        let group = if keys == Keys::Own { format!("own{stream}") } else { "shrd".to_owned() };
        let peer = Peer::join(stage.port(0), keys == Keys::Shared).await?;
        streams.spawn(send(peer, group, acknowledged.clone(), ends.clone()));
    }
    tokio::time::sleep(WARM_UP).await;
    let (began, before, cpu) = (Instant::now(), acknowledged.load(Relaxed), stage.cpu()?);
    tokio::time::sleep(time).await;
    let counts = (acknowledged.load(Relaxed) - before) as f64;
    let (took, cpu) = (began.elapsed().as_secs_f64(), stage.cpu()?.since(cpu));
    ends.store(true, Relaxed);
    while let Some(ended) = streams.join_next().await {
        ended??;
    }
    let (aggregator, redis) = (cpu.aggregators.as_secs_f64(), cpu.store.as_secs_f64());
    let redis_us = if store == Store::Redis { redis / counts * 1e6 } else { f64::NAN };
    let both = if store == Store::Redis { counts / (aggregator + redis) } else { f64::NAN };
    Ok(vec![counts / took, aggregator / counts * 1e6, counts / aggregator, redis_us, both])
}

/// Reports without pause until `ends` is set.
pub async fn send(
    mut peer: Peer,
    group: String,
    acknowledged: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
) -> Result<()> {
    let mut frames: Vec<Vec<Count>> = (0..FRAMES)
        .map(|frame| {
            let count = |place| Count {
                key: key(&group, frame * MAX_FRAME_CELLS + place),
                sequence: sequence(),
                limit: 1_000_000_000,
                ..Count::default()
            };
            (0..MAX_FRAME_CELLS).map(count).collect()
        })
        .collect();
    let (mut sent, mut acked) = (0, 0);
    while !ends.load(Relaxed) {
        while sent - acked < MAX_IN_FLIGHT {
            let counts = &mut frames[sent % FRAMES];
            counts.iter_mut().for_each(|count| count.own += 1);
            peer.report(sent as u64, counts.clone()).await?;
            sent += 1;
        }
        if peer.next().await?.ack.is_some() {
            acked += 1;
            acknowledged.fetch_add(MAX_FRAME_CELLS as u64, Relaxed);
        }
    }
    Ok(())
}
