//! Matches a request against the rules, and has the limiter decide the checks that follow.
//!
//! ```text
//! headers → decide → resolve ─ checks ──────────────→ limit → outcome → verdict::conclude
//!                      ├ banned, denied by address or path, or for a missing part → verdict::refuse
//!                      └ no rule applies → continue
//! ```
//! All of it reads the headers in the memory into which Envoy wrote them.

use super::Plugin;
use super::requests::Paused;
use super::verdict::{Effect, Label, Refused, applied};
use crate::faults::{self, Fault};
use crate::host::calls;
use crate::host::properties::Envoy;
use crate::host::request::Headers;
use crate::host::shared::EnvoyShared;
use crate::responses::Client;
use crate::worker::Worker;
use weir_core::limiter::{Decision, Terms};
use weir_core::model::outcome::RuleOutcome;
use weir_core::model::time::{MonoMs, Now, UnixMs};
use weir_core::model::trace::Trace;
use weir_core::rules::{self, Action, Denied, Lines, Live, Request, Violations};

impl Plugin {
    pub(super) fn decide(
        &mut self,
        worker: &mut Worker,
        context: u32,
        request: &Headers<'_, Envoy>,
    ) -> Effect {
        if self.config.test_faults {
            match faults::requested(request) {
                Some(Fault::Panic) => faults::die(),
                Some(Fault::Clock(shift_ms)) => worker.clock_shift_ms = shift_ms,
                None => {}
            }
        }
        self.checks.clear();
        self.bans.begin();
        // Reading the clock is a host call, made once and only if needed.
        let mono = (!worker.keeper.controls().is_empty()).then(calls::mono_now);
        // The time at which live control is evaluated; any time while there is none.
        let live_at = mono.map_or(UnixMs(0), |mono| worker.limiter.moment(mono).unix);
        match self.resolve(worker, request, live_at) {
            Ok(label) if self.checks.is_empty() => label.map_or(Effect::Pass, Effect::PassLabelled),
            Ok(label) => self.limit(worker, context, request, label, mono.unwrap_or_else(calls::mono_now)),
            Err(refused) => {
                let now = Now { unix: live_at, mono: mono.unwrap_or_default() };
                self.refuse(worker, refused, client(request), now)
            }
        }
    }

    /// Writes the checks of a request into `checks`. Returns what access logs show if it passes, or the reason to deny it at once.
    fn resolve(
        &mut self,
        worker: &Worker,
        request: &Headers<'_, Envoy>,
        now: UnixMs,
    ) -> Result<Option<Label>, Refused> {
        let mut label = None;
        let live = Live { controls: Some(worker.keeper.controls()), now };
        let matches = self.config.resolve(request, &live, &mut self.scratch);
        match matches.denied() {
            None => {}
            Some(Denied::Address) => return Err(Refused::Address),
            Some(Denied::Path) => return Err(Refused::Path),
        }
        let is_path_on_trial = matches.is_path_on_trial();
        matches.unlisted().iter().for_each(|rule| self.statistics.count_unlisted(*rule));
        for rules::Match { rule_index: rule, identifier, is_of_client, action, enforced, .. } in matches {
            let Some(compiled) = self.compiled_rules.get(rule) else { continue };
            let shadow = compiled.policy.shadow || !enforced;
            match action {
                Action::DenyMissing | Action::DenyUnlisted | Action::DenyAmbiguous | Action::Ban(_)
                    if shadow =>
                {
                    self.statistics.count(rule, RuleOutcome::ShadowDenied);
                    label = Some((rule, RuleOutcome::ShadowDenied));
                }
                Action::DenyMissing => return Err(Refused::Missing(rule)),
                Action::DenyUnlisted => return Err(Refused::Unlisted(rule)),
                Action::DenyAmbiguous => return Err(Refused::Ambiguous(rule)),
                Action::Ban(banned) => {
                    self.bans.accuse(rule, identifier);
                    return Err(Refused::Banned(rule, banned));
                }
                Action::Exempt => {
                    self.statistics.count(rule, RuleOutcome::Exempt);
                    label = Some((rule, RuleOutcome::Exempt));
                }
                Action::Limit { limit, configured, cost, epoch } => {
                    if is_of_client {
                        self.bans.accuse(rule, identifier);
                    }
                    let bans_by_charge = is_of_client && self.bans.counts(rule) == Some(Violations::Charged);
                    let terms = Terms { limit, configured, cost, epoch, enforced, bans_by_charge };
                    compiled.check(identifier, terms, &mut self.checks);
                }
            }
        }
        if is_path_on_trial {
            self.statistics.count_request(|requests| &mut requests.paths_on_trial);
            return Ok(Some(Label::of_path_on_trial()));
        }
        Ok(label.map(|label| self.label(label)))
    }

    /// Has the limiter decide the checks in `checks`.
    fn limit(
        &mut self,
        worker: &mut Worker,
        context: u32,
        headers: &Headers<'_, Envoy>,
        label: Option<Label>,
        now: MonoMs,
    ) -> Effect {
        let request = self.number(context);
        let outcome = match self.checks.only() {
            Some(only) => worker.limiter.decide(&mut EnvoyShared, request, &[only], now),
            None => {
                let checks: Vec<_> = self.checks.iter().collect();
                worker.limiter.decide(&mut EnvoyShared, request, &checks, now)
            }
        };
        if outcome.decision == Decision::Wait {
            self.trace(worker, request, headers);
            let applied = applied(&self.checks).collect();
            let paused = Paused { applied, client: client(headers), accused: self.bans.accused() };
            self.requests.pause(context, paused);
            return Effect::Pause;
        }
        match self.conclude(worker, context, outcome, None, || client(headers), now) {
            Effect::Pass => label.map_or(Effect::Pass, Effect::PassLabelled),
            other => other,
        }
    }

    /// Adds the trace context of a waiting request to its query, if tracing is configured.
    fn trace(&self, worker: &mut Worker, request: u64, headers: &Headers<'_, Envoy>) {
        if !self.config.aggregator.trace {
            return;
        }
        let only = |name: &[u8]| match headers.header(name) {
            Lines::One(line) => Some(line),
            Lines::None | Lines::Many => None,
        };
        if let Some(trace) = Trace::of_headers(only(b"traceparent"), only(b"x-request-id")) {
            worker.limiter.trace(request, &trace);
        }
    }
}

fn client(request: &Headers<'_, Envoy>) -> Client {
    match request.first(b"content-type").is_some_and(|kind| kind.starts_with(b"application/grpc")) {
        true => Client::Grpc,
        false => Client::Http,
    }
}
