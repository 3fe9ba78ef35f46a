//! The cost by what a language model used: tokens by kind, weighted or priced.
//!
//! Until the response has ended, an estimate of the prompt and the request's largest answer are reserved, never more than
//! the limit. Then the use that a filter has written as metadata is charged, or what the table in
//! `filter/CONFIGURATION.md` states where there is none.

use super::TIMEOUT;
use super::digits::parse;
use super::settlement::{End, Line, Settled, Stage, UsageResult, Used};
use super::source::{Reported, Usage, UsageSource};
use crate::fields::{Errors, Fields, Node, Path, Value};
use crate::matching::glob::{self, GlobSet, Pattern};
use crate::rules::request::{Lines, Request};
use crate::usage::{RatioKey, Ratios, Tokens, WEIGHT_MAX, WEIGHT_UNIT, Weights};
use alloc::boxed::Box;
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
pub(in crate::rules) const MODEL_FIELDS: [&str; 2] = ["model", "weights"];
pub(in crate::rules) const KINDS: [&str; 5] =
    ["input", "cached_input", "cache_creation", "output", "reasoning"];
pub(in crate::rules) const MODELS_MAX: usize = 256;
pub(in crate::rules) const MODEL_BYTES_MAX: usize = 256;
/// Tokens that a field of `reserve` may be.
pub(in crate::rules) const TOKENS: RangeInclusive<u64> = 0..=1_000_000_000;
/// All models that no other pattern fits.
const ANY_MODEL: &str = "*";
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
    Fixed(u64),
}

/// The words of `reserve.input` and `reserve.output`.
pub(in crate::rules) const INPUTS: [(&str, ()); 2] = [("estimate", ()), ("content_length", ())];
pub(in crate::rules) const OUTPUTS: [(&str, ()); 1] = [("max_tokens", ())];

/// What tokens cost, by model.
#[derive(Clone, Debug)]
struct Models {
    exact: Vec<(Box<[u8]>, u16)>,
    globs: Option<GlobSet<u16>>,
    /// By place; the last is for all other models.
    weights: Vec<Weights>,
}

/// A model's place in [`Models`], and its weights.
#[derive(Clone, Copy, Debug)]
struct Model {
    place: u16,
    weights: Weights,
    /// No pattern fits it but that for all others.
    is_other: bool,
}

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

    /// What to reserve for a request under this limit. A reserve is never above the limit, so that a request with a large
    /// one passes if nothing else was used.
    pub(super) fn reserve<R: Request + ?Sized>(&self, request: &R, limit: u64, buffer: &mut Vec<u8>) -> u64 {
        let length = match request.header(b"content-length") {
            Lines::One(length) => parse(length.trim_ascii()),
            Lines::None | Lines::Many => None,
        };
        let method = match request.header(b":method") {
            Lines::One(method) => method,
            Lines::None | Lines::Many => b"",
        };
        if is_without_body(method, length) {
            return 0;
        }
        let input = self.estimated_input(request, length, buffer);
        let output = match self.reserve.output {
            Output::Fixed(tokens) => tokens,
            Output::MaxTokens => match self.source.max_output(request, buffer) {
                Some(tokens) => tokens.min(self.reserve.output_cap),
                None => self.reserve.output_default,
            },
        };
        let weights = self.models.find(self.source.request_model(request, buffer)).weights;
        let reserve = weights.cost(&Tokens { input, output, ..Tokens::default() });
        reserve.min(self.max).min(limit.max(1))
    }

    pub(super) fn settle<R: Request + ?Sized>(
        &self,
        end: &End<'_, R>,
        ratios: &mut Ratios,
        buffer: &mut Vec<u8>,
    ) -> Option<Settled> {
        let result = match end.stage {
            Stage::Headers => return None,
            Stage::Unanswered if !end.reached(buffer) => return Some(Settled::UNSENT),
            Stage::Unanswered => {
                return Some(self.fall_back(UsageResult::Disconnected, end, 0, ratios, buffer));
            }
            Stage::Ended(_) => self.source.usage(end.response, buffer),
        };
        let bytes = number(end.property(b"response\0size", buffer));
        let is_clean = end.is_from_upstream(buffer);
        Some(match result {
            Usage::Complete(reported) => {
                let model = self.model(end, buffer);
                let tokens = reported.by_kind(&model.weights);
                if let (true, Reported::Kinds(tokens)) = (is_clean, reported) {
                    ratios.learn(self.ratio_key(end, model), bytes, tokens.output);
                }
                self.charged(model, tokens, UsageResult::Complete)
            }
            Usage::Partial(reported) => {
                let model = self.model(end, buffer);
                let known = self.charged(model, reported.by_kind(&model.weights), UsageResult::Partial);
                let estimate = self.estimate(end, bytes, ratios, buffer);
                Settled { cost: known.cost.max(estimate), ..known }
            }
            Usage::Missing | Usage::Failed => {
                self.without(result == Usage::Failed, is_clean, end, bytes, ratios, buffer)
            }
        })
    }

    /// The charge of a response that states no use.
    fn without<R: Request + ?Sized>(
        &self,
        has_failed: bool,
        is_clean: bool,
        end: &End<'_, R>,
        bytes: u64,
        ratios: &mut Ratios,
        buffer: &mut Vec<u8>,
    ) -> Settled {
        let status = end.status().unwrap_or(0);
        if !is_clean {
            if !end.reached(buffer) {
                return Settled::UNSENT;
            }
            let result = match end.details(buffer).starts_with(b"downstream_") {
                true => UsageResult::Disconnected,
                false => UsageResult::Reset,
            };
            // Envoy answers in place of an upstream that has sent nothing.
            let bytes = if status >= 500 { 0 } else { bytes };
            return self.fall_back(result, end, bytes, ratios, buffer);
        }
        if status >= 400 {
            return self.fall_back(UsageResult::ErrorStatus, end, bytes, ratios, buffer);
        }
        let size = number(end.property(b"request\0size", buffer));
        if is_without_body(end.property(b"request\0method", buffer), Some(size)) {
            return Settled { cost: 0, line: Line::Usage(UsageResult::WithoutBody), used: None };
        }
        let is_encoded = match end.response.header(b"content-encoding") {
            Lines::None => false,
            Lines::One(encoding) => !encoding.eq_ignore_ascii_case(b"identity"),
            Lines::Many => true,
        };
        let result = match (is_encoded, has_failed) {
            (true, _) => UsageResult::Encoded,
            (false, true) => UsageResult::Failed,
            (false, false) => UsageResult::Missing,
        };
        self.fall_back(result, end, bytes, ratios, buffer)
    }

    fn fall_back<R: Request + ?Sized>(
        &self,
        result: UsageResult,
        end: &End<'_, R>,
        bytes: u64,
        ratios: &mut Ratios,
        buffer: &mut Vec<u8>,
    ) -> Settled {
        let fallback = match result {
            UsageResult::Disconnected | UsageResult::Reset => self.on_disconnect,
            UsageResult::ErrorStatus => self.on_error_status,
            _ => self.without_usage,
        };
        let cost = match fallback {
            Fallback::Estimate => self.estimate(end, bytes, ratios, buffer),
            Fallback::Reserve => end.reserved,
            Fallback::Fixed(cost) => cost,
        };
        let used = Used { tokens: Tokens::default(), is_estimated: true, is_unpriced: false };
        Settled { cost, line: Line::Usage(result), used: Some(used) }
    }

    fn estimate<R: Request + ?Sized>(
        &self,
        end: &End<'_, R>,
        bytes: u64,
        ratios: &mut Ratios,
        buffer: &mut Vec<u8>,
    ) -> u64 {
        let length = number(end.property(b"request\0size", buffer));
        let input = self.estimated_input(end.response, Some(length), buffer);
        let model = self.model(end, buffer);
        let output = ratios.estimate(self.ratio_key(end, model), bytes);
        model.weights.cost(&Tokens { input, output, ..Tokens::default() }).min(self.max)
    }

    fn charged(&self, model: Model, tokens: Tokens, result: UsageResult) -> Settled {
        let used = Used {
            tokens,
            is_estimated: result == UsageResult::Partial,
            is_unpriced: self.is_money && model.is_other,
        };
        let cost = model.weights.cost(&tokens).min(self.max);
        Settled { cost, line: Line::Usage(result), used: Some(used) }
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

    /// The model that answered, or else that of the request: an answer may name a version that no pattern fits.
    fn model<R: Request + ?Sized>(&self, end: &End<'_, R>, buffer: &mut Vec<u8>) -> Model {
        let answered =
            self.source.response_model(end.response, buffer).map(|name| self.models.find(Some(name)));
        match answered.filter(|model| !model.is_other) {
            Some(model) => model,
            None => self.models.find(self.source.request_model(end.response, buffer)),
        }
    }

    fn ratio_key<R: Request + ?Sized>(&self, end: &End<'_, R>, model: Model) -> RatioKey {
        let kind = end.response.header(b"content-type");
        let is_stream = matches!(kind, Lines::One(kind) if kind.starts_with(b"text/event-stream"));
        RatioKey { rule: end.rule, model: model.place, is_stream }
    }
}

/// Whether a request has nothing that a model could read.
fn is_without_body(method: &[u8], length: Option<u64>) -> bool {
    matches!(method, b"GET" | b"HEAD" | b"OPTIONS") && length.unwrap_or(0) == 0
}

/// An attribute of Envoy's that is a number.
fn number(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
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
            Output::MaxTokens => self.output_cap.max(self.output_default),
        }
    }
}

impl Models {
    fn read(cost: &Node<'_>, fields: &Fields<'_>, errors: &mut Errors) -> Option<Models> {
        if let Some(node) = fields.get("prices") {
            let why = "it has no effect beside prices";
            fields.reject_given(&["weights", "models"], why, errors);
            return Models::read_prices(node, errors);
        }
        let others =
            fields.or("weights", Weights::default(), errors, |n, e| read_weights(n, Some(WEIGHT_UNIT), e));
        let listed = fields.or("models", Vec::new(), errors, |node, errors| {
            node.list(0..=MODELS_MAX, "models", errors, |node, errors| {
                let fields = node.object(&MODEL_FIELDS, errors)?;
                let expected = "a model or a pattern with *";
                let pattern = fields.required("model", expected, errors, |node, errors| {
                    read_pattern(node.text(MODEL_BYTES_MAX, errors)?, &node, errors)
                });
                let expected = "an object with input and output";
                let weights = fields
                    .required("weights", expected, errors, |n, e| read_weights(n, Some(WEIGHT_UNIT), e));
                Some((pattern?, weights?))
            })
        });
        Models::of(listed?, others?, cost, errors)
    }

    fn read_prices(node: Node<'_>, errors: &mut Errors) -> Option<Models> {
        let Value::Object(entries) = node.value else {
            return node.reject(
                errors,
                "is not an object",
                "an object of models, each with input and output",
            );
        };
        if entries.len() > MODELS_MAX {
            return node.reject(errors, "has too many models", "at most 256");
        }
        let (mut listed, mut others, mut is_sound) = (Vec::new(), None, true);
        for (name, value) in entries {
            let one = Node { value, path: Path::Field(&node.path, name) };
            let weights = read_weights(one, None, errors);
            is_sound &= weights.is_some();
            match (&**name == ANY_MODEL, weights) {
                (_, None) => {}
                (true, weights) => others = weights,
                (false, Some(weights)) => match read_pattern(name, &one, errors) {
                    Some(pattern) => listed.push((pattern, weights)),
                    None => is_sound = false,
                },
            }
        }
        let has_others = entries.iter().any(|(name, _)| &**name == ANY_MODEL);
        if !has_others {
            let expected = "a price of \"*\", as a model without a price would cost nothing";
            return errors.reject(&Path::Field(&node.path, ANY_MODEL), "it is missing", expected);
        }
        Models::of(listed, others.filter(|_| is_sound)?, &node, errors)
    }

    fn of(
        listed: Vec<(Pattern, Weights)>,
        others: Weights,
        node: &Node<'_>,
        errors: &mut Errors,
    ) -> Option<Models> {
        let (mut exact, mut globs, mut all) = (Vec::new(), Vec::new(), Vec::new());
        for ((pattern, weights), place) in listed.into_iter().zip(0..) {
            all.push(weights);
            match pattern {
                Pattern::Exact(name) => exact.push((name, place)),
                Pattern::Glob(glob) => globs.push((glob, place)),
            }
        }
        all.push(others);
        let globs = match globs.is_empty() {
            true => None,
            false => match GlobSet::build(globs) {
                Some(globs) => Some(globs),
                None => {
                    return node.reject(errors, "has patterns that are too large in total", "fewer patterns");
                }
            },
        };
        Some(Models { exact, globs, weights: all })
    }

    /// An exact name precedes any pattern, and of these the one with most literal characters applies.
    fn find(&self, name: Option<&[u8]>) -> Model {
        let exact = |name: &[u8]| self.exact.iter().find(|(of, _)| **of == *name).map(|(_, place)| *place);
        let by_pattern =
            |name: &[u8]| self.globs.as_ref()?.find(name, |_| true, &mut glob::Scratch::default());
        let found = name.and_then(|name| exact(name).or_else(|| by_pattern(name)));
        let last = self.weights.len().saturating_sub(1);
        let place = found.map_or(last, usize::from);
        let weights = self.weights.get(place).copied().unwrap_or_default();
        Model { place: u16::try_from(place).unwrap_or(u16::MAX), weights, is_other: found.is_none() }
    }
}

fn read_pattern(text: &str, node: &Node<'_>, errors: &mut Errors) -> Option<Pattern> {
    match Pattern::parse(text.as_bytes()) {
        Some(pattern) => Some(pattern),
        None => node.reject(errors, "has a model with a backslash before another character", r"\\ or \*"),
    }
}

/// Weights by kind. Input and output are `usual` by default, and required if that is `None`. Kinds of input cost what input
/// does by default, and reasoning what output does.
fn read_weights(node: Node<'_>, usual: Option<u64>, errors: &mut Errors) -> Option<Weights> {
    let fields = node.object(&KINDS, errors)?;
    let of_kind = |name, errors: &mut Errors| match usual {
        Some(usual) => fields.or(name, usual, errors, read_weight),
        None => fields.required(name, WEIGHT_EXPECTED, errors, read_weight),
    };
    let input = of_kind("input", errors);
    let output = of_kind("output", errors);
    let cached_input = fields.or("cached_input", input.unwrap_or(0), errors, read_weight);
    let cache_creation = fields.or("cache_creation", input.unwrap_or(0), errors, read_weight);
    let reasoning = fields.or("reasoning", output.unwrap_or(0), errors, read_weight);
    Some(Weights {
        input: input?,
        cached_input: cached_input?,
        cache_creation: cache_creation?,
        output: output?,
        reasoning: reasoning?,
    })
}

const WEIGHT_EXPECTED: &str = "a number from 0 to 1000000 with at most six decimals";

fn read_weight(node: Node<'_>, errors: &mut Errors) -> Option<u64> {
    match millionths(node.value).filter(|weight| *weight <= WEIGHT_MAX) {
        Some(weight) => Some(weight),
        None => node.reject(errors, "is not a weight", WEIGHT_EXPECTED),
    }
}

/// A number with at most six decimals, in millionths.
pub(in crate::rules) fn millionths(value: &Value<'_>) -> Option<u64> {
    if let Value::Unsigned(number) = value {
        return number.checked_mul(WEIGHT_UNIT);
    }
    let scaled = value.as_decimal().filter(|number| *number >= 0.0)? * WEIGHT_UNIT as f64;
    let nearest = (scaled + 0.5) as u64;
    // Beyond 2⁵³ a double has no places left.
    let is_exact = (scaled - nearest as f64).abs() <= 1e-3 && scaled < 9e15;
    is_exact.then_some(nearest)
}

#[cfg(test)]
mod tests {
    use super::super::settlement::Trailers;
    use super::*;
    use crate::fields::Bounds;
    use crate::rules::rule::cost::Cost;
    use crate::rules::testing::TestRequest;
    use alloc::format;
    use alloc::string::{String, ToString};

    fn read(json: &str) -> Result<UsageCost, String> {
        let mut errors = Errors::default();
        let json = Value::parse(json.as_bytes(), Bounds::OF_A_FILE).unwrap();
        let cost = Cost::read(Node::root("cost", &json), &mut errors);
        match errors.finish(cost) {
            Ok(Cost::Usage(cost)) => Ok(*cost),
            Ok(other) => panic!("{other:?}"),
            Err(errors) => Err(errors.to_string()),
        }
    }

    fn typed(namespace: &str, key: &str) -> Vec<u8> {
        format!("metadata\0typed_filter_metadata\0{namespace}\0{key}").into_bytes()
    }

    /// With one of Envoy's records of use.
    fn reported(mut request: TestRequest, record: &[(&str, i64)]) -> TestRequest {
        for (key, value) in record {
            request = request.property(&typed("envoy.ai.token_usage", key), &value.to_le_bytes());
        }
        request
    }

    /// With what Envoy reads of a request.
    fn asked(request: TestRequest, input: i64, max_output: i64) -> TestRequest {
        let of = |key| typed("envoy.ai.request_info", key);
        request
            .property(&of("estimated_input_tokens"), &input.to_le_bytes())
            .property(&of("max_output_tokens"), &max_output.to_le_bytes())
            .property(&of("model"), b"gpt-4o")
    }

    fn post() -> TestRequest {
        TestRequest::default().header(":method", "POST")
    }

    #[test]
    fn reserves() {
        let cost = read(
            r#"{"usage": "envoy", "max": 100000, "weights": {"output": 2},
                "models": [{"model": "gpt-*", "weights": {"input": 3}}, {"model": "gpt-4o-mini", "weights": {}}],
                "reserve": {"output_cap": 1000, "output_default": 500, "input_default": 40}}"#,
        )
        .unwrap();
        let sized = |length: &str| post().header("content-length", length);
        for (request, limit, expected) in [
            (asked(post(), 26, 100), 1_000_000, 3 * 26 + 100),
            (asked(post(), 26, 5_000), 1_000_000, 3 * 26 + 1_000),
            (asked(post(), 26, 0), 1_000_000, 3 * 26 + 500),
            (asked(sized("400"), 0, 10), 1_000_000, 3 * 100 + 10),
            (sized("401"), 1_000_000, 101 + 2 * 500),
            (post(), 1_000_000, 40 + 2 * 500),
            (post(), 300, 300),
            (post(), 0, 1),
            (TestRequest::get("/v1/models"), 1_000_000, 0),
            (TestRequest::get("/").header("content-length", "0"), 1_000_000, 0),
            (TestRequest::get("/").header("content-length", "8"), 1_000_000, 2 + 2 * 500),
        ] {
            assert_eq!(cost.reserve(&request, limit, &mut Vec::from(*b"x")), expected, "{request:?}");
        }
        let fixed = read(r#"{"usage": "envoy", "max": 9, "reserve": {"input": 3, "output": 4}}"#).unwrap();
        assert_eq!(fixed.reserve(&post(), 1_000, &mut Vec::new()), 7);
    }

    const UPSTREAM: (&[u8], &[u8]) = (b"response\0code_details", b"via_upstream");

    fn response(status: &str, details: &str, bytes: u64) -> TestRequest {
        TestRequest::default()
            .header(":status", status)
            .property(UPSTREAM.0, details.as_bytes())
            .property(b"response\0size", &bytes.to_le_bytes())
            .property(b"request\0method", b"POST")
            .property(b"request\0size", &400_u64.to_le_bytes())
    }

    fn reached(response: TestRequest) -> TestRequest {
        response.property(b"upstream\0local_address", b"127.0.0.1:1")
    }

    #[test]
    fn each_end_has_its_charge() {
        let cost = read(
            r#"{"usage": "envoy", "max": 5000, "weights": {"cached_input": 0.5, "output": 2},
                "without_usage": "estimate", "on_disconnect": "reserve", "on_error_status": 7,
                "reserve": {"output_cap": 1000}}"#,
        )
        .unwrap();
        let ended = Stage::Ended(Trailers::default());
        let clean = |status| response(status, "via_upstream", 400);
        let complete = [("extraction_status", 1), ("input_tokens", 10), ("output_tokens", 20), ("model", 0)];
        let cached = [("input_token_details\0cached_tokens", 4)];
        let failing = |key, value| {
            let mut record = complete;
            record[1] = (key, value);
            reported(clean("200"), &record)
        };
        // 400 bytes of the request are 100 tokens, and those of the answer by a quarter too.
        let estimate = 100 + 2 * 100;
        for (end, stage, expected, result) in [
            (reported(clean("200"), &complete), ended, 10 + 40, "complete"),
            (reported(reported(clean("200"), &complete), &cached), ended, 6 + 2 + 40, "complete"),
            (reported(clean("500"), &complete), ended, 10 + 40, "complete"),
            (failing("input_tokens", 1 << 53), ended, 5_000, "complete"),
            (failing("input_tokens", 1 << 54), ended, estimate, "failed"),
            (failing("input_tokens", -1), ended, estimate, "failed"),
            (reported(clean("200"), &[("extraction_status", 3)]), ended, estimate, "failed"),
            (
                reported(clean("200"), &[("extraction_status", 2), ("input_tokens", 10)]),
                ended,
                estimate,
                "partial",
            ),
            (clean("200"), ended, estimate, "missing"),
            (clean("200").header("content-encoding", "gzip"), ended, estimate, "encoded"),
            (clean("200").header("content-encoding", "identity"), ended, estimate, "missing"),
            (clean("429"), ended, 7, "error_status"),
            (reached(response("200", "downstream_remote_disconnect", 400)), ended, 77, "disconnected"),
            (reached(response("200", "upstream_reset_after_response_started{…}", 1)), ended, 77, "reset"),
            (reached(response("503", "upstream_reset_before_response_started{…}", 95)), ended, 77, "reset"),
            (response("403", "rbac_access_denied", 19), ended, 0, "unsent"),
            (reached(TestRequest::default()), Stage::Unanswered, 77, "disconnected"),
            (TestRequest::default(), Stage::Unanswered, 0, "unsent"),
        ] {
            let mut ratios = Ratios::default();
            let of = End { response: &end, stage, rule: 3, reserved: 77 };
            let settled = cost.settle(&of, &mut ratios, &mut Vec::from(*b"x")).unwrap();
            assert_eq!((settled.cost, settled.line.to_string().as_str()), (expected, result), "{end:?}");
        }
        let of = End { response: &clean("200"), stage: Stage::Headers, rule: 3, reserved: 77 };
        assert_eq!(cost.settle(&of, &mut Ratios::default(), &mut Vec::new()), None, "the end decides");
    }

    #[test]
    fn estimates_are_learned_from_complete_answers_of_the_same_model() {
        let cost = read(r#"{"usage": "envoy", "max": 5000, "reserve": {"input": 0}}"#).unwrap();
        let mut ratios = Ratios::default();
        let mut settle = |response: &TestRequest| {
            let end = End { response, stage: Stage::Ended(Trailers::default()), rule: 0, reserved: 0 };
            cost.settle(&end, &mut ratios, &mut Vec::new()).unwrap().cost
        };
        let aborted = reached(response("200", "downstream_remote_disconnect", 1_000));
        assert_eq!(settle(&aborted), 250, "the seed");
        let record = [("extraction_status", 1), ("output_tokens", 300), ("input_tokens", 0)];
        assert_eq!(settle(&reported(response("200", "via_upstream", 1_000), &record)), 300);
        assert_eq!(settle(&aborted), 300);
    }

    #[test]
    fn prices_are_micro_dollars() {
        let cost = read(
            r#"{"usage": "envoy", "prices": {"gpt-4o": {"input": 2.50, "output": 10}, "gpt-*": {"input": 1, "output": 1},
                "*": {"input": 10, "output": 30}}}"#,
        )
        .unwrap();
        assert!(cost.is_money && cost.max == 100_000_000);
        let settle = |model: &[u8]| {
            let record = [("extraction_status", 1), ("input_tokens", 3), ("output_tokens", 2)];
            let response = reported(response("200", "via_upstream", 9), &record);
            let response = response.property(&typed("envoy.ai.token_usage", "model"), model);
            let end =
                End { response: &response, stage: Stage::Ended(Trailers::default()), rule: 0, reserved: 0 };
            let settled = cost.settle(&end, &mut Ratios::default(), &mut Vec::new()).unwrap();
            (settled.cost, settled.used.unwrap().is_unpriced)
        };
        assert_eq!(settle(b"gpt-4o"), (28, false));
        assert_eq!(settle(b"gpt-4o-mini"), (5, false));
        assert_eq!(settle(b"claude"), (90, true));
    }

    #[test]
    fn use_in_metadata_of_any_filter() {
        let total = read(
            r#"{"usage": {"metadata": {"filter": "f", "total": ["a", "n"]}}, "max": 100, "without_usage": 50,
                "weights": {"input": 1, "output": 3}, "reserve": {"output": 5}}"#,
        )
        .unwrap();
        let settle = |value: &[u8]| {
            let response =
                response("200", "via_upstream", 9).property(b"metadata\0filter_metadata\0f\0a\0n", value);
            let end =
                End { response: &response, stage: Stage::Ended(Trailers::default()), rule: 0, reserved: 0 };
            let settled = total.settle(&end, &mut Ratios::default(), &mut Vec::new()).unwrap();
            (settled.cost, settled.line.to_string())
        };
        for (value, expected, result) in [
            (7.0_f64.to_le_bytes().as_slice(), 21, "complete"),
            (b"7", 21, "complete"),
            (&0.0_f64.to_le_bytes(), 0, "complete"),
            (&2.5_f64.to_le_bytes(), 50, "failed"),
            (&(-1.0_f64).to_le_bytes(), 50, "failed"),
            (b"1e3", 50, "failed"),
            (b"many", 50, "failed"),
            (b"9007199254740993", 50, "failed"),
            (b"", 50, "missing"),
        ] {
            assert_eq!(settle(value), (expected, result.to_string()), "{value:?}");
        }
        assert!(read(r#"{"usage": {"ai_gateway": {"total": "t"}}, "max": 1000000}"#).is_ok());
    }

    #[test]
    fn errors() {
        for (json, problem) in [
            (r#"{"usage": "envoy"}"#, "max: it is missing"),
            (r#"{"usage": "body", "max": 9}"#, "is no source of use"),
            (r#"{"usage": {"metadata": {"filter": "f", "input": "i"}}, "max": 100000}"#, "total, or both"),
            (
                r#"{"usage": {"metadata": {"input": "i", "output": "o"}}, "max": 100000}"#,
                "none of filter or typed",
            ),
            (r#"{"usage": "envoy", "prices": {"a": {"input": 1, "output": 1}}}"#, "prices.*: it is missing"),
            (r#"{"usage": "envoy", "prices": {"*": {"input": 1}}}"#, "output: it is missing"),
            (
                r#"{"usage": "envoy", "prices": {"*": {"input": 1, "output": 1}}, "weights": {}}"#,
                "no effect beside prices",
            ),
            (r#"{"usage": "envoy", "max": 4095}"#, "max: it is below the reserve"),
            (r#"{"usage": "envoy", "max": 100000, "weights": {"input": -1}}"#, "is not a weight"),
            (r#"{"usage": "envoy", "max": 100000, "weights": {"input": 0.0000001}}"#, "is not a weight"),
            (r#"{"usage": "envoy", "max": 100000, "weights": {"input": 1000001}}"#, "is not a weight"),
            (r#"{"usage": "envoy", "max": 100000, "without_usage": 100001}"#, "out of range"),
            (r#"{"usage": "envoy", "max": 100000, "on_disconnect": "free"}"#, "is not a charge"),
            (r#"{"usage": "envoy", "max": 100000, "reserve": {"output": "learned"}}"#, "reserve.output"),
            (r#"{"usage": "envoy", "max": 100000, "when": []}"#, "no such field"),
        ] {
            let error = read(json).unwrap_err();
            assert!(error.contains(problem), "{json}\n{error}");
        }
    }
}
