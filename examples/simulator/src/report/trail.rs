//! The last events before a moment, for one identifier or for all.

use crate::measure::observe::{Decided, Observer, Verdict};
use crate::plan::traffic::Arrival;
use std::collections::VecDeque;
use std::fmt;

/// Keeps the last events before a moment.
#[derive(Clone, Debug)]
pub struct Trail {
    until_us: u64,
    identifier: Option<u64>,
    most: usize,
    events: VecDeque<Event>,
}

/// An event of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request arrived, and was not decided at once.
    Arrived(Arrival),
    /// A request was decided.
    Decided(Decided),
}

impl Trail {
    /// Keeps events until `until_ms` after the traffic's beginning. If `identifier` is given, it keeps only that
    /// identifier's.
    pub fn new(until_ms: Option<i64>, identifier: Option<u64>, most: usize) -> Trail {
        // `until_ms` is in whole milliseconds, so the millisecond itself is included.
        let until_ms = until_ms.map(|ms| u64::try_from(ms.saturating_add(1)).unwrap_or(0));
        let until_us = until_ms.map_or(u64::MAX, |ms| ms.saturating_mul(1_000));
        Trail { until_us, identifier, most, events: VecDeque::new() }
    }

    /// The kept events, oldest first.
    pub fn events(&self) -> impl Iterator<Item = &Event> {
        self.events.iter()
    }

    fn keep(&mut self, at_us: u64, of: u64, event: Event) {
        if at_us < self.until_us && self.identifier.is_none_or(|identifier| identifier == of) {
            self.events.push_back(event);
            if self.events.len() > self.most {
                self.events.pop_front();
            }
        }
    }
}

impl Observer for Trail {
    fn arrived(&mut self, arrival: &Arrival) {
        self.keep(arrival.at_us, arrival.identifier, Event::Arrived(*arrival));
    }

    fn decided(&mut self, decided: &Decided) {
        // The request was decided on arrival: one line states both.
        if self.events.back() == Some(&Event::Arrived(decided.arrival))
            && decided.at_us == decided.arrival.at_us
        {
            self.events.pop_back();
        }
        self.keep(decided.at_us, decided.arrival.identifier, Event::Decided(*decided));
    }
}

impl fmt::Display for Event {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (at_us, arrival) = match self {
            Event::Arrived(arrival) => (arrival.at_us, arrival),
            Event::Decided(decided) => (decided.at_us, &decided.arrival),
        };
        let Arrival { region, envoy, worker, identifier, cost, rules, .. } = arrival;
        let (ms, us) = (at_us / 1_000, at_us % 1_000);
        write!(to, "{ms:>9}.{us:03} ms  region {region} Envoy {envoy} worker {worker}  ")?;
        write!(to, "identifier {identifier} cost {cost} rules {rules:#b}  ")?;
        match self {
            Event::Arrived(_) => write!(to, "waits"),
            Event::Decided(decided) => {
                let verdict = match decided.verdict {
                    Verdict::Admitted => "admitted",
                    Verdict::Denied => "denied",
                    Verdict::Reserved => "denied, budget reserved by others",
                    Verdict::Undecided => "denied, not decided by the region in time",
                    Verdict::Lost => "lost",
                };
                let waited = decided.at_us.saturating_sub(arrival.at_us);
                if waited > 0 { write!(to, "{verdict} after {waited} µs") } else { write!(to, "{verdict}") }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_events_before_the_failure_are_kept_and_printed() {
        let mut trail = Trail::new(Some(20), Some(7), 3);
        let arrival = |at_us, identifier| Arrival {
            at_us,
            region: 0,
            envoy: 2,
            worker: 1,
            identifier,
            cost: 3,
            rules: 0b101,
        };
        let decided = |arrival, at_us, verdict| Decided {
            arrival,
            at_us,
            verdict,
            shadow_denied: 0,
            retry_after_ms: None,
        };
        for at_us in [1_000, 2_000, 3_500] {
            trail.arrived(&arrival(at_us, 7));
            trail.decided(&decided(arrival(at_us, 7), at_us, Verdict::Admitted));
        }
        trail.arrived(&arrival(4_000, 8));
        trail.arrived(&arrival(20_999, 7));
        trail.decided(&decided(arrival(20_000, 7), 20_999, Verdict::Denied));
        trail.decided(&decided(arrival(20_999, 7), 21_000, Verdict::Lost));
        let lines: Vec<String> = trail.events().map(Event::to_string).collect();
        let start = "ms  region 0 Envoy 2 worker 1  identifier 7 cost 3 rules 0b101";
        assert_eq!(
            lines,
            [
                format!("        3.500 {start}  admitted"),
                format!("       20.999 {start}  waits"),
                format!("       20.999 {start}  denied after 999 µs"),
            ]
        );
    }
}
