//! Denials that lead to a ban: counted like anything else, on a key of their own.
//!
//! A rule that bans counts whom it denies in a window beside its own, whose namespace no configuration can spell
//! ([`violations_namespace`]). So all workers of a process and all processes of a region count together. As a denied request is to
//! cost nothing shared however hard its client hammers, a worker gathers denials and writes them down on its tick, or once it
//! alone has seen as many as lead to a ban.
//!
//! Leaves to others: banning (`control`), for how long (`rules::Ban`).

use crate::limiter::Limiter;
use crate::limiter::table::Entry;
use crate::limiter::transact::{Make, Subject};
use crate::model::key::fingerprint;
use crate::model::shared::Shared;
use crate::model::time::{MonoMs, Now};
use crate::model::window::Position;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

/// Most identifiers whose denials a worker gathers between two ticks; further ones are not counted.
pub const MAX_VIOLATORS: usize = 4_096;
/// What namespaces of violations begin with; no name in a configuration holds it.
const MARK: &str = "~";

/// A denial by a rule that bans.
#[derive(Clone, Copy, Debug)]
pub struct Violation<'a> {
    /// The rule, as an index that the caller understands.
    pub rule: u16,
    /// Canonical bytes of the key on which the denials of this identifier are counted.
    pub key: &'a [u8],
    /// How many of them lead to a ban.
    pub most: u64,
}

/// Somebody who has been denied often enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violator {
    /// The rule.
    pub rule: u16,
    /// The key of its [`Violation`]s.
    pub key: Vec<u8>,
}

#[derive(Debug, Default)]
pub(in crate::limiter) struct Violations {
    /// By fingerprint.
    gathered: BTreeMap<u64, Gathered>,
    struck: Vec<Violator>,
}

#[derive(Debug)]
struct Gathered {
    rule: u16,
    key: Vec<u8>,
    most: u64,
    count: u64,
}

/// Whether a namespace is one of [`violations_namespace`]: of no use to people who look at keys.
pub fn counts_denials(namespace: &[u8]) -> bool {
    namespace.starts_with(MARK.as_bytes())
}

/// Where a namespace's denials are counted, which has to be shorter than [`crate::model::key::MAX_TEXT_BYTES`].
pub fn violations_namespace(namespace: &str) -> String {
    let mut marked = String::from(MARK);
    marked.push_str(namespace);
    marked
}

impl Limiter {
    /// Counts a denial.
    pub fn violation(&mut self, shared: &mut impl Shared, violation: &Violation<'_>, now: MonoMs) {
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
            self.write_violations(shared, fingerprint, one, self.moment(now));
        }
    }

    /// Who has been denied often enough since the last time.
    pub fn take_struck(&mut self) -> Vec<Violator> {
        core::mem::take(&mut self.violations.struck)
    }

    /// Writes down what was gathered.
    pub(in crate::limiter) fn flush_violations(&mut self, shared: &mut impl Shared, now: Now) {
        for (fingerprint, one) in core::mem::take(&mut self.violations.gathered) {
            self.write_violations(shared, fingerprint, one, now);
        }
    }

    fn write_violations(&mut self, shared: &mut impl Shared, fingerprint: u64, one: Gathered, now: Now) {
        let change = |entry: &mut Entry, at: &Position| {
            entry.limit = one.most;
            entry.charge(one.count, now.mono);
            (entry.used().effective(at) >= one.most, true)
        };
        let subject = Subject { fingerprint, key: Some(&one.key), make: Make::Always };
        // Where others always changed the table first, these few are not counted.
        let Ok(done) = self.table.transact(shared, subject, now, &mut self.stats, change) else { return };
        self.note_cells(&done.entry, now.mono);
        // In an overflow cell others' denials count too.
        if done.result && !done.overflow && self.violations.struck.len() < MAX_VIOLATORS {
            self.violations.struck.push(Violator { rule: one.rule, key: one.key });
        }
    }
}
