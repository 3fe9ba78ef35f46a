//! The rate-limit service's messages as Envoy defines them, with only the fields that are used here.
//!
//! Sources: `envoy/service/ratelimit/v3/rls.proto`, `envoy/extensions/common/ratelimit/v3/ratelimit.proto`,
//! `envoy/config/core/v3/base.proto`, and protobuf's well-known `Duration` and `UInt64Value`. Other fields are skipped
//! when a message is decoded.

use prost_types::{Duration, Struct};

/// gRPC service name.
pub const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";
/// gRPC method name.
pub const METHOD: &str = "ShouldRateLimit";

/// `RateLimitRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitRequest {
    /// The set of limits.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// The descriptors to decide.
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<Descriptor>,
    /// The charge of each descriptor without its own; 0 counts as 1.
    #[prost(uint32, tag = "3")]
    pub hits_addend: u32,
}

/// `RateLimitDescriptor`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Descriptor {
    /// From the first level of the configuration to the last.
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<Entry>,
    /// Replaces the configured limit.
    #[prost(message, optional, tag = "2")]
    pub limit: Option<Override>,
    /// The charge of this descriptor; 0 only reads. A `UInt64Value`.
    #[prost(message, optional, tag = "3")]
    pub hits_addend: Option<u64>,
    /// The hits are given back: a refund of what was charged before.
    #[prost(bool, tag = "4")]
    pub is_negative_hits: bool,
}

/// `RateLimitDescriptor.Entry`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Entry {
    /// Not empty.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Any bytes; a header's value need not be UTF-8.
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

/// `RateLimitDescriptor.RateLimitOverride`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Override {
    /// Most in each unit of time.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// A [`Unit`].
    #[prost(enumeration = "Unit", tag = "2")]
    pub unit: i32,
}

/// `RateLimitResponse`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitResponse {
    /// A [`Code`] for the request as a whole.
    #[prost(enumeration = "Code", tag = "1")]
    pub overall_code: i32,
    /// One for each descriptor, in order.
    #[prost(message, repeated, tag = "2")]
    pub statuses: Vec<DescriptorStatus>,
    /// Headers for the response to the downstream client.
    #[prost(message, repeated, tag = "3")]
    pub response_headers_to_add: Vec<HeaderValue>,
    /// For filters and access logs, in the namespace of Envoy's filter.
    #[prost(message, optional, tag = "6")]
    pub dynamic_metadata: Option<Struct>,
}

/// `RateLimitResponse.DescriptorStatus`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DescriptorStatus {
    /// A [`Code`].
    #[prost(enumeration = "Code", tag = "1")]
    pub code: i32,
    /// The limit that was applied, if any.
    #[prost(message, optional, tag = "2")]
    pub current_limit: Option<RateLimit>,
    /// The remaining budget.
    #[prost(uint32, tag = "3")]
    pub limit_remaining: u32,
    /// Time until the present window ends, in whole seconds.
    #[prost(message, optional, tag = "4")]
    pub duration_until_reset: Option<Duration>,
}

/// `RateLimitResponse.RateLimit`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimit {
    /// Most in each unit of time.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// A [`Unit`]; unknown for several units, which Envoy cannot show.
    #[prost(enumeration = "Unit", tag = "2")]
    pub unit: i32,
    /// The configured name.
    #[prost(string, tag = "3")]
    pub name: String,
}

/// `envoy.config.core.v3.HeaderValue`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HeaderValue {
    /// Name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// `RateLimitResponse.Code`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Code {
    /// Never sent.
    Unknown = 0,
    /// Within the limit.
    Ok = 1,
    /// Over the limit.
    OverLimit = 2,
}

/// `RateLimitResponse.RateLimit.Unit`, of which `envoy.type.v3.RateLimitUnit` is a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Unit {
    /// Not set.
    Unknown = 0,
    /// 1 s.
    Second = 1,
    /// 60 s.
    Minute = 2,
    /// 60 minutes.
    Hour = 3,
    /// 24 hours.
    Day = 4,
    /// 30 days.
    Month = 5,
    /// 365 days.
    Year = 6,
    /// 7 days.
    Week = 7,
}

impl Unit {
    /// The units of time that a limit may have, with their names in a configuration and their lengths in milliseconds. They are not
    /// those of a calendar.
    pub const USED: [(&'static str, Unit, u64); 7] = [
        ("second", Unit::Second, 1_000),
        ("minute", Unit::Minute, 60 * 1_000),
        ("hour", Unit::Hour, 3_600 * 1_000),
        ("day", Unit::Day, 24 * 3_600 * 1_000),
        ("week", Unit::Week, 7 * 24 * 3_600 * 1_000),
        ("month", Unit::Month, 30 * 24 * 3_600 * 1_000),
        ("year", Unit::Year, 365 * 24 * 3_600 * 1_000),
    ];

    /// Its length in milliseconds; `None` for those that no limit may have.
    pub fn ms(self) -> Option<u64> {
        Unit::USED.iter().find(|(_, unit, _)| *unit == self).map(|(_, _, ms)| *ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    /// The bytes as another implementation of these messages encodes them.
    #[test]
    fn requests_are_read_as_they_are_written_elsewhere() {
        let bytes = [
            b"\x0a\x04edge".as_slice(),
            b"\x12\x1a\x0a\x06\x0a\x01a\x12\x01b\x0a\x03\x0a\x01c\x12\x05\x08\x96\x01\x10\x02\x1a\x02\x08\x05\x20\x01",
            b"\x18\x03",
        ]
        .concat();
        let entry = |key: &str, value: &str| Entry { key: key.into(), value: value.into() };
        let expected = RateLimitRequest {
            domain: "edge".into(),
            descriptors: vec![Descriptor {
                entries: vec![entry("a", "b"), entry("c", "")],
                limit: Some(Override { requests_per_unit: 150, unit: Unit::Minute as i32 }),
                hits_addend: Some(5),
                is_negative_hits: true,
            }],
            hits_addend: 3,
        };
        assert_eq!(RateLimitRequest::decode(bytes.as_slice()), Ok(expected));
    }
}
