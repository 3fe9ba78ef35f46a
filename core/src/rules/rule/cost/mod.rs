//! The cost of a request: a constant, a number that the request states (`request`), the value of a response header
//! (`response`), by what the response is (`when`), or by what a language model used (`usage`, read from `source`). How a request ended is in `settlement`.
//!
//! The client must be trusted to set the request's header. A value that is not a number costs the maximum. The
//! response's header is set by the upstream and may be 0. Until the response arrives, an amount is reserved.

pub(in crate::rules) mod request;
pub(in crate::rules) mod response;
mod settlement;
pub(in crate::rules) mod source;
pub(in crate::rules) mod usage;
pub(in crate::rules) mod when;

use crate::fields::duration::Span;
use crate::fields::{Errors, Node, Value};
use crate::rules::request::Request;
use crate::usage::Ratios;
use alloc::boxed::Box;
use alloc::vec::Vec;

pub use request::RequestCost;
pub use response::ResponseCost;
pub use settlement::{End, Line, Settled, Stage, Trailers, UsageResult, Used};
pub use usage::UsageCost;
pub use when::WhenCost;

pub(in crate::rules) const TIMEOUT: Span = Span { min_ms: 1_000, max_ms: 3_600_000, example: "5m" };
const TIMEOUT_MS_DEFAULT: u64 = 300_000;

/// The cost of a request under a rule.
#[derive(Clone, Debug)]
pub enum Cost {
    /// A constant. A cost of 0 is a real check, which passes at exactly the limit.
    Fixed(u64),
    /// What the request states.
    Request(RequestCost),
    /// The value of a response header; until it arrives, an amount is reserved.
    Response(ResponseCost),
    /// By what the response is; until it arrives, an amount is reserved.
    When(Box<WhenCost>),
    /// By what a language model used; until the response has ended, an estimate is reserved.
    Usage(Box<UsageCost>),
}

/// A cost that is reserved until the response settles it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deferral {
    /// How long an amount is reserved, in milliseconds.
    pub hold_timeout_ms: u32,
    /// The most that a request may cost.
    pub most: u64,
}

impl Cost {
    pub(in crate::rules) fn read(node: Node<'_>, errors: &mut Errors) -> Option<Cost> {
        let when = |cost: Option<WhenCost>| cost.map(|cost| Cost::When(Box::new(cost)));
        match node.value {
            Value::Object(fields) => {
                let has = |name: &str| fields.iter().any(|(field, _)| field == name);
                match () {
                    () if has("response") => ResponseCost::read(node, errors).map(Cost::Response),
                    () if has("usage") => {
                        UsageCost::read(node, errors).map(|cost| Cost::Usage(Box::new(cost)))
                    }
                    () if has("when") => when(WhenCost::read(node, errors)),
                    () if has(when::ONLY) => when(WhenCost::read_only(node, errors)),
                    () if has(when::REFUND) => when(WhenCost::read_refund(node, errors)),
                    () => RequestCost::read(node, errors).map(Cost::Request),
                }
            }
            json => match json.as_integer() {
                Some(cost) => Some(Cost::Fixed(cost)),
                None => node.reject(errors, "is not a cost", EXPECTED),
            },
        }
    }

    /// The cost of this request as far as it is known. If the response states it, the amount to reserve until then, under this
    /// limit and by what was learned from responses under this `rule`.
    pub(in crate::rules) fn of<R: Request + ?Sized>(
        &self,
        request: &R,
        limit: u64,
        (rule, ratios): (u16, &Ratios),
        buffer: &mut Vec<u8>,
    ) -> u64 {
        match self {
            Cost::Fixed(cost) => *cost,
            Cost::Request(cost) => cost.of(request, buffer),
            Cost::Response(cost) => cost.reserve,
            Cost::When(cost) => cost.reserve,
            Cost::Usage(cost) => cost.reserve(request, limit, (rule, ratios), buffer),
        }
    }

    /// What is deferred, if the response settles the cost.
    pub fn deferral(&self) -> Option<Deferral> {
        let (hold_timeout_ms, most) = match self {
            Cost::Fixed(_) | Cost::Request(_) => return None,
            Cost::Response(cost) => (cost.hold_timeout_ms, cost.max),
            Cost::When(cost) => (cost.hold_timeout_ms, cost.most()),
            Cost::Usage(cost) => (cost.hold_timeout_ms, cost.max),
        };
        Some(Deferral { hold_timeout_ms, most })
    }

    /// The field by which the response settles it.
    pub(in crate::rules) fn deferred_by(&self) -> Option<&'static str> {
        match self {
            Cost::Fixed(_) | Cost::Request(_) => None,
            Cost::Response(_) => Some("response.header"),
            Cost::When(cost) => Some(cost.field),
            Cost::Usage(_) => Some("usage"),
        }
    }

    /// Whether the headers of a response may settle it.
    pub fn settles_by_headers(&self) -> bool {
        matches!(self, Cost::Response(_) | Cost::When(_))
    }

    /// How many regular expressions it has.
    pub(in crate::rules) fn expressions(&self) -> usize {
        match self {
            Cost::When(cost) => cost.expressions(),
            Cost::Fixed(_) | Cost::Request(_) | Cost::Response(_) | Cost::Usage(_) => 0,
        }
    }
}

const EXPECTED: &str =
    "a whole number, 0 or more, or an object with request, response, when, only, refund or usage";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::testing::TestRequest;

    #[test]
    fn fixed_costs_need_no_header() {
        for fixed in [0, u64::MAX] {
            let cost = Cost::Fixed(fixed);
            let learned = (0, &Ratios::default());
            assert_eq!(cost.of(&TestRequest::default(), 1, learned, &mut Vec::new()), fixed);
        }
    }
}
