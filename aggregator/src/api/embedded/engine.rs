//! The limiter, its table, and who waits for it: everything that stands behind the API's one lock.
//!
//! One limiter behind one lock, rather than several over one table: a decision takes about a microsecond, and whoever
//! asked over a socket has spent more than ten times that on the way.
//!
//! Leaves to others: when it ticks and where its frames go (`link`), what is asked (`windows`).

use std::collections::HashMap;
use tokio::sync::oneshot;
use weir_core::limiter::table::{ArrayShared, Geometry, Meta};
use weir_core::limiter::{Budget, Check, Decision, Denial, Limiter, Outcome, Setup};
use weir_core::model::key::{HashKey, OriginId};
use weir_core::model::time::{MonoMs, Now, UnixMs};
use weir_core::model::wire::{FilterFrame, PROTOCOL_VERSION, RegionFrame, Welcome};

/// Sets of keys that the limiter remembers leases and denials of; each holds four.
const LOCAL_SETS: usize = 8_192;

/// See the module.
pub(super) struct Engine {
    origin: OriginId,
    limiter: Limiter,
    table: ArrayShared,
    waiting: HashMap<u64, oneshot::Sender<Outcome>>,
    requests: u64,
    /// When something was last asked.
    asked: MonoMs,
    ticked: MonoMs,
    /// A question waits to be sent, or nobody attends to the stream.
    unattended: bool,
}

impl Engine {
    /// A table without any counts, as a new origin.
    pub(super) fn new(unix: UnixMs) -> Engine {
        let now = Now { unix, mono: MonoMs(super::FIRST_MS) };
        let geometry = Geometry::default();
        let mut table = ArrayShared::new(geometry);
        let secret = HashKey(rand::random(), rand::random());
        let meta = Meta::establish(&mut table, Meta { origin: OriginId(rand::random()), secret, geometry });
        let setup = Setup { meta, worker: rand::random(), version: 1, local_sets: LOCAL_SETS };
        Engine {
            origin: meta.origin,
            limiter: Limiter::new(setup, now),
            table,
            waiting: HashMap::new(),
            requests: 0,
            asked: now.mono,
            ticked: MonoMs(0),
            unattended: true,
        }
    }

    pub(super) fn origin(&self) -> OriginId {
        self.origin
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.table.held_bytes()
    }

    /// Decides, or says who will tell.
    pub(super) fn decide(
        &mut self,
        checks: &[Check<'_>],
        now: MonoMs,
    ) -> Result<Outcome, oneshot::Receiver<Outcome>> {
        self.asked = now;
        self.requests += 1;
        let outcome = self.limiter.decide(&mut self.table, self.requests, checks, now);
        if outcome.decision != Decision::Wait {
            return Ok(outcome);
        }
        let (sender, receiver) = oneshot::channel();
        self.waiting.insert(self.requests, sender);
        self.unattended = true;
        Err(receiver)
    }

    pub(super) fn peek(&mut self, check: &Check<'_>, now: MonoMs) -> Result<Budget, Denial> {
        self.limiter.peek(&mut self.table, check, now)
    }

    /// There is something to send that should not wait for the next tick.
    pub(super) fn wants_turn(&self) -> bool {
        self.unattended || self.limiter.is_urgent()
    }

    /// Lets time pass where a tick is due.
    pub(super) fn pass(&mut self, now: Now) {
        if now.mono.since(self.ticked) >= self.limiter.next_tick_ms() {
            self.tick(now);
        }
    }

    /// Milliseconds until the next tick.
    pub(super) fn next_tick_ms(&self, now: MonoMs) -> u64 {
        self.limiter.next_tick_ms().saturating_sub(now.since(self.ticked))
    }

    /// What to send now.
    pub(super) fn take_frames(&mut self, now: MonoMs) -> Vec<FilterFrame> {
        self.unattended = false;
        self.limiter.take_frames(&mut self.table, now)
    }

    pub(super) fn on_frame(&mut self, frame: &RegionFrame, now: MonoMs) {
        self.limiter.on_frame(&mut self.table, frame, now);
        self.tell();
    }

    /// Whether a stream is to be opened now; the limiter is told that it is.
    pub(super) fn opens(&mut self, now: MonoMs) -> bool {
        let opens = self.limiter.should_open(now);
        if opens {
            self.limiter.on_opening(now);
        }
        opens
    }

    pub(super) fn is_lost(&self, now: MonoMs) -> bool {
        self.limiter.should_give_up(now).is_some()
    }

    pub(super) fn is_connected(&self, now: MonoMs) -> bool {
        self.limiter.stats(now).connected
    }

    pub(super) fn on_closed(&mut self, now: MonoMs) {
        self.limiter.on_closed(&mut self.table, now);
        self.unattended = false;
        self.tell();
    }

    /// Whether nothing was asked for `ms`, and the region knows all: then the stream ends, until something is asked.
    pub(super) fn falls_asleep(&mut self, ms: u64, now: MonoMs) -> bool {
        let idle = now.since(self.asked) >= ms && self.limiter.is_at_rest();
        if idle {
            self.on_closed(now);
            self.unattended = true;
        }
        idle
    }

    /// Everything that is not known to be stored. The stream may have ended before: then it is said without one.
    pub(super) fn last_words(&mut self, now: Now) -> Vec<FilterFrame> {
        self.on_closed(now.mono);
        self.limiter.on_opening(now.mono);
        let welcome = Welcome { version: PROTOCOL_VERSION, region: String::new() };
        self.on_frame(&RegionFrame { welcome: Some(welcome), ..RegionFrame::default() }, now.mono);
        self.limiter.shutdown(&mut self.table, now.mono)
    }

    /// Lets time pass: leases come back, and waits end whose time is over.
    pub(super) fn tick(&mut self, now: Now) {
        self.ticked = now.mono;
        self.limiter.tick(&mut self.table, now);
        self.tell();
    }

    /// Tells those who waited.
    fn tell(&mut self) {
        for (request, outcome) in self.limiter.take_resolved() {
            if let Some(sender) = self.waiting.remove(&request) {
                // Whoever asked may have gone.
                let _ = sender.send(outcome);
            }
        }
    }
}
