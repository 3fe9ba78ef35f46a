//! A model beside the limiter: the law, counted naively ([`law`]), judges every decision of random worlds in both directions.
//!
//! - Too much: what is admitted fits the law; over a region, within the bound that its page states.
//! - Too little: what is denied is denied by the law, or is reserved at this moment.
//! - What clients see: `retry-after` and `remaining` follow from counts that are no older than stated.
//!
//! Each run takes fresh seeds and prints the first. `WEIR_MODEL_SEED` repeats a run; `WEIR_MODEL_WORLDS` sets the number of worlds.

mod law;
mod one_envoy;
mod plan;
mod region;
mod regions;

use std::hash::{BuildHasher, RandomState};
use std::println;

/// The seed of the running world, which is printed if that fails.
struct Seed<'a>(&'a str, u64);

impl Drop for Seed<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}: WEIR_MODEL_SEED={} fails", self.0, self.1);
        }
    }
}

/// Runs `world` for a number of seeds: `worlds`, or as many as the environment states. It returns the number of judged requests.
fn run_worlds(name: &str, worlds: u64, world: impl Fn(u64) -> u64) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let first = number("WEIR_MODEL_SEED").unwrap_or_else(|| RandomState::new().hash_one(0) >> 32);
    let worlds = number("WEIR_MODEL_WORLDS").unwrap_or(worlds);
    println!("{name}: {worlds} worlds from WEIR_MODEL_SEED={first}");
    let run = |seed| {
        let _printed = Seed(name, seed);
        world(seed)
    };
    let judged: u64 = (first..first + worlds).map(run).sum();
    println!("{name}: {judged} requests were judged");
    assert!(judged > 0);
}
