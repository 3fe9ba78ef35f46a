//! Comparisons with naive references, and with runs with a given outcome.

use super::*;
use crate::plan::Topology;
use crate::random::Random;

fn plan(rules: Vec<Rule>) -> Plan {
    Plan {
        seed: 1,
        topology: Topology::region(1),
        rules,
        traffic: Vec::new(),
        faults: Vec::new(),
        network: Default::default(),
        schedule: Default::default(),
        settle_ms: 0,
        traffic_ms: 1_000,
        calls: None,
        quiet_ms: 0,
    }
}

fn arrival_at(at_ms: u64, identifier: u64, cost: u64, rules: u64) -> Arrival {
    Arrival { at_us: at_ms * 1_000, region: 0, envoy: 0, worker: 0, identifier, cost, rules }
}

fn decide(measure: &mut Measure, arrival: Arrival, verdict: Verdict, shadow_denied: u64) {
    let at_us = arrival.at_us;
    measure.decided(&Decided { arrival, at_us, verdict, shadow_denied, retry_after_ms: None });
}

/// Weir admits every request.
fn pass(measure: &mut Measure, arrival: Arrival) {
    measure.arrived(&arrival);
    decide(measure, arrival, Verdict::Admitted, 0);
}

/// A naive exact log that keeps every charge.
#[derive(Default)]
struct Naive(Vec<(u64, usize, u64, u64)>);

impl Naive {
    fn admits(&self, rule: usize, limits: &Rule, arrival: &Arrival) -> bool {
        let counts = |(at, of, identifier, _): &&(u64, usize, u64, u64)| {
            *of == rule && *identifier == arrival.identifier && arrival.at_us - at < limits.window_ms * 1_000
        };
        let used: u64 = self.0.iter().filter(counts).map(|(_, _, _, cost)| cost).sum();
        used + arrival.cost <= limits.limit
    }

    fn decide(&mut self, rules: &[Rule], arrival: &Arrival) -> bool {
        let all: Vec<usize> = (0..rules.len()).filter(|rule| arrival.rules & 1 << rule != 0).collect();
        let fits: Vec<usize> =
            all.iter().copied().filter(|rule| self.admits(*rule, &rules[*rule], arrival)).collect();
        let admitted = all.iter().all(|rule| rules[*rule].shadow || fits.contains(rule));
        if admitted {
            self.0.extend(fits.iter().map(|rule| (arrival.at_us, *rule, arrival.identifier, arrival.cost)));
        }
        admitted
    }
}

#[test]
fn the_exact_reference_charges_all_rules_or_none() {
    let rules = vec![Rule::new(9, 1_000), Rule::new(20, 3_000), Rule { shadow: true, ..Rule::new(4, 2_000) }];
    let mut random = Random::new(9);
    let (mut measure, mut naive) = (Measure::new(&plan(rules.clone())), Naive::default());
    let (mut admitted, mut at_ms) = (0, 0);
    for _ in 0..4_000 {
        at_ms += random.below(150);
        let arrival = arrival_at(at_ms, random.below(3), random.below(4), 1 + random.below(7));
        pass(&mut measure, arrival);
        admitted += u64::from(naive.decide(&rules, &arrival));
        assert_eq!(measure.comparison().exact.admitted, admitted, "{arrival:?}");
    }
    assert!((1_000..3_900).contains(&admitted), "{admitted}");
    assert_eq!(measure.comparison().exact.beyond, 4_000 - admitted);
}

#[test]
fn differences_are_counted_by_request_and_by_cost() {
    let mut measure = Measure::new(&plan(vec![Rule::new(10, 1_000)]));
    for (cost, verdict) in [
        (6, Verdict::Admitted),
        (6, Verdict::Admitted), // beyond both references
        (4, Verdict::Denied),   // denied wrongly
        (1, Verdict::Denied),
        (1, Verdict::Reserved),
        (1, Verdict::Undecided),
    ] {
        let arrival = arrival_at(100, 1, cost, 1);
        measure.arrived(&arrival);
        decide(&mut measure, arrival, verdict, 0);
    }
    let lost = arrival_at(1_200, 1, 10, 1);
    measure.arrived(&lost);
    decide(&mut measure, lost, Verdict::Lost, 0);
    let got = measure.comparison();
    let against = Against { admitted: 2, admitted_cost: 10, beyond: 1, wrongly_denied: 1 };
    assert_eq!((got.exact, got.central), (against, against));
    assert_eq!(
        (got.requests, got.admitted, got.denied, got.reserved, got.undecided, got.lost),
        (6, 2, 2, 1, 1, 1)
    );
    assert_eq!((got.admitted_cost, got.over, got.worst_window), (12, 0.2, 1.2));
    assert_eq!(got.off_by, 0, "as many of the same identifier");
    assert_eq!((got.differently(), got.beyond(), got.under()), (2.0 / 6.0, 0.2, 0.0));
    pass(&mut measure, arrival_at(1_200, 1, 10, 1));
    assert_eq!(measure.comparison().exact.beyond, 1, "a lost request uses no budget");
}

#[test]
fn equal_requests_are_matched_in_order() {
    let mut measure = Measure::new(&plan(vec![Rule::new(1, 1_000)]));
    let arrival = arrival_at(5, 1, 1, 1);
    measure.arrived(&arrival);
    measure.arrived(&arrival);
    decide(&mut measure, arrival, Verdict::Admitted, 0);
    decide(&mut measure, arrival, Verdict::Denied, 0);
    assert_eq!(measure.comparison().differently(), 0.0);
    assert!(measure.waiting.is_empty());
}

#[test]
fn the_excess_of_a_window_across_two_cells_is_measured() {
    for (hard_limit, beyond_law) in [(false, 1), (true, 10)] {
        let rule = Rule { hard_limit, ..Rule::new(10, 1_000) };
        let mut measure = Measure::new(&plan(vec![rule]));
        (0..10).for_each(|_| pass(&mut measure, arrival_at(999, 1, 1, 1)));
        (0..10).for_each(|_| pass(&mut measure, arrival_at(1_900, 1, 1, 1)));
        let got = measure.comparison();
        assert_eq!(got.worst_window, 2.0);
        assert_eq!((got.exact.beyond, got.central.beyond), (10, beyond_law));
        // 10 + floor(10 × 0.1) = 11 of 10; the hard limit counts all.
        assert_eq!(got.over, if hard_limit { 1.0 } else { 0.1 });
    }
}

#[test]
fn shadow_rules_count_and_never_deny() {
    let shadow = Rule { shadow: true, ..Rule::new(1, 1_000) };
    let mut measure = Measure::new(&plan(vec![Rule::new(3, 1_000), shadow]));
    for (at_ms, verdict, shadow_denied) in [
        (0, Verdict::Admitted, 0),
        (1, Verdict::Admitted, 2),
        (2, Verdict::Admitted, 0), // it should have denied
        (3, Verdict::Denied, 2),
    ] {
        let arrival = arrival_at(at_ms, 1, 1, 3);
        measure.arrived(&arrival);
        decide(&mut measure, arrival, verdict, shadow_denied);
    }
    let got = measure.comparison();
    assert_eq!((got.differently(), got.shadow_differs), (0.0, 1));
    assert_eq!(got.worst_window, 2.0, "of the shadow rule");
}

#[test]
fn keys_are_dropped_when_their_windows_are_over() {
    let mut measure = Measure::new(&plan(vec![Rule::new(10, 1_000)]));
    for identifier in 0..100_000 {
        pass(&mut measure, arrival_at(identifier, identifier, 1, 1));
    }
    let denied = arrival_at(100_000, 5, 1, 1);
    measure.arrived(&denied);
    decide(&mut measure, denied, Verdict::Denied, 0);
    (0..12).for_each(|_| pass(&mut measure, arrival_at(100_000, 6, 1, 1)));
    assert_eq!(measure.comparison().off_by, 3, "one too few, two too many");
    assert!(measure.keys() <= 7_100, "{} after 100 s of a key a millisecond", measure.keys());
}
