//! Tests of the embedded limiter: its callers share one limit with the filters of the region, through any API and after
//! losses.

use crate::support::server::{
    DEADLINE, HOUR_MS, Peer, ShiftedClock, Weir, settings, start, start_on, start_with, until, used,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::sleep;
use weir_aggregator::api::{Answer, EmbeddedLimiter, Failure, LimitCheck, MAX_LIMIT_CHECKS};
use weir_aggregator::server::{Server, Settings};
use weir_aggregator::telemetry::clock::Clock;
use weir_core::model::exact::{Algorithm, Verdict};
use weir_core::model::schedule::Schedule;
use weir_core::model::wire::{FilterFrame, Query};
use weir_envoy::{Redis, RedisOptions};

/// More than a busy machine takes to decide. With less, an API may have to decide from its own counts.
const WITHIN: Duration = Duration::from_secs(5);

fn window(identifier: &str, limit: u64, cost: u64) -> LimitCheck {
    LimitCheck {
        algorithm: Algorithm::Window,
        workspace: b"default".to_vec(),
        namespace: b"api".to_vec(),
        identifier: identifier.as_bytes().to_vec(),
        duration_ms: HOUR_MS,
        hard_limit: false,
        limit,
        cost,
    }
}

async fn decide(weir: &Weir, questions: &[LimitCheck]) -> Answer {
    weir.server.embedded().decide(questions, Failure::Deny, WITHIN).await
}

async fn passes(weir: &Weir, question: LimitCheck) -> bool {
    decide(weir, &[question]).await.allowed
}

fn verdicts(answer: &Answer) -> Vec<Verdict> {
    answer.results.iter().map(|result| result.verdict).collect()
}

fn remaining(answer: &Answer) -> Vec<u64> {
    answer.results.iter().map(|result| result.remaining).collect()
}

/// How many of `tasks` × `each` concurrent questions of cost 1 pass.
async fn flood(
    embedded: &Arc<EmbeddedLimiter>,
    identifier: &str,
    limit: u64,
    tasks: usize,
    each: usize,
) -> u64 {
    let passed = Arc::new(AtomicU64::new(0));
    let mut all = JoinSet::new();
    for _ in 0..tasks {
        let (embedded, passed, question) = (embedded.clone(), passed.clone(), window(identifier, limit, 1));
        all.spawn(async move {
            for _ in 0..each {
                let answer = embedded.decide(std::slice::from_ref(&question), Failure::Deny, WITHIN).await;
                passed.fetch_add(u64::from(answer.allowed), Relaxed);
            }
        });
    }
    all.join_all().await;
    passed.load(Relaxed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_is_enforced_and_reported() {
    let weir = start(None).await;
    for left in [2, 1, 0] {
        let answer = decide(&weir, &[window("a", 3, 1)]).await;
        let [result] = answer.results[..] else { panic!("one result") };
        assert!(answer.allowed && result.is_allowed());
        assert_eq!((result.limit, result.remaining, result.window_ms), (3, left, HOUR_MS));
        assert!(result.reset_ms > 0 && result.reset_ms <= HOUR_MS);
    }
    let answer = decide(&weir, &[window("a", 3, 1)]).await;
    let Verdict::Denied { retry_after_ms: Some(wait) } = answer.results[0].verdict else {
        panic!("{answer:?}")
    };
    assert!(!answer.allowed && wait >= answer.results[0].reset_ms && wait <= 2 * HOUR_MS);
    assert!(passes(&weir, window("a", 3, 0)).await, "cost 0 must pass at exactly the limit");
    assert!(passes(&weir, window("a", 4, 1)).await, "a higher limit must keep the count");
    let never = decide(&weir, &[window("b", 3, 4)]).await;
    assert_eq!(verdicts(&never), [Verdict::Denied { retry_after_ms: None }]);
    assert_eq!(remaining(&never), [3]);
    assert_eq!(
        remaining(&decide(&weir, &[window("b", 3, 0)]).await),
        [3],
        "a denied call must charge nothing"
    );
    until("the region has the API's count", || used(&weir, "a") == 4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_is_a_node_only_while_it_is_used() {
    let weir = start(None).await;
    let _filter = weir.join(1, false).await;
    assert_eq!(weir.server.services().stats().live_nodes, 1);
    assert!(passes(&weir, window("a", 3, 1)).await);
    assert_eq!(weir.server.services().stats().live_nodes, 2);
}

/// The first check after the start, and checks after an idle time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limiter_that_was_idle_decides_by_the_counts_of_its_region() {
    let schedule = Schedule { leave_ms: 1, ..Schedule::for_tests() };
    let weir = start_with(Settings { schedule, ..settings() }).await;
    let mut filter = weir.join(1, false).await;
    filter.send(weir.report(1, "used-up", 100)).await;
    filter.next_with(|frame| frame.ack).await;
    for _ in 0..20 {
        assert!(!passes(&weir, window("used-up", 100, 1)).await, "the region's count must deny");
        assert!(passes(&weir, window("free", 1_000, 1)).await);
        // The filter is silent, and counts as a node only for a while.
        until("the limiter has left", || weir.metric("weir_aggregator_streams") == 1.0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_concurrent_requests_exactly_the_limit_passes() {
    let weir = start(None).await;
    assert_eq!(flood(weir.server.embedded(), "hot", 1_000, 64, 50).await, 1_000);
    until("the region has the count", || used(&weir, "hot") == 1_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_of_a_call_pass_or_none() {
    let weir = start(None).await;
    let all: Vec<_> = (0..MAX_LIMIT_CHECKS).map(|at| window(&format!("k{at}"), 5, 1)).collect();
    let answer = decide(&weir, &all).await;
    assert!(
        answer.allowed && answer.results.iter().all(|result| result.is_allowed() && result.remaining == 4)
    );
    // The last limit is used up, so nothing is charged to the others.
    let last = MAX_LIMIT_CHECKS - 1;
    assert!(passes(&weir, window(&format!("k{last}"), 5, 4)).await);
    let answer = decide(&weir, &all).await;
    assert!(!answer.allowed);
    assert!(matches!(answer.results[last].verdict, Verdict::Denied { retry_after_ms: Some(_) }));
    for (at, result) in answer.results[..last].iter().enumerate() {
        assert_eq!((result.verdict, result.remaining), (Verdict::Untried, 4), "{at}");
    }
    // The answer names every limit that would have denied.
    let some = [window("k0", 5, 5), window("k1", 5, 1), window("k2", 5, 6)];
    let answer = decide(&weir, &some).await;
    let denied = |verdict: &Verdict| matches!(verdict, Verdict::Denied { .. });
    assert_eq!(verdicts(&answer).iter().map(denied).collect::<Vec<_>>(), [true, false, true]);
    assert_eq!(answer.results[2].verdict, Verdict::Denied { retry_after_ms: None });
    assert_eq!(remaining(&answer), [4, 4, 4]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checks_of_one_window_are_coalesced() {
    let weir = start(None).await;
    let other = window("other", 9, 1);
    let answer = decide(&weir, &[window("twice", 5, 2), other.clone(), window("twice", 4, 3)]).await;
    let never = Verdict::Denied { retry_after_ms: None };
    assert_eq!(verdicts(&answer), [never, Verdict::Untried, never], "5 of the lower limit, 4");
    assert_eq!(remaining(&answer), [4, 9, 4]);
    let answer = decide(&weir, &[window("twice", 5, 2), other, window("twice", 5, 2)]).await;
    assert!(answer.allowed);
    assert_eq!(remaining(&answer), [1, 8, 1]);
    let most = decide(&weir, &[window("twice", 5, u64::MAX), window("twice", 5, u64::MAX)]).await;
    assert_eq!(verdicts(&most), [never, never]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_checks_are_not_decided() {
    let weir = start(None).await;
    let too_many = vec![window("a", 5, 1); MAX_LIMIT_CHECKS + 1];
    let bad = [window("a", 5, 1), LimitCheck { duration_ms: 0, ..window("b", 5, 1) }];
    for questions in [too_many.as_slice(), &bad] {
        let answer = decide(&weir, questions).await;
        assert!(!answer.allowed && answer.results.len() == questions.len());
        assert!(answer.results.iter().all(|result| result.verdict == Verdict::Undecided));
    }
    assert!(decide(&weir, &[]).await.allowed);
    assert_eq!(remaining(&decide(&weir, &[window("a", 5, 0)]).await), [5]);
}

/// A step of the wall clock does not begin a new window; elapsed time does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_window_moves_on() {
    const WINDOW_MS: u64 = 5_000;
    let clock = Arc::new(ShiftedClock::default());
    let since_ms = clock.now().0 % WINDOW_MS;
    clock.0.store(-since_ms.cast_signed(), Relaxed);
    let weir = Weir { server: Server::start(settings(), clock.clone()).await.unwrap(), clock };
    let short = |cost| LimitCheck { duration_ms: WINDOW_MS, ..window("a", 20, cost) };
    let first = weir.clock.now().0 / WINDOW_MS;
    assert!(passes(&weir, short(20)).await);
    weir.clock.0.fetch_add(HOUR_MS.cast_signed(), Relaxed);
    assert!(!passes(&weir, short(20)).await, "an hour has not elapsed");
    weir.clock.0.fetch_sub(HOUR_MS.cast_signed(), Relaxed);
    let began = Instant::now();
    while !passes(&weir, short(1)).await {
        assert!(began.elapsed() < DEADLINE, "the next window is not reached");
        sleep(Duration::from_millis(20)).await;
    }
    // The region's time may have followed the step by some milliseconds.
    assert!((weir.clock.now().0 + 100) / WINDOW_MS > first, "the request must pass in the next window");
}

/// If the region is blocked, no caller waits longer than its timeout. Each task of the aggregator that needs the region
/// meanwhile blocks a thread; there are more threads than tasks, so timers still run.
#[tokio::test(flavor = "multi_thread", worker_threads = 24)]
async fn no_caller_waits_longer_than_its_timeout() {
    const TIMEOUT: Duration = Duration::from_millis(50);
    let weir = start(None).await;
    assert!(passes(&weir, window("a", 10, 1)).await);
    let services = weir.server.services().clone();
    let (release, held) = std::sync::mpsc::channel::<()>();
    let holds = std::thread::spawn(move || services.region(|_, _| held.recv_timeout(DEADLINE)));
    // The key is new to the API, so the region is queried.
    let answer = weir.server.embedded().decide(&[window("b", 10, 1)], Failure::Deny, TIMEOUT).await;
    assert!(answer.allowed, "the request must be decided from local counts");
    release.send(()).expect("the region must be blocked all the time");
    tokio::task::spawn_blocking(move || holds.join()).await.unwrap().unwrap().unwrap();
    until("what was decided alone is reported", || used(&weir, "b") == 1).await;
}

/// What a filter spends that queries for each unit.
async fn spends(mut filter: Peer, decide: Query, times: u64) -> (Peer, u64) {
    let mut own = 0;
    for id in 1..=times {
        let queries = vec![Query { id, own, timeout_ms: 5_000, ..decide.clone() }];
        filter.send(FilterFrame { queries, ..FilterFrame::default() }).await;
        let answer = filter.next_with(|frame| frame.answers.into_iter().find(|answer| answer.id == id)).await;
        own += u64::from(answer.granted);
    }
    (filter, own)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn api_and_filters_of_a_region_enforce_one_limit() {
    const LIMIT: u64 = 1_000;
    let redis = Redis::start(RedisOptions::default()).await.unwrap();
    let weirs = [start_on(&redis).await, start_on(&redis).await, start_on(&redis).await];
    let mut filters = JoinSet::new();
    for (node, weir) in (1u8..).zip(&weirs) {
        filters.spawn(spends(weir.join(node, true).await, weir.query(1, "shared", 0, 1, LIMIT), 400));
    }
    let mut api = JoinSet::new();
    for weir in &weirs {
        let embedded = weir.server.embedded().clone();
        api.spawn(async move { flood(&embedded, "shared", LIMIT, 8, 100).await });
    }
    let by_api: Vec<u64> = api.join_all().await;
    let by_filters: Vec<u64> = filters.join_all().await.into_iter().map(|(_, own)| own).collect();
    let passed = by_api.iter().chain(&by_filters).sum::<u64>();
    println!("passed {passed} of {LIMIT}: APIs {by_api:?}, filters {by_filters:?}");
    assert!((LIMIT..=LIMIT + LIMIT / 20).contains(&passed), "{passed}");
    // A grant that arrived after the caller's timeout stays counted, so the counted use is never below the actual use.
    let counted = || weirs.iter().map(|weir| used(weir, "shared")).collect::<Vec<_>>();
    until("all aggregators have the count", || {
        let counted = counted();
        counted.iter().all(|used| *used == counted[0] && (passed..=LIMIT + LIMIT / 20).contains(used))
    })
    .await;
    for weir in &weirs {
        assert!(!passes(weir, window("shared", LIMIT, 1)).await, "a used-up limit must be used up for all");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_of_an_api_outlive_it() {
    let redis = Redis::start(RedisOptions::default()).await.unwrap();
    let one = start_on(&redis).await;
    let spent = flood(one.server.embedded(), "a", 60, 8, 10).await;
    assert_eq!(spent, 60);
    one.server.stop().await;
    let other = start_on(&redis).await;
    assert_eq!(flood(other.server.embedded(), "a", 100, 8, 10).await, 40);
}

/// The table keeps its size with any number of identifiers, and used limits continue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_identifiers_takes_no_more_room() {
    const TASKS: usize = 256;
    let weir = start(None).await;
    let embedded = weir.server.embedded();
    let names =
        std::env::var("WEIR_TEST_IDENTIFIERS").ok().and_then(|text| text.parse().ok()).unwrap_or(60_000);
    assert_eq!(flood(embedded, "kept", 100, 8, 10).await, 80);
    let mut all = JoinSet::new();
    for task in 0..TASKS {
        let embedded = embedded.clone();
        all.spawn(async move {
            for at in (task..names).step_by(TASKS) {
                let question = window(&format!("an identifier of some length, number {at}"), 100, 1);
                embedded.decide(&[question], Failure::Deny, WITHIN).await;
            }
        });
    }
    all.join_all().await;
    let held = embedded.held_bytes();
    println!("{names} identifiers: {held} bytes");
    assert!(held < 160 << 20, "{held}");
    assert_eq!(flood(embedded, "kept", 100, 8, 10).await, 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_an_exact_limit_is_not_decided_no_window_is_charged() {
    let weir = start(None).await;
    let ledger = LimitCheck { algorithm: Algorithm::Ledger { zone: 1 }, ..window("a", 0, 1) };
    let answer = decide(&weir, &[window("a", 5, 1), ledger]).await;
    assert!(!answer.allowed, "there is no database");
    assert_eq!(verdicts(&answer), [Verdict::Untried, Verdict::Undecided]);
    assert_eq!(answer.results[0].remaining, 5);
    assert_eq!(remaining(&decide(&weir, &[window("a", 5, 0)]).await), [5]);
}

/// If a caller continues after an undecided limit, the decided limits still apply.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_a_caller_continues_the_decided_limits_apply() {
    const ALLOWED: Verdict = Verdict::Allowed;
    const UNDECIDED: Verdict = Verdict::Undecided;
    const UNTRIED: Verdict = Verdict::Untried;
    let weir = start(None).await;
    let log = |limit, cost| LimitCheck { algorithm: Algorithm::Log, ..window("log", limit, cost) };
    let ledger = LimitCheck { algorithm: Algorithm::Ledger { zone: 1 }, ..window("a", 0, 1) };
    // The caller stops: nothing is charged.
    let answer = decide(&weir, &[window("w", 3, 1), log(5, 1), ledger.clone(), log(5, 2)]).await;
    assert_eq!(verdicts(&answer), [UNTRIED, UNTRIED, UNDECIDED, UNTRIED], "there is no database");
    assert_eq!((answer.allowed, remaining(&answer)), (false, vec![3, 5, 0, 5]));
    let began = Instant::now();
    while remaining(&decide(&weir, &[window("w", 3, 0), log(5, 0)]).await) != [3, 5] {
        assert!(began.elapsed() < DEADLINE, "the log's charges must be refunded");
    }
    // The caller continues, up to the limits.
    let goes_on = async |questions: &[LimitCheck]| {
        weir.server.embedded().decide(questions, Failure::Allow, WITHIN).await
    };
    for left in [2, 1, 0] {
        let answer = goes_on(&[window("w", 3, 1), log(5, 1), ledger.clone()]).await;
        assert_eq!(verdicts(&answer), [ALLOWED, ALLOWED, UNDECIDED]);
        assert_eq!((answer.allowed, remaining(&answer)), (false, vec![left, left + 2, 0]));
    }
    let answer = goes_on(&[log(5, 1), ledger.clone(), window("w", 3, 1)]).await;
    assert!(answer.results[2].is_denied(), "{answer:?}");
    let answer = goes_on(&[window("other", 3, 1), ledger, log(5, 3)]).await;
    assert!(answer.results[2].is_denied(), "{answer:?}");
    let left = remaining(&decide(&weir, &[window("other", 3, 0), log(5, 0)]).await);
    assert_eq!(left, [3, 2], "a denial must charge nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_and_a_window_pass_together() {
    let weir = start(None).await;
    let log = |limit, cost| LimitCheck { algorithm: Algorithm::Log, ..window("log", limit, cost) };
    let answer = decide(&weir, &[log(3, 2), window("w", 5, 1)]).await;
    assert!(answer.allowed, "{answer:?}");
    assert_eq!(remaining(&answer), [1, 4]);
    // The log denies: the window is not charged.
    let answer = decide(&weir, &[window("w", 5, 1), log(3, 2)]).await;
    assert!(!answer.allowed);
    assert_eq!(answer.results[0].verdict, Verdict::Untried);
    assert!(matches!(answer.results[1].verdict, Verdict::Denied { retry_after_ms: Some(_) }));
    assert_eq!(remaining(&decide(&weir, &[window("w", 5, 0)]).await), [4]);
    // The window denies: the log is not queried.
    let answer = decide(&weir, &[log(3, 1), window("w", 5, 5)]).await;
    assert!(!answer.allowed);
    assert_eq!(answer.results[0].verdict, Verdict::Untried);
    assert_eq!(remaining(&decide(&weir, &[log(3, 0)]).await), [1]);
}
