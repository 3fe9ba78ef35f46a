//! Turns a decision into counts, labels for access logs, and an [`Effect`].
//!
//! `refuse` handles requests that are denied without the limiter; `conclude` handles the limiter's outcome, at once or after the
//! request has waited.

use super::Plugin;
use super::requests::{Allowed, Applied};
use super::statistics::Statistics;
use crate::host::calls;
use crate::host::shared::EnvoyShared;
use crate::responses::{self, Client, Response};
use crate::worker::Worker;
use std::sync::Arc;
use weir_core::control::Banned;
use weir_core::limiter::{self, Cause, Checks, Decision, Denial, RuleSet};
use weir_core::model::outcome::RuleOutcome;
use weir_core::model::time::{MonoMs, Now};
use weir_core::rules::Config;

/// What access logs show in place of a rule when the client's address is denied, and as its outcome.
const ADDRESSES: &str = "client_networks";
const DENIED_ADDRESS: &str = "denied_address";
/// The same where readings of the path or the host meet too many rules.
const PATHS: &str = "path";
const AMBIGUOUS_PATH: &str = "ambiguous_path";

/// What is done to a request.
#[derive(Debug)]
pub enum Effect {
    /// It continues.
    Pass,
    /// It continues, with labels for access logs.
    PassLabelled(Label),
    /// It waits; another effect follows.
    Pause,
    /// It is denied.
    Refuse(Box<Refusal>),
}

/// A denial.
#[derive(Debug)]
pub struct Refusal {
    /// The response.
    pub response: Response,
    /// The name of the rule that denies, for access logs.
    pub rule: Option<Arc<str>>,
    /// Rule and outcome for the filter state, if they are wanted there.
    pub label: Option<Label>,
}

/// Rule and outcome for access logs.
#[derive(Clone, Debug)]
pub struct Label {
    /// The rule's name.
    pub rule: Arc<str>,
    /// As metrics name it.
    pub outcome: &'static str,
}

impl Label {
    /// Readings of the path or the host meet too many rules, some of which are in shadow mode.
    pub(super) fn of_path_on_trial() -> Label {
        Label { rule: PATHS.into(), outcome: RuleOutcome::ShadowDenied.name() }
    }
}

/// A rule and its outcome for a request.
pub(super) type Decided = (usize, RuleOutcome);

/// Why a request is denied without the limiter.
#[derive(Clone, Copy, Debug)]
pub(super) enum Refused {
    /// The client's address is denied.
    Address,
    /// Readings of the path or the host meet too many rules.
    Path,
    /// A rule needs a part of the identifier that is missing.
    Missing(usize),
    /// A part of a rule's identifier has a value that is not listed.
    Unlisted(usize),
    /// A rule needs a part of the identifier that has several values.
    Ambiguous(usize),
    /// A rule's identifier, or the client's network, is banned.
    Banned(usize, Banned),
}

impl Plugin {
    /// Counts and answers a request that is denied without the limiter.
    pub(super) fn refuse(
        &mut self,
        worker: &mut Worker,
        refused: Refused,
        client: Client,
        now: Now,
    ) -> Effect {
        if let Refused::Banned(rule, Banned::Until(_)) = refused {
            self.bans.on_banned(&mut worker.keeper, rule, now);
        }
        let Config { rules, responses: formats, .. } = &self.config;
        let response = match refused {
            Refused::Address => responses::denied_address(formats, client),
            Refused::Path => responses::ambiguous_path(formats, client),
            Refused::Missing(rule) => responses::missing_identifier(rules.get(rule), formats, client),
            Refused::Unlisted(rule) => responses::unlisted_identifier(rules.get(rule), formats, client),
            Refused::Ambiguous(rule) => responses::ambiguous_identifier(rules.get(rule), formats, client),
            Refused::Banned(rule, banned) => {
                responses::banned(banned, now.unix, rules.get(rule), formats, client)
            }
        };
        let decided = match refused {
            Refused::Address => {
                self.statistics.count_request(|requests| &mut requests.denied_addresses);
                return self.refusal(
                    None,
                    || Label { rule: ADDRESSES.into(), outcome: DENIED_ADDRESS },
                    response,
                );
            }
            Refused::Path => {
                self.statistics.count_request(|requests| &mut requests.ambiguous_paths);
                return self.refusal(
                    None,
                    || Label { rule: PATHS.into(), outcome: AMBIGUOUS_PATH },
                    response,
                );
            }
            Refused::Missing(rule) | Refused::Unlisted(rule) | Refused::Ambiguous(rule) => {
                (rule, RuleOutcome::Denied)
            }
            Refused::Banned(rule, _) => (rule, RuleOutcome::Banned),
        };
        self.statistics.count(decided.0, decided.1);
        self.refusal(Some(decided.0), || self.label(decided), response)
    }

    /// A denial by a rule, if one denies. Filter state costs WASM a tenth of a denial, so it is written only if that is configured.
    fn refusal(&self, rule: Option<usize>, label: impl FnOnce() -> Label, response: Response) -> Effect {
        let rule = rule.and_then(|rule| self.rule_names.get(rule).cloned());
        let label = self.config.responses.filter_state.then(label);
        Effect::Refuse(Box::new(Refusal { response, rule, label }))
    }

    /// Counts an outcome and turns it into an effect. `paused` are the rules of a request that had to wait.
    pub(super) fn conclude(
        &mut self,
        worker: &mut Worker,
        context: u32,
        outcome: limiter::Outcome,
        paused: Option<&[Applied]>,
        client: impl Fn() -> Client,
        now: MonoMs,
    ) -> Effect {
        match outcome.decision {
            Decision::Wait => Effect::Pause,
            Decision::Deny(denial) => self.deny(worker, &denial, &outcome, (paused, client()), now),
            Decision::Allow(budget) => {
                match paused {
                    Some(rules) => count_allowed(&mut self.statistics, rules.iter().copied(), &outcome),
                    None => {
                        count_allowed(&mut self.statistics, applied(&self.checks), &outcome);
                    }
                }
                self.allow(context, budget, outcome)
            }
        }
    }

    fn deny(
        &mut self,
        worker: &mut Worker,
        denial: &Denial,
        outcome: &limiter::Outcome,
        (paused, client): (Option<&[Applied]>, Client),
        now: MonoMs,
    ) -> Effect {
        let rule = usize::from(denial.budget.rule);
        let undecided = &outcome.exact.undecided;
        if denial.cause != Cause::Undecided && self.bans.counts(rule).is_some() {
            let (limiter, keeper) = (&mut worker.limiter, &mut worker.keeper);
            let now = limiter.moment(now);
            self.bans.denied(&mut EnvoyShared, limiter, keeper, rule, now);
        }
        // Denied by `on_failure: deny`.
        let decided = match denial.cause == Cause::Undecided && undecided.contains(denial.budget.rule) {
            true => RuleOutcome::Undecided,
            false => RuleOutcome::Denied,
        };
        if decided == RuleOutcome::Denied {
            self.statistics.count(rule, decided);
        }
        self.count_each(undecided, RuleOutcome::Undecided);
        self.count_each(&outcome.shadow_denied, RuleOutcome::ShadowDenied);
        let Config { rules, responses, .. } = &self.config;
        let others = match paused {
            _ if !responses.ietf_headers => Vec::new(),
            Some(rules) => policies(rules.iter().copied()),
            None => policies(applied(&self.checks)),
        };
        let Some(response) =
            responses::denied(rules, (denial, others), &outcome.exact, responses, client, calls::unix_now)
        else {
            return Effect::Pass;
        };
        self.refusal(Some(rule), || self.label((rule, decided)), response)
    }

    fn allow(&mut self, context: u32, budget: Option<limiter::Budget>, outcome: limiter::Outcome) -> Effect {
        let limiter::Outcome { exact, shadow_denied, mut budgets, .. } = outcome;
        let Config { rules, responses, .. } = &self.config;
        if let Some(budget) = budget.filter(|_| responses.headers_on_allowed && budgets.is_empty()) {
            budgets.push(budget);
        }
        budgets.retain(|budget| responses::is_shown(rules, budget.rule));
        let first = |rules: &RuleSet, outcome| rules.iter().next().map(|rule| (usize::from(rule), outcome));
        let decided = first(&exact.undecided, RuleOutcome::Undecided)
            .or_else(|| first(&shadow_denied, RuleOutcome::ShadowDenied));
        self.requests.allow(context, Allowed { budgets, exact });
        decided.map_or(Effect::Pass, |decided| Effect::PassLabelled(self.label(decided)))
    }

    fn count_each(&mut self, rules: &RuleSet, outcome: RuleOutcome) {
        for rule in rules.iter() {
            self.statistics.count(usize::from(rule), outcome);
        }
    }

    pub(super) fn label(&self, (rule, outcome): Decided) -> Label {
        let rule = self.rule_names.get(rule).cloned().unwrap_or_default();
        Label { rule, outcome: outcome.name() }
    }
}

/// The rules that are decided together with the current request. Exact shadow rules are decided later.
pub(super) fn applied(checks: &Checks) -> impl Iterator<Item = Applied> {
    checks.iter().filter(|check| check.is_window() || !check.policy.shadow).map(|check| Applied {
        rule: check.rule,
        shadow: check.policy.shadow,
        limit: check.limit,
    })
}

/// The rules that enforce, with their limits; a ledger's is not known.
fn policies(rules: impl Iterator<Item = Applied>) -> Vec<(u16, u64)> {
    rules.filter(|rule| !rule.shadow && rule.limit > 0).map(|rule| (rule.rule, rule.limit)).collect()
}

fn count_allowed(
    statistics: &mut Statistics,
    rules: impl Iterator<Item = Applied>,
    outcome: &limiter::Outcome,
) {
    for applied in rules {
        let refused = applied.shadow && outcome.shadow_denied.contains(applied.rule);
        let decided = match (outcome.exact.undecided.contains(applied.rule), refused) {
            (true, _) => RuleOutcome::Undecided,
            (false, true) => RuleOutcome::ShadowDenied,
            (false, false) => RuleOutcome::Allowed,
        };
        statistics.count(usize::from(applied.rule), decided);
    }
}
