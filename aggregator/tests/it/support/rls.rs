//! A client of the rate-limit service, like Envoy's `ratelimit` filter.

use crate::support::server::DEADLINE;
use std::time::Duration;
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use weir_aggregator::api::rls::wire::{
    Code, Descriptor, DescriptorStatus, Entry, RateLimitRequest, RateLimitResponse,
};

pub const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
pub const OK: Code = Code::Ok;
pub const OVER: Code = Code::OverLimit;

/// Keys and values of one descriptor.
pub type Entries<'a> = &'a [(&'a str, &'a str)];

pub fn descriptor(entries: Entries) -> Descriptor {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
    Descriptor { entries: entries.iter().map(entry).collect(), ..Descriptor::default() }
}

pub fn request(descriptors: Vec<Descriptor>) -> RateLimitRequest {
    RateLimitRequest { domain: "edge".into(), descriptors, hits_addend: 0 }
}

/// Sends a call unchanged.
pub async fn send(
    channel: &Channel,
    request: Request<RateLimitRequest>,
) -> Result<RateLimitResponse, Status> {
    let mut grpc = Grpc::new(channel.clone());
    grpc.ready().await.unwrap();
    let codec = ProstCodec::<RateLimitRequest, RateLimitResponse>::default();
    let call = grpc.unary(request, PathAndQuery::from_static(METHOD), codec);
    timeout(DEADLINE, call).await.unwrap().map(Response::into_inner)
}

/// A server with these limits and this channel to it; the file of limits is deleted with the folder.
pub async fn service(
    limits: &str,
    answering: weir_aggregator::api::rls::Answering,
) -> (crate::support::server::Weir, Channel, tempfile::TempDir) {
    use weir_aggregator::api::{ApiSettings, rls};
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.yaml");
    std::fs::write(&file, limits).unwrap();
    let rls = rls::Settings { files: Some(file), answering, ..rls::Settings::default() };
    let api = ApiSettings { rls, ..ApiSettings::default() };
    let settings = weir_aggregator::server::Settings { api, ..crate::support::server::settings() };
    let weir = crate::support::server::start_with(settings).await;
    let channel = weir.connect().await;
    (weir, channel, folder)
}

/// A call with a long timeout, so that a busy machine does not look like an undecided limit.
pub async fn call(channel: &Channel, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
    let mut request = Request::new(request);
    request.set_timeout(Duration::from_secs(5));
    send(channel, request).await
}

pub fn codes(response: &RateLimitResponse) -> (Code, Vec<Code>) {
    (response.overall_code(), response.statuses.iter().map(DescriptorStatus::code).collect())
}

pub fn remaining(response: &RateLimitResponse) -> Vec<u32> {
    response.statuses.iter().map(|status| status.limit_remaining).collect()
}
