//! One plugin configuration on one worker: its rules, its limiter, its stream.
//!
//! Returns what is to be done to requests as [`Effect`]s, as doing it may call back into the VM.
//!
//! Leaves to others: which plugin a request belongs to, and doing the effects (`vm`).

use crate::abi;
use crate::answer::{self, Answer, Client};
use crate::faults::{self, Fault};
use crate::headers::{Beyond, Headers};
use crate::host;
use crate::metrics::Metrics;
use crate::shared::EnvoyShared;
use crate::stream::Stream;
use crate::tally::{Outcome, Tally};
use prost::Message;
use proxy_wasm::types::LogLevel;
use std::collections::BTreeMap;
use weir_core::exact::Strategy;
use weir_core::key::{HashKey, KeyParts, MAX_KEY_BYTES, OriginId};
use weir_core::limiter::{
    self, Beside, Cause, Check, Decision, ExactCheck, ExactLimit, GiveUp, Limiter, Policy, Setup, Stats,
};
use weir_core::rules::{Action, Config, FirstRequest, OnConsultFailure, Rule, Scratch};
use weir_core::table::{Geometry, Meta};
use weir_core::time::{MonoMs, Now};
use weir_core::wire;

/// Keys a worker remembers in its own memory, in sets of four: 32 768, some 6 MB once all are used.
const LOCAL_SETS: usize = 8_192;
/// Checks that fit a request without allocating.
const INLINE_CHECKS: usize = 4;
/// Allowed requests whose response headers are still to come; more are let go without the headers.
const MAX_TRACKED: usize = 16_384;

const NEEDS_RESPONSES: &str = "this module does not hear of responses, which spares every request a crossing; load \
    weir-filter-responses.wasm instead";

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

/// A plugin on a worker.
pub struct Plugin {
    config: Config,
    shapes: Vec<Shape>,
    limiter: Limiter,
    stream: Stream,
    scratch: Scratch,
    keys: Vec<u8>,
    resolved: Vec<Resolved>,
    tally: Tally,
    metrics: Metrics,
    tick_ms: u64,
    paused: BTreeMap<u32, Paused>,
    /// Allowed requests whose response is to carry headers.
    allowed: BTreeMap<u32, Allowed>,
    /// This module is told of responses.
    hears_responses: bool,
    clock_shift_ms: i64,
}

/// What an allowed response is to tell.
struct Allowed {
    budget: Option<limiter::Budget>,
    told: limiter::Told,
}

/// The parts of a rule's keys that do not change; a ledger's bucket is the identifier alone.
struct Shape {
    strategy: Strategy,
    before: Vec<u8>,
    after: Vec<u8>,
    cell_ms: u64,
    policy: Policy,
}

/// A check whose key stands in `keys`.
#[derive(Clone, Copy)]
struct Resolved {
    rule: usize,
    key_end: usize,
    limit: u64,
    cost: u64,
}

/// A request that waits: the rules that apply to it, and who is to be answered.
struct Paused {
    applied: Vec<Applied>,
    client: Client,
}

/// A rule that applies to a request.
#[derive(Clone, Copy, Debug)]
struct Applied {
    rule: usize,
    shadow: bool,
}

/// What Envoy knows of a request besides its headers.
struct Envoy;

impl Beyond for Envoy {
    fn peer_address(&self, out: &mut Vec<u8>) {
        host::property(b"source\0address", out);
    }

    fn metadata(&self, path: &[String], out: &mut Vec<u8>) -> bool {
        let path = format!("metadata\0filter_metadata\0{}", path.join("\0"));
        host::property(path.as_bytes(), out)
    }
}

impl Plugin {
    /// Takes a configuration; `None` (and why, in the log) if it is not one.
    pub fn configure(text: &[u8]) -> Option<Plugin> {
        let config = match Config::parse(text) {
            Ok(config) => config,
            Err(errors) => {
                for error in errors.iter() {
                    host::log(LogLevel::Error, &format!("weir: configuration: {error}"));
                }
                return None;
            }
        };
        let hears_responses = abi::hears_responses();
        if let Some(field) = asks_for_responses(&config).filter(|_| !hears_responses) {
            host::log(LogLevel::Error, &format!("weir: configuration: {field}: {NEEDS_RESPONSES}"));
            return None;
        }
        let now = Now { unix: host::unix_now(), mono: host::mono_now() };
        let setup = Setup {
            meta: Meta::establish(&mut EnvoyShared, proposal(&config)),
            worker: u64::from_le_bytes(host::random()),
            token: config
                .aggregator
                .token
                .as_ref()
                .map(|token| token.reveal().to_owned())
                .unwrap_or_default(),
            version: config.version(),
            local_sets: LOCAL_SETS,
        };
        let rules = config.rules.len();
        host::set_tick_period(u32::try_from(limiter::TICK_MS).unwrap_or(u32::MAX));
        Some(Plugin {
            shapes: config.rules.iter().map(|rule| shape(&config.workspace, rule)).collect(),
            limiter: Limiter::new(setup, now),
            stream: Stream::new(&config.aggregator),
            scratch: Scratch::default(),
            keys: Vec::with_capacity(MAX_KEY_BYTES.saturating_mul(INLINE_CHECKS)),
            resolved: Vec::with_capacity(INLINE_CHECKS),
            tally: Tally::new(rules),
            metrics: Metrics::new(rules),
            tick_ms: limiter::TICK_MS,
            paused: BTreeMap::new(),
            allowed: BTreeMap::new(),
            hears_responses,
            clock_shift_ms: 0,
            config,
        })
    }

    /// A request's headers are there.
    pub fn on_request(&mut self, context: u32) -> Effect {
        let effect = host::request_headers(|bytes| self.decide(context, &Headers::new(bytes, Envoy)));
        if matches!(effect, Effect::Pause) || self.limiter.is_urgent() {
            self.send(host::mono_now());
            self.hurry_tick();
        }
        effect
    }

    /// Headers for the response of an allowed request.
    pub fn on_response(&mut self, context: u32) -> Vec<(&'static str, String)> {
        let Some(Allowed { budget, told }) = self.allowed.remove(&context) else { return Vec::new() };
        answer::allowed_headers(&self.config.rules, budget.as_ref(), &told, &self.config.responses)
    }

    /// A request is over, whether or not it was answered.
    pub fn on_request_done(&mut self, context: u32) {
        self.paused.remove(&context);
        self.allowed.remove(&context);
    }

    /// Time has passed. Returns what is to be done to which requests.
    pub fn on_tick(&mut self) -> Vec<(u32, Effect)> {
        let mono = host::mono_now();
        let unix = faults::shifted(host::unix_now(), self.clock_shift_ms);
        self.limiter.tick(&mut EnvoyShared, Now { unix, mono });
        if let Some(why) = self.limiter.should_give_up(mono) {
            self.stream.complain(match why {
                GiveUp::Unanswered => "the aggregator does not answer",
                GiveUp::Unacknowledged => "the aggregator acknowledges nothing; another one may",
            });
            self.break_stream(mono);
        }
        if self.limiter.should_open(mono) {
            self.limiter.on_opening(mono);
            if let Err(refused) = self.stream.open() {
                self.stream.complain(&format!(
                    "Envoy cannot open it (status {}): is there such a cluster?",
                    refused.0
                ));
                self.break_stream(mono);
            }
        }
        let effects = self.go_on(mono);
        self.set_tick(self.limiter.next_tick_ms());
        self.metrics.flush(&self.config.rules, &mut self.tally, self.limiter.stats(mono), mono, false);
        effects
    }

    /// A message came on stream `token`.
    pub fn on_message(&mut self, token: u32) -> Vec<(u32, Effect)> {
        if !self.stream.is(token) {
            return Vec::new();
        }
        let mono = host::mono_now();
        match host::grpc_message(|bytes| wire::RegionFrame::decode(bytes)) {
            Ok(frame) => {
                if let Some(refusal) = &frame.refusal {
                    self.stream.complain(&format!("the aggregator refuses it: {}", refusal.reason));
                }
                if frame.welcome.is_some() {
                    self.stream.welcomed();
                }
                self.limiter.on_frame(&mut EnvoyShared, &frame, mono);
            }
            Err(error) => {
                host::log(
                    LogLevel::Warn,
                    &format!("weir: a message of the aggregator is malformed: {error}"),
                );
                self.break_stream(mono);
            }
        }
        self.go_on(mono)
    }

    /// Stream `token` ended.
    pub fn on_stream_closed(&mut self, token: u32, status: u32) -> Vec<(u32, Effect)> {
        if !self.stream.is(token) {
            return Vec::new();
        }
        self.stream.complain(&format!("it ended with gRPC status {status}"));
        let mono = host::mono_now();
        self.break_stream(mono);
        self.go_on(mono)
    }

    /// The worker or this configuration ends.
    pub fn on_shutdown(&mut self) -> Vec<(u32, Effect)> {
        let mono = host::mono_now();
        for frame in self.limiter.shutdown(&mut EnvoyShared, mono) {
            self.stream.send(&frame);
        }
        self.count_beside();
        let effects = self.take_effects();
        // Gauges that stand for this worker go back; what it put into the table stays.
        let stats =
            Stats { connected: false, subscriber: false, report_queue: 0, ..self.limiter.stats(mono) };
        self.metrics.flush(&self.config.rules, &mut self.tally, stats, mono, true);
        effects
    }

    /// Whether requests have left something here that must be cleaned up.
    pub fn is_tracking(&self) -> bool {
        !self.paused.is_empty() || !self.allowed.is_empty()
    }

    fn decide(&mut self, context: u32, request: &Headers<'_, Envoy>) -> Effect {
        if self.config.test_faults {
            match faults::asked(request) {
                Some(Fault::Panic) => faults::die(),
                Some(Fault::Clock(shift_ms)) => self.clock_shift_ms = shift_ms,
                None => {}
            }
        }
        let mut label = None;
        self.keys.clear();
        self.resolved.clear();
        for check in self.config.resolve(request, &mut self.scratch) {
            let Some(shape) = self.shapes.get(check.rule_index) else { continue };
            match check.action {
                Action::DenyMissing if shape.policy.shadow => {
                    self.tally.count(check.rule_index, Outcome::ShadowDeny);
                    label = Some((check.rule_index, Outcome::ShadowDeny));
                }
                Action::DenyMissing => {
                    self.tally.count(check.rule_index, Outcome::Deny);
                    let client = client(request);
                    let answer = answer::missing_identifier(check.rule, &self.config.responses, client);
                    let label = Label { rule: check.rule.name.clone(), outcome: Outcome::Deny.name() };
                    return Effect::Refuse(label, Box::new(answer));
                }
                Action::Exempt => {
                    self.tally.count(check.rule_index, Outcome::Exempt);
                    label = Some((check.rule_index, Outcome::Exempt));
                }
                Action::Limit { limit, cost } => {
                    shape.write_key(check.identifier, &mut self.keys);
                    let key_end = self.keys.len();
                    self.resolved.push(Resolved { rule: check.rule_index, key_end, limit, cost });
                }
            }
        }
        match self.resolved.is_empty() {
            true => label.map_or(Effect::Pass, |label| Effect::PassLabelled(self.label(label))),
            false => self.limit(context, request, label),
        }
    }

    /// Asks the limiter about the checks in `resolved`.
    fn limit(
        &mut self,
        context: u32,
        headers: &Headers<'_, Envoy>,
        label: Option<(usize, Outcome)>,
    ) -> Effect {
        let now = host::mono_now();
        let request = u64::from(context);
        let (keys, shapes) = (&self.keys, &self.shapes);
        let mut begin = 0;
        let mut resolved = self.resolved.iter().filter_map(|resolved| {
            let key = keys.get(begin..resolved.key_end)?;
            begin = resolved.key_end;
            Some((resolved, shapes.get(resolved.rule)?, key))
        });
        let outcome = match (resolved.next(), resolved.next()) {
            (Some((one, shape, key)), None) if shape.strategy == Strategy::Window => {
                self.limiter.decide(&mut EnvoyShared, request, &[check(one, shape, key)], now)
            }
            (first, second) => {
                let (mut checks, mut exact) = (Vec::new(), Vec::new());
                for (one, shape, key) in first.into_iter().chain(second).chain(resolved) {
                    match exact_limit(one, shape, key) {
                        None => checks.push(check(one, shape, key)),
                        Some(limit) => exact.push(exact_check(one, shape, limit)),
                    }
                }
                match exact.is_empty() {
                    true => self.limiter.decide(&mut EnvoyShared, request, &checks, now),
                    false => self.limiter.decide_exact(&mut EnvoyShared, request, &checks, &exact, now),
                }
            }
        };
        if outcome.decision == Decision::Wait {
            let paused =
                Paused { applied: applied(&self.resolved, &self.shapes).collect(), client: client(headers) };
            self.paused.insert(context, paused);
            return Effect::Pause;
        }
        match self.conclude(context, outcome, None, || client(headers)) {
            Effect::Pass => label.map_or(Effect::Pass, |label| Effect::PassLabelled(self.label(label))),
            other => other,
        }
    }

    /// Counts an outcome and turns it into an effect. `paused` are the rules of a request that had to wait.
    fn conclude(
        &mut self,
        context: u32,
        outcome: limiter::Outcome,
        paused: Option<&[Applied]>,
        client: impl Fn() -> Client,
    ) -> Effect {
        match outcome.decision {
            Decision::Wait => Effect::Pause,
            Decision::Deny(denial) => {
                let rule = usize::from(denial.budget.rule);
                let undecided = outcome.exact.undecided;
                // A window that would rather not guess has decided to deny.
                let said = match denial.cause == Cause::Undecided && bit(undecided, rule) {
                    true => Outcome::Undecided,
                    false => Outcome::Deny,
                };
                if said == Outcome::Deny {
                    self.tally.count(rule, said);
                }
                self.count_each(undecided, Outcome::Undecided);
                self.count_each(outcome.shadow_denied, Outcome::ShadowDeny);
                let Config { rules, responses, .. } = &self.config;
                let Some(answer) = answer::denied(rules, &denial, &outcome.exact, responses, client()) else {
                    return Effect::Pass;
                };
                Effect::Refuse(self.label((rule, said)), Box::new(answer))
            }
            Decision::Allow(budget) => {
                match paused {
                    Some(rules) => count_allowed(&mut self.tally, rules.iter().copied(), &outcome),
                    None => {
                        let rules = applied(&self.resolved, &self.shapes);
                        count_allowed(&mut self.tally, rules, &outcome);
                    }
                }
                self.track(context, budget, outcome.exact);
                let lowest = |rules: u64| usize::try_from(rules.trailing_zeros()).unwrap_or(0);
                match (outcome.exact.undecided, outcome.shadow_denied) {
                    (0, 0) => Effect::Pass,
                    (0, denied) => Effect::PassLabelled(self.label((lowest(denied), Outcome::ShadowDeny))),
                    (undecided, _) => {
                        Effect::PassLabelled(self.label((lowest(undecided), Outcome::Undecided)))
                    }
                }
            }
        }
    }

    /// Keeps what the response of an allowed request is to tell, if there is anything.
    fn track(&mut self, context: u32, budget: Option<limiter::Budget>, told: limiter::Told) {
        let budget = budget.filter(|_| self.config.responses.on_allow);
        let tells = budget.is_some() || told.undecided != 0 || !told.transactions.is_empty();
        if tells && self.hears_responses && self.allowed.len() < MAX_TRACKED {
            self.allowed.insert(context, Allowed { budget, told });
        }
    }

    fn count_each(&mut self, rules: u64, outcome: Outcome) {
        for rule in (0..self.config.rules.len()).filter(|rule| bit(rules, *rule)) {
            self.tally.count(rule, outcome);
        }
    }

    /// Counts what was said of shadow rules that are held exactly.
    fn count_beside(&mut self) {
        for (rule, said) in self.limiter.take_beside() {
            let outcome = match said {
                Beside::Allowed => Outcome::Allow,
                Beside::Denied => Outcome::ShadowDeny,
                Beside::Undecided => Outcome::Undecided,
            };
            self.tally.count(usize::from(rule), outcome);
        }
    }

    fn label(&self, (rule, outcome): (usize, Outcome)) -> Label {
        let rule = self.config.rules.get(rule).map(|rule| rule.name.clone()).unwrap_or_default();
        Label { rule, outcome: outcome.name() }
    }

    /// After anything that may have brought decisions or things to say.
    fn go_on(&mut self, mono: MonoMs) -> Vec<(u32, Effect)> {
        self.send(mono);
        self.hurry_tick();
        self.count_beside();
        self.take_effects()
    }

    fn take_effects(&mut self) -> Vec<(u32, Effect)> {
        let mut effects = Vec::new();
        for (request, outcome) in self.limiter.take_resolved() {
            let Ok(context) = u32::try_from(request) else { continue };
            // One whose client has gone is charged all the same, but nobody is to be answered.
            let Some(paused) = self.paused.remove(&context) else { continue };
            let effect = self.conclude(context, outcome, Some(&paused.applied), || paused.client);
            effects.push((context, effect));
        }
        effects
    }

    fn send(&mut self, mono: MonoMs) {
        for frame in self.limiter.take_frames(&mut EnvoyShared, mono) {
            if !self.stream.send(&frame) {
                self.break_stream(mono);
                return;
            }
        }
    }

    fn break_stream(&mut self, mono: MonoMs) {
        self.stream.close();
        self.limiter.on_closed(&mut EnvoyShared, mono);
    }

    /// Lets the next tick come sooner, if it has to. Never later: setting the period starts Envoy's timer anew, so
    /// a period that changed with every request and answer would put off the tick for ever.
    fn hurry_tick(&mut self) {
        self.set_tick(self.limiter.next_tick_ms().min(self.tick_ms));
    }

    fn set_tick(&mut self, wanted: u64) {
        if wanted != self.tick_ms {
            self.tick_ms = wanted;
            host::set_tick_period(u32::try_from(wanted).unwrap_or(u32::MAX));
        }
    }
}

/// What this configuration asks for that only a module does which hears of responses.
fn asks_for_responses(config: &Config) -> Option<String> {
    if config.responses.on_allow {
        return Some("responses.on_allow".to_owned());
    }
    let ledger = |rule: &Rule| matches!(rule.strategy, Strategy::Ledger { .. });
    let at = config.rules.iter().position(ledger)?;
    Some(format!("rules[{at}].strategy: responses carry a ledger's transactions"))
}

fn check<'a>(resolved: &Resolved, shape: &Shape, key: &'a [u8]) -> Check<'a> {
    let rule = u16::try_from(resolved.rule).unwrap_or(u16::MAX);
    let Shape { cell_ms, policy, .. } = *shape;
    Check { rule, key, cell_ms, limit: resolved.limit, cost: resolved.cost, policy }
}

/// The limit where it is held exactly.
fn exact_limit<'a>(resolved: &Resolved, shape: &Shape, key: &'a [u8]) -> Option<ExactLimit<'a>> {
    match shape.strategy {
        Strategy::Window => None,
        Strategy::Log => Some(ExactLimit::Log { key, most: resolved.limit }),
        Strategy::Ledger { zone } => Some(ExactLimit::Ledger { zone, bucket: key }),
    }
}

fn exact_check<'a>(resolved: &Resolved, shape: &Shape, limit: ExactLimit<'a>) -> ExactCheck<'a> {
    let rule = u16::try_from(resolved.rule).unwrap_or(u16::MAX);
    ExactCheck { rule, limit, cost: resolved.cost, policy: shape.policy }
}

/// The rules that apply to the request at hand and are decided with it: exact shadow rules are ruled later.
fn applied(resolved: &[Resolved], shapes: &[Shape]) -> impl Iterator<Item = Applied> {
    resolved.iter().filter_map(|resolved| {
        let shape = shapes.get(resolved.rule)?;
        let shadow = shape.policy.shadow;
        let now = !shadow || shape.strategy == Strategy::Window;
        now.then_some(Applied { rule: resolved.rule, shadow })
    })
}

fn count_allowed(tally: &mut Tally, rules: impl Iterator<Item = Applied>, outcome: &limiter::Outcome) {
    for applied in rules {
        let refused = applied.shadow && bit(outcome.shadow_denied, applied.rule);
        let said = match (bit(outcome.exact.undecided, applied.rule), refused) {
            (true, _) => Outcome::Undecided,
            (false, true) => Outcome::ShadowDeny,
            (false, false) => Outcome::Allow,
        };
        tally.count(applied.rule, said);
    }
}

fn client(request: &Headers<'_, Envoy>) -> Client {
    match request.first(b"content-type").is_some_and(|kind| kind.starts_with(b"application/grpc")) {
        true => Client::Grpc,
        false => Client::Http,
    }
}

fn proposal(config: &Config) -> Meta {
    let [a, b]: [[u8; 8]; 2] = [host::random(), host::random()];
    Meta {
        origin: OriginId(host::random()),
        secret: HashKey(u64::from_le_bytes(a), u64::from_le_bytes(b)),
        geometry: Geometry {
            buckets: config.table.buckets,
            keys_per_bucket: u8::try_from(config.table.keys_per_bucket).unwrap_or(u8::MAX),
        },
    }
}

impl Shape {
    /// Appends the key of an identifier.
    fn write_key(&self, identifier: &[u8], out: &mut Vec<u8>) {
        if matches!(self.strategy, Strategy::Ledger { .. }) {
            return out.extend_from_slice(identifier);
        }
        out.extend_from_slice(&self.before);
        out.push(u8::try_from(identifier.len()).unwrap_or(u8::MAX));
        out.extend_from_slice(identifier);
        out.extend_from_slice(&self.after);
    }
}

/// The rule's key with an identifier of one byte, cut around it.
fn shape(workspace: &str, rule: &Rule) -> Shape {
    let parts = KeyParts {
        workspace: workspace.as_bytes(),
        namespace: rule.namespace.as_bytes(),
        identifier: b"",
        duration_ms: rule.duration_ms,
        epoch: 0,
        resolution: rule.resolution(),
    };
    let mut key = Vec::with_capacity(MAX_KEY_BYTES);
    // The configuration's own bounds are the key's, but for a ledger, which has no window and no key. Were it otherwise
    // the key would be empty and shared.
    let _ = parts.encode(&mut key);
    let tail = key.len().saturating_sub(8 + 4 + 2);
    let after = key.split_off(tail);
    key.pop(); // the length of the empty identifier
    Shape {
        strategy: rule.strategy,
        before: key,
        after,
        cell_ms: parts.cell_ms(),
        policy: Policy {
            shadow: rule.shadow,
            trust_first: rule.first_request == FirstRequest::Trust,
            deny_on_failure: rule.on_consult_failure == OnConsultFailure::Deny,
            timeout_ms: u32::try_from(rule.consult_timeout_ms).unwrap_or(u32::MAX),
        },
    }
}

fn bit(mask: u64, index: usize) -> bool {
    u32::try_from(index).ok().and_then(|index| mask.checked_shr(index)).is_some_and(|rest| rest & 1 == 1)
}
