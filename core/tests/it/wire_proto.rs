//! `wire.proto` has all that a client in another language needs, and its frames stay as they are.

use prost::Message;
use prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, MessageDescriptor, ReflectMessage, Value,
};
use std::collections::BTreeSet;
use weir_core::model::wire::{self, FilterFrame, RegionFrame};
use weir_core::model::{exact, trace, window};

const PROTO: &str = include_str!("../../src/model/wire.proto");
const FRAMES: &str = include_str!("wire_frames.txt");

/// `wire.proto`, compiled.
fn pool() -> DescriptorPool {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/model");
    let set = protox::compile(["wire.proto"], [folder]).unwrap_or_else(|error| panic!("wire.proto: {error}"));
    DescriptorPool::from_file_descriptor_set(set).unwrap()
}

/// Notes a message and those within it.
fn note_reached(message: &MessageDescriptor, reached: &mut BTreeSet<String>) {
    if reached.insert(message.name().to_owned()) {
        let kinds = message.fields().map(|field| field.kind());
        kinds.filter_map(|kind| kind.as_message().cloned()).for_each(|inner| note_reached(&inner, reached));
    }
}

#[test]
fn every_message_is_of_the_stream() {
    let pool = pool();
    let service = pool.get_service_by_name(wire::SERVICE).unwrap();
    let method = service.methods().find(|method| method.name() == wire::METHOD).unwrap();
    assert!(method.is_client_streaming() && method.is_server_streaming());
    assert_eq!((method.input().name(), method.output().name()), ("FilterFrame", "RegionFrame"));
    let mut reached = BTreeSet::new();
    note_reached(&method.input(), &mut reached);
    note_reached(&method.output(), &mut reached);
    assert_eq!(reached, pool.all_messages().map(|message| message.name().to_owned()).collect());
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
        assert_eq!(again(&golden), golden.bytes, "{} by the messages in Rust", golden.what);
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
