//! Violations: denials, or what was charged, that count towards a ban, counted like requests on keys of their own.
//!
//! A rule with a ban counts them in a second window, in a reserved namespace ([`violations_namespace`]), so that all workers and nodes count together. A denial must not cost a shared access, however fast its
//! client repeats it. So a worker gathers violations, and writes them at its tick or when they alone reach the threshold.

use super::Local;
use super::transact::{Make, Subject};
use crate::limiter::table::Entry;
use crate::model::key::{RESERVED_PREFIX, fingerprint};
use crate::model::shared::Shared;
use crate::model::time::Now;
use crate::model::window::Position;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;

/// Most identifiers whose violations a worker gathers between two ticks; further ones are not counted.
pub const MAX_VIOLATORS: usize = 4_096;

/// A denial by a rule with a ban, or what it charged.
#[derive(Clone, Copy, Debug)]
pub struct Violation<'a> {
    /// Whose rule it is, and the rule's index, both chosen by the caller.
    pub rule: (u32, u16),
    /// Canonical bytes of the key on which this identifier's violations are counted.
    pub key: &'a [u8],
    /// How many it counts as.
    pub count: u64,
    /// The ban's threshold.
    pub most: u64,
}

/// An identifier whose violations reached the threshold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violator {
    /// The rule, as the [`Violation`] that was gathered first named it.
    pub rule: (u32, u16),
    /// The key of its [`Violation`]s.
    pub key: Vec<u8>,
}

#[derive(Debug, Default)]
pub(super) struct Violations {
    /// By fingerprint.
    gathered: BTreeMap<u64, Gathered>,
    /// Identifiers that reached the threshold.
    struck: VecDeque<Violator>,
}

#[derive(Debug)]
struct Gathered {
    rule: (u32, u16),
    key: Vec<u8>,
    most: u64,
    count: u64,
}

/// The reserved namespace in which violations of `namespace` are counted. `namespace` must be shorter than [`crate::model::key::MAX_TEXT_BYTES`].
pub fn violations_namespace(namespace: &str) -> String {
    let mut marked = String::from(RESERVED_PREFIX);
    marked.push_str(namespace);
    marked
}

impl Local {
    /// Counts a violation. Returns its identifier if that has reached the threshold and the violation's rule is to ban it.
    pub(in crate::limiter) fn violation(
        &mut self,
        shared: &mut impl Shared,
        violation: &Violation<'_>,
        now: Now,
    ) -> Option<Violator> {
        let fingerprint = fingerprint(violation.key, self.table.secret);
        let gathered = &mut self.violations.gathered;
        if gathered.len() >= MAX_VIOLATORS && !gathered.contains_key(&fingerprint) {
            return None;
        }
        let new =
            || Gathered { rule: violation.rule, key: violation.key.to_vec(), most: violation.most, count: 0 };
        let one = gathered.entry(fingerprint).or_insert_with(new);
        one.count = one.count.saturating_add(violation.count);
        if one.count < one.most {
            return None;
        }
        let one = gathered.remove(&fingerprint)?;
        let violator = self.write_violations(shared, fingerprint, one, now)?;
        if violator.rule.0 == violation.rule.0 {
            return Some(violator);
        }
        self.strike(violator);
        None
    }

    /// Takes an identifier that reached the threshold otherwise: by the violations of several workers or owners.
    pub(in crate::limiter) fn next_struck(&mut self) -> Option<Violator> {
        self.violations.struck.pop_front()
    }

    /// Writes the gathered violations to the table.
    pub(in crate::limiter) fn flush_violations(&mut self, shared: &mut impl Shared, now: Now) {
        for (fingerprint, one) in core::mem::take(&mut self.violations.gathered) {
            if let Some(violator) = self.write_violations(shared, fingerprint, one, now) {
                self.strike(violator);
            }
        }
    }

    fn strike(&mut self, violator: Violator) {
        if self.violations.struck.len() < MAX_VIOLATORS {
            self.violations.struck.push_back(violator);
        }
    }

    fn write_violations(
        &mut self,
        shared: &mut impl Shared,
        fingerprint: u64,
        one: Gathered,
        now: Now,
    ) -> Option<Violator> {
        let change = |entry: &mut Entry, at: &Position| {
            entry.apply(one.most, None);
            entry.charge(one.count, now.mono);
            (entry.used().effective(at) >= one.most, true)
        };
        let subject = Subject { fingerprint, key: Some(&one.key), make: Make::Always };
        // If conflicts do not end, these few violations are not counted.
        let done = self.table.transact(shared, subject, now, &mut self.stats, change).ok()?;
        self.note_applied(&done.entry, now);
        // An overflow cell contains violations of other identifiers.
        (done.result && !done.overflow).then_some(Violator { rule: one.rule, key: one.key })
    }
}
