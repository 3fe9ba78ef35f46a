//! The namespaces in which filters' rules count, here and at the region's other aggregators. A token may count in such a
//! namespace only if its entry names it.

use super::embedded::LimitCheck;
use crate::auth::Caller;
use crate::region::services::Services;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use weir_core::model::exact::Algorithm;
use weir_core::model::time::MonoMs;

/// How long the names are cached. Rules change only with configurations, so not every request collects them.
const KEPT_MS: u64 = 1_000;

/// Workspaces and namespaces.
type Names = HashSet<(Vec<u8>, Vec<u8>)>;

/// The names as last collected.
#[derive(Debug, Default)]
pub struct Ruled {
    cached: Mutex<Option<(MonoMs, Arc<Names>)>>,
}

/// What a caller's token does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forbidden {
    /// The namespace.
    Namespace,
    /// A cost above this.
    Cost(u64),
}

impl Ruled {
    /// What `caller` is not allowed in this check; `None` if it is allowed. A ledger has zones instead of namespaces.
    pub fn forbids(&self, services: &Services, caller: &Caller, check: &LimitCheck) -> Option<Forbidden> {
        let is_ruled = || self.has(services, &check.workspace, &check.namespace);
        let is_ledger = matches!(check.algorithm, Algorithm::Ledger { .. });
        if !is_ledger && !caller.may_count(&check.namespace, is_ruled) {
            return Some(Forbidden::Namespace);
        }
        (check.cost > caller.max_cost()).then(|| Forbidden::Cost(caller.max_cost()))
    }

    /// Whether a filter's rule counts in this namespace.
    fn has(&self, services: &Services, workspace: &[u8], namespace: &[u8]) -> bool {
        self.names(services).contains(&(workspace.to_vec(), namespace.to_vec()))
    }

    fn names(&self, services: &Services) -> Arc<Names> {
        let now = services.moment().mono;
        let mut cached = self.cached.lock();
        if let Some((_, names)) = cached.as_ref().filter(|(since, _)| now.since(*since) < KEPT_MS) {
            return names.clone();
        }
        let mut rules = services.status.counters.lock().rules(now);
        rules.extend(services.status.peers.all().iter().flat_map(|peer| peer.status.rules.iter().cloned()));
        let name = |rule: crate::region::status::counters::Rule| {
            (rule.workspace.into_bytes(), rule.namespace.into_bytes())
        };
        let names: Arc<Names> = Arc::new(rules.into_iter().map(name).collect());
        *cached = Some((now, names.clone()));
        names
    }
}
