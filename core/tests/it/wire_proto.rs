//! `wire.proto`, which clients in other languages are made from, describes what `wire.rs` sends.

use prost::Message;
use prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, ReflectMessage, Value,
};
use std::collections::{BTreeMap, BTreeSet};
use weir_core::model::wire::{self, FilterFrame, RegionFrame};
use weir_core::model::{exact, trace, window};

const PROTO: &str = include_str!("../../src/model/wire.proto");
const RUST: &str = include_str!("../../src/model/wire.rs");
const OUTCOMES: &str = include_str!("../../src/model/outcome.rs");
const FRAMES: &str = include_str!("wire_frames.txt");

/// `wire.proto`, compiled.
fn pool() -> DescriptorPool {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/model");
    let set = protox::compile(["wire.proto"], [folder]).unwrap_or_else(|error| panic!("wire.proto: {error}"));
    DescriptorPool::from_file_descriptor_set(set).unwrap()
}

/// A field as `label kind name = tag`, in the terms of prost's attributes.
fn described(field: &FieldDescriptor) -> String {
    let kind = match field.kind() {
        Kind::Message(message) => message.name().to_owned(),
        kind => format!("{kind:?}").to_lowercase(),
    };
    let is_message = matches!(field.kind(), Kind::Message(_));
    let label = match (field.is_list(), field.supports_presence() && !is_message) {
        (true, _) => "repeated ",
        (false, true) => "optional ",
        (false, false) => "",
    };
    format!("{label}{kind} {} = {}", field.name(), field.number())
}

/// The messages that a frame may have, with their fields.
fn reached(message: &MessageDescriptor, all: &mut BTreeMap<String, BTreeSet<String>>) {
    if all.contains_key(message.name()) {
        return;
    }
    all.insert(message.name().to_owned(), message.fields().map(|field| described(&field)).collect());
    for field in message.fields() {
        if let Kind::Message(inner) = field.kind() {
            reached(&inner, all);
        }
    }
}

/// `wire.rs` with the message that a macro makes, whose fields by outcome are the rows of a table.
fn rust() -> String {
    let rows = OUTCOMES.lines().filter_map(|line| match line.split_whitespace().collect::<Vec<_>>()[..] {
        [_, name, label, tag, group] if label.starts_with('"') && group.ends_with(';') => {
            Some(format!("    #[prost(uint64, tag = \"{tag}\")]\n    pub {name}: u64,\n"))
        }
        _ => None,
    });
    let repeated = "    $($(#[$meaning])* #[prost(uint64, tag = $tag)] pub $name: u64,)*\n";
    let text = RUST.replace("\n        ", "\n");
    assert!(text.contains(repeated));
    text.replace(repeated, &rows.collect::<String>())
}

/// The messages of `wire.rs`, with their fields as prost encodes them.
fn messages_of_rust() -> BTreeMap<String, BTreeSet<String>> {
    let mut messages = BTreeMap::new();
    for text in rust().split("prost::Message)]\npub struct ").skip(1) {
        let (name, rest) = text.split_once(" {\n").unwrap();
        let body = rest.split("\n}").next().unwrap();
        let fields = body.split("#[prost(").skip(1).map(|field| {
            let (attribute, rest) = field.split_once(")]\n    pub ").unwrap();
            let (name, rest) = rest.split_once(": ").unwrap();
            let words: Vec<&str> = attribute.split(", ").collect();
            let tag = words.last().unwrap().strip_prefix("tag = \"").unwrap().trim_end_matches('"');
            let inner = rest.lines().next().unwrap().trim_end_matches(['>', ',']).rsplit('<').next().unwrap();
            let (kind, is_message) = match words[0].split(' ').next().unwrap() {
                "message" => (inner, true),
                kind => (kind, false),
            };
            let label = match (words.contains(&"repeated"), words.contains(&"optional") && !is_message) {
                (true, _) => "repeated ",
                (false, true) => "optional ",
                (false, false) => "",
            };
            format!("{label}{kind} {name} = {tag}")
        });
        messages.insert(name.to_owned(), fields.collect());
    }
    messages
}

#[test]
fn every_message_and_tag_of_the_stream_is_described() {
    let pool = pool();
    let service = pool.get_service_by_name(wire::SERVICE).unwrap();
    let method = service.methods().find(|method| method.name() == wire::METHOD).unwrap();
    assert!(method.is_client_streaming() && method.is_server_streaming());
    assert_eq!((method.input().name(), method.output().name()), ("FilterFrame", "RegionFrame"));
    let mut described = BTreeMap::new();
    reached(&method.input(), &mut described);
    reached(&method.output(), &mut described);
    let rust = messages_of_rust();
    for (message, fields) in &described {
        assert_eq!(rust.get(message), Some(fields), "{message} in wire.rs (left) and in wire.proto");
    }
    assert_eq!(described.len(), pool.all_messages().len(), "all messages of wire.proto are in a frame");
    // What only aggregators send to each other, over Redis.
    let others: Vec<&str> =
        rust.keys().filter(|name| !described.contains_key(*name)).map(String::as_str).collect();
    assert_eq!(others, ["Change", "Changes", "Part"]);
}

#[test]
fn every_field_has_a_comment_and_bounds_are_stated() {
    let lines: Vec<&str> = PROTO.lines().map(str::trim).collect();
    for (above, line) in lines.iter().zip(&lines[1..]) {
        let is_field = line.contains(" = ") && line.ends_with(';') && !line.starts_with("syntax");
        let needs_comment = is_field || line.starts_with("message ");
        assert!(!needs_comment || above.starts_with("//"), "no comment above {line:?}");
    }
    let head = PROTO.split("syntax =").next().unwrap().replace("\n// ", " ");
    for (name, value) in [
        ("PROTOCOL_VERSION", wire::PROTOCOL_VERSION as usize),
        ("MAX_FRAME_BYTES", wire::MAX_FRAME_BYTES),
        ("MAX_FRAME_CELLS", wire::MAX_FRAME_CELLS),
        ("MAX_FRAME_CONTROLS", wire::MAX_FRAME_CONTROLS),
        ("MAX_FRAME_COUNTERS", wire::MAX_FRAME_COUNTERS),
        ("MAX_CHARGES", exact::MAX_CHARGES),
        ("MAX_TRACES", trace::MAX_TRACES),
        ("MAX_CELLS", window::MAX_CELLS),
    ] {
        assert!(head.contains(&format!("{name} = {value}")), "wire.proto does not state {name} = {value}");
    }
}

/// A golden frame.
struct Golden {
    message: String,
    what: String,
    bytes: Vec<u8>,
    text: String,
}

fn golden() -> Vec<Golden> {
    let frames = FRAMES.split("\n\n").skip(1).map(|block| {
        let (title, rest) = block.split_once('\n').unwrap();
        let (message, what) = title.split_once(": ").unwrap();
        let (text, hex) = rest.split_once("\n  =\n").unwrap();
        let digits: Vec<u8> = hex.chars().filter_map(|c| c.to_digit(16)).map(|digit| digit as u8).collect();
        Golden {
            message: message.to_owned(),
            what: what.to_owned(),
            bytes: digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect(),
            text: text.split_whitespace().collect::<Vec<_>>().join(" "),
        }
    });
    frames.collect()
}

/// Decodes the bytes as the aggregator and the filter do, and encodes them again.
fn again(golden: &Golden) -> Vec<u8> {
    let decoded = match golden.message.as_str() {
        "FilterFrame" => FilterFrame::decode(&golden.bytes[..]).map(|frame| frame.encode_to_vec()),
        "RegionFrame" => RegionFrame::decode(&golden.bytes[..]).map(|frame| frame.encode_to_vec()),
        other => panic!("{other} is no frame"),
    };
    decoded.unwrap_or_else(|error| panic!("{}: {error}", golden.what))
}

/// What a message has, as the file of frames shows it.
fn shown(message: &DynamicMessage) -> String {
    let value_of = |field: &FieldDescriptor, value: &Value| match value {
        Value::Message(inner) => format!("{} {{ {} }}", field.name(), shown(inner)),
        Value::Bytes(bytes) => {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{}: {hex}", field.name())
        }
        Value::String(text) => format!("{}: \"{text}\"", field.name()),
        Value::Bool(is) => format!("{}: {is}", field.name()),
        Value::U32(number) => format!("{}: {number}", field.name()),
        Value::U64(number) => format!("{}: {number}", field.name()),
        other => panic!("{other:?}"),
    };
    let fields = message.fields().flat_map(|(field, value)| {
        let values = value.as_list().map_or(std::slice::from_ref(value), |list| list);
        values.iter().map(|value| value_of(&field, value)).collect::<Vec<_>>()
    });
    fields.collect::<Vec<_>>().join(" ")
}

/// Notes the fields that are set in a message and in those within it.
fn note_fields(message: &DynamicMessage, seen: &mut BTreeSet<String>) {
    assert_eq!(message.unknown_fields().count(), 0, "unknown fields in {}", message.descriptor().name());
    for (field, value) in message.fields() {
        seen.insert(format!("{}.{}", message.descriptor().name(), field.name()));
        let values = value.as_list().map_or(std::slice::from_ref(value), |list| list);
        values.iter().filter_map(|value| value.as_message()).for_each(|inner| note_fields(inner, seen));
    }
}

#[test]
fn golden_frames_are_decoded_and_encoded_to_the_same_bytes() {
    let pool = pool();
    let mut seen = BTreeSet::new();
    for golden in golden() {
        let descriptor = pool.get_message_by_name(&format!("weir.v1.{}", golden.message)).unwrap();
        let message = DynamicMessage::decode(descriptor, &golden.bytes[..]).unwrap();
        assert_eq!(message.encode_to_vec(), golden.bytes, "{} by wire.proto", golden.what);
        assert_eq!(again(&golden), golden.bytes, "{} by wire.rs", golden.what);
        note_fields(&message, &mut seen);
        assert_eq!(shown(&message), golden.text, "{}", golden.what);
    }
    let messages = pool.all_messages();
    let all: BTreeSet<String> = messages
        .flat_map(|message| {
            message.fields().map(|field| format!("{}.{}", message.name(), field.name())).collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(all.difference(&seen).collect::<Vec<_>>(), Vec::<&String>::new(), "in no golden frame");
}
