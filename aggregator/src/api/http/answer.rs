//! The responses to checks.
//!
//! ```json
//! {"allowed": true, "decided": true, "limit": 100, "remaining": 42, "reset": 1767225600000}
//! ```

use super::checks::{CheckRequest, OnFailure};
use crate::api::{Answer, LimitCheck};
use crate::telemetry::metrics::ApiResult;
use serde::Serialize;
use weir_core::model::exact::{ChargeResult, Verdict};
use weir_core::model::time::UnixMs;

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// Whether to continue.
    pub allowed: bool,
    /// Whether the limit decided. If not, `allowed` follows from `on_failure` or from another check of the same request.
    pub decided: bool,
    /// The limit that was applied.
    pub limit: u64,
    /// What can still be used now, after this request.
    pub remaining: u64,
    /// In milliseconds of Unix time: of a window, the end of the current cell; of a log or a ledger, when the oldest use no longer counts. Of a
    /// denial, not before `retry_after_ms` has passed.
    pub reset: u64,
    /// Milliseconds until the same cost could pass; only if it was denied and can ever pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// The number of the ledger's transaction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transaction: Option<u64>,
}

/// The result of several checks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// Whether to continue.
    pub allowed: bool,
    /// Whether the limits decided. If not, `allowed` follows from `on_failure`.
    pub decided: bool,
    /// One result for each check, in order.
    pub checks: Vec<Outcome>,
}

impl Checked {
    /// The response to `request`, given the embedded limiter's `answer`.
    pub fn of(request: &CheckRequest, answer: &Answer, now: UnixMs) -> Checked {
        let denied = answer.results.iter().any(|result| matches!(result.verdict, Verdict::Denied { .. }));
        let decided = answer.allowed || denied;
        let goes_on = answer.allowed || !decided && request.on_failure == OnFailure::Allow;
        let outcome =
            |(check, result): (&LimitCheck, &ChargeResult)| Outcome::of(check, result, goes_on, now);
        let checks = request.checks.iter().zip(&answer.results).map(outcome).collect();
        Checked { allowed: goes_on, decided, checks }
    }

    /// The result that metrics count.
    pub(super) fn result(&self, answer: &Answer) -> ApiResult {
        match (answer.allowed, self.decided) {
            (true, _) => ApiResult::Allowed,
            (false, true) => ApiResult::Denied,
            (false, false) => ApiResult::Undecided,
        }
    }
}

impl Outcome {
    fn of(check: &LimitCheck, result: &ChargeResult, goes_on: bool, now: UnixMs) -> Outcome {
        let (decided, retry_after_ms) = match result.verdict {
            Verdict::Undecided | Verdict::Untried => (false, None),
            Verdict::Allowed => (true, None),
            Verdict::Denied { retry_after_ms } => (true, retry_after_ms),
        };
        // Live control may have replaced the limit of one that was decided.
        let is_stated = result.verdict == Verdict::Undecided && check.algorithm.zone().is_none();
        let limit = if is_stated { check.limit } else { result.limit };
        Outcome {
            allowed: result.is_allowed() || goes_on,
            decided,
            limit,
            remaining: result.remaining,
            // A denied caller that waits for the reset may pass then.
            reset: now.0.saturating_add(result.reset_ms.max(retry_after_ms.unwrap_or_default())),
            retry_after_ms,
            transaction: result.transaction,
        }
    }
}
