//! The playground's verdict after a violated invariant: what failed, where, and how to reproduce it on a machine.

use serde_json::{Value, json};
use weir_envoy::binaries;
use weir_envoy::browser::Browser;
use weir_simulator::measure::figures::{Figures, Violation};
use weir_simulator::measure::observe::NoObserver;
use weir_simulator::plan::{Plan, Rule};
use weir_simulator::report::series;
use weir_simulator::run::{Expected, judge, run};
use weir_simulator::scenarios::{self, link};

use super::playground::{advanced, is_clean, look_at, playground, ran, saved, served, until_text};

/// A worker that returns the prepared answer for a seed instead of simulating.
const WORKER: &str = "onmessage = ({ data: { text, seed } }) => postMessage(text === undefined
    ? ANSWERS[seed] : { judged: { rules: [], errors: [], notes: [] } });";

/// A copy of the playground with this worker instead of its own.
fn with_worker(worker: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let page = binaries::playground().unwrap();
    for file in std::fs::read_dir(page.parent().unwrap()).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    std::fs::write(folder.path().join("worker.js"), worker).unwrap();
    folder
}

/// The record of a run of `scenario`, changed so that it violates two invariants and misses its expectation.
fn failing(scenario: &str) -> String {
    let plan = (scenarios::find(scenario).unwrap().plan)(1);
    let mut recorded = series::record(&plan, &Expected::default(), &mut |_| {});
    let violation = |at_ms, checker, what: &str| Violation { at_ms, checker, what: what.to_owned() };
    let figures = Figures {
        violations: vec![
            violation(
                2_500,
                "owner",
                "Envoy 1 holds 3 of CellId { rule: 0, identifier: 17, sequence: 5 } after 4",
            ),
            violation(2_600, "owner", "the same again"),
            violation(999_000, "rest", "<img src=x onerror=document.title='hacked'>"),
        ],
        ..recorded.outcome.figures.clone()
    };
    let expected = Expected { over: Some(-1.0), ..Expected::default() };
    recorded.outcome.failures = judge(&expected, &recorded.outcome.comparison, &figures);
    recorded.outcome.figures = figures;
    serde_json::to_string(&recorded).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_invariant_is_shown_with_its_place_and_its_command() {
    let answers = json!({
        "1": {"recorded": failing("steady"), "took": 12.0},
        "2": {"broken": "panicked at somewhere.rs:1:2:\nindex out of bounds"},
        "3": {"wrong": "17 regions; a page simulates 1 to 16"},
    });
    let folder = with_worker(&format!("const ANSWERS = {answers};{WORKER}"));
    let (_pages, mut browser, url) = served(folder.path()).await;
    browser.open(&format!("{url}#scenario=steady&seed=1")).await.unwrap();
    ran(&mut browser, 1).await;

    let shown = browser.text("#verdict").await.unwrap();
    for part in [
        "An invariant was violated",
        "An Envoy’s own count fell at 2.5 s",
        "owner: Envoy 1 holds 3 of CellId",
        "At rest, the counts differ at 999 s, after the traffic",
        "Over the whole run, more was admitted than the scenario allows",
        "./justw simulate --scenario steady --seed 1",
    ] {
        assert!(shown.contains(part), "{part} is missing:\n{shown}");
    }
    assert!(!shown.contains("the same again"), "{shown}");
    // A failure with a time is marked in all plots; one without a time in none.
    let crosses =
        "return [...document.querySelectorAll('line.failure title')].map(title => title.textContent)";
    let crosses = browser.run(crosses, &[]).await.unwrap();
    assert_eq!(crosses.as_array().unwrap().len(), 6, "{crosses}");
    assert_eq!(crosses[0], "An Envoy’s own count fell at 2.5 s");
    assert!(browser.text("#status").await.unwrap().contains("see the verdict"));
    let colours = "return ['#verdict', '#status'].map(one => \
        getComputedStyle(document.querySelector(one))).map((one, at) => at ? one.color : one.borderColor)";
    let colours = browser.run(colours, &[]).await.unwrap();
    assert_eq!(colours[0], colours[1], "both are seen to be bad");
    look_at(&mut browser, "playground-failed").await;

    // A plan other than a scenario is reproduced from a file, whose plan is that of the link.
    browser.fill("#envoys", "2").await.unwrap();
    browser.click("#run").await.unwrap();
    ran(&mut browser, 2).await;
    let shown = browser.text("#verdict").await.unwrap();
    assert!(shown.contains("./justw simulate --plan weir-plan.json"), "{shown}");
    let file = saved_plan(&mut browser, "#verdict a").await;
    let plan = link::read(browser.run("return location.hash", &[]).await.unwrap().as_str().unwrap()).unwrap();
    assert_eq!(serde_json::from_value::<Plan>(file).unwrap(), plan);

    // A panic is shown as a failure, and the next run starts anew.
    advanced(&mut browser).await;
    browser.fill("#seed", "2").await.unwrap();
    browser.click("#run").await.unwrap();
    let shown = until_text(&mut browser, "#verdict", "The simulation failed before its end").await;
    assert!(shown.contains("index out of bounds") && shown.contains("--plan weir-plan.json"), "{shown}");
    until_text(&mut browser, "#status", "The simulation failed.").await;
    assert_eq!(browser.text("#tiles").await.unwrap(), "", "nothing is left of the run before");
    browser.screenshot("playground-broke").await.unwrap();
    browser.fill("#seed", "3").await.unwrap();
    browser.click("#run").await.unwrap();
    until_text(&mut browser, "#status", "17 regions").await;
    browser.fill("#seed", "1").await.unwrap();
    browser.click("#run").await.unwrap();
    ran(&mut browser, 3).await;

    assert_ne!(browser.run("return document.title", &[]).await.unwrap(), "hacked");
    assert_eq!(browser.console_errors().await.unwrap(), Vec::<String>::new());
}

/// A network so slow that no count reaches the region before the run ends.
fn distant_regions() -> Plan {
    let mut plan = (scenarios::find("steady").unwrap().plan)(1);
    plan.network.regional_us = (30_000_000, 30_000_000);
    (plan.rules, plan.traffic_ms, plan.quiet_ms) = (vec![Rule::new(1_000, 60_000)], 8_000, 20_000);
    plan
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_to_a_broken_invariant_shows_what_the_native_simulator_reports() {
    let plan = distant_regions();
    let native = run(&plan, &Expected::default(), &mut NoObserver).failures;
    assert_eq!(native[0].checker, "rest", "this world has to break a law: {native:?}");
    let (_pages, mut browser, url) = playground().await;
    browser.open(&format!("{url}#{}", link::of_plan(&plan))).await.unwrap();
    ran(&mut browser, 1).await;
    let shown = browser.text("#verdict").await.unwrap();
    let at = format!(
        "At rest, the counts differ at {} s, after the traffic",
        native[0].at_ms.unwrap() as f64 / 1e3
    );
    assert!(shown.contains(&at) && shown.contains(&native[0].what), "{at} is missing:\n{shown}");
    let failures = &saved(&mut browser).await["outcome"]["failures"];
    assert_eq!(failures, &serde_json::to_value(&native).unwrap());
    let file = saved_plan(&mut browser, "#verdict a").await;
    assert_eq!(serde_json::from_value::<Plan>(file).unwrap(), plan, "and the file gives the same world");
    browser.screenshot("playground-distant-regions").await.unwrap();
    is_clean(&mut browser, &url).await;
}

/// The plan that a link would save.
async fn saved_plan(browser: &mut Browser, selector: &str) -> Value {
    let script = "const link = document.querySelector(arguments[0]);
        link.addEventListener('click', event => event.preventDefault(), { once: true });
        link.click();
        return fetch(link.href).then(saved => saved.text())";
    let text = browser.run(script, &[json!(selector)]).await.unwrap();
    serde_json::from_str(text.as_str().unwrap()).unwrap()
}
