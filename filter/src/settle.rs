//! What a request has cost, where only its response tells: the response's header, or what follows from there being none.
//!
//! | what came of the request | cost |
//! |---|---|
//! | a response with the header, whoever wrote it | what it says |
//! | the upstream's response without it | the rule's default |
//! | no response of an upstream that the request may have reached | what was reserved: it may have used that |
//! | none, and no upstream had it | nothing |
//!
//! Leaves to others: what is charged and given back (`limiter`).

use crate::host::calls;
use weir_core::rules::{Cost, ResponseCost, Rule};

/// What Envoy says of a response that an upstream wrote.
const VIA_UPSTREAM: &[u8] = b"via_upstream";

/// A request whose cost is to be told, the one at hand.
pub struct Ended<'a> {
    rules: &'a [Rule],
    /// There are response headers.
    answered: bool,
    came: Option<Came>,
}

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    /// The upstream has answered.
    Response,
    /// An upstream may have had it.
    Silence,
    /// No upstream had it.
    Nothing,
}

impl<'a> Ended<'a> {
    /// Under these rules; either its response is there, or it is over without any.
    pub fn new(rules: &'a [Rule], answered: bool) -> Self {
        Ended { rules, answered, came: None }
    }

    /// What it has cost under a rule.
    pub fn cost(&mut self, rule: u16) -> u64 {
        let Some(Cost::Response(cost)) = self.rules.get(usize::from(rule)).map(|rule| &rule.cost) else {
            return 0;
        };
        self.said(cost).unwrap_or_else(|| match self.came() {
            Came::Response => cost.of(None),
            Came::Silence => cost.reserve,
            Came::Nothing => 0,
        })
    }

    fn said(&self, cost: &ResponseCost) -> Option<u64> {
        let read = |value: Option<&[u8]>| value.map(|value| cost.of(Some(value)));
        self.answered.then(|| calls::response_header(&cost.name, read)).flatten()
    }

    fn came(&mut self) -> Came {
        let answered = self.answered;
        *self.came.get_or_insert_with(|| {
            match (answered && is(b"response\0code_details", VIA_UPSTREAM), reached()) {
                (true, _) => Came::Response,
                (false, true) => Came::Silence,
                (false, false) => Came::Nothing,
            }
        })
    }
}

/// Whether an upstream may have had the request at hand: it was given a connection, or was tried before.
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
