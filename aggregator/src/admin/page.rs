//! The status page at `/`: files embedded in the program, and headers that keep a browser from loading anything else.

use axum::extract::Path;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

/// Only the program's own files may be loaded. Text is never executed or parsed as markup.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const INDEX: &str = include_str!("page/index.html");
/// Names, content types and contents.
const FILES: [(&str, &str, &str); 11] = [
    ("page.css", "text/css; charset=utf-8", include_str!("page/page.css")),
    ("icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
    ("main.js", SCRIPT, include_str!("page/main.js")),
    ("data.js", SCRIPT, include_str!("page/data.js")),
    ("dom.js", SCRIPT, include_str!("page/dom.js")),
    ("words.js", SCRIPT, include_str!("page/words.js")),
    ("overview.js", SCRIPT, include_str!("page/overview.js")),
    ("keys.js", SCRIPT, include_str!("page/keys.js")),
    ("key.js", SCRIPT, include_str!("page/key.js")),
    ("rules.js", SCRIPT, include_str!("page/rules.js")),
    ("parts.js", SCRIPT, include_str!("page/parts.js")),
];

/// The page's HTML.
pub async fn index() -> Response {
    answer(HTML, INDEX)
}

/// A file of the page.
pub async fn file(Path(name): Path<String>) -> Response {
    match FILES.iter().find(|(known, ..)| *known == name) {
        Some((_, kind, text)) => answer(kind, text),
        None => super::error(StatusCode::NOT_FOUND, "the page has no such file"),
    }
}

fn answer(kind: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    ];
    (headers, text).into_response()
}
