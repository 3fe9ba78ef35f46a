//! The cost by what a language model used: tokens by kind, weighted or priced.
//!
//! Until the response has ended, an estimate of the prompt and the request's largest answer are reserved, never more than
//! the limit. Then the use that a filter has written as metadata is charged, or what the table in
//! `filter/CONFIGURATION.md` states where there is none.
//!
//! Here are the fields and the reserve, in `models` what tokens cost, and in `settle` what is charged at the end.

mod models;
mod settle;
#[cfg(test)]
mod tests;

use models::Models;
pub(in crate::rules) use models::{KINDS, MODEL_BYTES_MAX, MODEL_FIELDS, MODELS_MAX, millionths};

use super::TIMEOUT;
use super::source::UsageSource;
use crate::fields::{Errors, Node, Value};
use crate::rules::digits::parse;
use crate::rules::request::{Lines, Request};
use crate::usage::{Ratios, Tokens};
use alloc::vec::Vec;
use core::ops::RangeInclusive;

pub(in crate::rules) const FIELDS: [&str; 10] = [
    "usage",
    "weights",
    "models",
    "prices",
    "reserve",
    "max",
    "without_usage",
    "on_disconnect",
    "on_error_status",
    "hold_timeout",
];
pub(in crate::rules) const RESERVE_FIELDS: [&str; 5] =
    ["input", "input_default", "output", "output_cap", "output_default"];
/// Tokens that a field of `reserve` may be.
pub(in crate::rules) const TOKENS: RangeInclusive<u64> = 0..=1_000_000_000;
const TIMEOUT_MS_DEFAULT: u64 = 600_000;
/// Of costs in dollars: a hundred.
const MONEY_MAX_DEFAULT: u64 = 100_000_000;
/// Bytes of a prompt for one token.
const BYTES_A_TOKEN: u64 = 4;

/// `cost` by what a language model used.
#[derive(Clone, Debug)]
pub struct UsageCost {
    /// `usage` (required): which metadata has the use.
    source: UsageSource,
    /// `weights`, `models`, `prices` (default: each token 1): what tokens cost.
    models: Models,
    /// Whether costs are micro-dollars, by `prices`.
    pub is_money: bool,
    /// `reserve` (default: see [`UsageReserve`]): what is reserved from the request to its response's end.
    reserve: UsageReserve,
    /// `max` (required; with prices 100 dollars by default): the most that a request is charged.
    pub max: u64,
    /// `without_usage` (default `estimate`): the charge of a response that ends without use.
    without_usage: Fallback,
    /// `on_disconnect` (default `estimate`): that of one that does not end.
    on_disconnect: Fallback,
    /// `on_error_status` (default 0): that of one with a status of 400 or more and without use.
    on_error_status: Fallback,
    /// `hold_timeout` (default `"10m"`): as in [`ResponseCost`](super::ResponseCost).
    pub hold_timeout_ms: u32,
}

/// What is charged where use is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fallback {
    /// `estimate`: by the estimated prompt, and by the bytes of the response.
    Estimate,
    /// `reserve`: what was reserved.
    Reserve,
    /// `max`, or a number.
    Fixed(u64),
}

/// The words of a fallback.
pub(in crate::rules) const FALLBACKS: [(&str, ()); 3] = [("estimate", ()), ("reserve", ()), ("max", ())];

/// `reserve`: tokens that are reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct UsageReserve {
    /// `input` (default `estimate`).
    input: Input,
    /// `input_default` (default 1 000): if neither an estimate nor a length is known.
    input_default: u64,
    /// `output` (default `max_tokens`: the request's own cap).
    output: Output,
    /// `output_cap` (default 4 096): the most of the request's own cap that is reserved.
    output_cap: u64,
    /// `output_default` (default 1 024): where the request has no cap.
    output_default: u64,
}

/// How the prompt is estimated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Input {
    /// As Envoy's `request_info` filter does, else by the length.
    Estimate,
    /// A token for four bytes.
    ContentLength,
    Fixed(u64),
}

/// How much of an answer is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Output {
    MaxTokens,
    /// As many as nine of ten answers of the model have, and no more than the request's own cap.
    Learned,
    Fixed(u64),
}

/// The words of `reserve.input` and `reserve.output`.
pub(in crate::rules) const INPUTS: [(&str, ()); 2] = [("estimate", ()), ("content_length", ())];
pub(in crate::rules) const OUTPUTS: [(&str, ()); 2] = [("max_tokens", ()), ("learned", ())];

impl UsageCost {
    pub(super) fn read(node: Node<'_>, errors: &mut Errors) -> Option<UsageCost> {
        let fields = node.object(&FIELDS, errors)?;
        let source = fields.required("usage", super::source::EXPECTED, errors, UsageSource::read);
        let is_money = fields.get("prices").is_some();
        let models = Models::read(&node, &fields, errors);
        let reserve = fields.or("reserve", UsageReserve::default(), errors, UsageReserve::read);
        let any = 1..=u64::MAX;
        let max = match is_money {
            true => fields.or("max", MONEY_MAX_DEFAULT, errors, |n, e| n.integer(any, e)),
            false => {
                fields.required("max", "the most that a request may cost, such as 1000000", errors, |n, e| {
                    n.integer(any, e)
                })
            }
        };
        let mut fallback = |name, default| {
            fields.or(name, default, errors, |node, errors| Fallback::read(node, max, errors))
        };
        let without_usage = fallback("without_usage", Fallback::Estimate);
        let on_disconnect = fallback("on_disconnect", Fallback::Estimate);
        let on_error_status = fallback("on_error_status", Fallback::Fixed(0));
        let hold_timeout_ms =
            fields.or("hold_timeout", TIMEOUT_MS_DEFAULT, errors, |n, e| TIMEOUT.read(n, e));
        let (models, reserve, max) = (models?, reserve?, max?);
        let largest = Tokens { output: reserve.largest_output(), ..Tokens::default() };
        if models.weights.iter().any(|weights| weights.cost(&largest) > max) {
            let expected = "a max of at least what the reserved answer costs, or a lower reserve.output_cap";
            return fields.reject("max", "it is below the reserve", expected, errors);
        }
        Some(UsageCost {
            source: source?,
            models,
            is_money,
            reserve,
            max,
            without_usage: without_usage?,
            on_disconnect: on_disconnect?,
            on_error_status: on_error_status?,
            hold_timeout_ms: u32::try_from(hold_timeout_ms?).ok()?,
        })
    }

    /// What to reserve for a request under this limit: nothing of one without a body, and at least 1 of any other. A reserve is never
    /// above the limit, so that a request with a large one passes if nothing else was used.
    pub(super) fn reserve<R: Request + ?Sized>(
        &self,
        request: &R,
        limit: u64,
        (rule, ratios): (u16, &Ratios),
        buffer: &mut Vec<u8>,
    ) -> u64 {
        // A model has nothing to read of it.
        if request.ends_with_headers() {
            return 0;
        }
        let length = match request.header(b"content-length") {
            Lines::One(length) => parse(length.trim_ascii()),
            Lines::None | Lines::Many => None,
        };
        let input = self.estimated_input(request, length, buffer);
        let model = self.models.find(self.source.request_model(request, buffer));
        let UsageReserve { output, output_cap, output_default, .. } = self.reserve;
        let output = match output {
            Output::Fixed(tokens) => tokens,
            Output::MaxTokens => {
                self.source.max_output(request, buffer).map_or(output_default, |own| own.min(output_cap))
            }
            Output::Learned => {
                let learned = ratios.largest(rule, model.place).unwrap_or(0);
                let own = self.source.max_output(request, buffer).unwrap_or(u64::MAX);
                learned.max(output_default).min(output_cap).min(own)
            }
        };
        let reserve = model.weights.cost(&Tokens { input, output, ..Tokens::default() });
        reserve.max(1).min(self.max).min(limit.max(1))
    }

    fn estimated_input<R: Request + ?Sized>(
        &self,
        request: &R,
        length: Option<u64>,
        buffer: &mut Vec<u8>,
    ) -> u64 {
        let by_length = || length.map(|length| length.div_ceil(BYTES_A_TOKEN));
        let estimate = match self.reserve.input {
            Input::Fixed(tokens) => return tokens,
            Input::ContentLength => by_length(),
            Input::Estimate => self.source.estimated_input(request, buffer).or_else(by_length),
        };
        estimate.unwrap_or(self.reserve.input_default)
    }
}

impl Fallback {
    fn read(node: Node<'_>, max: Option<u64>, errors: &mut Errors) -> Option<Fallback> {
        let max = max.unwrap_or(u64::MAX);
        match node.value {
            Value::Text(text) if text == "estimate" => Some(Fallback::Estimate),
            Value::Text(text) if text == "reserve" => Some(Fallback::Reserve),
            Value::Text(text) if text == "max" => Some(Fallback::Fixed(max)),
            value if value.as_integer().is_some() => node.integer(0..=max, errors).map(Fallback::Fixed),
            _ => node.reject(errors, "is not a charge", "estimate, reserve, max, or a number up to max"),
        }
    }
}

impl Default for UsageReserve {
    fn default() -> UsageReserve {
        UsageReserve {
            input: Input::Estimate,
            input_default: 1_000,
            output: Output::MaxTokens,
            output_cap: 4_096,
            output_default: 1_024,
        }
    }
}

impl UsageReserve {
    fn read(node: Node<'_>, errors: &mut Errors) -> Option<UsageReserve> {
        let fields = node.object(&RESERVE_FIELDS, errors)?;
        let usual = UsageReserve::default();
        let input = fields.or("input", usual.input, errors, |node, errors| match node.value {
            Value::Text(text) if text == "estimate" => Some(Input::Estimate),
            Value::Text(text) if text == "content_length" => Some(Input::ContentLength),
            _ => node.integer(TOKENS, errors).map(Input::Fixed),
        });
        let output = fields.or("output", usual.output, errors, |node, errors| match node.value {
            Value::Text(text) if text == "max_tokens" => Some(Output::MaxTokens),
            Value::Text(text) if text == "learned" => Some(Output::Learned),
            _ => node.integer(TOKENS, errors).map(Output::Fixed),
        });
        let mut tokens = |name, default| fields.or(name, default, errors, |n, e| n.integer(TOKENS, e));
        let input_default = tokens("input_default", usual.input_default);
        let output_cap = tokens("output_cap", usual.output_cap);
        let output_default = tokens("output_default", usual.output_default.min(output_cap.unwrap_or(0)));
        Some(UsageReserve {
            input: input?,
            input_default: input_default?,
            output: output?,
            output_cap: output_cap?,
            output_default: output_default?,
        })
    }

    fn largest_output(&self) -> u64 {
        match self.output {
            Output::Fixed(tokens) => tokens,
            Output::MaxTokens | Output::Learned => self.output_cap.max(self.output_default),
        }
    }
}
