//! A bucket, as an Envoy names it, and the limit that applies to it.

use super::wire;
use crate::api::embedded::LimitCheck;
use crate::api::rls::config::{Limits, MAX_DEPTH};
use crate::api::rls::matching::Limit;
use crate::api::rls::wire::Entry;

/// Longest bucket: its keys and values together, in bytes. A longer one gets no assignment.
pub const MAX_BUCKET_BYTES: usize = 512;

/// A valid bucket. Its entries have an order of their own, so equal buckets are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bucket(wire::BucketId);

/// The limit of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// No limit, or an unlimited descriptor.
    Unlimited,
    /// A limit.
    Limited {
        /// The check of one request.
        check: LimitCheck,
        /// Whether it is in shadow mode: it counts and never denies.
        shadow: bool,
    },
}

/// Why a bucket gets no assignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadBucket {
    /// It has no entries, by which its limit is found.
    #[error("a bucket has no entries")]
    Empty,
    /// It has more entries than any configuration has levels.
    #[error("a bucket has {0} entries; at most {MAX_DEPTH} are allowed")]
    TooManyEntries(usize),
    /// An entry has no key or no value.
    #[error("a bucket has an entry without a key or a value")]
    NoText,
    /// It is too long.
    #[error("a bucket has {0} bytes; at most {MAX_BUCKET_BYTES} are allowed")]
    TooLong(usize),
    /// Its descriptor has several limits, of which an assignment can state one.
    #[error("a bucket has several limits; the quota service serves descriptors of one limit")]
    SeveralLimits,
    /// Its limit cannot be served.
    #[error("the limit of a bucket cannot be served")]
    Unserved,
    /// Envoy could not read a response that names it.
    #[error("a value of a bucket is not UTF-8")]
    NotText,
}

impl Bucket {
    /// Checks a bucket.
    pub fn new(id: Option<wire::BucketId>) -> Result<Bucket, BadBucket> {
        let id = id.unwrap_or_default();
        match id.bucket.len() {
            0 => return Err(BadBucket::Empty),
            1..=MAX_DEPTH => {}
            more => return Err(BadBucket::TooManyEntries(more)),
        }
        let bytes = id.bucket.iter().map(|(key, value)| key.len() + value.len()).sum();
        if bytes > MAX_BUCKET_BYTES {
            return Err(BadBucket::TooLong(bytes));
        }
        if id.bucket.iter().any(|(key, value)| key.is_empty() || value.is_empty()) {
            return Err(BadBucket::NoText);
        }
        if id.bucket.values().any(|value| std::str::from_utf8(value).is_err()) {
            return Err(BadBucket::NotText);
        }
        Ok(Bucket(id))
    }

    /// As an Envoy names it.
    pub fn id(&self) -> &wire::BucketId {
        &self.0
    }

    /// Its limit, the same as that of a descriptor with its entries in the order of the configuration.
    pub fn target(&self, limits: &Limits, domain: &str) -> Result<Target, BadBucket> {
        let Some(domain) = limits.domain(domain) else { return Ok(Target::Unlimited) };
        let entry = |(key, value): (&String, &Vec<u8>)| Entry { key: key.clone(), value: value.clone() };
        let entries: Vec<Entry> = self.0.bucket.iter().map(entry).collect();
        let Some((entries, rules)) = domain.find_unordered(&entries) else { return Ok(Target::Unlimited) };
        let [rule] = rules else { return Err(BadBucket::SeveralLimits) };
        let rate = match rule.limit {
            Limit::Rate(rate) => rate,
            Limit::Unserved if !rule.shadow => return Err(BadBucket::Unserved),
            Limit::Unlimited | Limit::Unserved => return Ok(Target::Unlimited),
        };
        let check = domain.check(rule.counted(&entries), rate, 1);
        Ok(Target::Limited { check, shadow: rule.shadow })
    }
}

impl Target {
    /// Whether it is a limit in shadow mode.
    pub fn is_shadow(&self) -> bool {
        matches!(self, Target::Limited { shadow: true, .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::rls::config::Domains;

    fn bucket(entries: &[(&str, &str)]) -> wire::BucketId {
        let entry = |(key, value): &(&str, &str)| ((*key).to_owned(), value.as_bytes().to_vec());
        wire::BucketId { bucket: entries.iter().map(entry).collect() }
    }

    #[test]
    fn malformed_buckets_are_refused() {
        let long = "x".repeat(MAX_BUCKET_BYTES);
        let keys: Vec<String> = (0..=MAX_DEPTH).map(|key| format!("k{key}")).collect();
        let many: Vec<(&str, &str)> = keys.iter().map(|key| (key.as_str(), "v")).collect();
        let not_text = wire::BucketId { bucket: [("k".to_owned(), b"\xff".to_vec())].into() };
        let cases = [
            (None, BadBucket::Empty),
            (Some(bucket(&[])), BadBucket::Empty),
            (Some(bucket(&many)), BadBucket::TooManyEntries(MAX_DEPTH + 1)),
            (Some(bucket(&[("", "v")])), BadBucket::NoText),
            (Some(bucket(&[("k", "")])), BadBucket::NoText),
            (Some(bucket(&[("k", &long)])), BadBucket::TooLong(MAX_BUCKET_BYTES + 1)),
            (Some(not_text), BadBucket::NotText),
        ];
        for (id, expected) in cases {
            assert_eq!(Bucket::new(id), Err(expected));
        }
        assert!(Bucket::new(Some(bucket(&many[1..]))).is_ok());
    }

    /// A bucket counts on the key of the descriptor with the same entries, in whatever order these are configured.
    #[test]
    fn the_limit_is_that_of_the_descriptor() {
        let text = "
domain: d
descriptors:
  - key: tenant
    descriptors:
      - key: env
        value: prod
        rate_limit: {name: prod, unit: minute, requests_per_unit: 5}
      - key: env
        shadow_mode: true
        rate_limit: {unit: hour, requests_per_unit: 6}
      - key: both
        rate_limit: {name: first, unit: hour, requests_per_unit: 7}
  - key: both
    descriptors:
      - key: tenant
        rate_limit: {name: second, unit: hour, requests_per_unit: 8}
  - key: free
    rate_limit: {unlimited: true}
";
        let limits = Limits::parse([("f", text)], Domains::Unique).unwrap();
        let of = |domain: &str, entries: &[(&str, &str)]| match Bucket::new(Some(bucket(entries)))
            .unwrap()
            .target(&limits, domain)
            .unwrap()
        {
            Target::Unlimited => "unlimited".to_owned(),
            Target::Limited { check, shadow } => {
                let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                let (namespace, identifier) = (text(&check.namespace), text(&check.identifier));
                format!("{namespace} {identifier} {}/{} {shadow}", check.limit, check.duration_ms)
            }
        };
        let cases = [
            (&[("env", "prod"), ("tenant", "a")][..], "prod a 5/60000 false"),
            (&[("tenant", "a"), ("env", "dev")], "rls|d|tenant|\\-|env|\\- a|dev 6/3600000 true"),
            (&[("both", "b"), ("tenant", "a")], "second b|a 8/3600000 false"),
            (&[("tenant", "a")], "unlimited"),
            (&[("tenant", "a"), ("env", "prod"), ("more", "x")], "unlimited"),
            (&[("free", "x")], "unlimited"),
        ];
        for (entries, expected) in cases {
            assert_eq!(of("d", entries), expected, "{entries:?}");
        }
        assert_eq!(of("other", &[("env", "prod"), ("tenant", "a")]), "unlimited");
    }
}
