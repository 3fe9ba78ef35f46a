//! The sources of the parts of an identifier. A source is a row of `sources!`, from which the parser, its error texts and the schema for
//! editors follow, and a variant of [`Source`], which writes its value.

use super::escape::{push_escaped, push_escaped_byte};
use super::listed::{ON_UNLISTED, ONE_OF, Unlisted, VALUE_BYTES_MAX, VALUES_MAX};
use crate::fields::{Errors, Node, Value};
use crate::rules::describe::{
    any_of, boolean, extend, header_name, integer, list, object, one_of, one_or_list, required_each, text,
    visible, words,
};
use crate::rules::request::authorization::credential;
use crate::rules::request::client_address::{self, ClientAddress, TRUSTED_PROXIES_MAX};
use crate::rules::request::cookie::{cookies, unquoted};
use crate::rules::request::host::{host_and_port, is_plain};
use crate::rules::request::path::Differs;
use crate::rules::request::property::{self, CERTIFICATE_WORDS, Content, DEPTH_MAX, KEY_BYTES_MAX, Property};
use crate::rules::request::query::{Decoded, parameters};
use crate::rules::request::sources::Sources;
use crate::rules::request::{Lines, Request, has_foreign_blank, joined_header, trim};
use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;
use core::ops::RangeInclusive;
use serde_json::json;

const PART_NAME_BYTES_MAX: usize = 256;
const PATH_SEGMENTS: RangeInclusive<u64> = 1..=64;
const HOST_FIELDS: [&str; 1] = ["port"];

/// Fields beside a source.
pub(super) const LOWERCASE: &str = "lowercase";
pub(super) const PICK: &str = "pick";
/// Fields about lists of values.
pub(in crate::rules) const LISTS: [&str; 2] = [ONE_OF, ON_UNLISTED];
/// The source whose values are in lower case.
pub(super) const HOST: &str = "host";
/// The values of `pick`.
pub(super) const PICKS: [(&str, Pick); 2] = [("first", Pick::First), ("last", Pick::Last)];

/// Where a part is read.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Header(Box<[u8]>),
    /// The credential of the header `authorization`.
    Authorization,
    Cookie(Box<[u8]>, Pick),
    Query(Box<[u8]>, Pick),
    ClientAddress(ClientAddress),
    /// The whole path without its query.
    Path,
    PathSegment(usize),
    Authority {
        port: bool,
    },
    /// What a filter states.
    Property(Property, Pick),
    /// A field of the client's certificate.
    Certificate(Property),
    Constant(Box<[u8]>),
}

/// Which of several values of one name is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pick {
    /// None: several values are ambiguous.
    Only,
    First,
    Last,
}

/// The sources, one row for each: the field that names it, the fields that have an effect beside it, what it is read with, and its schema.
macro_rules! sources {
    ($($name:literal [$($option:ident),*] read $read:expr, schema $schema:expr;)*) => {
        /// A part has exactly one of these fields.
        pub(in crate::rules) const NAMES: &[&str] = &[$($name),*];
        /// All fields of a part.
        pub(super) const FIELDS: &[&str] = &[$($name,)* LOWERCASE, PICK, ONE_OF, ON_UNLISTED];
        /// The fields that have an effect beside each source, in the order of [`NAMES`].
        const OPTIONS: &[&[&str]] = &[$(&[$($option),*]),*];

        impl Source {
            /// Reads the source of this name.
            pub(super) fn read(name: &str, pick: Pick, node: Node<'_>, errors: &mut Errors) -> Option<Source> {
                let read: fn(Node<'_>, Pick, &mut Errors) -> Option<Source> = match name {
                    $($name => $read,)*
                    _ => return None,
                };
                read(node, pick, errors)
            }
        }

        /// The schema of a field of a part.
        fn described(field: &str) -> serde_json::Value {
            match field {
                $($name => $schema,)*
                LOWERCASE => boolean(),
                PICK => words(&PICKS),
                ONE_OF => list(text(VALUE_BYTES_MAX), 1..=VALUES_MAX),
                ON_UNLISTED => words(&Unlisted::WORDS),
                _ => json!({}),
            }
        }
    };
}

sources! {
    "header" [LOWERCASE, ONE_OF]
        read |node, _, errors| node.header_name(errors).map(Source::Header),
        schema header_name();
    "authorization" [LOWERCASE]
        read |node, _, errors| match node.value {
            Value::Bool(true) => Some(Source::Authorization),
            _ => node.reject(errors, "has no effect", "true"),
        },
        schema json!({ "const": true });
    "cookie" [LOWERCASE, PICK, ONE_OF]
        read |node, pick, errors| {
            node.visible(PART_NAME_BYTES_MAX, errors).map(|name| Source::Cookie(bytes(name), pick))
        },
        schema visible(1..=PART_NAME_BYTES_MAX);
    "query" [LOWERCASE, PICK, ONE_OF]
        read |node, pick, errors| {
            node.text(PART_NAME_BYTES_MAX, errors).map(|name| Source::Query(bytes(name), pick))
        },
        schema text(PART_NAME_BYTES_MAX);
    "client_address" []
        read |node, _, errors| ClientAddress::read(node, errors).map(Source::ClientAddress),
        schema object(&client_address::FIELDS, &[], |name| match name {
            "ipv4_prefix" => integer(client_address::IPV4_PREFIXES),
            "ipv6_prefix" => integer(client_address::IPV6_PREFIXES),
            "trusted_hops" => integer(0..=TRUSTED_PROXIES_MAX),
            _ => json!({}),
        });
    "path" [LOWERCASE, ONE_OF]
        read |node, _, errors| match node.value {
            Value::Bool(true) => Some(Source::Path),
            _ => node.reject(errors, "has no effect", "true"),
        },
        schema json!({ "const": true });
    "path_segment" [LOWERCASE, ONE_OF]
        read |node, _, errors| {
            let number = node.integer(PATH_SEGMENTS, errors)?;
            usize::try_from(number).ok().map(Source::PathSegment)
        },
        schema integer(PATH_SEGMENTS);
    "host" [ONE_OF]
        read |node, _, errors| match node.value {
            Value::Bool(true) => Some(Source::Authority { port: false }),
            Value::Object(_) => {
                let fields = node.object(&HOST_FIELDS, errors)?;
                let port = fields.or("port", false, errors, |node, errors| node.boolean(errors))?;
                Some(Source::Authority { port })
            }
            _ => node.reject(errors, "has no effect", "true, or an object with port"),
        },
        schema any_of([json!({ "const": true }), object(&HOST_FIELDS, &[], |_| boolean())]);
    "jwt_claim" [LOWERCASE, PICK, ONE_OF]
        read |node, pick, errors| {
            Property::read_claim(node, errors).map(|one| Source::Property(one, pick))
        },
        schema object(&property::CLAIM_FIELDS, &["claim"], |name| match name {
            "claim" => one_or_list(text(KEY_BYTES_MAX), DEPTH_MAX),
            _ => text(KEY_BYTES_MAX),
        });
    "metadata" [LOWERCASE, PICK, ONE_OF]
        read |node, pick, errors| {
            Property::read_metadata(node, errors).map(|one| Source::Property(one, pick))
        },
        schema metadata();
    "filter_state" [LOWERCASE, ONE_OF]
        read |node, pick, errors| {
            Property::read_filter_state(node, errors).map(|one| Source::Property(one, pick))
        },
        schema text(KEY_BYTES_MAX);
    "client_certificate" [ONE_OF]
        read |node, _, errors| Property::read_certificate(node, errors).map(Source::Certificate),
        schema words(&CERTIFICATE_WORDS);
    "constant" []
        read |node, _, errors| {
            node.text(PART_NAME_BYTES_MAX, errors).map(|text| Source::Constant(bytes(text)))
        },
        schema text(PART_NAME_BYTES_MAX);
}

/// The sources beside which this field has an effect.
pub(super) fn sources_with(option: &str) -> impl Iterator<Item = &'static str> {
    let rows = NAMES.iter().zip(OPTIONS);
    rows.filter_map(move |(name, options)| options.contains(&option).then_some(*name))
}

/// The schema of a part.
pub(in crate::rules) fn schema() -> serde_json::Value {
    let mut part = one_of(NAMES, object(FIELDS, &[], described));
    let beside = |option| json!({ "anyOf": required_each(sources_with(option)) });
    extend(
        &mut part,
        json!({
            "dependentSchemas": { LOWERCASE: beside(LOWERCASE), PICK: beside(PICK), ONE_OF: beside(ONE_OF) },
            "dependentRequired": { ON_UNLISTED: [ONE_OF] },
        }),
    );
    part
}

/// The schema of a part that is one of these sources, and has no list of values.
pub(in crate::rules) fn schema_of(names: &[&str]) -> serde_json::Value {
    let fields: Vec<&str> = names.iter().copied().chain([LOWERCASE, PICK]).collect();
    let mut part = one_of(names, object(&fields, &[], described));
    let beside = |option| {
        let with = sources_with(option).filter(|name| names.contains(name));
        json!({ "anyOf": required_each(with) })
    };
    extend(&mut part, json!({ "dependentSchemas": { LOWERCASE: beside(LOWERCASE), PICK: beside(PICK) } }));
    part
}

/// The schema of a place in the metadata of a request.
pub(in crate::rules) fn metadata() -> serde_json::Value {
    one_of(&property::METADATA_KINDS, object(&property::METADATA_FIELDS, &["key"], metadata_field))
}

/// The schema of a field of `metadata`.
pub(in crate::rules) fn metadata_field(name: &str) -> serde_json::Value {
    match name {
        "key" => one_or_list(text(KEY_BYTES_MAX), DEPTH_MAX),
        _ => text(KEY_BYTES_MAX),
    }
}

impl Source {
    /// Appends the value, escaped; nothing if the request has none. Returns false if it has several; what was appended
    /// is then invalid.
    pub(super) fn write<R: Request + ?Sized>(
        &self,
        request: &R,
        sources: &mut Sources,
        out: &mut Vec<u8>,
    ) -> bool {
        let Sources { path, peer, buffer, .. } = sources;
        match self {
            // With several lines a client could choose its identifier at will, since an upstream may use another line.
            Source::Header(name) => match request.header(name) {
                Lines::None => {}
                Lines::One(line) if has_foreign_blank(trim(line)) => return false,
                Lines::One(line) => push_escaped(trim(line), out),
                Lines::Many => return false,
            },
            Source::Authorization => match request.header(b"authorization") {
                Lines::None => {}
                Lines::One(line) => match credential(line, buffer) {
                    Some(credential) => push_escaped(credential, out),
                    None => return false,
                },
                Lines::Many => return false,
            },
            Source::Cookie(name, pick) => {
                let mut values = Values::new(*pick, |value, out| push_decoded(value, false, out), out);
                // HTTP/2 clients may send each cookie in a line of its own.
                request.for_each_header(b"cookie", &mut |line| {
                    cookies(line, name)
                        .for_each(|value| values.take(value.map(|value| unquoted(value, buffer))));
                });
                return !values.ambiguous;
            }
            Source::Query(name, pick) => {
                let target = joined_header(request, b":path", buffer).unwrap_or_default();
                let mut values = Values::new(*pick, |value, out| push_decoded(value, true, out), out);
                parameters(target, name).for_each(|value| values.take(value));
                return !values.ambiguous;
            }
            Source::ClientAddress(part) => part.write(request, peer, buffer, out),
            Source::Path => return path.of(request, buffer).write_whole(|byte| push_escaped_byte(byte, out)),
            Source::PathSegment(number) => match path.of(request, buffer).segment(*number) {
                Ok(segment) => push_escaped(segment, out),
                Err(Differs) => return false,
            },
            Source::Authority { port } => return write_authority(request, *port, buffer, out),
            Source::Property(property, pick) => return write_property(request, property, *pick, buffer, out),
            Source::Certificate(property) => {
                buffer.clear();
                if request.property(property.path(), buffer) {
                    push_escaped(trim(buffer), out);
                }
            }
            Source::Constant(text) => push_escaped(text, out),
        }
        true
    }
}

/// Appends the host, and the port if it is given and wanted; false if upstreams may read another host.
fn write_authority<R: Request + ?Sized>(
    request: &R,
    port: bool,
    buffer: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> bool {
    let authority = joined_header(request, b":authority", buffer).unwrap_or_default();
    let (host, number) = host_and_port(authority);
    if !is_plain(authority) {
        return false;
    }
    host.iter().for_each(|byte| push_escaped_byte(byte.to_ascii_lowercase(), out));
    if port && !number.is_empty() {
        out.push(b':');
        push_escaped(number, out);
    }
    true
}

/// Appends what Envoy has of a property, if it has it; false if that is a map, or several values of which none is picked.
fn write_property<R: Request + ?Sized>(
    request: &R,
    property: &Property,
    pick: Pick,
    buffer: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> bool {
    buffer.clear();
    if !request.property(property.path(), buffer) {
        return true;
    }
    match property.content(buffer) {
        Content::List(items) => {
            let push = |item: &[u8], out: &mut Vec<u8>| push_content(property.content(item), out);
            let mut values = Values::new(pick, push, out);
            items.for_each(|item| values.take(property.content(item).is_single().then_some(item)));
            !values.ambiguous
        }
        Content::Map => false,
        content => push_content(content, out),
    }
}

/// Takes the values of one name, and writes the one to use.
struct Values<'a, P> {
    pick: Pick,
    /// Appends a value; returns false if it can be read in two ways.
    push: P,
    start: usize,
    seen: bool,
    ambiguous: bool,
    out: &'a mut Vec<u8>,
}

impl<'a, P: Fn(&[u8], &mut Vec<u8>) -> bool> Values<'a, P> {
    fn new(pick: Pick, push: P, out: &'a mut Vec<u8>) -> Self {
        Values { pick, push, start: out.len(), seen: false, ambiguous: false, out }
    }

    /// Takes one more value, as it is written; `None` if it can be read in two ways.
    fn take(&mut self, value: Option<&[u8]>) {
        let Some(value) = value else {
            self.ambiguous = true;
            return;
        };
        match (self.seen, self.pick) {
            (false, _) => self.seen = true,
            (true, Pick::First) => return,
            (true, Pick::Last) => self.out.truncate(self.start),
            (true, Pick::Only) => {
                self.ambiguous = true;
                return;
            }
        }
        self.ambiguous |= !(self.push)(value, self.out);
    }
}

fn bytes(text: &str) -> Box<[u8]> {
    text.as_bytes().into()
}

/// Appends a single value that a property has, as text. No client chooses its blanks.
fn push_content(value: Content<'_>, out: &mut Vec<u8>) -> bool {
    match value {
        Content::Text(text) => push_escaped(trim(text), out),
        Content::Number(number) => out.extend_from_slice(format!("{number}").as_bytes()),
        Content::Integer(number) => out.extend_from_slice(format!("{number}").as_bytes()),
        Content::Bool(value) => out.extend_from_slice(if value { b"true" } else { b"false" }),
        Content::List(_) | Content::Map => {}
    }
    true
}

/// Appends a percent-encoded value, decoded, escaped and without leading and trailing blanks. Returns false if upstreams differ in what
/// blanks are.
fn push_decoded(value: &[u8], form: bool, out: &mut Vec<u8>) -> bool {
    let start = out.len();
    if memchr::memchr2(b'%', b'+', value).is_none() {
        push_escaped(trim(value), out);
        return !has_foreign_blank(trim(value));
    }
    let decoded = Decoded { bytes: value, form }.skip_while(|byte| is_blank(*byte));
    decoded.for_each(|byte| push_escaped_byte(byte, out));
    while out.len() > start && out.last().is_some_and(|byte| is_blank(*byte)) {
        out.pop();
    }
    !has_foreign_blank(out.get(start..).unwrap_or_default())
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}
