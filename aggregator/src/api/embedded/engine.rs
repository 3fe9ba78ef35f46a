//! The limiter, its table, and the calls that wait for it, all behind the embedded limiter's one lock.
//!
//! There is one limiter behind one lock, not several over one table: a decision takes about a microsecond, and a call over a
//! socket costs more than ten times that anyway.

use super::reservations::Reservations;
use std::collections::{HashMap, VecDeque};
use tokio::sync::oneshot;
use weir_core::limiter::table::{ArrayShared, Geometry, Meta};
use weir_core::limiter::{
    Budget, CellCount, Check, Decision, Denial, GivenBack, Limiter, Outcome, Output, Setup,
};
use weir_core::model::key::{HashKey, NodeId};
use weir_core::model::time::{MonoMs, Now, UnixMs};
use weir_core::model::window::Position;
use weir_core::model::wire::{FilterFrame, PROTOCOL_VERSION, RegionFrame, Welcome};

/// Sets of the worker cache; each holds four keys.
const LOCAL_SETS: usize = 8_192;
/// Most frames that wait for room in the stream's queue; beyond them the stream counts as broken.
const MAX_OUTPUTS: usize = 1_024;

/// The limiter, its table, and the calls that wait for it.
pub(super) struct Engine {
    node: NodeId,
    limiter: Limiter,
    table: ArrayShared,
    waiting: HashMap<u64, Waiting>,
    /// What callers have given back.
    pub(super) given_back: GivenBack,
    /// The reservations of applications.
    pub(super) reservations: Reservations,
    requests: u64,
    /// When the last check was made.
    last_check: MonoMs,
    ticked: MonoMs,
    /// What is to be done about the stream.
    outputs: VecDeque<Output>,
    /// A query waits to be sent, or the limiter has left its region.
    unattended: bool,
}

/// A call that waits for the outcome of a query.
struct Waiting {
    sender: oneshot::Sender<Outcome>,
    taken: Vec<Taken>,
}

/// What was taken for a check of what had been given back, and the cell in which that was.
#[derive(Clone, Debug, Default)]
pub(super) struct Taken {
    pub(super) key: Vec<u8>,
    pub(super) cell_ms: u64,
    pub(super) hits: u64,
    pub(super) sequence: u64,
}

impl Engine {
    /// An empty table, with a new node.
    pub(super) fn new(unix: UnixMs) -> Engine {
        let now = Now { unix, mono: MonoMs(super::FIRST_MS) };
        let geometry = Geometry::default();
        let mut table = ArrayShared::new(geometry);
        let secret = HashKey(rand::random(), rand::random());
        let meta = Meta::establish(&mut table, Meta { node: NodeId(rand::random()), secret, geometry });
        let setup = Setup { meta, worker: rand::random(), local_sets: LOCAL_SETS };
        Engine {
            node: meta.node,
            limiter: Limiter::new(setup, now),
            table,
            waiting: HashMap::new(),
            given_back: GivenBack::default(),
            reservations: Reservations::default(),
            requests: 0,
            last_check: now.mono,
            ticked: MonoMs(0),
            outputs: VecDeque::new(),
            unattended: true,
        }
    }

    pub(super) fn node(&self) -> NodeId {
        self.node
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.table.held_bytes()
    }

    /// The number of a new request.
    pub(super) fn number(&mut self) -> u64 {
        self.requests += 1;
        self.requests
    }

    /// Decides, or returns a receiver for the outcome of a query. What was `taken` for the checks is returned unless they pass, also if the
    /// caller has disconnected by then.
    pub(super) fn decide(
        &mut self,
        request: u64,
        checks: &[Check<'_>],
        taken: Vec<Taken>,
        now: MonoMs,
    ) -> Result<Outcome, oneshot::Receiver<Outcome>> {
        self.last_check = now;
        let outcome = self.limiter.decide(&mut self.table, request, checks, now);
        if outcome.decision != Decision::Wait {
            self.conclude(&outcome, taken, now);
            return Ok(outcome);
        }
        let (sender, receiver) = oneshot::channel();
        self.waiting.insert(request, Waiting { sender, taken });
        self.unattended = true;
        Err(receiver)
    }

    /// Settles what a request has reserved: `cost_of` has the cost of a window by its number, and what is reserved for it.
    pub(super) fn settle(&mut self, request: u64, cost_of: impl Fn(u16, u64) -> u64, now: MonoMs) {
        self.limiter.settle_cost(&mut self.table, request, |rule, reserve| Some(cost_of(rule, reserve)), now);
    }

    /// Charges what reservations hold whose lifetime is over.
    pub(super) fn end_expired(&mut self, now: MonoMs) {
        while let Some(expired) = self.reservations.next_expired(now) {
            self.settle(expired.request, |_, reserve| reserve, now);
        }
        self.reservations.drop_old(now);
    }

    pub(super) fn peek(&mut self, check: &Check<'_>, now: MonoMs) -> Result<Budget, Denial> {
        self.limiter.peek(&mut self.table, check, now)
    }

    /// As `peek`, for a caller that decides by the result (quotas). It counts as a check, so the limiter joins its region, or stays in it.
    pub(super) fn look(&mut self, check: &Check<'_>, now: MonoMs) -> Result<Budget, Denial> {
        self.last_check = now;
        self.peek(check, now)
    }

    /// Charges what has been spent already.
    pub(super) fn charge_spent(&mut self, check: &Check<'_>, now: MonoMs) -> bool {
        self.last_check = now;
        self.limiter.charge_spent(&mut self.table, check, now)
    }

    /// Charges the cost unless the limit is exceeded; see [`Limiter::charge_unless_exceeded`].
    pub(super) fn charge_unless_exceeded(&mut self, check: &Check<'_>, now: MonoMs) -> Option<bool> {
        self.last_check = now;
        self.limiter.charge_unless_exceeded(&mut self.table, check, now)
    }

    /// The cell in which a key with cells of this length counts now, what counts in it, and when it ends.
    pub(super) fn current_cell(&mut self, key: &[u8], cell_ms: u64, now: MonoMs) -> (CellCount, MonoMs) {
        let cell = self.limiter.current_cell(&mut self.table, key, cell_ms, now);
        let at = Position::at(self.limiter.moment(now).unix, cell_ms);
        (cell, now.after(at.until_next_ms()))
    }

    /// Whether there is something to send before the next tick.
    pub(super) fn has_work(&self) -> bool {
        self.unattended || !self.outputs.is_empty() || self.limiter.is_urgent()
    }

    /// Ticks if a tick is due.
    pub(super) fn pass(&mut self, now: Now) {
        if now.mono.since(self.ticked) >= self.limiter.next_tick_ms() {
            self.tick(now);
        }
    }

    /// Milliseconds until the next tick.
    pub(super) fn next_tick_ms(&self, now: MonoMs) -> u64 {
        self.limiter.next_tick_ms().saturating_sub(now.since(self.ticked))
    }

    /// What is to be done about the stream now: it is opened or closed, or a frame is sent. Call it until it returns `None`.
    pub(super) fn next(&mut self, now: MonoMs) -> Option<Output> {
        self.unattended = false;
        if self.outputs.is_empty() {
            self.drive(now);
        }
        self.outputs.pop_front()
    }

    /// Keeps what could not be done yet; false if too much waits.
    pub(super) fn put_back(&mut self, output: Output) -> bool {
        let has_room = self.outputs.len() < MAX_OUTPUTS;
        if has_room {
            self.outputs.push_front(output);
        }
        has_room
    }

    /// The limiter has left its region: what is found next wakes the task, whose tick joins the region again.
    pub(super) fn has_left(&mut self) {
        self.unattended = true;
    }

    /// Whether the limiter has given up the stream that is still there.
    pub(super) fn has_given_up(&self) -> bool {
        self.outputs.iter().any(|output| matches!(output, Output::Close(_)))
    }

    pub(super) fn on_frame(&mut self, frame: &RegionFrame, now: MonoMs) {
        self.limiter.on_frame(&mut self.table, frame, now);
    }

    pub(super) fn on_closed(&mut self, now: MonoMs) {
        self.outputs.clear();
        self.limiter.on_closed(&mut self.table, now);
    }

    /// Ends the stream if no check was made for `ms`, none waits, and the region has acknowledged all counts; true if it did.
    pub(super) fn leaves_if_idle(&mut self, ms: u64, now: MonoMs) -> bool {
        let idle = now.since(self.last_check) >= ms && self.limiter.is_at_rest();
        if idle {
            self.limiter.leave(&mut self.table, now);
            // The next check, whatever it finds, joins the region: its tick opens a stream.
            self.ticked = MonoMs(0);
        }
        idle
    }

    /// The counts that are not known to be stored. They are returned even if the stream has ended.
    pub(super) fn final_frames(&mut self, now: Now) -> Vec<FilterFrame> {
        self.on_closed(now.mono);
        let welcome = Welcome { version: PROTOCOL_VERSION, region: String::new() };
        self.on_frame(&RegionFrame { welcome: Some(welcome), ..RegionFrame::default() }, now.mono);
        self.limiter.shutdown(&mut self.table, now.mono);
        self.drive(now.mono);
        let frame = |output| if let Output::Send(frame) = output { Some(frame) } else { None };
        self.outputs.drain(..).filter_map(frame).collect()
    }

    /// Ticks the limiter: leases are returned, and queries whose timeout is over end.
    pub(super) fn tick(&mut self, now: Now) {
        self.ticked = now.mono;
        self.end_expired(now.mono);
        self.limiter.tick(&mut self.table, now);
        self.drive(now.mono);
    }

    /// Sends outcomes to the calls that wait for them, and keeps what is to be done about the stream for its task.
    fn drive(&mut self, now: MonoMs) {
        while let Some(output) = self.limiter.next(&mut self.table, now) {
            match output {
                Output::Close(_) | Output::Open | Output::Send(_) => self.outputs.push_back(output),
                Output::Resolve { request, outcome } => {
                    if let Some(Waiting { sender, taken }) = self.waiting.remove(&request) {
                        self.conclude(&outcome, taken, now);
                        // The caller may have disconnected; what is reserved for it is then returned.
                        if sender.send(outcome).is_err() {
                            self.settle(request, |_, _| 0, now);
                        }
                    }
                }
                // Logs are not decided by the limiter here, and no rule bans.
                Output::Shadow { .. } | Output::Struck(_) => {}
            }
        }
    }

    fn conclude(&mut self, outcome: &Outcome, taken: Vec<Taken>, now: MonoMs) {
        if !matches!(outcome.decision, Decision::Allow(_)) {
            taken.into_iter().for_each(|taken| self.return_taken(taken, now));
        }
    }
}
