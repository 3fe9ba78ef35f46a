//! The simulator in a browser: what the page asks of it, as text.
//!
//! In reading order: what an operator pastes becomes rules, or errors ([`config`]); a link or the page's settings become a plan
//! ([`plan`]) that a tab can carry ([`bounds`]); the plan is run ([`simulate`]).
//!
//! Leaves to others: the page itself (`page/`), and all that is simulated (`weir_simulator`).

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
    /// The worker's: is told which part of a run is done, from 0 to 1.
    #[wasm_bindgen(js_name = weirProgress)]
    fn progress(part: f64);

    /// The worker's: is told what a panic says, before all ends. The page itself has none.
    #[wasm_bindgen(js_name = weirPanicked, catch)]
    fn panicked(says: &str) -> Result<(), wasm_bindgen::JsValue>;
}

#[cfg(target_arch = "wasm32")]
#[wasm_bindgen(start)]
fn start() {
    // Who cannot be told hears that it ended.
    std::panic::set_hook(Box::new(|panic| drop(panicked(&panic.to_string()))));
}

/// The rules of a pasted text, or what is wrong with it: [`config::Judged`] as JSON.
#[wasm_bindgen]
pub fn judge(text: &str) -> String {
    to_json(&config::judge(text))
}

/// All scenarios, as JSON: their names, and what they are about.
#[wasm_bindgen(js_name = listScenarios)]
pub fn list_scenarios() -> String {
    let all: Vec<_> =
        scenarios::all().map(|one| json!({"name": one.name, "says": one.says, "long": one.long})).collect();
    to_json(&all)
}

/// The plan of an address' fragment, as JSON, and its seed as text; or what is wrong with it.
#[wasm_bindgen(js_name = readLink)]
pub fn read_link(fragment: &str) -> Result<String, String> {
    let plan = link::read(fragment)?;
    bounds::check(&plan)?;
    Ok(json!({"plan": plan::for_page(&plan)?, "seed": plan.seed.to_string()}).to_string())
}

/// The fragment by which a plan is found again, or what is wrong with the plan.
#[wasm_bindgen(js_name = writeLink)]
pub fn write_link(plan: &str, seed: &str) -> Result<String, String> {
    plan::read(plan, seed).map(|plan| link::of_plan(&plan))
}

/// Runs a plan, which is held against what `scenario` may come to if it is that scenario's: [`Recorded`] as JSON, or what is wrong
/// with the plan.
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

/// What is written here has names for its keys and no numbers that JSON lacks.
fn to_json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
