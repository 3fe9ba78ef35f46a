//! The stream of one Envoy: its reports, and the responses to them.

use super::ended::Ended;
use super::quotas::{MAX_BUCKETS_OF_STREAM, Quotas};
use super::wire::{QuotaResponse, UsageReports};
use crate::api::rls::call::Refused;
use crate::api::rls::config::MAX_TEXT_BYTES;
use crate::auth::{Authenticator, Caller, Presented};
use crate::net::listen::ConnectionInfo;
use crate::net::shutdown::draining;
use crate::region::send_queue::SendQueue;
use crate::region::slots::Slot;
use crate::telemetry::metrics::{Api, ApiResult};
use futures_util::FutureExt as _;
use hyper::header::{AUTHORIZATION, HeaderValue};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};
use tokio_stream::StreamExt;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status, Streaming};
use tracing::{debug, warn};

/// Time within which the first report must arrive. An Envoy opens its stream to send one.
const FIRST_TIMEOUT: Duration = Duration::from_secs(2);
/// How often the caller's credential is checked again.
const CHECK_CREDENTIAL: Duration = Duration::from_secs(5);
/// Reports of buckets that a stream may send at once: each bucket in a message of its own, and all of them in the regular one.
const BURST: u64 = 3 * MAX_BUCKETS_OF_STREAM as u64;
/// Further reports of buckets are read at this rate, in one second. A regular message has each bucket once in five seconds.
const RATE: u64 = MAX_BUCKETS_OF_STREAM as u64;

/// What the caller presented, to be checked again while the stream is open.
pub struct Credential {
    header: Option<HeaderValue>,
    connection: Option<ConnectionInfo>,
}

/// How many reports may be read now.
struct Allowance {
    left: u64,
    since: Instant,
}

/// Removes the stream's buckets when it ends.
struct Opened<'a> {
    quotas: &'a Quotas,
    stream: u64,
    /// Its Envoy has ended it.
    ended: bool,
}

impl Credential {
    /// The credential of a call.
    pub fn of(metadata: &MetadataMap, connection: Option<&ConnectionInfo>) -> Credential {
        Credential { header: metadata.as_ref().get(AUTHORIZATION).cloned(), connection: connection.cloned() }
    }

    /// The caller, if the credential is valid.
    pub fn caller(&self, authenticator: &Authenticator) -> Result<Arc<Caller>, Status> {
        authenticator.admit(Presented {
            header: self.header.as_ref().map(HeaderValue::as_bytes),
            certificate: self.connection.as_ref().map(|connection| &connection.certificate),
        })
    }
}

/// Serves a stream until it ends.
pub async fn run(
    quotas: Arc<Quotas>,
    incoming: (Streaming<UsageReports>, Ended),
    send_queue: SendQueue<QuotaResponse>,
    (authenticator, credential, caller): (Authenticator, Credential, Arc<Caller>),
    slot: Slot,
) {
    let still_valid = || match credential.caller(&authenticator) {
        Ok(now) if now == caller => Ok(()),
        _ => {
            Err(Status::unauthenticated("the credential was revoked or changed; reconnect with a valid one"))
        }
    };
    let ended = serve(&quotas, incoming, &send_queue, &caller, still_valid, slot).await;
    let services = quotas.services();
    if send_queue.was_abandoned() {
        services.metrics.program.slow_streams_dropped.inc();
        services.warn(
            "closed a stream of the rate-limit quota service whose Envoy does not read its assignments",
            None,
        );
        return;
    }
    let Err(status) = ended else { return debug!("a stream of the rate-limit quota service ended") };
    if !matches!(status.code(), Code::Unavailable | Code::Cancelled | Code::Unknown) {
        services.metrics.api_decided(Api::Rlqs, ApiResult::Refused);
        services
            .warn(&format!("refused a stream of the rate-limit quota service: {}", status.message()), None);
    }
    send_queue.end(status);
}

async fn serve(
    quotas: &Quotas,
    (mut incoming, ended): (Streaming<UsageReports>, Ended),
    send_queue: &SendQueue<QuotaResponse>,
    caller: &Arc<Caller>,
    still_valid: impl Fn() -> Result<(), Status>,
    mut slot: Slot,
) -> Result<(), Status> {
    let first = tokio::select! {
        () = send_queue.closed() => return Ok(()),
        first = timeout(FIRST_TIMEOUT, incoming.next()) => first,
    };
    let Ok(first) = first else {
        return Err(Status::deadline_exceeded("no report arrived in time"));
    };
    let Some(mut reports) = first.transpose()? else { return Ok(()) };
    let domain = domain_of(quotas, caller, &reports)?;
    slot.greeted();
    let (stream, wake) = quotas.open(domain.clone(), caller.clone());
    let mut opened = Opened { quotas, stream, ended: false };
    let mut allowance = Allowance { left: BURST, since: Instant::now() };
    let mut checks = interval(CHECK_CREDENTIAL);
    checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let drain = quotas.services().draining.clone();
    loop {
        if !reports.domain.is_empty() && reports.domain != domain {
            return Err(Status::invalid_argument(
                "the domain of a stream cannot change; open another stream",
            ));
        }
        let now = Instant::now();
        let read_at = allowance.take(reports.bucket_quota_usages.len() as u64, now);
        if read_at > now {
            tokio::select! {
                () = send_queue.closed() => return Ok(()),
                () = sleep_until(read_at) => {}
            }
        }
        quotas.take(stream, std::mem::take(&mut reports.bucket_quota_usages)).await;
        reports = loop {
            while let Some(response) = quotas.next_response(stream) {
                if send_queue.send(response).await.is_err() {
                    return Ok(());
                }
            }
            tokio::select! {
                () = send_queue.closed() => {
                    // Envoy ends its stream, and resets it at once.
                    let next = incoming.next().now_or_never();
                    opened.ended = matches!(next, Some(None)) && ended.is_ended();
                    return Ok(());
                }
                () = draining(drain.subscribe()) => {
                    return Err(Status::unavailable("the aggregator is shutting down"));
                }
                _ = checks.tick() => still_valid()?,
                () = wake.notified() => {}
                next = incoming.next() => match next.transpose()? {
                    Some(reports) => break reports,
                    None => {
                        // Reset by its peer, such as a proxy between that has lost the Envoy, the stream ends here too.
                        opened.ended = ended.is_ended();
                        return Ok(());
                    }
                },
            }
        };
    }
}

/// The domain of a stream's first message, if the caller may use it.
fn domain_of(quotas: &Quotas, caller: &Caller, first: &UsageReports) -> Result<String, Status> {
    let domain = &first.domain;
    if domain.is_empty() || domain.len() > MAX_TEXT_BYTES {
        return Err(Status::invalid_argument(format!(
            "the domain of the first message has {} bytes; expected 1 to {MAX_TEXT_BYTES}",
            domain.len()
        )));
    }
    if !quotas.has_limits() {
        // Without an assignment, Envoy applies its `no_assignment_behavior`.
        return Err(Refused::NoLimits.into());
    }
    if !quotas.services().control.is_read() {
        return Err(Status::unavailable("live control was not read from the database yet"));
    }
    if !quotas.admits(caller, domain) {
        return Err(Status::permission_denied(format!(
            "the token {:?} belongs to another workspace than the domain {domain:?}",
            caller.name
        )));
    }
    if caller.max_cost() < u64::MAX {
        // A report has all requests of five seconds, whose number bounds nothing.
        return Err(Status::permission_denied(format!(
            "the token {:?} has a max_cost, to which reports of many requests cannot be held; use one without",
            caller.name
        )));
    }
    if !quotas.has_domain(domain) && quotas.services().metrics.warnings.pass().is_some() {
        warn!(
            domain,
            "the rate-limit quota service received a domain that is not configured, so it has no limits"
        );
    }
    Ok(domain.clone())
}

impl Allowance {
    /// When a message with so many reports of buckets may be processed.
    fn take(&mut self, reports: u64, now: Instant) -> Instant {
        let elapsed_ms =
            u64::try_from(now.saturating_duration_since(self.since).as_millis()).unwrap_or(u64::MAX);
        self.left = self.left.saturating_add(elapsed_ms.saturating_mul(RATE) / 1_000).min(BURST);
        self.since = self.since.max(now);
        // A message counts as one, even if it has no report.
        let wanted = reports.saturating_add(1);
        let lacking = wanted.saturating_sub(self.left);
        self.left = self.left.saturating_sub(wanted);
        let at = now + Duration::from_millis(lacking.saturating_mul(1_000) / RATE);
        self.since = self.since.max(at);
        at
    }
}

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        self.quotas.close(self.stream, self.ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_beyond_the_burst_wait() {
        let now = Instant::now();
        let mut allowance = Allowance { left: BURST, since: now };
        assert_eq!(allowance.take(BURST - 1, now), now);
        let late = allowance.take(RATE - 1, now);
        assert_eq!(late, now + Duration::from_secs(1));
        assert_eq!(allowance.take(RATE - 1, late), late + Duration::from_secs(1));
        let rested = late + Duration::from_secs(60);
        assert_eq!(allowance.take(BURST - 1, rested), rested);
    }
}
