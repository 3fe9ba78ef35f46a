//! The cost that a response's header states.

use super::{TIMEOUT, TIMEOUT_MS_DEFAULT};
use crate::fields::{Errors, Node};
use crate::rules::digits::parse;
use crate::rules::request::Request;
use alloc::boxed::Box;

pub(in crate::rules) const FIELDS: [&str; 5] = ["response", "reserve", "max", "default", "hold_timeout"];
pub(in crate::rules) const HEADER_FIELDS: [&str; 1] = ["header"];

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
    pub(super) fn read(node: Node<'_>, errors: &mut Errors) -> Option<ResponseCost> {
        let fields = node.object(&FIELDS, errors)?;
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

    /// The cost that a response states.
    pub(super) fn stated_in<R: Request + ?Sized>(&self, response: &R) -> Option<u64> {
        largest(response, &self.name, self.max)
    }
}

/// The number that a header states, `max` if it is none or more. Of several lines the largest counts, and empty ones do not.
pub(super) fn largest<R: Request + ?Sized>(response: &R, name: &[u8], max: u64) -> Option<u64> {
    let mut largest = None;
    response.for_each_header(name, &mut |line| {
        if !line.is_empty() {
            largest = largest.max(Some(parse(line.trim_ascii()).unwrap_or(max).min(max)));
        }
    });
    largest
}

/// The same for a response, whose only pseudo header is its status, which is no cost.
pub(super) fn read_response_header(node: Node<'_>, errors: &mut Errors) -> Option<Box<[u8]>> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::testing::TestRequest;

    #[test]
    fn costs_from_a_responses_header() {
        for (lines, expected) in [
            (&[][..], None),
            (&["0"], Some(0)),
            (&["7"], Some(7)),
            (&[" 100\t"], Some(100)),
            (&["101"], Some(100)),
            (&["99999999999999999999999"], Some(100)),
            (&[""], None),
            (&["-1"], Some(100)),
            (&["7.5"], Some(100)),
            (&["3, 4"], Some(100)),
            (&["3", "90", ""], Some(90)),
            (&["many", "1"], Some(100)),
        ] {
            let with = |response: TestRequest, line: &&str| response.header("x-tokens-used", line);
            let response = lines.iter().fold(TestRequest::default(), with);
            assert_eq!(largest(&response, b"x-tokens-used", 100), expected, "{lines:?}");
        }
    }
}
