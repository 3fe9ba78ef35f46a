//! Queries to the region.
//!
//! A worker has one query at a time for each key. Requests that arrive before it is sent join it with their costs; later ones wait for
//! the next query. Each request has one deadline for all its queries.

use super::ration::Ration;
use super::waiting::{Answers, WaitingRequest, WaitingRequests};
use crate::limiter::check::Reason;
use crate::limiter::local::merge::{Asked, ReservedIn};
use crate::limiter::local::round::Need;
use crate::limiter::stats::Stats;
use crate::model::time::MonoMs;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Most queries a second of a worker for keys in strict mode; beyond them it spends slack.
pub(in crate::limiter) const STRICT_QUERIES_PER_SECOND: u64 = 200;
/// Most queries a second of a worker for new keys. Beyond them, it assumes that a key which is not in the complete snapshot is below
/// half its limit.
pub(in crate::limiter) const COLD_QUERIES_PER_SECOND: u64 = 500;
/// Most answers that a request waits for before it is decided by the local counts.
pub(super) const MAX_ROUNDS: u8 = 3;

#[derive(Debug, Default)]
pub(super) struct PendingQueries {
    /// By fingerprint.
    queries: BTreeMap<u64, PendingQuery>,
    /// Fingerprints of queries that were not sent yet; some may have been abandoned.
    unsent: Vec<u64>,
    /// Fingerprints by the id that an answer names.
    ids: BTreeMap<u64, u64>,
    last_id: u64,
}

/// A query about one key.
#[derive(Debug)]
pub(super) struct PendingQuery {
    pub(super) id: u64,
    pub(super) key: Vec<u8>,
    pub(super) cell_ms: u64,
    pub(super) limit: u64,
    /// The limit without live control, if live control sets `limit`.
    pub(super) configured: Option<u64>,
    /// Sum over the requests that joined.
    pub(super) cost: u64,
    /// Smallest cost among them.
    pub(super) least: u64,
    /// A request needs the region's count only. Then the answer grants nothing, and all requests are decided by the counts in it.
    pub(super) inquires: bool,
    /// The first deadline among the requests.
    deadline: MonoMs,
    /// Set when it is sent.
    pub(super) sent: Option<Sent>,
    joined: Vec<u64>,
    /// Requests that arrived after it was sent, with their costs.
    queued: Vec<(u64, u64)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) reserved: ReservedIn,
    /// It requested counts only, so a grant spends nothing.
    pub(super) inquiry: bool,
}

/// Queries under way, and how many more may be sent.
#[derive(Debug)]
pub(super) struct Queries {
    pub(super) pending: PendingQueries,
    pub(super) strict: Ration,
    pub(super) cold: Ration,
}

impl Queries {
    pub(super) fn new(now: MonoMs) -> Queries {
        Queries {
            pending: PendingQueries::default(),
            strict: Ration::new(STRICT_QUERIES_PER_SECOND, now),
            cold: Ration::new(COLD_QUERIES_PER_SECOND, now),
        }
    }

    /// Makes `request` wait for an answer to each of `needs`.
    pub(super) fn wait(
        &mut self,
        requests: &mut WaitingRequests,
        request: u64,
        waiting: WaitingRequest,
        needs: &[Need],
        stats: &mut Stats,
        now: MonoMs,
    ) {
        self.pending.wait(requests, request, waiting, needs, |reason| {
            stats.count_query(reason);
            match reason {
                Reason::Strict => self.strict.take(now),
                Reason::Cold | Reason::Baseline => self.cold.take(now),
                Reason::Stale | Reason::Slack => {}
            }
        });
    }
}

impl PendingQuery {
    /// What it is about.
    pub(super) fn asked(&self, fingerprint: u64) -> Asked<'_> {
        let PendingQuery { ref key, limit, cost, least, .. } = *self;
        Asked { fingerprint, key, limit, cost, least }
    }

    /// Where its cost is reserved, once it was sent.
    pub(super) fn reserved(&self) -> Option<ReservedIn> {
        self.sent.map(|sent| sent.reserved)
    }

    /// Removes the requests that have all their answers after this one, in order of arrival.
    pub(super) fn release(
        &self,
        requests: &mut WaitingRequests,
        granted: bool,
    ) -> Vec<(u64, WaitingRequest)> {
        let joined = self.joined.iter().map(|request| (*request, granted));
        let queued = self.queued.iter().map(|(request, _)| (*request, false));
        let mut released = Vec::new();
        for (request, granted) in joined.chain(queued) {
            let Some(answers) = requests.answers(request) else { continue };
            answers.open = answers.open.saturating_sub(1);
            answers.granted |= granted;
            if answers.open == 0
                && let Some(waiting) = requests.remove(request)
            {
                released.push((request, waiting));
            }
        }
        released
    }

    /// Keeps the entry for the requests that wait for another answer after this one; returns until when. If it left before they are
    /// decided, what they were granted would be in the baseline of the next entry, and count twice once they spend it.
    pub(super) fn keep_entry(
        &self,
        fingerprint: u64,
        requests: &mut WaitingRequests,
        granted: bool,
    ) -> Option<MonoMs> {
        let joined = self.joined.iter().map(|request| (*request, granted));
        let queued = self.queued.iter().map(|(request, _)| (*request, false));
        let all = joined.chain(queued);
        all.filter_map(|(request, granted)| requests.keep_entry(fingerprint, request, granted)).max()
    }

    /// The requests that joined before it was sent.
    pub(super) fn joined(&self) -> &[u64] {
        &self.joined
    }

    /// Time until the first deadline, in milliseconds; at least 1, as 0 on the wire means that it is not set.
    pub(super) fn timeout_ms(&self, now: MonoMs) -> u32 {
        u32::try_from(self.deadline.since(now)).unwrap_or(u32::MAX).max(1)
    }
}

impl PendingQueries {
    /// Makes `request` wait for an answer to each of `needs`, and calls `on_query` with the reason of each new query.
    pub(super) fn wait(
        &mut self,
        requests: &mut WaitingRequests,
        request: u64,
        mut waiting: WaitingRequest,
        needs: &[Need],
        mut on_query: impl FnMut(Reason),
    ) {
        let Some(&mut Answers { deadline, .. }) = waiting.answers() else { return };
        let mut open = 0;
        for need in needs {
            let Some(check) = waiting.window(need.check) else { continue };
            let pending = self.queries.entry(need.fingerprint).or_insert_with(|| {
                self.last_id += 1;
                self.unsent.push(need.fingerprint);
                self.ids.insert(self.last_id, need.fingerprint);
                on_query(need.reason);
                PendingQuery {
                    id: self.last_id,
                    key: check.key.to_vec(),
                    cell_ms: check.cell_ms,
                    limit: need.limit,
                    configured: need.configured,
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
                pending.deadline = pending.deadline.min(deadline);
                if need.limit < pending.limit {
                    (pending.limit, pending.configured) = (need.limit, need.configured);
                }
                pending.inquires |= need.inquires;
                pending.joined.push(request);
            } else {
                pending.queued.push((request, need.cost));
            }
            open += 1;
        }
        if let Some(answers) = waiting.answers() {
            answers.open = open;
        }
        requests.insert(request, waiting);
    }

    /// Fingerprints of the queries to send, each once; they count as sent when [`PendingQuery::sent`] is set.
    pub(super) fn take_unsent(&mut self) -> Vec<u64> {
        core::mem::take(&mut self.unsent)
    }

    /// The query about `fingerprint`, if it was not sent yet.
    pub(super) fn unsent(&mut self, fingerprint: u64) -> Option<&mut PendingQuery> {
        self.queries.get_mut(&fingerprint).filter(|pending| pending.sent.is_none())
    }

    /// Removes the query with `id`, and returns it with its fingerprint.
    pub(super) fn take(&mut self, id: u64) -> Option<(u64, PendingQuery)> {
        let fingerprint = self.ids.remove(&id)?;
        self.queries.remove(&fingerprint).map(|pending| (fingerprint, pending))
    }

    /// Removes the queries that no request waits for.
    pub(super) fn abandoned(&mut self, requests: &WaitingRequests) -> Vec<(u64, PendingQuery)> {
        for pending in self.queries.values_mut() {
            pending.joined.retain(|request| requests.contains(*request));
            pending.queued.retain(|(request, _)| requests.contains(*request));
        }
        let unneeded = |pending: &PendingQuery| pending.joined.is_empty() && pending.queued.is_empty();
        let fingerprints: Vec<u64> =
            self.queries.iter().filter(|(_, pending)| unneeded(pending)).map(|(at, _)| *at).collect();
        let mut abandoned = Vec::new();
        for fingerprint in fingerprints {
            let Some(pending) = self.queries.remove(&fingerprint) else { continue };
            self.ids.remove(&pending.id);
            abandoned.push((fingerprint, pending));
        }
        abandoned
    }

    /// Removes the queries that were not answered within the first deadline. Requests that arrived later wait for another query about the
    /// same key.
    pub(super) fn unanswered(&mut self, requests: &WaitingRequests) -> Vec<(u64, PendingQuery)> {
        let given_up = |pending: &PendingQuery| {
            pending.sent.is_some() && pending.joined.iter().any(|request| !requests.contains(*request))
        };
        let late: Vec<u64> =
            self.queries.iter().filter(|(_, pending)| given_up(pending)).map(|(at, _)| *at).collect();
        late.into_iter()
            .filter_map(|at| {
                self.queries.remove(&at).map(|pending| (at, self.replace(requests, at, pending)))
            })
            .collect()
    }

    /// Makes all requests that wait for `old` wait for a new query; returns the old one.
    fn replace(&mut self, requests: &WaitingRequests, fingerprint: u64, old: PendingQuery) -> PendingQuery {
        self.ids.remove(&old.id);
        let share = old.cost.checked_div(old.joined.len() as u64).unwrap_or(0);
        let joined = old.joined.iter().map(|request| (*request, share));
        let waits = |(request, _): &(u64, u64)| requests.contains(*request);
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
            configured: old.configured,
            cost: still.iter().fold(0, |sum, (_, cost)| sum.saturating_add(*cost)),
            least: still.iter().map(|(_, cost)| *cost).min().unwrap_or(0),
            inquires: old.inquires,
            deadline: still
                .iter()
                .filter_map(|(request, _)| requests.deadline(*request))
                .min()
                .unwrap_or_default(),
            sent: None,
            joined: still.into_iter().map(|(request, _)| request).collect(),
            queued: Vec::new(),
        };
        self.queries.insert(fingerprint, new);
        old
    }
}
