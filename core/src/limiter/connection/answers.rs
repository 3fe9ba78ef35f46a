//! The requests that wait for answers: sends their queries, and decides them again by what arrives.

use super::Connection;
use super::queries::{MAX_ROUNDS, PendingQuery, Sent};
use super::waiting::WaitingRequest;
use crate::limiter::check::{Check, Outcome, QueryResult, Reason};
use crate::limiter::local::Turn;
use crate::limiter::local::merge::Keeps;
use crate::limiter::local::round::Need;
use crate::model::shared::Shared;
use crate::model::window::Position;
use crate::model::wire;
use alloc::vec::Vec;

impl Connection {
    /// The outcome of a request's windows, or the queries that they need first.
    pub(super) fn decide_windows(
        &mut self,
        turn: &mut Turn<'_, impl Shared>,
        request: u64,
        checks: &[Check<'_>],
    ) -> Result<Outcome, Vec<Need>> {
        match self.round(turn, request, checks) {
            Err(_) if self.waiting.is_full() => {
                Ok(turn.local.unanswered(turn.shared, request, checks, self.nodes(turn.now.mono), turn.now))
            }
            decided => decided,
        }
    }

    /// The outcome by the local counts as far as they are known to be fresh, or the queries that are needed first.
    fn round(
        &self,
        turn: &mut Turn<'_, impl Shared>,
        request: u64,
        checks: &[Check<'_>],
    ) -> Result<Outcome, Vec<Need>> {
        turn.local
            .round(turn.shared, request, checks, || self.view(turn.now.mono), turn.now)
            .map_err(|needs| needs.all)
    }

    /// Makes `request` wait for the answers that it needs.
    pub(super) fn query(
        &mut self,
        turn: &mut Turn<'_, impl Shared>,
        request: u64,
        waiting: WaitingRequest,
        needs: &[Need],
    ) {
        self.queries.wait(&mut self.waiting, request, waiting, needs, &mut turn.local.stats, turn.now.mono);
    }

    /// The queries to send now; each reserves its cost in the table.
    pub(super) fn send_queries(&mut self, turn: &mut Turn<'_, impl Shared>) -> Vec<wire::Query> {
        let mut queries = Vec::new();
        for fingerprint in self.queries.pending.take_unsent() {
            let Some(pending) = self.queries.pending.unsent(fingerprint) else { continue };
            let mut query = wire::Query {
                id: pending.id,
                key: pending.key.clone(),
                sequence: Position::at(turn.now.unix, pending.cell_ms).sequence,
                own: 0,
                cost: 0,
                limit: pending.limit,
                configured: pending.configured,
                timeout_ms: pending.timeout_ms(turn.now.mono),
                traces: self.waiting.traces(pending.joined()),
                without_baseline: false,
                applied_ms: turn.now.unix.0,
            };
            let reserved =
                turn.local.reserve_for_query(turn.shared, pending.asked(fingerprint), &mut query, turn.now);
            pending.sent = Some(Sent { reserved, inquiry: query.cost == 0 });
            queries.push(query);
        }
        queries
    }

    /// Applies an answer, and decides the requests that waited for it.
    pub(super) fn on_answer(&mut self, turn: &mut Turn<'_, impl Shared>, answer: &wire::Answer) {
        let Some((fingerprint, pending)) = self.queries.pending.take(answer.id) else { return };
        self.link.on_answer();
        let result = match (answer.granted, &answer.current) {
            (true, _) => QueryResult::Granted,
            (false, Some(_)) => QueryResult::Refused,
            (false, None) => QueryResult::Unjudged,
        };
        turn.local.stats.count_result(result);
        let snapshots = answer.older.iter().rev().chain(&answer.previous).chain(&answer.current);
        let inquiry = pending.sent.is_some_and(|sent| sent.inquiry) && pending.cost > 0;
        let granted = answer.granted && !inquiry && !pending.inquires;
        let undecided_until = pending.keep_entry(fingerprint, &mut self.waiting, granted);
        let keeps = Keeps { is_granted: answer.granted && !inquiry, undecided_until };
        let ended = (fingerprint, pending.key.as_slice());
        turn.local.end_query(turn.shared, ended, pending.reserved(), snapshots, keeps, turn.now);
        for (request, waiting) in pending.release(&mut self.waiting, granted) {
            match result {
                QueryResult::Unjudged => self.decide_unanswered(turn, request, waiting),
                _ => self.decide_again(turn, request, waiting),
            }
        }
        if result == QueryResult::Refused {
            turn.local.prolong_denial(fingerprint, pending.cell_ms);
        }
    }

    /// Ends the wait of requests whose timeout has passed, and queries that no request waits for.
    pub(super) fn expire_waiting(&mut self, turn: &mut Turn<'_, impl Shared>) {
        let overdue = self.waiting.take_overdue(turn.now.mono);
        if overdue.is_empty() {
            return;
        }
        // First, so that a query's reservation does not deny the requests that waited for it.
        let mut late = self.queries.pending.unanswered(&self.waiting);
        for _ in &late {
            turn.local.stats.count_result(QueryResult::Timeout);
            self.link.timed_out(turn.now.mono);
        }
        late.extend(self.queries.pending.abandoned(&self.waiting));
        end_queries(turn, &late);
        for (request, waiting) in overdue {
            self.decide_unanswered(turn, request, waiting);
        }
        if !self.link.is_usable() {
            self.break_waiting(turn);
        }
    }

    /// Ends all queries, as the stream has ended.
    pub(super) fn break_waiting(&mut self, turn: &mut Turn<'_, impl Shared>) {
        let all = self.waiting.take_queries();
        let broken = self.queries.pending.abandoned(&self.waiting);
        broken.iter().for_each(|_| turn.local.stats.count_result(QueryResult::Broken));
        end_queries(turn, &broken);
        for (request, waiting) in all {
            self.decide_unanswered(turn, request, waiting);
        }
    }

    /// Decides a request whose answers have all arrived, or makes it wait for another query.
    fn decide_again(&mut self, turn: &mut Turn<'_, impl Shared>, request: u64, mut waiting: WaitingRequest) {
        let Some(answers) = waiting.answers() else { return };
        answers.rounds += 1;
        let (rounds, granted) = (answers.rounds, answers.granted);
        let windows = waiting.windows();
        let decided = match granted {
            true => Ok(turn.local.round_locally(
                turn.shared,
                request,
                &windows,
                self.nodes(turn.now.mono),
                turn.now,
            )),
            false => self.round(turn, request, &windows),
        };
        let decided = match decided {
            Err(needs) if rounds >= MAX_ROUNDS => Ok(self.outbid(turn, request, &windows, &needs)),
            decided => decided,
        };
        match decided {
            Ok(outcome) => {
                self.release_entries(turn, &waiting.kept);
                self.resolve(turn, request, waiting.exact, outcome);
            }
            Err(needs) => self.query(turn, request, waiting, &needs),
        }
    }

    /// Denies a request that the region refused repeatedly, as others were faster each time although a little was left. The process has
    /// no slack left, so the denial is for a moment.
    fn outbid(
        &self,
        turn: &mut Turn<'_, impl Shared>,
        request: u64,
        checks: &[Check<'_>],
        needs: &[Need],
    ) -> Outcome {
        let contended = needs.iter().find(|need| matches!(need.reason, Reason::Slack | Reason::Strict));
        match contended.and_then(|need| checks.get(need.check)) {
            Some(check) => {
                turn.local.refused(turn.shared, checks, turn.local.deny_for_now(check, turn.now), turn.now)
            }
            None => turn.local.unanswered(turn.shared, request, checks, self.nodes(turn.now.mono), turn.now),
        }
    }

    /// Decides a request without an answer by the local counts, unless a rule denies on failure.
    fn decide_unanswered(&mut self, turn: &mut Turn<'_, impl Shared>, request: u64, waiting: WaitingRequest) {
        let outcome = turn.local.unanswered(
            turn.shared,
            request,
            &waiting.windows(),
            self.nodes(turn.now.mono),
            turn.now,
        );
        self.release_entries(turn, &waiting.kept);
        self.resolve(turn, request, waiting.exact, outcome);
    }

    /// Lets the entries leave that have stayed for a request alone.
    fn release_entries(&mut self, turn: &mut Turn<'_, impl Shared>, kept: &[u64]) {
        turn.local.release_entries(turn.shared, &self.waiting.release_entries(kept), turn.now);
    }
}

/// Releases what queries without an answer have reserved.
fn end_queries(turn: &mut Turn<'_, impl Shared>, ended: &[(u64, PendingQuery)]) {
    for (fingerprint, pending) in ended {
        let (ended, reserved) = ((*fingerprint, pending.key.as_slice()), pending.reserved());
        turn.local.end_query(turn.shared, ended, reserved, [].iter(), Keeps::default(), turn.now);
    }
}
