//! The aggregator's own page with live data of a real Envoy: by mouse, by keyboard, on a phone, light and dark, empty,
//! with many keys, and after the aggregator has ended.

use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};
use weir_envoy::browser::{Browser, DOWN, ENTER, TAB};
use weir_envoy::http::{self, Request};
use weir_envoy::{Aggregator, AggregatorOptions, Envoy, EnvoyOptions, Filter, Weir, binaries, bootstrap};

const HOSTILE: &str = "<img src=x onerror=window.hurt=1>";
const WIDE: &str = "return document.documentElement.scrollWidth <= 360";

/// A rule whose limits are reached, and one in shadow. Their window does not end during the test.
fn config() -> Value {
    let identifier = json!({ "header": "x-key" });
    json!({ "aggregator": { "cluster": bootstrap::AGGREGATOR_CLUSTER }, "rules": [
        { "name": "per-client", "identifier": identifier, "limit": 20, "window": window() },
        { "name": "stricter", "identifier": identifier, "limit": 8, "window": window(), "shadow_mode": true },
    ] })
}

#[expect(clippy::disallowed_methods, reason = "a test's window is chosen by the time of day")]
pub fn window() -> &'static str {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    if seconds % 3_600 < 3_300 { "1h" } else { "31d" }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_window_shows_a_live_region() {
    let mut aggregator = Aggregator::start(AggregatorOptions::default()).await.unwrap();
    let address = aggregator.admin_address().to_string();
    let url = |fragment: &str| format!("http://{address}/{fragment}");
    let mut browser = Browser::start().await.unwrap();
    browser.requests().await.unwrap();

    // The page is empty.
    browser.open(&url("#/")).await.unwrap();
    browser.until("it shows that there is nothing", SHOWS_NOTHING).await.unwrap();
    browser.screenshot("window-empty").await.unwrap();

    let filter = Filter::Weir(Weir::new(binaries::filter().unwrap(), config()));
    let aggregator_ports = vec![aggregator.grpc_port()];
    let envoy =
        Envoy::start(EnvoyOptions { filter, aggregator_ports, ..EnvoyOptions::default() }).await.unwrap();
    browser
        .until("the Envoy is seen", "return document.querySelectorAll('.rule-row').length === 2")
        .await
        .unwrap();
    for client in 0..24 {
        let key = if client == 0 { HOSTILE.to_owned() } else { format!("client-{client}") };
        for _ in 0..(24 - client) {
            http::send(envoy.address(), Request::get("/").header("x-key", &key)).await.unwrap();
        }
    }
    browser
        .until("the rates are live", "return document.querySelector('.figure .value').textContent !== '0'")
        .await
        .unwrap();
    browser
        .until("the keys are live", "return document.querySelectorAll('tbody tr').length === 10")
        .await
        .unwrap();
    browser.screenshot("window-overview").await.unwrap();

    // By keyboard: to the keys, to the search, down to a row, and to its explanation.
    browser.press(&["2"]).await.unwrap();
    browser.until("the keys", "return document.querySelectorAll('tbody tr').length > 40").await.unwrap();
    browser.screenshot("window-keys").await.unwrap();
    browser.press(&["/", "img"]).await.unwrap();
    browser
        .until("the search", "return document.querySelectorAll('#found a.row').length === 4")
        .await
        .unwrap();
    browser.press(&[DOWN]).await.unwrap();
    assert_eq!(browser.run("return document.activeElement.textContent", &[]).await.unwrap(), HOSTILE);
    browser.press(&[ENTER]).await.unwrap();
    browser
        .until("the explanation", "return document.querySelector('.verdict')?.textContent.includes('denied')")
        .await
        .unwrap();
    assert_eq!(browser.text("h1").await.unwrap(), HOSTILE);
    let inert = "return window.hurt === undefined && document.querySelectorAll('main img').length === 0";
    assert_eq!(browser.run(inert, &[]).await.unwrap(), true, "an identifier is text");
    browser.screenshot("window-key").await.unwrap();
    // The next element that Tab reaches shows the focus.
    browser.press(&[TAB]).await.unwrap();
    let outline = "return getComputedStyle(document.activeElement).outlineStyle";
    assert_eq!(browser.run(outline, &[]).await.unwrap(), "solid");

    browser.press(&["3"]).await.unwrap();
    browser
        .until(
            "keys that a shadow rule would deny",
            "return document.querySelector('.would:not([hidden])')?.textContent.includes('client-1')",
        )
        .await
        .unwrap();
    browser.screenshot("window-rules").await.unwrap();
    browser.press(&["?"]).await.unwrap();
    browser.until("the help", "return document.querySelector('dialog').open").await.unwrap();
    browser.click("dialog button").await.unwrap();
    browser.press(&["5"]).await.unwrap();
    browser
        .until("the parts", "return document.querySelector('main').textContent.includes('Store calls')")
        .await
        .unwrap();
    browser.screenshot("window-parts").await.unwrap();

    browser.dark(true).await.unwrap();
    browser.size(360, 740).await.unwrap();
    for (snapshot, fragment) in
        [("overview", "#/"), ("keys", "#/keys"), ("rules", "#/rules"), ("parts", "#/parts")]
    {
        // Another address, so that the page is loaded again.
        browser.open(&url(&format!("?phone{fragment}"))).await.unwrap();
        browser
            .until(
                snapshot,
                "return document.querySelector('.panel') && document.body.dataset.state === 'live'",
            )
            .await
            .unwrap();
        assert_eq!(browser.run(WIDE, &[]).await.unwrap(), true, "{snapshot} is wider than a phone");
        browser.screenshot(&format!("window-phone-{snapshot}")).await.unwrap();
    }
    assert_eq!(browser.console_errors().await.unwrap(), Vec::<String>::new());
    let requests = browser.requests().await.unwrap();
    assert!(requests.iter().all(|url_of_request| url_of_request.starts_with(&url(""))), "{requests:?}");

    // The aggregator ends and is restarted.
    browser.size(1280, 900).await.unwrap();
    browser.open(&url("#/keys")).await.unwrap();
    browser.until("the keys", "return document.querySelectorAll('tbody tr').length > 40").await.unwrap();
    aggregator.process().kill().unwrap();
    browser.until("the banner is shown", "return !document.getElementById('banner').hidden").await.unwrap();
    let kept = "return document.querySelectorAll('tbody tr').length > 40";
    assert_eq!(browser.run(kept, &[]).await.unwrap(), true, "the keys stay");
    browser.screenshot("window-disconnected").await.unwrap();
    aggregator.restart().await.unwrap();
    browser.until("it is back", "return document.getElementById('banner').hidden").await.unwrap();
}

const SHOWS_NOTHING: &str =
    "return [...document.querySelectorAll('.empty')].filter((one) => !one.hidden).length === 2";
