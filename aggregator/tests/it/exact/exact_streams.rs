//! Tests of exact requests on filters' streams, and of their refunds.

use crate::support::server::{Peer, Weir, hello_frame, settings, start, start_with, until};
use std::collections::BTreeMap;
use weir_aggregator::redis::StoreOptions;
use weir_aggregator::server::Settings;
use weir_core::model::exact::MAX_CHARGES;
use weir_core::model::wire::{
    Charge, ChargeResult, ExactRequest, ExactResponse, FilterFrame, LedgerLimit, LogLimit, MAX_FRAME_CELLS,
    Ping, Refund,
};
use weir_envoy::{Redis, RedisOptions};

const UNDECIDED: u32 = 0;

const ALLOWED: u32 = 2;
const DENIED: u32 = 3;

fn log(identifier: &str, cost: u64, most: u64) -> Charge {
    let limit = LogLimit { key: crate::support::server::key(identifier), most };
    Charge { log: Some(limit), ledger: None, cost }
}

fn ledger() -> Charge {
    let limit = LedgerLimit { zone: 1, bucket: b"bucket".to_vec() };
    Charge { log: None, ledger: Some(limit), cost: 1 }
}

fn request(id: u64, charges: Vec<Charge>) -> ExactRequest {
    ExactRequest { id, charges, timeout_ms: 5_000, trace: None }
}

fn exact_requests(exact_requests: Vec<ExactRequest>) -> FilterFrame {
    FilterFrame { exact_requests, ..FilterFrame::default() }
}

/// This many results, by the ids of their requests.
async fn results(peer: &mut Peer, expected: usize) -> BTreeMap<u64, Vec<ChargeResult>> {
    let mut found = BTreeMap::new();
    while found.len() < expected {
        let some = peer.next_with(|frame| Some(frame.results).filter(|results| !results.is_empty())).await;
        for ExactResponse { id, results } in some {
            assert!(found.insert(id, results).is_none(), "each request must have one answer");
        }
    }
    found
}

async fn exact_results(peer: &mut Peer, request: ExactRequest) -> Vec<ChargeResult> {
    let id = request.id;
    peer.send(exact_requests(vec![request])).await;
    results(peer, 1).await.remove(&id).expect("the answer to this request")
}

fn verdicts(results: &[ChargeResult]) -> Vec<u32> {
    results.iter().map(|result| result.verdict).collect()
}

async fn are_decided(weir: &Weir) {
    let mut peer = weir.join(1, false).await;
    peer.send(exact_requests((1..=5).map(|id| request(id, vec![log("alice", 1, 3)])).collect())).await;
    let answers = results(&mut peer, 5).await;
    let allowed: Vec<_> =
        answers.iter().filter(|(_, r)| verdicts(r) == [ALLOWED]).map(|(id, _)| *id).collect();
    assert_eq!(allowed.len(), 3);
    let denied = &answers.values().find(|r| verdicts(r) == [DENIED]).unwrap()[0];
    assert_eq!((denied.limit, denied.remaining, denied.window_ms), (3, 0, crate::support::server::HOUR_MS));
    assert!((3_590_000..=3_600_000).contains(&denied.retry_after_ms) && !denied.never, "{denied:?}");
    let repeated = a_denial_is_cached(weir, &mut peer, allowed[0]).await;

    let refund = |id| Refund { request: Some(request(id, vec![log("alice", 1, 3)])), results: Vec::new() };
    let refunds = vec![refund(allowed[0]), refund(allowed[0]), Refund::default()];
    peer.send(FilterFrame { refunds, ..FilterFrame::default() }).await;
    let done = "weir_aggregator_exact_refunds_total{result=\"done\"}";
    until("the charge is refunded", || weir.metric(done) == 1.0).await;
    // A request of another worker with the same number is a separate request.
    let mut other = Peer::open(weir.connect().await).await;
    let mut frame = hello_frame(2, false);
    frame.hello.as_mut().unwrap().worker = 2;
    other.send(frame).await;
    assert_eq!(
        verdicts(&exact_results(&mut other, request(allowed[1], vec![log("alice", 1, 3)])).await),
        [ALLOWED]
    );
    assert_eq!(verdicts(&exact_results(&mut peer, request(99, vec![log("alice", 1, 3)])).await), [DENIED]);

    let mixed = exact_results(&mut peer, request(100, vec![log("bob", 1, 3), ledger()])).await;
    assert_eq!(verdicts(&mixed), [ALLOWED, UNDECIDED], "an undecided charge must not prevent the others");
    let malformed = Charge { log: None, ledger: None, cost: 1 };
    let wrong = exact_results(&mut peer, request(101, vec![log("bob", 1, 3), malformed])).await;
    assert_eq!(verdicts(&wrong), [UNDECIDED, UNDECIDED]);
    assert_eq!(verdicts(&exact_results(&mut peer, request(102, vec![log("bob", 2, 3)])).await), [ALLOWED]);
    for (name, value) in [
        ("requests_total{result=\"malformed\"}", 1.0),
        ("charges_total{algorithm=\"sliding_log\",result=\"allowed\"}", 6.0 + repeated),
        ("charges_total{algorithm=\"ledger\",result=\"undecided\"}", 1.0),
    ] {
        assert_eq!(weir.metric(&format!("weir_aggregator_exact_{name}")), value, "{name}");
    }
}

/// Repeats a charge that had passed while a later denial is cached. Returns how often the denial was not cached,
/// because it is cached for only one second.
async fn a_denial_is_cached(weir: &Weir, peer: &mut Peer, passed: u64) -> f64 {
    const CACHED_DENIALS: &str = "weir_aggregator_exact_cached_denials_total";
    let repeated = |id| request(id, vec![log("alice", 1, 3)]);
    for expired in 0..10 {
        let before = weir.metric(CACHED_DENIALS);
        let again = exact_results(peer, repeated(passed)).await;
        if weir.metric(CACHED_DENIALS) > before {
            assert_eq!(
                verdicts(&again),
                [DENIED],
                "the cached denial must also apply to the charge that had passed"
            );
            return f64::from(expired);
        }
        assert_eq!(verdicts(&again), [ALLOWED], "a repeated request must be charged once");
        assert_eq!(verdicts(&exact_results(peer, repeated(98)).await), [DENIED]);
    }
    panic!("no denial was cached");
}

#[tokio::test]
async fn exact_requests_are_decided_in_memory() {
    are_decided(&start(None).await).await;
}

#[tokio::test]
async fn exact_requests_are_decided_in_redis() {
    let redis = Redis::start(RedisOptions::default()).await.unwrap();
    let store = Some(StoreOptions::parse(&redis.url(), "test-region").unwrap());
    let weir = start_with(Settings { store, ..settings() }).await;
    ready(&weir).await;
    are_decided(&weir).await;
}

async fn ready(weir: &Weir) {
    let services = weir.server.services().clone();
    until("Redis is found", || services.store_is_usable()).await;
}

#[tokio::test]
async fn waiting_exact_requests_delay_nothing_else_and_are_bounded() {
    let mut redis = Redis::start(RedisOptions::default()).await.unwrap();
    let store = Some(StoreOptions::parse(&redis.url(), "test-region").unwrap());
    let weir = start_with(Settings { store, ..settings() }).await;
    ready(&weir).await;
    let mut peer = weir.join(1, false).await;
    redis.process().pause().await.unwrap();
    let carol = || vec![log("carol", 1, 9)];
    let many =
        |from: u64| exact_requests((from..).take(MAX_FRAME_CELLS).map(|id| request(id, carol())).collect());
    peer.send(many(0)).await;
    peer.send(many(1_000)).await;
    peer.send(FilterFrame { ping: Some(Ping { sent_ms: 7 }), ..FilterFrame::default() }).await;
    let mut answered = BTreeMap::new();
    let mut receive = async |answered: &mut BTreeMap<u64, Vec<u32>>| {
        let frame = peer.next().await.unwrap().unwrap();
        answered.extend(frame.results.into_iter().map(|results| (results.id, verdicts(&results.results))));
        frame.pong.is_some()
    };
    while !receive(&mut answered).await {}
    assert!(answered.len() < 2 * MAX_FRAME_CELLS, "{}", answered.len());
    assert!(answered.values().all(|verdicts| *verdicts == [UNDECIDED]));
    let rejected = weir.metric("weir_aggregator_exact_requests_total{result=\"rejected\"}");
    assert!(rejected >= 1.0 && rejected <= MAX_FRAME_CELLS as f64, "{rejected}");
    redis.process().resume().unwrap();
    while answered.len() < 2 * MAX_FRAME_CELLS {
        receive(&mut answered).await;
    }
    let allowed = answered.values().filter(|verdicts| **verdicts == [ALLOWED]).count();
    assert!(allowed <= 9, "{allowed}");
}

#[tokio::test]
async fn too_much_at_once_ends_the_stream() {
    let weir = start(None).await;
    let one = || request(1, vec![log("dave", 1, 9)]);
    let large = || request(1, vec![log("dave", 1, 9); MAX_CHARGES + 1]);
    let refund = |request| Refund { request: Some(request), results: Vec::new() };
    let refunds = |refunds| FilterFrame { refunds, ..FilterFrame::default() };
    for (frame, reason) in [
        (exact_requests(vec![one(); MAX_FRAME_CELLS + 1]), "257 exact requests"),
        (refunds(vec![refund(one()); MAX_FRAME_CELLS + 1]), "257 refunds"),
        (exact_requests(vec![large()]), "129 charges"),
        (refunds(vec![refund(large())]), "129 charges"),
    ] {
        let mut peer = weir.join(1, false).await;
        peer.send(frame).await;
        let (message, code) = peer.refused().await;
        assert!(message.starts_with(reason), "{message}");
        assert_eq!(code, tonic::Code::InvalidArgument);
    }
}
