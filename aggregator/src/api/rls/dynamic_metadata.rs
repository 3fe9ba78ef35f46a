//! The `dynamic_metadata` of a response.

use super::metadata;
use super::wire::{Entry, Override, RateLimitRequest, Unit};
use prost_types::value::Kind;
use prost_types::{Struct, Value};

/// The `dynamic_metadata` of a response, as the reference service makes it: the request, and the metadata of each limit that
/// passes. Of two values at one place, the earlier descriptor's is taken.
pub fn of_response<'a>(request: &RateLimitRequest, passed: impl Iterator<Item = &'a Struct>) -> Struct {
    let number = |number: u64| Value::from(number as f64);
    let descriptors = request.descriptors.iter().map(|descriptor| {
        let entry = |entry: &Entry| format!("{}={}", entry.key, String::from_utf8_lossy(&entry.value)).into();
        let entries: Vec<Value> = descriptor.entries.iter().map(entry).collect();
        let limit = descriptor.limit.as_ref().map(|limit| ("limit", text_of(limit).into()));
        let hits = descriptor.hits_addend.map(|hits| ("hitsAddend", number(hits)));
        object([Some(("entries", entries.into())), limit, hits])
    });
    let descriptors: Vec<Value> = descriptors.map(|of| Kind::StructValue(of).into()).collect();
    let hits = (request.hits_addend != 0).then(|| ("hitsAddend", number(request.hits_addend.into())));
    let mut metadata = Struct::default();
    passed.for_each(|other| metadata::add(&mut metadata, other));
    let metadata = (!metadata.fields.is_empty()).then(|| ("metadata", Kind::StructValue(metadata).into()));
    let domain = Some(("domain", request.domain.clone().into()));
    object([domain, Some(("descriptors", descriptors.into())), hits, metadata])
}

/// The object with those fields that are there.
fn object<const FIELDS: usize>(fields: [Option<(&str, Value)>; FIELDS]) -> Struct {
    let fields = fields.into_iter().flatten().map(|(name, value)| (name.to_owned(), value));
    Struct { fields: fields.collect() }
}

/// A limit as protobuf's text format shows it.
fn text_of(limit: &Override) -> String {
    let unit = Unit::try_from(limit.unit).unwrap_or(Unit::Unknown);
    format!("requests_per_unit:{} unit:{}", limit.requests_per_unit, format!("{unit:?}").to_uppercase())
}

#[cfg(test)]
mod tests {
    use super::super::wire::Descriptor;
    use super::*;
    use weir_core::fields::{self, Bounds, Errors, Node};

    fn read(json: &str) -> Option<Struct> {
        let value = fields::Value::parse(json.as_bytes(), Bounds::OF_A_FILE).unwrap();
        metadata::read(&Node::root("", &value), &mut Errors::keeping(1))
    }

    #[test]
    fn the_response_has_the_request_and_the_metadata_of_what_passed() {
        let entries = vec![Entry { key: "service".into(), value: b"one \xff".to_vec() }];
        let limit = Some(Override { requests_per_unit: 5, unit: Unit::Minute as i32 });
        let descriptor = Descriptor { entries, limit, hits_addend: Some(0), is_negative_hits: false };
        let request = RateLimitRequest { domain: "d".into(), descriptors: vec![descriptor], hits_addend: 2 };
        let (one, two) = (read(r#"{"q": {"a": 1}}"#).unwrap(), read(r#"{"q": {"a": 2, "b": 3}}"#).unwrap());
        let expected = read(
            r#"{"domain": "d", "hitsAddend": 2, "metadata": {"q": {"a": 1, "b": 3}}, "descriptors":
                [{"entries": ["service=one �"], "limit": "requests_per_unit:5 unit:MINUTE", "hitsAddend": 0}]}"#,
        );
        assert_eq!(of_response(&request, [&one, &two].into_iter()), expected.unwrap());
        assert!(!of_response(&request, std::iter::empty()).fields.contains_key("metadata"));
    }
}
