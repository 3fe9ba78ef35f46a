//! The messages of the rate-limit quota service.

use crate::api::envoy::envoy::service::rate_limit_quota::v3 as service;
use crate::api::envoy::envoy::r#type::v3 as types;
use service::rate_limit_quota_response::bucket_action;

pub use bucket_action::BucketAction as Action;
pub use bucket_action::{AbandonAction as Abandon, QuotaAssignmentAction as Assignment};
pub use service::BucketId;
pub use service::RateLimitQuotaResponse as QuotaResponse;
pub use service::RateLimitQuotaUsageReports as UsageReports;
pub use service::rate_limit_quota_response::BucketAction;
pub use service::rate_limit_quota_usage_reports::BucketQuotaUsage as Usage;
pub use types::rate_limit_strategy::{BlanketRule, Strategy};
pub use types::{RateLimitStrategy, TokenBucket};

/// gRPC service name.
pub const SERVICE: &str = "envoy.service.rate_limit_quota.v3.RateLimitQuotaService";
/// gRPC method name.
pub const METHOD: &str = "StreamRateLimitQuotas";

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;
    use prost_types::Duration;

    /// The bytes as another implementation of these messages encodes them.
    #[test]
    fn messages_are_as_others_encode_them() {
        let bytes =
            b"\x0a\x04edge\x12\x16\x0a\x0c\x0a\x0a\x0a\x04user\x12\x02\xffb\x12\x02\x08\x05\x18\x07\x20\x09";
        let bucket_id = BucketId { bucket: [("user".to_owned(), b"\xffb".to_vec())].into() };
        let usage = Usage {
            bucket_id: Some(bucket_id.clone()),
            time_elapsed: Some(Duration { seconds: 5, nanos: 0 }),
            num_requests_allowed: 7,
            num_requests_denied: 9,
        };
        let reports = UsageReports { domain: "edge".into(), bucket_quota_usages: vec![usage] };
        assert_eq!(UsageReports::decode(bytes.as_slice()), Ok(reports));

        let strategy = |strategy| {
            let rate_limit_strategy = Some(RateLimitStrategy { strategy: Some(strategy) });
            let assignment_time_to_live = Some(Duration { seconds: 15, nanos: 0 });
            Action::QuotaAssignmentAction(Assignment { assignment_time_to_live, rate_limit_strategy })
        };
        let bucket = TokenBucket {
            max_tokens: 3,
            tokens_per_fill: Some(4),
            fill_interval: Some(Duration { seconds: 30, nanos: 0 }),
        };
        let actions = [
            (
                strategy(Strategy::BlanketRule(BlanketRule::AllowAll as i32)),
                &b"\x12\x08\x12\x02\x08\x0f\x1a\x02\x08\x00"[..],
            ),
            (
                strategy(Strategy::TokenBucket(bucket)),
                b"\x12\x12\x12\x02\x08\x0f\x1a\x0c\x1a\x0a\x08\x03\x12\x02\x08\x04\x1a\x02\x08\x1e",
            ),
            (Action::AbandonAction(Abandon {}), b"\x1a\x00"),
        ];
        for (action, expected) in actions {
            let action = BucketAction { bucket_id: None, bucket_action: Some(action) };
            assert_eq!(action.encode_to_vec(), expected, "{action:?}");
        }
    }
}
