//! Decides the queries of filters with the store within their timeout, and from memory if the store does not answer.

use super::calls::{Regional, count, failures};
use crate::region::hub::Hub;
use crate::telemetry::metrics::Operation;
use crate::telemetry::spans::QuerySpans;
use std::time::{Duration, Instant};
use weir_core::model::key::NodeId;
use weir_core::model::wire::{Answer, Query};
use weir_core::replication::failure::first_failure;
use weir_core::replication::regional::queries::Queries;

/// Answers every query, in any order, and ends the spans of those that are `traced`.
pub async fn answer(
    hub: &Hub,
    regional: &Regional,
    node: NodeId,
    queries: Vec<Query>,
    mut traced: Option<QuerySpans>,
) -> Vec<Answer> {
    let started = Instant::now();
    let queries = Queries::propose(&mut &*hub, node, queries);
    if queries.merges().is_empty() {
        let answers = queries.conclude(&mut &*hub, &[]);
        traced.iter_mut().for_each(|traced| traced.answered(&answers));
        return answers;
    }
    let patience = Duration::from_millis(queries.patience_ms());
    let calls = traced.as_ref().map(|traced| traced.calls(queries.queries()));
    let results = failures(regional.store.merge(queries.merges(), hub.now(), patience).await);
    if let (Some(traced), Some(calls)) = (&mut traced, calls) {
        traced.called(queries.queries(), calls, &results);
    }
    if queries.were_hurried(&results) {
        hub.metrics.operation_failed(Operation::Query, "hurried");
    } else {
        count(&hub.metrics, Operation::Query, started, first_failure(&results).as_ref());
    }
    let answers = queries.conclude(&mut &*hub, &results);
    traced.iter_mut().for_each(|traced| traced.answered(&answers));
    answers
}
