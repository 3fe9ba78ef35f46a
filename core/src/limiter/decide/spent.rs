//! Use that was decided elsewhere and is counted here afterwards.

use crate::limiter::Limiter;
use crate::limiter::check::Check;
use crate::limiter::table::Entry;
use crate::limiter::transact::{Make, Subject};
use crate::model::shared::Shared;
use crate::model::time::MonoMs;
use crate::model::window::Position;

impl Limiter {
    /// Charges the cost of a window's check in the current cell, whatever its limit, because it has been spent already. Returns false if the
    /// table could not be changed; nothing is charged then.
    pub fn charge_spent(&mut self, shared: &mut impl Shared, check: &Check<'_>, now: MonoMs) -> bool {
        self.serves = true;
        let now = self.enter(shared, now);
        let item = self.item(0, check);
        let change = |entry: &mut Entry, _: &Position| {
            entry.limit = item.limit;
            entry.charge(item.cost, now.mono);
            ((), true)
        };
        let subject = Subject { fingerprint: item.fingerprint, key: Some(check.key), make: Make::Always };
        let charged = self.table.transact(shared, subject, now, &mut self.stats, change);
        if let Ok(done) = &charged {
            self.note_applied(&done.entry, now);
        }
        charged.is_ok()
    }
}
