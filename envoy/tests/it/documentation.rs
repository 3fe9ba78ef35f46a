//! The Markdown pages: relative links and anchors resolve, their configurations are accepted, `filter/CONFIGURATION.md` has every
//! field of the parser, and what they name exists. Figures are those of the runs that measured them.

mod commands;
mod figures;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use weir_core::rules::Config;

/// Every page.
const PAGES: [&str; 26] = [
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    "aggregator/API.md",
    "aggregator/METRICS.md",
    "aggregator/OPERATIONS.md",
    "aggregator/OVERRIDES.md",
    "aggregator/README.md",
    "core/CONCEPTS.md",
    "core/DECISIONS.md",
    "core/README.md",
    "envoy/BENCHMARKS.md",
    "envoy/MOVING.md",
    "envoy/README.md",
    "envoy/deploy/kubernetes/chart/README.md",
    "envoy/tools/README.md",
    "examples/README.md",
    "examples/TUTORIAL.md",
    "examples/playground/README.md",
    "examples/simulator/ACCURACY.md",
    "examples/simulator/README.md",
    "filter/CONFIGURATION.md",
    "filter/README.md",
    "migrations/README.md",
];

/// The repository's form for issues, which is no file.
const SITE_LINK: &str = "../../issues/new";

/// Objects of the configuration with an unknown field `x`. The parser's error lists the fields that it accepts there.
const OBJECTS: [(&str, &str); 36] = [
    ("", r#"{"x": 1}"#),
    ("aggregator", r#"{"aggregator": {"x": 1}}"#),
    ("table", r#"{"table": {"x": 1}}"#),
    ("responses", r#"{"responses": {"x": 1}}"#),
    ("responses.names", r#"{"responses": {"names": {"x": 1}}}"#),
    ("", r#"{"exempt": [{"x": 1}]}"#),
    ("client_networks", r#"{"client_networks": {"x": 1}}"#),
    ("", r#"{"rules": [{"x": 1}]}"#),
    ("", r#"{"rules": [{"match": {"x": 1}}]}"#),
    ("path", r#"{"rules": [{"match": {"path": {"exact": "/", "x": 1}}}]}"#),
    ("", r#"{"rules": [{"match": {"headers": [{"present": true, "x": 1}]}}]}"#),
    ("", r#"{"rules": [{"match": {"metadata": [{"filter": "a", "key": "b", "present": true, "x": 1}]}}]}"#),
    ("", r#"{"rules": [{"match": {"query": [{"present": true, "x": 1}]}}]}"#),
    ("client_network", r#"{"rules": [{"match": {"client_network": {"x": 1}}}]}"#),
    ("", r#"{"rules": [{"match": {"except": [{"x": 1}]}}]}"#),
    ("limit", r#"{"rules": [{"limit": {"by": {"header": "a"}, "x": 1}}]}"#),
    ("", r#"{"rules": [{"identifier": {"header": "a", "x": 1}}]}"#),
    ("metadata", r#"{"rules": [{"identifier": {"metadata": {"filter": "a", "key": "b", "x": 1}}}]}"#),
    ("client_address", r#"{"rules": [{"identifier": {"client_address": {"x": 1}}}]}"#),
    ("host", r#"{"rules": [{"identifier": {"host": {"x": 1}}}]}"#),
    ("jwt_claim", r#"{"rules": [{"identifier": {"jwt_claim": {"x": 1}}}]}"#),
    ("cost", r#"{"rules": [{"cost": {"request": {"header": "a"}, "x": 1}}]}"#),
    ("cost", r#"{"rules": [{"cost": {"response": {"header": "a"}, "x": 1}}]}"#),
    ("cost", r#"{"rules": [{"cost": {"when": [], "x": 1}}]}"#),
    ("", r#"{"rules": [{"cost": {"when": [{"cost": 1, "x": 1}]}}]}"#),
    ("cost", r#"{"rules": [{"cost": {"only": 401, "x": 1}}]}"#),
    ("cost", r#"{"rules": [{"cost": {"refund": 500, "x": 1}}]}"#),
    ("cost", r#"{"rules": [{"cost": {"usage": "envoy", "x": 1}}]}"#),
    ("cost.reserve", r#"{"rules": [{"cost": {"usage": "envoy", "reserve": {"x": 1}}}]}"#),
    ("", r#"{"rules": [{"cost": {"usage": "envoy", "weights": {"x": 1}}}]}"#),
    ("limit", r#"{"rules": [{"limit": {"usd": 1, "x": 1}, "window": "1m"}]}"#),
    ("cost.request", r#"{"rules": [{"cost": {"request": {"x": 1}}}]}"#),
    ("cost.response", r#"{"rules": [{"cost": {"response": {"x": 1}}}]}"#),
    ("ban", r#"{"rules": [{"ban": {"x": 1}}]}"#),
    ("response", r#"{"rules": [{"response": {"x": 1}}]}"#),
    ("", r#"{"rules": [{"overrides": [{"x": 1}]}]}"#),
];

#[test]
fn pages_are_listed() {
    let listed: BTreeSet<PathBuf> = PAGES.iter().map(PathBuf::from).collect();
    assert_eq!(pages(), listed, "the table of pages is complete");
}

#[test]
fn links_lead_somewhere() {
    let mut wrong = Vec::new();
    let mut checked = 0;
    for page in pages() {
        for link in links(&prose(&read(&page))) {
            checked += 1;
            if link == SITE_LINK {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() { page.clone() } else { joined(&page, file) };
            let exists = root().join(&target).exists();
            let anchored = || anchors(&read(&target)).contains(anchor);
            if !exists || !anchor.is_empty() && !anchored() {
                wrong.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "links that lead nowhere:\n{}", wrong.join("\n"));
    assert!(checked > 50, "{checked} links");
}

#[test]
fn configurations_that_pages_show_are_accepted() {
    let mut accepted = 0;
    for page in pages() {
        for text in fragments(&read(&page), "yaml") {
            let shown: Value =
                weir_envoy::yaml(&text).unwrap_or_else(|error| panic!("{}: {error}", page.display()));
            let mut config = shown.pointer("/configuration/value").unwrap_or(&shown).clone();
            if config["rules"].is_null() {
                continue;
            }
            if config["aggregator"].is_null() {
                config["aggregator"] = json!({ "cluster": "weir_aggregator" });
            }
            let parsed = Config::parse(config.to_string().as_bytes());
            parsed.unwrap_or_else(|errors| panic!("{}: {errors}\n{text}", page.display()));
            accepted += 1;
        }
    }
    assert!(accepted >= 4, "{accepted} configurations");
}

#[test]
fn the_reference_has_every_field() {
    let reference = read(Path::new("filter/CONFIGURATION.md"));
    let code: BTreeSet<&str> = reference.split('`').skip(1).step_by(2).collect();
    let mut fields = 0;
    for (object, text) in OBJECTS {
        for field in accepted_fields(text) {
            let path = if object.is_empty() { field } else { format!("{object}.{field}") };
            let within = format!("{path}.");
            let described = |name: &&str| *name == path || name.starts_with(&within);
            assert!(code.iter().any(described), "{path} is not in filter/CONFIGURATION.md");
            fields += 1;
        }
    }
    assert!(fields > 70, "{fields} fields");
}

/// The fields that the parser accepts beside the unknown field `x` of a configuration.
fn accepted_fields(text: &str) -> Vec<String> {
    let errors = Config::parse(text.as_bytes()).unwrap_err().to_string();
    let unknown = errors.lines().find(|line| line.contains("x: there is no such field")).unwrap();
    let (_, expected) = unknown.split_once("expected ").unwrap();
    expected.split(", ").flat_map(|names| names.split(" or ")).map(str::to_owned).collect()
}

/// What a page marks as code within a line.
fn code(page: &str) -> impl Iterator<Item = &str> {
    page.split('`').skip(1).step_by(2)
}

#[test]
fn the_labels_are_those_of_the_configuration_to_copy() {
    let tags = |text: &str| -> Value {
        let config: Value = weir_envoy::yaml(text).unwrap();
        config["stats_config"]["stats_tags"].clone()
    };
    let shown = fragments(&read(Path::new("envoy/README.md")), "yaml");
    let shown = shown.iter().find(|text| text.starts_with("stats_config:")).unwrap();
    let copied = read(Path::new("envoy/deploy/envoy.yaml"));
    assert_eq!(tags(shown), tags(&copied));
}

/// Pages for developers name modules, types and functions of the code. A renamed one is found here.
#[test]
fn names_of_the_code_exist() {
    let sources = sources();
    let words: BTreeSet<&str> =
        sources.iter().flat_map(|source| source.words.iter().map(String::as_str)).collect();
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for page in ["ARCHITECTURE.md", "CONTRIBUTING.md", "core/README.md", "core/DECISIONS.md"] {
        let text = read(Path::new(page));
        let diagrams = fragments(&text, "mermaid").join("\n");
        let quoted = text.split('`').skip(1).step_by(2);
        for name in quoted.chain(diagrams.split(|c: char| !is_name(c)).filter(|name| name.contains("::"))) {
            let name = name.trim_end_matches("()").trim_end_matches(':');
            let segments: Vec<&str> = name.split("::").collect();
            let exists = match segments[..] {
                _ if !name.chars().all(is_name) || segments.contains(&"") => continue,
                [only] if is_type(only) || is_constant(only) => words.contains(only),
                [_] => continue,
                [.., owner, item] => {
                    sources.iter().any(|source| source.has(owner) && source.words.contains(item))
                }
                [] => continue,
            };
            checked += 1;
            if !exists {
                wrong.push(format!("{page}: {name}"));
            }
        }
    }
    assert!(wrong.is_empty(), "names that are not in the code:\n{}", wrong.join("\n"));
    assert!(checked > 100, "{checked} names");
}

#[test]
fn anchors_are_those_of_github() {
    let page = "# A `b`, c!\n## [Link](x.md) – two\n```\n# no heading\n```\n## A b c\n";
    assert_eq!(anchors(page), ["a-b-c", "link--two", "a-b-c-1"].map(str::to_owned).into());
    assert_eq!(links("[a](b.md#c) ![d](e.png)\n[f\ng](h) [i](https://j)"), ["b.md#c", "e.png", "h"]);
    assert_eq!(prose("a `[b](c)` d\n```\n[e](f)\n```\n<!-- [g](h) -->i"), "a  d\ni");
    assert_eq!(section(page, "a-b-c"), Some(page));
    assert_eq!(section(page, "a-b-c-1"), Some("## A b c\n"));
    assert_eq!(section(page, "link--two"), page.get(12..page.len() - 9));
}

/// A file of source code.
struct Source {
    path: PathBuf,
    words: BTreeSet<String>,
}

impl Source {
    /// Whether it is the module `owner`, is in it, or names the type `owner`.
    fn has(&self, owner: &str) -> bool {
        match is_type(owner) {
            true => self.words.contains(owner),
            false => self.path.with_extension("").components().any(|part| part.as_os_str() == owner),
        }
    }
}

fn sources() -> Vec<Source> {
    let files =
        ["core/src", "filter/src", "aggregator/src", "examples"].map(|folder| files(Path::new(folder), "rs"));
    let source = |path: PathBuf| {
        let text = read(&path);
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let words =
            code.flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_')).map(str::to_owned);
        Source { words: words.collect(), path }
    };
    files.into_iter().flatten().map(source).collect()
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == ':'
}

/// Whether a name is a constant's.
fn is_constant(name: &str) -> bool {
    name.contains('_') && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

/// Whether a name is a type's: it begins with a capital and has a small letter.
fn is_type(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase()) && name.contains(|c: char| c.is_ascii_lowercase())
}

/// The paths of the repository's pages.
fn pages() -> BTreeSet<PathBuf> {
    files(Path::new(""), "md")
}

/// The files with an extension in a folder of the repository and below.
fn files(folder: &Path, extension: &str) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(root().join(&folder)).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let path = folder.join(&name);
            if entry.file_type().unwrap().is_dir() {
                if !name.starts_with('.') && name != "target" {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|it| it == extension) {
                found.insert(path);
            }
        }
    }
    found
}

/// A page without code and comments.
fn prose(page: &str) -> String {
    let mut fenced = false;
    let lines = page.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fence && !fenced
    });
    let text = lines.collect::<Vec<_>>().join("\n");
    let mut parts = text.split("<!--");
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        shown.push_str(part.split_once("-->").expect("a comment ends").1);
    }
    shown.split('`').step_by(2).collect()
}

/// The relative targets of links and images.
fn links(prose: &str) -> Vec<String> {
    let marked = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let quoted = ["src=\"", "srcset=\""]
        .into_iter()
        .flat_map(|start| prose.split(start).skip(1).filter_map(|rest| rest.split('"').next()));
    marked.chain(quoted).filter(|link| !link.contains("://")).map(str::to_owned).collect()
}

/// The anchors that GitHub generates for headings.
pub fn anchors(page: &str) -> BTreeSet<String> {
    headings(page).into_iter().map(|heading| heading.anchor).collect()
}

/// The section of a page below the heading with this anchor, to the next heading that is not below it.
pub fn section<'a>(page: &'a str, anchor: &str) -> Option<&'a str> {
    let mut headings = headings(page).into_iter();
    let found = headings.find(|heading| heading.anchor == anchor)?;
    let end = headings.find(|next| next.level <= found.level).map_or(page.len(), |next| next.at);
    page.get(found.at..end)
}

/// A heading of a page.
struct Heading {
    /// Where its line begins, in bytes.
    at: usize,
    level: usize,
    anchor: String,
}

fn headings(page: &str) -> Vec<Heading> {
    let (mut fenced, mut next) = (false, 0);
    let mut all: Vec<Heading> = Vec::new();
    for line in page.split_inclusive('\n') {
        let at = next;
        next += line.len();
        fenced ^= line.starts_with("```");
        let heading = line.trim_start_matches('#');
        if fenced || heading == line || !heading.starts_with(' ') {
            continue;
        }
        let slug = slug(heading);
        let numbered = (1..).map(|number| format!("{slug}-{number}"));
        let is_free = |slug: &String| all.iter().all(|other| other.anchor != *slug);
        let anchor = std::iter::once(slug.clone()).chain(numbered).find(is_free);
        all.extend(anchor.map(|anchor| Heading { at, level: line.len() - heading.len(), anchor }));
    }
    all
}

/// The anchor of the first heading with this text.
fn slug(heading: &str) -> String {
    let mut text = heading.trim().to_owned();
    while let Some((before, rest)) = text.split_once("](") {
        let after = rest.split_once(')').map_or("", |(_, after)| after);
        text = format!("{before}{after}");
    }
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

/// The code blocks in a language.
fn fragments(page: &str, language: &str) -> Vec<String> {
    let start = format!("```{language}\n");
    page.split(&start).skip(1).filter_map(|rest| Some(rest.split("\n```").next()?.to_owned())).collect()
}

/// The path of a link, relative to the page's folder.
fn joined(page: &Path, link: &str) -> PathBuf {
    let mut path = page.parent().unwrap().to_owned();
    for part in Path::new(link).components() {
        match part.as_os_str().to_str().unwrap() {
            ".." => assert!(path.pop(), "{}: {link} leads out of the repository", page.display()),
            "." => {}
            name => path.push(name),
        }
    }
    path
}

pub fn read(page: &Path) -> String {
    std::fs::read_to_string(root().join(page)).unwrap_or_else(|error| panic!("{}: {error}", page.display()))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
