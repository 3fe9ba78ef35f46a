//! How the parts of an aggregator come to its state.
//!
//! Leaves to others: locks and clocks (`aggregator`).

use super::RegionState;
use crate::model::time::Now;

/// The way to the state, for one step at a time. Between two steps others may have theirs.
pub trait Access {
    /// Does something at the state, at this moment. Keep it short: everybody waits.
    fn state<R>(&mut self, act: impl FnOnce(&mut RegionState, Now) -> R) -> R;
}

/// Somebody who has the state to himself, at one moment.
#[derive(Debug)]
pub struct Alone<'a> {
    /// The state.
    pub state: &'a mut RegionState,
    /// The moment.
    pub now: Now,
}

impl Access for Alone<'_> {
    fn state<R>(&mut self, act: impl FnOnce(&mut RegionState, Now) -> R) -> R {
        act(self.state, self.now)
    }
}
