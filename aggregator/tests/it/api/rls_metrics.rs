//! The metrics of each limit of the rate-limit service, as its operators know them from the reference service.

use crate::support::rls::{Entries, call, descriptor, request, service};
use crate::support::server::{Weir, until};
use weir_aggregator::api::rls::Answering;
use weir_aggregator::api::rls::wire::{Descriptor, RateLimitRequest};

const LIMITS: &str = "
domain: edge
descriptors:
  - key: method
    value: GET
    descriptors:
      - {key: path, rate_limit: {unit: month, requests_per_unit: 5}}
  - {key: shade, shadow_mode: true, rate_limit: {unit: month, requests_per_unit: 1}}
  - {key: detail, detailed_metric: true, rate_limit: {unit: month, requests_per_unit: 1}}
  - key: route
    value_to_metric: true
    descriptors:
      - {key: user, value: 'u*', rate_limit: {unit: month, requests_per_unit: 9}}
";

/// The five sums of a series.
fn sums(weir: &Weir, labels: &str) -> [f64; 5] {
    ["total_hits", "within_limit", "near_limit", "over_limit", "shadow_mode"]
        .map(|name| weir.metric(&format!("ratelimit_service_rate_limit_{name}{{{labels}}}")))
}

fn shown(weir: &Weir) -> Vec<String> {
    let text = weir.server.services().metrics_text();
    let totals = text.lines().filter_map(|line| line.strip_prefix("ratelimit_service_rate_limit_total_hits"));
    totals.map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_limit_has_the_reference_services_metrics() {
    let (weir, channel, folder) = service(LIMITS, Answering::default()).await;
    const GET: &str = r#"domain="edge",key1="method_GET",key2="path""#;
    let at_first = [
        r#"{domain="edge",key1="detail"}"#,
        &format!("{{{GET}}}"),
        r#"{domain="edge",key1="route",key2="user_u*"}"#,
        r#"{domain="edge",key1="shade"}"#,
    ];
    assert_eq!(shown(&weir), at_first, "each limit has its series from the start");
    let send = async |entries: Entries<'_>, hits: u32| {
        let of = RateLimitRequest { hits_addend: hits, ..request(vec![descriptor(entries)]) };
        call(&channel, of).await.unwrap();
    };
    let path: Entries = &[("method", "GET"), ("path", "/a")];
    for _ in 0..3 {
        send(path, 2).await;
    }
    // The third call exceeds the limit as a whole.
    assert_eq!(sums(&weir, GET), [6.0, 4.0, 0.0, 2.0, 0.0]);
    send(path, 1).await;
    assert_eq!(sums(&weir, GET), [7.0, 5.0, 1.0, 2.0, 0.0]);
    for _ in 0..2 {
        send(&[("shade", "x")], 1).await;
    }
    assert_eq!(sums(&weir, r#"domain="edge",key1="shade""#), [2.0, 1.0, 1.0, 1.0, 1.0]);

    // What was given back is no hit, and a limit of another call that is denied counts by itself.
    let back = Descriptor { is_negative_hits: true, hits_addend: Some(1), ..descriptor(path) };
    call(&channel, request(vec![back])).await.unwrap();
    call(&channel, request(vec![descriptor(path), descriptor(&[("shade", "x")])])).await.unwrap();
    assert_eq!(sums(&weir, GET)[0], 8.0);

    // Values where the file asks for them, and nowhere else.
    send(&[("detail", "a\"\nb")], 1).await;
    send(&[("route", "/r"), ("user", "u7")], 1).await;
    assert_eq!(sums(&weir, r#"domain="edge",key1="detail_a\"\\u{a}b""#)[0], 1.0, "{:?}", shown(&weir));
    assert_eq!(sums(&weir, r#"domain="edge",key1="route_/r",key2="user_u*""#)[0], 1.0, "{:?}", shown(&weir));
    assert_eq!(shown(&weir).len(), 6);

    // A file that changes leaves what it still has.
    let (kept, _) = LIMITS.split_once("  - {key: detail").unwrap();
    std::fs::write(folder.path().join("limits.yaml"), kept).unwrap();
    until("the series of the other limits end", || shown(&weir).len() == 2).await;
    assert_eq!(sums(&weir, GET)[0], 8.0);
    send(path, 1).await;
    assert_eq!(sums(&weir, GET)[0], 9.0);
}
