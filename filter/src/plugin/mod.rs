//! One configuration of the filter on one worker: its rules, its limiter, its stream. `configure` makes it.
//!
//! The path of a request:
//!
//! 1. `request`: rules that match the request become checks (`CompiledRule` has their constant parts), which the limiter decides.
//! 2. If the region has to be queried, the request waits: `aggregator` sends the query and receives the answer.
//! 3. `verdict`: the decision is counted and becomes an [`Effect`].
//!
//! `dispatch` applies the effects, as applying one may call back into the VM.

mod aggregator;
mod configure;
mod request;
mod requests;
mod statistics;
mod verdict;

use crate::bans::Bans;
use crate::faults;
use crate::host::calls;
use crate::host::headers::Headers;
use crate::host::shared::EnvoyShared;
use crate::host::stream::Stream;
use crate::responses::{self, Header};
use crate::settle::Ended;
use request::Envoy;
use requests::{Allowed, Requests};
use statistics::Statistics;
use std::rc::Rc;
use weir_core::control::Keeper;
use weir_core::limiter::{Checks, CompiledRule, Limiter};
use weir_core::model::time::{MonoMs, Now, UnixMs};
use weir_core::rules::{Config, Scratch};

pub use verdict::{Effect, Label};

/// A plugin on a worker.
pub struct Plugin {
    config: Config,
    compiled_rules: Vec<CompiledRule>,
    /// The rules' names, for labels.
    rule_names: Vec<Rc<str>>,
    limiter: Limiter,
    /// Live control.
    keeper: Keeper,
    bans: Bans,
    stream: Stream,
    scratch: Scratch,
    /// The checks of the current request.
    checks: Checks,
    statistics: Statistics,
    requests: Requests,
    tick_ms: u64,
    clock_shift_ms: i64,
}

impl Plugin {
    /// Decides a request by its headers.
    pub fn on_request(&mut self, context: u32) -> Effect {
        let effect = calls::request_headers(|bytes| self.decide(context, &Headers::new(bytes, Envoy)));
        if matches!(effect, Effect::Pause) || self.limiter.is_urgent() {
            self.send(calls::mono_now());
            self.hurry_tick();
        }
        effect
    }

    /// Settles the cost of a request by its response. Returns headers for the response of an allowed request.
    pub fn on_response(&mut self, context: u32) -> Vec<Header> {
        self.settle(context, true);
        let Some(Allowed { budget, exact }) = self.requests.take_allowed(context) else { return Vec::new() };
        responses::allowed_headers(&self.config.rules, budget.as_ref(), &exact, &self.config.responses)
    }

    /// Ends a request, with or without a response.
    pub fn on_request_done(&mut self, context: u32) {
        self.requests.remove(context);
        self.settle(context, false);
    }

    /// Whether a request has left state that must be cleaned up.
    pub fn is_tracking(&self) -> bool {
        !self.requests.is_empty() || self.limiter.has_deferred()
    }

    /// Does periodic work. Returns effects on waiting requests.
    pub fn on_tick(&mut self) -> Vec<(u32, Effect)> {
        let mono = calls::mono_now();
        let unix = faults::shifted(calls::unix_now(), self.clock_shift_ms);
        self.limiter.tick(&mut EnvoyShared, Now { unix, mono });
        let now = self.limiter.moment(mono);
        self.keeper.tick(&mut EnvoyShared, now);
        self.switch_shadows(now.unix);
        self.bans.ban_struck(&mut self.limiter, &mut self.keeper, now);
        self.check_stream(mono);
        let effects = self.go_on(mono);
        self.set_tick(self.limiter.next_tick_ms());
        self.statistics.flush(&self.config.rules, self.limiter.stats(mono), mono);
        self.send_counters(mono);
        effects
    }

    /// Ends this configuration or the worker.
    pub fn on_shutdown(&mut self) -> Vec<(u32, Effect)> {
        let mono = calls::mono_now();
        for frame in self.limiter.shutdown(&mut EnvoyShared, mono) {
            self.stream.send(&frame);
        }
        let now = self.limiter.moment(mono);
        self.bans.ban_struck(&mut self.limiter, &mut self.keeper, now);
        self.keeper.shutdown(&mut EnvoyShared, now.unix);
        self.count_shadow_outcomes();
        let effects = self.take_effects(mono);
        self.statistics.finish(&self.config.rules, self.limiter.stats(mono), mono);
        self.send_counters(mono);
        effects
    }

    /// Settles the deferred cost of the current request, if it has one.
    fn settle(&mut self, context: u32, answered: bool) {
        let request = u64::from(context);
        if self.limiter.is_deferred(request) {
            let mut ended = Ended::new(&self.config.rules, answered);
            let mut shown = self.requests.budget(context);
            let cost = |rule| {
                let cost = ended.cost(rule);
                if let Some(budget) = shown.as_mut().filter(|budget| budget.rule == rule) {
                    responses::settle(budget, &self.config.rules, cost);
                }
                cost
            };
            self.limiter.settle_cost(&mut EnvoyShared, request, cost, calls::mono_now());
        }
    }

    /// Sets the shadow mode of each rule by its configuration or live control.
    fn switch_shadows(&mut self, now: UnixMs) {
        let (controls, workspace) = (self.keeper.controls(), &self.config.workspace);
        for (number, (compiled, rule)) in self.compiled_rules.iter_mut().zip(&self.config.rules).enumerate() {
            compiled.policy.shadow = controls.shadow(workspace, &rule.name, now).unwrap_or(rule.shadow);
            self.statistics.set_shadow(number, compiled.policy.shadow);
        }
    }

    /// Sends frames and applies decisions after any callback that may have produced them.
    fn go_on(&mut self, mono: MonoMs) -> Vec<(u32, Effect)> {
        self.send(mono);
        self.hurry_tick();
        self.count_shadow_outcomes();
        self.take_effects(mono)
    }

    fn take_effects(&mut self, mono: MonoMs) -> Vec<(u32, Effect)> {
        let mut effects = Vec::new();
        for (request, outcome) in self.limiter.take_resolved() {
            let Ok(context) = u32::try_from(request) else { continue };
            // If the client has disconnected, the request stays charged and no response is sent.
            let Some(paused) = self.requests.take_paused(context) else {
                // Its deferred cost is 0, as it did not reach the upstream.
                self.limiter.settle_cost(&mut EnvoyShared, request, |_| 0, mono);
                continue;
            };
            self.bans.accuse_again(paused.accused);
            let effect = self.conclude(context, outcome, Some(&paused.applied), || paused.client, mono);
            effects.push((context, effect));
        }
        effects
    }

    /// Shortens the time to the next tick if needed. It is never lengthened here: setting the period restarts Envoy's timer, so a
    /// period that changed with every request would postpone the tick for ever.
    fn hurry_tick(&mut self) {
        self.set_tick(self.limiter.next_tick_ms().min(self.tick_ms));
    }

    fn set_tick(&mut self, wanted: u64) {
        if wanted != self.tick_ms {
            self.tick_ms = wanted;
            calls::set_tick_period(u32::try_from(wanted).unwrap_or(u32::MAX));
        }
    }
}
