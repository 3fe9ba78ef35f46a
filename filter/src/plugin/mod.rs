//! One plugin configuration on one worker, from its beginning to its end: its rules, its limiter, its stream.
//!
//! A request's way, by the files beside this one:
//!
//! 1. `request`: the rules that it meets become checks, which the limiter decides; `compiled` has each rule's part of them.
//! 2. `verdict`: what was decided is counted and becomes an [`Effect`].
//!
//! Where the region has to be asked it waits between the two: `aggregator` sends the question and takes the answer.
//!
//! Returns what is to be done to requests as [`Effect`]s, as doing it may call back into the VM.
//!
//! Leaves to others: how it begins (`configure`), which plugin a request belongs to, and doing the effects (`dispatch`).

mod aggregator;
mod compiled_rule;
mod configure;
mod request;
mod verdict;

use crate::bans::Bans;
use crate::counters::Counters;
use crate::counters::metrics::Metrics;
use crate::counters::reporter::CounterReporter;
use crate::faults;
use crate::host::calls;
use crate::host::headers::Headers;
use crate::host::shared::EnvoyShared;
use crate::host::stream::Stream;
use crate::responses::{self, Client};
use crate::settle::Ended;
use compiled_rule::{Applied, CompiledRule, Resolved};
use request::Envoy;
use std::collections::BTreeMap;
use weir_core::control::Keeper;
use weir_core::limiter::{self, Limiter, Stats};
use weir_core::model::time::{MonoMs, Now, UnixMs};
use weir_core::rules::{Config, Scratch};

pub use verdict::{Effect, Label};

/// A plugin on a worker.
pub struct Plugin {
    config: Config,
    compiled_rules: Vec<CompiledRule>,
    limiter: Limiter,
    /// What operators say live.
    keeper: Keeper,
    bans: Bans,
    stream: Stream,
    scratch: Scratch,
    keys: Vec<u8>,
    resolved: Vec<Resolved>,
    counters: Counters,
    told: CounterReporter,
    metrics: Metrics,
    tick_ms: u64,
    paused: BTreeMap<u32, Paused>,
    /// Allowed requests whose response is to carry headers.
    allowed: BTreeMap<u32, Allowed>,
    /// This module is told of responses.
    has_response_callback: bool,
    clock_shift_ms: i64,
}

/// What an allowed response is to tell.
struct Allowed {
    budget: Option<limiter::Budget>,
    told: limiter::ExactDetails,
}

/// A request that waits: the rules that apply to it, who is to be answered, and whom it is about.
struct Paused {
    applied: Vec<Applied>,
    client: Client,
    /// See [`Bans::accused`].
    accused: Vec<u8>,
}

impl Plugin {
    /// A request's headers are there.
    pub fn on_request(&mut self, context: u32) -> Effect {
        let effect = calls::request_headers(|bytes| self.decide(context, &Headers::new(bytes, Envoy)));
        if matches!(effect, Effect::Pause) || self.limiter.is_urgent() {
            self.send(calls::mono_now());
            self.hurry_tick();
        }
        effect
    }

    /// The response of a request is there: settles what it cost. Returns headers for it, where the request was allowed.
    pub fn on_response(&mut self, context: u32) -> Vec<(&'static str, String)> {
        self.settle(context, true);
        let Some(Allowed { budget, told }) = self.allowed.remove(&context) else { return Vec::new() };
        responses::allowed_headers(&self.config.rules, budget.as_ref(), &told, &self.config.responses)
    }

    /// A request is over, whether or not it was answered.
    pub fn on_request_done(&mut self, context: u32) {
        self.paused.remove(&context);
        self.allowed.remove(&context);
        self.settle(context, false);
    }

    /// Whether requests have left something here that must be cleaned up.
    pub fn is_tracking(&self) -> bool {
        !self.paused.is_empty() || !self.allowed.is_empty() || self.limiter.has_deferred()
    }

    /// Time has passed. Returns what is to be done to which requests.
    pub fn on_tick(&mut self) -> Vec<(u32, Effect)> {
        let mono = calls::mono_now();
        let unix = faults::shifted(calls::unix_now(), self.clock_shift_ms);
        self.limiter.tick(&mut EnvoyShared, Now { unix, mono });
        let now = self.limiter.moment(mono);
        self.keeper.tick(&mut EnvoyShared, now);
        self.switch_shadows(now.unix);
        self.bans.ban_struck(&mut self.limiter, &mut self.keeper, now);
        self.mind_stream(mono);
        let effects = self.go_on(mono);
        self.set_tick(self.limiter.next_tick_ms());
        self.metrics.flush(
            &self.config.rules,
            (&mut self.counters, &mut self.told),
            self.limiter.stats(mono),
            mono,
            false,
        );
        self.tell(mono);
        effects
    }

    /// The worker or this configuration ends.
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
        // Gauges that stand for this worker go back; what it put into the table stays.
        let stats =
            Stats { connected: false, subscriber: false, report_queue: 0, ..self.limiter.stats(mono) };
        self.metrics.flush(&self.config.rules, (&mut self.counters, &mut self.told), stats, mono, true);
        self.told.hurry();
        self.tell(mono);
        effects
    }

    /// Tells what the request at hand has cost, if that is awaited.
    fn settle(&mut self, context: u32, answered: bool) {
        let request = u64::from(context);
        if self.limiter.is_deferred(request) {
            let mut ended = Ended::new(&self.config.rules, answered);
            let mut shown = self.allowed.get_mut(&context).and_then(|allowed| allowed.budget.as_mut());
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

    /// Lets rules be in shadow as they are configured, or as live control says.
    fn switch_shadows(&mut self, now: UnixMs) {
        let (controls, workspace) = (self.keeper.controls(), &self.config.workspace);
        for (number, (compiled, rule)) in self.compiled_rules.iter_mut().zip(&self.config.rules).enumerate() {
            compiled.policy.shadow = controls.shadow(workspace, &rule.name, now).unwrap_or(rule.shadow);
            self.told.set_shadow(number, compiled.policy.shadow);
        }
    }

    /// After anything that may have brought decisions or things to say.
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
            // One whose client has gone is charged all the same, but nobody is to be answered.
            let Some(paused) = self.paused.remove(&context) else {
                // What it was to cost by its response is nothing: it got no further.
                self.limiter.settle_cost(&mut EnvoyShared, request, |_| 0, mono);
                continue;
            };
            self.bans.accuse_again(paused.accused);
            let effect = self.conclude(context, outcome, Some(&paused.applied), || paused.client, mono);
            effects.push((context, effect));
        }
        effects
    }

    /// Lets the next tick come sooner, if it has to. Never later: setting the period starts Envoy's timer anew, so
    /// a period that changed with every request and answer would put off the tick for ever.
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
