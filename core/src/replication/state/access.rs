//! How the parts of an aggregator access its state.

use super::RegionState;
use crate::model::time::Now;

/// Access to the state, for one step at a time. Between two steps other parts may access it.
pub trait Access {
    /// Runs `act` on the state at the present moment. It must be short, since all other parts wait meanwhile.
    fn state<R>(&mut self, act: impl FnOnce(&mut RegionState, Now) -> R) -> R;
}

/// Exclusive access to the state at one moment.
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
