//! `just up`: runs a whole Weir on this machine until it is stopped. [`options`] has its options. The harness starts
//! the parts, on fixed ports.

mod options;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use rustix::process::{Signal, set_parent_process_death_signal};
use serde_json::Value;
use tempfile::TempDir;
use tokio::signal::unix::{self, SignalKind};
use tokio::time::interval;
use weir_envoy::{
    Aggregator, AggregatorOptions, EchoUpstream, Envoy, EnvoyOptions, Filter, Process, Route, Weir, binaries,
};

use crate::options::{AggregatorPlan, EnvoyPlan, Options};

const WATCH_INTERVAL: Duration = Duration::from_millis(200);
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
const STREAM_TIMEOUT: Duration = Duration::from_secs(10);

#[tokio::main]
async fn main() -> ExitCode {
    match run(&Options::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: &Options) -> Result<()> {
    // It ends with its parent process, even if that is killed.
    set_parent_process_death_signal(Some(Signal::TERM))?;
    let mut stop = StopSignals::new()?;
    let plugin_config = options.plugin_config()?;
    options.check_ports()?;
    options.check_stores(std::env::var("WEIR_REDIS_URL").ok().as_deref())?;
    // A signal while parts are starting drops, and so kills, those that have started.
    let mut running = tokio::select! {
        () = stop.recv() => return Ok(()),
        running = start(options, plugin_config) => running?,
    };
    print_ready(options, &running)?;
    tokio::select! {
        () = stop.recv() => running.stop().await,
        ended = running.watch() => ended,
    }
}

struct Running {
    // In the order in which they stop, so that no part waits for one that has ended.
    envoys: Vec<Envoy>,
    aggregators: Vec<Aggregator>,
    _upstream: EchoUpstream,
    /// The database that the regions share, unless one is named; it is removed with this value.
    _database: TempDir,
}

impl Running {
    fn processes(&mut self) -> impl Iterator<Item = &mut Process> {
        let aggregators = self.aggregators.iter_mut().map(Aggregator::process);
        self.envoys.iter_mut().map(Envoy::process).chain(aggregators)
    }

    /// Waits until a part ends, which is an error: none of them should. Warns meanwhile of each Envoy without a stream.
    async fn watch(&mut self) -> Result<()> {
        let mut watch = interval(WATCH_INTERVAL);
        let (began, mut disconnected) = (Instant::now(), self.envoys.len());
        loop {
            watch.tick().await;
            for process in self.processes() {
                if let Some(status) = process.ended()? {
                    bail!("{} ended by itself ({status}). {}", process.name(), process.tail());
                }
            }
            if disconnected > 0 {
                disconnected = self.disconnected(began.elapsed() >= STREAM_TIMEOUT).await;
            }
        }
    }

    /// How many Envoys are to be looked at again, as they have no stream yet: they apply their limits by themselves. None is after
    /// the warning.
    async fn disconnected(&self, warns: bool) -> usize {
        let mut disconnected = 0;
        for (number, envoy) in (1..).zip(&self.envoys) {
            let streams = envoy.stat("wasmcustom.weir_streams_connected").await.unwrap_or(0);
            if streams == 0 && warns {
                let log = envoy.folder().display();
                println!(
                    "\nwarning: Envoy {number} has no stream to its aggregator, so its limits are its own; see {log}"
                );
            }
            disconnected += usize::from(streams == 0 && !warns);
        }
        disconnected
    }

    async fn stop(mut self) -> Result<()> {
        println!("\nstopping");
        for process in self.processes() {
            process.terminate(STOP_TIMEOUT).await?;
        }
        println!("stopped");
        Ok(())
    }
}

async fn start(options: &Options, plugin_config: Value) -> Result<Running> {
    let filter = Filter::Weir(Weir::new(binaries::filter()?, plugin_config));
    println!("starting the upstream");
    let upstream = EchoUpstream::start(options.upstream_port).await?;
    let database = tempfile::Builder::new().prefix("weir-up-").tempdir()?;
    let mut aggregators = Vec::new();
    for (number, plan) in (1..).zip(options.aggregators()?) {
        println!("starting aggregator {number} of {}", options.regions * options.aggregators);
        let aggregator = Aggregator::start(aggregator_options(plan, database.path()));
        aggregators.push(aggregator.await.with_context(|| format!("aggregator {number} did not start"))?);
    }
    let mut envoys = Vec::new();
    for (number, plan) in (1..).zip(options.envoys()?) {
        println!("starting Envoy {number} of {}", options.regions * options.envoys);
        let envoy = Envoy::start(envoy_options(options, plan, filter.clone()));
        envoys.push(envoy.await.with_context(|| format!("Envoy {number} did not start"))?);
    }
    Ok(Running { envoys, aggregators, _upstream: upstream, _database: database })
}

/// What is named by WEIR_REDIS_URL and WEIR_DATABASE_URL reaches the aggregator by its environment.
fn aggregator_options(plan: AggregatorPlan, database: &Path) -> AggregatorOptions {
    let mut environment = vec![("WEIR_MIGRATE".to_owned(), "true".to_owned())];
    let named = std::env::var("WEIR_DATABASE_URL").is_ok_and(|url| !url.is_empty());
    if !named {
        let url = format!("sqlite://{}", database.join("weir.db").display());
        environment.push(("WEIR_DATABASE_URL".to_owned(), url));
    }
    AggregatorOptions {
        region: plan.region,
        grpc_port: plan.grpc,
        admin_port: plan.admin,
        http_port: plan.http,
        environment,
        ..AggregatorOptions::default()
    }
}

fn envoy_options(options: &Options, plan: EnvoyPlan, filter: Filter) -> EnvoyOptions {
    EnvoyOptions {
        concurrency: options.concurrency,
        host: plan.ports.listen.ip(),
        port: plan.ports.listen.port(),
        admin_port: plan.ports.admin,
        filter,
        route: Route::Upstream(options.upstream_port),
        aggregator_ports: plan.aggregators,
        access_log: true,
        ..EnvoyOptions::default()
    }
}

fn print_ready(options: &Options, running: &Running) -> Result<()> {
    println!("\nweir is ready\n");
    for (plan, envoy) in options.envoys()?.iter().zip(&running.envoys) {
        let (region, listen) = (&plan.region, plan.ports.listen);
        println!("  Envoy        http://{listen}  (admin http://{}, region {region})", envoy.admin_address());
        println!("               logs in {}", envoy.folder().display());
    }
    for (plan, aggregator) in options.aggregators()?.iter().zip(&running.aggregators) {
        let (region, grpc) = (&plan.region, plan.grpc);
        let admin = aggregator.admin_address();
        println!("  aggregator   page http://{admin}  (gRPC 127.0.0.1:{grpc}, region {region})");
        println!(
            "               HTTP http://{}  (for applications and live control)",
            aggregator.http_address()
        );
        println!("               logs in {}", aggregator.folder().display());
    }
    println!("  upstream     http://127.0.0.1:{}", options.upstream_port);
    print_trials(options);
    if options.regions > 1 {
        println!("\nRegions receive each other's use once all together may exceed a limit.");
    }
    println!("\nCtrl-C stops everything.");
    Ok(())
}

fn print_trials(options: &Options) {
    let address = options.listen;
    if options.config.is_some() {
        println!(
            "\nTry it with requests that your rules match. The upstream returns the request that it received, with the response headers"
        );
        println!("that `x-echo-header: name=value` names:\n");
        println!("  curl -i http://{address}/");
        return;
    }
    println!(
        "\nTry it: the first command shows one response, the second the status of 12 requests, the third raises bob's limit.\n"
    );
    println!("  curl -i -H 'x-api-key: alice' http://{address}/");
    println!(
        "  curl -s -o /dev/null -w '%{{http_code}}\\n' -H 'x-api-key: bob' 'http://{address}/?n=[1-12]'"
    );
    let program = binaries::aggregator().unwrap_or_else(|_| "weir-aggregator".into());
    let here = std::env::current_dir().unwrap_or_default();
    let aggregator = program.strip_prefix(here).unwrap_or(&program).display();
    let server = match options.http_port {
        7072 => String::new(),
        port => format!(" --api-url http://127.0.0.1:{port}"),
    };
    println!("  {aggregator} overrides set{server} --namespace per-key --identifier bob --limit 20");
}

/// Ctrl-C, a polite kill, and a closed terminal. One value for the whole run, so that none is missed.
struct StopSignals([unix::Signal; 3]);

impl StopSignals {
    fn new() -> Result<Self> {
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let [interrupt, terminate, hangup] = kinds.map(unix::signal);
        Ok(Self([interrupt?, terminate?, hangup?]))
    }

    async fn recv(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}
