//! Use that was decided elsewhere, or cannot be undone: it is charged beyond a limit too.

use super::Local;
use super::lease::{NewLease, settle_into};
use super::transact::{Make, Subject};
use super::worker_cache::Slot;
use crate::limiter::check::Check;
use crate::limiter::given_back::CellCount;
use crate::limiter::table::{Entry, ReservationKind};
use crate::model::key::fingerprint;
use crate::model::shared::Shared;
use crate::model::time::Now;
use crate::model::window::Position;

impl Local {
    /// See [`Limiter::charge_spent`](crate::limiter::Limiter::charge_spent).
    pub(in crate::limiter) fn charge_spent(
        &mut self,
        shared: &mut impl Shared,
        check: &Check<'_>,
        now: Now,
    ) -> bool {
        self.spend_where(shared, check, now, |_, _| true).is_some()
    }

    /// See [`Limiter::charge_unless_exceeded`](crate::limiter::Limiter::charge_unless_exceeded).
    pub(in crate::limiter) fn charge_unless_exceeded(
        &mut self,
        shared: &mut impl Shared,
        check: &Check<'_>,
        now: Now,
    ) -> Option<bool> {
        let limit = self.item(0, check).limit;
        self.spend_where(shared, check, now, |entry, at| entry.used().admits(at, 0, limit))
    }

    /// See [`Limiter::current_cell`](crate::limiter::Limiter::current_cell).
    pub(in crate::limiter) fn current_cell(
        &mut self,
        shared: &mut impl Shared,
        key: &[u8],
        cell_ms: u64,
        now: Now,
    ) -> CellCount {
        let fingerprint = fingerprint(key, self.table.secret);
        let slot = self.worker_cache.get(fingerprint).copied();
        let subject = Subject { fingerprint, key: Some(key), make: Make::Look };
        let looked = self.table.transact(shared, subject, now, &mut self.stats, |_, at| (at.sequence, false));
        let Ok(looked) = looked else {
            return CellCount { sequence: Position::at(now.unix, cell_ms).sequence, counted: 0 };
        };
        let leased = slot.filter(|slot| slot.lease.amount > 0 && slot.lease.sequence == looked.result);
        let leased = leased.map_or(0, |slot| slot.lease.spent);
        let counted = looked.entry.current.used().saturating_add(leased);
        CellCount { sequence: looked.result, counted }
    }

    fn spend_where(
        &mut self,
        shared: &mut impl Shared,
        check: &Check<'_>,
        now: Now,
        charges: impl Fn(&Entry, &Position) -> bool,
    ) -> Option<bool> {
        let item = self.item(0, check);
        let slot: Option<Slot> = self.worker_cache.get(item.fingerprint).copied();
        let tag = self.tag(ReservationKind::Lease);
        let change = |entry: &mut Entry, at: &Position| {
            // What this worker has spent of its lease counts too.
            let is_own = entry.fingerprint == item.fingerprint;
            let settled = is_own && settle_into(entry, slot.as_ref(), tag, now.mono);
            let charged = charges(entry, at);
            if charged {
                entry.apply(item.limit, item.configured);
                entry.charge(item.cost, now.mono);
            }
            ((charged, settled, *at), charged || settled)
        };
        let subject = Subject { fingerprint: item.fingerprint, key: Some(check.key), make: Make::Always };
        let done = self.table.transact(shared, subject, now, &mut self.stats, change).ok()?;
        let (charged, settled, at) = done.result;
        match charged {
            true => self.note_applied(&done.entry, now),
            false => self.note_cells(&done.entry, now.mono),
        }
        if settled {
            let spare = done.entry.used_and_reserved().remaining(&at, item.limit);
            self.put_lease(item.fingerprint, NewLease { amount: 0, spare }, &done.entry, &at, now.mono);
        }
        Some(charged)
    }
}
