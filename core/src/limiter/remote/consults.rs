//! Queries to the region, and the requests that wait for them.
//!
//! A worker has one query at a time for each key. Requests that arrive before it is sent join it with their costs; later ones wait for
//! the next query. Each request has one deadline for all its queries.

use crate::limiter::check::{Check, Policy, Reason};
use crate::model::time::MonoMs;
use crate::model::trace::{self, MAX_TRACES};
use crate::model::wire;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Most requests that wait at once; further ones are decided by the local counts.
pub(in crate::limiter) const MAX_WAITING: usize = 16_384;
/// Most answers that a request waits for before it is decided by the local counts.
pub(in crate::limiter) const MAX_ROUNDS: u8 = 3;

#[derive(Debug, Default)]
pub(in crate::limiter) struct Consults {
    /// By fingerprint.
    questions: BTreeMap<u64, PendingQuery>,
    /// Fingerprints of queries that were not sent yet; some may have been abandoned.
    unsent: Vec<u64>,
    /// Fingerprints by the id that an answer names.
    ids: BTreeMap<u64, u64>,
    waiting: BTreeMap<u64, Waiting>,
    last_id: u64,
    /// Some request has a trace context.
    traced: bool,
}

/// A query about one key.
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
    /// A request needs the region's count only. Then the answer grants nothing, and all requests are decided by the counts in it.
    pub(in crate::limiter) inquires: bool,
    /// The first deadline among the requests.
    deadline: MonoMs,
    /// Set when it is sent.
    pub(in crate::limiter) sent: Option<Sent>,
    joined: Vec<u64>,
    /// Requests that arrived after it was sent, with their costs.
    queued: Vec<(u64, u64)>,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::limiter) struct Sent {
    /// The cell in which the query's cost is reserved.
    pub(in crate::limiter) sequence: u64,
    /// It requested counts only, so a grant spends nothing.
    pub(in crate::limiter) inquiry: bool,
    /// Its reservation is in the overflow cell that the key shares with others.
    pub(in crate::limiter) overflow: bool,
}

/// A paused request.
#[derive(Debug)]
pub(in crate::limiter) struct Waiting {
    checks: Vec<OwnedCheck>,
    pub(in crate::limiter) deadline: MonoMs,
    /// Number of unanswered queries.
    open: u32,
    pub(in crate::limiter) rounds: u8,
    /// An answer granted its cost.
    pub(in crate::limiter) granted: bool,
    /// Its trace context, if it has one.
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

/// A query that a request needs for one of its checks.
#[derive(Clone, Copy, Debug)]
pub(in crate::limiter) struct Need {
    pub(in crate::limiter) check: usize,
    pub(in crate::limiter) fingerprint: u64,
    pub(in crate::limiter) cost: u64,
    pub(in crate::limiter) limit: u64,
    pub(in crate::limiter) reason: Reason,
    /// Only the region's count is needed.
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
    /// Time until the first deadline, in milliseconds; at least 1, as 0 on the wire means that it is not set.
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

    /// Makes `request` wait for an answer to each of `needs`, and calls `asked` with the reason of each new query.
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

    /// Sets the trace context of a waiting request. False if it does not wait.
    pub(in crate::limiter) fn trace(&mut self, request: u64, trace: &wire::Trace) -> bool {
        let Some(waiting) = self.waiting.get_mut(&request) else { return false };
        waiting.trace = Some(Box::new(trace.clone()));
        self.traced = true;
        true
    }

    /// Trace contexts of requests that joined the query about `fingerprint`: a bounded number, a recorded one first.
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

    /// Fingerprints of the queries to send, each once; they count as sent when [`PendingQuery::sent`] is set.
    pub(in crate::limiter) fn take_unsent(&mut self) -> Vec<u64> {
        core::mem::take(&mut self.unsent)
    }

    /// The query about `fingerprint`, if it was not sent yet.
    pub(in crate::limiter) fn unsent(&mut self, fingerprint: u64) -> Option<&mut PendingQuery> {
        self.questions.get_mut(&fingerprint).filter(|pending| pending.sent.is_none())
    }

    /// Removes the query with `id`, and returns it with its fingerprint.
    pub(in crate::limiter) fn answered(&mut self, id: u64) -> Option<(u64, PendingQuery)> {
        let fingerprint = self.ids.remove(&id)?;
        self.questions.remove(&fingerprint).map(|pending| (fingerprint, pending))
    }

    /// Removes the requests that have all their answers after `pending`, in order of arrival.
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

    /// Removes the requests whose deadline has passed.
    pub(in crate::limiter) fn overdue(&mut self, now: MonoMs) -> Vec<(u64, Waiting)> {
        let late = self.waiting.iter().filter(|(_, waiting)| waiting.deadline <= now);
        let late: Vec<u64> = late.map(|(request, _)| *request).collect();
        self.take(late)
    }

    /// Removes all requests, as no answer will arrive.
    pub(in crate::limiter) fn all(&mut self) -> Vec<(u64, Waiting)> {
        let all = self.waiting.keys().copied().collect();
        self.take(all)
    }

    /// Removes the queries that no request waits for.
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

    /// Removes the queries that were not answered within the first deadline. Requests that arrived later wait for another query about the
    /// same key.
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

    /// Makes all requests that wait for `old` wait for a new query; returns the old one.
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
