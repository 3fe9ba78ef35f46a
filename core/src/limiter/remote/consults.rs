//! Requests that wait for the region's word, and the questions they wait for.
//!
//! A question is asked once for each key and worker: requests that come before it is sent join it, with their costs;
//! those that come later wait for the next one. Every request has one deadline, whatever it waits for.
//!
//! Leaves to others: reading and reserving in the table, deciding anew (`limiter`).

use crate::limiter::check::{Check, Policy, Reason};
use crate::model::time::MonoMs;
use crate::model::trace::{self, MAX_TRACES};
use crate::model::wire;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Most requests that wait at once; further ones are decided by what is known.
pub(in crate::limiter) const MAX_WAITING: usize = 16_384;
/// A request goes through this many answers at the most before it is decided by what is known.
pub(in crate::limiter) const MAX_ROUNDS: u8 = 3;

#[derive(Debug, Default)]
pub(in crate::limiter) struct Consults {
    /// By fingerprint.
    questions: BTreeMap<u64, PendingQuery>,
    /// Fingerprints of questions not sent yet; some may have been abandoned since.
    unsent: Vec<u64>,
    /// Fingerprints by the id that an answer names.
    ids: BTreeMap<u64, u64>,
    waiting: BTreeMap<u64, Waiting>,
    last_id: u64,
    /// Some request has said whence it comes.
    traced: bool,
}

/// Asked of the region about one key.
#[derive(Debug)]
pub(in crate::limiter) struct PendingQuery {
    pub(in crate::limiter) id: u64,
    pub(in crate::limiter) key: Vec<u8>,
    pub(in crate::limiter) cell_ms: u64,
    pub(in crate::limiter) limit: u64,
    /// Sum over the requests that joined.
    pub(in crate::limiter) cost: u64,
    /// Smallest cost among them.
    pub(in crate::limiter) least: u64,
    /// Somebody only wants to know the region's view, so its answer grants nothing to anybody: all are judged by it.
    pub(in crate::limiter) inquires: bool,
    /// When the first of them gives up: an answer that comes later is of no use to it.
    deadline: MonoMs,
    /// Once sent.
    pub(in crate::limiter) sent: Option<Sent>,
    joined: Vec<u64>,
    /// Requests that came after it was sent, with their costs.
    queued: Vec<(u64, u64)>,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::limiter) struct Sent {
    /// The cell in which the question's cost is reserved.
    pub(in crate::limiter) sequence: u64,
    /// It asked for the view only, so a grant takes up nothing.
    pub(in crate::limiter) inquiry: bool,
    /// It was about the overflow cell that the key shares with others.
    pub(in crate::limiter) overflow: bool,
}

/// A paused request.
#[derive(Debug)]
pub(in crate::limiter) struct Waiting {
    checks: Vec<OwnedCheck>,
    pub(in crate::limiter) deadline: MonoMs,
    /// Questions still open.
    open: u32,
    pub(in crate::limiter) rounds: u8,
    /// An answer that it waited for took up its cost.
    pub(in crate::limiter) granted: bool,
    /// Whence it comes, if it says so.
    pub(in crate::limiter) trace: Option<Box<wire::Trace>>,
}

#[derive(Debug)]
struct OwnedCheck {
    rule: u16,
    key: Vec<u8>,
    cell_ms: u64,
    limit: u64,
    cost: u64,
    policy: Policy,
}

/// A check that needs the region, by its place among the request's checks.
#[derive(Clone, Copy, Debug)]
pub(in crate::limiter) struct Need {
    pub(in crate::limiter) check: usize,
    pub(in crate::limiter) fingerprint: u64,
    pub(in crate::limiter) cost: u64,
    pub(in crate::limiter) limit: u64,
    pub(in crate::limiter) reason: Reason,
    /// The region's view is wanted and nothing else.
    pub(in crate::limiter) inquires: bool,
}

impl Waiting {
    pub(in crate::limiter) fn new(checks: &[Check<'_>], now: MonoMs) -> Waiting {
        let timeout =
            checks.iter().filter(|check| !check.policy.shadow).map(|check| check.policy.timeout_ms).min();
        let own = |check: &Check<'_>| OwnedCheck {
            rule: check.rule,
            key: check.key.to_vec(),
            cell_ms: check.cell_ms,
            limit: check.limit,
            cost: check.cost,
            policy: check.policy,
        };
        Waiting {
            checks: checks.iter().map(own).collect(),
            deadline: now.after(u64::from(timeout.unwrap_or(0))),
            open: 0,
            rounds: 0,
            granted: false,
            trace: None,
        }
    }

    pub(in crate::limiter) fn checks(&self) -> Vec<Check<'_>> {
        self.checks
            .iter()
            .map(|check| Check {
                rule: check.rule,
                key: &check.key,
                cell_ms: check.cell_ms,
                limit: check.limit,
                cost: check.cost,
                policy: check.policy,
            })
            .collect()
    }
}

impl PendingQuery {
    /// How long an answer is still of use to all who asked, in milliseconds: at least 1, as 0 on the wire says nothing.
    pub(in crate::limiter) fn timeout_ms(&self, now: MonoMs) -> u32 {
        u32::try_from(self.deadline.since(now)).unwrap_or(u32::MAX).max(1)
    }
}

impl Consults {
    pub(in crate::limiter) fn is_full(&self) -> bool {
        self.waiting.len() >= MAX_WAITING
    }

    pub(in crate::limiter) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Lets `request` wait for an answer to each of `needs`; tells `asked` the reason of each new question.
    pub(in crate::limiter) fn wait(
        &mut self,
        request: u64,
        mut waiting: Waiting,
        needs: &[Need],
        mut asked: impl FnMut(Reason),
    ) {
        for need in needs {
            let Some(check) = waiting.checks.get(need.check) else { continue };
            let pending = self.questions.entry(need.fingerprint).or_insert_with(|| {
                self.last_id += 1;
                self.unsent.push(need.fingerprint);
                self.ids.insert(self.last_id, need.fingerprint);
                asked(need.reason);
                PendingQuery {
                    id: self.last_id,
                    key: check.key.clone(),
                    cell_ms: check.cell_ms,
                    limit: need.limit,
                    cost: 0,
                    least: u64::MAX,
                    inquires: false,
                    deadline: MonoMs(u64::MAX),
                    sent: None,
                    joined: Vec::new(),
                    queued: Vec::new(),
                }
            });
            if pending.sent.is_none() {
                pending.cost = pending.cost.saturating_add(need.cost);
                pending.least = pending.least.min(need.cost);
                pending.deadline = pending.deadline.min(waiting.deadline);
                pending.limit = pending.limit.min(need.limit);
                pending.inquires |= need.inquires;
                pending.joined.push(request);
            } else {
                pending.queued.push((request, need.cost));
            }
            waiting.open += 1;
        }
        self.waiting.insert(request, waiting);
    }

    /// Whence a request comes that waits. False if it does not.
    pub(in crate::limiter) fn trace(&mut self, request: u64, trace: &wire::Trace) -> bool {
        let Some(waiting) = self.waiting.get_mut(&request) else { return false };
        waiting.trace = Some(Box::new(trace.clone()));
        self.traced = true;
        true
    }

    /// Whence the requests come that joined the question about `fingerprint`: some of them, one that is recorded first.
    pub(in crate::limiter) fn traces(&self, fingerprint: u64) -> Vec<wire::Trace> {
        let mut traces: Vec<&wire::Trace> = Vec::new();
        let joined = self.questions.get(&fingerprint).filter(|_| self.traced).map(|q| q.joined.iter());
        for trace in joined.into_iter().flatten().filter_map(|at| self.waiting.get(at)?.trace.as_deref()) {
            if trace::is_sampled(trace) && !traces.first().is_some_and(|first| trace::is_sampled(first)) {
                traces.insert(0, trace);
                traces.truncate(MAX_TRACES);
            } else if traces.len() < MAX_TRACES {
                traces.push(trace);
            }
        }
        traces.into_iter().cloned().collect()
    }

    /// Fingerprints of the questions to send, each once; they count as sent when [`PendingQuery::sent`] is set.
    pub(in crate::limiter) fn take_unsent(&mut self) -> Vec<u64> {
        core::mem::take(&mut self.unsent)
    }

    /// The question about `fingerprint`, if it is still to be sent.
    pub(in crate::limiter) fn unsent(&mut self, fingerprint: u64) -> Option<&mut PendingQuery> {
        self.questions.get_mut(&fingerprint).filter(|pending| pending.sent.is_none())
    }

    /// Takes the question with `id` out, with its fingerprint.
    pub(in crate::limiter) fn answered(&mut self, id: u64) -> Option<(u64, PendingQuery)> {
        let fingerprint = self.ids.remove(&id)?;
        self.questions.remove(&fingerprint).map(|pending| (fingerprint, pending))
    }

    /// Requests that need not wait any longer after `pending` was answered, in order of arrival.
    pub(in crate::limiter) fn released(
        &mut self,
        pending: &PendingQuery,
        granted: bool,
    ) -> Vec<(u64, Waiting)> {
        let mut released = Vec::new();
        let joined = pending.joined.iter().map(|request| (request, granted));
        for (request, granted) in joined.chain(pending.queued.iter().map(|(request, _)| (request, false))) {
            let Some(waiting) = self.waiting.get_mut(request) else { continue };
            waiting.open = waiting.open.saturating_sub(1);
            waiting.granted |= granted;
            if waiting.open == 0
                && let Some(waiting) = self.waiting.remove(request)
            {
                released.push((*request, waiting));
            }
        }
        released
    }

    /// Requests whose deadline has passed.
    pub(in crate::limiter) fn overdue(&mut self, now: MonoMs) -> Vec<(u64, Waiting)> {
        let late = self.waiting.iter().filter(|(_, waiting)| waiting.deadline <= now);
        let late: Vec<u64> = late.map(|(request, _)| *request).collect();
        self.take(late)
    }

    /// All requests, as nobody will answer.
    pub(in crate::limiter) fn all(&mut self) -> Vec<(u64, Waiting)> {
        let all = self.waiting.keys().copied().collect();
        self.take(all)
    }

    /// Takes out the questions that nobody waits for any more.
    pub(in crate::limiter) fn abandoned(&mut self) -> Vec<(u64, PendingQuery)> {
        let waiting = &self.waiting;
        for pending in self.questions.values_mut() {
            pending.joined.retain(|request| waiting.contains_key(request));
            pending.queued.retain(|(request, _)| waiting.contains_key(request));
        }
        let nobody = |pending: &PendingQuery| pending.joined.is_empty() && pending.queued.is_empty();
        let fingerprints: Vec<u64> =
            self.questions.iter().filter(|(_, pending)| nobody(pending)).map(|(at, _)| *at).collect();
        let mut abandoned = Vec::new();
        for fingerprint in fingerprints {
            let Some(pending) = self.questions.remove(&fingerprint) else { continue };
            self.ids.remove(&pending.id);
            abandoned.push((fingerprint, pending));
        }
        abandoned
    }

    /// Takes out the questions that were sent and not answered in time: somebody who asked has given up. Those who came
    /// later go on waiting, for another question about the same key.
    pub(in crate::limiter) fn unanswered(&mut self) -> Vec<(u64, PendingQuery)> {
        let waiting = &self.waiting;
        let given_up = |pending: &PendingQuery| {
            pending.sent.is_some() && pending.joined.iter().any(|request| !waiting.contains_key(request))
        };
        let late: Vec<u64> =
            self.questions.iter().filter(|(_, pending)| given_up(pending)).map(|(at, _)| *at).collect();
        late.into_iter()
            .filter_map(|at| self.questions.remove(&at).map(|pending| (at, self.replace(at, pending))))
            .collect()
    }

    /// Lets everybody who still waits for `old` wait for a new question; returns the old one.
    fn replace(&mut self, fingerprint: u64, old: PendingQuery) -> PendingQuery {
        self.ids.remove(&old.id);
        let share = old.cost.checked_div(old.joined.len() as u64).unwrap_or(0);
        let joined = old.joined.iter().map(|request| (*request, share));
        let waits = |(request, _): &(u64, u64)| self.waiting.contains_key(request);
        let still: Vec<(u64, u64)> = joined.chain(old.queued.iter().copied()).filter(waits).collect();
        if still.is_empty() {
            return old;
        }
        self.last_id += 1;
        self.unsent.push(fingerprint);
        self.ids.insert(self.last_id, fingerprint);
        let new = PendingQuery {
            id: self.last_id,
            key: old.key.clone(),
            cell_ms: old.cell_ms,
            limit: old.limit,
            cost: still.iter().fold(0, |sum, (_, cost)| sum.saturating_add(*cost)),
            least: still.iter().map(|(_, cost)| *cost).min().unwrap_or(0),
            inquires: old.inquires,
            deadline: still
                .iter()
                .filter_map(|(request, _)| self.deadline(*request))
                .min()
                .unwrap_or_default(),
            sent: None,
            joined: still.into_iter().map(|(request, _)| request).collect(),
            queued: Vec::new(),
        };
        self.questions.insert(fingerprint, new);
        old
    }

    fn deadline(&self, request: u64) -> Option<MonoMs> {
        self.waiting.get(&request).map(|waiting| waiting.deadline)
    }

    fn take(&mut self, requests: Vec<u64>) -> Vec<(u64, Waiting)> {
        requests
            .into_iter()
            .filter_map(|request| self.waiting.remove(&request).map(|w| (request, w)))
            .collect()
    }
}
