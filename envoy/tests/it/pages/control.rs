//! The status page's search, live control and commands, with a real Envoy: hostile identifiers stay text, and the commands that the
//! page offers are run by a real shell.

use serde_json::{Value, json};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use weir_envoy::browser::{Browser, DOWN, ENTER, ESCAPE, TAB};
use weir_envoy::http::{self, Request};
use weir_envoy::{
    Aggregator, AggregatorOptions, Envoy, EnvoyOptions, Filter, Weir, binaries, bootstrap, wait,
};

use super::window::window;

const LIMIT: u64 = 4;
const SOON: Duration = Duration::from_secs(20);
const GRAFANA: &str = "https://grafana.example.com/d/weir";
/// Identifiers that a shell, a browser or an option's parser would take for something else.
const HOSTILE: [&str; 7] = [
    "x'; touch pwned; echo '",
    "$(touch pwned)`touch pwned`",
    "--yes",
    "* ? [a-z] !x ~",
    r#"a"b\\c"#,
    "<script>document.title='hacked'</script>",
    "left\u{202e}right \u{200b}",
];

/// A region with a database and an Envoy.
struct Region {
    aggregator: Aggregator,
    envoy: Envoy,
    browser: Browser,
    folder: tempfile::TempDir,
}

impl Region {
    async fn start() -> Region {
        let folder = tempfile::tempdir().unwrap();
        let database = format!("sqlite://{}", folder.path().join("weir.db").display());
        let arguments =
            ["--test-schedule", "--migrate", "--grafana-url", GRAFANA].map(str::to_owned).to_vec();
        let environment = vec![("WEIR_DATABASE_URL".to_owned(), database)];
        let options = AggregatorOptions { arguments, environment, ..AggregatorOptions::default() };
        let aggregator = Aggregator::start(options).await.unwrap();
        let identifier = json!({ "header": "x-key" });
        let login = json!({ "path": { "prefix": "/login" } });
        let config = json!({ "aggregator": { "cluster": bootstrap::AGGREGATOR_CLUSTER }, "rules": [
            { "name": "per-client", "identifier": identifier, "limit": LIMIT, "window": window() },
            { "name": "logins", "match": login, "identifier": identifier, "limit": 2, "window": window(),
              "algorithm": "sliding_log" },
        ] });
        let filter = Filter::Weir(Weir::new(binaries::filter().unwrap(), config));
        let aggregator_ports = vec![aggregator.grpc_port()];
        let envoy =
            Envoy::start(EnvoyOptions { filter, aggregator_ports, ..EnvoyOptions::default() }).await.unwrap();
        symlink(binaries::aggregator().unwrap(), folder.path().join("weir-aggregator")).unwrap();
        let mut browser = Browser::start().await.unwrap();
        browser.requests().await.unwrap();
        let mut region = Region { aggregator, envoy, browser, folder };
        region.open("#/").await;
        let reported = "return document.querySelectorAll('.rule-row').length === 2";
        region.browser.until("the rules are reported", reported).await.unwrap();
        region
    }

    async fn open(&mut self, fragment: &str) {
        let url = format!("http://{}/{fragment}", self.aggregator.admin_address());
        self.browser.open(&url).await.unwrap();
    }

    async fn key(&mut self, identifier: &str) {
        let place: String = identifier.bytes().map(|byte| format!("%{byte:02X}")).collect();
        self.open(&format!("#/key?namespace=per-client&identifier={place}")).await;
    }

    async fn send(&self, path: &str, key: &str) -> u16 {
        http::send(self.envoy.address(), Request::get(path).header("x-key", key)).await.unwrap().status
    }

    /// Waits until a request passes. What the page shows is in force in the aggregator, and reaches Envoy with the next message.
    async fn passes(&self, path: &str, key: &str) {
        let passed = async || self.send(path, key).await == 200;
        wait::until("Envoy admits a request", SOON, passed).await.unwrap();
    }

    async fn put(&self, body: Value) {
        let mut request =
            Request::post("/v1/overrides", body.to_string()).header("content-type", "application/json");
        request.method = "PUT".parse().unwrap();
        let answer = http::send(self.aggregator.http_address(), request).await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    /// The commands that the page offers, by what they do.
    async fn commands(&mut self) -> Vec<(String, String)> {
        let script = "const items = [...document.querySelectorAll('ol.commands > li')]; return items.length > 0 && \
            items.map(one => [one.querySelector('.what').firstChild.textContent, one.querySelector('code').textContent])";
        let found = self.browser.until("there are commands", script).await.unwrap();
        serde_json::from_value(found).unwrap()
    }

    /// Runs a command as a person would who pastes it into a shell.
    fn paste(&self, command: &str) {
        let path = format!("{}:{}", self.folder.path().display(), std::env::var("PATH").unwrap());
        let output = Command::new("bash")
            .args(["-c", command])
            .current_dir(self.folder.path())
            .env("PATH", path)
            .env("LC_ALL", "C.UTF-8")
            .env("WEIR_API_URL", format!("http://{}", self.aggregator.http_address()))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{command}\n{text}");
        assert!(!Path::new(&self.folder.path().join("pwned")).exists(), "{command} ran something else");
    }

    async fn is_clean(&mut self) {
        assert_eq!(self.browser.console_errors().await.unwrap(), Vec::<String>::new());
        let own = format!("http://{}/", self.aggregator.admin_address());
        let requests = self.browser.requests().await.unwrap();
        assert!(requests.iter().all(|url| url.starts_with(&own)), "{requests:?}");
        assert!(
            !self
                .browser
                .run("return document.title", &[])
                .await
                .unwrap()
                .as_str()
                .unwrap()
                .contains("hacked")
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_of_the_page_lift_bans_and_raise_limits_of_hostile_identifiers() {
    let mut region = Region::start().await;
    bans_are_lifted(&mut region).await;
    a_limit_is_raised(&mut region).await;

    // A ban by a pattern: for all, or for this key alone.
    region.put(json!({"namespace": "*", "identifier": "crawler-*", "ban": true, "reason": "scraping"})).await;
    region.key("crawler-7").await;
    let commands = region.commands().await;
    assert_eq!(commands[1].0, "Admit this key alone, within its limit", "{commands:?}");
    region.paste(&commands[1].1);
    region
        .browser
        .until("it passes", "return document.querySelector('.verdict')?.textContent.includes('would pass')")
        .await
        .unwrap();
    the_button_copies(&mut region).await;

    // An exact log has commands as well.
    for expected in [200, 200, 429] {
        assert_eq!(region.send("/login", "dora").await, expected);
    }
    region.open("#/key?namespace=logins&identifier=dora").await;
    let verdict = "return document.querySelector('.exact .verdict')?.textContent.includes('denied')";
    region.browser.until("the log is shown", verdict).await.unwrap();
    let facts = region.browser.text(".exact").await.unwrap();
    assert!(facts.contains("2 of 2 used (100 %)") && facts.contains("Exact log"), "{facts}");
    region.browser.screenshot("control-exact").await.unwrap();
    let commands = region.commands().await;
    region.paste(&commands[0].1);
    let passes = "return document.querySelector('.exact .verdict').textContent.includes('would pass')";
    region.browser.until("the log admits it", passes).await.unwrap();
    region.passes("/login", "dora").await;
    region.is_clean().await;
}

async fn bans_are_lifted(region: &mut Region) {
    for identifier in HOSTILE {
        // As a target, a star is written \* and stands for itself.
        let name = identifier.replace('*', r"\*");
        region
            .put(json!({"namespace": "per-client", "identifier": name, "ban": true, "reason": "it's <b>"}))
            .await;
        region.key(identifier).await;
        let commands = region.commands().await;
        assert_eq!(commands[0].0, "Lift the ban", "{commands:?}");
        let once = "return document.querySelector('main').textContent.split('Banned permanently').length - 1";
        assert_eq!(region.browser.run(once, &[]).await.unwrap(), 1, "live control is stated once");
        assert!(!commands[0].1.contains('\u{202e}'), "what cannot be seen is spelt out: {commands:?}");
        region.paste(&commands[0].1);
        region
            .browser
            .until(
                "the ban is lifted",
                "return document.querySelector('ol.commands') && \
            !document.body.textContent.includes('Banned permanently')",
            )
            .await
            .unwrap();
    }
}

/// At its limit, a key is denied until its limit is raised. The reason is quoted too.
async fn a_limit_is_raised(region: &mut Region) {
    let key = HOSTILE[0];
    for request in 0..LIMIT + 2 {
        assert_eq!(region.send("/", key).await == 200, request < LIMIT, "{request}");
    }
    region.key(key).await;
    let commands = region.commands().await;
    let whats: Vec<&str> = commands.iter().map(|(what, _)| what.as_str()).collect();
    assert_eq!(
        whats,
        [
            "Double the limit for a day",
            "Grant the limit once more, for an hour",
            "Start counting at zero, in all regions"
        ]
    );
    region.browser.fill("#reason", "ticket 'x' $(touch pwned)").await.unwrap();
    let shown = region
        .browser
        .until(
            "the reason is in the command",
            "const code = document.querySelector('.command code'); \
        return code.textContent.includes('ticket') && code.textContent",
        )
        .await
        .unwrap();
    region.browser.screenshot("control-commands").await.unwrap();
    the_reason_is_on_the_first_screen_of_a_phone(region).await;
    region.paste(shown.as_str().unwrap());
    let passes = "return document.querySelector('.verdict')?.textContent.includes('would pass. 4 left')";
    region.browser.until("the limit is raised", passes).await.unwrap();
    region.passes("/", key).await;
}

/// Above what can be done about it. Times have a zone.
async fn the_reason_is_on_the_first_screen_of_a_phone(region: &mut Region) {
    region.browser.size(390, 844).await.unwrap();
    let reason = "const list = document.querySelector('.reasons'); return !list.hidden && \
        list.textContent.includes('A request of cost 1 would be denied. It would pass again in') && list.getBoundingClientRect().bottom <= innerHeight";
    region.browser.until("the reason is on the first screen", reason).await.unwrap();
    region.browser.screenshot("control-reason-phone").await.unwrap();
    let zone = "return document.querySelector('footer').innerText";
    let footer = region.browser.run(zone, &[]).await.unwrap();
    assert!(
        footer.as_str().unwrap().contains("Times are in ") && footer.as_str().unwrap().contains("UTC"),
        "{footer}"
    );
    region.browser.size(1_200, 900).await.unwrap();
}

/// The button copies what is shown, and selects it where the clipboard may not be used.
async fn the_button_copies(region: &mut Region) {
    region.key("crawler-8").await;
    let command = region.commands().await[0].1.clone();
    let spy = "window.copied = null; navigator.clipboard.writeText = async text => { window.copied = text }";
    region.browser.run(spy, &[]).await.unwrap();
    region.browser.click(".copy").await.unwrap();
    region
        .browser
        .until("it says so", "return document.querySelector('.copy').textContent === 'Copied'")
        .await
        .unwrap();
    assert_eq!(region.browser.run("return window.copied", &[]).await.unwrap(), command);
    region
        .browser
        .run("navigator.clipboard.writeText = () => Promise.reject(new Error('denied'))", &[])
        .await
        .unwrap();
    region
        .browser
        .until("it may be used again", "return document.querySelector('.copy').textContent === 'Copy'")
        .await
        .unwrap();
    region.browser.click(".copy").await.unwrap();
    region
        .browser
        .until("it says so", "return document.querySelector('.copy').textContent !== 'Copy'")
        .await
        .unwrap();
    assert_eq!(region.browser.run("return getSelection().toString().trim()", &[]).await.unwrap(), command);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn live_control_is_searched_listed_and_traced() {
    let mut region = Region::start().await;
    for (at, identifier) in HOSTILE.iter().enumerate() {
        let name = identifier.replace('*', r"\*");
        region
            .put(json!({"namespace": "per-client", "identifier": name, "ban": true, "reason": HOSTILE[at],
            "expires_in": "1h", "author": "<i>ann</i>"}))
            .await;
    }
    region.put(json!({"namespace": "*", "network": "203.0.113.0/24", "exempt": true, "author": "bob"})).await;
    region.put(json!({"rule": "logins", "shadow": false, "reason": "it denies again"})).await;
    for _ in 0..2 {
        region.send("/login", "alice").await;
        region.send("/", "alice").await;
    }
    // The overview has the bans.
    region
        .browser
        .until(
            "the bans are counted",
            "return [...document.querySelectorAll('.figure')].some(one => \
        one.textContent.includes('Bans in force') && one.querySelector('.value').textContent === '7')",
        )
        .await
        .unwrap();
    assert_eq!(
        region.browser.run("return document.querySelectorAll('.bans li').length", &[]).await.unwrap(),
        5
    );
    region.browser.screenshot("control-overview").await.unwrap();

    the_search_finds_keys_and_control(&mut region).await;
    a_search_that_is_no_longer_wanted_ends(&mut region).await;

    the_tab_lists_what_is_in_force(&mut region).await;

    // The audit has each change, and a later one appears by itself.
    let changes = "return document.querySelectorAll('tbody')[1].querySelectorAll('tr').length";
    region.browser.until("all changes", &format!("{changes} === 9")).await.unwrap();
    region.paste("weir-aggregator overrides delete --rule logins --reason done");
    region.browser.until("the deletion", &format!("{changes} === 10")).await.unwrap();
    let newest = region.browser.text("tbody tr:has(.c-after)").await.unwrap();
    assert!(
        newest.contains("deleted") && newest.contains("shadow off") && newest.contains("done"),
        "{newest}"
    );

    terms_are_explained(&mut region).await;

    // Grafana and the documentation.
    let link =
        "return document.getElementById('grafana').hidden ? null : document.getElementById('grafana').href";
    assert_eq!(region.browser.run(link, &[]).await.unwrap(), GRAFANA);
    let docs = "return Promise.all([...document.querySelectorAll('footer a:not(#grafana)')].map(link => fetch(link.href).then(page => page.status)))";
    assert_eq!(region.browser.run(docs, &[]).await.unwrap(), json!([200, 200, 200, 200, 200]));

    the_page_fits_a_phone(&mut region).await;
    region.is_clean().await;
}

/// The search comes first on the page, and finds keys and control.
async fn the_search_finds_keys_and_control(region: &mut Region) {
    let first = "return document.querySelector('input, select, textarea').id";
    assert_eq!(region.browser.run(first, &[]).await.unwrap(), "search");
    region.browser.press(&["/", "ALI"]).await.unwrap();
    let found = "const rows = [...document.querySelectorAll('#found a.row')].map(row => row.textContent); \
        return rows.length > 3 && rows";
    let rows = region.browser.until("keys are found", found).await.unwrap();
    assert_eq!(rows.as_array().unwrap()[..2], [json!("alice"), json!("alice")], "{rows}");
    let text = region.browser.text("#found").await.unwrap();
    assert!(
        text.contains("exact log of")
            && text.contains("window of")
            && text.contains("Explain “ALI” in namespace"),
        "{text}"
    );
    region.browser.screenshot("control-search").await.unwrap();
    region.browser.press(&[DOWN]).await.unwrap();
    assert_eq!(region.browser.run("return document.activeElement.textContent", &[]).await.unwrap(), "alice");
    region.browser.press(&[ESCAPE]).await.unwrap();
    assert_eq!(
        region.browser.run("return document.getElementById('found').hidden", &[]).await.unwrap(),
        true
    );
    region.browser.fill("#search", "pwned").await.unwrap();
    region
        .browser
        .until(
            "control is found",
            "return document.getElementById('found').textContent.includes('touch pwned')",
        )
        .await
        .unwrap();
}

/// Enter opens the first that is found.
async fn a_search_that_is_no_longer_wanted_ends(region: &mut Region) {
    let slow = "window.answered = window.fetch; window.begun = 0; window.ended = 0; window.fetch = (path, options) => {
        if (!path.endsWith('text=slow')) return window.answered(path, options);
        window.begun += 1;
        return new Promise((_, reject) => options.signal.addEventListener('abort', () => {
            window.ended += 1;
            reject(options.signal.reason);
        }));
    }";
    region.browser.run(slow, &[]).await.unwrap();
    region.browser.fill("#search", "slow").await.unwrap();
    region.browser.until("it has begun", "return window.begun === 2").await.unwrap();
    region.browser.fill("#search", "alice").await.unwrap();
    region.browser.until("it has ended", "return window.ended === 2").await.unwrap();
    region.browser.press(&[ENTER]).await.unwrap();
    region
        .browser
        .until("the key is opened", "return document.querySelector('h1.identifier')?.textContent === 'alice'")
        .await
        .unwrap();
}

/// By whom, why, and until when.
async fn the_tab_lists_what_is_in_force(region: &mut Region) {
    region.browser.press(&["4"]).await.unwrap();
    let rows =
        "return document.querySelectorAll('.panel:not([hidden]) tbody')[0]?.querySelectorAll('tr').length";
    region.browser.until("all is listed", &format!("{rows} === 9")).await.unwrap();
    let text = region.browser.text("main").await.unwrap();
    for part in [
        "<i>ann</i> (unverified)",
        "bob (unverified)",
        HOSTILE[0],
        HOSTILE[5],
        r"left\u{202e}right \u{200b}",
        "rule logins",
        "shadow off",
        "203.0.113.0/24",
        "no end",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    let inert = "return document.querySelectorAll('main i, main script, main b').length";
    assert_eq!(region.browser.run(inert, &[]).await.unwrap(), 0, "texts are text");
    region.browser.screenshot("control-overrides").await.unwrap();
    region.browser.click(".segments input[value=exempt] + span").await.unwrap();
    region.browser.until("one kind", &format!("{rows} === 1")).await.unwrap();
    region.browser.click(".segments input[value=''] + span").await.unwrap();
    region.browser.fill("#filter", "Denies AGAIN").await.unwrap();
    region.browser.until("by reason", &format!("{rows} === 1")).await.unwrap();
    region.browser.fill("#filter", "nobody").await.unwrap();
    region
        .browser
        .until(
            "none",
            "return document.querySelector('.panel .empty').textContent.includes('Nothing of that')",
        )
        .await
        .unwrap();
}

/// At the focus, and under the pointer.
async fn terms_are_explained(region: &mut Region) {
    region.open("#/").await;
    region.browser.until("the overview", "return document.querySelector('.figure .term')").await.unwrap();
    region.browser.run("document.querySelector('[data-term=shadow]').focus()", &[]).await.unwrap();
    let tip = "const tip = document.getElementById('tip'); return tip.hidden ? null : tip.textContent";
    assert_eq!(region.browser.run(tip, &[]).await.unwrap(), "A rule that counts but never denies.");
    let described = "return document.activeElement.getAttribute('aria-describedby')";
    assert_eq!(region.browser.run(described, &[]).await.unwrap(), "tip");
    region.browser.press(&[ESCAPE]).await.unwrap();
    assert_eq!(region.browser.run(tip, &[]).await.unwrap(), Value::Null);
    region.browser.hover("[data-term=key]", 0, 0).await.unwrap();
    region.browser.until("under the pointer", "return !document.getElementById('tip').hidden").await.unwrap();
    region.browser.press(&[TAB]).await.unwrap();
}

/// Light and dark, and all text can be read.
async fn the_page_fits_a_phone(region: &mut Region) {
    for (dark, fragment) in
        [(false, "#/overrides"), (true, "#/overrides"), (true, "#/key?namespace=per-client&identifier=--yes")]
    {
        region.browser.dark(dark).await.unwrap();
        region.browser.size(360, 740).await.unwrap();
        region.open(&format!("?phone{dark}{fragment}")).await;
        region.browser.until("it is shown", "return document.querySelectorAll('tbody tr, ol.commands li').length > 0 && document.querySelector('.panel')").await.unwrap();
        assert_eq!(
            region.browser.run("return document.documentElement.scrollWidth <= 360", &[]).await.unwrap(),
            true,
            "{fragment}"
        );
        let faint = region.browser.run(CONTRAST, &[]).await.unwrap();
        assert_eq!(faint, json!([]), "{fragment}, dark: {dark}");
        region.browser.screenshot(&format!("control-phone-{dark}-{}", fragment.len())).await.unwrap();
    }
}

/// Texts whose contrast with their ground is below 4.5 (WCAG 2.2, 1.4.3).
const CONTRAST: &str = "const rgb = text => text.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => [r, g, b].map(one => one / 255).map(one => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
        .reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0);
    const ground = element => { for (let at = element; at; at = at.parentElement) {
        const colour = rgb(getComputedStyle(at).backgroundColor); if (colour.length < 4 || colour[3] === 1) return colour; } return [255, 255, 255]; };
    const faint = [];
    for (const element of document.querySelectorAll('main *, footer *, header *')) {
        if (![...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim()) || element.offsetParent === null) continue;
        const [one, other] = [light(rgb(getComputedStyle(element).color)), light(ground(element))].sort((a, b) => b - a);
        if ((one + 0.05) / (other + 0.05) < 4.5) faint.push(element.className + ': ' + element.textContent.slice(0, 40));
    }
    return faint;";
