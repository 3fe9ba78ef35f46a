//! Calls that charge sliding logs: through the circuit breaker of their store, and once more after a lost connection.

use super::state::{Call, ExactState, Machine, Reply, shown};
use crate::model::breaker::Shown;
use crate::region::log::{LogCharge, LogDecision, Micros};
use crate::replication::{Failure, Next};
use alloc::vec;
use alloc::vec::Vec;

/// After a connection broke, it is established again at once, and the call is repeated after these pauses, in milliseconds.
const PAUSES_MS: [u64; 2] = [10, 30];

/// Why a log has not decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// Nothing was charged.
    NotCharged,
    /// The charge may have been made nevertheless.
    Unknown,
}

/// Lets logs decide, all at once.
#[derive(Clone, Debug)]
pub struct Charging {
    charges: Vec<LogCharge>,
    /// The last answer of each log.
    answers: Vec<Result<LogDecision, Failure>>,
    /// Whether each charge may have been made by a call without an answer.
    in_doubt: Vec<bool>,
    deadline: Micros,
    /// When the first call was made.
    since: Micros,
    pauses: usize,
    stage: Stage,
}

#[derive(Clone, Debug)]
enum Stage {
    Begun,
    /// These charges, by their indices, are called, or will be after a pause.
    Called(Vec<usize>),
    Replied,
    Pausing(Vec<usize>),
    Over,
}

impl Charging {
    /// Each log decides on its charge by `deadline`, or not at all.
    pub fn new(charges: Vec<LogCharge>, deadline: Micros) -> Charging {
        Charging {
            // As long as there was no call, nothing was charged.
            answers: vec![Err(Failure::Busy); charges.len()],
            in_doubt: vec![false; charges.len()],
            charges,
            deadline,
            since: Micros::default(),
            pauses: 0,
            stage: Stage::Begun,
        }
    }

    /// The decision of each log, once the machine is over.
    pub fn results(&self) -> Vec<Result<LogDecision, NoAnswer>> {
        let each = self.answers.iter().zip(&self.in_doubt);
        let result = |(answer, in_doubt): (&Result<LogDecision, Failure>, &bool)| {
            answer.map_err(|_| if *in_doubt { NoAnswer::Unknown } else { NoAnswer::NotCharged })
        };
        each.map(result).collect()
    }

    fn call(&mut self, places: Vec<usize>) -> Next<Call> {
        let charges = places.iter().filter_map(|place| self.charges.get(*place)).cloned().collect();
        self.stage = Stage::Called(places);
        Next::Call(Call::ChargeLogs(charges))
    }

    /// The next pause, and the charges whose connection broke, unless the time would be over.
    fn pause(&mut self, now: Micros) -> Option<(u64, Vec<usize>)> {
        let pause_ms = *PAUSES_MS.get(self.pauses)?;
        let broke =
            |(_, answer): &(usize, &Result<LogDecision, Failure>)| **answer == Err(Failure::Unavailable);
        let open: Vec<usize> =
            self.answers.iter().enumerate().filter(broke).map(|(place, _)| place).collect();
        let repeats = !open.is_empty() && now.after(pause_ms * 1_000) < self.deadline;
        self.pauses += 1;
        repeats.then_some((pause_ms, open))
    }
}

impl Machine for Charging {
    fn next(&mut self, state: &mut ExactState, now: Micros) -> Next<Call> {
        match core::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Begun => {
                if self.charges.is_empty() || !state.permits(self.deadline, now) {
                    return Next::Over;
                }
                self.since = now;
                self.call((0..self.charges.len()).collect())
            }
            Stage::Replied => match self.pause(now) {
                Some((pause_ms, open)) => {
                    self.stage = Stage::Pausing(open);
                    Next::Sleep(pause_ms)
                }
                None => {
                    state.showed(shown(&self.answers), self.since, now);
                    Next::Over
                }
            },
            Stage::Pausing(open) => self.call(open),
            Stage::Called(_) | Stage::Over => Next::Over,
        }
    }

    fn replied(&mut self, _: &mut ExactState, reply: Reply, _: Micros) {
        let Stage::Called(places) = core::mem::replace(&mut self.stage, Stage::Replied) else { return };
        let mut answers = match reply {
            Reply::LogsCharged(answers) => answers.into_iter(),
            _ => Vec::new().into_iter(),
        };
        for place in places {
            let given = answers.next().unwrap_or(Err(Failure::Malformed));
            if let (Some(answer), Some(in_doubt)) =
                (self.answers.get_mut(place), self.in_doubt.get_mut(place))
            {
                *answer = given;
                *in_doubt |= given.is_err_and(may_have_charged);
            }
        }
    }

    fn cancel(&mut self, state: &mut ExactState, now: Micros) {
        match core::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Begun | Stage::Over => {}
            _ => state.showed(Shown::Nothing, self.since, now),
        }
    }

    fn deadline(&self) -> Micros {
        self.deadline
    }
}

fn may_have_charged(failure: Failure) -> bool {
    match failure {
        Failure::Timeout | Failure::Unavailable | Failure::Malformed => true,
        Failure::Unreachable | Failure::Loading | Failure::Busy | Failure::Refused | Failure::OfTheCell => {
            false
        }
    }
}
