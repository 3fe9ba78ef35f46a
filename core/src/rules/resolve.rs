//! A request against all rules: which apply, for which identifier, with what limit and cost.
//!
//! Deciding what follows from the checks is the limiter's.

use super::config::Config;
use super::glob;
use super::identifier::{Sources, canonical_identifier, write_raw};
use super::overrides::Override;
use super::request::Request;
use super::rule::{Missing, Rule};
use alloc::vec::Vec;

/// One rule that applies to a request.
#[derive(Clone, Copy, Debug)]
pub struct Check<'a> {
    /// The rule's place in [`Config::rules`].
    pub rule_index: usize,
    /// The rule.
    pub rule: &'a Rule,
    /// The canonical identifier, at most [`MAX_IDENTIFIER_BYTES`](super::MAX_IDENTIFIER_BYTES) long.
    pub identifier: &'a [u8],
    /// What the rule asks for.
    pub action: Action,
}

/// What a rule asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Charge `cost` if `limit` leaves room for it.
    Limit {
        /// The limit after overrides; 0 for a ledger, whose zone says it.
        limit: u64,
        /// The request's cost.
        cost: u64,
    },
    /// Let it pass, and count nothing.
    Exempt,
    /// Deny it, and count nothing: a part of the identifier is missing.
    DenyMissing,
}

/// Memory for resolving, one for each worker: once warm, a request allocates nothing.
#[derive(Debug, Default)]
pub struct Scratch {
    sources: Sources,
    raw: Vec<u8>,
    identifiers: Vec<u8>,
    globs: glob::Scratch,
    found: Vec<Found>,
}

#[derive(Clone, Copy, Debug)]
struct Found {
    rule_index: usize,
    identifier_end: usize,
    action: Action,
}

/// The checks of one request, in the rules' order.
#[derive(Clone, Debug)]
pub struct Checks<'a> {
    rules: &'a [Rule],
    identifiers: &'a [u8],
    found: core::slice::Iter<'a, Found>,
    identifier_start: usize,
}

impl Config {
    /// The checks that this request must pass; none when no rule applies.
    pub fn resolve<'a, R: Request + ?Sized>(&'a self, request: &R, scratch: &'a mut Scratch) -> Checks<'a> {
        scratch.begin();
        for (rule_index, rule) in self.rules.iter().enumerate() {
            scratch.apply(rule_index, rule, request);
        }
        let (identifiers, found) = (scratch.identifiers.as_slice(), scratch.found.iter());
        Checks { rules: &self.rules, identifiers, found, identifier_start: 0 }
    }
}

impl Scratch {
    fn begin(&mut self) {
        self.sources.forget();
        self.identifiers.clear();
        self.found.clear();
    }

    fn apply<R: Request + ?Sized>(&mut self, rule_index: usize, rule: &Rule, request: &R) {
        let Sources { path, buffer, .. } = &mut self.sources;
        if !rule.conditions.matches(request, path, buffer) {
            return;
        }
        let complete = write_raw(&rule.parts, request, &mut self.sources, &mut self.raw);
        if !complete && rule.missing == Missing::Skip {
            return;
        }
        let action = match (complete, rule.missing) {
            (false, Missing::Deny) => Action::DenyMissing,
            _ => self.action(rule, request),
        };
        canonical_identifier(&self.raw, &mut self.identifiers);
        self.found.push(Found { rule_index, identifier_end: self.identifiers.len(), action });
    }

    fn action<R: Request + ?Sized>(&mut self, rule: &Rule, request: &R) -> Action {
        let limit = match rule.overrides.find(&self.raw, &mut self.globs) {
            Some(Override::Exempt) => return Action::Exempt,
            Some(Override::Limit(limit)) => limit,
            None => rule.limit,
        };
        Action::Limit { limit, cost: rule.cost.of(request, &mut self.sources.buffer) }
    }
}

impl<'a> Iterator for Checks<'a> {
    type Item = Check<'a>;

    fn next(&mut self) -> Option<Check<'a>> {
        let Found { rule_index, identifier_end, action } = *self.found.next()?;
        let identifier = self.identifiers.get(self.identifier_start..identifier_end)?;
        self.identifier_start = identifier_end;
        Some(Check { rule_index, rule: self.rules.get(rule_index)?, identifier, action })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.found.size_hint()
    }
}

impl ExactSizeIterator for Checks<'_> {}
