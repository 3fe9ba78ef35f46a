//! One HTTP/1 request over one connection, for the commands that query an aggregator.

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
    /// The head of the answer did not arrive.
    #[error(transparent)]
    Unanswered(#[from] hyper::Error),
    /// The body was interrupted, or was too long.
    #[error("the answer was interrupted: {0}")]
    BrokeOff(#[source] Box<dyn Error + Send + Sync>),
}

/// Sends `request` over `stream`. Returns the answer's status and its body of at most `most` bytes.
pub async fn exchange<B>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<B>,
    most: usize,
) -> Result<(StatusCode, Bytes), ExchangeError>
where
    B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    // Dropped with this future, so that the connection closes even if the caller stops waiting.
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let (head, body) = sender.send_request(request).await?.into_parts();
    let body = Limited::new(body, most).collect().await.map_err(ExchangeError::BrokeOff)?;
    Ok((head.status, body.to_bytes()))
}
