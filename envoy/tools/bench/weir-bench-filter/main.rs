//! `just bench-filter`: what a filter adds to a request, in interleaved rounds on one machine.
//!
//! Each measurement has a fresh Envoy with one worker and a direct response, and wrk on another core. [`variants`]
//! says what is measured, [`wrk`] drives it, [`report`] makes the table.

#[path = "../median.rs"]
mod median;
mod report;
mod variants;
mod wrk;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use clap::{Parser, ValueEnum};
use weir_envoy::Envoy;

use crate::report::{Sample, Samples};
use crate::variants::{Scene, Variant};
use crate::wrk::Wrk;

/// More than a request for every 12 µs does not fit through one worker.
const REQUESTS_PER_SECOND_MAX: u64 = 80_000;
/// Of all variants' rules.
const WINDOW_S: u64 = 60;
/// A few requests of a new key pass before the rest is denied.
const DENIED_SHARE_MIN: f64 = 0.95;

/// Measure what a filter adds to a request.
#[derive(Parser)]
#[command(name = "just bench-filter")]
struct Options {
    /// Rounds; the table shows medians over them.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Seconds of each measurement, after as many as `--warm-up` says.
    #[arg(long, default_value_t = 4)]
    seconds: u32,
    /// Seconds before each measurement: all code is compiled and every identifier has been seen.
    #[arg(long, default_value_t = 3)]
    warm_up: u32,
    /// Connections of wrk.
    #[arg(long, default_value_t = 32)]
    connections: u32,
    /// Measure only these (comma-separated).
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Variant>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = Options::parse();
    let chosen = if options.only.is_empty() { Variant::value_variants() } else { &options.only[..] };
    let mut samples = Samples::new();
    for round in 0..options.rounds {
        // Each round starts with another variant: none always follows the same one's heat.
        for index in 0..chosen.len() {
            let variant = chosen[(index + round) % chosen.len()];
            let sample = measure(variant, &options).await?;
            eprintln!(
                "round {} of {}: {:24} {:6.0} requests/s {:6.2} µs",
                round + 1,
                options.rounds,
                variant.title(),
                sample.run.per_second,
                sample.cpu_us
            );
            samples.entry(variant).or_default().push(sample);
        }
    }
    println!("{}", report::markdown(&samples)?);
    Ok(())
}

/// Waits where a window would end in the measurement: then each identifier passes once more.
async fn keep_clear_of_rollover(options: &Options) -> Result<()> {
    #[expect(clippy::disallowed_methods, reason = "the one place where this program reads it")]
    let now = SystemTime::now();
    let left = WINDOW_S - now.duration_since(UNIX_EPOCH)?.as_secs() % WINDOW_S;
    if left <= u64::from(options.warm_up + options.seconds) + 1 {
        tokio::time::sleep(Duration::from_secs(left)).await;
    }
    Ok(())
}

async fn measure(variant: Variant, options: &Options) -> Result<Sample> {
    let mut scene = Scene::start(variant).await?;
    let requests_max = REQUESTS_PER_SECOND_MAX * u64::from(options.seconds + options.warm_up);
    let folder = tempfile::tempdir()?;
    let wrk = Wrk::new(folder.path(), variant.identifiers(requests_max), options.connections)?;
    let envoy: &mut Envoy = &mut scene.envoy;
    let target = envoy.address();

    if variant.denies() {
        keep_clear_of_rollover(options).await?;
    }
    tokio::task::block_in_place(|| wrk.run(target, options.warm_up))?;
    let before = envoy.process().cpu_time()?;
    let run = tokio::task::block_in_place(|| wrk.run(target, options.seconds))?;
    let cpu = envoy.process().cpu_time()? - before;

    let denied = run.refused as f64 / run.requests as f64;
    ensure!(
        variant.denies() || run.refused == 0,
        "{}: {:.1} % were refused",
        variant.title(),
        denied * 100.0
    );
    ensure!(
        !variant.denies() || denied > DENIED_SHARE_MIN,
        "{}: {:.1} % were refused",
        variant.title(),
        denied * 100.0
    );
    Ok(Sample { run, cpu_us: cpu.as_secs_f64() * 1e6 / run.requests as f64 })
}
