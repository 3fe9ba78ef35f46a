//! A real Envoy as a part of a scenario: can be started, queried, reloaded and measured. [`crate::bootstrap`] writes
//! its configuration.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::clients::http::{self, Protocol};
use crate::processes::process::Process;
use crate::processes::{binaries, ports, wait};
use crate::servers::bootstrap::{self, EnvoyOptions, Filter};

const READY_TIMEOUT: Duration = Duration::from_secs(30);
const RELOAD_TIMEOUT: Duration = Duration::from_secs(20);

/// A running Envoy; it ends when this value is dropped.
pub struct Envoy {
    options: EnvoyOptions,
    process: Process,
    listener_version: u64,
    // Declared last, because Envoy must have ended before its folder is removed.
    folder: TempDir,
}

/// The result of a new listener configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    Accepted,
    /// The previous configuration stays in force. Envoy's log has the reason.
    Rejected,
}

impl Envoy {
    /// Starts it and waits until it is ready.
    pub async fn start(options: EnvoyOptions) -> Result<Self> {
        let mut envoy = Self::spawn(options)?;
        envoy.wait_ready().await?;
        Ok(envoy)
    }

    /// Starts it without waiting, for scenarios in which it never becomes ready.
    pub fn spawn(mut options: EnvoyOptions) -> Result<Self> {
        choose_ports(&mut options)?;
        let folder = folder()?;
        write_files(&options, folder.path())?;
        let process =
            Process::spawn(&process_name(&options), command(&options, folder.path())?, folder.path())?;
        Ok(Self { options, process, listener_version: 1, folder })
    }

    /// Kills it if it is running, and starts a new process with the same options and ports.
    pub async fn restart(&mut self) -> Result<()> {
        self.process.kill()?;
        let command = command(&self.options, self.folder.path())?;
        self.process = Process::spawn(&process_name(&self.options), command, self.folder.path())?;
        self.wait_ready().await
    }

    /// Waits until the listener accepts connections and every worker serves.
    pub async fn wait_ready(&mut self) -> Result<()> {
        let (admin, listener) = (self.admin_address(), self.address());
        let ready = async || {
            let live = http::send(admin, http::Request::get("/ready"))
                .await
                .is_ok_and(|answer| answer.status == 200);
            live && TcpStream::connect(listener).await.is_ok()
        };
        self.process.wait_for("it is ready", READY_TIMEOUT, ready).await
    }

    /// Checks the configuration with Envoy's own validation, without serving. The error contains Envoy's message.
    pub fn validate(mut options: EnvoyOptions) -> Result<()> {
        choose_ports(&mut options)?;
        let folder = folder()?;
        write_files(&options, folder.path())?;
        validate_file(&folder.path().join("envoy.json"))
    }

    /// Replaces the listener's filter while Envoy serves; returns whether Envoy accepted it.
    pub async fn reload(&mut self, filter: Filter) -> Result<Reload> {
        ensure!(self.options.reloadable, "this Envoy was not started with `reloadable`");
        let options = EnvoyOptions { filter, ..self.options.clone() };
        let before = self.reload_counters().await?;
        self.listener_version += 1;
        write_listener(&options, self.folder.path(), self.listener_version)?;
        let this = &*self;
        let outcome = wait::until_some("Envoy reads the listener", RELOAD_TIMEOUT, async || {
            let now = this.reload_counters().await?;
            let rejected = (now.rejected > before.rejected).then_some(Reload::Rejected);
            Ok(rejected
                .or_else(|| (now.accepted > before.accepted && now.warming == 0).then_some(Reload::Accepted)))
        })
        .await
        .with_context(|| self.process.tail())?;
        if outcome == Reload::Accepted {
            self.options = options;
        }
        Ok(outcome)
    }

    /// Sends one request through the listener, on a new connection.
    pub async fn send(&self, request: http::Request) -> Result<http::Response> {
        http::send(self.address(), request).await
    }

    /// Sends a request with HTTP/1.1 or HTTP/2.
    pub async fn send_by(&self, protocol: Protocol, request: http::Request) -> Result<http::Response> {
        http::send_by(protocol, self.address(), request).await
    }

    /// Sends a GET request with headers.
    pub async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Result<http::Response> {
        let request = headers
            .iter()
            .fold(http::Request::get(path), |request, (name, value)| request.header(name, value));
        self.send(request).await
    }

    /// Sends a GET request to its admin server.
    pub async fn admin_get(&self, path: &str) -> Result<http::Response> {
        http::send(self.admin_address(), http::Request::get(path)).await
    }

    /// Its counters and gauges, without histograms.
    pub async fn stats(&self) -> Result<BTreeMap<String, u64>> {
        let text = self.admin_get("/stats").await?.text();
        let numbers = text.lines().filter_map(|line| {
            let (name, value) = line.rsplit_once(": ")?;
            Some((name.to_owned(), value.parse().ok()?))
        });
        Ok(numbers.collect())
    }

    /// One counter or gauge; 0 if it does not exist.
    pub async fn stat(&self, name: &str) -> Result<u64> {
        Ok(self.stats().await?.get(name).copied().unwrap_or(0))
    }

    /// Waits until `accept` accepts a counter or gauge, and returns its value.
    pub async fn wait_stat(
        &self,
        name: &str,
        timeout: Duration,
        accept: impl Fn(u64) -> bool,
    ) -> Result<u64> {
        let waited = wait::until_some(name, timeout, async || {
            let value = self.stat(name).await?;
            Ok(accept(value).then_some(value))
        });
        waited.await.with_context(|| self.process.tail())
    }

    /// The statistics of its allocator (`allocated`, `heap_size`, …), in bytes.
    pub async fn memory(&self) -> Result<BTreeMap<String, u64>> {
        let answer = self.admin_get("/memory").await?.json()?;
        let fields = answer.as_object().context("no object from /memory")?.iter();
        Ok(fields.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.parse().ok()?))).collect())
    }

    pub async fn config_dump(&self) -> Result<Value> {
        self.admin_get("/config_dump").await?.json()
    }

    /// The lines of the access log so far. Envoy writes them about once a second.
    pub fn access_log(&self) -> Result<Vec<Value>> {
        let text = std::fs::read_to_string(self.folder.path().join("access.log"))
            .context("reading the access log")?;
        // The last line may be incomplete.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
    }

    /// Envoy's whole log.
    pub fn log(&self) -> Result<String> {
        Ok(String::from_utf8_lossy(&std::fs::read(self.process.log())?).into_owned())
    }

    /// The listener's address as seen from this machine.
    pub fn address(&self) -> SocketAddr {
        let host = self.options.host;
        if host.is_unspecified() {
            ports::local(self.options.port)
        } else {
            SocketAddr::new(host, self.options.port)
        }
    }

    pub fn admin_address(&self) -> SocketAddr {
        ports::local(self.options.admin_port)
    }

    /// The process, to pause, kill or measure it.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// The folder of its configuration and logs.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    async fn reload_counters(&self) -> Result<ReloadCounters> {
        let stats = self.stats().await?;
        let stat = |name: &str| stats.get(&format!("listener_manager.{name}")).copied().unwrap_or(0);
        Ok(ReloadCounters {
            accepted: stat("lds.update_success"),
            rejected: stat("lds.update_rejected"),
            warming: stat("total_listeners_warming"),
        })
    }
}

/// Checks a configuration file with Envoy's own validation. The error contains Envoy's message.
pub fn validate_file(file: &Path) -> Result<()> {
    let output = Command::new(binaries::envoy()?).args(["--mode", "validate", "-c"]).arg(file).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

struct ReloadCounters {
    accepted: u64,
    rejected: u64,
    warming: u64,
}

fn choose_ports(options: &mut EnvoyOptions) -> Result<()> {
    for port in [&mut options.port, &mut options.admin_port] {
        if *port == 0 {
            *port = ports::free()?;
        }
    }
    Ok(())
}

fn folder() -> Result<TempDir> {
    Ok(tempfile::Builder::new().prefix("weir-envoy-").tempdir()?)
}

fn write_files(options: &EnvoyOptions, folder: &Path) -> Result<()> {
    if options.reloadable {
        write_listener(options, folder, 1)?;
    }
    std::fs::write(folder.join("envoy.json"), bootstrap::bootstrap(options, folder).to_string())?;
    Ok(())
}

/// Replaces the file by a rename: Envoy watches for renames, and never reads a partial file.
fn write_listener(options: &EnvoyOptions, folder: &Path, version: u64) -> Result<()> {
    let file = bootstrap::listener_file(folder);
    let partial = file.with_extension("partial");
    std::fs::write(&partial, bootstrap::discovery_response(options, folder, version).to_string())?;
    std::fs::rename(&partial, &file)?;
    Ok(())
}

fn command(options: &EnvoyOptions, folder: &Path) -> Result<Command> {
    let mut command = Command::new(binaries::envoy()?);
    command
        .arg("-c")
        .arg(folder.join("envoy.json"))
        .args(["--concurrency", &options.concurrency.to_string()])
        .args(["--log-level", &options.log_level])
        // Several Envoys run on one machine, and none of them replaces another.
        .arg("--disable-hot-restart")
        .args(["--drain-time-s", &options.drain_s.to_string()])
        .args(["--parent-shutdown-time-s", &options.drain_s.saturating_add(1).to_string()])
        .current_dir(folder)
        .envs(options.environment.iter().map(|(name, value)| (name, value)));
    Ok(command)
}

/// The name contains the port, so that messages distinguish several Envoys.
fn process_name(options: &EnvoyOptions) -> String {
    format!("envoy-{}", options.port)
}
