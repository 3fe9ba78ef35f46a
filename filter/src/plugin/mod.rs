//! One configuration of the filter on one worker: its rules. `configure` makes it.
//!
//! The path of a request:
//!
//! 1. `request`: rules that match the request become checks (`CompiledRule` has their constant parts), which the limiter decides.
//! 2. If the region has to be queried, the request waits: the [`Worker`] sends the query and receives the answer.
//! 3. `verdict`: the decision is counted and becomes an [`Effect`].
//!
//! `perform` applies the effects while no plugin is borrowed, as applying one may call back into the VM.

mod configure;
mod request;
mod requests;
mod statistics;
mod verdict;

use crate::host::calls;
use crate::host::properties::Envoy;
use crate::host::request::Headers;
use crate::host::shared::EnvoyShared;
use crate::responses::{self, Header};
use crate::settle::{self, Settlement};
use crate::worker::Worker;
use requests::{Allowed, Requests};
use statistics::Statistics;
use std::sync::Arc;
use weir_core::bans::making::Bans;
use weir_core::limiter::{Checks, CompiledRule, Outcome, ShadowOutcome, Violator};
use weir_core::model::time::MonoMs;
use weir_core::rules::{Config, Scratch, Stage};

pub use verdict::{Effect, Label, Refusal};

/// Time between the ticks of a plugin that was replaced, while none of its requests waits. They find out whether the newest one, whose
/// ticks serve all, has ended.
const REPLACED_TICK_MS: u64 = 250;

/// A plugin on a worker.
pub struct Plugin {
    /// Its root context.
    pub root: u32,
    /// The index of its worker.
    pub worker: usize,
    config: Config,
    compiled_rules: Vec<CompiledRule>,
    /// The rules' names, for labels.
    rule_names: Vec<Arc<str>>,
    bans: Bans,
    scratch: Scratch,
    /// The checks of the current request.
    checks: Checks,
    statistics: Statistics,
    requests: Requests,
    /// Whether the headers of a response may settle the cost under one of its rules.
    settles_by_headers: bool,
    tick_ms: u64,
    /// Live control may have set the shadow mode of a rule.
    is_switched: bool,
}

impl Plugin {
    /// Decides a request by its headers; `ends`: nothing follows them.
    pub fn on_request(&mut self, worker: &mut Worker, context: u32, ends: bool) -> Effect {
        let envoy = Envoy { ends_with_headers: ends };
        calls::request_headers(|bytes| self.decide(worker, context, &Headers::new(bytes, envoy)))
    }

    /// Settles the cost of a request by its response. Returns headers for the response of an allowed request.
    pub fn on_response(&mut self, worker: &mut Worker, context: u32) -> Vec<Header> {
        if self.settles_by_headers {
            self.settle(worker, context, Stage::Headers);
        }
        let Some(Allowed { budgets, exact }) = self.requests.take_allowed(context) else { return Vec::new() };
        responses::allowed_headers(
            &self.config.rules,
            budgets,
            &exact,
            &self.config.responses,
            calls::unix_now,
        )
    }

    /// Settles the cost of a request by its whole response, which [`Plugin::on_response`] could not settle or did not see.
    pub fn on_log(&mut self, worker: &mut Worker, context: u32) {
        if worker.limiter.is_deferred(self.number(context))
            && let Some(ended) = settle::ended()
        {
            self.settle(worker, context, ended);
        }
    }

    /// Ends a request, with or without a response.
    pub fn on_request_done(&mut self, worker: &mut Worker, context: u32) {
        self.requests.remove(context);
        self.settle(worker, context, Stage::Unanswered);
    }

    /// Whether a request has left state that must be cleaned up.
    pub fn is_tracking(&self, worker: &Worker) -> bool {
        !self.requests.is_empty() || worker.limiter.has_deferred()
    }

    /// Does the plugin's part of the worker's periodic work.
    pub fn on_tick(&mut self, worker: &mut Worker, mono: MonoMs) {
        self.switch_shadows(worker, mono);
        self.statistics.flush(&self.config.rules, &mut worker.reporter, mono, false);
    }

    /// Whether one of its requests waits.
    pub fn has_paused(&self) -> bool {
        self.requests.has_paused()
    }

    /// Sets the time until its root's next tick. The root is the current one; `newest`: the worker has no newer one.
    pub fn plan_tick(&mut self, worker: &Worker, newest: bool) {
        self.set_tick(match newest || self.has_paused() {
            true => worker.limiter.next_tick_ms(),
            false => REPLACED_TICK_MS,
        });
    }

    /// Counts what is left to count, as the plugin ends.
    pub fn finish(&mut self, worker: &mut Worker, mono: MonoMs) {
        self.statistics.flush(&self.config.rules, &mut worker.reporter, mono, true);
    }

    /// Removes its rules from the worker's reports.
    pub fn release(&self, worker: &mut Worker) {
        self.statistics.release(&mut worker.reporter);
    }

    /// The outcome of a request that waited becomes an effect.
    pub fn resume(
        &mut self,
        worker: &mut Worker,
        context: u32,
        outcome: Outcome,
        mono: MonoMs,
    ) -> Option<(u32, Effect)> {
        // If the client has disconnected, the request stays charged and no response is sent.
        let Some(paused) = self.requests.take_paused(context) else {
            // Its deferred cost is 0, as it did not reach the upstream.
            worker.limiter.settle_cost(&mut EnvoyShared, self.number(context), |_, _| Some(0), mono);
            return None;
        };
        self.bans.accuse_again(paused.accused);
        let effect = self.conclude(worker, context, outcome, Some(&paused.applied), || paused.client, mono);
        Some((context, effect))
    }

    /// Counts the outcome of an exact shadow rule.
    pub fn count_shadow_outcome(&mut self, rule: u16, outcome: ShadowOutcome) {
        self.statistics.count(usize::from(rule), outcome.into());
    }

    /// Bans an identifier whose violations reached the threshold of one of its rules.
    pub fn ban(&mut self, worker: &mut Worker, violator: &Violator, mono: MonoMs) {
        let now = worker.limiter.moment(mono);
        self.bans.ban(violator, &mut worker.keeper, now);
    }

    /// The name of the first rule that bans in a namespace.
    pub fn rule_in(&self, workspace: &str, namespace: &str) -> Option<&str> {
        self.bans.rule_in(workspace, namespace)
    }

    /// Sets the shadow mode of each rule by its configuration or live control.
    pub fn switch_shadows(&mut self, worker: &mut Worker, mono: MonoMs) {
        let (controls, workspace) = (worker.keeper.controls(), &self.config.workspace);
        let has_switches = controls.has_shadows(workspace);
        // Otherwise each rule is as it is configured.
        if !std::mem::replace(&mut self.is_switched, has_switches) && !has_switches {
            return;
        }
        let now = worker.limiter.moment(mono).unix;
        for (number, (compiled, rule)) in self.compiled_rules.iter_mut().zip(&self.config.rules).enumerate() {
            compiled.policy.shadow = controls.shadow(workspace, &rule.name, now).unwrap_or(rule.shadow);
            let shadow = compiled.policy.shadow;
            self.statistics.set_shadow(self.root, number, shadow, &mut worker.reporter);
        }
    }

    /// Shortens the time to the next tick if needed. It is never lengthened here: setting the period restarts Envoy's timer, so a
    /// period that changed with every request would postpone the tick for ever.
    pub fn hurry_tick(&mut self, worker: &Worker) {
        self.set_tick(worker.limiter.next_tick_ms().min(self.tick_ms));
    }

    /// Settles the deferred cost of the current request, if it has one, as far as it is known at this `stage`.
    fn settle(&mut self, worker: &mut Worker, context: u32, stage: Stage) {
        let request = self.number(context);
        if !worker.limiter.is_deferred(request) {
            return;
        }
        let mono = calls::mono_now();
        let mut settlement = Settlement::new(&self.config.rules, stage, self.scratch.ratios());
        let cost_of = |rule, reserved| settlement.cost(rule, reserved);
        let charges = worker.limiter.settle_cost(&mut EnvoyShared, request, cost_of, mono);
        for charge in &charges {
            for rule in charge.rules.iter() {
                let Some(settled) = settlement.settled(rule) else { continue };
                self.statistics.count_settled(rule, settled, &self.config.rules);
                for budget in self.requests.budgets(context).iter_mut().filter(|budget| budget.rule == rule) {
                    responses::settle(budget, charge.reserve, charge.cost);
                }
            }
            if !charge.shadow && !charge.banning.is_empty() {
                let cost = |rule| Some((rule, settlement.settled(rule)?.cost));
                let costs: Vec<(u16, u64)> = charge.banning.iter().filter_map(cost).collect();
                let (limiter, keeper) = (&mut worker.limiter, &mut worker.keeper);
                let now = limiter.moment(mono);
                self.bans.charged(&mut EnvoyShared, (limiter, keeper), &charge.key, &costs, now);
            }
        }
    }

    /// The number of a request in the limiter.
    fn number(&self, context: u32) -> u64 {
        number(self.root, context)
    }

    fn set_tick(&mut self, wanted: u64) {
        if wanted != self.tick_ms {
            self.tick_ms = wanted;
            calls::set_tick_period(u32::try_from(wanted).unwrap_or(u32::MAX));
        }
    }
}

/// The number in the limiter of a root's request.
fn number(root: u32, context: u32) -> u64 {
    u64::from(root) << u32::BITS | u64::from(context)
}

/// The root and the context of a request by its number in the limiter.
pub fn request_of(number: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = number.to_be_bytes();
    (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]))
}
