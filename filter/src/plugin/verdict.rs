//! From what was decided about a request to what is done to it: counts, labels for access logs, and the answer.
//!
//! Two ways lead here: `refuse` for what no limiter had to be asked about, and `conclude` for the limiter's outcome, at once
//! or after the request has waited.
//!
//! Leaves to others: deciding (`request`, `weir_core::limiter`), how an answer is written (`crate::responses`), doing it (`dispatch`).

use super::compiled_rule::{Applied, applied};
use super::{Allowed, Plugin};
use crate::counters::{Counters, Outcome};
use crate::host::shared::EnvoyShared;
use crate::responses::{self, Answer, Client};
use weir_core::control::Banned;
use weir_core::limiter::{self, Cause, Decision, Denial, ShadowOutcome};
use weir_core::model::time::{MonoMs, UnixMs};
use weir_core::rules::Config;

/// What access logs show in place of a rule when the client's address is denied, and as its outcome.
const ADDRESSES: &str = "client_networks";
const DENIED_ADDRESS: &str = "denied_address";
/// Allowed requests whose response headers are still to come; more are let go without the headers.
const MAX_TRACKED: usize = 16_384;

/// What is to be done to a request.
#[derive(Debug)]
pub enum Effect {
    /// Nothing: it goes on.
    Pass,
    /// It goes on, and access logs are to know why.
    PassLabelled(Label),
    /// It waits; another effect will follow.
    Pause,
    /// It is answered.
    Refuse(Label, Box<Answer>),
}

/// Rule and outcome for access logs.
#[derive(Clone, Debug)]
pub struct Label {
    /// The rule's name.
    pub rule: String,
    /// As metrics name it.
    pub outcome: &'static str,
}

/// A rule and what became of a request by it.
pub(super) type Said = (usize, Outcome);

/// Why a request is refused before the limiter is asked.
#[derive(Clone, Copy, Debug)]
pub(super) enum Refused {
    /// The client's address is denied.
    Address,
    /// A rule needs a part of the identifier that is missing.
    Missing(usize),
    /// A rule needs a part of the identifier that has several values.
    Ambiguous(usize),
    /// A rule's identifier, or the client's network, is banned.
    Banned(usize, Banned),
}

impl Plugin {
    /// Counts and answers a request that nobody has to be asked about.
    pub(super) fn refuse(&mut self, refused: Refused, client: Client, now: UnixMs) -> Effect {
        if let Refused::Banned(rule, Banned::Until(_)) = refused {
            self.bans.heard(&mut self.keeper, rule, now);
        }
        let formats = &self.config.responses;
        let answer = match refused {
            Refused::Address => responses::denied_address(formats, client),
            Refused::Missing(_) => responses::missing_identifier(formats, client),
            Refused::Ambiguous(_) => responses::ambiguous_identifier(formats, client),
            Refused::Banned(_, banned) => responses::banned(banned, now, formats, client),
        };
        let said = match refused {
            Refused::Address => {
                self.counters.denied_addresses = self.counters.denied_addresses.saturating_add(1);
                let label = Label { rule: ADDRESSES.to_owned(), outcome: DENIED_ADDRESS };
                return Effect::Refuse(label, Box::new(answer));
            }
            Refused::Missing(rule) | Refused::Ambiguous(rule) => (rule, Outcome::Denied),
            Refused::Banned(rule, _) => (rule, Outcome::Banned),
        };
        self.counters.count(said.0, said.1);
        Effect::Refuse(self.label(said), Box::new(answer))
    }

    /// Counts an outcome and turns it into an effect. `paused` are the rules of a request that had to wait.
    pub(super) fn conclude(
        &mut self,
        context: u32,
        outcome: limiter::Outcome,
        paused: Option<&[Applied]>,
        client: impl Fn() -> Client,
        now: MonoMs,
    ) -> Effect {
        match outcome.decision {
            Decision::Wait => Effect::Pause,
            Decision::Deny(denial) => self.deny(&denial, &outcome, client, now),
            Decision::Allow(budget) => {
                match paused {
                    Some(rules) => count_allowed(&mut self.counters, rules.iter().copied(), &outcome),
                    None => {
                        let rules = applied(&self.resolved, &self.compiled_rules);
                        count_allowed(&mut self.counters, rules, &outcome);
                    }
                }
                self.allow(context, budget, outcome)
            }
        }
    }

    fn deny(
        &mut self,
        denial: &Denial,
        outcome: &limiter::Outcome,
        client: impl Fn() -> Client,
        now: MonoMs,
    ) -> Effect {
        let rule = usize::from(denial.budget.rule);
        let undecided = outcome.exact.undecided;
        if denial.cause != Cause::Undecided && self.bans.has(rule) {
            let (limiter, keeper) = (&mut self.limiter, &mut self.keeper);
            let now = limiter.moment(now);
            self.bans.denied(&mut EnvoyShared, limiter, keeper, rule, now);
        }
        // A window that would rather not guess has decided to deny.
        let said = match denial.cause == Cause::Undecided && bit(undecided, rule) {
            true => Outcome::Undecided,
            false => Outcome::Denied,
        };
        if said == Outcome::Denied {
            self.counters.count(rule, said);
        }
        self.count_each(undecided, Outcome::Undecided);
        self.count_each(outcome.shadow_denied, Outcome::ShadowDenied);
        let Config { rules, responses, .. } = &self.config;
        let Some(answer) = responses::denied(rules, denial, &outcome.exact, responses, client()) else {
            return Effect::Pass;
        };
        Effect::Refuse(self.label((rule, said)), Box::new(answer))
    }

    fn allow(&mut self, context: u32, budget: Option<limiter::Budget>, outcome: limiter::Outcome) -> Effect {
        let limiter::Outcome { exact, shadow_denied, .. } = outcome;
        let undecided = exact.undecided;
        self.track(context, budget, exact);
        let lowest = |rules: u64| usize::try_from(rules.trailing_zeros()).unwrap_or(0);
        match (undecided, shadow_denied) {
            (0, 0) => Effect::Pass,
            (0, denied) => Effect::PassLabelled(self.label((lowest(denied), Outcome::ShadowDenied))),
            (undecided, _) => Effect::PassLabelled(self.label((lowest(undecided), Outcome::Undecided))),
        }
    }

    /// Keeps what the response of an allowed request is to tell, if there is anything.
    fn track(&mut self, context: u32, budget: Option<limiter::Budget>, told: limiter::ExactDetails) {
        let budget = budget.filter(|_| self.config.responses.headers_on_allowed);
        let tells = budget.is_some() || told.undecided != 0 || !told.transactions.is_empty();
        if tells && self.has_response_callback && self.allowed.len() < MAX_TRACKED {
            self.allowed.insert(context, Allowed { budget, told });
        }
    }

    fn count_each(&mut self, rules: u64, outcome: Outcome) {
        for rule in (0..self.config.rules.len()).filter(|rule| bit(rules, *rule)) {
            self.counters.count(rule, outcome);
        }
    }

    /// Counts what was said of shadow rules that are held exactly.
    pub(super) fn count_shadow_outcomes(&mut self) {
        for (rule, said) in self.limiter.take_shadow_outcomes() {
            let outcome = match said {
                ShadowOutcome::Allowed => Outcome::Allowed,
                ShadowOutcome::Denied => Outcome::ShadowDenied,
                ShadowOutcome::Undecided => Outcome::Undecided,
            };
            self.counters.count(usize::from(rule), outcome);
        }
    }

    pub(super) fn label(&self, (rule, outcome): Said) -> Label {
        let rule = self.config.rules.get(rule).map(|rule| rule.name.clone()).unwrap_or_default();
        Label { rule, outcome: <&'static str>::from(outcome) }
    }
}

fn count_allowed(counters: &mut Counters, rules: impl Iterator<Item = Applied>, outcome: &limiter::Outcome) {
    for applied in rules {
        let refused = applied.shadow && bit(outcome.shadow_denied, applied.rule);
        let said = match (bit(outcome.exact.undecided, applied.rule), refused) {
            (true, _) => Outcome::Undecided,
            (false, true) => Outcome::ShadowDenied,
            (false, false) => Outcome::Allowed,
        };
        counters.count(applied.rule, said);
    }
}

fn bit(mask: u64, index: usize) -> bool {
    u32::try_from(index).ok().and_then(|index| mask.checked_shr(index)).is_some_and(|rest| rest & 1 == 1)
}
