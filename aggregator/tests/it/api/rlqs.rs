//! Tests of Envoy's rate-limit quota service over real connections: assignments, shared counts, errors, bounds.

use crate::support::http::{put, write};
use crate::support::rlqs::{Assigned, Entries, Proxy, RawProxy, reports, usage};
use crate::support::rls::{OK, OVER, call, codes, descriptor, remaining, request};
use crate::support::server::{DEADLINE, TOKEN, Weir, settings, start_with, until};
use serde_json::json;
use std::net::SocketAddr;
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::{Instant, timeout_at};
use tonic::Code;
use tonic::transport::{Channel, Endpoint};
use weir_aggregator::api::rlqs::quotas::MAX_BUCKETS_OF_STREAM;
use weir_aggregator::api::rlqs::service::MAX_MESSAGE_BYTES;
use weir_aggregator::api::rlqs::wire::Usage;
use weir_aggregator::api::rls::config::MAX_DEPTH;
use weir_aggregator::api::{ApiSettings, rls};
use weir_aggregator::auth::{self, Listed, NewToken};
use weir_aggregator::database::DatabaseOptions;
use weir_aggregator::redis::StoreOptions;
use weir_aggregator::server::Settings;
use weir_core::model::schedule::Schedule;
use weir_envoy::{Redis, RedisOptions};

const LIMITS: &str = "
domain: edge
descriptors:
  - key: user
    rate_limit: {name: users, unit: month, requests_per_unit: 100}
  - key: tenant
    descriptors:
      - key: env
        rate_limit: {name: tenants, unit: month, requests_per_unit: 100}
  - key: burst
    rate_limit: {unit: second, requests_per_unit: 100}
  - key: minute
    rate_limit: {unit: minute, requests_per_unit: 600}
  - key: shade
    shadow_mode: true
    rate_limit: {unit: month, requests_per_unit: 10}
  - key: free
    rate_limit: {unlimited: true}
  - key: never
    rate_limit: {unit: month, requests_per_unit: 0}
";
const USER: Entries = &[("user", "a")];

struct Service {
    weir: Weir,
    channel: Channel,
    folder: TempDir,
}

impl Service {
    async fn start() -> Service {
        Service::start_with(|settings| settings).await
    }

    async fn start_with(change: impl FnOnce(Settings) -> Settings) -> Service {
        let folder = tempfile::tempdir().unwrap();
        let file = write(folder.path(), "edge.yaml", LIMITS);
        let api = ApiSettings {
            rls: rls::Settings { files: Some(file), ..rls::Settings::default() },
            ..settings().api
        };
        let weir = start_with(change(Settings { api, ..settings() })).await;
        Service { channel: weir.connect().await, weir, folder }
    }

    async fn proxy(&self) -> Proxy {
        Proxy::open(self.weir.connect().await).await
    }

    /// Checks a limit through the rate-limit service. Returns the code and what remains.
    async fn check(&self, entries: Entries<'_>) -> (weir_aggregator::api::rls::wire::Code, u32) {
        let response = call(&self.channel, request(vec![descriptor(entries)])).await.unwrap();
        (codes(&response).0, remaining(&response)[0])
    }

    fn metric(&self, name: &str) -> f64 {
        self.weir.metric(&format!("weir_aggregator_quota_{name}"))
    }

    fn refused(&self) -> f64 {
        self.metric("reports_total{result=\"refused\"}")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_reported_counts_for_all_and_is_denied_when_used_up() {
    let service = Service::start().await;
    let mut proxy = service.proxy().await;
    assert_eq!(proxy.tokens(USER, 0, 0).await, 6, "a few, until it is known what it is asked for");
    assert_eq!(proxy.assigned.values().next().unwrap().1, 15, "seconds to live");
    assert_eq!(proxy.tokens(USER, 62, 30).await, 24, "what is left is assigned");
    assert_eq!(service.check(USER).await, (OK, 37), "the rate-limit service counts on the same key");
    assert_eq!(proxy.tokens(USER, 37, 60).await, 0);
    assert_eq!(service.check(USER).await, (OVER, 0));
    let (_, seconds) = *proxy.assigned.values().next().unwrap();
    assert!((15..=24 * 3_600).contains(&seconds), "a denial lasts until something is free: {seconds}");
    let decided = |result: &str| {
        service
            .weir
            .metric(&format!("weir_aggregator_api_decisions_total{{api=\"rlqs\",result=\"{result}\"}}"))
    };
    assert_eq!([decided("allowed"), decided("denied")], [99.0, 90.0]);
    assert_eq!(service.metric("reports_total{result=\"counted\"}"), 3.0);
    assert_eq!(service.metric("streams"), 1.0);
    drop(proxy);
    until("the stream is removed", || service.metric("streams") == 0.0).await;
    assert_eq!(service.metric("buckets"), 0.0);
}

/// Nothing waits for a new bucket's assignment, so it waits for the region's counts, also where these take longer than a request may wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_bucket_waits_for_counts_that_come_late() {
    /// Far more than the 50 ms that a request waits for its answer.
    const ONE_WAY: Duration = Duration::from_millis(60);
    let redis = Redis::start(RedisOptions::default()).await.unwrap();
    let on = |address: SocketAddr| {
        let store = StoreOptions::parse(&format!("redis://{address}"), "test-region").unwrap();
        Service::start_with(|settings| Settings { store: Some(store), ..settings })
    };
    let near = on(redis.address()).await;
    let left = near.proxy().await.tokens(USER, 45, 0).await;
    assert!((1..=55).contains(&left), "{left} of 55 that are left");
    until("its count is in Redis", || {
        near.weir.metric("weir_ratelimit_origin_operations_total{op=\"replay\"}") > 0.0
    })
    .await;
    let proxy = weir_envoy::Proxy::start_distant(redis.address(), ONE_WAY).await.unwrap();
    let far = on(proxy.address()).await;
    // Far from half of the limit, so the key is not pushed unasked.
    let given = far.proxy().await.tokens(USER, 0, 60).await;
    assert!((1..=55).contains(&given), "{given} of 55 that are left");
}

/// Use beyond what was assigned has happened, so it is charged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn use_beyond_the_limit_is_charged_too() {
    let service = Service::start().await;
    let mut proxy = service.proxy().await;
    assert_eq!(proxy.tokens(USER, 500, 0).await, 0);
    assert_eq!(service.check(USER).await, (OVER, 0));
    let file = service.folder.path().join("edge.yaml");
    std::fs::write(&file, LIMITS.replace("requests_per_unit: 100", "requests_per_unit: 600")).unwrap();
    proxy.until(USER, |assigned| matches!(assigned, Assigned::Tokens(_))).await;
    assert_eq!(service.check(USER).await, (OK, 99), "500 were charged");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_share_what_is_left_by_their_demand() {
    let service = Service::start().await;
    let (mut idle, mut busy) = (service.proxy().await, service.proxy().await);
    let first = idle.tokens(USER, 1, 0).await;
    let second = busy.tokens(USER, 1, 40).await;
    assert!(first + second <= 98 && second > 0, "{first} and {second}");
    // The idle one gives back what it does not need, and the busy one gets more than it.
    let shrunk = idle.tokens(USER, 0, 0).await;
    assert!(shrunk < first / 2 && first < second, "{first}, then {shrunk}; {second}");
    idle.report(USER, 0, 0).await;
    until("both reports are counted", || service.metric("reports_total{result=\"counted\"}") == 4.0).await;
    let third = busy.tokens(USER, second, 100).await;
    assert!(third > 10 * shrunk, "{third} and {shrunk}");
    // One that is lost keeps what it was given until that expires.
    busy.lose().await;
    until("it is lost", || service.metric("streams") == 1.0).await;
    let mut new = service.proxy().await;
    let given = new.tokens(USER, 0, 0).await;
    assert!(given + third + second + 2 <= 100, "{given}, beside {third} and {second}");
}

/// What may have been spent is charged when the assignment has expired. A stream that ends after a report has spent nothing more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_lost_proxy_held_counts_as_spent() {
    let service = Service::start().await;
    let charged = || {
        let explained = service.weir.server.services().explain(b"default", b"users", b"a");
        explained
            .iter()
            .flat_map(|explained| &explained.cells)
            .map(weir_core::region::CellState::total)
            .sum::<u64>()
    };
    let mut proxy = service.proxy().await;
    assert_eq!(proxy.tokens(USER, 0, 60).await, 62);
    proxy.lose().await;
    until("it is lost", || service.metric("streams") == 0.0).await;
    let mut next = service.proxy().await;
    let given = next.tokens(USER, 1, 60).await;
    assert!((1..=6).contains(&given), "{given} beside what is reserved");
    next.report(USER, given, 0).await;
    until("it is counted", || service.metric("reports_total{result=\"counted\"}") == 3.0).await;
    next.end().await;
    until("it has ended", || service.metric("streams") == 0.0).await;
    for _ in 0..3 {
        // An assignment is valid for 15 s.
        let expired = async {
            while charged() < 62 {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        };
        if tokio::time::timeout(DEADLINE, expired).await.is_ok() {
            break;
        }
    }
    let used = charged();
    assert!((62 + given + 1..=100).contains(&used), "{used} with the {given} of the next one");
    let third = service.proxy().await.tokens(USER, 0, 60).await;
    assert!(third <= 100 - used, "{third} of {used}");
}

/// Prints how much passes an Envoy that is killed every ten seconds, with all that it has passed since its last report.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes five minutes; run it by hand"]
async fn an_envoy_that_is_killed_again_and_again_stays_within_the_limit() {
    const MINUTE: Entries = &[("minute", "a")];
    const DEMAND: u64 = 100;
    let service = Service::start().await;
    let mut passed = Vec::new();
    for _ in 0..30 {
        let mut proxy = service.proxy().await;
        let (mut left, mut last, mut unreported) = (0, None, (0, 0));
        for second in 0..10 {
            let ends = Instant::now() + Duration::from_secs(1);
            if second % 5 == 0 {
                let (allowed, denied) = std::mem::take(&mut unreported);
                proxy.report(MINUTE, allowed, denied).await;
            }
            while let Ok(Ok(Some(_))) = timeout_at(ends, proxy.read()).await {
                let assigned = proxy.assigned.values().next().map(|(assigned, _)| *assigned);
                if assigned != last {
                    (last, left) = (assigned, tokens_of(assigned));
                }
            }
            let spent = left.min(DEMAND);
            left -= spent;
            unreported = (unreported.0 + spent, unreported.1 + DEMAND - spent);
            passed.push(spent);
        }
        proxy.lose().await;
    }
    let worst = passed.windows(60).map(|minute| minute.iter().sum::<u64>()).max().unwrap();
    let (total, all) = (passed.iter().sum::<u64>(), 600 * passed.len() as u64 / 60);
    println!("{worst} of 600 in the worst minute, {total} of {all} in all");
    assert!(worst <= 600 * 5 / 4 && total * 4 > all, "{passed:?}");
}

/// The tokens of an assignment at its begin.
fn tokens_of(assigned: Option<Assigned>) -> u64 {
    match assigned {
        Some(Assigned::Tokens(tokens)) => tokens,
        Some(Assigned::Rate(tokens, _)) => tokens.into(),
        Some(Assigned::Allow) => u64::MAX,
        Some(Assigned::Deny | Assigned::Abandoned) | None => 0,
    }
}

/// A proxy between resets the stream of an Envoy that it has lost. An Envoy ends its stream, and resets it at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_stream_that_its_envoy_ends_returns_what_it_held() {
    for ended in [false, true] {
        let service = Service::start().await;
        let address = service.weir.server.grpc_address();
        let mut lost = RawProxy::report(address, &reports("edge", vec![usage(USER, 0, 60)])).await;
        until("it has tokens", || service.metric("assignments_total{assignment=\"tokens\"}") == 1.0).await;
        lost.reset(ended).await;
        until("the stream is gone", || service.metric("streams") == 0.0).await;
        let given = service.proxy().await.tokens(USER, 0, 60).await;
        assert_eq!(given > 38, ended, "the first one had 62 of 100, and the next one has {given}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn buckets_without_an_enforced_limit_are_allowed() {
    let service = Service::start().await;
    let mut proxy = service.proxy().await;
    let shade: Entries = &[("shade", "s")];
    for entries in [&[("free", "x")][..], &[("unknown", "x")], &[("user", "a"), ("more", "x")], shade] {
        proxy.report(entries, 4, 0).await;
        assert_eq!(proxy.until(entries, |_| true).await, (Assigned::Allow, 15), "{entries:?}");
    }
    assert_eq!(service.check(shade).await, (OK, 5), "shadow mode counts");
    proxy.report(&[("never", "x")], 0, 0).await;
    assert_eq!(proxy.until(&[("never", "x")], |_| true).await.0, Assigned::Deny);
    // Another domain has no limits.
    let mut other = service.proxy().await;
    other.send(reports("other", vec![usage(&[("never", "x")], 1, 0)])).await;
    assert_eq!(other.until(&[("never", "x")], |_| true).await.0, Assigned::Allow);
}

/// A bucket has no order. It counts on the key of the descriptor with the same entries.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_order_of_entries_does_not_matter() {
    let service = Service::start().await;
    let mut proxy = service.proxy().await;
    assert_eq!(proxy.tokens(&[("env", "prod"), ("tenant", "t")], 30, 0).await, 44);
    assert_eq!(service.check(&[("tenant", "t"), ("env", "prod")]).await, (OK, 69));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_of_a_second_is_a_rate() {
    let service = Service::start().await;
    let (mut one, mut other) = (service.proxy().await, service.proxy().await);
    let burst: Entries = &[("burst", "b")];
    one.report(burst, 0, 0).await;
    assert_eq!(one.until(burst, |_| true).await.0, Assigned::Rate(100, 1));
    other.report(burst, 0, 0).await;
    other.until(burst, |rate| rate == Assigned::Rate(50, 1)).await;
    one.until(burst, |rate| rate == Assigned::Rate(50, 1)).await;
    // Five seconds' use is charged in as many seconds, and does not use up one of them.
    one.report(burst, 250, 0).await;
    until("a second's part is charged", || service.metric("assignments_total{assignment=\"deny\"}") == 0.0)
        .await;
    assert_eq!(service.check(burst).await.0, OK);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn live_control_applies() {
    let service = Service::start_with(|settings| {
        let folder = settings.api.rls.files.as_ref().unwrap().parent().unwrap().to_owned();
        let url = format!("sqlite://{}/weir.db", folder.display());
        let database = Some(DatabaseOptions { url, read_url: None, region: "test-region".into() });
        Settings { database, migrate: true, schedule: Schedule::for_tests(), ..settings }
    })
    .await;
    let has_controls = || service.weir.server.services().control.book().edition().is_some();
    until("live control has been read", has_controls).await;
    let mut proxy = service.proxy().await;
    assert_eq!(proxy.tokens(USER, 0, 0).await, 6);
    let set = async |what: serde_json::Value| {
        let mut body = json!({"namespace": "users", "identifier": "a"});
        body.as_object_mut().unwrap().extend(what.as_object().unwrap().clone());
        put(&service.weir, body).await;
    };
    set(json!({"ban": true, "reason": "spam", "expires_in": "1h"})).await;
    let (_, seconds) = proxy.until(USER, |assigned| assigned == Assigned::Deny).await;
    assert!((3_500..=3_600).contains(&seconds), "as long as the ban: {seconds}");
    set(json!({"exempt": true})).await;
    proxy.until(USER, |assigned| assigned == Assigned::Allow).await;
    set(json!({"limit": 1_000})).await;
    proxy.report(USER, 50, 0).await;
    let is_more = |assigned| matches!(assigned, Assigned::Tokens(tokens) if tokens > 100);
    proxy.until(USER, is_more).await;
    assert_eq!(service.check(USER).await, (OK, 949));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_limits_are_assigned() {
    let service = Service::start().await;
    let mut proxy = service.proxy().await;
    assert_eq!(proxy.tokens(USER, 10, 0).await, 25);
    let file = service.folder.path().join("edge.yaml");
    std::fs::write(&file, LIMITS.replace("requests_per_unit: 100", "requests_per_unit: 10")).unwrap();
    proxy.until(USER, |assigned| assigned == Assigned::Deny).await;
    std::fs::write(&file, "domain: edge").unwrap();
    proxy.until(USER, |assigned| assigned == Assigned::Allow).await;
}

/// A changed limit leaves what was assigned reserved, and assigns nothing instead, until its Envoy has reported.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_assigned_stays_reserved_when_limits_change() {
    let service = Service::start().await;
    let file = service.folder.path().join("edge.yaml");
    let (mut proxy, mut witness) = (service.proxy().await, service.proxy().await);
    assert_eq!(proxy.tokens(USER, 0, 40).await, 62);
    // The same key under another limit, then another key.
    for (limit, name) in [(99, "users"), (100, "users"), (100, "people")] {
        let limits = LIMITS.replace(
            "name: users, unit: month, requests_per_unit: 100",
            &format!("name: {name}, unit: month, requests_per_unit: {limit}"),
        );
        let extra = format!("{name}{limit}");
        let entry = format!("  - key: {extra}\n    rate_limit: {{unit: month, requests_per_unit: 3}}\n");
        proxy.report(USER, 0, 40).await;
        std::fs::write(&file, limits + &entry).unwrap();
        // This bucket has a limit once the new limits are in force for all streams.
        let extra: Entries = &[(&extra, "x")];
        witness.report(extra, 0, 0).await;
        witness.until(extra, |assigned| matches!(assigned, Assigned::Tokens(_))).await;
        proxy.report(USER, 0, 40).await;
        service.check(USER).await;
    }
    let second = witness.tokens(USER, 0, 0).await;
    // Its last assignment is read before it reports what it has spent.
    proxy.report(&[("free", "x")], 0, 0).await;
    proxy.until(&[("free", "x")], |assigned| assigned == Assigned::Allow).await;
    assert_eq!(proxy.begun, 62, "no others while it has spent none that it reported");
    assert!((1..=38).contains(&second), "{second} of 38");
}

/// A bucket whose limit moves to where its caller may not count gets nothing more. What it spends of its last assignment is charged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_bucket_has_spent_is_charged_though_new_limits_refuse_it() {
    let ours = application("ours", "default", Some("users"));
    let tokens = tempfile::tempdir().unwrap();
    let file = write(tokens.path(), "tokens", &ours.entry);
    let service = Service::start_with(|mut settings| {
        settings.api.tokens_file = Some(file.clone());
        settings
    })
    .await;
    let mut proxy = Proxy::try_open(service.weir.connect().await, Some(&ours.token)).await.unwrap();
    // With the demand that it states, most of the limit is its own.
    assert_eq!(proxy.tokens(USER, 0, 60).await, 62);
    let limits = service.folder.path().join("edge.yaml");
    let reads =
        || service.weir.metric("weir_aggregator_files_read_total{files=\"rate_limits\",result=\"ok\"}");
    let change = async |text: &str| {
        let before = reads();
        std::fs::write(&limits, text).unwrap();
        until("the limits are read", || reads() > before).await;
    };
    change(&LIMITS.replace("name: users", "name: others")).await;
    until("the bucket is refused", || service.refused() == 1.0).await;
    proxy.report(USER, 60, 0).await;
    until("its report is refused", || service.refused() == 2.0).await;
    change(LIMITS).await;
    let left = proxy.tokens(USER, 0, 60).await;
    assert!((1..=40).contains(&left), "60 of 100 are charged: {left}");
    let explained = service.weir.server.services().explain(b"default", b"users", b"a");
    let cells = explained.iter().flat_map(|explained| &explained.cells);
    assert_eq!(cells.map(weir_core::region::CellState::total).sum::<u64>(), 60);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_buckets_get_nothing_and_harm_no_other() {
    let service = Service::start().await;
    let mut proxy = service.proxy().await;
    let long = "x".repeat(1_000);
    let keys: Vec<String> = (0..=MAX_DEPTH).map(|key| format!("k{key}")).collect();
    let many: Vec<(&str, &str)> = keys.iter().map(|key| (key.as_str(), "v")).collect();
    let mut not_text = usage(USER, 1, 0);
    not_text.bucket_id.as_mut().unwrap().bucket.insert("user".into(), b"\xff\xfe".to_vec());
    let bad = vec![
        Usage::default(),
        usage(&[], 1, 0),
        usage(&[("user", "")], 1, 0),
        usage(&[("", "a")], 1, 0),
        usage(&[("user", &long)], 1, 0),
        usage(&many, 1, 0),
        not_text,
    ];
    let count = bad.len();
    proxy.send(reports("edge", bad.into_iter().chain([usage(USER, u64::MAX, u64::MAX)]).collect())).await;
    assert_eq!(proxy.until(USER, |_| true).await.0, Assigned::Deny, "and a huge use is one");
    assert_eq!(service.refused(), count as f64);
    assert_eq!(proxy.assigned.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_messages_end_their_stream() {
    let service = Service::start().await;
    let long = "x".repeat(2_000);
    let huge = "x".repeat(MAX_MESSAGE_BYTES);
    let cases = [
        (vec![reports("", vec![usage(USER, 0, 0)])], Code::InvalidArgument),
        (vec![reports(&long, vec![])], Code::InvalidArgument),
        (vec![reports("edge", vec![]), reports("other", vec![])], Code::InvalidArgument),
        (vec![reports("edge", vec![usage(&[("user", &huge)], 0, 0)])], Code::OutOfRange),
        // No message at all.
        (vec![], Code::DeadlineExceeded),
    ];
    for (at, (messages, expected)) in cases.into_iter().enumerate() {
        let mut proxy = service.proxy().await;
        for message in messages {
            proxy.send(message).await;
        }
        assert_eq!(proxy.refused().await.code(), expected, "case {at}");
    }
    until("no stream is left", || service.metric("streams") == 0.0).await;
    let mut proxy = service.proxy().await;
    proxy.send(reports("edge", vec![])).await;
    proxy.send(reports("", vec![usage(USER, 0, 0)])).await;
    proxy.until(USER, |_| true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn buckets_beyond_the_bound_are_abandoned() {
    let service = Service::start().await;
    let mut proxy = service.proxy().await;
    let users: Vec<String> = (0..=MAX_BUCKETS_OF_STREAM).map(|user| format!("u{user}")).collect();
    let all = users.iter().map(|user| usage(&[("user", user)], 1, 0)).collect();
    proxy.send(reports("edge", all)).await;
    while proxy.assigned.len() <= MAX_BUCKETS_OF_STREAM {
        proxy.read().await.unwrap().unwrap();
    }
    let abandoned = proxy.assigned.values().filter(|(assigned, _)| *assigned == Assigned::Abandoned).count();
    assert_eq!((abandoned, service.refused()), (1, 1.0));
    assert_eq!(service.metric("buckets"), MAX_BUCKETS_OF_STREAM as f64);
    let mut other = service.proxy().await;
    assert!(other.tokens(&[("user", "another stream")], 0, 0).await > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_read_is_disconnected() {
    let service = Service::start().await;
    let uri = format!("http://{}", service.weir.server.grpc_address());
    let narrow = Endpoint::from_shared(uri).unwrap().initial_stream_window_size(1_000);
    let proxy = Proxy::open(narrow.connect().await.unwrap()).await;
    let users: Vec<String> = (0..MAX_BUCKETS_OF_STREAM).map(|user| format!("u{user}")).collect();
    let all = users.iter().map(|user| usage(&[("user", user)], 1, 0)).collect();
    proxy.send(reports("edge", all)).await;
    let dropped = || service.weir.metric("weir_aggregator_slow_streams_dropped_total") == 1.0;
    until("it is disconnected", dropped).await;
    assert_eq!((service.metric("streams"), service.metric("buckets")), (0.0, 0.0));
    let mut other = service.proxy().await;
    assert!(other.tokens(USER, 0, 0).await > 0, "another is served");
    drop(proxy);
}

fn application(name: &str, workspace: &str, namespaces: Option<&str>) -> NewToken {
    let namespaces = namespaces.map(|name| Listed::These([name.to_owned()].into()));
    NewToken::new(auth::Entry { namespaces, ..auth::Entry::application(name, workspace) }).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_need_a_token_and_lose_their_stream_with_it() {
    let ours = application("ours", "default", Some("users"));
    let theirs = application("theirs", "elsewhere", None);
    let bound = application("bound", "default", Some("tenants"));
    let entry = auth::Entry { max_cost: Some(100), ..auth::Entry::application("capped", "default") };
    let capped = NewToken::new(entry).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let all = format!("{}{}{}{}", ours.entry, theirs.entry, bound.entry, capped.entry);
    let file = write(folder.path(), "tokens", &all);
    let service = Service::start_with(|mut settings| {
        settings.api.tokens_file = Some(file.clone());
        Settings { token: Some(TOKEN.to_owned()), ..settings }
    })
    .await;
    for wrong in [None, Some("wrong")] {
        let status = Proxy::try_open(service.weir.connect().await, wrong).await.map(drop).unwrap_err();
        assert_eq!(status.code(), Code::Unauthenticated, "{wrong:?}");
    }
    let open = async |token: &str| Proxy::try_open(service.weir.connect().await, Some(token)).await.unwrap();
    for token in [TOKEN, &ours.token] {
        assert!(open(token).await.tokens(USER, 0, 0).await > 0);
    }
    let mut elsewhere = open(&theirs.token).await;
    elsewhere.report(USER, 0, 0).await;
    assert_eq!(elsewhere.refused().await.code(), Code::PermissionDenied);
    let mut capped = open(&capped.token).await;
    capped.report(USER, 5_000_000, 0).await;
    assert_eq!(
        capped.refused().await.code(),
        Code::PermissionDenied,
        "a report may have any number of requests"
    );
    assert_eq!(service.metric("reports_total{result=\"counted\"}"), 2.0);
    let mut bound = open(&bound.token).await;
    bound.send(reports("edge", vec![usage(USER, 1, 0), usage(&[("tenant", "t"), ("env", "e")], 1, 0)])).await;
    bound.until(&[("env", "e"), ("tenant", "t")], |_| true).await;
    assert_eq!((bound.assigned.len(), service.refused()), (1, 1.0), "its token names another namespace");
    let mut revoked = open(&ours.token).await;
    revoked.tokens(USER, 0, 0).await;
    std::fs::write(&file, theirs.entry).unwrap();
    let status = tokio::time::timeout(2 * DEADLINE, revoked.refused()).await.unwrap();
    assert_eq!(status.code(), Code::Unauthenticated);
}
