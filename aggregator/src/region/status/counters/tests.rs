//! Counts as streams send them, valid or not, and what becomes of them.

use super::*;

fn sent(rules: &[(&str, u64, u64)]) -> wire::Counters {
    let rule = |(name, allowed, denied): &(&str, u64, u64)| wire::RuleCounters {
        name: (*name).to_owned(),
        namespace: "n".to_owned(),
        algorithm: "sliding_window".to_owned(),
        limit: 10,
        window_ms: 60_000,
        identifier_parts: 2,
        allowed: *allowed,
        denied: *denied,
        ..wire::RuleCounters::default()
    };
    wire::Counters { rules: rules.iter().map(rule).collect(), workspace: "w".to_owned() }
}

fn of<'a>(rules: &'a [Rule], name: &str) -> &'a Rule {
    rules.iter().find(|rule| rule.name == name).unwrap()
}

#[test]
fn what_streams_count_is_added_up_and_stays_when_they_end() {
    let (mut counters, mut one, mut two) = (Counters::default(), OfStream::default(), OfStream::default());
    counters.take(&mut one, &sent(&[("r", 1_000, 7)]), MonoMs(0));
    counters.take(&mut two, &sent(&[("r", 0, 0)]), MonoMs(0));
    counters.take(&mut one, &sent(&[("r", 1_020, 8)]), MonoMs(1_000));
    counters.take(&mut two, &sent(&[("r", 30, 0)]), MonoMs(1_500));
    counters.take(&mut two, &sent(&[("r", 30, 0)]), MonoMs(1_600));
    counters.left(&one);
    let rules = counters.rules(MonoMs(2_000));
    let rule = of(&rules, "r");
    assert_eq!((rule.decided.allowed, rule.decided.denied, rule.workers), (50, 1, 1));
    assert_eq!(rule.per_second.last_10s.allowed, 5.0);
    assert_eq!(rule.per_second.last_5m.allowed, 50.0 / 300.0);
    assert_eq!(rule.history.allowed.last(), Some(&50));
    assert_eq!((rule.limit, rule.window_ms, rule.namespace.as_str()), (10, 60_000, "n"));
    assert_eq!((rule.identifier_parts, rule.facts().identifier_parts), (2, 2));
}

#[test]
fn rates_fall_as_time_goes_by_and_totals_do_not() {
    let (mut counters, mut stream) = (Counters::default(), OfStream::default());
    counters.take(&mut stream, &sent(&[("r", 0, 0)]), MonoMs(5_000));
    counters.take(&mut stream, &sent(&[("r", 60, 0)]), MonoMs(5_000));
    let at = |ms| counters.rules(MonoMs(ms))[0].clone();
    let rates = |rule: &Rule| {
        let Rates { last_10s, last_1m, last_5m } = rule.per_second;
        (last_10s.allowed, last_1m.allowed, last_5m.allowed)
    };
    assert_eq!(rates(&at(14_999)), (6.0, 1.0, 0.2));
    assert_eq!(rates(&at(15_000)), (0.0, 1.0, 0.2));
    assert_eq!(rates(&at(64_999)), (0.0, 1.0, 0.2));
    assert_eq!(rates(&at(65_000)), (0.0, 0.0, 0.2));
    assert_eq!(rates(&at(305_000)), (0.0, 0.0, 0.0));
    assert_eq!(rates(&at(u64::MAX)), (0.0, 0.0, 0.0));
    assert_eq!(at(65_000).history.allowed[POINTS - 7], 60);
    assert_eq!(at(u64::MAX).decided.allowed, 60);
}

#[test]
fn time_that_stands_still_or_leaps_keeps_what_is_kept_bounded() {
    let (mut counters, mut stream) = (Counters::default(), OfStream::default());
    for (count, now) in [0, 9_000, 9_000, 1, u64::MAX, 0, u64::MAX].into_iter().enumerate() {
        counters.take(&mut stream, &sent(&[("r", count as u64, 0)]), MonoMs(now));
    }
    let counted = counters.rules.values().next().unwrap();
    assert!(counted.seconds.len() <= SECONDS);
    assert_eq!(counters.rules(MonoMs(u64::MAX))[0].decided.allowed, 6);
}

#[test]
fn counts_that_fall_or_leap_begin_anew() {
    let (mut counters, mut stream) = (Counters::default(), OfStream::default());
    for allowed in [10, 20, 5, 6, u64::MAX, u64::MAX, 0, 3] {
        counters.take(&mut stream, &sent(&[("r", allowed, 0)]), MonoMs(1_000));
    }
    assert_eq!(counters.rules(MonoMs(1_000))[0].decided.allowed, 10 + 1 + 3);
}

#[test]
fn many_rules_and_long_names_are_refused() {
    let mut counters = Counters::default();
    let long = "n".repeat(MAX_TEXT_BYTES + 1);
    counters.take(&mut OfStream::default(), &sent(&[(&long, 1, 1), ("", 1, 1)]), MonoMs(0));
    assert_eq!(counters.rules(MonoMs(0)), []);
    for stream in 0..20 {
        let names: Vec<_> = (0..2 * MAX_STREAM_RULES).map(|rule| format!("{stream}-{rule}")).collect();
        let rules: Vec<_> = names.iter().map(|name| (name.as_str(), 0, 0)).collect();
        let mut of = OfStream::default();
        counters.take(&mut of, &sent(&rules), MonoMs(0));
        assert_eq!(of.last.len(), if stream < 2 { MAX_STREAM_RULES } else { 0 });
        counters.left(&of);
    }
    assert_eq!(counters.rules(MonoMs(0)).len(), MAX_RULES / 2, "one workspace leaves places to others");
    assert!(!counters.are_complete(MonoMs(LEFT_OUT_MS)) && counters.are_complete(MonoMs(LEFT_OUT_MS + 1)));
    let elsewhere = wire::Counters { workspace: "other".into(), ..sent(&[("new", 0, 0)]) };
    let mut of = OfStream::default();
    counters.take(&mut of, &elsewhere, MonoMs(0));
    counters.left(&of);
    assert_eq!(counters.rules(MonoMs(0)).len(), MAX_RULES / 2 + 1);
    counters.take(&mut OfStream::default(), &sent(&[("new", 0, 0)]), MonoMs(SILENT_KEPT_MS + 1));
    assert_eq!(counters.rules(MonoMs(0)).len(), 1, "rules without reports are evicted");
}

#[test]
fn rules_of_several_aggregators_are_added_point_by_point() {
    let (mut counters, mut stream) = (Counters::default(), OfStream::default());
    counters.take(&mut stream, &sent(&[("r", 0, 0)]), MonoMs(0));
    counters.take(&mut stream, &sent(&[("r", 10, 4)]), MonoMs(0));
    let mut rule = counters.rules(MonoMs(0))[0].clone();
    let mut other = rule.clone();
    other.history.denied.drain(..POINTS - 1);
    other.per_second.last_10s.denied = f64::NAN;
    rule.add(&other);
    assert_eq!((rule.decided.allowed, rule.workers), (20, 2));
    assert_eq!((rule.per_second.last_10s.allowed, rule.per_second.last_10s.denied), (2.0, 0.4));
    assert_eq!(rule.history.denied.last(), Some(&8));
    let text = serde_json::to_string(&rule).unwrap();
    assert_eq!(serde_json::from_str::<Rule>(&text).unwrap(), rule);
}
