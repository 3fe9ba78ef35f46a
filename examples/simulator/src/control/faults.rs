//! What goes wrong: streams, programs, machines, clocks and the database.

use super::check::{COMPARISON_MS, RETRY_MS, SKEW_MS};
use super::database::Tables;
use super::events::Event;
use super::parts::clock;
use super::{ACTIVE_MS, BEGIN_MS, World};
use weir_core::model::time::MonoMs;

/// A night in which every machine is suspended: longer than a control that is over is kept.
const NIGHT_MS: u64 = 25 * 60 * 60 * 1_000;
/// How long a database keeps what is over.
const RETENTION_MS: u64 = 24 * 60 * 60 * 1_000;

impl World {
    /// One fault, unless the world comes to rest.
    pub fn fault(&mut self) {
        if self.now >= BEGIN_MS + ACTIVE_MS {
            return;
        }
        let after_ms = self.draw(300, 12_000);
        self.plan(after_ms, Event::Fault);
        self.faults += 1;
        let envoy = self.random.below(self.envoys.len() as u64) as usize;
        let aggregator = self.random.below(self.aggregators.len() as u64) as usize;
        match self.random.below(if self.is_flooded { 15 } else { 13 }) {
            0 | 1 => self.cut(envoy),
            2 => self.crash(aggregator),
            3 => {
                self.note(|| format!("envoy {envoy} starts again"));
                let (now, workers) = (self.now, self.envoys[envoy].workers.len());
                self.envoys[envoy].restart(workers, &self.config, now, self.slept_ms);
                self.begin_envoy(envoy);
            }
            4 => {
                let until = self.now + self.draw(100, 8_000);
                self.note(|| format!("aggregator {aggregator} is frozen until {}", until - BEGIN_MS));
                let found_by = until + self.comparison_ms();
                let frozen = &mut self.aggregators[aggregator];
                frozen.frozen_until = frozen.frozen_until.max(until);
                frozen.last_fault = frozen.last_fault.max(found_by);
            }
            5 => {
                let until = self.now + self.draw(100, 8_000);
                self.note(|| format!("envoy {envoy} is frozen until {}", until - BEGIN_MS));
                let frozen = &mut self.envoys[envoy];
                frozen.frozen_until = frozen.frozen_until.max(until);
                frozen.last_fault = frozen.last_fault.max(until);
            }
            6 => {
                self.database.away_until = self.database.away_until.max(self.now + self.draw(100, 12_000));
                let until = self.database.away_until;
                self.note(|| format!("the database is away until {}", until - BEGIN_MS));
                let found_by = until + RETRY_MS + self.comparison_ms();
                self.checks.database_fault = self.checks.database_fault.max(found_by);
            }
            7 => self.set_back(Some(Tables::default()), "is emptied"),
            8 => {
                self.note(|| "the database is dumped".to_owned());
                self.database.dump = Some(self.database.tables.clone());
            }
            9 => {
                let dump = self.database.dump.clone();
                self.set_back(dump, "is restored from its dump");
            }
            10 => {
                let skew_ms = self.draw(0, 2 * SKEW_MS).cast_signed() - SKEW_MS.cast_signed();
                self.note(|| format!("clocks of envoy {envoy} and aggregator {aggregator}: {skew_ms} ms"));
                self.envoys[envoy].skew_ms = skew_ms;
                self.aggregators[aggregator].skew_ms = skew_ms;
            }
            11 => self.lose(),
            12 => self.night(),
            13 => {
                self.is_flooded = false;
                self.flood_envoy(envoy);
            }
            _ => {
                self.is_flooded = false;
                self.flood_aggregator(aggregator);
            }
        }
    }

    /// Rows are deleted beside their edition: one, or all.
    fn lose(&mut self) {
        let rows = &self.database.tables.rows;
        let which = self.random.below(2 * rows.len() as u64);
        let place = rows.keys().nth(which as usize).cloned();
        self.note(|| format!("the database loses the row of {place:?}, or all"));
        self.database.lose(place.as_ref());
        self.new_version();
        self.checks.database_fault = self.checks.database_fault.max(self.found_by());
    }

    /// When it is found at the latest that rows are missing, if any are.
    pub fn found_by(&self) -> u64 {
        if !self.database.tables.has_lost() {
            return self.now;
        }
        let frozen = self.aggregators.iter().map(|found| found.frozen_until).max();
        let read = frozen.unwrap_or(0).max(self.now).max(self.database.away_until + RETRY_MS);
        read + COMPARISON_MS
    }

    /// How long it takes at most to find that rows are missing, if any are.
    fn comparison_ms(&self) -> u64 {
        if self.database.tables.has_lost() { COMPARISON_MS } else { 0 }
    }

    /// Ends the stream of an Envoy, with all that is under way on it. Another worker may subscribe.
    pub fn cut(&mut self, envoy: usize) {
        self.note(|| format!("the stream of envoy {envoy} ends"));
        let now = self.now;
        let (pause_ms, next) = (self.draw(10, 1_000), self.random.next() as usize);
        let found = &mut self.envoys[envoy];
        found.streams += 1;
        if let Some(worker) = found.workers.get_mut(found.subscriber).filter(|_| found.stream.is_some()) {
            worker.limiter.on_closed(&mut found.shared, MonoMs(now));
        }
        (found.stream, found.last_fault) = (None, found.last_fault.max(now));
        found.subscriber = next % found.workers.len().max(1);
        let streams = found.streams;
        self.plan(pause_ms, Event::Open { envoy, streams });
    }

    fn crash(&mut self, aggregator: usize) {
        self.note(|| format!("aggregator {aggregator} ends"));
        let (now, pause_ms) = (self.now, self.draw(50, 5_000));
        let ended = &mut self.aggregators[aggregator];
        ended.start += 1;
        (ended.process, ended.last_fault) = (None, ended.last_fault.max(now + pause_ms));
        for envoy in 0..self.envoys.len() {
            if self.envoys[envoy].stream.as_ref().is_some_and(|stream| stream.aggregator == aggregator) {
                self.cut(envoy);
            }
        }
        self.plan(pause_ms, Event::Start { aggregator });
    }

    fn set_back(&mut self, to: Option<Tables>, what: &str) {
        let Some(to) = to else { return };
        self.note(|| format!("the database {what}"));
        self.database.tables = to;
        self.was_set_back();
    }

    fn night(&mut self) {
        self.note(|| "all machines are suspended for a night".to_owned());
        // Monotonic clocks do not count it.
        self.slept_ms += NIGHT_MS;
        let before = clock(self.now + self.slept_ms - RETENTION_MS, 0);
        self.database.tidy(before);
        self.note(|| "the database is cleaned up".to_owned());
    }
}
