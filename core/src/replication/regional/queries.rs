//! Answers filters' queries from the store within the time that the filter waits, or from memory if the store does not
//! answer.

use crate::model::breaker::FAIR_MS;
use crate::model::key::NodeId;
use crate::model::wire::{Answer, Query};
use crate::region::Proposed;
use crate::region::exchange::{Merge, Merged};
use crate::replication::events::Event;
use crate::replication::failure::{Failure, first_failure};
use crate::replication::{Access, note_parts};
use alloc::vec::Vec;

/// How long a filter waits if its query does not state it.
const DEFAULT_TIMEOUT_MS: u32 = 50;
/// The part of that time reserved for an answer from memory and its way back.
const RESERVE_MS: u32 = 10;

/// The queries of one frame.
#[derive(Clone, Debug)]
pub struct Queries {
    node: NodeId,
    /// Queries that the store decides.
    queries: Vec<Query>,
    merges: Vec<Merge>,
    answers: Vec<Answer>,
}

impl Queries {
    /// Judges the queries from memory. Those that memory cannot settle are for the store.
    pub fn propose(access: &mut impl Access, node: NodeId, queries: Vec<Query>) -> Queries {
        let answers = Vec::with_capacity(queries.len());
        let mut proposed = Queries { node, queries: Vec::new(), merges: Vec::new(), answers };
        access.state(|state, now| {
            for query in queries {
                match state.region.propose(node, &query, now.unix) {
                    Ok(Proposed::Settled(answer)) => proposed.answers.push(state.judged(answer)),
                    Ok(Proposed::Query(merge)) => {
                        proposed.queries.push(query);
                        proposed.merges.push(merge);
                    }
                    Err(_) => proposed.answers.push(state.unjudged(&query)),
                }
            }
        });
        proposed
    }

    /// What to send to the store. If it is empty, call [`Queries::conclude`] without results.
    pub fn merges(&self) -> &[Merge] {
        &self.merges
    }

    /// The queries that belong to [`Queries::merges`], in the same order.
    pub fn queries(&self) -> &[Query] {
        &self.queries
    }

    /// The store's deadline in milliseconds: the shortest time that a filter waits, less the time for the way back.
    pub fn patience_ms(&self) -> u64 {
        let named = |query: &Query| if query.timeout_ms == 0 { DEFAULT_TIMEOUT_MS } else { query.timeout_ms };
        let shortest = self.queries.iter().map(named).min().unwrap_or(DEFAULT_TIMEOUT_MS);
        u64::from(shortest.saturating_sub(RESERVE_MS).max(1))
    }

    /// Whether the store only missed a deadline that it could hardly meet. That is not counted as a failure.
    pub fn were_hurried(&self, results: &[Result<Merged, Failure>]) -> bool {
        self.patience_ms() < FAIR_MS && first_failure(results) == Some(Failure::Timeout)
    }

    /// The answers to all queries, in any order. `results` are the store's, in the order of [`Queries::merges`].
    pub fn conclude(self, access: &mut impl Access, results: &[Result<Merged, Failure>]) -> Vec<Answer> {
        let is_noted = !self.merges.is_empty() && !self.were_hurried(results);
        let Queries { node, queries, merges, mut answers } = self;
        access.state(|state, now| {
            if is_noted {
                note_parts(state, results, now);
            }
            for (place, (query, merge)) in queries.iter().zip(&merges).enumerate() {
                let answer = match results.get(place) {
                    Some(Ok(merged)) => state.region.concluded(node, query, merge, merged, now.unix),
                    _ => state.region.query(node, query, now.unix),
                };
                answers.push(match answer {
                    Ok(answer) => state.judged(answer),
                    Err(_) => state.unjudged(query),
                });
            }
            if !merges.is_empty() {
                state.notify(Event::Broadcast);
            }
            state.notify(Event::Push);
            state.notify(Event::Replay);
        });
        answers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replication::testing::{NODE, NOW, at, backed, query};
    use std::vec;

    fn queries(waits: &[u32]) -> Queries {
        let queries = waits.iter().map(|wait| Query { timeout_ms: *wait, ..Query::default() }).collect();
        Queries { node: NODE, queries, merges: vec![], answers: vec![] }
    }

    #[test]
    fn the_store_gets_the_shortest_timeout_less_a_reserve() {
        let cases: [(&[u32], u64); 4] = [(&[0], 40), (&[100, 30], 20), (&[10], 1), (&[3], 1)];
        for (waits, expected) in cases {
            assert_eq!(queries(waits).patience_ms(), expected, "{waits:?}");
        }
    }

    #[test]
    fn missing_a_very_short_deadline_is_not_a_failure_of_the_store() {
        assert!(queries(&[30]).were_hurried(&[Err(Failure::Timeout)]));
        assert!(!queries(&[30]).were_hurried(&[Err(Failure::Unavailable)]));
        assert!(!queries(&[50]).were_hurried(&[Err(Failure::Timeout)]));
        let mut state = backed();
        for (timeout_ms, usable) in [(30, true), (50, false)] {
            for id in 0..10 {
                let query = Query { timeout_ms, ..query(id, 1, 100) };
                let proposed = Queries::propose(&mut at(&mut state, 0), NODE, vec![query]);
                proposed.conclude(&mut at(&mut state, 0), &[Err(Failure::Timeout)]);
            }
            assert_eq!(state.is_usable(NOW.mono), usable, "{timeout_ms} ms");
        }
    }

    #[test]
    fn every_query_is_answered_by_the_store_or_from_memory() {
        let mut state = backed();
        let queries = vec![
            query(1, 11, 10), // above the limit
            query(2, 5, 10),
            query(3, 6, 10),
            Query { id: 4, ..Query::default() }, // not a valid query
        ];
        let proposed = Queries::propose(&mut at(&mut state, 0), NODE, queries);
        assert_eq!(proposed.merges().len(), 2);
        let merged = Merged { granted: Some(true), current: vec![(NODE, 5)], ..Merged::default() };
        let results = [Ok(merged), Err(Failure::Unavailable)];
        let answers = proposed.conclude(&mut at(&mut state, 1), &results);
        let mut granted: Vec<_> = answers.iter().map(|answer| (answer.id, answer.granted)).collect();
        granted.sort_unstable();
        // The third query is decided from memory: its own count, proposed for the same node, is 6.
        assert_eq!(granted, vec![(1, false), (2, true), (3, true), (4, false)]);
        assert_eq!((state.figures.granted, state.figures.denied, state.figures.unjudged), (2, 1, 1));
        let events = state.take_events();
        assert!(events.has(Event::Broadcast) && events.has(Event::Push) && events.has(Event::Replay));
    }
}
