//! What tokens cost: the weights or prices of models.

use crate::fields::{Errors, Fields, Node, Path, Value};
use crate::matching::glob::{self, GlobSet, Pattern};
use crate::usage::{WEIGHT_MAX, WEIGHT_UNIT, Weights};
use alloc::boxed::Box;
use alloc::vec::Vec;

pub(in crate::rules) const MODEL_FIELDS: [&str; 2] = ["model", "weights"];
pub(in crate::rules) const KINDS: [&str; 5] =
    ["input", "cached_input", "cache_creation", "output", "reasoning"];
pub(in crate::rules) const MODELS_MAX: usize = 256;
pub(in crate::rules) const MODEL_BYTES_MAX: usize = 256;
/// All models that no other pattern fits.
const ANY_MODEL: &str = "*";

/// What tokens cost, by model.
#[derive(Clone, Debug)]
pub(super) struct Models {
    exact: Vec<(Box<[u8]>, u16)>,
    globs: Option<GlobSet<u16>>,
    /// By place; the last is for all other models.
    pub(super) weights: Vec<Weights>,
}

/// A model's place in [`Models`], and its weights.
#[derive(Clone, Copy, Debug)]
pub(super) struct Model {
    pub(super) place: u16,
    pub(super) weights: Weights,
    /// No pattern fits it but that for all others.
    pub(super) is_other: bool,
}

impl Models {
    pub(super) fn read(cost: &Node<'_>, fields: &Fields<'_>, errors: &mut Errors) -> Option<Models> {
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
    pub(super) fn find(&self, name: Option<&[u8]>) -> Model {
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
