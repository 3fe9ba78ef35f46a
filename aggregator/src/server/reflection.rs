//! `grpc.reflection.v1.ServerReflection`, by which tools such as grpcurl learn the services of the gRPC listener and their messages. It
//! needs no credential, as it shows what is public, so a stream of it is short.
//!
//! `grpc.reflection.v1alpha` has the same messages, and is what older tools call.

use futures_util::stream;
use prost::Message;
use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorProto, FileDescriptorSet};
use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};
use tokio_stream::Stream;
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{
    ErrorResponse, ExtensionNumberResponse, FileDescriptorResponse, ListServiceResponse,
    ServerReflectionRequest, ServerReflectionResponse, ServiceResponse,
};
use tonic_reflection::server::v1::{ServerReflection, ServerReflectionServer};

/// The name of the service of older tools.
pub(super) const V1ALPHA: &str = "grpc.reflection.v1alpha.ServerReflection";
/// The services that the aggregator has itself, described by `build.rs`.
const SERVICES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/services.binpb"));
/// Largest request that is decoded. It holds a name.
const MAX_REQUEST_BYTES: usize = 1024;
/// Most requests of a stream. A tool sends one for each service that it shows.
const MAX_REQUESTS: usize = 64;
/// How long a stream may last.
const MAX_TIME: Duration = Duration::from_secs(5);

type Answers = Pin<Box<dyn Stream<Item = Result<ServerReflectionResponse, Status>> + Send>>;

/// Answers from what the program describes.
#[derive(Clone)]
pub(super) struct Described(Arc<Files>);

/// The service, for a listener with services of these names.
pub(super) fn service(names: impl Iterator<Item = &'static str>) -> ServerReflectionServer<Described> {
    let files = Arc::new(Files::of(names.map(str::to_owned).collect()));
    ServerReflectionServer::new(Described(files)).max_decoding_message_size(MAX_REQUEST_BYTES)
}

#[tonic::async_trait]
impl ServerReflection for Described {
    type ServerReflectionInfoStream = Answers;

    async fn server_reflection_info(
        &self,
        request: Request<Streaming<ServerReflectionRequest>>,
    ) -> Result<Response<Answers>, Status> {
        let (files, end) = (self.0.clone(), Instant::now() + MAX_TIME);
        let answers = stream::unfold((request.into_inner(), MAX_REQUESTS), move |(mut requests, left)| {
            let files = files.clone();
            async move {
                let left = left.checked_sub(1)?;
                let answer = match timeout_at(end, requests.message()).await.ok()? {
                    Ok(request) => Ok(files.answer(request?)),
                    Err(status) => Err(status),
                };
                let left = if answer.is_ok() { left } else { 0 };
                Some((answer, (requests, left)))
            }
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

/// The descriptions of the services, by the names of what they describe.
#[derive(Debug, Default)]
struct Files {
    services: Vec<String>,
    /// Each file with the files that it imports.
    files: BTreeMap<String, (Vec<u8>, Vec<String>)>,
    /// The file of each service, method, message and enumeration.
    symbols: BTreeMap<String, String>,
}

impl Files {
    fn of(services: Vec<String>) -> Files {
        let mut files = Files { services, ..Files::default() };
        let sets = [
            SERVICES,
            tonic_health::pb::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
        ];
        for set in sets {
            // They are part of the program, and a test decodes them.
            let set = FileDescriptorSet::decode(set).unwrap_or_default();
            set.file.iter().for_each(|file| files.add(file));
        }
        files
    }

    fn add(&mut self, file: &FileDescriptorProto) {
        let name = file.name().to_owned();
        let mut symbols = Vec::new();
        let in_package = |symbol: &str| match file.package() {
            "" => symbol.to_owned(),
            package => format!("{package}.{symbol}"),
        };
        for service in &file.service {
            let name = in_package(service.name());
            symbols.extend(service.method.iter().map(|method| format!("{name}.{}", method.name())));
            symbols.push(name);
        }
        symbols.extend(file.enum_type.iter().map(|kind| in_package(kind.name())));
        file.message_type
            .iter()
            .for_each(|message| add_message(in_package(message.name()), message, &mut symbols));
        self.symbols.extend(symbols.into_iter().map(|symbol| (symbol, name.clone())));
        self.files.insert(name, (file.encode_to_vec(), file.dependency.clone()));
    }

    fn answer(&self, request: ServerReflectionRequest) -> ServerReflectionResponse {
        let answer = match request.message_request.as_ref() {
            Some(MessageRequest::ListServices(_)) => {
                let service = self.services.iter().map(|name| ServiceResponse { name: name.clone() });
                MessageResponse::ListServicesResponse(ListServiceResponse { service: service.collect() })
            }
            Some(MessageRequest::FileByFilename(name)) => self.file(Some(name)),
            Some(MessageRequest::FileContainingSymbol(symbol)) => self.file(self.symbols.get(symbol)),
            Some(MessageRequest::AllExtensionNumbersOfType(name)) if self.symbols.contains_key(name) => {
                let none = ExtensionNumberResponse { base_type_name: name.clone(), ..Default::default() };
                MessageResponse::AllExtensionNumbersResponse(none)
            }
            Some(
                MessageRequest::AllExtensionNumbersOfType(_) | MessageRequest::FileContainingExtension(_),
            ) => not_found(),
            None => refused(Code::InvalidArgument, "the request is empty"),
        };
        ServerReflectionResponse {
            valid_host: request.host.clone(),
            original_request: Some(request),
            message_response: Some(answer),
        }
    }

    /// A file, and those that it imports, directly or through others.
    fn file(&self, name: Option<&String>) -> MessageResponse {
        let mut wanted: Vec<&String> = name.into_iter().collect();
        let (mut found, mut names) = (Vec::new(), BTreeSet::new());
        while let Some(name) = wanted.pop() {
            let Some((file, imports)) = self.files.get(name).filter(|_| names.insert(name)) else { continue };
            found.push(file.clone());
            wanted.extend(imports);
        }
        match found.is_empty() {
            true => not_found(),
            false => MessageResponse::FileDescriptorResponse(FileDescriptorResponse {
                file_descriptor_proto: found,
            }),
        }
    }
}

fn not_found() -> MessageResponse {
    refused(Code::NotFound, "there is no such name")
}

fn refused(code: Code, message: &str) -> MessageResponse {
    MessageResponse::ErrorResponse(ErrorResponse {
        error_code: code.into(),
        error_message: message.to_owned(),
    })
}

fn add_message(name: String, message: &DescriptorProto, symbols: &mut Vec<String>) {
    let of_enum = |kind: &EnumDescriptorProto| format!("{name}.{}", kind.name());
    symbols.extend(message.enum_type.iter().map(of_enum));
    for inner in &message.nested_type {
        add_message(format!("{name}.{}", inner.name()), inner, symbols);
    }
    symbols.push(name);
}
