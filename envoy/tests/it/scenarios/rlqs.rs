//! Envoys with Envoy's own filter for the rate-limit quota service: the aggregator assigns what each of them may pass.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval};
use weir_envoy::{
    Aggregator, AggregatorOptions, EchoUpstream, Envoy, EnvoyOptions, Filter, Quota, RateLimit, Route, http,
    wait,
};

use super::common::{SOON, unix_ms};

const DOMAIN: &str = "quota";
const MINUTE: &str = "x-minute";
const SECOND: &str = "x-second";
const MONTH: &str = "x-month";
/// Envoy reports every five seconds, and an assignment is valid for fifteen.
const ASSIGNED: Duration = Duration::from_secs(30);

/// An aggregator with a limits file, whose folder is removed with this value.
struct Service {
    aggregator: Aggregator,
    upstream: EchoUpstream,
    _folder: tempfile::TempDir,
}

impl Service {
    async fn start(limits: &str) -> Service {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("limits.yaml");
        std::fs::write(&file, format!("domain: {DOMAIN}\ndescriptors:\n{limits}")).unwrap();
        let arguments = vec!["--rls-config".to_owned(), file.to_str().unwrap().to_owned()];
        let token = Some("a token".to_owned());
        let aggregator =
            Aggregator::start(AggregatorOptions { arguments, token, ..AggregatorOptions::default() });
        let upstream = EchoUpstream::start(0).await.unwrap();
        Service { aggregator: aggregator.await.unwrap(), upstream, _folder: folder }
    }

    async fn envoy(&self, filter: Filter) -> Envoy {
        let envoy = Envoy::start(EnvoyOptions {
            concurrency: 2,
            filter,
            route: Route::Upstream(self.upstream.port()),
            aggregator_ports: vec![self.aggregator.grpc_port()],
            ..EnvoyOptions::default()
        });
        envoy.await.unwrap()
    }

    /// An Envoy with the quota filter.
    async fn quota(&self, deny_expired: bool) -> Envoy {
        let buckets = vec![vec![MINUTE], vec![SECOND], vec![MONTH]];
        let token = Some("a token".to_owned());
        self.envoy(Filter::Quota(Quota { domain: DOMAIN.to_owned(), buckets, token, deny_expired })).await
    }

    /// An Envoy that queries the rate-limit service for each request.
    async fn querying(&self) -> Envoy {
        let descriptors = vec![vec![MINUTE], vec![SECOND], vec![MONTH]];
        let token = Some("a token".to_owned());
        let domain = DOMAIN.to_owned();
        let service =
            RateLimit { domain, descriptors, token, failure_mode_deny: true, ..RateLimit::default() };
        self.envoy(Filter::RateLimit(service)).await
    }

    async fn metric(&self, name: &str) -> u64 {
        let text = self.aggregator.admin_get("/metrics").await.unwrap().text();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0, |value| value.parse().unwrap())
    }
}

async fn status(envoy: &Envoy, header: &str, key: &str) -> u16 {
    let request = http::Request::get("/").header(header, key);
    http::send(envoy.address(), request).await.unwrap().status
}

async fn passes(envoy: &Envoy, header: &str, key: &str) -> bool {
    match status(envoy, header, key).await {
        200 => true,
        429 => false,
        other => panic!("status {other}"),
    }
}

/// Sends the first request for a key and waits until its bucket has an assignment.
async fn subscribed(service: &Service, envoy: &Envoy, header: &str, key: &str) {
    const SENT: &str = "weir_aggregator_quota_assignments_total{assignment=\"tokens\"}";
    let before = service.metric(SENT).await;
    assert!(passes(envoy, header, key).await, "the first request is decided without an assignment");
    let sent = async || service.metric(SENT).await > before;
    wait::until("the bucket is assigned", SOON, sent).await.unwrap();
}

/// Two Envoys, each with more load than both may pass. Windows of a minute are divided in tokens, those of a second as rates.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_envoys_share_limits_under_load() {
    const LIMIT: u64 = 300;
    const RATE: u64 = 20;
    const RUN: Duration = Duration::from_secs(150);
    let service = Service::start(&format!(
        "
  - key: {MINUTE}
    rate_limit: {{unit: minute, requests_per_unit: {LIMIT}}}
  - key: {SECOND}
    rate_limit: {{unit: second, requests_per_unit: {RATE}}}
"
    ))
    .await;
    let envoys = [service.quota(true).await, service.quota(true).await];
    let began = Instant::now();
    // Ten requests a second and Envoy for the minute's limit, twenty for the second's.
    let mut ticks = interval(Duration::from_millis(100));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut by_minute, mut by_envoy) = (BTreeMap::<u64, u64>::new(), [0_u64; 2]);
    let (mut seconds, mut ticked) = (Vec::new(), 0_u64);
    while began.elapsed() < RUN {
        ticks.tick().await;
        ticked += 1;
        for (number, envoy) in envoys.iter().enumerate() {
            if passes(envoy, MINUTE, "a").await {
                *by_minute.entry(unix_ms() / 60_000).or_default() += 1;
                by_envoy[number] += 1;
            }
            for _ in 0..2 {
                if passes(envoy, SECOND, "a").await {
                    seconds.push(began.elapsed());
                }
            }
        }
    }
    let ran = began.elapsed();
    let passed: u64 = by_minute.values().sum();
    // From the third report on; before, the first requests pass without an assignment.
    let settled = Duration::from_secs(20);
    let steady = seconds.iter().filter(|at| **at > settled).count() as u64;
    let steady = steady as f64 / (ran - settled).as_secs_f64();
    let within = |from: Duration| {
        seconds.iter().filter(|at| **at >= from && **at - from < Duration::from_secs(1)).count()
    };
    let worst = seconds.iter().map(|from| within(*from)).max().unwrap();
    println!(
        "{ticked} rounds in {ran:?}; {LIMIT} a minute: {passed} passed, by minute {by_minute:?}, by Envoy {by_envoy:?}; {RATE} a \
         second: {steady:.1} a second, {worst} in the worst"
    );
    assert!(by_minute.values().all(|passed| *passed <= LIMIT + LIMIT / 10), "{by_minute:?}");
    // A whole limit at once, and then what the sliding window frees.
    let most = LIMIT + LIMIT * ran.as_secs() / 60;
    assert!(passed <= most, "{passed} of {most}");
    assert!(passed >= LIMIT * ran.as_secs() / 60 * 7 / 10, "{passed} passed");
    assert!(by_envoy[0].min(by_envoy[1]) * 3 > by_envoy[0].max(by_envoy[1]), "{by_envoy:?}");
    assert!((RATE as f64 * 0.7..=RATE as f64 * 1.1).contains(&steady), "{steady} a second");
    assert!(worst as u64 <= 3 * RATE, "{worst} in a second");
}

/// Envoys with the quota filter, and one that queries the rate-limit service, use up one limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_querying_envoy_sees_the_same_counts_and_all_are_denied_at_the_end() {
    const LIMIT: u64 = 120;
    let service = Service::start(&format!(
        "
  - key: {MONTH}
    rate_limit: {{unit: month, requests_per_unit: {LIMIT}}}
"
    ))
    .await;
    let envoys = [service.quota(true).await, service.quota(true).await];
    let querying = service.querying().await;
    for envoy in &envoys {
        subscribed(&service, envoy, MONTH, "a").await;
    }
    let mut passed = 2;
    // What was assigned first; the rest is refused.
    for envoy in &envoys {
        for _ in 0..LIMIT {
            passed += u64::from(passes(envoy, MONTH, "a").await);
        }
    }
    assert!((LIMIT / 15..=LIMIT).contains(&passed), "{passed} passed by the first assignments");
    let counted =
        async || service.metric("weir_aggregator_api_decisions_total{api=\"rlqs\",result=\"allowed\"}").await;
    let reported = async || counted().await == passed;
    wait::until("both have reported", SOON, reported).await.unwrap();
    assert!(passes(&querying, MONTH, "b").await, "another key");
    let request = http::Request::get("/").header(MONTH, "a");
    let response = http::send(querying.address(), request).await.unwrap();
    if response.status == 200 {
        passed += 1;
    }
    let left = response.header("x-ratelimit-remaining").unwrap().parse::<u64>().unwrap();
    assert_eq!(left, LIMIT - passed, "the rate-limit service counts what was reported");
    // The rest is used by all three.
    let (mut assigned, mut queried) = (counted().await, u64::from(response.status == 200));
    let used_up = async || {
        let mut any = false;
        for envoy in &envoys {
            let passes = passes(envoy, MONTH, "a").await;
            assigned += u64::from(passes);
            any |= passes;
        }
        let passes = passes(&querying, MONTH, "a").await;
        queried += u64::from(passes);
        !any && !passes && counted().await == assigned
    };
    wait::until("the limit is used up", 3 * ASSIGNED, used_up).await.unwrap();
    let passed = assigned + queried;
    println!("limit {LIMIT}: {passed} passed, {queried} of them by queries");
    // The querying Envoy does not see what is assigned and not yet used: three quarters of what was left, and what it refills.
    assert!((LIMIT..=LIMIT + left).contains(&passed), "{passed} passed, {left} were left");
}

/// Without an aggregator, an Envoy decides by its own configuration once its assignment has expired. What was denied stays so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_aggregator_each_envoy_applies_its_expired_assignment_behavior() {
    let limits = format!(
        "
  - key: {MONTH}
    rate_limit: {{unit: month, requests_per_unit: 100000}}
  - key: {MINUTE}
    rate_limit: {{unit: month, requests_per_unit: 0}}
"
    );
    let mut service = Service::start(&limits).await;
    let (open, closed) = (service.quota(false).await, service.quota(true).await);
    for envoy in [&open, &closed] {
        subscribed(&service, envoy, MONTH, "a").await;
        assert!(passes(envoy, MONTH, "a").await);
        passes(envoy, MINUTE, "never").await;
        let denied = async || !passes(envoy, MINUTE, "never").await;
        wait::until("what may never pass is denied", SOON, denied).await.unwrap();
    }
    service.aggregator.process().kill().unwrap();
    assert!(passes(&closed, MONTH, "a").await, "the assignment is still valid");
    let expired = async || !passes(&closed, MONTH, "a").await;
    wait::until("the assignment has expired", ASSIGNED, expired).await.unwrap();
    assert!(passes(&open, MONTH, "a").await, "the same without an expired_assignment_behavior");
    assert!(
        !passes(&open, MINUTE, "never").await && !passes(&closed, MINUTE, "never").await,
        "what was denied"
    );
    service.aggregator.restart().await.unwrap();
    let assigned = async || passes(&closed, MONTH, "a").await;
    wait::until("the aggregator assigns again", ASSIGNED, assigned).await.unwrap();
}
