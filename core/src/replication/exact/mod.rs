//! Exact requests in an aggregator: all charges of a request pass, or none is charged.
//!
//! In reading order:
//!
//! 1. [`request`]: a request, in the order of its calls; [`plan`]: its charges as calls to logs and ledgers, and their results
//!    as decisions.
//!    [`mixed`]: a request under windows too.
//! 2. [`logs`]: calls that charge sliding logs, through the circuit breaker of their store; [`ledger`]: tries of calls to ledgers,
//!    through theirs.
//! 3. [`refund`]: what was charged in vain; [`refunding`]: the calls that refund it; [`later`]: refunds that no request waits
//!    for.
//! 4. [`denials`]: cached denials, so that a flood of denied requests reaches no store; [`timeout`]: how long stores have.
//!
//! Logs are charged before ledgers, all at once. Ledgers are charged one after the other, as each records every attempt.
//! After the first denial nothing more is charged, and what was charged is refunded.
//!
//! [`ExactState`] is what the requests and refunds of one aggregator share. Each of them is a [`Machine`]: its driver makes the
//! call that `next` returns, with the machine's deadline, and hands back the reply.

pub mod denials;
pub mod later;
pub mod ledger;
pub mod logs;
pub mod mixed;
pub mod plan;
pub mod refund;
pub mod refunding;
pub mod request;
mod state;
#[cfg(test)]
mod tests;
pub mod timeout;

pub use state::{Call, Counters, ExactState, Machine, Reply};
