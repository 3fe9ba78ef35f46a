//! What a request costs: a constant, what a header says, kept between 1 and a cap, or what its response says.
//!
//! Whoever sets the header must be trusted to set it; so one that cannot be read costs the cap.
//!
//! Leaves to others: costs that only the response tells (`response_cost`).

use super::errors::Errors;
use super::fields::Node;
use super::json::Json;
use super::request::{Request, joined_header};
use super::response_cost::ResponseCost;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// The cost of a request under a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cost {
    /// Always this much; 0 is a real check that passes at exactly the limit.
    Fixed(u64),
    /// What the header says.
    Header {
        /// The header's name, in lower case.
        name: Box<[u8]>,
        /// The most that a request costs, and the cost of one whose header is no number.
        cap: u64,
        /// The cost of a request without the header.
        default: u64,
    },
    /// What a header of the response says; until then something is reserved.
    Response(ResponseCost),
}

impl Cost {
    pub(super) fn read(node: Node<'_>, errors: &mut Errors) -> Option<Cost> {
        match node.json {
            Json::Object(fields) if fields.iter().any(|(name, _)| name == "response_header") => {
                ResponseCost::read(node, errors).map(Cost::Response)
            }
            Json::Object(_) => Cost::read_header(node, errors),
            json => match json.as_integer() {
                Some(cost) => Some(Cost::Fixed(cost)),
                None => node.reject(errors, "is not a cost", EXPECTED),
            },
        }
    }

    fn read_header(node: Node<'_>, errors: &mut Errors) -> Option<Cost> {
        let fields = node.object(&["header", "cap", "default"], errors)?;
        let name = fields.required("header", "a header name such as \"x-cost\"", errors, |node, errors| {
            node.header_name(errors)
        });
        let cap = fields.required(
            "cap",
            "the most that a request may cost, such as 100",
            errors,
            |node, errors| node.integer(1..=u64::MAX, errors),
        );
        let default =
            fields.or("default", 1, errors, |node, errors| node.integer(1..=cap.unwrap_or(u64::MAX), errors));
        Some(Cost::Header { name: name?, cap: cap?, default: default? })
    }

    /// The cost of this request, as far as it is known: where the response tells it, what is reserved until then.
    pub(super) fn of<R: Request + ?Sized>(&self, request: &R, buffer: &mut Vec<u8>) -> u64 {
        match self {
            Cost::Fixed(cost) => *cost,
            Cost::Header { name, cap, default } => match joined_header(request, name, buffer) {
                Some(value) => parse(value.trim_ascii()).unwrap_or(*cap).clamp(1, (*cap).max(1)),
                None => *default,
            },
            Cost::Response(cost) => cost.reserve,
        }
    }
}

const EXPECTED: &str = "a whole number, 0 or more, or an object with header or response_header";

/// A number of digits only; `None` for anything else, and for one too large.
pub(super) fn parse(digits: &[u8]) -> Option<u64> {
    let mut value: u64 = 0;
    for byte in digits {
        let digit = char::from(*byte).to_digit(10)?;
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    (!digits.is_empty()).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::super::testing::TestRequest;
    use super::*;

    fn check(lines: &[&str], expected: u64) {
        let cost = Cost::Header { name: b"x-cost".as_slice().into(), cap: 100, default: 3 };
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
    fn fixed_costs_ask_for_nothing() {
        assert_eq!(Cost::Fixed(0).of(&TestRequest::default(), &mut Vec::new()), 0);
        assert_eq!(Cost::Fixed(u64::MAX).of(&TestRequest::default(), &mut Vec::new()), u64::MAX);
    }
}
