//! For proxies that decide alone and report afterwards: what a window stands at, and the charge of what was spent.

use super::EmbeddedLimiter;
use super::check::LimitCheck;
use super::controlled::find;
use super::windows::Window;
use weir_core::control::{Banned, Found, Scratch};
use weir_core::limiter::Denial;
use weir_core::model::window::Position;
use weir_core::quota::Room;

/// What a check would meet now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Live control exempts the identifier: nothing is denied or counted.
    Exempt,
    /// Live control bans it, for so many milliseconds; `None`: until the ban is lifted.
    Banned(Option<u64>),
    /// Its window, and milliseconds until a request passes: 0 if one passes now, `None` if none ever does.
    Counted(Room, Option<u64>),
}

impl EmbeddedLimiter {
    /// What a request would meet in the check's window, by the local counts and live control. Charges nothing and sends no query. `None` if the
    /// check is invalid, or is no window.
    pub fn standing(&self, check: &LimitCheck) -> Option<Standing> {
        let (found, limit) = self.found(check);
        match found.ban {
            Some(Banned::Until(at)) => {
                return Some(Standing::Banned(Some(at.0.saturating_sub(self.api.now().unix.0))));
            }
            Some(Banned::ForEver) => return Some(Standing::Banned(None)),
            None if found.exempt => return Some(Standing::Exempt),
            None => {}
        }
        let window = Window::of(&LimitCheck { limit, cost: 1, ..check.clone() }, found.epoch, 0).ok()?;
        let at = Position::at(self.api.now().unix, check.duration_ms);
        let (budget, wait_ms) =
            match self.api.with_engine(|engine, now| engine.look(&window.check(0, 0), now)) {
                Ok(budget) => (budget, Some(0)),
                Err(Denial { budget, retry_after_ms, .. }) => (budget, retry_after_ms),
            };
        Some(Standing::Counted(Room { limit: budget.limit, left: budget.remaining, at }, wait_ms))
    }

    /// Charges the cost of a check whatever its limit, as it has been spent already. Returns false if it could not be charged.
    pub fn charge_spent(&self, check: &LimitCheck) -> bool {
        let (found, limit) = self.found(check);
        let Ok(window) = Window::of(&LimitCheck { limit, ..check.clone() }, found.epoch, 0) else {
            return false;
        };
        if check.cost == 0 || found.exempt {
            return true;
        }
        self.api.with_engine(|engine, now| engine.charge_spent(&window.check(0, 0), now))
    }

    /// What live control has for a check, and the limit that applies.
    fn found(&self, check: &LimitCheck) -> (Found, u64) {
        let controls = self.api.services.control.set();
        if controls.is_empty() {
            return (Found::default(), check.limit);
        }
        let found = find(check, &controls, self.api.services.now(), &mut Scratch::default());
        let limit = found.limit_of(check.limit, check.algorithm);
        (found, limit)
    }
}
