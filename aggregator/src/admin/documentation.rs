//! `/docs/…`: the documentation of the running version, as HTML.
//!
//! Links between the pages that are served here lead to them, and headings have the anchors that GitHub gives them. A link to another
//! file of the repository is text alone, as that file is not here.

use pulldown_cmark::{CowStr, Event, Options, Parser, Tag, TagEnd, html};
use std::collections::HashMap;
use std::sync::LazyLock;

/// Pages in Markdown, by their paths in the repository.
pub const PAGES: [(&str, &str); 6] = [
    ("aggregator/API.md", include_str!("../../API.md")),
    ("aggregator/METRICS.md", include_str!("../../METRICS.md")),
    ("aggregator/OPERATIONS.md", include_str!("../../OPERATIONS.md")),
    ("aggregator/OVERRIDES.md", include_str!("../../OVERRIDES.md")),
    ("aggregator/README.md", include_str!("../../README.md")),
    ("core/README.md", include_str!("../../../core/README.md")),
];

static RENDERED: LazyLock<HashMap<&'static str, String>> =
    LazyLock::new(|| PAGES.map(|(path, text)| (path, render(path, text))).into());

/// A page as HTML.
pub fn page(path: &str) -> Option<&'static str> {
    RENDERED.get(path).map(String::as_str)
}

fn render(path: &str, text: &str) -> String {
    let mut events: Vec<Event<'_>> = Parser::new_ext(text, Options::ENABLE_TABLES).collect();
    let title = name_headings(&mut events);
    let mut body = String::new();
    html::push_html(&mut body, with_links(events, path).into_iter());
    let mut escaped = String::new();
    html::push_html(&mut escaped, std::iter::once(Event::Text(title.into())));
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
        <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
        <meta name=\"color-scheme\" content=\"light dark\">\n<title>{escaped} · Weir</title>\n\
        <link rel=\"icon\" href=\"/page/icon.svg\" type=\"image/svg+xml\">\n\
        <link rel=\"stylesheet\" href=\"/page/page.css\">\n</head>\n<body>\n<header><div class=\"bar\">\
        <a class=\"mark\" href=\"/\"><img src=\"/page/icon.svg\" alt=\"\" width=\"22\" height=\"22\">\
        <span>Weir</span></a><span class=\"region\">{path}</span></div></header>\n\
        <main class=\"document\">\n{body}</main>\n</body>\n</html>\n"
    )
}

/// Gives each heading its anchor. Returns the text of the first.
fn name_headings(events: &mut [Event<'_>]) -> String {
    let (mut title, mut known) = (None, HashMap::<String, usize>::new());
    for at in 0..events.len() {
        if !matches!(events[at], Event::Start(Tag::Heading { .. })) {
            continue;
        }
        let inside = events[at..].iter().take_while(|event| !matches!(event, Event::End(TagEnd::Heading(_))));
        let text: String = inside
            .filter_map(|event| match event {
                Event::Text(text) | Event::Code(text) => Some(text.as_ref()),
                _ => None,
            })
            .collect();
        let name = anchor(&text);
        let before = known.entry(name.clone()).and_modify(|before| *before += 1).or_default();
        let name = if *before > 0 { format!("{name}-{before}") } else { name };
        if let Event::Start(Tag::Heading { id, .. }) = &mut events[at] {
            *id = Some(name.into());
        }
        title.get_or_insert(text);
    }
    title.unwrap_or_default()
}

/// The anchor that GitHub makes of a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|one| one.is_alphanumeric() || matches!(one, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|one| if one == ' ' { '-' } else { one }).collect()
}

/// Links as they lead from here; those that lead nowhere are left out, and their texts stay.
fn with_links<'a>(events: Vec<Event<'a>>, path: &str) -> Vec<Event<'a>> {
    let (mut kept, mut open) = (Vec::with_capacity(events.len()), Vec::new());
    for event in events {
        match event {
            Event::Start(Tag::Link { link_type, dest_url, title, id }) => {
                let target = target(path, &dest_url);
                open.push(target.is_some());
                if let Some(target) = target {
                    let dest_url = CowStr::from(target);
                    kept.push(Event::Start(Tag::Link { link_type, dest_url, title, id }));
                }
            }
            Event::End(TagEnd::Link) if open.pop() == Some(false) => {}
            other => kept.push(other),
        }
    }
    kept
}

/// Where a link of a page leads; `None` for a file that is not served.
fn target(path: &str, link: &str) -> Option<String> {
    if link.starts_with('#') || link.starts_with("https://") || link.starts_with("http://") {
        return Some(link.to_owned());
    }
    let (file, anchor) = link.split_once('#').map_or((link, None), |(file, anchor)| (file, Some(anchor)));
    let mut folders: Vec<&str> = path.split('/').collect();
    folders.pop();
    for part in file.split('/') {
        match part {
            ".." => drop(folders.pop()),
            "." => {}
            part => folders.push(part),
        }
    }
    let target = folders.join("/");
    PAGES.iter().any(|(known, _)| *known == target).then(|| match anchor {
        Some(anchor) => format!("/docs/{target}#{anchor}"),
        None => format!("/docs/{target}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_rendered() {
        let text = "# A `b` & c\n\nSee [API](API.md#errors), [how](../core/README.md), [source](../src/x.rs), [web](https://a.example).\n\n\
            ## A b\n## A b\n\n| x | y |\n|---|---|\n| <b> | `<i>` |\n";
        let page = render("aggregator/OPERATIONS.md", text);
        for part in [
            "<title>A b &amp; c · Weir</title>",
            "<h1 id=\"a-b--c\">A <code>b</code> &amp; c</h1>",
            "<a href=\"/docs/aggregator/API.md#errors\">API</a>",
            "<a href=\"/docs/core/README.md\">how</a>",
            ", source, ",
            "<a href=\"https://a.example\">web</a>",
            "<h2 id=\"a-b\">",
            "<h2 id=\"a-b-1\">",
            "<td><code>&lt;i&gt;</code></td>",
        ] {
            assert!(page.contains(part), "no {part} in {page}");
        }
    }

    #[test]
    fn links_between_the_pages_lead_to_headings() {
        let mut links = 0;
        for (path, _) in PAGES {
            let text = page(path).unwrap();
            for link in text.split("href=\"").skip(1).map(|rest| rest.split('"').next().unwrap()) {
                let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
                let file = match (file.strip_prefix("/docs/"), file) {
                    (Some(file), _) => file,
                    (None, "") => path,
                    (None, _) => continue,
                };
                let there = page(file).unwrap_or_else(|| panic!("{path}: {link} is not served"));
                let has_anchor = anchor.is_empty() || there.contains(&format!("id=\"{anchor}\""));
                assert!(has_anchor, "{path}: {link} has no such heading");
                links += 1;
            }
        }
        assert!(links > 20, "{links}");
    }
}
