//! What `just up` can be told, by option or by environment variable, and which ports follow from it.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Parser;
use serde_json::{Value, json};
use weir_envoy::bootstrap::AGGREGATOR_CLUSTER;
use weir_envoy::ports;

/// Run a whole Weir on this machine: an upstream that echoes, an aggregator, and Envoys with the filter.
#[derive(Parser)]
#[command(name = "./justw up", bin_name = "./justw up")]
pub struct Options {
    /// How many Envoys; each next one listens one port higher.
    #[arg(long, env = "WEIR_UP_ENVOYS", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub envoys: u16,
    /// Where the first Envoy listens.
    #[arg(long, env = "WEIR_UP_LISTEN", default_value = "127.0.0.1:10000", value_name = "ADDRESS:PORT")]
    pub listen: SocketAddr,
    /// The first Envoy's admin port.
    #[arg(long, env = "WEIR_UP_ADMIN_PORT", default_value_t = 9901, value_name = "PORT")]
    pub admin_port: u16,
    /// The aggregator's port for filters.
    #[arg(long, env = "WEIR_UP_GRPC_PORT", default_value_t = 7071, value_name = "PORT")]
    pub grpc_port: u16,
    /// The aggregator's port for operators.
    #[arg(long, env = "WEIR_UP_AGGREGATOR_ADMIN_PORT", default_value_t = 7070, value_name = "PORT")]
    pub aggregator_admin_port: u16,
    /// The echoing upstream's port.
    #[arg(long, env = "WEIR_UP_UPSTREAM_PORT", default_value_t = 7080, value_name = "PORT")]
    pub upstream_port: u16,
    /// Worker threads of each Envoy.
    #[arg(long, env = "WEIR_UP_CONCURRENCY", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub concurrency: u32,
    /// The filter's configuration, a JSON file. Without it: 10 requests a minute for each x-api-key.
    #[arg(long, env = "WEIR_UP_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// The ports of one Envoy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnvoyPorts {
    pub listen: SocketAddr,
    pub admin: u16,
}

impl Options {
    /// The filter's configuration.
    pub fn plugin_config(&self) -> Result<Value> {
        let Some(file) = &self.config else { return Ok(demo_config()) };
        let text = std::fs::read(file).with_context(|| format!("reading {}", file.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("{} is not JSON", file.display()))
    }

    pub fn envoy_ports(&self) -> Result<Vec<EnvoyPorts>> {
        let nth = |first: u16, index| {
            first.checked_add(index).context("the ports of so many Envoys end past 65535")
        };
        let of_envoy = |index| {
            let listen = SocketAddr::new(self.listen.ip(), nth(self.listen.port(), index)?);
            Ok(EnvoyPorts { listen, admin: nth(self.admin_port, index)? })
        };
        (0..self.envoys).map(of_envoy).collect()
    }

    /// Fails with every port that cannot be used, what wants it, and how to choose another.
    pub fn check_ports(&self) -> Result<()> {
        let mut wanted = vec![
            (ports::local(self.upstream_port), "the upstream".to_owned(), "--upstream-port"),
            (ports::local(self.grpc_port), "the aggregator's gRPC".to_owned(), "--grpc-port"),
            (
                ports::local(self.aggregator_admin_port),
                "the aggregator's admin".to_owned(),
                "--aggregator-admin-port",
            ),
        ];
        for (number, envoy) in (1..).zip(self.envoy_ports()?) {
            wanted.push((envoy.listen, format!("Envoy {number}"), "--listen"));
            wanted.push((ports::local(envoy.admin), format!("Envoy {number}'s admin"), "--admin-port"));
        }
        let mut problems = Vec::new();
        let mut seen = Vec::new();
        for (address, what, option) in wanted {
            let variable =
                format!("WEIR_UP_{}", option.trim_start_matches("--").replace('-', "_").to_uppercase());
            let remedy = format!("choose another with {option} or {variable}");
            if seen.contains(&address.port()) {
                problems.push(format!("port {} is wanted twice, now for {what}: {remedy}", address.port()));
            } else if let Err(error) = ports::check_free(address) {
                problems
                    .push(format!("port {} for {what} cannot be used ({error}): {remedy}", address.port()));
            }
            seen.push(address.port());
        }
        if problems.is_empty() { Ok(()) } else { bail!("{}", problems.join("\n       ")) }
    }
}

fn demo_config() -> Value {
    json!({
        "workspace": "demo",
        "aggregator": { "cluster": AGGREGATOR_CLUSTER },
        "rules": [{ "name": "per-key", "identifier": { "header": "x-api-key" }, "limit": 10, "window": "1m" }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(arguments: &[&str]) -> Options {
        Options::parse_from([&["up"], arguments].concat())
    }

    #[test]
    fn each_envoy_listens_one_port_higher() {
        let ports = options(&["--envoys", "2", "--listen", "0.0.0.0:20000"]).envoy_ports().unwrap();
        let expected = [("0.0.0.0:20000", 9901), ("0.0.0.0:20001", 9902)]
            .map(|(listen, admin)| EnvoyPorts { listen: listen.parse().unwrap(), admin });
        assert_eq!(ports, expected);
        assert!(options(&["--envoys", "2", "--admin-port", "65535"]).envoy_ports().is_err());
    }

    #[test]
    fn a_busy_port_is_named_with_its_remedy() {
        let busy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = busy.local_addr().unwrap().port().to_string();
        let error =
            options(&["--grpc-port", &port, "--upstream-port", &port]).check_ports().unwrap_err().to_string();
        for expected in [&*port, "--grpc-port", "WEIR_UP_GRPC_PORT", "wanted twice", "in use"] {
            assert!(error.contains(expected), "{expected} is not in: {error}");
        }
    }

    #[test]
    fn a_configuration_file_is_read_or_refused_by_name() {
        assert_eq!(options(&[]).plugin_config().unwrap()["rules"][0]["limit"], 10);
        let error = options(&["--config", "/nowhere.json"]).plugin_config().unwrap_err();
        assert!(format!("{error:#}").contains("/nowhere.json"));
    }
}
