//! The requests of a worker that wait.
//!
//! ```text
//! decide ─ exact rules ─→ waits for an exact response ─┬─ its windows can be decided ────────→ resolved
//!        │                                             ↓                                        ↑
//!        └ windows alone ──────────────────→ waits for answers to queries ─ answers, timeout ─┘
//! ```

use super::exact_requests::PendingRequest;
use crate::limiter::check::{Check, Checks, Denial, ShownBudgets, Transactions};
use crate::limiter::rule_set::RuleSet;
use crate::model::time::MonoMs;
use crate::model::trace;
use crate::model::wire;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Most requests that wait for answers at once; further ones are decided by the local counts.
pub(super) const MAX_WAITING: usize = 16_384;

/// The requests that wait, by the number that the caller gave them.
#[derive(Debug, Default)]
pub(super) struct WaitingRequests {
    requests: BTreeMap<u64, WaitingRequest>,
    /// Requests among them that wait for answers.
    for_answers: usize,
    /// A request had a trace context.
    traced: bool,
    /// Fingerprints of entries that stay, with the number of requests that need them.
    kept: BTreeMap<u64, u32>,
}

/// A request that waits.
#[derive(Debug)]
pub(super) struct WaitingRequest {
    /// The windows that apply to it.
    windows: Checks,
    pub(super) exact: ExactPart,
    /// Its trace context, if it has one.
    trace: Option<Box<wire::Trace>>,
    waits_for: WaitsFor,
    /// Fingerprints of the entries that stay until it is decided.
    pub(super) kept: Vec<u64>,
}

/// What is known of a request's exact rules.
#[derive(Debug, Default)]
pub(super) struct ExactPart {
    /// The id of the exact request with its charges.
    pub(super) id: Option<u64>,
    pub(super) settled: Settled,
    /// Exact requests of its shadow rules, sent once it has passed.
    pub(super) shadows: Vec<PendingRequest>,
}

/// Outcome of a request's exact rules.
#[derive(Debug, Default)]
pub(super) struct Settled {
    pub(super) denial: Option<Denial>,
    pub(super) left: ShownBudgets,
    /// The window of each decided rule, in milliseconds.
    pub(super) windows: Vec<(u16, u64)>,
    pub(super) undecided: RuleSet,
    pub(super) transactions: Transactions,
}

#[derive(Clone, Copy, Debug)]
enum WaitsFor {
    ExactResponse,
    Answers(Answers),
}

/// The answers that a request waits for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answers {
    pub(super) deadline: MonoMs,
    /// Number of unanswered queries.
    pub(super) open: u32,
    /// How often all queries were answered.
    pub(super) rounds: u8,
    /// An answer granted its cost.
    pub(super) granted: bool,
}

impl WaitingRequest {
    /// A request that waits for an exact response; its windows are decided afterwards.
    pub(super) fn for_exact_response(windows: &[Check<'_>], exact: ExactPart) -> WaitingRequest {
        WaitingRequest {
            windows: Checks::of(windows),
            exact,
            trace: None,
            waits_for: WaitsFor::ExactResponse,
            kept: Vec::new(),
        }
    }

    /// A request that waits for answers about its windows.
    pub(super) fn for_answers(windows: &[Check<'_>], exact: ExactPart, now: MonoMs) -> WaitingRequest {
        let mut waiting = WaitingRequest::for_exact_response(windows, exact);
        waiting.wait_for_answers(now);
        waiting
    }

    /// Has the request wait for answers, at most for the least timeout of its rules.
    pub(super) fn wait_for_answers(&mut self, now: MonoMs) {
        let enforcing = self.windows.iter().filter(|check| !check.policy.shadow);
        let timeout = enforcing.map(|check| check.policy.timeout_ms).min();
        let deadline = now.after(u64::from(timeout.unwrap_or(0)));
        self.waits_for = WaitsFor::Answers(Answers { deadline, open: 0, rounds: 0, granted: false });
    }

    pub(super) fn window(&self, at: usize) -> Option<Check<'_>> {
        self.windows.get(at)
    }

    pub(super) fn windows(&self) -> Vec<Check<'_>> {
        self.windows.iter().collect()
    }

    /// The answers that it waits for; `None` while it waits for an exact response.
    pub(super) fn answers(&mut self) -> Option<&mut Answers> {
        match &mut self.waits_for {
            WaitsFor::Answers(answers) => Some(answers),
            WaitsFor::ExactResponse => None,
        }
    }

    fn deadline(&self) -> Option<MonoMs> {
        match self.waits_for {
            WaitsFor::Answers(answers) => Some(answers.deadline),
            WaitsFor::ExactResponse => None,
        }
    }
}

impl WaitingRequests {
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Whether a request waits for answers.
    pub(super) fn has_queries(&self) -> bool {
        self.for_answers > 0
    }

    /// Whether no further request may wait for answers.
    pub(super) fn is_full(&self) -> bool {
        self.for_answers >= MAX_WAITING
    }

    pub(super) fn contains(&self, request: u64) -> bool {
        self.requests.contains_key(&request)
    }

    pub(super) fn insert(&mut self, request: u64, waiting: WaitingRequest) {
        if let Some(replaced) = self.remove(request) {
            self.release_entries(&replaced.kept);
        }
        self.for_answers += usize::from(waiting.deadline().is_some());
        self.requests.insert(request, waiting);
    }

    pub(super) fn remove(&mut self, request: u64) -> Option<WaitingRequest> {
        let removed = self.requests.remove(&request)?;
        self.for_answers -= usize::from(removed.deadline().is_some());
        Some(removed)
    }

    /// The answers that `request` waits for, if it does.
    pub(super) fn answers(&mut self, request: u64) -> Option<&mut Answers> {
        self.requests.get_mut(&request)?.answers()
    }

    /// When the wait of `request` for answers ends.
    pub(super) fn deadline(&self, request: u64) -> Option<MonoMs> {
        self.requests.get(&request)?.deadline()
    }

    /// Notes that the entry of `fingerprint` stays for a request, which its answer has `granted` the cost or not, if the request may wait
    /// for an answer about another of its windows. Returns until when.
    pub(super) fn keep_entry(&mut self, fingerprint: u64, request: u64, granted: bool) -> Option<MonoMs> {
        let waiting = self.requests.get_mut(&request)?;
        let Answers { deadline, open, granted: before, .. } = *waiting.answers()?;
        let is_decided = open <= 1 && (granted || before);
        if is_decided || waiting.window(1).is_none() {
            return None;
        }
        if !waiting.kept.contains(&fingerprint) {
            waiting.kept.push(fingerprint);
            let requests = self.kept.entry(fingerprint).or_default();
            *requests = requests.saturating_add(1);
        }
        Some(deadline)
    }

    /// Notes that a request with these entries is decided. Returns those that no other request needs.
    pub(super) fn release_entries(&mut self, kept: &[u64]) -> Vec<u64> {
        let mut released = Vec::new();
        for fingerprint in kept {
            let Some(requests) = self.kept.get_mut(fingerprint) else { continue };
            *requests = requests.saturating_sub(1);
            if *requests == 0 {
                self.kept.remove(fingerprint);
                released.push(*fingerprint);
            }
        }
        released
    }

    /// Sets the trace context of a request. False if it does not wait.
    pub(super) fn set_trace(&mut self, request: u64, trace: &wire::Trace) -> bool {
        let Some(waiting) = self.requests.get_mut(&request) else { return false };
        waiting.trace = Some(Box::new(trace.clone()));
        self.traced = true;
        true
    }

    /// Trace contexts of `requests`: a bounded number, a recorded one first.
    pub(super) fn traces(&self, requests: &[u64]) -> Vec<wire::Trace> {
        let mut traces: Vec<&wire::Trace> = Vec::new();
        let requests = if self.traced { requests } else { &[] };
        for trace in requests.iter().filter_map(|at| self.requests.get(at)?.trace.as_deref()) {
            if trace::is_sampled(trace) && !traces.first().is_some_and(|first| trace::is_sampled(first)) {
                traces.insert(0, trace);
                traces.truncate(trace::MAX_TRACES);
            } else if traces.len() < trace::MAX_TRACES {
                traces.push(trace);
            }
        }
        traces.into_iter().cloned().collect()
    }

    /// Removes the requests that have waited for answers until their deadline.
    pub(super) fn take_overdue(&mut self, now: MonoMs) -> Vec<(u64, WaitingRequest)> {
        self.take(|waiting| waiting.deadline().is_some_and(|deadline| deadline <= now))
    }

    /// Removes all requests that wait for answers.
    pub(super) fn take_queries(&mut self) -> Vec<(u64, WaitingRequest)> {
        self.take(|waiting| waiting.deadline().is_some())
    }

    fn take(&mut self, which: impl Fn(&WaitingRequest) -> bool) -> Vec<(u64, WaitingRequest)> {
        let taken = self.requests.iter().filter(|(_, waiting)| which(waiting));
        let taken: Vec<u64> = taken.map(|(request, _)| *request).collect();
        taken.into_iter().filter_map(|request| self.remove(request).map(|it| (request, it))).collect()
    }
}
