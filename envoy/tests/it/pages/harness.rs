//! The browser harness on a page of its own; the other tests of pages depend on it.

use serde_json::json;
use weir_envoy::browser::{BACK_TAB, Browser, ENTER, SPACE, TAB};
use weir_envoy::http::{self, Request};
use weir_envoy::{Pages, ports};

const PAGE: &str = r#"<!doctype html><html lang=en><link rel=icon href=data:,>
<meta name=viewport content="width=device-width"><title>Page</title>
<input id=name value=old><input id=tick type=checkbox><button id=go onclick="go()">Go</button><p id=result>nothing</p>
<script>function go() { result.textContent = name_.value + ' ' + tick.checked } const name_ = document.getElementById('name')
onmousemove = event => window.seen = event.target.id</script>"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_is_used_and_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("index.html"), PAGE).unwrap();
    let bad = PAGE.replace(
        "<script>",
        "<img alt=x src=//elsewhere.example/x.png><img alt=y src=lost.png><script>console.error('so');",
    );
    std::fs::write(folder.path().join("bad.html"), bad).unwrap();
    let pages = Pages::start(folder.path(), ports::local(0)).await.unwrap();
    let url = format!("http://{}/", pages.address());
    let mut browser = Browser::start().await.unwrap();
    browser.requests().await.unwrap();

    browser.open(&url).await.unwrap();
    browser.fill("#name", "new").await.unwrap();
    browser.press(&[TAB, SPACE, TAB, ENTER]).await.unwrap();
    assert_eq!(browser.text("#result").await.unwrap(), "new true");
    browser.press(&[BACK_TAB, BACK_TAB, "er"]).await.unwrap();
    browser.click("#go").await.unwrap();
    let shown = browser
        .until("the result is shown", "return result.textContent.includes('er') && result.textContent")
        .await;
    assert!(shown.unwrap().as_str().unwrap().ends_with(" true"));
    browser.hover("#tick", 0, 0).await.unwrap();
    assert_eq!(browser.run("return window.seen", &[]).await.unwrap(), "tick");

    let dark = "return matchMedia('(prefers-color-scheme: dark)').matches";
    for is_dark in [true, false] {
        browser.dark(is_dark).await.unwrap();
        assert_eq!(browser.run(dark, &[]).await.unwrap(), is_dark);
    }
    browser.size(360, 740).await.unwrap();
    browser.until("the page is as wide", "return innerWidth == 360").await.unwrap();
    assert_eq!(browser.run("return innerWidth + arguments[0]", &[json!(1)]).await.unwrap(), 361);
    let shot = std::fs::read(browser.screenshot("harness").await.unwrap()).unwrap();
    assert!(shot.starts_with(b"\x89PNG"));
    assert_eq!(browser.console_errors().await.unwrap(), Vec::<String>::new());
    assert_eq!(browser.requests().await.unwrap(), std::slice::from_ref(&url));

    browser.open(&format!("{url}bad.html")).await.unwrap();
    let (errors, requests) = (browser.console_errors().await.unwrap(), browser.requests().await.unwrap());
    assert!(errors.iter().any(|one| one.contains("so")), "{errors:?}");
    assert!(errors.iter().any(|one| one.contains("404")), "{errors:?}");
    assert!(errors.iter().any(|one| one.contains("NAME_NOT_RESOLVED")), "{errors:?}");
    assert!(requests.iter().any(|one| one.contains("elsewhere.example")), "{requests:?}");
    browser.click("#nobody").await.unwrap_err();
}

#[tokio::test]
async fn only_what_was_in_the_folder_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("inner");
    std::fs::create_dir(&inner).unwrap();
    for (file, text) in [("index.html", "i"), ("a.wasm", "w")] {
        std::fs::write(inner.join(file), text).unwrap();
    }
    std::fs::write(folder.path().join("secret"), "s").unwrap();
    let pages = Pages::start(&inner, ports::local(0)).await.unwrap();
    for (request, status, content_type) in [
        (Request::get("/"), 200, Some("text/html; charset=utf-8")),
        (Request::get("/a.wasm?x=y"), 200, Some("application/wasm")),
        (Request::get("/secret"), 404, None),
        (Request::get("/../secret"), 404, None),
        (Request::get("/%2e%2e/secret"), 404, None),
        (Request::post("/", ""), 405, None),
    ] {
        let shown = format!("{request:?}");
        let response = http::send(pages.address(), request).await.unwrap();
        assert_eq!((response.status, response.header("content-type")), (status, content_type), "{shown}");
    }
}
