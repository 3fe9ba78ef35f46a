//! Tests of an aggregator that starts without its database: what live control could deny does not pass before it was read.

use crate::support::http::{Client, put, write};
use crate::support::rlqs::{self, reports, usage};
use crate::support::rls::{OK, descriptor, request, send};
use crate::support::server::{Peer, Weir, hello_frame, settings, start_with};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tonic::transport::Channel;
use tonic::{Code, Request};
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use weir_aggregator::api::{ApiSettings, rls};
use weir_aggregator::database::DatabaseOptions;
use weir_aggregator::server::Settings;
use weir_core::model::schedule::Schedule;
use weir_envoy::{Proxy, http, ports};

use crate::support::database::Store;

const LIMITS: &str = "
domain: edge
descriptors:
  - key: user
    rate_limit: {name: n, unit: month, requests_per_unit: 2}
";
const READ: &str = "weir_aggregator_controls_read";

fn of(region: &str, url: &str) -> Settings {
    let database = Some(DatabaseOptions { url: url.to_owned(), read_url: None, region: region.to_owned() });
    let schedule = Schedule { restore_stall_ms: 100, ..Schedule::for_tests() };
    Settings { region: region.into(), database, migrate: true, schedule, ..settings() }
}

/// A check of an identifier over HTTP: whether it may continue, and whether that was decided.
async fn check(weir: &Weir, identifier: &str, timeout: &str, on_failure: &str) -> (Value, Value) {
    let body = json!({
        "namespace": "n", "identifier": identifier, "limit": 2, "duration": "1h", "timeout": timeout, "on_failure": on_failure,
    });
    let answer = Client::connect(weir).await.post("/v1/check", &body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    (answer.body["allowed"].clone(), answer.body["decided"].clone())
}

async fn is_serving(channel: &Channel, service: &str) -> bool {
    let request = HealthCheckRequest { service: service.to_owned() };
    let answer = HealthClient::new(channel.clone()).check(request).await.unwrap();
    answer.into_inner().status == ServingStatus::Serving as i32
}

async fn readiness(weir: &Weir) -> (u16, String) {
    let ready = http::Request::get("/readyz");
    let answer = http::send(weir.server.admin_address(), ready).await.unwrap();
    (answer.status, String::from_utf8(answer.body.to_vec()).unwrap())
}

/// What the status states that the aggregator waits for.
fn waits_for(weir: &Weir) -> Value {
    let parts = weir_aggregator::admin::parts::parts(weir.server.services());
    serde_json::to_value(parts).unwrap()["aggregator"]["waits_for"].clone()
}

/// The code of a call of the rate-limit service, which waits as long as the service does, or for some seconds.
async fn rate_limit(channel: &Channel, user: &str, waits: bool) -> Code {
    let mut call = Request::new(request(vec![descriptor(&[("user", user)])]));
    if waits {
        call.set_timeout(Duration::from_secs(10));
    }
    send(channel, call).await.err().map_or(Code::Ok, |status| status.code())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_is_decided_before_live_control_was_read() {
    let store = Store::mariadb().await;
    let scene = store.fresh().await;
    let here = start_with(of("here", &scene.url)).await;
    let ban =
        json!({"namespace": "n", "identifier": "mallory", "ban": true, "reason": "spam", "expires_in": "1h"});
    put(&here, ban).await;
    let port = store.server.as_ref().unwrap().port();
    let proxy = Proxy::start(ports::local(port)).await.unwrap();
    proxy.refuse().await.unwrap();
    let url = scene.url.replace(&format!(":{port}/"), &format!(":{}/", proxy.port()));
    let folder = tempfile::tempdir().unwrap();
    let files = Some(write(folder.path(), "edge.yaml", LIMITS));
    let api = ApiSettings { rls: rls::Settings { files, ..rls::Settings::default() }, ..settings().api };
    let blind = start_with(Settings { api, ..of("there", &url) }).await;
    let channel = blind.connect().await;

    for identifier in ["mallory", "bob"] {
        for (on_failure, allowed) in [("deny", false), ("allow", true)] {
            let began = Instant::now();
            let answer = check(&blind, identifier, "100ms", on_failure).await;
            assert_eq!(answer, (json!(allowed), json!(false)), "{identifier} {on_failure}");
            assert!(began.elapsed() >= Duration::from_millis(100), "it waits within its time");
        }
        assert_eq!(rate_limit(&channel, identifier, false).await, Code::Unavailable, "{identifier}");
    }
    // A call without a limit has nothing that live control could change.
    let unlimited = send(&channel, Request::new(request(vec![descriptor(&[("other", "mallory")])]))).await;
    assert_eq!(unlimited.unwrap().overall_code(), OK);
    let mut quotas = rlqs::Proxy::open(channel.clone()).await;
    quotas.send(reports("edge", vec![usage(&[("user", "mallory")], 1, 0)])).await;
    assert_eq!(quotas.refused().await.code(), Code::Unavailable);
    let (status, text) = readiness(&blind).await;
    assert_eq!((status, blind.metric(READ)), (503, 0.0), "{text}");
    assert!(text.starts_with("live control was not read"), "{text}");
    assert_eq!(waits_for(&blind), "live control");
    for (service, serves) in [("", false), ("ratelimit", false), ("weir.v1.Region", true)] {
        assert_eq!(is_serving(&channel, service).await, serves, "{service:?}");
    }

    // Filters keep their live control, and count on.
    let mut filter = Peer::open(channel.clone()).await;
    filter.send(hello_frame(1, false)).await;
    filter.next_with(|frame| frame.welcome).await;
    let answers = filter.answers(vec![blind.query(1, "carol", 0, 1, 1)]).await;
    assert!(answers[0].granted, "{answers:?}");

    // A call that waits is decided as soon as live control was read.
    let forward = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        proxy.forward().await.unwrap();
    };
    let (answer, ()) = tokio::join!(check(&blind, "mallory", "5s", "allow"), forward);
    assert_eq!(answer, (json!(false), json!(true)), "the ban holds");
    assert_eq!(check(&blind, "bob", "5s", "deny").await, (json!(true), json!(true)));
    assert_eq!(rate_limit(&channel, "bob", true).await, Code::Ok);
    assert!(is_serving(&channel, "ratelimit").await);
    assert_eq!(blind.metric(READ), 1.0);
    // Counts may be read later than live control.
    assert_eq!(readiness(&blind).await.0, 200);
    assert_eq!(waits_for(&blind), Value::Null);
}
