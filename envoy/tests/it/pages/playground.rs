//! The playground: its first run, settings by keyboard alone, and links that give the same run as the native simulator.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use weir_envoy::browser::{BACK_TAB, Browser, END, ENTER, LEFT, SPACE, TAB};
use weir_envoy::{Pages, binaries, ports};
use weir_simulator::report::series;
use weir_simulator::run::Expected;
use weir_simulator::scenarios::{self, link};

/// Serves the playground and starts a browser.
pub async fn playground() -> (Pages, Browser, String) {
    served(binaries::playground().unwrap().parent().unwrap()).await
}

/// Serves a folder that contains a playground, and starts a browser.
pub async fn served(folder: &Path) -> (Pages, Browser, String) {
    let pages = Pages::start(folder, ports::local(0)).await.unwrap();
    let url = format!("http://{}/", pages.address());
    let mut browser = Browser::start().await.unwrap();
    browser.requests().await.unwrap();
    (pages, browser, url)
}

/// Waits until `runs` runs have been shown since the page was loaded.
pub async fn ran(browser: &mut Browser, runs: usize) {
    let script = format!("return Number(document.body.dataset.runs ?? 0) >= {runs}");
    browser.until("the run is over", &script).await.unwrap();
}

pub async fn is_clean(browser: &mut Browser, url: &str) {
    assert_eq!(browser.console_errors().await.unwrap(), Vec::<String>::new());
    let requests = browser.requests().await.unwrap();
    assert!(!requests.is_empty() && requests.iter().all(|one| one.starts_with(url)), "{requests:?}");
}

/// Opens the settings that are closed at first.
pub async fn advanced(browser: &mut Browser) {
    // Not below the bar at the viewport's end.
    let centred = "document.querySelector('#advanced > summary').scrollIntoView({ block: 'center' })";
    browser.run(centred, &[]).await.unwrap();
    browser.click("#advanced > summary").await.unwrap();
    browser.until("they are open", "return document.getElementById('advanced').open").await.unwrap();
}

/// The run that the page offers to save.
pub async fn saved(browser: &mut Browser) -> Value {
    let script = "return fetch(document.getElementById('save').href).then(saved => saved.text())";
    let text = browser.run(script, &[]).await.unwrap();
    serde_json::from_str(text.as_str().unwrap()).unwrap()
}

/// Removes the sizes of tables in bytes, which depend on the machine: a browser's pointers are shorter.
fn without_bytes(mut recorded: Value) -> Value {
    let peaks = recorded["outcome"]["figures"]["peaks"].as_array_mut().unwrap();
    peaks.retain(|peak| !peak["what"].as_str().unwrap().contains("bytes"));
    recorded
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_run_is_seen_on_every_screen() {
    let (_pages, mut browser, url) = playground().await;
    browser.open(&url).await.unwrap();
    ran(&mut browser, 1).await;
    is_clean(&mut browser, &url).await;
    let heights = "return [...document.querySelectorAll('figure.plot')].map(plot => \
         [...plot.querySelectorAll('path.series')].filter(path => \
         new Set(path.getAttribute('d').match(/ [\\d.]+/g)).size > 8).length)";
    let drawn = browser.run(heights, &[]).await.unwrap();
    assert_eq!(drawn, json!([4, 2, 2]), "all lines rise and fall, but for limits");
    assert!(browser.text("#verdict").await.unwrap().starts_with("All invariants held"));

    // The plots show the values at the pointer; keys move to the next point.
    browser.hover("#plot-requests > svg", 0, 0).await.unwrap();
    let when = browser.text("#plot-snapshots .when").await.unwrap();
    assert!(when.starts_with("at "), "all plots show one moment: {when}");
    browser.run("document.querySelector('#plot-snapshots > svg').focus()", &[]).await.unwrap();
    browser.press(&[END, LEFT]).await.unwrap();
    let shown = "return document.activeElement.getAttribute('aria-valuetext')";
    let shown = browser.run(shown, &[]).await.unwrap();
    assert!(shown.as_str().unwrap().contains("True use "), "{shown}");
    browser.click("#points > summary").await.unwrap();
    let rows = "return document.querySelectorAll('#points-table tbody tr').length";
    browser.until("the table is there", &format!("{rows} > 50")).await.unwrap();
    let points = saved(&mut browser).await["series"]["points"].as_array().unwrap().len();
    assert_eq!(browser.run(rows, &[]).await.unwrap(), points);
    browser.click("#points > summary").await.unwrap();

    look_at(&mut browser, "playground").await;
    assert_eq!(browser.console_errors().await.unwrap(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_are_those_of_the_filter_and_the_keyboard_is_enough() {
    let (_pages, mut browser, url) = playground().await;
    browser.open(&format!("{url}#scenario=one-envoy&seed=3")).await.unwrap();
    ran(&mut browser, 1).await;
    let rule = |limit: &str| {
        json!({"name": "keys", "identifier": {"header": "x"}, "limit": limit, "window": "10s"}).to_string()
    };
    browser.fill("#rules", &rule("many")).await.unwrap();
    let shown = until_text(&mut browser, "#judged", "rules[0].limit").await;
    assert!(shown.contains("expected"), "{shown}");
    browser.screenshot("playground-error").await.unwrap();
    browser.click("#run").await.unwrap();
    until_text(&mut browser, "#status", "The limit has errors.").await;
    assert_eq!(browser.run("return document.activeElement.id", &[]).await.unwrap(), "rules");

    // A whole Envoy configuration. From here on the test only uses the keyboard.
    let config = json!({"aggregator": {"cluster": "weir"}, "rules": [
        {"name": "keys", "identifier": {"header": "x"}, "limit": 40, "window": "10s", "hard_limit": true}]});
    let envoy = format!(
        "static_resources:\n  listeners:\n  - http_filters:\n    - name: weir\n      typed_config:\n        \
         \"@type\": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm\n        config:\n          \
         name: weir\n          configuration:\n            \
         \"@type\": type.googleapis.com/google.protobuf.StringValue\n            value: '{config}'\n"
    );
    browser
        .run("rules.value = arguments[0]; rules.dispatchEvent(new Event('input'))", &[json!(envoy)])
        .await
        .unwrap();
    until_text(&mut browser, "#judged", "✓ keys: 40 in 10s, in any window").await;
    // The skip link changes neither the settings nor the page's address, which encodes them.
    browser.run("document.getElementById('skip').focus()", &[]).await.unwrap();
    browser.press(&[ENTER]).await.unwrap();
    assert_eq!(browser.run("return document.activeElement.id", &[]).await.unwrap(), "results");
    assert_eq!(browser.run("return rules.value", &[]).await.unwrap(), envoy.as_str());
    browser.until("the address is the plan's", "return location.hash.startsWith('#plan=')").await.unwrap();
    browser.run("document.getElementById('rules').focus()", &[]).await.unwrap();
    // Past the button that copies the rule, through the regions and Envoys and back, then on to a fault.
    browser.press(&[TAB, TAB, TAB, "2", BACK_TAB, TAB]).await.unwrap();
    until_focus(&mut browser, "add-fault").await;
    browser.press(&[ENTER]).await.unwrap();
    assert_eq!(browser.run("return document.activeElement.value", &[]).await.unwrap(), "Cut");
    until_focus(&mut browser, "run").await;
    browser.press(&[SPACE]).await.unwrap();
    ran(&mut browser, 2).await;
    assert_eq!(
        browser.run("return document.activeElement.id", &[]).await.unwrap(),
        "run",
        "focus comes back"
    );
    let key = saved(&mut browser).await["series"]["key"].clone();
    assert_eq!((&key["limit"], &key["window_ms"]), (&json!(40), &json!(10_000)));
    is_clean(&mut browser, &url).await;
}

/// Takes screenshots (wide, dark, phone) and checks that the layout fits.
pub async fn look_at(browser: &mut Browser, name: &str) {
    for (look, width, dark) in [("wide", 1280, false), ("dark", 1280, true), ("phone", 360, false)] {
        browser.size(width, 900).await.unwrap();
        browser.dark(dark).await.unwrap();
        let fits = "return document.querySelector('.plot > svg').getBoundingClientRect().right < innerWidth";
        browser.until("plots fit", fits).await.unwrap();
        let beside = "return document.documentElement.scrollWidth - document.documentElement.clientWidth";
        assert_eq!(browser.run(beside, &[]).await.unwrap(), 0, "nothing lies beside the page");
        let ground =
            browser.run("return getComputedStyle(document.body).backgroundColor", &[]).await.unwrap();
        assert_eq!(ground == "rgb(14, 19, 26)", dark, "{ground}");
        // The viewport is as high as the page, so that elements fixed to its end appear at the end of the page.
        let high = browser.run("return document.documentElement.scrollHeight", &[]).await.unwrap();
        browser.size(width, u32::try_from(high.as_u64().unwrap()).unwrap()).await.unwrap();
        browser.screenshot(&format!("{name}-{look}")).await.unwrap();
    }
    browser.size(1280, 900).await.unwrap();
    browser.dark(false).await.unwrap();
}

/// Waits until the text of an element contains `part`, and returns the text.
pub async fn until_text(browser: &mut Browser, selector: &str, part: &str) -> String {
    let text = format!("document.querySelector({})?.innerText", json!(selector));
    let script = format!("return {text}?.includes({}) && {text}", json!(part));
    let found = browser.until(&format!("{selector} contains {part}"), &script).await;
    found.unwrap().as_str().unwrap().to_owned()
}

/// Presses Tab until this element has the focus.
async fn until_focus(browser: &mut Browser, id: &str) {
    for _ in 0..60 {
        browser.press(&[TAB]).await.unwrap();
        if browser.run("return document.activeElement.id", &[]).await.unwrap() == id {
            return;
        }
    }
    panic!("no way to {id} by Tab");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_give_the_very_run_of_the_native_simulator() {
    let (_pages, mut browser, url) = playground().await;
    let random = (scenarios::RANDOM.plan)(11);
    let wipe = scenarios::find("wipe-redis").unwrap();
    let (mut runs, mut link) = (0, Value::Null);
    for (fragment, plan, expected) in [
        (link::of_scenario("random", 11), random.clone(), (scenarios::RANDOM.expected)(&random)),
        (link::of_plan(&random), random.clone(), Expected::default()),
        (link::of_scenario(wipe.name, u64::MAX), (wipe.plan)(u64::MAX), Expected::default()),
    ] {
        browser.open(&format!("{url}#{fragment}")).await.unwrap();
        runs += 1;
        ran(&mut browser, runs).await;
        let native = serde_json::to_string(&series::record(&plan, &expected, &mut |_| {})).unwrap();
        let native: Value = serde_json::from_str(&native).unwrap();
        let native = without_bytes(native);
        assert_eq!(without_bytes(saved(&mut browser).await), native, "{fragment}");
        let admitted = native["outcome"]["comparison"]["admitted"].as_u64().unwrap();
        let shown = browser.text("#judges tbody tr td").await.unwrap();
        assert_eq!(shown.replace(',', ""), admitted.to_string());
        link = browser.run("return location.hash.slice(1)", &[]).await.unwrap();
        assert_eq!(link, fragment, "an unchanged link stays");
    }
    // A change results in another link, which opens with that change.
    browser.fill("#envoys", "2").await.unwrap();
    let changed =
        format!("return location.hash != '#{link}' && location.hash", link = link.as_str().unwrap());
    let link = browser.until("the link is another", &changed).await.unwrap();
    assert_eq!(link::read(link.as_str().unwrap()).unwrap().topology.envoys, 2);

    browser.open(&format!("{url}#plan=broken")).await.unwrap();
    browser
        .until("the error is shown", "return document.getElementById('status').className == 'wrong'")
        .await
        .unwrap();
    assert!(browser.text("#status").await.unwrap().contains("the link"));
    // A long run can be cancelled, and the next run starts.
    browser.open(&format!("{url}#scenario=day&seed=1")).await.unwrap();
    browser.until("it runs", "return !document.getElementById('cancel').hidden").await.unwrap();
    browser.click("#cancel").await.unwrap();
    assert_eq!(browser.text("#status").await.unwrap(), "Cancelled.");
    browser.open(&format!("{url}#scenario=one-envoy&seed=1")).await.unwrap();
    ran(&mut browser, runs + 1).await;
    is_clean(&mut browser, &url).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn presets_answer_in_one_line_and_their_rules_are_accepted() {
    let (_pages, mut browser, url) = playground().await;
    browser.open(&url).await.unwrap();
    ran(&mut browser, 1).await;
    let chosen = "return document.querySelector('#presets input:checked')?.value ?? null";
    assert_eq!(browser.run(chosen, &[]).await.unwrap(), "api-key", "a first visit has the first preset");
    for (runs, (preset, title, expected)) in (2..).zip([
        ("login", "A burst of logins", "limit 10 a minute → worst minute "),
        ("redis", "Redis is down", "limit 600 a minute → worst minute "),
        ("region", "A region is cut off", "limit 600 a minute → worst minute "),
        ("api-key", "An API key over three Envoys", "limit 600 a minute → worst minute "),
    ]) {
        browser.click(&format!("#presets input[value={preset}]")).await.unwrap();
        ran(&mut browser, runs).await;
        let label = "return document.querySelector('#presets label:has(:checked)').textContent";
        assert_eq!(browser.run(label, &[]).await.unwrap(), title);
        let headline = browser.text("#headline").await.unwrap();
        let worst: u64 = headline.strip_prefix(expected).unwrap().replace(',', "").parse().unwrap();
        let file = saved(&mut browser).await;
        let (comparison, key) = (&file["outcome"]["comparison"], &file["series"]["key"]);
        let share = comparison["worst_window"].as_f64().unwrap();
        assert_eq!(worst, (share * key["limit"].as_f64().unwrap()).round() as u64, "{headline}");
        assert!(browser.text("#verdict").await.unwrap().starts_with("All invariants held"), "{preset}");
        accepted(&copied(&mut browser).await);
    }
    // The page of a preset is opened again by its link.
    browser.click("#presets input[value=redis]").await.unwrap();
    ran(&mut browser, 6).await;
    let link = browser.run("return location.href", &[]).await.unwrap();
    browser.open(&url).await.unwrap();
    browser.open(link.as_str().unwrap()).await.unwrap();
    browser.until("the preset is known", &format!("{chosen} === 'redis'")).await.unwrap();

    // What was pasted is copied with all its fields, though only some are simulated.
    let rule = json!({"name": "on", "match": {"path": {"prefix": "/v1/"}}, "identifier": {"header": "x-key"}, "limit": 7,
        "window": "1m", "overrides": [{"identifier": "pro: *", "limit": 70}], "response": {"body": "it's #1\nno"}});
    browser.fill("#rules", &rule.to_string()).await.unwrap();
    until_text(&mut browser, "#judged", "✓ on: 7 in 1m").await;
    browser
        .run("navigator.clipboard.writeText = () => Promise.reject(new Error('denied'))", &[])
        .await
        .unwrap();
    let yaml = copied(&mut browser).await;
    let config = accepted(&yaml);
    assert_eq!(config["rules"], json!([rule]), "{yaml}");
    let selected = browser.run("return getSelection().toString()", &[]).await.unwrap();
    assert_eq!(selected.as_str().unwrap().trim_end(), yaml.trim_end(), "it can be copied by hand");
    browser.fill("#rules", "{}").await.unwrap();
    browser
        .until("there is nothing to copy", "return document.getElementById('copy-rule').disabled")
        .await
        .unwrap();
    is_clean(&mut browser, &url).await;
}

/// The YAML that the button copies.
async fn copied(browser: &mut Browser) -> String {
    browser.click("#copy-rule").await.unwrap();
    let yaml = "const yaml = document.getElementById('yaml'); return !yaml.hidden && yaml.textContent";
    browser
        .until(
            "the rule is copied",
            "return document.getElementById('status').textContent.startsWith('The rule')",
        )
        .await
        .unwrap();
    browser.run(yaml, &[]).await.unwrap().as_str().unwrap().to_owned()
}

/// The configuration, which check-config accepts.
fn accepted(yaml: &str) -> Value {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(yaml.as_bytes()).unwrap();
    let check =
        Command::new(binaries::aggregator().unwrap()).arg("check-config").arg(file.path()).output().unwrap();
    assert!(check.status.success(), "{yaml}\n{}", String::from_utf8_lossy(&check.stderr));
    weir_envoy::yaml(yaml).unwrap()
}
