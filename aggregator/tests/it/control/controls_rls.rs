//! Tests of live control through the rate-limit service: answers under bans, exemptions, other limits, credits and
//! resets.

use crate::support::http::{Client, put, write};
use crate::support::rls::{Entries, OK, OVER, call, codes, descriptor, request};
use crate::support::server::{Weir, settings, start_with, until};
use serde_json::{Value, json};
use tempfile::TempDir;
use tonic::transport::Channel;
use weir_aggregator::api::rls::wire::{Code, Descriptor, RateLimitResponse};
use weir_aggregator::api::{ApiSettings, rls};
use weir_aggregator::database::DatabaseOptions;
use weir_aggregator::server::Settings;
use weir_core::model::schedule::Schedule;

const LIMITS: &str = "
domain: edge
descriptors:
  - key: user
    rate_limit: {name: users, unit: month, requests_per_unit: 2}
  - key: path
    rate_limit: {name: paths, unit: month, requests_per_unit: 9}
  - key: shade
    shadow_mode: true
    rate_limit: {name: shades, unit: month, requests_per_unit: 2}
";

struct Service {
    weir: Weir,
    channel: Channel,
    _folder: TempDir,
}

impl Service {
    async fn start() -> Service {
        let folder = tempfile::tempdir().unwrap();
        let file = write(folder.path(), "edge.yaml", LIMITS);
        let url = format!("sqlite://{}/weir.db", folder.path().display());
        let database = Some(DatabaseOptions { url, read_url: None, region: "test-region".into() });
        let api = ApiSettings {
            rls: rls::Settings { files: Some(file), ..rls::Settings::default() },
            ..settings().api
        };
        let schedule = Schedule::for_tests();
        let weir = start_with(Settings { api, database, migrate: true, schedule, ..settings() }).await;
        let has_controls = || weir.server.services().control.book().edition().is_some();
        until("live control has been read", has_controls).await;
        Service { channel: weir.connect().await, weir, _folder: folder }
    }

    async fn set(&self, namespace: &str, identifier: &str, what: Value) {
        let mut body = json!({"namespace": namespace, "identifier": identifier});
        body.as_object_mut().unwrap().extend(what.as_object().unwrap().clone());
        put(&self.weir, body).await;
    }

    async fn check(&self, descriptors: &[Entries<'_>]) -> RateLimitResponse {
        let descriptors = descriptors.iter().map(|entries| descriptor(entries)).collect();
        call(&self.channel, request(descriptors)).await.unwrap()
    }

    /// Sends several requests about one descriptor. Returns the code, the limit and the remainder of each answer, which
    /// Envoy sends to its client.
    async fn responds(&self, entries: Entries<'_>, expected: &[(Code, u32, u32)]) -> RateLimitResponse {
        let mut last = RateLimitResponse::default();
        for (at, expected) in expected.iter().enumerate() {
            last = self.check(&[entries]).await;
            let status = &last.statuses[0];
            let limit = status.current_limit.as_ref().unwrap().requests_per_unit;
            let result = (last.overall_code(), limit, status.limit_remaining);
            assert_eq!(result, *expected, "{entries:?}, answer {at}: {last:?}");
        }
        last
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bans_deny_until_they_end() {
    let service = Service::start().await;
    let (mallory, path): (Entries, Entries) = (&[("user", "mallory")], &[("path", "/")]);
    service.responds(mallory, &[(OK, 2, 1)]).await;
    service.set("users", "mal*", json!({"ban": true, "reason": "spam", "expires_in": "1h"})).await;
    let denied = service.responds(mallory, &[(OVER, 2, 0); 3]).await;
    let wait: u64 = denied.response_headers_to_add[0].value.parse().unwrap();
    assert!((3_500..=3_600).contains(&wait), "{denied:?}");
    assert_eq!(codes(&service.check(&[mallory, path]).await), (OVER, vec![OVER, OK]));
    service.responds(path, &[(OK, 9, 8)]).await;
    service.set("users", "mal*", json!({"ban": true, "reason": "for ever"})).await;
    let denied = service.responds(mallory, &[(OVER, 2, 0)]).await;
    assert_eq!(denied.response_headers_to_add, [], "a permanent ban has no reset time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_exempt_pass_and_resets_count_anew() {
    let service = Service::start().await;
    let ann: Entries = &[("user", "ann")];
    let counts = [(OK, 2, 1), (OK, 2, 0), (OVER, 2, 0)];
    service.responds(ann, &counts).await;
    service.set("users", "ann", json!({"reset": true})).await;
    service.responds(ann, &counts).await;
    service.set("*", "ann", json!({"exempt": true})).await;
    service.responds(ann, &[(OK, 2, 2); 3]).await;
}

/// What is given back belongs to the count that a reset leaves behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_given_back_does_not_outlive_a_reset() {
    let service = Service::start().await;
    let amy: Entries = &[("user", "amy")];
    service.responds(amy, &[(OK, 2, 1), (OK, 2, 0)]).await;
    let back = Descriptor { is_negative_hits: true, hits_addend: Some(1), ..descriptor(amy) };
    assert_eq!(codes(&call(&service.channel, request(vec![back])).await.unwrap()).0, OK);
    service.set("users", "amy", json!({"reset": true})).await;
    service.responds(amy, &[(OK, 2, 1), (OK, 2, 0), (OVER, 2, 0)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_of_live_control_is_the_one_that_is_shown() {
    let service = Service::start().await;
    let (bob, shade): (Entries, Entries) = (&[("user", "bob")], &[("shade", "bob")]);
    service.responds(bob, &[(OK, 2, 1)]).await;
    service.set("users", "bob", json!({"limit": 4})).await;
    service.responds(bob, &[(OK, 4, 2)]).await;
    service.set("users", "bob", json!({"credit": 1, "expires_in": "1h"})).await;
    let shown = service.responds(bob, &[(OK, 5, 2), (OK, 5, 1), (OK, 5, 0), (OVER, 5, 0)]).await;
    assert_eq!(shown.statuses[0].current_limit.as_ref().unwrap().name, "users");
    service.set("users", "bob", json!({"limit": u64::from(u32::MAX) + 9})).await;
    service.responds(bob, &[(OK, u32::MAX, u32::MAX)]).await;
    service.set("shades", "bob", json!({"limit": 1})).await;
    service.responds(shade, &[(OK, 1, 0), (OK, 1, 0)]).await;
    let shadowed = "weir_aggregator_api_decisions_total{api=\"rls\",result=\"shadow_denied\"}";
    assert_eq!(service.weir.metric(shadowed), 1.0);
}

/// No request follows that would show it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_of_a_pattern_is_shown_for_keys_without_requests() {
    let service = Service::start().await;
    let body = json!({"namespace": "n", "identifier": "bob", "limit": 2, "duration": "1h"});
    let answer = Client::connect(&service.weir).await.post("/v1/check", &body).await.body;
    assert_eq!(answer["limit"], 2);
    let shows = |limit| {
        let explained = service.weir.server.services().explain(b"default", b"n", b"bob");
        explained.iter().any(|key| key.newest_limit == Some(limit))
    };
    until("the limit of the request is shown", || shows(2)).await;
    service.set("*", "b*", json!({"limit": 7, "reason": "more"})).await;
    until("the limit of the pattern is shown", || shows(7)).await;
    service.set("*", "b*", json!({"ban": true, "reason": "spam"})).await;
    until("the limit of the request is shown again", || shows(2)).await;
}
