//! The cost of a request: a constant, a number between 1 and a maximum that a request header or metadata states, or the
//! value of a response header.
//!
//! The client must be trusted to set the request's header. A value that is not a number costs the maximum. The
//! response's header is set by the upstream and may be 0. Until the response arrives, an amount is reserved.

use crate::fields::Errors;
use crate::fields::Node;
use crate::fields::Value;
use crate::fields::duration::Span;
use crate::rules::request::property::Property;
use crate::rules::request::{Request, joined_header, trim};
use alloc::boxed::Box;
use alloc::vec::Vec;

pub(in crate::rules) const TIMEOUT: Span = Span { min_ms: 1_000, max_ms: 3_600_000, example: "5m" };
const TIMEOUT_MS_DEFAULT: u64 = 300_000;
pub(in crate::rules) const REQUEST_FIELDS: [&str; 3] = ["request", "max", "default"];
pub(in crate::rules) const RESPONSE_FIELDS: [&str; 5] =
    ["response", "reserve", "max", "default", "hold_timeout"];
pub(in crate::rules) const HEADER_FIELDS: [&str; 1] = ["header"];
/// Where a request states its cost: exactly one of these fields.
pub(in crate::rules) const REQUEST_KINDS: [&str; 2] = ["header", "metadata"];

/// The cost of a request under a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cost {
    /// A constant. A cost of 0 is a real check, which passes at exactly the limit.
    Fixed(u64),
    /// What the request states.
    Request(RequestCost),
    /// The value of a response header; until it arrives, an amount is reserved.
    Response(ResponseCost),
}

impl Cost {
    pub(in crate::rules) fn read(node: Node<'_>, errors: &mut Errors) -> Option<Cost> {
        match node.value {
            Value::Object(fields) if fields.iter().any(|(name, _)| name == "response") => {
                ResponseCost::read(node, errors).map(Cost::Response)
            }
            Value::Object(_) => RequestCost::read(node, errors).map(Cost::Request),
            json => match json.as_integer() {
                Some(cost) => Some(Cost::Fixed(cost)),
                None => node.reject(errors, "is not a cost", EXPECTED),
            },
        }
    }

    /// The cost of this request as far as it is known. If the response states it, the amount to reserve until then.
    pub(in crate::rules) fn of<R: Request + ?Sized>(&self, request: &R, buffer: &mut Vec<u8>) -> u64 {
        match self {
            Cost::Fixed(cost) => *cost,
            Cost::Request(cost) => cost.of(request, buffer),
            Cost::Response(cost) => cost.reserve,
        }
    }
}

const EXPECTED: &str = "a whole number, 0 or more, or an object with request or response";

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
    fn read(node: Node<'_>, errors: &mut Errors) -> Option<RequestCost> {
        let fields = node.object(&REQUEST_FIELDS, errors)?;
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

    fn of<R: Request + ?Sized>(&self, request: &R, buffer: &mut Vec<u8>) -> u64 {
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
        let fields = node.object(&REQUEST_KINDS, errors)?;
        let kind = fields.exactly_one(&REQUEST_KINDS, errors)?;
        let node = fields.get(kind)?;
        match kind {
            "header" => node.header_name(errors).map(StatedIn::Header),
            _ => Property::read_metadata(node, errors).map(StatedIn::Metadata),
        }
    }
}

/// `cost` from a response header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseCost {
    /// `response.header` (required): the header's name, in lower case.
    pub name: Box<[u8]>,
    /// `reserve` (required): what is reserved from the request to its response, 0 to the max. With 0 a request passes
    /// if anything is left.
    pub reserve: u64,
    /// `max` (required): the highest cost, at least 1, and the cost of a request whose header is not a number.
    pub max: u64,
    /// `default` (default: the reserve): the cost if the header is missing, 0 to the max.
    pub default: u64,
    /// `hold_timeout` (default `"5m"`): `"1s"` to `"1h"`, or whole milliseconds; here in milliseconds. An amount that
    /// was reserved for this long counts as spent.
    pub hold_timeout_ms: u32,
}

impl ResponseCost {
    pub(in crate::rules) fn read(node: Node<'_>, errors: &mut Errors) -> Option<ResponseCost> {
        let fields = node.object(&RESPONSE_FIELDS, errors)?;
        let expected = "an object with header, such as {\"header\": \"x-tokens-used\"}";
        let name = fields.required("response", expected, errors, read_response_header);
        let max =
            fields.required("max", "the most that a request may cost, such as 20000", errors, |n, e| {
                n.integer(1..=u64::MAX, e)
            });
        let most = max.unwrap_or(u64::MAX);
        let expected = "the amount reserved until the response arrives, such as 500";
        let reserve = fields.required("reserve", expected, errors, |n, e| n.integer(0..=most, e));
        let default = fields.or("default", reserve.unwrap_or(0), errors, |n, e| n.integer(0..=most, e));
        let hold_timeout_ms =
            fields.or("hold_timeout", TIMEOUT_MS_DEFAULT, errors, |n, e| TIMEOUT.read(n, e));
        Some(ResponseCost {
            name: name?,
            reserve: reserve?,
            max: max?,
            default: default?,
            hold_timeout_ms: u32::try_from(hold_timeout_ms?).ok()?,
        })
    }

    /// The cost of a request whose response has this header value, or none.
    pub fn of(&self, header: Option<&[u8]>) -> u64 {
        match header {
            Some(value) => parse(value.trim_ascii()).unwrap_or(self.max).min(self.max),
            None => self.default,
        }
    }
}

/// The same for a response, whose only pseudo header is its status, which is no cost.
fn read_response_header(node: Node<'_>, errors: &mut Errors) -> Option<Box<[u8]>> {
    let fields = node.object(&HEADER_FIELDS, errors)?;
    fields.required("header", "a header name such as \"x-tokens-used\"", errors, |node, errors| {
        match node.header_name(errors)? {
            name if name.starts_with(b":") => node.reject(
                errors,
                "is a pseudo header, which holds no cost",
                "a header name such as \"x-tokens-used\"",
            ),
            name => Some(name),
        }
    })
}

/// A number of digits only; `None` for any other text, and for a number that is too large.
pub(in crate::rules) fn parse(digits: &[u8]) -> Option<u64> {
    let mut value: u64 = 0;
    for byte in digits {
        let digit = char::from(*byte).to_digit(10)?;
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    (!digits.is_empty()).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::Bounds;
    use crate::rules::testing::TestRequest;
    use alloc::format;
    use alloc::string::ToString;

    fn check(lines: &[&str], expected: u64) {
        let from = StatedIn::Header(b"x-cost".as_slice().into());
        let cost = Cost::Request(RequestCost { from, max: 100, default: 3 });
        let mut request = TestRequest::default();
        for line in lines {
            request = request.header("x-cost", line);
        }
        assert_eq!(cost.of(&request, &mut Vec::new()), expected, "{lines:?}");
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
            read(&json).unwrap().of(&request, &mut Vec::new())
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

    #[test]
    fn fixed_costs_need_no_header() {
        assert_eq!(Cost::Fixed(0).of(&TestRequest::default(), &mut Vec::new()), 0);
        assert_eq!(Cost::Fixed(u64::MAX).of(&TestRequest::default(), &mut Vec::new()), u64::MAX);
    }

    #[test]
    fn costs_from_a_responses_header() {
        let cost = ResponseCost {
            name: b"x-tokens-used".as_slice().into(),
            reserve: 50,
            max: 100,
            default: 30,
            hold_timeout_ms: 1_000,
        };
        for (header, expected) in [
            (None, 30),
            (Some("0"), 0),
            (Some("7"), 7),
            (Some(" 100\t"), 100),
            (Some("101"), 100),
            (Some("99999999999999999999999"), 100),
            (Some(""), 100),
            (Some("-1"), 100),
            (Some("7.5"), 100),
            (Some("3, 4"), 100),
        ] {
            assert_eq!(cost.of(header.map(str::as_bytes)), expected, "{header:?}");
        }
    }
}
