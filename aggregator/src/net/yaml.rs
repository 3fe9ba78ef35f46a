//! The documents of a YAML text, within bounds of memory and of time.
//!
//! Of each scalar it depends on the reader what it stands for ([`Dialect`]). All readers take `yes`, `on` and `y` for true, and `010` for 8.
//!
//! A few bytes of YAML can repeat a long text, by an alias or by the fields of another object (`<<`). What is repeated counts, each time,
//! against bounds that all documents of a text share.

use granit_parser::{Event, Parser, ScalarStyle, StrInput, Tag};
use serde::de::Deserialize;
use serde_saphyr::options::{DuplicateKeyPolicy, MergeKeyPolicy};
use serde_saphyr::{Options, budget, options};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::thread;
use weir_core::fields::{Bounds, Value};

/// Longest text, in bytes.
pub const MAX_BYTES: usize = 8 * 1024 * 1024;
const BOUNDS: Bounds = Bounds::OF_A_FILE;
/// Most scalars, lists and objects of a typed text, repeated ones included: more than a text of that length has without repeating.
const MAX_NODES: usize = MAX_BYTES;
/// Most `<<` of a typed text, repeated ones included.
const MAX_MERGES: usize = 512;
/// Most scalars, lists and objects below anchors of a typed text: each is stored with a hundred bytes or so.
const MAX_RECORDED: usize = 1_000_000;
/// Stack of the thread that parses a typed text. It calls itself at each level of nesting, with 26 kB a level where nothing is optimised.
const STACK_BYTES: usize = 16 * 1024 * 1024;
/// A byte order mark, as some editors write one.
const MARK: char = '\u{feff}';
/// The booleans of YAML 1.1.
const BOOLEANS: [(&str, bool); 8] = [
    ("true", true),
    ("false", false),
    ("yes", true),
    ("no", false),
    ("on", true),
    ("off", false),
    ("y", true),
    ("n", false),
];

/// Whose reading of scalars applies.
#[derive(Clone, Copy, Debug)]
pub enum Dialect {
    /// Envoy's (yaml-cpp): whole numbers of more than 32 bits are strings, as are all other numbers, in the author's spelling. `<<` is a field.
    Envoy,
    /// That of the tools which turn manifests into JSON.
    Kubernetes,
    /// The same, with fields that are read as they are written.
    Written(Verbatim),
}

/// Fields whose scalar is read as it is written, where `007` and `+1` are numbers and `yes` is a boolean.
#[derive(Clone, Copy, Debug, Default)]
pub struct Verbatim {
    /// Their names. A value that is missing is null.
    pub fields: &'static [&'static str],
    /// Below a field of this name all scalars are read as what they stand for.
    pub not_below: &'static str,
}

/// The documents, also those that are null. Repeated fields of an object are kept. Returns the first error, with its place.
pub fn documents(text: &[u8], dialect: Dialect) -> Result<Vec<Value<'_>>, String> {
    if text.len() > MAX_BYTES {
        return Err(format!("it has more than {MAX_BYTES} bytes"));
    }
    let text = std::str::from_utf8(text)
        .map_err(|error| format!("it is not UTF-8: byte {} cannot be read", error.valid_up_to() + 1))?;
    let text = text.strip_prefix(MARK).unwrap_or(text);
    let mut reader =
        Reader { events: Parser::new_from_str(text), dialect, anchors: HashMap::new(), left: BOUNDS.bytes };
    let mut documents = Vec::new();
    loop {
        match reader.next()? {
            Event::StreamEnd => return Ok(documents),
            node if node.is_node() => documents.push(reader.value(node, Place::of(dialect))?),
            _ => {}
        }
    }
}

/// The only document, as a type that refuses repeated fields itself.
pub fn document<'a, T: Deserialize<'a> + Send>(text: &'a [u8]) -> Result<T, String> {
    if text.len() > MAX_BYTES {
        return Err(format!("it has more than {MAX_BYTES} bytes"));
    }
    let parser = || serde_saphyr::from_slice_with_options(text, within()).map_err(|error| error.to_string());
    thread::scope(|scope| {
        let parsing = thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, parser);
        let parsed = parsing.map_err(|error| format!("there is no thread to parse it: {error}"))?.join();
        parsed.unwrap_or_else(|_| Err("its parser failed".to_owned()))
    })
}

fn within() -> Options {
    let Bounds { depth, bytes, .. } = BOUNDS;
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

/// A field of an object.
type Field<'a> = (Cow<'a, str>, Value<'a>);

/// The fields of an object, with those that it merges from others by `<<` below its own ones.
fn merged(fields: Vec<Field<'_>>) -> Result<Vec<Field<'_>>, String> {
    let (merges, mut own): (Vec<_>, Vec<_>) = fields.into_iter().partition(|(name, _)| name == "<<");
    if merges.is_empty() {
        return Ok(own);
    }
    let mut names: HashSet<Cow<'_, str>> = own.iter().map(|(name, _)| name.clone()).collect();
    for (_, value) in merges {
        let objects = match value {
            Value::List(items) => items,
            one => vec![one],
        };
        for object in objects {
            let Value::Object(fields) = object else { return Err("<< merges what is no object".to_owned()) };
            own.extend(fields.into_iter().filter(|(name, _)| names.insert(name.clone())));
        }
    }
    Ok(own)
}

/// An alias to a value that has not ended.
const OPEN_ANCHOR: &str = "an alias stands in what it repeats";
/// A value in the place of a scalar.
const NOT_A_SCALAR: &str = "a list or an object stands in the place of a string";

fn too_deep() -> String {
    format!("it nests deeper than {} levels", BOUNDS.depth)
}

/// The levels that a value nests, itself included.
fn levels(value: &Value<'_>) -> usize {
    let below = match value {
        Value::List(items) => items.iter().map(levels).max(),
        Value::Object(fields) => fields.iter().map(|(_, value)| levels(value)).max(),
        _ => None,
    };
    below.unwrap_or_default().saturating_add(1)
}

struct Reader<'a> {
    events: Parser<'a, StrInput<'a>>,
    dialect: Dialect,
    /// Values that aliases may repeat.
    anchors: HashMap<usize, Anchored<'a>>,
    /// Bytes that further values may take.
    left: usize,
}

/// A value that aliases may repeat.
struct Anchored<'a> {
    value: Value<'a>,
    /// A scalar as it is written.
    written: Option<Cow<'a, str>>,
    /// The bytes that it takes.
    bytes: usize,
    /// The levels that it nests.
    levels: usize,
}

/// Where a value stands.
#[derive(Clone, Copy)]
struct Place {
    /// The levels that it may nest, itself included.
    levels: usize,
    verbatim: Verbatim,
    /// Whether it is a scalar that is read as it is written.
    is_written: bool,
}

impl Place {
    fn of(dialect: Dialect) -> Place {
        let verbatim = match dialect {
            Dialect::Written(verbatim) => verbatim,
            Dialect::Envoy | Dialect::Kubernetes => Verbatim::default(),
        };
        Place { levels: BOUNDS.depth, verbatim, is_written: false }
    }

    /// The place of the value of a field.
    fn field(self, name: &str) -> Place {
        let verbatim = if self.verbatim.not_below == name { Verbatim::default() } else { self.verbatim };
        Place { verbatim, is_written: self.verbatim.fields.contains(&name), ..self }
    }
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<Event<'a>, String> {
        match self.events.next_event() {
            Some(Ok((event, _))) => Ok(event),
            Some(Err(error)) => Err(error.to_string()),
            None => Ok(Event::StreamEnd),
        }
    }

    /// The next event of a list or an object; `None` at its end.
    fn child(&mut self) -> Result<Option<Event<'a>>, String> {
        loop {
            match self.next()? {
                Event::SequenceEnd | Event::MappingEnd => return Ok(None),
                Event::StreamEnd => return Err("it ends too early".to_owned()),
                node if node.is_node() => return Ok(Some(node)),
                _ => {}
            }
        }
    }

    fn take(&mut self, bytes: usize) -> Result<(), String> {
        let left = self.left.checked_sub(bytes);
        let too_many =
            || format!("its values take more than {} bytes, repeated and merged ones included", BOUNDS.bytes);
        self.left = left.ok_or_else(too_many)?;
        Ok(())
    }

    /// The value that begins with an event.
    fn value(&mut self, event: Event<'a>, place: Place) -> Result<Value<'a>, String> {
        let anchor = event.anchor_id();
        let before = self.left;
        self.take(size_of::<Field<'_>>())?;
        let (mut written, mut resolved) = (None, None);
        let value = match event {
            Event::Alias(anchor) => return self.repeated(anchor, place),
            Event::Scalar(text, style, _, tag) => {
                self.take(text.len())?;
                written = anchor.map(|_| text.clone());
                let value = self.dialect.resolve(text.clone(), style, tag.as_deref());
                resolved = anchor.map(|_| value.clone());
                if place.is_written && value != Value::Null { Value::Text(text) } else { value }
            }
            _ if place.is_written => return Err(NOT_A_SCALAR.to_owned()),
            nested => self.nested(&nested, place)?,
        };
        if let Some(anchor) = anchor {
            let bytes = before.saturating_sub(self.left);
            self.take(bytes)?;
            let levels = levels(&value);
            let value = resolved.unwrap_or_else(|| value.clone());
            self.anchors.insert(anchor, Anchored { value, written, bytes, levels });
        }
        Ok(value)
    }

    fn nested(&mut self, event: &Event<'a>, place: Place) -> Result<Value<'a>, String> {
        let below = Place { levels: place.levels.saturating_sub(1), ..place };
        if below.levels == 0 {
            return Err(too_deep());
        }
        if matches!(event, Event::SequenceStart(..)) {
            let mut items = Vec::new();
            while let Some(item) = self.child()? {
                items.push(self.value(item, below)?);
            }
            return Ok(Value::List(items));
        }
        let mut fields = Vec::new();
        while let Some(name) = self.child()? {
            let name = self.name(name)?;
            let value = self.child()?.ok_or("a field has no value")?;
            let value = self.value(value, below.field(&name))?;
            fields.push((name, value));
        }
        Ok(Value::Object(match self.dialect {
            Dialect::Envoy => fields,
            Dialect::Kubernetes | Dialect::Written(_) => merged(fields)?,
        }))
    }

    /// The name of a field.
    fn name(&mut self, event: Event<'a>) -> Result<Cow<'a, str>, String> {
        let anchor = event.anchor_id();
        let name = match event {
            Event::Scalar(name, ..) => Some(name),
            Event::Alias(anchor) => self.anchors.get(&anchor).and_then(|anchored| anchored.written.clone()),
            _ => None,
        };
        let name = name.ok_or("a field's name is a list or an object")?;
        self.take(name.len())?;
        if let Some(anchor) = anchor {
            self.take(name.len())?;
            let (value, written) = (Value::Text(name.clone()), Some(name.clone()));
            self.anchors.insert(anchor, Anchored { value, written, bytes: name.len(), levels: 1 });
        }
        Ok(name)
    }

    /// The value that an alias repeats.
    fn repeated(&mut self, anchor: usize, place: Place) -> Result<Value<'a>, String> {
        let bytes = self.anchors.get(&anchor).map(|anchored| anchored.bytes);
        self.take(bytes.ok_or(OPEN_ANCHOR)?)?;
        let anchored = self.anchors.get(&anchor).ok_or(OPEN_ANCHOR)?;
        if anchored.levels > place.levels {
            return Err(too_deep());
        }
        match (&anchored.value, &anchored.written) {
            (Value::Null, _) => Ok(Value::Null),
            (_, Some(written)) if place.is_written => Ok(Value::Text(written.clone())),
            _ if place.is_written => Err(NOT_A_SCALAR.to_owned()),
            (value, _) => Ok(value.clone()),
        }
    }
}

impl Dialect {
    /// What a scalar stands for.
    fn resolve<'a>(self, text: Cow<'a, str>, style: ScalarStyle, tag: Option<&Tag>) -> Value<'a> {
        let is = |kind: &str| tag.is_some_and(|tag| tag.is_yaml_core_schema_tag(kind));
        let is_envoy = matches!(self, Dialect::Envoy);
        let is_evaluated =
            style == ScalarStyle::Plain || ["null", "bool", "int", "float"].into_iter().any(is);
        if !is_evaluated || (!is_envoy && is("str")) {
            return Value::Text(text);
        }
        if matches!(&*text, "" | "~" | "null" | "Null" | "NULL") {
            return Value::Null;
        }
        if let Some((_, value)) = BOOLEANS.iter().find(|(word, _)| is_flexibly(&text, word)) {
            return Value::Bool(*value);
        }
        let number = if is_envoy { of_envoy(&text) } else { of_kubernetes(&text.replace('_', "")) };
        number.unwrap_or(Value::Text(text))
    }
}

/// Whether a text is a word in lower case, in capitals, or with a capital first.
fn is_flexibly(text: &str, word: &str) -> bool {
    let capital_first =
        || text.get(1..) == word.get(1..) && text.get(..1) == Some(&word[..1].to_ascii_uppercase());
    text == word || text == word.to_ascii_uppercase() || capital_first()
}

/// A whole number, as a string if it takes more than 32 bits.
fn of_envoy(text: &str) -> Option<Value<'static>> {
    let number = i64::try_from(integer(text, &[("0x", 16), ("0X", 16), ("0", 8)])?).ok()?;
    match i32::try_from(number) {
        Ok(_) => Some(whole(number.into())),
        Err(_) => Some(Value::Text(number.to_string().into())),
    }
}

fn of_kubernetes(text: &str) -> Option<Value<'static>> {
    const PREFIXES: [(&str, u32); 7] =
        [("0x", 16), ("0X", 16), ("0o", 8), ("0O", 8), ("0b", 2), ("0B", 2), ("0", 8)];
    if let Some(number) = integer(text, &PREFIXES).filter(|number| u64::try_from(number.abs()).is_ok()) {
        return Some(whole(number));
    }
    let is_number = text.bytes().any(|byte| byte.is_ascii_digit())
        && text.bytes().all(|byte| byte.is_ascii_digit() || b".eE+-".contains(&byte));
    text.parse().ok().filter(|_| is_number).map(Value::Float)
}

/// A whole number with a sign and a base.
fn integer(text: &str, prefixes: &[(&str, u32)]) -> Option<i128> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let based = prefixes.iter().find_map(|(prefix, base)| {
        digits.strip_prefix(prefix).filter(|digits| !digits.is_empty()).map(|digits| (digits, *base))
    });
    let (digits, base) = based.unwrap_or((digits, 10));
    let plain = !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(base));
    i128::from_str_radix(digits, base).ok().filter(|_| plain)?.checked_mul(sign)
}

fn whole(number: i128) -> Value<'static> {
    match (u64::try_from(number), i64::try_from(number)) {
        (Ok(number), _) => Value::Unsigned(number),
        (_, Ok(number)) => Value::Negative(number),
        _ => Value::Float(number as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8]) -> Result<Vec<Value<'_>>, String> {
        documents(text, Dialect::Written(Verbatim::default()))
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
        assert_eq!((error(chain(16)), error(chain(65))), (String::new(), String::new()));
        assert!(error(chain(5_000)).contains("merged ones included"));
        let fields: String = (0..1_000).map(|number| format!("  f{number}: 1\n")).collect();
        let merged = |objects: usize| {
            let merged: String = (0..objects).map(|number| format!("m{number}: {{<<: *a}}\n")).collect();
            error(format!("a: &a\n{fields}{merged}"))
        };
        assert_eq!(merged(600), "");
        assert!(merged(10_000).contains("merged ones included"), "merged fields are repeated ones");
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

    /// Each line repeats the one before in a list of its own.
    #[test]
    fn aliases_nest_no_deeper_than_what_is_written() {
        let nested = |levels: usize| {
            (0..levels)
                .fold("- &a0 x\n".to_owned(), |text, level| format!("{text}- &a{} [*a{level}]\n", level + 1))
        };
        assert_eq!(error(nested(126)), "");
        assert!(error(nested(127)).contains("nests deeper than 128 levels"));
        assert!(error(nested(2_000)).contains("nests deeper than 128 levels"));
    }

    #[test]
    fn aliases_repeat_names_and_scalars_as_they_are_written() {
        const VERBATIM: Verbatim = Verbatim { fields: &["key"], not_below: "" };
        let text = "- &n a\n- &z 010\n- {&k b: *z, *n : 1}\n- {key: *z, *k : *n}\n";
        let expected = "- a\n- 8\n- {b: 8, a: 1}\n- {key: '010', b: a}\n";
        let read = |text: &'static str| documents(text.as_bytes(), Dialect::Written(VERBATIM));
        assert_eq!(read(text), read(expected));
        let first_as_written = "- {key: &n 5, limit: *n}\n- {key: &y yes, shadow: *y}\n";
        assert_eq!(read(first_as_written), read("- {key: '5', limit: 5}\n- {key: 'yes', shadow: yes}\n"));
        assert!(read("- &l [a]\n- {key: *l}\n").is_err());
        assert!(read("- &l [a]\n- {*l : a}\n").is_err());
    }

    fn one(text: &str, dialect: Dialect) -> Value<'_> {
        documents(text.as_bytes(), dialect).unwrap().remove(0)
    }

    #[test]
    fn scalars_without_quotes() {
        let text = |text: &'static str| Value::Text(text.into());
        let number = Value::Unsigned;
        for (written, envoy, kubernetes) in [
            ("~", Value::Null, Value::Null),
            ("yes", Value::Bool(true), Value::Bool(true)),
            ("OFF", Value::Bool(false), Value::Bool(false)),
            ("No", Value::Bool(false), Value::Bool(false)),
            ("nO", text("nO"), text("nO")),
            ("\"yes\"", text("yes"), text("yes")),
            ("'1'", text("1"), text("1")),
            ("100", number(100), number(100)),
            ("+100", number(100), number(100)),
            ("-1", Value::Negative(-1), Value::Negative(-1)),
            ("010", number(8), number(8)),
            ("08", text("08"), Value::Float(8.0)),
            ("0x1f", number(31), number(31)),
            ("0o17", text("0o17"), number(15)),
            ("1_000", text("1_000"), number(1_000)),
            ("2147483647", number(2_147_483_647), number(2_147_483_647)),
            ("2147483648", text("2147483648"), number(2_147_483_648)),
            ("18446744073709551615", text("18446744073709551615"), number(u64::MAX)),
            ("12.34", text("12.34"), Value::Float(12.34)),
            ("100.0", text("100.0"), Value::Float(100.0)),
            ("1e2", text("1e2"), Value::Float(100.0)),
            ("1h", text("1h"), text("1h")),
            ("!!str 5", number(5), text("5")),
        ] {
            assert_eq!(one(written, Dialect::Envoy), envoy, "{written}");
            assert_eq!(one(written, Dialect::Kubernetes), kubernetes, "{written}");
        }
    }

    #[test]
    fn manifests_merge_fields_as_kubernetes_tools_do() {
        let text = "a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: {<<: [*a, {z: 4}]}\n";
        let shown = |dialect| format!("{:?}", documents(text.as_bytes(), dialect).unwrap());
        let merged = "a: {x: 1, y: 2}\nb: {y: 3, x: 1}\nc: {x: 1, y: 2, z: 4}\n";
        let expected = format!("{:?}", documents(merged.as_bytes(), Dialect::Kubernetes).unwrap());
        assert_eq!(shown(Dialect::Kubernetes), expected);
        assert!(shown(Dialect::Envoy).contains("<<"), "Envoy merges nothing");
        assert!(documents(b"{<<: 5}", Dialect::Kubernetes).is_err());
    }

    #[test]
    fn a_text_of_envoy_has_the_same_bounds() {
        let refused = |text: &str| documents(text.as_bytes(), Dialect::Envoy).unwrap_err();
        let repeated = |times: usize| {
            format!("a: &a {}\nb: [{}]\n", "x".repeat(1_000_000), vec!["*a"; times].join(", "))
        };
        assert!(documents(repeated(100).as_bytes(), Dialect::Envoy).is_ok());
        assert!(refused(&repeated(2_000)).contains("repeated and merged ones included"));
        let bomb = (1..64).fold("- &a0 [x, x]\n".to_owned(), |text, level| {
            format!("{text}- &a{level} [*a{0}, *a{0}]\n", level - 1)
        });
        assert!(refused(&bomb).contains("repeated and merged ones included"));
        for deep in ["[".repeat(200_000), "- ".repeat(200_000), "{a: ".repeat(200_000), "? ".repeat(200_000)]
        {
            refused(&deep);
        }
        assert!(refused("a: &a [*a]\n").contains("alias"));
        assert!(refused("? [a]\n: b\n").contains("name"));
        let many = documents(b"a: &x {b: 1, b: 2}\n---\n- *x\n", Dialect::Envoy);
        assert!(many.is_err(), "anchors end with their document");
        assert_eq!(documents(b"a: 1\n---\n# nothing\n---\nb: 2\n", Dialect::Envoy).unwrap().len(), 3);
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
            let read = documents(document.as_bytes(), Dialect::Written(VERBATIM));
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
        let elsewhere = documents(b"free: {key: 010}\n", Dialect::Written(VERBATIM)).unwrap();
        let inner = Value::Object(vec![("key".into(), Value::Unsigned(8))]);
        assert_eq!(elsewhere, [Value::Object(vec![("free".into(), inner)])]);
    }

    #[test]
    fn fields_of_other_objects_are_merged_below_the_own_ones() {
        let base = "a: &a {x: 1, y: 2}\nb: &b {y: 3, z: 4}\n";
        let merged = |object: &str| {
            let document = format!("{base}c: {object}\n");
            let read = read(document.as_bytes()).unwrap();
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
