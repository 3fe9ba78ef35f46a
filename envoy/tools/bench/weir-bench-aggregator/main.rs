//! `just bench-aggregator`: how many reports an aggregator merges, how soon it answers queries and pushes counts, and what many
//! regions cost their database, in interleaved rounds on one machine.
//!
//! Everything is real: `weir-aggregator` processes, a Redis, a MariaDB, and gRPC streams as filters open them, all started
//! here and ended with this program. [`ingest`], [`query`], [`decide`], [`push`], [`regions`], [`delay`], [`scan`], [`memory`]
//! and [`idle`] measure; [`stage`], [`api`] and [`peer`] are shared by them; [`tables`] and [`stats`] hold the results.

mod api;
mod case;
mod decide;
mod delay;
mod idle;
mod ingest;
#[path = "../median.rs"]
mod median;
mod memory;
mod peer;
mod push;
mod query;
mod regions;
#[path = "../results.rs"]
mod results;
mod scan;
mod stage;
mod stats;
mod tables;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;

use crate::case::{Case, Measurement};
use crate::regions::Effort;
use crate::tables::Tables;

/// Measure the aggregator.
#[derive(Parser)]
#[command(name = "just bench-aggregator")]
struct Options {
    /// Rounds; the tables show medians over them.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds of each measurement of streams.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Seconds of each measurement of regions, after as many as they need to settle; an interval comes every ten.
    #[arg(long, default_value_t = 40)]
    region_seconds: u64,
    /// Measure only these (comma-separated).
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Measurement>,
    /// One short round, with small sizes and a fast schedule: whether it works, not how fast.
    #[arg(long)]
    quick: bool,
    /// Write what is measured into this file of results (JSON), in place of what it holds of the same measurements.
    /// envoy/tools/bench/results.json is the one that pages are checked against.
    #[arg(long, value_name = "FILE", conflicts_with = "quick")]
    results: Option<PathBuf>,
    #[arg(long, hide = true)]
    scan_here: Option<usize>,
}

fn main() -> Result<()> {
    let mut options = Options::parse();
    if let Some(cells) = options.scan_here {
        return scan::measure_here(cells);
    }
    if options.quick {
        options = Options { rounds: 1, seconds: 1, region_seconds: 2, ..options };
    }
    run(&options)
}

#[tokio::main]
async fn run(options: &Options) -> Result<()> {
    let wanted = |case: &Case| options.only.is_empty() || options.only.contains(&case.measurement());
    let cases: Vec<_> = Case::all(options.quick).into_iter().filter(wanted).collect();
    let mut tables = Tables::default();
    let load_before = load_average();
    for round in 0..options.rounds {
        // Each round starts with another case, so that none always follows the same one.
        for place in 0..cases.len() {
            let case = cases[(place + round) % cases.len()];
            eprintln!(
                "round {} of {}: {}: {}",
                round + 1,
                options.rounds,
                case.measurement().title(),
                case.title()
            );
            let values = measure(case, options).await?;
            eprintln!("    {values:.2?}");
            tables.add(case, values);
        }
    }
    println!("{}\n{}", tables.markdown(), tables.noise());
    if let Some(file) = &options.results {
        results::write(file, &tables.results())?;
    }
    println!("Load average at the start: {}; at the end: {}", load_before, load_average());
    Ok(())
}

/// The figures of a case.
async fn measure(case: Case, options: &Options) -> Result<Vec<f64>> {
    let time = Duration::from_secs(options.seconds);
    match case {
        Case::Ingest(store, keys) => ingest::measure(store, keys, time).await,
        Case::Query(store, load) => query::measure(store, load, time).await,
        Case::Decide(crowd) => decide::measure(crowd, time).await,
        // The longest times are rare.
        Case::Push => push::measure(4 * time).await,
        Case::Regions { scale, aggregators } => {
            let time = Duration::from_secs(options.region_seconds);
            regions::measure(scale, aggregators, Effort { time, quick: options.quick }).await
        }
        Case::Delay => delay::measure(options.quick).await,
        Case::Scan(cells) => tokio::task::block_in_place(|| scan::measure(cells)),
        Case::Memory(users) => memory::measure(users, options.quick).await,
        Case::Idle(pause_ms) => idle::measure(Duration::from_millis(pause_ms), time, options.quick).await,
    }
}

/// How many others wanted to run on this machine: over one, five and fifteen minutes.
fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}
