//! What pages name exists: commands and options in the program's help, fields in the parser, values in the files of `examples/`,
//! files in the repository.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use weir_core::rules::Config;
use weir_envoy::{binaries, yaml};

use super::{OBJECTS, accepted_fields, code, files, fragments, pages, read, root};

/// Pages whose code in a line that begins with `--` is an option of `weir-aggregator`.
const PAGES_OF_THE_AGGREGATOR: [&str; 7] = [
    "SECURITY.md",
    "aggregator/API.md",
    "aggregator/METRICS.md",
    "aggregator/OPERATIONS.md",
    "aggregator/OVERRIDES.md",
    "aggregator/README.md",
    "filter/CONFIGURATION.md",
];
const PROGRAM: &str = "weir-aggregator ";
/// Options of Docker's programs that these pages name.
const OF_DOCKER: [&str; 2] = ["--build-arg ", "--profile "];
/// Endings of files that are in the repository if a page names one. A module (`.wasm`) is built.
const ENDINGS: [&str; 12] =
    ["json", "yaml", "yml", "md", "sh", "rs", "js", "lua", "toml", "sql", "proto", "py"];
/// A file of Envoy's, and files that readers make.
const FOREIGN: [&str; 3] =
    ["source/extensions/extensions_metadata.yaml", "target/tutorial.json", "tokens.yaml"];

/// The help of each command that was asked for.
#[derive(Default)]
struct Helps(BTreeMap<Vec<String>, String>);

impl Helps {
    /// The help of a command. An unknown one is an error.
    fn of(&mut self, words: &[String]) -> &str {
        self.0.entry(words.to_vec()).or_insert_with(|| {
            let output =
                Command::new(binaries::aggregator().unwrap()).args(words).arg("--help").output().unwrap();
            assert!(output.status.success(), "weir-aggregator {} --help: {output:?}", words.join(" "));
            String::from_utf8(output.stdout).unwrap()
        })
    }

    /// The helps of all commands, and of their commands.
    fn all(&mut self) -> String {
        let mut all = String::new();
        let mut commands = vec![Vec::new()];
        while let Some(command) = commands.pop() {
            let help = self.of(&command).to_owned();
            if let Some((_, list)) = help.split_once("\nCommands:\n") {
                let list = list.split("\n\n").next().unwrap();
                let names = list.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
                let names = names.filter_map(|line| line.split_whitespace().next());
                let further = names.filter(|name| *name != "help").map(|name| {
                    let name = name.to_owned();
                    command.iter().cloned().chain([name]).collect()
                });
                commands.extend(further.collect::<Vec<Vec<String>>>());
            }
            all.push_str(&help);
        }
        all
    }
}

/// The options that a text names.
fn options(text: &str) -> Vec<&str> {
    let is_part = |c: char| c.is_ascii_lowercase() || c == '-';
    let words = text.split(|c: char| !is_part(c) && !c.is_ascii_alphanumeric());
    words
        .filter(|word| {
            word.strip_prefix("--").is_some_and(|name| name.len() > 1 && name.chars().all(is_part))
        })
        .collect()
}

/// Whether a help describes an option.
fn describes(help: &str, option: &str) -> bool {
    help.split(|c: char| c.is_whitespace() || ",=[]".contains(c)).any(|word| word == option)
}

/// A line's command of the program: its words, and the rest of the line, where what is quoted is another command.
fn command_of(line: &str) -> Option<(Vec<String>, String)> {
    let (_, rest) = line.rsplit_once(PROGRAM)?;
    let is_part = |c: char| c.is_ascii_lowercase() || c == '-';
    let is_word =
        |word: &&str| word.starts_with(|c: char| c.is_ascii_lowercase()) && word.chars().all(is_part);
    let words: Vec<String> = rest.split(' ').take_while(is_word).map(str::to_owned).collect();
    let rest = rest.split(" | ").next().unwrap_or_default();
    (!words.is_empty()).then(|| (words, rest.split('`').step_by(2).collect()))
}

#[test]
fn options_are_read_from_lines_of_shells() {
    let line =
        "$ weir-aggregator zones list            # --json for programs; `zones delete --zone 1` | grep --x";
    let (words, rest) = command_of(line).unwrap();
    assert_eq!((words, options(&rest)), (vec!["zones".to_owned(), "list".to_owned()], vec!["--json"]));
    assert_eq!(command_of("$ cargo build -p weir-aggregator"), None);
    assert!(
        describes("  -a, --api-token <T>  x [env: A=]", "--api-token")
            && !describes("--api-token-file", "--api-token")
    );
}

#[test]
fn commands_and_options_of_pages_are_those_of_the_program() {
    let mut helps = Helps::default();
    let all = helps.all();
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for page in pages().iter().filter(|page| !page.ends_with("CHANGELOG.md")) {
        let text = read(page);
        let blocks = fragments(&text, "console").join("\n").replace("\\\n", " ");
        let inline: Vec<&str> = code(&text).filter(|code| !code.contains('\n')).collect();
        for line in blocks.lines().chain(inline.iter().copied()) {
            let Some((words, rest)) = command_of(line) else { continue };
            let help = helps.of(&words);
            checked += 1;
            let unknown = options(&rest).into_iter().filter(|option| !describes(help, option));
            wrong.extend(unknown.map(|option| format!("{}: {option} in {line}", page.display())));
        }
        // `export VARIABLE=… # or --option`
        for line in blocks.lines().filter_map(|line| line.split_once("export WEIR_")?.1.split_once('=')) {
            let (variable, rest) = line;
            for option in rest.split_once("or ").map(|(_, rest)| options(rest)).unwrap_or_default() {
                checked += 1;
                let described = all.split("\n      --").any(|entry| {
                    format!("--{entry}").split([' ', '\n']).next() == Some(option)
                        && (entry.contains(&format!("[env: WEIR_{variable}="))
                            || entry.contains(&format!("[env: WEIR_{variable}]")))
                });
                if !described {
                    wrong.push(format!("{}: {option} is not the option of WEIR_{variable}", page.display()));
                }
            }
        }
        if PAGES_OF_THE_AGGREGATOR.iter().any(|of| page == Path::new(of)) {
            let is_own = |code: &&&str| {
                code.starts_with("--") && !OF_DOCKER.iter().any(|other| code.starts_with(other))
            };
            let named = inline.iter().filter(is_own);
            for option in named.flat_map(|code| options(code).into_iter().take(1)) {
                checked += 1;
                if !describes(&all, option) {
                    wrong.push(format!("{}: {option} is no option", page.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 100, "{checked} commands and options");
}

#[test]
fn files_that_pages_name_exist() {
    let all: BTreeSet<_> = ENDINGS.iter().flat_map(|ending| files(Path::new(""), ending)).collect();
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for page in pages().iter().filter(|page| !page.ends_with("CHANGELOG.md")) {
        let text = read(page);
        let is_file = |name: &&str| {
            let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "._/-".contains(c));
            let ending = name.rsplit_once('.').is_some_and(|(_, ending)| ENDINGS.contains(&ending));
            let is_folder = page.ends_with("CONTRIBUTING.md") && name.ends_with('/');
            plain
                && (ending || is_folder)
                && !name.starts_with('/')
                && !name.contains("NNNN")
                && !FOREIGN.contains(name)
        };
        for name in code(&text).filter(is_file) {
            checked += 1;
            if !root().join(name).exists() && !all.iter().any(|file| file.ends_with(name)) {
                wrong.push(format!("{}: {name}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "files that do not exist:\n{}", wrong.join("\n"));
    assert!(checked > 40, "{checked} files");
}

/// Each field in the first column of a table of fields is one of the parser's.
#[test]
fn the_reference_has_no_other_field() {
    let fields: BTreeSet<String> = OBJECTS.iter().flat_map(|(_, text)| accepted_fields(text)).collect();
    let reference = read(Path::new("filter/CONFIGURATION.md"));
    let mut checked = 0;
    for table in reference.split("| field |").skip(1) {
        let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
        for path in rows.flat_map(|row| code(row.split(" | ").next().unwrap()).collect::<Vec<_>>()) {
            checked += 1;
            for field in path.split('.') {
                assert!(fields.contains(field), "{path}: the parser has no field {field}");
            }
        }
    }
    assert!(checked > 70, "{checked} fields");
}

/// What stands in a line as code and is one field of a rule, with an object, is accepted.
#[test]
fn fields_that_the_reference_shows_are_accepted() {
    let of_rules = accepted_fields(r#"{"rules": [{"x": 1}]}"#);
    let reference = read(Path::new("filter/CONFIGURATION.md"));
    let mut checked = 0;
    for text in code(&reference).filter(|text| text.contains(": {")) {
        let Ok(Value::Object(shown)) = yaml(text) else { continue };
        if shown.is_empty() || !shown.keys().all(|field| of_rules.contains(field)) {
            continue;
        }
        let mut rule =
            json!({ "name": "r", "identifier": { "header": "x" }, "limit": 100_000, "window": "1m" });
        rule.as_object_mut().unwrap().extend(shown);
        let config = json!({ "aggregator": { "cluster": "a" }, "rules": [rule] });
        Config::parse(config.to_string().as_bytes()).unwrap_or_else(|errors| panic!("{text}: {errors}"));
        checked += 1;
    }
    assert!(checked >= 5, "{checked} fields");
}

/// A section of `examples/README.md` states fields as its file has them, such as `max: 20000`.
#[test]
fn the_examples_have_what_their_page_states() {
    let fields: BTreeSet<String> = OBJECTS.iter().flat_map(|(_, text)| accepted_fields(text)).collect();
    let page = read(Path::new("examples/README.md"));
    let (mut files, mut checked) = (0, 0);
    for section in page.split("\n## `").skip(1) {
        let Some((file, text)) = section.split_once('`').filter(|(file, _)| file.ends_with(".json")) else {
            continue;
        };
        files += 1;
        let config: Value = serde_json::from_str(&read(&Path::new("examples").join(file))).unwrap();
        // What explains another choice does not begin an item.
        for stated in text.split("\n- **").skip(1).filter_map(|item| item.split("**").next()).flat_map(code) {
            let Some((field, value)) = stated.split_once(": ") else { continue };
            if !fields.contains(field) {
                continue;
            }
            let value: Value = yaml(value).unwrap();
            checked += 1;
            assert!(has(&config, field, &value), "{file} has no {stated}");
        }
    }
    let all = super::files(Path::new("examples"), "json")
        .iter()
        .filter(|file| file.components().count() == 2)
        .count();
    assert_eq!(files, all, "each file has a section");
    assert!(checked > 15, "{checked} fields");
}

/// Whether an object in `config` has this field with this value.
fn has(config: &Value, field: &str, value: &Value) -> bool {
    match config {
        Value::Object(fields) => {
            fields.get(field).is_some_and(|own| own == value)
                || fields.values().any(|inner| has(inner, field, value))
        }
        Value::Array(items) => items.iter().any(|item| has(item, field, value)),
        _ => false,
    }
}

/// The number of examples that the README states is that of the sections of their page, without the simulator and the playground.
#[test]
fn the_readme_counts_the_examples() {
    let sections = read(Path::new("examples/README.md"));
    let sections = sections.lines().filter(|line| {
        line.starts_with("## `")
            && root().join("examples").join(line[4..].split('`').next().unwrap()).exists()
    });
    let sections =
        sections.filter(|line| !line.contains("simulator") && !line.contains("playground")).count();
    let word = ["eleven", "twelve", "thirteen", "fourteen", "fifteen"][sections - 11];
    let readme = read(Path::new("README.md")).to_lowercase();
    assert!(readme.contains(&format!("{word} examples")), "{sections} examples");
}
