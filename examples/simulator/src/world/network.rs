//! The network: delay, loss and repetition of each message.

use crate::plan::{Link, Network as Speeds, Wrong};
use crate::random::Random;

/// The number of a stream; never used again.
pub type StreamId = usize;

/// The path of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// A worker's stream.
    Stream { region: usize, envoy: usize, worker: usize, aggregator: usize },
    /// Between an aggregator and its Redis.
    Redis { region: usize, aggregator: usize },
    /// Between aggregators of a region.
    Peers(usize),
    /// Between a region and the database.
    Database(usize),
}

/// The delivery of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passage {
    /// Its delay in microseconds.
    pub delay_us: u64,
    /// It is lost.
    pub lost: bool,
    /// It arrives twice.
    pub twice: bool,
    /// It may arrive before earlier messages.
    pub overtakes: bool,
}

/// The network and its current faults.
#[derive(Debug)]
pub struct Network {
    speeds: Speeds,
    regions: u64,
    chance: Random,
    wrongs: Vec<(usize, Wrong)>,
}

impl Network {
    /// A network without faults.
    pub fn new(speeds: Speeds, regions: usize, chance: Random) -> Network {
        Network { speeds, regions: regions as u64, chance, wrongs: Vec::new() }
    }

    /// Begins a fault; `number` identifies it.
    pub fn begin(&mut self, number: usize, wrong: Wrong) {
        self.wrongs.push((number, wrong));
    }

    /// Ends a fault.
    pub fn end(&mut self, number: usize) {
        self.wrongs.retain(|(other, _)| *other != number);
    }

    /// Whether a path is cut: no message arrives, and neither end is notified.
    pub fn is_cut(&self, path: Path) -> bool {
        let cuts = |wrong: &Wrong| matches!(wrong, Wrong::Cut { link } if covers(link, path));
        self.wrongs.iter().any(|(_, wrong)| cuts(wrong))
    }

    /// The distance of a region from the database.
    fn distance_us(&self, region: u64) -> u64 {
        let (first, last) = self.speeds.distance_us;
        let place = |whole: u64| whole.saturating_mul(region) / self.regions.saturating_sub(1).max(1);
        if last >= first { first + place(last - first) } else { first - place(first - last) }
    }

    /// Draws the delivery of a message.
    pub fn pass(&mut self, path: Path) -> Passage {
        let (least, most) = match path {
            Path::Database(_) => self.speeds.global_us,
            _ => self.speeds.regional_us,
        };
        let distance_us = match path {
            Path::Database(region) => self.distance_us(region as u64),
            _ => 0,
        };
        let delay_us = distance_us + least + self.chance.below(most.saturating_sub(least) + 1);
        let mut passage = Passage { delay_us, lost: false, twice: false, overtakes: false };
        for (_, wrong) in &self.wrongs {
            match wrong {
                Wrong::Delay { link, ms } if covers(link, path) => {
                    passage.delay_us += self.chance.below(ms * 1_000 + 1);
                }
                Wrong::Lose { link, per_mille } if covers(link, path) => {
                    passage.lost |= self.chance.per_mille(*per_mille);
                }
                Wrong::Repeat { link, per_mille } if covers(link, path) => {
                    passage.twice |= self.chance.per_mille(*per_mille);
                }
                Wrong::Reorder { link } if covers(link, path) => {
                    passage.overtakes = true;
                    // With equal delays no message would overtake another.
                    passage.delay_us += self.chance.below(20 * most.max(1));
                }
                Wrong::Cut { link } if covers(link, path) => passage.lost = true,
                _ => {}
            }
        }
        passage
    }
}

fn covers(link: &Link, path: Path) -> bool {
    let of = |wanted: &Option<usize>, number: usize| wanted.is_none_or(|wanted| wanted == number);
    match (link, path) {
        (
            Link::Streams { region, envoy, aggregator },
            Path::Stream { region: at, envoy: from, aggregator: to, .. },
        ) => *region == at && of(envoy, from) && of(aggregator, to),
        (
            Link::Worker { region, envoy, worker },
            Path::Stream { region: at, envoy: from, worker: by, .. },
        ) => (*region, *envoy, *worker) == (at, from, by),
        (Link::Redis { region, aggregator }, Path::Redis { region: at, aggregator: from }) => {
            *region == at && of(aggregator, from)
        }
        // Messages of peers travel by their Redis.
        (Link::Peers { region }, Path::Peers(at)) => *region == at,
        (Link::Database { region }, Path::Database(at)) => of(region, at),
        _ => false,
    }
}
