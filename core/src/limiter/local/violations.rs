//! Violations: denials that count towards a ban, counted like requests on keys of their own.
//!
//! A rule with a ban counts its denials in a second window, in a reserved namespace ([`violations_namespace`]), so that all workers and nodes count together. A denial must not cost a shared access, however fast its
//! client repeats it. So a worker gathers violations, and writes them at its tick or when they alone reach the threshold.

use super::Local;
use super::transact::{Make, Subject};
use crate::limiter::table::Entry;
use crate::model::key::{RESERVED_PREFIX, fingerprint};
use crate::model::shared::Shared;
use crate::model::time::Now;
use crate::model::window::Position;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

/// Most identifiers whose violations a worker gathers between two ticks; further ones are not counted.
pub const MAX_VIOLATORS: usize = 4_096;

/// A denial by a rule with a ban.
#[derive(Clone, Copy, Debug)]
pub struct Violation<'a> {
    /// Whose rule it is, and the rule's index, both chosen by the caller.
    pub rule: (u32, u16),
    /// Canonical bytes of the key on which this identifier's violations are counted.
    pub key: &'a [u8],
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
    struck: Vec<Violator>,
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
    /// Counts a violation.
    pub(in crate::limiter) fn violation(
        &mut self,
        shared: &mut impl Shared,
        violation: &Violation<'_>,
        now: Now,
    ) {
        let fingerprint = fingerprint(violation.key, self.table.secret);
        let gathered = &mut self.violations.gathered;
        if gathered.len() >= MAX_VIOLATORS && !gathered.contains_key(&fingerprint) {
            return;
        }
        let new =
            || Gathered { rule: violation.rule, key: violation.key.to_vec(), most: violation.most, count: 0 };
        let one = gathered.entry(fingerprint).or_insert_with(new);
        one.count = one.count.saturating_add(1);
        if one.count >= one.most
            && let Some(one) = gathered.remove(&fingerprint)
        {
            self.write_violations(shared, fingerprint, one, now);
        }
    }

    /// Takes the identifiers that reached the threshold of a rule of `owner` since the last call.
    pub(in crate::limiter) fn take_struck(&mut self, owner: u32) -> Vec<Violator> {
        self.violations.struck.extract_if(.., |violator| violator.rule.0 == owner).collect()
    }

    /// Drops the others, as their owners have ended.
    pub(in crate::limiter) fn drop_struck(&mut self) {
        self.violations.struck.clear();
    }

    /// Writes the gathered violations to the table.
    pub(in crate::limiter) fn flush_violations(&mut self, shared: &mut impl Shared, now: Now) {
        for (fingerprint, one) in core::mem::take(&mut self.violations.gathered) {
            self.write_violations(shared, fingerprint, one, now);
        }
    }

    fn write_violations(&mut self, shared: &mut impl Shared, fingerprint: u64, one: Gathered, now: Now) {
        let change = |entry: &mut Entry, at: &Position| {
            entry.apply(one.most, None);
            entry.charge(one.count, now.mono);
            (entry.used().effective(at) >= one.most, true)
        };
        let subject = Subject { fingerprint, key: Some(&one.key), make: Make::Always };
        // If conflicts do not end, these few violations are not counted.
        let Ok(done) = self.table.transact(shared, subject, now, &mut self.stats, change) else { return };
        self.note_applied(&done.entry, now);
        // An overflow cell contains violations of other identifiers.
        if done.result && !done.overflow && self.violations.struck.len() < MAX_VIOLATORS {
            self.violations.struck.push(Violator { rule: one.rule, key: one.key });
        }
    }
}
