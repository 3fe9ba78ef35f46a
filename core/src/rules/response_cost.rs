//! A cost that only the response tells, such as the tokens that a language model has used.
//!
//! Until the response is there an amount is reserved. Unlike a request's header this one is the upstream's own: it may say 0.
//!
//! Leaves to others: reserving and settling (`limiter`), finding the header (`filter`).

use super::cost::parse;
use super::duration::Span;
use super::errors::Errors;
use super::fields::Node;
use alloc::boxed::Box;

const TIMEOUT: Span = Span { min_ms: 1_000, max_ms: 3_600_000, words: ("1s", "1h"), example: "5m" };
const TIMEOUT_MS_DEFAULT: u64 = 300_000;
const FIELDS: [&str; 5] = ["response_header", "reserve", "cap", "default", "timeout"];

/// `cost` by a header of the response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseCost {
    /// `response_header` (required): the header's name, in lower case.
    pub name: Box<[u8]>,
    /// `reserve` (required): what is reserved from the request to its response, 0 to the cap. 0 only checks that something is
    /// left.
    pub reserve: u64,
    /// `cap` (required): the most that a request costs, at least 1, and the cost of one whose header is no number.
    pub cap: u64,
    /// `default` (default: the reserve): the cost where the header is missing, 0 to the cap.
    pub default: u64,
    /// `timeout` (default `"5m"`): `"1s"` to `"1h"`, or whole milliseconds; here in milliseconds. A reserve that is held for so
    /// long counts as spent.
    pub timeout_ms: u32,
}

impl ResponseCost {
    pub(super) fn read(node: Node<'_>, errors: &mut Errors) -> Option<ResponseCost> {
        let fields = node.object(&FIELDS, errors)?;
        let name =
            fields.required("response_header", "a header name such as \"x-tokens-used\"", errors, |n, e| {
                n.header_name(e)
            });
        let cap =
            fields.required("cap", "the most that a request may cost, such as 20000", errors, |n, e| {
                n.integer(1..=u64::MAX, e)
            });
        let most = cap.unwrap_or(u64::MAX);
        let expected = "what is held until the response is there, such as 500";
        let reserve = fields.required("reserve", expected, errors, |n, e| n.integer(0..=most, e));
        let default = fields.or("default", reserve.unwrap_or(0), errors, |n, e| n.integer(0..=most, e));
        let timeout_ms = fields.or("timeout", TIMEOUT_MS_DEFAULT, errors, |n, e| TIMEOUT.read(n, e));
        Some(ResponseCost {
            name: name?,
            reserve: reserve?,
            cap: cap?,
            default: default?,
            timeout_ms: u32::try_from(timeout_ms?).ok()?,
        })
    }

    /// What a request has cost whose response has this header, or none.
    pub fn of(&self, header: Option<&[u8]>) -> u64 {
        match header {
            Some(value) => parse(value.trim_ascii()).unwrap_or(self.cap).min(self.cap),
            None => self.default,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_from_a_responses_header() {
        let cost = ResponseCost {
            name: b"x-tokens-used".as_slice().into(),
            reserve: 50,
            cap: 100,
            default: 30,
            timeout_ms: 1_000,
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
