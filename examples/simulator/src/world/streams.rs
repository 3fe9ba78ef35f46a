//! Streams between workers and aggregators. Frames arrive in order. A loss ends the stream; a cut stalls it until the
//! keepalive of one end finds its peer unreachable.

use super::World;
use super::event::{Carried, End, Event, WorkerAt};
use super::network::Path;
use super::network::StreamId;

/// Interval of the keepalive of each end, which is also the time within which the peer must reply; the worker's as in
/// the documented cluster, the aggregator's as in its program.
const KEEPALIVE_US: [u64; 2] = [1_000_000, 5_000_000];
/// Timeout of Envoy's connection attempts.
const CONNECT_TIMEOUT_US: u64 = 250_000;

/// A stream with at least one open end.
#[derive(Debug)]
pub struct Stream {
    /// The worker.
    pub at: WorkerAt,
    /// The aggregator's number in the world.
    pub aggregator: usize,
    /// The aggregator's incarnation.
    pub aggregator_incarnation: u64,
    path: Path,
    /// Arrival of the last frame in each direction, so that no frame overtakes another.
    arrives_us: [u64; 2],
    open: [bool; 2],
    /// Frames that a cut holds up.
    held: Vec<Carried>,
}

/// All streams so far; those that are over are `None`.
#[derive(Debug, Default)]
pub struct Streams {
    all: Vec<Option<Stream>>,
    /// The numbers of streams that are not over, in order.
    live: std::collections::BTreeSet<StreamId>,
}

impl Streams {
    /// A stream that is not over.
    pub fn get(&self, id: StreamId) -> Option<&Stream> {
        self.all.get(id)?.as_ref()
    }

    fn get_mut(&mut self, id: StreamId) -> Option<&mut Stream> {
        self.all.get_mut(id)?.as_mut()
    }

    /// The numbers of all streams that are not over.
    pub fn ids(&self) -> Vec<StreamId> {
        self.live.iter().copied().collect()
    }

    fn add(&mut self, stream: Stream) -> StreamId {
        let id = self.all.len();
        self.all.push(Some(stream));
        self.live.insert(id);
        id
    }

    fn remove(&mut self, id: StreamId) {
        self.live.remove(&id);
        if let Some(stream) = self.all.get_mut(id) {
            *stream = None;
        }
    }
}

impl World<'_> {
    /// Opens a stream of a worker to a random aggregator of its region, as a load balancer does.
    pub(super) fn open_stream(&mut self, at: WorkerAt) -> StreamId {
        let (region, envoy) = self.place(at.envoy);
        let number = self.chance.streams.below(self.plan.topology.aggregators.max(1) as u64) as usize;
        let aggregator = self.aggregator_at(region, number);
        let path = Path::Stream { region, envoy, worker: at.worker, aggregator: number };
        let host = &self.aggregators[aggregator];
        let (accepts, aggregator_incarnation) = (host.accepts_streams(), host.incarnation);
        let (cut, passage) = (self.network.is_cut(path), self.network.pass(path));
        // The connection needs a round trip.
        let connected = self.now_us + 2 * passage.delay_us;
        let stream = Stream {
            at,
            aggregator,
            aggregator_incarnation,
            path,
            arrives_us: [connected; 2],
            open: [true, accepts && !cut],
            held: Vec::new(),
        };
        let id = self.streams.add(stream);
        match (cut, accepts) {
            (true, _) => self.queue.plan(self.now_us + CONNECT_TIMEOUT_US, Event::Down(id, None)),
            (false, false) => self.queue.plan(connected, Event::Down(id, None)),
            (false, true) => self.plan_keepalive(id),
        }
        id
    }

    /// Sends a message on a stream.
    pub(super) fn carry(&mut self, id: StreamId, carried: Carried) {
        let Some(stream) = self.streams.get_mut(id) else { return };
        if self.network.is_cut(stream.path) {
            stream.held.push(carried);
            return;
        }
        let passage = self.network.pass(stream.path);
        let way = usize::from(matches!(carried, Carried::Down(_)));
        let at = stream.arrives_us[way].max(self.now_us + passage.delay_us);
        stream.arrives_us[way] = at;
        if passage.lost {
            self.queue.plan(at, Event::Up(id, None));
            self.queue.plan(at, Event::Down(id, None));
            return;
        }
        if passage.twice {
            let copy = match &carried {
                Carried::Up(frame) => Event::Up(id, frame.clone()),
                Carried::Down(frame) => Event::Down(id, frame.clone()),
            };
            self.queue.plan(at, copy);
        }
        self.queue.plan(
            at,
            match carried {
                Carried::Up(frame) => Event::Up(id, frame),
                Carried::Down(frame) => Event::Down(id, frame),
            },
        );
    }

    /// A message arrives at an end. If the link was cut meanwhile, the message is held and sent again when the cut is
    /// over. Events of the end itself, such as a timeout, are not held.
    pub(super) fn arrives(&mut self, id: StreamId, carried: Carried) {
        let Some(stream) = self.streams.get_mut(id) else { return };
        let is_delivered = stream.open[1] || matches!(carried, Carried::Up(_));
        if is_delivered && self.network.is_cut(stream.path) {
            stream.held.push(carried);
            return;
        }
        match carried {
            Carried::Up(frame) if stream.open[1] => self.aggregator_receives(id, frame),
            Carried::Down(frame) if stream.open[0] => self.worker_receives(id, frame),
            _ => {}
        }
    }

    /// An end has closed; the other end is notified.
    pub(super) fn closed(&mut self, id: StreamId, end: End) {
        let Some(stream) = self.streams.get_mut(id) else { return };
        let [worker, aggregator] = &mut stream.open;
        let (mine, other) = match end {
            End::Worker => (worker, *aggregator),
            End::Aggregator => (aggregator, *worker),
        };
        *mine = false;
        match (end, other) {
            (_, false) => self.streams.remove(id),
            (End::Worker, true) => self.carry(id, Carried::Up(None)),
            (End::Aggregator, true) => self.carry(id, Carried::Down(None)),
        }
    }

    /// Whether an end is open.
    pub(super) fn is_open(&self, id: StreamId, end: End) -> bool {
        self.streams.get(id).is_some_and(|stream| stream.open[end as usize])
    }

    /// Sends the messages that ended cuts had held.
    pub(super) fn heal(&mut self) {
        for id in self.streams.ids() {
            let Some(stream) = self.streams.get_mut(id) else { continue };
            if stream.held.is_empty() || self.network.is_cut(stream.path) {
                continue;
            }
            for carried in std::mem::take(&mut stream.held) {
                self.carry(id, carried);
            }
        }
    }

    /// Schedules keepalives after a part or link stopped, which may time out.
    pub(super) fn plan_keepalives(&mut self) {
        self.streams.ids().into_iter().for_each(|id| self.plan_keepalive(id));
    }

    fn plan_keepalive(&mut self, id: StreamId) {
        for end in [End::Worker, End::Aggregator] {
            if self.is_open(id, end) && !self.receives_from_peer(id, end) {
                let interval = KEEPALIVE_US[end as usize];
                let at = self.now_us + self.chance.streams.below(interval) + interval;
                self.queue.plan(at, Event::Keepalive(id, end));
            }
        }
    }

    /// A keepalive has timed out, unless its peer is reachable again.
    pub(super) fn keepalive(&mut self, id: StreamId, end: End) {
        if !self.is_open(id, end) || self.receives_from_peer(id, end) {
            return;
        }
        match end {
            End::Worker => self.worker_receives(id, None),
            End::Aggregator => self.aggregator_receives(id, None),
        }
    }

    fn receives_from_peer(&self, id: StreamId, end: End) -> bool {
        let Some(stream) = self.streams.get(id) else { return true };
        if self.network.is_cut(stream.path) {
            return false;
        }
        match end {
            End::Worker => !self.aggregators[stream.aggregator].is_frozen(),
            End::Aggregator => !self.is_worker_frozen(stream.at),
        }
    }
}
