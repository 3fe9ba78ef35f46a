//! Measures how many counts one stream merges in a second. Prints the result without asserting it; run with
//! `--nocapture` in release mode.

use crate::support::server::{key, start};
use std::time::{Duration, Instant};
use weir_core::model::wire::{Count, FilterFrame, Report};

#[tokio::test(flavor = "current_thread")]
async fn counts_merged_through_one_stream_on_one_core() {
    const KEYS: usize = 25_600;
    const IN_FLIGHT: u64 = 8;
    let weir = start(None).await;
    let mut peer = weir.join(1, false).await;
    let keys: Vec<Vec<u8>> = (0..KEYS).map(|n| key(&format!("client-{n}"))).collect();
    let sequence = weir.sequence();
    let frame = |id: u64| {
        let batch = usize::try_from(id).unwrap() % (KEYS / 256);
        let counts = keys[batch * 256..][..256].iter().map(|key| Count {
            key: key.clone(),
            sequence,
            own: id,
            limit: 1_000_000,
            ..Default::default()
        });
        FilterFrame { report: Some(Report { id, counts: counts.collect() }), ..FilterFrame::default() }
    };
    let began = Instant::now();
    let (mut sent, mut acked) = (0, 0);
    while began.elapsed() < Duration::from_secs(1) {
        while sent < acked + IN_FLIGHT {
            sent += 1;
            peer.send(frame(sent)).await;
        }
        acked = peer.next_with(|frame| frame.ack).await.report_id;
    }
    let rate = acked as f64 * 256.0 / began.elapsed().as_secs_f64();
    let seconds = weir.metric("weir_aggregator_frame_seconds_sum");
    let frames = weir.metric("weir_aggregator_frame_seconds_count");
    println!(
        "{rate:.0} counts/s, client and server on one core; the lock is held {:.0} µs a frame",
        seconds / frames * 1e6
    );
}
