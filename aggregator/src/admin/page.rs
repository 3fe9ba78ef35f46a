//! The status page at `/`: files embedded in the program, and headers that keep a browser from loading anything else.

use super::documentation::{self, PAGES};
use super::error::error;
use axum::extract::Path;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

/// Only the program's own files may be loaded. Text is never executed or parsed as markup.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const INDEX: &str = include_str!("page/index.html");

/// A script of the page, by its path.
macro_rules! script {
    ($path:literal) => {
        ($path, SCRIPT, include_str!(concat!("page/", $path)))
    };
}

/// Paths, content types and contents.
const FILES: [(&str, &str, &str); 15] = [
    ("page.css", "text/css; charset=utf-8", include_str!("page/page.css")),
    ("icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
    script!("main.js"),
    script!("data.js"),
    script!("dom.js"),
    script!("words.js"),
    script!("terms.js"),
    script!("search.js"),
    script!("commands.js"),
    script!("views/overview.js"),
    script!("views/keys.js"),
    script!("views/key.js"),
    script!("views/rules.js"),
    script!("views/overrides.js"),
    script!("views/parts.js"),
];

/// The page's HTML.
pub async fn index() -> Response {
    answer(HTML, INDEX)
}

/// A file of the page.
pub async fn file(Path(name): Path<String>) -> Response {
    match FILES.iter().find(|(known, ..)| *known == name) {
        Some((_, kind, text)) => answer(kind, text),
        None => error(StatusCode::NOT_FOUND, "the page has no such file"),
    }
}

/// A page of the documentation.
pub async fn document(Path(name): Path<String>) -> Response {
    match documentation::page(&name) {
        Some(text) => answer(HTML, text),
        None => {
            let pages = PAGES.map(|(name, _)| name).join(", ");
            error(StatusCode::NOT_FOUND, &format!("no such page of the documentation; there are {pages}"))
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str) -> &'static str {
        FILES.iter().find(|(known, ..)| *known == path).map(|(_, _, text)| *text).unwrap()
    }

    /// Text without the marks of Markdown.
    fn plain(text: &str) -> String {
        text.replace(['`', '*'], "")
    }

    #[test]
    fn terms_are_explained_as_in_the_glossary() {
        let (_, glossary) = PAGES.iter().find(|(page, _)| *page == "core/README.md").unwrap();
        let (_, glossary) = glossary.split_once("## Glossary").unwrap();
        let rows: Vec<(String, String)> = glossary
            .lines()
            .filter_map(|line| line.strip_prefix("| ")?.split_once(" | "))
            .map(|(term, meaning)| (plain(term), plain(meaning).to_lowercase()))
            .collect();
        let terms: Vec<(&str, &str)> = source("terms.js")
            .lines()
            // A definition may be the first part of the glossary's.
            .filter_map(|line| line.trim().strip_prefix("[\"")?.strip_suffix(".\"],")?.split_once("\", \""))
            .collect();
        assert!(terms.len() >= 12, "{terms:?}");
        for (term, meaning) in terms {
            let is_row = |(names, text): &&(String, String)| {
                names.split(", ").any(|name| name == term) && text.contains(&meaning.to_lowercase())
            };
            assert!(
                rows.iter().any(|row| is_row(&row)),
                "the glossary does not explain {term:?} as {meaning:?}"
            );
        }
    }

    #[test]
    fn pages_that_are_linked_are_served() {
        let scripts = FILES.iter().map(|(_, _, text)| *text).chain([INDEX]);
        let links: Vec<&str> = scripts
            .flat_map(|text| text.split("/docs/").skip(1))
            .map(|rest| rest.split(['"', '\'', '`', '#']).next().unwrap())
            .collect();
        assert!(links.len() >= 3, "{links:?}");
        for link in links {
            assert!(documentation::page(link).is_some(), "{link} is not served");
        }
    }
}
