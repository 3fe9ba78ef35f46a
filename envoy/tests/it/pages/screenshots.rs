//! The status page of a region at work, light and dark, as the README shows it.
//!
//! The pictures are written to `target/screenshots`. To replace those of the README, copy `status-light.png` and `status-dark.png`
//! from there to `envoy/screenshots`.

use serde_json::json;
use std::time::Duration;
use weir_envoy::browser::Browser;
use weir_envoy::http::{self, Request};
use weir_envoy::{
    Aggregator, AggregatorOptions, Envoy, EnvoyOptions, Filter, Redis, RedisOptions, Weir, binaries,
    bootstrap,
};

const CLIENTS: [(&str, u64); 12] = [
    ("checkout", 40),
    ("mobile-app", 34),
    ("partner-eu", 29),
    ("reports", 24),
    ("search", 20),
    ("partner-us", 17),
    ("crawler", 14),
    ("billing", 11),
    ("webhooks", 8),
    ("ci", 6),
    ("support", 4),
    ("audit", 2),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_readme_shows_the_status_page_of_a_region_at_work() {
    let redis = Redis::start(RedisOptions::default()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let database = format!("sqlite://{}", folder.path().join("weir.db").display());
    let environment = [("WEIR_REDIS_URL", redis.url()), ("WEIR_DATABASE_URL", database)];
    let aggregator = Aggregator::start(AggregatorOptions {
        arguments: ["--test-schedule", "--migrate"].map(str::to_owned).to_vec(),
        environment: environment.map(|(name, value)| (name.to_owned(), value)).to_vec(),
        ..AggregatorOptions::default()
    })
    .await
    .unwrap();
    let ban = json!({ "namespace": "api-keys", "identifier": "scraper-*", "ban": true, "reason": "scraping", "author": "ann",
        "expires_in": "3h" });
    let mut put = Request::post("/v1/overrides", ban.to_string()).header("content-type", "application/json");
    put.method = "PUT".parse().unwrap();
    assert_eq!(http::send(aggregator.http_address(), put).await.unwrap().status, 200);
    let identifier = json!({ "header": "x-api-key" });
    let config = json!({ "aggregator": { "cluster": bootstrap::AGGREGATOR_CLUSTER }, "rules": [
        { "name": "api-keys", "identifier": identifier, "limit": 120, "window": "1h" },
        { "name": "api-keys-daily", "identifier": identifier, "limit": 150, "window": "24h", "shadow_mode": true },
        { "name": "everyone", "identifier": { "constant": "all" }, "limit": 100_000, "window": "1m" },
    ]});
    let mut envoys = Vec::new();
    for _ in 0..2 {
        let filter = Filter::Weir(Weir::new(binaries::filter().unwrap(), config.clone()));
        let aggregator_ports = vec![aggregator.grpc_port()];
        envoys.push(
            Envoy::start(EnvoyOptions { filter, aggregator_ports, ..EnvoyOptions::default() }).await.unwrap(),
        );
    }
    let addresses: Vec<_> = envoys.iter().map(Envoy::address).collect();
    let traffic = tokio::spawn(async move {
        let mut rounds = tokio::time::interval(Duration::from_millis(500));
        loop {
            rounds.tick().await;
            for (at, (client, requests)) in CLIENTS.iter().enumerate() {
                for _ in 0..requests / 2 {
                    let request = Request::get("/").header("x-api-key", client);
                    let _ = http::send(addresses[at % addresses.len()], request).await;
                }
            }
        }
    });

    let mut browser = Browser::start().await.unwrap();
    browser.size(1280, 900).await.unwrap();
    browser.open(&format!("http://{}/#/", aggregator.admin_address())).await.unwrap();
    let at_work = "return document.querySelectorAll('.rule-row').length === 3 \
        && document.querySelectorAll('tbody tr').length === 10 \
        && document.querySelectorAll('.bans li').length === 1 \
        && Number.parseFloat(document.querySelector('.figure.denied .value').textContent) > 10 \
        && document.querySelectorAll('.figure.denied .drawing polyline').length > 0";
    browser.until("clients are denied", at_work).await.unwrap();
    for (dark, name) in [(false, "status-light"), (true, "status-dark")] {
        browser.dark(dark).await.unwrap();
        let picture = browser.screenshot(name).await.unwrap();
        assert!(std::fs::metadata(picture).unwrap().len() > 20_000, "{name} is not empty");
    }
    traffic.abort();
    assert_eq!(browser.console_errors().await.unwrap(), Vec::<String>::new());
}
