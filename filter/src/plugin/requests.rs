//! The requests of which a plugin keeps something: those that wait, and allowed ones whose responses get headers.

use crate::responses::Client;
use std::collections::BTreeMap;
use weir_core::limiter::{Budget, ExactDetails};

/// Most allowed requests that wait for their response headers; further responses get no headers of the filter.
const MAX_TRACKED: usize = 16_384;

/// The requests of a plugin, by their contexts.
pub(super) struct Requests {
    paused: BTreeMap<u32, Paused>,
    allowed: BTreeMap<u32, Allowed>,
    /// Whether Envoy calls this module with response headers.
    has_response_callback: bool,
}

/// A request that waits: the rules that apply, the format of its response, and its identifiers.
pub(super) struct Paused {
    pub(super) applied: Vec<Applied>,
    pub(super) client: Client,
    /// See [`Bans::accused`](weir_core::bans::making::Bans::accused).
    pub(super) accused: Vec<u8>,
}

/// A rule that is decided together with a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Applied {
    pub(super) rule: u16,
    pub(super) shadow: bool,
    /// The limit of this identifier; 0 for a ledger.
    pub(super) limit: u64,
}

/// The values for the headers of an allowed request's response.
pub(super) struct Allowed {
    /// What is left of the rules that clients see.
    pub(super) budgets: Vec<Budget>,
    pub(super) exact: ExactDetails,
}

impl Requests {
    pub(super) fn new(has_response_callback: bool) -> Requests {
        Requests { paused: BTreeMap::new(), allowed: BTreeMap::new(), has_response_callback }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.paused.is_empty() && self.allowed.is_empty()
    }

    /// Whether a request waits.
    pub(super) fn has_paused(&self) -> bool {
        !self.paused.is_empty()
    }

    pub(super) fn pause(&mut self, context: u32, paused: Paused) {
        self.paused.insert(context, paused);
    }

    /// Removes a request that waits. `None` if it has ended.
    pub(super) fn take_paused(&mut self, context: u32) -> Option<Paused> {
        self.paused.remove(&context)
    }

    /// Keeps the values for an allowed request's response headers, if there are any.
    pub(super) fn allow(&mut self, context: u32, allowed: Allowed) {
        let Allowed { budgets, exact } = &allowed;
        let has_headers =
            !budgets.is_empty() || !exact.undecided.is_empty() || !exact.transactions.is_empty();
        if has_headers && self.has_response_callback && self.allowed.len() < MAX_TRACKED {
            self.allowed.insert(context, allowed);
        }
    }

    /// The budgets that an allowed request's response will state.
    pub(super) fn budgets(&mut self, context: u32) -> &mut [Budget] {
        match self.allowed.get_mut(&context) {
            Some(allowed) => &mut allowed.budgets,
            None => &mut [],
        }
    }

    pub(super) fn take_allowed(&mut self, context: u32) -> Option<Allowed> {
        self.allowed.remove(&context)
    }

    /// Removes a request that has ended.
    pub(super) fn remove(&mut self, context: u32) {
        self.paused.remove(&context);
        self.allowed.remove(&context);
    }
}
