//! `envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit`.

use super::call::{self, Applied, AppliedLimits, Refused};
use super::decide::{CallContext, Outcome};
use super::files::Current;
use super::naming::naming_of;
use super::settings::Answering;
use super::wire::{METHOD, RateLimitRequest, RateLimitResponse, SERVICE};
use crate::api::embedded::EmbeddedLimiter;
use crate::api::permission::{self, Forbidden};
use crate::auth::{Authenticator, Caller, Presented};
use crate::net::listen::ConnectionInfo;
use crate::net::method::Method;
use crate::region::services::Services;
use crate::telemetry::metrics::{Api, ApiResult};
use crate::telemetry::request_log;
use crate::telemetry::spans::around;
use crate::telemetry::throttle::Throttle;
use hyper::body::Incoming;
use std::convert::Infallible;
use std::future::ready;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tonic::body::Body;
use tonic::codegen::{BoxFuture, http};
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};
use tower::service_fn;
use tracing::{Instrument, warn};

/// Largest request that is decoded. By default Envoy accepts headers of 60 KiB in total, and several descriptors may contain
/// the same header.
pub const MAX_REQUEST_BYTES: usize = 1024 * 1024;
/// How long a call may take, from its head to its response.
pub const MAX_CALL: Duration = Duration::from_secs(2);
/// Timeout of a caller that sends none: Envoy's own default.
const DEFAULT_PATIENCE: Duration = Duration::from_millis(20);
/// Longest time for a decision, whatever timeout the caller sends.
const MAX_PATIENCE: Duration = Duration::from_secs(1);
/// The part of a caller's timeout kept for the response's way back, unless the timeout is very short.
const RESERVE: Duration = Duration::from_millis(5);
/// Least time between two warnings about domains that are not configured.
const BETWEEN_WARNINGS: Duration = Duration::from_secs(60);
/// How much of a domain that is not configured is logged, in characters.
const MAX_SHOWN: usize = 100;

/// Answers each call independently.
#[derive(Clone)]
pub struct RateLimitService(Arc<Shared>);

struct Shared {
    services: Arc<Services>,
    embedded: Arc<EmbeddedLimiter>,
    limits: Current,
    answering: Answering,
    authenticator: Authenticator,
    unknown_domains: Throttle,
}

impl RateLimitService {
    /// The service's name.
    pub const NAME: &'static str = SERVICE;
    const METHOD: Method = Method { service: SERVICE, name: METHOD, max_bytes: MAX_REQUEST_BYTES };

    /// Decides with `embedded` by the `limits`, for callers that `authenticator` accepts.
    pub fn new(
        services: Arc<Services>,
        embedded: Arc<EmbeddedLimiter>,
        (limits, answering): (Current, Answering),
        authenticator: Authenticator,
    ) -> RateLimitService {
        let unknown_domains = Throttle::new(BETWEEN_WARNINGS);
        let shared = Shared { services, embedded, limits, answering, authenticator, unknown_domains };
        RateLimitService(Arc::new(shared))
    }

    /// Serves a call.
    pub fn serve(&self, request: http::Request<Incoming>) -> BoxFuture<http::Response<Body>, Infallible> {
        if let Some(refused) = Self::METHOD.refuse_other(&request) {
            return Box::pin(ready(Ok(refused)));
        }
        let (service, span) = (self.clone(), request_log::of_headers(request.headers()));
        Box::pin(async move { Ok(service.respond(request).await) }.instrument(span))
    }

    /// Reads nothing of the call's body before its caller is authenticated.
    async fn respond(self, request: http::Request<Incoming>) -> http::Response<Body> {
        let began = Instant::now();
        let outcome = Arc::<OnceLock<Outcome>>::default();
        let span = self.0.services.telemetry.rpc(SERVICE, METHOD, request.headers());
        let connection = request.extensions().get::<ConnectionInfo>();
        let response = match self.0.authenticator.admit(Presented::in_call(request.headers(), connection)) {
            Ok(caller) => {
                if self.0.authenticator.callers_need_tokens() {
                    connection.into_iter().for_each(|connection| connection.turn.authenticated(&caller.name));
                }
                let _served = connection.map(|connection| connection.turn.serve());
                let (service, ended) = (self.clone(), Arc::clone(&outcome));
                let decide = service_fn(move |request: Request<RateLimitRequest>| {
                    let (service, caller, ended) = (service.clone(), caller.clone(), ended.clone());
                    async move {
                        let (response, outcome) = service.decide(&caller, &request).await?;
                        // A call is one request.
                        let _ = ended.set(outcome);
                        Ok::<_, Status>(Response::new(response))
                    }
                });
                let mut grpc = Self::METHOD.grpc::<RateLimitResponse, RateLimitRequest>();
                let late = |_| Status::deadline_exceeded("the call was not completed in time").into_http();
                let called = around(span.as_ref(), grpc.unary(decide, request));
                tokio::time::timeout(MAX_CALL, called).await.unwrap_or_else(late)
            }
            Err(status) => status.into_http(),
        };
        if let Some(span) = span {
            let status = Status::from_header_map(response.headers());
            span.returned(status.map_or(0, |status| status.code() as i32));
        }
        self.count(outcome.get().copied(), &response);
        self.0.services.metrics.api.rls_answered(began.elapsed());
        response
    }

    fn count(&self, outcome: Option<Outcome>, response: &http::Response<Body>) {
        let result = match outcome {
            Some(Outcome::Allowed) => ApiResult::Allowed,
            Some(Outcome::ShadowDenied) => ApiResult::ShadowDenied,
            Some(Outcome::Denied) => ApiResult::Denied,
            None => {
                let status = Status::from_header_map(response.headers());
                match status.filter(|status| status.code() != tonic::Code::Unavailable) {
                    Some(status) => {
                        let message = status.message();
                        self.0
                            .services
                            .warn(&format!("refused a call of the rate-limit service: {message}"), None);
                        ApiResult::Refused
                    }
                    None => ApiResult::Undecided,
                }
            }
        };
        self.0.services.metrics.api_decided(Api::Rls, result);
    }

    async fn decide(
        &self,
        caller: &Caller,
        request: &Request<RateLimitRequest>,
    ) -> Result<(RateLimitResponse, Outcome), Status> {
        let limits = self.0.limits.borrow().clone();
        let limits = limits.ok_or(Refused::NoLimits)?;
        let message = request.get_ref();
        match limits.domain(&message.domain) {
            Some(domain) if caller.workspace(Some(&domain.workspace)).is_none() => {
                return Err(Status::permission_denied(format!(
                    "the token {:?} belongs to another workspace than the domain {:?}",
                    caller.name, domain.name
                )));
            }
            None if !message.domain.is_empty() => self.warn_of_domain(&message.domain),
            _ => {}
        }
        let applied = call::applied(&limits, message)?;
        self.admit(caller, &applied)?;
        let context = CallContext { embedded: &self.0.embedded, answering: &self.0.answering };
        Ok(context.answer(message, &applied, patience(request.metadata())).await?)
    }

    /// Refuses namespaces and costs that the caller's token does not allow.
    fn admit(&self, caller: &Caller, applied: &AppliedLimits) -> Result<(), Status> {
        let mut permission = permission::Request::default();
        for applied in &applied.all {
            let Applied::Limit { check, .. } = applied else { continue };
            let refused = match permission.forbidden(caller, check, naming_of(&check.namespace)) {
                None => continue,
                Some(Forbidden::Namespace) => format!(
                    "the token {:?} may not count in the namespace {:?}; name it under namespaces in the token's entry of \
                     the tokens file",
                    caller.name,
                    String::from_utf8_lossy(&check.namespace)
                ),
                Some(Forbidden::Cost(most)) => {
                    format!("the token {:?} allows at most {most} hits of one limit", caller.name)
                }
            };
            return Err(Status::permission_denied(refused));
        }
        Ok(())
    }

    /// Warns because the domain may be mistyped here or in Envoy's configuration, so that its limits do not apply.
    fn warn_of_domain(&self, domain: &str) {
        if let Some(held_back) = self.0.unknown_domains.pass() {
            let domain: String = domain.chars().take(MAX_SHOWN).collect();
            warn!(
                domain,
                held_back,
                "the rate-limit service received a domain that is not configured, so it has no limits"
            );
        }
    }
}

impl From<Refused> for Status {
    fn from(refused: Refused) -> Status {
        let message = refused.to_string();
        match refused {
            Refused::Undecided | Refused::NoLimits | Refused::Unserved(_) => Status::unavailable(message),
            _ => Status::invalid_argument(message),
        }
    }
}

/// How long a decision may take, as a part of the caller's timeout.
fn patience(metadata: &MetadataMap) -> Duration {
    let sent = metadata.get("grpc-timeout").and_then(|value| timeout(value.as_bytes()));
    let waits = sent.unwrap_or(DEFAULT_PATIENCE).min(MAX_PATIENCE);
    waits.saturating_sub(RESERVE).max(waits / 2)
}

/// Parses a `grpc-timeout` by gRPC over HTTP/2, "Timeout": up to eight digits and a unit.
pub fn timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    let sound = digits.len() <= 8 && digits.iter().all(u8::is_ascii_digit);
    let number: u64 = std::str::from_utf8(digits).ok().filter(|_| sound)?.parse().ok()?;
    match unit {
        b'H' => Some(Duration::from_secs(number.saturating_mul(3_600))),
        b'M' => Some(Duration::from_secs(number.saturating_mul(60))),
        b'S' => Some(Duration::from_secs(number)),
        b'm' => Some(Duration::from_millis(number)),
        b'u' => Some(Duration::from_micros(number)),
        b'n' => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_takes_no_longer_than_its_caller_waits() {
        let cases = [
            (None, 15_000),
            (Some("100m"), 95_000),
            (Some("6m"), 3_000),
            (Some("500u"), 250),
            (Some("10S"), 995_000),
            (Some("99999999H"), 995_000),
            (Some("123456789m"), 15_000),
            (Some("5x"), 15_000),
            (Some("m"), 15_000),
            (Some("-5m"), 15_000),
            (Some("+5m"), 15_000),
        ];
        for (sent, expected_us) in cases {
            let mut metadata = MetadataMap::new();
            if let Some(sent) = sent {
                metadata.insert("grpc-timeout", sent.parse().unwrap());
            }
            assert_eq!(patience(&metadata), Duration::from_micros(expected_us), "{sent:?}");
        }
    }
}
