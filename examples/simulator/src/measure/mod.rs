//! Compares a run's decisions with those of two reference limiters that receive the same arrivals in one place without
//! delay.
//!
//! The *exact* reference is a sliding log for each key. The *central* reference uses the rule's own formula (two
//! cells, or the cells of a hard limit). Their difference is the error of the formula; the difference between Weir
//! and the central reference is the error of distribution. Also, what Weir admitted is compared with each limit.
//!
//! - `keys`: the keys, dropped when their windows are over; `key`: the references of one key; `cells`: the formula.
//! - `observe`: what a run reports about each request; `figures`: what it reports at its end.

mod cells;
pub mod figures;
mod key;
mod keys;
pub mod observe;

use crate::measure::observe::{Decided, Observer, Verdict};
use crate::plan::traffic::Arrival;
use crate::plan::{Plan, Rule};
use key::Reference;
use keys::Keys;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};

/// The comparison of a run's decisions with the references'.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Comparison {
    /// Requests that reached an Envoy and were not lost.
    pub requests: u64,
    /// Admitted requests.
    pub admitted: u64,
    /// Requests denied because a limit is used up.
    pub denied: u64,
    /// Requests denied because others had reserved the budget.
    pub reserved: u64,
    /// Requests denied because the region could not decide in time.
    pub undecided: u64,
    /// Requests lost with their Envoy or worker; they are not counted elsewhere.
    pub lost: u64,
    /// Cost of all admitted requests.
    pub admitted_cost: u64,
    /// Comparison with the exact sliding log.
    pub exact: Against,
    /// Comparison with the same formula in one place, without delay.
    pub central: Against,
    /// Requests that the central reference decides differently from the exact one: the effect of the formula alone.
    pub law_differs: u64,
    /// Requests that Weir admitted more or less than the exact reference, summed over identifiers. For an identifier,
    /// the difference is taken over as long as its windows continue, so it does not matter which of its equal
    /// requests passed.
    pub off_by: u64,
    /// Admitted requests for which a shadow rule's decision differs from the exact reference's.
    pub shadow_differs: u64,
    /// Largest excess over a limit at any moment, by the rule's own formula, as part of the limit.
    pub over: f64,
    /// Largest admitted cost in any true window, wherever it begins, of the worst key, as part of the limit.
    pub worst_window: f64,
}

/// Comparison with one reference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Against {
    /// Requests that the reference admits.
    pub admitted: u64,
    /// Cost of these requests.
    pub admitted_cost: u64,
    /// Requests that Weir admitted and the reference denies.
    pub beyond: u64,
    /// Requests that Weir did not admit and the reference admits.
    pub wrongly_denied: u64,
}

impl Comparison {
    /// Share of the requests that Weir decided differently from the exact reference.
    pub fn differently(&self) -> f64 {
        part(self.exact.beyond + self.exact.wrongly_denied, self.requests)
    }

    /// What Weir admitted less than the central reference, as part of what that admits; 0 if Weir admitted more.
    pub fn under(&self) -> f64 {
        part(self.central.admitted_cost.saturating_sub(self.admitted_cost), self.central.admitted_cost)
    }

    /// What Weir admitted more than the central reference, as part of what that admits; 0 if Weir admitted less.
    pub fn beyond(&self) -> f64 {
        part(self.admitted_cost.saturating_sub(self.central.admitted_cost), self.central.admitted_cost)
    }
}

fn part(some: u64, all: u64) -> f64 {
    some as f64 / all.max(1) as f64
}

/// An observer that compares a run with the references.
#[derive(Debug)]
pub struct Measure {
    rules: Vec<Rule>,
    keys: Keys,
    /// The references' decisions about requests that Weir has not decided yet, by request; equal requests in order.
    waiting: BTreeMap<Request, VecDeque<Decisions>>,
    request_count: u64,
    comparison: Comparison,
}

/// The fields that distinguish requests.
type Request = (u64, u16, u16, u16, u64, u64, u64);

/// The references' decisions about a request.
#[derive(Clone, Copy, Debug)]
struct Decisions {
    number: u64,
    exact: Expected,
    central: Expected,
}

/// The decision of one reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Expected {
    admitted: bool,
    shadow_denied: u64,
}

impl Measure {
    /// Creates the comparison for a run of `plan`.
    pub fn new(plan: &Plan) -> Measure {
        let rules = plan.rules.clone();
        let keys = Keys::new(&rules);
        Measure { rules, keys, waiting: BTreeMap::new(), request_count: 0, comparison: Comparison::default() }
    }

    /// The comparison so far.
    pub fn comparison(&self) -> Comparison {
        Comparison { off_by: self.keys.balances(), ..self.comparison.clone() }
    }

    /// The use of a key in the true window that ends at `at_us`: by the exact log, and by Weir.
    pub fn in_window(&mut self, rule: usize, identifier: u64, at_us: u64) -> (u64, u64) {
        self.keys.find(rule, identifier).map_or((0, 0), |key| key.in_window(at_us))
    }

    /// The number of keys that are held.
    pub fn keys(&self) -> usize {
        self.keys.len()
    }

    fn decide(&mut self, arrival: &Arrival, at_us: u64) -> Decisions {
        self.request_count += 1;
        let exact = self.decide_by(Reference::Exact(self.request_count), arrival, at_us);
        let central = self.decide_by(Reference::Central, arrival, at_us);
        Decisions { number: self.request_count, exact, central }
    }

    /// Charges all enforced rules or none. A shadow rule charges what it and the enforced rules admit.
    fn decide_by(&mut self, reference: Reference, arrival: &Arrival, at_us: u64) -> Expected {
        let cost = arrival.cost;
        let (mut admitted, mut shadow_denied) = (true, 0);
        for (number, rule) in applying(&self.rules, arrival.rules) {
            let key = self.keys.get(rule.counts(number), arrival.identifier, at_us);
            if !key.admits(reference, at_us, cost, rule.limit) {
                admitted &= rule.shadow;
                shadow_denied |= u64::from(rule.shadow) << number;
            }
        }
        for (number, rule) in applying(&self.rules, arrival.rules).filter(|_| admitted) {
            if shadow_denied & 1 << number == 0 {
                self.keys.get(rule.counts(number), arrival.identifier, at_us).charge(reference, at_us, cost);
            }
        }
        Expected { admitted, shadow_denied }
    }

    /// Compares what Weir admitted with each limit.
    fn passed(&mut self, decided: &Decided) {
        let Arrival { identifier, cost, rules, .. } = decided.arrival;
        for (number, rule) in applying(&self.rules, rules) {
            if decided.shadow_denied & 1 << number == 0 {
                let key = self.keys.get(rule.counts(number), identifier, decided.at_us);
                let (over, window) = key.passed(decided.at_us, cost, rule.limit);
                self.comparison.over = self.comparison.over.max(over);
                self.comparison.worst_window = self.comparison.worst_window.max(window);
            }
        }
    }

    /// Refunds the exact log's charge of a request that was lost.
    fn refund(&mut self, decided: &Decided, expected: &Decisions) {
        let Arrival { identifier, rules, .. } = decided.arrival;
        for (number, rule) in applying(&self.rules, rules) {
            self.keys.get(rule.counts(number), identifier, decided.at_us).refund(expected.number);
        }
    }

    fn compare(&mut self, decided: &Decided, expected: &Decisions) {
        let Arrival { cost, rules, .. } = decided.arrival;
        let comparison = &mut self.comparison;
        let admitted = decided.verdict == Verdict::Admitted;
        comparison.requests += 1;
        match decided.verdict {
            Verdict::Admitted => comparison.admitted += 1,
            Verdict::Denied => comparison.denied += 1,
            Verdict::Reserved => comparison.reserved += 1,
            Verdict::Undecided => comparison.undecided += 1,
            Verdict::Lost => {}
        }
        for (against, one) in
            [(&mut comparison.exact, expected.exact), (&mut comparison.central, expected.central)]
        {
            against.admitted += u64::from(one.admitted);
            against.admitted_cost += if one.admitted { cost } else { 0 };
            against.beyond += u64::from(admitted && !one.admitted);
            against.wrongly_denied += u64::from(!admitted && one.admitted);
        }
        if let Some((number, rule)) = applying(&self.rules, rules).find(|(_, rule)| !rule.shadow) {
            let key = self.keys.get(rule.counts(number), decided.arrival.identifier, decided.at_us);
            key.balance += i64::from(admitted) - i64::from(expected.exact.admitted);
        }
        comparison.law_differs += u64::from(expected.exact.admitted != expected.central.admitted);
        if admitted {
            comparison.admitted_cost += cost;
            let differs =
                expected.exact.admitted && (decided.shadow_denied & rules) != expected.exact.shadow_denied;
            comparison.shadow_differs += u64::from(differs);
            self.passed(decided);
        }
    }
}

impl Observer for Measure {
    fn arrived(&mut self, arrival: &Arrival) {
        let expected = self.decide(arrival, arrival.at_us);
        self.waiting.entry(request(arrival)).or_default().push_back(expected);
    }

    fn decided(&mut self, decided: &Decided) {
        let request = request(&decided.arrival);
        let expected = self.waiting.get_mut(&request).and_then(VecDeque::pop_front);
        if self.waiting.get(&request).is_some_and(VecDeque::is_empty) {
            self.waiting.remove(&request);
        }
        match (decided.verdict, expected) {
            (Verdict::Lost, expected) => {
                self.comparison.lost += 1;
                expected.iter().for_each(|expected| self.refund(decided, expected));
            }
            (_, Some(expected)) => self.compare(decided, &expected),
            (_, None) => {
                let expected = self.decide(&decided.arrival, decided.at_us);
                self.compare(decided, &expected);
            }
        }
    }
}

fn request(arrival: &Arrival) -> Request {
    let Arrival { at_us, region, envoy, worker, identifier, cost, rules } = *arrival;
    (at_us, region, envoy, worker, identifier, cost, rules)
}

/// The rules in a mask, with their numbers.
fn applying(rules: &[Rule], mask: u64) -> impl Iterator<Item = (usize, &Rule)> {
    rules.iter().enumerate().take(64).filter(move |(number, _)| mask & 1 << number != 0)
}

#[cfg(test)]
mod tests;
