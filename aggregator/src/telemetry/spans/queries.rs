//! Spans of queries and exact requests, in the trace of the request that waits.

use super::{Active, On, Telemetry};
use weir_core::model::exact::{ChargeResult, Verdict};
use weir_core::model::key::KeyParts;
use weir_core::model::trace::{MAX_TRACES, Trace};
use weir_core::model::wire::{Answer, ExactRequest, ExactResponse, Query};
use weir_core::replication::Failure;

const STORE: &str = "redis";
const MEMORY: &str = "memory";

/// The recorded spans of the queries in one frame.
pub struct QuerySpans {
    open: Vec<Open>,
}

struct Open {
    id: u64,
    span: Active,
    /// What decided: the store or memory.
    answered_by: &'static str,
}

impl Telemetry {
    /// The spans of the queries that are recorded; `None` if there are none.
    pub fn queries(&self, queries: &[Query]) -> Option<QuerySpans> {
        let on = self.on.as_ref().filter(|_| !queries.is_empty())?;
        let open = |query: &Query| Some(Open { id: query.id, span: on.query(query)?, answered_by: MEMORY });
        let open: Vec<_> = queries.iter().filter_map(open).collect();
        (!open.is_empty()).then_some(QuerySpans { open })
    }

    /// The span of an exact request, if it is recorded.
    pub fn exact_request(&self, request: &ExactRequest) -> Option<Active> {
        let on = self.on.as_ref()?;
        let trace = request.trace.as_ref().and_then(Trace::of_wire);
        let span = on.serve("exact_request", trace.as_slice())?;
        let logs = request.charges.iter().filter_map(|charge| charge.log.as_ref());
        if let Some(log) = logs.clone().next() {
            span.set_key(&log.key);
            span.set_number("weir.limit", log.most);
        }
        let costs = request.charges.iter().map(|charge| charge.cost);
        span.set_number("weir.cost", costs.fold(0, u64::saturating_add));
        span.set_number("weir.charges.log", logs.count() as u64);
        let ledgers = request.charges.iter().filter(|charge| charge.ledger.is_some());
        span.set_number("weir.charges.ledger", ledgers.count() as u64);
        Some(span)
    }
}

impl On {
    fn query(&self, query: &Query) -> Option<Active> {
        let traces: Vec<_> = query.traces.iter().take(MAX_TRACES).filter_map(Trace::of_wire).collect();
        let span = self.serve("query", &traces)?;
        span.set_key(&query.key);
        span.set_number("weir.cost", query.cost);
        span.set_number("weir.limit", query.limit);
        Some(span)
    }
}

impl Active {
    /// Sets the parts of the key, except for the identifier.
    fn set_key(&self, key: &[u8]) {
        let Ok(parts) = KeyParts::decode(key) else { return };
        self.set("weir.workspace", String::from_utf8_lossy(parts.workspace).into_owned());
        self.set("weir.namespace", String::from_utf8_lossy(parts.namespace).into_owned());
        self.set_number("weir.window_ms", parts.duration_ms);
    }

    /// Ends the span of an exact request.
    pub fn ruled(self, results: &ExactResponse) {
        let verdicts = || results.results.iter().map(|result| ChargeResult::from_wire(result).verdict);
        let outcome = if verdicts().any(|verdict| matches!(verdict, Verdict::Denied { .. })) {
            "denied"
        } else if verdicts().all(|verdict| verdict == Verdict::Allowed) {
            "allowed"
        } else {
            "undecided"
        };
        self.set("weir.outcome", outcome);
    }
}

impl QuerySpans {
    /// Spans of the calls to the store, one for each of `queries`.
    pub fn calls(&self, queries: &[Query]) -> Vec<Option<Active>> {
        queries
            .iter()
            .map(|query| self.find(query.id).and_then(|at| self.open.get(at)?.span.scripts(1)))
            .collect()
    }

    /// Ends those spans.
    pub fn called<T>(
        &mut self,
        queries: &[Query],
        calls: Vec<Option<Active>>,
        results: &[Result<T, Failure>],
    ) {
        for ((query, call), result) in queries.iter().zip(calls).zip(results) {
            match result {
                Ok(_) => {
                    let open = self.find(query.id).and_then(|at| self.open.get_mut(at));
                    open.into_iter().for_each(|open| open.answered_by = STORE);
                }
                Err(failure) => call.iter().for_each(|call| call.fail(failure.as_str())),
            }
        }
    }

    /// Ends the spans of the answered queries.
    pub fn answered(&mut self, answers: &[Answer]) {
        for answer in answers {
            let Some(at) = self.find(answer.id) else { continue };
            let Open { span, answered_by, .. } = self.open.swap_remove(at);
            span.set("weir.answered_by", answered_by);
            let outcome = match (answer.granted, &answer.current) {
                (true, _) => "granted",
                (false, Some(_)) => "refused",
                (false, None) => "unjudged",
            };
            span.set("weir.outcome", outcome);
        }
    }

    fn find(&self, id: u64) -> Option<usize> {
        self.open.iter().position(|open| open.id == id)
    }
}
