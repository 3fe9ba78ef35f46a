//! One HTTP/1 request over one connection, and its whole answer: for the commands that ask an aggregator.
//!
//! Leaves to others: connecting, TLS, how long it may take, and what the answer means.

use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Bytes};
use hyper::client::conn::http1::handshake;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use std::error::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// Not even its head came.
    #[error(transparent)]
    Unanswered(#[from] hyper::Error),
    /// Its body did not come to an end, or was longer than it may be.
    #[error("the answer broke off: {0}")]
    BrokeOff(#[source] Box<dyn Error + Send + Sync>),
}

/// Sends `request` over `stream`; its answer's status and body of at most `most` bytes.
pub async fn exchange<B>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<B>,
    most: usize,
) -> Result<(StatusCode, Bytes), ExchangeError>
where
    B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    // Ends with this value, also where nobody waits for the answer any more.
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let (head, body) = sender.send_request(request).await?.into_parts();
    let body = Limited::new(body, most).collect().await.map_err(ExchangeError::BrokeOff)?;
    Ok((head.status, body.to_bytes()))
}
