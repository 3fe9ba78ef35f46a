//! Reports decisions to the aggregator: for each rule the counts by outcome since this worker began to count it.
//!
//! Configurations that one worker runs at a time, as while a reload replaces a listener, count a rule of one name together.
//!
//! A report is sent at most once a second and holds only rules that decided a request since the last one; after a stream is opened it
//! holds all. It sums the counts that `counters` drains for Envoy's statistics, so that a request costs nothing more.

use std::collections::{BTreeMap, BTreeSet};
use weir_core::model::outcome::RuleOutcome;
use weir_core::model::time::MonoMs;
use weir_core::model::wire::{Counters, FilterFrame, MAX_FRAME_CELLS, RuleCounters};
use weir_core::rules::{Config, Rule};

/// Least time between two reports.
const REPORT_MS: u64 = 1_000;
/// Most rules of one report; further ones follow in the next.
const REPORT_RULES: usize = 256;

/// Workspace and name of a rule.
type Name = (String, String);

/// Counts by rule and outcome.
#[derive(Debug, Default)]
pub struct CounterReporter {
    rules: BTreeMap<usize, Counted>,
    places: BTreeMap<Name, usize>,
    next_place: usize,
    last: Option<MonoMs>,
}

#[derive(Debug)]
struct Counted {
    workspace: String,
    /// The rule as the newest configuration has it, and the sums.
    counters: RuleCounters,
    /// It is to be reported.
    is_news: bool,
    /// Configurations that have it.
    users: usize,
    /// The newest of them.
    newest: u32,
}

impl CounterReporter {
    /// Adds the rules of the configuration of `root`. Returns the place of each.
    pub fn register(&mut self, root: u32, config: &Config) -> Vec<usize> {
        let place_of = |rule: &Rule| {
            let name = (config.workspace.clone(), rule.name.clone());
            let place = *self.places.entry(name).or_insert_with(|| {
                self.next_place = self.next_place.wrapping_add(1);
                self.next_place
            });
            let counted = self.rules.entry(place).or_insert_with(|| Counted {
                workspace: config.workspace.clone(),
                counters: RuleCounters::default(),
                is_news: true,
                users: 0,
                newest: root,
            });
            counted.counters = described(rule, &counted.counters);
            (counted.is_news, counted.newest) = (true, root);
            counted.users = counted.users.saturating_add(1);
            place
        };
        config.rules.iter().map(place_of).collect()
    }

    /// Removes the rules of a configuration that has ended.
    pub fn release(&mut self, places: &[usize]) {
        for place in places {
            let Some(counted) = self.rules.get_mut(place) else { continue };
            counted.users = counted.users.saturating_sub(1);
            if counted.users == 0
                && let Some(counted) = self.rules.remove(place)
            {
                self.places.remove(&(counted.workspace, counted.counters.name));
            }
        }
    }

    /// Adds decisions to the rule at `place`.
    pub fn add(&mut self, place: usize, outcome: RuleOutcome, count: u64) {
        let Some(counted) = self.rules.get_mut(&place) else { return };
        let total = counted.counters.count_mut(outcome);
        *total = total.saturating_add(count);
        counted.is_news = true;
    }

    /// Sets the shadow mode of the rule at `place`, which live control may have changed in the configuration of `root`.
    pub fn set_shadow(&mut self, root: u32, place: usize, shadow: bool) {
        if let Some(counted) = self.rules.get_mut(&place)
            && counted.newest == root
        {
            counted.is_news |= counted.counters.shadow != shadow;
            counted.counters.shadow = shadow;
        }
    }

    /// The workspaces whose rules it counts, as many as a hello may have.
    pub fn workspaces(&self) -> Vec<String> {
        let all: BTreeSet<&String> = self.rules.values().map(|counted| &counted.workspace).collect();
        all.into_iter().take(MAX_FRAME_CELLS).cloned().collect()
    }

    /// Reports all rules, on a new stream.
    pub fn begin(&mut self) {
        self.rules.values_mut().for_each(|counted| counted.is_news = true);
        self.hurry();
    }

    /// Lets the next report be sent at once.
    fn hurry(&mut self) {
        self.last = None;
    }

    /// The next report, if one is due and a rule has changed. It has rules of one workspace.
    pub fn next(&mut self, now: MonoMs) -> Option<FilterFrame> {
        if self.last.is_some_and(|last| now.since(last) < REPORT_MS) {
            return None;
        }
        let report = self.report()?;
        self.last = Some(now);
        if self.rules.values().any(|counted| counted.is_news) {
            self.hurry();
        }
        Some(report)
    }

    /// All reports of rules that have changed, due or not.
    pub fn rest(&mut self) -> Vec<FilterFrame> {
        std::iter::from_fn(|| self.report()).collect()
    }

    fn report(&mut self) -> Option<FilterFrame> {
        let workspace = self.rules.values().find(|counted| counted.is_news)?.workspace.clone();
        let news =
            self.rules.values_mut().filter(|counted| counted.is_news && counted.workspace == workspace);
        let rules = news.take(REPORT_RULES).map(|counted| {
            counted.is_news = false;
            counted.counters.clone()
        });
        let counters = Counters { rules: rules.collect(), workspace };
        Some(FilterFrame { counters: Some(counters), ..FilterFrame::default() })
    }
}

/// The description of `rule`, with the sums of `counted`.
fn described(rule: &Rule, counted: &RuleCounters) -> RuleCounters {
    let zone = rule.algorithm.zone().unwrap_or(0);
    RuleCounters {
        name: rule.name.clone(),
        namespace: rule.namespace.clone(),
        algorithm: rule.algorithm.kind().name().to_owned(),
        limit: rule.limit,
        window_ms: rule.duration_ms,
        shadow: rule.shadow,
        zone,
        identifier_parts: u32::try_from(rule.parts_of_identifiers()).unwrap_or_default(),
        ..counted.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        let text = br#"{"aggregator": {"cluster": "c"}, "rules": [
            {"name": "a", "identifier": {"header": "k"}, "limit": 5, "window": "1m"},
            {"name": "b", "identifier": [{"header": "k"}, {"header": "j"}], "limit": 6, "window": "1h", "shadow_mode": true}]}"#;
        Config::parse(text).unwrap()
    }

    /// A worker with one configuration, and the places of its rules.
    fn reporter(config: &Config) -> (CounterReporter, Vec<usize>) {
        let mut reporter = CounterReporter::default();
        let places = reporter.register(1, config);
        (reporter, places)
    }

    fn rows(frame: Option<FilterFrame>) -> Vec<(String, u64, u64)> {
        let rules = frame.and_then(|frame| frame.counters).map(|counters| counters.rules).unwrap_or_default();
        rules.into_iter().map(|rule| (rule.name, rule.allowed, rule.denied)).collect()
    }

    #[test]
    fn a_ledger_is_reported_with_its_zone() {
        let text = br#"{"aggregator": {"cluster": "c"}, "rules": [
            {"name": "t", "identifier": {"header": "k"}, "algorithm": "ledger", "zone": 7}]}"#;
        let (mut reporter, _) = reporter(&Config::parse(text).unwrap());
        let frame = reporter.next(MonoMs(5));
        let rules = frame.and_then(|frame| frame.counters).unwrap().rules;
        assert_eq!((rules[0].algorithm.as_str(), rules[0].zone), ("ledger", 7));
    }

    #[test]
    fn all_rules_first_then_those_with_news_once_a_second_and_all_to_a_new_stream() {
        let (mut reporter, places) = reporter(&config());
        let frame = reporter.next(MonoMs(5));
        let counters = frame.clone().and_then(|frame| frame.counters).unwrap();
        let facts = |rule: &RuleCounters| (rule.limit, rule.window_ms, rule.shadow, rule.algorithm.clone());
        assert_eq!(facts(&counters.rules[1]), (6, 3_600_000, true, "sliding_window".to_owned()));
        assert_eq!((counters.rules[0].identifier_parts, counters.rules[1].identifier_parts), (1, 2));
        assert_eq!(rows(frame), [("a".to_owned(), 0, 0), ("b".to_owned(), 0, 0)]);
        reporter.add(places[0], RuleOutcome::Allowed, 3);
        reporter.add(7, RuleOutcome::Allowed, 3);
        assert_eq!(reporter.next(MonoMs(1_004)), None);
        assert_eq!(rows(reporter.next(MonoMs(1_005))), [("a".to_owned(), 3, 0)]);
        assert_eq!(reporter.next(MonoMs(9_000)), None, "nothing is new");
        reporter.add(places[0], RuleOutcome::Exempt, 1);
        reporter.hurry();
        assert_eq!(rows(reporter.next(MonoMs(1_006))), [("a".to_owned(), 3, 0)]);
        reporter.set_shadow(1, places[0], false);
        assert_eq!(reporter.next(MonoMs(8_000)), None, "as it was");
        reporter.set_shadow(1, places[0], true);
        reporter.add(places[0], RuleOutcome::Banned, 2);
        let counters = reporter.next(MonoMs(8_000)).and_then(|frame| frame.counters).unwrap();
        assert_eq!((counters.rules[0].shadow, counters.rules[0].banned), (true, 2));
        reporter.add(places[1], RuleOutcome::Denied, u64::MAX);
        reporter.add(places[1], RuleOutcome::Denied, 1);
        reporter.begin();
        assert_eq!(
            rows(reporter.next(MonoMs(10_000))),
            [("a".to_owned(), 3, 0), ("b".to_owned(), 0, u64::MAX)]
        );
    }

    #[test]
    fn many_rules_are_reported_in_several_frames() {
        let rule = |at: usize| {
            format!(r#"{{"name": "r{at}", "identifier": {{"header": "k"}}, "limit": 5, "window": "1m"}}"#)
        };
        let rules: Vec<String> = (0..600).map(rule).collect();
        let text = format!(r#"{{"aggregator": {{"cluster": "c"}}, "rules": [{}]}}"#, rules.join(","));
        let config = Config::parse(text.as_bytes()).unwrap();
        let (mut reporter, _) = reporter(&config);
        let sizes: Vec<usize> = (0..4).map(|at| rows(reporter.next(MonoMs(at))).len()).collect();
        assert_eq!(sizes, [256, 256, 88, 0]);
        // The last ones are sent whether due or not.
        reporter.begin();
        assert_eq!(rows(reporter.next(MonoMs(4))).len(), 256);
        reporter.begin();
        let rest: Vec<usize> = reporter.rest().into_iter().map(|frame| rows(Some(frame)).len()).collect();
        assert_eq!(rest, [256, 256, 88]);
        assert!(reporter.rest().is_empty());
    }

    #[test]
    fn configurations_of_one_worker_count_a_rule_together_until_the_last_ends() {
        let (mut reporter, before) = reporter(&config());
        reporter.add(before[0], RuleOutcome::Allowed, 3);
        let text = br#"{"aggregator": {"cluster": "c"}, "rules": [
            {"name": "a", "identifier": {"header": "k"}, "limit": 7, "window": "1m"}]}"#;
        let after = reporter.register(2, &Config::parse(text).unwrap());
        reporter.add(after[0], RuleOutcome::Allowed, 4);
        reporter.set_shadow(1, before[0], true);
        let counters = reporter.next(MonoMs(5)).and_then(|frame| frame.counters).unwrap();
        let [a, b] = &counters.rules[..] else { panic!("two rules") };
        assert_eq!((a.limit, a.allowed, a.shadow, b.name.as_str()), (7, 7, false, "b"));
        reporter.release(&before);
        reporter.begin();
        assert_eq!(rows(reporter.next(MonoMs(10))), [("a".to_owned(), 7, 0)]);
        reporter.release(&after);
        reporter.begin();
        assert_eq!(reporter.next(MonoMs(20)), None);
    }

    #[test]
    fn a_report_has_rules_of_one_workspace() {
        let (mut reporter, _) = reporter(&config());
        let text = br#"{"workspace": "w", "aggregator": {"cluster": "c"}, "rules": [
            {"name": "a", "identifier": {"header": "k"}, "limit": 7, "window": "1m"}]}"#;
        let of_w = reporter.register(2, &Config::parse(text).unwrap());
        assert_eq!(reporter.workspaces(), ["default", "w"]);
        let mut next = |at| reporter.next(MonoMs(at)).and_then(|frame| frame.counters);
        let sent: Vec<_> =
            (0..3).filter_map(&mut next).map(|sent| (sent.workspace, sent.rules.len())).collect();
        assert_eq!(sent, [("default".to_owned(), 2), ("w".to_owned(), 1)]);
        reporter.release(&of_w);
        assert_eq!(reporter.workspaces(), ["default"]);
    }
}
