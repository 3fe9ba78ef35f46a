//! What an Envoy is to do with a bucket, as the actions of a response.

use super::bucket::Bucket;
use super::wire::{
    self, Abandon, Assignment, BlanketRule, BucketAction, RateLimitStrategy, Strategy, TokenBucket,
};
use prost_types::Duration;
use weir_core::quota::{Allotment, FILL_MS, VALID_MS};

/// Longest time for which a denial is valid.
const LONGEST_DENIAL_MS: u64 = 24 * 3_600 * 1_000;

/// How a bucket's requests are decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// All pass.
    Allow,
    /// None passes, for so many milliseconds at least, as far as is known; `None`: without an end.
    Deny(Option<u64>),
    /// A bucket of tokens.
    Tokens(u64),
    /// A bucket that receives tokens in so many seconds.
    Rate {
        /// At least 1.
        tokens: u64,
        /// At least 1.
        seconds: u64,
    },
}

impl Action {
    /// The action for an allotment, if a request passes in `wait_ms`.
    pub fn of(allotment: Allotment, wait_ms: Option<u64>) -> Action {
        match allotment {
            Allotment::Nothing => Action::Deny(wait_ms),
            Allotment::Tokens(tokens) => Action::Tokens(tokens),
            Allotment::Rate { tokens, seconds } => Action::Rate { tokens, seconds },
        }
    }

    /// Whether an Envoy that has this action has `other` too, but for the time for which it is valid.
    pub fn is_like(&self, other: &Action) -> bool {
        matches!((self, other), (Action::Deny(_), Action::Deny(_))) || self == other
    }

    /// How long it is valid, in milliseconds. A denial lasts until a request may pass, so that no Envoy lets a used-up bucket pass because the
    /// aggregator is unavailable.
    pub fn valid_ms(&self) -> u64 {
        match self {
            Action::Deny(wait_ms) => wait_ms.unwrap_or(LONGEST_DENIAL_MS).clamp(VALID_MS, LONGEST_DENIAL_MS),
            _ => VALID_MS,
        }
    }

    /// Whether a former bucket of tokens has to be removed first for this one to begin anew. Envoy 1.40 keeps the tokens of a bucket that has the
    /// same size and number of tokens, and of another one the same part of the size.
    pub fn begins_anew(&self, former: Option<&Action>) -> bool {
        match (former, self) {
            (Some(Action::Rate { tokens: former, .. }), Action::Rate { tokens, .. }) => former == tokens,
            _ => matches!(self, Action::Tokens(_)),
        }
    }

    /// The label of a metric.
    pub fn label(&self) -> &'static str {
        match self {
            Action::Allow => "allow",
            Action::Deny(_) => "deny",
            Action::Tokens(_) => "tokens",
            Action::Rate { .. } => "rate",
        }
    }

    /// Appends the actions for a bucket; `anew` is whether a former bucket of tokens is removed first.
    pub fn write(&self, bucket: &Bucket, anew: bool, actions: &mut Vec<BucketAction>) {
        if anew {
            actions.push(assignment(bucket, blanket(BlanketRule::DenyAll), VALID_MS));
        }
        let strategy = match *self {
            Action::Allow => blanket(BlanketRule::AllowAll),
            Action::Deny(_) => blanket(BlanketRule::DenyAll),
            Action::Tokens(tokens) => token_bucket(tokens, tokens, FILL_MS / 1_000),
            Action::Rate { tokens, seconds } => {
                token_bucket(tokens.div_ceil(seconds.max(1)), tokens, seconds)
            }
        };
        actions.push(assignment(bucket, strategy, self.valid_ms()));
    }
}

/// The action that removes a bucket from its Envoy.
pub fn abandon(bucket: &Bucket) -> BucketAction {
    BucketAction {
        bucket_id: Some(bucket.id().clone()),
        bucket_action: Some(wire::Action::AbandonAction(Abandon {})),
    }
}

fn assignment(bucket: &Bucket, strategy: Strategy, valid_ms: u64) -> BucketAction {
    let rate_limit_strategy = Some(RateLimitStrategy { strategy: Some(strategy) });
    let assignment_time_to_live = Some(seconds(valid_ms.div_ceil(1_000)));
    let action =
        wire::Action::QuotaAssignmentAction(Assignment { assignment_time_to_live, rate_limit_strategy });
    BucketAction { bucket_id: Some(bucket.id().clone()), bucket_action: Some(action) }
}

fn blanket(rule: BlanketRule) -> Strategy {
    Strategy::BlanketRule(rule as i32)
}

fn token_bucket(size: u64, tokens: u64, interval_s: u64) -> Strategy {
    let bounded = |tokens: u64| u32::try_from(tokens).unwrap_or(u32::MAX);
    Strategy::TokenBucket(TokenBucket {
        max_tokens: bounded(size),
        tokens_per_fill: Some(bounded(tokens)),
        fill_interval: Some(seconds(interval_s)),
    })
}

fn seconds(seconds: u64) -> Duration {
    Duration { seconds: i64::try_from(seconds).unwrap_or(i64::MAX), nanos: 0 }
}
