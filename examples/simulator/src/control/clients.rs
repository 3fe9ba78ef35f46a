//! Clients whose requests rules deny until they ban them, and the way of these bans to the database.
//!
//! A denial, a ban by a rule, and its proposal are the core's code, as the filter drives it. Each client always exceeds its
//! limit, so that every request that no ban denies is a violation.

use super::events::{Event, LATENCY_MS};
use super::parts::Worker;
use super::targets::{CLIENTS, FLOODED, NAMESPACE, OF, THRESHOLD, WORKSPACE};
use super::{ACTIVE_MS, BEGIN_MS, World};
use weir_core::bans::queue::{BETWEEN_MS, MAX_WAITING, WITHIN_MS};
use weir_core::control::change::ChangeOutcome;
use weir_core::control::{Scratch, Subject};
use weir_core::model::shared::MemoryShared;
use weir_core::model::time::{MonoMs, Now};
use weir_core::model::wire;
use weir_core::rules::{Ban, Config};

/// The rule that bans clients.
pub const LOGIN: usize = 0;
/// The rule whose clients are a flood.
pub const FLOOD: usize = 1;
/// The workspace of a filter that proposes a flood.
const FOREIGN: &str = "x";
/// How long such a filter proposes its bans.
const FLOOD_MS: u64 = 10_000;

/// The rules of all Envoys of a world, whose first ban lasts so many seconds.
pub fn config(first_s: u64) -> Result<Config, String> {
    let rule = |name: &str, namespace: &str, threshold: u64| {
        format!(
            r#"{{"name": "{name}", "namespace": "{namespace}", "identifier": {{"header": "x"}},
                "limit": 1, "window": "1m", "ban": {{"threshold": {threshold}, "window": "1m",
                "duration": "{first_s}s", "max_duration": "{}s"}}}}"#,
            4 * first_s
        )
    };
    let rules = [rule("login", NAMESPACE, THRESHOLD), rule("flood", FLOODED, 1)].join(", ");
    let text =
        format!(r#"{{"workspace": "{WORKSPACE}", "aggregator": {{"cluster": "weir"}}, "rules": [{rules}]}}"#);
    Config::parse(text.as_bytes()).map_err(|errors| errors.to_string())
}

impl Worker {
    /// A request of a client under a rule. True if it is denied by the rule.
    fn request(&mut self, shared: &mut MemoryShared, (rule, client): (usize, &str), now: Now) -> bool {
        let identifier = client.as_bytes();
        let subject = Subject {
            workspace: WORKSPACE,
            namespace: if rule == LOGIN { NAMESPACE } else { FLOODED },
            raw: identifier,
            canonical: identifier,
            window_ms: 60_000,
            address: None,
            allowed: None,
        };
        let found = self.keeper.controls().find(&subject, now.unix, &mut Scratch::default());
        self.bans.begin();
        self.bans.accuse(rule, identifier);
        if found.ban.is_some() {
            self.bans.on_banned(&mut self.keeper, rule, now);
        } else if !found.exempt {
            self.bans.denied(shared, &mut self.limiter, &mut self.keeper, rule, now);
            return true;
        }
        false
    }

    /// The second of the mark of a client's last ban, 0 if there is none: denials are counted from there.
    fn epoch(&self, client: &str, now: Now) -> u64 {
        let last = self.keeper.controls().banned_here(OF, client.as_bytes(), now);
        last.map_or(0, |last| last.mark.0 / 1_000)
    }

    /// The same of all clients.
    pub fn epochs(&self, now: Now) -> [u64; CLIENTS.len()] {
        CLIENTS.map(|client| self.epoch(client, now))
    }
}

impl World {
    /// A client sends some requests to a worker.
    pub fn requests(&mut self, envoy: usize) {
        let after_ms = self.draw(50, 1_000);
        if self.now < BEGIN_MS + ACTIVE_MS {
            self.plan(after_ms, Event::Requests { envoy });
        }
        let client = CLIENTS[self.random.below(CLIENTS.len() as u64) as usize];
        let times = 1 + self.random.below(THRESHOLD + 1);
        let now = self.now;
        let found = &mut self.envoys[envoy];
        let at = self.random.below(found.workers.len() as u64) as usize;
        let worker = &mut found.workers[at];
        let clocks = worker.limiter.moment(MonoMs(now));
        let before = worker.epochs(clocks);
        for _ in 0..times {
            let epoch = worker.epoch(client, clocks);
            if worker.request(&mut found.shared, (LOGIN, client), clocks) {
                *found.violations.entry((client, epoch)).or_default() += 1;
                found.since_ban.entry(client).and_modify(|(_, denied)| *denied += 1);
            }
        }
        self.note_bans(envoy, at, before);
    }

    /// Clients with invented identifiers, which a rule of another namespace bans.
    pub fn flood_envoy(&mut self, envoy: usize) {
        let count = self.draw(100, 700);
        self.note(|| format!("{count} clients flood envoy {envoy}"));
        let now = self.now;
        let found = &mut self.envoys[envoy];
        let worker = &mut found.workers[0];
        let clocks = worker.limiter.moment(MonoMs(now));
        for number in 0..count {
            worker.request(&mut found.shared, (FLOOD, &format!("flood-{number}")), clocks);
        }
    }

    /// A filter of another workspace proposes more bans of invented identifiers to an aggregator than can wait, again and again.
    pub fn flood_aggregator(&mut self, aggregator: usize) {
        let count = self.draw(100, 3 * MAX_WAITING as u64);
        self.note(|| format!("a filter proposes {count} bans to aggregator {aggregator}"));
        let (start, now) = (self.aggregators[aggregator].start, self.now);
        let clocks = self.aggregators[aggregator].clocks(now, self.slept_ms);
        let ban = |number: u64| wire::Ban {
            workspace: FOREIGN.into(),
            namespace: FLOODED.into(),
            identifier: format!("flood-{number}").into_bytes(),
            until_ms: clocks.unix.0 + 20_000,
            level: 1,
            rule: "flood".into(),
            since_ms: clocks.unix.0,
        };
        let bans: Vec<wire::Ban> = (0..count).map(ban).collect();
        for round in 0..FLOOD_MS / BETWEEN_MS {
            self.plan(round * BETWEEN_MS, Event::Proposed { aggregator, start, bans: bans.clone() });
        }
    }

    /// The aggregator of a stream answers the subscriber's ping, so that the Envoy takes over its clock.
    pub fn ping(&mut self, envoy: usize) {
        let (now, slept_ms) = (self.now, self.slept_ms);
        let found = &mut self.envoys[envoy];
        let Some(stream) = &found.stream else { return };
        let aggregator = &self.aggregators[stream.aggregator];
        let unix_ms = aggregator.clocks(now, slept_ms).unix.0;
        let Some(worker) = found.workers.get_mut(found.subscriber) else { return };
        worker.outputs(&mut found.shared, MonoMs(now));
        let Some(ping) = worker.ping.take().filter(|_| aggregator.frozen_until <= now) else { return };
        let pong = Some(wire::Pong { sent_ms: ping.sent_ms, unix_ms, ..Default::default() });
        let answer = wire::RegionFrame { pong, ..Default::default() };
        worker.limiter.on_frame(&mut found.shared, &answer, MonoMs(now));
    }

    /// The subscriber proposes the bans that are due.
    pub fn propose(&mut self, envoy: usize) {
        let now = self.now;
        let found = &mut self.envoys[envoy];
        let Some(stream) = &mut found.stream else { return };
        let Some(worker) = found.workers.get_mut(found.subscriber) else { return };
        let clocks = worker.limiter.moment(MonoMs(now));
        let rule_in = |workspace: &str, namespace: &str| worker.bans.rule_in(workspace, namespace);
        let frames = worker.proposals.take_frames(&worker.keeper, rule_in, clocks);
        let streams = found.streams;
        for frame in frames {
            stream.answers = stream.answers.max(now + 1 + self.random.below(LATENCY_MS));
            let event = Event::Proposes { envoy, streams, bans: frame.bans };
            self.queue.plan(stream.answers, event);
        }
    }

    /// Proposals arrive at an aggregator.
    pub fn proposed(&mut self, aggregator: usize, start: u64, bans: &[wire::Ban]) {
        let now = self.now;
        let found = &mut self.aggregators[aggregator];
        let clocks = found.clocks(now, self.slept_ms);
        let Some(process) = found.process.as_mut().filter(|_| found.start == start) else { return };
        process.queue.propose(bans, clocks.unix);
        if !std::mem::replace(&mut process.is_storing, true) {
            self.plan(0, Event::Store { aggregator, start });
        }
    }

    /// An aggregator stores the next batch of proposals.
    pub fn store(&mut self, aggregator: usize, start: u64) {
        let (now, slept_ms) = (self.now, self.slept_ms);
        let found = &mut self.aggregators[aggregator];
        let clocks = found.clocks(now, slept_ms);
        let Some(process) = found.process.as_mut().filter(|_| found.start == start) else { return };
        let changes = process.queue.take();
        if changes.is_empty() {
            process.is_storing = false;
            return;
        }
        if self.database.away_until > now {
            // The Envoys propose them again.
            let fails_ms = (self.database.away_until - now).min(WITHIN_MS);
            return self.plan(fails_ms + BETWEEN_MS, Event::Store { aggregator, start });
        }
        let results = self.write(aggregator, &changes, clocks.unix);
        let kept: Vec<&ChangeOutcome> =
            results.iter().filter(|changed| !matches!(changed, ChangeOutcome::Done(..))).take(2).collect();
        self.note(|| format!("aggregator {aggregator} stores {} bans, but {kept:?}", changes.len()));
        self.plan(BETWEEN_MS, Event::Store { aggregator, start });
    }

    /// The rule that bans clients.
    pub fn ban_of_login(&self) -> Option<Ban> {
        self.config.rules.get(LOGIN)?.ban
    }
}
