//! The options of `just up`, also as environment variables, and the ports that follow from them.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Error, Result, bail};
use clap::Parser;
use serde_json::{Value, json};
use weir_core::rules::{Config, Documents, documents};
use weir_envoy::bootstrap::AGGREGATOR_CLUSTER;
use weir_envoy::ports;

/// Run a whole Weir on this machine: an upstream that echoes, an aggregator, and Envoys with the filter.
#[derive(Parser)]
#[command(name = "./justw up", bin_name = "./justw up")]
pub struct Options {
    /// How many regions. They share the database that WEIR_DATABASE_URL names, or an SQLite file that is removed
    /// at the end; it also holds live control.
    #[arg(long, env = "WEIR_UP_REGIONS", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=4))]
    pub regions: u16,
    /// How many aggregators each region has; more than one need a Redis, named by WEIR_REDIS_URL.
    #[arg(long, env = "WEIR_UP_AGGREGATORS", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=4))]
    pub aggregators: u16,
    /// How many Envoys each region has; each next one listens one port higher.
    #[arg(long, env = "WEIR_UP_ENVOYS", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub envoys: u16,
    /// Where the first Envoy listens.
    #[arg(long, env = "WEIR_UP_LISTEN", default_value = "127.0.0.1:10000", value_name = "ADDRESS:PORT")]
    pub listen: SocketAddr,
    /// The first Envoy's admin port.
    #[arg(long, env = "WEIR_UP_ADMIN_PORT", default_value_t = 9901, value_name = "PORT")]
    pub admin_port: u16,
    /// The first aggregator's port for filters; each next one's is a hundred higher.
    #[arg(long, env = "WEIR_UP_GRPC_PORT", default_value_t = 7071, value_name = "PORT")]
    pub grpc_port: u16,
    /// The first aggregator's port for operators; each next one's is a hundred higher.
    #[arg(long, env = "WEIR_UP_AGGREGATOR_ADMIN_PORT", default_value_t = 7070, value_name = "PORT")]
    pub aggregator_admin_port: u16,
    /// The first aggregator's port for applications and live control; each next one's is a hundred higher.
    #[arg(long, env = "WEIR_UP_HTTP_PORT", default_value_t = 7072, value_name = "PORT")]
    pub http_port: u16,
    /// The echoing upstream's port.
    #[arg(long, env = "WEIR_UP_UPSTREAM_PORT", default_value_t = 7080, value_name = "PORT")]
    pub upstream_port: u16,
    /// Worker threads of each Envoy.
    #[arg(long, env = "WEIR_UP_CONCURRENCY", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub concurrency: u32,
    /// The filter's own object, in JSON or YAML. Without it: 10 requests a minute for each x-api-key.
    #[arg(long, env = "WEIR_UP_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Between two lines of an error, which begins with `error: `.
const NEXT_LINE: &str = "\n       ";

/// Between the ports of an aggregator and those of the next one.
const NEXT_AGGREGATOR: usize = 100;

/// The ports of one aggregator, and its region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AggregatorPlan {
    pub region: String,
    pub grpc: u16,
    pub admin: u16,
    pub http: u16,
}

/// The ports of one Envoy, and of the aggregators of its region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvoyPlan {
    pub region: String,
    pub ports: EnvoyPorts,
    pub aggregators: Vec<u16>,
}

/// The ports of one Envoy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnvoyPorts {
    pub listen: SocketAddr,
    pub admin: u16,
}

impl Options {
    /// The filter's configuration, as its own parser accepts it. Its aggregator is the one that is started here, whatever name its cluster
    /// has.
    pub fn plugin_config(&self) -> Result<Value> {
        let Some(file) = &self.config else { return Ok(demo_config()) };
        let text = std::fs::read(file).with_context(|| format!("reading {}", file.display()))?;
        let mut config = object_of(&text).with_context(|| format!("reading {}", file.display()))?;
        judge(&config).with_context(|| format!("the filter refuses {}", file.display()))?;
        if let Some(cluster) = config.pointer_mut("/aggregator/cluster").filter(|cluster| cluster.is_string())
        {
            *cluster = AGGREGATOR_CLUSTER.into();
        }
        Ok(config)
    }

    /// All aggregators, region by region.
    pub fn aggregators(&self) -> Result<Vec<AggregatorPlan>> {
        let regions = (1..=self.regions).flat_map(|number| (0..self.aggregators).map(move |_| number));
        let plan = |(number, step)| {
            Ok(AggregatorPlan {
                region: self.region(number),
                grpc: nth(self.grpc_port, step)?,
                admin: nth(self.aggregator_admin_port, step)?,
                http: nth(self.http_port, step)?,
            })
        };
        regions.zip((0..).step_by(NEXT_AGGREGATOR)).map(plan).collect()
    }

    /// All Envoys, region by region.
    pub fn envoys(&self) -> Result<Vec<EnvoyPlan>> {
        let aggregators = self.aggregators()?;
        let plan = |index: u16| {
            let region = self.region(index / self.envoys + 1);
            let listen = SocketAddr::new(self.listen.ip(), nth(self.listen.port(), index)?);
            let ports = EnvoyPorts { listen, admin: nth(self.admin_port, index)? };
            let of_region = aggregators.iter().filter(|aggregator| aggregator.region == region);
            let aggregators = of_region.map(|aggregator| aggregator.grpc).collect();
            Ok(EnvoyPlan { region, ports, aggregators })
        };
        (0..self.regions * self.envoys).map(plan).collect()
    }

    /// Rejects options that do not fit together.
    pub fn check_stores(&self, redis_url: Option<&str>) -> Result<()> {
        if self.aggregators > 1 && redis_url.is_none_or(str::is_empty) {
            bail!(
                "several aggregators of a region meet in a Redis, and none is named: set WEIR_REDIS_URL, as in redis://127.0.0.1:6379"
            );
        }
        Ok(())
    }

    fn region(&self, number: u16) -> String {
        if self.regions == 1 { "local".to_owned() } else { format!("region-{number}") }
    }

    /// Fails with every port that cannot be used, what wants it, and how to choose another.
    pub fn check_ports(&self) -> Result<()> {
        let mut wanted =
            vec![(ports::local(self.upstream_port), "the upstream".to_owned(), "--upstream-port")];
        for (number, aggregator) in (1..).zip(self.aggregators()?) {
            let what = |port| format!("aggregator {number}'s {port}");
            wanted.push((ports::local(aggregator.grpc), what("gRPC"), "--grpc-port"));
            wanted.push((ports::local(aggregator.admin), what("admin"), "--aggregator-admin-port"));
            wanted.push((ports::local(aggregator.http), what("HTTP"), "--http-port"));
        }
        for (number, EnvoyPlan { ports: envoy, .. }) in (1..).zip(self.envoys()?) {
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
        if problems.is_empty() { Ok(()) } else { bail!("{}", problems.join(NEXT_LINE)) }
    }
}

/// The filter's object in a text, as `weir-aggregator check-config` reads it.
fn object_of(text: &[u8]) -> Result<Value> {
    let document = documents(text).and_then(Documents::into_one).map_err(Error::msg)?;
    if let Some(field) = document.repeated.first() {
        bail!("{}: {}", field.path, field.problem());
    }
    let config = document.value.to_json();
    match config.get("rules") {
        Some(_) => Ok(config),
        None => bail!("it is not the filter's own object, which has \"rules\""),
    }
}

/// Refuses a configuration that the filter would refuse. Envoy inherits the variables that it names.
fn judge(config: &Value) -> Result<()> {
    let variables = |name: &str| std::env::var(name).ok();
    match Config::parse_with(config.to_string().as_bytes(), &variables) {
        Ok(_) => Ok(()),
        Err(errors) => bail!("{}", errors.to_string().replace('\n', NEXT_LINE)),
    }
}

/// The port `steps` above `first`.
fn nth(first: u16, steps: u16) -> Result<u16> {
    first.checked_add(steps).context("so many ports end past 65535")
}

fn demo_config() -> Value {
    json!({
        "aggregator": { "cluster": AGGREGATOR_CLUSTER },
        "rules": [{ "name": "per-key", "identifier": { "header": "x-api-key" }, "limit": 10, "window": "1m" }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn options(arguments: &[&str]) -> Options {
        Options::parse_from([&["up"], arguments].concat())
    }

    #[test]
    fn each_envoy_listens_one_port_higher() {
        let envoys = options(&["--envoys", "2", "--listen", "0.0.0.0:20000"]).envoys().unwrap();
        let expected = [("0.0.0.0:20000", 9901), ("0.0.0.0:20001", 9902)]
            .map(|(listen, admin)| EnvoyPorts { listen: listen.parse().unwrap(), admin });
        assert_eq!(envoys.iter().map(|envoy| envoy.ports).collect::<Vec<_>>(), expected);
        assert!(options(&["--envoys", "2", "--admin-port", "65535"]).envoys().is_err());
    }

    #[test]
    fn each_region_has_its_own_aggregators_and_envoys() {
        let options = options(&["--regions", "2", "--aggregators", "2"]);
        let aggregators: Vec<_> = options
            .aggregators()
            .unwrap()
            .into_iter()
            .map(|aggregator| (aggregator.region, aggregator.grpc, aggregator.admin, aggregator.http))
            .collect();
        let expected = [(1, 7070), (1, 7170), (2, 7270), (2, 7370)]
            .map(|(number, first)| (format!("region-{number}"), first + 1, first, first + 2));
        assert_eq!(aggregators, expected);
        let envoys = options.envoys().unwrap();
        let seen: Vec<_> = envoys.iter().map(|envoy| (&*envoy.region, &envoy.aggregators[..])).collect();
        assert_eq!(seen, [("region-1", &[7071, 7171][..]), ("region-2", &[7271, 7371])]);
        assert!(options.check_stores(None).is_err());
        assert!(options.check_stores(Some("redis://127.0.0.1")).is_ok());
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
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(br#"{"aggregator": {"cluster": "elsewhere"}, "rules": [{"name": "all", "identifier": {"header": "x-key"}, "limit": 1, "window": "1m"}]}"#).unwrap();
        let read = options(&["--config", file.path().to_str().unwrap()]).plugin_config().unwrap();
        assert_eq!(read["aggregator"]["cluster"], AGGREGATOR_CLUSTER);
    }

    #[test]
    fn a_configuration_that_the_filter_refuses_is_refused_with_all_its_errors() {
        let refused = json!({ "aggregator": { "cluster": "weir", "token_env": "WEIR_UP_TEST_UNSET" }, "rules": [
            { "name": "per-key", "identifier": { "header": "x-api-key" }, "limit": "many", "window": "1y" },
        ]});
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(refused.to_string().as_bytes()).unwrap();
        let path = file.path().to_str().unwrap();
        let error = format!("{:#}", options(&["--config", path]).plugin_config().unwrap_err());
        assert_eq!(error.lines().count(), 3, "{error}");
        for part in
            ["the filter refuses", path, "rules[0].limit: ", "rules[0].window: ", "WEIR_UP_TEST_UNSET"]
        {
            assert!(error.contains(part), "{part} is not in: {error}");
        }
    }

    #[test]
    fn a_configuration_may_be_yaml_as_in_the_pages() {
        let read = |text: &str| {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(text.as_bytes()).unwrap();
            options(&["--config", file.path().to_str().unwrap()]).plugin_config()
        };
        let rule = "aggregator: { cluster: weir }\nrules:\n  - name: per-key\n    identifier: { header: x-key }\n    limit: 100\n    window: 1m\n";
        let config = read(rule).unwrap();
        assert_eq!(
            (&config["rules"][0]["limit"], &config["rules"][0]["window"]),
            (&100.into(), &"1m".into())
        );
        assert_eq!(config["aggregator"]["cluster"], AGGREGATOR_CLUSTER);
        // As Envoy reads them.
        let config = object_of(b"rules: [{ limit: 010, share: 12.5, name: yes }]\n").unwrap();
        assert_eq!(config["rules"][0], json!({ "limit": 8, "share": "12.5", "name": true }));
        for (text, part) in [
            ("static_resources: {}\n", "the filter's own object"),
            ("rules", "the filter's own object"),
            ("a: b: c", "neither JSON nor YAML"),
            ("{\"rules\": [],}", "it is not JSON"),
            ("rules: []\nrules: []\n", "rules: it is given twice, again at line 2, column 1"),
            ("{\"rules\": [], \"rules\": []}", "rules: it is given twice"),
            ("rules: []\n---\nrules: []\n", "it has 2 documents"),
            ("", "it is empty"),
            ("rules:\n\t- name: a\n", "is indented with a tab"),
        ] {
            let error = format!("{:#}", read(text).unwrap_err());
            assert!(error.contains(part), "{error}");
        }
    }
}
