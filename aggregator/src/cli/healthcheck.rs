//! `healthcheck`: queries the readiness of the aggregator on this machine. It exists for container images without a
//! shell or an HTTP client.

use crate::cli::client::exchange;
use anyhow::{Context, ensure};
use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::header::HOST;
use hyper::{Request, StatusCode};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

const PAGE: &str = "/readyz";
/// The answer is short.
const MAX_ANSWER_BYTES: usize = 64 * 1024;
/// A healthy aggregator answers within a millisecond; health checks time out after a few seconds.
const PATIENCE: Duration = Duration::from_secs(2);

/// Fails unless the aggregator that listens on `admin_listen` is ready.
#[tokio::main(flavor = "current_thread")]
pub async fn run(admin_listen: &str) -> anyhow::Result<()> {
    let answered = timeout(PATIENCE, request_status(admin_listen)).await;
    let status = answered
        .with_context(|| format!("no answer within {PATIENCE:?}"))
        .flatten()
        .with_context(|| format!("cannot query {PAGE} of {admin_listen}"))?;
    ensure!(status == StatusCode::OK, "not ready: {admin_listen} answered {PAGE} with {status}");
    Ok(())
}

async fn request_status(admin_listen: &str) -> anyhow::Result<StatusCode> {
    let listens = lookup_host(admin_listen).await?.next().context("the name has no address")?;
    let stream = TcpStream::connect(reachable(listens)).await?;
    let request = Request::get(PAGE).header(HOST, admin_listen).body(Empty::<Bytes>::new())?;
    let (status, _) = exchange(stream, request, MAX_ANSWER_BYTES).await?;
    Ok(status)
}

/// An unspecified address (0.0.0.0 or ::) is reachable as localhost.
fn reachable(listens: SocketAddr) -> SocketAddr {
    let ip = match listens.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listens.port())
}
