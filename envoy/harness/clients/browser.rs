//! A headless Chromium for the tests of pages. It is driven through chromedriver by the WebDriver protocol (W3C), and by
//! Chromium's own protocol (CDP) for what WebDriver lacks.
//!
//! ```no_run
//! # async fn test(address: &str) -> anyhow::Result<()> {
//! use weir_envoy::browser::{Browser, TAB, ENTER};
//! let mut browser = Browser::start().await?;               // has its own profile and driver, removed when dropped
//! browser.open(&format!("http://{address}/")).await?;      // waits for the page's load event
//! browser.until("rows", "return document.querySelectorAll('tr').length > 3").await?;   // a value that is truthy
//! browser.fill("#limit", "10").await?;                     // replaces the value of a field, by typing
//! browser.click("#run").await?;                            // fails if another element covers it
//! browser.press(&[TAB, ENTER]).await?;                     // goes to the element with the focus
//! let text = browser.text("#result").await?;               // as rendered
//! let width = browser.run("return document.documentElement.scrollWidth", &[]).await?;  // any script, with arguments
//! browser.size(360, 740).await?;                           // a phone; and `browser.dark(true)`
//! browser.screenshot("page-phone").await?;                 // the whole page, to target/screenshots/page-phone.png
//! assert_eq!(browser.console_errors().await?, Vec::<String>::new());       // console warnings and errors since the last call
//! assert!(browser.requests().await?.iter().all(|url| url.contains(address)));  // all that was requested since the last call
//! # Ok(()) }
//! ```
//!
//! A name that is not this machine's resolves to nothing in it. The programs are named by `WEIR_CHROMIUM` and `WEIR_CHROMEDRIVER`,
//! which `envoy/tools/install/browser.sh` finds or installs.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use base64::prelude::{BASE64_STANDARD, Engine};
use hyper::Method;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::clients::http::{self, Request};
use crate::processes::process::Process;
use crate::processes::{binaries, ports, wait};

/// Keys for [`Browser::press`], as WebDriver's code points. Other text stands for the keys that type it.
pub const TAB: &str = "\u{e004}";
pub const ENTER: &str = "\u{e007}";
pub const SPACE: &str = " ";
pub const ESCAPE: &str = "\u{e00c}";
pub const LEFT: &str = "\u{e012}";
pub const UP: &str = "\u{e013}";
pub const RIGHT: &str = "\u{e014}";
pub const DOWN: &str = "\u{e015}";
pub const END: &str = "\u{e010}";
pub const HOME: &str = "\u{e011}";
/// Shift and Tab together.
pub const BACK_TAB: &str = "\u{e008}\u{e004}";

const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How long [`Browser::until`] polls.
const UNTIL_TIMEOUT: Duration = Duration::from_secs(60);
/// The JSON member that identifies an element in WebDriver.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";
/// A narrower viewport is emulated as a phone, where a page's viewport meta tag applies.
const PHONE_WIDTH: u32 = 600;

/// A browser with one tab.
pub struct Browser {
    // Declared before `folder`, because the driver must end before its folder is removed.
    driver: Process,
    address: SocketAddr,
    session: String,
    folder: TempDir,
}

impl Browser {
    /// Starts one, 1280 pixels wide.
    pub async fn start() -> Result<Self> {
        let chromium = binaries::from_environment("WEIR_CHROMIUM")?;
        let folder = tempfile::tempdir()?;
        let address = ports::local(ports::free()?);
        let mut command = Command::new(binaries::from_environment("WEIR_CHROMEDRIVER")?);
        // The files that Chromium writes outside its profile also stay in the folder.
        command
            .arg(format!("--port={}", address.port()))
            .env("HOME", folder.path())
            .env("TMPDIR", folder.path());
        let mut driver = Process::spawn("chromedriver", command, folder.path())?;
        driver.wait_for("chromedriver listens", START_TIMEOUT, async || is_ready(address).await).await?;
        let mut browser = Self { driver, address, session: String::new(), folder };
        let options = browser.capabilities(&chromium);
        let session = browser.call(Method::POST, "/session", options).await.context("starting Chromium")?;
        browser.session = session["sessionId"].as_str().context("a session has an id")?.to_owned();
        browser.size(1280, 900).await?;
        Ok(browser)
    }

    fn capabilities(&self, chromium: &std::path::Path) -> Value {
        let profile = self.folder.path().join("profile");
        let arguments = [
            "--headless=new".to_owned(),
            // Tests run as root in containers, where namespaces are unavailable and shared memory is small.
            "--no-sandbox".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            "--disable-gpu".to_owned(),
            "--disable-background-networking".to_owned(),
            "--disable-component-update".to_owned(),
            "--disable-crash-reporter".to_owned(),
            "--disable-extensions".to_owned(),
            "--no-first-run".to_owned(),
            "--force-color-profile=srgb".to_owned(),
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost".to_owned(),
            format!("--user-data-dir={}", profile.display()),
            "about:blank".to_owned(),
        ];
        json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            "goog:chromeOptions": {"binary": chromium, "args": arguments},
        }}})
    }

    /// Opens a page and waits until it has loaded. If the URL differs only in the fragment, the page is not loaded
    /// again.
    pub async fn open(&mut self, url: &str) -> Result<()> {
        self.post("/url", json!({"url": url})).await.map(drop)
    }

    /// Runs `script` as the body of a function and returns its result, after awaiting a promise. `arguments` are the
    /// function's `arguments`.
    pub async fn run(&mut self, script: &str, arguments: &[Value]) -> Result<Value> {
        let sent = json!({"script": script, "args": arguments});
        self.post("/execute/sync", sent).await.with_context(|| script.to_owned())
    }

    /// Runs `script` repeatedly until it returns a truthy value, and returns that. Fails with `what` after a minute.
    pub async fn until(&mut self, what: &str, script: &str) -> Result<Value> {
        wait::until_some(what, UNTIL_TIMEOUT, async || {
            let value = self.run(script, &[]).await?;
            let nothing =
                matches!(&value, Value::Null | Value::Bool(false)) || value == json!(0) || value == json!("");
            Ok((!nothing).then_some(value))
        })
        .await
    }

    /// The rendered text of the first element that a CSS selector matches.
    pub async fn text(&mut self, selector: &str) -> Result<String> {
        let element = self.find(selector).await?;
        let sent = self.get(&format!("/element/{element}/text")).await?;
        Ok(sent.as_str().unwrap_or_default().to_owned())
    }

    /// Scrolls an element into view and clicks it.
    pub async fn click(&mut self, selector: &str) -> Result<()> {
        let element = self.find(selector).await?;
        self.post(&format!("/element/{element}/click"), json!({}))
            .await
            .map(drop)
            .with_context(|| selector.to_owned())
    }

    /// Replaces the value of a field.
    pub async fn fill(&mut self, selector: &str, text: &str) -> Result<()> {
        let element = self.find(selector).await?;
        self.post(&format!("/element/{element}/clear"), json!({})).await?;
        self.post(&format!("/element/{element}/value"), json!({"text": text})).await.map(drop)
    }

    /// Presses keys one after the other; they go to the element with the focus.
    pub async fn press(&mut self, keys: &[&str]) -> Result<()> {
        let mut actions = Vec::new();
        for key in keys {
            // The keys of a chord are released in reverse order. The keys of a text are pressed and released one by
            // one.
            let chord = *key == BACK_TAB;
            let parts: Vec<String> = key.chars().map(String::from).collect();
            let down = |part: &String| json!({"type": "keyDown", "value": part});
            let up = |part: &String| json!({"type": "keyUp", "value": part});
            if chord {
                actions.extend(parts.iter().map(down).chain(parts.iter().rev().map(up)));
            } else {
                actions.extend(parts.iter().flat_map(|part| [down(part), up(part)]));
            }
        }
        let keyboard = json!({"type": "key", "id": "keyboard", "actions": actions});
        self.post("/actions", json!({"actions": [keyboard]})).await.map(drop)
    }

    /// Moves the pointer to an offset in pixels from the centre of an element.
    pub async fn hover(&mut self, selector: &str, x: i64, y: i64) -> Result<()> {
        let origin = json!({ELEMENT: self.find(selector).await?});
        let steps = json!([{"type": "pointerMove", "duration": 0, "origin": origin, "x": x, "y": y}]);
        self.post("/actions", json!({"actions": [{"type": "pointer", "id": "mouse", "actions": steps}]}))
            .await
            .map(drop)
    }

    /// Sets the size of the viewport in CSS pixels. A width below 600 emulates a phone.
    pub async fn size(&mut self, width: u32, height: u32) -> Result<()> {
        let mobile = width < PHONE_WIDTH;
        // Otherwise scrollbars would narrow the page, and be missing in its screenshot.
        self.devtools("Emulation.setScrollbarsHidden", json!({"hidden": true})).await?;
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile});
        self.devtools("Emulation.setDeviceMetricsOverride", metrics).await.map(drop)
    }

    /// Sets whether the browser prefers a dark colour scheme.
    pub async fn dark(&mut self, dark: bool) -> Result<()> {
        let scheme = json!({"name": "prefers-color-scheme", "value": if dark { "dark" } else { "light" }});
        self.devtools("Emulation.setEmulatedMedia", json!({"features": [scheme]})).await.map(drop)
    }

    /// Writes a screenshot of the whole page, in its full height, to `target/screenshots/<name>.png`.
    pub async fn screenshot(&mut self, name: &str) -> Result<PathBuf> {
        let shot = json!({"format": "png", "captureBeyondViewport": true});
        let data = self.devtools("Page.captureScreenshot", shot).await?;
        let png = BASE64_STANDARD.decode(data["data"].as_str().context("a screenshot has data")?)?;
        let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/screenshots"));
        std::fs::create_dir_all(&folder)?;
        let path = folder.join(format!("{name}.png"));
        std::fs::write(&path, png)?;
        Ok(path)
    }

    /// Warnings and errors of the console since the last call, including resources that failed to load.
    pub async fn console_errors(&mut self) -> Result<Vec<String>> {
        let log = self.post("/se/log", json!({"type": "browser"})).await?;
        let entries = log.as_array().context("a log is a list")?.iter();
        let bad = entries.filter(|entry| matches!(entry["level"].as_str(), Some("SEVERE" | "WARNING")));
        Ok(bad.map(|entry| entry["message"].as_str().unwrap_or_default().to_owned()).collect())
    }

    /// The URLs that the page and its workers have requested since the last call, without data and blob URLs, which
    /// cause no traffic.
    pub async fn requests(&mut self) -> Result<Vec<String>> {
        let log = self.post("/se/log", json!({"type": "performance"})).await?;
        let mut urls = Vec::new();
        for entry in log.as_array().context("a log is a list")? {
            let event: Value = serde_json::from_str(entry["message"].as_str().unwrap_or_default())?;
            let url = event["message"]["params"]["request"]["url"].as_str();
            let sent = event["message"]["method"] == "Network.requestWillBeSent";
            let outside = |url: &&str| !url.starts_with("data:") && !url.starts_with("blob:");
            urls.extend(url.filter(|_| sent).filter(outside).map(str::to_owned));
        }
        Ok(urls)
    }

    /// Sends a command of Chromium's own protocol.
    pub async fn devtools(&mut self, command: &str, parameters: Value) -> Result<Value> {
        self.post("/goog/cdp/execute", json!({"cmd": command, "params": parameters})).await
    }

    async fn find(&mut self, selector: &str) -> Result<String> {
        let found = self.post("/element", json!({"using": "css selector", "value": selector})).await?;
        Ok(found[ELEMENT].as_str().with_context(|| format!("no element {selector}"))?.to_owned())
    }

    async fn post(&mut self, path: &str, body: Value) -> Result<Value> {
        let path = format!("/session/{}{path}", self.session);
        self.call(Method::POST, &path, body).await
    }

    async fn get(&mut self, path: &str) -> Result<Value> {
        let path = format!("/session/{}{path}", self.session);
        self.call(Method::GET, &path, Value::Null).await
    }

    async fn call(&mut self, method: Method, path: &str, body: Value) -> Result<Value> {
        let body = if method == Method::POST { body.to_string() } else { String::new() };
        let sent = Request { method, ..Request::post(path, body) }.header("content-type", "application/json");
        if let Some(status) = self.driver.ended()? {
            bail!("chromedriver ended with {status}. {}", self.driver.tail());
        }
        let response = http::send(self.address, sent).await?;
        let mut answer = response.json()?;
        let value = answer["value"].take();
        ensure!(response.status == 200, "{path}: {}: {}", value["error"], value["message"]);
        Ok(value)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Chromium's processes are in the driver's process group. If they have ended already, the signal fails, which
        // is ignored.
        if let Some(group) = Pid::from_raw(self.driver.pid().cast_signed()) {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

async fn is_ready(address: SocketAddr) -> bool {
    let status = http::send(address, Request::get("/status")).await.and_then(|response| response.json());
    status.is_ok_and(|status| status["value"]["ready"] == true)
}
