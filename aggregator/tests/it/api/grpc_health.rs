//! The gRPC health service, as Envoy's `grpc_health_check` and probes of Kubernetes call it.

use crate::support::server::{DEADLINE, TOKEN, start};
use std::sync::atomic::Ordering::Relaxed;
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

async fn check(channel: &Channel, service: &str) -> Result<i32, Status> {
    let request = HealthCheckRequest { service: service.to_owned() };
    let answer = timeout(DEADLINE, HealthClient::new(channel.clone()).check(request)).await.unwrap()?;
    Ok(answer.into_inner().status)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_credential_it_tells_whether_each_service_serves() {
    let weir = start(Some(TOKEN)).await;
    let channel = weir.connect().await;
    let names = [
        "",
        "ratelimit",
        "weir.v1.Region",
        "envoy.service.ratelimit.v3.RateLimitService",
        "envoy.service.rate_limit_quota.v3.RateLimitQuotaService",
    ];
    for name in names {
        assert_eq!(check(&channel, name).await.unwrap(), ServingStatus::Serving as i32, "{name:?}");
    }
    let long = "x".repeat(10_000);
    assert_eq!(check(&channel, "other").await.unwrap_err().code(), Code::NotFound);
    assert_eq!(check(&channel, &long).await.unwrap_err().code(), Code::OutOfRange);
    let watched = HealthClient::new(channel.clone()).watch(HealthCheckRequest::default()).await;
    assert_eq!(watched.unwrap_err().code(), Code::Unimplemented);
    weir.server.services().serves.store(false, Relaxed);
    assert_eq!(check(&channel, "ratelimit").await.unwrap(), ServingStatus::NotServing as i32);
}
