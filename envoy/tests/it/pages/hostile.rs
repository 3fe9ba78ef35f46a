//! The playground with hostile input that is pasted, typed or sent as a link: it reports the error, stays responsive,
//! and runs no foreign script.

use std::time::{Duration, Instant};

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine};
use serde_json::{Value, json};
use weir_envoy::browser::Browser;
use weir_simulator::plan::Plan;
use weir_simulator::scenarios::{self, link};

use super::playground::{is_clean, playground, ran, until_text};

/// A hanging page would hang for hours. A browser needs seconds to lay out ten million letters.
const ALIVE: Duration = Duration::from_secs(30);

/// Pastes the value of an expression at once, as a paste does.
async fn paste(browser: &mut Browser, expression: &str) {
    let script = format!(
        "document.getElementById('judged').textContent = '';
        rules.value = {expression};
        rules.dispatchEvent(new Event('input'))"
    );
    browser.run(&script, &[]).await.unwrap();
    is_alive(browser, expression).await;
}

async fn is_alive(browser: &mut Browser, after: &str) {
    let begun = Instant::now();
    assert_eq!(browser.run("return 1 + 1", &[]).await.unwrap(), 2);
    assert!(begun.elapsed() < ALIVE, "the page hung for {:?} after {after}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_pasted_text_gets_a_result() {
    let (_pages, mut browser, url) = playground().await;
    browser.open(&format!("{url}#scenario=one-envoy&seed=1")).await.unwrap();
    ran(&mut browser, 1).await;
    let envoy =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/docker/envoy.yaml")).unwrap();
    let login = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/login-protection.json");
    let login = std::fs::read_to_string(login).unwrap();
    let many = json!({"aggregator": {"cluster": "a"}, "rules": (0..60).map(|at| json!(
        {"name": at.to_string(), "identifier": {"header": "x"}, "limit": 1, "window": "1s"})).collect::<Vec<_>>()});
    for (text, expected) in [
        (json!(envoy).to_string(), "✓ "),
        (json!(login).to_string(), "✓ login-user: 5 in 15m"),
        ("''".to_owned(), "it is empty"),
        ("'a: b: c'".to_owned(), "neither JSON nor YAML"),
        ("'\\0\\x1b[31m\\u202e'".to_owned(), "neither JSON nor YAML"),
        ("'<script>document.title = \"hacked\"</script>'".to_owned(), "an object"),
        ("'{\"<img src=x onerror=document.title=1>\": 1}'".to_owned(), "<img src=x"),
        ("'{\"rules\": ['".to_owned(), "not JSON"),
        ("'static_resources: {}'".to_owned(), "has no Weir filter"),
        (json!(many.to_string()).to_string(), "at most 50"),
        ("'x'.repeat(10 << 20)".to_owned(), "10.0 MB are too much"),
        ("'['.repeat(4 << 20)".to_owned(), "recursion limit exceeded"),
        ("'- '.repeat(1 << 16)".to_owned(), "neither JSON nor YAML"),
        // Each list contains the previous one ten times.
        (
            "'a0: &a0 [x]\\n' + Array.from({ length: 30 }, (_, n) => \
             `a${n + 1}: &a${n + 1} [${Array(10).fill(`*a${n}`).join()}]\\n`).join('')"
                .to_owned(),
            "neither JSON nor YAML",
        ),
    ] {
        paste(&mut browser, &text).await;
        let shown = until_text(&mut browser, "#judged", expected).await;
        assert!(shown.len() < 20_000, "{} bytes are shown of {text:.80}", shown.len());
        is_alive(&mut browser, &text).await;
    }
    // Rejected input has changed nothing, and valid input is accepted at once.
    paste(&mut browser, &json!(login).to_string()).await;
    browser.click("#run").await.unwrap();
    ran(&mut browser, 2).await;
    let fits = "return document.documentElement.scrollWidth - document.documentElement.clientWidth";
    assert_eq!(browser.run(fits, &[]).await.unwrap(), 0);
    assert_eq!(browser.run("return document.title", &[]).await.unwrap(), "Weir playground");
    is_clean(&mut browser, &url).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_out_of_bounds_are_not_run() {
    let (_pages, mut browser, url) = playground().await;
    browser.open(&format!("{url}#scenario=steady&seed=1")).await.unwrap();
    ran(&mut browser, 1).await;
    // An invalid field of the closed part opens it.
    let wrong = "document.getElementById('publish').value = ''; document.getElementById('run').click()";
    browser.run(wrong, &[]).await.unwrap();
    browser.until("it is open", "return document.getElementById('advanced').open").await.unwrap();
    browser.fill("#publish", "10").await.unwrap();
    for (field, number) in [
        ("#envoys", "0"),
        ("#envoys", "1e9"),
        ("#regions", "-1"),
        ("#aggregators", "1.5"),
        ("#seconds", "0.0001"),
        ("#seconds", "1e300"),
        ("#publish", "0"),
        ("#seed", "-1"),
        ("#seed", "0x10"),
        ("#seed", "&plan=e30"),
        ("#sources input", "1e300"),
    ] {
        let before = browser.run("return document.querySelector(arguments[0]).value", &[json!(field)]).await;
        let before = before.unwrap().as_str().unwrap().to_owned();
        browser.fill(field, number).await.unwrap();
        browser.click("#run").await.unwrap();
        let marked = "return document.querySelector(arguments[0]).matches(':invalid')";
        assert_eq!(browser.run(marked, &[json!(field)]).await.unwrap(), true, "{field} = {number}");
        browser.fill(field, &before).await.unwrap();
    }
    // Two values that are valid alone but too large together.
    browser.fill("#seconds", "86400").await.unwrap();
    browser.fill("#sources .fields label:last-child input", "1e6").await.unwrap();
    browser.click("#run").await.unwrap();
    until_text(&mut browser, "#status", "requests; a page simulates at most").await;
    browser.fill("#seed", "99999999999999999999").await.unwrap();
    browser.click("#run").await.unwrap();
    until_text(&mut browser, "#status", "2⁶⁴").await;
    let runs = browser.run("return document.body.dataset.runs + document.body.dataset.running", &[]).await;
    assert_eq!(runs.unwrap(), "1false", "nothing of that was run");
    // No traffic at all is a run.
    browser.fill("#seed", "1").await.unwrap();
    browser.fill("#seconds", "10").await.unwrap();
    while browser.run("return document.querySelectorAll('#sources .quiet').length", &[]).await.unwrap() != 0 {
        browser.click("#sources .quiet").await.unwrap();
    }
    browser.click("#run").await.unwrap();
    ran(&mut browser, 2).await;
    is_clean(&mut browser, &url).await;
}

fn of_json(plan: &Value) -> String {
    format!("plan={}", BASE64_URL_SAFE_NO_PAD.encode(plan.to_string()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_links_are_bounded_and_run_no_scripts() {
    let (_pages, mut browser, url) = playground().await;
    let plan = (scenarios::find("steady").unwrap().plan)(1);
    let with = |change: &dyn Fn(&mut Value)| {
        let mut value = serde_json::to_value(&plan).unwrap();
        change(&mut value);
        of_json(&value)
    };
    let whole = link::of_plan(&plan);
    // The first fragment is also the first of the page, which has no earlier state to return to.
    for (fragment, expected) in [
        (whole[..whole.len() / 2].to_owned(), "the link"),
        ("scenario=<script>document.title='hacked'</script>&seed=1".to_owned(), "there is no scenario"),
        ("scenario=%3Cimg%20src=x%20onerror=document.title=1%3E".to_owned(), "there is no scenario"),
        ("javascript:document.title='hacked'".to_owned(), "neither a plan nor a scenario"),
        ("scenario=steady&seed=1e3".to_owned(), "the seed"),
        ("scenario=steady&seed=18446744073709551616".to_owned(), "the seed"),
        (format!("plan={}", "A".repeat(100_000)), "no valid plan"),
        (format!("plan={}", BASE64_URL_SAFE_NO_PAD.encode("[".repeat(100_000))), "no valid plan"),
        (with(&|plan| plan["topology"]["regions"] = json!(u32::MAX)), "regions; a page simulates 1 to 16"),
        (with(&|plan| plan["topology"]["buckets"] = json!(u32::MAX)), "buckets"),
        (
            with(&|plan| plan["traffic"][0]["shape"] = json!({"Steady": {"identifier": 1, "rate": 1e300}})),
            "requests",
        ),
        (with(&|plan| plan["rules"][0]["window_ms"] = json!(1)), "no limit"),
        (with(&|plan| plan["rules"][0]["limit"] = json!(u64::MAX)), "no limit"),
        (with(&|plan| plan["__proto__"] = json!({"seed": 1})), "unknown field"),
    ] {
        browser.open(&format!("{url}#{fragment}")).await.unwrap();
        until_text(&mut browser, "#status.wrong", expected).await;
        browser.run("document.getElementById('status').textContent = ''", &[]).await.unwrap();
        is_alive(&mut browser, &fragment).await;
    }
    assert_eq!(browser.run("return document.body.dataset.runs ?? 0", &[]).await.unwrap(), 0, "none was run");

    // The largest plan that is allowed: the maximum number of faults, most of them on parts that do not exist.
    let mut largest: Plan = plan.clone();
    largest.traffic_ms = 2_000;
    (largest.topology.regions, largest.topology.envoys) = (16, 64);
    let wrongs = json!([
        {"Cut": {"link": {"Streams": {"region": 99, "envoy": 1000, "aggregator": 7}}}},
        {"Crash": {"part": {"Aggregator": {"region": 4_000_000_000u32, "aggregator": 4_000_000_000u32}}}},
        {"Freeze": {"part": {"Worker": {"region": 0, "envoy": 0, "worker": 9}}}},
        {"Wipe": {"part": {"Redis": {"region": 99}}}},
        {"Roll": {"region": 99}},
        {"Flood": {"part": {"Envoy": {"region": 99, "envoy": 0}, }, "identifiers": 5}},
    ]);
    let mut largest = serde_json::to_value(&largest).unwrap();
    let fault = |at: usize| json!({"at_ms": at, "for_ms": 500, "what": wrongs[at % 6]});
    largest["faults"] = (0..1_000).map(fault).collect();
    browser.open(&format!("{url}#{}", of_json(&largest))).await.unwrap();
    until_text(&mut browser, "#faults", "And 960 more").await;
    is_alive(&mut browser, "a thousand faults").await;
    assert_eq!(browser.run("return document.title", &[]).await.unwrap(), "Weir playground");
    is_clean(&mut browser, &url).await;

    // The content security policy also blocks a script that was inserted into the page.
    let script = "const script = document.createElement('script');
        script.textContent = 'document.title = \"hacked\"';
        document.body.append(script);
        return document.title";
    assert_eq!(browser.run(script, &[]).await.unwrap(), "Weir playground");
    let errors = browser.console_errors().await.unwrap();
    assert!(errors.iter().any(|one| one.contains("Content Security Policy")), "{errors:?}");
}
