//! Real Redis servers as parts of a scenario: private, on free ports, without persistence. They can be paused, killed,
//! and restarted empty; several of them can form a cluster.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::processes::process::Process;
use crate::processes::{ports, wait};

const READY_TIMEOUT: Duration = Duration::from_secs(20);
const SLOTS: usize = 16_384;

/// Options of a server. A port of 0 is replaced by a free one.
#[derive(Clone, Debug, Default)]
pub struct RedisOptions {
    pub port: u16,
    /// Further options, each `--name` followed by its values.
    pub arguments: Vec<String>,
}

/// A running server; it ends when this value is dropped.
pub struct Redis {
    options: RedisOptions,
    process: Process,
    folder: TempDir,
}

impl Redis {
    /// Starts it and waits until it is ready.
    pub async fn start(mut options: RedisOptions) -> Result<Self> {
        if options.port == 0 {
            options.port = ports::free()?;
        }
        let folder = tempfile::Builder::new().prefix("weir-redis-").tempdir()?;
        let process = spawn(&options, &folder)?;
        let mut redis = Self { options, process, folder };
        redis.wait_ready().await?;
        Ok(redis)
    }

    /// Kills it if it is running, and starts it again, empty, on the same port.
    pub async fn restart(&mut self) -> Result<()> {
        self.process.kill()?;
        self.process = spawn(&self.options, &self.folder)?;
        self.wait_ready().await
    }

    /// Kills it if it is running, and starts it again with further arguments, on the same port and with the data that it has saved.
    /// Returns before it is ready.
    pub fn restart_with(&mut self, arguments: &[&str]) -> Result<()> {
        self.process.kill()?;
        let mut options = self.options.clone();
        options.arguments.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        self.process = spawn(&options, &self.folder)?;
        Ok(())
    }

    /// The process, to pause, kill or measure it.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn port(&self) -> u16 {
        self.options.port
    }

    pub fn address(&self) -> SocketAddr {
        ports::local(self.port())
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// Sends one command as the default user and returns the text of the reply. The words of the command must not
    /// contain spaces.
    pub async fn command(&self, command: &str) -> Result<String> {
        let mut stream = TcpStream::connect(self.address()).await?;
        stream.write_all(format!("{command}\r\nQUIT\r\n").as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    async fn wait_ready(&mut self) -> Result<()> {
        let address = self.address();
        let answers = async || {
            let Ok(mut stream) = TcpStream::connect(address).await else { return false };
            let mut answer = [0; 5];
            stream.write_all(b"PING\r\n").await.is_ok()
                && stream.read_exact(&mut answer).await.is_ok()
                && (answer.starts_with(b"+PONG") || answer.starts_with(b"-NOAU"))
        };
        self.process.wait_for("PING is answered", READY_TIMEOUT, answers).await
    }
}

/// A Redis Cluster of masters without replicas; it ends when this value is dropped.
pub struct RedisCluster {
    nodes: Vec<Redis>,
}

impl RedisCluster {
    /// Starts `count` nodes, assigns each an equal share of the slots, and waits until every node has the whole
    /// topology.
    pub async fn start(count: usize) -> Result<Self> {
        let mut nodes = Vec::new();
        let mut bus_ports = Vec::new();
        for _ in 0..count {
            let bus_port = ports::free()?.to_string();
            let arguments = [
                ["--cluster-enabled", "yes"],
                ["--cluster-port", &bus_port],
                // Longer than a busy machine delays a node, so that no node is marked as failed.
                ["--cluster-node-timeout", "30000"],
                // If a node is unavailable, the others continue to serve their slots.
                ["--cluster-require-full-coverage", "no"],
            ];
            let arguments = arguments.concat().into_iter().map(str::to_owned).collect();
            nodes.push(Redis::start(RedisOptions { port: 0, arguments }).await?);
            bus_ports.push(bus_port);
        }
        let cluster = Self { nodes };
        cluster.join(&bus_ports).await?;
        Ok(cluster)
    }

    pub fn nodes(&mut self) -> &mut [Redis] {
        &mut self.nodes
    }

    /// The URL of the first node; clients discover the others.
    pub fn url(&self) -> String {
        self.nodes.first().map(Redis::url).unwrap_or_default()
    }

    async fn join(&self, bus_ports: &[String]) -> Result<()> {
        let count = self.nodes.len();
        for (place, node) in self.nodes.iter().enumerate() {
            let (first, last) = (SLOTS * place / count, SLOTS * (place + 1) / count - 1);
            let given = node.command(&format!("CLUSTER ADDSLOTSRANGE {first} {last}")).await?;
            ensure!(given.starts_with("+OK"), "CLUSTER ADDSLOTSRANGE: {given}");
            node.command(&format!("CLUSTER SET-CONFIG-EPOCH {}", place + 1)).await?;
            for (other, bus_port) in self.nodes.iter().zip(bus_ports).take(place) {
                node.command(&format!("CLUSTER MEET 127.0.0.1 {} {bus_port}", other.port())).await?;
            }
        }
        for node in &self.nodes {
            wait::until("every node has the cluster's slots", READY_TIMEOUT, async || {
                let (info, slots) = (node.command("CLUSTER INFO").await, node.command("CLUSTER SLOTS").await);
                info.is_ok_and(|info| {
                    info.contains("cluster_state:ok") && info.contains("slots_assigned:16384")
                }) && slots.is_ok_and(|slots| slots.starts_with(&format!("*{count}\r\n")))
            })
            .await?;
        }
        Ok(())
    }
}

fn spawn(options: &RedisOptions, folder: &TempDir) -> Result<Process> {
    let program = std::env::var_os("WEIR_REDIS_SERVER").unwrap_or_else(|| "redis-server".into());
    let mut command = Command::new(program);
    command
        .args(["--port", &options.port.to_string(), "--bind", "127.0.0.1", "--daemonize", "no"])
        .args(["--save", "", "--appendonly", "no"])
        .arg("--dir")
        .arg(folder.path())
        .args(&options.arguments)
        .current_dir(folder.path());
    Process::spawn("redis", command, folder.path())
        .context("Install redis-server, or set WEIR_REDIS_SERVER to where it is")
}
