//! What a run's decisions are worth: the same arrivals decided beside it, in one place and at once.
//!
//! Beside what Weir did there are two judges: the *exact* one is a sliding log for each key, the *central* one is the
//! rule's own law (two cells, or a hard limit's cells) with nobody to wait for. The first shows what the law costs, the second what
//! the distance between Envoys costs. And there is the truth: what Weir let pass, held against each limit.
//!
//! In reading order: [`Measure`], here; the two judges and the truth of one key (`key`), a law's cells (`cells`); keys that are
//! dropped when their windows are over (`keys`).
//!
//! Leaves to others: what must not happen at all (`check`), printing (`report`).

mod cells;
pub mod figures;
mod key;
mod keys;
pub mod observe;

use crate::measure::observe::{Decided, Observer, Verdict};
use crate::plan::traffic::Arrival;
use crate::plan::{Plan, Rule};
use key::Judge;
use keys::Keys;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};

/// How a run's decisions compare.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Comparison {
    /// Requests that reached an Envoy and were not lost.
    pub requests: u64,
    /// Of these, admitted.
    pub admitted: u64,
    /// Denied, as a limit is used up.
    pub denied: u64,
    /// Denied, as others held the budget for a moment.
    pub reserved: u64,
    /// Denied, as nobody could be asked.
    pub undecided: u64,
    /// Lost with their Envoy or worker; they count nowhere else.
    pub lost: u64,
    /// Cost of all that was admitted.
    pub admitted_cost: u64,
    /// Against the exact sliding log.
    pub exact: Against,
    /// Against the same law in one place, without any delay.
    pub central: Against,
    /// Requests that the central judge decides differently from the exact one: what the law alone does.
    pub law_differs: u64,
    /// By how many requests Weir admitted more or less than the exact judge, summed over identifiers, each for as long as its
    /// windows go on: which of an identifier's equal requests passed is nothing to this.
    pub off_by: u64,
    /// Admitted requests of which a shadow rule said something else than the exact judge's.
    pub shadow_differs: u64,
    /// Largest excess of what was admitted over a limit, by the rule's own law and at any moment; as part of the limit.
    pub over: f64,
    /// Most that was admitted in any true window, wherever it begins; as part of the limit, of the worst key.
    pub worst_window: f64,
}

/// Against one judge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Against {
    /// Requests that it admits.
    pub admitted: u64,
    /// Cost of these.
    pub admitted_cost: u64,
    /// Requests that Weir admitted and it denies.
    pub beyond: u64,
    /// Requests that Weir did not admit and it does.
    pub wrongly_denied: u64,
}

impl Comparison {
    /// Share of the requests that Weir decided differently from the exact judge.
    pub fn differently(&self) -> f64 {
        part(self.exact.beyond + self.exact.wrongly_denied, self.requests)
    }

    /// What Weir admitted less than the central judge, as part of what that admits; 0 if it admitted more.
    pub fn under(&self) -> f64 {
        part(self.central.admitted_cost.saturating_sub(self.admitted_cost), self.central.admitted_cost)
    }

    /// What Weir admitted more than the central judge, as part of what that admits; 0 if it admitted less.
    pub fn beyond(&self) -> f64 {
        part(self.admitted_cost.saturating_sub(self.central.admitted_cost), self.central.admitted_cost)
    }
}

fn part(some: u64, all: u64) -> f64 {
    some as f64 / all.max(1) as f64
}

/// Compares, as an observer of a run.
#[derive(Debug)]
pub struct Measure {
    rules: Vec<Rule>,
    keys: Keys,
    /// What the judges said of requests that Weir has not decided yet, by request; equal ones in order.
    waiting: BTreeMap<Request, VecDeque<Said>>,
    judged: u64,
    comparison: Comparison,
}

/// All that tells requests apart.
type Request = (u64, u16, u16, u16, u64, u64, u64);

/// What the judges said of a request.
#[derive(Clone, Copy, Debug)]
struct Said {
    number: u64,
    exact: Expected,
    central: Expected,
}

/// What one judge says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Expected {
    admitted: bool,
    shadow_denied: u64,
}

impl Measure {
    /// For a run of `plan`.
    pub fn new(plan: &Plan) -> Measure {
        let rules = plan.rules.clone();
        let keys = Keys::new(&rules);
        Measure { rules, keys, waiting: BTreeMap::new(), judged: 0, comparison: Comparison::default() }
    }

    /// What has come out so far.
    pub fn comparison(&self) -> Comparison {
        Comparison { off_by: self.keys.balances(), ..self.comparison.clone() }
    }

    /// What counts of a key in the true window that ends at `at_us`: by the exact log, and of what Weir let pass.
    pub fn in_window(&mut self, rule: usize, identifier: u64, at_us: u64) -> (u64, u64) {
        self.keys.find(rule, identifier).map_or((0, 0), |key| key.in_window(at_us))
    }

    /// Keys that are held now.
    pub fn keys(&self) -> usize {
        self.keys.len()
    }

    fn judge(&mut self, arrival: &Arrival, at_us: u64) -> Said {
        self.judged += 1;
        let exact = self.rule(Judge::Exact(self.judged), arrival, at_us);
        let central = self.rule(Judge::Central, arrival, at_us);
        Said { number: self.judged, exact, central }
    }

    /// All enforced rules or none; a shadow rule counts what passes the others, and itself.
    fn rule(&mut self, judge: Judge, arrival: &Arrival, at_us: u64) -> Expected {
        let cost = arrival.cost;
        let (mut admitted, mut shadow_denied) = (true, 0);
        for (number, rule) in applying(&self.rules, arrival.rules) {
            if !self.keys.get(number, arrival.identifier, at_us).admits(judge, at_us, cost, rule.limit) {
                admitted &= rule.shadow;
                shadow_denied |= u64::from(rule.shadow) << number;
            }
        }
        for (number, _) in applying(&self.rules, arrival.rules).filter(|_| admitted) {
            if shadow_denied & 1 << number == 0 {
                self.keys.get(number, arrival.identifier, at_us).charge(judge, at_us, cost);
            }
        }
        Expected { admitted, shadow_denied }
    }

    /// What Weir let pass, against each limit.
    fn passed(&mut self, decided: &Decided) {
        let Arrival { identifier, cost, rules, .. } = decided.arrival;
        for (number, rule) in applying(&self.rules, rules) {
            if decided.shadow_denied & 1 << number == 0 {
                let key = self.keys.get(number, identifier, decided.at_us);
                let (over, window) = key.passed(decided.at_us, cost, rule.limit);
                self.comparison.over = self.comparison.over.max(over);
                self.comparison.worst_window = self.comparison.worst_window.max(window);
            }
        }
    }

    /// A request that was lost has used nothing of the exact log.
    fn take_back(&mut self, decided: &Decided, said: &Said) {
        let Arrival { identifier, rules, .. } = decided.arrival;
        for (number, _) in applying(&self.rules, rules) {
            self.keys.get(number, identifier, decided.at_us).refund(said.number);
        }
    }

    fn compare(&mut self, decided: &Decided, said: &Said) {
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
        for (against, expected) in
            [(&mut comparison.exact, said.exact), (&mut comparison.central, said.central)]
        {
            against.admitted += u64::from(expected.admitted);
            against.admitted_cost += if expected.admitted { cost } else { 0 };
            against.beyond += u64::from(admitted && !expected.admitted);
            against.wrongly_denied += u64::from(!admitted && expected.admitted);
        }
        if let Some((number, _)) = applying(&self.rules, rules).find(|(_, rule)| !rule.shadow) {
            let key = self.keys.get(number, decided.arrival.identifier, decided.at_us);
            key.balance += i64::from(admitted) - i64::from(said.exact.admitted);
        }
        comparison.law_differs += u64::from(said.exact.admitted != said.central.admitted);
        if admitted {
            comparison.admitted_cost += cost;
            let differs = said.exact.admitted && (decided.shadow_denied & rules) != said.exact.shadow_denied;
            comparison.shadow_differs += u64::from(differs);
            self.passed(decided);
        }
    }
}

impl Observer for Measure {
    fn arrived(&mut self, arrival: &Arrival) {
        let said = self.judge(arrival, arrival.at_us);
        self.waiting.entry(request(arrival)).or_default().push_back(said);
    }

    fn decided(&mut self, decided: &Decided) {
        let request = request(&decided.arrival);
        let said = self.waiting.get_mut(&request).and_then(VecDeque::pop_front);
        if self.waiting.get(&request).is_some_and(VecDeque::is_empty) {
            self.waiting.remove(&request);
        }
        match (decided.verdict, said) {
            (Verdict::Lost, said) => {
                self.comparison.lost += 1;
                said.iter().for_each(|said| self.take_back(decided, said));
            }
            (_, Some(said)) => self.compare(decided, &said),
            (_, None) => {
                let said = self.judge(&decided.arrival, decided.at_us);
                self.compare(decided, &said);
            }
        }
    }
}

fn request(arrival: &Arrival) -> Request {
    let Arrival { at_us, region, envoy, worker, identifier, cost, rules } = *arrival;
    (at_us, region, envoy, worker, identifier, cost, rules)
}

/// The rules of a mask, with their numbers.
fn applying(rules: &[Rule], mask: u64) -> impl Iterator<Item = (usize, &Rule)> {
    rules.iter().enumerate().take(64).filter(move |(number, _)| mask & 1 << number != 0)
}

#[cfg(test)]
mod tests;
