//! From one aggregator to another: how long it takes until what an Envoy reports to the one is pushed to an Envoy that
//! follows the key at the other, over the Redis that both share, while both take reports of other keys.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::task::JoinHandle;
use tokio::time::{interval, sleep};
use weir_core::model::wire::Count;

use crate::peer::{Peer, key, sequence};
use crate::stage::{Stage, Store};
use crate::stats::Times;

/// Keys on which a push is waited for.
const PROBES: usize = 64;
const PROBE_INTERVAL: Duration = Duration::from_millis(5);
/// Other reports to each aggregator: the number of counts and of keys, and the interval.
const BACKGROUND_COUNTS: usize = 100;
const BACKGROUND_KEYS: usize = 20_000;
const BACKGROUND_INTERVAL: Duration = Duration::from_millis(50);
const LIMIT: u64 = 1_000_000_000;
const SETTLING: Duration = Duration::from_millis(500);
/// Longer than any report takes.
const STRAGGLERS: Duration = Duration::from_secs(1);

pub const COLUMNS: [&str; 6] = ["reports", "p50 ms", "p99 ms", "p99.9 ms", "max ms", "never pushed"];

/// For each key the counts that were reported and not yet pushed, and when they were reported.
type Sent = Mutex<Vec<VecDeque<(u64, Instant)>>>;

pub async fn measure(time: Duration) -> Result<Vec<f64>> {
    let stage = Stage::start(Store::Redis, 2).await?;
    let follower = Peer::join(stage.port(1), true).await?;
    let reporter = Peer::join(stage.port(0), false).await?;
    // The follower uses every key once, so that the other aggregator learns from Redis that the key has a follower.
    follower.report(0, (0..PROBES).map(|probe| count("prob", probe, 1)).collect()).await?;
    let background = [beside(&stage, 0, "bckA").await?, beside(&stage, 1, "bckB").await?];
    let sent: Arc<Sent> = Arc::new(Mutex::new(vec![VecDeque::new(); PROBES]));
    let times = Arc::new(Mutex::new(Times::default()));
    let listener = tokio::spawn(listen(follower, sent.clone(), times.clone()));
    sleep(SETTLING).await;

    let (began, mut ticks, mut own) = (Instant::now(), interval(PROBE_INTERVAL), 0);
    while began.elapsed() < time {
        ticks.tick().await;
        own += 1;
        let probe = own as usize % PROBES;
        lock(&sent)[probe].push_back((own, Instant::now()));
        reporter.report(own, vec![count("prob", probe, own)]).await?;
    }
    sleep(STRAGGLERS).await;
    listener.abort();
    background.iter().for_each(JoinHandle::abort);
    let missing: usize = lock(&sent).iter().map(VecDeque::len).sum();
    let mut times = lock(&times);
    Ok(vec![
        own as f64,
        times.percentile_ms(0.5),
        times.percentile_ms(0.99),
        times.percentile_ms(0.999),
        times.percentile_ms(1.0),
        missing as f64,
    ])
}

async fn listen(mut follower: Peer, sent: Arc<Sent>, times: Arc<Mutex<Times>>) -> Result<()> {
    let keys: Vec<_> = (0..PROBES).map(|probe| key("prob", probe)).collect();
    loop {
        let Some(push) = follower.next().await?.push else { continue };
        let now = Instant::now();
        for snapshot in push.snapshots {
            let Some(probe) = keys.iter().position(|key| *key == snapshot.key) else { continue };
            let waiting = &mut lock(&sent)[probe];
            while waiting.front().is_some_and(|(own, _)| *own <= snapshot.region_others) {
                if let Some((_, reported)) = waiting.pop_front() {
                    lock(&times).push(now - reported);
                }
            }
        }
    }
}

/// Reports of other keys to one aggregator, until it is aborted.
async fn beside(stage: &Stage, aggregator: usize, group: &'static str) -> Result<JoinHandle<Result<()>>> {
    let mut peer = Peer::join(stage.port(aggregator), false).await?;
    Ok(tokio::spawn(async move {
        let mut ticks = interval(BACKGROUND_INTERVAL);
        for id in 0_usize.. {
            let number = |place| id * BACKGROUND_COUNTS + place;
            let one = |place| count(group, number(place) % BACKGROUND_KEYS, 1 + number(place) as u64);
            peer.report(id as u64, (0..BACKGROUND_COUNTS).map(one).collect()).await?;
            // Acknowledgements are read, so that the stream does not fill.
            peer.next_with(|frame| frame.ack).await?;
            ticks.tick().await;
        }
        Ok(())
    }))
}

fn count(group: &str, number: usize, own: u64) -> Count {
    Count { key: key(group, number), sequence: sequence(), own, limit: LIMIT, ..Count::default() }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
