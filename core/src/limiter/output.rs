//! What a limiter has its driver do.

use super::check::{Outcome, ShadowOutcome};
use super::local::violations::Violator;
use crate::model::wire;

/// What a limiter's driver does.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Cancel the stream. The limiter has noted its end. The next one may reach another aggregator.
    Close(CloseReason),
    /// Open a stream. If that fails, call [`Limiter::on_closed`].
    Open,
    /// Send a frame on the stream. If that fails, cancel it and call [`Limiter::on_closed`].
    Send(wire::FilterFrame),
    /// A request that waited is decided.
    Resolve {
        /// The request.
        request: u64,
        /// Its outcome.
        outcome: Outcome,
    },
    /// An exact shadow rule of a request is decided.
    Shadow {
        /// The request.
        request: u64,
        /// The rule.
        rule: u16,
        /// Its outcome.
        outcome: ShadowOutcome,
    },
    /// The violations of an identifier have reached the threshold of its rule.
    Struck(Violator),
}

/// Why a stream is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// It was opened and not accepted.
    Unanswered,
    /// Pings are answered, but an old report is not acknowledged.
    Unacknowledged,
    /// The worker has been idle.
    Idle,
}
