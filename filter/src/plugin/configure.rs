//! Makes a plugin from the text of a configuration.

use super::Plugin;
use super::requests::Requests;
use super::statistics::Statistics;
use crate::host::calls;
use crate::host::kinds::LogLevel;
use crate::worker::Worker;
use weir_core::bans::making::Bans;
use weir_core::limiter::{Checks, CompiledRule, Visibility};
use weir_core::model::time::Now;
use weir_core::rules::{Config, Rule, Scratch};

/// Time until the first tick, which opens the stream. The stream is not opened at once, since Envoy first tries a configuration in a
/// VM that it discards.
const FIRST_TICK_MS: u64 = 1;

const NEEDS_RESPONSES: &str = "this module does not receive responses, which spares every request a crossing; load \
    weir-filter-responses.wasm instead";

impl Plugin {
    /// Reads a configuration. If the text is no valid one, logs the errors and returns `None`.
    pub fn parse(text: &[u8]) -> Option<Config> {
        let environment = calls::environment();
        let config = match calls::PARSE(text, &|name| variable(&environment, name)) {
            Ok(config) => config,
            Err(errors) => {
                for error in errors.iter() {
                    calls::log(LogLevel::Error, &format!("weir: configuration: {error}"));
                }
                return None;
            }
        };
        if let Some(field) = config.needs_responses().filter(|_| !calls::has_response_callback()) {
            calls::log(LogLevel::Error, &format!("weir: configuration: {field}: {NEEDS_RESPONSES}"));
            return None;
        }
        Some(config)
    }

    /// Makes the plugin of `root`, with a worker of its own among `workers` if none has its aggregator.
    pub fn configure(root: u32, config: Config, workers: &mut Vec<Worker>) -> Option<Plugin> {
        let has_response_callback = calls::has_response_callback();
        let now = Now { unix: calls::unix_now(), mono: calls::mono_now() };
        let shared = workers.iter().position(|worker| worker.is_for(&config.aggregator));
        let at = shared.unwrap_or(workers.len());
        if shared.is_none() {
            workers.push(Worker::new(&config, now));
        }
        let worker = workers.get_mut(at)?;
        calls::set_tick_period(u32::try_from(FIRST_TICK_MS).unwrap_or(u32::MAX));
        let mut plugin = Plugin {
            root,
            worker: at,
            compiled_rules: compiled(&config, has_response_callback),
            rule_names: config.rules.iter().map(|rule| rule.name.as_str().into()).collect(),
            bans: Bans::new(root, &config),
            scratch: Scratch::default(),
            checks: Checks::default(),
            statistics: Statistics::new(root, &config, &mut worker.reporter),
            requests: Requests::new(has_response_callback),
            settles_by_headers: config.rules.iter().any(|rule| rule.cost.settles_by_headers()),
            tick_ms: FIRST_TICK_MS,
            is_switched: true,
            config,
        };
        plugin.switch_shadows(worker, now.mono);
        Some(plugin)
    }
}

/// The rules as the limiter applies them. Budgets are listed only where responses to allowed requests state them.
fn compiled(config: &Config, has_response_callback: bool) -> Vec<CompiledRule> {
    let listed = config.responses.headers_on_allowed && has_response_callback;
    let compiled = |(rule, number): (&Rule, u16)| {
        let mut compiled = rule.compiled(number, &config.workspace);
        if listed && compiled.policy.visibility == Visibility::Shown {
            compiled.policy.visibility = Visibility::Listed;
        }
        compiled
    };
    config.rules.iter().zip(0..).map(compiled).collect()
}

/// The value of one of the variables in an `environment` as [`calls::environment`] has it.
fn variable(environment: &[u8], name: &str) -> Option<String> {
    let mut entries = environment.split(|byte| *byte == 0);
    let value = entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
    Some(String::from_utf8_lossy(value).into_owned())
}
