//! What is measured: one Envoy after another with the same route, and nothing, something or Weir before it.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use serde_json::{Value, json};
use weir_envoy::bootstrap::AGGREGATOR_CLUSTER;
use weir_envoy::{Aggregator, AggregatorOptions, Envoy, EnvoyOptions, Filter, Weir, binaries};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Variant {
    /// No filter at all: what the others are compared with.
    None,
    /// Envoy's own local_ratelimit, allowing.
    Local,
    /// A filter on the same SDK that reads one header: the least that any such filter adds.
    Noop,
    /// Weir allowing, where leases serve: a million a minute for each key.
    Leased,
    /// Weir allowing, where each request charges the table: 10 a minute for each of many keys.
    Unleased,
    /// Weir denying.
    Denying,
}

impl Variant {
    pub fn title(self) -> &'static str {
        match self {
            Self::None => "no filter",
            Self::Local => "native local_ratelimit",
            Self::Noop => "no-op filter, one header",
            Self::Leased => "Weir allowing, 1 M/min",
            Self::Unleased => "Weir allowing, 10/min",
            Self::Denying => "Weir denying",
        }
    }

    pub fn denies(self) -> bool {
        self == Self::Denying
    }

    /// Identifiers that the requests name in turn. Where the limit is low they must be many, so that none is used up.
    pub fn identifiers(self, requests_max: u64) -> u64 {
        match self {
            Self::Unleased => (requests_max / 8).max(10_000),
            _ => 10_000,
        }
    }

    fn limit(self) -> Option<u64> {
        match self {
            Self::None | Self::Local | Self::Noop => None,
            Self::Leased => Some(1_000_000),
            Self::Unleased => Some(10),
            Self::Denying => Some(1),
        }
    }

    fn filter(self) -> Result<Filter> {
        let wasm = |file: PathBuf, config| Filter::Weir(Weir::new(file, config));
        Ok(match (self, self.limit()) {
            (_, Some(limit)) => wasm(binaries::filter()?, plugin_config(limit)),
            (Self::Local, None) => Filter::Local { tokens: u32::MAX },
            (Self::Noop, None) => wasm(binaries::from_environment("WEIR_NOOP_WASM")?, json!({})),
            (_, None) => Filter::None,
        })
    }
}

/// An Envoy that is ready to be measured, and what it needs.
pub struct Scene {
    pub envoy: Envoy,
    _aggregator: Option<Aggregator>,
}

impl Scene {
    /// A fresh Envoy and, for Weir, a fresh aggregator: no count is left from the round before.
    pub async fn start(variant: Variant) -> Result<Self> {
        let aggregator = match variant.limit() {
            Some(_) => Some(Aggregator::start(AggregatorOptions::default()).await?),
            None => None,
        };
        let aggregator_ports = aggregator.iter().map(Aggregator::grpc_port).collect();
        let options = EnvoyOptions { filter: variant.filter()?, aggregator_ports, ..EnvoyOptions::default() };
        let envoy = Envoy::start(options).await?;
        if aggregator.is_some() {
            let streams = format!("cluster.{AGGREGATOR_CLUSTER}.upstream_rq_active");
            envoy.wait_stat(&streams, CONNECT_TIMEOUT, |active| active > 0).await?;
        }
        Ok(Self { envoy, _aggregator: aggregator })
    }
}

fn plugin_config(limit: u64) -> Value {
    json!({
        "workspace": "bench",
        "aggregator": { "cluster": AGGREGATOR_CLUSTER },
        "rules": [{
            "name": "per-key",
            "identifier": { "header": "x-api-key" },
            "limit": limit,
            "window": "1m",
            "unknown_key": "assume_low",
        }],
    })
}
