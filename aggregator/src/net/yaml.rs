//! The documents of a YAML text, within bounds of memory and of time.
//!
//! Of each scalar it depends on the reader what it stands for. As most readers of Kubernetes' and Envoy's configurations do, this one
//! takes `yes`, `on` and `y` for true, `010` for 8, `1_000` for 1000, and `<<` for the fields of another object.
//!
//! A few bytes of YAML can repeat a long text. What is repeated counts, each time, against bounds that all documents of a text share.

use granit_parser::{Event, Parser, ScalarStyle};
use serde::de::{Deserialize, Deserializer};
use serde_saphyr::options::{DuplicateKeyPolicy, MergeKeyPolicy};
use serde_saphyr::{Error, Options, budget, options};
use std::cell::Cell;
use std::thread;
use weir_core::fields::{Bounds, Value, Verbatim};

/// Longest text, in bytes.
pub const MAX_BYTES: usize = 8 * 1024 * 1024;
/// Most scalars, lists and objects of a text, repeated ones included: more than a text of that length has without repeating.
const MAX_NODES: usize = MAX_BYTES;
/// Most `<<` of a text, repeated ones included: the time that the parser takes for those which merge each other grows faster than their number.
const MAX_MERGES: usize = 512;
/// Most scalars, lists and objects below anchors, nested ones at each anchor: each is stored with a hundred bytes or so.
const MAX_RECORDED: usize = 1_000_000;
/// Stack of the thread that parses. It calls itself at each level of nesting, with 26 kB a level where nothing is optimised.
const STACK_BYTES: usize = 16 * 1024 * 1024;

thread_local! {
    /// How the text that this thread is parsing is read: the library passes nothing to the values of several documents.
    static READING: Reading = const { Reading { left: Cell::new(0), verbatim: Cell::new(EVALUATED) } };
}

/// No scalar is read as it is written.
const EVALUATED: Verbatim = Verbatim { fields: &[], not_below: "" };

struct Reading {
    /// What is left of [`Bounds::bytes`].
    left: Cell<usize>,
    verbatim: Cell<Verbatim>,
}

/// One of several documents.
struct Document<'a>(Value<'a>);

impl<'de> Deserialize<'de> for Document<'de> {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Document<'de>, D::Error> {
        READING.with(|reading| {
            let verbatim = reading.verbatim.get();
            Value::read_one_of(reader, Bounds::OF_A_FILE, &reading.left, verbatim).map(Document)
        })
    }
}

/// The documents, also those that are null. Repeated fields of an object are kept.
pub fn documents(text: &[u8], verbatim: Verbatim) -> Result<Vec<Value<'_>>, String> {
    parse(text, || {
        READING.with(|reading| {
            reading.left.set(Bounds::OF_A_FILE.bytes);
            reading.verbatim.set(verbatim);
        });
        let read: Vec<Document<'_>> = serde_saphyr::from_slice_multiple_with_options(text, within())?;
        let mut read = read.into_iter().map(|document| document.0);
        let nulls = nulls(std::str::from_utf8(text).unwrap_or_default());
        let all =
            nulls.into_iter().map_while(|is_null| if is_null { Some(Value::Null) } else { read.next() });
        let mut documents: Vec<Value<'_>> = all.collect();
        documents.extend(read);
        Ok(documents)
    })
}

/// Whether each document of a text is null, as the library leaves those out.
fn nulls(text: &str) -> Vec<bool> {
    let (mut nulls, mut begins) = (Vec::new(), false);
    for (event, _) in Parser::new_from_str(text).map_while(Result::ok) {
        let is_null = match &event {
            Event::DocumentStart(..) => {
                begins = true;
                continue;
            }
            Event::Scalar(text, ScalarStyle::Plain, _, None) => {
                matches!(text.as_ref(), "" | "~" | "null" | "Null" | "NULL")
            }
            Event::Scalar(_, _, _, Some(tag)) => tag.is_yaml_core_schema_tag("null"),
            _ => false,
        };
        if std::mem::take(&mut begins) {
            nulls.push(is_null);
        }
    }
    nulls
}

/// The only document, as a type that refuses repeated fields itself.
pub fn document<'a, T: Deserialize<'a> + Send>(text: &'a [u8]) -> Result<T, String> {
    parse(text, || serde_saphyr::from_slice_with_options(text, within()))
}

/// Runs a parser of the text in a thread of its own.
fn parse<T: Send>(text: &[u8], parser: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, String> {
    if text.len() > MAX_BYTES {
        return Err(format!("it has more than {MAX_BYTES} bytes"));
    }
    let parser = || parser().map_err(|error| error.to_string());
    thread::scope(|scope| {
        let parsing = thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, parser);
        let parsed = parsing.map_err(|error| format!("there is no thread to parse it: {error}"))?.join();
        parsed.unwrap_or_else(|_| Err("its parser failed".to_owned()))
    })
}

fn within() -> Options {
    let Bounds { depth, bytes, .. } = Bounds::OF_A_FILE;
    let budget = budget! {
        max_events: 2 * MAX_NODES,
        max_nodes: MAX_NODES,
        max_depth: depth,
        max_documents: MAX_NODES,
        max_aliases: MAX_NODES,
        max_anchors: MAX_NODES,
        max_merge_keys: MAX_MERGES,
        max_total_scalar_bytes: bytes,
        max_recorded_anchor_events: MAX_RECORDED,
        max_recorded_anchor_bytes: bytes,
        // What is repeated is bounded itself.
        enforce_alias_anchor_ratio: false,
    };
    options! {
        budget: budget,
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        merge_keys: MergeKeyPolicy::Merge,
        legacy_octal_numbers: true,
        with_snippet: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8]) -> Result<Vec<Value<'_>>, String> {
        documents(text, Verbatim::default())
    }

    fn error(text: impl AsRef<[u8]>) -> String {
        read(text.as_ref()).err().unwrap_or_default()
    }

    #[test]
    fn what_repeats_or_nests_beyond_bounds_is_refused() {
        let repeated = |times: usize| {
            format!("a: &a {}\nb: [{}]\n", "x".repeat(1_000_000), vec!["*a"; times].join(", "))
        };
        assert_eq!(error(repeated(50)), "");
        assert_ne!(error(repeated(2_000)), "");
        let documents_of = |times: usize| format!("{}---\n", repeated(50)).repeat(times);
        assert_eq!(error(documents_of(2)), "");
        assert_ne!(error(documents_of(3)), "", "documents together");
        // Each merges the one before.
        let chain = |links: usize| -> String {
            (0..links).fold("a0: &a0 {x: 1}\n".to_owned(), |text, link| {
                let next = link + 1;
                text + &format!("a{next}: &a{next} {{<<: *a{link}, y{next}: 1}}\n")
            })
        };
        assert_eq!((error(chain(16)), error(chain(65)).is_empty()), (String::new(), false));
        let merged: String = (0..10_000).map(|number| format!("m{number}: {{<<: *a}}\n")).collect();
        let fields: String = (0..1_000).map(|number| format!("  f{number}: 1\n")).collect();
        assert_ne!(error(format!("a: &a\n{fields}{merged}")), "", "merged fields are repeated ones");
        for nested in ["[", "{a: ", "- ", "? ", "[&a ", "!!seq [", "a: [", "- &a "] {
            assert_ne!(error(nested.repeat(200_000)), "", "{nested}");
        }
        let deep = |levels: usize| format!("{}1{}", "[{a: ".repeat(levels), "}]".repeat(levels));
        assert_eq!(error(deep(60)), "");
        assert!(error(deep(64)).contains("nests deeper than 128 levels"), "{}", error(deep(64)));
        let recursive = "a: &a [*a]\n";
        assert_ne!(error(recursive), "");
        let bomb = (0..40).fold("a0: &a0 [x]\n".to_owned(), |text, n| {
            format!("{text}a{}: &a{} [*a{n}, *a{n}, *a{n}, *a{n}]\n", n + 1, n + 1)
        });
        assert_ne!(error(bomb), "");
        assert!(error(vec![b' '; MAX_BYTES + 1]).contains("more than 8388608 bytes"));
        assert_eq!(error(format!("[{}]", vec!["[{}]"; 40_000].join(","))), "", "much, and flat");
    }

    #[test]
    fn documents_keep_repeated_fields_and_their_order() {
        let text = |text: &'static str| Value::Text(text.into());
        let documents = read(b"# first\n---\nb: x\na: v\nb: z\n---\n---\n- null\n---\n~\n").unwrap();
        let object =
            Value::Object(vec![("b".into(), text("x")), ("a".into(), text("v")), ("b".into(), text("z"))]);
        assert_eq!(documents, [object, Value::Null, Value::List(vec![Value::Null]), Value::Null]);
        assert_eq!(read(b"--- !!null ''\n--- 'null'\n"), Ok(vec![Value::Null, text("null")]));
        assert!(read(b"# nothing\n").unwrap().iter().all(|document| *document == Value::Null));
    }

    /// What the reference service's reader, `gopkg.in/yaml.v2`, takes these for.
    #[test]
    fn words_and_numbers_stand_for_what_they_do_elsewhere() {
        let text = |text: &'static str| Value::Text(text.into());
        for (written, expected) in [
            ("true", Value::Bool(true)),
            ("True", Value::Bool(true)),
            ("yes", Value::Bool(true)),
            ("Y", Value::Bool(true)),
            ("ON", Value::Bool(true)),
            ("false", Value::Bool(false)),
            ("No", Value::Bool(false)),
            ("n", Value::Bool(false)),
            ("off", Value::Bool(false)),
            ("'true'", text("true")),
            ("\"no\"", text("no")),
            ("yesterday", text("yesterday")),
            ("~", Value::Null),
            ("null", Value::Null),
            ("NULL", Value::Null),
            ("'~'", text("~")),
            ("0", Value::Unsigned(0)),
            ("+5", Value::Unsigned(5)),
            ("-5", Value::Negative(-5)),
            ("100_000", Value::Unsigned(100_000)),
            ("010", Value::Unsigned(8)),
            ("0o10", Value::Unsigned(8)),
            ("0x10", Value::Unsigned(16)),
            ("0b11", Value::Unsigned(3)),
            ("18446744073709551615", Value::Unsigned(u64::MAX)),
            ("1.5", Value::Float(1.5)),
            ("1e3", Value::Float(1_000.0)),
            ("5s", text("5s")),
            ("1:30", text("1:30")),
            ("2026-11-26", text("2026-11-26")),
            ("1.2.3.4", text("1.2.3.4")),
            ("=", text("=")),
            ("!!str 5", text("5")),
            ("!!int '5'", Value::Unsigned(5)),
        ] {
            let document = format!("[{written}]");
            assert_eq!(read(document.as_bytes()), Ok(vec![Value::List(vec![expected])]), "{written}");
        }
    }

    #[test]
    fn fields_may_be_read_as_they_are_written() {
        const VERBATIM: Verbatim = Verbatim { fields: &["key"], not_below: "free" };
        let of = |written: &str| {
            let document = format!("key: {written}\nfree: {{key: {written}}}\n");
            let read = documents(document.as_bytes(), VERBATIM);
            let Value::Object(fields) = read?.remove(0) else { panic!("{document}") };
            Ok::<_, String>(match &fields[0].1 {
                Value::Text(text) => Some(text.clone().into_owned()),
                Value::Null => None,
                other => panic!("{other:?}"),
            })
        };
        for written in
            ["+15550100", "100_000", "010", "0x10", "1.50", "yes", "True", "1e3", "2026-11-26", "a"]
        {
            assert_eq!(of(written), Ok(Some(written.to_owned())), "{written}");
        }
        assert_eq!((of("'~'"), of("''")), (Ok(Some("~".into())), Ok(Some(String::new()))));
        assert_eq!((of("~"), of("null"), of("")), (Ok(None), Ok(None), Ok(None)));
        assert!(of("[a]").is_err());
        let elsewhere = documents(b"free: {key: 010}\n", VERBATIM).unwrap();
        let inner = Value::Object(vec![("key".into(), Value::Unsigned(8))]);
        assert_eq!(elsewhere, [Value::Object(vec![("free".into(), inner)])]);
    }

    #[test]
    fn fields_of_other_objects_are_merged_below_the_own_ones() {
        let base = "a: &a {x: 1, y: 2}\nb: &b {y: 3, z: 4}\n";
        let merged = |object: &str| {
            let document = format!("{base}c: {object}\n");
            let read = documents(document.as_bytes(), Verbatim::default()).unwrap();
            let Value::Object(mut fields) = read.into_iter().next().unwrap() else { panic!() };
            let Some((_, Value::Object(fields))) = fields.pop() else { panic!() };
            let mut fields: Vec<_> =
                fields.into_iter().map(|(name, value)| (name.into_owned(), value.as_integer())).collect();
            fields.sort();
            fields
        };
        let expected = |fields: &[(&str, u64)]| -> Vec<(String, Option<u64>)> {
            fields.iter().map(|(name, value)| ((*name).to_owned(), Some(*value))).collect()
        };
        assert_eq!(merged("{<<: *a}"), expected(&[("x", 1), ("y", 2)]));
        assert_eq!(merged("{<<: *a, y: 9}"), expected(&[("x", 1), ("y", 9)]));
        assert_eq!(merged("{y: 9, <<: *a}"), expected(&[("x", 1), ("y", 9)]));
        assert_eq!(merged("{<<: [*a, *b]}"), expected(&[("x", 1), ("y", 2), ("z", 4)]));
        assert_eq!(merged("{y: 9, y: 8, <<: *a}"), expected(&[("x", 1), ("y", 8), ("y", 9)]));
    }

    #[test]
    fn a_typed_document_has_no_repeated_field() {
        #[derive(Debug, Default, PartialEq, serde::Deserialize)]
        struct Named {
            name: String,
        }
        let read = |text: &'static str| document::<Option<Vec<Named>>>(text.as_bytes());
        assert_eq!(read("- {name: 007}\n").unwrap(), Some(vec![Named { name: "007".into() }]));
        assert_eq!(read("# nothing\n").unwrap(), None);
        assert!(read("- {name: a, name: b}\n").is_err());
        assert!(read("- {name: a}\n---\n- {name: b}\n").is_err());
        assert!(document::<Option<Vec<Named>>>(&vec![b' '; MAX_BYTES + 1]).is_err());
    }
}
