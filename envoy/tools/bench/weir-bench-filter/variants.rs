//! What is measured: one Envoy after another with the same route, and nothing, a floor or Weir before it.

use std::path::PathBuf;
use std::time::Duration;

use crate::client::Requests;
use anyhow::Result;
use clap::ValueEnum;
use serde_json::{Value, json};
use weir_envoy::bootstrap::AGGREGATOR_CLUSTER;
use weir_envoy::{Aggregator, AggregatorOptions, Envoy, EnvoyOptions, Filter, Weir, binaries};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The header whose value is the key.
pub const KEY_HEADER: &str = "x-api-key";
/// Copies of a filter in a chain.
const CHAIN: usize = 10;
/// So much a minute that leases serve.
const HIGH_LIMIT: u64 = 1_000_000;
/// The highest limit of which no lease is taken: a lease is at least 4, and at most a 64th.
const LOW_LIMIT: u64 = 255;

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Variant {
    /// No filter.
    None,
    /// Envoy's own local_ratelimit, allowing.
    Local,
    /// Envoy's own local_ratelimit, denying.
    LocalDenying,
    /// A filter on the same SDK that reads one header.
    Noop,
    /// Floor (a): one header.
    FloorHeader,
    /// Floor (b): all headers and the time.
    FloorHeaders,
    /// Weir allowing, where leases serve.
    Leased,
    /// Weir with eight rules of which one applies, where leases serve.
    EightRules,
    /// Weir with 10 000 keys at random: leases serve some requests.
    TenThousandKeys,
    /// Weir with a million keys at random: nearly every request has a key that is not in the table.
    MillionKeys,
    /// Floor (c): all headers, the time, and one get and set of shared data.
    FloorCharge,
    /// Weir allowing, where each request charges the table.
    Charged,
    /// Floor (d): all headers, the time, and a local response with Weir's headers.
    FloorDenial,
    /// Weir denying.
    Denied,
    /// No filter, with the headers of a browser.
    NoneManyHeaders,
    /// Floor (b) with the headers of a browser.
    FloorManyHeaders,
    /// Weir with the headers of a browser, where leases serve.
    LeasedManyHeaders,
    /// Envoy's own local_ratelimit in a chain of one.
    LocalAlone,
    /// The no-op in a chain of one.
    NoopAlone,
    /// Floor (b) in a chain of one.
    FloorHeadersAlone,
    /// Weir in a chain of one, where leases serve.
    LeasedAlone,
    /// Floor (c) in a chain of one.
    FloorChargeAlone,
    /// Weir in a chain of one, where each request charges the table.
    ChargedAlone,
    /// No filter, with two workers.
    NoneTwoWorkers,
    /// Weir with two workers, where leases serve.
    LeasedTwoWorkers,
    /// The native filter allowing, where leases serve.
    NativeLeased,
    /// The native filter allowing, where each request charges the table.
    NativeCharged,
    /// The native filter denying.
    NativeDenied,
    /// The native filter in a chain of one, where leases serve.
    NativeLeasedAlone,
    /// The native filter in a chain of one, where each request charges the table.
    NativeChargedAlone,
}

/// What a variant measures.
pub struct Measure {
    pub title: &'static str,
    pub filter: FilterKind,
    /// What the floor of this path is.
    pub floor: Option<Variant>,
    /// The same without a filter.
    pub without: Variant,
    pub denies: bool,
    /// How often the filter stands in the chain.
    pub chain: usize,
    pub many_headers: bool,
    pub workers: u32,
    /// Number of keys.
    pub keys: u64,
}

/// A filter before the route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterKind {
    None,
    /// Envoy's own, with so many tokens an hour.
    Local(u32),
    Noop,
    Floor(&'static str),
    /// Weir with this limit for each key.
    Weir {
        limit: u64,
        window: &'static str,
        rules: usize,
    },
    /// The same with the native filter.
    Native {
        limit: u64,
    },
}

impl Measure {
    /// A chain of filters that let requests of a hundred keys pass, on one worker.
    fn plain(title: &'static str, filter: FilterKind, floor: Option<Variant>) -> Measure {
        Measure {
            title,
            filter,
            floor,
            without: Variant::None,
            denies: false,
            chain: CHAIN,
            many_headers: false,
            workers: 1,
            keys: 100,
        }
    }
}

impl Variant {
    /// What the native filter is compared with: each of its variants, after that of WASM.
    pub const NATIVE: [(Self, Self); 5] = [
        (Self::Leased, Self::NativeLeased),
        (Self::Charged, Self::NativeCharged),
        (Self::Denied, Self::NativeDenied),
        (Self::LeasedAlone, Self::NativeLeasedAlone),
        (Self::ChargedAlone, Self::NativeChargedAlone),
    ];

    /// Whether it measures the native filter.
    pub fn is_native(self) -> bool {
        Self::NATIVE.iter().any(|(_, native)| *native == self)
    }

    pub fn measure(self) -> Measure {
        let plain = Measure::plain;
        let weir = |limit, window| FilterKind::Weir { limit, window, rules: 1 };
        let leased = weir(HIGH_LIMIT, "1m");
        let many = |measure| Measure { many_headers: true, without: Self::NoneManyHeaders, ..measure };
        let two = |measure| Measure { workers: 2, without: Self::NoneTwoWorkers, ..measure };
        match self {
            Self::None => plain("no filter", FilterKind::None, None),
            Self::Local => plain("native local_ratelimit", FilterKind::Local(u32::MAX), None),
            Self::LocalDenying => Measure {
                denies: true,
                ..plain("native local_ratelimit, denying", FilterKind::Local(1), None)
            },
            Self::Noop => plain("no-op on the same SDK, one header", FilterKind::Noop, None),
            Self::FloorHeader => plain("(a) one header", FilterKind::Floor("header"), None),
            Self::FloorHeaders => plain("(b) all headers, the time", FilterKind::Floor("headers"), None),
            Self::Leased => plain("Weir, a lease serves", leased, Some(Self::FloorHeaders)),
            Self::EightRules => plain(
                "the same, one of eight rules applies",
                FilterKind::Weir { limit: HIGH_LIMIT, window: "1m", rules: 8 },
                Some(Self::FloorHeaders),
            ),
            Self::TenThousandKeys => Measure {
                keys: 10_000,
                ..plain("Weir, 10 000 keys at random", leased, Some(Self::FloorHeaders))
            },
            Self::MillionKeys => Measure {
                keys: 1_000_000,
                ..plain("Weir, 1 000 000 keys at random", leased, Some(Self::FloorCharge))
            },
            Self::FloorCharge => {
                plain("(c) as (b), one get and set of shared data", FilterKind::Floor("charge"), None)
            }
            Self::Charged => Measure {
                keys: 10_000,
                ..plain("Weir, the table is charged", weir(LOW_LIMIT, "1m"), Some(Self::FloorCharge))
            },
            Self::FloorDenial => Measure {
                denies: true,
                ..plain("(d) as (b), a local response with Weir's headers", FilterKind::Floor("denial"), None)
            },
            Self::Denied => Measure {
                denies: true,
                ..plain("Weir, denied from memory", weir(1, "1h"), Some(Self::FloorDenial))
            },
            Self::NoneManyHeaders => many(plain("no filter, 20 headers", FilterKind::None, None)),
            Self::FloorManyHeaders => {
                many(plain("(b) with 20 headers of a browser", FilterKind::Floor("headers"), None))
            }
            Self::LeasedManyHeaders => {
                many(plain("Weir, a lease serves, 20 headers", leased, Some(Self::FloorManyHeaders)))
            }
            Self::LocalAlone
            | Self::NoopAlone
            | Self::FloorHeadersAlone
            | Self::LeasedAlone
            | Self::FloorChargeAlone
            | Self::ChargedAlone => self.alone(),
            Self::NoneTwoWorkers => two(plain("no filter, two workers", FilterKind::None, None)),
            Self::LeasedTwoWorkers => two(plain("Weir, a lease serves, two workers", leased, None)),
            Self::NativeLeased
            | Self::NativeCharged
            | Self::NativeDenied
            | Self::NativeLeasedAlone
            | Self::NativeChargedAlone => self.native(),
        }
    }

    /// A variant with the native filter: as with WASM, without a floor.
    fn native(self) -> Measure {
        let (title, wasm) = match self {
            Self::NativeLeased => ("native Weir, a lease serves", Self::Leased),
            Self::NativeCharged => ("native Weir, the table is charged", Self::Charged),
            Self::NativeDenied => ("native Weir, denied from memory", Self::Denied),
            Self::NativeLeasedAlone => ("native Weir alone, a lease serves", Self::LeasedAlone),
            _ => ("native Weir alone, the table is charged", Self::ChargedAlone),
        };
        let wasm = wasm.measure();
        let filter = match wasm.filter {
            FilterKind::Weir { limit, .. } => FilterKind::Native { limit },
            other => other,
        };
        Measure { title, filter, floor: None, ..wasm }
    }

    /// A variant whose filter stands in a chain of one.
    fn alone(self) -> Measure {
        let (title, ten, floor) = match self {
            Self::LocalAlone => ("native local_ratelimit alone", Self::Local, None),
            Self::NoopAlone => ("no-op alone", Self::Noop, None),
            Self::FloorHeadersAlone => ("(b) alone", Self::FloorHeaders, None),
            Self::FloorChargeAlone => ("(c) alone", Self::FloorCharge, None),
            Self::ChargedAlone => {
                ("Weir alone, the table is charged", Self::Charged, Some(Self::FloorChargeAlone))
            }
            _ => ("Weir alone, a lease serves", Self::Leased, Some(Self::FloorHeadersAlone)),
        };
        Measure { title, chain: 1, floor, ..ten.measure() }
    }
}

impl Measure {
    /// Whether no filter stands in the chain.
    pub fn is_bare(&self) -> bool {
        self.filter == FilterKind::None
    }

    /// How often the filter stands in the chain. The first one that denies ends it.
    pub fn copies(&self) -> usize {
        if self.denies { 1 } else { self.chain }
    }

    pub fn requests(&self) -> Requests {
        Requests { keys: self.keys, many_headers: self.many_headers }
    }

    fn filter(&self) -> Result<Filter> {
        let wasm = |file: PathBuf, config| Filter::Weir(Weir::new(file, config));
        Ok(match self.filter {
            FilterKind::None => Filter::None,
            FilterKind::Local(tokens) => Filter::Local { tokens },
            FilterKind::Noop => wasm(binaries::from_environment("WEIR_NOOP_WASM")?, json!({})),
            FilterKind::Floor(floor) => wasm(binaries::from_environment("WEIR_FLOOR_WASM")?, json!(floor)),
            FilterKind::Weir { limit, window, rules } => {
                wasm(binaries::wasm_filter()?, plugin_config(limit, window, rules))
            }
            FilterKind::Native { limit } => {
                let window = if self.denies { "1h" } else { "1m" };
                wasm(binaries::native_filter()?, plugin_config(limit, window, 1))
            }
        })
    }
}

/// An Envoy that is measured, and what it needs.
pub struct Scene {
    pub envoy: Envoy,
    pub measure: Measure,
    _aggregator: Option<Aggregator>,
}

impl Scene {
    pub async fn start(measure: Measure) -> Result<Self> {
        let aggregator = match measure.filter {
            FilterKind::Weir { .. } | FilterKind::Native { .. } => {
                Some(Aggregator::start(AggregatorOptions::default()).await?)
            }
            _ => None,
        };
        let options = EnvoyOptions {
            filter: measure.filter()?,
            copies: measure.copies(),
            concurrency: measure.workers,
            aggregator_ports: aggregator.iter().map(Aggregator::grpc_port).collect(),
            ..EnvoyOptions::default()
        };
        let envoy = Envoy::start(options).await?;
        if aggregator.is_some() {
            let streams = format!("cluster.{AGGREGATOR_CLUSTER}.upstream_rq_active");
            envoy.wait_stat(&streams, CONNECT_TIMEOUT, |active| active > 0).await?;
        }
        Ok(Self { envoy, measure, _aggregator: aggregator })
    }
}

/// Weir with one rule, where leases serve.
pub fn weir_filter() -> Result<Filter> {
    Ok(Filter::Weir(Weir::new(binaries::wasm_filter()?, plugin_config(HIGH_LIMIT, "1m", 1))))
}

/// One rule that applies, after the others that do not.
fn plugin_config(limit: u64, window: &str, rules: usize) -> Value {
    let rule = |name: String| {
        json!({
            "name": name,
            "identifier": { "header": KEY_HEADER },
            "limit": limit,
            "window": window,
            "unknown_key": "assume_low",
        })
    };
    let others = (1..rules).map(|number| {
        let mut other = rule(format!("other-{number}"));
        other["match"] = json!({ "path": { "prefix": format!("/service-{number}/") } });
        other
    });
    json!({
        "workspace": "bench",
        "aggregator": { "cluster": AGGREGATOR_CLUSTER },
        "rules": others.chain([rule("per-key".to_owned())]).collect::<Vec<_>>(),
    })
}
