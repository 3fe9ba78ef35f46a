//! How a request ended, as far as its cost needs it.
//!
//! | end of the request | what settles its cost |
//! |---|---|
//! | a response, from upstream or from a filter of Envoy's | what the response states |
//! | no response of an upstream, which may have received the request | what was reserved, or what `unanswered` states |
//! | no response, and no upstream received it | nothing is charged |
//!
//! A response that Envoy follows, by an internal redirect, ends its request too: Envoy sends the next one through all filters again.

use super::{Cost, ResponseCost};
use crate::rules::digits::parse;
use crate::rules::request::{Lines, Request};
use crate::usage::{Ratios, Tokens};
use alloc::vec::Vec;
use core::fmt;

/// Envoy's response code details of a response from upstream.
const VIA_UPSTREAM: &[u8] = b"via_upstream";
/// The same of one that Envoy follows.
const FOLLOWED: &[u8] = b"internal_redirect";
const DETAILS: &[u8] = b"response\0code_details";

/// What is known of the end of a request.
#[derive(Clone, Copy, Debug)]
pub struct End<'a, R: ?Sized> {
    /// The response's headers, none if there is no response, and the request's properties.
    pub response: &'a R,
    /// How much of it there is.
    pub stage: Stage,
    /// The rule whose cost is settled.
    pub rule: u16,
    /// What is reserved in place of the cost.
    pub reserved: u64,
}

/// How much there is of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Its headers. The rest is under way.
    Headers,
    /// All that will be there of it.
    Ended(Trailers),
    /// The request ended without a response.
    Unanswered,
}

/// What the trailers of a response state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trailers {
    /// The status of gRPC.
    pub grpc_status: Option<u8>,
}

/// A cost that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// What the request costs.
    pub cost: u64,
    /// What decided it.
    pub line: Line,
    /// What a language model used, if the cost is of that.
    pub used: Option<Used>,
}

/// What a language model used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// The tokens that were reported; none if only an estimate is charged.
    pub tokens: Tokens,
    /// Whether the cost is estimated, in part or in whole.
    pub is_estimated: bool,
    /// Whether the model has no price but that of all others.
    pub is_unpriced: bool,
}

/// What decided the cost of a request by its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Line {
    /// A line of `cost.when`, counted from 1.
    Number(u8),
    /// None of them, or no value that states the cost.
    Default,
    /// No response of an upstream that may have received the request.
    Unanswered,
    /// No upstream received it.
    Unsent,
    /// The value of a header.
    Header,
    /// What is known of the use of a language model.
    Usage(UsageResult),
}

/// What is known of the use of a language model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UsageResult {
    /// All of it.
    Complete,
    /// Some of it.
    Partial,
    /// Nothing, of a response that ended.
    Missing,
    /// What was written is no number of tokens.
    Failed,
    /// Nothing, as the response is compressed.
    Encoded,
    /// Nothing, as the client disconnected.
    Disconnected,
    /// Nothing, as the upstream broke off or did not answer.
    Reset,
    /// Nothing, of a response with a status of 400 or more.
    ErrorStatus,
    /// Nothing, as the request has no body.
    WithoutBody,
}

impl UsageResult {
    /// All results.
    pub const ALL: [UsageResult; 9] = [
        UsageResult::Complete,
        UsageResult::Partial,
        UsageResult::Missing,
        UsageResult::Failed,
        UsageResult::Encoded,
        UsageResult::Disconnected,
        UsageResult::Reset,
        UsageResult::ErrorStatus,
        UsageResult::WithoutBody,
    ];

    /// As metrics name it.
    pub fn name(self) -> &'static str {
        match self {
            UsageResult::Complete => "complete",
            UsageResult::Partial => "partial",
            UsageResult::Missing => "missing",
            UsageResult::Failed => "failed",
            UsageResult::Encoded => "encoded",
            UsageResult::Disconnected => "disconnected",
            UsageResult::Reset => "reset",
            UsageResult::ErrorStatus => "error_status",
            UsageResult::WithoutBody => "without_body",
        }
    }
}

impl Settled {
    /// Of a request that no upstream received.
    pub(super) const UNSENT: Settled = Settled::by(0, Line::Unsent);

    pub(super) const fn by(cost: u64, line: Line) -> Settled {
        Settled { cost, line, used: None }
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The upstream responded.
    Responded,
    /// No response of an upstream, but one may have received the request.
    Unanswered,
    /// No upstream received the request.
    NotSent,
}

impl<R: Request + ?Sized> End<'_, R> {
    pub(super) fn is_answered(&self) -> bool {
        self.stage != Stage::Unanswered
    }

    /// Reads how the request ended, with up to three properties.
    pub(super) fn ending(&self, buffer: &mut Vec<u8>) -> Ending {
        match self.is_answered() && self.is_from_upstream(buffer) {
            true => Ending::Responded,
            false if self.reached(buffer) => Ending::Unanswered,
            false => Ending::NotSent,
        }
    }

    pub(super) fn is_from_upstream(&self, buffer: &mut Vec<u8>) -> bool {
        [VIA_UPSTREAM, FOLLOWED].contains(&self.details(buffer))
    }

    /// The response's status.
    pub(super) fn status(&self) -> Option<u16> {
        match self.response.header(b":status") {
            Lines::One(status) => parse(status).and_then(|status| u16::try_from(status).ok()),
            Lines::None | Lines::Many => None,
        }
    }

    /// Envoy's details of the response's status.
    pub(super) fn details<'b>(&self, buffer: &'b mut Vec<u8>) -> &'b [u8] {
        self.property(DETAILS, buffer)
    }

    /// Whether an upstream may have received the request: it got a connection, or was retried.
    pub(super) fn reached(&self, buffer: &mut Vec<u8>) -> bool {
        if !self.property(b"upstream\0local_address", buffer).is_empty() {
            return true;
        }
        let attempts = self.property(b"upstream\0request_attempt_count", buffer).first_chunk();
        attempts.is_some_and(|attempts| u64::from_le_bytes(*attempts) > 1)
    }

    pub(super) fn property<'b>(&self, path: &[u8], buffer: &'b mut Vec<u8>) -> &'b [u8] {
        buffer.clear();
        if !self.response.property(path, buffer) {
            buffer.clear();
        }
        buffer
    }
}

impl Cost {
    /// What a request costs whose response states it. `None`: that is known once the response has ended.
    pub fn settle<R: Request + ?Sized>(
        &self,
        end: &End<'_, R>,
        ratios: &mut Ratios,
        buffer: &mut Vec<u8>,
    ) -> Option<Settled> {
        match self {
            Cost::When(cost) => cost.settle(end, buffer),
            Cost::Usage(cost) => cost.settle(end, ratios, buffer),
            Cost::Response(cost) => Some(cost.settle(end, buffer)),
            Cost::Fixed(_) | Cost::Request(_) => Some(Settled::UNSENT),
        }
    }
}

impl ResponseCost {
    fn settle<R: Request + ?Sized>(&self, end: &End<'_, R>, buffer: &mut Vec<u8>) -> Settled {
        if let Some(cost) = self.stated_in(end.response) {
            return Settled::by(cost, Line::Header);
        }
        match end.ending(buffer) {
            Ending::Responded => Settled::by(self.default, Line::Default),
            Ending::Unanswered => Settled::by(self.reserve, Line::Unanswered),
            Ending::NotSent => Settled::by(0, Line::Unsent),
        }
    }
}

/// As metrics name it.
impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Line::Number(number) => write!(f, "{number}"),
            Line::Default => f.write_str("default"),
            Line::Unanswered => f.write_str("unanswered"),
            Line::Unsent => f.write_str("unsent"),
            Line::Header => f.write_str("header"),
            Line::Usage(result) => f.write_str(result.name()),
        }
    }
}
