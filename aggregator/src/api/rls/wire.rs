//! The rate-limit service's messages.

use crate::api::envoy::envoy::{
    config, extensions::common::ratelimit::v3, service::ratelimit::v3 as service,
};

pub use config::core::v3::HeaderValue;
pub use service::rate_limit_response::rate_limit::Unit;
pub use service::rate_limit_response::{Code, DescriptorStatus, RateLimit};
pub use service::{RateLimitRequest, RateLimitResponse};
pub use v3::RateLimitDescriptor as Descriptor;
pub use v3::rate_limit_descriptor::{Entry, RateLimitOverride as Override};

/// gRPC service name.
pub const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";
/// gRPC method name.
pub const METHOD: &str = "ShouldRateLimit";

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
