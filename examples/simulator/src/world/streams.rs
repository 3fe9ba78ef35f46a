//! Streams between workers and aggregators: frames in order, late by the network; a loss ends the stream, a cut stalls it
//! until one end's keepalive finds its peer gone.
//!
//! Leaves to others: what the frames do (`envoy`, `aggregator`), when they get lost (`network`).

use super::World;
use super::event::{Carried, End, Event, WorkerAt};
use super::network::Path;
use super::network::StreamId;

/// An idle connection is asked whether its peer is there, each end at its own interval, and has as long again to answer:
/// as the documented cluster does, and as aggregators do.
const KEEPALIVE_US: [u64; 2] = [1_000_000, 5_000_000];
/// A connection that nobody answers is given up by Envoy after this.
const CONNECT_TIMEOUT_US: u64 = 250_000;

/// A stream that at least one end believes in.
#[derive(Debug)]
pub struct Stream {
    /// Whose.
    pub at: WorkerAt,
    /// To whom, by number in the world.
    pub aggregator: usize,
    /// Which of its lives.
    pub aggregator_incarnation: u64,
    path: Path,
    /// When the last frame arrives in each direction, so that none overtakes another.
    arrives_us: [u64; 2],
    open: [bool; 2],
    /// What a cut holds up.
    held: Vec<Carried>,
}

/// All streams there ever were; those that are over are `None`.
#[derive(Debug, Default)]
pub struct Streams {
    all: Vec<Option<Stream>>,
    /// Those that are not, in order.
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

    /// All that are not over.
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
    /// A worker opens a stream: to any of its region's aggregators, as behind a load balancer.
    pub(super) fn open_stream(&mut self, at: WorkerAt) -> StreamId {
        let (region, envoy) = self.place(at.envoy);
        let number = self.chance.streams.below(self.plan.topology.aggregators.max(1) as u64) as usize;
        let aggregator = self.aggregator_at(region, number);
        let path = Path::Stream(region, envoy, at.worker, number);
        let host = &self.aggregators[aggregator];
        let (listens, aggregator_incarnation) = (host.listens(), host.incarnation);
        let (cut, passage) = (self.network.is_cut(path), self.network.pass(path));
        // The connection is there after a round trip.
        let connected = self.now_us + 2 * passage.delay_us;
        let stream = Stream {
            at,
            aggregator,
            aggregator_incarnation,
            path,
            arrives_us: [connected; 2],
            open: [true, listens && !cut],
            held: Vec::new(),
        };
        let id = self.streams.add(stream);
        match (cut, listens) {
            (true, _) => self.queue.plan(self.now_us + CONNECT_TIMEOUT_US, Event::Down(id, None)),
            (false, false) => self.queue.plan(connected, Event::Down(id, None)),
            (false, true) => self.doubt(id),
        }
        id
    }

    /// Sends something on a stream.
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

    /// Something arrives at an end, unless the link was cut meanwhile: then it is sent again when that is over. What a
    /// closed or cut end does by itself, giving up, is not held up.
    pub(super) fn arrives(&mut self, id: StreamId, carried: Carried) {
        let Some(stream) = self.streams.get_mut(id) else { return };
        let hears = stream.open[1] || matches!(carried, Carried::Up(_));
        if hears && self.network.is_cut(stream.path) {
            stream.held.push(carried);
            return;
        }
        match carried {
            Carried::Up(frame) if stream.open[1] => self.aggregator_hears(id, frame),
            Carried::Down(frame) if stream.open[0] => self.worker_hears(id, frame),
            _ => {}
        }
    }

    /// An end has closed. The other one will hear of it.
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

    /// Sends again what was held up by cuts that are over.
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

    /// Something has become silent: every stream that crosses it may be found dead by its keepalive.
    pub(super) fn doubt_all(&mut self) {
        self.streams.ids().into_iter().for_each(|id| self.doubt(id));
    }

    fn doubt(&mut self, id: StreamId) {
        for end in [End::Worker, End::Aggregator] {
            if self.is_open(id, end) && !self.receives_from_peer(id, end) {
                let interval = KEEPALIVE_US[end as usize];
                let at = self.now_us + self.chance.streams.below(interval) + interval;
                self.queue.plan(at, Event::Keepalive(id, end));
            }
        }
    }

    /// A keepalive was not answered in time, unless whatever kept it is over.
    pub(super) fn keepalive(&mut self, id: StreamId, end: End) {
        if !self.is_open(id, end) || self.receives_from_peer(id, end) {
            return;
        }
        match end {
            End::Worker => self.worker_hears(id, None),
            End::Aggregator => self.aggregator_hears(id, None),
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
