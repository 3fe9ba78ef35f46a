//! `just bench-filter`: what a filter adds to a request.
//!
//! One Envoy for each variant runs all the time, and each gets a short slice of every round, one request at a time. A machine's speed
//! changes from second to second, so only measurements of the same round are compared. Half a microsecond is less than its noise, so
//! ten equal filters stand in the chain, and a tenth of what they add is reported. Code that runs ten times for a request stays in the
//! processor's caches, so the usual paths are also measured in a chain of one, as it is deployed. [`variants`] lists what is measured, [`client`]
//! sends the requests, [`report`] makes the table. [`peers`] compares with limiters that ask a service for each request.

mod client;
#[path = "../median.rs"]
mod median;
mod peers;
mod report;
#[path = "../results.rs"]
mod results;
mod variants;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Parser, ValueEnum};

use crate::client::Client;
use crate::peers::Peer;
use crate::report::{Sample, Samples};
use crate::variants::{Scene, Variant};

/// A few requests of a new key pass before the rest is denied.
const DENIED_SHARE_MIN: f64 = 0.95;

/// Measure what a filter adds to a request.
#[derive(Parser)]
#[command(name = "just bench-filter")]
struct Options {
    /// Rounds; the table shows medians over them.
    #[arg(long, default_value_t = 40)]
    rounds: usize,
    /// Milliseconds of each variant in a round.
    #[arg(long, default_value_t = 400)]
    slice: u64,
    /// Milliseconds of each variant before the first round, in which V8 compiles all code and keys are used once.
    #[arg(long, default_value_t = 2_000)]
    warm_up: u64,
    /// Measure only these (comma-separated).
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Variant>,
    /// Measure the native filter instead, beside the WASM filter and local_ratelimit.
    #[arg(long)]
    native: bool,
    /// Compare instead with Envoy's ratelimit filter and a rate-limit service: Weir's own, and these on this machine
    /// (NAME=PORT, or NAME=PORT/PID to measure its processor time too; comma-separated). Each needs a high limit of the domain
    /// "bench" with the descriptor "x-api-key".
    #[arg(long, value_name = "SERVICE", num_args = 0.., value_delimiter = ',')]
    peers: Option<Vec<Peer>>,
    /// Write the table into this file of results (JSON), in place of the one that it holds.
    /// envoy/tools/bench/results.json is the one that pages are checked against.
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = Options::parse();
    if let Some(peers) = &options.peers {
        let table = peers::compare(peers, options.rounds).await?;
        println!("{}", table.markdown());
        return options
            .results
            .iter()
            .try_for_each(|file| results::write(file, std::slice::from_ref(&table)));
    }
    let chosen = chosen(&options);
    let mut scenes = Vec::new();
    for variant in &chosen {
        let scene = Scene::start(variant.measure()).await?;
        let mut client = Client::connect(scene.envoy.address(), scene.measure.requests())?;
        client.run(Duration::from_millis(options.warm_up))?;
        scenes.push((*variant, scene, client));
    }
    let mut samples = Samples::new();
    for round in 0..options.rounds {
        // Each round starts with another variant, so that none always follows the same one.
        for index in 0..scenes.len() {
            let at = (index + round) % scenes.len();
            let (variant, scene, client) = &mut scenes[at];
            let sample = measure(scene, client, Duration::from_millis(options.slice))?;
            samples.entry(*variant).or_default().push(sample);
        }
        eprintln!("round {} of {}", round + 1, options.rounds);
    }
    let table = if options.native { report::native_table(&samples) } else { report::table(&samples) };
    println!("{}", table.markdown());
    options.results.iter().try_for_each(|file| results::write(file, std::slice::from_ref(&table)))
}

fn chosen(options: &Options) -> Vec<Variant> {
    match (options.native, options.only.is_empty()) {
        (true, _) => {
            let without = [Variant::None, Variant::Local, Variant::LocalAlone];
            let pairs = Variant::NATIVE.into_iter().flat_map(|(wasm, native)| [wasm, native]);
            without.into_iter().chain(pairs).collect()
        }
        (false, true) => {
            Variant::value_variants().iter().copied().filter(|variant| !variant.is_native()).collect()
        }
        (false, false) => options.only.clone(),
    }
}

fn measure(scene: &mut Scene, client: &mut Client, slice: Duration) -> Result<Sample> {
    let before = scene.envoy.process().threads_cpu_time()?;
    let run = client.run(slice)?;
    let cpu = scene.envoy.process().threads_cpu_time()?.saturating_sub(before);
    let (title, denied) = (scene.measure.title, run.denied as f64 / run.requests as f64);
    let expected = if scene.measure.denies { denied > DENIED_SHARE_MIN } else { run.denied == 0 };
    ensure!(expected, "{title}: {:.1} % were denied", denied * 100.0);
    Ok(Sample { run, cpu_us: cpu.as_secs_f64() * 1e6 / run.requests as f64 })
}
