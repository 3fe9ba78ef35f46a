//! What a caller's credential allows in a check.
//!
//! The credential alone decides. What filters' rules count is no part of it: an aggregator that has just started, or a table
//! that is full, would then allow more than one with all of its knowledge.

use super::embedded::{CountedKey, LimitCheck};
use crate::auth::Caller;
use std::collections::HashMap;
use weir_core::model::exact::Algorithm;

/// Who chose the namespace of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// The caller, or the name of a limit in the configuration: a filter's rule may count in the same namespace.
    Name,
    /// The domain and path of a limit without a name: no filter's rule counts there.
    Path,
}

/// What a caller's credential does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forbidden {
    /// The namespace.
    Namespace,
    /// A cost above this.
    Cost(u64),
}

/// The checks of one request. The costs of those that count on the same add up.
#[derive(Debug, Default)]
pub struct Request(HashMap<(Algorithm, CountedKey), u64>);

impl Request {
    /// What `caller` is not allowed with one more check of the request; `None` if it is allowed.
    pub fn forbidden(&mut self, caller: &Caller, check: &LimitCheck, naming: Naming) -> Option<Forbidden> {
        let cost = self.0.entry((check.algorithm, check.counted_key())).or_default();
        *cost = cost.saturating_add(check.cost);
        let is_above = *cost > caller.max_cost();
        forbidden(caller, check, naming).or_else(|| is_above.then(|| Forbidden::Cost(caller.max_cost())))
    }
}

/// What `caller` is not allowed in this check; `None` if it is allowed. A ledger has zones instead of namespaces.
pub fn forbidden(caller: &Caller, check: &LimitCheck, naming: Naming) -> Option<Forbidden> {
    let is_ledger = check.algorithm.zone().is_some();
    if !is_ledger && !caller.may_count(&check.namespace, naming == Naming::Path) {
        return Some(Forbidden::Namespace);
    }
    (check.cost > caller.max_cost()).then(|| Forbidden::Cost(caller.max_cost()))
}
