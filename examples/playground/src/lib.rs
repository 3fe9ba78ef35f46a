//! The simulator in a browser: the functions that the page calls, with text as arguments and results.
//!
//! In reading order: text that an operator pastes becomes rules, or errors ([`config`]); a link or the page's settings
//! become a plan ([`plan`]), which is checked for what a tab can simulate ([`bounds`]); the plan is run ([`simulate`]).

pub mod bounds;
pub mod config;
pub mod plan;

use serde_json::json;
use wasm_bindgen::prelude::wasm_bindgen;
use weir_simulator::report::series::{Recorded, record};
use weir_simulator::run::Expected;
use weir_simulator::scenarios::{self, link};

#[cfg(target_arch = "wasm32")]
#[wasm_bindgen]
extern "C" {
    /// Defined by the worker: receives the completed part of a run, from 0 to 1.
    #[wasm_bindgen(js_name = weirProgress)]
    fn progress(part: f64);

    /// Defined by the worker: receives the message of a panic before the module ends. The page itself does not define
    /// it.
    #[wasm_bindgen(js_name = weirPanicked, catch)]
    fn panicked(message: &str) -> Result<(), wasm_bindgen::JsValue>;
}

#[cfg(target_arch = "wasm32")]
#[wasm_bindgen(start)]
fn start() {
    // If the message cannot be passed, the page still notices that the worker ended.
    std::panic::set_hook(Box::new(|panic| drop(panicked(&panic.to_string()))));
}

/// The rules in a pasted text, or its errors: [`config::Judged`] as JSON.
#[wasm_bindgen]
pub fn judge(text: &str) -> String {
    to_json(&config::judge(text))
}

/// All scenarios as JSON, with names and descriptions.
#[wasm_bindgen(js_name = listScenarios)]
pub fn list_scenarios() -> String {
    let all: Vec<_> = scenarios::all()
        .map(|one| json!({"name": one.name, "description": one.description, "long": one.long}))
        .collect();
    to_json(&all)
}

/// The plan in a URL fragment as JSON, with its seed as text; or an error.
#[wasm_bindgen(js_name = readLink)]
pub fn read_link(fragment: &str) -> Result<String, String> {
    let plan = link::read(fragment)?;
    bounds::check(&plan)?;
    Ok(json!({"plan": plan::for_page(&plan)?, "seed": plan.seed.to_string()}).to_string())
}

/// The URL fragment of a plan, or an error in the plan.
#[wasm_bindgen(js_name = writeLink)]
pub fn write_link(plan: &str, seed: &str) -> Result<String, String> {
    plan::read(plan, seed).map(|plan| link::of_plan(&plan))
}

/// Runs a plan. If it is the plan of `scenario`, the result is compared with what that scenario expects. Returns
/// [`Recorded`] as JSON, or an error in the plan.
#[wasm_bindgen]
pub fn simulate(plan: &str, seed: &str, scenario: &str) -> Result<String, String> {
    #[cfg(target_arch = "wasm32")]
    let recorded = run(plan, seed, scenario, &mut progress);
    #[cfg(not(target_arch = "wasm32"))]
    let recorded = run(plan, seed, scenario, &mut |_| {});
    recorded.map(|recorded| to_json(&recorded))
}

fn run(plan: &str, seed: &str, scenario: &str, progress: &mut dyn FnMut(f64)) -> Result<Recorded, String> {
    let plan = plan::read(plan, seed)?;
    let named = scenarios::find(scenario).filter(|one| (one.plan)(plan.seed) == plan);
    let expected = named.map_or_else(Expected::default, |one| (one.expected)(&plan));
    Ok(record(&plan, &expected, progress))
}

/// Cannot fail for these values: their keys are strings, and JSON can represent all their numbers.
fn to_json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
