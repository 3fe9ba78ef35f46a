//! `just bench-aggregator`: how many reports an aggregator merges, how soon it answers queries and pushes counts, and what many
//! regions cost their database, in interleaved rounds on one machine.
//!
//! Everything is real: `weir-aggregator` processes, a Redis, a MariaDB, and gRPC streams as filters open them, all started
//! here and ended with this program. [`ingest`], [`consult`], [`decide`], [`push`], [`regions`], [`delay`], [`scan`] and [`memory`]
//! measure; [`stage`], [`api`] and [`peer`] are shared by them; [`tables`] and [`stats`] hold the results.

mod api;
mod consult;
mod decide;
mod delay;
mod ingest;
#[path = "../median.rs"]
mod median;
mod memory;
mod peer;
mod push;
mod regions;
mod scan;
mod stage;
mod stats;
mod tables;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};

use crate::consult::Load;
use crate::decide::Crowd;
use crate::ingest::Keys;
use crate::memory::Users;
use crate::regions::Effort;
use crate::stage::Store;
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

/// One table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Measurement {
    /// Reports merged.
    Ingest,
    /// Queries answered.
    Consult,
    /// Decisions of the aggregator: exact limits, applications, Envoy's rate-limit filter.
    Decide,
    /// From a report at one aggregator to the push at another.
    Push,
    /// Ten regions on one database.
    Regions,
    /// From a report in one region to the push in another.
    Delay,
    /// The core's search for cells that are due, and the memory of a cell.
    Scan,
    /// The memory of a key.
    Memory,
}

/// One row of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Case {
    Ingest(Store, Keys),
    Consult(Store, Load),
    Decide(Crowd),
    Push,
    /// By how much there is more than the present load, and the number of aggregators.
    Regions(usize, usize),
    Delay,
    /// Cells.
    Scan(usize),
    Memory(Users),
}

impl Measurement {
    fn title(self) -> &'static str {
        match self {
            Self::Ingest => "Reports of 256 counts, 4 streams",
            Self::Consult => "Consults, 5 000 a second in an open loop, 8 streams",
            Self::Decide => "Decisions, each client sends a request when it has the last response",
            Self::Push => "From a report at one aggregator to the push at another",
            Self::Regions => "Ten regions on one MariaDB",
            Self::Delay => "From a report in one region to the push in another",
            Self::Scan => "Everything due for other regions is taken; memory",
            Self::Memory => "Memory of an aggregator",
        }
    }

    fn columns(self) -> &'static [&'static str] {
        match self {
            Self::Ingest => &ingest::COLUMNS,
            Self::Consult => &consult::COLUMNS,
            Self::Decide => &decide::COLUMNS,
            Self::Push => &push::COLUMNS,
            Self::Regions => &regions::COLUMNS,
            Self::Delay => &delay::COLUMNS,
            Self::Scan => &scan::COLUMNS,
            Self::Memory => &memory::COLUMNS,
        }
    }
}

impl Case {
    fn all(quick: bool) -> Vec<Case> {
        let mut cases = vec![
            Case::Ingest(Store::Memory, Keys::Own),
            Case::Ingest(Store::Memory, Keys::Shared),
            Case::Ingest(Store::Redis, Keys::Own),
            Case::Consult(Store::Memory, Load::Many),
            Case::Consult(Store::Memory, Load::One),
            Case::Consult(Store::Redis, Load::Many),
            Case::Consult(Store::Redis, Load::One),
            Case::Consult(Store::Redis, Load::BesideReports),
        ];
        cases.extend(Crowd::all().map(Case::Decide));
        cases.extend([Case::Push, Case::Regions(1, regions::REGIONS)]);
        if !quick {
            cases.extend([Case::Regions(10, regions::REGIONS), Case::Regions(1, regions::INSTANCES)]);
        }
        cases.extend([Case::Delay, Case::Scan(240_000)]);
        cases.extend((!quick).then_some(Case::Scan(5_000_000)));
        cases.extend([Users::Envoys, Users::Application].map(Case::Memory));
        cases
    }

    fn measurement(self) -> Measurement {
        match self {
            Case::Ingest(..) => Measurement::Ingest,
            Case::Consult(..) => Measurement::Consult,
            Case::Decide(_) => Measurement::Decide,
            Case::Push => Measurement::Push,
            Case::Regions(..) => Measurement::Regions,
            Case::Delay => Measurement::Delay,
            Case::Scan(_) => Measurement::Scan,
            Case::Memory(_) => Measurement::Memory,
        }
    }

    fn title(self) -> String {
        let store = |store| match store {
            Store::Memory => "memory",
            Store::Redis => "Redis",
        };
        match self {
            Case::Ingest(place, Keys::Own) => format!("{}, own keys", store(place)),
            Case::Ingest(place, Keys::Shared) => {
                format!("{}, shared keys, all are pushed to", store(place))
            }
            Case::Consult(place, Load::Many) => format!("{}, many keys", store(place)),
            Case::Consult(place, Load::One) => format!("{}, one key", store(place)),
            Case::Consult(place, Load::BesideReports) => {
                format!("{}, many keys, beside reports without pause", store(place))
            }
            Case::Decide(crowd) => crowd.title(),
            Case::Push => "two aggregators, one Redis".to_owned(),
            Case::Regions(scale, aggregators) => {
                format!("{} windows, {aggregators} aggregators", scale * regions::WINDOWS)
            }
            Case::Delay => "two regions, 50 ms from their MariaDB".to_owned(),
            Case::Scan(cells) => format!("{cells} cells"),
            Case::Memory(Users::Envoys) => "keys that Envoys use".to_owned(),
            Case::Memory(Users::Application) => "keys that an application uses by the HTTP API".to_owned(),
        }
    }

    async fn measure(self, options: &Options) -> Result<Vec<f64>> {
        let time = Duration::from_secs(options.seconds);
        match self {
            Case::Ingest(store, keys) => ingest::measure(store, keys, time).await,
            Case::Consult(store, load) => consult::measure(store, load, time).await,
            Case::Decide(crowd) => decide::measure(crowd, time).await,
            // The longest times are rare.
            Case::Push => push::measure(4 * time).await,
            Case::Regions(scale, aggregators) => {
                let time = Duration::from_secs(options.region_seconds);
                regions::measure(scale, aggregators, Effort { time, quick: options.quick }).await
            }
            Case::Delay => delay::measure(options.quick).await,
            Case::Scan(cells) => tokio::task::block_in_place(|| scan::measure(cells)),
            Case::Memory(users) => memory::measure(users, options.quick).await,
        }
    }
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
            let values = case.measure(options).await?;
            eprintln!("    {values:.2?}");
            tables.add(case, values);
        }
    }
    println!("{}\n{}", tables.markdown(), tables.noise());
    if let Some(file) = &options.results {
        let before = if file.exists() { std::fs::read_to_string(file)? } else { "{}".to_owned() };
        let results = tables.results(&before).with_context(|| format!("writing {}", file.display()))?;
        std::fs::write(file, results)?;
    }
    println!("Load average at the start: {}; at the end: {}", load_before, load_average());
    Ok(())
}

/// How many others wanted to run on this machine: over one, five and fifteen minutes.
fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}
