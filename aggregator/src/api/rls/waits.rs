//! When a call may be tried again.
//!
//! A call that is tried again decides all of its limits anew: also those that passed, and those whose own hits this call has charged. So a
//! denied client waits for the whole call. Waits are whole seconds, rounded up, as clients are shown no fractions.

use super::call::Part;
use crate::api::embedded::{CountedKey, EmbeddedLimiter, LimitCheck};
use std::collections::BTreeSet;

/// The shortest wait that is stated.
const LEAST_S: u64 = 1;

/// What each limit of a call needs for the call to pass when it is tried again.
pub(super) struct Waits<'a> {
    embedded: &'a EmbeddedLimiter,
    needed: Vec<Needed>,
    /// The call is denied if all of its quotas are over.
    quotas_deny: bool,
}

/// A limit that is tried again.
#[derive(Clone, Copy)]
pub(super) struct Tried<'a> {
    /// Its position among the limits of the call.
    pub(super) at: usize,
    /// The position of its descriptor.
    pub(super) descriptor: usize,
    /// How it takes part, with the settings that hold for all.
    pub(super) part: Part,
    pub(super) check: &'a LimitCheck,
}

/// What a limit needs.
struct Needed {
    at: usize,
    descriptor: usize,
    part: Part,
    /// Its cost is what is to fit.
    check: LimitCheck,
}

impl<'a> Waits<'a> {
    /// The waits of a call with these limits.
    pub(super) fn of(embedded: &'a EmbeddedLimiter, limits: &[Tried<'_>], quotas_deny: bool) -> Waits<'a> {
        let keyed: Vec<_> = limits.iter().map(|limit| (*limit, limit.check.counted_key())).collect();
        let counting = keyed.iter().filter(|(limit, _)| !limit.part.refund);
        let needed = counting.map(|keyed_limit| {
            let (limit, _) = keyed_limit;
            let check = LimitCheck { cost: cost(keyed_limit, &keyed), ..limit.check.clone() };
            Needed { at: limit.at, descriptor: limit.descriptor, part: limit.part, check }
        });
        Waits { embedded, needed: needed.collect(), quotas_deny }
    }

    /// Seconds until a call that was denied passes; `None` if it never does.
    pub(super) fn of_call(&self) -> Option<u64> {
        let mut wait_s = LEAST_S;
        loop {
            let from_ms = wait_s.saturating_mul(1_000);
            let wait = |needed: &Needed| self.embedded.wait_ms(&needed.check, from_ms);
            let alone = self.needed.iter().filter(|needed| needed.part.denies_alone()).map(wait);
            let longest = alone.collect::<Option<Vec<u64>>>()?.into_iter().max().unwrap_or(from_ms);
            let quotas = || self.needed.iter().filter(|needed| needed.part.quota);
            let of_descriptor = |descriptor: usize| {
                let waits = quotas().filter(|needed| needed.descriptor == descriptor).map(wait);
                waits.collect::<Option<Vec<u64>>>()?.into_iter().max()
            };
            let descriptors: BTreeSet<usize> = quotas().map(|needed| needed.descriptor).collect();
            let first = match self.quotas_deny {
                true => descriptors.into_iter().filter_map(of_descriptor).min()?,
                false => from_ms,
            };
            // What was given back may end before another limit passes, so limits are read again from the later moment on.
            let next = longest.max(first).div_ceil(1_000);
            if next == wait_s {
                return Some(wait_s);
            }
            wait_s = next;
        }
    }

    /// Seconds until the limit at this position passes; `None` if it never does.
    pub(super) fn of_limit(&self, at: usize) -> Option<u64> {
        let needed = self.needed.iter().find(|needed| needed.at == at)?;
        let wait_ms = self.embedded.wait_ms(&needed.check, LEAST_S * 1_000)?;
        Some(wait_ms.div_ceil(1_000))
    }
}

/// What has to fit at once for this limit to pass: its hits, and what the same call charges to its key before or with it.
fn cost((limit, key): &(Tried<'_>, CountedKey), limits: &[(Tried<'_>, CountedKey)]) -> u64 {
    let is_together = |part: Part| part.denies_alone() && !part.own_hits;
    let adds = |other: &Tried<'_>| match other.part {
        Part { refund: true, .. } => false,
        Part { own_hits: true, .. } => !limit.part.own_hits || other.at <= limit.at,
        part => other.at == limit.at || (is_together(part) && is_together(limit.part)),
    };
    let same = limits.iter().filter(|(other, of)| of == key && adds(other));
    same.fold(0, |sum: u64, (other, _)| sum.saturating_add(other.check.cost))
}
