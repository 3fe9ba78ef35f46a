//! Queries: how long a request waits for the aggregator.
//!
//! The loop is open: each query is due at its time, whether or not earlier ones were answered, and its latency counts from that time.
//! So a pause of the server counts for all queries that are due during it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use weir_core::model::wire::{FilterFrame, Query};

use crate::ingest;
use crate::peer::{PATIENCE, Peer, key, sequence};
use crate::stage::{Stage, Store};
use crate::stats::Times;

const STREAMS: usize = 8;
const PER_SECOND: u64 = 5_000;
const KEYS: usize = 20_000;
const WARM_UP: Duration = Duration::from_secs(1);
/// The filter's default timeout.
const TIMEOUT_MS: u32 = 50;

/// The keys of the queries, and other load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Load {
    /// Many keys in turn.
    Many,
    /// One key.
    One,
    /// Many keys, while two streams report as fast as they can.
    BesideReports,
}

pub const COLUMNS: [&str; 8] = [
    "answers/s",
    "p50 ms",
    "p99 ms",
    "p99.9 ms",
    "max ms",
    "over 50 ms, of a million",
    "aggregator µs/answer",
    "Redis µs/answer",
];

pub async fn measure(store: Store, load: Load, time: Duration) -> Result<Vec<f64>> {
    let mut stage = Stage::start(store, 1).await?;
    let ends = Arc::new(AtomicBool::new(false));
    let mut reports = JoinSet::new();
    for stream in 0..if load == Load::BesideReports { 2 } else { 0 } {
        let peer = Peer::join(stage.port(0), false).await?;
        reports.spawn(ingest::send(peer, format!("rep{stream}"), Arc::default(), ends.clone()));
    }
    let started = Instant::now();
    let mut senders = Vec::new();
    let mut streams = JoinSet::new();
    for _ in 0..STREAMS {
        // Every Envoy has a subscriber, so all receive pushes as well.
        let peer = Peer::join(stage.port(0), true).await?;
        senders.push(peer.frames.clone());
        streams.spawn(receive(peer, started, started.elapsed() + WARM_UP));
    }
    let before = stage.cpu()?;
    let sender = thread::spawn(move || send(&senders, load, started, WARM_UP + time));
    let sent = tokio::task::spawn_blocking(move || sender.join()).await?;
    let sent = sent.ok().context("the sending thread panicked")??;
    let cpu = stage.cpu()?.since(before);
    let mut times = Times::default();
    while let Some(stream) = streams.join_next().await {
        times.extend(stream??);
    }
    ends.store(true, Relaxed);
    while let Some(ended) = reports.join_next().await {
        ended??;
    }
    // Beside reports, their cost cannot be separated from that of the queries.
    let per_answer = |cpu: Duration, known: bool| {
        if known && load != Load::BesideReports { cpu.as_secs_f64() / sent as f64 * 1e6 } else { f64::NAN }
    };
    let late = times.over(Duration::from_millis(u64::from(TIMEOUT_MS)));
    Ok(vec![
        times.len() as f64 / time.as_secs_f64(),
        times.percentile_ms(0.5),
        times.percentile_ms(0.99),
        times.percentile_ms(0.999),
        times.percentile_ms(1.0),
        late as f64 / times.len() as f64 * 1e6,
        per_answer(cpu.aggregators, true),
        per_answer(cpu.store, store == Store::Redis),
    ])
}

/// Sends queries at a fixed rate; returns their number. It needs its own thread, as the runtime's timer has only milliseconds.
fn send(senders: &[mpsc::Sender<FilterFrame>], load: Load, started: Instant, time: Duration) -> Result<u64> {
    let keys: Vec<_> = (0..KEYS).map(|number| key("cons", number)).collect();
    let began = started.elapsed();
    let mut owns = vec![0; KEYS * STREAMS];
    let total = PER_SECOND * time.as_millis() as u64 / 1_000;
    for number in 0..total {
        let due = began + Duration::from_micros(number * 1_000_000 / PER_SECOND);
        while let Some(left) = due.checked_sub(started.elapsed()) {
            thread::park_timeout(left);
        }
        let stream = number as usize % STREAMS;
        // The second factor makes the streams meet in keys.
        let at = if load == Load::One { 0 } else { number as usize * 7 % KEYS };
        let own = &mut owns[at * STREAMS + stream];
        let query = Query {
            // The time at which the query is due; the answer returns it.
            id: due.as_micros() as u64,
            key: keys[at].clone(),
            sequence: sequence(),
            own: *own,
            cost: 1,
            limit: 1_000_000_000,
            timeout_ms: TIMEOUT_MS,
            traces: Vec::new(),
            without_baseline: false,
            configured: None,
            applied_ms: 0,
        };
        *own += 1;
        let frame = FilterFrame { queries: vec![query], ..FilterFrame::default() };
        senders[stream].try_send(frame).context("the aggregator does not read")?;
    }
    Ok(total)
}

/// Receives answers until the sender has closed the stream and all have arrived; those due before `from` do not count.
async fn receive(peer: Peer, started: Instant, from: Duration) -> Result<Times> {
    let Peer { frames, mut region } = peer;
    drop(frames);
    let mut times = Times::default();
    while let Some(frame) = tokio::time::timeout(PATIENCE, region.message()).await?? {
        let now = started.elapsed();
        for answer in frame.answers {
            let due = Duration::from_micros(answer.id);
            if due >= from {
                times.push(now.saturating_sub(due));
            }
        }
    }
    Ok(times)
}
