//! All checks of one request: either all enforcing rules are charged or none. Shadow rules only report what they would decide.

use super::Local;
use super::charge::{Hold, Refusal, UNDECIDED_RETRY_MS};
use super::item::{DeferredCost, Item, Provision};
use super::judge::{Basis, LocalCounts};
use crate::limiter::check::{
    Budget, Cause, Check, Decision, Denial, Outcome, Reason, ShownBudgets, Visibility,
};
use crate::limiter::rule_set::RuleSet;
use crate::model::key::fingerprint;
use crate::model::shared::Shared;
use crate::model::time::Now;
use crate::model::window::MAX_LIMIT;
use alloc::vec::Vec;

/// Result of all enforcing checks, or of those that need the table.
enum Table {
    Charged(ShownBudgets),
    Denied(Denial),
}

impl Local {
    /// The outcome, or the queries that are needed first.
    pub(in crate::limiter) fn round<B: Basis>(
        &mut self,
        shared: &mut impl Shared,
        request: u64,
        checks: &[Check<'_>],
        view: impl FnOnce() -> B,
        now: Now,
    ) -> Result<Outcome, Needs<B::Query>> {
        if let [check] = checks
            && !check.policy.shadow
        {
            let decision = match self.decide_one(shared, check, view, now)? {
                Decision::Allow(_) if check.policy.visibility == Visibility::Hidden => Decision::Allow(None),
                decision => decision,
            };
            if check.policy.settles_within_ms > 0 {
                self.keep_open(shared, request, now);
            }
            return Ok(Outcome::of(decision));
        }
        let mut items = core::mem::take(&mut self.items);
        self.coalesce(checks, &mut items);
        let basis = view();
        let decided = self.enforce(shared, checks, &mut items, &basis, now);
        let outcome = decided.map(|decided| {
            let (decision, budgets) = match decided {
                Table::Charged(ShownBudgets { first, listed }) => (Decision::Allow(first), listed),
                Table::Denied(denial) => (Decision::Deny(denial), Vec::new()),
            };
            let charges =
                matches!(decision, Decision::Allow(_)).then(|| LocalCounts { nodes: basis.nodes() });
            let shadow_denied = self.shadows(shared, checks, &items, charges, now);
            Outcome { shadow_denied, budgets, ..Outcome::of(decision) }
        });
        self.items = items;
        self.keep_open(shared, request, now);
        outcome
    }

    /// The outcome by the local counts alone.
    pub(in crate::limiter) fn round_locally(
        &mut self,
        shared: &mut impl Shared,
        request: u64,
        checks: &[Check<'_>],
        nodes: u32,
        now: Now,
    ) -> Outcome {
        let decided = self.round(shared, request, checks, || LocalCounts { nodes }, now);
        decided.unwrap_or_else(|needs| match needs.first {})
    }

    /// The outcome without an answer of the region: by the local counts, unless a rule denies on failure.
    pub(in crate::limiter) fn unanswered(
        &mut self,
        shared: &mut impl Shared,
        request: u64,
        checks: &[Check<'_>],
        nodes: u32,
        now: Now,
    ) -> Outcome {
        let wary = checks.iter().find(|check| check.policy.deny_on_failure && !check.policy.shadow);
        let Some(check) = wary else { return self.round_locally(shared, request, checks, nodes, now) };
        let item = self.item(0, check);
        let denial = match self.look(shared, &item, check, &LocalCounts::default(), now) {
            Ok(budget) => {
                Denial { budget, retry_after_ms: Some(UNDECIDED_RETRY_MS), cause: Cause::Undecided }
            }
            Err(refusal) => refusal.denial(),
        };
        Outcome::of(Decision::Deny(denial))
    }

    /// A denial for a moment.
    pub(in crate::limiter) fn deny_for_now(&self, check: &Check<'_>, now: Now) -> Denial {
        self.crowded(&self.item(0, check), check, now)
    }

    /// The usual request with one rule, where nothing has to be coalesced or held: one read of the worker cache, else one change of the
    /// table.
    fn decide_one<B: Basis>(
        &mut self,
        shared: &mut impl Shared,
        check: &Check<'_>,
        view: impl FnOnce() -> B,
        now: Now,
    ) -> Result<Decision, Needs<B::Query>> {
        let item = self.item(0, check);
        if item.cost > item.limit {
            return Ok(Decision::Deny(self.above_limit(shared, &item, check, now)));
        }
        if let Some(decision) = self.decide_from_cache(&item, check, now) {
            return Ok(decision);
        }
        match self.spend(shared, &item, check, &view(), now) {
            Ok(budget) => Ok(Decision::Allow(Some(budget))),
            Err(Refusal::Denied(denial)) => Ok(Decision::Deny(denial)),
            Err(Refusal::Query(reason)) => Err(Needs::of(&item, reason)),
        }
    }

    /// Whether `check` alone would pass by the local count, and what is left. Charges nothing and sends no query.
    pub(in crate::limiter) fn peek(
        &mut self,
        shared: &mut impl Shared,
        check: &Check<'_>,
        now: Now,
    ) -> Result<Budget, Denial> {
        let item = self.item(0, check);
        if item.cost > item.limit {
            return Err(self.above_limit(shared, &item, check, now));
        }
        self.look(shared, &item, check, &LocalCounts::default(), now).map_err(Refusal::denial)
    }

    /// A denial that is certain by the local counts, since counts only grow. Charges nothing.
    pub(in crate::limiter) fn certain_denial(
        &mut self,
        shared: &mut impl Shared,
        checks: &[Check<'_>],
        now: Now,
    ) -> Option<Denial> {
        let mut items = core::mem::take(&mut self.items);
        self.coalesce(checks, &mut items);
        let denied = self
            .certain_without_table(shared, checks, &items, now)
            .or_else(|| self.certain_in_table(shared, checks, &items, now));
        self.items = items;
        denied
    }

    /// The outcome of a denial by other rules than the checks; shadow rules among them report as usual.
    pub(in crate::limiter) fn refused(
        &mut self,
        shared: &mut impl Shared,
        checks: &[Check<'_>],
        denial: Denial,
        now: Now,
    ) -> Outcome {
        let mut items = core::mem::take(&mut self.items);
        self.coalesce(checks, &mut items);
        let shadow_denied = self.shadows(shared, checks, &items, None, now);
        self.items = items;
        Outcome { shadow_denied, ..Outcome::of(Decision::Deny(denial)) }
    }

    /// The item of one check.
    pub(super) fn item(&self, at: usize, check: &Check<'_>) -> Item {
        Item {
            check: at,
            fingerprint: fingerprint(check.key, self.table.secret),
            cost: check.cost,
            limit: check.limit.min(MAX_LIMIT),
            configured: check.configured.map(|configured| configured.min(MAX_LIMIT)),
            shadow: check.policy.shadow,
            peeks: false,
            deferred: DeferredCost::of(check),
            provision: Provision::Table,
        }
    }

    /// Coalesces checks of the same cell: largest cost, lowest limit. A shadow rule's cell that an enforcing rule charges is only peeked.
    fn coalesce(&self, checks: &[Check<'_>], items: &mut Vec<Item>) {
        items.clear();
        for (at, check) in checks.iter().enumerate() {
            let new = self.item(at, check);
            let same = |item: &&mut Item| item.fingerprint == new.fingerprint && item.shadow == new.shadow;
            // The outcome names each shadow rule, so each keeps its own item; the first one charges.
            match items.iter_mut().find(same) {
                Some(item) if !new.shadow => {
                    if new.limit < item.limit {
                        (item.limit, item.configured, item.check) = (new.limit, new.configured, new.check);
                    }
                    let before = (item.deferred.take(), item.cost);
                    item.deferred = DeferredCost::coalesce(before, (new.deferred, new.cost));
                    item.cost = item.cost.max(new.cost);
                    if let Some(deferred) = &item.deferred {
                        item.cost = item.cost.min(deferred.firm.max(item.limit.max(1)));
                    }
                }
                other => {
                    let peeks = other.is_some();
                    items.push(Item { peeks, ..new });
                }
            }
        }
        for at in 0..items.len() {
            let shadow = items.get(at).filter(|item| item.shadow);
            let Some(fingerprint) = shadow.map(|item| item.fingerprint) else { continue };
            let is_enforced = items.iter().any(|item| !item.shadow && item.fingerprint == fingerprint);
            if let Some(item) = items.get_mut(at) {
                item.peeks |= is_enforced;
            }
        }
    }

    fn enforce<B: Basis>(
        &mut self,
        shared: &mut impl Shared,
        checks: &[Check<'_>],
        items: &mut [Item],
        basis: &B,
        now: Now,
    ) -> Result<Table, Needs<B::Query>> {
        if let Some(denial) = self.certain_without_table(shared, checks, items, now) {
            return Ok(Table::Denied(denial));
        }
        let mut shown = ShownBudgets::default();
        for item in items.iter_mut().filter(|item| !item.shadow) {
            if let Some(check) = checks.get(item.check)
                && let Some(budget) = self.covered_by_lease(item, check, now)
            {
                shown.add(budget, check.policy.visibility);
                item.provision = Provision::Lease;
            }
        }
        match self.charge_all(shared, checks, items, basis, now)? {
            Table::Charged(further) => shown.extend(further),
            denied @ Table::Denied(_) => return Ok(denied),
        }
        for (item, check) in enforced(items, checks).filter(|(item, _)| item.provision == Provision::Lease) {
            self.spend_lease(item, check, now);
        }
        Ok(Table::Charged(shown))
    }

    /// The longest certain denial, if there is one without the table. Then the rules that the cache does not decide are read, at most once a
    /// second each, as one of them may deny for longer.
    fn certain_without_table(
        &mut self,
        shared: &mut impl Shared,
        checks: &[Check<'_>],
        items: &[Item],
        now: Now,
    ) -> Option<Denial> {
        let mut denied = None;
        for (item, check) in enforced(items, checks) {
            let denial = match item.cost > item.limit {
                true => Some(self.above_limit(shared, item, check, now)),
                false => self.cached_denial(item, check, now.mono).flatten(),
            };
            denied = worse(denied, denial);
        }
        let may_be_longer = denied.is_some_and(|denial| denial.retry_after_ms.is_some());
        if items.len() > 1 && may_be_longer {
            denied = worse(denied, self.certain_in_table(shared, checks, items, now));
        }
        denied
    }

    /// The longest certain denial by the rules that neither the cache nor a lease decides.
    fn certain_in_table(
        &mut self,
        shared: &mut impl Shared,
        checks: &[Check<'_>],
        items: &[Item],
        now: Now,
    ) -> Option<Denial> {
        let mut denied = None;
        for (item, check) in enforced(items, checks) {
            let is_known = self.cached_denial(item, check, now.mono).is_some();
            if is_known || self.covered_by_lease(item, check, now).is_some() {
                continue;
            }
            // A reservation, such as this worker's own lease, is no certain denial: it may be released.
            if let Err(Refusal::Denied(denial)) = self.look(shared, item, check, &LocalCounts::default(), now)
                && denial.cause == Cause::Limit
            {
                denied = worse(denied, Some(denial));
            }
        }
        denied
    }

    /// Charges all enforcing items that no lease covers, or none: reserves in all but the last, then spends.
    fn charge_all<B: Basis>(
        &mut self,
        shared: &mut impl Shared,
        checks: &[Check<'_>],
        items: &mut [Item],
        basis: &B,
        now: Now,
    ) -> Result<Table, Needs<B::Query>> {
        let in_table = |item: &Item| !item.shadow && item.provision == Provision::Table;
        let Some(last) = items.iter().rposition(in_table) else {
            return Ok(Table::Charged(ShownBudgets::default()));
        };
        let (mut shown, mut denied, mut needs) = (ShownBudgets::default(), None, None);
        for (at, item) in items.iter_mut().enumerate().filter(|(_, item)| in_table(item)) {
            let Some(check) = checks.get(item.check) else { continue };
            let failed = denied.is_some() || needs.is_some();
            let charged = match (failed, at == last) {
                (true, _) => self.look(shared, item, check, basis, now),
                (false, true) => self.spend(shared, item, check, basis, now),
                (false, false) => {
                    self.hold(shared, item, check, basis, now).map(|Hold { budget, overflow }| {
                        item.provision = Provision::Held { overflow };
                        budget
                    })
                }
            };
            match charged {
                Ok(budget) => shown.add(budget, check.policy.visibility),
                Err(Refusal::Denied(denial)) => denied = worse(denied, Some(denial)),
                Err(Refusal::Query(reason)) => Needs::add(&mut needs, item, reason),
            }
        }
        let passes = denied.is_none() && needs.is_none();
        for (item, check) in enforced(items, checks) {
            match item.provision {
                Provision::Held { overflow } if passes => {
                    self.spend_hold(shared, item, check, overflow, now);
                }
                Provision::Held { overflow } => self.return_hold(shared, item, check, overflow, now),
                Provision::Table | Provision::Lease => {}
            }
        }
        match (denied, needs) {
            (Some(denial), _) => Ok(Table::Denied(denial)),
            (None, None) => Ok(Table::Charged(shown)),
            (None, Some(needs)) => Err(needs),
        }
    }

    /// The shadow rules that would have denied. A shadow rule charges only if the request passes by it and by all others: `charges` is then
    /// what it charges by.
    fn shadows(
        &mut self,
        shared: &mut impl Shared,
        checks: &[Check<'_>],
        items: &[Item],
        charges: Option<LocalCounts>,
        now: Now,
    ) -> RuleSet {
        let mut denied = RuleSet::default();
        for item in items.iter().filter(|item| item.shadow) {
            let Some(check) = checks.get(item.check) else { continue };
            if item.cost > item.limit || self.shadow_refuses(shared, item, check, charges, now) {
                denied.insert(check.rule);
            }
        }
        denied
    }

    /// Whether a shadow rule would deny. Budget that other workers hold for a moment is no reason to.
    fn shadow_refuses(
        &mut self,
        shared: &mut impl Shared,
        item: &Item,
        check: &Check<'_>,
        charges: Option<LocalCounts>,
        now: Now,
    ) -> bool {
        let passes = charges.is_some();
        let charges = charges.filter(|_| !item.peeks);
        if charges.is_some() && self.covered_by_lease(item, check, now).is_some() {
            self.spend_lease(item, check, now);
            return false;
        }
        // If another rule has charged the cell, this request's cost is in it already.
        let cost = if passes && item.peeks { 0 } else { item.cost };
        let item = &Item { cost, ..item.clone() };
        let decided = match charges {
            Some(basis) => self.spend(shared, item, check, &basis, now),
            None => self.look(shared, item, check, &LocalCounts::default(), now),
        };
        // Reservations of deferred costs last until the requests end, so they do count.
        let counts = |cause| cause == Cause::Limit || (cause == Cause::Reserved && item.deferred.is_some());
        decided.is_err_and(|refusal| counts(refusal.denial().cause))
    }

    /// The denial of a cost above the limit. It charges nothing and begins no strict mode.
    fn above_limit(&mut self, shared: &mut impl Shared, item: &Item, check: &Check<'_>, now: Now) -> Denial {
        let free = Item { cost: 0, ..item.clone() };
        let looked = self.look(shared, &free, check, &LocalCounts::default(), now);
        let budget = looked.unwrap_or_else(|refusal| refusal.denial().budget);
        Denial { budget, retry_after_ms: None, cause: Cause::Cost }
    }
}

/// The queries that are needed before a request can be decided: at least one, so none where `Q` has no value.
#[derive(Debug)]
pub(in crate::limiter) struct Needs<Q> {
    /// Why the first one is needed.
    pub(in crate::limiter) first: Q,
    pub(in crate::limiter) all: Vec<Need>,
}

/// A query that a request needs for one of its checks.
#[derive(Clone, Copy, Debug)]
pub(in crate::limiter) struct Need {
    pub(in crate::limiter) check: usize,
    pub(in crate::limiter) fingerprint: u64,
    pub(in crate::limiter) cost: u64,
    pub(in crate::limiter) limit: u64,
    pub(in crate::limiter) configured: Option<u64>,
    pub(in crate::limiter) reason: Reason,
    /// Only the region's count is needed.
    pub(in crate::limiter) inquires: bool,
}

impl<Q: Copy + Into<Reason>> Needs<Q> {
    fn of(item: &Item, reason: Q) -> Needs<Q> {
        Needs { first: reason, all: Vec::from([need(item, reason.into())]) }
    }

    fn add(needs: &mut Option<Needs<Q>>, item: &Item, reason: Q) {
        match needs {
            Some(needs) => needs.all.push(need(item, reason.into())),
            None => *needs = Some(Needs::of(item, reason)),
        }
    }
}

fn need(item: &Item, reason: Reason) -> Need {
    let Item { check, fingerprint, limit, configured, .. } = *item;
    // A grant for a deferred cost stays, even if the request costs less. So a grant is requested only beyond the slack; for any other
    // reason the region's counts suffice.
    let inquires = item.deferred.is_some() && reason != Reason::Slack;
    let cost = if inquires { 0 } else { item.cost };
    Need { check, fingerprint, cost, limit, configured, reason, inquires }
}

/// The items that enforce, with their checks.
fn enforced<'a, 'c>(
    items: &'a [Item],
    checks: &'a [Check<'c>],
) -> impl Iterator<Item = (&'a Item, &'a Check<'c>)> {
    let enforcing = items.iter().filter(|item| !item.shadow);
    enforcing.filter_map(|item| checks.get(item.check).map(|check| (item, check)))
}

/// The denial with the longer wait; `None` is the longest.
pub(in crate::limiter) fn worse(one: Option<Denial>, other: Option<Denial>) -> Option<Denial> {
    let wait = |denial: &Denial| denial.retry_after_ms.unwrap_or(u64::MAX);
    match (one, other) {
        (Some(one), Some(other)) if wait(&other) > wait(&one) => Some(other),
        (one, other) => one.or(other),
    }
}
