//! The frames that wait to be sent on one stream, and the end of a stream whose node does not read them.
//!
//! gRPC's flow control stops the transport from taking frames while a node does not read. The queue then fills, and a
//! writer that finds it full for [`PATIENCE`] abandons the stream: the queued frames are dropped at once, although
//! the transport may hold its end of the stream until the connection's keepalive fails. A plain channel would keep
//! up to its capacity for that long. For this reason the reading end can be emptied from the writing end.

use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::sync::mpsc::{self, error::SendTimeoutError};
use tokio_stream::Stream;
use tonic::Status;
use weir_core::model::wire::RegionFrame;

/// Most frames that wait on one stream: 64 full pushes are 16 thousand cells, some 2 MB.
pub const MAX_FRAMES: usize = 64;
/// How long the queue may stay full before the stream is abandoned.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// The stream takes no more frames: its node disconnected, or it was abandoned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

/// The two ends of a new queue of at most `capacity` frames.
pub fn queue<T>(capacity: usize) -> (SendQueue<T>, Frames<T>) {
    let (sender, receiver) = mpsc::channel(capacity);
    let source =
        Arc::new(Mutex::new(Source { queued: Some(receiver), status: None, waker: None, abandoned: false }));
    (SendQueue { sender, source: source.clone() }, Frames { source })
}

/// The writing end.
#[derive(Debug)]
pub struct SendQueue<T = RegionFrame> {
    sender: mpsc::Sender<T>,
    source: Arc<Mutex<Source<T>>>,
}

impl<T> Clone for SendQueue<T> {
    fn clone(&self) -> SendQueue<T> {
        SendQueue { sender: self.sender.clone(), source: self.source.clone() }
    }
}

impl<T> SendQueue<T> {
    /// Queues a frame. Waits while the queue is full, and abandons the stream after [`PATIENCE`].
    pub async fn send(&self, frame: T) -> Result<(), Closed> {
        match self.sender.send_timeout(frame, PATIENCE).await {
            Ok(()) => Ok(()),
            Err(SendTimeoutError::Closed(_)) => Err(Closed),
            Err(SendTimeoutError::Timeout(_)) => {
                self.abandon();
                Err(Closed)
            }
        }
    }

    /// Completes once the stream takes no more frames.
    pub async fn closed(&self) {
        self.sender.closed().await;
    }

    /// Whether the stream was abandoned because its node read too slowly.
    pub fn was_abandoned(&self) -> bool {
        self.source.lock().abandoned
    }

    /// Ends the stream with `status` once the node has read what is queued and the last clone of this end is dropped.
    pub fn end(self, status: Status) {
        self.source.lock().status = Some(status);
    }

    fn abandon(&self) {
        let mut source = self.source.lock();
        source.abandoned = true;
        source.queued = None;
        source.status = Some(Status::unavailable("frames were not read in time; reconnect"));
        if let Some(waker) = source.waker.take() {
            waker.wake();
        }
    }
}

/// The reading end: the body of the gRPC response.
#[derive(Debug)]
pub struct Frames<T = RegionFrame> {
    source: Arc<Mutex<Source<T>>>,
}

impl<T> Stream for Frames<T> {
    type Item = Result<T, Status>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut source = self.source.lock();
        let queued = source.queued.as_mut().map_or(Poll::Ready(None), |queued| queued.poll_recv(context));
        match queued {
            Poll::Ready(Some(frame)) => Poll::Ready(Some(Ok(frame))),
            Poll::Ready(None) => {
                source.queued = None;
                Poll::Ready(source.status.take().map(Err))
            }
            Poll::Pending => {
                source.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl<T> Drop for Frames<T> {
    fn drop(&mut self) {
        self.source.lock().queued = None;
    }
}

#[derive(Debug)]
struct Source<T> {
    /// `None` once no more frames will be read.
    queued: Option<mpsc::Receiver<T>>,
    /// The status with which the stream ends; `None` for success.
    status: Option<Status>,
    /// The task that waits for a frame.
    waker: Option<Waker>,
    abandoned: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio_stream::StreamExt;

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_does_not_read_is_abandoned_and_its_frames_dropped() {
        let (send_queue, mut frames) = queue(MAX_FRAMES);
        for _ in 0..MAX_FRAMES {
            assert_eq!(send_queue.send(RegionFrame::default()).await, Ok(()));
        }
        assert!(!send_queue.was_abandoned());
        assert_eq!(send_queue.send(RegionFrame::default()).await, Err(Closed));
        assert!(send_queue.was_abandoned());
        send_queue.closed().await;
        let status = frames.next().await.and_then(Result::err).map(|status| status.code());
        assert_eq!(status, Some(tonic::Code::Unavailable));
        assert!(frames.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn an_ended_stream_is_read_to_its_status() {
        let (send_queue, mut frames) = queue(MAX_FRAMES);
        send_queue.send(RegionFrame::default()).await.unwrap();
        send_queue.end(Status::unauthenticated("no token"));
        assert!(frames.next().await.is_some_and(|frame| frame.is_ok()));
        assert!(frames.next().await.is_some_and(|frame| frame.is_err()));
        assert!(frames.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_left_is_noticed() {
        let (send_queue, frames) = queue(MAX_FRAMES);
        drop(frames);
        send_queue.closed().await;
        assert_eq!(send_queue.send(RegionFrame::default()).await, Err(Closed));
        assert!(!send_queue.was_abandoned());
    }
}
