//! The requests that wait for answers: sends their queries, and decides them again by what arrives.

use super::Connection;
use super::queries::{MAX_ROUNDS, PendingQuery, Sent};
use super::waiting::WaitingRequest;
use crate::limiter::check::{Check, Outcome, QueryResult, Reason};
use crate::limiter::local::Local;
use crate::limiter::local::merge::Keeps;
use crate::limiter::local::round::Need;
use crate::model::shared::Shared;
use crate::model::time::{MonoMs, Now};
use crate::model::window::Position;
use crate::model::wire;
use alloc::vec::Vec;

impl Connection {
    /// The outcome of a request's windows, or the queries that they need first.
    pub(super) fn decide_windows(
        &mut self,
        local: &mut Local,
        shared: &mut impl Shared,
        request: u64,
        checks: &[Check<'_>],
        now: Now,
    ) -> Result<Outcome, Vec<Need>> {
        match self.round(local, shared, request, checks, now) {
            Err(_) if self.waiting.is_full() => {
                Ok(local.unanswered(shared, request, checks, self.nodes(now.mono), now))
            }
            decided => decided,
        }
    }

    /// The outcome by the local counts as far as they are known to be fresh, or the queries that are needed first.
    fn round(
        &self,
        local: &mut Local,
        shared: &mut impl Shared,
        request: u64,
        checks: &[Check<'_>],
        now: Now,
    ) -> Result<Outcome, Vec<Need>> {
        local.round(shared, request, checks, || self.view(now.mono), now).map_err(|needs| needs.all)
    }

    /// Makes `request` wait for the answers that it needs.
    pub(super) fn query(
        &mut self,
        local: &mut Local,
        request: u64,
        waiting: WaitingRequest,
        needs: &[Need],
        now: MonoMs,
    ) {
        self.queries.wait(&mut self.waiting, request, waiting, needs, &mut local.stats, now);
    }

    /// The queries to send now; each reserves its cost in the table.
    pub(super) fn send_queries(
        &mut self,
        local: &mut Local,
        shared: &mut impl Shared,
        now: Now,
    ) -> Vec<wire::Query> {
        let mut queries = Vec::new();
        for fingerprint in self.queries.pending.take_unsent() {
            let Some(pending) = self.queries.pending.unsent(fingerprint) else { continue };
            let mut query = wire::Query {
                id: pending.id,
                key: pending.key.clone(),
                sequence: Position::at(now.unix, pending.cell_ms).sequence,
                own: 0,
                cost: 0,
                limit: pending.limit,
                configured: pending.configured,
                timeout_ms: pending.timeout_ms(now.mono),
                traces: self.waiting.traces(pending.joined()),
                without_baseline: false,
                applied_ms: now.unix.0,
            };
            let reserved = local.reserve_for_query(shared, pending.asked(fingerprint), &mut query, now);
            pending.sent = Some(Sent { reserved, inquiry: query.cost == 0 });
            queries.push(query);
        }
        queries
    }

    /// Applies an answer, and decides the requests that waited for it.
    pub(super) fn on_answer(
        &mut self,
        local: &mut Local,
        shared: &mut impl Shared,
        answer: &wire::Answer,
        now: Now,
    ) {
        let Some((fingerprint, pending)) = self.queries.pending.take(answer.id) else { return };
        self.link.on_answer();
        let result = match (answer.granted, &answer.current) {
            (true, _) => QueryResult::Granted,
            (false, Some(_)) => QueryResult::Refused,
            (false, None) => QueryResult::Unjudged,
        };
        local.stats.count_result(result);
        let snapshots = answer.older.iter().rev().chain(&answer.previous).chain(&answer.current);
        let inquiry = pending.sent.is_some_and(|sent| sent.inquiry) && pending.cost > 0;
        let granted = answer.granted && !inquiry && !pending.inquires;
        let undecided_until = pending.keep_entry(fingerprint, &mut self.waiting, granted);
        let keeps = Keeps { is_granted: answer.granted && !inquiry, undecided_until };
        let ended = (fingerprint, pending.key.as_slice());
        local.end_query(shared, ended, pending.reserved(), snapshots, keeps, now);
        for (request, waiting) in pending.release(&mut self.waiting, granted) {
            match result {
                QueryResult::Unjudged => self.decide_unanswered(local, shared, request, waiting, now),
                _ => self.decide_again(local, shared, request, waiting, now),
            }
        }
        if result == QueryResult::Refused {
            local.prolong_denial(fingerprint, pending.cell_ms);
        }
    }

    /// Ends the wait of requests whose timeout has passed, and queries that no request waits for.
    pub(super) fn expire_waiting(&mut self, local: &mut Local, shared: &mut impl Shared, now: Now) {
        let overdue = self.waiting.take_overdue(now.mono);
        if overdue.is_empty() {
            return;
        }
        // First, so that a query's reservation does not deny the requests that waited for it.
        let mut late = self.queries.pending.unanswered(&self.waiting);
        for _ in &late {
            local.stats.count_result(QueryResult::Timeout);
            self.link.timed_out(now.mono);
        }
        late.extend(self.queries.pending.abandoned(&self.waiting));
        end_queries(local, shared, &late, now);
        for (request, waiting) in overdue {
            self.decide_unanswered(local, shared, request, waiting, now);
        }
        if !self.link.is_usable() {
            self.break_waiting(local, shared, now);
        }
    }

    /// Ends all queries, as the stream has ended.
    pub(super) fn break_waiting(&mut self, local: &mut Local, shared: &mut impl Shared, now: Now) {
        let all = self.waiting.take_queries();
        let broken = self.queries.pending.abandoned(&self.waiting);
        broken.iter().for_each(|_| local.stats.count_result(QueryResult::Broken));
        end_queries(local, shared, &broken, now);
        for (request, waiting) in all {
            self.decide_unanswered(local, shared, request, waiting, now);
        }
    }

    /// Decides a request whose answers have all arrived, or makes it wait for another query.
    fn decide_again(
        &mut self,
        local: &mut Local,
        shared: &mut impl Shared,
        request: u64,
        mut waiting: WaitingRequest,
        now: Now,
    ) {
        let Some(answers) = waiting.answers() else { return };
        answers.rounds += 1;
        let (rounds, granted) = (answers.rounds, answers.granted);
        let windows = waiting.windows();
        let decided = match granted {
            true => Ok(local.round_locally(shared, request, &windows, self.nodes(now.mono), now)),
            false => self.round(local, shared, request, &windows, now),
        };
        let decided = match decided {
            Err(needs) if rounds >= MAX_ROUNDS => {
                Ok(self.outbid(local, shared, request, &windows, &needs, now))
            }
            decided => decided,
        };
        match decided {
            Ok(outcome) => {
                self.release_entries(local, shared, &waiting.kept, now);
                self.resolve(local, request, waiting.exact, outcome, now);
            }
            Err(needs) => self.query(local, request, waiting, &needs, now.mono),
        }
    }

    /// Denies a request that the region refused repeatedly, as others were faster each time although a little was left. The process has
    /// no slack left, so the denial is for a moment.
    fn outbid(
        &self,
        local: &mut Local,
        shared: &mut impl Shared,
        request: u64,
        checks: &[Check<'_>],
        needs: &[Need],
        now: Now,
    ) -> Outcome {
        let contended = needs.iter().find(|need| matches!(need.reason, Reason::Slack | Reason::Strict));
        match contended.and_then(|need| checks.get(need.check)) {
            Some(check) => local.refused(shared, checks, local.deny_for_now(check, now), now),
            None => local.unanswered(shared, request, checks, self.nodes(now.mono), now),
        }
    }

    /// Decides a request without an answer by the local counts, unless a rule denies on failure.
    fn decide_unanswered(
        &mut self,
        local: &mut Local,
        shared: &mut impl Shared,
        request: u64,
        waiting: WaitingRequest,
        now: Now,
    ) {
        let outcome = local.unanswered(shared, request, &waiting.windows(), self.nodes(now.mono), now);
        self.release_entries(local, shared, &waiting.kept, now);
        self.resolve(local, request, waiting.exact, outcome, now);
    }

    /// Lets the entries leave that have stayed for a request alone.
    fn release_entries(&mut self, local: &mut Local, shared: &mut impl Shared, kept: &[u64], now: Now) {
        local.release_entries(shared, &self.waiting.release_entries(kept), now);
    }
}

/// Releases what queries without an answer have reserved.
fn end_queries(local: &mut Local, shared: &mut impl Shared, ended: &[(u64, PendingQuery)], now: Now) {
    for (fingerprint, pending) in ended {
        local.end_query(
            shared,
            (*fingerprint, &pending.key),
            pending.reserved(),
            [].iter(),
            Keeps::default(),
            now,
        );
    }
}
