//! Idle streams: what they cost an aggregator that has nothing to do but to answer their pings.

use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval_at};
use weir_core::model::wire::{FilterFrame, Ping};

use crate::peer::Peer;
use crate::stage::{Stage, Store};

const STREAMS: u64 = 1_000;
const QUICK_STREAMS: u64 = 50;
const WARM_UP: Duration = Duration::from_secs(2);

pub const COLUMNS: [&str; 3] = ["streams", "pings/s", "aggregator ms/s"];

/// `pause` is the time between the pings of a stream.
pub async fn measure(pause: Duration, time: Duration, quick: bool) -> Result<Vec<f64>> {
    let streams = if quick { QUICK_STREAMS } else { STREAMS };
    let mut stage = Stage::start(Store::Memory, 1).await?;
    let mut peers = JoinSet::new();
    let begin = tokio::time::Instant::now() + WARM_UP;
    for number in 0..streams {
        let peer = Peer::join(stage.port(0), false).await?;
        // Not all at once.
        let offset = pause.mul_f64(number as f64 / streams as f64);
        peers.spawn(ping(peer, begin + offset, pause));
    }
    tokio::time::sleep_until(begin + pause).await;
    let (began, cpu) = (Instant::now(), stage.cpu()?);
    tokio::time::sleep(time).await;
    let (took, cpu) = (began.elapsed().as_secs_f64(), stage.cpu()?.since(cpu));
    // A stream that has ended costs nothing.
    if let Some(ended) = peers.try_join_next() {
        ended??;
    }
    peers.abort_all();
    let pings = streams as f64 / pause.as_secs_f64();
    Ok(vec![streams as f64, pings, cpu.aggregators.as_secs_f64() * 1e3 / took])
}

/// Pings until it is ended.
async fn ping(mut peer: Peer, begin: tokio::time::Instant, pause: Duration) -> Result<()> {
    let mut ticks = interval_at(begin, pause);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    for sent_ms in 1.. {
        ticks.tick().await;
        let frame = FilterFrame { ping: Some(Ping { sent_ms }), ..FilterFrame::default() };
        peer.frames.send(frame).await?;
        peer.next_with(|frame| frame.pong).await?;
    }
    Ok(())
}
