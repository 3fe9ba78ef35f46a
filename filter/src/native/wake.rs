//! When the module's thread looks for ticks that are due.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use weir_core::model::time::MonoMs;

static PLAN: Mutex<Plan> = Mutex::new(Plan { wanted: MonoMs(u64::MAX) });
static CHANGED: Condvar = Condvar::new();

struct Plan {
    /// The earliest tick that was asked for since the thread looked.
    wanted: MonoMs,
}

fn lock() -> MutexGuard<'static, Plan> {
    PLAN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has the thread look at this time, or before.
pub fn at(due: MonoMs) {
    let mut plan = lock();
    if due.0 < plan.wanted.0 {
        plan.wanted = due;
        CHANGED.notify_one();
    }
}

/// Begins a look: what is asked for from now on is for the next one.
pub fn begin() {
    lock().wanted = MonoMs(u64::MAX);
}

/// Waits until `next`, or until an earlier tick that is asked for. `now` is the present time.
pub fn wait(next: Option<MonoMs>, now: impl Fn() -> MonoMs) {
    let mut plan = lock();
    if let Some(next) = next {
        plan.wanted = MonoMs(plan.wanted.0.min(next.0));
    }
    loop {
        let left = plan.wanted.0.saturating_sub(now().0);
        if left == 0 {
            return;
        }
        let left = Duration::from_millis(left.min(3_600_000));
        let (again, _) = CHANGED.wait_timeout(plan, left).unwrap_or_else(PoisonError::into_inner);
        plan = again;
    }
}
