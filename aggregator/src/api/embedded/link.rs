//! The API's stream to its own region: opened with the first question, closed when none has come for a while.
//!
//! The stream is the one that filters have (`stream`), its two ends in one program; so whatever is true of a filter's
//! reports, acknowledgements, questions and pushes is true of the API's.
//!
//! Leaves to others: what is said on it (`engine`).

use super::Api;
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
use weir_core::model::time::{MonoMs, Now};
use weir_core::model::wire::{FilterFrame, RegionFrame};

/// Frames on their way into the region. A limiter has sixteen reports under way at the most.
const MAX_FRAMES: usize = 64;
/// An API that is not asked for so long leaves its region.
const IDLE_MS: u64 = 60_000;

/// One stream, from the API's side.
struct Link {
    frames: mpsc::Sender<Result<FilterFrame, Status>>,
    region: Frames,
}

/// Keeps the API connected while it is used, for as long as the program runs.
pub(super) async fn run(api: Arc<Api>) {
    loop {
        api.wake.notified().await;
        api.serve().await;
    }
}

impl Api {
    /// Serves the limiter until nobody asks any more.
    async fn serve(self: &Arc<Self>) {
        let mut link: Option<Link> = None;
        let mut heard = Event::Turn;
        loop {
            let now = self.now();
            if self.turn(&mut link, heard, now) {
                return;
            }
            heard = self.next_event(link.as_mut()).await;
        }
    }

    /// Takes what was heard, says what is to be said; true if the API falls asleep.
    fn turn(&self, link: &mut Option<Link>, heard: Event, now: Now) -> bool {
        let mut engine = self.engine.lock();
        let mut closed = match heard {
            Event::Turn => false,
            Event::Closed => true,
            Event::Frame(frame) => {
                engine.on_frame(&frame, now.mono);
                false
            }
        };
        engine.pass(now);
        closed |= link.is_some() && engine.is_lost(now.mono);
        if link.is_none() && !self.is_draining() && engine.opens(now.mono) {
            *link = Some(self.open());
        }
        closed |= link.as_ref().is_some_and(|link| !link.send(engine.take_frames(now.mono)));
        if closed {
            *link = None;
            engine.on_closed(now.mono);
        }
        if link.is_none() || engine.is_connected(now.mono) {
            self.awake.send_if_modified(|awake| !std::mem::replace(awake, true));
        }
        let asleep = engine.falls_asleep(IDLE_MS, now.mono);
        if asleep {
            self.awake.send_replace(false);
        }
        asleep
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

    /// Opens a stream within this program.
    fn open(&self) -> Link {
        let (frames, incoming) = mpsc::channel(MAX_FRAMES);
        let (send_queue, region) = send_queue::queue();
        let (incoming, scope) = (ReceiverStream::new(incoming), Arc::new(Scope::everything()));
        tokio::spawn(stream::run(self.services.clone(), incoming, send_queue, scope, None));
        Link { frames, region }
    }

    fn is_draining(&self) -> bool {
        self.services.draining.borrow().is_some()
    }

    /// Both clocks.
    pub(super) fn now(&self) -> Now {
        Now { unix: self.services.now(), mono: self.mono() }
    }

    pub(super) fn mono(&self) -> MonoMs {
        let since = Instant::now().saturating_duration_since(self.started);
        MonoMs(super::FIRST_MS.saturating_add(u64::try_from(since.as_millis()).unwrap_or(u64::MAX)))
    }
}

/// What the API's task wakes up for.
enum Event {
    /// Time has passed, or there is something to send.
    Turn,
    /// The region said something.
    Frame(Box<RegionFrame>),
    /// The stream is over.
    Closed,
}

impl Link {
    /// Queues frames; false if the stream is over, or takes nothing for long.
    fn send(&self, frames: Vec<FilterFrame>) -> bool {
        frames.into_iter().all(|frame| self.frames.try_send(Ok(frame)).is_ok())
    }
}
