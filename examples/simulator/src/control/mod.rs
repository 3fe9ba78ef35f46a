//! Live control simulated: operators change controls through the aggregators of one to three regions, and every worker of every Envoy has
//! to follow, whatever is lost, frozen, restarted, or set back meanwhile.
//!
//! The book of an aggregator, the reading of the database, what is pushed, and what a worker stores are the core's code. One seed
//! determines a world.
//!
//! - `database`: the shared database, which does what the SQL of the aggregator does.
//! - `parts`: aggregators, Envoys and their streams.
//! - `events`: what happens to them, one step after the other.
//! - `clients`: requests that rules deny until they ban their clients, and the way of these bans to the database.
//! - `faults`: what goes wrong.
//! - `check`: what must hold.

mod check;
mod clients;
mod database;
mod events;
mod faults;
mod parts;
mod targets;

use crate::queue::Queue;
use crate::random::Random;
use check::Checks;
use database::Database;
use events::Event;
use parts::{Aggregator, Envoy};
use std::collections::VecDeque;
use std::fmt::Write as _;
use weir_core::rules::Config;

/// When a world begins, in milliseconds since the Unix epoch.
const BEGIN_MS: u64 = 1_800_000_000_000;
/// How long operators and faults are active.
const ACTIVE_MS: u64 = 60_000;
/// How long the parts have afterwards until all must agree.
const SETTLE_MS: u64 = 30_000;
/// Number of events that are printed with a violation.
const TRAIL: usize = 60;

/// The result of a world.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Changes that operators made.
    pub changes: u64,
    /// Bans that rules made.
    pub bans: u64,
    /// Times at which the controls of a worker or an aggregator were compared with the database.
    pub checks: u64,
    /// Faults that were injected.
    pub faults: u64,
    /// The first violation, with the events before it; `None` if there is none.
    pub violation: Option<String>,
}

/// Carries out the world of a seed.
pub fn run(seed: u64) -> Outcome {
    let mut world = match World::new(seed) {
        Ok(world) => world,
        Err(violation) => return Outcome { violation: Some(violation), ..Outcome::default() },
    };
    world.carry_out();
    let World { checks, changes, faults, trail, .. } = world;
    let violation = checks.violation.map(|what| {
        let mut text = what;
        for line in trail {
            let _ = write!(text, "\n    {line}");
        }
        text
    });
    Outcome { changes, bans: checks.bans, checks: checks.done, faults, violation }
}

/// See the module.
struct World {
    random: Random,
    /// The rules of all Envoys.
    config: Config,
    /// A flood of bans may still come.
    is_flooded: bool,
    /// True time, in milliseconds since the Unix epoch.
    now: u64,
    /// What happens next.
    queue: Queue<Event>,
    /// How long all machines were suspended, in milliseconds.
    slept_ms: u64,
    database: Database,
    aggregators: Vec<Aggregator>,
    envoys: Vec<Envoy>,
    checks: Checks,
    changes: u64,
    faults: u64,
    trail: VecDeque<String>,
}

impl World {
    /// The world of a seed; an error if its configuration is none.
    fn new(seed: u64) -> Result<World, String> {
        let mut random = Random::new(seed);
        let mut bans = random.fork("bans", 0);
        let config = clients::config(1 << bans.below(4))?;
        let mut world = World {
            config,
            is_flooded: bans.below(4) == 0,
            now: BEGIN_MS,
            queue: Queue::default(),
            slept_ms: 0,
            database: Database::default(),
            aggregators: Vec::new(),
            envoys: Vec::new(),
            checks: Checks::default(),
            changes: 0,
            faults: 0,
            trail: VecDeque::new(),
            random: random.fork("world", 0),
        };
        let regions = 1 + random.below(3);
        for region in 0..regions {
            for _ in 0..=random.below(2) {
                world.aggregators.push(Aggregator::new(region));
            }
            for _ in 0..=random.below(2) {
                let workers = usize::try_from(1 + random.below(3)).unwrap_or(1);
                world.envoys.push(Envoy::new(region, workers, &world.config, world.now));
            }
        }
        world.new_version();
        world.begin();
        Ok(world)
    }

    fn carry_out(&mut self) {
        let active_until = BEGIN_MS + ACTIVE_MS;
        while let Some(at) = self.queue.next_at() {
            self.now = at;
            if self.checks.violation.is_some() || at > active_until + SETTLE_MS {
                break;
            }
            if let Some(event) = self.queue.pop() {
                self.handle(event);
            }
        }
        if self.checks.violation.is_none() {
            self.check_rest();
        }
    }

    fn plan(&mut self, after_ms: u64, event: Event) {
        self.queue.plan(self.now + after_ms, event);
    }

    fn note(&mut self, what: impl FnOnce() -> String) {
        if self.trail.len() >= TRAIL {
            self.trail.pop_front();
        }
        let at = self.now - BEGIN_MS;
        self.trail.push_back(format!("{at:>8} ms  {}", what()));
    }

    fn draw(&mut self, from: u64, below: u64) -> u64 {
        from + self.random.below(below - from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_world_is_the_same_each_time_and_does_something() {
        let mut sum = Outcome::default();
        for seed in 0..20 {
            let outcome = run(seed);
            assert_eq!(outcome, run(seed), "seed {seed}");
            assert_eq!(outcome.violation, None, "seed {seed}");
            sum.changes += outcome.changes;
            sum.bans += outcome.bans;
            sum.checks += outcome.checks;
            sum.faults += outcome.faults;
        }
        assert!(sum.changes > 400 && sum.bans > 400 && sum.checks > 100_000 && sum.faults > 100, "{sum:?}");
    }
}
