//! The cost that a request states itself, in a header or in metadata.

use crate::fields::{Errors, Node};
use crate::rules::digits::parse;
use crate::rules::request::property::Property;
use crate::rules::request::{Request, joined_header, trim};
use alloc::boxed::Box;
use alloc::vec::Vec;

pub(in crate::rules) const FIELDS: [&str; 3] = ["request", "max", "default"];
/// Where a request states its cost: exactly one of these fields.
pub(in crate::rules) const KINDS: [&str; 2] = ["header", "metadata"];

/// `cost` from a request header or from metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestCost {
    from: StatedIn,
    /// `max` (required): the highest cost, at least 1, and the cost of a request that states no number.
    pub max: u64,
    /// `default` (default 1): the cost of a request that states nothing, 1 to the max.
    pub default: u64,
}

/// Where a request states its cost.
#[derive(Clone, Debug, PartialEq, Eq)]
enum StatedIn {
    /// A header, in lower case.
    Header(Box<[u8]>),
    Metadata(Property),
}

impl RequestCost {
    pub(super) fn read(node: Node<'_>, errors: &mut Errors) -> Option<RequestCost> {
        let fields = node.object(&FIELDS, errors)?;
        let expected = "an object with header or metadata, such as {\"header\": \"x-cost\"}";
        let from = fields.required("request", expected, errors, StatedIn::read);
        let max = fields.required(
            "max",
            "the most that a request may cost, such as 100",
            errors,
            |node, errors| node.integer(1..=u64::MAX, errors),
        );
        let default =
            fields.or("default", 1, errors, |node, errors| node.integer(1..=max.unwrap_or(u64::MAX), errors));
        Some(RequestCost { from: from?, max: max?, default: default? })
    }

    /// The header that states the cost, if one does.
    pub fn header(&self) -> Option<&[u8]> {
        match &self.from {
            StatedIn::Header(name) => Some(name),
            StatedIn::Metadata(_) => None,
        }
    }

    /// The namespace of the metadata that states the cost, and the last key to it, if metadata does.
    pub fn metadata(&self) -> Option<(&[u8], &[u8])> {
        match &self.from {
            StatedIn::Header(_) => None,
            StatedIn::Metadata(property) => Some((property.namespace()?, property.name())),
        }
    }

    pub(super) fn of<R: Request + ?Sized>(&self, request: &R, buffer: &mut Vec<u8>) -> u64 {
        let stated = match &self.from {
            StatedIn::Header(name) => {
                joined_header(request, name, buffer).map(|value| parse(value.trim_ascii()))
            }
            StatedIn::Metadata(property) => stated(property, request, buffer),
        };
        stated.map_or(self.default, |cost| cost.unwrap_or(self.max).clamp(1, self.max.max(1)))
    }
}

/// The number in metadata: a whole one of 0 or more, as a number or in digits. `Some(None)` if it is none, and `None` if there is nothing.
fn stated<R: Request + ?Sized>(
    property: &Property,
    request: &R,
    buffer: &mut Vec<u8>,
) -> Option<Option<u64>> {
    buffer.clear();
    if !request.property(property.path(), buffer) || buffer.is_empty() {
        return None;
    }
    Some(match property.number(buffer) {
        Some(number) => u64::try_from(number).ok(),
        None => parse(trim(buffer)),
    })
}

impl StatedIn {
    fn read(node: Node<'_>, errors: &mut Errors) -> Option<StatedIn> {
        let fields = node.object(&KINDS, errors)?;
        let kind = fields.exactly_one(&KINDS, errors)?;
        let node = fields.get(kind)?;
        match kind {
            "header" => node.header_name(errors).map(StatedIn::Header),
            _ => Property::read_metadata(node, errors).map(StatedIn::Metadata),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::{Bounds, Value};
    use crate::rules::rule::cost::Cost;
    use crate::rules::testing::TestRequest;
    use crate::usage::Ratios;
    use alloc::format;
    use alloc::string::ToString;

    fn check(lines: &[&str], expected: u64) {
        let from = StatedIn::Header(b"x-cost".as_slice().into());
        let cost = Cost::Request(RequestCost { from, max: 100, default: 3 });
        let mut request = TestRequest::default();
        for line in lines {
            request = request.header("x-cost", line);
        }
        assert_eq!(cost.of(&request, 1, (0, &Ratios::default()), &mut Vec::new()), expected, "{lines:?}");
    }

    #[test]
    fn costs_from_a_header() {
        for (lines, expected) in [
            (&[][..], 3),
            (&["7"], 7),
            (&[" 7\t"], 7),
            (&["007"], 7),
            (&["0"], 1),
            (&["100"], 100),
            (&["101"], 100),
            (&["99999999999999999999999"], 100),
            (&[""], 100),
            (&["-1"], 100),
            (&["+1"], 100),
            (&["1.0"], 100),
            (&["1e1"], 100),
            (&["abc"], 100),
            (&["\u{661}"], 100),
            (&["1", "2"], 100),
        ] {
            check(lines, expected);
        }
    }

    #[test]
    fn costs_from_metadata() {
        let read = |json: &str| {
            let mut errors = Errors::default();
            let json = Value::parse(json.as_bytes(), Bounds::OF_A_FILE).unwrap();
            let cost = Cost::read(Node::root("cost", &json), &mut errors);
            errors.finish(cost).map_err(|errors| errors.to_string())
        };
        let of = |from: &str, path: &[u8], value: &[u8]| {
            let json = format!(r#"{{"request": {{"metadata": {from}}}, "max": 100, "default": 3}}"#);
            let request = TestRequest::get("/").property(path, value);
            read(&json).unwrap().of(&request, 1, (0, &Ratios::default()), &mut Vec::new())
        };
        let (filter, typed) = (r#"{"filter": "ext", "key": "n"}"#, r#"{"typed": "ext", "key": "n"}"#);
        for (value, expected) in [
            (7.0f64.to_le_bytes().as_slice(), 7),
            (&0.0f64.to_le_bytes(), 1),
            (&101.0f64.to_le_bytes(), 100),
            (&(-1.0f64).to_le_bytes(), 100),
            (&2.5f64.to_le_bytes(), 100),
            (&1e300f64.to_le_bytes(), 100),
            (&f64::NAN.to_le_bytes(), 100),
            (b" 8 ", 8),
            (b"1e3", 100),
            (b"many", 100),
            (&[1], 100),
            (&[0; 4], 100),
            (b"", 3),
        ] {
            assert_eq!(of(filter, b"metadata\0filter_metadata\0ext\0n", value), expected, "{value:?}");
        }
        let path = b"metadata\0typed_filter_metadata\0ext\0n";
        for (value, expected) in [(16_i64, 16), (0, 1), (-1, 100), (i64::MAX, 100), (1 << 60, 100)] {
            assert_eq!(of(typed, path, &value.to_le_bytes()), expected, "{value}");
        }
        assert_eq!(of(filter, path, &16_i64.to_le_bytes()), 3, "other metadata");
        for (json, problem) in [
            (r#"{"request": {}, "max": 1}"#, "request: none of header or metadata"),
            (
                r#"{"request": {"header": "x", "metadata": {"filter": "e", "key": "k"}}, "max": 1}"#,
                "metadata",
            ),
            (r#"{"request": {"metadata": {"key": "k"}}, "max": 1}"#, "request.metadata"),
            (r#"{"request": {"metadata": {"filter": "e", "key": "k"}}}"#, "max"),
        ] {
            let error = read(json).unwrap_err();
            assert!(error.contains(problem), "{json}\n{error}");
        }
    }
}
