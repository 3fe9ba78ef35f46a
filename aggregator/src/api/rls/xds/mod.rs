//! The configuration of limits from an xDS server, as Envoy Gateway and Envoy AI Gateway feed the reference service: resources
//! of type `ratelimit.config.ratelimit.v3.RateLimitConfig` over an aggregated discovery stream, state of the world.
//!
//! Each response holds all domains. It is put in force and acknowledged, or refused with all its errors, and then the former
//! limits stay in force, as they do while the server is unavailable. A limit whose interval cannot be served does not refuse a response:
//! calls that it would decide are not decided, and all other limits apply. One without any resource has no limits: so the control
//! planes state that no policy is left. Until a response was put in force, calls are not decided.
//!
//! Protocol: <https://www.envoyproxy.io/docs/envoy/latest/api-docs/xds_protocol>.

mod bounds;
mod codec;
mod options;
pub mod wire;

pub use options::{OptionsError, XdsOptions};

use super::config::{Domains, Limits, MAX_FILE_BYTES};
use super::files::Current;
use crate::region::services::Services;
use crate::telemetry::metrics::api;
use codec::ResponseCodec;
use prost::Message;
use prost::bytes::Bytes;
use rand::RngExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::AsciiMetadataValue;
use tonic::{Code, Request};
use tracing::{error, info, warn};
use wire::{DiscoveryRequest, DiscoveryResponse, METHOD, Node, RateLimitConfig, Status, TYPE_URL};

pub use bounds::MAX_MESSAGES;

/// Largest response that is decoded, in bytes; the bound of a file.
pub const MAX_RESPONSE_BYTES: usize = MAX_FILE_BYTES;
/// Longest reason of a refusal, in bytes.
const MAX_REASON_BYTES: usize = 4_096;
/// Longest version or nonce, in bytes. Both are sent back.
const MAX_VERSION_BYTES: usize = 1_024;
/// First pause before the stream is opened again; the pause doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// Longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A stream that lasted as long begins with the first pause again.
const LASTED: Duration = Duration::from_secs(30);
/// Least time from one response to the next that is read, so that a server that sends without end costs little.
const BETWEEN_RESPONSES: Duration = Duration::from_millis(100);
/// The same while a server answers each refusal with the response that was refused; the time doubles from the one to the other.
const BETWEEN_REPETITIONS: Duration = Duration::from_secs(5);
/// Requests that wait to be sent; a server that reads none ends the stream.
const MAX_REQUESTS: usize = 8;

/// A watched server.
pub struct Xds {
    options: XdsOptions,
    domains: Domains,
    current: watch::Sender<Option<Arc<Limits>>>,
}

/// Why a stream ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("{0}")]
    Options(#[from] OptionsError),
    #[error("cannot connect: {0}")]
    Connect(String),
    #[error("the stream failed: {0}")]
    Failed(String),
    #[error("the server ended the stream")]
    ByServer,
    #[error("the server does not read requests")]
    Unread,
}

impl Xds {
    /// A watch that has not begun.
    pub fn new(options: XdsOptions, domains: Domains) -> Xds {
        Xds { options, domains, current: watch::Sender::new(None) }
    }

    /// The configuration in force, now and after changes.
    pub fn current(&self) -> Current {
        self.current.subscribe()
    }

    /// Watches the server until the program ends.
    pub async fn follow(self, services: Arc<Services>) {
        let (mut pause, mut reported) = (FIRST_PAUSE, String::new());
        loop {
            let began = Instant::now();
            let Err(ended) = self.stream(&services).await;
            self.connected(&services, false);
            let reason = ended.to_string();
            services.status.limits.lock().stream_failed(&reason);
            // A server that is unavailable for long is reported once.
            if reason != reported {
                warn!(
                    server = self.options.url(),
                    reason, "the rate-limit service has no stream to the xDS server"
                );
                reported = reason;
            }
            if began.elapsed() >= LASTED {
                (pause, reported) = (FIRST_PAUSE, String::new());
            }
            // Aggregators that lost one server do not return at the same moment.
            let share: f64 = rand::rng().random_range(0.5..1.0);
            sleep(pause.mul_f64(share)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// One stream, until it ends.
    async fn stream(&self, services: &Services) -> Result<std::convert::Infallible, Ended> {
        let endpoint = self.options.endpoint()?;
        let channel = endpoint.connect().await.map_err(|error| Ended::Connect(causes(&error)))?;
        let mut grpc = Grpc::new(channel).max_decoding_message_size(MAX_RESPONSE_BYTES);
        grpc.ready().await.map_err(|error| Ended::Connect(causes(&error)))?;
        self.connected(services, true);
        info!(server = self.options.url(), "the rate-limit service is connected to the xDS server");
        let (requests, receiver) = mpsc::channel(MAX_REQUESTS);
        // The version is that of this stream: a server that has restarted may give an old version to new resources.
        let mut request = DiscoveryRequest {
            node: Some(Node {
                id: self.options.node().to_owned(),
                user_agent_name: env!("CARGO_PKG_NAME").to_owned(),
                user_agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            }),
            type_url: TYPE_URL.to_owned(),
            ..DiscoveryRequest::default()
        };
        requests.try_send(request.clone()).map_err(|_| Ended::Unread)?;
        let mut call = Request::new(ReceiverStream::new(receiver));
        if let Some(authorization) = self.options.authorization() {
            let mut value = AsciiMetadataValue::try_from(authorization)
                .map_err(|error| Ended::Connect(error.to_string()))?;
            value.set_sensitive(true);
            call.metadata_mut().insert("authorization", value);
        }
        let failed = |status: tonic::Status| {
            Ended::Failed(format!("{:?}: {}", status.code(), shortened(status.message())))
        };
        // A server may wait with its headers until it has resources; a server that is gone answers no ping.
        let streaming = grpc.streaming(call, PathAndQuery::from_static(METHOD), ResponseCodec);
        let mut responses = streaming.await.map_err(failed)?.into_inner();
        let mut pause = BETWEEN_RESPONSES;
        loop {
            let response = responses.message().await.map_err(failed)?.ok_or(Ended::ByServer)?;
            let (version, nonce) = (response.head.version_info, response.head.nonce);
            if version.len() > MAX_VERSION_BYTES || nonce.len() > MAX_VERSION_BYTES {
                return Err(Ended::Failed("a version or a nonce is too long".to_owned()));
            }
            let domains = self.domains;
            let taken = spawn_blocking(move || limits_of(&response.message, domains)).await;
            // The task does not panic; while the runtime shuts down, it is not run.
            let taken = taken.unwrap_or_else(|error| Err(error.to_string()));
            let former = request.error_detail.take().map(|former| former.message);
            let refused = self.put_in_force(services, &version, taken, former.as_deref());
            pause = match &refused {
                Some(reason) if former.as_ref() == Some(reason) => (pause * 2).min(BETWEEN_REPETITIONS),
                _ => BETWEEN_RESPONSES,
            };
            request.error_detail =
                refused.map(|reason| Status { code: Code::InvalidArgument as i32, message: reason });
            if request.error_detail.is_none() {
                request.version_info = version;
            }
            request.response_nonce = nonce;
            requests.try_send(request.clone()).map_err(|_| Ended::Unread)?;
            sleep(pause).await;
        }
    }

    /// Returns why the response is refused, if it is. `former` is why the one before was.
    fn put_in_force(
        &self,
        services: &Services,
        version: &str,
        taken: Result<Limits, String>,
        former: Option<&str>,
    ) -> Option<String> {
        let server = self.options.url();
        let (refused, domains) = match taken {
            Ok(limits) => {
                let domains = limits.len();
                let (unserved, reasons) = (limits.unserved().count(), limits.unserved().to_string());
                services.metrics.limits.replace(limits.series());
                self.current.send_replace(Some(Arc::new(limits)));
                if domains == 0 {
                    warn!(
                        server,
                        version, "the xDS server has no limits: the rate-limit service lets every call pass"
                    );
                } else {
                    info!(server, version, domains, "the rate-limit service's limits changed");
                }
                if unserved > 0 {
                    error!(
                        server,
                        version,
                        unserved,
                        error = shortened(&reasons),
                        "limits of the xDS server cannot be served; calls that they would decide are not decided, and other limits apply"
                    );
                }
                services.metrics.api.limits_unserved(unserved);
                services.status.limits.lock().unserved =
                    (unserved > 0).then(|| shortened(&reasons).to_owned());
                (None, Some(domains))
            }
            Err(reason) => {
                // A server may answer each refusal with the same response.
                if former != Some(&*reason) {
                    error!(
                        server,
                        version,
                        error = reason,
                        "the xDS server sent limits that cannot be used; the former ones stay in force, and without any no call is decided"
                    );
                }
                (Some(reason), None)
            }
        };
        services.status.limits.lock().read(domains, Some(version), refused.as_deref());
        services.metrics.api.files_read(api::Files::RateLimits, refused.is_none());
        refused
    }

    fn connected(&self, services: &Services, connected: bool) {
        services.metrics.api.xds_connected(connected);
        services.status.limits.lock().connected(connected);
    }
}

/// The limits of an encoded response, or all errors.
fn limits_of(response: &Bytes, domains: Domains) -> Result<Limits, String> {
    let wrong = |type_url: &str| {
        (type_url != TYPE_URL)
            .then(|| format!("the type is {:?}; expected {TYPE_URL:?}", shortened(type_url)))
    };
    bounds::check(response).map_err(|refused| refused.to_string())?;
    let response =
        DiscoveryResponse::decode(response.clone()).map_err(|error| format!("it is no response: {error}"))?;
    if let Some(reason) = wrong(&response.type_url) {
        return Err(reason);
    }
    let mut values = Vec::with_capacity(response.resources.len());
    for (at, resource) in response.resources.into_iter().enumerate() {
        if let Some(reason) = wrong(&resource.type_url) {
            return Err(format!("resource {at}: {reason}"));
        }
        let config = RateLimitConfig::decode(resource.value.as_slice())
            .map_err(|error| format!("resource {at} is no RateLimitConfig: {error}"))?;
        values.push((shortened(&config.name).to_owned(), config.into_value()));
    }
    Limits::of_values(values, domains).map_err(|errors| shortened(&errors.to_string()).to_owned())
}

/// The beginning of a text that a server sent or caused.
fn shortened(text: &str) -> &str {
    let end = (0..=MAX_REASON_BYTES.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.get(..end.unwrap_or_default()).unwrap_or_default()
}

/// An error with its causes, as the outermost names none of them.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    shortened(&text).to_owned()
}

#[cfg(test)]
mod tests;
