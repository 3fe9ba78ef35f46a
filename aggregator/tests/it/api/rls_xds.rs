//! Tests of limits from an xDS server: the stream, refusals, reconnects, TLS, and hostile servers.

use crate::support::rlqs::Proxy;
use crate::support::rls::{Entries, OK, OVER, call, codes, descriptor, remaining, request};
use crate::support::server::{Weir, settings, start_with, until};
use serde_json::{Value, json};
use std::path::PathBuf;
use tonic::transport::Channel;
use tonic::{Code, Status};
use weir_aggregator::api::ApiSettings;
use weir_aggregator::api::rls::wire::{RateLimitResponse, Unit};
use weir_aggregator::api::rls::{self, XdsOptions};
use weir_aggregator::server::Settings;
use weir_envoy::{XdsRequest, XdsResource, XdsServer, ports};

const TYPE: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";
const USER: Entries = &[("user", "a")];

struct Service {
    weir: Weir,
    channel: Channel,
}

fn options(url: String, token: Option<&str>) -> XdsOptions {
    XdsOptions::new(url, "a-node".into(), None, (None, None), token.map(str::to_owned)).unwrap()
}

impl Service {
    async fn start(options: XdsOptions) -> Service {
        let rls = rls::Settings { xds: Some(options), ..rls::Settings::default() };
        let api = ApiSettings { rls, ..ApiSettings::default() };
        let weir = start_with(Settings { api, ..settings() }).await;
        Service { channel: weir.connect().await, weir }
    }

    async fn of(server: &XdsServer) -> Service {
        Service::start(options(format!("http://127.0.0.1:{}", server.port()), Some("a-token"))).await
    }

    async fn check(&self) -> Result<RateLimitResponse, Status> {
        call(&self.channel, request(vec![descriptor(USER)])).await
    }

    fn read(&self, result: &str) -> f64 {
        self.weir
            .metric(&format!("weir_aggregator_files_read_total{{files=\"rate_limits\",result=\"{result}\"}}"))
    }

    fn stale(&self) -> f64 {
        self.weir.metric("weir_aggregator_files_stale{files=\"rate_limits\"}")
    }

    fn is_connected(&self) -> bool {
        self.weir.metric("weir_aggregator_rls_xds_connected") == 1.0
    }

    async fn has_read(&self, ok: f64, failed: f64) {
        until("the response is handled", || self.read("ok") == ok && self.read("failed") == failed).await;
    }

    fn part(&self) -> weir_aggregator::region::status::limits::LimitsStatus {
        self.weir.server.services().status.limits.lock().clone()
    }
}

/// A domain that allows each user so many in a month.
fn users(limit: u64) -> XdsResource {
    edge(json!({ "key": "user", "rate_limit": { "unit": "month", "requests_per_unit": limit } }))
}

fn edge(descriptor: Value) -> XdsResource {
    XdsResource::rate_limits(&json!({ "domain": "edge", "descriptors": [descriptor] }))
}

async fn asked(server: &XdsServer, number: usize) -> Vec<XdsRequest> {
    until("the aggregator sends its requests", || server.requests().len() >= number).await;
    server.requests()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_are_put_in_force_or_refused() {
    let server = XdsServer::start(None).await.unwrap();
    let service = Service::of(&server).await;
    let first = asked(&server, 1).await;
    let expected = XdsRequest {
        node: "a-node".into(),
        type_url: TYPE.into(),
        version: String::new(),
        nonce: String::new(),
        error: None,
        authorization: Some("Bearer a-token".into()),
    };
    assert_eq!(first, std::slice::from_ref(&expected));
    until("the stream is up", || service.is_connected()).await;
    let undecided = service.check().await.unwrap_err();
    assert_eq!(undecided.code(), Code::Unavailable, "{undecided}");
    // An assignment without limits would be: all pass.
    let mut early = Proxy::open(service.channel.clone()).await;
    early.report(USER, 0, 0).await;
    let refused = early.refused().await;
    assert_eq!(
        (refused.code(), refused.message()),
        (Code::Unavailable, "the xDS server has not sent limits yet")
    );
    let part = service.part();
    assert_eq!((part.source.as_str(), part.domains, part.connected), ("xds", None, Some(true)));

    // A control plane without policies.
    server.set("v0", vec![]);
    let acknowledged = XdsRequest { version: "v0".into(), nonce: "0".into(), ..expected.clone() };
    assert_eq!(asked(&server, 2).await[1], acknowledged);
    assert_eq!(codes(&service.check().await.unwrap()).0, OK, "there is no limit");
    assert_eq!(service.part().domains, Some(0));
    server.set("v1", vec![users(2)]);
    let acknowledged = XdsRequest { version: "v1".into(), nonce: "1".into(), ..expected.clone() };
    assert_eq!(asked(&server, 3).await[2], acknowledged);
    for left in [1, 0] {
        assert_eq!(remaining(&service.check().await.unwrap()), [left]);
    }
    assert_eq!(codes(&service.check().await.unwrap()).0, OVER);

    server.set("v2", vec![edge(json!({ "key": "user*" }))]);
    let refused = asked(&server, 4).await.remove(3);
    assert_eq!((refused.version.as_str(), refused.nonce.as_str()), ("v1", "2"), "{refused:?}");
    let reason = refused.error.unwrap();
    assert!(reason.starts_with("edge: descriptors[0].key: it has a wildcard"), "{reason}");
    service.has_read(2.0, 1.0).await;
    assert_eq!(service.stale(), 1.0);
    let part = service.part();
    assert_eq!((part.domains, part.version, part.error), (Some(1), Some("v1".into()), Some(reason)));
    assert_eq!(codes(&service.check().await.unwrap()).0, OVER, "the former limits stay in force");

    server.set("v3", vec![users(4)]);
    assert_eq!(
        asked(&server, 5).await[4],
        XdsRequest { version: "v3".into(), nonce: "3".into(), ..expected }
    );
    assert_eq!(service.stale(), 0.0);
    assert_eq!(remaining(&service.check().await.unwrap()), [1], "the count continues");
    let part = service.part();
    assert_eq!((part.version, part.error), (Some("v3".into()), None));

    let mut proxy = Proxy::open(service.channel.clone()).await;
    assert!((0..=1).contains(&proxy.tokens(USER, 0, 0).await), "the service of quotas has the same limits");

    // The last policy is removed, and one without limits is made.
    server.set("v4", vec![]);
    until("the limits are gone", || service.part().version.as_deref() == Some("v4")).await;
    assert_eq!(codes(&service.check().await.unwrap()).0, OK);
    let empty = XdsResource::rate_limits(&json!({ "domain": "edge", "descriptors": [] }));
    server.set("v5", vec![empty]);
    service.has_read(5.0, 1.0).await;
    for _ in 0..5 {
        assert_eq!(codes(&service.check().await.unwrap()).0, OK, "a domain without limits");
    }
}

/// Limits of one server have many authors.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_that_cannot_be_served_stops_no_other() {
    let limit = |unit: &str, limit: u64| json!({ "unit": unit, "requests_per_unit": limit });
    let descriptors = json!([
        { "key": "user", "rate_limit": limit("month", 2) },
        { "key": "yearly", "rate_limit": limit("year", 1) },
        { "key": "unknown", "rate_limit": limit("century", 5) },
        { "key": "shade", "shadow_mode": true, "rate_limit": limit("century", 5) },
    ]);
    let server = XdsServer::start(None).await.unwrap();
    let edge = XdsResource::rate_limits(&json!({ "domain": "edge", "descriptors": descriptors }));
    server.set("v1", vec![edge]);
    let service = Service::of(&server).await;
    assert_eq!(asked(&server, 2).await[1].error, None, "the server is acknowledged");
    let of = async |descriptors: &[Entries<'_>]| {
        call(&service.channel, request(descriptors.iter().map(|entries| descriptor(entries)).collect())).await
    };
    let (yearly, unknown, shade) = (&[("yearly", "a")], &[("unknown", "a")], &[("shade", "a")]);
    let first = of(&[yearly]).await.unwrap();
    assert_eq!(remaining(&first), [0]);
    let limit = first.statuses[0].current_limit.clone().unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit()), (1, Unit::Year));
    assert_eq!(codes(&of(&[yearly]).await.unwrap()).0, OVER);
    assert_eq!(codes(&of(&[shade]).await.unwrap()).0, OK, "a limit in shadow mode never denies");
    // The caller's rule for failures decides, while the other limit of the call counts and denies.
    for _ in 0..2 {
        let undecided = of(&[USER, unknown]).await.unwrap_err();
        assert_eq!(undecided.code(), Code::Unavailable);
        assert!(undecided.message().contains("descriptor 1 cannot be served"), "{undecided}");
    }
    assert_eq!(codes(&of(&[USER, unknown]).await.unwrap()), (OVER, vec![OVER, OK]));
    let mut proxy = Proxy::open(service.channel.clone()).await;
    assert_eq!(proxy.tokens(USER, 0, 0).await, 0);
    proxy.report(unknown, 0, 0).await;
    until("the bucket is refused", || {
        service.weir.metric("weir_aggregator_quota_reports_total{result=\"refused\"}") == 1.0
    })
    .await;
    assert_eq!(service.weir.metric("weir_aggregator_rls_limits_unserved"), 2.0);
    let part = service.part();
    assert_eq!((part.version.as_deref(), part.error.as_deref()), (Some("v1"), None));
    let reason = part.unserved.unwrap();
    assert!(reason.starts_with("edge: descriptors[2].rate_limit.unit: it is missing"), "{reason}");
    server.set("v2", vec![users(4)]);
    service.has_read(2.0, 0.0).await;
    assert_eq!(service.weir.metric("weir_aggregator_rls_limits_unserved"), 0.0);
    assert_eq!(service.part().unserved, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_stream_is_opened_again_and_limits_stay_meanwhile() {
    let port = ports::free().unwrap();
    let service = Service::start(options(format!("http://127.0.0.1:{port}"), None)).await;
    until("the failure is known", || service.part().stream_error.is_some()).await;
    assert!(!service.is_connected());
    let server = XdsServer::start_at(port, None).await.unwrap();
    server.set("1", vec![users(1)]);
    service.has_read(1.0, 0.0).await;
    assert_eq!(codes(&service.check().await.unwrap()).0, OK);
    server.end_streams();
    until("a second stream begins", || {
        server.requests().iter().filter(|one| one.nonce.is_empty()).count() == 2
    })
    .await;
    let second = server.requests().into_iter().rfind(|one| one.nonce.is_empty()).unwrap();
    assert_eq!(second.version, "", "a server that restarted sends everything");
    service.has_read(2.0, 0.0).await;
    drop(server);
    until("the loss is noticed", || !service.is_connected()).await;
    assert_eq!(codes(&service.check().await.unwrap()).0, OVER, "the former limits stay in force");
    // The restarted server gives the same version to other limits.
    let server = XdsServer::start_at(port, None).await.unwrap();
    server.set("1", vec![users(3)]);
    service.has_read(3.0, 0.0).await;
    assert_eq!(remaining(&service.check().await.unwrap()), [1]);
    assert!(service.part().stream_error.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hostile_server_costs_only_its_updates() {
    let server = XdsServer::start(None).await.unwrap();
    server.set("1", vec![users(2)]);
    let service = Service::of(&server).await;
    service.has_read(1.0, 0.0).await;
    let raw = |type_url: &str, value: Vec<u8>| XdsResource { type_url: type_url.into(), value };
    let deep = (0..120).fold(json!({ "key": "k" }), |inner, _| json!({ "key": "k", "descriptors": [inner] }));
    let many: Vec<Value> = (0..2_000).map(|_| json!({ "value": "v" })).collect();
    let many = XdsResource::rate_limits(&json!({ "domain": "edge", "descriptors": many }));
    // Empty descriptors of two bytes each, far below the bound of a response.
    let crowd = raw(TYPE, [0x1a, 0].repeat(rls::xds::MAX_MESSAGES));
    assert!(crowd.value.len() < rls::xds::MAX_RESPONSE_BYTES);
    let cases = [
        (vec![raw("type.googleapis.com/other", vec![])], "the type is"),
        (vec![raw(TYPE, vec![0xff; 100])], "no RateLimitConfig"),
        (vec![edge(deep)], "resource 0 is no RateLimitConfig"),
        (vec![many], "key: it is missing"),
        (vec![crowd], "more than 200000 resources"),
        (vec![users(1), users(1)], "occurs twice"),
    ];
    for (at, (resources, expected)) in cases.into_iter().enumerate() {
        server.set("2", resources);
        service.has_read(1.0, (at + 1) as f64).await;
        let error = asked(&server, at + 3).await.pop().unwrap().error.unwrap();
        assert!(error.contains(expected) && error.len() <= 5_000, "{error}");
    }
    server.set_of_type("type.googleapis.com/other", "2", vec![]);
    service.has_read(1.0, 7.0).await;
    // A response above the bound ends the stream, and so does each later one.
    server.set("3", vec![raw(TYPE, vec![0; rls::xds::MAX_RESPONSE_BYTES + 1])]);
    until("the stream ends", || service.part().stream_error.is_some()).await;
    assert_eq!(remaining(&service.check().await.unwrap()), [1], "the first limits are in force");
    server.set("4", vec![users(9)]);
    service.has_read(2.0, 7.0).await;
    assert_eq!(remaining(&service.check().await.unwrap()), [7]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_may_require_a_client_certificate() {
    let authority = crate::support::tls::Authority::new();
    let folder = tempfile::tempdir().unwrap();
    let (own, client) = (authority.sign("localhost"), authority.sign("aggregator"));
    let identity = (own.certificate, own.key);
    let server = XdsServer::start(Some((identity, authority.pem()))).await.unwrap();
    server.set("1", vec![users(1)]);
    let file = |name: &str, text: &str| -> Option<PathBuf> {
        std::fs::write(folder.path().join(name), text).unwrap();
        Some(folder.path().join(name))
    };
    let files = (file("client.pem", &client.certificate), file("client.key", &client.key));
    let url = format!("https://localhost:{}", server.port());
    let with = |identity| {
        XdsOptions::new(url.clone(), "n".into(), file("ca.pem", &authority.pem()), identity, None).unwrap()
    };
    let service = Service::start(with(files.clone())).await;
    service.has_read(1.0, 0.0).await;
    let stranger = Service::start(with((None, None))).await;
    until("it is refused", || stranger.part().stream_error.is_some()).await;
    assert_eq!(stranger.read("ok"), 0.0);
    // Files are read for each stream: a certificate that was missing is used once it is there.
    let gone = folder.path().join("later.pem");
    let later = Service::start(with((Some(gone.clone()), files.1))).await;
    until("the file is missed", || {
        later.part().stream_error.is_some_and(|error| error.contains("later.pem"))
    })
    .await;
    std::fs::write(&gone, &client.certificate).unwrap();
    later.has_read(1.0, 0.0).await;
}
