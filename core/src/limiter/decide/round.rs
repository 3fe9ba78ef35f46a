//! All checks of one request: either all enforcing rules are charged or none. Shadow rules only report what they would decide.

use super::charge::{Charged, Mode};
use super::item::{DeferredCost, Item, Provision};
use super::judge::Health;
use crate::limiter::Limiter;
use crate::limiter::check::{Budget, Cause, Check, Decision, Denial, Left, Outcome, Reason};
use crate::limiter::remote::consults::Need;
use crate::limiter::rule_set::RuleSet;
use crate::model::key::fingerprint;
use crate::model::shared::Shared;
use crate::model::time::{MonoMs, Now};
use crate::model::window::MAX_LIMIT;
use alloc::vec::Vec;

/// Result of all enforcing checks, or of those that need the table.
enum Table {
    Charged(Left),
    Denied(Denial),
}

impl Limiter {
    /// The outcome, or the queries that are needed first (none if `queried`: the region was queried already).
    pub(in crate::limiter) fn round(
        &mut self,
        shared: &mut impl Shared,
        request: u64,
        checks: &[Check<'_>],
        queried: bool,
        now: Now,
    ) -> Result<Outcome, Vec<Need>> {
        if let [check] = checks
            && !check.policy.shadow
        {
            let decision = match self.decide_one(shared, check, queried, now)? {
                Decision::Allow(_) if check.policy.hidden => Decision::Allow(None),
                decision => decision,
            };
            if check.policy.settles_within_ms > 0 {
                self.keep_open(shared, request, now);
            }
            return Ok(Outcome::of(decision));
        }
        let mut items = core::mem::take(&mut self.items);
        self.coalesce(checks, &mut items);
        let health = (!queried).then(|| self.health(now.mono));
        let decided = self.enforce(shared, checks, &mut items, health.as_ref(), now);
        let outcome = decided.map(|decided| {
            let (decision, budgets) = match decided {
                Table::Charged(Left { first, listed }) => (Decision::Allow(first), listed),
                Table::Denied(denial) => (Decision::Deny(denial), Vec::new()),
            };
            let passes = matches!(decision, Decision::Allow(_));
            let shadow_denied = self.shadows(shared, checks, &items, passes, now);
            Outcome { shadow_denied, budgets, ..Outcome::of(decision) }
        });
        self.items = items;
        self.keep_open(shared, request, now);
        outcome
    }

    /// The usual request with one rule, where nothing has to be coalesced or held: one read of the worker cache, else one change of the
    /// table.
    fn decide_one(
        &mut self,
        shared: &mut impl Shared,
        check: &Check<'_>,
        queried: bool,
        now: Now,
    ) -> Result<Decision, Vec<Need>> {
        let item = self.item(0, check);
        if item.cost > item.limit {
            return Ok(Decision::Deny(self.above_limit(shared, &item, check, now)));
        }
        if let Some(decision) = self.decide_from_cache(&item, check, now) {
            return Ok(decision);
        }
        let health = (!queried).then(|| self.health(now.mono));
        match self.charge(shared, &item, check, Mode::Spend, health.as_ref(), now) {
            Charged::Admitted(budget) | Charged::Deferred { budget, .. } => Ok(Decision::Allow(Some(budget))),
            Charged::Denied(denial) => Ok(Decision::Deny(denial)),
            Charged::Query(reason) => Err(Vec::from([need(&item, reason)])),
        }
    }

    /// Whether `check` alone would pass by the local count, and what is left. Charges nothing and sends no query.
    pub fn peek(
        &mut self,
        shared: &mut impl Shared,
        check: &Check<'_>,
        now: MonoMs,
    ) -> Result<Budget, Denial> {
        let now = self.moment(now);
        let item = self.item(0, check);
        if item.cost > item.limit {
            return Err(self.above_limit(shared, &item, check, now));
        }
        match self.charge(shared, &item, check, Mode::Peek, None, now) {
            Charged::Admitted(budget) | Charged::Deferred { budget, .. } => Ok(budget),
            Charged::Denied(denial) => Err(denial),
            // Without a health no query is requested.
            Charged::Query(_) => {
                Ok(Budget { rule: check.rule, limit: item.limit, remaining: 0, reset_ms: check.cell_ms })
            }
        }
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
        let shadow_denied = self.shadows(shared, checks, &items, false, now);
        self.items = items;
        Outcome { shadow_denied, ..Outcome::of(Decision::Deny(denial)) }
    }

    /// The item of one check.
    pub(in crate::limiter) fn item(&self, at: usize, check: &Check<'_>) -> Item {
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

    fn enforce(
        &mut self,
        shared: &mut impl Shared,
        checks: &[Check<'_>],
        items: &mut [Item],
        health: Option<&Health>,
        now: Now,
    ) -> Result<Table, Vec<Need>> {
        if let Some(denial) = self.certain_without_table(shared, checks, items, now) {
            return Ok(Table::Denied(denial));
        }
        let mut all_left = Left::default();
        for item in items.iter_mut().filter(|item| !item.shadow) {
            if let Some(check) = checks.get(item.check)
                && let Some(left) = self.covered_by_lease(item, check, now)
            {
                all_left.add(left, check.policy.hidden, check.policy.listed);
                item.provision = Provision::Lease;
            }
        }
        match self.charge_all(shared, checks, items, health, now)? {
            Table::Charged(left) => all_left.extend(left),
            denied @ Table::Denied(_) => return Ok(denied),
        }
        for (item, check) in enforced(items, checks).filter(|(item, _)| item.provision == Provision::Lease) {
            self.spend_lease(item, check, now);
        }
        Ok(Table::Charged(all_left))
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
            if let Charged::Denied(denial) = self.charge(shared, item, check, Mode::Peek, None, now)
                && denial.cause == Cause::Limit
            {
                denied = worse(denied, Some(denial));
            }
        }
        denied
    }

    /// Charges all enforcing items that no lease covers, or none: reserves in all but the last, then spends.
    fn charge_all(
        &mut self,
        shared: &mut impl Shared,
        checks: &[Check<'_>],
        items: &mut [Item],
        health: Option<&Health>,
        now: Now,
    ) -> Result<Table, Vec<Need>> {
        let in_table = |item: &Item| !item.shadow && item.provision == Provision::Table;
        let Some(last) = items.iter().rposition(in_table) else {
            return Ok(Table::Charged(Left::default()));
        };
        let (mut all_left, mut denied, mut needs) = (Left::default(), None, Vec::new());
        for (at, item) in items.iter_mut().enumerate().filter(|(_, item)| in_table(item)) {
            let Some(check) = checks.get(item.check) else { continue };
            let failed = denied.is_some() || !needs.is_empty();
            let mode = match (failed, at == last) {
                (true, _) => Mode::Peek,
                (false, true) => Mode::Spend,
                (false, false) => Mode::Hold,
            };
            match self.charge(shared, item, check, mode, health, now) {
                Charged::Admitted(left) => all_left.add(left, check.policy.hidden, check.policy.listed),
                Charged::Deferred { budget: left, overflow } => {
                    all_left.add(left, check.policy.hidden, check.policy.listed);
                    item.provision = Provision::Held { overflow };
                }
                Charged::Denied(denial) => denied = worse(denied, Some(denial)),
                Charged::Query(reason) => needs.push(need(item, reason)),
            }
        }
        let spend = denied.is_none() && needs.is_empty();
        for (item, check) in enforced(items, checks) {
            if let Provision::Held { overflow } = item.provision {
                self.end_hold(shared, item, check, (overflow, spend), now);
            }
        }
        match (denied, needs.is_empty()) {
            (Some(denial), _) => Ok(Table::Denied(denial)),
            (None, true) => Ok(Table::Charged(all_left)),
            (None, false) => Err(needs),
        }
    }

    /// The shadow rules that would have denied. A shadow rule charges only if the request passes by it and by all others.
    fn shadows(
        &mut self,
        shared: &mut impl Shared,
        checks: &[Check<'_>],
        items: &[Item],
        passes: bool,
        now: Now,
    ) -> RuleSet {
        let mut denied = RuleSet::default();
        for item in items.iter().filter(|item| item.shadow) {
            let Some(check) = checks.get(item.check) else { continue };
            if item.cost > item.limit || self.shadow_refuses(shared, item, check, passes, now) {
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
        passes: bool,
        now: Now,
    ) -> bool {
        let charges = passes && !item.peeks;
        if charges && self.covered_by_lease(item, check, now).is_some() {
            self.spend_lease(item, check, now);
            return false;
        }
        let mode = if charges { Mode::Spend } else { Mode::Peek };
        // If another rule has charged the cell, this request's cost is in it already.
        let cost = if passes && item.peeks { 0 } else { item.cost };
        let charged = self.charge(shared, &Item { cost, ..item.clone() }, check, mode, None, now);
        // Reservations of deferred costs last until the requests end, so they do count.
        let counts = |cause| cause == Cause::Limit || (cause == Cause::Reserved && item.deferred.is_some());
        matches!(charged, Charged::Denied(denial) if counts(denial.cause))
    }

    /// The denial of a cost above the limit. It charges nothing and begins no strict mode.
    fn above_limit(&mut self, shared: &mut impl Shared, item: &Item, check: &Check<'_>, now: Now) -> Denial {
        let free = Item { cost: 0, ..item.clone() };
        let budget = match self.charge(shared, &free, check, Mode::Peek, None, now) {
            Charged::Admitted(budget) | Charged::Deferred { budget, .. } => budget,
            Charged::Denied(denial) => denial.budget,
            Charged::Query(_) => {
                Budget { rule: check.rule, limit: item.limit, remaining: 0, reset_ms: check.cell_ms }
            }
        };
        Denial { budget, retry_after_ms: None, cause: Cause::Cost }
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
