//! Client networks that are exempt or denied before any rule: responses, metrics and access logs.

use serde_json::{Value, json};
use weir_envoy::http::{Request, Response};
use weir_envoy::{EnvoyOptions, wait};

use super::common::{KEY, Region, SOON, config, rule, sum_of, with};

fn listed(responses: Value) -> Value {
    let addresses = json!({
        "trusted_hops": 1,
        "exempt": ["10.0.0.0/8", "203.0.113.7"],
        "deny": ["10.66.0.0/16", "203.0.113.0/24", "2001:db8::/32"],
    });
    with(config(&[rule("r", 1)]), json!({ "client_networks": addresses, "responses": responses }))
}

fn from(address: &str) -> Request {
    Request::get("/").header(KEY, "a").header("x-forwarded-for", address)
}

async fn region(config: &Value) -> Region {
    Region::start(1, EnvoyOptions { access_log: true, ..EnvoyOptions::default() }, config).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_closest_network_lets_pass_or_denies() {
    let region = region(&listed(json!({}))).await;
    for (at, (address, expected)) in [
        // They share one budget of one request, because they send the same key.
        ("198.51.100.1", 200),
        ("198.51.100.1", 429),
        ("10.1.1.1", 200),
        ("10.1.1.1", 200),
        ("10.66.1.1", 403),
        ("203.0.113.6", 403),
        ("203.0.113.7", 200),
        ("2001:db8:1::1", 403),
        ("2001:db9::1", 429),
        // Entries further left are claims of the client and are ignored.
        ("10.1.1.1, 203.0.113.6", 403),
        ("203.0.113.6, 10.1.1.1", 200),
        // No valid address: the peer's address counts, which is in no list.
        ("nonsense", 429),
    ]
    .into_iter()
    .enumerate()
    {
        let answer = region.envoy().send(from(address)).await.unwrap();
        assert_eq!(answer.status, expected, "request {at} from {address}");
    }
    let counted = async || {
        let denied = sum_of(region.envoy(), "wasmcustom.weir_addresses_denied_total").await;
        let exempt = sum_of(region.envoy(), "wasmcustom.weir_decisions_total.rule.r.outcome.exempt").await;
        (denied, exempt) == (4, 4)
    };
    wait::until("both are counted", SOON, counted).await.unwrap();
    let is_denial = |line: &Value| line["details"] == "weir_denied_address";
    let lines =
        async || region.envoy().access_log().unwrap().iter().filter(|line| is_denial(line)).count() == 4;
    wait::until("access logs show them", SOON, lines).await.unwrap();
    region.is_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_address_gets_a_response_in_each_format() {
    let plain = |answer: &Response| (answer.status, answer.header("content-type").map(str::to_owned));
    let region = region(&listed(json!({ "problem_json": true }))).await;
    let denied = region.envoy().send(from("203.0.113.1")).await.unwrap();
    assert_eq!(plain(&denied), (403, Some("application/problem+json".to_owned())));
    let problem =
        json!({ "type": "about:blank", "title": "Forbidden", "status": 403, "detail": "address denied" });
    assert_eq!(denied.json().unwrap(), problem);
    assert_eq!(denied.header("retry-after"), None, "a retry is of no use");
    let call = from("203.0.113.1").header("content-type", "application/grpc");
    let refused = region.envoy().send(call).await.unwrap();
    assert_eq!((refused.status, refused.header("grpc-status")), (200, Some("7")), "{refused:?}");
    region.is_sound().await;
}
