//! Where the use of a language model is written: metadata of Envoy's AI protocol manager, of Envoy AI Gateway, or of any filter.

use crate::fields::{Errors, Fields, Node, Value};
use crate::rules::digits::parse;
use crate::rules::request::property::{self, Property};
use crate::rules::request::{Request, trim};
use crate::usage::{Tokens, Weights};
use alloc::string::{String, ToString};
use alloc::vec::Vec;

pub(super) const EXPECTED: &str =
    "envoy, ai_gateway, or an object with one of envoy, ai_gateway and metadata";
/// Whose metadata is read: a word, or the only field of an object.
pub(in crate::rules) const WORDS: [(&str, ()); 2] = [("envoy", ()), ("ai_gateway", ())];
pub(in crate::rules) const SOURCES: [&str; 3] = ["envoy", "ai_gateway", "metadata"];
/// The kinds of use, each with the key under which it is written.
pub(in crate::rules) const KEYS: [&str; 7] =
    ["input", "cached_input", "cache_creation", "output", "reasoning", "total", "model"];

const ENVOY_USAGE: &str = "envoy.ai.token_usage";
const ENVOY_REQUEST: &str = "envoy.ai.request_info";
const AI_GATEWAY: &str = "io.envoy.ai_gateway";
/// The header in which the gateway states the model of a request.
const GATEWAY_MODEL: &str = "x-ai-eg-model";
/// The key under which it writes the model that it asks the backend for, if that is another.
const GATEWAY_BACKEND_MODEL: &str = "model_name_override";
/// As Envoy's record of use has them.
const COMPLETE: u64 = 1;
const PARTIAL: u64 = 2;

/// Which metadata has the use of a request, and what is known before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UsageSource {
    /// In the order of [`KEYS`].
    keys: [Option<Property>; KEYS.len()],
    /// How complete the use is.
    status: Option<Property>,
    request_model: Property,
    estimated_input: Property,
    max_output: Property,
}

/// What is known of the use of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Usage {
    /// Nothing was written.
    Missing,
    /// What was written is no use: not a whole number of 0 to 2⁵³.
    Failed,
    /// Some of it.
    Partial(Reported),
    Complete(Reported),
}

/// Tokens as a filter has written them: by kind, or their sum alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reported {
    Kinds(Tokens),
    Total(u64),
}

impl Reported {
    /// Tokens of which no kind is known are of the dearer one.
    pub fn by_kind(self, weights: &Weights) -> Tokens {
        match self {
            Reported::Kinds(tokens) => tokens,
            Reported::Total(input) if weights.input > weights.output => Tokens { input, ..Tokens::default() },
            Reported::Total(output) => Tokens { output, ..Tokens::default() },
        }
    }
}

impl UsageSource {
    pub fn read(node: Node<'_>, errors: &mut Errors) -> Option<UsageSource> {
        let keys = match node.value {
            Value::Object(_) => {
                let fields = node.object(&SOURCES, errors)?;
                let kind = fields.exactly_one(&SOURCES, errors)?;
                let node = fields.get(kind)?;
                match kind {
                    "envoy" => {
                        return property::read_key(node, errors).map(|name| UsageSource::of_envoy(&name));
                    }
                    "ai_gateway" => return read_gateway(node, errors).map(UsageSource::of_gateway),
                    _ => read_metadata(node, errors),
                }?
            }
            Value::Text(word) if word == "envoy" => return Some(UsageSource::of_envoy(ENVOY_USAGE)),
            Value::Text(word) if word == "ai_gateway" => {
                return Some(UsageSource::of_gateway(gateway_keys()));
            }
            _ => return node.reject(errors, "is no source of use", EXPECTED),
        };
        Some(UsageSource { keys, status: None, ..UsageSource::of_envoy(ENVOY_USAGE) })
    }

    fn of_envoy(namespace: &str) -> UsageSource {
        let typed = |keys: &[&str]| {
            let keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
            Some(Property::metadata("typed", namespace, &keys))
        };
        let of_request = |key: &str| Property::metadata("typed", ENVOY_REQUEST, &[key.to_string()]);
        UsageSource {
            keys: [
                typed(&["input_tokens"]),
                typed(&["input_token_details", "cached_tokens"]),
                typed(&["input_token_details", "cache_creation_tokens"]),
                typed(&["output_tokens"]),
                typed(&["output_token_details", "reasoning_tokens"]),
                typed(&["total_tokens"]),
                typed(&["model"]),
            ],
            status: typed(&["extraction_status"]),
            request_model: of_request("model"),
            estimated_input: of_request("estimated_input_tokens"),
            max_output: of_request("max_output_tokens"),
        }
    }

    /// The gateway writes the model that a request asks for into a header, in place of what the client has sent there.
    fn of_gateway(keys: Keys) -> UsageSource {
        let request_model = Property::request_header(GATEWAY_MODEL);
        UsageSource { keys, status: None, request_model, ..UsageSource::of_envoy(ENVOY_USAGE) }
    }

    /// The use of a request whose response has ended.
    pub fn usage<R: Request + ?Sized>(&self, request: &R, buffer: &mut Vec<u8>) -> Usage {
        let status = self.status.as_ref().map(|status| number(status, request, buffer));
        match status {
            None | Some(Some(Ok(COMPLETE | PARTIAL))) => {}
            Some(None | Some(Ok(0))) => return Usage::Missing,
            Some(Some(_)) => return Usage::Failed,
        }
        let (mut counts, mut found) = ([0; KEYS.len()], [false; KEYS.len()]);
        let kinds = self.keys.iter().zip(&mut counts).zip(&mut found).take(KEYS.len().saturating_sub(1));
        for ((property, count), found) in kinds {
            match property.as_ref().and_then(|property| number(property, request, buffer)) {
                None => {}
                Some(Ok(number)) => (*count, *found) = (number, true),
                Some(Err(NotANumber)) => return Usage::Failed,
            }
        }
        let [input, cached_input, cache_creation, output, reasoning, total, _] = counts;
        let [has_input, _, _, has_output, _, has_total, _] = found;
        let kinds = Tokens { input, cached_input, cache_creation, output, reasoning };
        let reported = match (has_input, has_output, has_total) {
            (true, false, true) => Reported::Kinds(Tokens { output: total.saturating_sub(input), ..kinds }),
            (false, true, true) => Reported::Kinds(Tokens { input: total.saturating_sub(output), ..kinds }),
            (false, false, true) => Reported::Total(total),
            (false, false, false) => return Usage::Missing,
            _ => Reported::Kinds(kinds),
        };
        let is_whole = has_total || (has_input && has_output);
        match status {
            Some(Some(Ok(PARTIAL))) => Usage::Partial(reported),
            _ if is_whole => Usage::Complete(reported),
            _ => Usage::Partial(reported),
        }
    }

    /// The model that answered.
    pub fn response_model<'b, R: Request + ?Sized>(
        &self,
        request: &R,
        buffer: &'b mut Vec<u8>,
    ) -> Option<&'b [u8]> {
        let [.., model] = &self.keys;
        text(model.as_ref()?, request, buffer)
    }

    /// The model that the request names.
    pub fn request_model<'b, R: Request + ?Sized>(
        &self,
        request: &R,
        buffer: &'b mut Vec<u8>,
    ) -> Option<&'b [u8]> {
        text(&self.request_model, request, buffer)
    }

    /// The tokens of the prompt, as Envoy estimates them.
    pub fn estimated_input<R: Request + ?Sized>(&self, request: &R, buffer: &mut Vec<u8>) -> Option<u64> {
        positive(&self.estimated_input, request, buffer)
    }

    /// The most tokens that the request asks for.
    pub fn max_output<R: Request + ?Sized>(&self, request: &R, buffer: &mut Vec<u8>) -> Option<u64> {
        positive(&self.max_output, request, buffer)
    }
}

/// What is no whole number of 0 to 2⁵³.
struct NotANumber;

/// A whole number of 0 to 2⁵³, as a number or in digits; `None` if there is nothing.
fn number<R: Request + ?Sized>(
    property: &Property,
    request: &R,
    buffer: &mut Vec<u8>,
) -> Option<Result<u64, NotANumber>> {
    buffer.clear();
    if !request.property(property.path(), buffer) || buffer.is_empty() {
        return None;
    }
    let number = match property.number(buffer) {
        Some(number) => u64::try_from(number).ok(),
        None => parse(trim(buffer)).filter(|number| *number <= property::WHOLE_MAX),
    };
    Some(number.ok_or(NotANumber))
}

/// A number above 0: in typed metadata a field that is missing reads as 0.
fn positive<R: Request + ?Sized>(property: &Property, request: &R, buffer: &mut Vec<u8>) -> Option<u64> {
    number(property, request, buffer)?.ok().filter(|number| *number > 0)
}

fn text<'b, R: Request + ?Sized>(
    property: &Property,
    request: &R,
    buffer: &'b mut Vec<u8>,
) -> Option<&'b [u8]> {
    buffer.clear();
    let found = request.property(property.path(), buffer);
    property.text(buffer).filter(|text| found && !text.is_empty())
}

type Keys = [Option<Property>; KEYS.len()];

fn gateway_keys() -> Keys {
    let of = |key: &str| Some(Property::metadata("filter", AI_GATEWAY, &[key.to_string()]));
    let cached = of("llm_cached_input_token");
    let model = of(GATEWAY_BACKEND_MODEL);
    [of("llm_input_token"), cached, None, of("llm_output_token"), None, of("llm_total_token"), model]
}

/// Other keys of Envoy AI Gateway's metadata.
fn read_gateway(node: Node<'_>, errors: &mut Errors) -> Option<Keys> {
    let fields = node.object(&KEYS, errors)?;
    read_keys(&fields, "filter", AI_GATEWAY, errors)
}

fn read_metadata(node: Node<'_>, errors: &mut Errors) -> Option<Keys> {
    let [filter, typed] = property::METADATA_KINDS;
    let known: Vec<&str> = [filter, typed].into_iter().chain(KEYS).collect();
    let fields = node.object(&known, errors)?;
    let kind = fields.exactly_one(&property::METADATA_KINDS, errors)?;
    let namespace = property::read_key(fields.get(kind)?, errors)?;
    read_keys(&fields, kind, &namespace, errors)
}

/// The keys of a source, with input and output, or the total.
fn read_keys(fields: &Fields<'_>, kind: &str, namespace: &str, errors: &mut Errors) -> Option<Keys> {
    let mut keys: Keys = Default::default();
    let mut is_sound = true;
    for (name, key) in KEYS.into_iter().zip(&mut keys) {
        let read = fields.optional(name, errors, |node, errors| {
            node.one_or_list(1..=property::DEPTH_MAX, "keys", errors, property::read_key)
        });
        is_sound &= read.is_some();
        *key = read.flatten().map(|path| Property::metadata(kind, namespace, &path));
    }
    if !is_sound {
        return None;
    }
    let [input, _, _, output, _, total, _] = &keys;
    if total.is_none() && (input.is_none() || output.is_none()) {
        let expected = "total, or both input and output";
        return fields.reject("total", "it is missing", expected, errors);
    }
    Some(keys)
}
