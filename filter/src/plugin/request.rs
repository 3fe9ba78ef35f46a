//! A request on its way to its decision: which rules it meets, and the limiter asked about those that limit it.
//!
//! ```text
//! headers → decide → resolve ─ checks ──────────────→ limit → outcome → verdict::conclude
//!                      ├ banned, denied by address or for a missing part → verdict::refuse
//!                      └ nothing limits it → it goes on
//! ```
//! Each step happens while the headers lie where Envoy put them.
//!
//! Leaves to others: what applies and what is said live (`weir_core::rules`), keys and checks (`compiled`), deciding
//! (`weir_core::limiter`), counting and answering (`verdict`).

use super::compiled_rule::{Resolved, applied, check, exact_check, exact_limit};
use super::verdict::{Effect, Refused, Said};
use super::{Paused, Plugin};
use crate::counters::Outcome;
use crate::faults::{self, Fault};
use crate::host::calls;
use crate::host::headers::{Beyond, Headers};
use crate::host::shared::EnvoyShared;
use crate::responses::Client;
use weir_core::limiter::Decision;
use weir_core::model::exact::Algorithm;
use weir_core::model::time::{MonoMs, UnixMs};
use weir_core::model::trace::Trace;
use weir_core::rules::{self, Action, Lines, Live, Request};

/// What Envoy knows of a request besides its headers.
pub(super) struct Envoy;

impl Beyond for Envoy {
    fn peer_address(&self, out: &mut Vec<u8>) {
        calls::property(b"source\0address", out);
    }

    fn metadata(&self, path: &[String], out: &mut Vec<u8>) -> bool {
        let path = format!("metadata\0filter_metadata\0{}", path.join("\0"));
        calls::property(path.as_bytes(), out)
    }
}

impl Plugin {
    pub(super) fn decide(&mut self, context: u32, request: &Headers<'_, Envoy>) -> Effect {
        if self.config.test_faults {
            match faults::asked(request) {
                Some(Fault::Panic) => faults::die(),
                Some(Fault::Clock(shift_ms)) => self.clock_shift_ms = shift_ms,
                None => {}
            }
        }
        self.keys.clear();
        self.resolved.clear();
        self.bans.begin();
        // The clock is a host call: asked once, by the first who needs it.
        let asked = (!self.keeper.controls().is_empty()).then(calls::mono_now);
        // When the request meets what is said live; any moment while nothing is.
        let said_at = asked.map_or(UnixMs(0), |mono| self.limiter.moment(mono).unix);
        match self.resolve(request, said_at) {
            Ok(label) if self.resolved.is_empty() => {
                label.map_or(Effect::Pass, |label| Effect::PassLabelled(self.label(label)))
            }
            Ok(label) => self.limit(context, request, label, asked.unwrap_or_else(calls::mono_now)),
            Err(refused) => self.refuse(refused, client(request), said_at),
        }
    }

    /// Puts what has to be limited into `resolved`; what else there is to tell, or why the request is refused at once.
    fn resolve(&mut self, request: &Headers<'_, Envoy>, now: UnixMs) -> Result<Option<Said>, Refused> {
        let mut label = None;
        let live = Live { controls: Some(self.keeper.controls()), now };
        let checks = self.config.resolve(request, &live, &mut self.scratch);
        if checks.address_is_denied() {
            return Err(Refused::Address);
        }
        for rules::Check { rule_index: rule, identifier, action, .. } in checks {
            let Some(compiled) = self.compiled_rules.get(rule) else { continue };
            match action {
                Action::DenyMissing | Action::DenyAmbiguous | Action::Ban(_) if compiled.policy.shadow => {
                    self.counters.count(rule, Outcome::ShadowDenied);
                    label = Some((rule, Outcome::ShadowDenied));
                }
                Action::DenyMissing => return Err(Refused::Missing(rule)),
                Action::DenyAmbiguous => return Err(Refused::Ambiguous(rule)),
                Action::Ban(banned) => {
                    self.bans.accuse(rule, identifier);
                    return Err(Refused::Banned(rule, banned));
                }
                Action::Exempt => {
                    self.counters.count(rule, Outcome::Exempt);
                    label = Some((rule, Outcome::Exempt));
                }
                Action::Limit { limit, cost, epoch } => {
                    self.bans.accuse(rule, identifier);
                    compiled.write_key(identifier, epoch, &mut self.keys);
                    self.resolved.push(Resolved { rule, key_end: self.keys.len(), limit, cost });
                }
            }
        }
        Ok(label)
    }

    /// Asks the limiter about the checks in `resolved`.
    fn limit(
        &mut self,
        context: u32,
        headers: &Headers<'_, Envoy>,
        label: Option<Said>,
        now: MonoMs,
    ) -> Effect {
        let request = u64::from(context);
        let (keys, compiled_rules) = (&self.keys, &self.compiled_rules);
        let mut begin = 0;
        let mut resolved = self.resolved.iter().filter_map(|resolved| {
            let key = keys.get(begin..resolved.key_end)?;
            begin = resolved.key_end;
            Some((resolved, compiled_rules.get(resolved.rule)?, key))
        });
        let outcome = match (resolved.next(), resolved.next()) {
            (Some((one, compiled, key)), None) if compiled.algorithm == Algorithm::Window => {
                self.limiter.decide(&mut EnvoyShared, request, &[check(one, compiled, key)], now)
            }
            (first, second) => {
                let (mut checks, mut exact) = (Vec::new(), Vec::new());
                for (one, compiled, key) in first.into_iter().chain(second).chain(resolved) {
                    match exact_limit(one, compiled, key) {
                        None => checks.push(check(one, compiled, key)),
                        Some(limit) => exact.push(exact_check(one, compiled, limit)),
                    }
                }
                match exact.is_empty() {
                    true => self.limiter.decide(&mut EnvoyShared, request, &checks, now),
                    false => self.limiter.decide_exact(&mut EnvoyShared, request, &checks, &exact, now),
                }
            }
        };
        if outcome.decision == Decision::Wait {
            self.trace(request, headers);
            let applied = applied(&self.resolved, &self.compiled_rules).collect();
            let paused = Paused { applied, client: client(headers), accused: self.bans.accused() };
            self.paused.insert(context, paused);
            return Effect::Pause;
        }
        match self.conclude(context, outcome, None, || client(headers), now) {
            Effect::Pass => label.map_or(Effect::Pass, |label| Effect::PassLabelled(self.label(label))),
            other => other,
        }
    }

    /// Lets what is asked for a request that waits say whence it comes, if that is wanted.
    fn trace(&mut self, request: u64, headers: &Headers<'_, Envoy>) {
        if !self.config.aggregator.trace {
            return;
        }
        let only = |name: &[u8]| match headers.header(name) {
            Lines::One(line) => Some(line),
            Lines::None | Lines::Many => None,
        };
        if let Some(trace) = Trace::of_headers(only(b"traceparent"), only(b"x-request-id")) {
            self.limiter.trace(request, &trace);
        }
    }
}

fn client(request: &Headers<'_, Envoy>) -> Client {
    match request.first(b"content-type").is_some_and(|kind| kind.starts_with(b"application/grpc")) {
        true => Client::Grpc,
        false => Client::Http,
    }
}
