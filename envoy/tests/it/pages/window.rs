//! The aggregator's own page with live data of a real Envoy: by mouse, by keyboard, on a phone, light and dark, empty,
//! with many keys, and after the aggregator has ended.

use serde_json::{Value, json};
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::process::Command;
use tokio::time::sleep;
use weir_envoy::browser::{Browser, DOWN, ENTER, TAB};
use weir_envoy::http::{self, Request};
use weir_envoy::{
    Aggregator, AggregatorOptions, Envoy, EnvoyOptions, Filter, Weir, binaries, bootstrap, ports,
};

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
    http::send(envoy.address(), Request::get("/").header("x-key", "cli")).await.unwrap();
    browser
        .until("the rates are live", "return document.querySelector('.figure .value').textContent !== '0'")
        .await
        .unwrap();
    browser
        .until("the keys are live", "return document.querySelectorAll('tbody tr').length === 10")
        .await
        .unwrap();
    browser.screenshot("window-overview").await.unwrap();

    the_keyboard_leads_to_an_explanation(&mut browser).await;
    enter_opens_a_key_or_moves_to_what_is_found(&mut browser).await;

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

    an_answer_without_data_is_not_shown_as_live(&mut browser).await;

    the_pages_fit_a_phone(&mut browser, &url("")).await;
    assert_eq!(browser.console_errors().await.unwrap(), Vec::<String>::new());
    let requests = browser.requests().await.unwrap();
    assert!(requests.iter().all(|url_of_request| url_of_request.starts_with(&url(""))), "{requests:?}");

    // The aggregator ends and is restarted.
    browser.size(1280, 900).await.unwrap();
    browser.open(&url("#/keys")).await.unwrap();
    browser.until("the keys", "return document.querySelectorAll('tbody tr').length === 25").await.unwrap();
    aggregator.process().kill().unwrap();
    browser.until("the banner is shown", "return !document.getElementById('banner').hidden").await.unwrap();
    let kept = "return document.querySelectorAll('tbody tr').length === 25";
    assert_eq!(browser.run(kept, &[]).await.unwrap(), true, "the keys stay");
    browser.screenshot("window-disconnected").await.unwrap();
    aggregator.restart().await.unwrap();
    browser.until("it is back", "return document.getElementById('banner').hidden").await.unwrap();
}

/// To the keys, to the search, down to a row, and to its explanation.
async fn the_keyboard_leads_to_an_explanation(browser: &mut Browser) {
    browser.press(&["2"]).await.unwrap();
    browser.until("the keys", "return document.querySelectorAll('tbody tr').length === 25").await.unwrap();
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
}

/// Enter opens the key of this name, however little it has used; without one, it moves to what is found.
async fn enter_opens_a_key_or_moves_to_what_is_found(browser: &mut Browser) {
    let searched = |text: &str| {
        format!(
            "return document.querySelector('#found:not([hidden])')?.textContent.includes('Explain “{text}”')"
        )
    };
    browser.press(&["/", "clien"]).await.unwrap();
    browser.until("the search", &searched("clien")).await.unwrap();
    let found = browser.text("#found").await.unwrap();
    assert!(found.contains("passes by shadow mode") && found.contains(", denied"), "{found}");
    browser.press(&[ENTER]).await.unwrap();
    let focused = "return document.activeElement.matches('#found a.row')";
    browser.until("the first that is found has the focus", focused).await.unwrap();
    assert_eq!(browser.text("h1").await.unwrap(), HOSTILE);
    browser.fill("#search", "cli").await.unwrap();
    browser.press(&[ENTER]).await.unwrap();
    browser
        .until("its key", "return document.querySelector('h1.identifier')?.textContent === 'cli'")
        .await
        .unwrap();
}

async fn an_answer_without_data_is_not_shown_as_live(browser: &mut Browser) {
    let refuse =
        "window.answered = window.fetch; window.fetch = (path, options) => path.startsWith('/v1/parts')
        ? Promise.resolve(new Response('{\"error\":\"too many requests at once\"}', { status: 503 }))
        : window.answered(path, options)";
    browser.run(refuse, &[]).await.unwrap();
    let banner = "const banner = document.getElementById('banner'); return document.body.dataset.state === 'lost' && \
        banner.textContent.includes('status 503: too many requests at once')";
    browser.until("the refusal is shown", banner).await.unwrap();
    browser.run("window.fetch = window.answered", &[]).await.unwrap();
    browser.until("it is live again", "return document.body.dataset.state === 'live'").await.unwrap();
}

/// In the dark.
async fn the_pages_fit_a_phone(browser: &mut Browser, page: &str) {
    browser.dark(true).await.unwrap();
    browser.size(360, 740).await.unwrap();
    for (snapshot, fragment) in [
        ("overview", "#/"),
        ("keys", "#/keys"),
        ("key", "#/key?namespace=per-client&identifier=client-1"),
        ("rules", "#/rules"),
        ("overrides", "#/overrides"),
        ("parts", "#/parts"),
    ] {
        // Another address, so that the page is loaded again.
        browser.open(&format!("{page}?phone{fragment}")).await.unwrap();
        browser
            .until(
                snapshot,
                "return document.querySelector('.panel') && document.body.dataset.state === 'live'",
            )
            .await
            .unwrap();
        assert_eq!(browser.run(WIDE, &[]).await.unwrap(), true, "{snapshot} is wider than a phone");
        assert_eq!(browser.run(NAMELESS, &[]).await.unwrap(), json!([]), "{snapshot}: lists without a name");
        browser.screenshot(&format!("window-phone-{snapshot}")).await.unwrap();
    }
}

/// Lists that are shown and have no accessible name.
const NAMELESS: &str = "return [...document.querySelectorAll('ul, ol')].filter(list => list.offsetParent !== null \
    && !list.getAttribute('aria-label')).map(list => list.className)";

/// More rules than one page of the list has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_rules_are_paged_and_filtered() {
    let aggregator = Aggregator::start(AggregatorOptions::default()).await.unwrap();
    let rules: Vec<Value> = (0..120)
        .map(|number| {
            let identifier = json!({ "header": format!("x-{number}") });
            json!({ "name": format!("rule-{number:03}"), "identifier": identifier, "limit": 20, "window": "1h" })
        })
        .collect();
    let config = json!({ "aggregator": { "cluster": bootstrap::AGGREGATOR_CLUSTER }, "rules": rules });
    let filter = Filter::Weir(Weir::new(binaries::filter().unwrap(), config));
    let aggregator_ports = vec![aggregator.grpc_port()];
    let _envoy =
        Envoy::start(EnvoyOptions { filter, aggregator_ports, ..EnvoyOptions::default() }).await.unwrap();
    let mut browser = Browser::start().await.unwrap();
    browser.open(&format!("http://{}/#/rules", aggregator.admin_address())).await.unwrap();
    let shows = |first: &str, rules: usize, pages: &str| {
        format!(
            "const names = [...document.querySelectorAll('.rule h2')].map(name => name.textContent); \
            const pages = document.querySelector('main nav.pages'); return names[0] === '{first}' && \
            names.length === {rules} && (pages.hidden ? '' : pages.textContent).includes('{pages}')"
        )
    };
    browser.until("the first page", &shows("rule-000", 50, "1 to 50 of 120")).await.unwrap();
    let height = browser.run("return document.documentElement.scrollHeight", &[]).await.unwrap();
    assert!(height.as_u64().unwrap() < 9_000, "{height} pixels");
    browser.screenshot("window-many-rules").await.unwrap();
    let next = "[...document.querySelectorAll('main nav.pages button')].find(one => one.textContent === 'Next').click()";
    browser.run("scrollTo(0, document.body.scrollHeight)", &[]).await.unwrap();
    browser.until("the end of the page", "return scrollY > 1000").await.unwrap();
    browser.run(next, &[]).await.unwrap();
    browser.until("the second page", &shows("rule-050", 50, "51 to 100 of 120")).await.unwrap();
    let first = "const below = document.querySelector('header').offsetHeight; \
        const top = document.querySelector('.rule').getBoundingClientRect().top; return top >= below && top < innerHeight";
    browser.until("its first rule is in sight", first).await.unwrap();
    browser.run(next, &[]).await.unwrap();
    browser.until("the last page", &shows("rule-100", 20, "101 to 120 of 120")).await.unwrap();
    browser.fill("#filter", "RULE-01").await.unwrap();
    browser.until("those of this name", &shows("rule-010", 10, "")).await.unwrap();
    assert_eq!(browser.console_errors().await.unwrap(), Vec::<String>::new());
}

/// Without its tables an aggregator is up and serves nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_aggregator_that_waits_for_its_tables_is_not_shown_as_serving() {
    let folder = tempfile::tempdir().unwrap();
    let admin = ports::local(ports::free().unwrap());
    let mut command = Command::new(binaries::aggregator().unwrap());
    command.args([
        "serve",
        "--region",
        "here",
        "--grpc-listen",
        "127.0.0.1:0",
        "--http-listen",
        "127.0.0.1:0",
    ]);
    command.args(["--admin-listen", &admin.to_string()]);
    command.args(["--database-url", &format!("sqlite://{}/weir.db", folder.path().display())]);
    let _aggregator = command.stderr(Stdio::null()).kill_on_drop(true).spawn().unwrap();
    let started = Instant::now();
    while http::send(admin, Request::get("/healthz")).await.is_err() {
        assert!(started.elapsed() < Duration::from_secs(10), "it does not start");
        sleep(Duration::from_millis(20)).await;
    }
    let mut browser = Browser::start().await.unwrap();
    for (fragment, selector) in [("#/", ".states"), ("#/parts", ".states"), ("#/parts", "tbody")] {
        browser.open(&format!("http://{admin}/?{}{fragment}", selector.len())).await.unwrap();
        let waits = format!(
            "return [...document.querySelectorAll('{selector}')].some(one => \
             one.textContent.includes(\"waiting for the database's tables\"))"
        );
        browser.until("its state is shown", &waits).await.unwrap();
    }
    let serves = "return document.body.textContent.includes('serving')";
    assert_eq!(browser.run(serves, &[]).await.unwrap(), false);
    browser.screenshot("window-waiting").await.unwrap();
}

const SHOWS_NOTHING: &str =
    "return [...document.querySelectorAll('.empty')].filter((one) => !one.hidden).length === 2";
