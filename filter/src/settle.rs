//! The cost of a request whose rule takes it from the response: the value of a header, or what follows if there is none.
//!
//! | end of the request | cost |
//! |---|---|
//! | a response with the header, from upstream or Envoy | its value |
//! | the upstream's response without it | the rule's default |
//! | no response, and the request may have reached an upstream | what was reserved, as it may have been used |
//! | no response, and no upstream received it | 0 |

use crate::host::calls;
use weir_core::rules::{Cost, ResponseCost, Rule};

/// Envoy's response code details of a response from upstream.
const VIA_UPSTREAM: &[u8] = b"via_upstream";

/// The current request, whose cost is to be settled.
pub struct Ended<'a> {
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

impl<'a> Ended<'a> {
    /// The current request under these rules, `answered` or ended without a response.
    pub fn new(rules: &'a [Rule], answered: bool) -> Self {
        Ended { rules, answered, ending: None }
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
        let read = |value: Option<&[u8]>| value.map(|value| cost.of(Some(value)));
        self.answered.then(|| calls::response_header(&cost.name, read)).flatten()
    }

    fn ending(&mut self) -> Ending {
        let answered = self.answered;
        *self.ending.get_or_insert_with(|| {
            match (answered && is(b"response\0code_details", VIA_UPSTREAM), reached()) {
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

fn is(property: &[u8], expected: &[u8]) -> bool {
    let mut value = Vec::new();
    calls::property(property, &mut value) && value == expected
}
