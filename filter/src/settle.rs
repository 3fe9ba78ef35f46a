//! The cost of a request whose rule takes it from the response: the value of a header, or what follows if there is none.
//!
//! | end of the request | cost |
//! |---|---|
//! | a response with the header, from upstream or Envoy | its value; of several lines the largest |
//! | the upstream's response without it | the rule's default |
//! | no response, and the request may have reached an upstream | what was reserved, as it may have been used |
//! | no response, and no upstream received it | 0 |
//!
//! A response that Envoy follows, by an internal redirect, ends its request too: Envoy sends the next one through all filters again. The
//! filter receives the headers of such a response only with the access log.

use crate::host::calls;
use crate::host::headers::{Headers, Nothing};
use weir_core::rules::{Cost, ResponseCost, Rule};

/// Envoy's response code details of a response from upstream.
const VIA_UPSTREAM: &[u8] = b"via_upstream";
/// The same of one that Envoy follows.
const FOLLOWED: &[u8] = b"internal_redirect";

/// Whether Envoy has headers of a response to the current request.
pub fn is_answered() -> bool {
    calls::response_headers(|bytes| !Headers::new(bytes, Nothing).is_empty())
}

/// The current request, whose cost is to be settled.
pub struct Settlement<'a> {
    rules: &'a [Rule],
    /// Whether there are response headers.
    answered: bool,
    ending: Option<Ending>,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// The upstream responded.
    Responded,
    /// No response, but an upstream may have received the request.
    Unanswered,
    /// No upstream received the request.
    NotSent,
}

impl<'a> Settlement<'a> {
    /// The current request under these rules, `answered` or ended without a response.
    pub fn new(rules: &'a [Rule], answered: bool) -> Self {
        Settlement { rules, answered, ending: None }
    }

    /// The cost under a rule.
    pub fn cost(&mut self, rule: u16) -> u64 {
        let Some(Cost::Response(cost)) = self.rules.get(usize::from(rule)).map(|rule| &rule.cost) else {
            return 0;
        };
        self.stated(cost).unwrap_or_else(|| match self.ending() {
            Ending::Responded => cost.of(None),
            Ending::Unanswered => cost.reserve,
            Ending::NotSent => 0,
        })
    }

    fn stated(&self, cost: &ResponseCost) -> Option<u64> {
        let largest = |bytes: &[u8]| {
            let headers = Headers::new(bytes, Nothing);
            let lines = headers.lines(&cost.name).filter(|line| !line.is_empty());
            lines.map(|line| cost.of(Some(line))).max()
        };
        self.answered.then(|| calls::response_headers(largest)).flatten()
    }

    fn ending(&mut self) -> Ending {
        let answered = self.answered;
        *self.ending.get_or_insert_with(|| {
            let details = [VIA_UPSTREAM, FOLLOWED];
            match (answered && is(b"response\0code_details", &details), reached()) {
                (true, _) => Ending::Responded,
                (false, true) => Ending::Unanswered,
                (false, false) => Ending::NotSent,
            }
        })
    }
}

/// Whether an upstream may have received the current request: it got a connection, or was retried.
fn reached() -> bool {
    let (mut address, mut attempts) = (Vec::new(), Vec::new());
    calls::property(b"upstream\0local_address", &mut address);
    calls::property(b"upstream\0request_attempt_count", &mut attempts);
    let attempts = attempts.first_chunk::<8>().map_or(0, |attempts| u64::from_le_bytes(*attempts));
    !address.is_empty() || attempts > 1
}

fn is(property: &[u8], expected: &[&[u8]]) -> bool {
    let mut value = Vec::new();
    calls::property(property, &mut value) && expected.contains(&value.as_slice())
}
