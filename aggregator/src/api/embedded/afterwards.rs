//! Use that was decided elsewhere, or cannot be undone: what a window stands at, the charge of what was spent, and what callers give back.

use super::EmbeddedLimiter;
use super::check::LimitCheck;
use super::controlled::{Counted, find};
use super::windows::Window;
use weir_core::control::{Banned, Found, Scratch};
use weir_core::limiter::{Check, Denial};
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
    /// check is invalid, or is no window, or while another aggregator may serve the region.
    pub fn standing(&self, check: &LimitCheck) -> Option<Standing> {
        if !self.api.services.serves() {
            return None;
        }
        let window = match self.window(&LimitCheck { cost: 1, ..check.clone() })? {
            Ok(window) => window,
            Err(standing) => return Some(standing),
        };
        let at = Position::at(self.api.now().unix, check.duration_ms);
        let (budget, wait_ms) =
            match self.api.with_engine(|engine, now| engine.look(&window.check(0, 0), now)) {
                Ok(budget) => (budget, Some(0)),
                Err(Denial { budget, retry_after_ms, .. }) => (budget, retry_after_ms),
            };
        Some(Standing::Counted(Room { limit: budget.limit, left: budget.remaining, at }, wait_ms))
    }

    /// Milliseconds until the check passes, at least `from_ms`, by the local counts and live control, if nothing more is used. `None` if it
    /// never does, or is invalid.
    pub fn wait_ms(&self, check: &LimitCheck, from_ms: u64) -> Option<u64> {
        match self.window(check)? {
            Ok(window) => {
                self.api.with_engine(|engine, now| engine.wait_ms(&window.check(0, 0), from_ms, now))
            }
            Err(Standing::Banned(ban_ms)) => ban_ms.map(|ban_ms| ban_ms.max(from_ms)),
            Err(_) => Some(from_ms),
        }
    }

    /// The window of a check under live control, or what that decides alone. `None` if the check is invalid.
    fn window(&self, check: &LimitCheck) -> Option<Result<Window, Standing>> {
        let (found, limit) = self.found(check);
        match found.ban {
            Some(Banned::Until(at)) => {
                let left_ms = at.0.saturating_sub(self.api.now().unix.0);
                return Some(Err(Standing::Banned(Some(left_ms))));
            }
            Some(Banned::ForEver) => return Some(Err(Standing::Banned(None))),
            None if found.exempt => return Some(Err(Standing::Exempt)),
            None => {}
        }
        let limited = LimitCheck { limit, ..check.clone() };
        Window::of(&limited, Counted::of(check, &found), 0).ok().map(Ok)
    }

    /// Charges the cost of a check whatever its limit, as it has been spent already. Returns false if it could not be charged.
    pub fn charge_spent(&self, check: &LimitCheck) -> bool {
        let (found, limit) = self.found(check);
        let Ok(window) = Window::of(&LimitCheck { limit, ..check.clone() }, Counted::of(check, &found), 0)
        else {
            return false;
        };
        if check.cost == 0 || found.exempt {
            return true;
        }
        self.api.with_engine(|engine, now| engine.charge_spent(&window.check(0, 0), now))
    }

    /// Gives the cost of a window's check back: as much of the next costs of its key passes uncharged, until the cell ends, and at most what
    /// counts in it. Returns how much of it is kept.
    pub fn give_back(&self, check: &LimitCheck) -> u64 {
        let (found, limit) = self.found(check);
        let Ok(window) = Window::of(&LimitCheck { limit, ..check.clone() }, Counted::of(check, &found), 0)
        else {
            return 0;
        };
        if found.exempt {
            return 0;
        }
        self.api.engine.lock().give_back(&window.check(0, 0), self.api.mono())
    }

    /// Charges a window's check in full, though it does not fit, unless its limit is exceeded already. `None` if it could not be charged.
    pub fn charge_unless_exceeded(&self, check: &LimitCheck) -> Option<bool> {
        let (found, limit) = self.found(check);
        let window =
            Window::of(&LimitCheck { limit, ..check.clone() }, Counted::of(check, &found), 0).ok()?;
        if found.exempt || found.ban.is_some() {
            return Some(found.exempt);
        }
        let (check, now) = (window.check(0, 0), self.api.mono());
        let charged = {
            let mut engine = self.api.engine.lock();
            let taken = engine.take_given(&check, now);
            let rest = Check { cost: check.cost.saturating_sub(taken.hits), ..check };
            let charged = match taken.hits {
                0 => engine.charge_unless_exceeded(&rest, now),
                _ if engine.is_exceeded(&check, &taken, now) => Some(false),
                _ => (rest.cost == 0 || engine.charge_spent(&rest, now)).then_some(true),
            };
            if charged != Some(true) {
                engine.return_taken(taken, now);
            }
            charged
        };
        self.api.wake.notify_one();
        charged
    }

    /// What live control has for a check, and the limit that applies.
    fn found(&self, check: &LimitCheck) -> (Found, u64) {
        let book = self.api.services.control.book();
        let controls = book.controls();
        if controls.is_empty() {
            return (Found::default(), check.limit);
        }
        let found = find(check, controls, self.api.services.now(), &mut Scratch::default());
        let limit = found.limit_of(check.limit, check.algorithm);
        (found, limit)
    }
}
