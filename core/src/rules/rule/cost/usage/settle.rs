//! What a request is charged once its response has ended: its use, or what is configured where none is known.

use super::models::Model;
use super::{Fallback, UsageCost};
use crate::rules::request::{Lines, Request};
use crate::rules::rule::cost::settlement::{End, Line, Settled, Stage, UsageResult, Used};
use crate::rules::rule::cost::source::{Reported, Usage};
use crate::usage::{RatioKey, Ratios, Tokens};
use alloc::vec::Vec;

impl UsageCost {
    pub(in crate::rules::rule::cost) fn settle<R: Request + ?Sized>(
        &self,
        end: &End<'_, R>,
        ratios: &mut Ratios,
        buffer: &mut Vec<u8>,
    ) -> Option<Settled> {
        let result = match end.stage {
            Stage::Headers => return None,
            Stage::Unanswered if !end.reached(buffer) => return Some(Settled::UNSENT),
            Stage::Unanswered if body_bytes(end, buffer) == Some(0) => return Some(WITHOUT_BODY),
            Stage::Unanswered => {
                return Some(self.fall_back(UsageResult::Disconnected, end, 0, ratios, buffer));
            }
            Stage::Ended(_) => self.source.usage(end.response, buffer),
        };
        let bytes = number(end.property(b"response\0size", buffer)).unwrap_or(0);
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
        if !is_clean && !end.reached(buffer) {
            return Settled::UNSENT;
        }
        if body_bytes(end, buffer) == Some(0) {
            return WITHOUT_BODY;
        }
        if !is_clean {
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
        let length = Some(body_bytes(end, buffer).unwrap_or(0));
        let input = self.estimated_input(end.response, length, buffer);
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

/// Of a request whose body had no bytes, so that a model had nothing to read.
const WITHOUT_BODY: Settled = Settled { cost: 0, line: Line::Usage(UsageResult::WithoutBody), used: None };

/// The bytes of the request's body, as far as it was received.
fn body_bytes<R: Request + ?Sized>(end: &End<'_, R>, buffer: &mut Vec<u8>) -> Option<u64> {
    number(end.property(b"request\0size", buffer))
}

/// An attribute of Envoy's that is a number.
fn number(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}
