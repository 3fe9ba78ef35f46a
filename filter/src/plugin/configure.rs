//! From a configuration's text to a plugin that is ready for requests.
//!
//! Leaves to others: what a configuration may say (`weir_core::rules`).

use super::Plugin;
use super::compiled_rule::CompiledRule;
use crate::bans::Bans;
use crate::counters::Counters;
use crate::counters::metrics::Metrics;
use crate::counters::reporter::CounterReporter;
use crate::host::arena;
use crate::host::calls;
use crate::host::shared::EnvoyShared;
use crate::host::stream::Stream;
use proxy_wasm::types::LogLevel;
use std::collections::BTreeMap;
use weir_core::control::Keeper;
use weir_core::limiter::table::{Geometry, Meta};
use weir_core::limiter::{Limiter, Setup};
use weir_core::model::key::{HashKey, MAX_KEY_BYTES, OriginId};
use weir_core::model::time::Now;
use weir_core::rules::{Config, Scratch};

/// Keys a worker remembers in its own memory, in sets of four: 32 768, some 6 MB once all are used.
const LOCAL_SETS: usize = 8_192;
/// The first tick opens the stream, as requests wait for it. Not at once: Envoy tries a configuration in a VM that it drops again.
const FIRST_TICK_MS: u64 = 1;
/// Checks that fit a request without allocating.
const INLINE_CHECKS: usize = 4;

const NEEDS_RESPONSES: &str = "this module does not hear of responses, which spares every request a crossing; load \
    weir-filter-responses.wasm instead";

impl Plugin {
    /// Takes a configuration; `None` (and why, in the log) if it is not one.
    pub fn configure(text: &[u8]) -> Option<Plugin> {
        let environment = calls::environment();
        let config = match Config::parse_with(text, &|name| variable(&environment, name)) {
            Ok(config) => config,
            Err(errors) => {
                for error in errors.iter() {
                    calls::log(LogLevel::Error, &format!("weir: configuration: {error}"));
                }
                return None;
            }
        };
        let has_response_callback = arena::has_response_callback();
        if let Some(field) = config.needs_responses().filter(|_| !has_response_callback) {
            calls::log(LogLevel::Error, &format!("weir: configuration: {field}: {NEEDS_RESPONSES}"));
            return None;
        }
        let now = Now { unix: calls::unix_now(), mono: calls::mono_now() };
        let setup = setup(&config);
        let rules = config.rules.len();
        let keeper = Keeper::load(&mut EnvoyShared, now);
        calls::set_tick_period(u32::try_from(FIRST_TICK_MS).unwrap_or(u32::MAX));
        let mut plugin = Plugin {
            compiled_rules: config
                .rules
                .iter()
                .map(|rule| CompiledRule::of(&config.workspace, rule))
                .collect(),
            limiter: Limiter::new(setup, now),
            keeper,
            bans: Bans::new(&config),
            stream: Stream::new(&config.aggregator),
            scratch: Scratch::default(),
            keys: Vec::with_capacity(MAX_KEY_BYTES.saturating_mul(INLINE_CHECKS)),
            resolved: Vec::with_capacity(INLINE_CHECKS),
            counters: Counters::new(rules),
            told: CounterReporter::new(rules),
            metrics: Metrics::new(rules),
            tick_ms: FIRST_TICK_MS,
            paused: BTreeMap::new(),
            allowed: BTreeMap::new(),
            has_response_callback,
            clock_shift_ms: 0,
            config,
        };
        plugin.switch_shadows(now.unix);
        Some(plugin)
    }
}

/// The value of one of the variables in an `environment` as [`calls::environment`] has it.
fn variable(environment: &[u8], name: &str) -> Option<String> {
    let mut entries = environment.split(|byte| *byte == 0);
    let value = entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
    Some(String::from_utf8_lossy(value).into_owned())
}

/// What the limiter is made with, over the table that the process has, or that this worker proposes.
fn setup(config: &Config) -> Setup {
    Setup {
        meta: Meta::establish(&mut EnvoyShared, proposal(config)),
        worker: u64::from_le_bytes(calls::random()),
        version: config.version(),
        local_sets: LOCAL_SETS,
    }
}

fn proposal(config: &Config) -> Meta {
    let [a, b]: [[u8; 8]; 2] = [calls::random(), calls::random()];
    Meta {
        origin: OriginId(calls::random()),
        secret: HashKey(u64::from_le_bytes(a), u64::from_le_bytes(b)),
        geometry: Geometry::of_keys(config.table.max_keys),
    }
}
