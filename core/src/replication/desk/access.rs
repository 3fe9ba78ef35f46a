//! How the parts of an aggregator come to its desk.
//!
//! Leaves to others: locks and clocks (`aggregator`).

use super::Desk;
use crate::model::time::Now;

/// The way to the desk, for one step at a time. Between two steps others may have theirs.
pub trait Access {
    /// Does something at the desk, at this moment. Keep it short: everybody waits.
    fn desk<R>(&mut self, act: impl FnOnce(&mut Desk, Now) -> R) -> R;
}

/// Somebody who has the desk to himself, at one moment.
#[derive(Debug)]
pub struct Alone<'a> {
    /// The desk.
    pub desk: &'a mut Desk,
    /// The moment.
    pub now: Now,
}

impl Access for Alone<'_> {
    fn desk<R>(&mut self, act: impl FnOnce(&mut Desk, Now) -> R) -> R {
        act(self.desk, self.now)
    }
}
