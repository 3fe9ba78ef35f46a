//! Merges what the region sends into the table: pushes, baselines, and answers to queries.

use super::charge::UNDECIDED_RETRY_MS;
use super::judge::LocalCounts;
use crate::limiter::check::{Budget, Cause, Check, Decision, Denial, Outcome, QueryResult, Reason};
use crate::limiter::remote::queries::{MAX_ROUNDS, Need, PendingQuery, Sent};
use crate::limiter::remote::waiting::WaitingRequest;
use crate::limiter::report::outbox::StoredCell;
use crate::limiter::table::{Entry, ReservationKind};
use crate::limiter::transact::{Make, Subject};
use crate::limiter::{ANSWER_SERVES_MS, Limiter, TICK_MS};
use crate::model::key::{KeyParts, fingerprint};
use crate::model::shared::Shared;
use crate::model::time::Now;
use crate::model::window::Position;
use crate::model::wire;
use alloc::vec::Vec;

/// A query's reservation that was not released counts as spent after this time.
const QUERY_EXPIRES_MS: u64 = 4_000;

impl Limiter {
    /// Merges counts of keys, from a push or as baselines after a report. A pushed key that this process does not use enters the table only
    /// if no key in use has to leave for it.
    pub(in crate::limiter) fn merge_snapshots(
        &mut self,
        shared: &mut impl Shared,
        snapshots: &[wire::Snapshot],
        make: Make,
        now: Now,
    ) {
        for snapshot in snapshots {
            if KeyParts::decode(&snapshot.key).is_err() {
                self.stats.refused += 1;
                continue;
            }
            let subject = Subject {
                fingerprint: fingerprint(&snapshot.key, self.table.secret),
                key: Some(&snapshot.key),
                make,
            };
            let change = |entry: &mut Entry, _: &Position| {
                let without_baseline = entry.without_baseline_cells();
                // A push may come from an aggregator that has not received all that this process has reported to another.
                let changed = entry.merge(snapshot, make != Make::WhereFree, now.mono);
                (entry.without_baseline_cells() < without_baseline, changed)
            };
            if let Ok(done) = self.table.transact(shared, subject, now, &mut self.stats, change) {
                self.stats.snapshots += 1;
                if done.regained {
                    self.note_cells(&done.entry, now.mono);
                } else if done.result {
                    self.note_based_cells(&done.entry, now.mono);
                }
            }
        }
    }

    /// Marks keys that the region refused: only this process has their counts, so they stay in the table and are offered again.
    pub(in crate::limiter) fn keep_unstored(
        &mut self,
        shared: &mut impl Shared,
        fingerprints: &[u64],
        now: Now,
    ) {
        if !fingerprints.is_empty() {
            self.resync.plan_offer(now.mono);
        }
        for fingerprint in fingerprints {
            let subject = Subject { fingerprint: *fingerprint, key: None, make: Make::Never };
            let change = |entry: &mut Entry, _: &Position| {
                let changes = !entry.unstored;
                entry.unstored = true;
                ((), changes)
            };
            // If the key has left or conflicts do not end, another copy exists or the refusal will be repeated.
            let marked = self.table.transact(shared, subject, now, &mut self.stats, change);
            if let Some(done) = marked.ok().filter(|done| done.regained) {
                self.note_cells(&done.entry, now.mono);
            }
        }
    }

    /// Removes the mark of keys whose counts the region has stored completely, so that they may be evicted again.
    pub(in crate::limiter) fn unmark_stored(
        &mut self,
        shared: &mut impl Shared,
        stored: &[StoredCell],
        now: Now,
    ) {
        for StoredCell { fingerprint, sequence, own } in stored {
            let subject = Subject { fingerprint: *fingerprint, key: None, make: Make::Never };
            let change = |entry: &mut Entry, _: &Position| {
                entry.confirm(*sequence, *own);
                // What was added to this cell since then is in a later report.
                let others_wait = entry.cells().any(|(at, cell)| at != *sequence && cell.is_unreported());
                entry.unstored &= others_wait;
                (entry.unstored, true)
            };
            let marked = self.table.transact(shared, subject, now, &mut self.stats, change);
            let Ok(done) = marked else { continue };
            if done.regained {
                self.note_cells(&done.entry, now.mono);
            }
            if done.result {
                self.resync.plan_offer(now.mono);
            }
        }
    }

    /// The queries to send now; each reserves its cost in the table.
    pub(in crate::limiter) fn send_queries(
        &mut self,
        shared: &mut impl Shared,
        now: Now,
    ) -> Vec<wire::Query> {
        let tag = self.tag(ReservationKind::Query);
        let mut queries = Vec::new();
        for fingerprint in self.queries.pending.take_unsent() {
            let Some(pending) = self.queries.pending.unsent(fingerprint) else { continue };
            let traces = self.waiting.traces(pending.joined());
            let subject = Subject { fingerprint, key: Some(&pending.key), make: Make::Always };
            let change = |entry: &mut Entry, at: &Position| {
                if entry.is_without_baseline() || pending.cost == 0 {
                    return (0, false);
                }
                // A query for more than is left would be refused as a whole, though some of its requests could pass.
                let left = entry.used_and_reserved().remaining(at, pending.limit);
                let cost = pending.cost.min(left.max(pending.least));
                let reserved = entry.reserve(tag, cost, now.mono.after(QUERY_EXPIRES_MS));
                let unreserved = if reserved { 0 } else { cost };
                (entry.claimed_in(entry.sequence).saturating_add(unreserved), reserved)
            };
            let mut query = wire::Query {
                id: pending.id,
                key: pending.key.clone(),
                sequence: Position::at(now.unix, pending.cell_ms).sequence,
                own: 0,
                cost: 0,
                limit: pending.limit,
                configured: pending.configured,
                timeout_ms: pending.timeout_ms(now.mono),
                traces,
                without_baseline: false,
                applied_ms: now.unix.0,
            };
            let (mut overflow, mut regained) = (false, None);
            if let Ok(done) = self.table.transact(shared, subject, now, &mut self.stats, change) {
                regained = done.regained.then(|| done.entry.clone());
                query.sequence = done.entry.sequence;
                overflow = done.overflow;
                if overflow {
                    query.key = self.table.key().to_vec();
                }
                // Also at a cost of 0: the region's lower bound may include this node's count.
                let current = done.entry.current;
                query.own = if current.without_baseline { 0 } else { current.own };
                query.cost = done.result;
                query.without_baseline = done.entry.is_without_baseline();
            }
            pending.sent = Some(Sent { sequence: query.sequence, inquiry: query.cost == 0, overflow });
            queries.push(query);
            if let Some(entry) = regained {
                self.note_cells(&entry, now.mono);
            }
        }
        queries
    }

    /// Applies an answer, and decides the requests that waited for it.
    pub(in crate::limiter) fn on_answer(
        &mut self,
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
        self.stats.count_result(result);
        let snapshots = answer.older.iter().rev().chain(&answer.previous).chain(&answer.current);
        self.close_query(shared, fingerprint, &pending, snapshots, now);
        let inquiry = pending.sent.is_some_and(|sent| sent.inquiry) && pending.cost > 0;
        let granted = answer.granted && !inquiry && !pending.inquires;
        for (request, waiting) in pending.release(&mut self.waiting, granted) {
            match result {
                QueryResult::Unjudged => self.decide_unanswered(shared, request, waiting, now),
                _ => self.decide_again(shared, request, waiting, now),
            }
        }
        if result == QueryResult::Refused {
            self.prolong_denial(fingerprint, pending.cell_ms);
        }
    }

    /// Applies a refusal for a short time to all requests of the key: at the limit a little becomes free all the time, and every worker of
    /// the region would query for it repeatedly, although one gets it.
    fn prolong_denial(&mut self, fingerprint: u64, cell_ms: u64) {
        if let Some(denied) = self.worker_cache.get(fingerprint).and_then(|slot| slot.denied.as_mut()) {
            denied.until = denied.until.max(denied.since.after(ANSWER_SERVES_MS.min(cell_ms / 8)));
        }
    }

    /// Ends the wait of requests whose timeout has passed, and queries that no request waits for.
    pub(in crate::limiter) fn expire_waiting(&mut self, shared: &mut impl Shared, now: Now) {
        let overdue = self.waiting.take_overdue(now.mono);
        if overdue.is_empty() {
            return;
        }
        // First, so that a query's reservation does not deny the requests that waited for it.
        let mut late = self.queries.pending.unanswered(&self.waiting);
        for _ in &late {
            self.stats.count_result(QueryResult::Timeout);
            self.link.timed_out(now.mono);
        }
        late.extend(self.queries.pending.abandoned(&self.waiting));
        for (fingerprint, pending) in late {
            self.close_query(shared, fingerprint, &pending, [].iter(), now);
        }
        for (request, waiting) in overdue {
            self.decide_unanswered(shared, request, waiting, now);
        }
        if !self.link.is_usable() {
            self.break_waiting(shared, now);
        }
    }

    /// Ends all queries, as the stream has ended.
    pub(in crate::limiter) fn break_waiting(&mut self, shared: &mut impl Shared, now: Now) {
        let all = self.waiting.take_queries();
        for (fingerprint, pending) in self.queries.pending.abandoned(&self.waiting) {
            self.stats.count_result(QueryResult::Broken);
            self.close_query(shared, fingerprint, &pending, [].iter(), now);
        }
        for (request, waiting) in all {
            self.decide_unanswered(shared, request, waiting, now);
        }
    }

    fn close_query<'a>(
        &mut self,
        shared: &mut impl Shared,
        fingerprint: u64,
        pending: &PendingQuery,
        snapshots: impl Iterator<Item = &'a wire::Snapshot> + Clone,
        now: Now,
    ) {
        let tag = self.tag(ReservationKind::Query);
        let change = |entry: &mut Entry, _: &Position| {
            if let Some(Sent { sequence, .. }) = pending.sent {
                // The number of its cell may have changed when the clock stepped.
                if entry.release(tag, sequence).is_none() {
                    entry.release_newest(tag);
                }
            }
            let without_baseline = entry.without_baseline_cells();
            for snapshot in snapshots.clone() {
                entry.merge(snapshot, true, now.mono);
            }
            (entry.without_baseline_cells() < without_baseline, true)
        };
        let make = if snapshots.clone().next().is_none() { Make::Never } else { Make::Always };
        let overflow = pending.sent.is_some_and(|sent| sent.overflow);
        let subject = Subject { fingerprint, key: Some(&pending.key), make };
        let closed = self.table.transact_where(shared, overflow, subject, now, &mut self.stats, change);
        match closed {
            Ok(done) if done.regained => self.note_cells(&done.entry, now.mono),
            Ok(done) if done.result => self.note_based_cells(&done.entry, now.mono),
            _ => {}
        }
    }

    /// Decides a request whose answers have all arrived, or makes it wait for another query.
    fn decide_again(
        &mut self,
        shared: &mut impl Shared,
        request: u64,
        mut waiting: WaitingRequest,
        now: Now,
    ) {
        let Some(answers) = waiting.answers() else { return };
        answers.rounds += 1;
        let (rounds, granted) = (answers.rounds, answers.granted);
        let decided = match granted {
            true => Ok(self.round_locally(shared, request, &waiting.windows(), now)),
            false => self.round(shared, request, &waiting.windows(), now),
        };
        match decided {
            Ok(outcome) => self.resolve(request, waiting.exact, outcome, now),
            Err(needs) if rounds < MAX_ROUNDS => self.query(request, waiting, &needs, now.mono),
            Err(needs) => {
                let outcome = self.outbid(shared, request, &waiting.windows(), &needs, now);
                self.resolve(request, waiting.exact, outcome, now);
            }
        }
    }

    /// Denies a request that the region refused repeatedly, as others were faster each time although a little was left. The process has
    /// no slack left, so the denial is for a moment.
    fn outbid(
        &mut self,
        shared: &mut impl Shared,
        request: u64,
        checks: &[Check<'_>],
        needs: &[Need],
        now: Now,
    ) -> Outcome {
        let contended = needs.iter().find(|need| matches!(need.reason, Reason::Slack | Reason::Strict));
        let Some(check) = contended.and_then(|need| checks.get(need.check)) else {
            return self.unanswered(shared, request, checks, now);
        };
        let budget = Budget { remaining: 0, ..self.untouched(&self.item(0, check), check, now) };
        let denial = Denial { budget, retry_after_ms: Some(TICK_MS), cause: Cause::Reserved };
        self.refused(shared, checks, denial, now)
    }

    /// Decides a request without an answer by the local counts, unless a rule denies on failure.
    fn decide_unanswered(
        &mut self,
        shared: &mut impl Shared,
        request: u64,
        waiting: WaitingRequest,
        now: Now,
    ) {
        let outcome = self.unanswered(shared, request, &waiting.windows(), now);
        self.resolve(request, waiting.exact, outcome, now);
    }

    /// The outcome without an answer: by the local counts, unless a rule denies on failure.
    pub(in crate::limiter) fn unanswered(
        &mut self,
        shared: &mut impl Shared,
        request: u64,
        checks: &[Check<'_>],
        now: Now,
    ) -> Outcome {
        let wary = checks.iter().find(|check| check.policy.deny_on_failure && !check.policy.shadow);
        match wary {
            Some(check) => self.deny_undecided(shared, check, now),
            None => self.round_locally(shared, request, checks, now),
        }
    }

    fn deny_undecided(&mut self, shared: &mut impl Shared, check: &Check<'_>, now: Now) -> Outcome {
        let item = self.item(0, check);
        let denial = match self.look(shared, &item, check, &LocalCounts, now) {
            Ok(budget) => {
                Denial { budget, retry_after_ms: Some(UNDECIDED_RETRY_MS), cause: Cause::Undecided }
            }
            Err(refusal) => refusal.denial(),
        };
        Outcome::of(Decision::Deny(denial))
    }
}
