//! The reflection service, by which grpcurl and others learn the services of the gRPC listener.

use crate::support::server::{DEADLINE, TOKEN, start};
use prost::Message;
use prost_types::FileDescriptorProto;
use std::collections::{BTreeMap, BTreeSet};
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Code, Streaming};
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};
use tonic_reflection::pb::v1alpha;

const SERVICES: [&str; 6] = [
    "envoy.service.rate_limit_quota.v3.RateLimitQuotaService",
    "envoy.service.ratelimit.v3.RateLimitService",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
    "weir.v1.Region",
];

fn request(request: MessageRequest) -> ServerReflectionRequest {
    ServerReflectionRequest { host: "weir".into(), message_request: Some(request) }
}

async fn stream(
    channel: &Channel,
    requests: Vec<ServerReflectionRequest>,
) -> Streaming<ServerReflectionResponse> {
    let requests = tokio_stream::iter(requests);
    ServerReflectionClient::new(channel.clone()).server_reflection_info(requests).await.unwrap().into_inner()
}

async fn next(answers: &mut Streaming<ServerReflectionResponse>) -> Option<MessageResponse> {
    let answer = timeout(DEADLINE, answers.message()).await.unwrap().unwrap()?;
    assert_eq!(answer.valid_host, "weir");
    answer.message_response
}

/// The files of an answer by their names.
fn files(answer: Option<MessageResponse>) -> BTreeMap<String, FileDescriptorProto> {
    let Some(MessageResponse::FileDescriptorResponse(found)) = answer else { panic!("{answer:?}") };
    let files = found.file_descriptor_proto.iter().map(|file| FileDescriptorProto::decode(&**file).unwrap());
    files.map(|file| (file.name().to_owned(), file)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_credential_it_describes_each_service_that_is_served() {
    let weir = start(Some(TOKEN)).await;
    let channel = weir.connect().await;
    let of = |symbol: &&str| request(MessageRequest::FileContainingSymbol((*symbol).to_owned()));
    let requests =
        [request(MessageRequest::ListServices("*".into()))].into_iter().chain(SERVICES.iter().map(of));
    let mut answers = stream(&channel, requests.collect()).await;
    let Some(MessageResponse::ListServicesResponse(listed)) = next(&mut answers).await else { panic!() };
    let listed: BTreeSet<_> = listed.service.into_iter().map(|service| service.name).collect();
    assert_eq!(listed, SERVICES.map(str::to_owned).into());
    for name in SERVICES {
        let files = files(next(&mut answers).await);
        let (package, service) = name.rsplit_once('.').unwrap();
        let has = |file: &FileDescriptorProto| {
            file.package() == package && file.service.iter().any(|one| one.name() == service)
        };
        assert!(files.values().any(has), "{name}");
        // A tool can resolve each type that the services use.
        let missing: Vec<_> = files
            .values()
            .flat_map(|file| &file.dependency)
            .filter(|name| !files.contains_key(*name))
            .collect();
        assert!(missing.is_empty(), "{name}: {missing:?}");
    }
    assert_eq!(next(&mut answers).await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_are_unknown_are_refused_and_streams_end() {
    let weir = start(Some(TOKEN)).await;
    let channel = weir.connect().await;
    let symbol = |name: &str| request(MessageRequest::FileContainingSymbol(name.to_owned()));
    let requests = vec![
        symbol("nothing.Here"),
        request(MessageRequest::FileByFilename("nothing.proto".into())),
        symbol("envoy.service.ratelimit.v3.RateLimitService.ShouldRateLimit"),
        symbol("envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry"),
        request(MessageRequest::FileByFilename("wire.proto".into())),
    ];
    let mut answers = stream(&channel, requests).await;
    for _ in 0..2 {
        let Some(MessageResponse::ErrorResponse(error)) = next(&mut answers).await else { panic!() };
        assert_eq!(error.error_code, i32::from(Code::NotFound));
    }
    assert!(files(next(&mut answers).await).contains_key("google/protobuf/struct.proto"));
    assert!(files(next(&mut answers).await).contains_key("envoy/type/v3/ratelimit_unit.proto"));
    assert_eq!(files(next(&mut answers).await).len(), 1);
    // No stream is answered without end.
    let many = vec![request(MessageRequest::ListServices("*".into())); 100];
    let mut answers = stream(&channel, many).await;
    let mut answered = 0;
    while let Ok(Some(_)) = timeout(DEADLINE, answers.message()).await.unwrap() {
        answered += 1;
    }
    assert_eq!(answered, 64);
    let long = stream(&channel, vec![symbol(&"x".repeat(10_000))]).await.message().await;
    assert_eq!(long.unwrap_err().code(), Code::OutOfRange);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn older_tools_are_answered_alike() {
    use v1alpha::server_reflection_client::ServerReflectionClient;
    use v1alpha::server_reflection_request::MessageRequest;
    use v1alpha::server_reflection_response::MessageResponse;
    let weir = start(Some(TOKEN)).await;
    let list = MessageRequest::ListServices("*".into());
    let request = v1alpha::ServerReflectionRequest { host: String::new(), message_request: Some(list) };
    let mut client = ServerReflectionClient::new(weir.connect().await);
    let answers = client.server_reflection_info(tokio_stream::iter([request])).await;
    let answer = timeout(DEADLINE, answers.unwrap().into_inner().message()).await.unwrap().unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(listed)) = answer.message_response else { panic!() };
    assert_eq!(listed.service.len(), SERVICES.len());
}
