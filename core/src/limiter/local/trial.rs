//! One item on one entry: the verdict, and what a transaction changes by it.

use super::item::Item;
use super::judge::{Basis, Obstacle, judge};
use super::lease::settle_into;
use super::worker_cache::Slot;
use crate::limiter::check::Check;
use crate::limiter::table::{Entry, Reservation, ReservationKind, Tag};
use crate::model::time::MonoMs;
use crate::model::window::Position;

/// A denial under a higher limit than that of the entry passes it on at most once in this time. A lower limit is passed on at once.
pub(super) const RAISED_MS: u64 = 1_000;

/// Result of a transaction on an entry. `T` is what was done about an admitted cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judged<T, Q> {
    pub(super) verdict: Result<T, Obstacle<Q>>,
    /// Remaining budget, without a lease that was taken in the same transaction.
    pub(super) remaining: u64,
    /// The position in the entry's cells.
    pub(super) at: Position,
    /// The denial begins strict mode.
    pub(super) begins_strict: bool,
    /// Another limit than before applies, which the region is to receive.
    pub(super) limit_changed: bool,
    /// The limit rises while other workers have leases under the former one.
    pub(super) recalls: bool,
}

/// One item that is decided on one entry.
pub(super) struct Trial<'a, 'c, B> {
    pub(super) item: &'a Item,
    pub(super) check: &'a Check<'c>,
    pub(super) basis: &'a B,
    /// Owner of the worker's lease.
    pub(super) lease_tag: Tag,
    pub(super) now: MonoMs,
}

impl<B: Basis> Trial<'_, '_, B> {
    /// Judges the item and charges nothing. True if the entry has changed.
    pub(super) fn look(&self, entry: &mut Entry, at: &Position) -> (Judged<(), B::Query>, bool) {
        let before = limits(entry);
        let (verdict, is_lowered) = self.judge(entry, at);
        (self.judged(verdict.map(|_| ()), entry, at, before), is_lowered)
    }

    /// Judges the item; if it is admitted, `admit` charges it, given what is left after it. True if the entry has changed.
    pub(super) fn charge<T>(
        &self,
        entry: &mut Entry,
        at: &Position,
        slot: Option<&Slot>,
        admit: impl FnOnce(&mut Entry, u64) -> Result<T, Obstacle<B::Query>>,
    ) -> (Judged<T, B::Query>, bool) {
        let is_own = self.is_own(entry);
        let is_settled = is_own && settle_into(entry, slot, self.lease_tag, self.now);
        let before = limits(entry);
        let (verdict, is_lowered) = self.judge(entry, at);
        let verdict = verdict.and_then(|spare| {
            entry.apply(self.item.limit, self.item.configured);
            admit(entry, spare)
        });
        let mut kept = is_settled || is_lowered || verdict.is_ok();
        // A shadow rule's denial does not count as one.
        let counts = matches!(verdict, Err(Obstacle::Deny { .. })) && !self.item.shadow;
        let begins_strict = counts && entry.strict_until <= self.now;
        if counts {
            let applied = is_own.then_some((self.item.limit, self.item.configured));
            kept |= note_denial(entry, at, applied, self.now);
        }
        (Judged { begins_strict, ..self.judged(verdict, entry, at, before) }, kept)
    }

    /// Whether it is the item's own entry. The worker cache does not apply to an overflow cell: a lease could not be found again by the
    /// key's fingerprint, and the region's acknowledgement of the key does not cover the cell.
    pub(super) fn is_own(&self, entry: &Entry) -> bool {
        entry.fingerprint == self.item.fingerprint
    }

    /// What is left after the item, if it is admitted, and whether its lower limit now applies to the entry.
    fn judge(&self, entry: &mut Entry, at: &Position) -> (Result<u64, Obstacle<B::Query>>, bool) {
        let attempt = self.item.attempt();
        let verdict = judge(entry, at, attempt, &self.check.policy, self.basis, self.now);
        let is_denied = matches!(verdict, Err(Obstacle::Deny { .. }));
        let is_lower = self.is_own(entry) && !self.item.peeks && lowers(entry, self.item.limit, is_denied);
        if is_lower {
            entry.apply(self.item.limit, self.item.configured);
        }
        (verdict, is_lower)
    }

    fn judged<T>(
        &self,
        verdict: Result<T, Obstacle<B::Query>>,
        entry: &Entry,
        at: &Position,
        before: (u64, Option<u64>),
    ) -> Judged<T, B::Query> {
        let limit_changed = self.is_own(entry) && limits(entry) != before;
        let has_lease =
            |held: &Reservation| held.tag.kind == ReservationKind::Lease && held.tag != self.lease_tag;
        let is_raised = limit_changed && entry.limit > before.0;
        let recalls = is_raised && entry.reservations.iter().any(has_lease);
        let used = match verdict {
            Err(Obstacle::Deny { .. }) => entry.used(),
            _ => entry.used_and_reserved(),
        };
        let remaining = used.remaining(at, self.item.limit);
        Judged { verdict, remaining, at: *at, begins_strict: false, limit_changed, recalls }
    }
}

/// The limit of an entry, and the one without live control.
fn limits(entry: &Entry) -> (u64, Option<u64>) {
    (entry.limit, entry.configured)
}

/// Whether a limit is lower than the one that the region has from this process. Where the process has used nothing, the region has none,
/// and a denial shows which applies.
fn lowers(entry: &Entry, limit: u64, is_denied: bool) -> bool {
    let is_unused = entry.limit == 0 && entry.charged == MonoMs(0);
    limit < entry.limit || (is_unused && limit > 0 && is_denied)
}

/// Notes a denial under a limit, which the entry takes over with the end of strict mode. Returns true if the entry has changed.
fn note_denial(entry: &mut Entry, at: &Position, applied: Option<(u64, Option<u64>)>, now: MonoMs) -> bool {
    let is_higher = applied.is_some_and(|(limit, _)| entry.limit < limit);
    let moves = note_strict(entry, at, is_higher, now);
    if let Some((limit, configured)) = applied.filter(|_| moves) {
        entry.apply(limit, configured);
    }
    moves
}

/// Begins or extends strict mode: for a window's length after a denial the local count alone does not admit. If the denied limit
/// `is_higher` than the entry's, it moves at least once in [`RAISED_MS`].
fn note_strict(entry: &mut Entry, at: &Position, is_higher: bool, now: MonoMs) -> bool {
    let window_ms = entry.window_ms(at.cell_ms);
    let until = now.after(window_ms);
    let pause_ms = if is_higher { RAISED_MS.min(window_ms / 8) } else { window_ms / 8 };
    let moves = until.since(entry.strict_until) > pause_ms;
    if moves {
        entry.strict_until = until;
    }
    moves
}
