//! The embedded limiter's stream to its region: opened with the first check, closed after an idle time.
//!
//! It is the same stream that filters have (`stream`), with both ends in one program. Reports, acknowledgements, queries and
//! pushes therefore work as for a filter.

use super::EmbeddedApi;
use super::engine::Engine;
use crate::auth::Scope;
use crate::region::send_queue::{self, Frames};
use crate::region::stream;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use weir_core::limiter::Output;
use weir_core::model::time::{MonoMs, Now};
use weir_core::model::wire::{FilterFrame, RegionFrame};

/// Frames on their way to the region; a limiter has at most sixteen unacknowledged reports.
const MAX_FRAMES: usize = 64;

/// The embedded limiter's end of the stream.
struct Link {
    frames: mpsc::Sender<Result<FilterFrame, Status>>,
    region: Frames,
}

/// Keeps the embedded limiter connected while it is used, until the program ends.
pub(super) async fn run(api: Arc<EmbeddedApi>) {
    loop {
        api.wake.notified().await;
        api.serve().await;
    }
}

impl EmbeddedApi {
    /// Runs the limiter until it has been idle.
    async fn serve(self: &Arc<Self>) {
        let mut link: Option<Link> = None;
        let mut event = Event::Turn;
        loop {
            let now = self.now();
            if self.turn(&mut link, event, now) {
                return;
            }
            event = self.next_event(link.as_mut()).await;
        }
    }

    /// Processes an event and sends what is due; true if the limiter is idle and has left its region.
    fn turn(&self, link: &mut Option<Link>, event: Event, now: Now) -> bool {
        let mut engine = self.engine.lock();
        match event {
            Event::Turn => {}
            // Of a stream that has been given up.
            Event::Frame(_) if engine.has_given_up() => {}
            Event::Frame(frame) => engine.on_frame(&frame, now.mono),
            Event::Closed => {
                *link = None;
                engine.on_closed(now.mono);
            }
        }
        engine.pass(now);
        let is_idle = engine.leaves_if_idle(self.leave_ms, now.mono);
        while let Some(output) = engine.next(now.mono) {
            let has_failed = match output {
                Output::Open if self.is_draining() => true,
                Output::Open => {
                    *link = Some(self.open());
                    false
                }
                Output::Send(frame) if link.as_ref().is_some_and(Link::is_full) => {
                    if engine.put_back(Output::Send(frame)) {
                        break;
                    }
                    true
                }
                Output::Send(frame) => !link.as_ref().is_some_and(|link| link.send(frame)),
                _ => {
                    *link = None;
                    false
                }
            };
            if has_failed {
                *link = None;
                engine.on_closed(now.mono);
            }
        }
        if is_idle {
            engine.has_left();
        }
        is_idle
    }

    async fn next_event(&self, link: Option<&mut Link>) -> Event {
        let next_tick_ms = self.engine.lock().next_tick_ms(self.mono());
        let frame = async {
            match link {
                Some(link) => link.region.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            frame = frame => match frame {
                Some(Ok(frame)) => Event::Frame(Box::new(frame)),
                Some(Err(_)) | None => Event::Closed,
            },
            () = self.wake.notified() => Event::Turn,
            () = sleep(Duration::from_millis(next_tick_ms)) => Event::Turn,
        }
    }

    /// Lets `work` use the engine, and wakes this task if that left something to send. While the limiter is idle it does not tick, so an
    /// overdue tick comes first: it reads the clock.
    pub(super) fn with_engine<R>(&self, work: impl FnOnce(&mut Engine, MonoMs) -> R) -> R {
        let mut engine = self.engine.lock();
        let now = self.now();
        engine.pass(now);
        let result = work(&mut engine, now.mono);
        if engine.has_work() {
            self.wake.notify_one();
        }
        result
    }

    /// Opens a stream within this program.
    fn open(&self) -> Link {
        let (frames, incoming) = mpsc::channel(MAX_FRAMES);
        let (send_queue, region) = send_queue::queue(send_queue::MAX_FRAMES);
        let (incoming, scope) = (ReceiverStream::new(incoming), Arc::new(Scope::everything()));
        tokio::spawn(stream::run(self.services.clone(), incoming, send_queue, scope, None));
        Link { frames, region }
    }

    fn is_draining(&self) -> bool {
        self.services.draining.borrow().is_some()
    }

    /// The current time of both clocks.
    pub(super) fn now(&self) -> Now {
        Now { unix: self.services.now(), mono: self.mono() }
    }

    pub(super) fn mono(&self) -> MonoMs {
        let since = Instant::now().saturating_duration_since(self.started);
        MonoMs(super::FIRST_MS.saturating_add(u64::try_from(since.as_millis()).unwrap_or(u64::MAX)))
    }
}

/// What wakes the embedded limiter's task.
enum Event {
    /// Time has passed, or there is something to send.
    Turn,
    /// A frame from the region.
    Frame(Box<RegionFrame>),
    /// The stream has ended.
    Closed,
}

impl Link {
    /// Whether the stream's queue has no room now.
    fn is_full(&self) -> bool {
        self.frames.capacity() == 0 && !self.frames.is_closed()
    }

    /// Queues a frame; false if the stream has ended or its queue is full.
    fn send(&self, frame: FilterFrame) -> bool {
        self.frames.try_send(Ok(frame)).is_ok()
    }
}
