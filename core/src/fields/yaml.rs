//! The documents of a YAML text, within bounds of memory and of time.
//!
//! Of each scalar it depends on the reader what it stands for ([`Dialect`]). All readers take `yes`, `on` and `y` for true, and `010` for 8.
//!
//! A few bytes of YAML can repeat a long text, by an alias or by the fields of another object (`<<`). What is repeated counts, each time,
//! against bounds that all documents of a text share.

mod places;
mod writer;

pub use places::line_of;
pub use writer::write;

use super::{Bounds, Path, Value};
use alloc::borrow::Cow;
use alloc::collections::btree_map::Entry;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::Display;
use core::str::Utf8Error;
use granit_parser::{Event, Marker, Parser, ScalarStyle, StrInput, Tag};

/// Longest text, in bytes.
pub const MAX_BYTES: usize = 8 * 1024 * 1024;
const BOUNDS: Bounds = Bounds::OF_A_FILE;
/// Most repeated fields of a text that are reported.
const MAX_REPEATED: usize = 50;
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
    /// The names of those that may also have a list, whose scalars are read as they are written.
    pub lists: &'static [&'static str],
    /// Below a field of this name all scalars are read as what they stand for.
    pub not_below: &'static str,
}

/// One of the documents of a text, with what is wrong in it.
#[derive(Debug, PartialEq)]
pub struct Document<'a> {
    /// Its value. Of a field that an object has twice it has the last value.
    pub value: Value<'a>,
    /// The fields that an object has twice, in the order of the text.
    pub repeated: Vec<Repeated>,
}

/// A field that an object has already.
#[derive(Debug, PartialEq)]
pub struct Repeated {
    /// Its path.
    pub path: String,
    /// Where it is given again, as in `line 3, column 5`. Unknown in JSON.
    pub place: Option<String>,
}

impl Repeated {
    /// What is wrong with it.
    pub fn problem(&self) -> String {
        let again = self.place.as_ref().map(|place| format!(", again at {place}")).unwrap_or_default();
        format!("it is given twice{again}")
    }
}

/// The documents, also those that are null. Returns the first error, with its place.
pub fn documents(text: &[u8], dialect: Dialect) -> Result<Vec<Document<'_>>, String> {
    if text.len() > MAX_BYTES {
        return Err(format!("it has more than {MAX_BYTES} bytes"));
    }
    let text = core::str::from_utf8(text).map_err(|error| not_utf8(text, error))?;
    let text = text.strip_prefix(MARK).unwrap_or(text);
    let mut reader = Reader {
        events: Parser::new_from_str(text),
        dialect,
        at: Marker::new(0, 1, 0),
        anchors: BTreeMap::new(),
        left: BOUNDS.bytes,
        repeated: Vec::new(),
        repeats_left: MAX_REPEATED,
    };
    let mut documents = Vec::new();
    loop {
        match reader.next()? {
            Event::StreamEnd => return Ok(documents),
            node if node.is_node() => {
                let value = reader.value(node, Place::of(dialect), &Path::Root(""))?;
                documents.push(Document { value, repeated: core::mem::take(&mut reader.repeated) });
            }
            _ => {}
        }
    }
}

/// The error of a text that is not UTF-8.
pub fn not_utf8(text: &[u8], error: Utf8Error) -> String {
    let read =
        text.get(..error.valid_up_to()).and_then(|read| core::str::from_utf8(read).ok()).unwrap_or_default();
    let line = read.rsplit('\n').next().unwrap_or_default();
    let at = Marker::new(0, read.matches('\n').count().saturating_add(1), line.chars().count());
    format!("it is not UTF-8, at {}", written(at))
}

/// A place as errors name it.
fn written(at: Marker) -> String {
    format!("line {}, column {}", at.line(), at.col().saturating_add(1))
}

/// A field of an object.
type Field<'a> = (Cow<'a, str>, Value<'a>);

/// The fields of the objects that a `<<` merges; `None` if it has something else.
fn of_objects(value: Value<'_>) -> Option<Vec<Field<'_>>> {
    match value {
        Value::Object(fields) => Some(fields),
        Value::List(items) => {
            let each = items.into_iter().map(|item| match item {
                Value::Object(fields) => Some(fields),
                _ => None,
            });
            each.collect::<Option<Vec<_>>>().map(|objects| objects.into_iter().flatten().collect())
        }
        _ => None,
    }
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
    /// Where the last event begins.
    at: Marker,
    /// Values that aliases may repeat.
    anchors: BTreeMap<usize, Anchored<'a>>,
    /// Bytes that further values may take.
    left: usize,
    /// Repeated fields of the document that is read.
    repeated: Vec<Repeated>,
    /// How many more are reported.
    repeats_left: usize,
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
    /// Whether it may also be a list of them.
    is_list: bool,
}

impl Place {
    fn of(dialect: Dialect) -> Place {
        let verbatim = match dialect {
            Dialect::Written(verbatim) => verbatim,
            Dialect::Envoy | Dialect::Kubernetes => Verbatim::default(),
        };
        Place { levels: BOUNDS.depth, verbatim, is_written: false, is_list: false }
    }

    /// The place of the value of a field.
    fn field(self, name: &str) -> Place {
        let verbatim = if self.verbatim.not_below == name { Verbatim::default() } else { self.verbatim };
        let is_list = self.verbatim.lists.contains(&name);
        let is_written = is_list || self.verbatim.fields.contains(&name);
        Place { verbatim, is_written, is_list, ..self }
    }
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<Event<'a>, String> {
        match self.events.next_event() {
            Some(Ok((event, span))) => {
                self.at = span.start;
                Ok(event)
            }
            Some(Err(error)) => Err(format!("{}, at {}", error.info(), written(*error.marker()))),
            None => Ok(Event::StreamEnd),
        }
    }

    /// An error at the last event.
    fn refused(&self, what: impl Display) -> String {
        format!("{what}, at {}", written(self.at))
    }

    /// The next event of a list or an object; `None` at its end.
    fn child(&mut self) -> Result<Option<Event<'a>>, String> {
        loop {
            match self.next()? {
                Event::SequenceEnd | Event::MappingEnd => return Ok(None),
                Event::StreamEnd => return Err(self.refused("it ends too early")),
                node if node.is_node() => return Ok(Some(node)),
                _ => {}
            }
        }
    }

    fn take(&mut self, bytes: usize) -> Result<(), String> {
        let Some(left) = self.left.checked_sub(bytes) else {
            let most = BOUNDS.bytes;
            let what = format!("its values take more than {most} bytes, repeated and merged ones included");
            return Err(self.refused(what));
        };
        self.left = left;
        Ok(())
    }

    /// The value that begins with an event.
    fn value(&mut self, event: Event<'a>, place: Place, path: &Path<'_>) -> Result<Value<'a>, String> {
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
            Event::SequenceStart(..) if place.is_list => self.nested(&event, place, path)?,
            _ if place.is_written => return Err(self.refused(NOT_A_SCALAR)),
            nested => self.nested(&nested, place, path)?,
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

    fn nested(&mut self, event: &Event<'a>, place: Place, path: &Path<'_>) -> Result<Value<'a>, String> {
        let below = Place { levels: place.levels.saturating_sub(1), is_list: false, ..place };
        if below.levels == 0 {
            return Err(self.refused(too_deep()));
        }
        if matches!(event, Event::SequenceStart(..)) {
            let mut items = Vec::new();
            while let Some(item) = self.child()? {
                let path = Path::Index(path, items.len());
                items.push(self.value(item, below, &path)?);
            }
            return Ok(Value::List(items));
        }
        self.fields(below, path).map(Value::Object)
    }

    /// The fields of an object, with those that it merges from others by `<<` below its own ones.
    fn fields(&mut self, place: Place, path: &Path<'_>) -> Result<Vec<Field<'a>>, String> {
        let (mut fields, mut merged) = (Vec::new(), Vec::new());
        let mut indices: BTreeMap<Cow<'a, str>, usize> = BTreeMap::new();
        while let Some(name) = self.child()? {
            let at = self.at;
            let name = self.name(name)?;
            let path = Path::Field(path, &name);
            let event = self.child()?.ok_or_else(|| self.refused("a field has no value"))?;
            let (value_at, value) = (self.at, self.value(event, place.field(&name), &path)?);
            if name == "<<" && !matches!(self.dialect, Dialect::Envoy) {
                let no_object = || format!("<< merges what is no object, at {}", written(value_at));
                merged.extend(of_objects(value).ok_or_else(no_object)?);
                continue;
            }
            match indices.entry(name.clone()) {
                Entry::Occupied(index) => {
                    self.note_repeated(&path, at);
                    if let Some(field) = fields.get_mut(*index.get()) {
                        *field = (name, value);
                    }
                }
                Entry::Vacant(room) => {
                    room.insert(fields.len());
                    fields.push((name, value));
                }
            }
        }
        let mut names: BTreeSet<Cow<'a, str>> = indices.into_keys().collect();
        fields.extend(merged.into_iter().filter(|(name, _)| names.insert(name.clone())));
        Ok(fields)
    }

    fn note_repeated(&mut self, path: &Path<'_>, at: Marker) {
        if let Some(left) = self.repeats_left.checked_sub(1) {
            self.repeats_left = left;
            self.repeated.push(Repeated { path: path.to_string(), place: Some(written(at)) });
        }
    }

    /// The name of a field.
    fn name(&mut self, event: Event<'a>) -> Result<Cow<'a, str>, String> {
        let anchor = event.anchor_id();
        let name = match event {
            Event::Scalar(name, ..) => Some(name),
            Event::Alias(anchor) => self.anchors.get(&anchor).and_then(|anchored| anchored.written.clone()),
            _ => None,
        };
        let name = name.ok_or_else(|| self.refused("a field's name is a list or an object"))?;
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
        self.take(bytes.ok_or_else(|| self.refused(OPEN_ANCHOR))?)?;
        let anchored = self.anchors.get(&anchor).ok_or_else(|| self.refused(OPEN_ANCHOR))?;
        if anchored.levels > place.levels {
            return Err(self.refused(too_deep()));
        }
        match (&anchored.value, &anchored.written) {
            (Value::Null, _) => Ok(Value::Null),
            (_, Some(written)) if place.is_written => Ok(Value::Text(written.clone())),
            (Value::List(_), _) if place.is_list => Ok(anchored.value.clone()),
            _ if place.is_written => Err(self.refused(NOT_A_SCALAR)),
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
    let in_capitals = || text.bytes().all(|byte| byte.is_ascii_uppercase());
    text.eq_ignore_ascii_case(word) && (text.get(1..) == word.get(1..) || in_capitals())
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
    use alloc::borrow::ToOwned;
    use alloc::vec;

    fn values(text: &[u8], dialect: Dialect) -> Result<Vec<Value<'_>>, String> {
        documents(text, dialect).map(|all| all.into_iter().map(|document| document.value).collect())
    }

    fn read(text: &[u8]) -> Result<Vec<Value<'_>>, String> {
        values(text, Dialect::Written(Verbatim::default()))
    }

    fn error(text: impl AsRef<[u8]>) -> String {
        read(text.as_ref()).err().unwrap_or_default()
    }

    #[test]
    fn an_error_names_its_line_and_column() {
        for (text, expected) in [
            ("a: 1\nb: {c: [\n", "unclosed bracket '[', at line 2, column 8"),
            ("a: &a\n  - *a\n", "an alias stands in what it repeats, at line 2, column 5"),
            ("a: 1\nb:\n  <<: [1]\n", "<< merges what is no object, at line 3, column 7"),
            ("a: 1\n? [b]\n: 2\n", "a field's name is a list or an object, at line 2, column 3"),
        ] {
            let error = error(text);
            assert!(error.ends_with(expected), "{text}: {error}");
        }
        let deep = format!("a: 1\nb: {}1{}", "[".repeat(200), "]".repeat(200));
        assert!(error(deep).ends_with("nests deeper than 128 levels, at line 2, column 130"));
        let repeated = format!("a: &a {}\nb:\n{}", "x".repeat(1_000_000), "- *a\n".repeat(2_000));
        let error_of_size = error(repeated);
        assert!(error_of_size.contains("repeated and merged ones included, at line "), "{error_of_size}");
        assert!(error_of_size.ends_with(", column 3"), "{error_of_size}");
        assert_eq!(error(b"a: 1\n\xc3\xa4: \xff\n"), "it is not UTF-8, at line 2, column 4");
        const VERBATIM: Verbatim = Verbatim { fields: &["key"], lists: &[], not_below: "" };
        let written = documents(b"- key:\n    a: 1\n", Dialect::Written(VERBATIM)).unwrap_err();
        assert_eq!(written, format!("{NOT_A_SCALAR}, at line 2, column 5"));
    }

    #[test]
    fn a_field_given_twice_has_the_last_value_and_a_place() {
        for dialect in [Dialect::Envoy, Dialect::Kubernetes] {
            let read = documents(b"a: 1\nb: [{c: 2, c: 3}]\na: 4\n---\nd: 5\n", dialect).unwrap();
            let of = |path: &str, place: &str| Repeated { path: path.into(), place: Some(place.into()) };
            let expected = documents(b"a: 4\nb: [{c: 3}]\n", dialect).unwrap();
            assert_eq!(read[0].value, expected[0].value);
            assert_eq!(read[0].repeated, [of("b[0].c", "line 2, column 12"), of("a", "line 3, column 1")]);
            assert_eq!(read[1].repeated, []);
        }
        let many = format!("{{{}}}", "a: 1,\n".repeat(200_000));
        let many = documents(many.as_bytes(), Dialect::Envoy).unwrap();
        assert_eq!(many[0].repeated.len(), MAX_REPEATED);
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
        const VERBATIM: Verbatim = Verbatim { fields: &["key"], lists: &[], not_below: "" };
        let text = "- &n a\n- &z 010\n- {&k b: *z, *n : 1}\n- {key: *z, *k : *n}\n";
        let expected = "- a\n- 8\n- {b: 8, a: 1}\n- {key: '010', b: a}\n";
        let read = |text: &'static str| values(text.as_bytes(), Dialect::Written(VERBATIM));
        assert_eq!(read(text), read(expected));
        let first_as_written = "- {key: &n 5, limit: *n}\n- {key: &y yes, shadow: *y}\n";
        assert_eq!(read(first_as_written), read("- {key: '5', limit: 5}\n- {key: 'yes', shadow: yes}\n"));
        assert!(read("- &l [a]\n- {key: *l}\n").is_err());
        assert!(read("- &l [a]\n- {*l : a}\n").is_err());
    }

    fn one(text: &str, dialect: Dialect) -> Value<'_> {
        values(text.as_bytes(), dialect).unwrap().remove(0)
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
    fn documents_keep_the_order_of_their_fields() {
        let text = |text: &'static str| Value::Text(text.into());
        let documents = read(b"# first\n---\nb: x\na: v\nb: z\n---\n---\n- null\n---\n~\n").unwrap();
        let object = Value::Object(vec![("b".into(), text("z")), ("a".into(), text("v"))]);
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
        const VERBATIM: Verbatim = Verbatim { fields: &["key"], lists: &[], not_below: "free" };
        let of = |written: &str| {
            let document = format!("key: {written}\nfree: {{key: {written}}}\n");
            let read = values(document.as_bytes(), Dialect::Written(VERBATIM));
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
        let elsewhere = values(b"free: {key: 010}\n", Dialect::Written(VERBATIM)).unwrap();
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
        assert_eq!(merged("{y: 9, y: 8, <<: *a}"), expected(&[("x", 1), ("y", 8)]));
    }
}
