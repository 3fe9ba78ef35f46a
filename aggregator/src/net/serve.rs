//! Serves a router on one connection, by HTTP/1.1.

use super::listen::Connection;
use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use std::future::Future;
use tonic::transport::server::Connected;

/// Serves until the client closes the connection, or until `ending` is complete and the response in progress has been sent.
/// A head of more than `max_head_bytes` is answered with 431. Requests carry the connection's [`ConnectionInfo`](super::listen::ConnectionInfo) as an extension.
pub async fn serve_connection(
    router: Router,
    connection: Connection,
    max_head_bytes: usize,
    ending: impl Future<Output = ()>,
) -> hyper::Result<()> {
    let info = connection.connect_info();
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: hyper::Request<_>| {
        info.turn.begin();
        request.extensions_mut().insert(info.clone());
        let (response, turn) = (router.call(request), info.turn.clone());
        async move {
            let response = response.await;
            turn.end();
            response
        }
    });
    let served = http1::Builder::new()
        .max_buf_size(max_head_bytes)
        .serve_connection(TokioIo::new(connection), service);
    tokio::pin!(served);
    tokio::select! {
        ended = &mut served => ended,
        () = ending => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    }
}
