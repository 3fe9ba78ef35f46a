//! The messages of the rate-limit quota service as Envoy defines them, with only the fields that are used here.
//!
//! Sources: `envoy/service/rate_limit_quota/v3/rlqs.proto`, `envoy/type/v3/ratelimit_strategy.proto` and `envoy/type/v3/token_bucket.proto`.
//! Other fields are skipped when a message is decoded.

use prost_types::Duration;
use std::collections::BTreeMap;

/// gRPC service name.
pub const SERVICE: &str = "envoy.service.rate_limit_quota.v3.RateLimitQuotaService";
/// gRPC method name.
pub const METHOD: &str = "StreamRateLimitQuotas";

/// `RateLimitQuotaUsageReports`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct UsageReports {
    /// The set of limits; later messages of a stream may leave it out.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// The use of some buckets.
    #[prost(message, repeated, tag = "2")]
    pub usages: Vec<Usage>,
}

/// `RateLimitQuotaUsageReports.BucketQuotaUsage`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Usage {
    /// The bucket.
    #[prost(message, optional, tag = "1")]
    pub bucket_id: Option<BucketId>,
    /// Time since the last report. Envoy 1.40 sends whole seconds.
    #[prost(message, optional, tag = "2")]
    pub time_elapsed: Option<Duration>,
    /// Requests admitted since then.
    #[prost(uint64, tag = "3")]
    pub allowed: u64,
    /// Requests denied since then.
    #[prost(uint64, tag = "4")]
    pub denied: u64,
}

/// `BucketId`.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct BucketId {
    /// The entries, without an order. Values are read as bytes: a header's value need not be UTF-8, and must not end the stream.
    #[prost(btree_map = "string, bytes", tag = "1")]
    pub bucket: BTreeMap<String, Vec<u8>>,
}

/// `RateLimitQuotaResponse`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct QuotaResponse {
    /// Applied in order.
    #[prost(message, repeated, tag = "1")]
    pub actions: Vec<BucketAction>,
}

/// `RateLimitQuotaResponse.BucketAction`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct BucketAction {
    /// The bucket.
    #[prost(message, optional, tag = "1")]
    pub bucket_id: Option<BucketId>,
    /// What to do with it.
    #[prost(oneof = "Action", tags = "2, 3")]
    pub action: Option<Action>,
}

/// The action of a [`BucketAction`].
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Action {
    /// To decide its requests so.
    #[prost(message, tag = "2")]
    Assignment(Assignment),
    /// To remove it.
    #[prost(message, tag = "3")]
    Abandon(Abandon),
}

/// `AbandonAction`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Abandon {}

/// `QuotaAssignmentAction`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Assignment {
    /// How long it is valid. Envoy 1.40 reads whole seconds, and an absent one as zero.
    #[prost(message, optional, tag = "2")]
    pub time_to_live: Option<Duration>,
    /// How to decide.
    #[prost(message, optional, tag = "3")]
    pub strategy: Option<RateLimitStrategy>,
}

/// `envoy.type.v3.RateLimitStrategy`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitStrategy {
    /// Envoy 1.40 implements these two; it ignores an assignment of `requests_per_time_unit`.
    #[prost(oneof = "Strategy", tags = "1, 3")]
    pub strategy: Option<Strategy>,
}

/// The strategy of a [`RateLimitStrategy`].
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Strategy {
    /// One decision for all requests.
    #[prost(enumeration = "BlanketRule", tag = "1")]
    Blanket(i32),
    /// One token for each request.
    #[prost(message, tag = "3")]
    TokenBucket(TokenBucket),
}

/// `RateLimitStrategy.BlanketRule`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum BlanketRule {
    /// Every request passes.
    AllowAll = 0,
    /// None passes.
    DenyAll = 1,
}

/// `envoy.type.v3.TokenBucket`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TokenBucket {
    /// The size.
    #[prost(uint32, tag = "1")]
    pub max_tokens: u32,
    /// Tokens that it receives in each interval. A `UInt32Value`.
    #[prost(message, optional, tag = "2")]
    pub tokens_per_fill: Option<u32>,
    /// The interval. Envoy 1.40 uses whole seconds.
    #[prost(message, optional, tag = "3")]
    pub fill_interval: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    /// The bytes as another implementation of these messages encodes them.
    #[test]
    fn messages_are_as_others_encode_them() {
        let bytes =
            b"\x0a\x04edge\x12\x16\x0a\x0c\x0a\x0a\x0a\x04user\x12\x02\xffb\x12\x02\x08\x05\x18\x07\x20\x09";
        let bucket_id = BucketId { bucket: [("user".to_owned(), b"\xffb".to_vec())].into() };
        let usage = Usage {
            bucket_id: Some(bucket_id.clone()),
            time_elapsed: Some(Duration { seconds: 5, nanos: 0 }),
            allowed: 7,
            denied: 9,
        };
        let reports = UsageReports { domain: "edge".into(), usages: vec![usage] };
        assert_eq!(UsageReports::decode(bytes.as_slice()), Ok(reports));

        let strategy = |strategy| {
            let strategy = Some(RateLimitStrategy { strategy: Some(strategy) });
            let time_to_live = Some(Duration { seconds: 15, nanos: 0 });
            Action::Assignment(Assignment { time_to_live, strategy })
        };
        let bucket = TokenBucket {
            max_tokens: 3,
            tokens_per_fill: Some(4),
            fill_interval: Some(Duration { seconds: 30, nanos: 0 }),
        };
        let actions = [
            (
                strategy(Strategy::Blanket(BlanketRule::AllowAll as i32)),
                &b"\x12\x08\x12\x02\x08\x0f\x1a\x02\x08\x00"[..],
            ),
            (
                strategy(Strategy::TokenBucket(bucket)),
                b"\x12\x12\x12\x02\x08\x0f\x1a\x0c\x1a\x0a\x08\x03\x12\x02\x08\x04\x1a\x02\x08\x1e",
            ),
            (Action::Abandon(Abandon {}), b"\x1a\x00"),
        ];
        for (action, expected) in actions {
            let action = BucketAction { bucket_id: None, action: Some(action) };
            assert_eq!(action.encode_to_vec(), expected, "{action:?}");
        }
    }
}
