//! Makes a plugin from the text of a configuration.

use super::Plugin;
use super::requests::Requests;
use super::statistics::Statistics;
use crate::bans::Bans;
use crate::host::arena;
use crate::host::calls;
use crate::host::shared::EnvoyShared;
use crate::host::stream::Stream;
use proxy_wasm::types::LogLevel;
use weir_core::control::Keeper;
use weir_core::limiter::table::{Geometry, Meta};
use weir_core::limiter::{Checks, Limiter, Setup};
use weir_core::model::key::{HashKey, OriginId};
use weir_core::model::time::Now;
use weir_core::rules::{Config, Scratch};

/// Sets of four keys in the worker cache: 32 768 keys, some 6 MB once all are used.
const LOCAL_SETS: usize = 8_192;
/// Time until the first tick, which opens the stream. The stream is not opened at once, since Envoy first tries a configuration in a
/// VM that it discards.
const FIRST_TICK_MS: u64 = 1;

const NEEDS_RESPONSES: &str = "this module does not receive responses, which spares every request a crossing; load \
    weir-filter-responses.wasm instead";

impl Plugin {
    /// Makes a plugin. If the text is no valid configuration, logs the errors and returns `None`.
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
                .zip(0..)
                .map(|(rule, number)| rule.compiled(number, &config.workspace))
                .collect(),
            rule_names: config.rules.iter().map(|rule| rule.name.as_str().into()).collect(),
            limiter: Limiter::new(setup, now),
            keeper,
            bans: Bans::new(&config),
            stream: Stream::new(&config.aggregator),
            scratch: Scratch::default(),
            checks: Checks::default(),
            statistics: Statistics::new(rules),
            requests: Requests::new(has_response_callback),
            tick_ms: FIRST_TICK_MS,
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

/// The limiter's parameters. The table is the one that the process has, or the one that this worker proposes.
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
