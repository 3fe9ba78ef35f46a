//! Tests of Envoy's rate-limit service over a real connection: answers and errors.

use crate::support::rls::{Entries, METHOD, OK, OVER, codes, descriptor, remaining, request};
use crate::support::server::{DEADLINE, TOKEN, Weir, settings, start_with, until};
use std::path::Path;
use std::time::{Duration, Instant};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Code as GrpcCode, Request, Status};
use tonic_prost::ProstCodec;
use weir_aggregator::api::rls::call::{MAX_DESCRIPTORS, MAX_ENTRIES};
use weir_aggregator::api::rls::service::{MAX_CALL, MAX_REQUEST_BYTES};
use weir_aggregator::api::rls::wire::{
    Descriptor, Entry, Override, RateLimitRequest, RateLimitResponse, Unit,
};
use weir_aggregator::api::{ApiSettings, Failure, LimitCheck, rls};
use weir_aggregator::auth::{self, NewToken};
use weir_aggregator::server::{ServeError, Server, Settings};
use weir_core::model::exact::Algorithm;

const LIMITS: &str = "
domain: edge
descriptors:
  - key: user
    rate_limit: {name: users, unit: month, requests_per_unit: 3}
  - key: path
    value: /login
    rate_limit: {unit: month, requests_per_unit: 5}
  - key: shade
    shadow_mode: true
    rate_limit: {unit: month, requests_per_unit: 2}
  - key: free
    rate_limit: {unlimited: true}
  - key: banned
    rate_limit: {unit: month, requests_per_unit: 0}
  - key: several
    rate_limit:
      - {name: weekly, unit: week, requests_per_unit: 2}
      - {unit: month, requests_per_unit: 3}
  - key: pool
    quota_mode: true
    rate_limit: [{unit: month, requests_per_unit: 5}, {unit: week, requests_per_unit: 1}]
  - key: veiled
    shadow_mode: true
    rate_limit: [{unit: month, requests_per_unit: 5}, {unit: week, requests_per_unit: 1}]
  - key: vip
    rate_limit: {unit: month, requests_per_unit: 4, replaces: [{name: users}]}
";

/// A server whose limits are in a folder; the folder is deleted with this value.
struct Service {
    weir: Weir,
    folder: tempfile::TempDir,
    channel: Channel,
}

impl Service {
    async fn start(token: Option<&str>) -> Service {
        Service::start_with(token, None).await
    }

    /// Starts with the content of a tokens file.
    async fn start_with(token: Option<&str>, tokens: Option<&str>) -> Service {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("edge.yaml"), LIMITS).unwrap();
        let mut settings = Settings { token: token.map(str::to_owned), ..with_limits(folder.path()) };
        settings.api.tokens_file = tokens.map(|text| {
            let file = folder.path().join(".tokens");
            std::fs::write(&file, text).unwrap();
            file
        });
        let weir = start_with(settings).await;
        let channel = weir.connect().await;
        Service { weir, folder, channel }
    }

    async fn send(&self, request: Request<RateLimitRequest>) -> Result<RateLimitResponse, Status> {
        crate::support::rls::send(&self.channel, request).await
    }

    /// The result of a call whose message neither begins nor ends.
    async fn send_no_message(&self, authorization: Option<&str>) -> Status {
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await.unwrap();
        let mut request = Request::new(tokio_stream::pending::<RateLimitRequest>());
        if let Some(authorization) = authorization {
            request.metadata_mut().insert("authorization", authorization.parse().unwrap());
        }
        let codec = ProstCodec::<RateLimitRequest, RateLimitResponse>::default();
        let call = grpc.client_streaming(request, PathAndQuery::from_static(METHOD), codec);
        tokio::time::timeout(DEADLINE, call).await.unwrap().map(drop).unwrap_err()
    }

    fn decisions(&self, result: &str) -> f64 {
        self.weir.metric(&format!("weir_aggregator_api_decisions_total{{api=\"rls\",result=\"{result}\"}}"))
    }

    async fn call(&self, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        crate::support::rls::call(&self.channel, request).await
    }

    async fn check(&self, descriptors: &[Entries<'_>]) -> RateLimitResponse {
        let descriptors = descriptors.iter().map(|entries| descriptor(entries)).collect();
        self.call(request(descriptors)).await.unwrap()
    }
}

fn with_limits(path: &Path) -> Settings {
    let rls = rls::Settings { files: Some(path.to_owned()), ..rls::Settings::default() };
    let api = ApiSettings { rls, ..ApiSettings::default() };
    Settings { api, ..settings() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_is_held_and_shown() {
    let service = Service::start(None).await;
    for left in [2, 1, 0] {
        let response = service.check(&[&[("user", "a")]]).await;
        assert_eq!((codes(&response), remaining(&response)), ((OK, vec![OK]), vec![left]));
        assert_eq!(response.response_headers_to_add, []);
        let limit = response.statuses[0].current_limit.clone().unwrap();
        assert_eq!((limit.requests_per_unit, limit.unit(), limit.name.as_str()), (3, Unit::Month, "users"));
        let reset = response.statuses[0].duration_until_reset.unwrap();
        assert!((1..=30 * 24 * 3_600).contains(&reset.seconds) && reset.nanos == 0, "{reset:?}");
    }
    let response = service.check(&[&[("user", "a")]]).await;
    assert_eq!(codes(&response), (OVER, vec![OVER]));
    let [header] = &response.response_headers_to_add[..] else { panic!("one header") };
    assert_eq!(header.key, "retry-after");
    let wait: i64 = header.value.parse().unwrap();
    assert!((1..=60 * 24 * 3_600).contains(&wait), "{wait}");
    let reset = response.statuses[0].duration_until_reset.unwrap();
    assert!(reset.seconds >= wait, "a client that waits for the reset of {} s passes", reset.seconds);
    assert_eq!(
        codes(&service.check(&[&[("user", "b")]]).await),
        (OK, vec![OK]),
        "another user must have a separate count"
    );
    assert_eq!(service.weir.metric("weir_aggregator_rls_seconds_count"), 5.0);
}

/// A check of the second limit of `several`.
fn of_the_month(identifier: &str, cost: u64) -> LimitCheck {
    LimitCheck {
        algorithm: Algorithm::Window,
        workspace: b"default".to_vec(),
        namespace: br"rls|edge|several|\-".to_vec(),
        identifier: identifier.as_bytes().to_vec(),
        duration_ms: 30 * 24 * 3_600_000,
        hard_limit: false,
        limit: 3,
        cost,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_limits_of_a_descriptor_hold_together_and_show_the_one_that_ends_first() {
    let service = Service::start(None).await;
    let several: Entries = &[("several", "a")];
    for left in [1, 0] {
        let response = service.check(&[several]).await;
        assert_eq!((codes(&response), remaining(&response)), ((OK, vec![OK]), vec![left]));
        assert_eq!(response.statuses[0].current_limit.as_ref().unwrap().name, "weekly");
    }
    let response = service.check(&[several, &[("user", "a")]]).await;
    assert_eq!(codes(&response), (OVER, vec![OVER, OK]), "one status for each descriptor");
    let limit = response.statuses[0].current_limit.clone().unwrap();
    assert_eq!((limit.name.as_str(), limit.unit(), limit.requests_per_unit), ("weekly", Unit::Week, 2));
    let month = service.weir.server.embedded().decide(&[of_the_month("a", 0)], Failure::Deny, DEADLINE).await;
    assert_eq!(month.results[0].remaining, 1, "a denied call charges none of them");
    assert_eq!(remaining(&service.check(&[&[("user", "a")]]).await), [2]);
    let counted = |what: &str| {
        let name = format!("ratelimit_service_rate_limit_{what}{{domain=\"edge\",key1=\"several\"}}");
        service.weir.metric(&name)
    };
    assert_eq!((counted("total_hits"), counted("over_limit")), (3.0, 1.0), "each call counts once");
    // Two calls of another week leave the month used up.
    let other: Entries = &[("several", "b")];
    assert!(service.weir.server.embedded().charge_spent(&of_the_month("b", 3)));
    let response = service.check(&[other]).await;
    assert_eq!(codes(&response), (OVER, vec![OVER]));
    assert_eq!(response.statuses[0].current_limit.as_ref().unwrap().unit(), Unit::Month);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_of_several_limits_is_over_once_one_of_them_is() {
    let service = Service::start(None).await;
    let (pool, veiled): (Entries, Entries) = (&[("pool", "a")], &[("veiled", "a")]);
    assert_eq!(codes(&service.check(&[pool]).await), (OK, vec![OK]));
    let response = service.check(&[pool]).await;
    assert_eq!(codes(&response), (OVER, vec![OVER]));
    assert_eq!(response.statuses[0].current_limit.as_ref().unwrap().unit(), Unit::Week);
    for _ in 0..2 {
        assert_eq!(codes(&service.check(&[veiled]).await), (OK, vec![OK]));
    }
    assert_eq!(service.decisions("shadow_denied"), 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_descriptors_are_charged_or_none() {
    let service = Service::start(None).await;
    let login: Entries = &[("path", "/login")];
    let (user, other): (Entries, Entries) = (&[("user", "a")], &[("user", "b")]);
    for left in [2, 1, 0] {
        let response = service.check(&[user, login]).await;
        assert_eq!(codes(&response), (OK, vec![OK, OK]));
        assert_eq!(remaining(&response), [left, left + 2]);
    }
    let response = service.check(&[login, user]).await;
    assert_eq!((codes(&response), remaining(&response)), ((OVER, vec![OK, OVER]), vec![2, 0]));
    assert_eq!(
        remaining(&service.check(&[login, other]).await),
        [1, 2],
        "the refused call was charged nothing"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_without_a_limit_pass() {
    let service = Service::start(None).await;
    let response =
        service.check(&[&[("free", "x")], &[("unknown", "x")], &[("user", "a"), ("more", "")]]).await;
    assert_eq!(codes(&response), (OK, vec![OK; 3]));
    assert_eq!(remaining(&response), [u32::MAX, 0, 0]);
    assert!(response.statuses.iter().all(|status| status.current_limit.is_none()));
    let elsewhere =
        RateLimitRequest { domain: "other".into(), ..request(vec![descriptor(&[("banned", "x")])]) };
    assert_eq!(codes(&service.call(elsewhere).await.unwrap()), (OK, vec![OK]));
    let never = service.check(&[&[("banned", "x")]]).await;
    assert_eq!(codes(&never), (OVER, vec![OVER]));
    assert_eq!(never.response_headers_to_add, [], "a request that never passes has no reset time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hits_overrides_and_replacements() {
    let service = Service::start(None).await;
    let user = descriptor(&[("user", "a")]);
    let hits = |hits_addend| RateLimitRequest { hits_addend, ..request(vec![user.clone()]) };
    assert_eq!(remaining(&service.call(hits(2)).await.unwrap()), [1]);
    assert_eq!(codes(&service.call(hits(2)).await.unwrap()), (OVER, vec![OVER]));
    let own = Descriptor { hits_addend: Some(0), ..user.clone() };
    let response = service.call(RateLimitRequest { hits_addend: 9, ..request(vec![own]) }).await.unwrap();
    assert_eq!(
        (codes(&response), remaining(&response)),
        ((OK, vec![OK]), vec![1]),
        "a cost of 0 must charge nothing"
    );
    // A limit in the request, on the same count.
    let limit = Some(Override { requests_per_unit: 10, unit: Unit::Month as i32 });
    let mut response = service.call(request(vec![Descriptor { limit, ..user.clone() }])).await.unwrap();
    assert_eq!(remaining(&response), [7]);
    let shown = response.statuses.remove(0).current_limit.unwrap();
    assert_eq!((shown.requests_per_unit, shown.name.as_str()), (10, ""));
    // A limit for a descriptor that is not configured counts too.
    let unknown =
        Descriptor { limit: Some(Override { requests_per_unit: 1, unit: 4 }), ..descriptor(&[("new", "x")]) };
    let passed = service.call(request(vec![unknown.clone()])).await.unwrap();
    let refused = service.call(request(vec![unknown])).await.unwrap();
    assert_eq!((passed.overall_code(), refused.overall_code()), (OK, OVER));
    // The limit of 3 is used up, and does not apply because the request's limit replaces it.
    for left in [3, 2, 1, 0] {
        let response = service.check(&[&[("user", "a")], &[("vip", "a")]]).await;
        assert_eq!((codes(&response), remaining(&response)), ((OK, vec![OK, OK]), vec![0, left]));
    }
    assert_eq!(codes(&service.check(&[&[("user", "a")], &[("vip", "a")]]).await), (OVER, vec![OK, OVER]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_in_shadow_mode_decides_and_never_refuses() {
    let service = Service::start(None).await;
    let (shade, user): (Entries, Entries) = (&[("shade", "s")], &[("user", "a")]);
    for left in [1, 0] {
        let response = service.check(&[shade]).await;
        assert_eq!((codes(&response), remaining(&response)), ((OK, vec![OK]), vec![left]));
    }
    let response = service.check(&[shade, user]).await;
    assert_eq!((codes(&response), remaining(&response)), ((OK, vec![OK, OK]), vec![0, 2]));
    let results = ["allowed", "shadow_denied", "denied"].map(|result| service.decisions(result));
    assert_eq!(results, [2.0, 1.0, 0.0]);
    // A denied request does not charge shadow limits.
    let other: Entries = &[("shade", "t")];
    let response = service.check(&[&[("banned", "x")], other]).await;
    assert_eq!((codes(&response), remaining(&response)), ((OVER, vec![OVER, OK]), vec![0, 2]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_or_oversized_requests_are_errors() {
    let service = Service::start(None).await;
    let user = || descriptor(&[("user", "a")]);
    let long = "x".repeat(2_000);
    let huge = "x".repeat(MAX_REQUEST_BYTES);
    let (bad, full) = (GrpcCode::InvalidArgument, GrpcCode::OutOfRange);
    let cases = [
        (RateLimitRequest { domain: String::new(), ..request(vec![user()]) }, bad),
        (request(vec![]), bad),
        (request(vec![user(); MAX_DESCRIPTORS + 1]), bad),
        (request(vec![user(), descriptor(&[])]), bad),
        (request(vec![descriptor(&[("user", "a"); MAX_ENTRIES + 1])]), bad),
        (request(vec![descriptor(&[("", "a")])]), bad),
        (request(vec![descriptor(&[(&long, "a")])]), bad),
        (request(vec![descriptor(&[("user", &huge)])]), full),
        (
            request(vec![Descriptor { limit: Some(Override { requests_per_unit: 1, unit: 0 }), ..user() }]),
            bad,
        ),
        (
            request(vec![Descriptor { limit: Some(Override { requests_per_unit: 1, unit: 8 }), ..user() }]),
            bad,
        ),
        (
            request(vec![Descriptor { limit: Some(Override { requests_per_unit: 1, unit: 99 }), ..user() }]),
            bad,
        ),
    ];
    for (at, (request, expected)) in cases.into_iter().enumerate() {
        let status = service.call(request).await.unwrap_err();
        assert_eq!(status.code(), expected, "case {at}: {status}");
        assert_eq!(service.decisions("refused"), (at + 1) as f64, "each is counted");
    }
    let users: Vec<String> = (1..MAX_DESCRIPTORS).map(|at| format!("u{at}")).collect();
    let others = users.iter().map(|user| descriptor(&[("user", user)]));
    let most = request(std::iter::once(user()).chain(others).collect());
    assert_eq!(
        remaining(&service.call(most).await.unwrap()),
        [2; MAX_DESCRIPTORS],
        "and nothing was charged before"
    );
}

/// A long or invalid value must not evade the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_value_is_limited_as_any_other() {
    let service = Service::start(None).await;
    let long = vec![b'x'; 200 * 1024];
    let odd = b"\xff\xfe no text \xc3".to_vec();
    for value in [long, odd] {
        let entries = vec![Entry { key: "user".into(), value: value.clone() }];
        let message = request(vec![Descriptor { entries, ..Descriptor::default() }]);
        for left in [2, 1, 0] {
            let response = service.call(message.clone()).await.unwrap();
            assert_eq!((codes(&response), remaining(&response)), ((OK, vec![OK]), vec![left]));
        }
        assert_eq!(codes(&service.call(message).await.unwrap()), (OVER, vec![OVER]));
        let entries = vec![Entry { key: "user".into(), value: [&value[..], b"y"].concat() }];
        let other = request(vec![Descriptor { entries, ..Descriptor::default() }]);
        assert_eq!(
            remaining(&service.call(other).await.unwrap()),
            [2],
            "another value must have a separate count"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_without_a_message_is_cut() {
    let service = Service::start(Some(TOKEN)).await;
    let began = std::time::Instant::now();
    assert_eq!(service.send_no_message(None).await.code(), GrpcCode::Unauthenticated);
    assert!(began.elapsed() < MAX_CALL, "the caller must be authenticated before the message is read");
    let unfinished = service.send_no_message(Some(&format!("Bearer {TOKEN}"))).await;
    assert_eq!(unfinished.code(), GrpcCode::DeadlineExceeded);
    assert_eq!(service.decisions("refused"), 2.0);
}

/// All calls of a connection run in its task.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_waits_delays_no_other_of_its_connection() {
    let service = Service::start(None).await;
    // The embedded limiter joins its region with the first call.
    service.check(&[&[("free", "x")]]).await;
    let others = async {
        let began = Instant::now();
        for _ in 0..100 {
            assert_eq!(codes(&service.check(&[&[("free", "x")]]).await).0, OK);
        }
        began.elapsed()
    };
    let (waits, took) = tokio::join!(service.send_no_message(None), others);
    assert_eq!(waits.code(), GrpcCode::DeadlineExceeded);
    assert!(took < MAX_CALL, "{took:?}");
}

fn token(name: &str, workspace: &str) -> NewToken {
    let namespaces = Some(auth::Listed::All);
    NewToken::new(auth::Entry { namespaces, ..auth::Entry::application(name, workspace) }).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_of_the_file_open_their_workspace() {
    let (ours, theirs) = (token("ours", "default"), token("theirs", "elsewhere"));
    let file = format!("{}{}", ours.entry, theirs.entry);
    let unlisted = token("unlisted", "default").token;
    for token in [None, Some(TOKEN)] {
        let service = Service::start_with(token, Some(&file)).await;
        let call = |token: Option<&str>| {
            let mut request = Request::new(request(vec![descriptor(&[("user", "a")])]));
            if let Some(token) = token {
                request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
            }
            request.set_timeout(Duration::from_secs(5));
            service.send(request)
        };
        let (unknown, other) = (GrpcCode::Unauthenticated, GrpcCode::PermissionDenied);
        for (shown, expected) in [(None, unknown), (Some(&unlisted), unknown), (Some(&theirs.token), other)] {
            assert_eq!(call(shown.map(String::as_str)).await.unwrap_err().code(), expected, "{token:?}");
        }
        assert_eq!(remaining(&call(Some(&ours.token)).await.unwrap()), [2], "{token:?}");
        match token {
            Some(token) => assert_eq!(
                remaining(&call(Some(token)).await.unwrap()),
                [1],
                "either credential must be accepted"
            ),
            None => assert_eq!(call(Some(TOKEN)).await.unwrap_err().code(), unknown),
        }
    }
}

/// A namespace that a filter's rule counts needs a token that lists it, and a token limits the cost of one call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_are_bound_to_namespaces_and_costs() {
    let [plain, named] =
        ["plain", "named"].map(|name| NewToken::new(auth::Entry::application(name, "default")).unwrap());
    let file = format!("{}{}  namespaces: [users]\n  max_cost: 1\n", plain.entry, named.entry);
    let service = Service::start_with(None, Some(&file)).await;
    let call = |token: &NewToken, entry: (&str, &str), hits: u32| {
        let mut message = request(vec![descriptor(&[entry])]);
        message.hits_addend = hits;
        let mut request = Request::new(message);
        request.metadata_mut().insert("authorization", format!("Bearer {}", token.token).parse().unwrap());
        request.set_timeout(Duration::from_secs(5));
        service.send(request)
    };
    let (user, path) = (("user", "a"), ("path", "/login"));
    // Also at once after the start, when no filter has sent its rules.
    let refused = call(&plain, user, 1).await.unwrap_err();
    assert_eq!(refused.code(), GrpcCode::PermissionDenied);
    assert!(refused.message().contains("\"users\""), "{refused:?}");
    assert_eq!(remaining(&call(&plain, path, 1).await.unwrap()), [4], "a limit without a name");
    let refused = call(&named, user, 2).await.unwrap_err();
    assert_eq!(refused.code(), GrpcCode::PermissionDenied);
    assert!(refused.message().contains("at most 1"), "{refused:?}");
    call(&named, user, 1).await.unwrap();
    let mut twice = Request::new(request(vec![descriptor(&[user]), descriptor(&[user])]));
    twice.metadata_mut().insert("authorization", format!("Bearer {}", named.token).parse().unwrap());
    let refused = service.send(twice).await.unwrap_err();
    assert_eq!(refused.code(), GrpcCode::PermissionDenied, "descriptors of one limit and user add up");
    let refused = call(&named, path, 1).await.unwrap_err();
    assert_eq!(refused.code(), GrpcCode::PermissionDenied, "its entry names another namespace");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_is_required() {
    let service = Service::start(Some(TOKEN)).await;
    let call = |authorization: Option<String>| {
        let mut request = Request::new(request(vec![descriptor(&[("user", "a")])]));
        if let Some(authorization) = authorization {
            request.metadata_mut().insert("authorization", authorization.parse().unwrap());
        }
        service.send(request)
    };
    for wrong in [None, Some("Bearer wrong".to_owned()), Some(TOKEN.to_owned())] {
        let status = call(wrong.clone()).await.unwrap_err();
        assert_eq!(status.code(), GrpcCode::Unauthenticated, "{wrong:?}");
    }
    let response = call(Some(format!("Bearer {TOKEN}"))).await.unwrap();
    assert_eq!(remaining(&response), [2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_are_read_again_when_they_change() {
    let service = Service::start(None).await;
    let file = service.folder.path().join("edge.yaml");
    let metric = |name: &str| service.weir.metric(&format!("weir_aggregator_files_{name}"));
    let read = |result| metric(&format!("read_total{{files=\"rate_limits\",result=\"{result}\"}}"));
    let stale = || metric("stale{files=\"rate_limits\"}");
    let user: Entries = &[("user", "a")];
    assert_eq!(remaining(&service.check(&[user]).await), [2]);
    std::fs::write(&file, "domain: [").unwrap();
    until("the broken file is noticed", || read("failed") == 1.0).await;
    assert_eq!(remaining(&service.check(&[user]).await), [1], "the previous limits must stay in force");
    assert_eq!(stale(), 1.0);
    std::fs::write(&file, LIMITS.replace("requests_per_unit: 3", "requests_per_unit: 9")).unwrap();
    until("the new file is in force", || read("ok") == 1.0).await;
    assert_eq!((stale(), read("failed")), (0.0, 1.0));
    assert_eq!(remaining(&service.check(&[user]).await), [6], "the count must continue");
}

#[tokio::test]
async fn invalid_limits_prevent_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.yaml");
    std::fs::write(
        &file,
        "domain: d\ndescriptors: [{key: k, rate_limit: {unit: century, requests_per_unit: 1}}]",
    )
    .unwrap();
    let empty = folder.path().join("empty.yaml");
    std::fs::write(&empty, "").unwrap();
    for path in [file.as_path(), &empty, folder.path(), &folder.path().join("none")] {
        let started = Server::start(
            with_limits(path),
            std::sync::Arc::new(weir_aggregator::telemetry::clock::SystemClock),
        )
        .await;
        let Err(error @ ServeError::RateLimits(_)) = started else {
            panic!("the server must not start with {}", path.display())
        };
        assert!(error.to_string().contains("--rls-config"), "{error}");
    }
}
