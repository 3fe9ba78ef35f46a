//! `just up`: runs a whole Weir on this machine until it is stopped. What it can be told is in [`options`]; what it
//! starts is the harness's, with ports that a user can remember.

mod options;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use tokio::signal::unix::{self, SignalKind};
use tokio::time::interval;
use weir_envoy::{
    Aggregator, AggregatorOptions, EchoUpstream, Envoy, EnvoyOptions, Filter, Process, Route, Weir, binaries,
};

use crate::options::{EnvoyPorts, Options};

const WATCH_INTERVAL: Duration = Duration::from_millis(200);
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

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
    // It ends with whatever started it, even when that is killed.
    set_pdeathsig(Signal::SIGTERM)?;
    let mut stop = StopSignals::new()?;
    options.check_ports()?;
    // A signal while parts are starting drops, and so kills, those that have started.
    let mut running = tokio::select! {
        () = stop.recv() => return Ok(()),
        running = start(options) => running?,
    };
    print_ready(options, &running)?;
    tokio::select! {
        () = stop.recv() => running.stop().await,
        ended = running.watch() => ended,
    }
}

struct Running {
    // In the order in which they stop: nobody waits for a part that is gone.
    envoys: Vec<Envoy>,
    aggregator: Aggregator,
    _upstream: EchoUpstream,
}

impl Running {
    fn processes(&mut self) -> impl Iterator<Item = &mut Process> {
        self.envoys.iter_mut().map(Envoy::process).chain([self.aggregator.process()])
    }

    /// Waits until a part ends, which is an error: none of them should.
    async fn watch(&mut self) -> Result<()> {
        let mut watch = interval(WATCH_INTERVAL);
        loop {
            watch.tick().await;
            for process in self.processes() {
                if let Some(status) = process.ended()? {
                    bail!("{} ended by itself ({status}). {}", process.name(), process.tail());
                }
            }
        }
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

async fn start(options: &Options) -> Result<Running> {
    let plugin_config = options.plugin_config()?;
    let filter = Filter::Weir(Weir::new(binaries::filter()?, plugin_config));
    println!("starting the upstream");
    let upstream = EchoUpstream::start(options.upstream_port).await?;
    println!("starting the aggregator");
    let aggregator = Aggregator::start(AggregatorOptions {
        region: "local".to_owned(),
        grpc_port: options.grpc_port,
        admin_port: options.aggregator_admin_port,
        ..AggregatorOptions::default()
    });
    let aggregator = aggregator.await.context("the aggregator did not start")?;
    let mut envoys = Vec::new();
    for (number, ports) in (1..).zip(options.envoy_ports()?) {
        println!("starting Envoy {number} of {}", options.envoys);
        let envoy = Envoy::start(envoy_options(options, ports, filter.clone()));
        envoys.push(envoy.await.with_context(|| format!("Envoy {number} did not start"))?);
    }
    Ok(Running { envoys, aggregator, _upstream: upstream })
}

fn envoy_options(options: &Options, ports: EnvoyPorts, filter: Filter) -> EnvoyOptions {
    EnvoyOptions {
        concurrency: options.concurrency,
        host: ports.listen.ip(),
        port: ports.listen.port(),
        admin_port: ports.admin,
        filter,
        route: Route::Upstream(options.upstream_port),
        aggregator_ports: vec![options.grpc_port],
        access_log: true,
        ..EnvoyOptions::default()
    }
}

fn print_ready(options: &Options, running: &Running) -> Result<()> {
    println!("\nweir is ready\n");
    for (ports, envoy) in options.envoy_ports()?.iter().zip(&running.envoys) {
        println!("  Envoy        http://{}  (admin http://{})", ports.listen, envoy.admin_address());
        println!("               logs in {}", envoy.folder().display());
    }
    let aggregator = &running.aggregator;
    println!(
        "  aggregator   gRPC 127.0.0.1:{}  (admin http://{})",
        options.grpc_port,
        aggregator.admin_address()
    );
    println!("               logs in {}", aggregator.folder().display());
    println!("  upstream     http://127.0.0.1:{}", options.upstream_port);
    let address = options.listen;
    println!("\nTry it: the first shows one answer, the second what a caller is told who asks 12 times.\n");
    println!("  curl -i -H 'x-api-key: alice' http://{address}/");
    println!(
        "  curl -s -o /dev/null -w '%{{http_code}}\\n' -H 'x-api-key: bob' 'http://{address}/?n=[1-12]'"
    );
    println!("\nCtrl-C stops everything.");
    Ok(())
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
