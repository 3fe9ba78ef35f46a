//! Reports decisions to the aggregator: for each rule the counts by outcome since this worker loaded it.
//!
//! A report is sent at most once a second and holds only rules that decided a request since the last one; after a stream is opened it
//! holds all. It sums the counts that `counters` drains for Envoy's statistics, so that a request costs nothing more.

use crate::counters::RuleOutcome;
use strum::VariantArray;
use weir_core::model::exact::Algorithm;
use weir_core::model::time::MonoMs;
use weir_core::model::wire::{Counters, FilterFrame, RuleCounters};
use weir_core::rules::{Config, Rule};

/// Least time between two reports.
const REPORT_MS: u64 = 1_000;
/// Most rules of one report; further ones follow in the next.
const REPORT_RULES: usize = 256;

/// Counts by rule and outcome.
#[derive(Debug, Default)]
pub struct CounterReporter {
    totals: Vec<[u64; RuleOutcome::VARIANTS.len()]>,
    /// Rules to report.
    news: Vec<bool>,
    /// The current shadow mode of rules that live control has changed.
    shadows: Vec<Option<bool>>,
    last: Option<MonoMs>,
}

impl CounterReporter {
    /// For `rules` rules.
    pub fn new(rules: usize) -> CounterReporter {
        CounterReporter {
            totals: vec![[0; RuleOutcome::VARIANTS.len()]; rules],
            news: vec![true; rules],
            shadows: vec![None; rules],
            last: None,
        }
    }

    /// Adds decisions.
    pub fn add(&mut self, rule: usize, outcome: RuleOutcome, count: u64) {
        if let Some(total) = self.totals.get_mut(rule).and_then(|totals| totals.get_mut(outcome as usize)) {
            *total = total.saturating_add(count);
        }
        if let Some(news) = self.news.get_mut(rule) {
            *news = true;
        }
    }

    /// Sets a rule's shadow mode in place of its configuration.
    pub fn set_shadow(&mut self, rule: usize, shadow: bool) {
        let (Some(current), Some(news)) = (self.shadows.get_mut(rule), self.news.get_mut(rule)) else {
            return;
        };
        *news |= current.is_some_and(|current| current != shadow);
        *current = Some(shadow);
    }

    /// Reports all rules, on a new stream.
    pub fn begin(&mut self) {
        self.news.iter_mut().for_each(|news| *news = true);
        self.hurry();
    }

    /// Lets the next report be sent at once.
    pub fn hurry(&mut self) {
        self.last = None;
    }

    /// The next report, if one is due and a rule has changed.
    pub fn next(&mut self, config: &Config, now: MonoMs) -> Option<FilterFrame> {
        if self.last.is_some_and(|last| now.since(last) < REPORT_MS) || !self.news.contains(&true) {
            return None;
        }
        self.last = Some(now);
        let rules = config.rules.iter().zip(&self.totals).zip(&self.shadows).zip(&mut self.news);
        let rules = rules.filter_map(|(((rule, totals), shadow), news)| {
            std::mem::take(news).then(|| counters_of(rule, totals, shadow.unwrap_or(rule.shadow)))
        });
        let counters =
            Counters { rules: rules.take(REPORT_RULES).collect(), workspace: config.workspace.clone() };
        if self.news.contains(&true) {
            self.hurry();
        }
        Some(FilterFrame { counters: Some(counters), ..FilterFrame::default() })
    }
}

fn counters_of(rule: &Rule, totals: &[u64; RuleOutcome::VARIANTS.len()], shadow: bool) -> RuleCounters {
    let of = |outcome: RuleOutcome| totals.get(outcome as usize).copied().unwrap_or_default();
    let (algorithm, zone) = match rule.algorithm {
        Algorithm::Window => ("sliding_window", 0),
        Algorithm::Log => ("sliding_log", 0),
        Algorithm::Ledger { zone } => ("ledger", zone),
    };
    RuleCounters {
        name: rule.name.clone(),
        namespace: rule.namespace.clone(),
        algorithm: algorithm.to_owned(),
        limit: rule.limit,
        window_ms: rule.duration_ms,
        shadow,
        allowed: of(RuleOutcome::Allowed),
        denied: of(RuleOutcome::Denied),
        shadow_denied: of(RuleOutcome::ShadowDenied),
        exempt: of(RuleOutcome::Exempt),
        undecided: of(RuleOutcome::Undecided),
        banned: of(RuleOutcome::Banned),
        zone,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        let text = br#"{"aggregator": {"cluster": "c"}, "rules": [
            {"name": "a", "identifier": {"header": "k"}, "limit": 5, "window": "1m"},
            {"name": "b", "identifier": {"header": "k"}, "limit": 6, "window": "1h", "shadow_mode": true}]}"#;
        Config::parse(text).unwrap()
    }

    fn rows(frame: Option<FilterFrame>) -> Vec<(String, u64, u64)> {
        let rules = frame.and_then(|frame| frame.counters).map(|counters| counters.rules).unwrap_or_default();
        rules.into_iter().map(|rule| (rule.name, rule.allowed, rule.denied)).collect()
    }

    #[test]
    fn a_ledger_is_reported_with_its_zone() {
        let text = br#"{"aggregator": {"cluster": "c"}, "rules": [
            {"name": "t", "identifier": {"header": "k"}, "algorithm": "ledger", "zone": 7}]}"#;
        let frame = CounterReporter::new(1).next(&Config::parse(text).unwrap(), MonoMs(5));
        let rules = frame.and_then(|frame| frame.counters).unwrap().rules;
        assert_eq!((rules[0].algorithm.as_str(), rules[0].zone), ("ledger", 7));
    }

    #[test]
    fn all_rules_first_then_those_with_news_once_a_second_and_all_to_a_new_stream() {
        let config = config();
        let mut reporter = CounterReporter::new(2);
        let frame = reporter.next(&config, MonoMs(5));
        let counters = frame.clone().and_then(|frame| frame.counters).unwrap();
        let facts = |rule: &RuleCounters| (rule.limit, rule.window_ms, rule.shadow, rule.algorithm.clone());
        assert_eq!(facts(&counters.rules[1]), (6, 3_600_000, true, "sliding_window".to_owned()));
        assert_eq!(rows(frame), [("a".to_owned(), 0, 0), ("b".to_owned(), 0, 0)]);
        reporter.add(0, RuleOutcome::Allowed, 3);
        reporter.add(7, RuleOutcome::Allowed, 3);
        assert_eq!(reporter.next(&config, MonoMs(1_004)), None);
        assert_eq!(rows(reporter.next(&config, MonoMs(1_005))), [("a".to_owned(), 3, 0)]);
        assert_eq!(reporter.next(&config, MonoMs(9_000)), None, "nothing is new");
        reporter.add(0, RuleOutcome::Exempt, 1);
        reporter.hurry();
        assert_eq!(rows(reporter.next(&config, MonoMs(1_006))), [("a".to_owned(), 3, 0)]);
        reporter.set_shadow(0, false);
        assert_eq!(reporter.next(&config, MonoMs(8_000)), None, "as it was");
        reporter.set_shadow(0, true);
        reporter.add(0, RuleOutcome::Banned, 2);
        let counters = reporter.next(&config, MonoMs(8_000)).and_then(|frame| frame.counters).unwrap();
        assert_eq!((counters.rules[0].shadow, counters.rules[0].banned), (true, 2));
        reporter.add(1, RuleOutcome::Denied, u64::MAX);
        reporter.add(1, RuleOutcome::Denied, 1);
        reporter.begin();
        assert_eq!(
            rows(reporter.next(&config, MonoMs(10_000))),
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
        let mut reporter = CounterReporter::new(600);
        let sizes: Vec<usize> = (0..4).map(|at| rows(reporter.next(&config, MonoMs(at))).len()).collect();
        assert_eq!(sizes, [256, 256, 88, 0]);
    }
}
