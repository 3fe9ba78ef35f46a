//! The built `weir-aggregator` as a part of a scenario: can be started, paused, killed and restarted on the same ports.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use tempfile::TempDir;

use crate::clients::http;
use crate::processes::process::Process;
use crate::processes::{binaries, ports};

const READY_TIMEOUT: Duration = Duration::from_secs(20);

/// Options of an aggregator. Ports of 0 are replaced by free ones.
#[derive(Clone, Debug)]
pub struct AggregatorOptions {
    pub region: String,
    pub grpc_port: u16,
    pub admin_port: u16,
    pub http_port: u16,
    pub token: Option<String>,
    pub arguments: Vec<String>,
    pub environment: Vec<(String, String)>,
}

impl Default for AggregatorOptions {
    fn default() -> Self {
        let region = "test".to_owned();
        Self {
            region,
            grpc_port: 0,
            admin_port: 0,
            http_port: 0,
            token: None,
            arguments: Vec::new(),
            environment: Vec::new(),
        }
    }
}

/// A running aggregator; it ends when this value is dropped.
pub struct Aggregator {
    options: AggregatorOptions,
    process: Process,
    folder: TempDir,
}

impl Aggregator {
    /// Starts it and waits until it is ready.
    pub async fn start(mut options: AggregatorOptions) -> Result<Self> {
        for port in [&mut options.grpc_port, &mut options.admin_port, &mut options.http_port] {
            if *port == 0 {
                *port = ports::free()?;
            }
        }
        let folder = tempfile::Builder::new().prefix("weir-aggregator-").tempdir()?;
        let process = spawn(&options, &folder)?;
        let mut aggregator = Self { options, process, folder };
        aggregator.wait_ready().await?;
        Ok(aggregator)
    }

    /// Kills it if it is running, and starts it again on the same ports.
    pub async fn restart(&mut self) -> Result<()> {
        self.process.kill()?;
        self.process = spawn(&self.options, &self.folder)?;
        self.wait_ready().await
    }

    pub async fn wait_ready(&mut self) -> Result<()> {
        let admin = self.admin_address();
        let ready = async || {
            http::send(admin, http::Request::get("/readyz"))
                .await
                .is_ok_and(|response| response.status == 200)
        };
        self.process.wait_for("GET /readyz answers 200", READY_TIMEOUT, ready).await
    }

    /// The process, to pause, kill or measure it.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// The folder of its log.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn grpc_port(&self) -> u16 {
        self.options.grpc_port
    }

    pub fn admin_address(&self) -> SocketAddr {
        ports::local(self.options.admin_port)
    }

    /// The address of the HTTP API.
    pub fn http_address(&self) -> SocketAddr {
        ports::local(self.options.http_port)
    }

    /// Sends a GET request to its admin server.
    pub async fn admin_get(&self, path: &str) -> Result<http::Response> {
        http::send(self.admin_address(), http::Request::get(path)).await
    }
}

fn spawn(options: &AggregatorOptions, folder: &TempDir) -> Result<Process> {
    let mut command = Command::new(binaries::aggregator()?);
    command
        .arg("serve")
        .args(["--region", &options.region])
        .args(["--grpc-listen", &ports::local(options.grpc_port).to_string()])
        .args(["--admin-listen", &ports::local(options.admin_port).to_string()])
        .args(["--http-listen", &ports::local(options.http_port).to_string()])
        // All listeners are on this machine, and the tests use live control without tokens.
        .args(["--insecure", "control"])
        .args(&options.arguments)
        .current_dir(folder.path())
        .envs(options.environment.iter().map(|(name, value)| (name, value)));
    if let Some(token) = &options.token {
        // Not an argument, because every user of the machine can read the arguments of a process.
        command.env("WEIR_FILTER_TOKEN", token);
    }
    Process::spawn("aggregator", command, folder.path())
}
