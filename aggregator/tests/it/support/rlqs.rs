//! A client of the rate-limit quota service, like Envoy's `rate_limit_quota` filter.

use crate::support::server::{DEADLINE, shown};
use prost::Message as _;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Status, Streaming};
use tonic_prost::ProstCodec;
use weir_aggregator::api::rlqs::wire::{
    Action, BlanketRule, BucketAction, BucketId, QuotaResponse, Strategy, Usage, UsageReports,
};

pub const METHOD: &str = "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";

/// What an assignment lets pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assigned {
    Allow,
    Deny,
    Tokens(u64),
    /// Tokens and seconds.
    Rate(u32, i64),
    Abandoned,
}

/// A stream, as an Envoy has it.
pub struct Proxy {
    reports: mpsc::Sender<UsageReports>,
    responses: Streaming<QuotaResponse>,
    /// The last assignment of each bucket, and its seconds to live.
    pub assigned: BTreeMap<Vec<(String, String)>, (Assigned, i64)>,
    /// The tokens of all buckets of tokens that began anew.
    pub begun: u64,
}

/// A stream over bytes, which may be reset in ways that a client of tonic does not.
pub struct RawProxy(TcpStream);

impl RawProxy {
    /// Opens the only stream of a connection, and reports a bucket.
    pub async fn report(address: SocketAddr, reports: &UsageReports) -> RawProxy {
        const HEADERS: [(&str, &str); 6] = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", METHOD),
            (":authority", "localhost"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ];
        // RFC 7541, section 6.2.2: literal fields without indexing.
        let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
        let field = |(name, value): (&str, &str)| [vec![0], text(name), text(value)].concat();
        let head: Vec<u8> = HEADERS.into_iter().flat_map(field).collect();
        let message = reports.encode_to_vec();
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        let message = [&[0], &length[..], &message].concat();
        let mut proxy = RawProxy(TcpStream::connect(address).await.unwrap());
        let frames = [frame(4, 0, 0, b""), frame(1, 4, 1, &head), frame(0, 0, 1, &message)].concat();
        proxy.0.write_all(&[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &frames[..]].concat()).await.unwrap();
        proxy
    }

    /// Resets the stream by CANCEL; before, it is `ended`. The connection stays open.
    pub async fn reset(&mut self, ended: bool) {
        let end = if ended { frame(0, 1, 1, b"") } else { Vec::new() };
        self.0.write_all(&[end, frame(3, 0, 1, &8_u32.to_be_bytes())].concat()).await.unwrap();
    }
}

/// A frame of HTTP/2 (RFC 9113, section 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

pub type Entries<'a> = &'a [(&'a str, &'a str)];

pub fn bucket(entries: Entries) -> BucketId {
    let entry = |(key, value): &(&str, &str)| ((*key).to_owned(), value.as_bytes().to_vec());
    BucketId { bucket: entries.iter().map(entry).collect() }
}

pub fn usage(entries: Entries, allowed: u64, denied: u64) -> Usage {
    let time_elapsed = Some(prost_types::Duration { seconds: 5, nanos: 0 });
    Usage {
        bucket_id: Some(bucket(entries)),
        time_elapsed,
        num_requests_allowed: allowed,
        num_requests_denied: denied,
    }
}

pub fn reports(domain: &str, usages: Vec<Usage>) -> UsageReports {
    UsageReports { domain: domain.to_owned(), bucket_quota_usages: usages }
}

impl Proxy {
    pub async fn open(channel: Channel) -> Proxy {
        Proxy::try_open(channel, None).await.unwrap()
    }

    pub async fn try_open(channel: Channel, token: Option<&str>) -> Result<Proxy, Status> {
        let (reports, queued) = mpsc::channel(16);
        let mut grpc = Grpc::new(channel);
        grpc.ready().await.unwrap();
        let codec = ProstCodec::<UsageReports, QuotaResponse>::default();
        let call = grpc.streaming(
            shown(ReceiverStream::new(queued), token),
            PathAndQuery::from_static(METHOD),
            codec,
        );
        let responses = timeout(DEADLINE, call).await.unwrap()?.into_inner();
        Ok(Proxy { reports, responses, assigned: BTreeMap::new(), begun: 0 })
    }

    pub async fn send(&self, message: UsageReports) {
        // An error means that the stream has ended, which reading shows.
        let _ = timeout(DEADLINE, self.reports.send(message)).await.unwrap();
    }

    /// Reports a bucket of the domain `edge`.
    pub async fn report(&self, entries: Entries<'_>, allowed: u64, denied: u64) {
        self.send(reports("edge", vec![usage(entries, allowed, denied)])).await;
    }

    /// Reads one response.
    pub async fn read(&mut self) -> Result<Option<QuotaResponse>, Status> {
        let response =
            timeout(DEADLINE, self.responses.message()).await.expect("a response within the deadline")?;
        for action in response.iter().flat_map(|response| &response.bucket_action) {
            let (bucket, assigned, seconds) = read(action);
            let former = self.assigned.insert(bucket, (assigned, seconds));
            if let (Some((Assigned::Deny, _)), Assigned::Tokens(tokens)) = (former, assigned) {
                self.begun += tokens;
            }
        }
        Ok(response)
    }

    /// Reads until the assignment of a bucket is accepted; returns it with its seconds to live.
    pub async fn until(
        &mut self,
        entries: Entries<'_>,
        accept: impl Fn(Assigned) -> bool,
    ) -> (Assigned, i64) {
        let mut key: Vec<(String, String)> =
            entries.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        key.sort();
        loop {
            self.read().await.expect("a response").expect("a response, not the end");
            if let Some(found) = self.assigned.get(&key).filter(|(assigned, _)| accept(*assigned)) {
                return *found;
            }
        }
    }

    /// Reports, and returns the tokens that are assigned then.
    pub async fn tokens(&mut self, entries: Entries<'_>, allowed: u64, denied: u64) -> u64 {
        self.report(entries, allowed, denied).await;
        match self.until(entries, |_| true).await.0 {
            Assigned::Tokens(tokens) => tokens,
            Assigned::Deny => 0,
            other => panic!("{other:?}"),
        }
    }

    /// Ends the stream, and waits until the aggregator has too.
    pub async fn end(mut self) {
        (self.reports, _) = mpsc::channel(1);
        while self.read().await.expect("no error").is_some() {}
    }

    /// Loses the stream: the aggregator ends it, as a stream keeps its domain.
    pub async fn lose(mut self) {
        self.send(reports("another", Vec::new())).await;
        self.refused().await;
    }

    /// The status with which the stream ends.
    pub async fn refused(&mut self) -> Status {
        loop {
            match self.read().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the stream ended without a status"),
                Err(status) => return status,
            }
        }
    }
}

fn read(action: &BucketAction) -> (Vec<(String, String)>, Assigned, i64) {
    let bucket = action.bucket_id.clone().unwrap().bucket;
    let bucket = bucket.into_iter().map(|(key, value)| (key, String::from_utf8(value).unwrap())).collect();
    let Some(Action::QuotaAssignmentAction(assignment)) = &action.bucket_action else {
        return (bucket, Assigned::Abandoned, 0);
    };
    let seconds = assignment.assignment_time_to_live.unwrap().seconds;
    let strategy = assignment.rate_limit_strategy.unwrap().strategy.unwrap();
    let assigned = match strategy {
        Strategy::BlanketRule(rule) if rule == BlanketRule::AllowAll as i32 => Assigned::Allow,
        Strategy::BlanketRule(_) => Assigned::Deny,
        Strategy::TokenBucket(bucket) => {
            let (tokens, interval) = (bucket.tokens_per_fill.unwrap(), bucket.fill_interval.unwrap().seconds);
            match interval {
                30 => Assigned::Tokens(bucket.max_tokens.into()),
                seconds => Assigned::Rate(tokens, seconds),
            }
        }
    };
    (bucket, assigned, seconds)
}
