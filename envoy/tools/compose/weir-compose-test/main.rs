//! Runs envoy/deploy/docker-compose.yml on a Docker engine, breaks each of its parts in turn, and checks that limits hold and that
//! nothing is lost or counted twice.
//!
//! Started by envoy/tools/compose/test.sh, which brings the images and takes everything down again.

mod checks;
mod compose;
mod region;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use checks::{KILL, PARTS, PAUSE, Regions};
use clap::Parser;
use compose::Compose;
use region::Region;
use tokio::try_join;

#[derive(Parser)]
struct Options {
    /// A Compose with its file and project, as a command line.
    #[arg(long, env = "WEIR_COMPOSE")]
    compose: String,
    /// The project's name.
    #[arg(long, env = "WEIR_COMPOSE_PROJECT")]
    project: String,
}

#[tokio::main]
async fn main() -> ExitCode {
    // The reason comes last, after what the parts have logged.
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<()> {
    let options = Options::parse();
    let mut compose = Compose::new(&options.compose, &options.project);
    let regions = Regions { eu: Region::plan("eu", &mut compose)?, us: Region::plan("us", &mut compose)? };
    let result = all(&compose, &regions).await;
    if result.is_err() {
        print_logs(&compose).await;
    }
    result
}

async fn all(compose: &Compose, regions: &Regions) -> Result<()> {
    let Regions { eu, us } = regions;
    timed("everything starts, in order", start(compose, regions)).await?;
    timed("limits hold in a region and across regions", checks::regions_share(regions)).await?;
    for part in PARTS {
        // In both regions at once, as they do not share what fails.
        let both = async {
            try_join!(
                checks::part_fails(compose, eu, part, PAUSE),
                checks::part_fails(compose, us, part, KILL)
            )
        };
        timed(&format!("{} is paused in eu, killed in us", part.service), both).await?;
        let both = async {
            try_join!(
                checks::part_fails(compose, us, part, PAUSE),
                checks::part_fails(compose, eu, part, KILL)
            )
        };
        timed(&format!("{} is paused in us, killed in eu", part.service), both).await?;
    }
    timed("the Envoys of eu are replaced one by one", checks::rolling_update(compose, eu)).await?;
    timed("eu is cut off", checks::region_cut_off(compose, regions)).await?;
    timed("mysql is paused", checks::database_fails(compose, regions, PAUSE)).await?;
    timed("mysql is killed", checks::database_fails(compose, regions, KILL)).await?;
    timed("nothing is lost, nothing is doubled", checks::counts_are_right(regions)).await
}

async fn start(compose: &Compose, regions: &Regions) -> Result<()> {
    compose.up().await?;
    try_join!(regions.eu.settled(&[0, 1]), regions.us.settled(&[0, 1]))?;
    for service in compose.services().await? {
        if !["migrate", "filter", "cleanup"].contains(&service.as_str()) {
            compose.healthy(&service).await?;
        }
    }
    Ok(())
}

/// Runs a check and prints how long it took.
async fn timed<T>(what: &str, check: impl Future<Output = Result<T>>) -> Result<()> {
    let started = Instant::now();
    check.await.with_context(|| format!("FAILED: {what}"))?;
    println!("ok {:5.1} s  {what}", started.elapsed().as_secs_f64());
    Ok(())
}

async fn print_logs(compose: &Compose) {
    for service in compose.services().await.unwrap_or_default() {
        let log = compose.log(&service).await.unwrap_or_else(|error| format!("{error:#}"));
        println!("== {service}\n{log}");
    }
}
