//! What rules decide, from the filters' counters: totals since this aggregator first received a rule, and rates.
//!
//! Each worker sends absolute counts repeatedly. The first counts of a stream are only its starting point, as the worker may
//! have sent them to another aggregator before: a rate must not jump because a connection was lost. From then on the
//! increases are added up over all streams.
//!
//! Input is not trusted: rules are bounded in number and names in length. If a count falls, or grows by more than can have
//! been decided between two frames, it becomes a new starting point.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use weir_core::model::exact::{Algorithm, AlgorithmKind};
use weir_core::model::key::MAX_TEXT_BYTES;
use weir_core::model::outcome::{Outcomes, RuleOutcome};
use weir_core::model::time::MonoMs;
use weir_core::model::wire;
use weir_core::rules::config::RULES_MAX;

/// Most rules of all workspaces. A workspace has at most as many as places are left, so that its filters keep out no other's.
pub const MAX_RULES: usize = 4_096;
/// A rule that found no place is noted for so long; filters report theirs every second.
const LEFT_OUT_MS: u64 = 10_000;
/// Most rules of one stream that are counted.
const MAX_STREAM_RULES: usize = RULES_MAX;
/// A rule of which no counts arrived for so long, and which no stream reports, is evicted when room is needed.
const SILENT_KEPT_MS: u64 = 600_000;
/// More than any worker decides between two frames; a larger increase is ignored.
const MAX_GROWTH: u64 = 1 << 32;
/// Number of seconds that are kept, one by one.
const SECONDS: usize = 300;
/// Points of a history, and the seconds that each of them covers.
const POINTS: usize = 30;
const POINT_SECONDS: usize = 10;

/// A rule, what it decided, and its rates. The rules of several aggregators can be added up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rule {
    /// The workspace of the configuration that contains the rule.
    pub workspace: String,
    /// Its name.
    pub name: String,
    /// The namespace in which its identifiers are counted.
    pub namespace: String,
    /// An [`AlgorithmKind`]'s name.
    pub algorithm: String,
    /// The limit before overrides.
    pub limit: u64,
    /// The window, in milliseconds.
    pub window_ms: u64,
    /// The zone of a ledger; 0 for others.
    pub zone: u32,
    /// Of how many parts its identifiers are; 0 where they are digests.
    pub identifier_parts: u32,
    /// Whether the rule is in shadow mode and never denies.
    pub shadow: bool,
    /// Streams that report the rule now.
    pub workers: u64,
    /// Decisions since the region's aggregators first received the rule.
    pub decided: Outcomes<u64>,
    /// Decisions per second.
    pub per_second: Rates,
    /// The last five minutes, one point for ten seconds, the newest last.
    pub history: Outcomes<Vec<u64>>,
}

/// Decisions per second, over several spans of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rates {
    /// The last 10 s.
    pub last_10s: Outcomes<f64>,
    /// The last minute.
    pub last_1m: Outcomes<f64>,
    /// The last five minutes.
    pub last_5m: Outcomes<f64>,
}

/// The counts of all streams.
#[derive(Debug, Default)]
pub struct Counters {
    rules: BTreeMap<Name, Counted>,
    /// The last time at which a rule found no place.
    left_out: Option<MonoMs>,
}

/// Workspace and name.
type Name = (String, String);

/// The last counts of one stream; pass it to [`Counters::left`] when the stream ends.
#[derive(Debug, Default)]
pub struct OfStream {
    last: BTreeMap<Name, Outcomes<u64>>,
}

#[derive(Debug, Default)]
struct Counted {
    facts: Rule,
    last_received: MonoMs,
    /// Decisions in each second, the newest last.
    seconds: VecDeque<Outcomes<u32>>,
    /// The number of the newest second.
    newest: u64,
}

impl Rule {
    /// Its algorithm, if this aggregator has it.
    pub fn algorithm(&self) -> Option<Algorithm> {
        Some(AlgorithmKind::of(&self.algorithm)?.algorithm(self.zone))
    }

    /// Whether it has this algorithm.
    pub fn is(&self, kind: AlgorithmKind) -> bool {
        self.algorithm == kind.name()
    }

    /// Its properties, without decisions and rates.
    pub fn facts(&self) -> Rule {
        Rule {
            workspace: self.workspace.clone(),
            name: self.name.clone(),
            namespace: self.namespace.clone(),
            algorithm: self.algorithm.clone(),
            limit: self.limit,
            window_ms: self.window_ms,
            zone: self.zone,
            identifier_parts: self.identifier_parts,
            shadow: self.shadow,
            ..Rule::default()
        }
    }

    /// Adds the counts of the same rule from another aggregator.
    pub fn add(&mut self, other: &Rule) {
        let sum = |one: f64, two: f64| if two.is_finite() && two >= 0.0 { one + two } else { one };
        self.workers = self.workers.saturating_add(other.workers);
        self.decided = sum_of(self.decided, other.decided);
        let (rates, others) = (&mut self.per_second, &other.per_second);
        rates.last_10s = rates.last_10s.zip(&others.last_10s, sum);
        rates.last_1m = rates.last_1m.zip(&others.last_1m, sum);
        rates.last_5m = rates.last_5m.zip(&others.last_5m, sum);
        for outcome in RuleOutcome::ALL {
            let (points, others) = (self.history.get_mut(*outcome), other.history.get(*outcome));
            points.resize(POINTS, 0);
            // Both histories have their newest point last.
            for (count, more) in points.iter_mut().rev().zip(others.iter().rev()) {
                *count = count.saturating_add(*more);
            }
        }
    }
}

impl Counters {
    /// Takes the counts that a stream sent.
    pub fn take(&mut self, stream: &mut OfStream, sent: &wire::Counters, now: MonoMs) {
        // All are of one workspace: once one finds no place, no other new one does.
        let mut is_full = false;
        for rule in sent.rules.iter().filter(|rule| is_named(&sent.workspace, rule)) {
            let name = (sent.workspace.clone(), rule.name.clone());
            let counts = rule.outcomes();
            let is_new = !stream.last.contains_key(&name);
            let has_place = !is_new || stream.last.len() < MAX_STREAM_RULES;
            let is_looked_for = has_place && (!is_full || self.rules.contains_key(&name));
            let Some(counted) = is_looked_for.then(|| self.rule(&name, now)).flatten() else {
                (self.left_out, is_full) = (Some(now), true);
                continue;
            };
            counted.note(&sent.workspace, rule, now);
            match stream.last.insert(name, counts) {
                None => counted.facts.workers += 1,
                Some(before) => counted.grow(growth(before, counts), now),
            }
        }
    }

    /// Ends a stream; its counts remain.
    pub fn left(&mut self, stream: &OfStream) {
        for name in stream.last.keys() {
            if let Some(counted) = self.rules.get_mut(name) {
                counted.facts.workers = counted.facts.workers.saturating_sub(1);
            }
        }
    }

    /// All rules, ordered by workspace and name.
    pub fn rules(&self, now: MonoMs) -> Vec<Rule> {
        self.rules.values().map(|counted| counted.shown(now)).collect()
    }

    /// The properties of all rules, without decisions and rates, in the same order.
    pub fn facts(&self) -> impl Iterator<Item = Rule> {
        self.rules.values().map(|counted| counted.facts.clone())
    }

    /// Whether all rules that filters report are counted.
    pub fn are_complete(&self, now: MonoMs) -> bool {
        self.left_out.is_none_or(|last| now.since(last) > LEFT_OUT_MS)
    }

    /// The rule's counts, added if there is room.
    fn rule(&mut self, name: &Name, now: MonoMs) -> Option<&mut Counted> {
        if !self.rules.contains_key(name) && !self.has_place(&name.0) {
            let silent = |counted: &Counted| {
                counted.facts.workers == 0 && now.since(counted.last_received) > SILENT_KEPT_MS
            };
            self.rules.retain(|_, counted| !silent(counted));
            if !self.has_place(&name.0) {
                return None;
            }
        }
        Some(self.rules.entry(name.clone()).or_default())
    }

    /// Whether there is a place for another rule of a workspace.
    fn has_place(&self, workspace: &str) -> bool {
        let from = (workspace.to_owned(), String::new());
        let held = self.rules.range(from..).take_while(|((of, _), _)| of == workspace).count();
        held < MAX_RULES.saturating_sub(self.rules.len())
    }
}

impl Counted {
    /// Stores the rule's properties as last received.
    fn note(&mut self, workspace: &str, rule: &wire::RuleCounters, now: MonoMs) {
        self.last_received = now;
        let facts = &mut self.facts;
        facts.workspace.replace_range(.., workspace);
        facts.name.replace_range(.., &rule.name);
        facts.namespace.replace_range(.., &rule.namespace);
        facts.algorithm.replace_range(.., &rule.algorithm);
        (facts.limit, facts.window_ms, facts.shadow) = (rule.limit, rule.window_ms, rule.shadow);
        (facts.zone, facts.identifier_parts) = (rule.zone, rule.identifier_parts);
    }

    fn grow(&mut self, by: Outcomes<u64>, now: MonoMs) {
        if by == Outcomes::default() {
            return;
        }
        self.facts.decided = sum_of(self.facts.decided, by);
        self.turn_to(now);
        let by = by.map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        if let Some(newest) = self.seconds.back_mut() {
            *newest = newest.zip(&by, u32::saturating_add);
        }
    }

    /// Advances the newest second to the present.
    fn turn_to(&mut self, now: MonoMs) {
        let second = now.0 / 1_000;
        let over = usize::try_from(second.saturating_sub(self.newest)).unwrap_or(usize::MAX).min(SECONDS);
        if self.seconds.is_empty() {
            self.seconds.push_back(Outcomes::default());
        } else {
            self.seconds.extend(std::iter::repeat_n(Outcomes::default(), over));
        }
        let too_many = self.seconds.len().saturating_sub(SECONDS);
        self.seconds.drain(..too_many);
        self.newest = self.newest.max(second);
    }

    fn shown(&self, now: MonoMs) -> Rule {
        // Seconds after the newest one kept, in which nothing was decided.
        let quiet = usize::try_from((now.0 / 1_000).saturating_sub(self.newest)).unwrap_or(usize::MAX);
        let sum = |from: usize, to: usize| {
            let kept = self.seconds.iter().rev().skip(from.saturating_sub(quiet));
            let kept = kept.take(to.saturating_sub(quiet.max(from)));
            kept.fold(Outcomes::default(), |sum, count| sum_of(sum, count.map(u64::from)))
        };
        let rate = |seconds: usize| sum(0, seconds).map(|count| count as f64 / seconds as f64);
        let points: Vec<Outcomes<u64>> =
            (0..POINTS).rev().map(|back| sum(back * POINT_SECONDS, (back + 1) * POINT_SECONDS)).collect();
        Rule {
            per_second: Rates { last_10s: rate(10), last_1m: rate(60), last_5m: rate(SECONDS) },
            history: Outcomes::each(|outcome| points.iter().map(|point| *point.get(outcome)).collect()),
            ..self.facts.clone()
        }
    }
}

fn is_named(workspace: &str, rule: &wire::RuleCounters) -> bool {
    let texts = [workspace, &rule.name, &rule.namespace, &rule.algorithm];
    texts.iter().all(|text| text.len() <= MAX_TEXT_BYTES) && !workspace.is_empty() && !rule.name.is_empty()
}

fn sum_of(one: Outcomes<u64>, other: Outcomes<u64>) -> Outcomes<u64> {
    one.zip(&other, u64::saturating_add)
}

/// The increase between two frames; 0 if a count fell, or grew by more than is possible.
fn growth(before: Outcomes<u64>, now: Outcomes<u64>) -> Outcomes<u64> {
    let differences = before.zip(&now, |before, now| now.checked_sub(before));
    match differences.values().all(|by| by.is_some_and(|by| by <= MAX_GROWTH)) {
        true => differences.map(Option::unwrap_or_default),
        false => Outcomes::default(),
    }
}

#[cfg(test)]
mod tests;
