//! The messages of the stream, with only the fields that are used here, and a resource as a value of a configuration.
//!
//! Sources: `envoy/service/discovery/v3/discovery.proto`, `envoy/config/core/v3/base.proto`, `google/rpc/status.proto`,
//! and `ratelimit/config/ratelimit/v3/rls_conf.proto` of the reference service.

use crate::api::rls::metadata;
use crate::api::rls::wire::Unit;
use prost::bytes::{Buf, BufMut};
use prost::encoding::{DecodeContext, WireType};
use prost::{DecodeError, Message};
use prost_types::{Any, Struct};
use weir_core::fields::Value;

/// `AggregatedDiscoveryService.StreamAggregatedResources`.
pub const METHOD: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
/// The type of the resources.
pub const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// `DiscoveryRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DiscoveryRequest {
    /// The version in force; empty before the first of a stream.
    #[prost(string, tag = "1")]
    pub version_info: String,
    /// The requester.
    #[prost(message, optional, tag = "2")]
    pub node: Option<Node>,
    /// The type of resources.
    #[prost(string, tag = "4")]
    pub type_url: String,
    /// The response that this answers; empty in the first request.
    #[prost(string, tag = "5")]
    pub response_nonce: String,
    /// Why that response is refused.
    #[prost(message, optional, tag = "6")]
    pub error_detail: Option<Status>,
}

/// `Node`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Node {
    /// By it the server selects the resources.
    #[prost(string, tag = "1")]
    pub id: String,
    /// The program.
    #[prost(string, tag = "6")]
    pub user_agent_name: String,
    /// Its version.
    #[prost(string, tag = "7")]
    pub user_agent_version: String,
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Status {
    /// A gRPC code.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// The reason.
    #[prost(string, tag = "2")]
    pub message: String,
}

/// `DiscoveryResponse`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DiscoveryResponse {
    /// The version of the resources.
    #[prost(string, tag = "1")]
    pub version_info: String,
    /// All resources of the type.
    #[prost(message, repeated, tag = "2")]
    pub resources: Vec<Any>,
    /// Their type.
    #[prost(string, tag = "4")]
    pub type_url: String,
    /// Names this response.
    #[prost(string, tag = "5")]
    pub nonce: String,
}

/// `RateLimitConfig`: one domain.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitConfig {
    /// The resource's name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The domain's name.
    #[prost(string, tag = "2")]
    pub domain: String,
    /// Its descriptors.
    #[prost(message, repeated, tag = "3")]
    pub descriptors: Vec<Received<Descriptor>>,
}

/// A message with what is not known of it: a field of a later version, which may make a limit another one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Received<M> {
    /// What is known.
    pub message: M,
    /// The number of the last unknown field.
    pub unknown: Option<u32>,
}

/// A message that may get fields in later versions.
pub trait Versioned {
    /// The highest number of a field that is known.
    const LAST: u32;
}

impl Versioned for Descriptor {
    const LAST: u32 = 8;
}

impl Versioned for Policy {
    const LAST: u32 = 5;
}

impl<M: Message + Versioned + Default> Message for Received<M> {
    fn encode_raw(&self, buffer: &mut impl BufMut) {
        self.message.encode_raw(buffer);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buffer: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        if tag > M::LAST {
            self.unknown = Some(tag);
        }
        self.message.merge_field(tag, wire_type, buffer, context)
    }

    fn encoded_len(&self) -> usize {
        self.message.encoded_len()
    }

    fn clear(&mut self) {
        *self = Received::default();
    }
}

impl<M> From<M> for Received<M> {
    fn from(message: M) -> Received<M> {
        Received { message, unknown: None }
    }
}

/// `RateLimitDescriptor`. It has neither `share_threshold` nor `value_to_metric`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Descriptor {
    /// Required.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Empty: any value.
    #[prost(string, tag = "2")]
    pub value: String,
    /// The limit, if there is one.
    #[prost(message, optional, tag = "3")]
    pub rate_limit: Option<Received<Policy>>,
    /// Descriptors for the next entry.
    #[prost(message, repeated, tag = "4")]
    pub descriptors: Vec<Received<Descriptor>>,
    /// The limit never denies.
    #[prost(bool, tag = "5")]
    pub shadow_mode: bool,
    /// Of no effect here.
    #[prost(bool, tag = "6")]
    pub detailed_metric: bool,
    /// The limit is a quota.
    #[prost(bool, tag = "7")]
    pub quota_mode: bool,
    /// For responses.
    #[prost(message, optional, tag = "8")]
    pub metadata: Option<Struct>,
}

/// `RateLimitPolicy`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Policy {
    /// A `RateLimitUnit`, whose members have the numbers of [`Unit`].
    #[prost(int32, tag = "1")]
    pub unit: i32,
    /// Most in each unit of time.
    #[prost(uint32, tag = "2")]
    pub requests_per_unit: u32,
    /// There is no limit.
    #[prost(bool, tag = "3")]
    pub unlimited: bool,
    /// The limit's name.
    #[prost(string, tag = "4")]
    pub name: String,
    /// Limits that do not apply if this one does.
    #[prost(message, repeated, tag = "5")]
    pub replaces: Vec<Replace>,
}

/// `RateLimitReplace`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Replace {
    /// The limit's name.
    #[prost(string, tag = "1")]
    pub name: String,
}

impl RateLimitConfig {
    /// The document that a file would contain.
    pub fn into_value(self) -> Value<'static> {
        let mut fields = Vec::from([("domain".into(), Value::Text(self.domain.into()))]);
        add_descriptors(self.descriptors, None, &mut fields);
        Value::Object(fields)
    }
}

type Field = (std::borrow::Cow<'static, str>, Value<'static>);

/// Adds a field, unless it has its default.
fn add_text(name: &'static str, text: String, fields: &mut Vec<Field>) {
    if !text.is_empty() {
        fields.push((name.into(), Value::Text(text.into())));
    }
}

fn add_flag(name: &'static str, flag: bool, fields: &mut Vec<Field>) {
    if flag {
        fields.push((name.into(), Value::Bool(true)));
    }
}

/// `unknown` is a field of a descriptor above.
fn add_descriptors(descriptors: Vec<Received<Descriptor>>, unknown: Option<u32>, fields: &mut Vec<Field>) {
    if !descriptors.is_empty() {
        let value = |one: Received<Descriptor>| one.message.into_value(one.unknown.or(unknown));
        fields.push(("descriptors".into(), Value::List(descriptors.into_iter().map(value).collect())));
    }
}

impl Descriptor {
    fn into_value(self, unknown: Option<u32>) -> Value<'static> {
        let mut fields = Vec::new();
        add_text("key", self.key, &mut fields);
        add_text("value", self.value, &mut fields);
        if let Some(policy) = self.rate_limit {
            let unknown = policy.unknown.or(unknown);
            fields.push(("rate_limit".into(), policy.message.into_value(unknown)));
        } else if unknown.is_some() && self.descriptors.is_empty() {
            // The field may be its limit.
            fields.push(("rate_limit".into(), Policy::default().into_value(unknown)));
        }
        add_flag("shadow_mode", self.shadow_mode, &mut fields);
        add_flag("detailed_metric", self.detailed_metric, &mut fields);
        add_flag("quota_mode", self.quota_mode, &mut fields);
        if let Some(metadata) = self.metadata {
            fields.push(("metadata".into(), metadata::value_of(metadata)));
        }
        add_descriptors(self.descriptors, unknown, &mut fields);
        Value::Object(fields)
    }
}

impl Policy {
    /// With a field that is unknown, the limit has a unit that is none.
    fn into_value(self, unknown: Option<u32>) -> Value<'static> {
        let mut fields = Vec::new();
        let unit = match Unit::try_from(self.unit) {
            Ok(Unit::Unknown) => String::new(),
            Ok(unit) => format!("{unit:?}").to_lowercase(),
            Err(_) => self.unit.to_string(),
        };
        let unit = match unknown {
            Some(field) if unit.is_empty() => format!("the unknown field {field}"),
            Some(field) => format!("{unit}, with the unknown field {field}"),
            _ => unit,
        };
        add_text("unit", unit, &mut fields);
        // Protobuf does not distinguish 0 from a missing number.
        fields.push(("requests_per_unit".into(), Value::Unsigned(self.requests_per_unit.into())));
        add_flag("unlimited", self.unlimited && unknown.is_none(), &mut fields);
        add_text("name", self.name, &mut fields);
        if !self.replaces.is_empty() {
            let one = |replace: Replace| {
                Value::Object(Vec::from([("name".into(), Value::Text(replace.name.into()))]))
            };
            let all = self.replaces.into_iter().map(one).collect();
            fields.push(("replaces".into(), Value::List(all)));
        }
        Value::Object(fields)
    }
}
