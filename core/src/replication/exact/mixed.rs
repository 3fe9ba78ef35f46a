//! A request under exact limits and windows: all of them pass and are charged, or nothing is.
//!
//! Windows that deny without a round trip come first, so that no store is called in vain. They are charged last, because only
//! they cannot be refunded.

use super::request::Request;
use super::state::ExactState;
use crate::model::exact::{ChargeResult, all_allowed};
use crate::region::log::Micros;
use alloc::vec::Vec;

/// A request under exact limits and windows. Its driver does what [`MixedRequest::step`] returns until that is [`Step::Over`].
#[derive(Clone, Debug)]
pub struct MixedRequest {
    request: Request,
    deny_on_failure: bool,
    called: bool,
    allowed: bool,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Begun,
    Peeked,
    Decided,
    Charged(WindowsResult),
    Over,
}

/// What a driver does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Look whether the windows would deny, without a charge. [`MixedRequest::peeked`] follows.
    Peek,
    /// Run [`MixedRequest::request`] to its end.
    Exact,
    /// Charge the windows. [`MixedRequest::charged`] follows.
    Charge,
    /// Nothing more.
    Over,
}

/// What the windows of a request have decided when they were charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowsResult {
    /// All pass and are charged.
    Allowed,
    /// One of them denies, so none is charged.
    Denied,
    /// None denies, but not all are decided.
    Undecided,
}

impl MixedRequest {
    /// A request with the exact charges of `request`. With `deny_on_failure`, it does not pass if a limit is undecided.
    pub fn new(request: Request, deny_on_failure: bool) -> MixedRequest {
        MixedRequest { request, deny_on_failure, called: false, allowed: false, stage: Stage::Begun }
    }

    /// What to do now.
    pub fn step(&mut self, state: &mut ExactState, now: Micros) -> Step {
        match self.stage {
            Stage::Begun => Step::Peek,
            Stage::Peeked => {
                (self.called, self.stage) = (true, Stage::Decided);
                Step::Exact
            }
            Stage::Decided => self.decided(state, now),
            Stage::Charged(windows) => {
                self.concluded(windows, state, now);
                Step::Over
            }
            Stage::Over => Step::Over,
        }
    }

    /// Whether the windows would deny.
    pub fn peeked(&mut self, denied: bool) {
        self.stage = if denied { Stage::Over } else { Stage::Peeked };
    }

    /// The result of the windows.
    pub fn charged(&mut self, windows: WindowsResult) {
        self.stage = Stage::Charged(windows);
    }

    /// Its exact charges.
    pub fn request(&mut self) -> &mut Request {
        &mut self.request
    }

    /// The decision on every exact charge, in order, once it is over. `None` if the windows denied before.
    pub fn results(&self) -> Option<Vec<ChargeResult>> {
        self.called.then(|| self.request.results())
    }

    /// Whether every limit passes, once it is over.
    pub fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// The exact charges are decided. What passed has been refunded already if one of them denies.
    fn decided(&mut self, state: &mut ExactState, now: Micros) -> Step {
        let results = self.request.results();
        if results.iter().any(ChargeResult::is_denied) {
            self.stage = Stage::Over;
        } else if self.deny_on_failure && !all_allowed(&results) {
            self.stage = Stage::Over;
            self.request.overturn(state, now);
        } else {
            return Step::Charge;
        }
        Step::Over
    }

    fn concluded(&mut self, windows: WindowsResult, state: &mut ExactState, now: Micros) {
        self.stage = Stage::Over;
        self.allowed = windows == WindowsResult::Allowed && all_allowed(&self.request.results());
        let goes_on = match windows {
            WindowsResult::Allowed => true,
            WindowsResult::Denied => false,
            WindowsResult::Undecided => !self.deny_on_failure,
        };
        if !goes_on {
            self.request.overturn(state, now);
        }
    }
}
